"""Find indirect calls in JavaScript, Ruby and Perl code: functions that are stored, or looked up by name.

A name that is computed from literals of the code is resolved, or may be any of the literals. Only a name that
may come from outside (arguments, environment, input, decoded text) makes a call unreadable, and only where it
can reach a function that starts programs, deletes or evaluates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from shellverdict.embedded_code.call_actions import DECODING_NAMES
from shellverdict.embedded_code.expressions import CLOSING_BRACKETS, OPENING_BRACKETS, ExpressionReader
from shellverdict.embedded_code.tokenizer import Token
from shellverdict.shell.words import GAP

__all__ = ["ANY_FUNCTION", "IndirectCallReader"]

ANY_FUNCTION = ""
"""Stands for a function that may be any, because it is looked up by a name that is unknown."""

_STORED_ACTIONS = frozenset({"shell", "run", "argv", "needing", "delete", "tree", "tree-if", "code"})
_OUTSIDE_NAMES = frozenset(
    {
        *("ARGV", "argv", "ENV", "env", "gets", "STDIN", "stdin", "read", "readline", "readlines"),
        *("readFileSync", "readFile", "reverse", "chr", "tr", "gsub", "replace", "from", *DECODING_NAMES),
    }
)
_INTERPOLATED_INPUT = re.compile(r"[$@]\{?(?:ARGV|ENV)\b")
_NODE_MODULES = frozenset(
    {"child_process", "fs", "fs/promises", "vm", "module", "worker_threads", "shelljs", "execa", "fs-extra"}
)
_NODE_GLOBALS = frozenset({"globalThis", "global", "window", "process", "module", "mainModule", "require"})
_NODE_INTERPRETERS = (("repl", "start"), ("vm", "Script"), ("inspector", "Session"))
_NODE_CALLERS = frozenset({"forEach", "map", "then", "setTimeout", "setImmediate", "nextTick", "on", "once"})
_RUBY_LOOKUPS = frozenset(
    {"send", "public_send", "__send__", "method", "public_method", "instance_method", "const_get"}
)
_RUBY_INTERPRETERS = frozenset({"binding.irb", "binding.pry", "IRB.start", "Pry.start"})

IndirectCall = tuple[str, int, list[list[Token]]]
"""Name of the function, index of the token before the arguments, and the arguments."""


class IndirectCallReader(ExpressionReader):
    """Reader that finds the functions that indirect calls in a piece of code may reach."""

    def __init__(self, code: str, language: str) -> None:
        super().__init__(code, language)
        self._all_names = {token.text.lstrip("$@%&") for token in self.tokens if token.kind == "name"}
        self._literals = [
            text
            for token in self.tokens
            if token.kind in ("string", "words")
            for text in (token.text.split() if token.kind == "words" else [token.text])
        ] + [self.name_at(at + 1) for at in range(len(self.tokens)) if self.mark_at(at) == ":"]
        self._reads_outside = bool(self._all_names & _OUTSIDE_NAMES or _INTERPOLATED_INPUT.search(code))
        self._dangerous_names = {name.rpartition(".")[2] for name in self.actions}
        self._modules: set[str] = set()  # variables that hold a module with dangerous functions
        self._unknown_modules: set[str] = set()  # variables that hold a module with an unknown name
        self._stored: dict[str, None] = {}  # dangerous functions that are used as values
        self._holders: set[str] = set()  # variables from which such a function can be taken

    def find_indirect_calls(self, at: int) -> Iterator[IndirectCall]:
        """Yield the dangerous functions that the code at token `at` may call indirectly."""
        match self.language:
            case "node":
                yield from self._find_node_calls(at)
            case "ruby" if self.tokens[at].kind == "name":
                yield from self._find_ruby_calls(at)
            case "perl":
                yield from self._find_perl_calls(at)

    def resolve_names(self, words: Sequence[Token]) -> list[str]:
        """Return the names that an expression may evaluate to, among them ANY_FUNCTION if it may be any."""
        if [(word.kind, word.text) for word in words[:1]] == [("mark", ":")]:  # a symbol of Ruby
            return ["".join(word.text for word in words[1:])]
        text = self.fold_text(words)
        if text is not None and GAP not in text:
            return [text]
        parts = self._known_parts(words)
        self.steps += len(self._literals) // 16
        if not self._reads_outside:
            return [each for each in self._literals if each and _fits(each, parts)]
        is_qualified = any(":" in part for part in parts)
        is_dangerous = is_qualified or any(_fits(name, parts) for name in self._dangerous_names)
        return [ANY_FUNCTION] if is_dangerous else []

    def _known_parts(self, words: Sequence[Token]) -> list[str]:
        """Return the literal parts of a text around its unknown parts: `["get_", ""]` for `"get_" + x`."""
        parts, depth = [""], 0
        if any(word.kind == "mark" and word.text in ("?", "|") for word in words):
            return ["", ""]  # one of several texts
        for word in words:
            if word.kind == "mark" and word.text in ("[", "{", "]", "}"):
                depth += 1 if word.text in OPENING_BRACKETS else -1
            elif depth == 0 and word.kind == "string":
                first, *more = word.text.split(GAP)
                parts = [*parts[:-1], parts[-1] + first, *more]
            elif depth == 0 and word.kind == "name":
                parts.append("")
        return parts

    def _is_unknown(self, words: Sequence[Token]) -> bool:
        """Return True if nothing is known about the text of an expression, which may come from outside."""
        return ANY_FUNCTION in self.resolve_names(words) and not any(self._known_parts(words))

    # --- JavaScript ---

    def _find_node_calls(self, at: int) -> Iterator[IndirectCall]:
        token = self.tokens[at]
        if token.kind == "mark" and token.text == "[":
            yield from self._find_item_call(at)
        elif token.kind == "name":
            self._record_node_values(at)
            if token.text in ("require", "import") and self.mark_at(at + 1) == "(":
                yield from self._find_unknown_module(at)
            elif token.text == "constructor" and self.mark_at(at + 1) == "(":
                if self.name_at(at - 2) == "constructor" or self.mark_at(at - 2) in CLOSING_BRACKETS:
                    yield "Function", at, self.arguments_at(at)
            elif token.text in self._unknown_modules and self.mark_at(at + 1) == ".":
                if self.mark_at(at + 3) == "(":
                    yield ANY_FUNCTION, at, []
            elif token.text in self._holders and self.mark_at(at - 1) != ".":
                yield from self._find_holder_call(at)
            elif token.text in ("values", "entries") and self.name_at(at - 2) == "Object":
                if any(self._names_module(words) for words in self.arguments_at(at)):
                    yield ANY_FUNCTION, at, []
            elif self._is_function_value(at):
                yield from self._find_value_use(at)
            for module, name in _NODE_INTERPRETERS:
                if token.text == name and {module, f"node:{module}"} & set(self._literals):
                    yield ANY_FUNCTION, at, []

    def _record_node_values(self, at: int) -> None:
        """Record what a variable holds, if the code assigns a module or a dangerous function to it."""
        name = self.tokens[at].text
        if self.mark_at(at + 1) != "=" or self.mark_at(at + 2) in ("=", ">"):
            return
        words = self.statement_tokens(at + 2)
        begin = at + 2
        if self._names_module(words):
            self._modules.add(name)
        if any(self._is_unknown_require(begin + place) for place in range(len(words))):
            self._unknown_modules.add(name)
        if len(words) > 2 and words[0].text in self._modules and words[1].text == "[":
            for member in self.resolve_names(words[2 : self._skip_brackets(words, 1) - 1]):
                if member == ANY_FUNCTION or self.actions.get(member) in _STORED_ACTIONS:
                    self._stored[member] = None
                    self._holders.add(name)
        held = [begin + place for place in range(len(words)) if self._is_function_value(begin + place)]
        if held or any(word.kind == "name" and word.text in self._holders for word in words):
            self._holders.add(name)

    def _names_module(self, words: Sequence[Token]) -> bool:
        """Return True if an expression is a module with dangerous functions: `require("fs")`, or a name."""
        if len(words) == 1:
            return words[0].text in self._modules
        texts = {word.text.removeprefix("node:") for word in words if word.kind == "string"}
        return bool(texts & _NODE_MODULES) and words[-1].text == ")" and "require" in {w.text for w in words}

    def _is_unknown_require(self, at: int) -> bool:
        """Return True if a module is loaded whose name is completely unknown."""
        if self.name_at(at) not in ("require", "import") or self.mark_at(at + 1) != "(":
            return False
        return any(self._is_unknown(words) or _decodes(words) for words in self.arguments_at(at)[:1])

    def _find_unknown_module(self, at: int) -> Iterator[IndirectCall]:
        if not self._is_unknown_require(at):
            return
        end = self._closing_bracket(at + 1)
        used = self.mark_at(end + 1) == "." and self.mark_at(end + 3) in ("(", "[")
        used |= self.mark_at(end + 1) in ("(", "[")
        if used and self.name_at(end + 2) not in ("catch", "finally"):
            yield ANY_FUNCTION, at, []

    def _find_item_call(self, at: int) -> Iterator[IndirectCall]:
        """Find a call of an item: `fs[name](…)`."""
        end = self._closing_bracket(at)
        if self.mark_at(end + 1) != "(" or end - at < 2:
            return
        owner = self.name_at(at - 1)
        words = self.tokens[at + 1 : end]
        names = self.resolve_names(words)
        has_modules = (
            owner in self._modules
            or owner in self._unknown_modules
            or owner in _NODE_GLOBALS
            or self._names_module(self.tokens[max(0, at - 4) : at])
        )
        if owner in self._holders:
            yield from ((name, end, self.arguments_at(end)) for name in self._stored)
        arguments = self.arguments_at(end) if names else []
        for name in names:
            if (name != ANY_FUNCTION or has_modules) and not (len(words) == 1 and words[0].kind == "string"):
                yield name, end, arguments

    def _find_holder_call(self, at: int) -> Iterator[IndirectCall]:
        """Find a call of a variable that holds a dangerous function, or of one of its attributes."""
        is_defined = self.mark_at(at + 1) == "(" and self.name_at(at - 1) == "function"
        place = at if self.mark_at(at + 1) == "(" else at + 2
        if is_defined or (place != at and self.mark_at(at + 1) != "."):
            return
        if self.mark_at(place + 1) == "(":
            yield from ((name, place, self.arguments_at(place)) for name in self._stored)
            end = self._closing_bracket(place + 1)
            if self.mark_at(end + 1) == "(":
                yield from ((name, end, self.arguments_at(end)) for name in self._stored)

    def _is_function_value(self, at: int) -> bool:
        """Return True if a dangerous function is used as a value instead of being called."""
        name = self.name_at(at)
        action = (
            self.actions.get(self.aliases.get(name, name)) or self.actions.get(self.qualified_name(at))
            if (name)
            else None
        )
        if action not in _STORED_ACTIONS or (
            action in ("delete", "tree", "tree-if") and not self._is_member(at)
        ):
            return False
        after = self.mark_at(at + 1)
        if after == "." and self.name_at(at + 2) in ("call", "apply", "bind"):
            return True
        if self.name_at(at - 1) == "typeof" or after not in ("}", ",", "]", ")", ";", ""):
            return False
        return self._is_member(at) or not self._is_pattern(at)

    def _is_member(self, at: int) -> bool:
        return self.mark_at(at - 1) == "."

    def _is_pattern(self, at: int) -> bool:
        """Return True if a name is bound by a pattern: `const {exec} = …`, `import {exec} from …`."""
        depth = 0
        for place in range(at, min(at + 64, len(self.tokens))):
            mark = self.mark_at(place)
            depth += (mark in OPENING_BRACKETS) - (mark in CLOSING_BRACKETS)
            if depth < 0:
                return self.mark_at(place + 1) == "=" or self.name_at(place + 1) == "from"
        return False

    def _find_value_use(self, at: int) -> Iterator[IndirectCall]:
        """Record a function that is used as a value, and find calls such as `f.call(…)`."""
        name = self.aliases.get(self.tokens[at].text, self.tokens[at].text)
        self._stored[name] = None
        method = self.name_at(at + 2) if self.mark_at(at + 1) == "." else ""
        if method in ("call", "apply"):
            yield name, at + 2, self.arguments_at(at + 2)[1:]
        elif method == "bind":
            end = self._closing_bracket(at + 3)
            if self.mark_at(end + 1) == "(":
                yield name, end, self.arguments_at(end)
        elif (caller := self._caller_of(at)) in _NODE_CALLERS or caller == "apply":
            yield name, at, []

    def _caller_of(self, at: int) -> str:
        """Return the name of the function to which the value at token `at` is passed."""
        depth = 0
        for place in range(at - 1, max(-1, at - 40), -1):
            mark = self.mark_at(place)
            depth += (mark in CLOSING_BRACKETS) - (mark in OPENING_BRACKETS)
            if depth < 0:
                return self.name_at(place - 1) if mark == "(" else ""
        return ""

    def _closing_bracket(self, at: int) -> int:
        """Return the index of the bracket that closes the one at token `at`."""
        return at + self._skip_brackets(self.tokens[at : at + 200], 0) - 1

    # --- Ruby ---

    def _find_ruby_calls(self, at: int) -> Iterator[IndirectCall]:
        token = self.tokens[at]
        if self.qualified_name(at) in _RUBY_INTERPRETERS:
            yield ANY_FUNCTION, at, []
        elif token.text in _RUBY_LOOKUPS and (arguments := self.arguments_at(at)):
            for name in self.resolve_names(arguments[0]):
                if name == ANY_FUNCTION or token.text in ("send", "public_send", "__send__"):
                    yield name, at, arguments[1:]
        elif token.text in ("load", "require") and self.mark_at(at - 1) != ".":
            arguments = self.arguments_at(at)
            if arguments and self._is_unknown(arguments[0]):
                yield ANY_FUNCTION, at, []

    # --- Perl ---

    def _find_perl_calls(self, at: int) -> Iterator[IndirectCall]:
        token = self.tokens[at]
        if token.kind == "mark":
            if token.text in ("&", "*") and self.mark_at(at + 1) == "{":
                end = self._closing_bracket(at + 1)
                if token.text == "*" and self.name_at(end + 2) != "CODE":
                    return
                for name in self._perl_names(self.tokens[at + 2 : end]):
                    yield name, end, self.arguments_at(end)
        elif token.kind == "name" and token.text[:2] == "&$":
            yield from self._find_named_perl_call(token.text[2:], at)
        elif token.kind == "name" and token.text == "can" and self.mark_at(at - 1) == ">":
            end = self._closing_bracket(at + 1)
            if [self.mark_at(end + place) for place in (1, 2, 3)] == ["-", ">", "("]:
                for name in self._perl_names(self.tokens[at + 2 : end]):
                    yield name, end + 2, self.arguments_at(end + 2)
        elif token.kind == "name" and token.text in ("require", "do") and self.mark_at(at - 1) != ">":
            following = self.tokens[at + 1] if at + 1 < len(self.tokens) else None
            if following is not None and following.kind == "name" and following.text[0] == "$":
                arguments = self.arguments_at(at)
                if arguments and self._is_unknown(arguments[0]):
                    yield ANY_FUNCTION, at, []
        elif token.kind == "name" and [self.mark_at(at + place) for place in (1, 2, 3)] == ["-", ">", "("]:
            yield from self._find_named_perl_call(token.text.lstrip("$"), at, at + 2)

    def _find_named_perl_call(
        self, variable: str, at: int, before: int | None = None
    ) -> Iterator[IndirectCall]:
        held = self.values.get(variable)
        if held is not None and GAP not in held:
            place = at if before is None else before
            yield held.rpartition(":")[2], place, self.arguments_at(place)

    def _perl_names(self, words: Sequence[Token]) -> list[str]:
        names = [name.rpartition(":")[2] for name in self.resolve_names(words)]
        is_variable = len(words) == 1 and words[0].kind == "name"  # perhaps a function of the code itself
        return [name for name in names if name != ANY_FUNCTION or not is_variable]


def _fits(name: str, parts: Sequence[str]) -> bool:
    """Return True if a name has the first known part of a text as prefix and the last as suffix."""
    return name.startswith(parts[0]) and name.endswith(parts[-1])


def _decodes(words: Sequence[Token]) -> bool:
    return any(word.text in ("Buffer", "atob", "fromCharCode") for word in words)
