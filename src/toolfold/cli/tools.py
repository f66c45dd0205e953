"""`toolfold tools`: list, inspect, enable and disable tools; add the operations of an API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.openapi import add_api, remove_api
from toolfold.cli.output import (
    NotFound,
    escape_text,
    format_count,
    print_json,
    print_line,
    print_table,
)
from toolfold.core.errors import closest_names, did_you_mean

if TYPE_CHECKING:
    from toolfold.core.availability import Status
    from toolfold.core.types import Tool
    from toolfold.runtime.runtime import Runtime

AVAILABLE = "available"


@click.group("tools", invoke_without_command=True)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List, inspect, enable and disable tools; add the operations of an API."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_tools, as_json=as_json)


@command.command("list")
@click.option("--toolset", "toolset", help="List only the tools of this toolset.")
@click.option("--toolsets", "toolsets", is_flag=True, help="List toolsets instead of tools.")
@click.option(
    "--all", "show_all", is_flag=True, help="Also list tools that cannot be used now, with the reason."
)
@json_option
@click.pass_obj
def list_tools(
    invocation: Invocation,
    toolset: str | None = None,
    toolsets: bool = False,
    show_all: bool = False,
    as_json: bool = False,
) -> None:
    """List the tools that can be used now."""
    with invocation.open_runtime() as runtime:
        rows = _list_toolset_rows(runtime) if toolsets else _list_tool_rows(runtime, toolset)
    hidden = [] if toolsets or show_all else [row for row in rows if row["state"] != AVAILABLE]
    rows = [row for row in rows if row not in hidden]
    if as_json:
        print_json(rows)
    elif toolsets:
        print_table(
            format_count(len(rows), "toolset"),
            ("toolset", "#tools", "includes", "purpose"),
            ((r["name"], str(len(r["tools"])), ", ".join(r["includes"]), r["description"]) for r in rows),
            no_wrap="toolset",
        )
    else:
        _print_tools([row for row in rows if row["state"] == AVAILABLE])
        _print_reasons(rows)
    if hidden and not as_json:
        more = format_count(len(hidden), "more tool")
        print_line(f"{more} cannot be used now; `toolfold tools list --all` shows why.")


def _print_tools(rows: Sequence[dict[str, Any]]) -> None:
    print_table(
        format_count(len(rows), "tool"),
        ("tool", "toolset", "what it does"),
        ((r["name"], r["toolset"], r["summary"]) for r in rows),
        no_wrap="tool",
    )


def _print_reasons(rows: Sequence[dict[str, Any]]) -> None:
    """Print each reason why tools cannot be used, or are used differently, with the names of these tools."""
    by_state: dict[str, list[str]] = {}
    for row in rows:
        if (state := _format_state(row)) != AVAILABLE:
            by_state.setdefault(state.removeprefix(f"{AVAILABLE} "), []).append(row["name"])
    for state, names in by_state.items():
        print_line(f"{escape_text(state)}:\n  {escape_text(', '.join(names))}")


@command.command("show", short_help="Show one tool: description, schema and token count.")
@click.argument("name")
@json_option
@click.pass_obj
def show_tool(invocation: Invocation, name: str, as_json: bool) -> None:
    """Show one tool: description, requirements, parameter schema and token count."""
    from toolfold.cli.enrich import describe_messages
    from toolfold.cli.learned import describe_learned
    from toolfold.selection.turn import count_tokens

    with invocation.open_runtime() as runtime:
        tool = _find_tool(runtime, name)
        (row,) = _describe_tools(runtime, [tool])
        row |= {"definition": tool.definition()["function"], "tokens": count_tokens([tool.definition()])}
        example = describe_messages(tool, runtime)
        row |= {"messages": example["messages"], "messages_from": example["from"]}
        row["learned"] = describe_learned(tool, runtime)
    if as_json:
        print_json(row)
        return
    print_line(
        f"{escape_text(tool.emoji)} [bold]{tool.name}[/bold]  {escape_text(_format_state(row))}".strip()
    )
    print_line(escape_text(tool.description))
    print_table("", ("", ""), ((label, value) for label, value in _detail_rows(row) if value))
    print_json(tool.parameters)


command.add_command(add_api)
command.add_command(remove_api)


@command.command("disable")
@click.argument("names", nargs=-1, required=True)
@click.pass_obj
def disable(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Disable tools or toolsets in all your sessions."""
    with invocation.open_runtime() as runtime:
        chosen = [_resolve_tool_or_toolset(runtime, name) for name in names]
        _write_disabled(runtime, [*_read_disabled(runtime), *chosen])
    ignored = set(chosen) - set(invocation.load_config().tools.disabled)
    if ignored:
        raise click.ClickException(
            "written to your settings file, but an environment variable or --set overrides it for"
            f" {', '.join(ignored)}"
        )
    print_line(f"disabled: {escape_text(', '.join(chosen))}")


@command.command("enable")
@click.argument("names", nargs=-1, required=True)
@click.pass_obj
def enable(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Enable disabled tools or toolsets again."""
    with invocation.open_runtime() as runtime:
        yours = _read_disabled(runtime)
        for name in names:
            spellings = _spellings(runtime, name)
            if spellings.isdisjoint(yours):
                _raise_cannot_enable(runtime, name)
            yours = [each for each in yours if each not in spellings]
        _write_disabled(runtime, yours)
        chosen = [_find_listed_name(runtime, name) for name in names]
    print_line(f"enabled: {escape_text(', '.join(chosen))}")


def _raise_cannot_enable(runtime: Runtime, name: str) -> None:
    """Raise an error with the reason why `tools enable` has no effect on a tool."""
    listed, spellings = _resolve_tool_or_toolset(runtime, name), _spellings(runtime, name)
    if not spellings.isdisjoint(runtime.config.tools.disabled):
        where = runtime.config.origins.get("tools.disabled", "another source of settings")
        raise click.ClickException(f"{name} is disabled by {where}; change it there")
    if listed in runtime.switched_off():
        raise click.ClickException(f"{name} is disabled because its toolset is disabled; enable the toolset")
    raise click.ClickException(f"{name} is not disabled")


def _read_disabled(runtime: Runtime) -> list[str]:
    from toolfold.config import read_file_value

    return [str(name) for name in read_file_value(runtime.config.paths.user_file, "tools.disabled") or ()]


def _write_disabled(runtime: Runtime, names: Iterable[str]) -> None:
    from toolfold.config import set_value
    from toolfold.config.record import SettingsRecord

    paths = runtime.config.paths
    record = SettingsRecord(paths.state_dir)
    set_value(paths.user_file, "tools.disabled", list(dict.fromkeys(names)), record=record)


def _list_tool_rows(runtime: Runtime, toolset: str | None) -> list[dict[str, Any]]:
    snapshot = runtime.registry.snapshot()
    chosen = set(runtime.resolve_toolset(toolset)) if toolset else set(snapshot)
    return _describe_tools(runtime, [tool for tool in snapshot.ordered if tool.name in chosen])


def _describe_tools(runtime: Runtime, tools: Sequence[Tool]) -> list[dict[str, Any]]:
    statuses = runtime.statuses(tool.name for tool in tools)
    off = runtime.switched_off()
    return [_describe_tool(runtime, tool, statuses[tool.name], off=tool.name in off) for tool in tools]


def _describe_tool(runtime: Runtime, tool: Tool, status: Status, *, off: bool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "toolset": tool.toolset,
        "state": "off" if off else AVAILABLE if status.available else "unavailable",
        "reason": status.reason or ("must be run by the agent" if tool.agent_level else ""),
        "missing_env": list(runtime.config.missing_env(tool.requires_env)),
        "requires_env": list(tool.requires_env),
        "source": str(tool.source),
        "effects": sorted(tool.effects),
        "emoji": tool.emoji,
        "summary": tool.description.split("\n")[0].split(". ")[0].rstrip("."),
    }


def _list_toolset_rows(runtime: Runtime) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name,
            "description": each.description,
            "includes": list(each.includes),
            "tools": runtime.resolve_toolset(each.name),
            "available": runtime.is_toolset_available(each.name),
        }
        for each in runtime.toolsets().listing().values()
    ]


def _format_state(row: dict[str, Any]) -> str:
    missing = [name for name in row["missing_env"] if name not in row["reason"]]
    reasons = "; ".join(
        word for word in (row["reason"], f"set {', '.join(missing)}" if missing else "") if word
    )
    return f"{row['state']} ({reasons})" if reasons else str(row["state"])


def _detail_rows(row: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("toolset", row["toolset"]),
        ("from", row["source"]),
        ("effects", ", ".join(row["effects"])),
        ("needs", ", ".join(row["requires_env"])),
        ("tokens", str(row["tokens"])),
        ("example messages", "\n".join(row["messages"])),
        ("messages from", row["messages_from"]),
        ("learned from use", _format_learned(row["learned"])),
    ]


def _format_learned(learned: dict[str, Any]) -> str:
    """Summarize the learned messages of a tool: their number, clients and last use; empty if none exist."""
    if not learned["messages"]:
        return ""
    clients = format_count(learned["clients"], "client")
    return f"{format_count(learned['messages'], 'message')} of {clients}, last used {learned['last_used']}"


def _find_tool(runtime: Runtime, name: str) -> Tool:
    snapshot = runtime.registry.snapshot()
    tool = snapshot.find(name)
    if tool is None:
        raise NotFound(f"there is no tool {name!r}.{did_you_mean(closest_names(name, snapshot))}")
    return tool


def _find_listed_name(runtime: Runtime, name: str) -> str:
    """Return the name under which `tools list` shows a tool; any other name is returned unchanged."""
    tool = runtime.registry.snapshot().find(name)
    return tool.name if tool and not runtime.toolsets().knows(name) else name


def _spellings(runtime: Runtime, name: str) -> frozenset[str]:
    """Return all names of the tool that has the given name, including that name."""
    tool = runtime.registry.snapshot().find(name)
    return frozenset({name, *(tool.names if tool and not runtime.toolsets().knows(name) else ())})


def _resolve_tool_or_toolset(runtime: Runtime, name: str) -> str:
    """Return the name under which a tool or toolset is listed. Raises NotFound if it does not exist."""
    return name if runtime.toolsets().knows(name) else _find_tool(runtime, name).name
