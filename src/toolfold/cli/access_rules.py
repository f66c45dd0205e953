"""Commands that change which toolsets, servers and tools a user or a team may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import click

from toolfold.cli.app import Invocation
from toolfold.cli.output import escape_text, print_line, print_note
from toolfold.errors import UnknownToolset, closest_names
from toolfold.model import MCP_PREFIX
from toolfold.users import Team, User

Account = TypeVar("Account", User, Team)
ChangeAccount = Callable[[Invocation, str, Callable[[Account], Account]], object]
"""Applies a change to the user or team of a name."""

_RULES_HELP = "RULE is a toolset, server:NAME (all tools of an MCP server) or tool:NAME."


def add_rule_commands(group: click.Group, kind: str, change_account: ChangeAccount[Account]) -> None:
    """Add `allow`, `deny` and `unset` to the commands for users or teams."""

    @group.command("allow", help=f"Allow a {kind} to use only what rules allow. {_RULES_HELP}")
    @click.argument("name")
    @click.argument("rules", metavar="RULE...", nargs=-1, required=True)
    @click.pass_obj
    def allow(invocation: Invocation, name: str, rules: tuple[str, ...]) -> None:
        require_known_rules(invocation, rules)
        change_account(invocation, name, lambda each: replace(each, allowed=_merge(each.allowed, rules)))
        print_line(f"the {kind} {escape_text(name)} may use {escape_text(', '.join(rules))}")

    @group.command("deny", help=f"Deny a {kind} the use of tools, whatever allows them. {_RULES_HELP}")
    @click.argument("name")
    @click.argument("rules", metavar="RULE...", nargs=-1, required=True)
    @click.pass_obj
    def deny(invocation: Invocation, name: str, rules: tuple[str, ...]) -> None:
        require_known_rules(invocation, rules)
        change_account(invocation, name, lambda each: replace(each, denied=_merge(each.denied, rules)))
        print_line(f"the {kind} {escape_text(name)} may not use {escape_text(', '.join(rules))}")

    @group.command("unset", help=f"Remove rules of a {kind}, both those that allow and those that deny.")
    @click.argument("name")
    @click.argument("rules", metavar="RULE...", nargs=-1)
    @click.option("--all", "remove_all", is_flag=True, help="Remove all rules.")
    @click.pass_obj
    def unset(invocation: Invocation, name: str, rules: tuple[str, ...], remove_all: bool) -> None:
        if not rules and not remove_all:
            raise click.UsageError("name the rules to remove, or use --all")

        def remove(account: Account) -> Account:
            kept = replace(account, allowed=_without(account.allowed), denied=_without(account.denied))
            if account.allowed and not kept.allowed:
                print_note(f"The {kind} has no rules that allow anything now, so these limit it no longer.")
            return kept

        def _without(known: tuple[str, ...]) -> tuple[str, ...]:
            return () if remove_all else tuple(each for each in known if each not in rules)

        change_account(invocation, name, remove)
        print_line(f"removed the rules of the {kind} {escape_text(name)}")


def require_known_rules(invocation: Invocation, rules: tuple[str, ...]) -> None:
    """Raise UnknownToolset for an unknown toolset or server; only warn about a tool, which may come later."""
    with invocation.open_runtime(behind_gateway=True) as runtime:
        known = runtime.toolsets()
        servers = runtime.config.mcp.servers
        for rule in rules:
            kind, _, name = rule.partition(":")
            if kind == "server" and name not in servers:
                near = closest_names(name, servers)
                raise UnknownToolset(rule, [f"server:{each}" for each in near])
            if kind == "tool" and not known.snapshot.named(name):
                print_note(f"There is no tool {escape_text(repr(name))} now; the rule is stored anyway.")
            if rule.startswith(MCP_PREFIX) and rule.removeprefix(MCP_PREFIX) not in servers:
                toolsets = {f"{MCP_PREFIX}{each}" for each in servers}
                raise UnknownToolset(rule, closest_names(rule, {*toolsets, *known.listing()}))
        known.require([each for each in rules if not each.startswith(("server:", "tool:"))])


def _merge(known: tuple[str, ...], added: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*known, *added)))
