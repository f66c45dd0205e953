"""Report health and readiness of a gateway to load balancers and process managers.

`/healthz` answers as long as the process can answer. `/readyz` tells whether new requests should be sent to
this replica. `/metrics` counts what happens here, for Prometheus. All are answered without a token and for
any host name, and name no tools and clients.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from toolfold.core.events import EventBus
    from toolfold.serving.gateway.client_tokens import TokenStore
    from toolfold.serving.gateway.http_app import MountedApp
    from toolfold.serving.gateway.http_sessions import Scope, Send
    from toolfold.serving.gateway.request_bodies import Receive
    from toolfold.state.database import Database

MAX_SILENCE_S = 10.0
"""Time after which a database that has not answered makes a replica not ready."""


class ReplicaReadiness:
    """Determines whether this replica of the gateway should receive new requests."""

    def __init__(self, database: Database | None = None) -> None:
        self._database = database
        self.is_draining = False
        """True once the process was told to end; requests are still answered for a while."""

    def find_problems(self) -> tuple[str, ...]:
        """Return why this replica should receive no new requests; empty if it is ready. Does not block."""
        problems = ["the replica is about to stop"] if self.is_draining else []
        if self._database is not None and self._database.seconds_since_contact() > MAX_SILENCE_S:
            problems.append("the database cannot be reached")
        return tuple(problems)

    def make_apps(self) -> list[MountedApp]:
        """Return the ASGI apps for `/healthz` and `/readyz`."""
        return [_ProbeApp("/healthz", lambda: ()), _ProbeApp("/readyz", self.find_problems)]


class _ProbeApp:
    """ASGI app that responds with status 200, or with 503 and a list of problems."""

    def __init__(self, path: str, find_problems: Callable[[], tuple[str, ...]]) -> None:
        self._path, self._find_problems = path, find_problems

    @property
    def path(self) -> str:
        return self._path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - no body
        problems = self._find_problems()
        content: dict[str, Any] = {"status": "ok"}
        if problems:
            content = {"status": "not ready", "problems": problems}
        await _answer(scope, send, 503 if problems else 200, json.dumps(content), "application/json")

    async def close(self) -> None:
        """Do nothing: the app has no resources to close."""


class MetricsApp:
    """ASGI app for `/metrics` that responds with the counters of a runtime."""

    def __init__(self, bus: EventBus, readiness: ReplicaReadiness, tokens: TokenStore | None = None) -> None:
        """Start counting events; `tokens` provides the number of requests refused by user limits."""
        from toolfold.runtime.telemetry.prometheus import CONTENT_TYPE, PrometheusMetrics

        self._tokens = tokens
        self._metrics, self._readiness, self._content_type = PrometheusMetrics(), readiness, CONTENT_TYPE
        self._unsubscribe = bus.subscribe(self._metrics)

    @property
    def path(self) -> str:
        return "/metrics"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - no body
        quotas = self._tokens.quotas if self._tokens else None
        refusals = {str(meter): count for meter, count in quotas.refusals.items()} if quotas else None
        text = self._metrics.render(is_ready=not self._readiness.find_problems(), limit_refusals=refusals)
        await _answer(scope, send, 200, text, self._content_type)

    async def close(self) -> None:
        """Stop counting events."""
        self._unsubscribe()


async def _answer(scope: Scope, send: Send, status: int, text: str, content_type: str) -> None:
    """Respond to GET or HEAD with a text; refuse other methods."""
    if scope["method"] not in ("GET", "HEAD"):
        status, text, content_type = 405, json.dumps({"error": "Use GET."}), "application/json"
    body = text.encode()
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    start: MutableMapping[str, Any] = {"type": "http.response.start", "status": status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
