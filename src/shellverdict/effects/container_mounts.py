"""Detect directories of this machine that a container mounts and may write to.

Toolfold cannot tell that a process in a container was started by a tool, so its own files are protected here.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import islice

from shellverdict.effects.run_context import EffectHandlers, RunContext
from shellverdict.names import split_names
from shellverdict.paths import PathKind
from shellverdict.shell.words import EMPTY, GAP, Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["MOUNT_HANDLERS"]

MAX_MOUNTS = 64
_VOLUME_IN_CLUSTER = re.compile("-[ditTPq]*v=?(.*)", re.DOTALL)
_TRUE = ("", "1", "t", "true")


def _mount_effects(context: RunContext) -> Iterator[CommandEffect]:
    sources = _writable_sources(context.run.argv)
    for source in islice(sources, MAX_MOUNTS):
        path_info = context.classify(source, recursive=True)
        own = PathKind.OWN in path_info and PathKind.PROJECT not in path_info
        if own or PathKind.HOME in path_info:
            yield context.new_effect(EffectKind.WRITE, "in:own", "mounted", target=source)
        elif GAP in source:
            yield context.new_effect(EffectKind.UNREADABLE, "mounted", target=source)
    if (beyond := next(sources, None)) is not None:
        yield context.new_effect(EffectKind.UNREADABLE, "mounted", target=beyond)


def _writable_sources(words: tuple[Word, ...]) -> Iterator[Word]:
    """Yield the directories of this machine that container options mount as writable."""
    starts_container = not {"run", "create"}.isdisjoint(words)
    for word, following in zip(words, (*words[1:], EMPTY), strict=True):
        name, separator, value = word.partition("=")
        option_value = Word(value) if separator else following
        if name == "--volume":
            yield from _volume_sources(option_value, starts_container)
        elif match := _VOLUME_IN_CLUSTER.fullmatch(word):
            yield from _volume_sources(Word(match[1]) or following, starts_container)
        elif name == "--mount":
            yield from _mount_sources(option_value)
        elif name in ("-o", "--opt") and option_value.startswith("device="):  # of `volume create`
            yield Word(option_value.removeprefix("device="))


def _volume_sources(given: Word, starts_container: bool) -> Iterator[Word]:
    """Yield the host directory of a `-v HOST:CONTAINER` option, unless it is mounted read-only."""
    source, *rest = given.split(":")
    is_path = source[:1] in ("/", "~", ".", "$", GAP)
    is_read_only = len(rest) > 1 and "ro" in rest[-1].split(",")
    if is_path and not is_read_only and (rest or (GAP in source and starts_container)):
        yield Word(source)


def _mount_sources(given: Word) -> Iterator[Word]:
    """Yield the host directory of a `--mount source=…` option, unless the mount is read-only."""
    fields = [each.partition("=") for row in csv.reader([given]) for each in row]
    pairs = [(name.strip().lower(), value) for name, _, value in fields]
    yield from (Word(value[7:]) for name, value in pairs if name == "volume-opt" and value[:7] == "device=")
    options = dict(pairs)
    read_only = [value.lower() in _TRUE for name, value in pairs if name in ("readonly", "ro")]
    if read_only and read_only[-1]:
        return
    source = given if GAP in "".join(options) else options.get("source") or options.get("src")
    if source and options.get("type", "bind").lower() not in ("volume", "tmpfs"):
        yield Word(source)


MOUNT_HANDLERS: EffectHandlers = dict.fromkeys(split_names("docker podman nerdctl finch ctr"), _mount_effects)
