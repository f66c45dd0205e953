"""List the files below a directory, recursively."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from toolfold.tools.files.descent import find_root, open_directory, resolve_links

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class FileWalk:
    """Walk over the files below a directory, limited by root directories, exclusions and a stop condition."""

    roots: Sequence[Path]
    skip: Set[str]
    is_hidden: Callable[[Path], bool]
    should_stop: Callable[[], bool]

    def files(self, start: Path) -> Iterator[Path]:
        """Yield every regular file below `start`, in a fixed order.

        The target of a link that leads elsewhere inside the roots is listed last, under its real name,
        once.
        """
        starts, known, visited = [start], {start}, set[Path]()
        for current in self._until_stopped(starts):
            if not current.is_dir():
                yield from (current,) if current.is_file() else ()
                continue
            for listing in self._iterate_directories(current, visited):
                yield from (path for path in listing.files if path not in known and not self.is_hidden(path))
                for target in self._link_targets(listing.links, known):
                    known.add(target)
                    if not self.is_hidden(target):
                        starts.append(target)

    def _iterate_directories(self, start: Path, visited: set[Path]) -> Iterator[_DirectoryListing]:
        pending = [start]
        while pending and not self.should_stop():
            directory = pending.pop()
            if directory in visited:
                continue
            visited.add(directory)
            listing = self._list_directory(directory)
            yield listing
            pending.extend(
                each
                for each in reversed(listing.directories)
                if each.name not in self.skip and not self.is_hidden(each)
            )

    def _list_directory(self, directory: Path) -> _DirectoryListing:
        """Return the entries of a directory sorted by name; empty if it vanished or is unreadable."""
        listing = _DirectoryListing([], [], [])
        root = find_root(directory, self.roots) or directory
        with (
            suppress(OSError),
            open_directory(directory, root) as descriptor,
            os.scandir(descriptor) as entries,
        ):
            for entry in sorted(self._until_stopped(entries), key=lambda entry: entry.name):
                if entry.is_symlink():
                    listing.links.append(directory / entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    listing.directories.append(directory / entry.name)
                elif entry.is_file(follow_symlinks=False):
                    listing.files.append(directory / entry.name)
        return listing

    def _link_targets(self, links: Sequence[Path], known: Set[Path]) -> Iterator[Path]:
        """Yield the targets of symbolic links that are inside the root directories and not listed yet."""
        for link in self._until_stopped(links):
            # The system rejects a long chain of links at once; resolving each link would take very long.
            if link.name in self.skip or not os.path.exists(link):  # noqa: PTH110 - must not raise
                continue
            target = resolve_links(link)
            if not find_root(target, self.roots) or target.name in self.skip:
                continue
            if target not in known and known.isdisjoint(target.parents):
                yield target

    def _until_stopped(self, items: Iterable[Item]) -> Iterator[Item]:
        return takewhile(lambda _: not self.should_stop(), items)


@dataclass(frozen=True, slots=True)
class _DirectoryListing:
    files: list[Path]
    directories: list[Path]
    links: list[Path]
