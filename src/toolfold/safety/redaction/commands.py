"""Find secrets in shell commands: option values, assignments, and text piped to a program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from toolfold.safety.redaction.command_lines import CommandLine, TextWord, split_commands
from toolfold.safety.redaction.executed_values import find_executed_values, is_expression
from toolfold.safety.redaction.program_secrets import BY_PROGRAM, SecretArguments
from toolfold.safety.redaction.secret_words import is_password_name, is_secret_name
from toolfold.safety.redaction.spans import Span, literal_parts

_ASSIGNMENT = re.compile(r"-{0,2}[A-Za-z_$][A-Za-z0-9_.:/-]{0,200}=")
_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9_-]{1,60}")
_CLUSTER = re.compile(r"-[A-Za-z0-9]{2,12}")
_NOT_A_VALUE = re.compile(r"-{1,2}[A-Za-z]")
_BUILD_SECRET = re.compile(r"\bid=|\bsrc=|\btype=")  # docker build --secret id=npm,src=.npmrc
_KEY_FILE = re.compile(r"[~./]\S*|\S+\.(?:pem|key|json|pub|p12|txt|ya?ml)")
_PROSE = re.compile(r"[A-Za-z]?[a-z]{0,15}[.,:;!?)]{0,2}")
_PASSWORD_PROSE = re.compile(r"[a-z]{1,16}[.,:;!?)]{0,2}")
_MAX_ARGUMENTS = 120
_PRINTING_PROGRAMS = frozenset(("echo", "printf", "print", "yes", "write-output"))
_SHELLS = frozenset(("sh", "bash", "zsh", "dash", "ksh", "fish", "python", "python3", "perl", "ruby", "node"))
_SUDO_VALUED = re.compile(r"-[A-Za-z]{0,4}[ugphCTUrtDR]|--(?:user|group|prompt|host|chdir|chroot)")
_INLINE_CODE_OPTION = re.compile(r"-[a-z]{0,4}[ce]")
_PRINTF_FORMAT = re.compile(r"(?:%[-0-9.]*[sbqd]|\\[nrt0])+")


def find_command_secrets(text: str) -> Iterator[Span]:
    """Yield the secrets in all shell commands of a text."""
    executed = find_executed_values(text)
    for pipeline in split_commands(text):
        for line in pipeline:
            for start, end in _find_in_line(line, executed):
                yield from literal_parts(text, start, end)
        readers = [number for number, line in enumerate(pipeline) if _reads_secret(line)]
        for start, end in _find_piped_text(pipeline[: readers[-1] + 1]) if readers else ():
            yield from literal_parts(text, start, end)


def _find_in_line(line: CommandLine, executed: frozenset[int]) -> Iterator[Span]:
    words = line.words
    for number, word in enumerate(words):
        following = words[number + 1] if number + 1 < len(words) else None
        yield from (span for span in _find_in_word(word, following) if span[0] not in executed)
    for argument_specs, own_words in _find_known_programs(words):
        for arguments in argument_specs:
            remaining = _words_after_subcommand(arguments.subcommand, own_words)
            if remaining is not None:
                yield from _find_in_arguments(arguments, remaining)


def _find_known_programs(
    words: Sequence[TextWord],
) -> Iterator[tuple[tuple[SecretArguments, ...], Sequence[TextWord]]]:
    """Yield, for each known program in a command, the rules for its secret arguments and its arguments."""
    located = [
        (number, name) for number, word in enumerate(words) if (name := _program_name(word)) in BY_PROGRAM
    ]
    ends: dict[str, int] = {}
    for number, name in reversed(located):
        end = min(ends.get(name, len(words)), number + 1 + _MAX_ARGUMENTS)
        ends[name] = number
        yield BY_PROGRAM[name], words[number + 1 : end]


def _program_name(word: TextWord) -> str:
    return word.text.replace("\\", "/").rpartition("/")[2].lower().removesuffix(".exe")


def _find_in_word(word: TextWord, following: TextWord | None) -> Iterator[Span]:
    """Yield the secret after a name that marks it as secret: `TOKEN=X`, `--password=X`, `--password X`."""
    assigned = _ASSIGNMENT.match(word.text)
    if assigned:
        name, value = assigned[0].rstrip("="), word.text[assigned.end() :]
        if is_secret_name(name) and not _BUILD_SECRET.search(word.text) and not is_expression(name, value):
            yield from _remaining_span(word, assigned.end())
    elif following is not None and _OPTION.fullmatch(word.text) and _takes_secret(word.text, following.text):
        yield from _remaining_span(following, 0)


def _takes_secret(option: str, value: str) -> bool:
    name = option.lstrip("-")
    if name.startswith("no-") or not is_secret_name(name) or len(name) < 4:
        return False
    if name.endswith(("key", "credentials", "credential")) and _KEY_FILE.fullmatch(value):
        return False
    return not _NOT_A_VALUE.match(value) and not _BUILD_SECRET.search(value)


def _words_after_subcommand(sub: tuple[str, ...], words: Sequence[TextWord]) -> Sequence[TextWord] | None:
    if not sub:
        return words
    for number in range(len(words) - len(sub) + 1):
        if all(words[number + k].text == part for k, part in enumerate(sub)):
            return words[number + len(sub) :]
    return None


def _find_in_arguments(arguments: SecretArguments, words: Sequence[TextWord]) -> Iterator[Span]:
    for number, word in enumerate(words):
        following = words[number + 1] if number + 1 < len(words) else None
        yield from _find_option_value(arguments, word, following)
        for prefix in arguments.prefixes:
            if word.text.startswith(prefix):
                yield from _remaining_span(word, len(prefix))
    yield from _find_in_operands(arguments, words)


def _find_option_value(
    arguments: SecretArguments, word: TextWord, following: TextWord | None
) -> Iterator[Span]:
    word_text = word.text
    if word_text in arguments.next_word_options and following is not None:
        yield from _remaining_span(following, 0)
    if not word_text.startswith("-"):
        return
    for option in arguments.attached_options:
        if word_text.startswith(option) and not word_text.startswith("--"):
            yield from _remaining_span(word, len(option))
    for options in (arguments.value_options, arguments.login_options):
        for option in options:
            located = _locate_option_value(option, word, following)
            if located is not None:
                sign = arguments.login_options.get(option, "") if options is arguments.login_options else ""
                yield from _remaining_span(located[0], located[1], sign)


def _locate_option_value(
    option: str, word: TextWord, following: TextWord | None
) -> tuple[TextWord, int] | None:
    """Return the word that contains an option's value, and the value's offset in it; None if missing."""
    word_text, is_short = word.text, len(option) == 2
    if word_text == option:
        return None if following is None or _NOT_A_VALUE.match(following.text) else (following, 0)
    if word_text.startswith(f"{option}="):
        return word, len(option) + 1
    if not is_short or word_text.startswith("--"):
        return None
    if word_text.startswith(option):
        return word, 2
    if following is not None and _CLUSTER.fullmatch(word_text) and word_text.endswith(option[1]):
        return following, 0
    return None


def _find_in_operands(arguments: SecretArguments, words: Sequence[TextWord]) -> Iterator[Span]:
    operands = [word for word in words if not word.text.startswith("-") or word.text == "-"]
    if arguments.required_flag and not any(_has_flag(arguments.required_flag, word.text) for word in words):
        return
    for index in arguments.operands if len(operands) >= arguments.min_operands else ():
        if -len(operands) <= index < len(operands):
            yield from _remaining_span(operands[index], 0)
    if arguments.are_pairs:
        for word in operands:
            if "=" in word.text:
                yield from _remaining_span(word, word.text.index("=") + 1)
    if arguments.login_separator:
        for word in operands:
            yield from _find_in_login(word, arguments.login_separator)
    if arguments.are_named_values:
        for number, (name, value) in enumerate(pairwise(operands[: arguments.max_operands])):
            is_last = number + 2 == len(operands)
            if _names_secret(name.text) and not _is_prose(name.text, value.text, is_last=is_last):
                yield from _remaining_span(value, 0)


def _has_flag(letter: str, word: str) -> bool:
    return word.startswith("-") and not word.startswith("--") and letter in word


def _names_secret(name: str) -> bool:
    return (
        is_secret_name(name) or any(is_secret_name(part) for part in name.split(".")[:1]) or "oauth" in name
    )


def _is_prose(name: str, value: str, *, is_last: bool) -> bool:
    """Return True if a name and the word after it are part of a sentence: `Set API_KEY and go on`."""
    if not name[-1:].isalnum():
        return True
    if is_password_name(name):
        return _PASSWORD_PROSE.fullmatch(value) is not None and not (is_last and value.isalpha())
    return _PROSE.fullmatch(value) is not None


def _find_in_login(word: TextWord, sign: str) -> Iterator[Span]:
    """Yield the secret in a login such as `user/secret@host`."""
    before, located, rest = (
        word.text.rpartition("@")[0].rpartition(sign) if "@" in word.text else ("", "", "")
    )
    if located and before and rest:
        start = len(before) + len(located)
        yield word.positions[start], word.positions[start + len(rest) - 1] + 1


def _remaining_span(word: TextWord, offset: int, sign: str = "") -> Iterator[Span]:
    """Yield the span of a word from `offset` or, if `sign` is given, from the end of the next `sign`."""
    if sign:
        located = word.text.find(sign, offset)
        if located < 0:
            return
        offset = located + len(sign)
    if offset < len(word.text):
        yield word.span(offset)


def _reads_secret(line: CommandLine) -> bool:
    for argument_specs, own_words in _find_known_programs(line.words):
        for arguments in argument_specs:
            remaining = (
                _words_after_subcommand(arguments.subcommand, own_words) if arguments.stdin_options else None
            )
            if remaining is not None and _reads_stdin(arguments, remaining) and not _starts_shell(remaining):
                return True
    return False


def _starts_shell(words: Sequence[TextWord]) -> bool:
    """Return True if a command starts a shell that runs its input as code (`sudo -S sh`)."""
    at = 0
    while at < len(words) and words[at].text.startswith("-"):
        at += 2 if _SUDO_VALUED.fullmatch(words[at].text) else 1
    if at >= len(words) or _program_name(words[at]) not in _SHELLS:
        return False
    return all(
        word.text.startswith("-") and not _INLINE_CODE_OPTION.match(word.text) for word in words[at + 1 :]
    )


def _reads_stdin(arguments: SecretArguments, words: Sequence[TextWord]) -> bool:
    if "*" in arguments.stdin_options:
        return True
    short = [option[1] for option in arguments.stdin_options if len(option) == 2]
    for word in words:
        word_text = word.text
        if word_text in arguments.stdin_options or any(
            word_text.startswith(f"{option}=") for option in arguments.stdin_options
        ):
            return True
        if short and _CLUSTER.fullmatch(word_text) and any(letter in word_text for letter in short):
            return True
        if not word_text.startswith("-") and short:  # the rest is the command that sudo runs
            return False
    return False


def _find_piped_text(lines: Sequence[CommandLine]) -> Iterator[Span]:
    """Yield the input of the last command in a pipeline: here-documents, and text printed into the pipe."""
    for line in lines:
        yield from line.input_spans
    for line in lines[:-1]:
        words = line.words
        writer = next((n for n, word in enumerate(words) if _program_name(word) in _PRINTING_PROGRAMS), None)
        for word in words[writer + 1 :] if writer is not None else ():
            if word.text and not _NOT_A_VALUE.match(word.text) and not _PRINTF_FORMAT.fullmatch(word.text):
                yield word.span()
