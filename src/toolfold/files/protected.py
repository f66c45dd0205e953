"""What the file tools never write, wherever it lies: what steers the runtime, and what git runs.

Goes by names, and for git also by looks: a folder is a git folder by what is in it, whatever it is called.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from toolfold.errors import CallError, shorten
from toolfold.files.descent import real

_GIT = "git runs code that is kept there"
_PROTECTED: Mapping[str, str] = {
    ".git": _GIT,
    ".toolfold": "it is the runtime's own state",
    "toolfold.yaml": "it holds the runtime's own settings",
}
_GIT_LOOKS = (("objects", "refs"), ("config", "hooks"), ("commondir",))
_GIT_FILE = b"gitdir:"
_GIT_FILE_BYTES = 5_000
# O_NONBLOCK: a FIFO in the place of a `.git` file must not make us wait for a writer.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def refuse_protected(target: Path, *, named: str | Path = "") -> None:
    """Refuse to write to a real path, or to one named so, what is protected."""
    for part in (*Path(named).parts, *target.parts):
        reason = _PROTECTED.get(_folded(part))
        if reason:
            _refuse(part, reason)
    _refuse_git_folders(target)


def _refuse_git_folders(target: Path) -> None:
    """Neither into what is a git folder, nor what would make one."""
    for folder, entry in zip(target.parents, (target, *target.parents), strict=False):
        if _looks_like_git(folder, with_entry=_folded(entry.name)):
            _refuse(folder.name, _GIT)
        for place in _git_folders_named_in(folder):
            if target.is_relative_to(place):
                _refuse(place.name, _GIT)


def _refuse(name: str, reason: str) -> NoReturn:
    raise CallError(f"{shorten(name)!r} is protected from the file tools: {reason}. Nothing was written.")


def _folded(name: str) -> str:
    """The name as a file system that ignores case, width and invisible characters would compare it."""
    visible = "".join(each for each in name if unicodedata.category(each) != "Cf")
    return unicodedata.normalize("NFKC", visible).casefold().rstrip(". ")


def _looks_like_git(folder: Path, *, with_entry: str) -> bool:
    def has(name: str) -> bool:
        return name.casefold() == with_entry or os.path.lexists(folder / name)

    return has("HEAD") and any(all(map(has, look)) for look in _GIT_LOOKS)


def _git_folders_named_in(folder: Path) -> Iterator[Path]:
    """Where a `.git` that is no folder, but a file or a link, says that git keeps its things."""
    marker = folder / ".git"
    try:
        mode = os.lstat(marker).st_mode
        if stat.S_ISLNK(mode):
            yield real(marker)
        if not stat.S_ISDIR(mode):
            text = _beginning(marker)
            if text.startswith(_GIT_FILE):
                yield real(folder / os.fsdecode(text.removeprefix(_GIT_FILE).strip()))
    except (OSError, ValueError):  # it names nothing that could be a path
        return


def _beginning(path: Path) -> bytes:
    descriptor = os.open(path, _READ)
    try:
        return os.read(descriptor, _GIT_FILE_BYTES)
    finally:
        os.close(descriptor)
