"""Code of script languages, read by its calls.

No language is parsed in full. A text is cut into tokens; assignments of strings are remembered; calls of
functions that start programs, delete, write or evaluate are looked at with their arguments, as far as these
can be put together. What a string only says (`print("rm -rf /")`) does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shellverdict.foreign.calls import CONNECTS, DECODES, FETCHES, NEEDS, SENDS
from shellverdict.foreign.clients import destroys, services
from shellverdict.foreign.environment import environment
from shellverdict.foreign.expressions import CLOSE, MOST_STEPS, OPEN, PATTERN_MAKERS, Expressions
from shellverdict.foreign.nouns import HOME, Foreign, address, is_shell
from shellverdict.foreign.sql import read_sql
from shellverdict.foreign.syntax import MOST_TOKENS, Token
from shellverdict.shell.words import GAP, STAR, Word
from shellverdict.verdict import Kind

__all__ = ["Calls", "read_calls"]

_DEEPEST = 3
_GLUED = re.compile(r"['\"`]\s*\+\s*['\"`]")
_FORKS = re.compile(
    r"fork(?: \( \))? (?:while|until) (?:1|true|fork|0)|(?:while|until)(?: \()? (?:1|true|fork|0)\b.*?fork"
    r"|loop [{d].{0,40}fork|for \( ; ; \).*?fork"
)
# Functions that walk through folders, whatever else they are given.
_WALKERS = frozenset(
    {
        "DirectoryIterator",
        "FilesystemIterator",
        "opendir",
        "find",
        "finddepth",
        "walk",
        "walkdir",
        "WalkDir",
        "Walk",
    }
)
_LOOPS = frozenset(
    {
        *("each", "forEach", "for", "foreach", "map", "while", "lines", "each_child", "grep", "Enum"),
        *("eachFile", "eachFileRecurse", "eachDir", "eachDirRecurse", "eachFileMatch"),
    }
)
# What asks a server of names, and so tells it the name.
_LOOKUPS = frozenset({"dns", "gethostbyname", "getaddrinfo", "dns_get_record", "checkdnsrr", "Resolv"})
# What stands before a deletion of records, where all of them are meant.
_QUERIES = frozenset({"table", "query", "newQuery", "all"})
_CALLS_BY_NAME = frozenset(
    {
        *("array_map", "array_walk", "call_user_func", "call_user_func_array", "array_filter"),
        *("send", "public_send", "__send__"),
    }
)


def read_calls(code: str, language: str, depth: int = 0) -> Foreign:
    """What code of a script language does."""
    reader = Calls(code, language, depth)
    reader.read()
    return reader.found.foreign


class Calls(Expressions):
    """One text on its way through the tables."""

    def __init__(self, code: str, language: str, depth: int = 0) -> None:
        super().__init__(code, language)
        self.depth = depth
        self.names = {token.text.lstrip("$@%&") for token in self.tokens if token.kind == "name"}
        self.strings = [token.text for token in self.tokens if token.kind == "string"]
        written = _GLUED.sub("", code)
        self.starts_programs = any(need in written for need in NEEDS["node"])
        self.reads: list[str] = []
        self.patterns: list[str] = []  # files that are listed or matched somewhere
        self.unnamed: set[bool] = set()  # deletions of files nobody named, whole trees or not
        self.blind = False  # whether something is deleted of which not even a part of the name is known
        self.services = services({*self.names, *self.strings})

    def read(self) -> None:
        at = 0
        while at < len(self.tokens):
            self.steps += 1
            self._at(at)
            at += 1
            if self.steps > MOST_STEPS:
                break
        if self.steps > MOST_STEPS or len(self.tokens) >= MOST_TOKENS:
            self.found.unreadable(self.code)
        self._together()

    def _at(self, at: int) -> None:
        token = self.tokens[at]
        if token.kind == "command":
            self.found.script(token.text)
        elif token.kind == "string":
            self._string_method(at, token.text)
        elif token.kind == "name":
            self.learn(at)
            self._shell_script(at)
            self._apple_event(at)
            if (
                token.text[0] == "$"
                and self.mark(at + 1) == "("
                and (held := self.values.get(token.text[1:]))
            ):
                self._called_by_string(held, at, self.arguments(at))
            by_name = token.text in _CALLS_BY_NAME or self.qualified(at) == "do.call"
            if by_name and (arguments := self.arguments(at)):
                self._called_by_string("".join(part.text for part in arguments[0]), at, arguments[1:])
            lists = {token.text, self.qualified(at)} & PATTERN_MAKERS or (
                token.text == "Dir" and self.mark(at + 1) == "["
            )
            if lists and (made := next(iter(self.texts(at)), None)):
                self.patterns.append(_starred(made))
            self._walks(at)
            self._destroys(at)
            if action := self._action(at):
                self._act(action, at, self.arguments(at))
            elif (
                self.actions.get(token.text) == "code"
                and self.mark(at - 1) in ("(", ",")
                and self._evidence()
            ):
                self.found.unread(token.text, self._evidence())  # handed on, to be called with what comes
            elif self._handed_on(at):
                self.unnamed.add(False)
                self.blind = True

    def _handed_on(self, at: int) -> bool:
        """`forEach(fs.unlinkSync)`, `foreach(rm, …)`, `&File.rm/1`: a function that others will call."""
        if self.mark(at + 1) not in (")", ",", "/"):
            return False
        name, begin = self.qualified(at), at
        while begin >= 2 and self.mark(begin - 1) == "." and self.tokens[begin - 2].kind == "name":
            begin -= 2
        given = self.mark(begin - 1) == "(" or self.tokens[begin].text[:1] == "&"
        action = self.actions.get(name.lstrip("&")) or self.actions.get(name.rpartition(".")[2])
        return given and action in ("delete", "tree", "tree-if")

    def _walks(self, at: int) -> None:
        """`find(sub { … }, "/x")` and `opendir D, "."`: the folder is the only text there is."""
        name = self.tokens[at].text
        if name not in _WALKERS or (name == "find" and self.language not in ("perl", "ruby")):
            return
        folder = next((text for text in reversed(self.texts(at)) if text and GAP not in text), None)
        if folder is not None:
            deep = "" if name == "opendir" else f"{STAR}{STAR}/"
            self.patterns.append(f"{folder.rstrip('/')}/{deep}{STAR}")

    def _destroys(self, at: int) -> None:
        """A method of a client that loses what a service holds, or a command that asks for it by name."""
        name = self.tokens[at].text
        command = name.endswith("Command") and self.name_at(at - 1) == "new"
        if not command and (self.mark(at - 1) not in (".", ">") or self.mark(at + 1) == "="):
            return
        arguments = self.arguments(at) if self.mark(at + 1) == "(" else []
        told = {token.text for argument in arguments for token in argument}
        everything = told <= {"{", "}"}
        kind = (
            None if "DryRun" in told else destroys(self.qualified(at), self.services, everything=everything)
        )
        if kind is not None:
            self.found.effect(kind, self.qualified(at), "drop", detail=f"{self.qualified(at)}()")

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
        if self.mark(at - 1) in ("-", "$", "@") and self.mark(at + 1) in ("}", "=", ""):
            return False
        if self.mark(at - 1) == "{" and self.mark(at + 1) in ("}", "="):
            return self.name_at(at - 2) == "sub" or self.mark(at - 2) == ")"  # a block, no key of a table
        before = self.tokens[at - 1].text if at else ""
        if before in ("sub", "def", "function", "fn", "func"):
            return False
        if self.mark(at + 1) == "(" or (self.mark(at + 1) == "?" and self.mark(at + 2) == "."):
            return True
        return self.syntax.bare and self.mark(at + 1) not in ("=", ".", ",", ":", ">", "]")

    def _act(self, action: str, at: int, arguments: list[list[Token]]) -> None:
        texts = [self.fold(argument) for argument in arguments[:32]]
        first = texts[0] if texts else None
        if first is None and (receiver := self._receiver(at)) is not None:
            first = receiver
        patterned = any(
            t.text in PATTERN_MAKERS for argument in arguments[:2] for t in argument if t.kind == "name"
        )
        path = _starred(first) if first is not None and (patterned or "*" in first) else first
        if action in ("shell", "run", "node-process") and len(arguments) == 1 and len(arguments[0]) == 1:
            for other in self.every.get(arguments[0][0].text.lstrip("$@%&"), {}):
                self.found.script(other)
        if action in ("shell", "run") and first and self.mark(at - 1) in (".", ">"):
            self.found.merge(read_sql(Word(first), "sqlite"))  # a method `exec` may be a database's
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
            case "owner" | "owner-tree":
                for text in texts:
                    if text and "/" in text:
                        self.found.command("chown", *(["-R"] if action == "owner-tree" else []), GAP, text)
            case "kill":
                self._kill(arguments)
            case "code":
                self._code(first, arguments)
            case "run-fetched":
                self._runs_fetched(arguments)
            case "run-first" if first and "://" in first:
                self.found.unread(first, frozenset({"network"}))
            case "run-named" if first:
                self.found.unread(first, frozenset({"network"}))
            case "run-page" if self.names & FETCHES:
                self.found.unread(self.tokens[at].text, frozenset({"network"}))
            case "records":
                self._records(at)
            case "sql" if first:
                self.found.merge(read_sql(Word(first), "sqlite"))

    def _runs_fetched(self, arguments: list[list[Token]]) -> None:
        """Code from an address, however it is fetched on the way."""
        texts = [token.text for argument in arguments for token in argument if token.kind == "string"]
        if (to := address(texts)) != GAP:
            self.found.unread(to, frozenset({"network"}))

    def _records(self, at: int) -> None:
        """Deleting every record of a model; with a condition before it, only some."""
        line = {token.text for token in self.tokens[max(0, at - 24) : at]}
        every = self.tokens[at].text not in ("delete", "forceDelete") or bool(line & _QUERIES)
        if every and not line & {"where", "find_by", "limit", "find", "fopen"}:
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
            depth += (mark in CLOSE) - (mark in OPEN)
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
        if self.syntax.lisp and action == "argv":
            self.found.command(
                *(token.text for argument in arguments for token in argument if token.kind == "string")
            )
            return
        words: list[str] = []
        for argument, text in zip(arguments, texts, strict=False):
            if argument[0].text == "{" and action != "run":
                words += self._named_list(argument, "args")
                continue
            listed = None if self.goes_on(argument) else self.listed(argument)
            if listed is not None:
                words += listed
            elif text is not None and (self.language == "swift" or not _is_keyword(argument)):
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
                return self.listed(options[place + 2 :]) or []
        return []

    def _deletion(
        self, action: str, arguments: list[list[Token]], texts: list[str | None], path: str | None
    ) -> None:
        told = {token.text for argument in arguments for token in argument}
        asked = bool({"recursive", "recurse", ":recursive"} & told and not {"false", "FALSE", "F"} & told)
        tree = action == "tree" or (action == "tree-if" and (asked or bool({"t", "s", "rf"} & told)))
        paths = [path] if path else []
        paths += [_starred(text) if "*" in text else text for text in texts[1:] if text and not tree]
        for one in paths or [GAP]:
            if GAP in one:
                self.unnamed.add(tree)
            self.blind |= one == GAP
            if STAR in one and not tree:
                self.found.delete_each(one)
            else:
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
            self._fed(" ".join(rest))
        elif mode.startswith((">&", "<&")):
            return
        elif mode.startswith("|"):
            self._fed(mode[1:])
        elif mode.endswith("|"):
            self.found.script(mode[:-1])
        elif mode.startswith((">>", "+>>")):
            self.found.append(mode.lstrip("+>").split(":")[0].strip() or (rest[0] if rest else GAP))
        elif mode.startswith((">", "+>", "+<")):
            self.found.overwrite(mode.lstrip("+<>").split(":")[0].strip() or (rest[0] if rest else GAP))
        else:
            self._reads(rest[0] if mode.startswith("<") and rest else mode.lstrip("<").strip())

    def _fed(self, program: str) -> None:
        """A program that is written to; a shell runs whatever text the code has for it."""
        self.found.script(program)
        if is_shell(program.strip()):
            for text in self.strings[:32]:
                self.found.script(text)

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
        if "network" in traits and any(part.text in FETCHES for argument in arguments for part in argument):
            self.found.unread(text or "", traits)
        elif text is not None and GAP not in text and self.depth < _DEEPEST:
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

    def _string_method(self, at: int, text: str) -> None:
        """Groovy's `"rm x".execute()`, Scala's `"rm x".!`, Ruby's `"|rm x"` and the like."""
        if self.language == "groovy" and self.mark(at + 1) == "." and self.name_at(at + 2) == "execute":
            self.found.script(text)
        elif self.language == "groovy" and self.mark(at + 1) in ("]", ",") and "execute" in self.names:
            self._listed_before_execute(at)
        elif self.language == "scala":
            behind = [self.mark(at + 1), self.mark(at + 2)]
            if behind[0] == "!" or behind == [".", "!"] or self.name_at(at + 1).startswith("lazyLines"):
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

    def _listed_before_execute(self, at: int) -> None:
        if self.mark(at - 1) != "[":
            return
        words = self.until_end(at - 1)
        listed = self.listed(words)
        if listed and any(token.text == "execute" for token in words):
            self.found.command(*listed)

    def _shell_script(self, at: int) -> None:
        """AppleScript's `do shell script "…"`, and a terminal's `do script`."""
        if (
            self.language == "osascript"
            and self.tokens[at].text.lower() == "script"
            and self.name_at(at - 1).lower() in ("shell", "do")
        ):
            text = self.fold(self.until_end(at + 1))
            self.found.script(text if text is not None else GAP)

    def _apple_event(self, at: int) -> None:
        """What AppleScript asks other applications for: programs started at login, files thrown away."""
        if self.language != "osascript":
            return
        name = self.tokens[at].text.lower()
        line = self.until_end(at + 1)
        words = {token.text.lower() for token in line if token.kind == "name"}
        path = next((token.text for token in line if token.kind == "string"), None)
        if name == "make" and {"login", "item"} <= words:
            self.found.command("defaults", "write", "com.apple.loginitems", path or GAP)
        elif name == "delete" and words & {"file", "folder", "item", "items", "files", "folders", "alias"}:
            self.found.command("trash-put", path or (HOME if words & {"home", "every"} else GAP))
        elif name == "empty" and "trash" in words:
            self.found.command("trash-empty")

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
                self.found.delete(pattern, tree=True) if tree else self.found.delete_each(pattern)
        if self.blind and not self.patterns and self.names & _LOOPS:
            self.found.command("xargs", "rm", "-f", "--")
        self._sends_environment(connects)
        if {"DELETE", "delete"} & set(self.strings) and "fetch" in self.names:
            self.found.command("curl", "-X", "DELETE", address(self.strings))
        sends = bool(self.names & SENDS) and (bool(self.names & FETCHES) or connects)
        for path in dict.fromkeys(self.reads):
            self.found.command("cat", "--", path)
            if sends:
                self.found.sends_file(path, address(self.strings))

    def _sends_environment(self, connects: bool) -> None:
        to = address(self.strings)
        if (
            not connects
            and not _LOOKUPS & {*self.names, *self.strings}
            and (to == GAP or not self.names & (FETCHES | SENDS))
        ):
            return
        authorizes = any("authorization" in word.lower() for word in (*self.names, *self.strings))
        variables = environment(self.code, self.language)
        self.found.sends_environment((name for name in variables if not (name and authorizes)), to)


def _hands_over(script: str) -> bool:
    first = script.strip().split(" ")[0].rpartition("/")[2]
    return is_shell(script) or (is_shell(first) and ("<&" in script or ">&" in script))


def _is_keyword(argument: Sequence[Token]) -> bool:
    """An option with a name (`stdin: x`, `shell=True`, `:out => y`) is no word of the program."""
    return len(argument) > 2 and argument[0].kind == "name" and argument[1].text in (":", "=")


def _starred(path: str) -> str:
    starred = path.replace("*", STAR)
    return starred if STAR in starred else f"{path.rstrip('/')}/{STAR}"
