"""Real paths, and folders opened from a root step by step, each as a descriptor and never through a link.

Decides nothing: which roots there are, and what may be done below them, is the workspace's to say.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def real(path: str | Path) -> Path:
    """The path without links. One that leads nowhere stays in it, and the open that follows explains it."""
    # Not Path.resolve(): that raises on a link cycle.
    try:
        return Path(os.path.realpath(path))
    except (RecursionError, OSError):  # a chain that Python 3.11 cannot follow; a link that just went away
        return Path(os.path.abspath(path))  # noqa: PTH100 - pathlib keeps `..`


def root_of(path: Path, roots: Sequence[Path]) -> Path | None:
    """The first of the roots that the path lies below."""
    return next((root for root in roots if path.is_relative_to(root)), None)


@contextmanager
def opened_parent(target: Path, roots: Sequence[Path], *, create: bool = False) -> Iterator[int]:
    """The folder of a file, as a descriptor; it may be made on the way."""
    root = root_of(target, roots)
    if root is None or target == root:
        raise IsADirectoryError(errno.EISDIR, "a root itself", str(target))
    with opened_folder(target.parent, root, create=create) as parent:
        yield parent


@contextmanager
def opened_folder(folder: Path, root: Path, *, create: bool = False) -> Iterator[int]:
    """A descriptor reached from the root through real folders only."""
    descriptor = os.open(root, _FOLDER)
    try:
        _require_inside(descriptor, root)
        for name in folder.relative_to(root).parts:
            deeper = _step(descriptor, name, create=create)
            os.close(descriptor)
            descriptor = deeper
            _require_inside(descriptor, root)
        yield descriptor
    finally:
        os.close(descriptor)


def path_of(descriptor: int) -> Path | None:
    """Where an open descriptor lies now. Only Linux tells; elsewhere the walk alone has to do."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115 - a magic link, not a file
    except OSError:
        return None


def status(name: str, parent: int) -> os.stat_result:
    """What an entry of an open folder is, without following it."""
    return os.stat(name, dir_fd=parent, follow_symlinks=False)


def _step(parent: int, name: str, *, create: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except NotADirectoryError:
        if stat.S_ISLNK(status(name, parent).st_mode):
            raise OSError(errno.ELOOP, "a link where none was") from None
        raise
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
    return os.open(name, _FOLDER, dir_fd=parent)


def _require_inside(descriptor: int, root: Path) -> None:
    """Catches what a walk without links cannot: the root itself moved, or a folder moved out of it."""
    path = path_of(descriptor)
    if path is not None and not path.is_relative_to(root):
        raise OSError(errno.ELOOP, "moved out of the workspace")
