"""One program with the places it can reach: what every family of effects is given."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from shellverdict.options import Options
from shellverdict.places import Place, Places, Where
from shellverdict.shell.runs import Run
from shellverdict.shell.words import EMPTY, GAP, Word
from shellverdict.verdict import Effect, Kind

__all__ = ["UNKNOWN", "Family", "Scene"]

UNKNOWN = Word(GAP)
MOST_OPERANDS = 400  # looked at one by one; no person types more
# A key or an `.env` is made in a project every day; elsewhere somebody else's is replaced.
_USUAL = frozenset({Place.PROJECT, Place.TEMP, Place.UNKNOWN})
_FINDERS = frozenset(("find", "xargs", "parallel", "fd", "fdfind"))
_HIDDEN = re.compile(r"(?:^|/)\.[^/.][^/]*/|\.\./")
_RECORDS = (
    ".csv",
    ".tsv",
    ".sql",
    ".xls",
    ".xlsx",
    ".doc",
    ".docx",
    ".parquet",
    ".jsonl",
    ".dump",
    ".bak",
    ".pdf",
)
_REFILLED = (".log", ".out", ".tmp", ".cache")  # files that fill again by themselves
_SPARE = re.compile("test|dev|tmp|temp|bak|backup|copy|local|sample|demo|old|seed|scratch", re.IGNORECASE)
_WHOLE = (Place.ROOT, Place.SYSTEM_ROOT, Place.SYSTEM)
AS_ROOT = frozenset(
    ("sudo", "doas", "pkexec", "su", "runuser", "sudoedit", "please", "run0", "gosu", "su-exec")
)


@dataclass(frozen=True, slots=True)
class Scene:
    """A run, and the places as seen from where it runs."""

    run: Run
    places: Places

    @property
    def as_root(self) -> bool:
        return not AS_ROOT.isdisjoint(self.run.through)

    def options(self, takes_value: frozenset[str] = frozenset(), **how: bool) -> Options:
        return Options.read(self.run.argv, takes_value, attached=frozenset(), **how)

    def effect(self, kind: Kind, *traits: str, target: Word = EMPTY, detail: str = "") -> Effect:
        return Effect(kind, target, frozenset(traits) | self._surroundings(), self.run.span, detail)

    def where(self, word: Word, *, follow: bool = True, whole: bool = False) -> Where:
        return self.places.of(word, self.run.cwd, follow=follow, whole=whole)

    def write(self, word: Word, *traits: str, kind: Kind = Kind.OVERWRITE) -> Effect:
        """Something is put at `word`. A home is only written into, never replaced."""
        where = self.where(word)
        found = set(where.traits)
        if Place.HOME in where:
            found ^= {f"in:{Place.HOME}", f"in:{Place.INSIDE_HOME}"}
            found |= {"over-home"} if "extracted" in traits else set()
        if Place.DEVICE in where:
            found.add("raw")
        if word in (".", "./") and self.run.cwd in (".", ""):
            found -= {f"in:{place}" for place in _WHOLE}  # where the session works, whatever that is
        if "empty" in traits and word.pattern and not word.endswith(_REFILLED):
            found.add("many")
        if (
            Place.DATA in where
            and Place.TEMP not in where
            and not _SPARE.search(where.path.rpartition("/")[2])
        ):
            found.add("kept")
        if "empty" not in traits and (_USUAL & where.places or self._beside(word)):
            found -= {f"in:{Place.SECRET}"}
            found -= {f"in:{Place.DATA}"} if where.path.endswith((".env", ".local")) else set()
        return self.effect(kind, *traits, *found, target=where.path or word)

    def fill(self, word: Word, *traits: str) -> Effect:
        """Files that nobody has listed are put into `word`, over whatever has their names."""
        found = self.write(word, *traits)
        within = frozenset(f"in:{place}" for place in self.places.filled(word, self.run.cwd))
        return replace(found, traits=found.traits | within)

    def _beside(self, word: Word) -> bool:
        """Whether this is a plain name where the session works, wherever that is."""
        return self.run.cwd in (".", "") and not word.startswith(("/", "~")) and not _HIDDEN.search(word)

    def delete(self, word: Word, *traits: str, recursive: bool = False) -> Effect:
        recursive = recursive and not self.places.is_plain_file(word, self.run.cwd)
        where = self.where(word, follow=False, whole=recursive)
        if (recursive or where.everything) and self.places.is_regenerable(word, self.run.cwd, where):
            traits = (*traits, "regenerable")
        records = ("records",) if word.pattern and word.lower().endswith(_RECORDS) else ()
        return self.destroy(
            Kind.DELETE, word, where, *traits, *records, *(("recursive",) if recursive else ())
        )

    def destroy(self, kind: Kind, word: Word, where: Where, *traits: str) -> Effect:
        """What cannot be taken back: a gap that may be empty counts."""
        everything = ("everything",) if where.everything else ()
        return self.effect(kind, *traits, *everything, *where.worst_traits, target=where.path or word)

    def each(self, operands: Iterable[Word]) -> Iterator[Word]:
        """The operands, those added later as one unknown; what is too much to look at counts as unknown."""
        for count, word in enumerate(operands):
            if count == MOST_OPERANDS:
                yield UNKNOWN
                return
            yield word
        if self.run.more_operands:
            yield UNKNOWN

    def _handed_names(self) -> bool:
        """Whether a gap stands for names that something else finds: `find -exec sh -c 'rm "$0"' {} \\;`."""
        return not _FINDERS.isdisjoint(self.run.through) and any(GAP in word for word in self.run.argv)

    def _surroundings(self) -> frozenset[str]:
        found = {"as-root"} if self.as_root else set()
        if self.run.elsewhere:
            found.add("elsewhere")
        if self.run.more_operands or self._handed_names():
            found.add("more-operands")
        return frozenset(found)


Family = Mapping[str, Callable[[Scene], Iterator[Effect]]]
