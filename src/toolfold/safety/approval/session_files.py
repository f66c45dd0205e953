"""Remember which files tools and commands have changed, so that running them later can be judged.

All sessions of a runtime use the same files, so they share one memory: a file that a sub-agent wrote is
judged when its parent runs it. On this machine, every file that changed after the memory's start counts,
whoever changed it, and its content is read when a command would run it. In a container or on another machine,
only what the judged commands and calls show is known.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from shellverdict.execution_site import ExecutionSite
from shellverdict.shell.earlier_files import EarlierFiles, FileChanges
from shellverdict.shell.runs import TextStream
from shellverdict.shell.words import MAX_TEXT_CHARS, Taint, Word

__all__ = ["SessionFiles"]

MAX_REMEMBERED = 5_000
MAX_LISTED = 3_000  # entries of directories that are looked at for one command
MAX_DEPTH = 6
CLOCK_STEP_S = 0.02  # file systems use a coarser clock
# Filled by package managers, whose commands are judged themselves.
_INSTALLED = frozenset({"node_modules", "site-packages", "dist-packages", ".tox", ".nox", "__pycache__"})
_UNKNOWN = TextStream(None, frozenset({Taint.UNREAD}))


class SessionFiles:
    """Files that were changed while a runtime was in use. Thread-safe."""

    def __init__(self, since: float | None = None) -> None:
        """Create a memory of the changes since a moment, by default since now."""
        self._lock = threading.Lock()
        self._since = time.time() - CLOCK_STEP_S if since is None else since
        self._here = _Remembered()
        self._sites: dict[str, _Remembered] = {}

    def include_changes_since(self, moment: float) -> None:
        """Let files count as changed that changed after `moment`, such as the start of a resumed session."""
        self._since = min(self._since, moment)

    def seen_from(self, site: ExecutionSite | None = None) -> EarlierFiles:
        """Return the changed files as a command sees them that runs at a site, or on this machine."""
        return _View(self, site)

    def record(self, changes: FileChanges, site: ExecutionSite | None = None) -> None:
        """Record the changes of an approved command, and the files that an approved call writes."""
        if not changes:
            return
        with self._lock:
            self._remembered(site).add(changes)

    def _remembered(self, site: ExecutionSite | None) -> _Remembered:
        if site is None or not site.has_own_files:
            return self._here
        return self._sites.setdefault(site.name, _Remembered())


class _Remembered:
    """What judged commands and calls have changed on one machine, limited in number."""

    def __init__(self) -> None:
        self.texts: OrderedDict[str, TextStream] = OrderedDict()
        self.copies: dict[str, Word] = {}
        self.symlinks: dict[str, Word] = {}
        self.directories: tuple[str, ...] = ()

    def add(self, changes: FileChanges) -> None:
        for path, stream in changes.texts.items():
            self.texts[path] = stream
            self.texts.move_to_end(path)
        self.copies = _merge(self.copies, changes.program_copies)
        self.symlinks = _merge(self.symlinks, changes.symlinks)
        self.directories = tuple(dict.fromkeys((*self.directories, *changes.downloaded_directories)))[-100:]
        while len(self.texts) > MAX_REMEMBERED:
            self.texts.popitem(last=False)


def _merge(old: Mapping[str, Word], new: Mapping[str, Word]) -> dict[str, Word]:
    return dict(list({**old, **new}.items())[-MAX_REMEMBERED:])


class _View:
    """The changed files as one execution site sees them."""

    def __init__(self, files: SessionFiles, site: ExecutionSite | None) -> None:
        self._files, self._site = files, site

    @property
    def changes(self) -> FileChanges:
        with self._files._lock:
            known = self._files._remembered(self._site)
            return FileChanges({}, known.copies, known.symlinks, known.directories)

    def find(self, path: str) -> TextStream | None:
        with self._files._lock:
            remembered = self._files._remembered(self._site).texts.get(path)
        here = self._path_here(path)
        if here is None:
            return remembered
        if remembered is None and here != path:  # shared with this machine, whose tools may have written it
            with self._files._lock:
                remembered = self._files._here.texts.get(here)
        if remembered is not None and remembered.taints & {Taint.NETWORK, Taint.DECODED}:
            return remembered
        try:
            found = Path(here).stat()
            changed = max(found.st_ctime, Path(here).lstat().st_ctime)
        except (OSError, ValueError):
            return remembered  # it may be written before the command runs
        if not stat.S_ISREG(found.st_mode):
            return remembered
        if remembered is None and (changed < self._files._since or _is_installed(here)):
            return None
        text = _read_text(here, found.st_size)
        if text is None:  # a program that was built is binary too; only known writes are suspicious
            return _UNKNOWN if remembered is not None else None
        return TextStream(Word(text))

    def list_below(self, directory: str) -> Iterator[str]:
        with self._files._lock:
            known = list(self._files._remembered(self._site).texts)
        below = directory.rstrip("/") + "/"
        yield from (path for path in known if path.startswith(below))
        start = self._path_here(directory)
        if start is None:
            return
        for path in _walk(start, self._files._since):
            yield below + path

    def _path_here(self, path: str) -> str | None:
        """Return the path of a file on this machine; None if the file is elsewhere."""
        if self._site is None or not self._site.has_own_files:
            return path if path.startswith("/") else None
        for here, there in self._site.shared_directories or ():
            if path == there or path.startswith(there.rstrip("/") + "/"):
                return here.rstrip("/") + path[len(there.rstrip("/")) :]
        return None


def _is_installed(path: str) -> bool:
    return not _INSTALLED.isdisjoint(path.split("/")[:-1])


def _read_text(path: str, size: int) -> str | None:
    """Return the text of a file; None if it is too long, binary or cannot be read."""
    if size > MAX_TEXT_CHARS:
        return None
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a plain path
            data = file.read(MAX_TEXT_CHARS + 1)
    except OSError:
        return None
    if len(data) > MAX_TEXT_CHARS or b"\0" in data:
        return None
    return data.decode(errors="replace")


def _walk(start: str, since: float) -> Iterable[str]:
    """Yield the files below a directory that changed since a moment, relative to it, up to a limit."""
    looked_at = 0
    pending = [("", 0)]
    while pending:
        folder, depth = pending.pop(0)
        try:
            entries = os.scandir(f"{start}/{folder}")
        except OSError:
            continue
        with entries:
            for entry in entries:
                looked_at += 1
                if looked_at > MAX_LISTED:
                    return
                relative = f"{folder}{entry.name}"
                try:
                    if entry.is_dir(follow_symlinks=False):
                        hidden = entry.name.startswith(".") or entry.name in (*_INSTALLED, "venv")
                        if depth < MAX_DEPTH and not hidden:
                            pending.append((f"{relative}/", depth + 1))
                    elif entry.stat(follow_symlinks=False).st_ctime >= since:
                        yield relative
                except OSError:
                    continue
