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
import unicodedata
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NoReturn

from toolfold.errors import CallError, did_you_mean, nearest, shown

MAX_PATH_BYTES = 4_096
MAX_NAMES_COMPARED = 5_000
MAX_ENTRIES_SHOWN = 20

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO that takes a file's place between check and open must not make us wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_PROTECTED: Mapping[str, str] = {
    ".git": "git runs code that is kept there",
    ".toolfold": "it is the runtime's own state",
    "toolfold.yaml": "it holds the runtime's own settings",
}


@dataclass(frozen=True, slots=True)
class Written:
    """What a write did: the real file, and whether it is new."""

    path: Path
    created: bool


class Workspace:
    """One root that relative paths start from, and further folders that may be named by absolute paths."""

    def __init__(self, root: Path, extra_roots: Sequence[Path] = (), *, private: Sequence[Path] = ()) -> None:
        self.root = _real(root)
        self.roots = (self.root, *map(_real, extra_roots))
        self._private = tuple(map(_real, private))

    def resolve(self, path: str | Path, also: Sequence[Path] = ()) -> Path:
        """The real path behind what a model wrote, if it lies inside; it need not exist."""
        roots = self._roots(also)
        named = self._absolute(path)
        real = _real(named)
        if _root_of(real, roots):
            self._refuse_private(real, also)
            return real
        if _root_of(Path(os.path.normpath(named)), roots):
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
        with self._explained(target, roots), _opened_parent(target, roots) as parent:
            self._refuse_private(_path_of(parent) or target.parent, also)
            self._require_file(_status(target.name, parent), target, roots)
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
        _refuse_protected(self._absolute(path), target)
        if os.fspath(path).endswith("/"):
            raise CallError(f"{_quoted(path)} names a folder. Add the name of the file to write.")
        with (
            self._explained(target, self.roots),
            _opened_parent(target, self.roots, create=make_parents) as parent,
        ):
            self._refuse_private(_path_of(parent) or target.parent)
            existing = self._replaceable(target, parent)
            _replace(parent, target.name, data, existing)
        return Written(target, created=existing is None)

    def files(
        self, start: str | Path = ".", also: Sequence[Path] = (), skip: Set[str] = frozenset()
    ) -> Iterator[Path]:
        """Every regular file from `start` down, in a fixed order, without the folders named in `skip`.

        A link that leads elsewhere inside the roots is walked after the rest, under its real name, once.
        """
        roots = self._roots(also)
        places = [self.resolve(start, also)]
        self._require_existing(places[0], roots)
        known, visited = set(places), set[Path]()
        for place in places:
            if not place.is_dir():
                yield from (place,) if place.is_file() else ()
                continue
            pending = [place]
            while pending:
                folder = pending.pop()
                if folder in visited:
                    continue
                visited.add(folder)
                found = _list(folder, roots)
                yield from (
                    path for path in found.files if path not in known and not self._is_private(path, also)
                )
                pending.extend(
                    each
                    for each in reversed(found.folders)
                    if each.name not in skip and not self._is_private(each, also)
                )
                for target in _elsewhere(found.links, roots, known, skip):
                    known.add(target)
                    if not self._is_private(target, also):
                        places.append(target)

    def _roots(self, also: Sequence[Path]) -> tuple[Path, ...]:
        return (*self.roots, *map(_real, also))

    def _is_private(self, path: Path, also: Sequence[Path] = ()) -> bool:
        """Whether a real path is the runtime's own, and not lent to this session."""
        return bool(_root_of(path, self._private)) and not _root_of(path, [_real(each) for each in also])

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
            status = _status(target.name, parent)
        except FileNotFoundError:
            return None
        self._require_file(status, target, self.roots)
        effective = os.access in os.supports_effective_ids
        # Replacing needs only the folder's permission; a file marked read-only was marked for a reason.
        if not os.access(target.name, os.W_OK, dir_fd=parent, effective_ids=effective):
            raise CallError(f"{self._named(target)} is read-only. It was not changed; write another file.")
        return status

    def _require_file(self, status: os.stat_result, target: Path, roots: Sequence[Path]) -> None:
        if stat.S_ISREG(status.st_mode):
            return
        if stat.S_ISDIR(status.st_mode):
            raise CallError(self._about_folder(target, roots))
        if stat.S_ISLNK(status.st_mode):
            raise OSError(errno.ELOOP, "a link where none was")
        raise CallError(
            f"{self._named(target)} is not a regular file but a {_kind(status.st_mode)}."
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
        root = _root_of(target, roots) or target
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
        some = ", ".join(shown(name, 80) for name in names[:MAX_ENTRIES_SHOWN]) or "nothing"
        rest = ", …" if len(names) > MAX_ENTRIES_SHOWN else ""
        return f"{self._named(target)} is a folder, not a file. It holds: {some}{rest}."

    def _named(self, target: Path) -> str:
        return _quoted(self.relative(target))


@dataclass(frozen=True, slots=True)
class _Listing:
    files: list[Path]
    folders: list[Path]
    links: list[Path]


def _real(path: str | Path) -> Path:
    # Not Path.resolve(): that raises on a link cycle, which the open below explains better.
    return Path(os.path.realpath(path))


def _root_of(path: Path, roots: Sequence[Path]) -> Path | None:
    return next((root for root in roots if path.is_relative_to(root)), None)


def _quoted(path: str | Path) -> str:
    return repr(shown(os.fspath(path)))


def _reach(roots: Sequence[Path]) -> str:
    return f"Use a path below {' or '.join(dict.fromkeys(str(root) for root in roots[:4]))}."


def _refuse_protected(*paths: str | Path) -> None:
    for part in (part for path in paths for part in Path(path).parts):
        reason = _PROTECTED.get(_folded(part))
        if reason:
            raise CallError(f"{part!r} is protected from the file tools: {reason}. Nothing was written.")


def _folded(name: str) -> str:
    """The name as a file system that ignores case, width and invisible characters would compare it."""
    visible = "".join(each for each in name if unicodedata.category(each) != "Cf")
    return unicodedata.normalize("NFKC", visible).casefold().rstrip(". ")


@contextmanager
def _opened_parent(target: Path, roots: Sequence[Path], *, create: bool = False) -> Iterator[int]:
    root = _root_of(target, roots)
    if root is None or target == root:
        raise IsADirectoryError(errno.EISDIR, "a root itself", str(target))
    with _opened_folder(target.parent, root, create=create) as parent:
        if create:
            _refuse_protected(_path_of(parent) or target)
        yield parent


@contextmanager
def _opened_folder(folder: Path, root: Path, *, create: bool = False) -> Iterator[int]:
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


def _step(parent: int, name: str, *, create: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except NotADirectoryError:
        if stat.S_ISLNK(_status(name, parent).st_mode):
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
    path = _path_of(descriptor)
    if path is not None and not path.is_relative_to(root):
        raise OSError(errno.ELOOP, "moved out of the workspace")


def _path_of(descriptor: int) -> Path | None:
    """Where an open descriptor lies now. Only Linux tells; elsewhere the walk alone has to do."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115 - a magic link, not a file
    except OSError:
        return None


def _status(name: str, parent: int) -> os.stat_result:
    return os.stat(name, dir_fd=parent, follow_symlinks=False)


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
    root = _root_of(folder, roots) or folder
    with suppress(OSError), _opened_folder(folder, root) as descriptor, os.scandir(descriptor) as entries:
        return [os.fsencode(entry.name).decode("utf-8", "replace") for entry in islice(entries, most)]
    return []


def _list(folder: Path, roots: Sequence[Path]) -> _Listing:
    """A folder's entries by name. One that vanished or may not be read is empty."""
    listing = _Listing([], [], [])
    root = _root_of(folder, roots) or folder
    with suppress(OSError), _opened_folder(folder, root) as descriptor, os.scandir(descriptor) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_symlink():
                listing.links.append(folder / entry.name)
            elif entry.is_dir(follow_symlinks=False):
                listing.folders.append(folder / entry.name)
            elif entry.is_file(follow_symlinks=False):
                listing.files.append(folder / entry.name)
    return listing


def _elsewhere(
    links: Sequence[Path], roots: Sequence[Path], known: Set[Path], skip: Set[str]
) -> Iterator[Path]:
    """Where links lead, if that is inside the roots and not below a place that is walked anyway."""
    for link in links:
        target = _real(link)
        if not _root_of(target, roots) or link.name in skip or target.name in skip:
            continue
        if target not in known and known.isdisjoint(target.parents):
            yield target
