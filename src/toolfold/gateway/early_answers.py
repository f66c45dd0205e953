"""Answers listing requests over stdio from the record of an earlier run, while the gateway is being imported.

A thread reads what the client sends and answers what the record holds: the handshake, pings and lists,
nothing else. All that was read is handed to the gateway when it is ready, which takes every message up in
order, as if it had read them itself; its own answers to requests that were answered already are compared and
dropped (see `listing_recorder`). Beyond MAX_RECEIVED_BYTES the client waits. Standard library only.
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
from typing import Any

from toolfold.gateway.listing_record import Answers, ListingRecord, ListingRequest, parse_request, record_file
from toolfold.gateway.pipes import ClientPipes, has_client_pipes
from toolfold.provenance import find_tool_call

MAX_RECEIVED_BYTES = 10_000_000
MAX_LINE_BYTES = 100_000
"""Longer lines are no listing requests; the gateway reads them."""
_CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Handover:
    """What the thread leaves to the gateway."""

    pipes: ClientPipes
    received: bytes = b""
    """Everything that the client sent so far."""
    unsent: bytes = b""
    """The rest of an answer that the client has not taken yet."""
    answered: dict[tuple[str, int | str], tuple[str, str]] = field(default_factory=dict)
    """Id → the method and the result that was sent."""


def start_early_answers(arguments: Sequence[str]) -> EarlyAnswers | None:
    """Begin to answer if this starts a gateway over stdio for which there is a record; else do nothing."""
    if ("mcp", "serve") not in itertools.pairwise(arguments) or not has_client_pipes():
        return None
    try:
        record = ListingRecord(record_file(arguments, os.environ))
    except OSError:
        return None
    if not record.read() or find_tool_call():
        return None
    return EarlyAnswers(ClientPipes.claim(), record)


class EarlyAnswers:
    """The thread. Call `stop` once, when the gateway is ready."""

    def __init__(self, pipes: ClientPipes, record: ListingRecord) -> None:
        self._pipes, self._record = pipes, record
        self._conversation = _Conversation(record)
        self._received, self._unsent = bytearray(), bytearray()
        self._parsed = 0
        """How many of the received bytes were looked at."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(pipes.output, False)
        self._thread = threading.Thread(target=self._run, name="toolfold-early-answers", daemon=True)
        self._thread.start()

    def stop(self) -> Handover:
        """End the thread and return what it leaves."""
        os.write(self._wake_write, b"\0")
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)
        answered = self._conversation.answered
        return Handover(self._pipes, bytes(self._received), bytes(self._unsent), answered)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the client is gone, which the gateway finds out too
            self._answer()

    def _answer(self) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        poll.register(self._pipes.input, select.POLLIN)
        while True:
            if self._unsent:
                poll.register(self._pipes.output, select.POLLOUT)
            ready = dict(poll.poll())
            if self._wake_read in ready:
                return
            if self._pipes.output in ready and not self._send():
                poll.unregister(self._pipes.output)
            if self._pipes.input in ready and not self._receive():
                poll.unregister(self._pipes.input)

    def _receive(self) -> bool:
        """Read what there is and answer it. False if no more is to be read here."""
        chunk = os.read(self._pipes.input, _CHUNK_BYTES)
        self._received += chunk
        while (end := self._received.find(b"\n", self._parsed)) >= 0:
            line = self._received[self._parsed : end]
            self._parsed = end + 1
            if len(line) <= MAX_LINE_BYTES:
                self._unsent += self._conversation.answer(line)
        if self._unsent:
            self._send()
        return bool(chunk) and len(self._received) < MAX_RECEIVED_BYTES

    def _send(self) -> bool:
        """Write as much as the client takes. False if nothing is left."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                sent = os.write(self._pipes.output, self._unsent[:_CHUNK_BYTES])
                del self._unsent[:sent]
        return bool(self._unsent)


class _Conversation:
    """What the client has said so far, and the answers to it that are recorded."""

    def __init__(self, record: ListingRecord) -> None:
        self._record = record
        self._shaken: Answers | None = None
        """The answers for the client that sent `initialize`."""
        self._is_initialized = False
        self.answered: dict[tuple[str, int | str], tuple[str, str]] = {}

    def answer(self, line: bytes | bytearray) -> bytes:
        """Return the line to send, or nothing."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return b""
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return b""
        if message.get("method") == "notifications/initialized" and "id" not in message:
            self._is_initialized = self._shaken is not None
        result = self._result(message)
        return b"" if result is None else _response(message["id"], result)

    def _result(self, message: dict[str, Any]) -> str | None:
        request = parse_request(message.get("method"), message.get("id"), message.get("params"))
        if request is None or request.key in self.answered:
            return None
        if (result := self._answers(request).get(request.method)) is not None:
            self.answered[request.key] = request.method, result
        return result

    def _answers(self, request: ListingRequest) -> Mapping[str, str]:
        """Return the answers for the client that made the request, as far as its conversation allows."""
        if request.client and request.method != "initialize":  # a revision without a handshake
            return self._record.clients.get(request.client, {})
        if request.method == "initialize":
            if self._shaken is not None:
                return {}
            self._shaken = self._record.clients.get(request.client, {})
            return self._shaken
        if request.method == "ping":
            return {"ping": "{}"} if self._shaken else {}
        return (self._shaken or {}) if self._is_initialized else {}


def _response(request_id: int | str, result: str) -> bytes:
    return f'{{"jsonrpc":"2.0","id":{json.dumps(request_id)},"result":{result}}}\n'.encode()
