"""Add the options that curl and wget read from configuration files to their arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from shellverdict.shell.runs import TextStream
from shellverdict.shell.words import Word

__all__ = ["add_configured_options"]

MAX_CONFIG_LINES = 200

OpenFile = Callable[[Word], TextStream | None]
"""Function that returns the content of a file, or of `-` (standard input); None if it is unknown."""

_CURL_LINE = re.compile(r"\s*(-{0,2}[\w-]+)\s*[=:\s]?\s*(?:\"((?:[^\"\\]|\\.)*)\"|(\S.*?))?\s*")
_WGET_LINE = re.compile(r"\s*([\w-]+)\s*=\s*(.*?)\s*")
_WGET_NAMES = {"dir-prefix": "directory-prefix", "logfile": "output-file", "input": "input-file"}


def add_configured_options(
    name: str, argv: tuple[Word, ...], assigned: Mapping[str, Word], open_file: OpenFile
) -> tuple[Word, ...]:
    """Return the arguments of curl or wget, with the options from known configuration files added."""
    if name == "curl":
        return (*argv, *_curl_options(argv, assigned, open_file))
    if name in ("wget", "wget2"):
        return (*argv, *_wget_options(argv, assigned, open_file))
    return argv


def _option_values(argv: Sequence[Word], short: str, long: str) -> Iterator[Word]:
    """Yield each value of one option, given as `-xVALUE`, `--long=VALUE` or in the next argument."""
    for place, word in enumerate(argv[1:], start=1):
        if word.startswith(f"{long}="):
            yield Word(word.partition("=")[2])
        elif word == long or (word[:1] == "-" and word[:2] != "--" and word[-1:] == short):
            yield from argv[place + 1 : place + 2]
        elif word[:2] == f"-{short}" and len(word) > 2:
            yield Word(word[2:])


def _file_lines(file: Word, open_file: OpenFile) -> list[str]:
    stream = open_file(file)
    return [] if stream is None or stream.text is None else stream.text.split("\n")[:MAX_CONFIG_LINES]


def _curl_options(argv: Sequence[Word], assigned: Mapping[str, Word], open_file: OpenFile) -> Iterator[Word]:
    files = list(_option_values(argv, "K", "--config"))
    if home := assigned.get("CURL_HOME"):
        files.append(Word(f"{home}/.curlrc"))
    for file in files:
        for line in _file_lines(file, open_file):
            found = _CURL_LINE.fullmatch(line)
            if found and not line.lstrip().startswith("#"):
                name = found[1] if found[1].startswith("-") else f"--{found[1]}"
                value = found[2] if found[2] is not None else found[3]
                yield Word(name)
                if value is not None:
                    yield Word(value.replace('\\"', '"'))


def _wget_options(argv: Sequence[Word], assigned: Mapping[str, Word], open_file: OpenFile) -> Iterator[Word]:
    lines: list[str] = list(_option_values(argv, "e", "--execute"))
    files = list(_option_values(argv, "\0", "--config"))
    if settings := assigned.get("WGETRC"):
        files.append(settings)
    for file in files:
        lines += _file_lines(file, open_file)
    for listed in _option_values(argv, "i", "--input-file"):
        yield from (Word(line.strip()) for line in _file_lines(listed, open_file) if "://" in line)
    for line in lines:
        if (found := _WGET_LINE.fullmatch(line)) and not line.lstrip().startswith("#"):
            name = found[1].lower().replace("_", "-")
            yield Word(f"--{_WGET_NAMES.get(name, name)}={found[2]}")
