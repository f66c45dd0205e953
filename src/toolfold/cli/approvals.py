"""`toolfold approvals`: what runs unasked, what would be asked about, and what was decided."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from toolfold.approval.visible import brief, visible
from toolfold.cli.app import FAILED, Invocation, json_option
from toolfold.cli.show import NotFound, as_json, counted, note, out, plain, table

if TYPE_CHECKING:
    from toolfold.approval.station import Preview
    from toolfold.config import Config

_WIDEST = 200


@click.group("approvals")
def command() -> None:
    """See and take back what runs unasked, try a command, read the log."""


@command.command("list")
@json_option
@click.pass_obj
def list_all(invocation: Invocation, as_json_: bool) -> None:
    """List the allow-list, the allowed tools, the deny rules and the mode."""
    config = invocation.config()
    allowed, denied, mode = config.command_allowlist, config.approval.deny, config.approval.mode
    tools = config.approval.allowed_tools
    if as_json_:
        as_json(
            {"mode": mode, "allowed": list(allowed), "allowed_tools": list(tools), "denied": list(denied)}
        )
        return
    out(f"mode: {mode}")
    if allowed:
        rows = ((str(number), visible(entry), _coverage(entry)) for number, entry in enumerate(allowed, 1))
        table("the allow-list", ("#", "never asked about", "what it covers"), rows)
        _warn_of_idle(config)
    else:
        out('the allow-list is empty: an "always" at the prompt adds to it.')
    if tools:
        numbered = enumerate(tools, len(allowed) + 1)
        rows = ((str(number), visible(entry), describe_allowed(entry)) for number, entry in numbered)
        table("allowed tools", ("#", "entry", "what it allows"), rows)
    if denied:
        table("deny rules", ("never run",), ((visible(entry),) for entry in denied))


@command.command("revoke")
@click.argument("entries", nargs=-1)
@click.option("--all", "all_", is_flag=True, help="Take everything back.")
@click.pass_obj
def revoke(invocation: Invocation, entries: tuple[str, ...], all_: bool) -> None:
    """Take back entries of the allow-list and allowed tools: by number, as `list` shows them, or by text.

    Runtimes that are open now notice at the next call.
    """
    from toolfold.approval.allowed_tools import build_allowed_tools
    from toolfold.approval.building import build_allowlist

    config = invocation.config()
    allowlist, tools = build_allowlist(config), build_allowed_tools(config)
    known = (*allowlist.entries, *tools.entries)
    if not entries and not all_:
        raise click.UsageError("name the entries to take back, or use --all")
    chosen = known if all_ else tuple(_entry(text, known) for text in entries)
    for entry in dict.fromkeys(chosen):
        (tools if entry in tools.entries else allowlist).remove(entry)
        out(f"taken back: {plain(visible(entry))}")
    if not chosen:
        out("there was nothing to take back.")


@command.command("allow")
@click.argument("targets", nargs=-1, required=True, metavar="TOOL|SERVER[:KIND]...")
@click.option("--project", "in_project", is_flag=True, help="Only in the current project.")
@click.option("--client", default="", metavar="NAME", help="Only for this client of the gateway.")
@click.pass_obj
def allow(invocation: Invocation, targets: tuple[str, ...], in_project: bool, client: str) -> None:
    """Let tools that declare that they can destroy data run without a question.

    Names a tool or a whole MCP server. KIND is the declared effect; the only one is `destructive`. Everything
    else about a call is judged as before: dangerous commands, protected files, deny rules, changed tools. It
    is written to your own settings, and runtimes that are open now notice at the next call.
    """
    from toolfold.approval.allowed_tools import build_allowed_tools
    from toolfold.cli.allowing import find_targets

    config = invocation.config()
    found = find_targets(invocation, targets, client=client, in_project=in_project)
    build_allowed_tools(config).add(*found)
    for each in found:
        out(f"allowed: {plain(visible(describe_allowed(str(each))))}")
    out(f"take it back with: toolfold approvals revoke {plain(shlex.join(map(str, found)))}")


@command.command("test")
@click.argument("line", metavar="COMMAND")
@click.option("--cwd", help="The folder it would run in.")
@click.option("--backend", help="Where it would run. Default: the configured backend.")
@json_option
@click.pass_context
def test(ctx: click.Context, line: str, cwd: str | None, backend: str | None, as_json_: bool) -> int:
    """Say what would become of a command of the terminal tool. It is not run.

    The exit code is 0 where the command would run unasked, and 1 where it would be asked about or refused.
    """
    invocation: Invocation = ctx.obj
    if backend:
        invocation = invocation.also([f"terminal.backend={backend}"])
    with invocation.runtime() as runtime:
        terminal = runtime.registry.snapshot().find("terminal")
        preview = runtime.approval.preview(line, cwd=cwd, tool=terminal)
    if as_json_:
        as_json(_as_json(preview))
    else:
        _show(preview)
    return 0 if preview.runs_unasked else FAILED


@command.command("log")
@click.option("-n", "--last", default=20, show_default=True, type=click.IntRange(1), help="How many.")
@click.option("--session", help="Only this session's.")
@click.option("--refused", is_flag=True, help="Only what did not run.")
@json_option
@click.pass_obj
def show_log(invocation: Invocation, last: int, session: str | None, refused: bool, as_json_: bool) -> None:
    """Show the newest decisions."""
    from toolfold.approval.building import build_audit

    audit = build_audit(invocation.config())
    wanted = [
        entry
        for entry in audit.entries(None if session or refused else last)
        if session in (None, entry.get("session")) and not (refused and entry.get("allowed"))
    ][-last:]
    if as_json_:
        as_json(wanted)
        return
    if not wanted:
        out(f"no decisions yet in {plain(str(audit.file))}.")
        return
    table(
        counted(len(wanted), "decision"),
        ("when", "what", "found", "ran", "by"),
        (
            (
                _text(entry, "time")[:19],
                f"{_text(entry, 'tool')}: {visible(brief(_text(entry, 'command'), _WIDEST))}",
                " ".join((_text(entry, "category"), _text(entry, "severity"))).strip(),
                "yes" if entry.get("allowed") is True else "no",
                " ".join((_text(entry, "by"), _text(entry, "answer"))).strip(),
            )
            for entry in wanted
        ),
    )
    out(f"the whole log: {plain(str(audit.file))}")


def describe_allowed(entry: str) -> str:
    """What an entry of `approval.allowed_tools` allows, in words."""
    from toolfold.config.allowed_tools import AllowedTool

    allowed = AllowedTool.parse(entry)
    whose = f"the tool {allowed.name}" if allowed.target == "tool" else f"every tool of {allowed.name}"
    client = f", for the client {allowed.client}" if allowed.client else ""
    project = f", in {allowed.project}" if allowed.project else ""
    return visible(f"{whose} may destroy data without a question{client}{project}")


def _coverage(entry: str) -> str:
    """What an entry of the allow-list covers, in words."""
    from toolfold.approval.kinds import KIND, RULE, Kinds, in_words

    if entry.startswith(KIND):
        kind = entry.removeprefix(KIND)
        return f"every {visible(in_words(kind))}: {', '.join(Kinds.shipped().rules_of(kind)) or 'nothing'}"
    if entry.startswith(RULE):
        return "whatever this rule finds"
    return "this call" if entry.startswith("tool:") else "this command"


def _warn_of_idle(config: Config) -> None:
    """Entries that a person counts on in vain. A command may mean something else where it is not run here."""
    from toolfold.approval.building import idle_entries

    if config.terminal.backend != "local":
        return
    numbers = {entry: number for number, entry in enumerate(config.command_allowlist, 1)}
    for entry, why in idle_entries(config).items():
        note(f"[yellow]warning:[/yellow] entry {numbers[entry]} never counts: {plain(visible(why))}")


def _entry(text: str, known: tuple[str, ...]) -> str:
    if text in known:
        return text
    if text.isdecimal() and 0 < int(text) <= len(known):
        return known[int(text) - 1]
    raise NotFound(f"nothing is allowed as {text!r}. `toolfold approvals list` shows what is.")


def _as_json(preview: Preview) -> dict[str, Any]:
    verdict = preview.subject.verdict
    return {
        "command": verdict.command,
        "dangerous": verdict.dangerous,
        "blocked": verdict.blocked,
        "unread": verdict.unread,
        "category": verdict.category,
        "severity": verdict.severity.name.lower() if verdict.severity else None,
        "part": verdict.part,
        "reason": verdict.reason,
        "shape": verdict.shape,
        "findings": [
            {
                "rule": each.rule,
                "category": each.category,
                "severity": each.severity.name.lower(),
                "reason": each.reason,
                "part": verdict.command[slice(*each.span)],
                "blocked": each.blocked,
                "kept_in": each.kept_in,
            }
            for each in verdict.findings
        ],
        "decided_by": preview.station,
        "outcome": preview.outcome,
        "runs_unasked": preview.runs_unasked,
    }


def _show(preview: Preview) -> None:
    verdict = preview.subject.verdict
    colour = {"runs": "green", "asked about": "yellow", "refused": "red"}[preview.outcome]
    out(f"[{colour}]{preview.outcome}[/{colour}], decided by: {plain(preview.station)}")
    if preview.why:
        out(f"  {plain(visible(preview.why))}")
    if verdict.findings:
        table(
            "what was found",
            ("rule", "category", "severity", "why", "part"),
            (
                (
                    each.rule,
                    each.category,
                    each.severity.name.lower(),
                    visible(each.reason),
                    visible(brief(verdict.command[slice(*each.span)], _WIDEST)),
                )
                for each in verdict.findings
            ),
        )
    if verdict.shape:
        out(f"a grant would cover: {plain(visible(brief(verdict.shape, _WIDEST)))}")


def _text(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    return value if isinstance(value, str) else ""
