"""Detect changes to the running kernel and to machine-wide settings."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shellverdict.effects.run_context import EffectHandlers, RunContext
from shellverdict.names import split_names
from shellverdict.shell.words import EMPTY, Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["KERNEL_HANDLERS"]


def _kernel_effect(context: RunContext, *traits: str, target: Word = EMPTY) -> CommandEffect:
    return context.new_effect(EffectKind.SERVICE, "kernel", *traits, target=target)


def _machine_settings_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield an effect if the command changes the machine's clock, host name or locale."""
    words = context.run.argv[1:]
    sets = any(
        word.startswith(("set-", "--set", "-s", "--systohc", "--hctosys")) or word == "-w" for word in words
    )
    if sets and (context.run.name != "date" or not any(word.startswith("+") for word in words)):
        yield context.new_effect(EffectKind.SERVICE, "settings", "changed")


def _dbus_effects(context: RunContext) -> Iterator[CommandEffect]:
    if any(
        re.search(r"\.?(?:PowerOff|Reboot|Halt|Suspend|Hibernate|StopUnit|KExec)\b", w)
        for w in context.run.argv[1:64]
    ):
        yield context.new_effect(EffectKind.SERVICE, "machine", "stopped")


def _fsfreeze_effects(context: RunContext) -> Iterator[CommandEffect]:
    if context.parse_options().has("-f", "--freeze"):
        yield _kernel_effect(context, "stopped")


def _swapoff_effects(context: RunContext) -> Iterator[CommandEffect]:
    if len(context.run.argv) > 1 and not context.parse_options().has("-h", "--help", "-V", "--version"):
        yield _kernel_effect(context, "stopped", "swap")


def _sysctl_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-r --pattern"))
    sets = any("=" in word for word in options.operands)
    if sets or options.has("-w", "--write", "-p", "--load", "--system", "-f"):
        yield _kernel_effect(context, "set")


def _mount_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(
        split_names("-t --types -o --options -L --label -U --uuid -O --source --target")
    )
    shows = options.has("-l", "-f", "--fake", "--help")
    if not shows and (options.operands or options.has("-a", "--all")):
        yield _kernel_effect(context, "mounted", target=options.operands[-1] if options.operands else EMPTY)


def _umount_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-t --types -O"))
    if (options.operands or options.has("-a", "--all")) and not options.has("--fake", "--help"):
        yield _kernel_effect(context, "unmounted", target=options.operands[-1] if options.operands else EMPTY)


def _kernel_module_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-C --config -d --dirname -S --set-version"))
    shows = options.has(
        "-n", "--dry-run", "--show", "-c", "--showconfig", "--show-depends", "-D", "-V", "--help"
    )
    if options.operands and not shows:
        removed = context.run.name == "rmmod" or options.has("-r", "--remove")
        yield _kernel_effect(
            context, "module", *(("stopped",) if removed else ()), target=options.operands[0]
        )


def _kexec_effects(context: RunContext) -> Iterator[CommandEffect]:
    if context.parse_options().has("-e", "--exec", "-l", "--load", "-u", "--unload"):
        yield context.new_effect(EffectKind.SERVICE, "machine", "stopped", "kernel")


KERNEL_HANDLERS: EffectHandlers = {
    "swapoff": _swapoff_effects,
    **dict.fromkeys(split_names("hostnamectl timedatectl localectl date hwclock"), _machine_settings_effects),
    **dict.fromkeys(split_names("dbus-send busctl gdbus"), _dbus_effects),
    **dict.fromkeys(split_names("fsfreeze"), _fsfreeze_effects),
    "sysctl": _sysctl_effects,
    "mount": _mount_effects,
    "umount": _umount_effects,
    **dict.fromkeys(split_names("modprobe insmod rmmod"), _kernel_module_effects),
    "kexec": _kexec_effects,
}
