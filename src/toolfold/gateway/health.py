"""Health and readiness of a gateway, for load balancers and process managers.

`/healthz` answers as long as the process can answer. `/readyz` tells whether new requests should be sent to
this replica. Both are answered without a token and for any host name, and say nothing of tools and clients.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from toolfold.database import Database
    from toolfold.gateway.http_app import MountedApp
    from toolfold.gateway.http_sessions import Scope, Send
    from toolfold.gateway.request_bodies import Receive

MAX_SILENCE_S = 10.0
"""Time after which a database that has not answered makes a replica not ready."""


class Readiness:
    """Tells whether a replica should get new requests."""

    def __init__(self, database: Database | None = None) -> None:
        self._database = database
        self.is_draining = False
        """True once the process was told to end; requests are still answered for a while."""

    def find_problems(self) -> tuple[str, ...]:
        """Return why the replica should get no new requests; empty if it should. Does not block."""
        problems = ["the replica is about to stop"] if self.is_draining else []
        if self._database is not None and self._database.seconds_since_contact() > MAX_SILENCE_S:
            problems.append("the database cannot be reached")
        return tuple(problems)

    def make_apps(self) -> list[MountedApp]:
        """Return the apps that answer `/healthz` and `/readyz`."""
        return [_ProbeApp("/healthz", lambda: ()), _ProbeApp("/readyz", self.find_problems)]


class _ProbeApp:
    """Answers requests for one path with status 200, or with 503 and the problems."""

    def __init__(self, path: str, find_problems: Callable[[], tuple[str, ...]]) -> None:
        self._path, self._find_problems = path, find_problems

    @property
    def path(self) -> str:
        return self._path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - no body
        if scope["method"] not in ("GET", "HEAD"):
            await _send_json(send, 405, {"error": "Use GET."})
            return
        problems = self._find_problems()
        content: dict[str, Any] = (
            {"status": "not ready", "problems": problems} if problems else {"status": "ok"}
        )
        await _send_json(send, 503 if problems else 200, content, with_body=scope["method"] == "GET")

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


async def _send_json(send: Send, status: int, content: dict[str, Any], *, with_body: bool = True) -> None:
    body = json.dumps(content).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    start: MutableMapping[str, Any] = {"type": "http.response.start", "status": status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body if with_body else b""})
