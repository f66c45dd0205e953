"""Decide which files the file tools may access, and open them safely.

A path from a model is resolved, symbolic links included, and must be below a root. It is then opened again
step by step from that root, each directory by descriptor and never through a link: a file swapped between
check and use causes an error, not an escape. All errors are CallError.

Knows nothing of tools, text or search. Guards the file tools only: environments and approval decide what a
shell command may touch. POSIX only (needs `dir_fd`).
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

from toolfold.core.errors import CallError, closest_names, did_you_mean, shorten
from toolfold.tools.files.descent import (
    descriptor_path,
    entry_status,
    find_root,
    open_directory,
    open_parent,
    resolve_links,
)
from toolfold.tools.files.protected import require_unprotected
from toolfold.tools.files.walk import FileWalk

MAX_PATH_BYTES = 4_096
MAX_NAMES_COMPARED = 5_000
MAX_ENTRIES_SHOWN = 20
MAX_NAME_ATTEMPTS = 1_000

# O_NONBLOCK: a FIFO that replaces the file between check and open must not block.
# Windows lacks these flags. It cannot open files relative to a directory either, so file tools fail there.
_NO_LINKS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC"))
_OPEN_READ = os.O_RDONLY | _NO_LINKS | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY"))
_OPEN_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINKS


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Result of writing a file: the real path, and whether the file was created."""

    path: Path
    created: bool


_UNSEARCHED = frozenset({"node_modules", "__pycache__", "venv"})


class Workspace:
    """Root directory for relative paths, and additional directories accessible by absolute paths."""

    def __init__(self, root: Path, extra_roots: Sequence[Path] = (), *, private: Sequence[Path] = ()) -> None:
        self.root = resolve_links(root)
        self.roots = (self.root, *map(resolve_links, extra_roots))
        self._private = tuple(map(resolve_links, private))

    def resolve(self, path: str | Path, extra: Sequence[Path] = ()) -> Path:
        """Return the real path of a file, which need not exist. Raises CallError if outside the workspace."""
        roots = self._all_roots(extra)
        named = self._make_absolute(path)
        target = resolve_links(named)
        if find_root(target, roots):
            self._require_not_private(target, extra)
            return target
        if find_root(Path(os.path.normpath(named)), roots):
            raise CallError(
                f"{_quote_path(path)} leads outside the workspace through a symbolic link. Links are followed"
                f" only if they stay inside the workspace. {_describe_roots(roots)}"
            )
        raise CallError(f"{_quote_path(path)} is outside the workspace. {_describe_roots(roots)}")

    def resolve_for_writing(self, path: str | Path) -> Path:
        """Return the real path of a file to write. Raises CallError if it may not be written."""
        target = self.resolve(path)
        require_unprotected(target, named=self._make_absolute(path))
        if os.fspath(path).endswith("/"):
            raise CallError(f"{_quote_path(path)} names a directory. Add the name of the file to write.")
        return target

    def relative(self, path: Path) -> str:
        """Return a workspace path in a short form for use in the model's next call."""
        inside = path.relative_to(self.root) if path.is_relative_to(self.root) else path
        return os.fsencode(inside).decode("utf-8", "replace")

    def open_for_reading(self, path: str | Path, extra: Sequence[Path] = ()) -> BinaryIO:
        """Open a regular file in the workspace or in the `extra` directories of this session."""
        roots = self._all_roots(extra)
        target = self.resolve(path, extra)
        with self._explain_errors(target, roots), open_parent(target, roots) as parent:
            self._require_not_private(descriptor_path(parent) or target.parent, extra)
            self._require_file(entry_status(target.name, parent), target, roots)
            descriptor = os.open(target.name, _OPEN_READ, dir_fd=parent)
            try:
                self._require_file(os.fstat(descriptor), target, roots)
                return os.fdopen(descriptor, "rb")
            except BaseException:
                os.close(descriptor)
                raise

    def write_atomically(self, path: str | Path, data: bytes, *, make_parents: bool = True) -> WriteResult:
        """Create or replace a file atomically: readers see either the old or the new content."""
        target = self.resolve_for_writing(path)
        with (
            self._explain_errors(target, self.roots),
            open_parent(target, self.roots, create=make_parents) as parent,
        ):
            directory = descriptor_path(parent) or target.parent
            self._require_not_private(directory)
            require_unprotected(directory / target.name)
            existing = self._require_replaceable(target, parent)
            _replace_file(parent, target.name, data, existing)
        return WriteResult(target, created=existing is None)

    def write_new_file(self, path: str, data: bytes) -> str:
        """Write a file under an unused name, adding a number if the name is used.

        Returns the path. Raises CallError if too many names are taken.
        """
        ending = Path(path).suffix
        stem = path.removesuffix(ending)
        for number in range(1, MAX_NAME_ATTEMPTS):
            free = path if number == 1 else f"{stem}-{number}{ending}"
            if not os.path.lexists(self.resolve(free)):
                self.write_atomically(free, data)
                return free
        raise CallError(f"{path!r} exists, and so do all numbered variants of its name. Give another name.")

    def files(
        self,
        start: str | Path = ".",
        extra: Sequence[Path] = (),
        skip: Set[str] = frozenset(),
        stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[Path]:
        """Yield every regular file below `start` until `stop` returns True.

        Directories named in `skip` are left out.
        """
        roots = self._all_roots(extra)
        real_start = self.resolve(start, extra)
        self._require_existing(real_start, roots)
        return FileWalk(roots, skip, lambda path: self._is_private(path, extra), stop).files(real_start)

    def _all_roots(self, extra: Sequence[Path]) -> tuple[Path, ...]:
        return (*self.roots, *map(resolve_links, extra))

    def _is_private(self, path: Path, extra: Sequence[Path] = ()) -> bool:
        """Return True if a path is private to Toolfold and not readable by this session."""
        return bool(find_root(path, self._private)) and not find_root(
            path, [resolve_links(each) for each in extra]
        )

    def _require_not_private(self, path: Path, extra: Sequence[Path] = ()) -> None:
        if self._is_private(path, extra):
            raise CallError(
                f"{_quote_path(path)} contains Toolfold's own settings and state, which the file tools cannot"
                " read or change. Use another path."
            )

    def _make_absolute(self, path: str | Path) -> str:
        text = os.fspath(path)
        if not text.strip():
            raise CallError("The path is empty. Name a file such as 'notes/todo.md'; '.' is the workspace.")
        if "\0" in text:
            raise CallError(
                f"{_quote_path(text)} contains a NUL character, which is not allowed in a path. Remove it."
            )
        try:
            size = len(os.fsencode(text))
        except UnicodeEncodeError:
            raise CallError(f"{_quote_path(text)} is not valid Unicode. Use plain characters.") from None
        if size > MAX_PATH_BYTES:
            raise CallError(f"The path has {size} bytes; the limit is {MAX_PATH_BYTES}. Give a shorter path.")
        return os.path.join(self.root, os.path.expanduser(text))  # noqa: PTH111, PTH118 - pathlib folds `x/`

    def _require_replaceable(self, target: Path, parent: int) -> os.stat_result | None:
        try:
            existing = entry_status(target.name, parent)
        except FileNotFoundError:
            return None
        self._require_file(existing, target, self.roots)
        effective = os.access in os.supports_effective_ids
        # Replacing needs only the directory's permission, but a read-only file should not change.
        if not os.access(target.name, os.W_OK, dir_fd=parent, effective_ids=effective):
            raise CallError(
                f"{self._quote_relative(target)} is read-only. It was not changed; write another file."
            )
        return existing

    def _require_file(self, status: os.stat_result, target: Path, roots: Sequence[Path]) -> None:
        if stat.S_ISREG(status.st_mode):
            return
        if stat.S_ISDIR(status.st_mode):
            raise CallError(self._describe_directory(target, roots))
        if stat.S_ISLNK(status.st_mode):
            raise OSError(errno.ELOOP, "a symbolic link appeared in the path")
        raise CallError(
            f"{self._quote_relative(target)} is not a regular file but a {_file_kind(status.st_mode)}."
            " Only regular files can be read or written."
        )

    def _require_existing(self, target: Path, roots: Sequence[Path]) -> None:
        with self._explain_errors(target, roots):
            target.lstat()

    @contextmanager
    def _explain_errors(self, target: Path, roots: Sequence[Path]) -> Iterator[None]:
        """Turn operating system errors into CallErrors that a model can act on."""
        try:
            yield
        except FileNotFoundError:
            raise CallError(self._describe_missing(target, roots)) from None
        except IsADirectoryError:
            raise CallError(self._describe_directory(target, roots)) from None
        except NotADirectoryError:
            raise CallError(
                f"{self._quote_relative(target)} cannot be reached: a part of the path is a file."
            ) from None
        except OSError as error:
            self._raise_os_error(error, target)

    def _raise_os_error(self, error: OSError, target: Path) -> NoReturn:
        if error.errno == errno.ELOOP:
            raise CallError(
                f"{self._quote_relative(target)} was not opened: a symbolic link in its path leads back to"
                " itself or was just changed. Use the real path of the file."
            ) from None
        raise CallError(
            f"{self._quote_relative(target)} cannot be used: {error.strerror or error}. Nothing was changed."
        ) from error

    def _describe_missing(self, target: Path, roots: Sequence[Path]) -> str:
        root = find_root(target, roots) or target
        missing = target
        while missing != root and not os.path.lexists(missing.parent):
            missing = missing.parent
        if missing == root:
            return f"The workspace directory {_quote_path(root)} does not exist."
        names = _list_names(missing.parent, roots, MAX_NAMES_COMPARED)
        similar = [missing.parent / name for name in closest_names(missing.name, names)]
        same = _find_same_name(root, target.name) if missing != target or not similar else []
        near = same or similar
        hint = did_you_mean([self.relative(path) for path in near])
        if not hint and names:
            some = ", ".join(shorten(name, 80) for name in sorted(names)[:MAX_ENTRIES_SHOWN])
            hint = f" {self._quote_relative(missing.parent)} contains: {some}."
        return f"{self._quote_relative(missing)} does not exist.{hint or ' Check the path.'}"

    def _describe_directory(self, target: Path, roots: Sequence[Path]) -> str:
        names = sorted(_list_names(target, roots, MAX_NAMES_COMPARED))
        some = ", ".join(shorten(name, 80) for name in names[:MAX_ENTRIES_SHOWN]) or "nothing"
        rest = ", …" if len(names) > MAX_ENTRIES_SHOWN else ""
        return f"{self._quote_relative(target)} is a directory, not a file. It contains: {some}{rest}."

    def _quote_relative(self, target: Path) -> str:
        return _quote_path(self.relative(target))


def _find_same_name(root: Path, name: str) -> list[Path]:
    """Return files of this name elsewhere below a directory, nearest to it first, from a limited search."""
    found: list[Path] = []
    left = MAX_NAMES_COMPARED
    for directory, subdirectories, files in os.walk(root):
        subdirectories[:] = sorted(
            each for each in subdirectories if each not in _UNSEARCHED and not each.startswith(".")
        )
        left -= len(files) + len(subdirectories)
        if name in files:
            found.append(Path(directory, name))
        if left < 0 or len(found) >= MAX_ENTRIES_SHOWN:
            break
    return sorted(found, key=lambda path: (len(path.parts), path))[:3]


def _quote_path(path: str | Path) -> str:
    return repr(shorten(os.fspath(path)))


def _describe_roots(roots: Sequence[Path]) -> str:
    return f"Use a path below {' or '.join(dict.fromkeys(str(root) for root in roots[:4]))}."


def _file_kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")


def _replace_file(parent: int, name: str, data: bytes, existing: os.stat_result | None) -> None:
    temporary = f".{secrets.token_hex(8)}.tmp"
    try:
        _write_new_file(parent, temporary, data, existing)
        os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=parent)
        raise
    with suppress(OSError):  # the file is in place; some file systems cannot sync a directory
        os.fsync(parent)


def _write_new_file(parent: int, name: str, data: bytes, template: os.stat_result | None) -> None:
    descriptor = os.open(name, _OPEN_CREATE, 0o600 if template else 0o666, dir_fd=parent)
    with os.fdopen(descriptor, "wb") as file:
        if template:
            _copy_ownership(descriptor, template)
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _copy_ownership(descriptor: int, template: os.stat_result) -> None:
    """Copy owner and mode of the replaced file, except set-user-ID, because a model wrote the content."""
    with suppress(PermissionError):
        os.fchown(descriptor, template.st_uid, template.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(template.st_mode) & 0o777)


def _list_names(directory: Path, roots: Sequence[Path], max_names: int) -> list[str]:
    root = find_root(directory, roots) or directory
    with suppress(OSError), open_directory(directory, root) as descriptor, os.scandir(descriptor) as entries:
        return [os.fsencode(entry.name).decode("utf-8", "replace") for entry in islice(entries, max_names)]
    return []
