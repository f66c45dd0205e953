"""Folders of this machine that a container may write to: its processes carry no mark of this runtime."""

from __future__ import annotations

from collections.abc import Iterator

from toolfold.approval.effects.scene import Family, Scene
from toolfold.approval.names import names
from toolfold.approval.places import Place
from toolfold.approval.shell.words import Word
from toolfold.approval.verdict import Effect, Kind

__all__ = ["MOUNTS"]

MAX_MOUNTS = 64


def _mounts(scene: Scene) -> Iterator[Effect]:
    for source in list(_sources(scene.run.argv))[:MAX_MOUNTS]:
        where = scene.where(source, whole=True)
        own = Place.OWN in where and Place.PROJECT not in where
        if own or Place.HOME in where:
            yield scene.effect(Kind.WRITE, "in:own", "mounted", target=source)


def _sources(words: tuple[Word, ...]) -> Iterator[Word]:
    """The folders that are mounted so that they can be written."""
    for word, following in zip(words, (*words[1:], Word("")), strict=True):
        name, separator, value = word.partition("=")
        given = Word(value) if separator else following
        if name in ("-v", "--volume") or (word.startswith("-v") and not word.startswith("--")):
            yield from _volume(given if name in ("-v", "--volume") else Word(word[2:]))
        elif name == "--mount":
            yield from _mount(given)


def _volume(given: Word) -> Iterator[Word]:
    source, *rest = given.split(":")
    if rest and source[:1] in ("/", "~", ".", "$") and "ro" not in rest[-1].split(","):
        yield Word(source)


def _mount(given: Word) -> Iterator[Word]:
    fields = dict(each.partition("=")[::2] for each in given.split(","))
    source = fields.get("source") or fields.get("src")
    if source and fields.get("type", "bind") == "bind" and not {"readonly", "ro"} & fields.keys():
        yield Word(source)


MOUNTS: Family = dict.fromkeys(names("docker podman nerdctl finch ctr"), _mounts)
