"""Detect services and machines that a command stops, starts or reconfigures."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shellverdict.effects.run_context import EffectHandlers, RunContext
from shellverdict.names import split_names
from shellverdict.shell.words import EMPTY, Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["SERVICE_HANDLERS", "find_init_script_effects"]


_STOP_VERBS = split_names(
    "stop disable mask kill isolate force-stop down once pause term terminate unload bootout remove "
    "delete uninstall reset off shutdown purge force-shutdown soft-stop exit zap graceful-stop"
)
_START_VERBS = split_names(
    "start restart reload try-restart reload-or-restart force-reload defaults enable reenable unmask up load "
    "bootstrap submit kickstart condrestart full-restart set-default link edit revert set-property preset "
    "preset-all on add"
)
_MACHINE_VERBS = split_names(
    "reboot poweroff halt kexec suspend hibernate hybrid-sleep suspend-then-hibernate emergency rescue "
    "soft-reboot switch-root default exit"
)
_PERSISTENT_VERBS = split_names(
    "defaults enable reenable link preset preset-all load bootstrap submit on add edit set-default"
)


def _service_effects(context: RunContext, verb: str, name: Word = EMPTY) -> Iterator[CommandEffect]:
    verb = verb.lower()
    if verb in _STOP_VERBS:
        yield context.new_effect(EffectKind.SERVICE, "stopped", target=name, detail=verb)
    elif verb in _START_VERBS:
        persistent = ("persistent",) if verb in _PERSISTENT_VERBS else ()
        yield context.new_effect(EffectKind.SERVICE, "started", *persistent, target=name, detail=verb)


_SYSTEMCTL_VALUES = split_names(
    "-t --type --state -p --property -P -H --host -M --machine -s --signal -n --lines -o --output --root "
    "--job-mode --kill-who --kill-whom --what --when --message --preset-mode --legend"
)


def _systemctl_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(_SYSTEMCTL_VALUES, abbreviated=False)
    verb, *units = options.operands or (EMPTY,)
    if options.has("--dry-run", "--help", "-h"):
        return
    if verb in _MACHINE_VERBS:
        yield context.new_effect(EffectKind.SERVICE, "machine", "stopped", detail=verb)
    elif not verb.is_known:
        yield context.new_effect(EffectKind.SERVICE, "stopped", "unknown")
    else:
        yield from _service_effects(context, verb, *units[:1])


def _service_verb_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = [word for word in context.run.argv[1:] if not word.startswith("-")]
    if len(words) > 1:
        yield from _service_effects(context, words[1], words[0])


def _verb_service_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = [word for word in context.run.argv[1:] if not word.startswith("-")]
    if words:
        yield from _service_effects(context, words[0], *words[1:2])


def _trailing_verb_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = [word for word in context.run.argv[1:] if not word.startswith("-")]
    if len(words) > 1:
        yield from _service_effects(context, words[-1], words[0])


def find_init_script_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield the effect of running an init script: a program in a directory such as /etc/init.d."""
    if re.match(r"/etc/(?:rc\.d/)?init\.d/|/etc/rc\.d/", context.run.path) and len(context.run.argv) > 1:
        yield from _service_effects(context, context.run.argv[1], context.run.name)


def _supervise_effects(context: RunContext) -> Iterator[CommandEffect]:
    if context.parse_options().has("-d", "-k", "-x", "-D", "-t", "-o", "-p"):
        yield context.new_effect(EffectKind.SERVICE, "stopped", target=context.run.argv[-1])


def _loginctl_effects(context: RunContext) -> Iterator[CommandEffect]:
    verb = next(iter(context.parse_options().operands), EMPTY)
    if verb in _MACHINE_VERBS:
        yield context.new_effect(EffectKind.SERVICE, "machine", "stopped", detail=verb)
    elif verb.startswith(("terminate-", "kill-")):
        yield context.new_effect(EffectKind.PROCESS, "named", "all", detail=verb)


def _shutdown_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = context.run.argv[1:]
    harmless = split_names("-c --help --version -k --show -a /a -w --wtmp-only")
    if not any(word in harmless for word in words):
        yield context.new_effect(EffectKind.SERVICE, "machine", "stopped")


def _init_effects(context: RunContext) -> Iterator[CommandEffect]:
    if any(re.fullmatch("[0126sS]|q|u", word) for word in context.run.argv[1:]):
        yield context.new_effect(EffectKind.SERVICE, "machine", "stopped")


SERVICE_HANDLERS: EffectHandlers = {
    "systemctl": _systemctl_effects,
    **dict.fromkeys(split_names("service rc-service invoke-rc.d"), _service_verb_effects),
    **dict.fromkeys(
        split_names("sv svcadm launchctl supervisorctl initctl monit net sc rc-update"), _verb_service_effects
    ),
    **dict.fromkeys(split_names("update-rc.d chkconfig rcctl"), _trailing_verb_effects),
    **dict.fromkeys(split_names("s6-svc svc"), _supervise_effects),
    "loginctl": _loginctl_effects,
    **dict.fromkeys(
        split_names("shutdown reboot halt poweroff pm-suspend pm-hibernate rtcwake"), _shutdown_effects
    ),
    **dict.fromkeys(split_names("init telinit openrc-shutdown"), _init_effects),
}
