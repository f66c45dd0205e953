"""Processes ended, services and machines stopped, the network and the kernel changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from toolfold.approval.effects.scene import Family, Scene, names
from toolfold.approval.places import Place
from toolfold.approval.shell.words import EMPTY, Word
from toolfold.approval.verdict import Effect, Kind

__all__ = ["PROCESSES", "process_effects"]

_FORCED = re.compile(r"-?(?:s|-signal)?=?(?:9|(?:SIG)?KILL)", re.IGNORECASE)


# --- processes -------------------------------------------------------------------------------------------


def _kill(scene: Scene) -> Iterator[Effect]:
    words = list(scene.run.argv[1:])
    if any(re.fullmatch(r"-[lL]|--list.*|--table", word) for word in words[:1]):
        return
    signal, targets = _signal(words)
    if signal == "0":
        return  # asks whether a process is there
    forced = ("forced",) if _FORCED.fullmatch(signal) else ()
    for word in scene.each(targets):
        traits = _process(word)
        if traits is not None:
            yield scene.effect(Kind.PROCESS, *traits, *forced, target=word)


def _signal(words: Sequence[Word]) -> tuple[str, Sequence[Word]]:
    """The signal and what it is sent to: the first word with a dash is the signal, later ones are groups."""
    signal, at = "TERM", 0
    if words[:1] and words[0] in ("-s", "-n", "--signal", "-q"):
        signal, at = (str(words[1]), 2) if len(words) > 1 else ("", 1)
    elif words[:1] and words[0].startswith("-") and words[0] != "--":
        signal, at = words[0].lstrip("-").removeprefix("signal="), 1
    return signal, [word for word in words[at:] if word != "--"]


def _process(word: Word) -> tuple[str, ...] | None:
    if word.startswith("%"):
        return None  # a job of this very shell
    if not word.known:
        return ("unknown",)
    if word == "-1":
        return ("all",)
    if word == "1":
        return ("init", "all")
    if re.fullmatch(r"-[0-9]+|0", word):
        return ("group",)
    return ("pid",)


_PKILL_VALUES = names(
    "--signal -u --euid -U --uid -G --group -g --pgroup -P --parent -s --session -t --terminal -F "
    "--pidfile --ns --nslist"
)
_KILLALL_VALUES = names("-s --signal -u --user -o --older-than -y --younger-than -n --ns -Z --context -t -c")


def _killall(scene: Scene) -> Iterator[Effect]:
    words = scene.run.argv[1:]
    if scene.run.name == "killall5":
        yield scene.effect(Kind.PROCESS, "all")
        return
    options = scene.options(_PKILL_VALUES if scene.run.name == "pkill" else _KILLALL_VALUES)
    if options.has("-l", "--list", "-V", "--version", "--help", "-h") and not options.operands:
        return
    if "-0" in words:
        return
    forced = ("forced",) if any(_FORCED.fullmatch(word) for word in words) else ()
    owner = ("all",) if options.has("-u", "--user", "-U", "--euid", "--uid", "-G", "--group") else ()
    for word in scene.each(options.operands):
        every = ("all",) if re.fullmatch(r"[.*^$]*", word) else ()
        yield scene.effect(Kind.PROCESS, "named", *forced, *owner, *every, target=word)
    if not options.operands and (owner or options.has("-P", "-g", "-s", "-t", "--parent", "--pgroup")):
        yield scene.effect(Kind.PROCESS, "named", *forced, *owner)


def _fuser(scene: Scene) -> Iterator[Effect]:
    if scene.options(names("-n --namespace")).has("-k", "--kill"):
        yield scene.effect(Kind.PROCESS, "named", "forced")


def _taskkill(scene: Scene) -> Iterator[Effect]:
    switches = {word.lower().lstrip("/-") for word in scene.run.argv[1:]}
    if switches & {"im", "pid", "fi"}:
        yield scene.effect(Kind.PROCESS, "named", *(("forced",) if "f" in switches else ()))


def _named_process(scene: Scene) -> Iterator[Effect]:
    for word in scene.each(scene.options().operands):
        yield scene.effect(Kind.PROCESS, "named", target=word)


def _tmux(scene: Scene) -> Iterator[Effect]:
    words = scene.run.argv[1:]
    if any(re.fullmatch("kill-(?:server|session|window|pane)|quit|kill", word) for word in words[:6]):
        yield scene.effect(Kind.PROCESS, "named")


_ENDLESS = names("yes")
_ENDLESS_FILES = ("/dev/zero", "/dev/urandom", "/dev/random", "/dev/full")


def process_effects(scene: Scene) -> Iterator[Effect]:
    """Programs that never end, with nobody to stop them or onto a disk; and scripts of services."""
    yield from _init_script(scene)
    argv = scene.run.argv
    endless = bool(argv) and (argv[0] in _ENDLESS or (argv[0] == "cat" and argv[-1] in _ENDLESS_FILES))
    if not endless:
        return
    outputs = [r.target for r in scene.run.redirects if r.writes and r.descriptor in ("", "1")]
    if outputs and (scene.run.background or Place.STREAM not in scene.where(outputs[-1])):
        yield scene.effect(Kind.PROCESS, "endless")


# --- services --------------------------------------------------------------------------------------------

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


def _init_script(scene: Scene) -> Iterator[Effect]:
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


# --- machines --------------------------------------------------------------------------------------------


def _shutdown(scene: Scene) -> Iterator[Effect]:
    words = scene.run.argv[1:]
    harmless = names("-c --help --version -k --show -a /a -w --wtmp-only")
    if not any(word in harmless for word in words):
        yield scene.effect(Kind.SERVICE, "machine", "stopped")


def _init(scene: Scene) -> Iterator[Effect]:
    if any(re.fullmatch("[0126sS]|q|u", word) for word in scene.run.argv[1:]):
        yield scene.effect(Kind.SERVICE, "machine", "stopped")


# --- firewalls and networks ------------------------------------------------------------------------------


def _firewall(scene: Scene, opened: bool) -> Effect:
    return scene.effect(Kind.SERVICE, "firewall", "stopped" if opened else "changed")


def _iptables(scene: Scene) -> Iterator[Effect]:
    words = scene.run.argv[1:]
    flushes = names("-F --flush -X --delete-chain -P --policy -D --delete")
    changes = names("-A --append -I --insert -R --replace -N --new-chain -E --rename-chain")
    if any(word in flushes for word in words):
        yield _firewall(scene, opened=True)
    elif any(word in changes for word in words):
        yield _firewall(scene, opened=False)


def _restored(scene: Scene) -> Iterator[Effect]:
    if not scene.options().has("-t", "--test", "--help"):
        yield _firewall(scene, opened=False)


def _nft(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-f --file -I -D"))
    verb = next(iter(options.operands), EMPTY)
    if options.has("-c", "--check"):
        return
    if verb in ("flush", "delete", "destroy", "reset"):
        yield _firewall(scene, opened=True)
    elif verb in ("add", "insert", "create", "replace") or options.has("-f", "--file"):
        yield _firewall(scene, opened=False)


def _ufw(scene: Scene) -> Iterator[Effect]:
    options = scene.options()
    verb = next((word for word in options.operands if word != "route"), EMPTY)
    if options.has("--dry-run"):
        return
    if verb in ("disable", "reset", "delete"):
        yield _firewall(scene, opened=True)
    elif verb in names("enable reload allow deny reject limit default insert prepend logging"):
        yield _firewall(scene, opened=False)


def _firewalld(scene: Scene) -> Iterator[Effect]:
    words = scene.run.argv[1:]
    if any(re.match(r"--(?:remove|panic-on|delete|reset|set-target)", word) for word in words):
        yield _firewall(scene, opened=True)
    elif any(re.match(r"--(?:add|set|change|new|direct|reload|complete|lockdown)", word) for word in words):
        yield _firewall(scene, opened=False)


def _pfctl(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-F -f -a -t -T -k -K -s -i -p"))
    if options.has("-d", "-F", "-k", "-K"):
        yield _firewall(scene, opened=True)
    elif options.has("-f", "-e"):
        yield _firewall(scene, opened=False)


def _netsh(scene: Scene) -> Iterator[Effect]:
    words = [word.lower() for word in scene.run.argv[1:]]
    if "off" in words or "delete" in words or "reset" in words or "disable" in words:
        yield _firewall(scene, opened=True)


def _cut_off(scene: Scene, target: Word = EMPTY) -> Effect:
    return scene.effect(Kind.SERVICE, "network-down", "stopped", target=target)


def _ip(scene: Scene) -> Iterator[Effect]:
    words = list(scene.options(names("-n -netns -f -b")).operands)
    thing, verbs = (words[0], words[1:]) if words else (EMPTY, [])
    takes_down = "down" in verbs and any(v in ("set", "s") for v in verbs)
    loses = bool(verbs) and verbs[0] in ("del", "delete", "flush", "d", "f")
    if thing and (takes_down or (loses and thing[0] in "larnt")):
        yield _cut_off(scene)


def _ifconfig(scene: Scene) -> Iterator[Effect]:
    if "down" in scene.run.argv[2:] or "destroy" in scene.run.argv[2:] or "delete" in scene.run.argv[2:]:
        yield _cut_off(scene)


def _ifdown(scene: Scene) -> Iterator[Effect]:
    if len(scene.run.argv) > 1:
        yield _cut_off(scene)


def _nmcli(scene: Scene) -> Iterator[Effect]:
    words = scene.options(names("-f --fields -c -m -w")).operands
    if any(word in ("down", "off", "delete", "disconnect") for word in words[1:]):
        yield _cut_off(scene)


def _route(scene: Scene) -> Iterator[Effect]:
    if any(word in ("del", "delete", "flush") for word in scene.run.argv[1:]):
        yield _cut_off(scene)


def _dhcp(scene: Scene) -> Iterator[Effect]:
    if scene.options().has("-r", "-x", "-k", "--release", "--exit"):
        yield _cut_off(scene)


def _networksetup(scene: Scene) -> Iterator[Effect]:
    words = [word.lower() for word in scene.run.argv[1:]]
    if words and words[0].startswith(("-set", "-remove", "-delete")):
        yield _cut_off(scene)


def _tc(scene: Scene) -> Iterator[Effect]:
    if any(word in ("add", "del", "delete", "replace", "change") for word in scene.run.argv[2:4]):
        yield _cut_off(scene)


def _rfkill(scene: Scene) -> Iterator[Effect]:
    if "block" in scene.run.argv[1:]:
        yield _cut_off(scene)


# --- the kernel ------------------------------------------------------------------------------------------


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


PROCESSES: Family = {
    "kill": _kill,
    **dict.fromkeys(names("killall killall5 pkill skill"), _killall),
    "fuser": _fuser,
    **dict.fromkeys(names("taskkill tskill"), _taskkill),
    **dict.fromkeys(names("xkill slay"), _named_process),
    **dict.fromkeys(names("tmux screen"), _tmux),
    "systemctl": _systemctl,
    **dict.fromkeys(names("service rc-service invoke-rc.d"), _service_then_verb),
    **dict.fromkeys(
        names("sv svcadm launchctl supervisorctl initctl pm2 monit net sc rc-update"), _verb_then_service
    ),
    **dict.fromkeys(names("update-rc.d chkconfig rcctl"), _last_verb),
    **dict.fromkeys(names("s6-svc svc"), _supervised),
    "loginctl": _loginctl,
    **dict.fromkeys(names("shutdown reboot halt poweroff pm-suspend pm-hibernate rtcwake"), _shutdown),
    **dict.fromkeys(names("init telinit openrc-shutdown"), _init),
    **dict.fromkeys(
        names("iptables ip6tables iptables-legacy iptables-nft ip6tables-legacy arptables ebtables"),
        _iptables,
    ),
    **dict.fromkeys(names("iptables-restore ip6tables-restore"), _restored),
    "nft": _nft,
    "ufw": _ufw,
    "firewall-cmd": _firewalld,
    "pfctl": _pfctl,
    "netsh": _netsh,
    "ip": _ip,
    "ifconfig": _ifconfig,
    "ifdown": _ifdown,
    "nmcli": _nmcli,
    "route": _route,
    "rfkill": _rfkill,
    **dict.fromkeys(names("dhclient dhcpcd"), _dhcp),
    "networksetup": _networksetup,
    "tc": _tc,
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
