"""`toolfold tools`: which tools there are, whether they can work, and switching them on and off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.show import SHORT, NotFound, as_json, counted, is_narrow, out, plain, table
from toolfold.errors import did_you_mean, nearest, shorten

if TYPE_CHECKING:
    from toolfold.availability import Status
    from toolfold.model import Tool
    from toolfold.runtime import Runtime


@click.group("tools", invoke_without_command=True)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json_: bool) -> None:
    """List, inspect and switch tools."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_tools, as_json_=as_json_)


@command.command("list")
@click.option("--toolset", "toolset", help="Only the tools of this toolset.")
@click.option("--toolsets", "toolsets", is_flag=True, help="List toolsets instead.")
@json_option
@click.pass_obj
def list_tools(
    invocation: Invocation, toolset: str | None = None, toolsets: bool = False, as_json_: bool = False
) -> None:
    """List the tools, whether each can work now, and why not."""
    with invocation.runtime() as runtime:
        rows = _toolset_rows(runtime) if toolsets else _tool_rows(runtime, toolset)
    if as_json_:
        as_json(rows)
    elif toolsets:
        table(
            counted(len(rows), "toolset"),
            ("toolset", "#tools", "includes", "what for"),
            ((r["name"], str(len(r["tools"])), ", ".join(r["includes"]), r["description"]) for r in rows),
            whole="toolset",
        )
    elif is_narrow():
        table(counted(len(rows), "tool"), ("tool", "what it does"), ((r["name"], _in_short(r)) for r in rows))
    else:
        table(
            counted(len(rows), "tool"),
            ("", "tool", "toolset", "state", "what it does"),
            ((r["emoji"], r["name"], r["toolset"], _state_words(r), r["summary"]) for r in rows),
            whole="tool",
        )


@command.command("show")
@click.argument("name")
@json_option
@click.pass_obj
def show_tool(invocation: Invocation, name: str, as_json_: bool) -> None:
    """Show one tool: what it does, what it needs, its schema and what that costs."""
    from toolfold.turn import count_tokens

    with invocation.runtime() as runtime:
        tool = _found(runtime, name)
        (row,) = _rows(runtime, [tool])
        row |= {"definition": tool.definition()["function"], "tokens": count_tokens([tool.definition()])}
    if as_json_:
        as_json(row)
        return
    out(f"{plain(tool.emoji)} [bold]{tool.name}[/bold]  {plain(_state_words(row))}".strip())
    out(plain(tool.description))
    table("", ("", ""), ((label, value) for label, value in _facts(row) if value))
    as_json(tool.parameters)


@command.command("disable")
@click.argument("names", nargs=-1, required=True)
@click.pass_obj
def disable(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Switch tools or toolsets off for every session of yours."""
    with invocation.runtime() as runtime:
        for name in names:
            _require_tool_or_toolset(runtime, name)
        _write_disabled(runtime, [*_disabled_by_you(runtime), *names])
    ignored = set(names) - set(invocation.config().tools.disabled)
    if ignored:
        raise click.ClickException(
            f"written to your file, but a variable or an argument overrules it for {', '.join(ignored)}"
        )
    out(f"switched off: {plain(', '.join(names))}")


@command.command("enable")
@click.argument("names", nargs=-1, required=True)
@click.pass_obj
def enable(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Switch tools or toolsets on again."""
    with invocation.runtime() as runtime:
        yours = _disabled_by_you(runtime)
        for name in names:
            if name not in yours:
                _explain_why_not(runtime, name)
        _write_disabled(runtime, [name for name in yours if name not in names])
    out(f"switched on: {plain(', '.join(names))}")


def _explain_why_not(runtime: Runtime, name: str) -> None:
    """Nothing of yours switches it off: say what does, or that nothing does."""
    _require_tool_or_toolset(runtime, name)
    if name in runtime.config.tools.disabled:
        where = runtime.config.origins.get("tools.disabled", "another layer")
        raise click.ClickException(f"{name} is switched off by {where}; change it there")
    if name in runtime.switched_off():
        raise click.ClickException(f"{name} is off because its toolset is; enable that")
    raise click.ClickException(f"{name} is not switched off")


def _disabled_by_you(runtime: Runtime) -> list[str]:
    from toolfold.config import written_value

    return [str(name) for name in written_value(runtime.config.paths.user_file, "tools.disabled") or ()]


def _write_disabled(runtime: Runtime, names: Iterable[str]) -> None:
    from toolfold.config import set_value
    from toolfold.config.record import SettingsRecord

    paths = runtime.config.paths
    record = SettingsRecord(paths.state_dir)
    set_value(paths.user_file, "tools.disabled", list(dict.fromkeys(names)), record=record)


def _tool_rows(runtime: Runtime, toolset: str | None) -> list[dict[str, Any]]:
    snapshot = runtime.registry.snapshot()
    chosen = set(runtime.resolve_toolset(toolset)) if toolset else set(snapshot)
    return _rows(runtime, [tool for tool in snapshot.ordered if tool.name in chosen])


def _rows(runtime: Runtime, tools: Sequence[Tool]) -> list[dict[str, Any]]:
    statuses = runtime.statuses(tool.name for tool in tools)
    off = runtime.switched_off()
    return [_row(runtime, tool, statuses[tool.name], off=tool.name in off) for tool in tools]


def _row(runtime: Runtime, tool: Tool, status: Status, *, off: bool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "toolset": tool.toolset,
        "state": "off" if off else "available" if status.available else "unavailable",
        "reason": status.reason or ("needs an agent that runs it" if tool.agent_level else ""),
        "missing_env": list(runtime.config.missing_env(tool.requires_env)),
        "requires_env": list(tool.requires_env),
        "source": str(tool.source),
        "effects": sorted(tool.effects),
        "emoji": tool.emoji,
        "summary": tool.description.split("\n")[0].split(". ")[0].rstrip("."),
    }


def _toolset_rows(runtime: Runtime) -> list[dict[str, Any]]:
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


def _state_words(row: dict[str, Any]) -> str:
    missing = f"set {', '.join(row['missing_env'])}" if row["missing_env"] else ""
    reasons = "; ".join(word for word in (row["reason"], missing) if word)
    return f"{row['state']} ({reasons})" if reasons else str(row["state"])


def _in_short(row: dict[str, Any]) -> str:
    """What a tool does, and below that its state, where there is something to say of it."""
    state = _state_words(row)
    summary = shorten(row["summary"], SHORT)
    return summary if state == "available" else f"{summary}\n{state}"


def _facts(row: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("toolset", row["toolset"]),
        ("from", row["source"]),
        ("effects", ", ".join(row["effects"])),
        ("needs", ", ".join(row["requires_env"])),
        ("tokens", str(row["tokens"])),
    ]


def _found(runtime: Runtime, name: str) -> Tool:
    snapshot = runtime.registry.snapshot()
    tool = snapshot.find(name)
    if tool is None:
        raise NotFound(f"there is no tool {name!r}.{did_you_mean(nearest(name, snapshot))}")
    return tool


def _require_tool_or_toolset(runtime: Runtime, name: str) -> None:
    if not runtime.toolsets().knows(name):
        _found(runtime, name)
