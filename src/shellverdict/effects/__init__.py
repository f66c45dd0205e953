"""What one program does to the world, told from its words.

`effects_of` asks the family of programs that a name belongs to. Effects are facts with plain traits; whether
they matter is for the rules. The class of the place that is touched is among the traits, as `in:system`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shellverdict.effects.clearing import clearing_effects
from shellverdict.effects.copying import COPYING
from shellverdict.effects.deleting import DELETING
from shellverdict.effects.disks import DISKS, disk_effects
from shellverdict.effects.handed import handed_effects
from shellverdict.effects.kernel import KERNEL
from shellverdict.effects.mounts import MOUNTS
from shellverdict.effects.networks import NETWORKS
from shellverdict.effects.outputs import OUTPUTS
from shellverdict.effects.permissions import PERMISSIONS
from shellverdict.effects.planted import planting_effects
from shellverdict.effects.processes import PROCESSES, process_effects
from shellverdict.effects.redirects import redirect_effects
from shellverdict.effects.scene import Family, Scene
from shellverdict.effects.secrets import confidential, secret_effects
from shellverdict.effects.sending import payloads
from shellverdict.effects.services import SERVICES, service_effects
from shellverdict.effects.tails import tail_effects
from shellverdict.effects.unpacking import UNPACKING
from shellverdict.effects.uploading import UPLOADING
from shellverdict.effects.variables import VARIABLES
from shellverdict.effects.writing import WRITING
from shellverdict.places import Places
from shellverdict.places.patterns import Pattern
from shellverdict.shell.runs import Run
from shellverdict.shell.words import Word
from shellverdict.verdict import Effect

__all__ = ["confidential", "effects_of", "payloads"]

_FAMILIES: tuple[Family, ...] = (
    *(DELETING, COPYING, UNPACKING, WRITING, OUTPUTS, DISKS, PERMISSIONS),
    *(PROCESSES, SERVICES, NETWORKS, KERNEL, MOUNTS, UPLOADING, VARIABLES),
)


def effects_of(run: Run, places: Places) -> Iterator[Effect]:
    """Everything that can be told of this run, in no particular order."""
    if run.elsewhere:
        places = places.away()
    yield from redirect_effects(Scene(run, places))
    yield from clearing_effects(Scene(run, places))
    yield from planting_effects(Scene(run, places))
    for name in _known_as(run):
        scene = Scene(run if name == run.name else _called(run, name), places)
        yield from _told(name, scene)
        known = any(name in family for family in _FAMILIES)
        yield from handed_effects(name, scene, known=known)
        yield from tail_effects(name, scene, _told, known=known)
        yield from process_effects(scene)
        yield from service_effects(scene)
        yield from secret_effects(scene)


def _told(name: str, scene: Scene) -> Iterator[Effect]:
    """What the program's own family knows of it."""
    for family in _FAMILIES:
        if name in family:
            yield from family[name](scene)
    yield from disk_effects(name, scene)


def _known_as(run: Run) -> Iterator[str]:
    """The program's name; where it is a pattern (`/bin/r?`), every name it could be."""
    name = run.name.lower().removesuffix(".exe")
    yield name
    if run.name.pattern:
        pattern = Pattern(name)
        yield from (each for family in _FAMILIES for each in family if pattern.fits(each))


def _called(run: Run, name: str) -> Run:
    return replace(run, argv=(Word(name), *run.argv[1:]))
