"""Keys, tokens and passwords read, and sent away.

`confidential` says that what a run prints is secret, so that whoever follows the pipe can mark it.
"""

from __future__ import annotations

from collections.abc import Iterator

from shellverdict.effects.disclosing import (
    COUNTERS,
    DUMPS,
    SHOWING,
    UNREMARKABLE,
    any_confidential,
    copied_elsewhere,
    lists_private,
    private,
    read_files,
    secret_files,
    sought,
    taken_in,
    tells_secrets,
)
from shellverdict.effects.scene import Scene
from shellverdict.effects.sending import SENDERS, SENDING, asks_for_metadata, files_sent, payloads
from shellverdict.places import Places
from shellverdict.shell.runs import STANDARD_INPUT, Run
from shellverdict.verdict import Effect, Kind

__all__ = ["confidential", "secret_effects"]

_REACHING = frozenset(("docker", "podman", "kubectl", "nerdctl", "oc", "ssh", "lxc"))
_CONCERNED = SHOWING | SENDING | _REACHING


def confidential(run: Run, places: Places) -> bool:
    """Whether what this run prints is a secret, as far as its words tell."""
    scene = Scene(run, places.away() if run.elsewhere else places)
    name = run.name.lower()
    if name in COUNTERS or not _concerned(run, name):
        return False
    if taken_in(run):
        return not SENDERS & {name}
    if name in ("echo", "printf", "print") and any_confidential(run.argv):
        return True
    if lists_private(scene) or _reaches_for_secrets(scene, name):
        return True
    return tells_secrets(run, name) or any(private(scene.where(word)) for word in read_files(scene))


def _reaches_for_secrets(scene: Scene, name: str) -> bool:
    """Whether a program on another machine or in a container is told to print what is secret there."""
    if name not in _REACHING:
        return False
    there = scene.places.away()
    words = scene.run.argv[2:32]
    return any(word in DUMPS or (word[:1] == "/" and private(there.of(word))) for word in words)


def _concerned(run: Run, name: str) -> bool:
    """Most programs neither show nor send; they are let go at once."""
    return name in _CONCERNED or bool(run.redirects) or taken_in(run)


def secret_effects(scene: Scene) -> Iterator[Effect]:
    """Secrets read, secrets sent, and the address at which clouds hand out secrets."""
    run = scene.run
    if not _concerned(run, run.name.lower()):
        return
    sent = list(files_sent(scene))[:400]
    flows_in = any(word in STANDARD_INPUT for word in sent)
    redirected = [r.target for r in run.redirects if r.operator == "<" and flows_in]
    for word in (*sent, *redirected):
        if word in STANDARD_INPUT:
            if taken_in(run):
                yield scene.effect(Kind.EXFILTRATE, "network", "in:secret")
            continue
        where = scene.where(word)
        if private(where):
            yield scene.effect(Kind.EXFILTRATE, "network", *where.traits, target=where.path)
    spoken = (
        run.argv
        if any(word in STANDARD_INPUT for word in sent) and run.name in ("echo", "printf", "print")
        else ()
    )
    if any_confidential((*payloads(run), *spoken)):
        yield scene.effect(Kind.EXFILTRATE, "network", "in:secret")
    if not sent:
        for word in (*secret_files(scene), *copied_elsewhere(scene), *sought(scene)):
            where = scene.where(word)
            yield scene.effect(Kind.DISCLOSE, *where.traits, target=where.path)
        if tells_secrets(run, run.name.lower()) and run.name not in UNREMARKABLE:
            system = ("in:secret", "in:system") if run.name == "getent" else ("told",)
            yield scene.effect(Kind.DISCLOSE, *system)
    if asks_for_metadata(run):
        yield scene.effect(Kind.DISCLOSE, "metadata", "network", "in:secret")
