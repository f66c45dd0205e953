"""Interpreters and editors whose options follow no common grammar: Python, Vim, tar's check points."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from shellverdict.shell.inner.generic import follow, script, standard_input
from shellverdict.shell.inner.nouns import Inner, Reader, as_typed, joined
from shellverdict.shell.inner.options import read, spec
from shellverdict.shell.inner.programs import programs
from shellverdict.shell.runs import Run
from shellverdict.shell.words import Mark, Word

__all__ = ["READERS"]

_PYTHON_FLAGS_WITH_VALUE = frozenset("WXQ")
_PYTHON_LONG_WITH_VALUE = frozenset({"--check-hash-based-pycs"})
_RUNS_A_SCRIPT = frozenset(
    {"pdb", "cProfile", "profile", "trace", "runpy", "ipdb", "debugpy", "coverage", "viztracer"}
)


def _python(run: Run) -> Iterator[Inner]:
    """-c and -m end the options: everything behind their value belongs to the code."""
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
                    yield from _python_code(run, value, words[at + (not attached) :])
                    return
                if letter == "m":
                    yield from _python_module(run, value, words[at + (not attached) :])
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
        yield from _django_shell(words[at + 1 :])
    yield from script(run, words[at:], "python", "")


def _python_code(run: Run, code: Word | None, arguments: tuple[Word, ...]) -> Iterator[Inner]:
    if code is not None:
        yield Inner(code=_with_arguments(as_typed(code), arguments), language="python", arguments=arguments)
    elif run.more_operands:
        yield Inner(source="stdin", language="python")


_ARGUMENT = re.compile(r"\b(?:sys\.)?argv\[(\d{1,3})\]")


def _with_arguments(code: Word, arguments: tuple[Word, ...]) -> Word:
    """The code with the arguments in the place of `sys.argv[1]`, as far as they are known."""

    def literal(found: re.Match[str]) -> str:
        place = int(found[1]) - 1
        known = 0 <= place < len(arguments) and arguments[place].known
        return repr(str(arguments[place])) if known else found[0]

    return Word(_ARGUMENT.sub(literal, code)) if arguments else code


def _python_module(run: Run, module: Word | None, words: tuple[Word, ...]) -> Iterator[Inner]:
    if module in ("code", "asyncio", "pdb", "ipdb"):
        yield from standard_input(run, "python")
    if module in ("pdb", "ipdb"):
        for command in read(words, spec("-c= --command=")).values("-c", "--command"):
            yield Inner(code=as_typed(command.lstrip("! ")), language="python")
    if module == "timeit":
        for word in words:
            if word[:1] != "-":
                yield Inner(code=as_typed(word), language="python")
    elif module in _RUNS_A_SCRIPT:
        operands = tuple(word for word in words if word[:1] != "-" and word != "run")
        yield from script(run, operands, "python", "")
    elif module in ("IPython", "ipython"):
        yield from _ipython(run)


def _ipython(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], spec("-c>python -i -m= --profile= --colors= --pylab?"))
    codes = reading.values("-c")
    for code in codes:
        yield Inner(code=as_typed(code), language="python")
    if not codes and not reading.quits and not reading.values("-m"):
        yield from script(run, reading.operands, "python", "")


def _django(run: Run) -> Iterator[Inner]:
    yield from _django_shell(run.argv[1:])


def _django_shell(words: tuple[Word, ...]) -> Iterator[Inner]:
    if words[:1] == (Word("shell"),):
        for code in read(words[1:], spec("-c>python --command>python -i= --interface=")).values(
            "-c", "--command"
        ):
            yield Inner(code=as_typed(code), language="python")


_VIM = spec(
    "-c>vim --cmd>vim -S@vim -u@vim -U@vim -i= -t= -T= -w= -W= -r? -o? -O? -p? -V? --servername= "
    "--remote-send>vim --remote-expr>vim --startuptime= -e -E -h! -v -y -n -N -R -m -M -b -d -D -Z -es"
)


def _vim(run: Run) -> Iterator[Inner]:
    words = run.argv[1:]
    commands = run.name.startswith("ex") or any(
        w[:1] == "-" and w[:2] != "--" and "e" in w[:4].lower() for w in words
    )
    reading = read([w for w in words if w[:1] != "+"], _VIM, stop=False)
    if reading.quits:
        return
    for option in reading.options:
        if option.value is not None and option.name in ("-c", "--cmd", "--remote-send", "--remote-expr"):
            yield Inner(code=as_typed(option.value), language="vim")
        elif option.value is not None and option.name in ("-S", "-u", "-U"):
            yield Inner(source="file", file=option.value, language="vim")
    for word in words:
        if word[:1] == "+" and len(word) > 1:
            yield Inner(code=as_typed(word[1:]), language="vim")
    typed = [*reading.values("-c", "--cmd"), *(Word(word[1:]) for word in words if word[:1] == "+")]
    yield from _saved(typed, reading.operands)
    if commands:
        yield from standard_input(run, "vim")


_SAVES = re.compile(
    r"(?:^|\|)[\s:]*(?:sil\w*!?\s+)?(?:wq?a?l?l?|xa?l?l?|x(?:it)?|up(?:date)?|wn|exit?)!?\s*(?:$|\|)"
)
_EMPTIES = re.compile(r"(?:^|\|)[\s:]*(?:sil\w*!?\s+)?(?:%|1,\$|g/\^?\.?\*?/)\s*d(?:elete)?\b")


def _saved(commands: Sequence[Word], files: Sequence[Word]) -> Iterator[Inner]:
    """An editor that is told to save has changed its files in place, as `sed -i` would, or emptied them."""
    if not any(_SAVES.search(command[:4096]) for command in commands):
        return
    empties = any(_EMPTIES.search(command[:4096]) for command in commands)
    program = ("truncate", "-s", "0", "--") if empties else ("sed", "-i", "-e", "s/a/b/", "--")
    for file in files[:16]:
        yield Inner(argv=(*(Word(word) for word in program), file), through="vim")


_SQLITE_OPENS = frozenset({":memory:", ""})


def _sqlite(run: Run) -> Iterator[Inner]:
    """Statements from a file of the project, for a database of the project, are as good as a script of it."""
    name = "sqlite3"
    reading = read(run.argv[1:], spec(programs()[name].options, single=True), stop=False)
    database = reading.operands[0] if reading.operands else Word("")
    near = database in _SQLITE_OPENS or (database.known and not database.startswith(("/", "..", "~")))
    fed = run.stdin
    if near and fed is not None and fed.text is None and fed.marks == {Mark.UNREAD}:
        run = replace(run, stdin=None)
    yield from follow(run, programs()[name], name)


def _tar(run: Run) -> Iterator[Inner]:
    yield from follow(run, programs()["tar"], "tar")
    for place, word in enumerate(run.argv):
        if word.startswith("--checkpoint-action"):
            _, equals, value = word.partition("=")
            value = value if equals else str(run.argv[place + 1]) if place + 1 < len(run.argv) else ""
            if value.startswith("exec"):
                yield Inner(code=as_typed(value.partition("=")[2]), through="tar")
    yield from _old_style(run.argv[1:])


def _old_style(words: Sequence[Word]) -> Iterator[Inner]:
    """`tar xIf program file`: letters without a dash take their values in order."""
    if not words or words[0][:1] == "-":
        return
    values = iter(words[1:])
    for letter in words[0][:32]:
        if letter in "fCTXbgKLNVFI":
            value = next(values, None)
            if value is not None and letter in "IF":
                yield Inner(code=as_typed(value), through="tar")


def _awk(run: Run) -> Iterator[Inner]:
    """What -v assigns stands at the beginning of the program, as if it were written there."""
    program = programs()["awk"]
    given = read(run.argv[1:], spec(program.options)).values("-v", "--assign")
    values = "".join(_awk_assignment(word) for word in given)
    for one in follow(run, program, "awk"):
        yield one if one.code is None else replace(one, code=Word(values + one.code))


def _awk_assignment(word: str) -> str:
    name, _, value = word.partition("=")
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'BEGIN {{ {name} = "{text}" }}\n'


def _php_artisan(run: Run) -> Iterator[Inner]:
    if run.argv[1:3] == (Word("artisan"), Word("tinker")):
        for code in read(run.argv[3:], spec("--execute>php")).values("--execute"):
            yield Inner(code=as_typed(code), language="php")
        yield from standard_input(run, "php")
    else:
        yield from follow(run, programs()["php"], "php")


def _git_shell(run: Run) -> Iterator[Inner]:
    words = run.argv[1:]
    if words[:1] == (Word("-c"),):
        yield Inner(code=joined(words[1:]))


READERS: Mapping[str, Reader] = MappingProxyType(
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
            _python,
        ),
        "ipython": _ipython,
        "django-admin": _django,
        "manage.py": _django,
        **dict.fromkeys(
            ["vi", "vim", "ex", "view", "nvim", "gvim", "rvim", "vimdiff", "rview", "exim", "vimx"], _vim
        ),
        "tar": _tar,
        "awk": _awk,
        "sqlite3": _sqlite,
        "php": _php_artisan,
        "git-shell": _git_shell,
    }
)
