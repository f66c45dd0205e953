"""Many clients of one or several gateways in one process: each sends requests over a connection of its own.

Written for little CPU time per request, because the clients share the machine with what they measure. A
request is sent once and never repeated, so that each one is either answered or counted as an error.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

REQUEST_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
HEALTH_INTERVAL_S = 1.0
HEALTH_TIMEOUT_S = 5.0
MAX_LINE_BYTES = 1 << 22
OLD_REVISION, NEW_REVISION = "2025-11-25", "2026-07-28"
_INFO = {"name": "load", "version": "1"}
_META = {
    "io.modelcontextprotocol/protocolVersion": NEW_REVISION,
    "io.modelcontextprotocol/clientInfo": _INFO,
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Failure(Exception):
    """Raised when a request fails or gets a wrong answer; the text is the kind of error."""


@dataclass(slots=True)
class Balancer:
    """Chooses the port of a replica for each new connection: in rotation, skipping replicas not ready.

    Asks `/readyz` of each replica every second, like the health check of a load balancer.
    """

    ports: Sequence[int]
    has_health_check: bool = False
    _next: int = 0
    _not_ready: set[int] = field(default_factory=set)

    def choose_port(self) -> int:
        for _ in self.ports:
            port = self.ports[self._next % len(self.ports)]
            self._next += 1
            if port not in self._not_ready:
                return port
        return port

    def report_refusal(self, port: int) -> None:
        if self.has_health_check:
            self._not_ready.add(port)

    async def follow_health(self) -> None:
        """Check repeatedly whether each replica is ready, until this task is cancelled."""
        while self.has_health_check:
            await asyncio.gather(*map(self._check, self.ports))
            await asyncio.sleep(HEALTH_INTERVAL_S)

    async def _check(self, port: int) -> None:
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
                is_ready = (await reader.readline()).split(b" ")[1:2] == [b"200"]
                writer.close()
        except (OSError, TimeoutError):
            is_ready = False
        (self._not_ready.discard if is_ready else self._not_ready.add)(port)


@dataclass(slots=True)
class Log:
    """Record of the requests that clients sent, that were acknowledged, and that failed."""

    started: float = field(default_factory=time.monotonic)
    times: dict[str, list[float]] = field(default_factory=dict)
    """Kind of request → seconds of each acknowledged one."""
    finished: list[float] = field(default_factory=list)
    """Seconds after the start at which requests were acknowledged."""
    sent: Counter[str] = field(default_factory=Counter)
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Phase of the run and kind of error → number."""
    acknowledged: dict[str, set[str]] = field(default_factory=dict)
    phase: str = ""

    def add(self, kind: str, request_id: str, seconds: float) -> None:
        self.times.setdefault(kind, []).append(seconds)
        self.acknowledged.setdefault(kind, set()).add(request_id)
        self.finished.append(time.monotonic() - self.started)


class Connection:
    """One HTTP connection, which is opened again after it was closed."""

    def __init__(self, balancer: Balancer) -> None:
        self._balancer, self.port = balancer, 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes, headers: str) -> tuple[int, dict[str, str], bytes]:
        """Send a request; return status, headers and body of the response. Raises Failure."""
        reader, writer = await self._open()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\ncontent-type: application/json\r\n"
            f"accept: application/json, text/event-stream\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
        )
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                writer.write(head.encode() + body)
                return await _read_response(reader)
        except TimeoutError:
            self.close()
            raise Failure(f"no answer within {REQUEST_TIMEOUT_S:g} s") from None
        except (OSError, asyncio.IncompleteReadError) as error:
            self.close()
            raise Failure(f"connection lost before the answer ({type(error).__name__})") from None

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None and not self._streams[0].at_eof():
            return self._streams
        self.close()
        for _ in self._balancer.ports:
            self.port = self._balancer.choose_port()
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    self._streams = await asyncio.open_connection(
                        "127.0.0.1", self.port, limit=MAX_LINE_BYTES
                    )
                    return self._streams
            except (OSError, TimeoutError):
                self._balancer.report_refusal(self.port)
        raise Failure("no replica accepts connections")


async def _read_response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:]) if value
    }
    if headers.get("transfer-encoding") == "chunked":
        parts = []
        while size := int(await reader.readuntil(b"\n"), 16):
            parts.append((await reader.readexactly(size + 2))[:-2])
        await reader.readline()
        body = b"".join(parts)
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return int(lines[0].split(" ", 2)[1]), headers, body


class Session:
    """One MCP client; with the older protocol revision, it has a session at a gateway."""

    def __init__(self, balancer: Balancer, revision: str, token: str = "") -> None:
        self._connection, self._revision = Connection(balancer), revision
        self._token = f"authorization: Bearer {token}\r\n" if token else ""
        self._session, self._number = "", 0

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool and return the text of its result. Raises Failure."""
        if self._revision == OLD_REVISION and not self._session:
            await self._initialize()
        params: dict[str, Any] = {"name": name, "arguments": arguments}
        if self._revision == NEW_REVISION:
            params["_meta"] = _META
        response = await self._request("tools/call", params, name)
        result = response.get("result")
        if result is None:
            raise Failure(f"error response: {_cut(str(response.get('error', {}).get('message')))}")
        text = " ".join(each.get("text", "") for each in result.get("content", ()))
        if result.get("isError"):
            raise Failure(f"tool error: {_cut(text)}")
        return text

    async def complete(self, body: bytes) -> bytes:
        """Send a request to the model proxy and return the body of the response. Raises Failure."""
        status, _, content = await self._connection.post("/v1/chat/completions", body, self._token)
        if status != 200:
            raise Failure(f"status {status}: {_cut(content.decode(errors='replace'))}")
        return content

    def close(self) -> None:
        self._connection.close()

    async def _initialize(self) -> None:
        self._session = ""
        params = {"protocolVersion": OLD_REVISION, "capabilities": {}, "clientInfo": _INFO}
        await self._request("initialize", params)
        note = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
        await self._connection.post("/mcp", note, self._headers())

    async def _request(self, method: str, params: Mapping[str, Any], name: str = "") -> dict[str, Any]:
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        headers = self._headers(method, name)
        status, found, body = await self._connection.post("/mcp", json.dumps(message).encode(), headers)
        self._session = found.get("mcp-session-id", self._session)
        if status == 404 and self._session:  # the protocol: begin a new session
            self._session = ""
            raise Failure("status 404: the session is not known here")
        if status != 200:
            raise Failure(f"status {status}: {_cut(body.decode(errors='replace'))}")
        return _find_response(body, self._number)

    def _headers(self, method: str = "", name: str = "") -> str:
        headers = f"{self._token}mcp-protocol-version: {self._revision}\r\n"
        if self._session:
            headers += f"mcp-session-id: {self._session}\r\n"
        if self._revision == NEW_REVISION:
            headers += f"mcp-method: {method}\r\n" + (f"mcp-name: {name}\r\n" if name else "")
        return headers


def _find_response(body: bytes, number: int) -> dict[str, Any]:
    """Return the response in a JSON body or an event stream."""
    if body.startswith(b"{"):
        return dict(json.loads(body))
    for line in body.splitlines():
        if line.startswith(b"data:") and line[5:].strip():
            message = json.loads(line[5:])
            if message.get("id") == number and "method" not in message:
                return dict(message)
    raise Failure("the stream ended without a response")


def _cut(text: str) -> str:
    """Shorten an error message and drop the words that differ between calls, to count errors by kind."""
    words = ["…" if any(each.isdigit() for each in word) else word for word in text.split()]
    return " ".join(words)[:160]


Task = Callable[[Session, str], Any]
"""Coroutine function that makes one request with a unique id."""


async def run_clients(
    balancer: Balancer,
    tasks: Mapping[str, tuple[Task, float]],
    log: Log,
    *,
    sessions: int,
    seconds: float,
    think_s: float,
    tokens: Sequence[str] = ("",),
    revisions: Sequence[str] = (OLD_REVISION, NEW_REVISION),
    seed: int = 1,
) -> None:
    """Let clients send requests until the time is over; `tasks` are kinds of requests with their shares."""
    end = time.monotonic() + seconds
    kinds, weights = list(tasks), [share for _, share in tasks.values()]

    async def run_one(number: int) -> None:
        rng = random.Random(seed * 1_000_003 + number)
        session = Session(balancer, revisions[number % len(revisions)], tokens[number % len(tokens)])
        await asyncio.sleep(rng.uniform(0, min(max(think_s, 1.0), seconds / 2)))
        count = 0
        while time.monotonic() < end:
            kind = rng.choices(kinds, weights)[0]
            request_id = f"{kind}-{seed}-{number}-{count}"
            count += 1
            began = time.monotonic()
            log.sent[kind] += 1
            try:
                await tasks[kind][0](session, request_id)
            except Failure as error:
                log.errors[log.phase, str(error)] += 1
            else:
                log.add(kind, request_id, time.monotonic() - began)
            if think_s:
                await asyncio.sleep(min(rng.expovariate(1 / think_s), max(0.0, end - time.monotonic())))
        session.close()

    checking = asyncio.create_task(balancer.follow_health())
    async with asyncio.TaskGroup() as group:
        for number in range(sessions):
            group.create_task(run_one(number))
    checking.cancel()
