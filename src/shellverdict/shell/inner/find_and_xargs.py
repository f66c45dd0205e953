"""Find the commands that `find`, `fd`, `xargs` and `parallel` run for each of several items.

Known items are inserted where the program would insert them; unknown items become unknown words.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from shellverdict.shell.inner.inner_command import (
    UNKNOWN_WORD,
    InnerCommand,
    InnerCommandReader,
    join_words,
    to_literal,
)
from shellverdict.shell.inner.option_spec import ParsedOptions, parse_options, parse_spec
from shellverdict.shell.runs import ProgramRun, TextStream
from shellverdict.shell.words import GAP, STAR, Word

__all__ = ["READERS"]

_MAX_ITEMS = 64  # items inserted one by one; more are treated as unknown

_FIND_EXEC_ACTIONS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_FIND_GLOBAL_OPTIONS = frozenset({"-H", "-L", "-P", "-D", "-O0", "-O1", "-O2", "-O3"})


def _read_find(run: ProgramRun) -> Iterator[InnerCommand]:
    words = run.argv[1:]
    starts = _starting_points(words)
    named = _named_files(words, starts)
    at = 0
    while at < len(words):
        if words[at] in _FIND_EXEC_ACTIONS:
            end = _end_of_exec(words, at + 1)
            yield from _commands_per_file(
                words[at + 1 : end], (*named, *starts), only_starts=_has_zero_depth(words)
            )
            at = end
        at += 1


class _NamedFile(Word):
    """A file that `find -name` looks for by its full name."""

    __slots__ = ()


def _named_files(words: Sequence[Word], starts: Sequence[Word]) -> tuple[_NamedFile, ...]:
    """Return the paths that `find -name` may find for a name without wildcards, below each starting point."""
    sought = [name for test, name in itertools.pairwise(words) if test == "-name" and name.is_known]
    plain = [name for name in sought if not set(name) & set("*?[/")]
    return tuple(_NamedFile(f"{start.rstrip('/')}/{name}") for name in plain[:4] for start in starts[:4])


def _has_zero_depth(words: Sequence[Word]) -> bool:
    """Return True if `-maxdepth 0` limits the results of `find` to its starting points."""
    return any(first == "-maxdepth" and second == "0" for first, second in itertools.pairwise(words))


def _starting_points(words: Sequence[Word]) -> tuple[Word, ...]:
    starts = []
    for word in words:
        if word in _FIND_GLOBAL_OPTIONS:
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


def _commands_per_file(
    command: tuple[Word, ...], starts: tuple[Word, ...], *, only_starts: bool
) -> Iterator[InnerCommand]:
    if not command:
        return
    found = [
        start if only_starts or isinstance(start, _NamedFile) else Word(f"{start.rstrip('/')}/{GAP}")
        for start in starts[:_MAX_ITEMS]
    ]
    if any("{}" in word and word != "{}" for word in command):
        for item in found:
            yield InnerCommand(
                argv=tuple(_replace_placeholder(word, "{}", item) for word in command),
                wrapper="find",
                has_unknown_operands=True,
            )
        return
    argv = [item for word in command for item in (found if word == "{}" else [word])]
    yield InnerCommand(
        argv=tuple(argv), wrapper="find", has_unknown_operands=len(argv) != len(command) or "{}" in command
    )


def _replace_placeholder(word: Word, placeholder: str, item: str) -> Word:
    return Word(word.replace(placeholder, item)) if placeholder and placeholder in word else word


_FD = parse_spec(
    "-x: --exec: -X: --exec-batch: -d= --max-depth= --min-depth= --exact-depth= -E= --exclude= -t= "
    "--type= -e= --extension= -S= --size= --changed-within= --changed-before= -o= --owner= -c= --color= "
    "-j= --threads= --max-results= --base-directory= --path-separator= --search-path= --format= "
    "--batch-size= --ignore-file= -H -I -u -s -i -g -F -a -l -L -p -0 -1 -q"
)


def _read_fd(run: ProgramRun) -> Iterator[InnerCommand]:
    words = run.argv[1:]
    reading = parse_options(words, _FD, stop_at_operand=False)
    if reading.runs_nothing or not reading.has("-x", "--exec", "-X", "--exec-batch"):
        return
    at = next(i for i, word in enumerate(words) if _is_exec_option(word))
    for command in _split_at_semicolons(words[at + 1 :]):
        if command:
            yield InnerCommand(argv=_fill_placeholders(command), wrapper="find", has_unknown_operands=True)


def _is_exec_option(word: Word) -> bool:
    if word.startswith("--"):
        return len(word) > 4 and "--exec-batch".startswith(word)
    return word[:1] == "-" and word[-1:] in ("x", "X")


def _split_at_semicolons(words: Sequence[Word]) -> Iterator[tuple[Word, ...]]:
    part: list[Word] = []
    for word in words:
        if word == ";":
            yield tuple(part)
            part = []
        else:
            part.append(word)
    yield tuple(part)


_PLACEHOLDERS = ("{}", "{/}", "{//}", "{.}", "{/.}")


def _fill_placeholders(command: Sequence[Word]) -> tuple[Word, ...]:
    argv = []
    for word in command:
        for placeholder in _PLACEHOLDERS:
            word = _replace_placeholder(word, placeholder, f"./{GAP}")
        argv.append(word)
    return tuple(argv)


_XARGS = parse_spec(
    "-a= --arg-file= -d= --delimiter= -E= -e? --eof? -I= -i? --replace? -L= -l? --max-lines? -n= --max-args= "
    "-P= --max-procs= -s= --max-chars= -J= -R= -S= --process-slot-var= -0 -o -p -r -t -x --null "
    "--no-run-if-empty --interactive --verbose --exit --open-tty --show-limits"
)


def _read_xargs(run: ProgramRun) -> Iterator[InnerCommand]:
    reading = parse_options(run.argv[1:], _XARGS)
    if reading.runs_nothing or not reading.operands:
        return
    items = None if reading.values("-a", "--arg-file") else _input_items(run.stdin, reading)
    placeholder = _xargs_placeholder(reading)
    if placeholder is None:
        added = tuple(items) if items is not None else _unknown_files_in(run.stdin)
        yield InnerCommand(
            argv=(*reading.operands, *added), wrapper="xargs", has_unknown_operands=items is None
        )
        return
    for item in (items if items is not None else _unknown_files_in(run.stdin) or [UNKNOWN_WORD])[:_MAX_ITEMS]:
        argv = tuple(_replace_placeholder(word, placeholder, item) for word in reading.operands)
        yield InnerCommand(argv=argv, wrapper="xargs", has_unknown_operands=items is None)


def _unknown_files_in(stream: TextStream | None) -> tuple[Word, ...]:
    """Return a glob pattern for the files of each directory that the input lists, as in `ls dir | xargs`."""
    return (
        tuple(Word(f"{directory.rstrip('/')}/{STAR}{STAR}") for directory in stream.listed_directories)
        if stream
        else ()
    )


def _xargs_placeholder(reading: ParsedOptions) -> str | None:
    placeholder: str | None = None
    for option in reading.options:
        if option.name in ("-I", "-J"):
            placeholder = option.value
        elif option.name in ("-i", "--replace"):
            placeholder = option.value or "{}"
    return placeholder


def _input_items(stream: TextStream | None, reading: ParsedOptions) -> list[Word] | None:
    """Return the items that xargs reads from standard input; None if they are unknown or too many."""
    if stream is None or stream.text is None:
        return None
    text = stream.text
    delimiter = next(iter(reading.values("-d", "--delimiter")), None)
    if reading.has("-0", "--null"):
        delimiter = Word("\0")
    if delimiter is not None:
        parts = text.split({r"\n": "\n", r"\0": "\0", r"\t": "\t"}.get(delimiter, delimiter or "\n"))
    elif _xargs_placeholder(reading) is not None:
        parts = [line.strip() for line in text.split("\n")]
    else:
        parts = _split_quoted_items(text)
    items = [Word(part) for part in parts if part.strip("\n")]
    return items if 0 < len(items) <= _MAX_ITEMS and GAP not in text else None


def _split_quoted_items(text: str) -> list[str]:
    """Split text as xargs does: at blanks, with quotes and backslashes."""
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


_PARALLEL = parse_spec(
    "-a= --arg-file= -d= --delimiter= -I= -i? -j= --jobs= -P= --max-procs= -n= --max-args= -N= -L= -S= "
    "--sshlogin= --slf= --sshloginfile= --joblog= --results= --colsep= -C= --timeout= --delay= "
    "--retries= --tmpdir= --workdir= --wd= --env= --halt= --load= --memfree= --nice= --block= --recend= "
    "--recstart= --rpl= --tagstring= --shebang --basefile= --bf= --return= --trc= --ungroup -k -u -q -v "
    "-t -X -m -0 -r --pipe --dry-run! --dryrun! --bar --citation!"
)
_LIST_SEPARATORS = frozenset({":::", ":::+", "::::", "::::+"})


def _read_parallel(run: ProgramRun) -> Iterator[InnerCommand]:
    reading = parse_options(run.argv[1:], _PARALLEL)
    if reading.runs_nothing:
        return
    words = reading.operands
    end = next((i for i, word in enumerate(words) if word in _LIST_SEPARATORS), len(words))
    command, lists = words[:end], words[end:]
    items = _listed_arguments(lists)
    if not command:
        yield from _lines_as_commands(run, items, lists)
        return
    placeholders = [*_PLACEHOLDERS, "{1}", "{2}", *reading.values("-I")]
    line = join_words(command)
    if not any(placeholder in line for placeholder in placeholders):
        line = Word(f"{line} {{}}")
    for item in items or [UNKNOWN_WORD]:
        code = line
        for placeholder in placeholders:
            code = _replace_placeholder(code, placeholder, item)
        yield InnerCommand(code=code, wrapper="parallel", has_unknown_operands=not items)


def _listed_arguments(lists: Sequence[Word]) -> list[Word]:
    items: list[Word] = []
    kind = ""
    for word in lists:
        if word in _LIST_SEPARATORS:
            kind = word
        elif kind in (":::", ":::+"):
            items.append(word)
        else:
            return []
    return [to_literal(item) for item in items[:_MAX_ITEMS]]


def _lines_as_commands(run: ProgramRun, items: list[Word], lists: Sequence[Word]) -> Iterator[InnerCommand]:
    for item in items:
        yield InnerCommand(code=item, wrapper="parallel")
    if not lists and run.stdin is not None:
        yield InnerCommand(source="stdin", wrapper="parallel")


def _read_zargs(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the command of zsh's `zargs -- operands -- command`."""
    dashes = [place for place, word in enumerate(run.argv) if word == "--"]
    if len(dashes) > 1:
        command, operands = run.argv[dashes[1] + 1 :], run.argv[dashes[0] + 1 : dashes[1]]
        yield InnerCommand(argv=(*command, *operands), wrapper="zargs")


READERS: Mapping[str, InnerCommandReader] = MappingProxyType(
    {
        "find": _read_find,
        "fd": _read_fd,
        "xargs": _read_xargs,
        "parallel": _read_parallel,
        "rush": _read_parallel,
        "zargs": _read_zargs,
    }
)
