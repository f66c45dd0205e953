"""Folders of this machine that a container may write to: its processes carry no mark of this runtime."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import islice

from shellverdict.effects.scene import Family, Scene
from shellverdict.names import names
from shellverdict.places import Place
from shellverdict.shell.words import EMPTY, GAP, Word
from shellverdict.verdict import Effect, Kind

__all__ = ["MOUNTS"]

MAX_MOUNTS = 64
_VOLUME_IN_CLUSTER = re.compile("-[ditTPq]*v=?(.*)", re.DOTALL)
_TRUE = ("", "1", "t", "true")


def _mounts(scene: Scene) -> Iterator[Effect]:
    sources = _sources(scene.run.argv)
    for source in islice(sources, MAX_MOUNTS):
        where = scene.where(source, whole=True)
        own = Place.OWN in where and Place.PROJECT not in where
        if own or Place.HOME in where:
            yield scene.effect(Kind.WRITE, "in:own", "mounted", target=source)
        elif GAP in source:
            yield scene.effect(Kind.UNREADABLE, "mounted", target=source)
    if (beyond := next(sources, None)) is not None:
        yield scene.effect(Kind.UNREADABLE, "mounted", target=beyond)


def _sources(words: tuple[Word, ...]) -> Iterator[Word]:
    """The folders that are mounted so that they can be written."""
    starts_container = not {"run", "create"}.isdisjoint(words)
    for word, following in zip(words, (*words[1:], EMPTY), strict=True):
        name, separator, value = word.partition("=")
        given = Word(value) if separator else following
        if name == "--volume":
            yield from _volume(given, starts_container)
        elif found := _VOLUME_IN_CLUSTER.fullmatch(word):
            yield from _volume(Word(found[1]) or following, starts_container)
        elif name == "--mount":
            yield from _mount(given)
        elif name in ("-o", "--opt") and given.startswith("device="):  # of `volume create`
            yield Word(given.removeprefix("device="))


def _volume(given: Word, starts_container: bool) -> Iterator[Word]:
    """The folder in front of the first colon. An unknown text may hold the colon too."""
    source, *rest = given.split(":")
    is_path = source[:1] in ("/", "~", ".", "$", GAP)
    is_read_only = len(rest) > 1 and "ro" in rest[-1].split(",")
    if is_path and not is_read_only and (rest or (GAP in source and starts_container)):
        yield Word(source)


def _mount(given: Word) -> Iterator[Word]:
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


MOUNTS: Family = dict.fromkeys(names("docker podman nerdctl finch ctr"), _mounts)
