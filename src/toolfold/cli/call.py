"""`toolfold call`: run one tool from the terminal, with the same checks as a model's call."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import click

from toolfold.cli.app import EXIT_FAILED, Invocation, can_prompt_user
from toolfold.cli.output import NotFound
from toolfold.core.errors import closest_names, did_you_mean
from toolfold.core.types import BRIDGE_NAMES

if TYPE_CHECKING:
    from toolfold.runtime.runtime import Runtime


@click.command("call")
@click.argument("name")
@click.argument("arguments", default="{}")
@click.option("--toolset", "toolsets", multiple=True, help="Allow only this toolset. Repeatable.")
@click.pass_obj
def command(invocation: Invocation, name: str, arguments: str, toolsets: tuple[str, ...]) -> int:
    """Run one tool and print its result.

    ARGUMENTS is a JSON object such as '{"path": "README.md"}', or - to read it from standard input. The
    exit code is 1 if the result is an error.
    """
    from toolfold.agent import LocalAgent
    from toolfold.cli.approval_prompt import ApprovalPrompt
    from toolfold.cli.elicitation_prompt import ElicitationPrompt

    text = sys.stdin.read() if arguments == "-" else arguments
    handlers = {"approver": ApprovalPrompt(), "elicit": ElicitationPrompt()} if can_prompt_user() else {}
    with invocation.open_runtime(**handlers) as runtime:
        _require_known_tool(runtime, name)
        session = runtime.session(toolsets or None, agent=LocalAgent())
        with redirect_stdout(sys.stderr):  # standard output is for the result only
            result = session.call_sync(name, text)
    click.echo(result.text)
    return 0 if result.ok else EXIT_FAILED


def _require_known_tool(runtime: Runtime, name: str) -> None:
    """Raise an error with advice for command line users if there is no tool of this name.

    The runtime's own error is written for models.
    """
    snapshot = runtime.registry.snapshot()
    if name not in BRIDGE_NAMES and snapshot.find(name) is None:
        if server := runtime.mcp.find_holding_server(name):
            raise click.ClickException(
                f"{name!r} is held for review and cannot be called yet. Review it with:"
                f" toolfold mcp review {server}"
            )
        near = did_you_mean(closest_names(name, snapshot))
        raise NotFound(f"there is no tool {name!r}.{near} `toolfold tools list` lists all tools.")
