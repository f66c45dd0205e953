"""Connect to running gateways through their control sockets, and use the models of their clients.

For commands of the user in another process than the gateway.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolfold.core.types import Json, read_json
from toolfold.models import get_dialect
from toolfold.models.client import ReplyStream
from toolfold.models.dialect import Dialect
from toolfold.models.provider_errors import ProviderError
from toolfold.models.reply import ModelRequest
from toolfold.serving.gateway.control import (
    MAX_LINE_BYTES,
    SAMPLING_TIMEOUT_S,
    ControlError,
    control_directory,
    short_socket_path,
)

LIST_TIMEOUT_S = 10.0
MAX_GATEWAYS = 200
_ANSWER_TIMEOUT_S = SAMPLING_TIMEOUT_S + 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedClient:
    """A client that is connected to a running gateway."""

    socket: Path
    """Path of the gateway's control socket."""
    id: str
    name: str
    """Name of the client as `toolfold mcp status` shows it."""
    program: str
    """Name that the client's program declares for itself."""
    problem: str
    """Why the client's model cannot be used; empty if it can."""
    tools: frozenset[str]
    """Names of the tools that the client may use."""

    @property
    def label(self) -> str:
        """Return the name of the client's program, or the token's name if the program declares none."""
        return self.program or self.name


async def list_clients(state_dir: Path) -> list[ConnectedClient]:
    """Return the clients of all running gateways."""
    sockets = sorted(control_directory(state_dir).glob("*.sock"))[:MAX_GATEWAYS]
    found = await asyncio.gather(*(_list_clients_of(each) for each in sockets))
    return [client for clients in found for client in clients]


async def _list_clients_of(socket: Path) -> list[ConnectedClient]:
    try:
        answer = await _ask(socket, {"request": "list_clients"}, LIST_TIMEOUT_S)
    except (OSError, TimeoutError, ValueError):
        return []  # the gateway was killed, or is ending
    if error := answer.get("error"):
        raise ControlError(str(error))
    rows = [row for row in answer.get("clients") or () if isinstance(row, dict)]
    return [
        ConnectedClient(
            socket=socket,
            tools=frozenset(map(str, row.get("tools") or ())),
            **{key: str(row.get(key) or "") for key in ("id", "name", "program", "problem")},
        )
        for row in rows
    ]


class SamplingClient:
    """Model client that sends its requests to the model of a connected gateway client.

    The client decides which model that is, and asks its user first.
    """

    model = ""

    def __init__(self, client: ConnectedClient) -> None:
        self.name, self._client = client.label, client

    @property
    def dialect(self) -> Dialect:
        return get_dialect("openai")

    def stream(self, request: ModelRequest) -> ReplyStream:
        return ReplyStream(self._sample(request), self.dialect.start_reply())

    async def _sample(self, request: ModelRequest) -> AsyncIterator[Json]:
        """Yield the answer of the client's model as one stream event. Raises ProviderError on refusal."""
        question = {
            "request": "sample",
            "client": self._client.id,
            "system": request.system,
            "text": "\n\n".join(str(message["content"]) for message in request.messages),
            "max_tokens": request.max_output_tokens,
        }
        try:
            answer = await _ask(self._client.socket, question, _ANSWER_TIMEOUT_S)
        except (OSError, ValueError):
            raise ProviderError(
                "the gateway closed the connection; check that the client is still running", kind="permission"
            ) from None
        except TimeoutError:
            raise ProviderError("the gateway did not answer", kind="permission") from None
        if error := answer.get("error"):
            raise ProviderError(str(error), kind="permission")  # asking a person again would not be polite
        text, model = str(answer.get("text") or ""), str(answer.get("model") or "")
        choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        yield {"choices": [choice], "model": model}

    async def list_models(self) -> list[Json]:
        return []

    async def close(self) -> None:
        """Do nothing: each request uses a separate connection."""


async def _ask(socket: Path, question: Json, timeout_s: float) -> dict[str, Any]:
    """Send a request to a gateway's control socket and return the response. Raises OSError or ValueError."""
    async with asyncio.timeout(timeout_s):
        with short_socket_path(socket.parent, socket.name) as path:
            reader, writer = await asyncio.open_unix_connection(path, limit=MAX_LINE_BYTES)
        try:
            writer.write(json.dumps(question).encode() + b"\n")
            await writer.drain()
            answer = read_json((await reader.readline()).decode())
        finally:
            writer.close()
    if not isinstance(answer, dict):
        raise ValueError("the response of the gateway must be a JSON object")
    return answer
