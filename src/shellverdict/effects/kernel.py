"""The running kernel and the settings of the machine changed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shellverdict.effects.scene import Family, Scene
from shellverdict.names import names
from shellverdict.shell.words import EMPTY, Word
from shellverdict.verdict import Effect, Kind

__all__ = ["KERNEL"]


def _kernel(scene: Scene, *traits: str, target: Word = EMPTY) -> Effect:
    return scene.effect(Kind.SERVICE, "kernel", *traits, target=target)


def _settings(scene: Scene) -> Iterator[Effect]:
    """The clock, the name and the language of the machine."""
    words = scene.run.argv[1:]
    sets = any(
        word.startswith(("set-", "--set", "-s", "--systohc", "--hctosys")) or word == "-w" for word in words
    )
    if sets and (scene.run.name != "date" or not any(word.startswith("+") for word in words)):
        yield scene.effect(Kind.SERVICE, "settings", "changed")


def _bus(scene: Scene) -> Iterator[Effect]:
    if any(
        re.search(r"\.?(?:PowerOff|Reboot|Halt|Suspend|Hibernate|StopUnit|KExec)\b", w)
        for w in scene.run.argv[1:64]
    ):
        yield scene.effect(Kind.SERVICE, "machine", "stopped")


def _frozen(scene: Scene) -> Iterator[Effect]:
    if scene.options().has("-f", "--freeze"):
        yield _kernel(scene, "stopped")


def _swapoff(scene: Scene) -> Iterator[Effect]:
    if len(scene.run.argv) > 1 and not scene.options().has("-h", "--help", "-V", "--version"):
        yield _kernel(scene, "stopped", "swap")


def _sysctl(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-r --pattern"))
    sets = any("=" in word for word in options.operands)
    if sets or options.has("-w", "--write", "-p", "--load", "--system", "-f"):
        yield _kernel(scene, "set")


def _mount(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-t --types -o --options -L --label -U --uuid -O --source --target"))
    shows = options.has("-l", "-f", "--fake", "--help")
    if not shows and (options.operands or options.has("-a", "--all")):
        yield _kernel(scene, "mounted", target=options.operands[-1] if options.operands else EMPTY)


def _umount(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-t --types -O"))
    if (options.operands or options.has("-a", "--all")) and not options.has("--fake", "--help"):
        yield _kernel(scene, "unmounted", target=options.operands[-1] if options.operands else EMPTY)


def _module(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-C --config -d --dirname -S --set-version"))
    shows = options.has(
        "-n", "--dry-run", "--show", "-c", "--showconfig", "--show-depends", "-D", "-V", "--help"
    )
    if options.operands and not shows:
        removed = scene.run.name == "rmmod" or options.has("-r", "--remove")
        yield _kernel(scene, "module", *(("stopped",) if removed else ()), target=options.operands[0])


def _kexec(scene: Scene) -> Iterator[Effect]:
    if scene.options().has("-e", "--exec", "-l", "--load", "-u", "--unload"):
        yield scene.effect(Kind.SERVICE, "machine", "stopped", "kernel")


KERNEL: Family = {
    "swapoff": _swapoff,
    **dict.fromkeys(names("hostnamectl timedatectl localectl date hwclock"), _settings),
    **dict.fromkeys(names("dbus-send busctl gdbus"), _bus),
    **dict.fromkeys(names("fsfreeze"), _frozen),
    "sysctl": _sysctl,
    "mount": _mount,
    "umount": _umount,
    **dict.fromkeys(names("modprobe insmod rmmod"), _module),
    "kexec": _kexec,
}
