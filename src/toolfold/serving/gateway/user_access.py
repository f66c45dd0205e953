"""Explain in administrator commands and in the log why a user may or may not use a tool.

Evaluates the same rules as a session does, one by one, so that each reason can be named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolfold.core.scope import Scope, Toolsets
from toolfold.core.types import GrantLimit
from toolfold.serving.gateway.client_tokens import GatewayClient
from toolfold.serving.gateway.server import LOCAL_TOOLSETS
from toolfold.state.users import Directory, User
from toolfold.state.users.directory import DENIED_BY_DEFAULT, select_tool_rules


@dataclass(frozen=True, slots=True)
class AccessExplanation:
    """Decision whether a user may use a tool, with all reasons."""

    tool: str
    allowed_by: tuple[str, ...]
    """The rules that allow the user to use the tool."""
    refused_by: tuple[str, ...]
    """Everything that prevents the user from using the tool; empty if the user may use it."""
    tokens: tuple[tuple[str, str], ...] = ()
    """The user's tokens that do not allow the tool, each with the reason."""

    @property
    def is_granted(self) -> bool:
        return not self.refused_by


def explain_access(
    tool: str,
    user: User,
    directory: Directory,
    toolsets: Toolsets,
    configured: frozenset[str],
    clients: Sequence[GatewayClient],
) -> AccessExplanation:
    """Explain why a user may or may not use a registered tool.

    `configured` are the tools that the settings grant, and `clients` are the tokens and logins.
    """
    levels = directory.list_levels(user.id)
    listing = [level for level, each in levels if select_tool_rules(each.allowed)]
    allowed = [
        f"{level} allows {rule}"
        for level, each in levels
        for rule in select_tool_rules(each.allowed)
        if _matches(toolsets, rule, tool)
    ]
    refused = [f"the user {user.name} is disabled"] if user.is_disabled else []
    if tool not in configured:
        refused.append(
            "the settings disable it (tools.disabled, or toolsets). To use it again:"
            f" toolfold tools enable {tool}"
        )
    refused += [
        f"{level} denies {rule}"
        for level, each in levels
        for rule in select_tool_rules(each.denied)
        if _is_denied(toolsets, rule, tool)
    ]
    has_list = bool(listing) or directory.denies_by_default
    if has_list and not allowed:
        why = f"{', '.join(listing)} may use only what is allowed" if listing else DENIED_BY_DEFAULT
        refused.append(f"no rule allows it ({why})")
    own = [each for each in clients if each.user_id == user.id]
    tokens = tuple(_list_token_refusals(own, toolsets, tool, has_list=has_list))
    if not has_list and _is_local(toolsets, tool) and len(tokens) == len(own):
        refused.append("it works on the machine of the gateway, and neither a rule nor a token names it")
    return AccessExplanation(tool, tuple(allowed), tuple(refused), tokens)


def list_refusals(
    tool: str,
    client: GatewayClient,
    directory: Directory,
    toolsets: Toolsets,
    configured: frozenset[str],
) -> list[str]:
    """Return the reasons why a client may not use a tool: rules of its user, teams or token, or settings."""
    user = directory.users.get(client.user_id)
    if user is None:
        rules: tuple[str, ...] = () if tool in configured else ("the settings disable it",)
        tokens = tuple(_list_token_refusals([client], toolsets, tool, has_list=False))
    else:
        found = explain_access(tool, user, directory, toolsets, configured, [client])
        rules, tokens = found.refused_by, found.tokens
    return [*rules, *(reason for _, reason in tokens)]


def _list_token_refusals(
    clients: Sequence[GatewayClient], toolsets: Toolsets, tool: str, *, has_list: bool
) -> Iterator[tuple[str, str]]:
    """Yield the user's tokens that do not allow the tool, each with the reason."""
    for client in clients:
        if any(_is_denied(toolsets, rule, tool) for rule in client.denied):
            yield client.name, "the token denies it"
        elif client.toolsets is None:
            if not has_list and _is_local(toolsets, tool):
                yield client.name, "local tools must be named by a rule or by the token"
        elif not any(_matches(toolsets, rule, tool) for rule in client.toolsets):
            yield client.name, f"the token grants only {', '.join(client.toolsets)}"


def _is_local(toolsets: Toolsets, tool: str) -> bool:
    """Return True if a tool acts on the gateway's own machine and so is not allowed by default."""
    return any(tool in toolsets.resolve(name) for name in LOCAL_TOOLSETS)


def _matches(toolsets: Toolsets, rule: str, tool: str) -> bool:
    return tool in Scope((rule,)).granted(toolsets)


def _is_denied(toolsets: Toolsets, rule: str, tool: str) -> bool:
    limit = GrantLimit(None, (rule,))
    return tool not in Scope(limit.enabled, limit.disabled).granted(toolsets)
