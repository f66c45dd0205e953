"""Keys, tokens and passwords read, and sent away.

`confidential` says that what a run prints is secret, so that whoever follows the pipe can mark it.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolfold.approval.effects.disclosing import (
    COUNTERS,
    SHOWING,
    UNREMARKABLE,
    any_confidential,
    copied_elsewhere,
    private,
    read_files,
    secret_files,
    taken_in,
    tells_secrets,
)
from toolfold.approval.effects.scene import Scene
from toolfold.approval.effects.sending import SENDERS, SENDING, STDIN, asks_for_metadata, files_sent, payloads
from toolfold.approval.places import Places
from toolfold.approval.shell.runs import Run
from toolfold.approval.verdict import Effect, Kind

__all__ = ["confidential", "secret_effects"]

_CONCERNED = SHOWING | SENDING


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
    return tells_secrets(run, name) or any(private(scene.where(word)) for word in read_files(scene))


def _concerned(run: Run, name: str) -> bool:
    """Most programs neither show nor send; they are let go at once."""
    return name in _CONCERNED or bool(run.redirects) or taken_in(run)


def secret_effects(scene: Scene) -> Iterator[Effect]:
    """Secrets read, secrets sent, and the address at which clouds hand out secrets."""
    run = scene.run
    if not _concerned(run, run.name.lower()):
        return
    sent = list(files_sent(scene))[:400]
    flows_in = any(word in STDIN for word in sent)
    redirected = [r.target for r in run.redirects if r.operator == "<" and flows_in]
    for word in (*sent, *redirected):
        if word in STDIN:
            if taken_in(run):
                yield scene.effect(Kind.EXFILTRATE, "network", "in:secret")
            continue
        where = scene.where(word)
        if private(where):
            yield scene.effect(Kind.EXFILTRATE, "network", *where.traits, target=where.path)
    if any_confidential(payloads(run)):
        yield scene.effect(Kind.EXFILTRATE, "network", "in:secret")
    if not sent:
        for word in (*secret_files(scene), *copied_elsewhere(scene)):
            where = scene.where(word)
            yield scene.effect(Kind.DISCLOSE, *where.traits, target=where.path)
        if tells_secrets(run, run.name.lower()) and run.name not in UNREMARKABLE:
            system = ("in:secret", "in:system") if run.name == "getent" else ("told",)
            yield scene.effect(Kind.DISCLOSE, *system)
    if asks_for_metadata(run):
        yield scene.effect(Kind.DISCLOSE, "metadata", "network", "in:secret")
