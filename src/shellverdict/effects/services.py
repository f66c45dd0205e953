"""Services and whole machines stopped, started and changed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shellverdict.effects.scene import Family, Scene
from shellverdict.names import names
from shellverdict.shell.words import EMPTY, Word
from shellverdict.verdict import Effect, Kind

__all__ = ["SERVICES", "service_effects"]


_STOPS = names(
    "stop disable mask kill isolate force-stop down once pause term terminate unload bootout remove "
    "delete uninstall reset off shutdown purge force-shutdown soft-stop exit zap graceful-stop"
)
_STARTS = names(
    "start restart reload try-restart reload-or-restart force-reload defaults enable reenable unmask up load "
    "bootstrap submit kickstart condrestart full-restart set-default link edit revert set-property preset "
    "preset-all on add"
)
_MACHINE = names(
    "reboot poweroff halt kexec suspend hibernate hybrid-sleep suspend-then-hibernate emergency rescue "
    "soft-reboot switch-root default exit"
)
_PERSISTS = names(
    "defaults enable reenable link preset preset-all load bootstrap submit on add edit set-default"
)


def _service(scene: Scene, verb: str, name: Word = EMPTY) -> Iterator[Effect]:
    verb = verb.lower()
    if verb in _STOPS:
        yield scene.effect(Kind.SERVICE, "stopped", target=name, detail=verb)
    elif verb in _STARTS:
        kept = ("persistent",) if verb in _PERSISTS else ()
        yield scene.effect(Kind.SERVICE, "started", *kept, target=name, detail=verb)


_SYSTEMCTL_VALUES = names(
    "-t --type --state -p --property -P -H --host -M --machine -s --signal -n --lines -o --output --root "
    "--job-mode --kill-who --kill-whom --what --when --message --preset-mode --legend"
)


def _systemctl(scene: Scene) -> Iterator[Effect]:
    options = scene.options(_SYSTEMCTL_VALUES, abbreviated=False)
    verb, *units = options.operands or (EMPTY,)
    if options.has("--dry-run", "--help", "-h"):
        return
    if verb in _MACHINE:
        yield scene.effect(Kind.SERVICE, "machine", "stopped", detail=verb)
    elif not verb.known:
        yield scene.effect(Kind.SERVICE, "stopped", "unknown")
    else:
        yield from _service(scene, verb, *units[:1])


def _service_then_verb(scene: Scene) -> Iterator[Effect]:
    words = [word for word in scene.run.argv[1:] if not word.startswith("-")]
    if len(words) > 1:
        yield from _service(scene, words[1], words[0])


def _verb_then_service(scene: Scene) -> Iterator[Effect]:
    words = [word for word in scene.run.argv[1:] if not word.startswith("-")]
    if words:
        yield from _service(scene, words[0], *words[1:2])


def _last_verb(scene: Scene) -> Iterator[Effect]:
    words = [word for word in scene.run.argv[1:] if not word.startswith("-")]
    if len(words) > 1:
        yield from _service(scene, words[-1], words[0])


def service_effects(scene: Scene) -> Iterator[Effect]:
    """A script that starts and stops a service is known by where it is."""
    if re.match(r"/etc/(?:rc\.d/)?init\.d/|/etc/rc\.d/", scene.run.path) and len(scene.run.argv) > 1:
        yield from _service(scene, scene.run.argv[1], scene.run.name)


def _supervised(scene: Scene) -> Iterator[Effect]:
    if scene.options().has("-d", "-k", "-x", "-D", "-t", "-o", "-p"):
        yield scene.effect(Kind.SERVICE, "stopped", target=scene.run.argv[-1])


def _loginctl(scene: Scene) -> Iterator[Effect]:
    verb = next(iter(scene.options().operands), EMPTY)
    if verb in _MACHINE:
        yield scene.effect(Kind.SERVICE, "machine", "stopped", detail=verb)
    elif verb.startswith(("terminate-", "kill-")):
        yield scene.effect(Kind.PROCESS, "named", "all", detail=verb)


def _shutdown(scene: Scene) -> Iterator[Effect]:
    words = scene.run.argv[1:]
    harmless = names("-c --help --version -k --show -a /a -w --wtmp-only")
    if not any(word in harmless for word in words):
        yield scene.effect(Kind.SERVICE, "machine", "stopped")


def _init(scene: Scene) -> Iterator[Effect]:
    if any(re.fullmatch("[0126sS]|q|u", word) for word in scene.run.argv[1:]):
        yield scene.effect(Kind.SERVICE, "machine", "stopped")


SERVICES: Family = {
    "systemctl": _systemctl,
    **dict.fromkeys(names("service rc-service invoke-rc.d"), _service_then_verb),
    **dict.fromkeys(
        names("sv svcadm launchctl supervisorctl initctl monit net sc rc-update"), _verb_then_service
    ),
    **dict.fromkeys(names("update-rc.d chkconfig rcctl"), _last_verb),
    **dict.fromkeys(names("s6-svc svc"), _supervised),
    "loginctl": _loginctl,
    **dict.fromkeys(names("shutdown reboot halt poweroff pm-suspend pm-hibernate rtcwake"), _shutdown),
    **dict.fromkeys(names("init telinit openrc-shutdown"), _init),
}
