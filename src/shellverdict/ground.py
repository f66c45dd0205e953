"""Where the runtime's own commands run, if that is not simply here: what paths mean there, what stays there.

A place apart has other files than this machine, so that no link and no folder of this machine tells what a
path is. A place that keeps what happens in it makes some things harmless: those that are sure to touch its
own files and processes only. What is sent, published or done to other machines leaves every place, and what
is worked on there, or shared with this machine, is a loss wherever it is. Decides nothing: the chain does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shellverdict.names import names
from shellverdict.places import Places
from shellverdict.places.patterns import wild
from shellverdict.shell.runs import Run
from shellverdict.verdict import Effect, Finding, Kind

__all__ = ["CONFINED", "Ground"]

CONFINED = {
    "fs-delete": names(
        "delete-system-tree delete-system-file delete-whole-directory delete-tree delete-many"
    ),
    "data-loss": names(
        "delete-precious delete-for-good overwrite-secret overwrite-data overwrite-data-with-another"
        " overwrite-emptied overwrite-many overwrite-for-good"
    ),
    "overwrite": names("overwrite-system write-system"),
    "permissions": names(
        "permissions-system-tree permissions-system permissions-secret permissions-everybody"
        " permissions-unusable"
    ),
    "process": names("process-everything process-named process-unknown process-forced"),
}
"""The rules whose findings a place can make harmless, by their category. Nobody's own are among them."""

_ON_FILES = frozenset({Kind.DELETE, Kind.OVERWRITE, Kind.WRITE, Kind.PERMISSIONS})
# What these do to files and processes is known in full, and nothing of it leaves the machine they run on.
_PLAIN = names(
    "rm rmdir unlink shred find mv cp install tee truncate dd chmod chown chgrp kill pkill killall"
    " cat echo printf sed touch mkdir : true"
)
_TRANSPARENT = names("find xargs sh bash dash env nice timeout command nohup time")
# After these, a path may lead elsewhere than it says.
_LEADING_OUT = names("ln link mount umount chroot nsenter unshare pivot_root bwrap setns fusermount")

# Where nobody expects a way to the project; any other folder may be a link to it.
_OWN_TREES = names("tmp etc usr bin sbin lib lib32 lib64 var boot run")

_Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """One place, as far as judging needs to know it."""

    name: str
    home: str = ""
    """Where commands begin there; empty where that is not known yet."""
    apart: bool = False
    """Whether its files are not this machine's."""
    shared: tuple[tuple[str, str], ...] | None = None
    """Folders of this machine that can be changed from there, each with its path there.

    None where more than those can be: the place keeps nothing in.
    """
    certain: bool = True
    """Whether a command is sure to run there. What a running program is told it may take anywhere."""

    def places(self, here: Places, protected: Sequence[str]) -> Places:
        """What paths mean there. `protected` are the runtime's own files, by their paths here."""
        if not self.apart:
            return here
        return Places(cwd=self.home or None, protected=tuple(self._seen(protected)), links=False)

    def lets_out(self, runs: Iterable[Run]) -> bool:
        """Whether nothing of a command can be said to stay there."""
        if self.shared is None or not self.certain:
            return True
        return any(not run.name.known or run.name in _LEADING_OUT for run in runs)

    def keeps(self, finding: Finding, effect: Effect, run: Run) -> bool:
        """Whether what was found is sure to touch the place's own files and processes only."""
        if finding.blocked or finding.rule not in CONFINED.get(finding.category, ()):
            return False
        if run.elsewhere or (run.argv and run.name not in _PLAIN) or not _TRANSPARENT.issuperset(run.through):
            return False
        if effect.kind is Kind.PROCESS:
            return True
        return effect.kind in _ON_FILES and self._is_own(effect.target)

    def _is_own(self, path: str) -> bool:
        """Whether nothing that is shared or worked on is there, below it or above it."""
        told = _known(path)
        if not self.home or not path.startswith("/") or _OWN_TREES.isdisjoint(told[:1]):
            return False
        ways = {told} if self.apart else {told, _real(told)}
        return not any(_meet(way, folder) for way in ways for folder in self._precious())

    def _precious(self) -> set[_Parts]:
        """What is shared, and where the work is: it may be nowhere else."""
        lexical = {_split(self.home), *(_split(there) for _, there in self.shared or ())}
        return lexical if self.apart else lexical | {_real(parts) for parts in lexical}

    def _seen(self, protected: Iterable[str]) -> Iterable[str]:
        for path in protected:
            for here, there in self.shared or ():
                for way in {path, os.path.realpath(path)}:
                    for start in {here, os.path.realpath(here)}:
                        if way == start or way.startswith(start.rstrip("/") + "/"):
                            yield there.rstrip("/") + way[len(start.rstrip("/")) :]


def _split(path: str) -> _Parts:
    return tuple(part for part in path.split("/") if part not in ("", "."))


def _known(path: str) -> _Parts:
    """The parts before the first that could be several."""
    parts = _split(path)
    return parts[: next((n for n, part in enumerate(parts) if wild(part)), len(parts))]


def _real(parts: _Parts) -> _Parts:
    return _split(os.path.realpath("/" + "/".join(parts)))


def _meet(one: _Parts, other: _Parts) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
