"""Paths that the file tools never write: settings and state of Toolfold, and git directories.

Decides by name and, for git, by content: a directory is a git directory by what it contains, whatever its
name.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from toolfold.core.errors import CallError, shorten
from toolfold.tools.files.descent import resolve_links

_GIT_REASON = "git runs code that is stored there"
_PROTECTED: Mapping[str, str] = {
    ".git": _GIT_REASON,
    ".toolfold": "it is Toolfold's own state",
    "toolfold.yaml": "it contains Toolfold's own settings",
}
_GIT_SIGNATURES = (("objects", "refs"), ("config", "hooks"), ("commondir",))
_GIT_FILE_PREFIX = b"gitdir:"
_MAX_GIT_FILE_BYTES = 5_000
# O_NONBLOCK: a FIFO instead of a `.git` file must not block.
_OPEN_READ = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC"))


def require_unprotected(target: Path, *, named: str | Path = "") -> None:
    """Raise CallError if the real path `target` or the requested path `named` must not be written."""
    for part in (*Path(named).parts, *target.parts):
        reason = _PROTECTED.get(_fold_name(part))
        if reason:
            _raise_protected(part, reason)
    _require_outside_git(target)


def _require_outside_git(target: Path) -> None:
    """Raise CallError if a file is in a git directory, or if writing it would create one."""
    for directory, entry in zip(target.parents, (target, *target.parents), strict=False):
        if _looks_like_git(directory, with_entry=_fold_name(entry.name)):
            _raise_protected(directory.name, _GIT_REASON)
        for git_directory in _linked_git_directories(directory):
            if target.is_relative_to(git_directory):
                _raise_protected(git_directory.name, _GIT_REASON)


def _raise_protected(name: str, reason: str) -> NoReturn:
    raise CallError(f"{shorten(name)!r} is protected from the file tools: {reason}. Nothing was written.")


def _fold_name(name: str) -> str:
    """Normalize a file name, because some file systems ignore case, width or invisible characters."""
    visible = "".join(each for each in name if unicodedata.category(each) != "Cf")
    return unicodedata.normalize("NFKC", visible).casefold().rstrip(". ")


def _looks_like_git(directory: Path, *, with_entry: str) -> bool:
    def has(name: str) -> bool:
        return name.casefold() == with_entry or os.path.lexists(directory / name)

    return has("HEAD") and any(all(map(has, look)) for look in _GIT_SIGNATURES)


def _linked_git_directories(directory: Path) -> Iterator[Path]:
    """Yield the git directories referenced by a `.git` file or symbolic link in this directory."""
    marker = directory / ".git"
    try:
        mode = os.lstat(marker).st_mode
        if stat.S_ISLNK(mode):
            yield resolve_links(marker)
        if not stat.S_ISDIR(mode):
            text = _read_beginning(marker)
            if text.startswith(_GIT_FILE_PREFIX):
                yield resolve_links(directory / os.fsdecode(text.removeprefix(_GIT_FILE_PREFIX).strip()))
    except (OSError, ValueError):  # its content is not a valid path
        return


def _read_beginning(path: Path) -> bytes:
    descriptor = os.open(path, _OPEN_READ)
    try:
        return os.read(descriptor, _MAX_GIT_FILE_BYTES)
    finally:
        os.close(descriptor)
