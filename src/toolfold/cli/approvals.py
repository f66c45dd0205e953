"""`toolfold approvals`: manage what runs without approval, check a command, and show the log."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import EXIT_FAILED, Invocation, json_option
from toolfold.cli.output import (
    NotFound,
    escape_text,
    format_count,
    print_json,
    print_line,
    print_table,
    print_warning,
)
from toolfold.cli.shared_database import use_database
from toolfold.safety.approval.safe_text import make_visible, shorten_middle

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.safety.approval.gate import ApprovalPreview

_MAX_CELL_CHARS = 200
_OUTCOMES = {
    "runs": ("green", "runs"),
    "asked about": ("yellow", "needs approval"),
    "refused": ("red", "refused"),
}


@click.group("approvals")
def command() -> None:
    """Manage what runs without approval, check a command, read the log."""


@command.command("list", short_help="List what runs without approval, and the deny rules.")
@json_option
@click.pass_obj
def list_approvals(invocation: Invocation, as_json: bool) -> None:
    """List the approval mode, allowed commands, allowed tools and deny rules."""
    config = invocation.load_config()
    allowed, denied, mode = config.command_allowlist, config.approval.deny, config.approval.mode
    tools = config.approval.allowed_tools
    if as_json:
        print_json(
            {"mode": mode, "allowed": list(allowed), "allowed_tools": list(tools), "denied": list(denied)}
        )
        return
    print_line(f"mode: {mode}")
    if allowed:
        rows = (
            (str(number), make_visible(entry), _describe_coverage(entry))
            for number, entry in enumerate(allowed, 1)
        )
        print_table("allowed commands", ("#", "entry", "runs without approval"), rows)
        _warn_about_unused_entries(config)
    else:
        print_line('no commands are allowed permanently. Answering "always" at an approval prompt adds one.')
    if tools:
        numbered = enumerate(tools, len(allowed) + 1)
        rows = ((str(number), make_visible(entry), describe_allowed(entry)) for number, entry in numbered)
        print_table("allowed tools", ("#", "entry", "runs without approval"), rows)
    if denied:
        print_table("deny rules", ("commands that never run",), ((make_visible(entry),) for entry in denied))


@command.command("revoke", short_help="Remove allowed commands or tools.")
@click.argument("entries", nargs=-1)
@click.option("--all", "all_", is_flag=True, help="Remove all entries.")
@click.pass_obj
def revoke(invocation: Invocation, entries: tuple[str, ...], all_: bool) -> None:
    """Remove entries from the allowed commands and tools, by their number in `list` or by their text.

    Open runtimes apply the change at the next call.
    """
    from toolfold.safety.approval.allowed_tools import build_allowed_tools
    from toolfold.safety.approval.approval_factory import build_allowlist

    config = invocation.load_config()
    allowlist, tools = build_allowlist(config), build_allowed_tools(config)
    known = (*allowlist.entries, *tools.entries)
    if not entries and not all_:
        raise click.UsageError("name the allow-list entries to remove, or use --all")
    chosen = known if all_ else tuple(_resolve_entry(text, known) for text in entries)
    for entry in dict.fromkeys(chosen):
        (tools if entry in tools.entries else allowlist).remove(entry)
        print_line(f"removed: {escape_text(make_visible(entry))}")
    if not chosen:
        print_line("there is nothing to remove.")


@command.command("allow", short_help="Let destructive tools run without approval.")
@click.argument("targets", nargs=-1, required=True, metavar="TOOL|SERVER[:KIND]...")
@click.option("--project", "in_project", is_flag=True, help="Allow the tools only in the current project.")
@click.option(
    "--client", default="", metavar="NAME", help="Allow the tools only for this client of the gateway."
)
@click.pass_obj
def allow(invocation: Invocation, targets: tuple[str, ...], in_project: bool, client: str) -> None:
    """Allow tools that declare destructive effects to run without approval.

    Name a tool or a whole MCP server. KIND is the declared effect; the only one is `destructive`. All other
    checks still apply: dangerous commands, protected files, deny rules and changed tools. The entry is
    written to your own settings, and open runtimes apply it at the next call.
    """
    from toolfold.cli.allow_tools import find_targets
    from toolfold.safety.approval.allowed_tools import build_allowed_tools

    config = invocation.load_config()
    found = find_targets(invocation, targets, client=client, in_project=in_project)
    build_allowed_tools(config).add(*found)
    for each in found:
        print_line(f"allowed: {escape_text(make_visible(describe_allowed(str(each))))}")
    print_line(f"to undo, run: toolfold approvals revoke {escape_text(shlex.join(map(str, found)))}")


@command.command("test", short_help="Show whether a command would run, without running it.")
@click.argument("line", metavar="COMMAND")
@click.option("--cwd", help="Working directory of the command.")
@click.option("--backend", help="Backend that would run the command. Default: the setting terminal.backend.")
@json_option
@click.pass_context
def test(ctx: click.Context, line: str, cwd: str | None, backend: str | None, as_json: bool) -> int:
    """Show whether a command of the terminal tool would run, need approval or be refused. It is not run.

    The exit code is 0 if the command would run without approval, and 1 otherwise.
    """
    invocation: Invocation = ctx.obj
    if backend:
        invocation = invocation.with_overrides([f"terminal.backend={backend}"])
    with invocation.open_runtime() as runtime:
        terminal = runtime.registry.snapshot().find("terminal")
        preview = runtime.approval.preview(line, cwd=cwd, tool=terminal)
    if as_json:
        print_json(_preview_as_json(preview))
    else:
        _print_preview(preview)
    return 0 if preview.runs_without_approval else EXIT_FAILED


@command.command("log")
@click.option(
    "-n",
    "--last",
    default=20,
    show_default=True,
    type=click.IntRange(1),
    help="Number of approval decisions to show.",
)
@click.option("--session", help="Show only approval decisions of this session.")
@click.option("--refused", is_flag=True, help="Show refused calls only.")
@json_option
@click.pass_obj
def show_log(invocation: Invocation, last: int, session: str | None, refused: bool, as_json: bool) -> None:
    """Show the latest approval decisions."""
    from toolfold.safety.approval.approval_factory import build_audit

    config = invocation.load_config()
    audit = build_audit(config, use_database(config))
    wanted = [
        entry
        for entry in audit.read_entries(None if session or refused else last)
        if session in (None, entry.get("session")) and not (refused and entry.get("allowed"))
    ][-last:]
    if as_json:
        print_json(wanted)
        return
    if not wanted:
        print_line(f"no decisions are logged yet in {escape_text(audit.place)}.")
        return
    print_table(
        format_count(len(wanted), "decision"),
        ("time", "call", "finding", "ran", "decided by"),
        (
            (
                _get_text(entry, "time")[:19],
                f"{_get_text(entry, 'tool')}: {_format_cell(_get_text(entry, 'command'))}",
                " ".join((_get_text(entry, "category"), _get_text(entry, "severity"))).strip(),
                "yes" if entry.get("allowed") is True else "no",
                " ".join((_get_text(entry, "by"), _get_text(entry, "answer"))).strip(),
            )
            for entry in wanted
        ),
    )
    print_line(f"full log: {escape_text(audit.place)}")


def describe_allowed(entry: str) -> str:
    """Describe in words the tools and effects that an entry of `approval.allowed_tools` allows."""
    from toolfold.config.allowed_tool_entries import AllowedTool

    allowed = AllowedTool.parse(entry)
    subject = f"the tool {allowed.name}" if allowed.target == "tool" else f"every tool of {allowed.name}"
    client = f", for the client {allowed.client}" if allowed.client else ""
    project = f", in {allowed.project}" if allowed.project else ""
    return make_visible(f"{subject} may destroy data without approval{client}{project}")


def _describe_coverage(entry: str) -> str:
    """Describe in words which commands an entry of the command allow-list allows."""
    from toolfold.safety.approval.allowed_kinds import KIND_PREFIX, RULE_PREFIX, FindingKinds, describe_kind

    if entry.startswith(KIND_PREFIX):
        kind = entry.removeprefix(KIND_PREFIX)
        rules = ", ".join(FindingKinds.shipped().rules_of(kind)) or "nothing"
        return f"every {make_visible(describe_kind(kind))}: {rules}"
    if entry.startswith(RULE_PREFIX):
        return "everything that this rule finds"
    return "this call" if entry.startswith("tool:") else "this command"


def _warn_about_unused_entries(config: Config) -> None:
    """Warn about allow-list entries that can never apply, if commands run on the local backend."""
    from toolfold.safety.approval.approval_factory import ineffective_entries

    if config.terminal.backend != "local":
        return
    numbers = {entry: number for number, entry in enumerate(config.command_allowlist, 1)}
    for entry, why in ineffective_entries(config).items():
        print_warning(f"entry {numbers[entry]} never applies: {make_visible(why)}")


def _resolve_entry(text: str, known: tuple[str, ...]) -> str:
    if text in known:
        return text
    if text.isdecimal() and 0 < int(text) <= len(known):
        return known[int(text) - 1]
    raise NotFound(f"there is no allow-list entry {text!r}. `toolfold approvals list` lists all entries.")


def _preview_as_json(preview: ApprovalPreview) -> dict[str, Any]:
    verdict = preview.analysis.verdict
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
                "kept_in": each.confined_to,
            }
            for each in verdict.findings
        ],
        "decided_by": preview.decided_by,
        "outcome": preview.outcome,
        "runs_unasked": preview.runs_without_approval,
    }


def _print_preview(preview: ApprovalPreview) -> None:
    verdict = preview.analysis.verdict
    colour, text = _OUTCOMES[preview.outcome]
    print_line(f"[{colour}]{text}[/{colour}], decided by: {escape_text(preview.decided_by)}")
    if preview.reason:
        print_line(f"  {escape_text(make_visible(preview.reason))}")
    if verdict.findings:
        print_table(
            "findings",
            ("rule", "category", "severity", "reason", "part of the command"),
            (
                (
                    each.rule,
                    each.category,
                    each.severity.name.lower(),
                    make_visible(each.reason),
                    _format_cell(verdict.command[slice(*each.span)]),
                )
                for each in verdict.findings
            ),
        )
    if verdict.shape:
        print_line(f"an approval would cover: {escape_text(_format_cell(verdict.shape))}")


def _format_cell(text: str) -> str:
    return make_visible(shorten_middle(text, _MAX_CELL_CHARS))


def _get_text(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    return value if isinstance(value, str) else ""
