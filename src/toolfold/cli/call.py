"""`toolfold call`: one tool call from the terminal, through the same line as a model's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from toolfold.cli.app import FAILED, Settings

if TYPE_CHECKING:
    from toolfold.model import ApprovalRequest


@click.command("call")
@click.argument("name")
@click.argument("arguments", default="{}")
@click.option("--toolset", "toolsets", multiple=True, help="Grant only this toolset (repeatable).")
@click.pass_obj
def command(settings: Settings, name: str, arguments: str, toolsets: tuple[str, ...]) -> int:
    """Run one tool and print its result.

    ARGUMENTS is a JSON object, or - to read it from standard input. The exit code is 1 where the
    result is an error.
    """
    from toolfold.agent import LocalAgent

    text = sys.stdin.read() if arguments == "-" else arguments
    asked = _ask if sys.stdin.isatty() and sys.stderr.isatty() else None
    with settings.runtime(approver=asked) as runtime:
        session = runtime.session(toolsets or None, agent=LocalAgent())
        session.assemble_for(name)
        result = session.call_sync(name, text)
    click.echo(result.text)
    return 0 if result.ok else FAILED


def _ask(request: ApprovalRequest) -> bool:
    import json

    click.echo(f"{request.reason}.\n  {request.tool.name} {json.dumps(request.args)}", err=True)
    return click.confirm("Run it?", default=False, err=True)
