"""Determine which tools are available now, and why others are unavailable.

Runs the check functions of tools: each once per turn however many tools share it, all in parallel, with a
time limit. A check that passed recently keeps its tools listed for a grace period, so that a brief failure
does not change what a model sees; while it fails they cannot be called. Knows nothing of scope or models.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from toolfold.core.errors import ToolfoldError, error_message, shorten
from toolfold.core.types import Check, Tool

# Long enough for a whole secret: redaction would not recognise half of one.
MAX_REASON_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class Status:
    """Availability of a tool, with the reason if its check fails."""

    available: bool
    """True if the tool is listed: its check passes, or passed within the grace period."""
    reason: str = ""

    @property
    def usable(self) -> bool:
        """Return True if the tool can be called, because its check passes."""
        return self.available and not self.reason


@dataclass(frozen=True, slots=True)
class CheckFailures:
    """Failed availability checks: the tools that cannot be called, each with the reason."""

    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Tools that are neither listed nor callable."""
    failing: Mapping[str, str] = field(default_factory=dict)
    """Tools that are listed, because the check passed within the grace period, but not callable."""


_AVAILABLE = Status(True)
_NO_FAILURES = CheckFailures()


class _CheckRun:
    """A run of a tool's check function, in a separate thread because it may hang."""

    def __init__(self, check: Check, limit: float) -> None:
        self._limit = limit
        self._deadline = time.monotonic() + limit
        self._done = threading.Event()
        self._failure = "its check did not finish"
        thread = threading.Thread(target=self._run, args=(check,), name="toolfold-check", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread can be started
            self._finish(f"its check could not be started: {error}")

    def _run(self, check: Check) -> None:
        try:
            self._finish("" if _call_check(check) else "its check returned false")
        except BaseException as error:  # a check may raise anything, which means "unavailable"
            about = "" if isinstance(error, ToolfoldError) else "its check failed: "
            self._finish(shorten(about + _describe_error(error), MAX_REASON_CHARS))

    def _finish(self, failure: str) -> None:
        self._failure = failure
        self._done.set()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def wait_for_failure(self) -> str:
        """Wait for the check and return the reason for its failure or timeout; empty if it passed."""
        if self._done.wait(max(0.0, self._deadline - time.monotonic())):
            return self._failure
        return f"its check did not end within {self._limit:g} s"


class Availability:
    """Availability of tools: runs their check functions and remembers the last success of each."""

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
        """Return the status of each tool that has a check, by name; tools without a check are left out."""
        tools = list(tools)
        by_check = self._check_statuses(tools)
        return {tool.name: by_check[id(tool.check)] for tool in tools if tool.check is not None}

    def unavailable(self, tools: Sequence[Tool]) -> Mapping[str, str]:
        """Return the tools that are not listed because their checks fail, each with the reason."""
        return self.find_failures(tools).unavailable

    def find_failures(self, tools: Sequence[Tool]) -> CheckFailures:
        """Run the availability checks of tools and return the tools whose checks fail."""
        failed = {check: status for check, status in self._check_statuses(tools).items() if not status.usable}
        if not failed:
            return _NO_FAILURES
        statuses = {tool.name: failed[id(tool.check)] for tool in tools if id(tool.check) in failed}
        return CheckFailures(
            {name: status.reason for name, status in statuses.items() if not status.available},
            {name: status.reason for name, status in statuses.items() if status.available},
        )

    def _check_statuses(self, tools: Sequence[Tool]) -> dict[int, Status]:
        """Run each distinct check function of the tools once; return each status by the function's `id`."""
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
        """Return the running check of a tool, or start a new run if there is none."""
        with self._lock:
            probe = self._check_runs.get(key)
            if probe is None or probe.is_done:
                probe = self._check_runs[key] = _CheckRun(check, self._timeout)
            return probe

    def _evaluate(self, key: object, probe: _CheckRun) -> Status:
        failure = self._redact(probe.wait_for_failure())  # the message of an exception may contain a secret
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
    """Return the cache key of a tool's check: the function or, if it allows no weak reference, the tool."""
    try:
        hash(tool.check)
        weakref.ref(tool.check)
    except TypeError:
        return tool
    return tool.check


def _describe_error(error: BaseException) -> str:
    """Return the message of a check's exception without a final full stop, for embedding in a sentence.

    Toolfold's own errors are written for people; others need the name of their class to be understood.
    """
    message = error_message(error).removesuffix(".")
    return message if isinstance(error, ToolfoldError) else f"{type(error).__name__}: {message}"


def _call_check(check: Check) -> bool:
    answer = check()
    return bool(asyncio.run(_await_answer(answer)) if inspect.isawaitable(answer) else answer)


async def _await_answer(answer: Awaitable[object]) -> object:
    return await answer
