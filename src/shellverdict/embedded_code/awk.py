"""Analyze awk programs: `system(…)`, commands before `| getline`, and files and pipes of `print`."""

from __future__ import annotations

from shellverdict.embedded_code.analysis import CodeAnalysis, quote_word
from shellverdict.embedded_code.call_scanner import CallScanner
from shellverdict.embedded_code.tokenizer import Token
from shellverdict.shell.words import GAP
from shellverdict.verdict import EffectKind

__all__ = ["analyze_awk"]

_STATEMENT_STARTS = frozenset({";", "{", "}", "(", "=", "!"})


def analyze_awk(code: str) -> CodeAnalysis:
    scanner = CallScanner(code, "awk")
    scanner.values |= {"FS": " ", "OFS": " ", "RS": "\n", "ORS": "\n", "SUBSEP": " "}
    scanner.scan()
    at = 0
    prints = False
    for at, token in enumerate(scanner.tokens):
        if token.kind == "name":
            prints |= token.text in ("print", "printf")
            called = scanner.values.get(token.text[1:]) if token.text[0] == "@" else token.text
            if called == "system" and scanner.mark_at(at + 1) == "(":
                scanner.analysis.add_script(next(iter(scanner.argument_texts(at)), None) or GAP)
        elif token.kind == "line" or token.text in (";", "{", "}"):
            prints = False
        elif token.kind == "mark" and token.text == "|":
            _add_pipe(scanner, at, prints)
        elif token.kind == "mark" and token.text == ">" and prints and scanner.mark_at(at - 1) != ">":
            _add_output_file(scanner, at)
    _add_reverse_shell(scanner)
    return scanner.analysis.build()


def _add_pipe(scanner: CallScanner, at: int, prints: bool) -> None:
    """Add a command that awk runs in a pipe: `"command" | getline`, `print … | "command"`."""
    if scanner.mark_at(at + 1) == "|" or scanner.mark_at(at - 1) == "|":
        return
    behind = at + (2 if scanner.mark_at(at + 1) == "&" else 1)
    following = scanner.tokens[behind] if behind < len(scanner.tokens) else None
    if following is not None and following.text.lstrip("&") == "getline":
        text = scanner.fold_text(_tokens_before(scanner, at))
        scanner.analysis.add_script(text if text is not None else GAP)
    elif prints:
        text = scanner.fold_text(scanner.statement_tokens(behind)) or GAP
        printed = scanner.fold_text(_printed_tokens(scanner, at))
        printed = (
            None if printed is not None and "%s" in printed else printed
        )  # printf fills in unknown values
        scanner.analysis.add_script(f"echo {quote_word(printed if printed is not None else GAP)} | {text}")


def _printed_tokens(scanner: CallScanner, at: int) -> list[Token]:
    """Return the tokens that awk's `print` or `printf` writes to the pipe at token `at`."""
    words = _tokens_before(scanner, at)
    names = [place for place, token in enumerate(words) if token.text in ("print", "printf")]
    return words[names[-1] + 1 :] if names else words


def _tokens_before(scanner: CallScanner, at: int) -> list[Token]:
    """Return the tokens between the start of the current statement and the token at index `at`."""
    begin = at
    while begin > 0 and at - begin < 64:
        token = scanner.tokens[begin - 1]
        if token.kind == "line" or (token.kind == "mark" and token.text in _STATEMENT_STARTS):
            break
        if token.kind == "name" and token.text in ("while", "if", "return"):
            break
        begin -= 1
    return scanner.tokens[begin:at]


def _add_output_file(scanner: CallScanner, at: int) -> None:
    twice = scanner.mark_at(at + 1) == ">"
    words = scanner.statement_tokens(at + (2 if twice else 1))
    text = scanner.fold_text(words)
    if text and GAP not in text and any(token.kind == "string" for token in words):
        if twice:
            scanner.analysis.add_append(text)
        elif text not in ("/dev/stderr", "/dev/stdout"):
            scanner.analysis.add_overwrite(text)


def _add_reverse_shell(scanner: CallScanner) -> None:
    connected = any(text.startswith("/inet") for text in scanner.strings)
    if connected and any(
        script.strip().startswith(GAP) or GAP in script for script in scanner.analysis.scripts
    ):
        scanner.analysis.add_effect(EffectKind.REVERSE_SHELL, detail="runs text received from the network")
