"""Which files there are from a place down. Opens folders as the workspace does, and reads no file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from toolfold.files.descent import opened_folder, real, root_of

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Walk:
    """Where a walk may go, what it leaves out, and what ends it early."""

    roots: Sequence[Path]
    skip: Set[str]
    hidden: Callable[[Path], bool]
    stop: Callable[[], bool]

    def files(self, start: Path) -> Iterator[Path]:
        """Every regular file from `start` down, in a fixed order.

        A link that leads elsewhere inside the roots is walked after the rest, under its real name, once.
        """
        places, known, visited = [start], {start}, set[Path]()
        for place in self._until_stopped(places):
            if not place.is_dir():
                yield from (place,) if place.is_file() else ()
                continue
            for found in self._folders(place, visited):
                yield from (path for path in found.files if path not in known and not self.hidden(path))
                for target in self._elsewhere(found.links, known):
                    known.add(target)
                    if not self.hidden(target):
                        places.append(target)

    def _folders(self, place: Path, visited: set[Path]) -> Iterator[_Listing]:
        pending = [place]
        while pending and not self.stop():
            folder = pending.pop()
            if folder in visited:
                continue
            visited.add(folder)
            found = self._list(folder)
            yield found
            pending.extend(
                each
                for each in reversed(found.folders)
                if each.name not in self.skip and not self.hidden(each)
            )

    def _list(self, folder: Path) -> _Listing:
        """A folder's entries by name. One that vanished or may not be read is empty."""
        listing = _Listing([], [], [])
        root = root_of(folder, self.roots) or folder
        with suppress(OSError), opened_folder(folder, root) as descriptor, os.scandir(descriptor) as entries:
            for entry in sorted(self._until_stopped(entries), key=lambda entry: entry.name):
                if entry.is_symlink():
                    listing.links.append(folder / entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    listing.folders.append(folder / entry.name)
                elif entry.is_file(follow_symlinks=False):
                    listing.files.append(folder / entry.name)
        return listing

    def _elsewhere(self, links: Sequence[Path], known: Set[Path]) -> Iterator[Path]:
        """Where links lead, if that is inside the roots and not below a place that is walked anyway."""
        for link in self._until_stopped(links):
            # The system gives up on a long chain of links at once; resolving each of them takes forever.
            if link.name in self.skip or not os.path.exists(link):  # noqa: PTH110 - must not raise
                continue
            target = real(link)
            if not root_of(target, self.roots) or target.name in self.skip:
                continue
            if target not in known and known.isdisjoint(target.parents):
                yield target

    def _until_stopped(self, items: Iterable[Item]) -> Iterator[Item]:
        return takewhile(lambda _: not self.stop(), items)


@dataclass(frozen=True, slots=True)
class _Listing:
    files: list[Path]
    folders: list[Path]
    links: list[Path]
