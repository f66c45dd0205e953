"""Client of a Home Assistant server, using its REST or WebSocket interface.

The user configures the server, so its address may be private; the metadata services of clouds stay forbidden.
Answers are checked and limited in size. The access token is sent to the server only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from toolfold.core.errors import CallError, shorten
from toolfold.core.types import Json
from toolfold.tools.internet.address_policy import AddressPolicy
from toolfold.tools.internet.service_client import ServiceClient

MAX_ANSWER_BYTES = 20_000_000
MAX_ERROR_CHARS = 300
ENTITY_ID = re.compile(r"[a-z0-9_]{1,64}\.[a-z0-9_]{1,190}")
NAME = re.compile(r"[a-z0-9_]{1,64}")
_SIGN_IN_REFUSED = "The Home Assistant server does not accept the access token."
Mark = Callable[[str], Awaitable[str]]


class HomeAssistantFailed(CallError):
    """Raised when the Home Assistant server is not configured, cannot be reached, or refused a request."""


class HomeAssistantClient(Protocol):
    """Client that reads the entities and services of a Home Assistant server, and calls services."""

    async def list_states(self) -> list[Json]:
        """Return the states of all entities."""

    async def get_state(self, entity_id: str) -> Json:
        """Return the state of one entity. Raises HomeAssistantFailed if there is no such entity."""

    async def list_services(self) -> dict[str, Json]:
        """Return all services by domain and name."""

    async def call_service(self, domain: str, service: str, data: Json) -> list[str]:
        """Call a service and return the changed entities, if the server reports them."""


def open_client(url: str, token: str, *, interface: str, timeout_s: float, mark: Mark) -> HomeAssistantClient:
    """Return a client for the given interface, `rest` or `websocket`."""
    if interface == "websocket":
        return WebSocketClient(url.rstrip("/"), token, timeout_s, mark)
    service = ServiceClient(
        name="Home Assistant server",
        policy=AddressPolicy.for_service(),
        timeout_s=timeout_s,
        max_bytes=MAX_ANSWER_BYTES,
        mark=mark,
        error=HomeAssistantFailed,
    )
    return RestClient(url.rstrip("/"), token, service)


@dataclass(frozen=True, slots=True)
class RestClient:
    """Client of Home Assistant's REST interface."""

    url: str
    token: str
    service: ServiceClient

    async def list_states(self) -> list[Json]:
        return _check_states(await self._request("/api/states"))

    async def get_state(self, entity_id: str) -> Json:
        try:
            return _check_state(await self._request(f"/api/states/{entity_id}"), entity_id)
        except HomeAssistantFailed as error:
            if error.details.get("status") == 404:
                raise _unknown_entity(entity_id) from None
            raise

    async def list_services(self) -> dict[str, Json]:
        listed = await self._request("/api/services")
        if not isinstance(listed, list):
            raise _unexpected()
        pairs = [(each.get("domain"), each.get("services")) for each in listed if isinstance(each, dict)]
        return _check_services(dict(pairs))

    async def call_service(self, domain: str, service: str, data: Json) -> list[str]:
        changed = await self._request(f"/api/services/{domain}/{service}", method="POST", payload=data)
        return [str(each.get("entity_id")) for each in _check_states(changed)]

    async def _request(self, path: str, *, method: str = "GET", payload: Json | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            return await self.service.request_json(
                f"{self.url}{path}", method=method, payload=payload, headers=headers
            )
        except HomeAssistantFailed as error:
            if error.details.get("status") in (401, 403):
                raise HomeAssistantFailed(_SIGN_IN_REFUSED) from None
            raise


@dataclass(frozen=True, slots=True)
class WebSocketClient:
    """Client of Home Assistant's WebSocket interface; every request opens a new connection."""

    url: str
    token: str
    timeout_s: float
    mark: Mark

    async def list_states(self) -> list[Json]:
        return _check_states(await self._request({"type": "get_states"}))

    async def get_state(self, entity_id: str) -> Json:
        for state in await self.list_states():
            if state.get("entity_id") == entity_id:
                return _check_state(state, entity_id)
        raise _unknown_entity(entity_id)

    async def list_services(self) -> dict[str, Json]:
        return _check_services(await self._request({"type": "get_services"}))

    async def call_service(self, domain: str, service: str, data: Json) -> list[str]:
        await self._request(
            {"type": "call_service", "domain": domain, "service": service, "service_data": data}
        )
        entities = data.get("entity_id", [])
        return [entities] if isinstance(entities, str) else list(entities)

    async def _request(self, message: Json) -> Any:
        try:
            async with asyncio.timeout(self.timeout_s), self._connect() as connection:
                await self._sign_in(connection)
                await connection.send(json.dumps({"id": 1, **message}))
                answer = await self._receive(connection, "result")
        except TimeoutError:
            raise HomeAssistantFailed(
                f"The Home Assistant server did not answer within {self.timeout_s:g} s."
            ) from None
        if not answer.get("success"):
            error = answer.get("error")
            problem = error.get("message") if isinstance(error, dict) else None
            text = await self.mark(shorten(str(problem or "no reason given"), MAX_ERROR_CHARS))
            raise HomeAssistantFailed(f"The Home Assistant server refused the request: {text}")
        return answer.get("result")

    async def _sign_in(self, connection: Any) -> None:
        await self._receive(connection, "auth_required")
        await connection.send(json.dumps({"type": "auth", "access_token": self.token}))
        await self._receive(connection, "auth_ok")

    async def _receive(self, connection: Any, wanted: str) -> Json:
        try:
            answer = json.loads(await connection.recv())
        except (ValueError, RecursionError):
            raise HomeAssistantFailed("The response of the server is not valid JSON.") from None
        if isinstance(answer, dict) and answer.get("type") == "auth_invalid":
            raise HomeAssistantFailed(_SIGN_IN_REFUSED)
        if not isinstance(answer, dict) or answer.get("type") != wanted:
            raise _unexpected()
        return answer

    @contextlib.asynccontextmanager
    async def _connect(self) -> AsyncIterator[Any]:
        """Open a WebSocket to an address that the policy allows."""
        import websockets

        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if secure else 80)
        path = f"{parts.path}/api/websocket"
        url = urlunsplit(("wss" if secure else "ws", parts.netloc, path, "", ""))
        addresses = await AddressPolicy.for_service().resolve(host, port)
        tls = {"ssl": ssl.create_default_context(), "server_hostname": host} if secure else {}
        try:
            async with websockets.connect(
                url,
                host=addresses[0],
                port=port,
                max_size=MAX_ANSWER_BYTES,
                open_timeout=self.timeout_s,
                close_timeout=1.0,
                proxy=None,
                **tls,
            ) as connection:
                yield connection
        except (OSError, websockets.WebSocketException) as error:
            raise HomeAssistantFailed(
                f"The Home Assistant server could not be reached: {shorten(str(error), MAX_ERROR_CHARS)}."
            ) from None


def _check_states(value: Any) -> list[Json]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise _unexpected()
    return [each for each in value if ENTITY_ID.fullmatch(str(each.get("entity_id")))]


def _check_state(value: Any, entity_id: str) -> Json:
    if not isinstance(value, dict) or value.get("entity_id") != entity_id:
        raise _unexpected()
    return value


def _check_services(value: Any) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise _unexpected()
    return {
        domain: services
        for domain, services in value.items()
        if NAME.fullmatch(str(domain)) and isinstance(services, dict)
    }


def _unknown_entity(entity_id: str) -> HomeAssistantFailed:
    return HomeAssistantFailed(f"There is no entity {entity_id!r}. ha_list_entities lists all entities.")


def _unexpected() -> HomeAssistantFailed:
    return HomeAssistantFailed("The Home Assistant server sent a response with an unexpected structure.")
