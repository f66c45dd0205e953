"""Answer list requests over stdio with answers recorded in an earlier run, while the gateway is loading.

A thread reads the client's messages and answers those that the record covers: the handshake, pings and
lists, nothing else. When the gateway is ready it gets everything that was read, and handles every message as
if it had read it itself; its own answers to requests that were answered early are compared and dropped (see
`listing_recorder`). Beyond MAX_RECEIVED_BYTES the client has to wait. Standard library only.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toolfold.gateway.listing_record import (
    Answers,
    ListingRecord,
    ListingRequest,
    locate_record_file,
    parse_request,
)
from toolfold.gateway.pipes import ClientPipes, has_client_pipes
from toolfold.provenance import find_tool_call

if TYPE_CHECKING:
    from toolfold.gateway.early_http import EarlyHttpAnswers

MAX_RECEIVED_BYTES = 10_000_000
MAX_LINE_BYTES = 100_000
"""Longer lines are not listing requests; the gateway reads them."""
_CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Handover:
    """State passed from the early-answer thread to the gateway once the gateway has loaded."""

    pipes: ClientPipes
    received: bytes = b""
    """All bytes that the client has sent so far."""
    unsent: bytes = b""
    """The rest of an answer that was not written to the client yet."""
    answered: dict[tuple[str, int | str], tuple[str, str]] = field(default_factory=dict)
    """The method and the sent result of each answered request, by request id."""


def start_early_answers(arguments: Sequence[str]) -> EarlyAnswers | EarlyHttpAnswers | None:
    """Start to answer list requests with an earlier run's answers; return None if that is impossible."""
    is_stdio = ("mcp", "serve") in itertools.pairwise(arguments)
    if "serve" not in arguments or (is_stdio and not has_client_pipes()):
        return None
    if not hasattr(select, "poll"):  # on Windows, only sockets can be waited for
        return None
    try:
        record = ListingRecord(locate_record_file(arguments, os.environ))
    except OSError:
        return None
    if not record.read() or find_tool_call():
        return None
    if is_stdio:
        return EarlyAnswers(ClientPipes.claim(), record)
    return _start_over_http(record)


def _start_over_http(record: ListingRecord) -> EarlyHttpAnswers | None:
    from toolfold.gateway.early_http import EarlyHttpAnswers

    if record.http is None or not record.clients:
        return None
    with contextlib.suppress(OSError, UnicodeError):  # the gateway will report that it cannot listen
        return EarlyHttpAnswers(record, record.http)
    return None


class EarlyAnswers:
    """Thread that answers list requests while the gateway loads; call `stop` once it has loaded."""

    def __init__(self, pipes: ClientPipes, record: ListingRecord) -> None:
        self._pipes, self._record = pipes, record
        self._conversation = _EarlyConversation(record)
        self._received, self._unsent = bytearray(), bytearray()
        self._parsed = 0
        """Number of received bytes that were parsed."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(pipes.output, False)
        self._thread = threading.Thread(target=self._run_thread, name="toolfold-early-answers", daemon=True)
        self._thread.start()

    def stop(self) -> Handover:
        """Stop the thread, and return the state of the client's connection for the gateway to continue."""
        os.write(self._wake_write, b"\0")
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)
        answered = self._conversation.answered
        return Handover(self._pipes, bytes(self._received), bytes(self._unsent), answered)

    def _run_thread(self) -> None:
        with contextlib.suppress(OSError):  # the client is gone; the gateway will notice it too
            self._serve()

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        poll.register(self._pipes.input, select.POLLIN)
        while True:
            if self._unsent:
                poll.register(self._pipes.output, select.POLLOUT)
            ready = dict(poll.poll())
            if self._wake_read in ready:
                return
            if self._pipes.output in ready and not self._send_responses():
                poll.unregister(self._pipes.output)
            if self._pipes.input in ready and not self._receive_requests():
                poll.unregister(self._pipes.input)

    def _receive_requests(self) -> bool:
        """Read requests and send recorded answers; return False at end of input or at the size limit."""
        chunk = os.read(self._pipes.input, _CHUNK_BYTES)
        self._received += chunk
        while (end := self._received.find(b"\n", self._parsed)) >= 0:
            line = self._received[self._parsed : end]
            self._parsed = end + 1
            if len(line) <= MAX_LINE_BYTES:
                self._unsent += self._conversation.answer(line)
        if self._unsent:
            self._send_responses()
        return bool(chunk) and len(self._received) < MAX_RECEIVED_BYTES

    def _send_responses(self) -> bool:
        """Write as much of the responses as the pipe accepts; return True if a part remains unsent."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                sent = os.write(self._pipes.output, self._unsent[:_CHUNK_BYTES])
                del self._unsent[:sent]
        return bool(self._unsent)


class _EarlyConversation:
    """Conversation with a stdio client while the gateway loads: handshake state and recorded list results."""

    def __init__(self, record: ListingRecord) -> None:
        self._record = record
        self._handshake_results: Answers | None = None
        """The answers for the client that sent `initialize`."""
        self._is_initialized = False
        self.answered: dict[tuple[str, int | str], tuple[str, str]] = {}

    def answer(self, line: bytes | bytearray) -> bytes:
        """Return the response to a client's message; empty if the gateway must answer it after loading."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return b""
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return b""
        if message.get("method") == "notifications/initialized" and "id" not in message:
            self._is_initialized = self._handshake_results is not None
        result = self._find_result(message)
        return b"" if result is None else _format_response(message["id"], result)

    def _find_result(self, message: dict[str, Any]) -> str | None:
        request = parse_request(message.get("method"), message.get("id"), message.get("params"))
        if request is None or request.key in self.answered:
            return None
        if (result := self._results_for(request).get(request.method)) is not None:
            self.answered[request.key] = request.method, result
        return result

    def _results_for(self, request: ListingRequest) -> Mapping[str, str]:
        """Return the list results recorded for the request's client in an earlier run.

        Empty if the client has not yet finished the handshake that its request requires.
        """
        if request.client and request.method != "initialize":  # the newest revision has no handshake
            return self._record.clients.get(request.client, {})
        if request.method == "initialize":
            if self._handshake_results is not None:
                return {}
            self._handshake_results = self._record.clients.get(request.client, {})
            return self._handshake_results
        if request.method == "ping":
            return {"ping": "{}"} if self._handshake_results else {}
        return (self._handshake_results or {}) if self._is_initialized else {}


def _format_response(request_id: int | str, result: str) -> bytes:
    return f'{{"jsonrpc":"2.0","id":{json.dumps(request_id)},"result":{result}}}\n'.encode()
