"""Analyze scripts for the editors sed, ed and vim, which can run shell commands and write files."""

from __future__ import annotations

import re

from shellverdict.embedded_code.analysis import AnalysisBuilder, CodeAnalysis
from shellverdict.embedded_code.call_scanner import CallScanner
from shellverdict.embedded_code.tokenizer import SYNTAX, tokenize
from shellverdict.shell.words import GAP

__all__ = ["analyze_ed", "analyze_sed", "analyze_vim"]


def analyze_sed(code: str) -> CodeAnalysis:
    """Return the commands (`e`, `s///e`) and the written files (`w`, `s///w`) of a sed script."""
    analysis = AnalysisBuilder()
    _SedScript(code, analysis).read()
    return analysis.build()


class _SedScript:
    """Parser for one sed script."""

    def __init__(self, code: str, analysis: AnalysisBuilder) -> None:
        self.code, self.analysis, self.at = code, analysis, 0

    def read(self) -> None:
        while self.at < len(self.code):
            before = self.at
            self._skip_characters(" \t;\n{}")
            self._skip_addresses()
            if self.at < len(self.code):
                self.at += 1
                self._analyze_command(self.code[self.at - 1])
            self.at = max(self.at, before + 1)

    def _skip_characters(self, letters: str) -> None:
        while self.at < len(self.code) and self.code[self.at] in letters:
            self.at += 1

    def _skip_addresses(self) -> None:
        while self.at < len(self.code):
            letter = self.code[self.at]
            if letter == "/":
                self._read_delimited("/")
            elif letter == "\\" and self.at + 1 < len(self.code):
                self.at += 1
                self._read_delimited(self.code[self.at])
            elif letter not in "0123456789$,~+! \tIM":
                return
            else:
                self.at += 1

    def _read_delimited(self, delimiter: str) -> str:
        """Return the text up to the next delimiter; the current position must be at the opening delimiter."""
        begin = at = self.at + 1
        code, bracket = self.code, False
        while at < len(code) and (bracket or code[at] != delimiter) and (code[at] != "\n" or bracket):
            bracket = (bracket or code[at] == "[") and not (code[at] == "]" and code[at - 1] not in "[^")
            at += 2 if code[at] == "\\" else 1
        if at >= len(code) and bracket:  # an unclosed bracket must not hide the rest of the script
            at = begin
            while at < len(code) and code[at] != delimiter:
                at += 2 if code[at] == "\\" else 1
        self.at = min(at + 1, len(code))
        return code[begin:at]

    def _read_line(self) -> str:
        end = self.code.find("\n", self.at)
        end = len(self.code) if end < 0 else end
        text, self.at = self.code[self.at : end].strip(), end
        return text

    def _analyze_command(self, letter: str) -> None:
        if letter == "e":
            self._add_shell(self._read_line())
        elif letter in "wW":
            self._add_write(self._read_line())
        elif letter in "sy" and self.at < len(self.code):
            self._analyze_substitution(letter)
        elif letter in "aicrR#":
            self._read_line()
        elif letter in ":btTqQlL":
            while self.at < len(self.code) and self.code[self.at] not in ";\n}":
                self.at += 1

    def _add_shell(self, command: str) -> None:
        self.analysis.add_script(command.rstrip("}") if command and command not in (";", "}") else GAP)

    def _add_write(self, path: str) -> None:
        if path and path not in ("/dev/stdout", "/dev/stderr"):
            self.analysis.add_overwrite(path.rstrip("} "))

    def _analyze_substitution(self, letter: str) -> None:
        delimiter = self.code[self.at]
        pattern = self._read_delimited(delimiter)
        self.at -= 1
        replacement = self._read_delimited(delimiter)
        begin = self.at
        while self.at < len(self.code) and self.code[self.at] in "gpiIemM0123456789":
            self.at += 1
        flags = self.code[begin : self.at]
        if letter == "s" and self.code[self.at : self.at + 1] == "w":
            self.at += 1
            self._add_write(self._read_line())
        if letter == "s" and "e" in flags:
            self._add_shell(_substituted_line(pattern, replacement, delimiter))


def _substituted_line(pattern: str, replacement: str, delimiter: str) -> str:
    """Return the line that sed's `s///` command produces, with placeholders for unknown parts."""
    text = re.sub(r"\\[0-9]|(?<!\\)&", GAP, replacement)
    text = text.replace("\\" + delimiter, delimiter).replace("\\&", "&").replace("\\\\", "\\")
    if pattern in (".*", "^.*$", "^.*", ".*$", ".\\+"):
        return text
    return f"{text}{GAP}" if pattern == "^" else f"{GAP}{text}{GAP}"


_ED_RUNS = re.compile(r"[^!/?a-zA-Z]*(?:(?:[rweE])\s*)?!(.*)")
_ED_WRITES = re.compile(r"[\d,$.%;\s]*[wW]q?\s+([^!\s].*)")


def analyze_ed(code: str) -> CodeAnalysis:
    """Analyze commands of `ed`: `!command`, `r !command`, `w file`."""
    analysis = AnalysisBuilder()
    for line in code.split("\n"):
        if match := _ED_RUNS.match(line):
            analysis.add_script(match[1])
        elif match := _ED_WRITES.match(line):
            analysis.add_overwrite(match[1].strip())
    return analysis.build()


_MAX_DEPTH = 6  # nested commands
_VIM_RANGE = re.compile(r"[\s:]*(?:[%.$\d,;+-]|'[<>a-zA-Z]|/[^/\n]*/)*\s*")
_VIM_PREFIX = re.compile(
    r"(?:sil(?:ent)?|verb(?:ose)?|noa(?:utocmd)?|keepj\w*|keepa\w*|try|vert\w*|tab|unsilent)!?\s+"
)
_VIM_RUNS = re.compile(r"(?:r(?:ead)?!?\s*|w(?:rite)?\s+)?!(.*)", re.DOTALL)
_VIM_WORD = re.compile(r"([a-zA-Z]+3?)(!?)\s*(.*)", re.DOTALL)
_VIM_SHELL_PROGRAMS = re.compile(r"l?(?:(mak|make)|gre?p?|grepa(?:dd?)?)")
"""Commands whose arguments vim passes to a program through a shell."""
_VIM_LANGUAGES = {
    **dict.fromkeys(("py", "python", "py3", "python3", "pyx", "pythonx", "pydo", "py3do"), "python"),
    **dict.fromkeys(("lua", "luado"), "lua"),
    **dict.fromkeys(("perl", "pe", "perldo"), "perl"),
    **dict.fromkeys(("ruby", "rub", "rubydo"), "ruby"),
    "tcl": "tcl",
}
# Options whose value is a program.
_VIM_PROGRAM = re.compile(
    r"(?:grepprg|gp|makeprg|mp|equalprg|ep|formatprg|fp|keywordprg|kp|shell|sh|cscopeprg|printexpr)"
    r"\s*=\s*[\"']?((?:\\.|[^\s\"'\\])(?:\\.|[^\"'\\\s])*)"
)
_VIM_SHELLS = frozenset({"system", "systemlist", "job_start", "termopen", "jobstart", "term_start"})


def analyze_vim(code: str) -> tuple[CodeAnalysis, list[tuple[str, str]]]:
    """Analyze Ex commands of vim; also return embedded code in other languages as (language, code) pairs."""
    analysis = AnalysisBuilder()
    others: list[tuple[str, str]] = []
    for line in code.split("\n"):
        for _ in range(64):
            line = _analyze_vim_command(line, analysis, others)
            if not line:
                break
    return analysis.build(), others


def _analyze_vim_command(
    line: str, analysis: AnalysisBuilder, others: list[tuple[str, str]], depth: int = 0
) -> str:
    """Analyze the first Ex command in a line of vim script, and return the text after the bar (`|`)."""
    line = line[_match_end(_VIM_RANGE, line) :]
    line = line[_match_end(_VIM_PREFIX, line) :]
    if match := _VIM_RUNS.match(line):
        analysis.add_script(match[1])
        return ""
    command, rest = _split_at_bar(line)
    match = _VIM_WORD.match(command)
    if match is None:
        return rest
    name, _, argument = match.groups()
    if name in _VIM_LANGUAGES:
        others.append((_VIM_LANGUAGES[name], line[len(match[1]) :].lstrip("! ")))
        return ""
    if name in ("w", "wr", "write", "sav", "saveas", "wq", "x", "up", "update") and argument:
        analysis.add_append(argument) if argument.startswith(">>") else analysis.add_overwrite(
            argument.lstrip("+ ")
        )
    elif name in ("ter", "term", "terminal") and argument:
        analysis.add_script(argument.lstrip("+ "))
    elif program := _VIM_SHELL_PROGRAMS.fullmatch(name):
        analysis.add_script(f"{'make' if program[1] else 'grep'} {argument}")
    elif name in ("se", "set", "setl", "setlocal", "let") and (option := _VIM_PROGRAM.search(command)):
        analysis.add_script(f"{option[1].replace(chr(92), '')} {GAP}")
    elif name in ("exe", "execute", "norm", "normal", "g", "global", "v", "windo", "bufdo", "argdo"):
        _analyze_nested_vim(name, argument, analysis, others, depth)
    _analyze_vim_functions(command, analysis)
    return rest


def _match_end(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.match(text)
    return match.end() if match else 0


def _split_at_bar(line: str) -> tuple[str, str]:
    """Split a line at the first unquoted, unescaped bar."""
    quote = ""
    for at, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "|" and line[at - 1 : at] != "\\":
            return line[:at], line[at + 1 :]
    return line, ""


def _analyze_nested_vim(
    name: str, argument: str, analysis: AnalysisBuilder, others: list[tuple[str, str]], depth: int
) -> None:
    if name.startswith("exe"):
        strings = [token.text for token in tokenize(argument, SYNTAX["node"]) if token.kind == "string"]
        inner = "".join(strings)
    elif name in ("g", "global", "v"):
        inner = argument[1:].partition(argument[:1])[2] if argument else ""
    else:
        inner = argument.partition(":")[2]
    if inner and depth < _MAX_DEPTH:
        _analyze_vim_command(inner.replace("<cr>", "").replace("\r", ""), analysis, others, depth + 1)
    elif inner:
        analysis.add_unreadable(inner)


def _analyze_vim_functions(command: str, analysis: AnalysisBuilder) -> None:
    """Add the effects of vim functions such as `call system("…")` and `call delete("dir", "rf")`."""
    if "(" not in command:
        return
    scanner = CallScanner(command, "node")
    for at, token in enumerate(scanner.tokens):
        if token.kind != "name" or scanner.mark_at(at + 1) != "(":
            continue
        texts = [text for text in scanner.argument_texts(at) if text is not None]
        if token.text in _VIM_SHELLS:
            analysis.add_script(" ".join(texts) or GAP)
        elif token.text == "delete" and texts:
            analysis.add_delete(texts[0], tree="rf" in texts[1:])
        elif token.text == "writefile" and texts:
            analysis.add_overwrite(texts[-1] if len(texts) < 3 else texts[1])
        elif token.text == "rename" and len(texts) > 1:
            analysis.add_command("mv", "--", *texts[:2])
        elif token.text == "feedkeys" and texts:
            analysis.add_script(texts[0].partition("!")[2])
