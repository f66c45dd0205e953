"""Find the commands in the arguments of wrapper programs that `programs.toml` describes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import unquote

from shellverdict.shell.inner.environment import INSTALLED_PREFIXES, commands_from_variables
from shellverdict.shell.inner.inner_command import UNKNOWN_WORD, InnerCommand, join_words, to_literal
from shellverdict.shell.inner.option_spec import OptionSpec, ParsedOptions, parse_options, parse_spec
from shellverdict.shell.inner.program_tables import ProgramSpec
from shellverdict.shell.runs import STDIN_PATHS, ProgramRun
from shellverdict.shell.words import Word

__all__ = [
    "code_from_stdin",
    "command_from_words",
    "read_code_options",
    "read_helper_program",
    "read_table_program",
    "script_from_operands",
    "split_assignments",
]

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def read_table_program(run: ProgramRun, program: ProgramSpec, name: str) -> Iterator[InnerCommand]:
    """Yield the commands and code that a program runs from its arguments, as `programs.toml` describes."""
    yield from _read_with_spec(run, run.argv[1:], program, name)


def _read_with_spec(
    run: ProgramRun, words: Sequence[Word], program: ProgramSpec, name: str
) -> Iterator[InnerCommand]:
    spec = parse_spec(program.options, program.single_dash)
    reading = parse_options(words, spec, stop_at_operand=not program.permuted)
    wrapper = name if program.wrapper is None else program.wrapper
    if program.subcommands:
        yield from read_code_options(reading, spec, wrapper)
        for place, word in enumerate(reading.operands[: 3 if reading.has_doubtful_operand else 1]):
            if below := program.subcommands.get(word):
                yield from _read_with_spec(run, reading.operands[place + 1 :], below, wrapper)
                return
        return
    if reading.runs_nothing:
        return
    codes = tuple(read_code_options(reading, spec, wrapper))
    yield from codes
    yield from _read_operands(run, program, reading, spec, wrapper, bool(codes))


def read_code_options(reading: ParsedOptions, spec: OptionSpec, wrapper: str) -> Iterator[InnerCommand]:
    """Yield the code, and the code files, that a program gets as values of options."""
    for option in reading.options:
        sign = spec.signs.get(option.name, "")
        if option.value is None or sign not in (">", "@"):
            continue
        language = spec.languages[option.name]
        if sign == "@":
            yield from _code_from_file(option.value, language, wrapper)
        elif language == "program":
            yield from read_helper_program(option.value, wrapper)
        else:
            yield InnerCommand(code=to_literal(option.value), language=language, wrapper=wrapper)


def read_helper_program(value: Word, wrapper: str) -> Iterator[InnerCommand]:
    """Yield the helper program that an option's value names: its command line, and its file to analyze.

    The file is left out for programs in system directories.
    """
    yield InnerCommand(code=to_literal(value), wrapper=wrapper, has_unknown_operands=True)
    program = value.split(" ")[0]
    if "/" in program and not program.startswith(INSTALLED_PREFIXES):
        yield InnerCommand(source="file", file=Word(program), language="binary", wrapper=wrapper)


def _code_from_file(
    file: Word, language: str, wrapper: str, arguments: tuple[Word, ...] = ()
) -> Iterator[InnerCommand]:
    if file in STDIN_PATHS:
        yield InnerCommand(source="stdin", language=language, wrapper=wrapper, arguments=arguments)
    elif file.startswith("data:"):
        yield from read_data_url(file, language, wrapper)
    else:
        yield InnerCommand(source="file", file=file, language=language, wrapper=wrapper, arguments=arguments)


def read_data_url(address: Word, language: str, wrapper: str) -> Iterator[InnerCommand]:
    """Yield the code inside a `data:` URL."""
    head, _, content = address.partition(",")
    if head.endswith(";base64"):
        yield InnerCommand(source="file", file=Word(head), language="binary", wrapper=wrapper)
    else:
        yield InnerCommand(code=to_literal(unquote(content)), language=language, wrapper=wrapper)


def _read_operands(
    run: ProgramRun,
    program: ProgramSpec,
    reading: ParsedOptions,
    spec: OptionSpec,
    wrapper: str,
    has_code: bool,
) -> Iterator[InnerCommand]:
    if any(spec.signs.get(option.name) == ":" for option in reading.options):
        yield from command_from_words(run, reading.operands, wrapper)
        return
    if spec.signs.get(reading.missing_value_option) == ">" and run.has_unknown_operands:
        yield InnerCommand(
            source="stdin", language=spec.languages[reading.missing_value_option], wrapper=wrapper
        )
        return
    operands = reading.operands
    if program.assignments:
        while operands[:1] == (Word("-"),):  # a lone `-` is env's short form of -i
            operands = operands[1:]
        assigned, operands = split_assignments(operands)
        yield from commands_from_variables(assigned, operands[0] if operands else Word(""))
    language = program.language
    match program.operands:
        case "argv" if entry_point := _entry_program(reading, spec):
            yield from command_from_words(run, (entry_point, *operands[program.skip :]), wrapper)
        case "argv" if not has_code or operands[program.skip :]:
            yield from _read_command_or_shell(run, program, _operands_after_skip(operands, program), wrapper)
            if reading.has_doubtful_operand and operands[program.skip + 1 :]:
                yield from command_from_words(run, operands[program.skip + 1 :], wrapper)
        case "code" if operands[program.skip :]:
            yield InnerCommand(
                code=join_words(_strip_double_dash(operands[program.skip :])),
                language=language,
                wrapper=wrapper,
            )
        case "text" if not has_code and operands:
            yield InnerCommand(
                code=to_literal(operands[0]), language=language, wrapper=wrapper, arguments=operands[1:]
            )
        case "texts":
            for word in operands[program.skip :]:
                yield InnerCommand(code=to_literal(word), language=language, wrapper=wrapper)
            if program.reads_stdin and not has_code and not operands[program.skip :]:
                yield from code_from_stdin(run, language, wrapper)
        case "script" if not has_code:
            yield from script_from_operands(run, operands, language, wrapper)
        case "files":
            for word in operands[program.skip :]:
                yield from _code_from_file(word, language, wrapper)
            if program.reads_stdin and not has_code and not operands[program.skip :]:
                yield from code_from_stdin(run, language, wrapper)
        case "" if program.reads_stdin and not has_code:
            yield from code_from_stdin(run, language, wrapper)


def _entry_program(reading: ParsedOptions, spec: OptionSpec) -> Word | None:
    """Return the program that an option names, such as the entry point of a container."""
    named = [option.value for option in reading.options if spec.signs.get(option.name) == "%"]
    return named[-1] if named else None


def _read_command_or_shell(
    run: ProgramRun, program: ProgramSpec, words: Sequence[Word], wrapper: str
) -> Iterator[InnerCommand]:
    """Yield the command among the arguments; if there is none, a shell that reads standard input."""
    if words or run.has_unknown_operands or not program.reads_stdin:
        yield from command_from_words(run, words, wrapper)
    else:
        yield from code_from_stdin(run, "sh", wrapper)


def _operands_after_skip(operands: tuple[Word, ...], program: ProgramSpec) -> tuple[Word, ...]:
    if program.options_until_dashes and "--" in operands:
        return operands[operands.index(Word("--")) :]
    if program.options_until_dashes:
        return parse_options(
            operands[program.skip :], parse_spec(program.options, program.single_dash)
        ).operands
    return operands[program.skip :]


def _strip_double_dash(words: Sequence[Word]) -> Sequence[Word]:
    return words[1:] if words[:1] == (Word("--"),) else words


def command_from_words(run: ProgramRun, words: Sequence[Word], wrapper: str) -> Iterator[InnerCommand]:
    """Yield the given words as one command.

    Without words, but with unknown arguments, an unknown command is yielded.
    """
    words = tuple(_strip_double_dash(words))
    if words:
        yield InnerCommand(argv=words, wrapper=wrapper, has_unknown_operands=run.has_unknown_operands)
    elif run.has_unknown_operands:
        yield InnerCommand(argv=(UNKNOWN_WORD,), wrapper=wrapper, has_unknown_operands=True)


def script_from_operands(
    run: ProgramRun, operands: Sequence[Word], language: str, wrapper: str
) -> Iterator[InnerCommand]:
    """Yield a script file with its arguments, or code from standard input if no file is given."""
    if operands:
        yield from _code_from_file(operands[0], language, wrapper, tuple(operands[1:]))
    elif run.has_unknown_operands:
        yield InnerCommand(source="file", file=UNKNOWN_WORD, language=language, wrapper=wrapper)
    else:
        yield from code_from_stdin(run, language, wrapper)


def code_from_stdin(
    run: ProgramRun, language: str, wrapper: str = "", arguments: tuple[Word, ...] = ()
) -> Iterator[InnerCommand]:
    """Yield standard input as code if it is redirected; otherwise nothing."""
    if run.stdin is not None:
        yield InnerCommand(source="stdin", language=language, wrapper=wrapper, arguments=arguments)


def split_assignments(words: tuple[Word, ...]) -> tuple[dict[str, Word], tuple[Word, ...]]:
    """Split leading `NAME=value` words (environment variables) from the words after them."""
    found: dict[str, Word] = {}
    for place, word in enumerate(words):
        if not _ASSIGNMENT.match(word):
            return found, words[place:]
        name, _, value = word.partition("=")
        found[name] = Word(value)
    return found, ()
