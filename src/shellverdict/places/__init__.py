"""Where a path is: the root, a home, the system, a disk, a secret, this runtime's own files, the project.

A word is resolved by its letters, with its gaps and patterns, and beyond that through symbolic links where
the path is known and on this machine; nothing needs to exist. Says what a path is, never whether something
may be done to it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from shellverdict.places.evidence import Evidence
from shellverdict.places.kinds import Place
from shellverdict.places.names import held, landmarks, lost_with, remade
from shellverdict.places.patterns import broad, fits, unknown, wild
from shellverdict.places.tree import located, on_drive
from shellverdict.shell.runs import HERE
from shellverdict.shell.words import EMPTY, GAP, Mark, Word, gap

__all__ = ["Place", "Places", "Where"]

MOST_LOOKED_UP = 256  # paths followed through links for one command
MOST_PATTERNS = 128  # patterns held against the names everybody knows
MOST_KEPT = 1024
LONGEST_PATH = 4096  # what a kernel takes

_MARKS = {ord(sign): None for mark in Mark for sign in gap(frozenset({mark}))[1:]}
_DRIVE = re.compile(r"[A-Za-z]:(?=[\\/]|$)|[A-Z]:(?=Windows|Users|Program)")
_WHOLE = frozenset({Place.ROOT, Place.HOME, Place.SYSTEM_ROOT, Place.SYSTEM})
_REGENERABLE = frozenset({Place.PROJECT, Place.REMADE, Place.TEMP})
_PERCENT = {
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
# A session may well work below these; everywhere else in the system, its files are the system's.
_WORKABLE = ("opt", "var", "srv", "tmp", "private", "run")
# Where this runtime keeps its files unless it is told otherwise.
_USUALLY_OWN = (".config/toolfold", ".local/share/toolfold", ".local/state/toolfold")
_WORKABLE_BELOW = (("usr", "src"), ("usr", "local", "src"), ("usr", "home"))


@dataclass(frozen=True, slots=True)
class Where:
    """What a word that names a file is.

    `everything` says that all a directory holds is meant. `if_empty` is where the path would be, were its
    gaps empty: `"$X"/*` is `/*` then.
    """

    path: Word
    places: frozenset[Place]
    everything: bool = False
    if_empty: frozenset[Place] = frozenset()

    def __contains__(self, place: Place) -> bool:
        return place in self.places

    @property
    def traits(self) -> frozenset[str]:
        return frozenset(f"in:{place}" for place in self.places)

    @property
    def worst_traits(self) -> frozenset[str]:
        """The traits, with what would hold if the gaps were empty; then it is not known which holds."""
        perhaps = frozenset(f"in:{place}" for place in self.if_empty)
        return self.traits | perhaps | {f"in:{Place.UNKNOWN}"} if perhaps else self.traits


@dataclass(frozen=True, slots=True)
class _Path:
    """A path in parts, and what it hangs from.

    `/`, `~`, a drive `:`, nothing (a directory not known), or `?` (a gap).
    """

    anchor: str
    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        start = {"/": "/", "~": "~/", ":": "/", "": "", "?": ""}[self.anchor]
        return start + "/".join(self.parts)


class _Allowance:
    """What may still be spent on one command, and what was found out so far."""

    __slots__ = ("evidence", "found", "lookups", "patterns", "real")

    def __init__(self, lookups: int) -> None:
        self.lookups, self.patterns = lookups, MOST_PATTERNS
        self.evidence: Evidence | None = None
        self.found: dict[tuple[Word, Word, bool, bool], Where] = {}
        self.real: dict[str, tuple[str, ...] | None] = {}

    def look_up(self) -> bool:
        self.lookups -= 1
        return self.lookups >= 0

    def match(self) -> bool:
        self.patterns -= 1
        return self.patterns >= 0


class Places:
    """Tells where paths are, seen from one session.

    `home` and `cwd` are absolute, or None where they are not known. `protected` are the runtime's own files
    and directories. Look-ups through links are counted; `again()` gives the same places with none made.
    """

    def __init__(
        self,
        *,
        home: str | None = None,
        cwd: str | None = None,
        users: frozenset[str] = frozenset(),
        protected: Sequence[str] = (),
        links: bool = True,
    ) -> None:
        self._links = links
        self._looks = True
        self._allowance = _Allowance(MOST_LOOKED_UP if links else 0)
        self._users = users
        self._home = _parts(home) if home else None
        self._real_home = self._real_parts(home) if home else None
        self._session = _parts(cwd) if cwd else None
        usual = [f"{home.rstrip('/')}/{below}" for below in _USUALLY_OWN] if home else []
        self._protected = frozenset(self._own([*protected, *usual]))
        self._above_protected = frozenset(own[:n] for own in self._protected for n in range(1, len(own)))
        self._works_here = self._session is not None and _workable(self._session, self._homes)
        self._allowance = _Allowance(MOST_LOOKED_UP if links else 0)

    @property
    def home(self) -> Word:
        """The home directory as a word; `~` where it is not known."""
        return Word("/" + "/".join(self._home)) if self._home else Word("~")

    @property
    def session(self) -> Word:
        """The directory that the session works in, empty where it is not known."""
        return EMPTY if self._session is None else Word("/" + "/".join(self._session))

    def again(self) -> Places:
        """The same places for another command."""
        fresh = object.__new__(Places)
        fresh.__dict__.update(self.__dict__)
        fresh._allowance = _Allowance(MOST_LOOKED_UP if self._links else 0)
        return fresh

    def away(self) -> Places:
        """The places of another machine or a container: paths mean what they usually mean, no more."""
        return Places(users=self._users, links=False)

    def of(self, word: Word, cwd: Word = HERE, *, follow: bool = True, whole: bool = False) -> Where:
        """Where `word` is, given to a program that runs in `cwd`.

        `follow` means that the last part is followed if it is a link, as writing does and deleting does not.
        `whole` means that all below the path counts too, as for recursive deletion.
        """
        asked = (word, cwd, follow, whole)
        found = self._allowance.found.get(asked)
        if found is None:
            found = self._find(_unmarked(word), _unmarked(cwd), follow, whole)
            if len(self._allowance.found) < MOST_KEPT:
                self._allowance.found[asked] = found
        return found

    def filled(self, word: Word, cwd: Word = HERE) -> frozenset[Place]:
        """What could be replaced where a directory is filled with files nobody has listed.

        In the project that is everyday, whatever lies there.
        """
        where = self.of(word, cwd, whole=True)
        if Place.PROJECT in where and ".git" not in where.path.split("/"):
            return frozenset()
        below = held([part for part in where.path.split("/") if part])
        return where.places & {Place.OWN} | below & {Place.STARTUP, Place.AGENT}

    def is_regenerable(self, word: Word, cwd: Word, where: Where) -> bool:
        """Whether what is deleted is the project's and can be made again, by what is on the disk."""
        evidence = self._evidence()
        if evidence is None or not _REGENERABLE.issuperset(where.places) or where.if_empty:
            return False
        if Place.PROJECT not in where or GAP in word or ".." in word or GAP in cwd:
            return False
        path = where.path.rpartition("/")[0] if broad(where.path.rpartition("/")[2]) else where.path
        absolute = self._absolute(Word(path).typed)
        return not path.startswith("~") and evidence.is_regenerable(absolute)

    def is_plain_file(self, word: Word, cwd: Word) -> bool:
        """Whether this is a single file of the project, of which there is nothing below."""
        evidence, where = self._evidence(), self.of(word, cwd, follow=False)
        if (
            evidence is None
            or where.places != {Place.PROJECT}
            or not word.known
            or GAP in cwd
            or ".." in word
        ):
            return False
        return evidence.is_plain_file(self._absolute(where.path))

    def is_made_below(self, start: Word, cwd: Word, pattern: str) -> bool:
        """Whether files of a name below a directory of the project are made by tools, and none is tracked."""
        evidence, where = self._evidence(), self.of(start, cwd)
        if evidence is None or where.places != {Place.PROJECT} or GAP in start or GAP in cwd:
            return False
        return evidence.is_made_below(self._absolute(where.path), pattern)

    def is_missing(self, word: Word, cwd: Word) -> bool:
        """Whether nothing is at a path of this machine that is known in full."""
        where = self.of(word, cwd)
        if not self._looks or not self._links or not word.known or GAP in cwd or wild(word) or wild(cwd):
            return False
        if not where.path.startswith("/") or len(where.path) > LONGEST_PATH or not self._allowance.look_up():
            return False
        return not os.path.lexists(where.path)

    def without_evidence(self) -> Places:
        """The same places, where nothing on the disk counts: the command itself changes what is there."""
        fresh = self.again()
        fresh._looks = False
        return fresh

    def _absolute(self, path: str) -> str:
        return path if path.startswith("/") else "/".join(("", *(self._session or ()), path))

    def _evidence(self) -> Evidence | None:
        if not self._looks or not self._links or self._session is None or not self._works_here:
            return None
        if self._allowance.evidence is None:
            self._allowance.evidence = Evidence("/" + "/".join(self._session))
        return self._allowance.evidence

    def _find(self, word: Word, cwd: Word, follow: bool, whole: bool) -> Where:
        path = self._resolve(word, cwd)
        everything = bool(path.parts) and broad(path.parts[-1])
        base = _Path(path.anchor, path.parts[:-1]) if everything else path
        if (wild(word) or wild(cwd)) and any(map(wild, base.parts)) and not self._allowance.match():
            return Where(Word(path.text), frozenset({Place.UNKNOWN}), everything, frozenset({Place.ROOT}))
        places = self._classes(base, whole or everything)
        if everything:
            places |= landmarks(path.parts, path.anchor == "/")
        real = self._through_links(word, cwd, base, follow or everything)
        if real is not None and real.parts != base.parts:
            places |= self._classes(real, whole or everything) - {Place.OUTSIDE, Place.PROJECT}
        if_empty = frozenset[Place]() if unknown(word) else self._if_empty(base)
        return Where(Word(path.text), places, everything or (whole and self._holds_session(base)), if_empty)

    # --- resolving ---

    def _resolve(self, word: Word, cwd: Word, depth: int = 0) -> _Path:
        text = str(word)
        drive = _DRIVE.match(text)
        if drive:
            return _reduced(_Path(":", ()), re.split(r"[\\/]", text[drive.end() :]))
        if text.startswith("\\\\.\\"):
            return _Path("/", ("dev", text[4:]))
        if text.startswith("%"):
            return self._from_percent(text, cwd, depth)
        if text.startswith("/"):
            return _straight(_reduced(_Path("/", ()), text.split("/")))
        if text.startswith("~"):
            return self._from_tilde(text, cwd, depth)
        if text.startswith(GAP):
            return _reduced(_Path("?", ()), text.split("/"))
        return _reduced(self._base(cwd, depth), text.split("/"))

    def _base(self, cwd: Word, depth: int) -> _Path:
        if depth == 0 and cwd not in ("", "."):
            return self._resolve(cwd, HERE, depth + 1)
        return _Path("", ()) if self._session is None else _Path("/", self._session)

    def _from_tilde(self, text: str, cwd: Word, depth: int) -> _Path:
        who, _, rest = text[1:].partition("/")
        if not who or who in self._users:
            start = _Path("~", ()) if self._home is None else _Path("/", self._home)
        elif who == "+":
            start = self._base(cwd, depth)
        elif who == "-":
            start = _Path("?", (GAP,))
        elif who == "root":
            start = _Path("/", ("root",))
        elif re.fullmatch(f"[A-Za-z_][\\w.-]*|.*{GAP}.*", who):
            start = _Path("/", ("home", who))
        else:
            return _reduced(self._base(cwd, depth), text.split("/"))
        return _reduced(start, rest.split("/"))

    def _from_percent(self, text: str, cwd: Word, depth: int) -> _Path:
        """What Windows calls its directories by."""
        name, _, rest = text[1:].partition("%")
        start = _PERCENT.get(name.lower())
        if start is None:
            return _reduced(self._base(cwd, depth), text.split("/"))
        return _reduced(_Path(":", start), re.split(r"[\\/]", rest))

    def _through_links(self, word: Word, cwd: Word, base: _Path, follow: bool) -> _Path | None:
        """The path as the file system knows it; None where that cannot be asked."""
        if base.anchor != "/" or not self._links:
            return None
        known = next((n for n, part in enumerate(base.parts) if wild(part)), len(base.parts))
        if known == len(base.parts) and not follow:
            known -= 1
        if known < 1:
            return None
        physical = self._physical(word, cwd) if known == len(base.parts) else None
        start = physical or "/" + "/".join(base.parts[:known])
        real = self._real_parts(start)
        return None if real is None else _Path("/", real + base.parts[known:])

    def _physical(self, word: Word, cwd: Word) -> str | None:
        """An absolute spelling in which `..` still stands, for it means another directory behind a link."""
        if ".." not in word or not word.known or wild(cwd):
            return None
        if word.startswith("/"):
            return str(word)
        if word.startswith("~"):
            return None
        base = self._base(cwd, 0)
        return f"{base.text}/{word}" if base.anchor == "/" else None

    def _real_parts(self, path: str) -> tuple[str, ...] | None:
        seen = self._allowance.real
        if path in seen:
            return seen[path]
        if len(path) > LONGEST_PATH or not self._allowance.look_up():
            return None
        try:
            seen[path] = _parts(os.path.realpath(path))
        except (OSError, ValueError):
            seen[path] = None
        return seen[path]

    def _own(self, protected: Sequence[str]) -> list[tuple[str, ...]]:
        lexical = [_parts(path) for path in protected]
        real = [self._real_parts(path) for path in protected]
        return [parts for parts in (*lexical, *real) if parts]

    # --- classing ---

    @property
    def _homes(self) -> tuple[tuple[str, ...], ...]:
        return tuple(home for home in (self._home, self._real_home) if home)

    def _classes(self, path: _Path, whole: bool) -> frozenset[Place]:
        found = self._by_tree(path) | landmarks(path.parts, path.anchor in ("/", ":"))
        if whole:
            found |= lost_with(path.parts)
            if Place.PROJECT in found and remade(self._within(path)):
                found |= {Place.REMADE}
        if self._is_own(path, whole):
            found |= {Place.OWN}
        return found

    def _within(self, path: _Path) -> tuple[str, ...]:
        """The path from where the session works; what stands above says nothing."""
        return path.parts[len(self._session or ()) :] if path.anchor == "/" else path.parts

    def _by_tree(self, path: _Path) -> frozenset[Place]:
        if path.anchor == "?":
            return frozenset({Place.UNKNOWN})
        if path.anchor == "":
            return frozenset({Place.OUTSIDE if path.parts[:1] == ("..",) else Place.PROJECT})
        if path.anchor == "~":
            return frozenset({Place.INSIDE_HOME if path.parts else Place.HOME})
        if path.anchor == ":":
            return on_drive(path.parts)
        return self._by_absolute(path.parts)

    def _by_absolute(self, parts: tuple[str, ...]) -> frozenset[Place]:
        session = self._session
        if self._works_here and session is not None and parts[: len(session)] == session:
            return frozenset({Place.PROJECT})
        if any(home[: len(parts)] == parts for home in self._homes) and parts:
            return located(parts) - {Place.OUTSIDE} | {Place.HOME}
        if any(parts[: len(home)] == home for home in self._homes):
            return frozenset({Place.INSIDE_HOME})
        return located(parts)

    def _holds_session(self, path: _Path) -> bool:
        """Whether the directory that the session works in is this, or is in it."""
        if path.anchor == "":
            return not path.parts or path.parts[-1] == ".."
        return (
            path.anchor == "/"
            and self._session is not None
            and self._session[: len(path.parts)] == path.parts
        )

    def _if_empty(self, path: _Path) -> frozenset[Place]:
        """What is meant where a variable in front or at the end turns out to be empty."""
        known = len(path.parts)
        while known and unknown(path.parts[known - 1]):
            known -= 1
        if known == len(path.parts):
            return frozenset()
        parts = path.parts[:known]
        if path.anchor == "?":
            return frozenset({Place.ROOT} if not parts else ())
        return self._by_tree(_Path(path.anchor, parts)) & _WHOLE

    def _is_own(self, path: _Path, whole: bool) -> bool:
        if not self._protected or path.anchor not in ("/", "?"):
            return False
        parts = path.parts
        if any(map(wild, parts)):
            return any(_could_be_own(path, own, whole) for own in self._protected)
        if whole and (not parts or parts in self._above_protected):
            return True
        return any(parts[: len(own)] == own for own in self._protected)


def _could_be_own(path: _Path, own: tuple[str, ...], whole: bool) -> bool:
    """Whether a path with patterns or gaps could be a protected one, be below it or, `whole`, be above it."""
    parts = path.parts
    if any(GAP in part for part in parts):
        last_gap = max(n for n, part in enumerate(parts) if GAP in part)
        tail = parts[last_gap + 1 :]
        telling = len(tail) > 1 or any("toolfold" in part or "shellverdict" in part for part in tail)
        return telling and own[-len(tail) :] == tail
    shared = min(len(parts), len(own))
    if len(parts) < len(own) and not whole:
        return False
    return all(fits(part, name) or broad(part) for part, name in zip(parts[:shared], own, strict=False))


def _straight(path: _Path) -> _Path:
    """Other ways to the root: what a process sees as such, and where macOS really keeps it."""
    parts = path.parts
    if len(parts) > 2 and parts[0] == "proc" and parts[2] == "root":
        return _Path("/", parts[3:])
    if parts[:3] == ("System", "Volumes", "Data"):
        return _Path("/", parts[3:])
    return path


def _unmarked(word: Word) -> Word:
    """Where the text of a gap comes from tells nothing about the place."""
    return Word(word.translate(_MARKS)) if GAP in word else word


def _parts(path: str) -> tuple[str, ...]:
    return _reduced(_Path("/", ()), path.split("/")).parts


def _reduced(start: _Path, names: Sequence[str]) -> _Path:
    """`start` followed by `names`, without `.`, `..` and doubled slashes."""
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
    return _Path(anchor, tuple(parts))


def _workable(session: tuple[str, ...], homes: Sequence[tuple[str, ...]]) -> bool:
    """Whether a session's directory is a place of work, not a home, the root or the system's own."""
    if any(home[: len(session)] == session for home in homes):
        return False
    places = located(session)
    if not places & _WHOLE:
        return True
    if Place.SYSTEM_ROOT in places or Place.SYSTEM not in places:
        return False
    return session[0] in _WORKABLE or any(session[: len(below)] == below for below in _WORKABLE_BELOW)
