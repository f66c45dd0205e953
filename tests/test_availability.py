"""Availability checks of tools: a check can only make its own tool unavailable."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from toolfold.core.authoring import build_tool
from toolfold.core.availability import Availability, CheckFailures, Status
from toolfold.core.errors import ConfigError
from toolfold.core.types import Check, Tool
from toolfold.safety.redaction import Redaction


class Clock:
    """Clock that tests set."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class CountingCheck:
    """Check with a settable answer that counts its runs."""

    def __init__(self, answer: object = True) -> None:
        self.answer = answer
        self.runs = 0

    def __call__(self) -> object:
        self.runs += 1
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class HangingCheck:
    """Check that blocks until it is released."""

    def __init__(self) -> None:
        self.runs = 0
        self.started = threading.Event()
        self.released = threading.Event()
        self.threads: list[threading.Thread] = []

    def __call__(self) -> bool:
        self.runs += 1
        self.threads.append(threading.current_thread())
        self.started.set()
        self.released.wait(60)
        return True

    def release(self) -> None:
        self.released.set()
        for thread in self.threads:
            thread.join(60)


@pytest.fixture
def hanging_check() -> Iterator[HangingCheck]:
    check = HangingCheck()
    yield check
    check.release()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def availability(clock: Clock) -> Availability:
    return Availability(timeout=60, grace=30, clock=clock)


def tool(name: str, check: Check | None) -> Tool:
    return build_tool(name=name, toolset="web", schema={}, handler=len, check_fn=check)


def get_status(availability: Availability, check: Check) -> Status:
    return availability.statuses([tool("x", check)])["x"]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for the condition: on a busy machine even a quick check may time out at first."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"


def wait_until_passes(availability: Availability, check: Check) -> None:
    """Wait until the check passes, however busy the machine is."""
    wait_until(lambda: get_status(availability, check) == Status(True))


def no_check_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "toolfold-check":
            thread.join(60)


# Answers


def test_tool_without_an_availability_check_is_available(availability: Availability) -> None:
    tools = [tool("free", None)]
    assert availability.unavailable(tools) == {}
    assert availability.statuses(tools) == {}


@pytest.mark.parametrize("answer", [True, 1, "yes", ["x"]])
def test_tool_is_available_if_its_availability_check_passes(
    availability: Availability, answer: object
) -> None:
    assert get_status(availability, CountingCheck(answer)) == Status(True)


@pytest.mark.parametrize("answer", [False, None, 0, "", []])
def test_tool_is_unavailable_if_its_availability_check_fails(
    availability: Availability, answer: object
) -> None:
    assert get_status(availability, CountingCheck(answer)) == Status(False, "its check returned false")


def test_only_the_tool_with_a_failed_availability_check_is_unavailable(
    availability: Availability,
) -> None:
    tools = [tool("good", CountingCheck()), tool("bad", CountingCheck(False)), tool("free", None)]
    assert availability.unavailable(tools) == {"bad": "its check returned false"}


class OwnBaseException(BaseException):
    pass


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no key"), "its check failed: ValueError: no key"),
        (ConfigError("No target is set. Set one."), "No target is set. Set one"),
        (SystemExit(3), "its check failed: SystemExit: 3"),
        (KeyboardInterrupt(), "its check failed: KeyboardInterrupt: "),
        (GeneratorExit(), "its check failed: GeneratorExit: "),
        (OwnBaseException("odd"), "its check failed: OwnBaseException: odd"),
        (asyncio.CancelledError(), "its check failed: CancelledError: "),
        (UnprintableError(), "its check failed: UnprintableError: (no message)"),
    ],
)
def test_tool_is_unavailable_with_the_exception_as_reason_if_its_availability_check_raises(
    availability: Availability, error: BaseException, reason: str
) -> None:
    assert get_status(availability, CountingCheck(error)) == Status(False, reason)


def test_long_reason_of_a_failed_availability_check_is_truncated(availability: Availability) -> None:
    assert len(get_status(availability, CountingCheck(ValueError("x" * 1_000_000))).reason) < 2_100


class NoTruthValue:
    def __bool__(self) -> bool:
        raise ValueError("neither")


def test_tool_is_unavailable_if_the_truth_value_of_its_check_result_raises(
    availability: Availability,
) -> None:
    assert get_status(availability, NoTruthValue) == Status(False, "its check failed: ValueError: neither")


def test_availability_check_with_required_parameters_makes_only_its_tool_unavailable(
    availability: Availability,
) -> None:
    def wants(key: str) -> bool:
        return bool(key)

    unavailable = availability.unavailable([tool("bad", wants), tool("good", CountingCheck())])  # type: ignore[arg-type]
    assert list(unavailable) == ["bad"]
    assert "TypeError" in unavailable["bad"]


# Asynchronous checks


async def return_true() -> bool:
    await asyncio.sleep(0)
    return True


async def return_false() -> bool:
    await asyncio.sleep(0)
    return False


async def raise_error() -> bool:
    await asyncio.sleep(0)
    raise ConnectionError("down")


class AwaitableTrue:
    """Awaitable that is also truthy like every object."""

    def __await__(self) -> Generator[Any, None, bool]:
        return return_false().__await__()


ASYNC_CHECKS: list[tuple[Callable[[], Awaitable[bool]], Status]] = [
    (return_true, Status(True)),
    (return_false, Status(False, "its check returned false")),
    (raise_error, Status(False, "its check failed: ConnectionError: down")),
    (lambda: return_false(), Status(False, "its check returned false")),
    (AwaitableTrue, Status(False, "its check returned false")),
]


@pytest.mark.parametrize(("check", "expected"), ASYNC_CHECKS)
def test_async_availability_check_is_awaited(
    availability: Availability, check: Callable[[], Awaitable[bool]], expected: Status
) -> None:
    assert get_status(availability, check) == expected


async def test_async_availability_check_is_awaited_even_inside_a_running_event_loop(
    availability: Availability,
) -> None:
    assert get_status(availability, return_true) == Status(True)
    assert not get_status(availability, return_false).available


# Sharing


def test_availability_check_shared_by_many_tools_runs_only_once_per_turn(availability: Availability) -> None:
    check = CountingCheck()
    tools = [tool(f"t{number}", check) for number in range(50)]
    assert len(availability.statuses(tools)) == 50
    assert check.runs == 1
    availability.statuses(tools)
    assert check.runs == 2


def test_result_of_a_shared_availability_check_applies_to_all_its_tools(
    availability: Availability,
) -> None:
    check = CountingCheck(ValueError("down"))
    tools = [tool(f"t{number}", check) for number in range(3)]
    assert availability.unavailable(tools) == dict.fromkeys(
        ("t0", "t1", "t2"), "its check failed: ValueError: down"
    )


class Server:
    def __init__(self) -> None:
        self.runs = 0

    def is_up(self) -> bool:
        self.runs += 1
        return True


def test_bound_method_that_is_the_availability_check_of_two_tools_runs_once_for_both(
    availability: Availability,
) -> None:
    one, other = Server(), Server()
    availability.statuses([tool("a", one.is_up), tool("b", one.is_up), tool("c", other.is_up)])
    assert (one.runs, other.runs) == (1, 1)


def test_different_availability_checks_run_in_parallel(availability: Availability) -> None:
    meeting = threading.Barrier(5)
    tools = [tool(f"t{number}", lambda: meeting.wait(60) >= 0) for number in range(5)]
    assert availability.unavailable(tools) == {}


# Checks that cannot be weak keys


@dataclass
class Unhashable:
    runs: int = 0

    def __call__(self) -> bool:
        self.runs += 1
        return True


class Slotted:
    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self) -> bool:
        self.runs += 1
        return True


class Falsy(Slotted):
    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("kind", [Unhashable, Slotted, Falsy])
def test_unhashable_slotted_or_falsy_callable_can_be_a_shared_availability_check(
    availability: Availability, kind: Callable[[], Unhashable | Slotted]
) -> None:
    check = kind()
    tools = [tool("a", check), tool("b", check), tool("c", CountingCheck(False))]
    assert availability.unavailable(tools) == {"c": "its check returned false"}
    assert check.runs == 1


# Hanging


def test_hanging_availability_check_makes_only_its_tool_unavailable(
    hanging_check: HangingCheck, clock: Clock
) -> None:
    availability = Availability(timeout=0.5, clock=clock)
    tools = [tool("stuck", hanging_check), tool("good", CountingCheck())]
    only_it = {"stuck": "its check did not end within 0.5 s"}
    wait_until(lambda: availability.unavailable(tools) == only_it)


def test_hanging_availability_check_is_started_once_even_if_tool_objects_are_recreated_each_turn(
    hanging_check: HangingCheck, clock: Clock
) -> None:
    availability = Availability(timeout=0.05, clock=clock)
    for _ in range(5):
        assert not get_status(availability, hanging_check).available
    assert hanging_check.started.wait(60)
    assert hanging_check.runs == 1


def test_later_turns_do_not_wait_for_a_hanging_availability_check(
    hanging_check: HangingCheck,
) -> None:
    availability = Availability(timeout=0.05)
    stuck = tool("stuck", hanging_check)
    availability.statuses([stuck])
    finished = threading.Event()

    def build_many_times() -> None:
        for _ in range(3_000):
            availability.statuses([stuck])
        finished.set()

    threading.Thread(target=build_many_times, daemon=True).start()
    assert finished.wait(60)  # it would take 150 s at 0.05 s per build


def test_hanging_availability_check_that_is_an_unhashable_object_is_started_only_once(
    hanging_check: HangingCheck,
) -> None:
    @dataclass
    class Wrapper:
        inner: HangingCheck

        def __call__(self) -> bool:
            return self.inner()

    availability = Availability(timeout=0.05)
    stuck = tool("stuck", Wrapper(hanging_check))
    for _ in range(3):
        assert not availability.statuses([stuck])["stuck"].available
    assert hanging_check.started.wait(60)
    assert hanging_check.runs == 1


def test_tool_becomes_available_when_its_slow_availability_check_finally_passes(
    hanging_check: HangingCheck,
) -> None:
    availability = Availability(timeout=0.2, grace=0)
    assert not get_status(availability, hanging_check).available
    hanging_check.release()
    wait_until_passes(availability, hanging_check)
    assert hanging_check.runs >= 2


def test_concurrent_turns_share_one_run_of_a_slow_availability_check(
    availability: Availability, hanging_check: HangingCheck
) -> None:
    answers: list[Status] = []
    others_turn = threading.Event()

    def build(*checks: Check) -> threading.Thread:
        tools = [tool(f"t{number}", check) for number, check in enumerate(checks)]
        thread = threading.Thread(
            target=lambda: answers.append(availability.statuses(tools)["t0"]), daemon=True
        )
        thread.start()
        return thread

    def comes_after_the_slow_one() -> bool:
        others_turn.set()
        return True

    first = build(hanging_check)
    assert hanging_check.started.wait(60)
    second = build(hanging_check, comes_after_the_slow_one)
    assert others_turn.wait(60)
    hanging_check.released.set()
    for thread in (first, second):
        thread.join(60)
    assert answers == [Status(True), Status(True)]
    assert hanging_check.runs == 1


def test_hanging_availability_check_does_not_block_program_exit() -> None:
    program = """
import threading
from toolfold.core.authoring import build_tool
from toolfold.core.availability import Availability
tool = build_tool(name="x", toolset="t", schema={}, handler=len, check_fn=threading.Event().wait)
print(Availability(timeout=0.05).unavailable([tool]))
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout == "{'x': 'its check did not end within 0.05 s'}\n"
    assert told.stderr == ""


def test_tool_is_unavailable_if_no_thread_can_be_started_for_its_availability_check() -> None:
    program = """
import threading
from toolfold.core.authoring import build_tool
from toolfold.core.availability import Availability
tool = build_tool(name="x", toolset="t", schema={}, handler=len, check_fn=lambda: True)
availability = Availability(timeout=30)
threading.stack_size(1 << 46)
print(availability.unavailable([tool]))
threading.stack_size(0)
print(availability.unavailable([tool]))
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout == "{'x': \"its check could not be started: can't start new thread\"}\n{}\n"


# Grace


def test_tool_whose_check_passed_10_s_ago_and_now_raises_stays_listed_with_the_failure_reason(
    availability: Availability, clock: Clock
) -> None:
    check = CountingCheck()
    assert get_status(availability, check) == Status(True)
    check.answer = ValueError("flap")
    clock.now += 10
    assert get_status(availability, check) == Status(
        True, "its check failed: ValueError: flap; still listed because it passed 10 s ago"
    )


def test_tool_is_listed_but_not_usable_until_the_grace_period_after_a_failed_check_ends(
    availability: Availability, clock: Clock
) -> None:
    check = CountingCheck()
    assert availability.find_failures([tool("x", check)]) == CheckFailures({}, {})
    check.answer = False
    clock.now += 10
    assert not get_status(availability, check).usable
    reason = "its check returned false; still listed because it passed 10 s ago"
    assert availability.find_failures([tool("x", check), tool("y", None)]) == CheckFailures({}, {"x": reason})
    clock.now += 30
    assert availability.find_failures([tool("x", check)]) == CheckFailures(
        {"x": "its check returned false"}, {}
    )


def test_tool_whose_check_keeps_failing_is_unlisted_at_the_end_of_the_grace_period(
    availability: Availability, clock: Clock
) -> None:
    check = CountingCheck()
    get_status(availability, check)
    check.answer = False
    offered = []
    for _ in range(4):
        clock.now += 14
        offered.append(get_status(availability, check).available)
    assert offered == [True, True, False, False]


def test_tool_whose_availability_check_never_passed_is_unavailable_without_a_grace_period(
    availability: Availability,
) -> None:
    check = CountingCheck(False)
    assert not get_status(availability, check).available
    assert not get_status(availability, check).available


def test_tool_is_unavailable_at_its_first_failed_check_if_the_grace_period_is_zero(clock: Clock) -> None:
    availability = Availability(timeout=60, grace=0, clock=clock)
    check = CountingCheck()
    get_status(availability, check)
    check.answer = False
    assert not get_status(availability, check).available


def test_check_that_never_passed_gets_no_grace_period_from_another_passing_check(
    availability: Availability,
) -> None:
    passing, failing = CountingCheck(), CountingCheck(False)
    assert get_status(availability, passing).available
    assert not get_status(availability, failing).available


def test_tool_whose_check_passed_before_and_now_hangs_stays_listed_for_the_grace_period(
    hanging_check: HangingCheck, clock: Clock
) -> None:
    availability = Availability(timeout=0.2, grace=30, clock=clock)
    hanging_check.released.set()
    wait_until_passes(availability, hanging_check)
    hanging_check.released.clear()
    clock.now += 10
    assert get_status(availability, hanging_check) == Status(
        True, "its check did not end within 0.2 s; still listed because it passed 10 s ago"
    )
    clock.now += 30
    assert not get_status(availability, hanging_check).available


def test_tool_gets_a_new_grace_period_after_its_availability_check_passes_again(
    availability: Availability, clock: Clock
) -> None:
    check = CountingCheck()
    get_status(availability, check)
    check.answer = False
    clock.now += 100
    assert not get_status(availability, check).available
    check.answer = True
    assert get_status(availability, check) == Status(True)
    check.answer = False
    clock.now += 29
    assert get_status(availability, check).available


def test_recreated_tool_with_the_same_failing_check_stays_in_the_grace_period(
    availability: Availability, clock: Clock
) -> None:
    check = CountingCheck()
    availability.statuses([tool("old", check)])
    gc.collect()
    check.answer = False
    clock.now += 1
    assert availability.unavailable([tool("new", check)]) == {}


def test_availability_check_that_failed_runs_again_in_the_next_turn(availability: Availability) -> None:
    check = CountingCheck(ValueError("once"))
    assert not get_status(availability, check).available
    check.answer = True
    assert get_status(availability, check) == Status(True)


def test_runtimes_do_not_share_results_of_availability_checks(clock: Clock) -> None:
    check = CountingCheck()
    assert get_status(Availability(timeout=60, clock=clock), check).available
    check.answer = False
    assert not get_status(Availability(timeout=60, clock=clock), check).available


def test_availability_check_is_garbage_collected_when_no_tool_uses_it(
    availability: Availability,
) -> None:
    check = CountingCheck()
    watched = weakref.ref(check)
    get_status(availability, check)
    no_check_threads()
    del check
    gc.collect()
    assert watched() is None


def test_secrets_are_redacted_from_the_reasons_of_failed_availability_checks() -> None:
    def check() -> bool:
        raise OSError("401 for key pr0d-Zx81-Qw77")

    probed = build_tool(name="probed", toolset="t", schema={}, handler=lambda args: args, check_fn=check)
    availability = Availability(timeout=60, grace=0, redact=Redaction(["pr0d-Zx81-Qw77"]))
    reasons = [availability.unavailable([probed])["probed"], availability.statuses([probed])["probed"].reason]
    for reason in reasons:
        assert "Zx81" not in reason
        assert "401 for key" in reason
