"""Define the command tree and the parts common to all commands: options, errors and exit codes."""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold import __version__
from toolfold.cli.output import EXIT_NOT_FOUND, escape_text, print_note, print_warning
from toolfold.cli.restrictions import restrict_command
from toolfold.core.errors import ConfigError, StartedByTool, ToolfoldError, UnknownAccount, UnknownToolset
from toolfold.core.tool_processes import find_tool_call

if TYPE_CHECKING:
    from toolfold.config import Config, Paths
    from toolfold.config.record import SettingsRecord
    from toolfold.runtime.runtime import Runtime
    from toolfold.safety.redaction import Redaction

EXIT_FAILED, EXIT_BAD_CONFIG, EXIT_INTERRUPTED = 1, 3, 130
MAX_HELP_COLUMNS = 100
_MAX_ERROR_CHARS = 20_000
_SHOW_ALL = "toolfold.show_all"

COMMAND_GROUPS: dict[str, dict[str, str]] = {
    "Start here": {
        "demo": "Show what a model would be sent, with sample tools.",
        "connect": "Make Toolfold the tool server of Claude, Cursor, VS Code, …",
        "doctor": "Check the setup and suggest fixes.",
        "ui": "Open the dashboard in the browser.",
    },
    "Tools": {
        "tools": "List, inspect, enable and disable tools.",
        "search": "Search the tools for a message.",
        "explain": "Show which tools a model is sent for a message, and why.",
        "call": "Run one tool and print its result.",
        "cost": "Compare what the ways to send tools cost, in dollars.",
        "eval": "Measure the quality of tool search.",
        "skills": "List the skills that an agent can read.",
        "enrich": "Write example messages for tools, so that search finds them.",
        "learned": "Show and forget what tool search has learned from use.",
        "plugins": "List, create and trust plugins.",
    },
    "Servers and clients": {
        "mcp": "Add, import, test and review MCP servers.",
        "serve": "Serve all MCP servers as one over HTTP.",
        "token": "Create, list and revoke access tokens of clients.",
        "credentials": "Store credentials of users for MCP servers, encrypted.",
    },
    "Agent": {
        "chat": "Talk to an agent that uses your tools.",
        "run": "Let an agent work on one message, for scripts.",
        "sessions": "List, show, search, export and delete stored sessions.",
        "cron": "Schedule tasks for an agent.",
        "env": "List, test and enter the backends that run commands.",
    },
    "Administration": {
        "config": "Show and change settings.",
        "approvals": "Manage what runs without approval; read the log.",
        "user": "Add, list, disable and remove users of the gateway.",
        "team": "Group users of the gateway into teams.",
        "audit": "Check that the log of approval decisions is unchanged.",
        "store": "Show and move stored state; migrate a shared database.",
        "completion": "Print the completion script for your shell.",
    },
}
RARE_COMMANDS = frozenset(
    {"audit", "completion", "credentials", "enrich", "env", "learned", "plugins", "store", "team"}
)
COMMANDS = {name: about for group in COMMAND_GROUPS.values() for name, about in group.items()}
EXIT_CODES = """Exit codes: 0 success, 1 failed, 2 wrong usage, 3 invalid configuration, 4 name not
found, 130 interrupted."""


class Invocation:
    """The global options of one command line. Loads the configuration when a command needs it."""

    def __init__(self, overrides: Sequence[str], project: Path | None) -> None:
        self._overrides, self.project = overrides, project
        self._warned = self._reviewed = False

    def with_overrides(self, overrides: Sequence[str]) -> Invocation:
        """Return a copy of the invocation with more `--set` overrides, which take precedence."""
        return Invocation([*self._overrides, *overrides], self.project)

    def load_config(self, *, quiet: bool = False) -> Config:
        """Return the effective configuration and print its warnings once; with `quiet`, print none."""
        from toolfold.config import load_config

        if not quiet:
            self._review_changes()
        config = load_config(overrides=self._overrides, project=self.project)
        redact = _start_logging(config)
        for warning in config.warnings if not (self._warned or quiet) else ():
            print_warning(redact(warning))
        self._warned = True
        return config

    def open_runtime(self, **options: Any) -> Runtime:
        """Open a runtime with the effective configuration.

        Its tools have the names that clients of the gateway see. The search index is built on demand, unless
        `build_index` is given.
        """
        from toolfold.runtime.runtime import open_runtime

        config = self.load_config()
        with redirect_stdout(sys.stderr):  # plugins may print; keep that out of --json output
            return open_runtime(config, client_names=True, **{"build_index": False, **options})

    def settings_record(self) -> SettingsRecord:
        """Return the record of changes to settings files, to write such a file."""
        from toolfold.config.record import SettingsRecord

        self._review_changes()
        return SettingsRecord(self.paths().state_dir)

    def _review_changes(self) -> None:
        """Ask once about settings that changed while processes of tool calls ran, if a person can answer."""
        if not self._reviewed and can_prompt_user():
            from toolfold.cli.config_changes import review_changes

            self._reviewed = True
            with suppress(ConfigError):  # whoever needs the record reports it
                review_changes(self.paths().state_dir)

    def paths(self) -> Paths:
        """Return the paths of settings, state and cache without reading any file."""
        from toolfold.config import locate_paths

        return locate_paths(project=self.project)


def can_prompt_user() -> bool:
    """Return True if a person can answer at the terminal, and this process was not started by a tool call."""
    return sys.stdin.isatty() and sys.stderr.isatty() and not find_tool_call()


class _StderrHandler(logging.Handler):
    """Log handler that writes to the current `sys.stderr`, which is replaced while a spinner is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)


def _start_logging(config: Config) -> Redaction:
    """Set up logging so that secrets are removed from all log records."""
    from toolfold.safety.redaction import Redaction
    from toolfold.safety.redaction.logs import (
        MAX_RECORD_CHARS,
        JsonFormatter,
        RedactingFormatter,
        redact_uncaught_exceptions,
    )

    redact = Redaction(config.secret_values(), max_chars=MAX_RECORD_CHARS)
    by = " %(name)s" if config.log_level in ("debug", "info") else ""  # the logger's name helps debugging
    handler = _StderrHandler()
    if config.telemetry.log_format == "json":
        handler.setFormatter(JsonFormatter(redact))
    else:
        handler.setFormatter(RedactingFormatter(f"%(levelname)s{by}: %(message)s", redact))
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler])
    if config.telemetry.log_events:  # whatever the level of other messages is
        from toolfold.runtime.telemetry.event_log import LOGGER_NAME

        logging.getLogger(LOGGER_NAME).setLevel(logging.INFO)
    redact_uncaught_exceptions(redact)
    return redact


class LazyGroup(click.Group):
    """Command group that imports a command's module on first use, which keeps `toolfold --help` fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"toolfold.cli.{cmd_name}")
        command: click.Command = module.command
        started_by = find_tool_call()
        return restrict_command(command, cmd_name, started_by) if started_by else command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand:
            # The group has no loaded commands that click could compare the name with.
            raise click.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx) from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_SHOW_ALL] = "--all" in args  # read before the options: --help ends the command
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        hidden: frozenset[str] = frozenset() if ctx.meta.get(_SHOW_ALL) else RARE_COMMANDS
        for title, commands in COMMAND_GROUPS.items():
            rows = [(f"{name:<{width}}", about) for name, about in commands.items() if name not in hidden]
            with formatter.section(title):
                formatter.write_dl(rows, col_max=12)
        if hidden:
            formatter.write_paragraph()
            names = ", ".join(name for name in COMMANDS if name in hidden)
            formatter.write_text(f"Rarely used (toolfold --help --all): {names}.")


@click.group(cls=LazyGroup, invoke_without_command=True, epilog=EXIT_CODES)
@click.version_option(__version__, prog_name="toolfold")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a setting for this run.",
)
@click.option(
    "--project",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Project directory. Default: detected from the current directory.",
)
@click.option(
    "--all", "show_all", is_flag=True, expose_value=False, help="With --help: also rarely used commands."
)
@click.pass_context
def app(ctx: click.Context, overrides: tuple[str, ...], project: Path | None) -> None:
    """Give an agent access to every tool while sending the model only the tools it needs."""
    ctx.obj = Invocation(overrides, project)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code. Errors are printed as messages, never as tracebacks."""
    try:
        width = min(shutil.get_terminal_size().columns, MAX_HELP_COLUMNS) - 2
        code = app.main(
            args=list(arguments), prog_name="toolfold", standalone_mode=False, terminal_width=width
        )
    except click.exceptions.Abort:
        return _print_error("interrupted", EXIT_INTERRUPTED)
    except KeyboardInterrupt:
        return _print_error("interrupted", EXIT_INTERRUPTED)
    except click.UsageError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        return _print_error(error.format_message(), error.exit_code)
    except StartedByTool as error:
        return _print_error(str(error), EXIT_FAILED)
    except ConfigError as error:
        return _print_error(str(error), EXIT_BAD_CONFIG)
    except (UnknownToolset, UnknownAccount) as error:
        return _print_error(str(error), EXIT_NOT_FOUND)
    except ToolfoldError as error:
        return _print_error(str(error), EXIT_FAILED)
    except BrokenPipeError:
        return _discard_output()
    return code if isinstance(code, int) else 0


def _print_error(problem: str, code: int) -> int:
    from toolfold.safety.redaction import Redaction

    print_note(f"[red]error:[/red] {escape_text(Redaction(max_chars=_MAX_ERROR_CHARS)(problem))}")
    return code


def _discard_output() -> int:
    """Redirect standard output to the null device after its reader has closed the pipe, as `head` does.

    Python flushes standard output at exit and would otherwise print an error.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_FAILED


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the `--json` option to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
