"""Programs that run one command for each of many things: `find`, `fd`, `xargs`, `parallel`.

Where the things are known, they are put where the program would put them; where not, a gap stands there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from shellverdict.shell.inner.nouns import UNKNOWN, Inner, Reader, as_typed, joined
from shellverdict.shell.inner.options import Reading, read, spec
from shellverdict.shell.runs import Run, Stream
from shellverdict.shell.words import GAP, STAR, Word

__all__ = ["READERS"]

_MOST = 64  # things put in one by one; beyond that nobody looks at them singly

_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_FIND_LEADING = frozenset({"-H", "-L", "-P", "-D", "-O0", "-O1", "-O2", "-O3"})


def _find(run: Run) -> Iterator[Inner]:
    words = run.argv[1:]
    starts = _starting_points(words)
    named = _named_files(words, starts)
    at = 0
    while at < len(words):
        if words[at] in _FIND_RUNS:
            end = _end_of_exec(words, at + 1)
            yield from _for_each(words[at + 1 : end], (*named, *starts), themselves=_stays(words))
            at = end
        at += 1


class _Named(Word):
    """A file that is looked for by its whole name."""

    __slots__ = ()


def _named_files(words: Sequence[Word], starts: Sequence[Word]) -> tuple[_Named, ...]:
    """Where files with a name that is no pattern may be: at the starting points, as far as that is known."""
    sought = [name for test, name in itertools.pairwise(words) if test == "-name" and name.known]
    plain = [name for name in sought if not set(name) & set("*?[/")]
    return tuple(_Named(f"{start.rstrip('/')}/{name}") for name in plain[:4] for start in starts[:4])


def _stays(words: Sequence[Word]) -> bool:
    """Whether only the starting points themselves are found."""
    return any(first == "-maxdepth" and second == "0" for first, second in itertools.pairwise(words))


def _starting_points(words: Sequence[Word]) -> tuple[Word, ...]:
    starts = []
    for word in words:
        if word in _FIND_LEADING:
            continue
        if word[:1] in ("-", "(", ")", "!", ","):
            break
        starts.append(word)
    return tuple(starts) or (Word("."),)


def _end_of_exec(words: Sequence[Word], at: int) -> int:
    while at < len(words):
        if words[at] == ";" or (words[at] == "+" and words[at - 1] == "{}"):
            return at
        at += 1
    return at


def _for_each(command: tuple[Word, ...], starts: tuple[Word, ...], *, themselves: bool) -> Iterator[Inner]:
    if not command:
        return
    found = [
        start if themselves or isinstance(start, _Named) else Word(f"{start.rstrip('/')}/{GAP}")
        for start in starts[:_MOST]
    ]
    if any("{}" in word and word != "{}" for word in command):
        for thing in found:
            yield Inner(
                argv=tuple(_put(word, "{}", thing) for word in command), through="find", more_operands=True
            )
        return
    argv = [thing for word in command for thing in (found if word == "{}" else [word])]
    yield Inner(argv=tuple(argv), through="find", more_operands=len(argv) != len(command) or "{}" in command)


def _put(word: Word, mark: str, thing: str) -> Word:
    return Word(word.replace(mark, thing)) if mark and mark in word else word


_FD = spec(
    "-x: --exec: -X: --exec-batch: -d= --max-depth= --min-depth= --exact-depth= -E= --exclude= -t= "
    "--type= -e= --extension= -S= --size= --changed-within= --changed-before= -o= --owner= -c= --color= "
    "-j= --threads= --max-results= --base-directory= --path-separator= --search-path= --format= "
    "--batch-size= --ignore-file= -H -I -u -s -i -g -F -a -l -L -p -0 -1 -q"
)


def _fd(run: Run) -> Iterator[Inner]:
    words = run.argv[1:]
    reading = read(words, _FD, stop=False)
    if reading.quits or not reading.has("-x", "--exec", "-X", "--exec-batch"):
        return
    at = next(i for i, word in enumerate(words) if _asks_to_run(word))
    for command in _separated(words[at + 1 :]):
        if command:
            yield Inner(argv=_with_placeholders(command), through="find", more_operands=True)


def _asks_to_run(word: Word) -> bool:
    if word.startswith("--"):
        return len(word) > 4 and "--exec-batch".startswith(word)
    return word[:1] == "-" and word[-1:] in ("x", "X")


def _separated(words: Sequence[Word]) -> Iterator[tuple[Word, ...]]:
    part: list[Word] = []
    for word in words:
        if word == ";":
            yield tuple(part)
            part = []
        else:
            part.append(word)
    yield tuple(part)


_PLACEHOLDERS = ("{}", "{/}", "{//}", "{.}", "{/.}")


def _with_placeholders(command: Sequence[Word]) -> tuple[Word, ...]:
    argv = []
    for word in command:
        for mark in _PLACEHOLDERS:
            word = _put(word, mark, f"./{GAP}")
        argv.append(word)
    return tuple(argv)


_XARGS = spec(
    "-a= --arg-file= -d= --delimiter= -E= -e? --eof? -I= -i? --replace? -L= -l? --max-lines? -n= --max-args= "
    "-P= --max-procs= -s= --max-chars= -J= -R= -S= --process-slot-var= -0 -o -p -r -t -x --null "
    "--no-run-if-empty --interactive --verbose --exit --open-tty --show-limits"
)


def _xargs(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], _XARGS)
    if reading.quits or not reading.operands:
        return
    things = None if reading.values("-a", "--arg-file") else _things(run.stdin, reading)
    mark = _xargs_mark(reading)
    if mark is None:
        added = tuple(things) if things is not None else _in_folders(run.stdin)
        yield Inner(argv=(*reading.operands, *added), through="xargs", more_operands=things is None)
        return
    for thing in (things if things is not None else _in_folders(run.stdin) or [UNKNOWN])[:_MOST]:
        argv = tuple(_put(word, mark, thing) for word in reading.operands)
        yield Inner(argv=argv, through="xargs", more_operands=things is None)


def _in_folders(stream: Stream | None) -> tuple[Word, ...]:
    """Some file in each of the folders that standard input lists."""
    return tuple(Word(f"{folder.rstrip('/')}/{STAR}{STAR}") for folder in stream.folders) if stream else ()


def _xargs_mark(reading: Reading) -> str | None:
    mark: str | None = None
    for option in reading.options:
        if option.name in ("-I", "-J"):
            mark = option.value
        elif option.name in ("-i", "--replace"):
            mark = option.value or "{}"
    return mark


def _things(stream: Stream | None, reading: Reading) -> list[Word] | None:
    """The words of known standard input; None where they are not known, or too many."""
    if stream is None or stream.text is None:
        return None
    text = stream.text
    delimiter = next(iter(reading.values("-d", "--delimiter")), None)
    if reading.has("-0", "--null"):
        delimiter = Word("\0")
    if delimiter is not None:
        parts = text.split({r"\n": "\n", r"\0": "\0", r"\t": "\t"}.get(delimiter, delimiter or "\n"))
    elif _xargs_mark(reading) is not None:
        parts = [line.strip() for line in text.split("\n")]
    else:
        parts = _unquoted(text)
    things = [Word(part) for part in parts if part.strip("\n")]
    return things if 0 < len(things) <= _MOST and GAP not in text else None


def _unquoted(text: str) -> list[str]:
    """Words as xargs takes them: blanks part them, quotes and backslashes keep them together."""
    parts: list[str] = []
    part, quote, begun = "", "", False
    letters = iter(text)
    for letter in letters:
        if quote:
            quote, part = ("", part) if letter == quote else (quote, part + letter)
        elif letter in "'\"":
            quote, begun = letter, True
        elif letter == "\\":
            part, begun = part + next(letters, ""), True
        elif letter in " \t\n":
            parts += [part] if begun else []
            part, begun = "", False
        else:
            part, begun = part + letter, True
    return [*parts, part] if begun else parts


_PARALLEL = spec(
    "-a= --arg-file= -d= --delimiter= -I= -i? -j= --jobs= -P= --max-procs= -n= --max-args= -N= -L= -S= "
    "--sshlogin= --slf= --sshloginfile= --joblog= --results= --colsep= -C= --timeout= --delay= "
    "--retries= --tmpdir= --workdir= --wd= --env= --halt= --load= --memfree= --nice= --block= --recend= "
    "--recstart= --rpl= --tagstring= --shebang --basefile= --bf= --return= --trc= --ungroup -k -u -q -v "
    "-t -X -m -0 -r --pipe --dry-run! --dryrun! --bar --citation!"
)
_LISTS = frozenset({":::", ":::+", "::::", "::::+"})


def _parallel(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], _PARALLEL)
    if reading.quits:
        return
    words = reading.operands
    end = next((i for i, word in enumerate(words) if word in _LISTS), len(words))
    command, lists = words[:end], words[end:]
    things = _listed(lists)
    if not command:
        yield from _lines_as_commands(run, things, lists)
        return
    marks = [*_PLACEHOLDERS, "{1}", "{2}", *reading.values("-I")]
    line = joined(command)
    if not any(mark in line for mark in marks):
        line = Word(f"{line} {{}}")
    for thing in things or [UNKNOWN]:
        code = line
        for mark in marks:
            code = _put(code, mark, thing)
        yield Inner(code=code, through="parallel", more_operands=not things)


def _listed(lists: Sequence[Word]) -> list[Word]:
    things: list[Word] = []
    kind = ""
    for word in lists:
        if word in _LISTS:
            kind = word
        elif kind in (":::", ":::+"):
            things.append(word)
        else:
            return []
    return [as_typed(thing) for thing in things[:_MOST]]


def _lines_as_commands(run: Run, things: list[Word], lists: Sequence[Word]) -> Iterator[Inner]:
    for thing in things:
        yield Inner(code=thing, through="parallel")
    if not lists and run.stdin is not None:
        yield Inner(source="stdin", through="parallel")


def _zargs(run: Run) -> Iterator[Inner]:
    """zsh: `zargs -- operands -- command`."""
    dashes = [place for place, word in enumerate(run.argv) if word == "--"]
    if len(dashes) > 1:
        command, operands = run.argv[dashes[1] + 1 :], run.argv[dashes[0] + 1 : dashes[1]]
        yield Inner(argv=(*command, *operands), through="zargs")


READERS: Mapping[str, Reader] = MappingProxyType(
    {"find": _find, "fd": _fd, "xargs": _xargs, "parallel": _parallel, "rush": _parallel, "zargs": _zargs}
)
