"""Bridge asynchronous and synchronous code in both directions.

`EventLoops.run` serves synchronous callers: each thread has one loop, reused between calls so that cached
async clients stay usable, and closed with the thread or the runtime. `EventLoops.call` runs functions of
either kind, and `call_with_timeout` limits their time. Knows nothing of tools.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MAX_THREADS = 256
# Code that may hang gets fewer threads, so that it cannot use them all up:
MAX_CHECK_THREADS = 224  # for hooks and approvers, which run before handlers
MAX_HANDLER_THREADS = 192  # for handlers
SETTLE_TIMEOUT_S = 1.0
_POLL_INTERVAL_S = 0.05


class CallTimeout(Exception):
    """A tool, hook or other user-provided code exceeded its time limit."""


class LoopThreadClosed(Exception):
    """A call was made after the thread of its event loop was closed."""


class EscapedException(Exception):
    """A tool or plugin raised an exception that would stop the process, such as SystemExit."""

    def __init__(self, original: BaseException) -> None:
        super().__init__(type(original).__name__)
        self.original = original


def make_network_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop for network traffic: from uvloop if installed, otherwise from asyncio."""
    try:
        import uvloop
    except ImportError:  # such as on Windows
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class EventLoops:
    """All event loops and threads started by one runtime."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._thread_loops: weakref.WeakSet[_ThreadLoop] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread_count = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to completion, from a thread with or without a running event loop."""
        if asyncio._get_running_loop() is not None:
            return _run_in_new_thread(work)
        return self._loop().run(work)

    async def call(
        self, function: Callable[..., Any], *parts: Any, max_threads: int = MAX_HANDLER_THREADS
    ) -> Any:
        """Call a sync or async function and wait for its result without blocking the event loop."""
        if inspect.iscoroutinefunction(function):
            return await function(*parts)
        answer = await self.run_in_thread(lambda: function(*parts), max_threads=max_threads)
        return await answer if inspect.isawaitable(answer) else answer

    async def call_with_timeout(
        self,
        timeout_s: float,
        function: Callable[..., Any],
        *parts: Any,
        max_threads: int = MAX_HANDLER_THREADS,
    ) -> Any:
        """Call code of a tool or plugin with a time limit; `sys.exit` in the code does not end the process.

        Cancelling the wait also cancels the code. Raises CallTimeout, EscapedException, or what the code
        raised.
        """
        task = asyncio.create_task(self._call_contained(function, *parts, max_threads=max_threads))
        task.add_done_callback(_consume_exception)
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
        finally:
            await _stop_tasks({task})
        if not done:
            raise CallTimeout
        return _task_result(task)

    async def await_with_timeout(self, timeout_s: float, work: Awaitable[T]) -> T:
        """Await trusted code with a time limit, without the overhead of a new task.

        Raises CallTimeout, EscapedException, or what the code raised.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine is always run by a task
        cancellations, limit = task.cancelling(), asyncio.timeout(timeout_s)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if limit.expired():
                raise CallTimeout from None
            raise
        except asyncio.CancelledError as error:
            if task.cancelling() > cancellations:
                raise
            raise EscapedException(error) from error  # nobody cancelled this call

    async def run_in_thread(self, call: Callable[[], T], *, max_threads: int = MAX_THREADS) -> T:
        """Run blocking code in a daemon thread, which does not delay the exit of the process.

        Raises RuntimeError if `max_threads` are running.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(outcome: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(outcome)  # type: ignore[arg-type]
            else:
                future.set_exception(error)

        def work() -> None:
            outcome, error = None, None
            try:
                outcome = call()
            except Exception as caught:
                error = EscapedException(caught) if isinstance(caught, StopIteration) else caught
            except BaseException as caught:  # SystemExit in a handler must not stop the runtime
                error = EscapedException(caught)
            finally:
                self._count_ended()
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(settle, outcome, error)

        self._start_thread(work, max_threads)
        return await future

    @contextlib.asynccontextmanager
    async def enter_in_thread(self, manager: contextlib.AbstractContextManager[T]) -> AsyncIterator[T]:
        """Enter and exit a blocking context manager in threads, without blocking the event loop.

        It is exited even if the caller is cancelled.
        """
        entering = _ManagedContext(manager)
        try:
            value = await self.run_in_thread(entering.enter)
        except asyncio.CancelledError:
            entering.abandon()
            raise
        try:
            yield value
        finally:
            await self._leave_in_thread(entering)

    @contextlib.asynccontextmanager
    async def enter_nowait(self, manager: NowaitContext[T]) -> AsyncIterator[T]:
        """Enter and exit a context manager in this thread or, if it would block, in another thread."""
        value = manager.enter_nowait()
        if value is None:
            async with self.enter_in_thread(manager) as entered:
                yield entered
            return
        try:
            yield value
        finally:
            if not manager.exit_nowait():
                await self._leave_in_thread(_ManagedContext(manager))

    async def _leave_in_thread(self, entered: _ManagedContext[T]) -> None:
        try:
            await self.run_in_thread(entered.leave)
        except RuntimeError:  # no thread is available
            entered.leave()

    def close(self) -> None:
        """Close every event loop; loops with a running call are closed when the call ends."""
        for each in list(self._thread_loops):
            each.close()
        self._local = threading.local()

    async def _call_contained(self, function: Callable[..., Any], *parts: Any, max_threads: int) -> Any:
        try:
            return await self.call(function, *parts, max_threads=max_threads)
        except SystemExit as error:  # it would stop the whole loop
            raise EscapedException(error) from error

    def _loop(self) -> _ThreadLoop:
        if not hasattr(self._local, "loop"):
            self._local.loop = _ThreadLoop(asyncio.new_event_loop())
            self._thread_loops.add(self._local.loop)
        loop: _ThreadLoop = self._local.loop
        return loop

    def _start_thread(self, work: Callable[[], None], max_threads: int) -> None:
        """Start a function in a new thread. Raises RuntimeError if `max_threads` are running.

        Not in a waiting thread: while one exists, the system may deliver Ctrl-C to it, and the loop in the
        main thread sleeps on.
        """
        self._count_started(max_threads)
        copied = contextvars.copy_context()
        try:
            threading.Thread(target=copied.run, args=(work,), name="toolfold-call", daemon=True).start()
        except RuntimeError:
            self._count_ended()
            raise

    def _count_started(self, max_threads: int) -> None:
        with self._lock:
            if self._thread_count >= max_threads:
                raise RuntimeError(
                    f"{max_threads} calls are still running, which is the limit; wait until some of "
                    "the calls have finished"
                )
            self._thread_count += 1

    def _count_ended(self) -> None:
        with self._lock:
            self._thread_count -= 1


class NowaitContext(Protocol[T_co]):
    """Context manager with methods that enter or exit it only if this does not block."""

    def __enter__(self) -> T_co: ...

    def __exit__(self, *error: object) -> None: ...

    def enter_nowait(self) -> T_co | None:
        """Enter the context; return None if entering would block."""

    def exit_nowait(self) -> bool:
        """Exit the context; return False if exiting would block."""


class _ManagedContext(Generic[T]):
    """Context manager that is entered in a thread and exited even if the waiting caller is cancelled."""

    def __init__(self, manager: contextlib.AbstractContextManager[T]) -> None:
        self._manager, self._lock = manager, threading.Lock()
        self._is_entered = self._is_abandoned = self._is_left = False

    def enter(self) -> T:
        value = self._manager.__enter__()
        with self._lock:
            self._is_entered = True
            is_abandoned = self._is_abandoned
        if is_abandoned:
            self.leave()
        return value

    def abandon(self) -> None:
        """Exit the context manager because the caller was cancelled, after entering it has finished."""
        with self._lock:
            self._is_abandoned = True
            is_entered = self._is_entered
        if is_entered:
            threading.Thread(target=self.leave, name="toolfold-leave", daemon=True).start()

    def leave(self) -> None:
        with self._lock:
            was_left, self._is_left = self._is_left, True
        if not was_left:
            self._manager.__exit__(None, None, None)


class _ThreadLoop:
    """Event loop of one thread, closed when the thread ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._runner = asyncio.Runner(loop_factory=lambda: loop)
        self._lock = threading.Lock()
        self._busy = False
        self._closed = threading.Event()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to completion in this thread's event loop, with the caller's context variables."""
        with self._lock:
            if self._closed.is_set():
                work.close()
                raise RuntimeError("the runtime is closed")
            self._busy = True
        try:
            return self._runner.run(work, context=contextvars.copy_context())
        finally:
            with self._lock:
                self._busy = False
            if self._closed.is_set():
                self._shut_down()

    def interrupt(self) -> None:
        """Cancel the running coroutine; may be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is already closed
            self._loop.call_soon_threadsafe(_cancel_others, self._loop)

    def close(self) -> None:
        with self._lock:
            not_now = self._busy or self._closed.is_set()
            self._closed.set()
        if not not_now:
            self._shut_down()

    def _shut_down(self) -> None:
        if asyncio._get_running_loop() is None:
            self._close_loop()
        else:  # this thread already runs a loop
            thread = threading.Thread(target=self._close_loop, name="toolfold-close", daemon=True)
            thread.start()
            thread.join()

    def _close_loop(self) -> None:
        if self._loop.is_closed():  # garbage collected first
            return
        # Not the runner's own close, which waits forever for a task that ignores cancellation.
        try:
            self._loop.run_until_complete(_cancel_and_finish(self._loop))
        finally:
            self._loop.close()

    def __del__(self) -> None:
        self.close()


class LoopThread:
    """Event loop in a dedicated thread, which starts on first use.

    For objects that belong to one loop for their whole life, while their users come from short-lived loops.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def is_running(self) -> bool:
        """Return True if the event loop's thread is started and not closed."""
        return self._loop is not None and not self._closed

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the loop's thread and wait for it; cancelling the wait cancels the coroutine.

        Raises LoopThreadClosed after `close`.
        """
        loop = self._ensure_loop()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), loop))

    def start(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Start a coroutine without waiting for it; does nothing if the loop's thread is not running."""
        with self._lock:
            loop = None if self._closed else self._loop
        if loop is not None:
            asyncio.run_coroutine_threadsafe(work(), loop)

    def close(self, finish: Callable[[], Coroutine[Any, Any, object]], timeout_s: float) -> None:
        """Run a final coroutine, then stop the event loop's thread.

        Does nothing if the thread was never started.
        """
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            return
        finishing = asyncio.run_coroutine_threadsafe(finish(), loop)
        with contextlib.suppress(TimeoutError):
            finishing.result(timeout_s)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout_s)

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closed:
                raise LoopThreadClosed("the runtime is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name=self._name, daemon=True
                )
                self._thread.start()
            return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    finally:
        loop.close()


async def _cancel_and_finish(loop: asyncio.AbstractEventLoop) -> None:
    await _stop_tasks(_other_tasks(loop))
    finishing = loop.create_task(loop.shutdown_asyncgens())
    await asyncio.wait({finishing}, timeout=SETTLE_TIMEOUT_S)
    await _stop_tasks({finishing})


async def _stop_tasks(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel tasks, wait a short time for their cleanup, and close tasks that ignore the cancellation."""
    left = {task for task in tasks if not task.done()}
    for task in left:
        task.add_done_callback(_consume_exception)
        task.cancel()
    try:
        if left:
            _, left = await asyncio.wait(left, timeout=SETTLE_TIMEOUT_S)
    finally:
        for task in left:
            _close_task(task)
    if left:
        await asyncio.wait(left, timeout=SETTLE_TIMEOUT_S)


def _close_task(task: asyncio.Task[Any]) -> None:
    # A pending task would block the host application's `asyncio.run` forever.
    work = task.get_coro()
    if not task.done() and isinstance(work, Coroutine):
        with contextlib.suppress(RuntimeError):  # it ignores even this and cannot be stopped
            work.close()
        task.cancel()


def _consume_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve a task's exception, so that asyncio does not log it as never retrieved."""
    if not task.cancelled():
        task.exception()


def _other_tasks(loop: asyncio.AbstractEventLoop) -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task(loop)}


def _cancel_others(loop: asyncio.AbstractEventLoop) -> None:
    for task in _other_tasks(loop):
        task.cancel()


def _task_result(task: asyncio.Future[Any]) -> Any:
    if task.cancelled():
        raise EscapedException(asyncio.CancelledError())
    error = task.exception()
    if error is None:
        return task.result()
    raise error if isinstance(error, (Exception, KeyboardInterrupt)) else EscapedException(error)


def _run_in_new_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new thread and wait for it, for a caller whose event loop is running."""
    outcome: list[T] = []
    problem: list[BaseException] = []
    loop = _ThreadLoop(asyncio.new_event_loop())

    def run() -> None:
        try:
            outcome.append(loop.run(work))
        except BaseException as error:
            problem.append(error)
        finally:
            loop.close()

    copied = contextvars.copy_context()
    thread = threading.Thread(target=copied.run, args=(run,), name="toolfold-bridge", daemon=True)
    task = asyncio.current_task()
    cancellations = task.cancelling() if task else 0
    thread.start()
    try:
        # A cancellation cannot interrupt the blocking wait, so poll for it and pass it on.
        while thread.is_alive():
            thread.join(_POLL_INTERVAL_S)
            if task and task.cancelling() > cancellations:
                cancellations = task.cancelling()
                loop.interrupt()
    except BaseException:
        loop.interrupt()
        thread.join(SETTLE_TIMEOUT_S)
        raise
    if problem:
        raise problem[0]
    return outcome[0]
