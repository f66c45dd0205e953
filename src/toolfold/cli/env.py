"""`toolfold env`: list and test the backends that can run commands, and open a shell in one.

Prints results only; the backends are implemented in `toolfold.tools.environments`.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import EXIT_FAILED, Invocation, json_option
from toolfold.cli.output import (
    NotFound,
    escape_text,
    print_json,
    print_line,
    print_note,
    print_table,
    print_warning,
    show_spinner,
)
from toolfold.core.errors import ConfigError, EnvironmentFailed, closest_names, did_you_mean

if TYPE_CHECKING:
    from toolfold.cli.interactive_terminal import ExitReason
    from toolfold.config import Config
    from toolfold.tools.environments import Environment, RunningCommand
    from toolfold.tools.environments.trials import TrialResult

EXIT_TERMINATED = 143
_TASK = "env-shell"

# Runs the user's own shell if the backend has it, otherwise bash or sh. Not with `exec`, because the outer
# shell reports the exit code.
_SHELL_SCRIPT = (
    'if [ -n "${SHELL-}" ] && [ -x "$SHELL" ]; then "$SHELL" -i\n'
    "elif command -v bash >/dev/null 2>&1; then bash -i\n"
    "else sh -i; fi"
)


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """Availability of a terminal backend, and the reason if the backend cannot be used."""

    name: str
    available: bool
    configured: bool
    reason: str
    advice: str


@click.group("env")
def command() -> None:
    """List the backends that can run commands, test one, open a shell in one."""


@command.command("list", short_help="List the backends and whether they can be used.")
@json_option
@click.pass_obj
def list_backends(invocation: Invocation, as_json: bool) -> None:
    """List every backend: whether it can be used here, why not, and how to fix that."""
    config = invocation.load_config()
    with show_spinner("checking every backend…"):
        found = asyncio.run(_check_backends(config))
    if as_json:
        print_json([asdict(each) for each in found])
        return
    print_table(
        "backends that can run commands",
        ("", "backend", "configured", "reason", "how to fix"),
        (
            (
                _status_symbol(each.available),
                each.name,
                "yes" if each.configured else "",
                each.reason,
                each.advice,
            )
            for each in found
        ),
        no_wrap="backend",
    )
    _print_advice(config, found)


@command.command("test")
@click.argument("backend", required=False)
@json_option
@click.pass_context
def test(ctx: click.Context, backend: str | None, as_json: bool) -> int:
    """Test a backend with the operations that a session uses.

    Without BACKEND, the configured one is tested. The exit code is 0 if every test passes, and 1 otherwise.
    """
    config, name = _select_backend(ctx.obj, backend)
    environment = _open_environment(config, name)
    with show_spinner(f"testing {name}…"):
        outcomes = asyncio.run(_run_trials(environment))
    passed = all(each.passed for each in outcomes)
    if as_json:
        print_json({"backend": name, "passed": passed, "trials": [_trial_as_json(each) for each in outcomes]})
    else:
        _print_outcomes(name, outcomes, passed=passed)
    return 0 if passed else EXIT_FAILED


@command.command("shell", short_help="Open an interactive shell in a backend.")
@click.argument("backend", required=False)
@click.pass_context
def shell(ctx: click.Context, backend: str | None) -> int:
    """Open an interactive shell in a backend, in the directory where a session's commands start.

    Commands that you type in it need no approval. The exit code is that of the shell.
    """
    if not sys.stdin.isatty():
        raise click.ClickException(
            "an interactive shell needs a terminal, but standard input is not one. To run"
            " one command instead:"
            """ toolfold call terminal '{"command": "…"}'"""
        )
    config, name = _select_backend(ctx.obj, backend)
    return asyncio.run(_run_shell(_open_environment(config, name)))


def _select_backend(invocation: Invocation, backend: str | None) -> tuple[Config, str]:
    from toolfold.tools.environments.environment_factory import backend_names

    config = invocation.load_config()
    name = (backend or config.terminal.backend).lower()
    known = backend_names()
    if name not in known:
        hint = did_you_mean(closest_names(name, known)) or f" Known backends: {', '.join(known)}."
        raise NotFound(f"there is no backend {name!r}.{hint} `toolfold env list` describes all backends.")
    return config, name


def _open_environment(config: Config, name: str) -> Environment:
    from toolfold.tools.environments import environment_factory as factory

    return factory.build_environment(config, name)


async def _check_backends(config: Config) -> list[BackendStatus]:
    from toolfold.tools.environments.environment_factory import backend_names

    return list(await asyncio.gather(*(_check_backend(config, name) for name in backend_names())))


async def _check_backend(config: Config, name: str) -> BackendStatus:
    """Return a backend's status; a missing setting or package makes it unavailable."""
    from toolfold.tools.environments.environment_factory import build_backend
    from toolfold.tools.environments.trials import check_readiness

    configured = config.terminal.backend == name
    try:
        found = await check_readiness(build_backend(config, name).check)
    except (ConfigError, EnvironmentFailed) as error:
        return BackendStatus(
            name, False, configured, str(error), "Change the setting with `toolfold config set`."
        )
    return BackendStatus(name, found.available, configured, found.reason, found.advice)


def _status_symbol(good: bool) -> str:
    return "✓" if good else "✗"


def _print_advice(config: Config, found: list[BackendStatus]) -> None:
    chosen = config.terminal.backend
    usable = [each.name for each in found if each.available]
    if chosen not in usable:
        others = f" Usable here: {', '.join(usable)}." if usable else ""
        print_warning(f"the configured backend {chosen} cannot be used, so no command can run.{others}")
    print_line(
        "test one with `toolfold env test NAME`; choose it with `toolfold config set terminal.backend NAME`."
    )


async def _run_trials(environment: Environment) -> list[TrialResult]:
    from toolfold.tools.environments.trials import TrialResult, check_readiness, run_trials

    async with environment:
        ready = await check_readiness(environment.backend.check)
        if not ready.available:
            return [TrialResult("available", False, 0.0, ready.reason, ready.advice)]
        return [each async for each in run_trials(environment)]


def _trial_as_json(trial: TrialResult) -> dict[str, Any]:
    return {
        "what": trial.step,
        "passed": trial.passed,
        "milliseconds": trial.milliseconds,
        "problem": trial.problem,
        "advice": trial.advice,
    }


def _print_outcomes(name: str, outcomes: list[TrialResult], *, passed: bool) -> None:
    if len(outcomes) > 1:  # with one outcome, no test ran, and the line below gives the reason
        print_table(
            name,
            ("", "test", "#ms", "problem"),
            (
                (_status_symbol(each.passed), each.step, f"{each.milliseconds:,.0f}", each.problem)
                for each in outcomes
            ),
        )
    if passed:
        print_line(f"[green]{escape_text(name)} works.[/green]")
        return
    failed = next(each for each in outcomes if not each.passed)
    advice = failed.advice or "`toolfold env list` shows which backends can be used here."
    print_line(f"[red]{escape_text(name)} does not work:[/red] {escape_text(failed.problem)}")
    print_line(f"  {escape_text(advice)}")


async def _run_shell(environment: Environment) -> int:
    from toolfold.cli.interactive_terminal import InteractiveTerminal
    from toolfold.tools.environments.trials import check_readiness

    async with environment:
        name = environment.backend.name
        ready = await check_readiness(environment.backend.check)
        if not ready.available:
            raise EnvironmentFailed(f"{name}: {ready.reason}.", advice=ready.advice)
        terminal = InteractiveTerminal()
        running = await environment.start(_SHELL_SCRIPT, task=_TASK, pty=terminal.size)
        where = f"{name}, in {environment.working_directory(_TASK)}"
        print_note(
            f"{escape_text(where)}. Leave with `exit` or Ctrl-D; if it does not respond,"
            " press Ctrl-] three times."
        )
        try:
            why = await terminal.run_until_exit(running)
        finally:
            await environment.finish(running)
        return _exit_code(why, running, environment)


def _exit_code(why: ExitReason, running: RunningCommand, environment: Environment) -> int:
    if why != "exited":
        print_note(f"{why}: the shell and its processes were terminated.")
        return EXIT_TERMINATED if why == "terminated" else 0
    if running.reported_exit:
        return running.reported_exit.exit_code
    detail = running.error_text()
    raise EnvironmentFailed(
        f"the shell in {environment.backend.name} ended without an exit"
        f" code{': ' + detail if detail else ''}.",
        advice=environment.backend.advice,
    )
