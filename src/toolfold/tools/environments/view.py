"""Describe the file system that is visible in a sandbox, as mount options for bubblewrap.

Starts from an empty root: nothing of this machine is visible unless it was added. A symbolic link on the way
to an added path is recreated as a link, so that it leads only to what is visible as well.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

MAX_LINKS = 40
"""Maximum number of symbolic links in one path, as in Linux."""


class MountKind(Enum):
    """Kind of a sandbox mount, with bubblewrap's option for it."""

    READ_ONLY = "--ro-bind"
    WRITABLE = "--bind"
    EMPTY = "--tmpfs"
    """An empty directory in memory, private to the sandbox."""
    COVER = ""
    """Hide a path inside a visible directory behind an empty directory or file."""


@dataclass(frozen=True, slots=True)
class ViewMount:
    """One sandbox mount: its kind, and the file or directory of this machine that it shows."""

    kind: MountKind
    source: Path | None = None

    @property
    def shows_files(self) -> bool:
        return self.kind in (MountKind.READ_ONLY, MountKind.WRITABLE)


@dataclass(slots=True)
class FileView:
    """View of the file system in a sandbox: mounts and symbolic links by their path inside the sandbox.

    A path that is added twice keeps its last definition.
    """

    empty_file: Path
    """An empty file, mounted over files that are hidden."""
    empty_directory: Path
    """An empty directory, mounted over directories that are hidden."""
    scratch: Path = Path("/tmp")  # noqa: S108  (inside the sandbox)
    """A directory that commands can write and that outlives them, so no path in it can be trusted."""
    mounts: dict[Path, ViewMount] = field(default_factory=dict)
    links: dict[Path, str] = field(default_factory=dict)

    def show(self, path: Path, *, writable: bool = False, follow: bool = True) -> None:
        """Show a file or directory of this machine at the same path in the sandbox.

        If its path contains a symbolic link and `follow` is False, show only the link.
        """
        links, real = trace_links(path)
        if self.scratch in (link.parent for link in links):  # links cannot be created there
            links, shown = {}, path
        else:
            shown = real
        self.links |= links
        if (follow or not links) and os.path.lexists(real):
            self.mounts[shown] = ViewMount(MountKind.WRITABLE if writable else MountKind.READ_ONLY, real)

    def add_empty(self, path: Path) -> None:
        """Add an empty directory to the sandbox, writable until the command ends."""
        links, real = trace_links(path)
        self.links |= links
        self.mounts[real] = ViewMount(MountKind.EMPTY)

    def bind(self, source: Path, path: Path, *, writable: bool = False) -> None:
        """Show a file or directory of this machine at a different path in the sandbox."""
        self.mounts[path] = ViewMount(MountKind.WRITABLE if writable else MountKind.READ_ONLY, source)

    def cover(self, path: Path) -> None:
        """Hide a file or directory in the sandbox, even if its parent directory is visible."""
        self.mounts[path] = ViewMount(MountKind.COVER)

    def is_shown(self, path: Path) -> bool:
        """Return True if files of this machine are visible at exactly this path of the sandbox."""
        nearest = self._nearest(path, itself=True)
        return nearest is not None and nearest.shows_files

    def arguments(self) -> list[str]:
        """Return the options for bubblewrap, outer paths first, because later mounts cover earlier mounts."""
        self._secure_scratch()
        entries: list[tuple[int, list[str]]] = [
            *((len(path.parts), words) for path in self.mounts if (words := self._mount_arguments(path))),
            *((len(path.parts), words) for path in self.links if (words := self._link_arguments(path))),
        ]
        return [word for _, words in sorted(entries, key=lambda entry: entry[0]) for word in words]

    def _secure_scratch(self) -> None:
        """Protect mounts below the scratch directory from symbolic links that a command may have left there.

        A command may leave a link there, which bubblewrap would follow while it creates the path to a mount.
        The entry itself is safe: it is a mount in every command, which nothing inside can replace.
        """
        depth = len(self.scratch.parts)
        for path in (*self.mounts, *self.links):
            if path.is_relative_to(self.scratch) and len(path.parts) > depth + 1:
                self.mounts.setdefault(Path(*path.parts[: depth + 1]), ViewMount(MountKind.EMPTY))

    def scratch_entries(self) -> set[str]:
        """Return the names in the sandbox's scratch directory at or below which there is a mount."""
        depth = len(self.scratch.parts)
        inside = (path for path in self.mounts if path.is_relative_to(self.scratch) and path != self.scratch)
        return {path.parts[depth] for path in inside}

    def _nearest(self, path: Path, *, itself: bool = False) -> ViewMount | None:
        """Return the innermost mount of the sandbox that contains a path."""
        for each in (path, *path.parents) if itself else path.parents:
            if each in self.mounts and (
                self.mounts[each].kind is not MountKind.COVER or self._is_needed(each)
            ):
                return self.mounts[each]
        return None

    def _is_needed(self, path: Path) -> bool:
        """Return True if a mount changes which files are visible or writable in the sandbox."""
        mount, around = self.mounts[path], self._nearest(path)
        visible = around is not None and around.shows_files
        if mount.kind is MountKind.COVER:
            return visible and os.path.lexists(path)
        if not mount.shows_files or not visible or around is None or mount.source != path:
            return True
        return mount.kind is MountKind.WRITABLE and around.kind is MountKind.READ_ONLY

    def _mount_arguments(self, path: Path) -> list[str]:
        mount = self.mounts[path]
        if not self._is_needed(path):
            return []
        if mount.kind is MountKind.COVER:
            return self._cover_arguments(path)
        if mount.kind is MountKind.EMPTY:
            return ["--tmpfs", str(path)]
        return [mount.kind.value, str(mount.source), str(path)]

    def _cover_arguments(self, path: Path) -> list[str]:
        if not path.is_dir():
            return ["--ro-bind", str(self.empty_file), str(path)]
        if any(path in each.parents for each in (*self.mounts, *self.links)):
            return ["--tmpfs", str(path)]  # other mounts or links may go into it
        return ["--ro-bind", str(self.empty_directory), str(path)]

    def _link_arguments(self, path: Path) -> list[str]:
        around = self._nearest(path)
        if path in self.mounts or (around is not None and around.shows_files):
            return []  # already visible
        return ["--symlink", self.links[path], str(path)]


def trace_links(path: Path) -> tuple[dict[Path, str], Path]:
    """Return each symbolic link on the way to a path with its target, and the final path.

    The parent directories of these links are real directories.
    """
    links: dict[Path, str] = {}
    done, left = Path("/"), list(reversed(path.parts[1:]))
    while left:
        part = left.pop()
        if part == "..":
            done = done.parent
            continue
        target = _read_link(done / part)
        if target is None or len(links) >= MAX_LINKS:
            done /= part
            continue
        links[done / part] = target
        if target.startswith("/"):
            done = Path("/")
        left += [each for each in reversed(Path(target).parts) if each != "/"]
    return links, done


def _read_link(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None


def find_private(directory: Path, *, max_depth: int) -> Iterator[Path]:
    """Yield files below a system directory that the current user can read but other users cannot."""
    for path, status in _scan(directory):
        is_directory = stat.S_ISDIR(status.st_mode)
        public = stat.S_IXOTH | stat.S_IROTH if is_directory else stat.S_IROTH
        if status.st_mode & public != public:
            if _is_permitted(status, os.R_OK) and (is_directory or status.st_size):
                yield path
        elif is_directory and max_depth > 1:
            yield from find_private(path, max_depth=max_depth - 1)


def has_writable_file(path: Path, *, max_depth: int = 3) -> bool:
    """Return True if the current user may write to this file, or to a file below this directory."""
    try:
        status = path.lstat()
    except OSError:
        return False
    if stat.S_ISDIR(status.st_mode):
        return max_depth > 0 and any(
            has_writable_file(each, max_depth=max_depth - 1) for each, _ in _scan(path)
        )
    return stat.S_ISREG(status.st_mode) and _is_permitted(status, os.W_OK)


def _scan(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the entries of a directory, except symbolic links and entries deleted during the scan."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if not entry.is_symlink():
                    yield Path(entry.path), entry.stat(follow_symlinks=False)


def _is_permitted(status: os.stat_result, wanted: int) -> bool:
    """Return True if a file's permission bits give the current user the requested access."""
    if not hasattr(os, "geteuid"):  # Windows has no such bits
        return True
    if status.st_uid == os.geteuid():
        return bool(status.st_mode >> 6 & wanted)
    if status.st_gid in {os.getegid(), *os.getgroups()}:
        return bool(status.st_mode >> 3 & wanted)
    return bool(status.st_mode & wanted)
