"""The command tree and what is common to all commands: options, errors, exit codes."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold import __version__
from toolfold.cli.restricted import restricted
from toolfold.cli.show import NOT_FOUND, note, out, plain
from toolfold.errors import ConfigError, StartedByTool, ToolfoldError, UnknownToolset
from toolfold.provenance import find_tool_call

if TYPE_CHECKING:
    from toolfold.config import Config, Paths
    from toolfold.config.record import SettingsRecord
    from toolfold.gateway.early_answers import EarlyAnswers
    from toolfold.redaction import Redaction
    from toolfold.runtime import Runtime

FAILED, CONFIG, INTERRUPTED = 1, 3, 130
_MAX_ERROR_CHARS = 20_000

COMMANDS = {
    "approvals": "See what runs unasked, try a command, read the log.",
    "call": "Run one tool and print its result.",
    "completion": "Print the completion script for your shell.",
    "config": "Show and change settings.",
    "connect": "Let Claude, Cursor, VS Code, Windsurf, Codex or Goose use Toolfold.",
    "cost": "Compare what each way of showing tools costs, in dollars.",
    "demo": "See what a model would be sent, on a sample of imagined services.",
    "doctor": "See what works, what is slow, what is unsafe, and what to do.",
    "env": "See where commands can run, try a place out, open a shell there.",
    "eval": "Measure how well tools are found, on your own data.",
    "explain": "See what a model is shown for a message, and why.",
    "mcp": "Put MCP servers behind Toolfold: add, import, test and review them.",
    "plugins": "List plugins, and trust a project's.",
    "serve": "Serve all MCP servers as one, over HTTP (stdio: toolfold mcp serve).",
    "search": "Find the tools for a message, and see why.",
    "token": "Make, list and revoke the tokens of the gateway's clients.",
    "tools": "List, inspect and switch tools.",
}

WELCOME = """[bold]toolfold[/bold] {version}: let an agent have every tool and pay only for the ones it needs.

[bold]Try first[/bold]
  toolfold demo                 what a model would be sent, before and after
  toolfold tools list           the tools you have, and why others are missing
  toolfold config show          every setting in force and where it comes from
  toolfold mcp import           take over the MCP servers your programs have
  toolfold connect cursor       let a program use them through Toolfold
  toolfold doctor               what is set up, what answers, what is unsafe

[bold]Commands[/bold]
{commands}

`toolfold COMMAND --help` explains one. `--json` gives any listing to a program.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 bad configuration, 4 no such name,
130 interrupted."""


@dataclass(frozen=True, slots=True)
class Started:
    """The command line as it was given, and what was begun before it was parsed."""

    arguments: tuple[str, ...] = ()
    early: EarlyAnswers | None = None


class Invocation:
    """The options given before the command; loads the configuration when a command needs it."""

    def __init__(
        self,
        overrides: Sequence[str],
        project: Path | None,
        *,
        arguments: Sequence[str] = (),
        early: EarlyAnswers | None = None,
    ) -> None:
        self._overrides, self.project = overrides, project
        self.arguments, self.early = arguments, early
        """The whole command line, and the gateway's answers that were begun before it was read."""
        self._warned = False

    def also(self, overrides: Sequence[str]) -> Invocation:
        """The same with more settings; those given before the command stand behind them."""
        return Invocation([*self._overrides, *overrides], self.project)

    def config(self, *, quiet: bool = False) -> Config:
        """The configuration in force; its warnings are shown once, unless the caller tells of them."""
        from toolfold.config import load

        config = load(overrides=self._overrides, project=self.project)
        redact = _start_logging(config)
        for warning in config.warnings if not (self._warned or quiet) else ():
            note(f"[yellow]warning:[/yellow] {plain(redact(warning))}")
        self._warned = True
        return config

    def runtime(self, **options: Any) -> Runtime:
        """An open runtime with this configuration."""
        from toolfold.runtime import open_runtime

        config = self.config()
        with redirect_stdout(sys.stderr):  # what a plugin prints must not end up in a program's JSON
            return open_runtime(config, **options)

    def record(self) -> SettingsRecord:
        """The record of changed settings, in which changes by these commands are noted."""
        from toolfold.config.record import SettingsRecord

        return SettingsRecord(self.paths().state_dir)

    def paths(self) -> Paths:
        """Where everything lies, without reading any of it."""
        from toolfold.config import locate

        return locate(project=self.project)


class _StderrHandler(logging.Handler):
    """Writes to whatever standard error is now, so that a spinner that is shown moves out of the way."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)


def _start_logging(config: Config) -> Redaction:
    """Let nothing secret reach the log: neither our own records nor those of the libraries below."""
    from toolfold.redaction import Redaction
    from toolfold.redaction.logs import MAX_RECORD_CHARS, RedactingFormatter, redact_uncaught_exceptions

    redact = Redaction(config.secret_values(), longest=MAX_RECORD_CHARS)
    by = " %(name)s" if config.log_level in ("debug", "info") else ""  # of use to those who look for more
    handler = _StderrHandler()
    handler.setFormatter(RedactingFormatter(f"%(levelname)s{by}: %(message)s", redact))
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler])
    redact_uncaught_exceptions(redact)
    return redact


class LazyGroup(click.Group):
    """Loads a command's module when that command is used: `toolfold --help` must be instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"toolfold.cli.{cmd_name}")
        command: click.Command = module.command
        started_by = find_tool_call()
        return restricted(command, cmd_name, started_by) if started_by else command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, invoke_without_command=True)
@click.version_option(__version__, prog_name="toolfold")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting for this run, e.g. tools.rag_top_k=5.",
)
@click.option(
    "--project",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The project's folder. Default: found from the current one.",
)
@click.pass_context
def app(ctx: click.Context, overrides: tuple[str, ...], project: Path | None) -> None:
    """The tool runtime that lets an agent have every tool and pay only for the ones it needs."""
    started: Started = ctx.obj or Started()
    ctx.obj = Invocation(overrides, project, arguments=started.arguments, early=started.early)
    if ctx.invoked_subcommand is None:
        commands = "\n".join(f"  {name:<12} {about}" for name, about in COMMANDS.items())
        out(WELCOME.format(version=__version__, commands=commands))


def run(arguments: Sequence[str], early: EarlyAnswers | None = None) -> int:
    """Run a command line and give its exit code; errors are told to a person, never as a traceback."""
    started = Started(tuple(arguments), early)
    try:
        code = app.main(args=list(arguments), prog_name="toolfold", standalone_mode=False, obj=started)
    except click.exceptions.Abort:
        return _told("interrupted", INTERRUPTED)
    except KeyboardInterrupt:
        return _told("interrupted", INTERRUPTED)
    except click.UsageError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        return _told(error.format_message(), error.exit_code)
    except StartedByTool as error:
        return _told(str(error), FAILED)
    except ConfigError as error:
        return _told(str(error), CONFIG)
    except UnknownToolset as error:
        return _told(str(error), NOT_FOUND)
    except ToolfoldError as error:
        return _told(str(error), FAILED)
    except BrokenPipeError:
        return _closed_pipe()
    return code if isinstance(code, int) else 0


def _told(problem: str, code: int) -> int:
    from toolfold.redaction import Redaction

    note(f"[red]error:[/red] {plain(Redaction(longest=_MAX_ERROR_CHARS)(problem))}")
    return code


def _closed_pipe() -> int:
    """The reader of a pipe went away, as `head` does: end quietly, also when Python flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The `--json` that every listing has."""
    return click.option("--json", "as_json_", is_flag=True, help="Print JSON for a program.")(command)
