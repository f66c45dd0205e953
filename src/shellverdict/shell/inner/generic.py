"""What a program that the tables describe runs in turn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import unquote

from shellverdict.shell.inner.environment import INSTALLED, from_assignments
from shellverdict.shell.inner.nouns import UNKNOWN, Inner, as_typed, joined
from shellverdict.shell.inner.options import Reading, Spec, read, spec
from shellverdict.shell.inner.programs import Program
from shellverdict.shell.runs import STANDARD_INPUT, Run
from shellverdict.shell.words import Word

__all__ = ["assignments", "command", "follow", "from_options", "helper", "script", "standard_input"]

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def follow(run: Run, program: Program, name: str) -> Iterator[Inner]:
    """Everything `run` runs, where `program` describes it."""
    yield from _follow(run, run.argv[1:], program, name)


def _follow(run: Run, words: Sequence[Word], program: Program, name: str) -> Iterator[Inner]:
    given = spec(program.options, program.single)
    reading = read(words, given, stop=not program.mixed)
    through = name if program.through is None else program.through
    if program.sub:
        yield from from_options(reading, given, through)
        for place, word in enumerate(reading.operands[: 3 if reading.doubtful else 1]):
            if below := program.sub.get(word):
                yield from _follow(run, reading.operands[place + 1 :], below, through)
                return
        return
    if reading.quits:
        return
    codes = tuple(from_options(reading, given, through))
    yield from codes
    yield from _from_operands(run, program, reading, given, through, bool(codes))


def from_options(reading: Reading, given: Spec, through: str) -> Iterator[Inner]:
    """The code and the files of code that options name."""
    for option in reading.options:
        sign = given.signs.get(option.name, "")
        if option.value is None or sign not in (">", "@"):
            continue
        language = given.languages[option.name]
        if sign == "@":
            yield from _file(option.value, language, through)
        elif language == "program":
            yield from helper(option.value, through)
        else:
            yield Inner(code=as_typed(option.value), language=language, through=through)


def helper(value: Word, through: str) -> Iterator[Inner]:
    """A program that does a part of the work; one that was not installed is code nobody has read."""
    yield Inner(code=as_typed(value), through=through, more_operands=True)
    program = value.split(" ")[0]
    if "/" in program and not program.startswith(INSTALLED):
        yield Inner(source="file", file=Word(program), language="binary", through=through)


def _file(file: Word, language: str, through: str, arguments: tuple[Word, ...] = ()) -> Iterator[Inner]:
    if file in STANDARD_INPUT:
        yield Inner(source="stdin", language=language, through=through, arguments=arguments)
    elif file.startswith("data:"):
        yield from data_url(file, language, through)
    else:
        yield Inner(source="file", file=file, language=language, through=through, arguments=arguments)


def data_url(address: Word, language: str, through: str) -> Iterator[Inner]:
    """Code that stands in an address itself."""
    head, _, content = address.partition(",")
    if head.endswith(";base64"):
        yield Inner(source="file", file=Word(head), language="binary", through=through)
    else:
        yield Inner(code=as_typed(unquote(content)), language=language, through=through)


def _from_operands(
    run: Run, program: Program, reading: Reading, given: Spec, through: str, coded: bool
) -> Iterator[Inner]:
    if any(given.signs.get(option.name) == ":" for option in reading.options):
        yield from command(run, reading.operands, through)
        return
    if given.signs.get(reading.missing) == ">" and run.more_operands:
        yield Inner(source="stdin", language=given.languages[reading.missing], through=through)
        return
    operands = reading.operands
    if program.assignments:
        while operands[:1] == (Word("-"),):  # env's short way to say -i
            operands = operands[1:]
        assigned, operands = assignments(operands)
        yield from from_assignments(assigned, operands[0] if operands else Word(""))
    language = program.language
    match program.then:
        case "argv" if entry := _named_program(reading, given):
            yield from command(run, (entry, *operands[program.skip :]), through)
        case "argv" if not coded or operands[program.skip :]:
            yield from _command_or_shell(run, program, _behind(operands, program), through)
            if reading.doubtful and operands[program.skip + 1 :]:
                yield from command(run, operands[program.skip + 1 :], through)
        case "code" if operands[program.skip :]:
            yield Inner(code=joined(_unmarked(operands[program.skip :])), language=language, through=through)
        case "text" if not coded and operands:
            yield Inner(
                code=as_typed(operands[0]), language=language, through=through, arguments=operands[1:]
            )
        case "texts":
            for word in operands[program.skip :]:
                yield Inner(code=as_typed(word), language=language, through=through)
            if program.stdin and not coded and not operands[program.skip :]:
                yield from standard_input(run, language, through)
        case "script" if not coded:
            yield from script(run, operands, language, through)
        case "files":
            for word in operands[program.skip :]:
                yield from _file(word, language, through)
            if program.stdin and not coded and not operands[program.skip :]:
                yield from standard_input(run, language, through)
        case "" if program.stdin and not coded:
            yield from standard_input(run, language, through)


def _named_program(reading: Reading, given: Spec) -> Word | None:
    """A program that an option names, such as a container's entry point."""
    named = [option.value for option in reading.options if given.signs.get(option.name) == "%"]
    return named[-1] if named else None


def _command_or_shell(run: Run, program: Program, words: Sequence[Word], through: str) -> Iterator[Inner]:
    """The command; where there is none, some programs start a shell, which reads standard input."""
    if words or run.more_operands or not program.stdin:
        yield from command(run, words, through)
    else:
        yield from standard_input(run, "sh", through)


def _behind(operands: tuple[Word, ...], program: Program) -> tuple[Word, ...]:
    if program.dashes and "--" in operands:
        return operands[operands.index(Word("--")) :]
    if program.dashes:
        return read(operands[program.skip :], spec(program.options, program.single)).operands
    return operands[program.skip :]


def _unmarked(words: Sequence[Word]) -> Sequence[Word]:
    return words[1:] if words[:1] == (Word("--"),) else words


def command(run: Run, words: Sequence[Word], through: str) -> Iterator[Inner]:
    """A command that stands in the words; one that is still to be added is unknown."""
    words = tuple(_unmarked(words))
    if words:
        yield Inner(argv=words, through=through, more_operands=run.more_operands)
    elif run.more_operands:
        yield Inner(argv=(UNKNOWN,), through=through, more_operands=True)


def script(run: Run, operands: Sequence[Word], language: str, through: str) -> Iterator[Inner]:
    """A file of code and its arguments, or code from standard input."""
    if operands:
        yield from _file(operands[0], language, through, tuple(operands[1:]))
    elif run.more_operands:
        yield Inner(source="file", file=UNKNOWN, language=language, through=through)
    else:
        yield from standard_input(run, language, through)


def standard_input(
    run: Run, language: str, through: str = "", arguments: tuple[Word, ...] = ()
) -> Iterator[Inner]:
    if run.stdin is not None:
        yield Inner(source="stdin", language=language, through=through, arguments=arguments)


def assignments(words: tuple[Word, ...]) -> tuple[dict[str, Word], tuple[Word, ...]]:
    """`NAME=value` words at the beginning, and the words behind them."""
    found: dict[str, Word] = {}
    for place, word in enumerate(words):
        if not _ASSIGNMENT.match(word):
            return found, words[place:]
        name, _, value = word.partition("=")
        found[name] = Word(value)
    return found, ()
