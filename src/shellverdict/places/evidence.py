"""Whether a directory of the project can be made again, by what is on the disk.

A name alone says little: a `build` can be tracked, and `data` be ignored because it is large. A directory is
regenerable where its name is one that tools make and nothing in it is tracked, or where a tracked
`.gitignore` ignores it and nothing precious is in it. Every look is bounded; doubt means no.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from shellverdict.names import names
from shellverdict.places.ignoring import matches_name
from shellverdict.places.names import landmarks, lost_with
from shellverdict.places.repository import Repository, find_repository

__all__ = ["Evidence", "is_generated_name"]

MAX_MATCHES = 200
MAX_ENTRIES_SCANNED = 5_000
MAX_SCAN_DEPTH = 4

_ALWAYS_MADE = names(
    "node_modules bower_components __pycache__ .pytest_cache .mypy_cache .ruff_cache .pytype "
    ".hypothesis .tox .nox .eggs .venv venv .next .nuxt .svelte-kit .angular .turbo .parcel-cache "
    ".vite .webpack .docusaurus .nyc_output .gradle .dart_tool .sass-cache .ipynb_checkpoints "
    ".cache-loader htmlcov .astro .expo .terraform .bundle cmake-build-debug cmake-build-release "
    "cmakefiles deriveddata .phpunit.cache .stack-work dist-newstyle .elixir_ls .swc .rollup.cache "
    ".eslintcache .stylelintcache .coverage-cache _build deps.compiled .serverless .aws-sam zig-cache "
    ".zig-cache zig-out .import .godot"
)
_MADE_BESIDE_A_MANIFEST = names("build dist target out coverage .output lib-cov storybook-static .build site")
_MANIFESTS = names(
    "package.json cargo.toml pyproject.toml setup.py setup.cfg cmakelists.txt pom.xml build.gradle "
    "build.gradle.kts makefile build.sbt go.mod composer.json mix.exs pubspec.yaml package.swift "
    "meson.build build.zig mkdocs.yml dune-project"
)
_MADE_ENDINGS = (".egg-info", ".dist-info", ".tsbuildinfo", ".dsym")
_MADE_FILES = names(
    "*.pyc *.pyo *.o *.obj *.class *.gcda *.gcno *.swp *.swo *~ *.tmp *.log *.orig *.rej .ds_store "
    "*.py[co] *.beam *.hi"
)
_OTHER_HISTORIES = (".hg", ".svn", ".jj", ".bzr")


def is_generated_name(name: str) -> bool:
    """Whether files or directories of this name, which may be a pattern, are made by tools everywhere."""
    lowered = name.lower()
    return lowered in _ALWAYS_MADE or lowered in _MADE_FILES or lowered.endswith(_MADE_ENDINGS)


class Evidence:
    """Looks at one project's files for the verdict on one command."""

    def __init__(self, root: str) -> None:
        self._root = Path(os.path.realpath(root))
        self._repositories: dict[Path, Repository | None] = {}

    def is_regenerable(self, path: str) -> bool:
        """Whether all that a path below the root means can be made again. Its last part may be a pattern."""
        try:
            return all(self._is_regenerable(each) for each in self._expanded(Path(path)))
        except (OSError, ValueError):
            return False

    def is_plain_file(self, path: str) -> bool:
        """Whether a path of the project leads to a file that is neither a directory nor a link."""
        file = Path(path)
        try:
            return self._is_inside(file.parent) and file.is_file() and not file.is_symlink()
        except (OSError, ValueError):
            return False

    def is_made_below(self, folder: str, pattern: str) -> bool:
        """Whether files of this name in a directory, at any depth, are made by tools, and none is tracked."""
        where = Path(folder)
        if not is_generated_name(pattern) or not self._is_inside(where):
            return False
        repository = self._repository(where)
        if repository is None:
            return True
        tracked = repository.tracked_below(_relative(where, repository))
        if tracked is None:
            return False
        return not any(matches_name(pattern, part) for each in tracked for part in each.split("/"))

    def _expanded(self, path: Path) -> Iterator[Path]:
        """The paths a pattern means now. Raises ValueError where that is not known or is too many."""
        base = Path(*(part for part in itertools.takewhile(lambda part: not _is_pattern(part), path.parts)))
        found = [base]
        for part in path.parts[len(base.parts) :]:
            found = list(islice(_children(found, part), MAX_MATCHES + 1))
            if len(found) > MAX_MATCHES:
                raise ValueError("more matches than are looked at")
        if not found and not is_generated_name(path.name):
            raise ValueError("nothing of an unknown name")
        if not all(self._is_inside(each.parent) for each in found):
            raise ValueError("outside of the project")
        yield from found

    def _is_inside(self, folder: Path) -> bool:
        real = Path(os.path.realpath(folder))
        return real == self._root or self._root in real.parents

    def _is_regenerable(self, path: Path) -> bool:
        if path.is_symlink() or path == self._root or lost_with(path.parts[-1:]):
            return False
        path = Path(os.path.realpath(path))
        repository = self._repository(path.parent)
        if repository is None:
            return self._is_made(
                path, has_history=any((self._root / each).exists() for each in _OTHER_HISTORIES)
            )
        relative = _relative(path, repository)
        if repository.tracks_anything(relative) is not False:
            return False
        if self._is_made(path, has_history=False, untracked=True):
            return not _holds_repository(path)
        return repository.ignores(relative) and not _holds_precious(path)

    def _is_made(self, path: Path, *, has_history: bool, untracked: bool = False) -> bool:
        """Whether the path or a directory above it, up to the root, is one that tools make."""
        for each in (path, *path.parents):
            if each == self._root or self._root not in each.parents:
                return False
            if is_generated_name(each.name):
                return True
            if each.name.lower() in _MADE_BESIDE_A_MANIFEST and not has_history:
                beside = {entry.name.lower() for entry in each.parent.iterdir()}
                is_plain = untracked and each.name.lower() != "out"
                return is_plain or not _MANIFESTS.isdisjoint(beside)
        return False

    def _repository(self, folder: Path) -> Repository | None:
        while not folder.is_dir() and folder.parent != folder:
            folder = folder.parent
        if folder not in self._repositories:
            self._repositories[folder] = find_repository(Path(os.path.realpath(folder)))
        return self._repositories[folder]


def _is_pattern(part: str) -> bool:
    return not set("*?[").isdisjoint(part)


def _children(folders: Iterable[Path], part: str) -> Iterator[Path]:
    """The paths that one part of a pattern means in each of the folders."""
    for folder in folders:
        yield from (folder / name for name in (_matching(folder, part) if _is_pattern(part) else (part,)))


def _matching(folder: Path, pattern: str) -> Iterator[str]:
    """The names in a folder that a pattern matches. Raises ValueError where there are too many to look at."""
    hidden = pattern.startswith(".")
    try:
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                if count >= MAX_ENTRIES_SCANNED:
                    raise ValueError("more entries than are looked at")
                if (hidden or not entry.name.startswith(".")) and matches_name(pattern, entry.name):
                    yield entry.name
    except (FileNotFoundError, NotADirectoryError):
        return


def _relative(path: Path, repository: Repository) -> str:
    relative = Path(os.path.realpath(path)).relative_to(os.path.realpath(repository.root)).as_posix()
    return "" if relative == "." else relative


def _holds_repository(path: Path) -> bool:
    """Whether there is a repository of its own in a directory, or one level below."""
    if (path / ".git").exists():
        return True
    try:
        return any((each / ".git").exists() for each in sorted(path.iterdir())[:MAX_MATCHES])
    except (FileNotFoundError, NotADirectoryError):
        return False


def _holds_precious(path: Path) -> bool:
    """Whether something is in a directory that nobody can make again, or more than is looked at."""
    if _is_precious(path.parts[-2:]):
        return True
    if not path.is_dir():
        return path.exists() and not is_generated_name(path.suffix and f"*{path.suffix}")
    left = MAX_ENTRIES_SCANNED
    waiting = [(path, 0)]
    while waiting:
        folder, depth = waiting.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                left -= 1
                if left < 0 or _is_precious((folder.name, entry.name)):
                    return True
                if entry.is_dir(follow_symlinks=False):
                    if depth >= MAX_SCAN_DEPTH:
                        return True
                    if not is_generated_name(entry.name):
                        waiting.append((Path(entry.path), depth + 1))
    return False


def _is_precious(parts: Sequence[str]) -> bool:
    return bool(landmarks(tuple(parts), False) or lost_with(tuple(parts[-1:])))
