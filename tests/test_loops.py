"""Synchronous and asynchronous callers and code work together, from any thread, without leaks."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import signal
import socketserver
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from toolfold.core.loops import (
    MAX_CHECK_THREADS,
    MAX_HANDLER_THREADS,
    MAX_THREADS,
    CallTimeout,
    EscapedException,
    EventLoops,
)


@pytest.fixture
def loops() -> Iterator[EventLoops]:
    made = EventLoops()
    yield made
    made.close()


async def current_loop_and_thread() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def answer(value: object) -> object:
    await asyncio.sleep(0)
    return value


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def wait_until(condition: Callable[[], bool]) -> None:
    tick = threading.Event()
    for _ in range(6_000):
        if condition():
            return
        tick.wait(0.01)
    raise AssertionError("it did not come about in a minute")


# -- callers without a loop -------------------------------------------------------------------------------


def test_all_sync_calls_of_one_thread_use_the_same_event_loop(loops: EventLoops) -> None:
    assert loops.run(current_loop_and_thread()) is loops.run(current_loop_and_thread())


class _Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(line.upper())


@pytest.fixture
def echo() -> Iterator[int]:
    """Port of a server that echoes in upper case."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_async_connection_opened_in_one_sync_call_can_be_used_in_the_next_sync_call(
    loops: EventLoops, echo: int
) -> None:
    cached: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def shout(word: bytes) -> bytes:
        if not cached:
            cached.append(await asyncio.open_connection("127.0.0.1", echo))
        reader, writer = cached[0]
        writer.write(word + b"\n")
        return await asyncio.wait_for(reader.readline(), 60)

    async def hang_up() -> None:
        cached[0][1].close()
        await cached[0][1].wait_closed()

    assert loops.run(shout(b"one")) == b"ONE\n"
    assert loops.run(shout(b"two")) == b"TWO\n"
    assert len(cached) == 1
    loops.run(hang_up())


def test_coroutine_sees_the_context_variables_of_its_sync_caller(loops: EventLoops) -> None:
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")

    async def seen() -> str:
        return request.get()

    request.set("first")
    assert loops.run(seen()) == "first"
    request.set("second")
    assert loops.run(seen()) == "second"


def test_exception_in_a_coroutine_reaches_the_sync_caller_and_the_loop_stays_usable(
    loops: EventLoops,
) -> None:
    async def fail() -> None:
        raise KeyError("x")

    first = loops.run(current_loop_and_thread())
    with pytest.raises(KeyError):
        loops.run(fail())
    assert loops.run(current_loop_and_thread()) is first


def test_subprocess_can_be_awaited_in_the_reused_event_loop(loops: EventLoops) -> None:
    async def shell() -> bytes:
        process = await asyncio.create_subprocess_exec("echo", "hello", stdout=subprocess.PIPE)
        return (await process.communicate())[0]

    assert loops.run(shell()) == b"hello\n"
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(loops.run, shell()).result(60) == b"hello\n"


# -- callers from a running loop ------------------------------------------------------------------------


async def test_sync_call_inside_a_running_event_loop_returns_the_result_of_the_coroutine(
    loops: EventLoops,
) -> None:
    assert loops.run(answer(5)) == 5
    assert loops.run(current_loop_and_thread()) is not asyncio.get_running_loop()


async def test_sync_call_inside_a_running_event_loop_raises_the_exception_of_the_coroutine(
    loops: EventLoops,
) -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        loops.run(fail())


async def test_synchronously_run_coroutine_can_run_further_coroutines_synchronously(
    loops: EventLoops,
) -> None:
    async def outer(depth: int) -> object:
        return loops.run(outer(depth - 1)) if depth else "bottom"

    assert loops.run(outer(3)) == "bottom"


async def test_sync_call_inside_a_running_event_loop_leaks_no_thread_or_loop(loops: EventLoops) -> None:
    used = loops.run(current_loop_and_thread())
    assert used.is_closed()
    assert "toolfold-bridge" not in [thread.name for thread in threading.enumerate()]


async def test_coroutine_run_inside_a_running_event_loop_sees_the_context_variables_of_its_sync_caller(
    loops: EventLoops,
) -> None:
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")
    request.set("mine")

    async def seen() -> str:
        return request.get()

    assert loops.run(seen()) == "mine"


# -- callers from worker threads ------------------------------------------------------------------------


def test_each_thread_has_its_own_event_loop(loops: EventLoops) -> None:
    together = threading.Barrier(4)

    def work() -> tuple[asyncio.AbstractEventLoop, asyncio.AbstractEventLoop]:
        together.wait(60)
        return loops.run(current_loop_and_thread()), loops.run(current_loop_and_thread())

    with ThreadPoolExecutor(4) as pool:
        pairs = [future.result(60) for future in [pool.submit(work) for _ in range(4)]]
    assert all(first is second for first, second in pairs)
    assert len({id(first) for first, _ in pairs}) == 4


def test_event_loop_is_closed_when_its_thread_ends(loops: EventLoops) -> None:
    used: list[asyncio.AbstractEventLoop] = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: used.append(loops.run(current_loop_and_thread())))
        thread.start()
        thread.join(60)
    wait_until(lambda: all(loop.is_closed() for loop in used))
    assert len(used) == 3


def test_pending_tasks_are_cancelled_when_their_thread_ends(loops: EventLoops) -> None:
    ended: list[str] = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("background")

    kept: list[asyncio.Task[None]] = []

    async def start() -> None:
        kept.append(asyncio.create_task(background()))
        await asyncio.sleep(0)

    thread = threading.Thread(target=lambda: loops.run(start()))
    thread.start()
    thread.join(60)
    wait_until(lambda: ended == ["background"])


def test_event_loops_of_many_threads_leak_no_file_descriptors(loops: EventLoops) -> None:
    loops.run(answer(1))
    before = open_files()
    for _ in range(10):
        threads = [threading.Thread(target=lambda: loops.run(answer(1))) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    gc.collect()
    wait_until(lambda: open_files() <= before)


# -- closing --------------------------------------------------------------------------------------------


def test_closing_event_loops_closes_the_loop_of_a_thread_that_is_still_running() -> None:
    loops = EventLoops()
    with ThreadPoolExecutor(1) as pool:
        theirs, mine = (
            pool.submit(loops.run, current_loop_and_thread()).result(60),
            loops.run(current_loop_and_thread()),
        )
        loops.close()
        assert theirs.is_closed()
        assert mine.is_closed()


def test_closing_the_event_loops_a_second_time_does_nothing() -> None:
    loops = EventLoops()
    loops.run(answer(1))
    loops.close()
    loops.close()


def test_closing_event_loops_waits_for_a_call_in_progress() -> None:
    loops = EventLoops()
    inside, go_on = threading.Event(), threading.Event()

    async def slow() -> asyncio.AbstractEventLoop:
        inside.set()
        await asyncio.to_thread(go_on.wait, 60)
        return asyncio.get_running_loop()

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(loops.run, slow())
        assert inside.wait(60)
        loops.close()
        gc.collect()
        go_on.set()
        used = call.result(60)
        wait_until(used.is_closed)


def test_event_loops_can_be_closed_inside_a_running_loop() -> None:
    loops = EventLoops()
    used = loops.run(current_loop_and_thread())

    async def close() -> None:
        loops.close()

    asyncio.run(close())
    assert used.is_closed()


def test_garbage_collecting_the_event_loops_object_closes_its_loops() -> None:
    loops = EventLoops()
    used = loops.run(current_loop_and_thread())
    del loops
    gc.collect()
    assert used.is_closed()


def test_garbage_collecting_an_event_loops_object_whose_loops_are_already_closed_raises_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    complaints: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", complaints.append)
    loops = EventLoops()
    loops.run(current_loop_and_thread()).close()
    del loops
    gc.collect()
    assert complaints == []


@pytest.fixture
def short_settle_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time that tasks get to clean up."""
    monkeypatch.setattr("toolfold.core.loops.SETTLE_TIMEOUT_S", 0.05)


async def ignore_cancellation() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


@pytest.mark.usefixtures("short_settle_timeout")
def test_closing_event_loops_does_not_hang_if_a_task_ignores_cancellation() -> None:
    loops = EventLoops()
    kept: list[asyncio.Task[None]] = []

    async def start() -> asyncio.AbstractEventLoop:
        kept.append(asyncio.create_task(ignore_cancellation()))
        await asyncio.sleep(0)
        return asyncio.get_running_loop()

    used = loops.run(start())
    ending = threading.Thread(target=loops.close, daemon=True)
    ending.start()
    ending.join(60)
    assert not ending.is_alive()
    assert used.is_closed()


@pytest.mark.usefixtures("short_settle_timeout")
async def test_sync_call_returns_even_if_a_background_task_it_started_ignores_cancellation(
    loops: EventLoops,
) -> None:
    async def start() -> str:
        kept.append(asyncio.create_task(ignore_cancellation()))
        await asyncio.sleep(0)
        return "done"

    kept: list[asyncio.Task[None]] = []
    given: list[str] = []
    call = threading.Thread(target=lambda: asyncio.run(nested()), daemon=True)

    async def nested() -> None:
        given.append(loops.run(start()))

    call.start()
    call.join(60)
    assert given == ["done"]


def test_cleanup_of_an_unfinished_async_generator_runs_when_event_loops_are_closed() -> None:
    loops, finished = EventLoops(), threading.Event()

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            finished.set()

    kept = numbers()

    async def first() -> int:
        return await anext(kept)

    assert loops.run(first()) == 1
    loops.close()
    assert finished.is_set()


# -- sync and async code ---------------------------------------------------------------------------------


async def test_event_loop_stays_responsive_while_a_blocking_function_runs_in_a_thread(
    loops: EventLoops,
) -> None:
    go_on = threading.Event()
    blocked = asyncio.create_task(loops.call(go_on.wait, 60))
    await asyncio.sleep(0)
    go_on.set()  # reached only if the loop was not blocked
    assert await blocked is True


async def test_call_returns_the_result_of_sync_and_async_functions_lambdas_and_callable_objects(
    loops: EventLoops,
) -> None:
    class Callable_:  # noqa: N801
        async def __call__(self, value: int) -> int:
            return value

    async def plain(value: int) -> int:
        return value

    assert await loops.call(plain, 1) == 1
    assert await loops.call(lambda value: value, 2) == 2
    assert await loops.call(lambda value: plain(value), 3) == 3
    assert await loops.call(Callable_(), 4) == 4


async def test_blocking_code_in_a_thread_sees_context_variables(loops: EventLoops) -> None:
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")
    request.set("mine")
    assert await loops.run_in_thread(request.get) == "mine"


@pytest.mark.parametrize(
    "raised",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), StopIteration(1)],
)
async def test_system_exit_raised_by_a_blocking_function_does_not_stop_the_process(
    loops: EventLoops, raised: BaseException
) -> None:
    def fail() -> None:
        raise raised

    with pytest.raises(EscapedException) as caught:
        await loops.run_in_thread(fail)
    assert caught.value.original is raised


async def test_blocking_function_is_refused_when_the_maximum_number_of_threads_is_in_use(
    loops: EventLoops,
) -> None:
    go_on = threading.Event()
    hanging = [asyncio.create_task(loops.run_in_thread(lambda: go_on.wait(120))) for _ in range(MAX_THREADS)]
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="calls are still running"):
        await loops.run_in_thread(lambda: None)
    go_on.set()
    assert all(await asyncio.gather(*hanging))
    assert await loops.run_in_thread(lambda: "free again") == "free again"


async def test_hooks_and_checks_can_run_while_hanging_handlers_occupy_all_handler_threads(
    loops: EventLoops,
) -> None:
    go_on = threading.Event()
    hanging = [
        asyncio.create_task(loops.call_with_timeout(120, go_on.wait, 120)) for _ in range(MAX_HANDLER_THREADS)
    ]
    await asyncio.sleep(0.05)
    with pytest.raises(RuntimeError, match=f"{MAX_HANDLER_THREADS} calls are still running"):
        await loops.call_with_timeout(60, lambda: "handler")
    assert await loops.call_with_timeout(60, lambda: "judged", max_threads=MAX_CHECK_THREADS) == "judged"
    assert await loops.run_in_thread(lambda: "prepared") == "prepared"
    go_on.set()
    assert all(await asyncio.gather(*hanging))
    assert await loops.call_with_timeout(60, lambda: "free again") == "free again"


async def test_result_of_a_blocking_function_is_discarded_silently_if_the_event_loop_is_already_closed(
    loops: EventLoops,
) -> None:
    go_on, ended = threading.Event(), threading.Event()
    worker: list[threading.Thread] = []

    def late() -> None:
        worker.append(threading.current_thread())
        go_on.wait(60)

    def run() -> None:
        other = asyncio.new_event_loop()
        with pytest.raises(TimeoutError):
            other.run_until_complete(asyncio.wait_for(loops.run_in_thread(late), 0.01))
        other.close()
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert ended.wait(60)
    wait_until(lambda: bool(worker))  # it may start after the caller has given up
    go_on.set()
    thread.join(60)
    worker[0].join(60)
    assert not worker[0].is_alive()


# -- timeouts -----------------------------------------------------------------------------------


async def test_call_with_timeout_returns_the_result_of_a_function_that_finishes_in_time(
    loops: EventLoops,
) -> None:
    assert await loops.call_with_timeout(60, answer, 5) == 5
    assert await loops.call_with_timeout(60, lambda: 6) == 6


async def test_coroutine_that_exceeds_its_call_timeout_is_cancelled(loops: EventLoops) -> None:
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    with pytest.raises(CallTimeout):
        await loops.call_with_timeout(0.01, endless)
    assert ended == ["cleaned up"]


async def test_blocking_function_that_exceeds_its_timeout_raises_call_timeout_immediately(
    loops: EventLoops,
) -> None:
    go_on = threading.Event()
    with pytest.raises(CallTimeout):
        await loops.call_with_timeout(0.01, go_on.wait, 30)
    go_on.set()


@pytest.mark.usefixtures("short_settle_timeout")
async def test_coroutine_that_ignores_cancellation_leaves_no_task_behind_after_its_timeout(
    loops: EventLoops,
) -> None:
    before = asyncio.all_tasks()
    async with asyncio.timeout(60):
        with pytest.raises(CallTimeout):
            await loops.call_with_timeout(0.01, ignore_cancellation)
    assert asyncio.all_tasks() == before


async def test_timeout_error_raised_by_the_called_function_is_not_reported_as_a_call_timeout(
    loops: EventLoops,
) -> None:
    async def slow_database() -> None:
        raise TimeoutError("the database")

    with pytest.raises(TimeoutError, match="the database"):
        await loops.call_with_timeout(60, slow_database)


async def test_cancelling_the_task_that_awaits_a_call_cancels_the_called_coroutine(loops: EventLoops) -> None:
    inside, ended = asyncio.Event(), asyncio.Event()

    async def endless() -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(loops.call_with_timeout(60, endless))
    await asyncio.wait_for(inside.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_call_raises_escaped_exception_if_the_called_coroutine_cancels_its_own_task(
    loops: EventLoops,
) -> None:
    async def give_up() -> None:
        cast("asyncio.Task[Any]", asyncio.current_task()).cancel()
        await asyncio.sleep(0)

    with pytest.raises(EscapedException) as caught:
        await loops.call_with_timeout(60, give_up)
    assert isinstance(caught.value.original, asyncio.CancelledError)


@pytest.mark.parametrize("raised", [SystemExit(3), GeneratorExit(), BaseExceptionGroup("g", [SystemExit()])])
async def test_system_exit_raised_by_a_coroutine_does_not_stop_the_process(
    loops: EventLoops, raised: BaseException
) -> None:
    async def fail() -> None:
        raise raised

    with pytest.raises(EscapedException) as caught:
        await loops.call_with_timeout(60, fail)
    assert caught.value.original is raised


# -- Ctrl-C ---------------------------------------------------------------------------

PREAMBLE = """
import asyncio, gc, os, sys, threading, time
from toolfold.core.loops import EventLoops
loops = EventLoops()

async def endless():
    print("ready", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("cleaned up", flush=True)

def left_behind():
    gc.collect()
    threads = [each.name for each in threading.enumerate() if each is not threading.main_thread()]
    for _ in range(6_000):  # the kernel takes a moment longer to forget a thread
        tasks = len(os.listdir("/proc/self/task"))
        if tasks == 1:
            break
        time.sleep(0.01)
    print("threads", threads, "tasks", tasks, flush=True)
"""


def run_and_interrupt(script: str) -> tuple[int, str, str]:
    """Run a program, press Ctrl-C once it is ready, and return how it ended."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PREAMBLE + textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out, err


def test_ctrl_c_runs_the_cleanup_of_an_async_call_and_ends_the_process_by_sigint() -> None:
    code, out, err = run_and_interrupt("loops.run(endless())")
    assert code == -signal.SIGINT
    assert out == "cleaned up\n"
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "Warning" not in err
    assert "never" not in err


def test_ctrl_c_leaks_no_thread_or_event_loop() -> None:
    code, out, err = run_and_interrupt(
        """
        try:
            loops.run(endless())
        except KeyboardInterrupt:
            print("caught", flush=True)
        print(loops.run(asyncio.sleep(0, "usable")))
        loops.close()
        left_behind()
        """
    )
    assert (code, err) == (0, "")
    assert out == "cleaned up\ncaught\nusable\nthreads [] tasks 1\n"


def test_ctrl_c_interrupts_a_sync_call_inside_a_running_event_loop() -> None:
    code, out, err = run_and_interrupt(
        """
        async def main():
            loops.run(endless())

        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print("caught", flush=True)
        loops.close()
        left_behind()
        """
    )
    assert (code, err) == (0, "")
    assert out == "cleaned up\ncaught\nthreads [] tasks 1\n"


def test_ctrl_c_ends_the_process_even_if_a_blocking_function_hangs_in_a_thread() -> None:
    code, _, err = run_and_interrupt(
        """
        def hang():
            print("ready", flush=True)
            threading.Event().wait()

        loops.run(loops.call_with_timeout(600, hang))
        """
    )
    assert code == -signal.SIGINT
    assert "Warning" not in err


@pytest.mark.parametrize("ending", ["loops.close()", "pass"])
def test_program_with_event_loops_in_many_threads_exits_without_warnings(ending: str) -> None:
    script = f"""
        from concurrent.futures import ThreadPoolExecutor

        def work(number):
            return loops.run(asyncio.sleep(0.001, number))

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(64))) == list(range(64))
        assert work(1) == 1
        {ending}
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PREAMBLE + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_creating_event_loops_opens_no_file_descriptors() -> None:
    before = open_files()
    made = EventLoops()
    assert open_files() <= before
    made.close()


async def test_context_manager_entered_in_a_thread_is_exited_if_its_caller_was_cancelled(
    loops: EventLoops,
) -> None:
    go, left = threading.Event(), threading.Event()
    events: list[str] = []

    @contextlib.contextmanager
    def slow() -> Iterator[None]:
        go.wait(60)
        events.append("entered")
        try:
            yield
        finally:
            events.append("left")
            left.set()

    async def use() -> None:
        async with loops.enter_in_thread(slow()):
            events.append("used")

    task = asyncio.create_task(use())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go.set()
    assert await asyncio.to_thread(left.wait, 60)
    assert events == ["entered", "left"]
