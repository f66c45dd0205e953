"""Editors that take commands: sed, ed, and vi with its kin. All of them run shells and write files."""

from __future__ import annotations

import re

from shellverdict.foreign.nouns import Foreign, Found
from shellverdict.foreign.scripts import Calls
from shellverdict.foreign.syntax import SYNTAX, tokens
from shellverdict.shell.words import GAP

__all__ = ["read_ed", "read_sed", "read_vim"]


def read_sed(code: str) -> Foreign:
    """What a sed script runs (`e`, `s///e`) and writes (`w`, `s///w`)."""
    found = Found()
    _Sed(code, found).read()
    return found.foreign


class _Sed:
    def __init__(self, code: str, found: Found) -> None:
        self.code, self.found, self.at = code, found, 0

    def read(self) -> None:
        while self.at < len(self.code):
            before = self.at
            self._skip(" \t;\n{}")
            self._addresses()
            if self.at < len(self.code):
                self.at += 1
                self._command(self.code[self.at - 1])
            self.at = max(self.at, before + 1)

    def _skip(self, letters: str) -> None:
        while self.at < len(self.code) and self.code[self.at] in letters:
            self.at += 1

    def _addresses(self) -> None:
        while self.at < len(self.code):
            letter = self.code[self.at]
            if letter == "/":
                self._delimited("/")
            elif letter == "\\" and self.at + 1 < len(self.code):
                self.at += 1
                self._delimited(self.code[self.at])
            elif letter not in "0123456789$,~+! \tIM":
                return
            else:
                self.at += 1

    def _delimited(self, delimiter: str) -> str:
        """Text up to the delimiter; the position is at the one that opens it."""
        begin = at = self.at + 1
        code, bracket = self.code, False
        while at < len(code) and (bracket or code[at] != delimiter) and (code[at] != "\n" or bracket):
            bracket = (bracket or code[at] == "[") and not (code[at] == "]" and code[at - 1] not in "[^")
            at += 2 if code[at] == "\\" else 1
        if at >= len(code) and bracket:  # a bracket that never ends hides nothing
            at = begin
            while at < len(code) and code[at] != delimiter:
                at += 2 if code[at] == "\\" else 1
        self.at = min(at + 1, len(code))
        return code[begin:at]

    def _line(self) -> str:
        end = self.code.find("\n", self.at)
        end = len(self.code) if end < 0 else end
        text, self.at = self.code[self.at : end].strip(), end
        return text

    def _command(self, letter: str) -> None:
        if letter == "e":
            self._runs(self._line())
        elif letter in "wW":
            self._writes(self._line())
        elif letter in "sy" and self.at < len(self.code):
            self._substitution(letter)
        elif letter in "aicrR#":
            self._line()
        elif letter in ":btTqQlL":
            while self.at < len(self.code) and self.code[self.at] not in ";\n}":
                self.at += 1

    def _runs(self, command: str) -> None:
        self.found.script(command.rstrip("}") if command and command not in (";", "}") else GAP)

    def _writes(self, path: str) -> None:
        if path and path not in ("/dev/stdout", "/dev/stderr"):
            self.found.overwrite(path.rstrip("} "))

    def _substitution(self, letter: str) -> None:
        delimiter = self.code[self.at]
        pattern = self._delimited(delimiter)
        self.at -= 1
        replacement = self._delimited(delimiter)
        begin = self.at
        while self.at < len(self.code) and self.code[self.at] in "gpiIemM0123456789":
            self.at += 1
        flags = self.code[begin : self.at]
        if letter == "s" and self.code[self.at : self.at + 1] == "w":
            self.at += 1
            self._writes(self._line())
        if letter == "s" and "e" in flags:
            self._runs(_replaced(pattern, replacement, delimiter))


def _replaced(pattern: str, replacement: str, delimiter: str) -> str:
    """The line that a substitution leaves behind, or what is known of it."""
    text = re.sub(r"\\[0-9]|(?<!\\)&", GAP, replacement)
    text = text.replace("\\" + delimiter, delimiter).replace("\\&", "&").replace("\\\\", "\\")
    if pattern in (".*", "^.*$", "^.*", ".*$", ".\\+"):
        return text
    return f"{text}{GAP}" if pattern == "^" else f"{GAP}{text}{GAP}"


_ED_RUNS = re.compile(r"[^!/?a-zA-Z]*(?:(?:[rweE])\s*)?!(.*)")
_ED_WRITES = re.compile(r"[\d,$.%;\s]*[wW]q?\s+([^!\s].*)")


def read_ed(code: str) -> Foreign:
    """Lines for `ed`: `!command`, `r !command`, `w file`."""
    found = Found()
    for line in code.split("\n"):
        if match := _ED_RUNS.match(line):
            found.script(match[1])
        elif match := _ED_WRITES.match(line):
            found.overwrite(match[1].strip())
    return found.foreign


_DEEPEST = 6  # commands in commands
_VIM_RANGE = re.compile(r"[\s:]*(?:[%.$\d,;+-]|'[<>a-zA-Z]|/[^/\n]*/)*\s*")
_VIM_PREFIX = re.compile(
    r"(?:sil(?:ent)?|verb(?:ose)?|noa(?:utocmd)?|keepj\w*|keepa\w*|try|vert\w*|tab|unsilent)!?\s+"
)
_VIM_RUNS = re.compile(r"(?:r(?:ead)?!?\s*|w(?:rite)?\s+)?!(.*)", re.DOTALL)
_VIM_WORD = re.compile(r"([a-zA-Z]+3?)(!?)\s*(.*)", re.DOTALL)
_VIM_LANGUAGES = {
    **dict.fromkeys(("py", "python", "py3", "python3", "pyx", "pythonx", "pydo", "py3do"), "python"),
    **dict.fromkeys(("lua", "luado"), "lua"),
    **dict.fromkeys(("perl", "pe", "perldo"), "perl"),
    **dict.fromkeys(("ruby", "rub", "rubydo"), "ruby"),
    "tcl": "tcl",
}
# Options that are programs.
_VIM_PROGRAM = re.compile(
    r"(?:grepprg|gp|makeprg|mp|equalprg|ep|formatprg|fp|keywordprg|kp|shell|sh|cscopeprg|printexpr)"
    r"\s*=\s*[\"']?((?:\\.|[^\s\"'\\])(?:\\.|[^\"'\\\s])*)"
)
_VIM_SHELLS = frozenset({"system", "systemlist", "job_start", "termopen", "jobstart", "term_start"})


def read_vim(code: str) -> tuple[Foreign, list[tuple[str, str]]]:
    """What Ex commands do, and code of other languages among them (language, text)."""
    found = Found()
    others: list[tuple[str, str]] = []
    for line in code.split("\n"):
        for _ in range(64):
            line = _vim_command(line, found, others)
            if not line:
                break
    return found.foreign, others


def _vim_command(line: str, found: Found, others: list[tuple[str, str]], depth: int = 0) -> str:
    """Read one command; returns what stands behind the bar after it."""
    line = line[_match_end(_VIM_RANGE, line) :]
    line = line[_match_end(_VIM_PREFIX, line) :]
    if match := _VIM_RUNS.match(line):
        found.script(match[1])
        return ""
    command, rest = _up_to_bar(line)
    match = _VIM_WORD.match(command)
    if match is None:
        return rest
    name, _, argument = match.groups()
    if name in _VIM_LANGUAGES:
        others.append((_VIM_LANGUAGES[name], line[len(match[1]) :].lstrip("! ")))
        return ""
    if name in ("w", "wr", "write", "sav", "saveas", "wq", "x", "up", "update") and argument:
        found.append(argument) if argument.startswith(">>") else found.overwrite(argument.lstrip("+ "))
    elif name in ("ter", "term", "terminal", "grep", "make", "mak", "lgrep") and argument and name[0] == "t":
        found.script(argument.lstrip("+ "))
    elif name in ("se", "set", "setl", "setlocal", "let") and (option := _VIM_PROGRAM.search(command)):
        found.script(f"{option[1].replace(chr(92), '')} {GAP}")
    elif name in ("exe", "execute", "norm", "normal", "g", "global", "v", "windo", "bufdo", "argdo"):
        _vim_nested(name, argument, found, others, depth)
    _vim_functions(command, found)
    return rest


def _match_end(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.match(text)
    return found.end() if found else 0


def _up_to_bar(line: str) -> tuple[str, str]:
    quote = ""
    for at, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "|" and line[at - 1 : at] != "\\":
            return line[:at], line[at + 1 :]
    return line, ""


def _vim_nested(name: str, argument: str, found: Found, others: list[tuple[str, str]], depth: int) -> None:
    if name.startswith("exe"):
        strings = [token.text for token in tokens(argument, SYNTAX["node"]) if token.kind == "string"]
        inner = "".join(strings)
    elif name in ("g", "global", "v"):
        inner = argument[1:].partition(argument[:1])[2] if argument else ""
    else:
        inner = argument.partition(":")[2]
    if inner and depth < _DEEPEST:
        _vim_command(inner.replace("<cr>", "").replace("\r", ""), found, others, depth + 1)
    elif inner:
        found.unreadable(inner)


def _vim_functions(command: str, found: Found) -> None:
    """`call system("…")`, `call delete("dir", "rf")`, `call writefile(…, "path")`."""
    if "(" not in command:
        return
    calls = Calls(command, "node")
    for at, token in enumerate(calls.tokens):
        if token.kind != "name" or calls.mark(at + 1) != "(":
            continue
        texts = [text for text in calls.texts(at) if text is not None]
        if token.text in _VIM_SHELLS:
            found.script(" ".join(texts) or GAP)
        elif token.text == "delete" and texts:
            found.delete(texts[0], tree="rf" in texts[1:])
        elif token.text == "writefile" and texts:
            found.overwrite(texts[-1] if len(texts) < 3 else texts[1])
        elif token.text == "rename" and len(texts) > 1:
            found.command("mv", "--", *texts[:2])
        elif token.text == "feedkeys" and texts:
            found.script(texts[0].partition("!")[2])
