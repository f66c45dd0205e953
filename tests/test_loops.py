"""Callers and code of both kinds meet, from any thread, and nothing is left running behind them."""

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

from toolfold.loops import (
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


async def here() -> asyncio.AbstractEventLoop:
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


# -- callers from no loop -------------------------------------------------------------------------------


def test_a_thread_keeps_one_loop_between_its_calls(loops: EventLoops) -> None:
    assert loops.run(here()) is loops.run(here())


class _Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(line.upper())


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a real server that shouts back."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_an_async_client_opened_in_one_call_lives_on_in_the_next(loops: EventLoops, echo: int) -> None:
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


def test_each_call_sees_the_context_of_its_own_caller(loops: EventLoops) -> None:
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")

    async def seen() -> str:
        return request.get()

    request.set("first")
    assert loops.run(seen()) == "first"
    request.set("second")
    assert loops.run(seen()) == "second"


def test_an_exception_reaches_the_caller_and_the_loop_lives_on(loops: EventLoops) -> None:
    async def fail() -> None:
        raise KeyError("x")

    first = loops.run(here())
    with pytest.raises(KeyError):
        loops.run(fail())
    assert loops.run(here()) is first


def test_a_subprocess_can_be_awaited_on_the_kept_loop(loops: EventLoops) -> None:
    async def shell() -> bytes:
        process = await asyncio.create_subprocess_exec("echo", "hello", stdout=subprocess.PIPE)
        return (await process.communicate())[0]

    assert loops.run(shell()) == b"hello\n"
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(loops.run, shell()).result(60) == b"hello\n"


# -- callers from a running loop ------------------------------------------------------------------------


async def test_a_caller_inside_a_running_loop_gets_its_answer(loops: EventLoops) -> None:
    assert loops.run(answer(5)) == 5
    assert loops.run(here()) is not asyncio.get_running_loop()


async def test_a_caller_inside_a_running_loop_gets_its_exception(loops: EventLoops) -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        loops.run(fail())


async def test_a_call_inside_a_call_inside_a_call_gets_its_answer(loops: EventLoops) -> None:
    async def outer(depth: int) -> object:
        return loops.run(outer(depth - 1)) if depth else "bottom"

    assert loops.run(outer(3)) == "bottom"


async def test_a_call_from_a_running_loop_leaves_no_thread_and_no_open_loop(loops: EventLoops) -> None:
    used = loops.run(here())
    assert used.is_closed()
    assert "toolfold-bridge" not in [thread.name for thread in threading.enumerate()]


async def test_a_call_from_a_running_loop_sees_the_context_of_its_caller(loops: EventLoops) -> None:
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")
    request.set("mine")

    async def seen() -> str:
        return request.get()

    assert loops.run(seen()) == "mine"


# -- callers from worker threads ------------------------------------------------------------------------


def test_every_thread_has_a_loop_of_its_own(loops: EventLoops) -> None:
    together = threading.Barrier(4)

    def work() -> tuple[asyncio.AbstractEventLoop, asyncio.AbstractEventLoop]:
        together.wait(60)
        return loops.run(here()), loops.run(here())

    with ThreadPoolExecutor(4) as pool:
        pairs = [future.result(60) for future in [pool.submit(work) for _ in range(4)]]
    assert all(first is second for first, second in pairs)
    assert len({id(first) for first, _ in pairs}) == 4


def test_the_loop_of_a_thread_is_closed_when_the_thread_ends(loops: EventLoops) -> None:
    used: list[asyncio.AbstractEventLoop] = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: used.append(loops.run(here())))
        thread.start()
        thread.join(60)
    wait_until(lambda: all(loop.is_closed() for loop in used))
    assert len(used) == 3


def test_tasks_left_on_a_loop_are_cancelled_when_its_thread_ends(loops: EventLoops) -> None:
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


def test_a_hundred_threads_leave_no_file_descriptors_behind(loops: EventLoops) -> None:
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


# -- the end --------------------------------------------------------------------------------------------


def test_closing_closes_the_loops_of_threads_that_still_live() -> None:
    loops = EventLoops()
    with ThreadPoolExecutor(1) as pool:
        theirs, mine = pool.submit(loops.run, here()).result(60), loops.run(here())
        loops.close()
        assert theirs.is_closed()
        assert mine.is_closed()


def test_closing_twice_is_closing_once() -> None:
    loops = EventLoops()
    loops.run(answer(1))
    loops.close()
    loops.close()


def test_closing_in_the_middle_of_a_call_lets_the_call_end_and_then_closes_its_loop() -> None:
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


def test_loops_can_be_closed_from_inside_a_running_loop() -> None:
    loops = EventLoops()
    used = loops.run(here())

    async def close() -> None:
        loops.close()

    asyncio.run(close())
    assert used.is_closed()


def test_loops_that_are_only_forgotten_are_closed_too() -> None:
    loops = EventLoops()
    used = loops.run(here())
    del loops
    gc.collect()
    assert used.is_closed()


def test_loops_whose_loop_was_collected_first_are_forgotten_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    complaints: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", complaints.append)
    loops = EventLoops()
    loops.run(here()).close()
    del loops
    gc.collect()
    assert complaints == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the tests need not wait as long for the unwilling as people would want to."""
    monkeypatch.setattr("toolfold.loops.SETTLE_TIMEOUT_S", 0.05)


async def stubborn() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


@pytest.mark.usefixtures("impatient")
def test_a_task_that_will_not_be_cancelled_cannot_hold_up_the_end() -> None:
    loops = EventLoops()
    kept: list[asyncio.Task[None]] = []

    async def start() -> asyncio.AbstractEventLoop:
        kept.append(asyncio.create_task(stubborn()))
        await asyncio.sleep(0)
        return asyncio.get_running_loop()

    used = loops.run(start())
    ending = threading.Thread(target=loops.close, daemon=True)
    ending.start()
    ending.join(60)
    assert not ending.is_alive()
    assert used.is_closed()


@pytest.mark.usefixtures("impatient")
async def test_a_task_that_will_not_be_cancelled_cannot_hold_up_a_caller(loops: EventLoops) -> None:
    async def start() -> str:
        kept.append(asyncio.create_task(stubborn()))
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


def test_an_async_generator_left_open_is_finished_at_the_end() -> None:
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


# -- code of both kinds ---------------------------------------------------------------------------------


async def test_blocking_code_does_not_block_the_loop(loops: EventLoops) -> None:
    go_on = threading.Event()
    blocked = asyncio.create_task(loops.call(go_on.wait, 60))
    await asyncio.sleep(0)
    go_on.set()  # reached only because the loop was free
    assert await blocked is True


async def test_a_function_of_any_kind_can_be_called(loops: EventLoops) -> None:
    class Callable_:  # noqa: N801
        async def __call__(self, value: int) -> int:
            return value

    async def plain(value: int) -> int:
        return value

    assert await loops.call(plain, 1) == 1
    assert await loops.call(lambda value: value, 2) == 2
    assert await loops.call(lambda value: plain(value), 3) == 3
    assert await loops.call(Callable_(), 4) == 4


async def test_blocking_code_sees_the_context_of_its_caller(loops: EventLoops) -> None:
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")
    request.set("mine")
    assert await loops.run_in_thread(request.get) == "mine"


@pytest.mark.parametrize(
    "raised",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), StopIteration(1)],
)
async def test_blocking_code_that_tries_to_end_more_than_itself_only_fails(
    loops: EventLoops, raised: BaseException
) -> None:
    def fail() -> None:
        raise raised

    with pytest.raises(EscapedException) as caught:
        await loops.run_in_thread(fail)
    assert caught.value.original is raised


async def test_only_so_many_threads_may_hang_at_once(loops: EventLoops) -> None:
    go_on = threading.Event()
    hanging = [asyncio.create_task(loops.run_in_thread(lambda: go_on.wait(120))) for _ in range(MAX_THREADS)]
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="earlier calls still run"):
        await loops.run_in_thread(lambda: None)
    go_on.set()
    assert all(await asyncio.gather(*hanging))
    assert await loops.run_in_thread(lambda: "free again") == "free again"


async def test_code_that_never_ends_leaves_threads_to_those_who_judge_and_prepare(loops: EventLoops) -> None:
    go_on = threading.Event()
    hanging = [
        asyncio.create_task(loops.call_with_timeout(120, go_on.wait, 120)) for _ in range(MAX_HANDLER_THREADS)
    ]
    await asyncio.sleep(0.05)
    with pytest.raises(RuntimeError, match=f"{MAX_HANDLER_THREADS} earlier calls still run"):
        await loops.call_with_timeout(60, lambda: "handler")
    assert await loops.call_with_timeout(60, lambda: "judged", max_threads=MAX_CHECK_THREADS) == "judged"
    assert await loops.run_in_thread(lambda: "prepared") == "prepared"
    go_on.set()
    assert all(await asyncio.gather(*hanging))
    assert await loops.call_with_timeout(60, lambda: "free again") == "free again"


async def test_an_answer_that_comes_after_its_loop_closed_is_dropped_in_silence(loops: EventLoops) -> None:
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
    wait_until(lambda: bool(worker))  # it may begin only after nobody waits for it any more
    go_on.set()
    thread.join(60)
    worker[0].join(60)
    assert not worker[0].is_alive()


# -- code with an end -----------------------------------------------------------------------------------


async def test_code_that_ends_in_time_gives_its_answer(loops: EventLoops) -> None:
    assert await loops.call_with_timeout(60, answer, 5) == 5
    assert await loops.call_with_timeout(60, lambda: 6) == 6


async def test_async_code_out_of_time_is_cancelled(loops: EventLoops) -> None:
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    with pytest.raises(CallTimeout):
        await loops.call_with_timeout(0.01, endless)
    assert ended == ["cleaned up"]


async def test_blocking_code_out_of_time_is_left_behind(loops: EventLoops) -> None:
    go_on = threading.Event()
    with pytest.raises(CallTimeout):
        await loops.call_with_timeout(0.01, go_on.wait, 30)
    go_on.set()


@pytest.mark.usefixtures("impatient")
async def test_async_code_that_will_not_be_cancelled_is_ended_by_force(loops: EventLoops) -> None:
    before = asyncio.all_tasks()
    async with asyncio.timeout(60):
        with pytest.raises(CallTimeout):
            await loops.call_with_timeout(0.01, stubborn)
    assert asyncio.all_tasks() == before


async def test_code_that_raises_a_timeout_of_its_own_is_not_out_of_time(loops: EventLoops) -> None:
    async def slow_database() -> None:
        raise TimeoutError("the database")

    with pytest.raises(TimeoutError, match="the database"):
        await loops.call_with_timeout(60, slow_database)


async def test_cancelling_the_caller_cancels_the_code(loops: EventLoops) -> None:
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


async def test_code_that_cancels_itself_does_not_cancel_its_caller(loops: EventLoops) -> None:
    async def give_up() -> None:
        cast("asyncio.Task[Any]", asyncio.current_task()).cancel()
        await asyncio.sleep(0)

    with pytest.raises(EscapedException) as caught:
        await loops.call_with_timeout(60, give_up)
    assert isinstance(caught.value.original, asyncio.CancelledError)


@pytest.mark.parametrize("raised", [SystemExit(3), GeneratorExit(), BaseExceptionGroup("g", [SystemExit()])])
async def test_async_code_that_tries_to_end_more_than_itself_only_fails(
    loops: EventLoops, raised: BaseException
) -> None:
    async def fail() -> None:
        raise raised

    with pytest.raises(EscapedException) as caught:
        await loops.call_with_timeout(60, fail)
    assert caught.value.original is raised


# -- a person at the terminal ---------------------------------------------------------------------------

PREAMBLE = """
import asyncio, gc, os, sys, threading, time
from toolfold.loops import Loops
loops = Loops()

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


def interrupted(script: str) -> tuple[int, str, str]:
    """Run a program, press Ctrl-C once it is ready, and see how it ends."""
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


def test_ctrl_c_cleans_up_an_async_call_and_ends_the_program() -> None:
    code, out, err = interrupted("loops.run(endless())")
    assert code == -signal.SIGINT
    assert out == "cleaned up\n"
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "Warning" not in err
    assert "never" not in err


def test_ctrl_c_leaves_no_thread_and_no_loop_to_a_program_that_goes_on() -> None:
    code, out, err = interrupted(
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


def test_ctrl_c_reaches_a_call_made_from_inside_a_running_loop() -> None:
    code, out, err = interrupted(
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


def test_ctrl_c_does_not_wait_for_blocking_code_that_hangs() -> None:
    code, _, err = interrupted(
        """
        def hang():
            print("ready", flush=True)
            threading.Event().wait()

        loops.run(loops.within(600, hang))
        """
    )
    assert code == -signal.SIGINT
    assert "Warning" not in err


@pytest.mark.parametrize("ending", ["loops.close()", "pass"])
def test_a_program_that_used_loops_in_many_threads_ends_without_a_word(ending: str) -> None:
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


def test_making_loops_opens_nothing_until_they_are_needed() -> None:
    before = open_files()
    made = EventLoops()
    assert open_files() <= before
    made.close()


async def test_blocking_context_manager_is_left_though_its_caller_was_cancelled(loops: EventLoops) -> None:
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
