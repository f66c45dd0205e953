"""Code of script languages, read by its calls.

No language is parsed in full. A text is cut into tokens; assignments of strings are remembered; calls of
functions that start programs, delete, write or evaluate are looked at with their arguments, as far as these
can be put together. What a string only says (`print("rm -rf /")`) does nothing.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence

from toolfold.approval.foreign.calls import CONNECTS, DECODES, FETCHES, NEEDS, SENDS, actions
from toolfold.approval.foreign.nouns import HOME, Foreign, Found, is_shell
from toolfold.approval.foreign.sql import read_sql
from toolfold.approval.foreign.syntax import MOST_TOKENS, SYNTAX, Syntax, Token, tokens
from toolfold.approval.shell.words import GAP, STAR, Word
from toolfold.approval.verdict import Kind

__all__ = ["Calls", "read_calls"]

_DEEPEST = 3
_FARTHEST = 400  # tokens that one call's arguments may have
_MOST_STEPS = 20_000
_NEAR = 64  # tokens that an assigned value may have

_OPEN = {"(": ")", "[": "]", "{": "}"}
_CLOSE = frozenset(_OPEN.values())
_GLUE = frozenset({"+", ".", "..", "&", "~", "^", "<>", "<", ">", "++"})
_ENDS = frozenset({";", "}", "|", "{", ")"})
_STOPS = frozenset(
    {
        "or",
        "and",
        "if",
        "unless",
        "while",
        "until",
        "for",
        "do",
        "foreach",
        "rescue",
        "then",
        "end",
        "||",
        "&&",
    }
)
_DECLARES = frozenset({"my", "our", "local", "let", "var", "const", "val", "def", "set", "String", "auto"})
_CLEAR = frozenset(
    {
        *(
            "get",
            "of",
            "File",
            "new",
            "Path",
            "Paths",
            "join",
            "resolve",
            "String",
            "toString",
            "expand_path",
            "glob",
            "list",
        ),
        *(
            "c",
            "array",
            "list",
            "Seq",
            "List",
            "Array",
            "asList",
            "vec",
            "quote",
            "cons",
            "normalize",
            "escapeshellarg",
            "shellescape",
        ),
        *(
            "fromFile",
            "tostring",
            "str",
            "string",
            "concat",
            "format",
            "paste",
            "paste0",
            "path.expand",
            "file.path",
            "trim",
        ),
    }
)
_GLUED = re.compile(r"['\"`]\s*\+\s*['\"`]")
_FORKS = re.compile(
    r"fork(?: \( \))? (?:while|until) (?:1|true|fork|0)|(?:while|until)(?: \()? (?:1|true|fork|0)\b.*?fork"
    r"|loop [{d].{0,40}fork|for \( ; ; \).*?fork"
)
_CALLS_BY_NAME = frozenset(
    {
        *("array_map", "array_walk", "call_user_func", "call_user_func_array", "array_filter"),
        *("send", "public_send", "__send__"),
    }
)
_PATTERN_MAKERS = frozenset(
    {
        "glob",
        "Dir.glob",
        "readdir",
        "readdirSync",
        "scandir",
        "list.files",
        "entries",
        "children",
        "each_child",
    }
)


def read_calls(code: str, language: str, depth: int = 0) -> Foreign:
    """What code of a script language does."""
    reader = Calls(code, language, depth)
    reader.read()
    return reader.found.foreign


class Calls:
    """One text on its way through the tables."""

    def __init__(self, code: str, language: str, depth: int = 0) -> None:
        self.code, self.language, self.depth = code, language, depth
        self.syntax: Syntax = SYNTAX.get(language) or SYNTAX["node"]
        self.actions = actions().get(language, {})
        self.tokens = tokens(code, self.syntax)
        self.found = Found()
        self.values: dict[str, str] = {}
        self.lists: dict[str, list[str]] = {}
        self.steps = 0
        self.names = {token.text.lstrip("$@%&") for token in self.tokens if token.kind == "name"}
        self.strings = [token.text for token in self.tokens if token.kind == "string"]
        written = _GLUED.sub("", code)
        self.starts_programs = any(need in written for need in NEEDS["node"])
        self.reads: list[str] = []
        self.patterns: list[str] = []  # files that are listed or matched somewhere
        self.every: dict[str, dict[str, None]] = {}  # all texts a name may stand for
        self.aliases: dict[str, str] = {}
        self.unnamed: set[bool] = set()  # deletions of files nobody named, whole trees or not

    def read(self) -> None:
        at = 0
        while at < len(self.tokens):
            self.steps += 1
            self._at(at)
            at += 1
            if self.steps > _MOST_STEPS:
                break
        if self.steps > _MOST_STEPS or len(self.tokens) >= MOST_TOKENS:
            self.found.unreadable(self.code)
        self._together()

    def _at(self, at: int) -> None:
        token = self.tokens[at]
        if token.kind == "command":
            self.found.script(token.text)
        elif token.kind == "string":
            self._string_method(at, token.text)
        elif token.kind == "name":
            self._assignment(at)
            self._shell_script(at)
            if (
                token.text[0] == "$"
                and self.mark(at + 1) == "("
                and (held := self.values.get(token.text[1:]))
            ):
                self._called_by_string(held, at, self.arguments(at))
            if token.text in _CALLS_BY_NAME and (arguments := self.arguments(at)):
                self._called_by_string("".join(part.text for part in arguments[0]), at, arguments[1:])
            lists = token.text in _PATTERN_MAKERS or (token.text == "Dir" and self.mark(at + 1) == "[")
            if lists and (made := next(iter(self.texts(at)), None)):
                self.patterns.append(_starred(made))
            if action := self._action(at):
                self._act(action, at, self.arguments(at))
            elif (
                self.actions.get(token.text) == "code"
                and self.mark(at - 1) in ("(", ",")
                and self._evidence()
            ):
                self.found.unread(token.text, self._evidence())  # handed on, to be called with what comes

    # Names

    def qualified(self, at: int) -> str:
        """The name with the one before it, whatever stands between."""
        name = self.tokens[at].text.lstrip("$@%&")
        parts, place = [name], at
        while place >= 2 and self.mark(place - 1) in (".", ":", ">") and len(parts) < 4:
            place -= 2
            while place >= 1 and self.mark(place) in (":", "-", ")", "("):
                place -= 1
            if self.tokens[place].kind != "name":
                break
            parts.insert(0, self.tokens[place].text.lstrip("$@%&"))
        return ".".join(parts)

    def mark(self, at: int) -> str:
        token = self.tokens[at] if 0 <= at < len(self.tokens) else None
        return token.text if token is not None and token.kind == "mark" else ""

    def _action(self, at: int) -> str:
        token = self.tokens[at]
        if token.text[:1] in ("$", "@", "%") and self.language != "node":
            return ""
        if self.syntax.lisp:
            return self.actions.get(token.text, "") if self.mark(at - 1) == "(" else ""
        name = self.qualified(at)
        name = self.aliases.get(name, name)
        parts = name.split(".")
        for first in range(len(parts)):
            action = self.actions.get(".".join(parts[first:]))
            if action == "needing":
                return "node-process" if self.starts_programs and self.mark(at + 1) == "(" else ""
            if action and (first + 1 < len(parts) or self._stands_alone(at)):
                return action
        return ""

    def _stands_alone(self, at: int) -> bool:
        """A bare name is a call where it is followed by arguments, and no definition or key."""
        if self.mark(at - 1) in ("-", "$", "@", "{") and self.mark(at + 1) in ("}", "=", ""):
            return False
        before = self.tokens[at - 1].text if at else ""
        if before in ("sub", "def", "function", "fn", "func"):
            return False
        if self.mark(at + 1) == "(" or (self.mark(at + 1) == "?" and self.mark(at + 2) == "."):
            return True
        return self.syntax.bare and self.mark(at + 1) not in ("=", ".", ",", ":", ">", "]")

    # Values

    def _assignment(self, at: int) -> None:
        """`name = "text"` and `name .= "text"` are remembered."""
        name = self.tokens[at].text.lstrip("$@%&")
        mark = self.mark(at + 1)
        if mark == ":" and name in self.actions and (other := self._next_name(at + 2)):
            self.aliases[other] = name  # const {execSync: x} = …
        adds = mark in (".", "+") and self.mark(at + 2) == "="
        declares = mark == ":" and self.mark(at + 2) == "="
        if not (adds or declares) and (mark != "=" or self.mark(at + 2) in ("=", "~", ">")):
            return
        begin = at + (3 if adds or declares else 2)
        words = self.until_end(begin)
        text = self.fold(words)
        listed = self._list(words)
        if words and words[-1].kind == "name" and words[-1].text in self.actions:
            self.aliases[name] = words[-1].text
        if text is not None:
            self.values[name] = (self.values.get(name, GAP) if adds else "") + text
            if len(self.every.setdefault(name, {})) < 16:
                self.every[name][self.values[name]] = None
        if listed is not None:
            self.lists[name] = listed

    def until_end(self, begin: int) -> list[Token]:
        """Tokens up to the end of a statement."""
        out: list[Token] = []
        depth = 0
        for token in self.tokens[begin : begin + _NEAR]:
            self.steps += 1
            if token.kind == "mark" and token.text in _OPEN:
                depth += 1
            elif token.kind == "mark" and token.text in _CLOSE:
                depth -= 1
            if depth < 0 or (depth == 0 and (token.kind == "line" or token.text in (";", ","))):
                break
            out.append(token)
        return out

    def arguments(self, at: int) -> list[list[Token]]:
        """The arguments behind the name at `at`, one list of tokens each."""
        if self.steps > 2 * _MOST_STEPS:
            self.found.unreadable(self.code)
            return []
        if self.syntax.lisp:
            return self._lisp_arguments(at + 1)
        inside = self.mark(at + 1) in ("(", "[") or (self.language == "lua" and self.mark(at + 1) == "{")
        if not inside and not self.syntax.bare:
            return []
        arguments: list[list[Token]] = [[]]
        depth = 0
        for token in self.tokens[at + (2 if inside else 1) : at + _FARTHEST]:
            self.steps += 1
            if token.kind == "mark" and token.text in _OPEN:
                depth += 1
            elif token.kind == "mark" and token.text in _CLOSE:
                depth -= 1
                if depth < 0:
                    break
            elif not inside and depth == 0 and self._ends_bare(token):
                break
            if token.kind == "mark" and token.text == "," and depth == 0:
                arguments.append([])
            elif token.kind != "line":
                arguments[-1].append(token)
        return [argument for argument in arguments if argument]

    def _ends_bare(self, token: Token) -> bool:
        return (
            token.kind == "line"
            or (token.kind == "mark" and token.text in _ENDS)
            or (token.kind == "name" and token.text in _STOPS)
        )

    def _lisp_arguments(self, begin: int) -> list[list[Token]]:
        arguments: list[list[Token]] = []
        depth = 0
        for token in self.tokens[begin : begin + _FARTHEST]:
            self.steps += 1
            if token.kind == "line":
                continue
            if token.kind == "mark" and token.text in _CLOSE:
                depth -= 1
                if depth < 0:
                    break
                continue
            if depth == 0:
                arguments.append([])
            arguments[-1].append(token)
            depth += token.kind == "mark" and token.text in _OPEN
        return arguments

    def fold(self, words: Sequence[Token]) -> str | None:
        """The text that these tokens make, with gaps; None where there is none in it."""
        parts: list[str] = []
        told = False
        skip = 0
        for place, token in enumerate(words):
            self.steps += 1
            if place < skip:
                continue
            if token.text == "[" and token.kind == "mark" and (joined := self._joined(words, place)):
                text, skip = joined
                parts.append(text)
                told = True
            elif token.kind in ("string", "command", "words"):
                parts.append(token.text)
                told = True
            elif token.kind == "number":
                parts.append(token.text)
            elif token.kind == "name":
                text, skip = self._named(words, place)
                told |= text not in ("", GAP)
                parts.append(text)
            elif token.text not in _GLUE and token.text not in "()[]{},:;@\\'#$":
                parts.append(GAP)
        text = "".join(parts)[:16_384]
        return text if told or GAP in text else None

    def _joined(self, words: Sequence[Token], place: int) -> tuple[str, int] | None:
        """`["a", "b"].join(" ")` as text, and where to go on."""
        end = self._behind_call(words, place)
        behind = words[end : end + 4]
        if [token.text for token in behind[:3]] != [".", "join", "("]:
            return None
        glue = behind[3].text if len(behind) > 3 and behind[3].kind == "string" else ","
        return glue.join(self._list(words[place:end]) or []), min(len(words), end + 5)

    def _named(self, words: Sequence[Token], place: int) -> tuple[str, int]:
        """What a name within an expression stands for, and where to go on."""
        name = words[place].text.lstrip("$@%&")
        rest = words[place + 1 : place + 8]
        around = {token.text.lstrip("$@%&") for token in words[place : place + 8]}
        if name in (
            "ENV",
            "env",
            "environ",
            "_ENV",
            "_SERVER",
            "process",
            "getenv",
            "homedir",
            "home",
            "expandUser",
        ):
            return (HOME if around & {"HOME", "homedir", "home", "~"} else GAP), len(words)
        if (
            name in DECODES
            and (text := next((t.text for t in words[place:] if t.kind == "string"), None)) is not None
        ):
            return _decoded(name, text, words[place:]), len(words)
        if name in self.values:
            return self.values[name], place + 1
        if (
            name in _CLEAR
            or name in _DECLARES
            or (rest and rest[0].kind == "string" and name in _PATTERN_MAKERS)
        ):
            return "", place + 1
        called = bool(rest) and rest[0].text == "("
        qualifies = bool(rest) and rest[0].kind == "mark" and rest[0].text in (".", ":", "-")
        if (
            name in _PATTERN_MAKERS
            or qualifies
            or name in ("true", "false", "TRUE", "FALSE", "T", "F", "nil", "null")
        ):
            return "", place + 1
        return GAP, self._behind_call(words, place + 1) if called else place + 1

    def _behind_call(self, words: Sequence[Token], at: int) -> int:
        depth = 0
        for place in range(at, len(words)):
            self.steps += 1
            if words[place].kind == "mark" and words[place].text in _OPEN:
                depth += 1
            elif words[place].kind == "mark" and words[place].text in _CLOSE:
                depth -= 1
                if depth <= 0:
                    return place + 1
        return len(words)

    def _list(self, words: Sequence[Token]) -> list[str] | None:
        """The strings of a list that is written out."""
        if len(words) == 1 and words[0].kind == "words":
            return words[0].text.split()
        if len(words) == 1 and words[0].kind == "name":
            return self.lists.get(words[0].text.lstrip("$@%&"))
        if not any(token.kind == "mark" and token.text in _OPEN for token in words[:3]):
            return None
        out: list[str] = []
        part: list[Token] = []
        depth = 0
        for token in [*words, Token("mark", ",")]:
            self.steps += 1
            if token.kind == "mark":
                depth += (token.text in _OPEN) - (token.text in _CLOSE)
            if token.kind == "mark" and (token.text == "," or (depth == 0 and token.text in _CLOSE)):
                text = self.fold(part)
                out += [text] if text is not None else []
                part = []
                if token.text in _CLOSE:
                    break
            elif token.kind != "line":
                part.append(token)
        return out

    def texts(self, at: int) -> list[str | None]:
        """The arguments behind the name at `at`, as far as they are text."""
        return [self.fold(argument) for argument in self.arguments(at)[:32]]

    # Actions

    def _act(self, action: str, at: int, arguments: list[list[Token]]) -> None:
        texts = [self.fold(argument) for argument in arguments[:32]]
        first = texts[0] if texts else None
        if first is None and (receiver := self._receiver(at)) is not None:
            first = receiver
        patterned = any(
            t.text in _PATTERN_MAKERS for argument in arguments[:2] for t in argument if t.kind == "name"
        )
        path = _starred(first) if first is not None and (patterned or "*" in first) else first
        if action in ("shell", "run", "node-process") and len(arguments) == 1 and len(arguments[0]) == 1:
            for other in self.every.get(arguments[0][0].text.lstrip("$@%&"), {}):
                self.found.script(other)
        match action:
            case "shell":
                self.found.script(first if first is not None else GAP)
            case "run" | "argv" | "node-process" | "call-process":
                self._program(action, arguments, texts, at)
            case "delete" | "tree" | "tree-if":
                self._deletion(action, arguments, texts, path)
            case "overwrite" if path:
                self.found.overwrite(path)
            case "append" if path:
                self.found.append(path)
            case "open" | "open-flags":
                self._open(texts, path)
            case "read" if path:
                self._reads(path)
            case "move" | "copy" | "link" if len(texts) > 1:
                program = {"move": ["mv"], "copy": ["cp", "-r"], "link": ["ln", "-s"]}[action]
                self.found.command(*program, "--", first or GAP, texts[1] or GAP)
            case "mode" | "mode-first":
                self._mode(arguments, texts)
            case "kill":
                self._kill(arguments)
            case "code":
                self._code(first, arguments)
            case "run-fetched" if first and "://" in first:
                self.found.unread(first, frozenset({"network"}))
            case "records":
                self._records(at)
            case "sql" if first:
                self.found.merge(read_sql(Word(first), "sqlite"))

    def _records(self, at: int) -> None:
        """Deleting every record of a model; with a condition before it, only some."""
        line = {token.text for token in self.tokens[max(0, at - 24) : at]}
        if not line & {"where", "find_by", "limit"}:
            self.found.effect(Kind.DATABASE, self.qualified(at), "delete-all", detail=self.qualified(at))

    def _receiver(self, at: int) -> str | None:
        """`new File("/x").delete()`: what the method is called on."""
        if self.mark(at - 1) != ".":
            return None
        begin = at - 2
        depth = 0
        while begin >= 0 and at - begin < 40:
            self.steps += 1
            mark = self.mark(begin)
            depth += (mark in _CLOSE) - (mark in _OPEN)
            if (
                depth < 0
                or self.tokens[begin].kind == "line"
                or (depth == 0 and mark in (";", "=", "{", "}"))
            ):
                break
            begin -= 1
        return self.fold(self.tokens[begin + 1 : at - 1])

    def _program(self, action: str, arguments: list[list[Token]], texts: list[str | None], at: int) -> None:
        if action == "call-process":
            texts = [text for text in texts if text is not None]
            arguments = arguments[: len(texts)]
        words: list[str] = []
        for argument, text in zip(arguments, texts, strict=False):
            if argument[0].text == "{" and action != "run":
                words += self._named_list(argument, "args")
                continue
            listed = None if self._joined(argument, 0) else self._list(argument)
            if listed is not None:
                words += listed
            elif text is not None and not _is_keyword(argument):
                words.append(text)
        if not words:
            self.found.script(GAP)
        elif (len(words) == 1 and (action != "argv" or " " in words[0])) or (
            action == "node-process" and self.tokens[at].text in ("exec", "execSync")
        ):
            self.found.script(words[0])
        else:
            self.found.command(*words)

    def _named_list(self, options: Sequence[Token], name: str) -> list[str]:
        """The list behind `args:` among options."""
        for place, token in enumerate(options):
            if token.kind == "name" and token.text == name:
                return self._list(options[place + 2 :]) or []
        return []

    def _deletion(
        self, action: str, arguments: list[list[Token]], texts: list[str | None], path: str | None
    ) -> None:
        told = {token.text for argument in arguments for token in argument}
        asked = bool({"recursive", "recurse", ":recursive"} & told and not {"false", "FALSE", "F"} & told)
        tree = action == "tree" or (action == "tree-if" and (asked or bool({"t", "s"} & told)))
        paths = [path] if path else []
        paths += [_starred(text) if "*" in text else text for text in texts[1:] if text and not tree]
        for one in paths or [GAP]:
            if GAP in one:
                self.unnamed.add(tree)
            self.found.delete(one, tree=tree)

    def _open(self, texts: list[str | None], path: str | None) -> None:
        """`open(path, "w")`, and Perl's `open(F, ">path")`, `open(F, "|-", "cmd")`, `open(F, "cmd |")`."""
        known = [text for text in texts if text is not None and text != GAP]
        if self.language == "perl":
            self._perl_open(known)
            return
        if path is None:
            return
        if path.startswith("|"):
            self.found.script(path[1:])
        elif any(mode[:1] in ("w", "x", "c") or "+" in mode for mode in known[1:2]):
            self.found.overwrite(path)
        elif any(mode[:1] == "a" for mode in known[1:2]):
            self.found.append(path)
        else:
            self._reads(path)

    def _perl_open(self, known: list[str]) -> None:
        if not known:
            return
        mode, rest = known[0].strip(), known[1:]
        if mode in ("-|", "|-") and rest:
            self.found.script(" ".join(rest))
        elif mode.startswith((">&", "<&")):
            return
        elif mode.startswith("|"):
            self.found.script(mode[1:])
        elif mode.endswith("|"):
            self.found.script(mode[:-1])
        elif mode.startswith((">>", "+>>")):
            self.found.append(mode.lstrip("+>").split(":")[0].strip() or (rest[0] if rest else GAP))
        elif mode.startswith((">", "+>", "+<")):
            self.found.overwrite(mode.lstrip("+<>").split(":")[0].strip() or (rest[0] if rest else GAP))
        else:
            self._reads(rest[0] if mode.startswith("<") and rest else mode.lstrip("<").strip())

    def _reads(self, path: str) -> None:
        if GAP not in path and "://" not in path and len(path) < 1024:
            self.reads.append(path)

    def _mode(self, arguments: list[list[Token]], texts: list[str | None]) -> None:
        number = next((t.text for argument in arguments for t in argument if t.kind == "number"), None)
        mode = (
            number.lower().replace("0o", "").lstrip("0")
            if number
            else next((t for t in texts if t and "+" in t), GAP)
        )
        for text in texts:
            if text and text != number and text != mode and GAP not in text:
                self.found.command("chmod", mode or "0", text)

    def _kill(self, arguments: list[list[Token]]) -> None:
        words = ["".join(token.text for token in argument) for argument in arguments[:8]]
        numbers = [word if word.lstrip("-").isdigit() else GAP for word in words]
        if self.language in ("node", "php"):
            self.found.command("kill", "-9", "--", *numbers[:1])
        elif numbers:
            self.found.command(
                "kill", f"-{words[0].strip(chr(39)) if words[0].isalnum() else 9}", "--", *numbers[1:]
            )

    def _code(self, text: str | None, arguments: list[list[Token]]) -> None:
        """Code that is put together: read where it is known, otherwise told by where it comes from."""
        if self._mark_is_block(arguments):
            return
        traits = self._evidence()
        if text is not None and GAP not in text and self.depth < _DEEPEST:
            if "decoded" in traits:
                self.found.unread(text, traits)
            self.found.merge(read_calls(text, self.language, self.depth + 1))
        elif traits:
            self.found.unread(text or "", traits)
        elif arguments:
            self.found.unreadable(text or "eval")

    def _mark_is_block(self, arguments: list[list[Token]]) -> bool:
        """Perl's `eval { … }` catches errors; it evaluates nothing."""
        return not arguments or arguments[0][0].text == "{"

    def _evidence(self) -> frozenset[str]:
        traits = set()
        if self.names & FETCHES and any("://" in text or "/" in text or text == GAP for text in self.strings):
            traits.add("network")
        if self.names & DECODES or "base64" in self.strings:
            traits.add("decoded")
        return frozenset(traits)

    # Strings and several calls together

    def _string_method(self, at: int, text: str) -> None:
        """Groovy's `"rm x".execute()`, Scala's `"rm x".!`, Ruby's `"|rm x"` and the like."""
        if self.language == "groovy" and self.mark(at + 1) == "." and self._next_name(at + 2) == "execute":
            self.found.script(text)
        elif self.language == "groovy" and self.mark(at + 1) in ("]", ",") and "execute" in self.names:
            self._listed_before_execute(at)
        elif self.language == "scala":
            behind = [self.mark(at + 1), self.mark(at + 2)]
            if behind[0] == "!" or behind == [".", "!"] or self._next_name(at + 1).startswith("lazyLines"):
                self.found.script(text)
        elif self.language == "node" and self.mark(at - 1) == "$":
            self.found.script(text)
        if self.mark(at - 1) == "[" and self.mark(at + 1) == "]" and self.mark(at + 2) == "(":
            self._called_by_string(text, at + 1, self.arguments(at + 1))

    def _called_by_string(self, name: str, at: int, arguments: list[list[Token]]) -> None:
        """`object["exec"]("…")`, `call_user_func("system", "…")`, `send(:system, "…")`."""
        action = self.actions.get(name.lstrip(":"), "")
        if action == "needing":
            action = "node-process" if self.starts_programs else ""
        if action:
            self._act(action, at, arguments)

    def _next_name(self, at: int) -> str:
        token = self.tokens[at] if 0 <= at < len(self.tokens) else None
        return token.text if token is not None and token.kind == "name" else ""

    def _listed_before_execute(self, at: int) -> None:
        if self.mark(at - 1) != "[":
            return
        words = self.until_end(at - 1)
        listed = self._list(words)
        if listed and any(token.text == "execute" for token in words):
            self.found.command(*listed)

    def _shell_script(self, at: int) -> None:
        """AppleScript's `do shell script "…"`."""
        if (
            self.language == "osascript"
            and self.tokens[at].text.lower() == "script"
            and self._next_name(at - 1).lower() == "shell"
        ):
            text = self.fold(self.until_end(at + 1))
            self.found.script(text if text is not None else GAP)

    def _forks_without_end(self) -> bool:
        if not self.names & {"fork", "pcntl_fork"}:
            return False
        texts = " ".join(token.text for token in self.tokens[:400])
        return _FORKS.search(texts) is not None

    def _together(self) -> None:
        connects = bool(self.names & CONNECTS) or any(text.startswith("/inet/") for text in self.strings)
        duplicated = any(text[:2] in (">&", "<&", "+<&"[:2]) for text in self.strings)
        if connects and (duplicated or any(_hands_over(script) for script in self.found.scripts)):
            self.found.effect(Kind.REVERSE_SHELL, detail="a connection is handed to a shell")
        if self._forks_without_end():
            self.found.effect(Kind.FORK_BOMB, detail="a process copies itself without end")
        for tree in self.unnamed:
            for pattern in self.patterns[:8]:
                self.found.delete(pattern, tree=tree)
        sends = bool(self.names & SENDS) and (bool(self.names & FETCHES) or connects)
        for path in dict.fromkeys(self.reads):
            self.found.command("cat", "--", path)
            if sends:
                last = next(reversed(self.found.scripts))
                self.found.script(f"{last} | curl -d @- {GAP}")


def _hands_over(script: str) -> bool:
    first = script.strip().split(" ")[0].rpartition("/")[2]
    return is_shell(script) or (is_shell(first) and ("<&" in script or ">&" in script))


def _is_keyword(argument: Sequence[Token]) -> bool:
    """An option with a name (`stdin: x`, `shell=True`, `:out => y`) is no word of the program."""
    return len(argument) > 2 and argument[0].kind == "name" and argument[1].text in (":", "=")


def _starred(path: str) -> str:
    starred = path.replace("*", STAR)
    return starred if STAR in starred else f"{path.rstrip('/')}/{STAR}"


def _decoded(name: str, text: str, words: Sequence[Token]) -> str:
    """A string that is unpacked where it stands."""
    try:
        if name in ("hex2bin", "fromhex", "unhexlify") or any(token.text == "H*" for token in words):
            return bytes.fromhex(text).decode("utf-8", "replace")
        if (
            "64" in name
            or name in ("atob", "Base64", "MIME", "unpack")
            or any(token.text == "base64" for token in words)
        ):
            return base64.b64decode(text + "=" * (-len(text) % 4)).decode("utf-8", "replace")
    except (ValueError, binascii.Error):
        return GAP
    return GAP
