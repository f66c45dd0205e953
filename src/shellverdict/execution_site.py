"""Describe the container, sandbox or other machine in which commands run.

A site with its own files has other paths than this machine, so links and directories here do not tell what a
path is there. A site that confines its commands makes some findings harmless: those that affect only its own
files and processes. Sending and publishing data or changing other machines is never confined, and files that
are shared with this machine or being worked on count as on this machine. This module decides nothing; the
approval chain does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shellverdict.names import split_names
from shellverdict.paths import PathClassifier
from shellverdict.paths.patterns import has_wildcards
from shellverdict.shell.runs import ProgramRun
from shellverdict.verdict import CommandEffect, EffectKind, Finding

__all__ = ["CONFINABLE_RULES", "ExecutionSite"]

CONFINABLE_RULES = {
    "fs-delete": split_names(
        "delete-system-tree delete-system-file delete-whole-directory delete-tree delete-many"
    ),
    "data-loss": split_names(
        "delete-precious delete-for-good overwrite-secret overwrite-data overwrite-data-with-another"
        " overwrite-emptied overwrite-many overwrite-for-good"
    ),
    "overwrite": split_names("overwrite-system write-system"),
    "permissions": split_names(
        "permissions-system-tree permissions-system permissions-secret permissions-everybody"
        " permissions-unusable"
    ),
    "process": split_names("process-everything process-named process-unknown process-forced"),
}
"""Built-in rules whose findings are harmless if an execution site confines the effect, by category."""

_FILE_EFFECTS = frozenset({EffectKind.DELETE, EffectKind.OVERWRITE, EffectKind.WRITE, EffectKind.PERMISSIONS})
# The effects of these programs are fully known and local to the machine they run on.
_LOCAL_PROGRAMS = split_names(
    "rm rmdir unlink shred find mv cp install tee truncate dd chmod chown chgrp kill pkill killall"
    " cat echo printf sed touch mkdir : true"
)
_TRANSPARENT_WRAPPERS = split_names("find xargs sh bash dash env nice timeout command nohup time")
# After these programs, a path may lead elsewhere.
_ESCAPING_PROGRAMS = split_names(
    "ln link mount umount chroot nsenter unshare pivot_root bwrap setns fusermount"
)

# Directories that cannot be expected to link to the project; any other one could.
_SITE_DIRECTORIES = split_names("tmp etc usr bin sbin lib lib32 lib64 var boot run")

_Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSite:
    """Site (machine, container, sandbox) where commands run, and the directories shared with this machine."""

    name: str
    home: str = ""
    """Working directory in which commands start at the site; empty if it is not known yet."""
    has_own_files: bool = False
    """True if the site has a file system of its own, not this machine's."""
    shared_directories: tuple[tuple[str, str], ...] | None = None
    """Directories of this machine that commands at the site can write to, each with its path at the site.

    None if other directories are writable too: then nothing is confined.
    """
    is_certain: bool = True
    """True if it is certain that the command runs at this site; not so for input to a running process."""

    def classifier_for(self, here: PathClassifier, protected: Sequence[str]) -> PathClassifier:
        """Return the classifier for paths at this site; `here` is the classifier for this machine.

        `protected` are the runtime's own files on this machine.
        """
        if not self.has_own_files:
            return here
        return PathClassifier(
            cwd=self.home or None,
            protected=tuple(self._protected_paths_at_site(protected)),
            follow_links=False,
        )

    def can_escape(self, runs: Iterable[ProgramRun]) -> bool:
        """Return True if one of the programs may have effects outside the container or sandbox it runs in."""
        if self.shared_directories is None or not self.is_certain:
            return True
        return any(not run.name.is_known or run.name in _ESCAPING_PROGRAMS for run in runs)

    def confines(self, finding: Finding, effect: CommandEffect, run: ProgramRun) -> bool:
        """Return True if a finding's effect is limited to files and processes of the container or sandbox."""
        if finding.blocked or finding.rule not in CONFINABLE_RULES.get(finding.category, ()):
            return False
        if (
            run.is_remote
            or (run.argv and run.name not in _LOCAL_PROGRAMS)
            or not _TRANSPARENT_WRAPPERS.issuperset(run.wrappers)
        ):
            return False
        if effect.kind is EffectKind.PROCESS:
            return True
        return effect.kind in _FILE_EFFECTS and self._is_site_only(effect.target)

    def _is_site_only(self, path: str) -> bool:
        """Return True if a path exists only in the container or sandbox, and is not shared with the host."""
        components = _known_components(path)
        if not self.home or not path.startswith("/") or _SITE_DIRECTORIES.isdisjoint(components[:1]):
            return False
        spellings = {components} if self.has_own_files else {components, _resolve_components(components)}
        return not any(
            _overlap(spelling, directory)
            for spelling in spellings
            for directory in self._shared_or_working_parts()
        )

    def _shared_or_working_parts(self) -> set[_Parts]:
        """Return the components of the working directory and of the directories shared with this machine."""
        lexical = {
            _split_components(self.home),
            *(_split_components(there) for _, there in self.shared_directories or ()),
        }
        return lexical if self.has_own_files else lexical | {_resolve_components(parts) for parts in lexical}

    def _protected_paths_at_site(self, protected: Iterable[str]) -> Iterable[str]:
        for path in protected:
            for here, there in self.shared_directories or ():
                for spelling in {path, os.path.realpath(path)}:
                    for start in {here, os.path.realpath(here)}:
                        if spelling == start or spelling.startswith(start.rstrip("/") + "/"):
                            yield there.rstrip("/") + spelling[len(start.rstrip("/")) :]


def _split_components(path: str) -> _Parts:
    return tuple(part for part in path.split("/") if part not in ("", "."))


def _known_components(path: str) -> _Parts:
    """Return the components of a path that precede the first component with wildcards."""
    parts = _split_components(path)
    return parts[: next((n for n, part in enumerate(parts) if has_wildcards(part)), len(parts))]


def _resolve_components(parts: _Parts) -> _Parts:
    return _split_components(os.path.realpath("/" + "/".join(parts)))


def _overlap(one: _Parts, other: _Parts) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
