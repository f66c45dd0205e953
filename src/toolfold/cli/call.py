"""`toolfold call`: one tool call from the terminal, through the same line as a model's."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import click

from toolfold.cli.app import FAILED, Invocation
from toolfold.cli.show import NotFound
from toolfold.errors import did_you_mean, nearest
from toolfold.model import BRIDGE_NAMES, MCP_PREFIX
from toolfold.provenance import find_tool_call

if TYPE_CHECKING:
    from toolfold.runtime import Runtime


@click.command("call")
@click.argument("name")
@click.argument("arguments", default="{}")
@click.option("--toolset", "toolsets", multiple=True, help="Grant only this toolset (repeatable).")
@click.pass_obj
def command(invocation: Invocation, name: str, arguments: str, toolsets: tuple[str, ...]) -> int:
    """Run one tool and print its result.

    ARGUMENTS is a JSON object such as '{"path": "README.md"}', or - to read it from standard input. The
    exit code is 1 where the result is an error.
    """
    from toolfold.agent import LocalAgent
    from toolfold.cli.prompt import Prompt
    from toolfold.cli.questions import Questions

    text = sys.stdin.read() if arguments == "-" else arguments
    people = {"approver": Prompt(), "elicit": Questions()} if _is_at_users_terminal() else {}
    with invocation.runtime(**people) as runtime:
        _require_known(runtime, name)
        session = runtime.session(toolsets or None, agent=LocalAgent())
        with redirect_stdout(sys.stderr):  # only the result belongs on standard output
            result = session.call_sync(name, text)
    click.echo(result.text)
    return 0 if result.ok else FAILED


def _is_at_users_terminal() -> bool:
    """Whether a person may be asked here. A terminal that a tool call has opened is nobody's."""
    return sys.stdin.isatty() and sys.stderr.isatty() and not find_tool_call()


def _require_known(runtime: Runtime, name: str) -> None:
    """A person is told that a name is wrong; a model would be told to use another tool."""
    snapshot = runtime.registry.snapshot()
    if name not in BRIDGE_NAMES and snapshot.find(name) is None:
        held = (server for server, names in runtime.mcp.awaiting().items() if name in names)
        if server := next(held, "").removeprefix(MCP_PREFIX):
            raise click.ClickException(
                f"{name!r} is held until you have looked at it: toolfold mcp review {server}"
            )
        near = did_you_mean(nearest(name, snapshot))
        raise NotFound(f"there is no tool {name!r}.{near} `toolfold tools list` shows them all.")
