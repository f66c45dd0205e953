"""Find the code run by Python, Vim, tar, awk and other programs with unusual command-line options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from shellverdict.shell.inner.generic import code_from_stdin, read_table_program, script_from_operands
from shellverdict.shell.inner.inner_command import InnerCommand, InnerCommandReader, join_words, to_literal
from shellverdict.shell.inner.option_spec import parse_options, parse_spec
from shellverdict.shell.inner.program_tables import load_programs
from shellverdict.shell.runs import ProgramRun
from shellverdict.shell.words import Taint, Word

__all__ = ["READERS"]

_PYTHON_FLAGS_WITH_VALUE = frozenset("WXQ")
_PYTHON_LONG_WITH_VALUE = frozenset({"--check-hash-based-pycs"})
_SCRIPT_RUNNING_MODULES = frozenset(
    {"pdb", "cProfile", "profile", "trace", "runpy", "ipdb", "debugpy", "coverage", "viztracer"}
)


def _read_python(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the code that a `python` command runs: `-c code`, `-m module`, a file or standard input."""
    words, at = run.argv[1:], 0
    while at < len(words):
        word = words[at]
        at += 1
        if word.startswith("--"):
            if word in ("--help", "--version"):
                return
            at += word in _PYTHON_LONG_WITH_VALUE
        elif len(word) > 1 and word[0] == "-":
            for place, letter in enumerate(word[1:], 2):
                attached = word[place:] if letter in "cmWXQ" else ""
                value = Word(attached) if attached else (words[at] if at < len(words) else None)
                if letter == "c":
                    yield from _read_python_code(run, value, words[at + (not attached) :])
                    return
                if letter == "m":
                    yield from _read_python_module(run, value, words[at + (not attached) :])
                    return
                if letter in _PYTHON_FLAGS_WITH_VALUE:
                    at += not attached
                    break
                if letter in "hV?":
                    return
        else:
            at -= 1
            break
    if words[at:] and words[at].rpartition("/")[2] == "manage.py":
        yield from _read_django_shell(words[at + 1 :])
    yield from script_from_operands(run, words[at:], "python", "")


def _read_python_code(
    run: ProgramRun, code: Word | None, arguments: tuple[Word, ...]
) -> Iterator[InnerCommand]:
    if code is not None:
        yield InnerCommand(
            code=_insert_arguments(to_literal(code), arguments), language="python", arguments=arguments
        )
    elif run.has_unknown_operands:
        yield InnerCommand(source="stdin", language="python")


_ARGUMENT = re.compile(r"\b(?:sys\.)?argv\[(\d{1,3})\]")


def _insert_arguments(code: Word, arguments: tuple[Word, ...]) -> Word:
    """Replace `sys.argv[1]` and so on in Python code by the known arguments."""

    def literal(found: re.Match[str]) -> str:
        place = int(found[1]) - 1
        known = 0 <= place < len(arguments) and arguments[place].is_known
        return repr(str(arguments[place])) if known else found[0]

    return Word(_ARGUMENT.sub(literal, code)) if arguments else code


def _read_python_module(
    run: ProgramRun, module: Word | None, words: tuple[Word, ...]
) -> Iterator[InnerCommand]:
    if module in ("code", "asyncio", "pdb", "ipdb"):
        yield from code_from_stdin(run, "python")
    if module in ("pdb", "ipdb"):
        for command in parse_options(words, parse_spec("-c= --command=")).values("-c", "--command"):
            yield InnerCommand(code=to_literal(command.lstrip("! ")), language="python")
    if module == "timeit":
        for word in words:
            if word[:1] != "-":
                yield InnerCommand(code=to_literal(word), language="python")
    elif module == "doctest":
        for word in words:
            if word[:1] != "-":
                yield InnerCommand(source="file", file=word, language="doctest")
    elif module in _SCRIPT_RUNNING_MODULES:
        operands = tuple(word for word in words if word[:1] != "-" and word != "run")
        scripts = [place for place, word in enumerate(operands) if word.endswith(".py")]
        yield from script_from_operands(run, operands[scripts[0] :] if scripts else operands, "python", "")
    elif module in ("IPython", "ipython"):
        yield from _read_ipython(run)


def _read_ipython(run: ProgramRun) -> Iterator[InnerCommand]:
    reading = parse_options(run.argv[1:], parse_spec("-c>python -i -m= --profile= --colors= --pylab?"))
    codes = reading.values("-c")
    for code in codes:
        yield InnerCommand(code=to_literal(code), language="python")
    if not codes and not reading.runs_nothing and not reading.values("-m"):
        yield from script_from_operands(run, reading.operands, "python", "")


def _read_django(run: ProgramRun) -> Iterator[InnerCommand]:
    yield from _read_django_shell(run.argv[1:])


def _read_django_shell(words: tuple[Word, ...]) -> Iterator[InnerCommand]:
    if words[:1] == (Word("shell"),):
        for code in parse_options(
            words[1:], parse_spec("-c>python --command>python -i= --interface=")
        ).values("-c", "--command"):
            yield InnerCommand(code=to_literal(code), language="python")


_VIM = parse_spec(
    "-c>vim --cmd>vim -S@vim -u@vim -U@vim -i= -t= -T= -w= -W= -r? -o? -O? -p? -V? --servername= "
    "--remote-send>vim --remote-expr>vim --startuptime= -e -E -h! -v -y -n -N -R -m -M -b -d -D -Z -es"
)


def _read_vim(run: ProgramRun) -> Iterator[InnerCommand]:
    words = run.argv[1:]
    commands = run.name.startswith("ex") or any(
        w[:1] == "-" and w[:2] != "--" and "e" in w[:4].lower() for w in words
    )
    reading = parse_options([w for w in words if w[:1] != "+"], _VIM, stop_at_operand=False)
    if reading.runs_nothing:
        return
    for option in reading.options:
        if option.value is not None and option.name in ("-c", "--cmd", "--remote-send", "--remote-expr"):
            yield InnerCommand(code=to_literal(option.value), language="vim")
        elif option.value is not None and option.name in ("-S", "-u", "-U"):
            yield InnerCommand(source="file", file=option.value, language="vim")
    for word in words:
        if word[:1] == "+" and len(word) > 1:
            yield InnerCommand(code=to_literal(word[1:]), language="vim")
    typed = [*reading.values("-c", "--cmd"), *(Word(word[1:]) for word in words if word[:1] == "+")]
    yield from _read_saved_files(typed, reading.operands)
    if commands:
        yield from code_from_stdin(run, "vim")


_SAVE_COMMAND = re.compile(
    r"(?:^|\|)[\s:]*(?:sil\w*!?\s+)?(?:wq?a?l?l?|xa?l?l?|x(?:it)?|up(?:date)?|wn|exit?)!?\s*(?:$|\|)"
)
_DELETE_ALL_COMMAND = re.compile(r"(?:^|\|)[\s:]*(?:sil\w*!?\s+)?(?:%|1,\$|g/\^?\.?\*?/)\s*d(?:elete)?\b")


def _read_saved_files(commands: Sequence[Word], files: Sequence[Word]) -> Iterator[InnerCommand]:
    """Yield equivalent commands, such as `sed -i`, for the files that Vim changes and saves."""
    if not any(_SAVE_COMMAND.search(command[:4096]) for command in commands):
        return
    empties = any(_DELETE_ALL_COMMAND.search(command[:4096]) for command in commands)
    program = ("truncate", "-s", "0", "--") if empties else ("sed", "-i", "-e", "s/a/b/", "--")
    for file in files[:16]:
        yield InnerCommand(argv=(*(Word(word) for word in program), file), wrapper="vim")


_SQLITE_TEMPORARY = frozenset({":memory:", ""})


def _read_sqlite(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the SQL that `sqlite3` runs.

    An SQL file on standard input is skipped if the database is temporary or has a relative path.
    """
    name = "sqlite3"
    reading = parse_options(
        run.argv[1:], parse_spec(load_programs()[name].options, single_dash=True), stop_at_operand=False
    )
    database = reading.operands[0] if reading.operands else Word("")
    near = database in _SQLITE_TEMPORARY or (database.is_known and not database.startswith(("/", "..", "~")))
    fed = run.stdin
    if near and fed is not None and fed.text is None and fed.taints == {Taint.UNREAD}:
        run = replace(run, stdin=None)
    yield from read_table_program(run, load_programs()[name], name)


def _read_tar(run: ProgramRun) -> Iterator[InnerCommand]:
    yield from read_table_program(run, load_programs()["tar"], "tar")
    for place, word in enumerate(run.argv):
        if word.startswith("--checkpoint-action"):
            _, equals, value = word.partition("=")
            value = value if equals else str(run.argv[place + 1]) if place + 1 < len(run.argv) else ""
            if value.startswith("exec"):
                yield InnerCommand(code=to_literal(value.partition("=")[2]), wrapper="tar")
    yield from _read_tar_old_style(run.argv[1:])


def _read_tar_old_style(words: Sequence[Word]) -> Iterator[InnerCommand]:
    """Return the program in `tar xIf program file`: options without a dash take their values in order."""
    if not words or words[0][:1] == "-":
        return
    values = iter(words[1:])
    for letter in words[0][:32]:
        if letter in "fCTXbgKLNVFI":
            value = next(values, None)
            if value is not None and letter in "IF":
                yield InnerCommand(code=to_literal(value), wrapper="tar")


def _read_awk(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the program that awk runs, with the variables of `-v` assigned at its start."""
    program = load_programs()["awk"]
    assignments = parse_options(run.argv[1:], parse_spec(program.options)).values("-v", "--assign")
    values = "".join(_format_awk_assignment(word) for word in assignments)
    for one in read_table_program(run, program, "awk"):
        yield one if one.code is None else replace(one, code=Word(values + one.code))


def _format_awk_assignment(word: str) -> str:
    name, _, value = word.partition("=")
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'BEGIN {{ {name} = "{text}" }}\n'


def _read_php(run: ProgramRun) -> Iterator[InnerCommand]:
    if run.argv[1:3] == (Word("artisan"), Word("tinker")):
        for code in parse_options(run.argv[3:], parse_spec("--execute>php")).values("--execute"):
            yield InnerCommand(code=to_literal(code), language="php")
        yield from code_from_stdin(run, "php")
    else:
        yield from read_table_program(run, load_programs()["php"], "php")


def _read_git_shell(run: ProgramRun) -> Iterator[InnerCommand]:
    words = run.argv[1:]
    if words[:1] == (Word("-c"),):
        yield InnerCommand(code=join_words(words[1:]))


READERS: Mapping[str, InnerCommandReader] = MappingProxyType(
    {
        **dict.fromkeys(
            [
                "python",
                "pypy",
                "python3",
                "pypy3",
                "pythonw",
                "micropython",
                "circuitpython",
                "graalpy",
                "jython",
            ],
            _read_python,
        ),
        "ipython": _read_ipython,
        "django-admin": _read_django,
        "manage.py": _read_django,
        **dict.fromkeys(
            ["vi", "vim", "ex", "view", "nvim", "gvim", "rvim", "vimdiff", "rview", "exim", "vimx"], _read_vim
        ),
        "tar": _read_tar,
        "awk": _read_awk,
        "sqlite3": _read_sqlite,
        "php": _read_php,
        "git-shell": _read_git_shell,
    }
)
