"""Define what is known about files that earlier commands or tools changed, before the analyzed command.

Running such a file runs code that nobody has reviewed. The analysis treats it like a file that the same
command has written.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from shellverdict.shell.runs import TextStream
from shellverdict.shell.words import Word

__all__ = ["NO_EARLIER_FILES", "EarlierFiles", "FileChanges"]


@dataclass(frozen=True, slots=True)
class FileChanges:
    """Changes that a command makes to files, as far as the command shows them; all paths are absolute."""

    texts: Mapping[str, TextStream] = field(default_factory=lambda: MappingProxyType({}))
    """Written or downloaded files, with their text or its origin."""
    program_copies: Mapping[str, Word] = field(default_factory=lambda: MappingProxyType({}))
    """Copies of programs and links to them, with the name of the program."""
    symlinks: Mapping[str, Word] = field(default_factory=lambda: MappingProxyType({}))
    downloaded_directories: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.texts or self.program_copies or self.symlinks or self.downloaded_directories)

    def relative_to(self, directory: str) -> FileChanges:
        """Return the changes, with those below a directory also under their relative path."""

        def spell(path: str) -> tuple[str, ...]:
            below = path.startswith(f"{directory.rstrip('/')}/") if directory else False
            return (path, posixpath.relpath(path, directory)) if below else (path,)

        return FileChanges(
            program_copies={
                spelt: name for path, name in self.program_copies.items() for spelt in spell(path)
            },
            symlinks={spelt: to for path, to in self.symlinks.items() for spelt in spell(path)},
            downloaded_directories=tuple(
                spelt for path in self.downloaded_directories for spelt in spell(path)
            ),
        )


class EarlierFiles(Protocol):
    """Interface to the files that were changed before a command; paths are those where the command runs."""

    @property
    def changes(self) -> FileChanges:
        """Return the changes that earlier commands made."""

    def find(self, path: str) -> TextStream | None:
        """Return the content of a changed file; None if it was not changed, or is unknown."""

    def list_below(self, directory: str) -> Iterable[str]:
        """Return the changed files in a directory and in the directories below, up to a limit."""


class _NoEarlierFiles:
    changes = FileChanges()

    def find(self, path: str) -> TextStream | None:  # noqa: ARG002 - the interface
        return None

    def list_below(self, directory: str) -> Iterable[str]:  # noqa: ARG002 - the interface
        return ()


NO_EARLIER_FILES: EarlierFiles = _NoEarlierFiles()
