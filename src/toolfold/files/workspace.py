"""Which files the file tools may touch, and how they are opened so that nothing escapes.

A path from a model is resolved, symbolic links included, and must lie below a root. It is then opened
again step by step from that root, each folder as a descriptor and never through a link: whatever is
swapped between the check and the use ends in a refusal, not outside. Every refusal is a CallError.

Knows nothing of tools, text or search. Guards the file tools only: what a command run in a shell may
touch is for the environments and the approval to say. POSIX only (it needs `dir_fd`).
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NoReturn

from toolfold.errors import CallError, did_you_mean, nearest, shorten
from toolfold.files.descent import opened_folder, opened_parent, path_of, real, root_of, status
from toolfold.files.protected import refuse_protected
from toolfold.files.walk import Walk

MAX_PATH_BYTES = 4_096
MAX_NAMES_COMPARED = 5_000
MAX_ENTRIES_SHOWN = 20

# O_NONBLOCK: a FIFO that takes a file's place between check and open must not make us wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Written:
    """What a write did: the real file, and whether it is new."""

    path: Path
    created: bool


class Workspace:
    """One root that relative paths start from, and further folders that may be named by absolute paths."""

    def __init__(self, root: Path, extra_roots: Sequence[Path] = (), *, private: Sequence[Path] = ()) -> None:
        self.root = real(root)
        self.roots = (self.root, *map(real, extra_roots))
        self._private = tuple(map(real, private))

    def resolve(self, path: str | Path, also: Sequence[Path] = ()) -> Path:
        """The real path behind what a model wrote, if it lies inside; it need not exist."""
        roots = self._roots(also)
        named = self._absolute(path)
        target = real(named)
        if root_of(target, roots):
            self._refuse_private(target, also)
            return target
        if root_of(Path(os.path.normpath(named)), roots):
            raise CallError(
                f"{_quoted(path)} leads outside the workspace through a symbolic link. Links are followed"
                f" only as long as they stay inside. {_reach(roots)}"
            )
        raise CallError(f"{_quoted(path)} is outside the workspace. {_reach(roots)}")

    def relative(self, path: Path) -> str:
        """How to show a real path that this workspace returned: short, and usable in the next call."""
        inside = path.relative_to(self.root) if path.is_relative_to(self.root) else path
        return os.fsencode(inside).decode("utf-8", "replace")

    def open_for_reading(self, path: str | Path, also: Sequence[Path] = ()) -> BinaryIO:
        """A regular file inside the roots, or inside the folders `also` readable in this session."""
        roots = self._roots(also)
        target = self.resolve(path, also)
        with self._explained(target, roots), opened_parent(target, roots) as parent:
            self._refuse_private(path_of(parent) or target.parent, also)
            self._require_file(status(target.name, parent), target, roots)
            descriptor = os.open(target.name, _READ, dir_fd=parent)
            try:
                self._require_file(os.fstat(descriptor), target, roots)
                return os.fdopen(descriptor, "rb")
            except BaseException:
                os.close(descriptor)
                raise

    def write_atomically(self, path: str | Path, data: bytes, *, make_parents: bool = True) -> Written:
        """Replace or create a file as a whole: whoever reads it sees the old bytes or the new ones."""
        target = self.resolve(path)
        refuse_protected(target, named=self._absolute(path))
        if os.fspath(path).endswith("/"):
            raise CallError(f"{_quoted(path)} names a folder. Add the name of the file to write.")
        with (
            self._explained(target, self.roots),
            opened_parent(target, self.roots, create=make_parents) as parent,
        ):
            place = path_of(parent) or target.parent
            self._refuse_private(place)
            refuse_protected(place / target.name)
            existing = self._replaceable(target, parent)
            _replace(parent, target.name, data, existing)
        return Written(target, created=existing is None)

    def files(
        self,
        start: str | Path = ".",
        also: Sequence[Path] = (),
        skip: Set[str] = frozenset(),
        stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[Path]:
        """Every regular file from `start` down, without the folders named in `skip`, until `stop` says so."""
        roots = self._roots(also)
        place = self.resolve(start, also)
        self._require_existing(place, roots)
        return Walk(roots, skip, lambda path: self._is_private(path, also), stop).files(place)

    def _roots(self, also: Sequence[Path]) -> tuple[Path, ...]:
        return (*self.roots, *map(real, also))

    def _is_private(self, path: Path, also: Sequence[Path] = ()) -> bool:
        """Whether a real path is the runtime's own, and not lent to this session."""
        return bool(root_of(path, self._private)) and not root_of(path, [real(each) for each in also])

    def _refuse_private(self, path: Path, also: Sequence[Path] = ()) -> None:
        if self._is_private(path, also):
            raise CallError(
                f"{_quoted(path)} holds the runtime's own settings and state, which the file tools cannot"
                " read or change. Use another path."
            )

    def _absolute(self, path: str | Path) -> str:
        text = os.fspath(path)
        if not text.strip():
            raise CallError("The path is empty. Name a file such as 'notes/todo.md'; '.' is the workspace.")
        if "\0" in text:
            raise CallError(f"{_quoted(text)} contains a NUL character, which no path can. Leave it out.")
        try:
            size = len(os.fsencode(text))
        except UnicodeEncodeError:
            raise CallError(f"{_quoted(text)} is not valid Unicode. Use plain characters.") from None
        if size > MAX_PATH_BYTES:
            raise CallError(f"The path has {size} bytes, more than {MAX_PATH_BYTES}. Give a shorter one.")
        return os.path.join(self.root, os.path.expanduser(text))  # noqa: PTH111, PTH118 - pathlib folds `x/`

    def _replaceable(self, target: Path, parent: int) -> os.stat_result | None:
        try:
            existing = status(target.name, parent)
        except FileNotFoundError:
            return None
        self._require_file(existing, target, self.roots)
        effective = os.access in os.supports_effective_ids
        # Replacing needs only the folder's permission; a file marked read-only was marked for a reason.
        if not os.access(target.name, os.W_OK, dir_fd=parent, effective_ids=effective):
            raise CallError(f"{self._named(target)} is read-only. It was not changed; write another file.")
        return existing

    def _require_file(self, found: os.stat_result, target: Path, roots: Sequence[Path]) -> None:
        if stat.S_ISREG(found.st_mode):
            return
        if stat.S_ISDIR(found.st_mode):
            raise CallError(self._about_folder(target, roots))
        if stat.S_ISLNK(found.st_mode):
            raise OSError(errno.ELOOP, "a link where none was")
        raise CallError(
            f"{self._named(target)} is not a regular file but a {_kind(found.st_mode)}."
            " Only regular files can be read or written."
        )

    def _require_existing(self, target: Path, roots: Sequence[Path]) -> None:
        with self._explained(target, roots):
            target.lstat()

    @contextmanager
    def _explained(self, target: Path, roots: Sequence[Path]) -> Iterator[None]:
        """What the system refuses, said to a model."""
        try:
            yield
        except FileNotFoundError:
            raise CallError(self._about_missing(target, roots)) from None
        except IsADirectoryError:
            raise CallError(self._about_folder(target, roots)) from None
        except NotADirectoryError:
            raise CallError(
                f"{self._named(target)} cannot be reached: a part of the path is a file, not a folder."
            ) from None
        except OSError as error:
            self._refuse_other(error, target)

    def _refuse_other(self, error: OSError, target: Path) -> NoReturn:
        if error.errno == errno.ELOOP:
            raise CallError(
                f"{self._named(target)} was not opened: a symbolic link in its path leads back to itself or"
                " was changed just now. Name the file by its real path."
            ) from None
        raise CallError(
            f"{self._named(target)} cannot be used: {error.strerror or error}. Nothing was changed."
        ) from error

    def _about_missing(self, target: Path, roots: Sequence[Path]) -> str:
        root = root_of(target, roots) or target
        missing = target
        while missing != root and not os.path.lexists(missing.parent):
            missing = missing.parent
        if missing == root:
            return f"The workspace folder {_quoted(root)} does not exist."
        near = nearest(missing.name, _names(missing.parent, roots, MAX_NAMES_COMPARED))
        hint = did_you_mean([self.relative(missing.parent / name) for name in near])
        return f"{self._named(missing)} does not exist.{hint or ' Check the path.'}"

    def _about_folder(self, target: Path, roots: Sequence[Path]) -> str:
        names = sorted(_names(target, roots, MAX_NAMES_COMPARED))
        some = ", ".join(shorten(name, 80) for name in names[:MAX_ENTRIES_SHOWN]) or "nothing"
        rest = ", …" if len(names) > MAX_ENTRIES_SHOWN else ""
        return f"{self._named(target)} is a folder, not a file. It holds: {some}{rest}."

    def _named(self, target: Path) -> str:
        return _quoted(self.relative(target))


def _quoted(path: str | Path) -> str:
    return repr(shorten(os.fspath(path)))


def _reach(roots: Sequence[Path]) -> str:
    return f"Use a path below {' or '.join(dict.fromkeys(str(root) for root in roots[:4]))}."


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")


def _replace(parent: int, name: str, data: bytes, existing: os.stat_result | None) -> None:
    temporary = f".{secrets.token_hex(8)}.tmp"
    try:
        _write_new(parent, temporary, data, existing)
        os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=parent)
        raise
    with suppress(OSError):  # the file is in place; some file systems cannot sync a folder
        os.fsync(parent)


def _write_new(parent: int, name: str, data: bytes, like: os.stat_result | None) -> None:
    descriptor = os.open(name, _CREATE, 0o600 if like else 0o666, dir_fd=parent)
    with os.fdopen(descriptor, "wb") as file:
        if like:
            _dress(descriptor, like)
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _dress(descriptor: int, like: os.stat_result) -> None:
    """Owner and mode of the file to be replaced, but no set-user-id for text a model wrote."""
    with suppress(PermissionError):
        os.fchown(descriptor, like.st_uid, like.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(like.st_mode) & 0o777)


def _names(folder: Path, roots: Sequence[Path], most: int) -> list[str]:
    root = root_of(folder, roots) or folder
    with suppress(OSError), opened_folder(folder, root) as descriptor, os.scandir(descriptor) as entries:
        return [os.fsencode(entry.name).decode("utf-8", "replace") for entry in islice(entries, most)]
    return []
