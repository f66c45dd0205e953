"""Commands that change which tools, models and keys of providers a user or a team may use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import click

from toolfold.cli.app import Invocation
from toolfold.cli.output import NotFound, escape_text, print_line, print_note, print_warning
from toolfold.cli.server_commands import unknown_server_error
from toolfold.core.errors import UnknownToolset, closest_names, did_you_mean
from toolfold.core.naming import matches_pattern
from toolfold.core.types import MCP_PREFIX
from toolfold.state.users import Team, User
from toolfold.state.users.access_changes import describe_access_changes
from toolfold.state.users.directory import KEY_RULE, MODEL_RULE, RULE_PREFIXES, select_tool_rules

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.state.users import Directory

MAX_SHOWN_USERS = 10
Account = TypeVar("Account", User, Team)
ChangeAccount = Callable[[Invocation, str, Callable[[Account], Account]], "tuple[Directory, Directory]"]
"""Applies a change to the user or team of a name; returns all users and teams before and after it."""
ChangeRules = Callable[[Invocation, str, Callable[[Account], Account]], "Directory"]
"""Applies a change to the rules of a user or team and prints it; returns all users and teams after it."""

_RULES_HELP = (
    "RULE is a toolset, server:NAME (all tools of an MCP server) or tool:NAME; for the model proxy,"
    " model:PATTERN or key:PROVIDER (your configured key of a model provider; key:* for all)."
)


def add_rule_commands(group: click.Group, kind: str, change_account: ChangeAccount[Account]) -> None:
    """Add the commands `allow`, `deny` and `unset` to the command group for users or teams."""

    def change_rules(invocation: Invocation, name: str, change: Callable[[Account], Account]) -> Directory:
        before, after = change_account(invocation, name, change)
        print_access_changes(before, after)
        return after

    _add_allow_command(group, kind, change_rules)
    _add_deny_command(group, kind, change_rules)
    _add_unset_command(group, kind, change_rules)


def print_access_changes(before: Directory, after: Directory) -> None:
    """Print which tools, models and keys of model providers each user has gained or lost."""
    changes = describe_access_changes(before, after)
    for name, texts in changes[:MAX_SHOWN_USERS]:
        print_note(f"{escape_text(name)} {escape_text('; '.join(texts))}.")
    if len(changes) > MAX_SHOWN_USERS:
        print_note(f"The access of {len(changes) - MAX_SHOWN_USERS} more users changes too.")


def _add_allow_command(group: click.Group, kind: str, change_rules: ChangeRules[Account]) -> None:
    @group.command(
        "allow",
        help=f"Allow a {kind} to use tools, models or keys. As soon as one rule allows a tool, "
        "every tool that no rule allows is refused; the same applies to models and "
        f"keys. {_RULES_HELP}",
    )
    @click.argument("name")
    @click.argument("rules", metavar="RULE...", nargs=-1, required=True)
    @click.pass_obj
    def allow(invocation: Invocation, name: str, rules: tuple[str, ...]) -> None:
        including = require_known_rules(invocation, rules)

        def add(account: Account) -> Account:
            is_first = not select_tool_rules(account.allowed) and bool(select_tool_rules(rules))
            if is_first and kind == "team":
                print_note("From now on, members may use only what they or their teams are allowed.")
            return replace(account, allowed=_merge(account.allowed, rules))

        after = change_rules(invocation, name, add)
        print_line(f"the {kind} {escape_text(name)} is allowed {escape_text(', '.join(rules))}")
        _warn_of_denials(kind, name, rules, after, including)


def _add_deny_command(group: click.Group, kind: str, change_rules: ChangeRules[Account]) -> None:
    @group.command(
        "deny",
        help=f"Deny a {kind} the use of tools, models or keys, even if another rule allows them."
        f" {_RULES_HELP}",
    )
    @click.argument("name")
    @click.argument("rules", metavar="RULE...", nargs=-1, required=True)
    @click.pass_obj
    def deny(invocation: Invocation, name: str, rules: tuple[str, ...]) -> None:
        require_known_rules(invocation, rules)
        change_rules(invocation, name, lambda each: replace(each, denied=_merge(each.denied, rules)))
        print_line(f"the {kind} {escape_text(name)} may not use {escape_text(', '.join(rules))}")


def _add_unset_command(group: click.Group, kind: str, change_rules: ChangeRules[Account]) -> None:
    @group.command(
        "unset",
        help=f"Remove rules that allow or deny a {kind} the use of tools, models or keys. If a rule is both "
        "allowed and denied, both are removed, unless --only names one.",
    )
    @click.argument("name")
    @click.argument("rules", metavar="RULE...", nargs=-1)
    @click.option("--all", "remove_all", is_flag=True, help="Remove all rules.")
    @click.option(
        "--only", type=click.Choice(["allow", "deny"]), help="Remove only rules that allow, or that deny."
    )
    @click.pass_obj
    def unset(
        invocation: Invocation, name: str, rules: tuple[str, ...], remove_all: bool, only: str | None
    ) -> None:
        removed: list[str] = []
        if not rules and not remove_all:
            raise click.UsageError("name the rules to remove, or use --all")

        def remove(account: Account) -> Account:
            allowed: tuple[str, ...] = (
                () if only == "deny" else _select_rules(account.allowed, rules, remove_all)
            )
            denied: tuple[str, ...] = (
                () if only == "allow" else _select_rules(account.denied, rules, remove_all)
            )
            known = {"allow": account.allowed, "deny": account.denied}
            searched = known[only] if only else (*account.allowed, *account.denied)
            _require_existing_rules(f"the {kind} {name}", rules, searched, only or "")
            removed[:] = [*(f"allow {each}" for each in allowed), *(f"deny {each}" for each in denied)]
            kept = replace(
                account,
                allowed=tuple(each for each in account.allowed if each not in allowed),
                denied=tuple(each for each in account.denied if each not in denied),
            )
            if select_tool_rules(account.allowed) and not select_tool_rules(kept.allowed):
                print_note(
                    f"No rule allows the {kind} a tool now, so the {kind} is not limited to allowed tools."
                )
            return kept

        change_rules(invocation, name, remove)
        text = ", ".join(removed) or "no rules"
        print_line(f"removed from the {kind} {escape_text(name)}: {escape_text(text)}")


def _select_rules(known: tuple[str, ...], rules: tuple[str, ...], every: bool) -> tuple[str, ...]:
    return known if every else tuple(each for each in known if each in rules)


def _require_existing_rules(owner: str, rules: tuple[str, ...], known: tuple[str, ...], only: str) -> None:
    """Raise NotFound if one of the rules to remove does not exist."""
    kind = {"allow": "rule that allows", "deny": "rule that denies"}.get(only, "rule")
    for rule in rules:
        if rule not in known:
            near = did_you_mean(closest_names(rule, known))
            raise NotFound(f"{owner} has no {kind} {rule!r}; nothing was removed.{near}")


def _warn_of_denials(
    kind: str, name: str, rules: tuple[str, ...], after: Directory, including: Mapping[str, frozenset[str]]
) -> None:
    """Print a warning for each new allow rule that a deny rule of the user or of a team overrides."""
    levels: list[tuple[str, User | Team]] = (
        [(f"team {name}", team)] if (team := after.teams.get(name)) else []
    )
    if kind == "user":
        levels = after.list_levels(after.require_user(name).id)
    for rule in rules:
        for level, each in levels:
            for denial in each.denied:
                if _includes(denial, rule, including.get(rule, frozenset())):
                    print_warning(
                        f"{rule} is still denied, because {level} denies {denial}, and a denial always wins."
                        f" Remove the denial: toolfold {level.split()[0]} unset {each.name} {denial}"
                        " --only deny"
                    )


def _includes(denial: str, rule: str, including: frozenset[str]) -> bool:
    """Return True if a denial applies to everything that a rule allows."""
    for prefix in (MODEL_RULE, KEY_RULE):
        if rule.startswith(prefix):
            pattern = denial.removeprefix(prefix)
            return denial.startswith(prefix) and matches_pattern(rule.removeprefix(prefix), pattern)
    return denial in {rule, "all"} or denial in including


def require_known_rules(invocation: Invocation, rules: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """Check that rules name known toolsets and servers; map each rule to the broader rules that include it.

    Raises an error if a rule names an unknown toolset or server; prints a note for an unknown tool.
    """
    including: dict[str, frozenset[str]] = {}
    with invocation.open_runtime(behind_gateway=True) as runtime:
        known = runtime.toolsets()
        servers = runtime.config.mcp.servers
        for rule in rules:
            kind, _, name = rule.partition(":")
            if rule.startswith(KEY_RULE) and name != "*":
                _require_known_provider(runtime.config, name)
            if kind == "server" and name not in servers:
                raise unknown_server_error(name, servers)
            if kind == "tool" and "*" in name:
                raise NotFound(
                    f"a rule names one tool; {name!r} is a pattern. Write server:NAME for a server."
                )
            if kind == "server" or rule.startswith(MCP_PREFIX):
                server = name or rule.removeprefix(MCP_PREFIX)
                including[rule] = frozenset({f"server:{server}", f"{MCP_PREFIX}{server}"})
            if kind == "tool" and (tools := known.snapshot.named(name)):
                including[rule] = frozenset({tools[0].toolset, f"server:{tools[0].source.name}"})
            elif kind == "tool":
                near = did_you_mean(closest_names(name, known.snapshot))
                problem = f"There is no tool {name!r} now; the rule is stored anyway.{near}"
                print_note(escape_text(problem))
            if rule.startswith(MCP_PREFIX) and rule.removeprefix(MCP_PREFIX) not in servers:
                toolsets = {f"{MCP_PREFIX}{each}" for each in servers}
                raise UnknownToolset(rule, closest_names(rule, {*toolsets, *known.listing()}))
        known.require([each for each in rules if not each.startswith(RULE_PREFIXES)])
    return including


def _require_known_provider(config: Config, name: str) -> None:
    from toolfold.models.model_names import known_providers

    providers = known_providers(config)
    if name not in providers:
        near = did_you_mean(closest_names(name, providers))
        raise NotFound(
            f"there is no model provider {name!r}.{near} `key:*` stands for all providers; known "
            f"providers: {', '.join(sorted(providers))}."
        )


def _merge(known: tuple[str, ...], added: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*known, *added)))
