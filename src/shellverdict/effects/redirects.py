"""What redirections do, whatever the program."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shellverdict.effects.scene import Scene
from shellverdict.effects.writing import fed_nothing
from shellverdict.names import names
from shellverdict.shell.words import Word
from shellverdict.verdict import Effect, Kind

__all__ = ["redirect_effects"]


_SILENT = names(": true false exec")
_WHOLE_DISK = re.compile(r"/sys/(?:block|class|bus|devices)/.*/(?:delete|remove|unbind)")


def redirect_effects(scene: Scene) -> Iterator[Effect]:
    """What the redirections alone do, whatever the program."""
    for redirect in scene.run.redirects[:256]:
        if not redirect.writes or _duplicates(redirect.operator, redirect.target):
            continue
        added = ">>" in redirect.operator or redirect.operator == "<>"
        emptied = ("empty",) if not added and _prints_nothing(scene, redirect.descriptor) else ()
        kind = Kind.WRITE if added else Kind.OVERWRITE
        yield scene.write(redirect.target, "redirected", *(("added",) if added else ()), *emptied, kind=kind)
    for redirect in scene.run.redirects[:256]:
        if redirect.writes:
            yield from _kernel_effects(scene, redirect.target)


def _kernel_effects(scene: Scene, target: Word) -> Iterator[Effect]:
    """Files of the kernel that do something when they are written."""
    path = scene.where(target).path
    if path == "/proc/sysrq-trigger":
        yield scene.effect(Kind.SERVICE, "machine", "stopped", target=target)
    elif _WHOLE_DISK.fullmatch(path):
        yield scene.effect(Kind.FORMAT, "removed", "in:device", target=target)


def _duplicates(operator: str, target: Word) -> bool:
    """`2>&1` and `>&-` touch no file."""
    return operator.endswith("&") and re.fullmatch(r"[0-9]*-?", target) is not None


def _prints_nothing(scene: Scene, descriptor: str) -> bool:
    argv = scene.run.argv
    if descriptor not in ("", "1") and len(argv) > 1:
        return False
    if not argv or (argv[0] in _SILENT and len(argv) == 1):
        return True
    rest = argv[1:]
    if argv[0] in ("echo", "printf"):
        return all(word in ("", "-n", "-e", "-ne", "-en") for word in rest)
    if argv[0] in ("head", "tail"):
        return rest[:2] in (("-c", "0"), ("-n", "0")) or rest[:1] in (("-c0",), ("-n0",), ("-0",))
    return argv[0] == "cat" and (rest == ("/dev/null",) or (not rest and fed_nothing(scene)))
