"""Firewalls opened and networks cut off."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shellverdict.effects.scene import Family, Scene
from shellverdict.names import names
from shellverdict.shell.words import EMPTY, Word
from shellverdict.verdict import Effect, Kind

__all__ = ["NETWORKS"]


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


NETWORKS: Family = {
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
}
