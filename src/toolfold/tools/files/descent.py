"""Resolve paths, and open directories component by component without following symbolic links.

Makes no decisions: the workspace defines the roots and what may be done below them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

# Windows lacks these flags. It cannot open files relative to a directory either, so file tools fail there.
_OPEN_DIRECTORY = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC")
)


def resolve_links(path: str | Path) -> Path:
    """Return the path with symbolic links resolved; broken links stay unresolved.

    A broken link stays in it and fails when the path is opened.
    """
    # Not Path.resolve(): that raises on a link cycle.
    try:
        return Path(os.path.realpath(path))
    except (RecursionError, OSError):  # a chain too long for Python 3.11, or a link that was just removed
        return Path(os.path.abspath(path))  # noqa: PTH100 - pathlib keeps `..`


def find_root(path: Path, roots: Sequence[Path]) -> Path | None:
    """Return the first root directory that contains the path."""
    return next((root for root in roots if path.is_relative_to(root)), None)


@contextmanager
def open_parent(target: Path, roots: Sequence[Path], *, create: bool = False) -> Iterator[int]:
    """Open the parent directory of a file as a descriptor; with `create`, create missing directories."""
    root = find_root(target, roots)
    if root is None or target == root:
        raise IsADirectoryError(errno.EISDIR, "the path is a root directory", str(target))
    with open_directory(target.parent, root, create=create) as parent:
        yield parent


@contextmanager
def open_directory(directory: Path, root: Path, *, create: bool = False) -> Iterator[int]:
    """Open a directory below the root without following symbolic links."""
    descriptor = os.open(root, _OPEN_DIRECTORY)
    try:
        _require_inside(descriptor, root)
        for name in directory.relative_to(root).parts:
            child = _open_child(descriptor, name, create=create)
            os.close(descriptor)
            descriptor = child
            _require_inside(descriptor, root)
        yield descriptor
    finally:
        os.close(descriptor)


def descriptor_path(descriptor: int) -> Path | None:
    """Return the current path of an open file descriptor; None on systems other than Linux."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115 - a magic link, not a file
    except OSError:
        return None


def entry_status(name: str, parent: int) -> os.stat_result:
    """Return the status of an entry of an open directory without following symbolic links."""
    return os.stat(name, dir_fd=parent, follow_symlinks=False)


def _open_child(parent: int, name: str, *, create: bool) -> int:
    try:
        return os.open(name, _OPEN_DIRECTORY, dir_fd=parent)
    except NotADirectoryError:
        if stat.S_ISLNK(entry_status(name, parent).st_mode):
            raise OSError(errno.ELOOP, "a symbolic link appeared in the path") from None
        raise
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
    return os.open(name, _OPEN_DIRECTORY, dir_fd=parent)


def _require_inside(descriptor: int, root: Path) -> None:
    """Raise OSError if an opened directory was moved out of the root while it was being opened."""
    path = descriptor_path(descriptor)
    if path is not None and not path.is_relative_to(root):
        raise OSError(errno.ELOOP, "moved out of the workspace")
