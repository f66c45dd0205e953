"""Test an environment by trying each operation that sessions use.

For a user who wants to know whether it works. The full contract is covered by the tests.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from toolfold.core.errors import CallError, EnvironmentFailed
from toolfold.tools.environments.backend import Readiness, TerminalSize
from toolfold.tools.environments.environment import CommandResult, Environment

CHECK_TIMEOUT_S = 20.0
TRIAL_TIMEOUT_S = 60.0
SHORT_TIMEOUT_S = 0.5
SLOW_ADVICE = "The machine may be busy, or the connection slow."


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Result of one step in the trial run of an environment."""

    step: str
    passed: bool
    milliseconds: float
    problem: str = ""
    advice: str = ""


class _TrialFailed(Exception):
    """Raised when a step in the trial run of an environment has an unexpected result."""


async def check_readiness(check: Callable[[], Awaitable[Readiness]]) -> Readiness:
    """Run a backend's self-check; report the backend as not ready if the check fails or times out."""
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await check()
    except TimeoutError:
        return Readiness(False, f"no response within {CHECK_TIMEOUT_S:g} s", "Check that it is running.")
    except EnvironmentFailed as error:
        return Readiness(False, error.problem.rstrip("."), error.advice)


async def run_trials(environment: Environment) -> AsyncIterator[TrialResult]:
    """Open an environment and test its operations one by one; stop if it cannot be opened."""
    trials = _TrialSuite(environment)
    opened = await _run_trial("connect", trials.open())
    yield opened
    if not opened.passed:
        return
    try:
        for what, trial in trials.all():
            yield await _run_trial(what, trial())
    finally:
        await trials.clean_up()


async def _run_trial(step: str, work: Awaitable[None]) -> TrialResult:
    started_at = time.perf_counter()
    problem = advice = ""
    try:
        async with asyncio.timeout(TRIAL_TIMEOUT_S):
            await work
    except TimeoutError:
        problem, advice = f"timed out after {TRIAL_TIMEOUT_S:g} s", SLOW_ADVICE
    except EnvironmentFailed as error:
        problem, advice = error.problem, error.advice
    except (CallError, _TrialFailed) as error:
        problem = str(error)
    return TrialResult(step, not problem, (time.perf_counter() - started_at) * 1000, problem, advice)


class _TrialSuite:
    """Test steps that try out an environment, in a temporary directory inside the environment."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._task = f"trial-{secrets.token_hex(6)}"
        self._directory = ""

    def all(self) -> tuple[tuple[str, Callable[[], Awaitable[None]]], ...]:
        return (
            ("command and exit code", self.exit_code),
            ("standard input", self.input),
            ("directory and variables persist", self.persistence),
            ("time limit", self.time_limit),
            ("terminal", self.terminal),
            ("background process", self.background),
            ("write and read a file", self.file),
        )

    async def open(self) -> None:
        await self._environment.open()
        result = await self._run("mktemp -d")
        _require(result.exit_code == 0, f"`mktemp -d` failed: {_quote_output(result)}")
        self._directory = result.output.strip()

    async def exit_code(self) -> None:
        result = await self._run("echo out; echo err >&2; exit 7")
        _require(result.exit_code == 7, f"the exit code was {result.exit_code}, not 7")
        _require(result.output == "out\nerr\n", f"the output was {_quote_output(result)}")

    async def input(self) -> None:
        stdin = bytes(range(256)) * 256
        result = await self._run("wc -c", stdin=stdin)
        _require(
            result.output.strip() == str(len(stdin)),
            f"of {len(stdin)} bytes the command read {_quote_output(result)}",
        )

    async def persistence(self) -> None:
        await self._run(f"cd {shlex.quote(self._directory)} && export TRIAL=stays")
        result = await self._run('printf "%s %s" "$TRIAL" "$PWD"')
        kept = result.output.startswith("stays ") and result.directory == self._directory
        _require(kept, f"the next command printed {_quote_output(result)}")

    async def time_limit(self) -> None:
        result = await self._run("echo begun; sleep 600", timeout_s=SHORT_TIMEOUT_S)
        _require(result.timed_out, f"the command was not stopped: {_quote_output(result)}")
        _require((await self._run("echo on")).output == "on\n", "the next command failed")

    async def terminal(self) -> None:
        result = await self._run("test -t 0 && test -t 1 && stty size", pty=TerminalSize(31, 97))
        _require(
            result.exit_code == 0 and result.output.split() == ["31", "97"],
            f"the command printed {_quote_output(result)}",
        )

    async def background(self) -> None:
        processes = self._environment.processes
        process = await self._environment.start_process("read -r word; echo $word; exit 5", task=self._task)
        try:
            await processes.write(process.name, b"heard\n", close=False)
            ended = await processes.wait(process.name, TRIAL_TIMEOUT_S / 2)
            output = await processes.read_log(process.name, 0, 1_000)
        finally:
            await processes.kill(process.name)
        _require(
            ended.exit_code == 5 and output == b"heard\n",
            f"the process exited with {ended.exit_code} and wrote {output!r}",
        )

    async def file(self) -> None:
        data, path = secrets.token_bytes(100_000), f"{self._directory}/below/file"
        await self._environment.write_file(path, data, task=self._task)
        back = await self._environment.read_file(path, task=self._task)
        _require(
            back == data, f"{len(data)} bytes were written, but {len(back)} or different ones were read back"
        )

    async def clean_up(self) -> None:
        if self._directory:
            await self._run(f"cd / && rm -rf -- {shlex.quote(self._directory)}")

    async def _run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        timeout_s: float = TRIAL_TIMEOUT_S / 2,
        pty: TerminalSize | None = None,
    ) -> CommandResult:
        return await self._environment.run(
            command, task=self._task, stdin=stdin, timeout_s=timeout_s, pty=pty
        )


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise _TrialFailed(problem)


def _quote_output(result: CommandResult) -> str:
    return repr(result.output[:200]) if result.output else "nothing"
