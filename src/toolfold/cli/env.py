"""`toolfold env`: where commands can run, whether that works, and a shell there.

How a person is told. What a place is and does is in `toolfold.environments`.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from toolfold.cli.app import FAILED, Invocation, json_option
from toolfold.cli.show import SHORT, NotFound, as_json, is_narrow, note, out, plain, table, working
from toolfold.errors import ConfigError, EnvironmentFailed, did_you_mean, nearest, shorten

if TYPE_CHECKING:
    from toolfold.cli.attached import Why
    from toolfold.config import Config
    from toolfold.environments import Environment, Running
    from toolfold.environments.trying import Outcome

TERMINATED = 143
_TASK = "env-shell"

# The person's own shell where the place has it, else the best there is. Not in the place of ours, which
# tells how it ended.
_SHELL = (
    'if [ -n "${SHELL-}" ] && [ -x "$SHELL" ]; then "$SHELL" -i\n'
    "elif command -v bash >/dev/null 2>&1; then bash -i\n"
    "else sh -i; fi"
)


@dataclass(frozen=True, slots=True)
class Listed:
    """One backend, as a person wants to know it."""

    name: str
    available: bool
    configured: bool
    reason: str
    advice: str


@click.group("env")
def command() -> None:
    """See where commands can run, try a place out, open a shell in it."""


@command.command("list")
@json_option
@click.pass_obj
def list_all(invocation: Invocation, as_json_: bool) -> None:
    """List every backend: whether it can be used here, why not, and what to do about it."""
    config = invocation.config()
    with working("looking at every place…"):
        found = asyncio.run(_all(config))
    if as_json_:
        as_json([asdict(each) for each in found])
        return
    show = _list_narrow if is_narrow() else _list_wide
    show("where commands can run", found)
    _advise(config, found)


@command.command("test")
@click.argument("backend", required=False)
@json_option
@click.pass_context
def test(ctx: click.Context, backend: str | None, as_json_: bool) -> int:
    """Try a backend out: reach it, and do in it what a session does.

    The configured one where none is named. The exit code is 0 where all of it worked, and 1 where not.
    """
    config, name = _chosen(ctx.obj, backend)
    environment = _opened(config, name)
    with working(f"trying {name} out…"):
        outcomes = asyncio.run(_tried(environment))
    passed = all(each.passed for each in outcomes)
    if as_json_:
        as_json({"backend": name, "passed": passed, "trials": [asdict(each) for each in outcomes]})
    else:
        _show(name, outcomes, passed=passed)
    return 0 if passed else FAILED


@command.command("shell")
@click.argument("backend", required=False)
@click.pass_context
def shell(ctx: click.Context, backend: str | None) -> int:
    """Open a shell in a backend, on this terminal, where a session's commands begin.

    It is yours: nothing that you do in it is asked about. Its exit code is the exit code of this.
    """
    if not sys.stdin.isatty():
        raise click.ClickException(
            "a shell needs a terminal, and standard input is none. Run this at a terminal; for one command:"
            """ toolfold call terminal '{"command": "…"}'"""
        )
    config, name = _chosen(ctx.obj, backend)
    return asyncio.run(_stay(_opened(config, name)))


def _chosen(invocation: Invocation, backend: str | None) -> tuple[Config, str]:
    from toolfold.environments.choosing import BACKENDS

    config = invocation.config()
    name = (backend or config.terminal.backend).lower()
    if name not in BACKENDS:
        hint = did_you_mean(nearest(name, BACKENDS)) or f" There are: {', '.join(BACKENDS)}."
        raise NotFound(f"there is no backend {name!r}.{hint} `toolfold env list` tells about them.")
    return config, name


def _opened(config: Config, name: str) -> Environment:
    from toolfold.environments import choosing

    return choosing.environment(config, name)


async def _all(config: Config) -> list[Listed]:
    from toolfold.environments.choosing import BACKENDS

    return list(await asyncio.gather(*(_looked_at(config, name) for name in BACKENDS)))


async def _looked_at(config: Config, name: str) -> Listed:
    """A backend that lacks a setting, or a package, is one that cannot be used; the others can."""
    from toolfold.environments.choosing import backend
    from toolfold.environments.trying import looked_at

    configured = config.terminal.backend == name
    try:
        found = await looked_at(backend(config, name).check)
    except (ConfigError, EnvironmentFailed) as error:
        return Listed(name, False, configured, str(error), "`toolfold config set` changes settings.")
    return Listed(name, found.available, configured, found.reason, found.advice)


def _list_wide(title: str, found: list[Listed]) -> None:
    table(
        title,
        ("backend", "usable", "configured", "why not", "what to do"),
        (
            (each.name, _mark(each.available), "←" if each.configured else "", each.reason, each.advice)
            for each in found
        ),
        whole="backend",
    )


def _list_narrow(title: str, found: list[Listed]) -> None:
    table(
        title,
        ("", "backend", "state, and what to do"),
        ((_mark(each.available), each.name, _in_short(each)) for each in found),
        whole="backend",
    )


def _in_short(each: Listed) -> str:
    texts = ("configured" if each.configured else "", shorten(each.reason, SHORT), each.advice)
    return "\n".join(text for text in texts if text)


def _mark(good: bool) -> str:
    return "✓" if good else "✗"


def _advise(config: Config, found: list[Listed]) -> None:
    chosen = config.terminal.backend
    usable = [each.name for each in found if each.available]
    if chosen not in usable:
        others = f" Usable here: {', '.join(usable)}." if usable else ""
        note(
            f"[yellow]warning:[/yellow] {plain(chosen)} is configured and cannot be used, so that no command"
            f" runs.{plain(others)}"
        )
    out("`toolfold env test NAME` tries one out, `toolfold config set terminal.backend NAME` chooses it.")


async def _tried(environment: Environment) -> list[Outcome]:
    from toolfold.environments.trying import Outcome, looked_at, tried

    async with environment:
        ready = await looked_at(environment.backend.check)
        if not ready.available:
            return [Outcome("it can be used", False, 0.0, ready.reason, ready.advice)]
        return [each async for each in tried(environment)]


def _show(name: str, outcomes: list[Outcome], *, passed: bool) -> None:
    if len(outcomes) > 1:  # else nothing was tried, and the line below says why
        table(
            name,
            ("", "what", "#ms", "what went wrong"),
            ((_mark(each.passed), each.what, f"{each.milliseconds:,.0f}", each.problem) for each in outcomes),
        )
    if passed:
        out(f"[green]{plain(name)} works.[/green]")
        return
    failed = next(each for each in outcomes if not each.passed)
    advice = failed.advice or "`toolfold env list` shows what else can be used here."
    out(f"[red]{plain(name)} does not work:[/red] {plain(failed.problem)}")
    out(f"  {plain(advice)}")


async def _stay(environment: Environment) -> int:
    from toolfold.cli.attached import Attached
    from toolfold.environments.trying import looked_at

    async with environment:
        name = environment.backend.name
        ready = await looked_at(environment.backend.check)
        if not ready.available:
            raise EnvironmentFailed(f"{name}: {ready.reason}.", advice=ready.advice)
        terminal = Attached()
        running = await environment.start(_SHELL, task=_TASK, pty=terminal.size)
        where = f"{name}, in {environment.folder(_TASK)}"
        note(f"{plain(where)}. `exit` or Ctrl-D leaves; where it does not answer, Ctrl-] three times.")
        try:
            why = await terminal.stay(running)
        finally:
            await environment.finish(running)
        return _code(why, running, environment)


def _code(why: Why, running: Running, environment: Environment) -> int:
    if why != "over":
        note(f"{why}: the shell, and what it started, was ended.")
        return TERMINATED if why == "told to end" else 0
    if running.ended:
        return running.ended.code
    detail = running.complaint()
    raise EnvironmentFailed(
        f"the shell in {environment.backend.name} ended without a word{': ' + detail if detail else ''}.",
        advice=environment.backend.advice,
    )
