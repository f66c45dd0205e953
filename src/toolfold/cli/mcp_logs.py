"""`toolfold mcp logs`: show or follow the log of the gateways and the standard error output of servers."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolfold.cli.app import Invocation
from toolfold.cli.output import escape_text, print_line, print_note
from toolfold.cli.server_commands import unknown_server_error
from toolfold.safety.approval.safe_text import make_visible, shorten_middle

if TYPE_CHECKING:
    from toolfold.config import Config

MAX_READ_BYTES = 1 << 20
"""Maximum number of bytes read from the end of a log, and at once while following it."""
MAX_LINES_PER_LOG = 10
"""Number of lines shown of each log if several logs are shown."""
MAX_LINE_CHARS = 2_000
POLL_INTERVAL_S = 0.2
GATEWAY = "gateway"


@click.command("logs", short_help="Show or follow the logs of the gateway and of servers.")
@click.argument("name", required=False)
@click.option(
    "-n", "--last", default=50, show_default=True, type=click.IntRange(1), help="Number of lines to show."
)
@click.option("-f", "--follow", is_flag=True, help="Print new lines until you press Ctrl-C.")
@click.option(
    "--gateway",
    "only_gateway",
    is_flag=True,
    help="Show only the log of the gateway: clients, calls, errors.",
)
@click.option("--path", is_flag=True, help="Print the path of the log file instead of its content.")
@click.pass_obj
def logs(
    invocation: Invocation, name: str | None, last: int, follow: bool, only_gateway: bool, path: bool
) -> None:
    """Show the log of the gateway and the standard error output of servers.

    NAME is a server. Without it, the last lines of the gateway and of every server are shown.
    """
    config = invocation.load_config()
    if name is not None and only_gateway:
        raise click.UsageError("name a server or use --gateway, not both")
    files = _select_logs(config, name, only_gateway, follow=follow)
    if path:
        click.echo(
            next(iter(files.values())) if name or only_gateway else server_log_path(config, "x").parent
        )
        return
    limit = last if len(files) == 1 else min(last, MAX_LINES_PER_LOG)
    followed = [_FollowedLog(label if len(files) > 1 else "", file) for label, file in files.items()]
    with contextlib.ExitStack() as stack:
        for each in followed if follow else ():
            stack.callback(each.close)
            each.start_at_end()
        _print_logs(files, limit, is_single=bool(name or only_gateway))
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop it
            while follow:
                _print_new_lines(followed)
                time.sleep(POLL_INTERVAL_S)


def _select_logs(config: Config, name: str | None, only_gateway: bool, *, follow: bool) -> Mapping[str, Path]:
    """Return the log files to show, by label; missing files are included only if named or with --follow."""
    from toolfold.serving.gateway.log_file import gateway_log_path

    gateway = gateway_log_path(config.paths.state_dir)
    if only_gateway:
        return {GATEWAY: gateway}
    if name is not None:
        if name not in config.mcp.servers and not server_log_path(config, name).is_file():
            raise unknown_server_error(name, config.mcp.servers)
        return {name: server_log_path(config, name)}
    servers = {f"server {each}": server_log_path(config, each) for each in config.mcp.servers}
    return {label: file for label, file in {GATEWAY: gateway, **servers}.items() if follow or file.is_file()}


def _print_logs(files: Mapping[str, Path], limit: int, *, is_single: bool) -> None:
    shown = {label: list(_read_last_lines(file, limit)) for label, file in files.items()}
    for label, lines in shown.items():
        if lines and len(files) > 1:
            print_line(f"[bold]{escape_text(label)}[/bold]")
        for line in lines:
            click.echo(_format_line(line))
        if not lines and is_single:
            print_note(f"{escape_text(label)} has no log output yet.")
    if not is_single and not any(shown.values()):
        print_note("no gateway and no server has any log output yet.")


def _print_new_lines(followed: list[_FollowedLog]) -> None:
    for each in followed:
        for line in each.read_lines():
            click.echo(f"{each.label}: {_format_line(line)}" if each.label else _format_line(line))


def _format_line(line: str) -> str:
    return make_visible(shorten_middle(line, MAX_LINE_CHARS))


def _read_last_lines(file: Path, most: int) -> Iterator[str]:
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - MAX_READ_BYTES))
            text = stream.read(MAX_READ_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return
    yield from text.splitlines()[-most:]


def server_log_path(config: Config, name: str) -> Path:
    return config.paths.state_dir / "mcp" / "logs" / f"{name}.log"


class _FollowedLog:
    """Reads the lines that are added to a log, even if the log file is replaced by a new file."""

    def __init__(self, label: str, file: Path) -> None:
        self.label, self._file = label, file
        self._stream: BufferedReader | None = None
        self._partial = b""

    def start_at_end(self) -> None:
        """Skip the current content of the log file, so that only new lines are read."""
        self._open()
        if self._stream:
            self._stream.seek(0, os.SEEK_END)

    def read_lines(self) -> Iterator[str]:
        """Yield the complete lines that were added since the last call."""
        yield from self._read_open_file()
        if self._is_replaced():
            self.close()
            self._open()
            yield from self._read_open_file()

    def close(self) -> None:
        if self._stream:
            self._stream.close()
        self._stream, self._partial = None, b""

    def _open(self) -> None:
        with contextlib.suppress(OSError):
            self._stream = self._file.open("rb")

    def _is_replaced(self) -> bool:
        try:
            return self._stream is None or not os.path.samestat(
                os.fstat(self._stream.fileno()), self._file.stat()
            )
        except OSError:  # it was renamed, and there is no new file yet
            return False

    def _read_open_file(self) -> Iterator[str]:
        while self._stream and (chunk := self._stream.read(MAX_READ_BYTES)):
            *lines, self._partial = (self._partial + chunk).split(b"\n")
            self._partial = self._partial[-MAX_READ_BYTES:]
            for line in lines:
                yield line.decode("utf-8", "replace")
