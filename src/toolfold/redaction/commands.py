"""Secrets on command lines: behind options, in assignments, in what is piped to a program that wants one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from toolfold.redaction.code import find_run_values, is_expression
from toolfold.redaction.lines import CommandLine, TextWord, split_commands
from toolfold.redaction.names import is_secret_name
from toolfold.redaction.programs import BY_PROGRAM, Carrier
from toolfold.redaction.spans import Span, literal_parts

_ASSIGNMENT = re.compile(r"-{0,2}[A-Za-z_$][A-Za-z0-9_.:/-]{0,200}=")
_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9_-]{1,60}")
_CLUSTER = re.compile(r"-[A-Za-z0-9]{2,12}")
_NOT_A_VALUE = re.compile(r"-{1,2}[A-Za-z]")
_MOUNT = re.compile(r"\bid=|\bsrc=|\btype=")  # docker build --secret id=npm,src=.npmrc
_KEY_FILE = re.compile(r"[~./]\S*|\S+\.(?:pem|key|json|pub|p12|txt|ya?ml)")
_MAX_ARGUMENTS = 120
_WRITERS = frozenset(("echo", "printf", "print", "yes", "write-output"))
_SHELLS = frozenset(("sh", "bash", "zsh", "dash", "ksh", "fish", "python", "python3", "perl", "ruby", "node"))
_SUDO_VALUED = re.compile(r"-[A-Za-z]{0,4}[ugphCTUrtDR]|--(?:user|group|prompt|host|chdir|chroot)")
_RUNS_TEXT = re.compile(r"-[a-z]{0,4}[ce]")
_FORMAT = re.compile(r"(?:%[-0-9.]*[sbqd]|\\[nrt0])+")


def find_command_secrets(text: str) -> Iterator[Span]:
    """The secrets in the commands that a text holds, or is."""
    run = find_run_values(text)
    for pipeline in split_commands(text):
        for line in pipeline:
            for start, end in _in_line(line, run):
                yield from literal_parts(text, start, end)
        readers = [number for number, line in enumerate(pipeline) if _reads_secret(line)]
        for start, end in _given(pipeline[: readers[-1] + 1]) if readers else ():
            yield from literal_parts(text, start, end)


def _in_line(line: CommandLine, run: frozenset[int]) -> Iterator[Span]:
    words = line.words
    for number, word in enumerate(words):
        following = words[number + 1] if number + 1 < len(words) else None
        yield from (span for span in _in_word(word, following) if span[0] not in run)
    for carriers, own in _calls(words):
        for carrier in carriers:
            after = _after_sub(carrier.sub, own)
            if after is not None:
                yield from _carried(carrier, after)


def _calls(words: Sequence[TextWord]) -> Iterator[tuple[tuple[Carrier, ...], Sequence[TextWord]]]:
    """The known programs among the words, each with the words up to where it is named again."""
    found = [(number, name) for number, word in enumerate(words) if (name := _program(word)) in BY_PROGRAM]
    ends: dict[str, int] = {}
    for number, name in reversed(found):
        end = min(ends.get(name, len(words)), number + 1 + _MAX_ARGUMENTS)
        ends[name] = number
        yield BY_PROGRAM[name], words[number + 1 : end]


def _program(word: TextWord) -> str:
    return word.plain.replace("\\", "/").rpartition("/")[2].lower().removesuffix(".exe")


def _in_word(word: TextWord, following: TextWord | None) -> Iterator[Span]:
    """What a word says by itself: `NAME=X`, `--password=X`, `--password X`."""
    assigned = _ASSIGNMENT.match(word.plain)
    if assigned:
        name, value = assigned[0].rstrip("="), word.plain[assigned.end() :]
        if is_secret_name(name) and not _MOUNT.search(word.plain) and not is_expression(name, value):
            yield from _rest(word, assigned.end())
    elif (
        following is not None and _OPTION.fullmatch(word.plain) and _takes_secret(word.plain, following.plain)
    ):
        yield from _rest(following, 0)


def _takes_secret(option: str, value: str) -> bool:
    name = option.lstrip("-")
    if name.startswith("no-") or not is_secret_name(name) or len(name) < 4:
        return False
    if name.endswith(("key", "credentials", "credential")) and _KEY_FILE.fullmatch(value):
        return False
    return not _NOT_A_VALUE.match(value) and not _MOUNT.search(value)


def _after_sub(sub: tuple[str, ...], words: Sequence[TextWord]) -> Sequence[TextWord] | None:
    if not sub:
        return words
    for number in range(len(words) - len(sub) + 1):
        if all(words[number + k].plain == part for k, part in enumerate(sub)):
            return words[number + len(sub) :]
    return None


def _carried(carrier: Carrier, words: Sequence[TextWord]) -> Iterator[Span]:
    for number, word in enumerate(words):
        following = words[number + 1] if number + 1 < len(words) else None
        yield from _behind_option(carrier, word, following)
        for prefix in carrier.prefix:
            if word.plain.startswith(prefix):
                yield from _rest(word, len(prefix))
    yield from _among_operands(carrier, words)


def _behind_option(carrier: Carrier, word: TextWord, following: TextWord | None) -> Iterator[Span]:
    plain = word.plain
    if plain in carrier.exact and following is not None:
        yield from _rest(following, 0)
    if not plain.startswith("-"):
        return
    for option in carrier.attached:
        if plain.startswith(option) and not plain.startswith("--"):
            yield from _rest(word, len(option))
    for options in (carrier.value, carrier.login):
        for option in options:
            found = _value_of(option, word, following)
            if found is not None:
                sign = carrier.login.get(option, "") if options is carrier.login else ""
                yield from _rest(found[0], found[1], sign)


def _value_of(option: str, word: TextWord, following: TextWord | None) -> tuple[TextWord, int] | None:
    """The word that holds an option's value, and where in the word it begins."""
    plain, is_short = word.plain, len(option) == 2
    if plain == option:
        return None if following is None or _NOT_A_VALUE.match(following.plain) else (following, 0)
    if plain.startswith(f"{option}="):
        return word, len(option) + 1
    if not is_short or plain.startswith("--"):
        return None
    if plain.startswith(option):
        return word, 2
    if following is not None and _CLUSTER.fullmatch(plain) and plain.endswith(option[1]):
        return following, 0
    return None


def _among_operands(carrier: Carrier, words: Sequence[TextWord]) -> Iterator[Span]:
    operands = [word for word in words if not word.plain.startswith("-") or word.plain == "-"]
    if carrier.flag and not any(_has_flag(carrier.flag, word.plain) for word in words):
        return
    for index in carrier.operands if len(operands) >= carrier.least else ():
        if -len(operands) <= index < len(operands):
            yield from _rest(operands[index], 0)
    if carrier.pairs:
        for word in operands:
            if "=" in word.plain:
                yield from _rest(word, word.plain.index("=") + 1)
    if carrier.split:
        for word in operands:
            yield from _split(word, carrier.split)
    if carrier.named:
        for name, value in pairwise(operands):
            if _names_secret(name.plain):
                yield from _rest(value, 0)


def _has_flag(letter: str, word: str) -> bool:
    return word.startswith("-") and not word.startswith("--") and letter in word


def _names_secret(name: str) -> bool:
    return (
        is_secret_name(name) or any(is_secret_name(part) for part in name.split(".")[:1]) or "oauth" in name
    )


def _split(word: TextWord, sign: str) -> Iterator[Span]:
    """`user/secret@host`: from behind the sign to the last `@`."""
    before, found, rest = (
        word.plain.rpartition("@")[0].rpartition(sign) if "@" in word.plain else ("", "", "")
    )
    if found and before and rest:
        start = len(before) + len(found)
        yield word.at[start], word.at[start + len(rest) - 1] + 1


def _rest(word: TextWord, offset: int, sign: str = "") -> Iterator[Span]:
    """What follows in a word, or follows the sign in it. Nothing if that is empty."""
    if sign:
        found = word.plain.find(sign, offset)
        if found < 0:
            return
        offset = found + len(sign)
    if offset < len(word.plain):
        yield word.span(offset)


def _reads_secret(line: CommandLine) -> bool:
    for carriers, own in _calls(line.words):
        for carrier in carriers:
            after = _after_sub(carrier.sub, own) if carrier.stdin else None
            if after is not None and _says_input(carrier, after) and not _starts_shell(after):
                return True
    return False


def _starts_shell(words: Sequence[TextWord]) -> bool:
    """Whether what is read is run: a shell that is given neither a script nor a command (`sudo -S sh`)."""
    at = 0
    while at < len(words) and words[at].plain.startswith("-"):
        at += 2 if _SUDO_VALUED.fullmatch(words[at].plain) else 1
    if at >= len(words) or _program(words[at]) not in _SHELLS:
        return False
    return all(word.plain.startswith("-") and not _RUNS_TEXT.match(word.plain) for word in words[at + 1 :])


def _says_input(carrier: Carrier, words: Sequence[TextWord]) -> bool:
    if "*" in carrier.stdin:
        return True
    short = [option[1] for option in carrier.stdin if len(option) == 2]
    for word in words:
        plain = word.plain
        if plain in carrier.stdin or any(plain.startswith(f"{option}=") for option in carrier.stdin):
            return True
        if short and _CLUSTER.fullmatch(plain) and any(letter in plain for letter in short):
            return True
        if not plain.startswith("-") and short:  # what follows is the command that sudo runs
            return False
    return False


def _given(lines: Sequence[CommandLine]) -> Iterator[Span]:
    """What the last command of these reads: here-documents, and what is written into the pipe to it."""
    for line in lines:
        yield from line.here
    for line in lines[:-1]:
        words = line.words
        writer = next((n for n, word in enumerate(words) if _program(word) in _WRITERS), None)
        for word in words[writer + 1 :] if writer is not None else ():
            if word.plain and not _NOT_A_VALUE.match(word.plain) and not _FORMAT.fullmatch(word.plain):
                yield word.span()
