"""Approval questions and events of the other gateway processes of this user on this machine.

Every gateway, over stdio too, shows its own on its control socket while a dashboard follows it. They are in
the memory of their process and disappear with it; nothing is written to a file that a tool call could change.
Neither end accepts a process of another user or of a tool call.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import getpass
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolfold.core.types import Json, read_json
from toolfold.safety.redaction import Redaction
from toolfold.serving.dashboard.activity_routes import ActivityFeed
from toolfold.serving.dashboard.approval_routes import MAX_SHOWN_CHARS, PageApprover, QuestionExchange
from toolfold.serving.dashboard.recorder import UsageRecorder, find_journal, open_history
from toolfold.serving.dashboard.shared_questions import parse_question
from toolfold.serving.gateway.control import (
    FOLLOW_REQUEST,
    MAX_LINE_BYTES,
    ControlError,
    control_directory,
    identify_peer,
    require_user,
    short_socket_path,
)

if TYPE_CHECKING:
    from toolfold.runtime.runtime import Runtime

log = logging.getLogger(__name__)

MAX_KEPT_EVENTS = 200
"""Events that a gateway without pages keeps for a dashboard that is opened later."""
MAX_EVENT_BYTES = 64 * 1024
"""Larger events are not shown in other processes."""
MAX_GATEWAYS = 64
MAX_QUESTIONS = 50
SEND_INTERVAL_S = 0.25
SCAN_INTERVAL_S = 1.0
"""How soon a dashboard notices a gateway that has just been started."""
RETRY_INTERVAL_S = 5.0
ANSWER_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 10.0


@contextmanager
def open_feed(runtime: Runtime, approver: PageApprover) -> Iterator[GatewayFeed]:
    """Record the usage of a gateway without pages, and show its questions and events to dashboards."""
    config = runtime.config
    redact = Redaction(config.secret_values(), max_chars=MAX_SHOWN_CHARS)
    store = open_history(config, runtime.database)
    with_content = config.dashboard.history_content
    recorder = UsageRecorder(runtime.events, store, with_content=with_content, journal=find_journal(config))
    feed = ActivityFeed(runtime.events, redact, max_events=MAX_KEPT_EVENTS)
    approver.name_user = feed.name_user = lambda _user_id: find_login_name()
    offered = GatewayFeed(approver, feed)
    approver.exchanges.append(offered)
    try:
        yield offered
    finally:
        feed.close()
        recorder.close()
        store.close()


def find_login_name() -> str:
    """Return the name of the user of this process; empty if the system does not know it."""
    with contextlib.suppress(OSError, KeyError, ImportError):
        return getpass.getuser()
    return ""


class GatewayFeed(QuestionExchange):
    """Shows the approval questions and events of a gateway to the dashboards that follow it."""

    def __init__(self, approver: PageApprover, feed: ActivityFeed) -> None:
        self._approver, self._feed = approver, feed
        self._open_pages: set[asyncio.StreamWriter] = set()
        """Connections of dashboards of which a page is open."""

    def has_other_pages(self) -> bool:
        return bool(self._open_pages)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send questions and events to a dashboard, and take its answers, until it closes the connection."""
        reading = asyncio.create_task(self._read_messages(reader, writer))
        position, shown = 0, None
        try:
            while not reading.done():
                events, position, _ = await asyncio.to_thread(self._feed.read_own_after, position)
                for event in events:
                    _write_line(writer, {"event": event}, MAX_EVENT_BYTES)
                questions = (await asyncio.to_thread(self._approver.list_own))[:MAX_QUESTIONS]
                if questions != shown:
                    shown = questions
                    _write_line(writer, {"questions": questions})
                await writer.drain()
                await asyncio.wait({reading}, timeout=SEND_INTERVAL_S)
        finally:
            self._open_pages.discard(writer)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_messages(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            match read_json(line.decode()):
                case {"has_page": bool(has_page)}:
                    (self._open_pages.add if has_page else self._open_pages.discard)(writer)
                case {"answer": str(answer), "question": str(question)}:
                    # The process that has connected may have ended and left the connection to another.
                    await asyncio.to_thread(require_user, writer.get_extra_info("socket"))
                    is_answered = self._approver.answer_own(question, answer)
                    _write_line(writer, {"answered": question, "is_open": is_answered})


@dataclass(slots=True)
class _Gateway:
    """Connection to a gateway that this process follows."""

    process: int
    writer: asyncio.StreamWriter
    questions: list[Json] = field(default_factory=list)
    answers: dict[str, concurrent.futures.Future[bool]] = field(default_factory=dict)


class FollowedGateways(QuestionExchange):
    """Follows all other gateways of this user, in a thread of its own. Thread-safe."""

    def __init__(
        self,
        state_dir: Path,
        *,
        is_page_open: Callable[[], bool],
        receive_event: Callable[[Json], None],
    ) -> None:
        """Start to follow the gateways; `receive_event` gets descriptions of their events for pages."""
        self._directory = control_directory(state_dir)
        self._is_page_open, self._receive_event = is_page_open, receive_event
        self._gateways: tuple[_Gateway, ...] = ()
        """Gateways that are connected now. Replaced as a whole: other threads read it."""
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="toolfold-gateways", daemon=True)
        self._thread.start()

    def update_page(self) -> None:
        with contextlib.suppress(RuntimeError):  # closed
            self._loop.call_soon_threadsafe(self._send_page_state)

    def list_remote(self) -> list[Json]:
        return [question for each in self._gateways for question in each.questions]

    def answer(self, question_id: str, answer: str) -> bool:
        for gateway in self._gateways:
            if any(each["id"] == question_id for each in gateway.questions):
                sending = self._send_answer(gateway, question_id, answer)
                # RuntimeError: closed here. OSError and CancelledError: the gateway has ended.
                errors = (RuntimeError, OSError, concurrent.futures.CancelledError)
                with contextlib.suppress(*errors, concurrent.futures.TimeoutError):
                    outcome = asyncio.run_coroutine_threadsafe(sending, self._loop)
                    return outcome.result(ANSWER_TIMEOUT_S).result(ANSWER_TIMEOUT_S)
        return False

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._follow_all())

    async def _follow_all(self) -> None:
        following: dict[str, asyncio.Task[None]] = {}
        while not self._ended.is_set():
            for name in await asyncio.to_thread(self._list_sockets):
                if name not in following and len(following) < MAX_GATEWAYS:
                    following[name] = asyncio.create_task(self._follow(name))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SCAN_INTERVAL_S):
                    await self._ended.wait()
            following = {name: each for name, each in following.items() if not each.done()}
        for each in following.values():
            each.cancel()
        await asyncio.gather(*following.values(), return_exceptions=True)

    def _list_sockets(self) -> list[str]:
        own = f"{os.getpid()}-"
        return [each.name for each in self._directory.glob("*.sock") if not each.name.startswith(own)]

    async def _follow(self, name: str) -> None:
        """Follow a gateway until its connection is closed; then wait a moment before the next attempt."""
        try:
            with short_socket_path(self._directory, name) as path:
                reader, writer = await asyncio.open_unix_connection(path, limit=MAX_LINE_BYTES)
            try:
                await self._follow_connection(reader, writer)
            finally:
                writer.close()
        except (OSError, ValueError, RecursionError, ControlError) as error:
            log.debug("the gateway with the control socket %s cannot be followed: %s", name, error)
        await asyncio.sleep(RETRY_INTERVAL_S)

    async def _follow_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        await asyncio.to_thread(require_user, connection)
        peer = identify_peer(connection)
        gateway = _Gateway(peer[0] if peer else 0, writer)
        _write_line(writer, FOLLOW_REQUEST)
        _write_line(writer, {"has_page": self._is_page_open()})
        self._gateways = (*self._gateways, gateway)
        try:
            while line := await reader.readline():
                self._receive(gateway, read_json(line.decode()))
        finally:
            self._gateways = tuple(each for each in self._gateways if each is not gateway)
            for answer in gateway.answers.values():
                answer.cancel()

    def _receive(self, gateway: _Gateway, message: Any) -> None:
        match message:
            case {"event": {"key": str(key), "session_id": str(), "at": int() | float()} as event}:
                process = gateway.process
                self._receive_event({**event, "key": f"{process}-{key}", "process": process})
            case {"questions": list(questions)}:
                parsed = (
                    parse_question(each, str(each["id"]))
                    for each in questions[:MAX_QUESTIONS]
                    if isinstance(each, dict) and "id" in each
                )
                gateway.questions = [{**each, "process": gateway.process} for each in parsed if each]
            case {"answered": str(question), "is_open": bool(is_open)}:
                if answer := gateway.answers.pop(question, None):
                    answer.set_result(is_open)
            case {"error": str(error)}:
                raise ControlError(error)

    def _send_page_state(self) -> None:
        for each in self._gateways:
            _write_line(each.writer, {"has_page": self._is_page_open()})

    async def _send_answer(
        self, gateway: _Gateway, question_id: str, answer: str
    ) -> concurrent.futures.Future[bool]:
        received = gateway.answers.setdefault(question_id, concurrent.futures.Future())
        _write_line(gateway.writer, {"question": question_id, "answer": answer})
        await gateway.writer.drain()
        return received


def _write_line(writer: asyncio.StreamWriter, message: Json, limit: int = MAX_LINE_BYTES) -> None:
    """Write a message as one line of JSON; leave it out if it is longer than `limit`."""
    line = json.dumps(message, default=str).encode() + b"\n"
    if len(line) <= limit:
        writer.write(line)
