"""`toolfold ui`: serve the dashboard alone, and open it in the browser."""

from __future__ import annotations

import asyncio
import html
import os
import subprocess
import sys
import webbrowser
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from toolfold.cli.app import Invocation
from toolfold.cli.output import escape_text, print_note
from toolfold.cli.serve import build_server, make_link, open_listening_socket, print_link
from toolfold.core.loops import make_network_loop

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from pathlib import Path

    from toolfold.config import Config
    from toolfold.runtime.runtime import Runtime
    from toolfold.serving.dashboard.approval_routes import PageApprover
    from toolfold.serving.gateway.http_app import AccessPolicy
    from toolfold.state.database import Database

# The browser must not be a child of this process: what a runtime starts may not answer its approval
# questions. The address is read from a file, because other users can see the arguments of a process.
_DETACHED_OPENER = "import os, sys, webbrowser; os.fork() and os._exit(0); webbrowser.open(sys.argv[1])"
_OPENER_TIMEOUT_S = 10.0


@click.command("ui")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="Port to listen on; 0 for a free port. Default: dashboard.port.",
)
@click.option("--no-browser", is_flag=True, help="Print the link without opening a browser.")
@click.pass_obj
def command(invocation: Invocation, host: str, port: int | None, no_browser: bool) -> None:
    """Show tools, servers, activity and approvals in the browser.

    The printed link can be used once. The dashboard is also part of `toolfold serve`.
    """
    from toolfold.serving.dashboard.approval_routes import make_page_approver

    config = invocation.load_config()
    approver = make_page_approver(config.secret_values(), is_announced=bool(config.approval.ask_by))
    with (
        open_listening_socket(host, config.dashboard.port if port is None else port) as listening,
        _redirect_file(config) as redirect,
        invocation.open_runtime(approver=approver, build_index=True) as runtime,
        suppress(KeyboardInterrupt),  # Ctrl-C is the normal way to stop it
        asyncio.Runner(loop_factory=make_network_loop) as runner,
    ):
        runner.run(_serve(runtime, approver, listening, None if no_browser else redirect))


async def _serve(
    runtime: Runtime, approver: PageApprover, listening: socket.socket, redirect: Path | None
) -> None:
    """Serve the dashboard until the program is stopped; open it in a browser if `redirect` is given."""
    from toolfold.cli.demo import make_dashboard_demo
    from toolfold.serving.dashboard.dashboard import Dashboard
    from toolfold.serving.dashboard.dashboard_app import make_standalone_app

    host, port = listening.getsockname()[:2]
    policy = _make_policy(runtime.config, host, runtime.database)
    app = Dashboard(runtime, approver, demo=make_dashboard_demo()).make_app(
        policy, port=port, print_link=lambda code: print_link(host, port, code)
    )

    def on_ready() -> None:
        print_link(host, port, app.sign_in.create_code())
        if redirect is not None:
            _open_browser(make_link(host, port, app.sign_in.create_code()), redirect)
        print_note("Press Ctrl-C to stop.")

    runtime.watch_settings()
    await build_server(make_standalone_app(app), on_ready).serve([listening])


def _make_policy(config: Config, host: str, database: Database | None) -> AccessPolicy:
    from toolfold.serving.gateway.client_tokens import open_tokens
    from toolfold.serving.gateway.http_app import make_access_policy

    tokens = open_tokens(config, database)
    return make_access_policy(host, tokens, toolsets=None, hosts=config.gateway.hosts, origins=())


@contextmanager
def _redirect_file(config: Config) -> Iterator[Path]:
    """Yield the path of a file, readable by the user only, that redirects the browser to the dashboard."""
    from toolfold.config.atomic import make_private_directory

    folder = config.paths.state_dir / "dashboard"
    make_private_directory(folder)
    file = folder / f"open-{os.getpid()}.html"
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


def _open_browser(link: str, file: Path) -> None:
    from toolfold.config.atomic import replace_file

    refresh = f'<meta http-equiv="refresh" content="0;url={html.escape(link)}">'
    page = f'<!doctype html><meta charset="utf-8">{refresh}'
    try:
        replace_file(file, page.encode(), mode=0o600)
        if not hasattr(os, "fork"):
            webbrowser.open(file.as_uri())
            return
        subprocess.run(  # noqa: S603 - this program and a file of its own
            [sys.executable, "-c", _DETACHED_OPENER, file.as_uri()],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_OPENER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print_note(escape_text(f"The browser could not be opened ({error}); open the link yourself."))
