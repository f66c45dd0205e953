"""Classify paths: root, home, system, device, secret, Toolfold's own files, project and so on.

A word is resolved lexically, including its gaps (unknown text) and wildcards, and additionally through
symbolic links if the path is fully known and on this machine. The path does not need to exist. This package
only classifies; it does not decide whether an operation on the path is allowed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from shellverdict.paths.kinds import PathKind
from shellverdict.paths.known_names import (
    is_regenerable_path,
    kinds_below_directory,
    kinds_by_name,
    kinds_lost_with_directory,
)
from shellverdict.paths.locations import kinds_by_location, kinds_on_drive
from shellverdict.paths.patterns import could_match, has_wildcards, is_unknown, matches_everything
from shellverdict.paths.regenerable import ProjectFiles
from shellverdict.shell.runs import CURRENT_DIRECTORY
from shellverdict.shell.words import EMPTY, GAP, Taint, Word, unknown_word

__all__ = ["PathClassifier", "PathInfo", "PathKind"]

MAX_LINK_LOOKUPS = 256  # per command
MAX_PATTERN_MATCHES = 128  # patterns compared with well-known names, per command
MAX_CACHED_PATHS = 1024
MAX_PATH_CHARS = 4096  # the kernel's limit

_MARK_CHARACTERS = {ord(sign): None for mark in Taint for sign in unknown_word(frozenset({mark}))[1:]}
_WINDOWS_DRIVE = re.compile(r"[A-Za-z]:(?=[\\/]|$)|[A-Z]:(?=Windows|Users|Program)")
_PROTECTED_AS_A_WHOLE = frozenset({PathKind.ROOT, PathKind.HOME, PathKind.SYSTEM_ROOT, PathKind.SYSTEM})
_REGENERABLE = frozenset({PathKind.PROJECT, PathKind.REMADE, PathKind.TEMP})
_WINDOWS_VARIABLES = {
    "userprofile": ("users", "me"),
    "homepath": ("users", "me"),
    "appdata": ("users", "me", "appdata", "roaming"),
    "localappdata": ("users", "me", "appdata", "local"),
    "systemroot": ("windows",),
    "windir": ("windows",),
    "programfiles": ("program files",),
    "programdata": ("programdata",),
    "systemdrive": (),
}
# System directories below which a session's directory counts as a project.
_WORKING_TOP_DIRECTORIES = ("opt", "var", "srv", "tmp", "private", "run")
# The runtime's default directories, below the home directory.
_DEFAULT_RUNTIME_DIRECTORIES = (".config/toolfold", ".local/share/toolfold", ".local/state/toolfold")
_WORKING_SUBDIRECTORIES = (("usr", "src"), ("usr", "local", "src"), ("usr", "home"))


@dataclass(frozen=True, slots=True)
class PathInfo:
    """Information about a path in a command: its kinds, such as home or secret.

    `covers_everything` is True if the whole content of a directory is meant. `kinds_if_empty` are the kinds
    of the path that results if its gaps expand to nothing: `"$X"/*` becomes `/*`.
    """

    path: Word
    kinds: frozenset[PathKind]
    covers_everything: bool = False
    kinds_if_empty: frozenset[PathKind] = frozenset()

    def __contains__(self, kind: PathKind) -> bool:
        return kind in self.kinds

    @property
    def traits(self) -> frozenset[str]:
        return frozenset(f"in:{kind}" for kind in self.kinds)

    @property
    def worst_case_traits(self) -> frozenset[str]:
        """Return the traits (keywords) of a path, and those it would have if its unknown parts were empty."""
        possible = frozenset(f"in:{kind}" for kind in self.kinds_if_empty)
        return self.traits | possible | {f"in:{PathKind.UNKNOWN}"} if possible else self.traits


@dataclass(frozen=True, slots=True)
class _ParsedPath:
    """A path split into components, and the directory (anchor) it starts from.

    Anchors: `/`, `~`, `:` (a Windows drive), `""` (an unknown working directory), `?` (a gap).
    """

    anchor: str
    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        start = {"/": "/", "~": "~/", ":": "/", "": "", "?": ""}[self.anchor]
        return start + "/".join(self.parts)


class _LookupState:
    """State of the file system lookups for one command: how many are left, and the cached results."""

    __slots__ = ("classified", "lookups_left", "matches_left", "project_files", "real_parts")

    def __init__(self, lookups: int) -> None:
        self.lookups_left, self.matches_left = lookups, MAX_PATTERN_MATCHES
        self.project_files: ProjectFiles | None = None
        self.classified: dict[tuple[Word, Word, bool, bool], PathInfo] = {}
        self.real_parts: dict[str, tuple[str, ...] | None] = {}

    def take_lookup(self) -> bool:
        self.lookups_left -= 1
        return self.lookups_left >= 0

    def take_match(self) -> bool:
        self.matches_left -= 1
        return self.matches_left >= 0


class PathClassifier:
    """Classifies paths for commands that run in one working directory.

    `home` and `cwd` are absolute, or None if unknown. `protected` are the runtime's own files and
    directories. Lookups through symbolic links are limited per command; call `with_fresh_limits()` before
    each command.
    """

    def __init__(
        self,
        *,
        home: str | None = None,
        cwd: str | None = None,
        users: frozenset[str] = frozenset(),
        protected: Sequence[str] = (),
        follow_links: bool = True,
    ) -> None:
        self._follows_links = follow_links
        self._checks_disk = True
        self._lookups = _LookupState(MAX_LINK_LOOKUPS if follow_links else 0)
        self._users = users
        self._home_parts = _split_path(home) if home else None
        self._real_home = self._real_parts(home) if home else None
        self._session_parts = _split_path(cwd) if cwd else None
        default_directories = (
            [f"{home.rstrip('/')}/{below}" for below in _DEFAULT_RUNTIME_DIRECTORIES] if home else []
        )
        self._protected = frozenset(self._split_protected([*protected, *default_directories]))
        self._parents_of_protected = frozenset(
            protected_parts[:n] for protected_parts in self._protected for n in range(1, len(protected_parts))
        )
        self._session_is_project = self._session_parts is not None and _can_be_project(
            self._session_parts, self._home_directories
        )
        self._lookups = _LookupState(MAX_LINK_LOOKUPS if follow_links else 0)

    @property
    def home(self) -> Word:
        """Return the home directory as a shell word; `~` if it is unknown."""
        return Word("/" + "/".join(self._home_parts)) if self._home_parts else Word("~")

    @property
    def session_directory(self) -> Word:
        """Return the directory in which the command starts; empty if it is unknown."""
        return EMPTY if self._session_parts is None else Word("/" + "/".join(self._session_parts))

    def with_fresh_limits(self) -> PathClassifier:
        """Return a classifier with the same settings, but with reset lookup limits and empty caches."""
        copy = object.__new__(PathClassifier)
        copy.__dict__.update(self.__dict__)
        copy._lookups = _LookupState(MAX_LINK_LOOKUPS if self._follows_links else 0)
        return copy

    def for_other_machine(self) -> PathClassifier:
        """Return a classifier for a remote machine or container, where only conventional paths are known."""
        return PathClassifier(users=self._users, follow_links=False)

    def classify(
        self, word: Word, cwd: Word = CURRENT_DIRECTORY, *, follow_link: bool = True, recursive: bool = False
    ) -> PathInfo:
        """Classify `word` as an argument of a program that runs in `cwd`.

        `follow_link`: resolve the last component if it is a symbolic link, as writing does and deleting does
        not. `recursive`: include everything below the path, as for recursive deletion.
        """
        key = (word, cwd, follow_link, recursive)
        info = self._lookups.classified.get(key)
        if info is None:
            info = self._classify_uncached(_strip_marks(word), _strip_marks(cwd), follow_link, recursive)
            if len(self._lookups.classified) < MAX_CACHED_PATHS:
                self._lookups.classified[key] = info
        return info

    def kinds_replaced_by_filling(self, word: Word, cwd: Word = CURRENT_DIRECTORY) -> frozenset[PathKind]:
        """Return the kinds of protected files that may be replaced when files are unpacked into a directory.

        Filling directories of the project is ordinary work, so nothing is reported there outside of `.git`.
        """
        info = self.classify(word, cwd, recursive=True)
        if PathKind.PROJECT in info and ".git" not in info.path.split("/"):
            return frozenset()
        below = kinds_below_directory([part for part in info.path.split("/") if part])
        return info.kinds & {PathKind.OWN} | below & {PathKind.STARTUP, PathKind.AGENT}

    def is_regenerable(self, word: Word, cwd: Word, info: PathInfo) -> bool:
        """Return True if tools can regenerate a path in the project, judged by the files on disk."""
        project = self._project_files()
        if project is None or not _REGENERABLE.issuperset(info.kinds) or info.kinds_if_empty:
            return False
        if PathKind.PROJECT not in info or GAP in word or ".." in word or GAP in cwd:
            return False
        path = info.path.rpartition("/")[0] if matches_everything(info.path.rpartition("/")[2]) else info.path
        absolute = self._absolute_path(Word(path).literal)
        return not path.startswith("~") and project.is_regenerable(absolute)

    def is_plain_file(self, word: Word, cwd: Word) -> bool:
        """Return True if `word` names a single regular file of the project, not a directory."""
        project, info = self._project_files(), self.classify(word, cwd, follow_link=False)
        if (
            project is None
            or info.kinds != {PathKind.PROJECT}
            or not word.is_known
            or GAP in cwd
            or ".." in word
        ):
            return False
        return project.is_plain_file(self._absolute_path(info.path))

    def are_generated_below(self, start: Word, cwd: Word, pattern: str) -> bool:
        """Return True if files matching `pattern` below a project directory are generated and untracked."""
        project, info = self._project_files(), self.classify(start, cwd)
        if project is None or info.kinds != {PathKind.PROJECT} or GAP in start or GAP in cwd:
            return False
        return project.are_generated_below(self._absolute_path(info.path), pattern)

    def is_missing(self, word: Word, cwd: Word) -> bool:
        """Return True if a path on this machine is fully known and does not exist."""
        info = self.classify(word, cwd)
        if (
            not self._checks_disk
            or not self._follows_links
            or not word.is_known
            or GAP in cwd
            or has_wildcards(word)
            or has_wildcards(cwd)
        ):
            return False
        if (
            not info.path.startswith("/")
            or len(info.path) > MAX_PATH_CHARS
            or not self._lookups.take_lookup()
        ):
            return False
        return not os.path.lexists(info.path)

    def without_disk_checks(self) -> PathClassifier:
        """Return a copy of this classifier that does not look at the disk.

        It is for commands that move files before they use them: the disk still shows the old places.
        """
        copy = self.with_fresh_limits()
        copy._checks_disk = False
        return copy

    def _absolute_path(self, path: str) -> str:
        return path if path.startswith("/") else "/".join(("", *(self._session_parts or ()), path))

    def _project_files(self) -> ProjectFiles | None:
        if (
            not self._checks_disk
            or not self._follows_links
            or self._session_parts is None
            or not self._session_is_project
        ):
            return None
        if self._lookups.project_files is None:
            self._lookups.project_files = ProjectFiles("/" + "/".join(self._session_parts))
        return self._lookups.project_files

    def _classify_uncached(self, word: Word, cwd: Word, follow_link: bool, recursive: bool) -> PathInfo:
        path = self._resolve_word(word, cwd)
        covers_everything = bool(path.parts) and matches_everything(path.parts[-1])
        base = _ParsedPath(path.anchor, path.parts[:-1]) if covers_everything else path
        if (
            (has_wildcards(word) or has_wildcards(cwd))
            and any(map(has_wildcards, base.parts))
            and not self._lookups.take_match()
        ):
            return PathInfo(
                Word(path.text), frozenset({PathKind.UNKNOWN}), covers_everything, frozenset({PathKind.ROOT})
            )
        kinds = self._kinds_of(base, recursive or covers_everything)
        if covers_everything:
            kinds |= kinds_by_name(path.parts, path.anchor == "/")
        real = self._resolve_links(word, cwd, base, follow_link or covers_everything)
        if real is not None and real.parts != base.parts:
            kinds |= self._kinds_of(real, recursive or covers_everything) - {
                PathKind.OUTSIDE,
                PathKind.PROJECT,
            }
        kinds_if_empty = frozenset[PathKind]() if is_unknown(word) else self._kinds_if_gaps_empty(base)
        return PathInfo(
            Word(path.text),
            kinds,
            covers_everything or (recursive and self._contains_session(base)),
            kinds_if_empty,
        )

    # --- Resolution ---

    def _resolve_word(self, word: Word, cwd: Word, depth: int = 0) -> _ParsedPath:
        text = str(word)
        drive = _WINDOWS_DRIVE.match(text)
        if drive:
            return _normalize(_ParsedPath(":", ()), re.split(r"[\\/]", text[drive.end() :]))
        if text.startswith("\\\\.\\"):
            return _ParsedPath("/", ("dev", text[4:]))
        if text.startswith("%"):
            return self._resolve_windows_variable(text, cwd, depth)
        if text.startswith("/"):
            return _resolve_root_aliases(_normalize(_ParsedPath("/", ()), text.split("/")))
        if text.startswith("~"):
            return self._resolve_tilde(text, cwd, depth)
        if text.startswith(GAP):
            return _normalize(_ParsedPath("?", ()), text.split("/"))
        return _normalize(self._resolve_cwd(cwd, depth), text.split("/"))

    def _resolve_cwd(self, cwd: Word, depth: int) -> _ParsedPath:
        if depth == 0 and cwd not in ("", "."):
            return self._resolve_word(cwd, CURRENT_DIRECTORY, depth + 1)
        return _ParsedPath("", ()) if self._session_parts is None else _ParsedPath("/", self._session_parts)

    def _resolve_tilde(self, text: str, cwd: Word, depth: int) -> _ParsedPath:
        user, _, rest = text[1:].partition("/")
        if not user or user in self._users:
            start = _ParsedPath("~", ()) if self._home_parts is None else _ParsedPath("/", self._home_parts)
        elif user == "+":
            start = self._resolve_cwd(cwd, depth)
        elif user == "-":
            start = _ParsedPath("?", (GAP,))
        elif user == "root":
            start = _ParsedPath("/", ("root",))
        elif re.fullmatch(f"[A-Za-z_][\\w.-]*|.*{GAP}.*", user):
            start = _ParsedPath("/", ("home", user))
        else:
            return _normalize(self._resolve_cwd(cwd, depth), text.split("/"))
        return _normalize(start, rest.split("/"))

    def _resolve_windows_variable(self, text: str, cwd: Word, depth: int) -> _ParsedPath:
        """Resolve a Windows directory variable such as `%USERPROFILE%` at the start of a path."""
        name, _, rest = text[1:].partition("%")
        start = _WINDOWS_VARIABLES.get(name.lower())
        if start is None:
            return _normalize(self._resolve_cwd(cwd, depth), text.split("/"))
        return _normalize(_ParsedPath(":", start), re.split(r"[\\/]", rest))

    def _resolve_links(
        self, word: Word, cwd: Word, base: _ParsedPath, follow_link: bool
    ) -> _ParsedPath | None:
        """Return the path with symbolic links resolved; None if that is impossible on this machine."""
        if base.anchor != "/" or not self._follows_links:
            return None
        known = next((n for n, part in enumerate(base.parts) if has_wildcards(part)), len(base.parts))
        if known == len(base.parts) and not follow_link:
            known -= 1
        if known < 1:
            return None
        physical = self._path_with_parent_references(word, cwd) if known == len(base.parts) else None
        start = physical or "/" + "/".join(base.parts[:known])
        real = self._real_parts(start)
        return None if real is None else _ParsedPath("/", real + base.parts[known:])

    def _path_with_parent_references(self, word: Word, cwd: Word) -> str | None:
        """Return the absolute path of a word that contains `..`; None for other words or unknown paths.

        The `..` stays, because it must be resolved after the symbolic links before it.
        """
        if ".." not in word or not word.is_known or has_wildcards(cwd):
            return None
        if word.startswith("/"):
            return str(word)
        if word.startswith("~"):
            return None
        base = self._resolve_cwd(cwd, 0)
        return f"{base.text}/{word}" if base.anchor == "/" else None

    def _real_parts(self, path: str) -> tuple[str, ...] | None:
        cache = self._lookups.real_parts
        if path in cache:
            return cache[path]
        if len(path) > MAX_PATH_CHARS or not self._lookups.take_lookup():
            return None
        try:
            cache[path] = _split_path(os.path.realpath(path))
        except (OSError, ValueError):
            cache[path] = None
        return cache[path]

    def _split_protected(self, protected: Sequence[str]) -> list[tuple[str, ...]]:
        lexical = [_split_path(path) for path in protected]
        real = [self._real_parts(path) for path in protected]
        return [parts for parts in (*lexical, *real) if parts]

    # --- Classification ---

    @property
    def _home_directories(self) -> tuple[tuple[str, ...], ...]:
        return tuple(home for home in (self._home_parts, self._real_home) if home)

    def _kinds_of(self, path: _ParsedPath, recursive: bool) -> frozenset[PathKind]:
        kinds = self._kinds_by_anchor(path) | kinds_by_name(path.parts, path.anchor in ("/", ":"))
        if recursive:
            kinds |= kinds_lost_with_directory(path.parts)
            if PathKind.PROJECT in kinds and is_regenerable_path(self._parts_below_session(path)):
                kinds |= {PathKind.REMADE}
        if self._is_protected(path, recursive):
            kinds |= {PathKind.OWN}
        return kinds

    def _parts_below_session(self, path: _ParsedPath) -> tuple[str, ...]:
        """Return the components of a path relative to the initial working directory."""
        return path.parts[len(self._session_parts or ()) :] if path.anchor == "/" else path.parts

    def _kinds_by_anchor(self, path: _ParsedPath) -> frozenset[PathKind]:
        if path.anchor == "?":
            return frozenset({PathKind.UNKNOWN})
        if path.anchor == "":
            return frozenset({PathKind.OUTSIDE if path.parts[:1] == ("..",) else PathKind.PROJECT})
        if path.anchor == "~":
            return frozenset({PathKind.INSIDE_HOME if path.parts else PathKind.HOME})
        if path.anchor == ":":
            return kinds_on_drive(path.parts)
        return self._kinds_of_absolute(path.parts)

    def _kinds_of_absolute(self, parts: tuple[str, ...]) -> frozenset[PathKind]:
        session = self._session_parts
        if self._session_is_project and session is not None and parts[: len(session)] == session:
            return frozenset({PathKind.PROJECT})
        if any(home[: len(parts)] == parts for home in self._home_directories) and parts:
            return kinds_by_location(parts) - {PathKind.OUTSIDE} | {PathKind.HOME}
        if any(parts[: len(home)] == home for home in self._home_directories):
            return frozenset({PathKind.INSIDE_HOME})
        return kinds_by_location(parts)

    def _contains_session(self, path: _ParsedPath) -> bool:
        """Return True if a path is the directory in which the command starts, or one of its parents."""
        if path.anchor == "":
            return not path.parts or path.parts[-1] == ".."
        return (
            path.anchor == "/"
            and self._session_parts is not None
            and self._session_parts[: len(path.parts)] == path.parts
        )

    def _kinds_if_gaps_empty(self, path: _ParsedPath) -> frozenset[PathKind]:
        """Classify a path as if its unknown last parts were empty: `/home/$x` may mean `/home`."""
        known = len(path.parts)
        while known and is_unknown(path.parts[known - 1]):
            known -= 1
        if known == len(path.parts):
            return frozenset()
        parts = path.parts[:known]
        if path.anchor == "?":
            return frozenset({PathKind.ROOT} if not parts else ())
        return self._kinds_by_anchor(_ParsedPath(path.anchor, parts)) & _PROTECTED_AS_A_WHOLE

    def _is_protected(self, path: _ParsedPath, recursive: bool) -> bool:
        if not self._protected or path.anchor not in ("/", "?"):
            return False
        parts = path.parts
        if any(map(has_wildcards, parts)):
            return any(
                _could_be_protected(path, protected_parts, recursive) for protected_parts in self._protected
            )
        if recursive and (not parts or parts in self._parents_of_protected):
            return True
        return any(parts[: len(protected_parts)] == protected_parts for protected_parts in self._protected)


def _could_be_protected(path: _ParsedPath, protected_parts: tuple[str, ...], recursive: bool) -> bool:
    """Return True if a path with wildcards or unknown parts could be a protected path or lie below one.

    With `recursive`, a parent of a protected path counts too.
    """
    parts = path.parts
    if any(GAP in part for part in parts):
        last_gap = max(n for n, part in enumerate(parts) if GAP in part)
        tail = parts[last_gap + 1 :]
        is_specific = len(tail) > 1 or any("toolfold" in part or "shellverdict" in part for part in tail)
        return is_specific and protected_parts[-len(tail) :] == tail
    shared = min(len(parts), len(protected_parts))
    if len(parts) < len(protected_parts) and not recursive:
        return False
    return all(
        could_match(part, name) or matches_everything(part)
        for part, name in zip(parts[:shared], protected_parts, strict=False)
    )


def _resolve_root_aliases(path: _ParsedPath) -> _ParsedPath:
    """Resolve paths that lead to the root directory under another name, such as `/proc/PID/root`."""
    parts = path.parts
    if len(parts) > 2 and parts[0] == "proc" and parts[2] == "root":
        return _ParsedPath("/", parts[3:])
    if parts[:3] == ("System", "Volumes", "Data"):
        return _ParsedPath("/", parts[3:])
    return path


def _strip_marks(word: Word) -> Word:
    """Remove the internal markers in a word that record the origin of its unknown text."""
    return Word(word.translate(_MARK_CHARACTERS)) if GAP in word else word


def _split_path(path: str) -> tuple[str, ...]:
    return _normalize(_ParsedPath("/", ()), path.split("/")).parts


def _normalize(start: _ParsedPath, names: Sequence[str]) -> _ParsedPath:
    """Append path components to `start`; drop `.` and empty components, resolve `..`."""
    anchor, parts = start.anchor, list(start.parts)
    for name in names:
        if name in ("", "."):
            continue
        if name != "..":
            parts.append(name)
        elif parts and parts[-1] != "..":
            parts.pop()
        elif anchor == "~":
            anchor, parts = "/", ["home"]
        elif anchor == "":
            parts.append("..")
    return _ParsedPath(anchor, tuple(parts))


def _can_be_project(session: tuple[str, ...], homes: Sequence[tuple[str, ...]]) -> bool:
    """Return True if a directory can be a project: not a home directory, the root or part of the system."""
    if any(home[: len(session)] == session for home in homes):
        return False
    kinds = kinds_by_location(session)
    if not kinds & _PROTECTED_AS_A_WHOLE:
        return True
    if PathKind.SYSTEM_ROOT in kinds or PathKind.SYSTEM not in kinds:
        return False
    return session[0] in _WORKING_TOP_DIRECTORIES or any(
        session[: len(below)] == below for below in _WORKING_SUBDIRECTORIES
    )
