"""Analyze code in script languages by looking at the functions that the code calls.

No language is parsed in full. The code is split into tokens, string assignments are recorded, and calls of
functions that start programs, delete, write or evaluate are examined with their arguments, as far as these
can be computed. Strings that are only printed (`print("rm -rf /")`) have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shellverdict.embedded_code.analysis import (
    HOME,
    CodeAnalysis,
    find_remote_url,
    is_bare_shell,
    is_connected_shell,
)
from shellverdict.embedded_code.call_actions import (
    CONNECTING_NAMES,
    DECODING_NAMES,
    FETCHING_NAMES,
    REQUIRED_MODULES,
    SENDING_NAMES,
)
from shellverdict.embedded_code.client_libraries import find_destroyed_kind, find_service_kinds
from shellverdict.embedded_code.environment_reads import find_environment_variables
from shellverdict.embedded_code.expressions import (
    CLOSING_BRACKETS,
    LISTING_FUNCTIONS,
    MAX_STEPS,
    OPENING_BRACKETS,
)
from shellverdict.embedded_code.indirect_calls import ANY_FUNCTION, IndirectCallReader
from shellverdict.embedded_code.sql import analyze_sql
from shellverdict.embedded_code.tokenizer import MAX_TOKENS, Token
from shellverdict.shell.words import GAP, STAR, Word
from shellverdict.verdict import EffectKind

__all__ = ["CallScanner", "analyze_calls"]

_MAX_DEPTH = 3
_CONCATENATION = re.compile(r"['\"`]\s*\+\s*['\"`]")
_FORK_LOOP = re.compile(
    r"fork(?: \( \))? (?:while|until) (?:1|true|fork|0)|(?:while|until)(?: \()? (?:1|true|fork|0)\b.*?fork"
    r"|loop [{d].{0,40}fork|for \( ; ; \).*?fork"
)
# Perl's mode of `open` for a copy of another handle; a copy of the program's own output is no connection.
_DUPLICATED_STREAM = re.compile(r"\+?[<>]{1,2}&(?!=?\s*STD|=?\d)")
# Functions that list or walk directories.
_DIRECTORY_WALKERS = frozenset(
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
_LOOP_NAMES = frozenset(
    {
        *("each", "forEach", "for", "foreach", "map", "while", "lines", "each_child", "grep", "Enum"),
        *("eachFile", "eachFileRecurse", "eachDir", "eachDirRecurse", "eachFileMatch"),
    }
)
# A DNS lookup sends the name to a server, so it can leak data.
_DNS_LOOKUPS = frozenset({"dns", "gethostbyname", "getaddrinfo", "dns_get_record", "checkdnsrr", "Resolv"})
# Query builder names before a `delete()` that affects every record.
_WHOLE_TABLE_QUERIES = frozenset({"table", "query", "newQuery", "all"})
_CALLS_BY_NAME = frozenset(
    {"array_map", "array_walk", "call_user_func", "call_user_func_array", "array_filter"}
)
_ASKING_METHODS = frozenset({"respond_to?", "method_defined?", "private_method_defined?", "defined?"})


def analyze_calls(code: str, language: str, depth: int = 0) -> CodeAnalysis:
    """Return the effects of code in a script language, derived from the functions that the code calls."""
    scanner = CallScanner(code, language, depth)
    scanner.scan()
    return scanner.analysis.build()


class CallScanner(IndirectCallReader):
    """Scanner that finds calls of the functions listed in `call_actions.toml` in a piece of code."""

    def __init__(self, code: str, language: str, depth: int = 0) -> None:
        super().__init__(code, language)
        self.depth = depth
        self.names = {token.text.lstrip("$@%&") for token in self.tokens if token.kind == "name"}
        self.strings = [token.text for token in self.tokens if token.kind == "string"]
        written = _CONCATENATION.sub("", code)
        self.starts_programs = any(need in written for need in REQUIRED_MODULES["node"])
        self.files_read: list[str] = []
        self.listed_patterns: list[str] = []  # glob patterns of the files that the code lists
        # Deletions of files with unknown names; True for whole trees.
        self.unnamed_deletions: set[bool] = set()
        self.deletes_unknown_names = False  # True if a deleted file's name is completely unknown
        self.service_kinds = find_service_kinds({*self.names, *self.strings})

    def scan(self) -> None:
        at = 0
        while at < len(self.tokens):
            self.steps += 1
            self._scan_token(at)
            at += 1
            if self.steps > MAX_STEPS:
                break
        if self.steps > MAX_STEPS or len(self.tokens) >= MAX_TOKENS:
            self.analysis.add_unreadable(self.code)
        self._add_combined_effects()

    def _scan_token(self, at: int) -> None:
        token = self.tokens[at]
        for name, place, arguments in self.find_indirect_calls(at):
            if name == ANY_FUNCTION:
                self.analysis.add_unreadable("a call of a function that is looked up at run time")
            else:
                self._apply_named_call(name, place, arguments)
        if token.kind == "command":
            self.analysis.add_script(token.text)
        elif token.kind == "string":
            self._check_string_method(at, token.text)
        elif token.kind == "name":
            self.record_assignment(at)
            self._add_applescript_shell(at)
            self._add_apple_event(at)
            if (
                token.text[0] == "$"
                and self.mark_at(at + 1) == "("
                and (held := self.values.get(token.text[1:]))
            ):
                self._apply_named_call(held, at, self.arguments_at(at))
            by_name = token.text in _CALLS_BY_NAME or self.qualified_name(at) == "do.call"
            if by_name and (arguments := self.arguments_at(at)):
                self._apply_named_call("".join(part.text for part in arguments[0]), at, arguments[1:])
            lists = {token.text, self.qualified_name(at)} & LISTING_FUNCTIONS or (
                token.text == "Dir" and self.mark_at(at + 1) == "["
            )
            if lists and (listed := next(iter(self.argument_texts(at)), None)):
                self.listed_patterns.append(_as_pattern(listed))
            self._note_directory_walk(at)
            self._check_client_method(at)
            if action := self._find_action(at):
                self._apply_action(action, at, self.arguments_at(at))
            elif (
                self.actions.get(token.text) == "code"
                and self.mark_at(at - 1) in ("(", ",")
                and self._source_traits()
            ):
                self.analysis.add_unread_code(
                    token.text, self._source_traits()
                )  # passed as a callback for fetched or decoded text
            elif self._is_passed_delete_function(at):
                self.unnamed_deletions.add(False)
                self.deletes_unknown_names = True

    def _is_passed_delete_function(self, at: int) -> bool:
        """Return True if a function that deletes files is passed as a value: `forEach(fs.unlinkSync)`."""
        if self.mark_at(at + 1) not in (")", ",", "/"):
            return False
        name, begin = self.qualified_name(at), at
        while begin >= 2 and self.mark_at(begin - 1) == "." and self.tokens[begin - 2].kind == "name":
            begin -= 2
        is_passed = self.mark_at(begin - 1) == "(" or self.tokens[begin].text[:1] == "&"
        action = self.actions.get(name.lstrip("&")) or self.actions.get(name.rpartition(".")[2])
        return is_passed and action in ("delete", "tree", "tree-if")

    def _note_directory_walk(self, at: int) -> None:
        """Record a glob pattern for the files in a directory that the code lists, as in `opendir D, "."`."""
        name = self.tokens[at].text
        if name not in _DIRECTORY_WALKERS or (name == "find" and self.language not in ("perl", "ruby")):
            return
        directory = next(
            (text for text in reversed(self.argument_texts(at)) if text and GAP not in text), None
        )
        if directory is not None:
            deep = "" if name == "opendir" else f"{STAR}{STAR}/"
            self.listed_patterns.append(f"{directory.rstrip('/')}/{deep}{STAR}")

    def _check_client_method(self, at: int) -> None:
        """Add the effect of a client library's method that deletes data in a cloud service or database."""
        name = self.tokens[at].text
        command = name.endswith("Command") and self.name_at(at - 1) == "new"
        if not command and (self.mark_at(at - 1) not in (".", ">") or self.mark_at(at + 1) == "="):
            return
        arguments = self.arguments_at(at) if self.mark_at(at + 1) == "(" else []
        argument_words = {token.text for argument in arguments for token in argument}
        everything = argument_words <= {"{", "}"}
        kind = (
            None
            if "DryRun" in argument_words
            else find_destroyed_kind(self.qualified_name(at), self.service_kinds, everything=everything)
        )
        if kind is not None:
            self.analysis.add_effect(
                kind, self.qualified_name(at), "drop", detail=f"{self.qualified_name(at)}()"
            )

    def _find_action(self, at: int) -> str:
        """Return the action (delete, upload …) of the function called at token `at`; empty if unknown."""
        token = self.tokens[at]
        if token.text[:1] in ("$", "@", "%") and self.language != "node":
            return ""
        if self.syntax.is_lisp:
            return self.actions.get(token.text, "") if self.mark_at(at - 1) == "(" else ""
        name = self.qualified_name(at)
        name = self.aliases.get(name, name)
        parts = name.split(".")
        for first in range(len(parts)):
            action = self.actions.get(".".join(parts[first:]))
            if action == "needing":
                return "node-process" if self.starts_programs and self.mark_at(at + 1) == "(" else ""
            if action and (first + 1 < len(parts) or self._is_bare_call(at)):
                return action
        return ""

    def _is_bare_call(self, at: int) -> bool:
        """Return True if the name at token `at` is a function call, not a definition or a dictionary key."""
        if self.mark_at(at - 1) in ("-", "$", "@") and self.mark_at(at + 1) in ("}", "=", ""):
            return False
        if self.mark_at(at - 1) == "{" and self.mark_at(at + 1) in ("}", "="):
            return self.name_at(at - 2) == "sub" or self.mark_at(at - 2) == ")"  # a block, not a hash key
        before = self.tokens[at - 1].text if at else ""
        if before in ("sub", "def", "function", "fn", "func"):
            return False
        if before == ":" and {self.name_at(at - 2), self.name_at(at - 3)} & _ASKING_METHODS:
            return False
        if self.mark_at(at + 1) == "(" or (self.mark_at(at + 1) == "?" and self.mark_at(at + 2) == "."):
            return True
        return self.syntax.has_bare_arguments and self.mark_at(at + 1) not in ("=", ".", ",", ":", ">", "]")

    def _apply_action(self, action: str, at: int, arguments: list[list[Token]]) -> None:
        texts = [self.fold_text(argument) for argument in arguments[:32]]
        first = texts[0] if texts else None
        if first is None and (receiver := self._fold_receiver(at)) is not None:
            first = receiver
        patterned = any(
            t.text in LISTING_FUNCTIONS for argument in arguments[:2] for t in argument if t.kind == "name"
        )
        path = _as_pattern(first) if first is not None and (patterned or "*" in first) else first
        if action in ("shell", "run", "node-process") and len(arguments) == 1 and len(arguments[0]) == 1:
            for other in self.possible_texts.get(arguments[0][0].text.lstrip("$@%&"), {}):
                self.analysis.add_script(other)
        if action in ("shell", "run") and first and self.mark_at(at - 1) in (".", ">"):
            self.analysis.merge(analyze_sql(Word(first), "sqlite"))  # `exec` may be a database method
        match action:
            case "shell":
                self.analysis.add_script(first if first is not None else GAP)
            case "run" | "argv" | "node-process" | "call-process":
                self._add_program(action, arguments, texts, at)
            case "delete" | "tree" | "tree-if":
                self._add_deletion(action, arguments, texts, path)
            case "overwrite" if path:
                self.analysis.add_overwrite(path)
            case "append" if path:
                self.analysis.add_append(path)
            case "open" | "open-flags":
                self._add_open(texts, path)
            case "read" if path:
                self._note_file_read(path)
            case "move" | "copy" | "link" if len(texts) > 1:
                program = {"move": ["mv"], "copy": ["cp", "-r"], "link": ["ln", "-s"]}[action]
                self.analysis.add_command(*program, "--", first or GAP, texts[1] or GAP)
            case "mode" | "mode-first":
                self._add_mode_change(arguments, texts)
            case "owner" | "owner-tree":
                for text in texts:
                    if text and "/" in text:
                        self.analysis.add_command(
                            "chown", *(["-R"] if action == "owner-tree" else []), GAP, text
                        )
            case "kill":
                self._add_kill(arguments)
            case "code":
                self._add_evaluated_code(first, arguments)
            case "run-fetched":
                self._add_fetched_code(arguments)
            case "run-first" if first and "://" in first:
                self.analysis.add_unread_code(first, frozenset({"network"}))
            case "run-named" if first:
                self.analysis.add_unread_code(first, frozenset({"network"}))
            case "run-page" if self.names & FETCHING_NAMES:
                self.analysis.add_unread_code(self.tokens[at].text, frozenset({"network"}))
            case "records":
                self._add_record_deletion(at)
            case "sql" if first:
                self.analysis.merge(analyze_sql(Word(first), "sqlite"))

    def _add_fetched_code(self, arguments: list[list[Token]]) -> None:
        """Add the effect of running code that is downloaded from a URL in the arguments."""
        texts = [token.text for argument in arguments for token in argument if token.kind == "string"]
        if (to := find_remote_url(texts)) != GAP:
            self.analysis.add_unread_code(to, frozenset({"network"}))

    def _add_record_deletion(self, at: int) -> None:
        """Add the deletion of all database records of a model class, unless a condition limits it."""
        line = {token.text for token in self.tokens[max(0, at - 24) : at]}
        every = self.tokens[at].text not in ("delete", "forceDelete") or bool(line & _WHOLE_TABLE_QUERIES)
        if every and not line & {"where", "find_by", "limit", "find", "fopen"}:
            self.analysis.add_effect(
                EffectKind.DATABASE, self.qualified_name(at), "delete-all", detail=self.qualified_name(at)
            )

    def _fold_receiver(self, at: int) -> str | None:
        """Return the text of the object that a method is called on: `/x` in `new File("/x").delete()`."""
        if self.mark_at(at - 1) != ".":
            return None
        begin = at - 2
        depth = 0
        while begin >= 0 and at - begin < 40:
            self.steps += 1
            mark = self.mark_at(begin)
            depth += (mark in CLOSING_BRACKETS) - (mark in OPENING_BRACKETS)
            if (
                depth < 0
                or self.tokens[begin].kind == "line"
                or (depth == 0 and mark in (";", "=", "{", "}"))
            ):
                break
            begin -= 1
        return self.fold_text(self.tokens[begin + 1 : at - 1])

    def _add_program(
        self, action: str, arguments: list[list[Token]], texts: list[str | None], at: int
    ) -> None:
        if action == "call-process":
            texts = [text for text in texts if text is not None]
            arguments = arguments[: len(texts)]
        if self.syntax.is_lisp and action == "argv":
            self.analysis.add_command(
                *(token.text for argument in arguments for token in argument if token.kind == "string")
            )
            return
        words: list[str] = []
        for argument, text in zip(arguments, texts, strict=False):
            if argument[0].text == "{" and action != "run":
                words += self._named_list_argument(argument, "args")
                continue
            listed = None if self.is_list_method_call(argument) else self.fold_list(argument)
            if listed is not None:
                words += listed
            elif text is not None and (self.language == "swift" or not _is_keyword_argument(argument)):
                words.append(text)
        if not words:
            self.analysis.add_script(GAP)
        elif (len(words) == 1 and (action != "argv" or " " in words[0])) or (
            action == "node-process" and self.tokens[at].text in ("exec", "execSync")
        ):
            self.analysis.add_script(words[0])
        else:
            self.analysis.add_command(*words)

    def _named_list_argument(self, options: Sequence[Token], name: str) -> list[str]:
        """Return the list that is passed as the keyword argument `name`, such as `args: [...]`."""
        for place, token in enumerate(options):
            if token.kind == "name" and token.text == name:
                return self.fold_list(options[place + 2 :]) or []
        return []

    def _add_deletion(
        self, action: str, arguments: list[list[Token]], texts: list[str | None], path: str | None
    ) -> None:
        argument_words = {token.text for argument in arguments for token in argument}
        is_recursive = bool(
            {"recursive", "recurse", ":recursive"} & argument_words
            and not {"false", "FALSE", "F"} & argument_words
        )
        tree = action == "tree" or (
            action == "tree-if" and (is_recursive or bool({"t", "s", "rf"} & argument_words))
        )
        paths = [path] if path else []
        paths += [_as_pattern(text) if "*" in text else text for text in texts[1:] if text and not tree]
        for target in paths or [GAP]:
            if GAP in target:
                self.unnamed_deletions.add(tree)
            self.deletes_unknown_names |= target == GAP
            if STAR in target and not tree:
                self.analysis.add_delete_each(target)
            else:
                self.analysis.add_delete(target, tree=tree)

    def _add_open(self, texts: list[str | None], path: str | None) -> None:
        """Add the effect of opening a file or pipe: `open(path, "w")`, Perl's `open(F, "cmd |")`."""
        known = [text for text in texts if text is not None and text != GAP]
        if self.language == "perl":
            self._add_perl_open(known)
            return
        if path is None:
            return
        if path.startswith("|"):
            self.analysis.add_script(path[1:])
        elif any(mode[:1] in ("w", "x", "c") or "+" in mode for mode in known[1:2]):
            self.analysis.add_overwrite(path)
        elif any(mode[:1] == "a" for mode in known[1:2]):
            self.analysis.add_append(path)
        else:
            self._note_file_read(path)

    def _add_perl_open(self, known: list[str]) -> None:
        if not known:
            return
        mode, rest = known[0].strip(), known[1:]
        if mode in ("-|", "|-") and rest:
            self._add_fed_program(" ".join(rest))
        elif mode.startswith((">&", "<&")):
            return
        elif mode.startswith("|"):
            self._add_fed_program(mode[1:])
        elif mode.endswith("|"):
            self.analysis.add_script(mode[:-1])
        elif mode.startswith((">>", "+>>")):
            self.analysis.add_append(mode.lstrip("+>").split(":")[0].strip() or (rest[0] if rest else GAP))
        elif mode.startswith((">", "+>", "+<")):
            self.analysis.add_overwrite(
                mode.lstrip("+<>").split(":")[0].strip() or (rest[0] if rest else GAP)
            )
        else:
            self._note_file_read(rest[0] if mode.startswith("<") and rest else mode.lstrip("<").strip())

    def _add_fed_program(self, program: str) -> None:
        """Add a program that the analyzed code starts and then writes to through its standard input.

        If the program is a shell, each string in the code is added as a script, because it may be the input.
        """
        self.analysis.add_script(program)
        if is_bare_shell(program.strip()):
            for text in self.strings[:32]:
                self.analysis.add_script(text)

    def _note_file_read(self, path: str) -> None:
        if GAP not in path and "://" not in path and len(path) < 1024:
            self.files_read.append(path)

    def _add_mode_change(self, arguments: list[list[Token]], texts: list[str | None]) -> None:
        number = next((t.text for argument in arguments for t in argument if t.kind == "number"), None)
        mode = (
            number.lower().replace("0o", "").lstrip("0")
            if number
            else next((t for t in texts if t and "+" in t), GAP)
        )
        for text in texts:
            if text and text != number and text != mode and GAP not in text:
                self.analysis.add_command("chmod", mode or "0", text)

    def _add_kill(self, arguments: list[list[Token]]) -> None:
        words = ["".join(token.text for token in argument) for argument in arguments[:8]]
        numbers = [word if word.lstrip("-").isdigit() else GAP for word in words]
        if self.language in ("node", "php"):
            self.analysis.add_command("kill", "-9", "--", *numbers[:1])
        elif numbers:
            self.analysis.add_command(
                "kill", f"-{words[0].strip(chr(39)) if words[0].isalnum() else 9}", "--", *numbers[1:]
            )

    def _add_evaluated_code(self, text: str | None, arguments: list[list[Token]]) -> None:
        """Analyze code passed to `eval` or similar functions; if its text is unknown, record its origin."""
        if self._is_perl_block(arguments):
            return
        commands = [part.text for part in arguments[0] if part.kind == "command"]
        for command in commands:
            self.analysis.add_script(f"{command} | {self.language}")
        if commands and len(commands) == len(arguments[0]):
            return
        traits = self._source_traits()
        if "network" in traits and any(
            part.text in FETCHING_NAMES for argument in arguments for part in argument
        ):
            self.analysis.add_unread_code(text or "", traits)
        elif text is not None and GAP not in text and self.depth < _MAX_DEPTH:
            if "decoded" in traits:
                self.analysis.add_unread_code(text, traits)
            self.analysis.merge(analyze_calls(text, self.language, self.depth + 1))
        elif traits:
            self.analysis.add_unread_code(text or "", traits)
        elif arguments:
            self.analysis.add_unreadable(text or "eval")

    def _is_perl_block(self, arguments: list[list[Token]]) -> bool:
        """Return True if `eval` is Perl's `eval { … }`, which runs a block of code instead of a string."""
        return not arguments or arguments[0][0].text == "{"

    def _source_traits(self) -> frozenset[str]:
        """Return the keyword `network` if the code downloads anything, and `decoded` if it decodes text."""
        traits = set()
        if self.names & FETCHING_NAMES and any(
            "://" in text or "/" in text or text == GAP for text in self.strings
        ):
            traits.add("network")
        if self.names & DECODING_NAMES or "base64" in self.strings:
            traits.add("decoded")
        return frozenset(traits)

    def _check_string_method(self, at: int, text: str) -> None:
        """Add a command that a method of a string runs: Groovy's `"rm x".execute()`, Scala's `"rm x".!`."""
        if self.language == "groovy" and self.mark_at(at + 1) == "." and self.name_at(at + 2) == "execute":
            self.analysis.add_script(text)
        elif self.language == "groovy" and self.mark_at(at + 1) in ("]", ",") and "execute" in self.names:
            self._add_executed_list(at)
        elif self.language == "scala":
            behind = [self.mark_at(at + 1), self.mark_at(at + 2)]
            if behind[0] == "!" or behind == [".", "!"] or self.name_at(at + 1).startswith("lazyLines"):
                self.analysis.add_script(text)
        elif self.language == "node" and self.mark_at(at - 1) == "$":
            self.analysis.add_script(text)
        if self.mark_at(at - 1) == "[" and self.mark_at(at + 1) == "]" and self.mark_at(at + 2) == "(":
            self._apply_named_call(text, at + 1, self.arguments_at(at + 1))

    def _apply_named_call(self, name: str, at: int, arguments: list[list[Token]]) -> None:
        """Add the call of a function whose name is given as a string: `call_user_func("system", "…")`."""
        action = self.actions.get(name.lstrip(":"), "")
        if action == "needing":
            action = "node-process" if self.starts_programs else ""
        if action:
            self._apply_action(action, at, arguments)

    def _add_executed_list(self, at: int) -> None:
        if self.mark_at(at - 1) != "[":
            return
        words = self.statement_tokens(at - 1)
        listed = self.fold_list(words)
        if listed and any(token.text == "execute" for token in words):
            self.analysis.add_command(*listed)

    def _add_applescript_shell(self, at: int) -> None:
        """Add the shell code of AppleScript's `do shell script "…"` and of the Terminal's `do script`."""
        if (
            self.language == "osascript"
            and self.tokens[at].text.lower() == "script"
            and self.name_at(at - 1).lower() in ("shell", "do")
        ):
            text = self.fold_text(self.statement_tokens(at + 1))
            self.analysis.add_script(text if text is not None else GAP)

    def _add_apple_event(self, at: int) -> None:
        """Add the effects of AppleScript commands to other applications: add login items, delete files …"""
        if self.language != "osascript":
            return
        name = self.tokens[at].text.lower()
        line = self.statement_tokens(at + 1)
        words = {token.text.lower() for token in line if token.kind == "name"}
        path = next((token.text for token in line if token.kind == "string"), None)
        if name == "make" and {"login", "item"} <= words:
            self.analysis.add_command("defaults", "write", "com.apple.loginitems", path or GAP)
        elif name == "delete" and words & {"file", "folder", "item", "items", "files", "folders", "alias"}:
            self.analysis.add_command("trash-put", path or (HOME if words & {"home", "every"} else GAP))
        elif name == "empty" and "trash" in words:
            self.analysis.add_command("trash-empty")

    def _is_fork_bomb(self) -> bool:
        if not self.names & {"fork", "pcntl_fork"}:
            return False
        texts = " ".join(token.text for token in self.tokens[:400])
        return _FORK_LOOP.search(texts) is not None

    def _add_combined_effects(self) -> None:
        """Add effects that result from a combination of calls, such as opening a reverse shell."""
        connects = bool(self.names & CONNECTING_NAMES) or any(
            text.startswith("/inet/") for text in self.strings
        )
        duplicated = any(_DUPLICATED_STREAM.match(text) for text in self.strings)
        if connects and (duplicated or any(is_connected_shell(script) for script in self.analysis.scripts)):
            self.analysis.add_effect(EffectKind.REVERSE_SHELL, detail="connects a shell to the network")
        if self._is_fork_bomb():
            self.analysis.add_effect(EffectKind.FORK_BOMB, detail="forks processes without limit")
        for tree in self.unnamed_deletions:
            for pattern in self.listed_patterns[:8]:
                self.analysis.add_delete(pattern, tree=True) if tree else self.analysis.add_delete_each(
                    pattern
                )
        if self.deletes_unknown_names and not self.listed_patterns and self.names & _LOOP_NAMES:
            self.analysis.add_command("xargs", "rm", "-f", "--")
        self._add_environment_sent(connects)
        if {"DELETE", "delete"} & set(self.strings) and "fetch" in self.names:
            self.analysis.add_command("curl", "-X", "DELETE", find_remote_url(self.strings))
        sends = bool(self.names & SENDING_NAMES) and (bool(self.names & FETCHING_NAMES) or connects)
        for path in dict.fromkeys(self.files_read):
            self.analysis.add_command("cat", "--", path)
            if sends:
                self.analysis.add_file_upload(path, find_remote_url(self.strings))

    def _add_environment_sent(self, connects: bool) -> None:
        to = find_remote_url(self.strings)
        if (
            not connects
            and not _DNS_LOOKUPS & {*self.names, *self.strings}
            and (to == GAP or not self.names & (FETCHING_NAMES | SENDING_NAMES))
        ):
            return
        authorizes = any("authorization" in word.lower() for word in (*self.names, *self.strings))
        variables = find_environment_variables(self.code, self.language)
        self.analysis.add_environment_upload((name for name in variables if not (name and authorizes)), to)


def _is_keyword_argument(argument: Sequence[Token]) -> bool:
    """Return True for a keyword argument of a call (`stdin: x`, `shell=True`)."""
    return len(argument) > 2 and argument[0].kind == "name" and argument[1].text in (":", "=")


def _as_pattern(path: str) -> str:
    """Return a path as a glob pattern; a path without `*` becomes a pattern for the files in it."""
    starred = path.replace("*", STAR)
    return starred if STAR in starred else f"{path.rstrip('/')}/{STAR}"
