"""Which tools can work right now, and, for people, why the others cannot.

Runs the check functions that tools bring: each once per build however many tools share it, all at the
same time, none longer than the limit. A check that passed a moment ago keeps its tools listed for a short
grace, so that one flap does not change what a model is shown; while the check fails they are not callable.
Knows nothing of scope or models.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from toolfold.errors import error_message, shorten
from toolfold.model import Check, Tool

# Long enough to hold a secret whole: half of one would no longer be known for what it is.
MAX_REASON_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class Status:
    """Whether a tool is listed, and the reason where its check fails."""

    available: bool
    """Whether it is listed: its check passes, or passed within the grace period."""
    reason: str = ""

    @property
    def usable(self) -> bool:
        """Whether it can be called: its check passes."""
        return self.available and not self.reason


@dataclass(frozen=True, slots=True)
class CheckFailures:
    """The tools whose checks fail, each with the reason."""

    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Neither listed nor callable."""
    failing: Mapping[str, str] = field(default_factory=dict)
    """Listed, because the check passed within the grace period, and not callable."""


_AVAILABLE = Status(True)
_NO_FAILURES = CheckFailures()


class _CheckRun:
    """One run of a check function in a thread of its own, which a hang cannot take down with it."""

    def __init__(self, check: Check, limit: float) -> None:
        self._limit = limit
        self._deadline = time.monotonic() + limit
        self._done = threading.Event()
        self._failure = "its check ended without an answer"
        thread = threading.Thread(target=self._run, args=(check,), name="toolfold-check", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the machine has no thread left
            self._finish(f"its check could not be started: {error}")

    def _run(self, check: Check) -> None:
        try:
            self._finish("" if _call_check(check) else "its check said no")
        except BaseException as error:  # a check may raise anything; whatever it is means "unavailable"
            self._finish(
                shorten(f"its check failed: {type(error).__name__}: {error_message(error)}", MAX_REASON_CHARS)
            )

    def _finish(self, failure: str) -> None:
        self._failure = failure
        self._done.set()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def wait_for_failure(self) -> str:
        """Empty where the check passed, a reason where it did not or has not ended in its time."""
        if self._done.wait(max(0.0, self._deadline - time.monotonic())):
            return self._failure
        return f"its check did not end within {self._limit:g} s"


class Availability:
    """Remembers, between builds, when each check last passed and which of them still run."""

    def __init__(
        self,
        *,
        timeout: float = 5.0,
        grace: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        redact: Callable[[str], str] = str,
    ) -> None:
        self._timeout, self._grace, self._clock, self._redact = timeout, grace, clock, redact
        self._lock = threading.Lock()
        self._last_passed: weakref.WeakKeyDictionary[object, float] = weakref.WeakKeyDictionary()
        self._check_runs: weakref.WeakKeyDictionary[object, _CheckRun] = weakref.WeakKeyDictionary()

    def statuses(self, tools: Iterable[Tool]) -> dict[str, Status]:
        """Name → status, for those tools that bring a check; the others are available."""
        tools = list(tools)
        by_check = self._check_statuses(tools)
        return {tool.name: by_check[id(tool.check)] for tool in tools if tool.check is not None}

    def unavailable(self, tools: Sequence[Tool]) -> Mapping[str, str]:
        """Name → reason, for those tools that cannot be listed now."""
        return self.find_failures(tools).unavailable

    def find_failures(self, tools: Sequence[Tool]) -> CheckFailures:
        """Run the checks of these tools and return those that fail."""
        failed = {check: status for check, status in self._check_statuses(tools).items() if not status.usable}
        if not failed:
            return _NO_FAILURES
        statuses = {tool.name: failed[id(tool.check)] for tool in tools if id(tool.check) in failed}
        return CheckFailures(
            {name: status.reason for name, status in statuses.items() if not status.available},
            {name: status.reason for name, status in statuses.items() if status.available},
        )

    def _check_statuses(self, tools: Sequence[Tool]) -> dict[int, Status]:
        """The status of each check there is, by its identity."""
        first_tools: dict[int, Tool] = {}
        for tool in tools:
            if tool.check is not None:
                first_tools.setdefault(id(tool.check), tool)
        keys = {check: _cache_key(tool) for check, tool in first_tools.items()}
        statuses = self._run(
            {keys[id(tool.check)]: tool.check for tool in first_tools.values() if tool.check is not None}
        )
        return {check: statuses[key] for check, key in keys.items()}

    def _run(self, checks: Mapping[object, Check]) -> dict[object, Status]:
        probes = {key: self._start_check(key, check) for key, check in checks.items()}
        return {key: self._evaluate(key, probe) for key, probe in probes.items()}

    def _start_check(self, key: object, check: Check) -> _CheckRun:
        """A new run, or the one still under way: where a check hangs, a second would hang beside it."""
        with self._lock:
            probe = self._check_runs.get(key)
            if probe is None or probe.is_done:
                probe = self._check_runs[key] = _CheckRun(check, self._timeout)
            return probe

    def _evaluate(self, key: object, probe: _CheckRun) -> Status:
        failure = self._redact(
            probe.wait_for_failure()
        )  # a check may raise with a secret, and anyone may read why
        now = self._clock()
        with self._lock:
            if not failure:
                self._last_passed[key] = now
                return _AVAILABLE
            last_good = self._last_passed.get(key)
        if last_good is not None and now - last_good < self._grace:
            return Status(True, f"{failure}; still listed because it passed {now - last_good:.0f} s ago")
        return Status(False, failure)


def _cache_key(tool: Tool) -> object:
    """What a check is remembered by: itself, or, where it cannot be a weak key, the tool that brings it."""
    try:
        hash(tool.check)
        weakref.ref(tool.check)
    except TypeError:
        return tool
    return tool.check


def _call_check(check: Check) -> bool:
    answer = check()
    return bool(asyncio.run(_await_answer(answer)) if inspect.isawaitable(answer) else answer)


async def _await_answer(answer: Awaitable[object]) -> object:
    return await answer
