"""awk: `system(…)`, commands before `| getline`, and where `print` goes."""

from __future__ import annotations

from shellverdict.foreign.nouns import Foreign, quoted
from shellverdict.foreign.scripts import Calls
from shellverdict.foreign.syntax import Token
from shellverdict.shell.words import GAP
from shellverdict.verdict import Kind

__all__ = ["read_awk"]

_BEGINS = frozenset({";", "{", "}", "(", "=", "!"})


def read_awk(code: str) -> Foreign:
    reader = Calls(code, "awk")
    reader.values |= {"FS": " ", "OFS": " ", "RS": "\n", "ORS": "\n", "SUBSEP": " "}
    reader.read()
    at = 0
    prints = False
    for at, token in enumerate(reader.tokens):
        if token.kind == "name":
            prints |= token.text in ("print", "printf")
            called = reader.values.get(token.text[1:]) if token.text[0] == "@" else token.text
            if called == "system" and reader.mark(at + 1) == "(":
                reader.found.script(next(iter(reader.texts(at)), None) or GAP)
        elif token.kind == "line" or token.text in (";", "{", "}"):
            prints = False
        elif token.kind == "mark" and token.text == "|":
            _piped(reader, at, prints)
        elif token.kind == "mark" and token.text == ">" and prints and reader.mark(at - 1) != ">":
            _written(reader, at)
    _connected(reader)
    return reader.found.foreign


def _piped(reader: Calls, at: int, prints: bool) -> None:
    """`"command" | getline`, `print … | "command"`; `|&` works both ways, `||` is something else."""
    if reader.mark(at + 1) == "|" or reader.mark(at - 1) == "|":
        return
    behind = at + (2 if reader.mark(at + 1) == "&" else 1)
    following = reader.tokens[behind] if behind < len(reader.tokens) else None
    if following is not None and following.text.lstrip("&") == "getline":
        text = reader.fold(_before(reader, at))
        reader.found.script(text if text is not None else GAP)
    elif prints:
        text = reader.fold(reader.until_end(behind)) or GAP
        said = reader.fold(_printed(reader, at))
        said = None if said is not None and "%s" in said else said  # printf puts its words in there
        reader.found.script(f"echo {quoted(said if said is not None else GAP)} | {text}")


def _printed(reader: Calls, at: int) -> list[Token]:
    words = _before(reader, at)
    names = [place for place, token in enumerate(words) if token.text in ("print", "printf")]
    return words[names[-1] + 1 :] if names else words


def _before(reader: Calls, at: int) -> list[Token]:
    begin = at
    while begin > 0 and at - begin < 64:
        token = reader.tokens[begin - 1]
        if token.kind == "line" or (token.kind == "mark" and token.text in _BEGINS):
            break
        if token.kind == "name" and token.text in ("while", "if", "return"):
            break
        begin -= 1
    return reader.tokens[begin:at]


def _written(reader: Calls, at: int) -> None:
    twice = reader.mark(at + 1) == ">"
    words = reader.until_end(at + (2 if twice else 1))
    text = reader.fold(words)
    if text and GAP not in text and any(token.kind == "string" for token in words):
        if twice:
            reader.found.append(text)
        elif text not in ("/dev/stderr", "/dev/stdout"):
            reader.found.overwrite(text)


def _connected(reader: Calls) -> None:
    connected = any(text.startswith("/inet") for text in reader.strings)
    if connected and any(script.strip().startswith(GAP) or GAP in script for script in reader.found.scripts):
        reader.found.effect(Kind.REVERSE_SHELL, detail="what a connection says is run")
