"""Analysed tool calls, for tests of the approval decisions about them."""

from __future__ import annotations

from shellverdict.verdict import Finding, Severity, Verdict
from toolfold.core.authoring import build_tool
from toolfold.core.types import Json, Meaning, Tool
from toolfold.safety.approval.call_analysis import CallAnalysis

SHELL = build_tool(
    name="terminal",
    toolset="terminal",
    schema={"properties": {"command": {"type": "string"}, "workdir": {"type": "string"}}},
    handler=lambda args: args,
    effects=["execute"],
    judged_as={"command": Meaning.COMMAND, "workdir": Meaning.FOLDER},
)


def finding(
    rule: str = "delete-folder",
    *,
    category: str = "fs-delete",
    severity: Severity = Severity.LOW,
    blocked: bool = False,
) -> Finding:
    return Finding(rule, category, severity, f"reason of {rule}", (0, 2), blocked)


def verdict_on(command: str, *findings: Finding, shape: str | None = None, unread: bool = False) -> Verdict:
    return Verdict(command, findings, command if shape is None else shape, unread)


def analysis_of(verdict: Verdict, tool: Tool = SHELL, args: Json | None = None) -> CallAnalysis:
    """Return the analysis of a call with the given verdict; the real analyzer creates the grant keys."""
    from toolfold.safety.approval.call_analysis import CallAnalyzer

    return CallAnalyzer(lambda command, *, cwd=None, variables=None, earlier_files=None: verdict).analyze(
        tool, args or {"command": verdict.command}
    )
