"""Detect commands that change a firewall or shut down network connections."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shellverdict.effects.run_context import EffectHandlers, RunContext
from shellverdict.names import split_names
from shellverdict.shell.words import EMPTY, Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["NETWORK_HANDLERS"]


def _firewall_effect(context: RunContext, opened: bool) -> CommandEffect:
    return context.new_effect(EffectKind.SERVICE, "firewall", "stopped" if opened else "changed")


def _iptables_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = context.run.argv[1:]
    flushes = split_names("-F --flush -X --delete-chain -P --policy -D --delete")
    changes = split_names("-A --append -I --insert -R --replace -N --new-chain -E --rename-chain")
    if any(word in flushes for word in words):
        yield _firewall_effect(context, opened=True)
    elif any(word in changes for word in words):
        yield _firewall_effect(context, opened=False)


def _iptables_restore_effects(context: RunContext) -> Iterator[CommandEffect]:
    if not context.parse_options().has("-t", "--test", "--help"):
        yield _firewall_effect(context, opened=False)


def _nft_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-f --file -I -D"))
    verb = next(iter(options.operands), EMPTY)
    if options.has("-c", "--check"):
        return
    if verb in ("flush", "delete", "destroy", "reset"):
        yield _firewall_effect(context, opened=True)
    elif verb in ("add", "insert", "create", "replace") or options.has("-f", "--file"):
        yield _firewall_effect(context, opened=False)


def _ufw_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options()
    verb = next((word for word in options.operands if word != "route"), EMPTY)
    if options.has("--dry-run"):
        return
    if verb in ("disable", "reset", "delete"):
        yield _firewall_effect(context, opened=True)
    elif verb in split_names("enable reload allow deny reject limit default insert prepend logging"):
        yield _firewall_effect(context, opened=False)


def _firewalld_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = context.run.argv[1:]
    if any(re.match(r"--(?:remove|panic-on|delete|reset|set-target)", word) for word in words):
        yield _firewall_effect(context, opened=True)
    elif any(re.match(r"--(?:add|set|change|new|direct|reload|complete|lockdown)", word) for word in words):
        yield _firewall_effect(context, opened=False)


def _pfctl_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-F -f -a -t -T -k -K -s -i -p"))
    if options.has("-d", "-F", "-k", "-K"):
        yield _firewall_effect(context, opened=True)
    elif options.has("-f", "-e"):
        yield _firewall_effect(context, opened=False)


def _netsh_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = [word.lower() for word in context.run.argv[1:]]
    if "off" in words or "delete" in words or "reset" in words or "disable" in words:
        yield _firewall_effect(context, opened=True)


def _network_down_effect(context: RunContext, target: Word = EMPTY) -> CommandEffect:
    return context.new_effect(EffectKind.SERVICE, "network-down", "stopped", target=target)


def _ip_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = list(context.parse_options(split_names("-n -netns -f -b")).operands)
    thing, verbs = (words[0], words[1:]) if words else (EMPTY, [])
    takes_down = "down" in verbs and any(v in ("set", "s") for v in verbs)
    loses = bool(verbs) and verbs[0] in ("del", "delete", "flush", "d", "f")
    if thing and (takes_down or (loses and thing[0] in "larnt")):
        yield _network_down_effect(context)


def _ifconfig_effects(context: RunContext) -> Iterator[CommandEffect]:
    if (
        "down" in context.run.argv[2:]
        or "destroy" in context.run.argv[2:]
        or "delete" in context.run.argv[2:]
    ):
        yield _network_down_effect(context)


def _ifdown_effects(context: RunContext) -> Iterator[CommandEffect]:
    if len(context.run.argv) > 1:
        yield _network_down_effect(context)


def _nmcli_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = context.parse_options(split_names("-f --fields -c -m -w")).operands
    if any(word in ("down", "off", "delete", "disconnect") for word in words[1:]):
        yield _network_down_effect(context)


def _route_effects(context: RunContext) -> Iterator[CommandEffect]:
    if any(word in ("del", "delete", "flush") for word in context.run.argv[1:]):
        yield _network_down_effect(context)


def _dhcp_effects(context: RunContext) -> Iterator[CommandEffect]:
    if context.parse_options().has("-r", "-x", "-k", "--release", "--exit"):
        yield _network_down_effect(context)


def _networksetup_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = [word.lower() for word in context.run.argv[1:]]
    if words and words[0].startswith(("-set", "-remove", "-delete")):
        yield _network_down_effect(context)


def _tc_effects(context: RunContext) -> Iterator[CommandEffect]:
    if any(word in ("add", "del", "delete", "replace", "change") for word in context.run.argv[2:4]):
        yield _network_down_effect(context)


def _rfkill_effects(context: RunContext) -> Iterator[CommandEffect]:
    if "block" in context.run.argv[1:]:
        yield _network_down_effect(context)


NETWORK_HANDLERS: EffectHandlers = {
    **dict.fromkeys(
        split_names("iptables ip6tables iptables-legacy iptables-nft ip6tables-legacy arptables ebtables"),
        _iptables_effects,
    ),
    **dict.fromkeys(split_names("iptables-restore ip6tables-restore"), _iptables_restore_effects),
    "nft": _nft_effects,
    "ufw": _ufw_effects,
    "firewall-cmd": _firewalld_effects,
    "pfctl": _pfctl_effects,
    "netsh": _netsh_effects,
    "ip": _ip_effects,
    "ifconfig": _ifconfig_effects,
    "ifdown": _ifdown_effects,
    "nmcli": _nmcli_effects,
    "route": _route_effects,
    "rfkill": _rfkill_effects,
    **dict.fromkeys(split_names("dhclient dhcpcd"), _dhcp_effects),
    "networksetup": _networksetup_effects,
    "tc": _tc_effects,
}
