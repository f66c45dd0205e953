"""Find the directories whose file names a program such as `ls` or `find` prints."""

from __future__ import annotations

import fnmatch
import itertools

from shellverdict.shell.runs import ProgramRun
from shellverdict.shell.words import GAP, STAR, Word

__all__ = ["can_list_settings", "find_listed_directories"]

MAX_DIRECTORIES = 16
_SETTINGS_FILES = (
    "config.yaml",
    "toolfold.yaml",
    "toolfold.lock",
    "trust.json",
    "tokens.json",
    "users.json",
    "record.json",
)
_SEARCH_PROGRAMS = frozenset({"grep", "egrep", "fgrep", "ggrep", "rg", "ag", "ack", "ugrep"})
_FIND_PROGRAMS = frozenset({"find", "gfind", "bfs"})
_FILE_NAME_OPTIONS = frozenset({"-l", "-L", "--files-with-matches", "--files-without-match", "--files"})


def find_listed_directories(run: ProgramRun) -> tuple[Word, ...]:
    """Return the directories whose file names a program prints; empty if there are none."""
    words = run.argv[1:]
    if run.name in _FIND_PROGRAMS:
        named = _starting_points(words) if can_list_settings(words) else []
    elif run.name in _SEARCH_PROGRAMS:
        named = [word for word in words if word[:1] != "-"] if _is_listing_names(words) else []
    elif run.name in ("fd", "fdfind", "locate", "plocate", "ls"):
        named = [word for word in words if word[:1] != "-"]
    else:
        return ()
    return tuple(word for word in named if word[:1] in ("/", "~"))[:MAX_DIRECTORIES]


def can_list_settings(words: tuple[Word, ...]) -> bool:
    """Return True if the patterns of a `find` command may match names of Toolfold's settings files."""
    patterns = [
        pattern.replace(STAR, "*").casefold()
        for option, pattern in itertools.pairwise(words)
        if option in ("-name", "-iname", "-path", "-ipath", "-wholename")
    ]
    if not patterns or any(GAP in pattern for pattern in patterns):
        return True
    return any(
        fnmatch.fnmatchcase(name, each.rpartition("/")[2]) for each in patterns for name in _SETTINGS_FILES
    )


def _starting_points(words: tuple[Word, ...]) -> list[Word]:
    found: list[Word] = []
    for word in words:
        if word in ("-H", "-L", "-P"):
            continue
        if word[:1] in ("-", "(", "!"):
            break
        found.append(word)
    return found


def _is_listing_names(words: tuple[Word, ...]) -> bool:
    """Return True if an option such as `-l`, also combined as in `-rl`, makes a program print file names."""
    joined = (word[1:] for word in words if word[:1] == "-" and word[:2] != "--")
    return any(word in _FILE_NAME_OPTIONS for word in words) or any(
        "l" in letters or "L" in letters for letters in joined
    )
