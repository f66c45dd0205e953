"""The file system that a sandbox shows, as options for bubblewrap: an empty root, and what is mounted in it.

Nothing of this machine is visible unless it was added. A symbolic link on the way to an added path is made
again as a link, so that it leads only to what is visible as well.
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
"""How many symbolic links one path may pass, as in Linux."""


class MountKind(Enum):
    """What is mounted at a path."""

    READ_ONLY = "--ro-bind"
    WRITABLE = "--bind"
    EMPTY = "--tmpfs"
    """An empty folder of the sandbox's own, in memory."""
    COVER = ""
    """Hide what a visible folder has there: an empty folder or file."""


@dataclass(frozen=True, slots=True)
class ViewMount:
    """One mount: its kind, and which file or folder of this machine it shows."""

    kind: MountKind
    source: Path | None = None

    @property
    def shows_files(self) -> bool:
        return self.kind in (MountKind.READ_ONLY, MountKind.WRITABLE)


@dataclass(slots=True)
class FileView:
    """What is visible, by its path inside. A path that is added twice is as it was added last."""

    empty_file: Path
    """An empty file, which covers files."""
    empty_folder: Path
    """An empty folder, which covers folders."""
    scratch: Path = Path("/tmp")  # noqa: S108  (the one inside)
    """A folder that commands write and that outlives them: no path in it can be relied on."""
    mounts: dict[Path, ViewMount] = field(default_factory=dict)
    links: dict[Path, str] = field(default_factory=dict)

    def show(self, path: Path, *, writable: bool = False, follow: bool = True) -> None:
        """Show a file or folder of this machine.

        Where a link is on the way and `follow` is false, only the link is shown.
        """
        links, real = trace_links(path)
        if self.scratch in (link.parent for link in links):  # no link can be made there
            links, shown = {}, path
        else:
            shown = real
        self.links |= links
        if (follow or not links) and os.path.lexists(real):
            self.mounts[shown] = ViewMount(MountKind.WRITABLE if writable else MountKind.READ_ONLY, real)

    def add_empty(self, path: Path) -> None:
        """Put an empty folder there, which can be written until the command ends."""
        links, real = trace_links(path)
        self.links |= links
        self.mounts[real] = ViewMount(MountKind.EMPTY)

    def bind(self, source: Path, path: Path, *, writable: bool = False) -> None:
        """Show a file or folder at another path than its own."""
        self.mounts[path] = ViewMount(MountKind.WRITABLE if writable else MountKind.READ_ONLY, source)

    def cover(self, path: Path) -> None:
        """Hide a file or folder, in case a visible folder has it."""
        self.mounts[path] = ViewMount(MountKind.COVER)

    def is_shown(self, path: Path) -> bool:
        """Whether files of this machine are visible at this very path."""
        nearest = self._nearest(path, itself=True)
        return nearest is not None and nearest.shows_files

    def arguments(self) -> list[str]:
        """The options for bubblewrap, outer paths first: a later mount lies on top of an earlier one."""
        self._secure_scratch()
        entries: list[tuple[int, list[str]]] = [
            *((len(path.parts), words) for path in self.mounts if (words := self._mount_words(path))),
            *((len(path.parts), words) for path in self.links if (words := self._link_words(path))),
        ]
        return [word for _, words in sorted(entries, key=lambda entry: entry[0]) for word in words]

    def _secure_scratch(self) -> None:
        """Put memory below the scratch folder's own entries that lead to a mount.

        A command may leave a link there, and bubblewrap would follow it while it makes the way to a mount.
        The entry itself is safe: it is a mount in every command, which nobody in it can replace.
        """
        depth = len(self.scratch.parts)
        for path in (*self.mounts, *self.links):
            if path.is_relative_to(self.scratch) and len(path.parts) > depth + 1:
                self.mounts.setdefault(Path(*path.parts[: depth + 1]), ViewMount(MountKind.EMPTY))

    def scratch_entries(self) -> set[str]:
        """The names in the scratch folder at which something is mounted."""
        depth = len(self.scratch.parts)
        inside = (path for path in self.mounts if path.is_relative_to(self.scratch) and path != self.scratch)
        return {path.parts[depth] for path in inside}

    def _nearest(self, path: Path, *, itself: bool = False) -> ViewMount | None:
        """The mount that a path is in."""
        for each in (path, *path.parents) if itself else path.parents:
            if each in self.mounts and (
                self.mounts[each].kind is not MountKind.COVER or self._is_needed(each)
            ):
                return self.mounts[each]
        return None

    def _is_needed(self, path: Path) -> bool:
        """Whether a mount changes what is there without it."""
        mount, around = self.mounts[path], self._nearest(path)
        visible = around is not None and around.shows_files
        if mount.kind is MountKind.COVER:
            return visible and os.path.lexists(path)
        if not mount.shows_files or not visible or around is None or mount.source != path:
            return True
        return mount.kind is MountKind.WRITABLE and around.kind is MountKind.READ_ONLY

    def _mount_words(self, path: Path) -> list[str]:
        mount = self.mounts[path]
        if not self._is_needed(path):
            return []
        if mount.kind is MountKind.COVER:
            return self._cover_words(path)
        if mount.kind is MountKind.EMPTY:
            return ["--tmpfs", str(path)]
        return [mount.kind.value, str(mount.source), str(path)]

    def _cover_words(self, path: Path) -> list[str]:
        if not path.is_dir():
            return ["--ro-bind", str(self.empty_file), str(path)]
        if any(path in each.parents for each in (*self.mounts, *self.links)):
            return ["--tmpfs", str(path)]  # something may have to be put into it
        return ["--ro-bind", str(self.empty_folder), str(path)]

    def _link_words(self, path: Path) -> list[str]:
        around = self._nearest(path)
        if path in self.mounts or (around is not None and around.shows_files):
            return []  # it is there by itself
        return ["--symlink", self.links[path], str(path)]


def trace_links(path: Path) -> tuple[dict[Path, str], Path]:
    """Return each symbolic link on the way to a path, with its target, and the path they lead to.

    The folders above each of these links are real ones.
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


def find_private(folder: Path, *, max_depth: int) -> Iterator[Path]:
    """Yield what our user can read below a folder of the system by permissions that not every user has."""
    for path, found in _scan(folder):
        is_folder = stat.S_ISDIR(found.st_mode)
        public = stat.S_IXOTH | stat.S_IROTH if is_folder else stat.S_IROTH
        if found.st_mode & public != public:
            if _is_permitted(found, os.R_OK) and (is_folder or found.st_size):
                yield path
        elif is_folder and max_depth > 1:
            yield from find_private(path, max_depth=max_depth - 1)


def has_writable_file(path: Path, *, max_depth: int = 3) -> bool:
    """Whether our user may write to this file, or to one below this folder."""
    try:
        found = path.lstat()
    except OSError:
        return False
    if stat.S_ISDIR(found.st_mode):
        return max_depth > 0 and any(
            has_writable_file(each, max_depth=max_depth - 1) for each, _ in _scan(path)
        )
    return stat.S_ISREG(found.st_mode) and _is_permitted(found, os.W_OK)


def _scan(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield what is in a folder, except links and what vanishes meanwhile."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if not entry.is_symlink():
                    yield Path(entry.path), entry.stat(follow_symlinks=False)


def _is_permitted(found: os.stat_result, wanted: int) -> bool:
    """Whether the permission bits let our user do it. In a sandbox root has no other rights."""
    if found.st_uid == os.geteuid():
        return bool(found.st_mode >> 6 & wanted)
    if found.st_gid in {os.getegid(), *os.getgroups()}:
        return bool(found.st_mode >> 3 & wanted)
    return bool(found.st_mode & wanted)
