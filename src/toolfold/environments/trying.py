"""Tries a place out: does in it, once, what a session will do in it every day.

For the person who wants to know whether it works. What the contract promises in full is for the tests to
prove.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from toolfold.environments.backend import Readiness, Size
from toolfold.environments.environment import Completed, Environment
from toolfold.errors import CallError, EnvironmentFailed

CHECK_SECONDS = 20.0
TRIAL_SECONDS = 60.0
LIMIT_SECONDS = 0.5
SLOW = "Is the machine busy, or the way to it slow?"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one trial."""

    what: str
    passed: bool
    milliseconds: float
    problem: str = ""
    advice: str = ""


class _Unexpected(Exception):
    """Something worked otherwise than it should."""


async def looked_at(check: Callable[[], Awaitable[Readiness]]) -> Readiness:
    """Whether a backend can be used. One that does not say in time, or fails to say, cannot."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await check()
    except TimeoutError:
        return Readiness(False, f"it does not answer within {CHECK_SECONDS:g} s", "Is it running?")
    except EnvironmentFailed as error:
        return Readiness(False, error.problem.rstrip("."), error.advice)


async def tried(environment: Environment) -> AsyncIterator[Outcome]:
    """Open a place and try it out, one thing after the other. Stops where it cannot be opened."""
    trials = _Trials(environment)
    opened = await _timed("reach it", trials.open())
    yield opened
    if not opened.passed:
        return
    try:
        for what, trial in trials.all():
            yield await _timed(what, trial())
    finally:
        await trials.tidy()


async def _timed(what: str, work: Awaitable[None]) -> Outcome:
    began = time.perf_counter()
    problem = advice = ""
    try:
        async with asyncio.timeout(TRIAL_SECONDS):
            await work
    except TimeoutError:
        problem, advice = f"it took longer than {TRIAL_SECONDS:g} s", SLOW
    except EnvironmentFailed as error:
        problem, advice = error.problem, error.advice
    except (CallError, _Unexpected) as error:
        problem = str(error)
    return Outcome(what, not problem, (time.perf_counter() - began) * 1000, problem, advice)


class _Trials:
    """All of them, in a folder of their own in the place."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._task = f"trial-{secrets.token_hex(6)}"
        self._folder = ""

    def all(self) -> tuple[tuple[str, Callable[[], Awaitable[None]]], ...]:
        return (
            ("a command and its exit code", self.exit_code),
            ("what it reads", self.input),
            ("folder and variables stay", self.stays),
            ("the time limit ends it", self.limit),
            ("a terminal of its own", self.terminal),
            ("a background process", self.background),
            ("a file, there and back", self.file),
        )

    async def open(self) -> None:
        await self._environment.open()
        done = await self._run("mktemp -d")
        _expect(done.code == 0, f"no folder could be made there: {_said(done)}")
        self._folder = done.output.strip()

    async def exit_code(self) -> None:
        done = await self._run("echo out; echo err >&2; exit 7")
        _expect(done.code == 7, f"the exit code was {done.code}, not 7")
        _expect(done.output == "out\nerr\n", f"its output was {_said(done)}")

    async def input(self) -> None:
        given = bytes(range(256)) * 256
        done = await self._run("wc -c", given=given)
        _expect(done.output.strip() == str(len(given)), f"of {len(given)} bytes it read {_said(done)}")

    async def stays(self) -> None:
        await self._run(f"cd {shlex.quote(self._folder)} && export TRIAL=stays")
        done = await self._run('printf "%s %s" "$TRIAL" "$PWD"')
        there = done.output.startswith("stays ") and done.folder == self._folder
        _expect(there, f"the next command said {_said(done)}")

    async def limit(self) -> None:
        done = await self._run("echo begun; sleep 600", seconds=LIMIT_SECONDS)
        _expect(done.timed_out, f"it went on: {_said(done)}")
        _expect((await self._run("echo on")).output == "on\n", "the next command did not work")

    async def terminal(self) -> None:
        done = await self._run("test -t 0 && test -t 1 && stty size", pty=Size(31, 97))
        _expect(done.code == 0 and done.output.split() == ["31", "97"], f"it said {_said(done)}")

    async def background(self) -> None:
        processes = self._environment.processes
        process = await self._environment.start_process("read -r word; echo $word; exit 5", task=self._task)
        try:
            await processes.write(process.name, b"heard\n", close=False)
            ended = await processes.wait(process.name, TRIAL_SECONDS / 2)
            said = await processes.log(process.name, 0, 1_000)
        finally:
            await processes.kill(process.name)
        _expect(ended.code == 5 and said == b"heard\n", f"it ended with {ended.code} and wrote {said!r}")

    async def file(self) -> None:
        data, path = secrets.token_bytes(100_000), f"{self._folder}/below/file"
        await self._environment.write_file(path, data, task=self._task)
        back = await self._environment.read_file(path, task=self._task)
        _expect(back == data, f"{len(data)} bytes were written, {len(back)} or others were read")

    async def tidy(self) -> None:
        if self._folder:
            await self._run(f"cd / && rm -rf -- {shlex.quote(self._folder)}")

    async def _run(
        self, command: str, *, given: bytes = b"", seconds: float = TRIAL_SECONDS / 2, pty: Size | None = None
    ) -> Completed:
        return await self._environment.run(command, task=self._task, given=given, seconds=seconds, pty=pty)


def _expect(right: bool, problem: str) -> None:
    if not right:
        raise _Unexpected(problem)


def _said(done: Completed) -> str:
    return repr(done.output[:200]) if done.output else "nothing"
