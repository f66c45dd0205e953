"""The model proxy as an ASGI app that checks access, parses requests and forwards them to providers.

Access is checked by the gateway's policy. Model requests with many tools are folded; everything else below
/v1 is passed on unchanged. Keys and bodies are never logged.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any

from toolfold.core.errors import shorten
from toolfold.core.json_limits import find_excess
from toolfold.core.types import Caller, Json
from toolfold.models.reply import Reply
from toolfold.models.wire import COUNTING_WIRES, WIRES, Wire
from toolfold.runtime.runtime import Runtime
from toolfold.serving.gateway.client_tokens import GatewayClient
from toolfold.serving.gateway.http_app import AccessPolicy, parse_headers, send_while_valid
from toolfold.serving.gateway.http_sessions import Scope, Send
from toolfold.serving.gateway.request_bodies import (
    BodyLimits,
    BodyReservation,
    ClientGone,
    Receive,
    RequestBodies,
    RequestRefused,
)
from toolfold.serving.gateway.server import RETRY_AFTER_S
from toolfold.serving.proxy.folding import Fold, Folder
from toolfold.serving.proxy.forwarding import (
    UpstreamConnections,
    UpstreamFailed,
    UpstreamResponse,
    relay_response,
)
from toolfold.serving.proxy.inert_responses import add_safe_headers, require_program
from toolfold.serving.proxy.json_bodies import has_body
from toolfold.serving.proxy.model_prices import ModelPrices
from toolfold.serving.proxy.model_rules import limits_models, require_allowed_model
from toolfold.serving.proxy.native_forms import NativeForms, add_header_value
from toolfold.serving.proxy.proxy_access import AdmittedClient, admit_client, require_single_keys
from toolfold.serving.proxy.reply_usage import ForwardedReply, find_usage
from toolfold.serving.proxy.request_events import RequestEvents
from toolfold.serving.proxy.rounds import AccessEnded, FoldedExchange, FoldingFailed
from toolfold.serving.proxy.runtime_tools import RuntimeTools
from toolfold.serving.proxy.shared_keys import (
    CHECKED_PATHS,
    list_continued_replies,
    refuse_unknown_reply,
    require_shared_path,
)
from toolfold.serving.proxy.spending import (
    COUNTED_PATHS,
    UsageHider,
    prepare_counted_body,
    require_counted_path,
)
from toolfold.serving.proxy.stored_replies import StoredReplies, StoredReply
from toolfold.serving.proxy.tool_arrays import ToolArrays
from toolfold.serving.proxy.tool_catalogs import Catalogs
from toolfold.serving.proxy.upstreams import Family, Upstream, Upstreams
from toolfold.state.users.quotas import MODEL_METERS, QuotaExceeded, Quotas

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 64_000_000
"""Size of a model request: providers accept 32 to 50 MB, mostly images."""
MAX_CLIENT_BODY_BYTES = 256_000_000
MAX_TOTAL_BODY_BYTES = 384_000_000
"""Bytes of the bodies of all open requests. A folded request needs a few times its body in memory."""
CLIENT_SHARE = 0.5
"""The part of all open requests that one client with a token may have."""
MAX_STREAMED_BODY_BYTES = 1_000_000_000
"""Size of other requests, such as uploaded files, which are passed on without being stored."""
MAX_RESPONSE_S = 4 * 3_600.0
MAX_BODY_PAUSE_S = 60.0
"""How long a client may pause while it sends the body of a request."""
LARGE_BODY_BYTES = 300_000
"""Larger bodies are parsed in a thread, because parsing them would delay other clients."""

_JSON_PATHS = frozenset(
    {"chat/completions", "completions", "embeddings", "messages", "responses", *COUNTING_WIRES}
)

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A request to a path below /v1 from an accepted client."""

    method: str
    path: str
    """The path after /v1/."""
    query: bytes
    headers: list[tuple[bytes, bytes]]
    admitted: AdmittedClient
    family: Family
    body: bytes | None
    """The body of a JSON request; None if the body is streamed."""
    content: Json | None = None
    """The parsed body, if it is a JSON object."""
    is_limited: bool = False
    """True if rules limit the models that the client may use."""
    hides_usage: bool = False
    """True if the proxy has asked for the usage of a stream, and the client has not."""

    @property
    def model(self) -> str:
        """Return the name of the requested model; empty if the request names none."""
        if self.content is not None:
            named = self.content.get("model")
            return named if isinstance(named, str) else ""
        start, _, rest = self.path.partition("/")
        return rest if start == "models" else ""


class Proxy:
    """Serves the model APIs below /v1."""

    path = "/v1/{path:path}"

    def __init__(self, runtime: Runtime, policy: AccessPolicy) -> None:
        """Read the settings of the proxy. Raises ConfigError if they name an unknown provider."""
        settings = runtime.config.proxy
        self._bus = runtime.events
        self.upstreams = Upstreams(runtime.config)
        self._policy = policy
        self._max_requests = settings.max_requests
        self._open_by_client: Counter[str] = Counter()
        self._connections = UpstreamConnections(settings.max_requests)
        self._max_search_rounds, self._max_tool_rounds = settings.max_search_rounds, settings.max_tool_rounds
        self._keep_alive_s = settings.keep_alive_seconds
        self._prices = ModelPrices(settings.prices)
        self._arrays = ToolArrays()
        self._catalogs = Catalogs(runtime)
        self._folder = Folder(self._catalogs) if settings.folding != "off" else None
        self._native = NativeForms(settings.native)
        self._tools = (
            RuntimeTools(runtime, settings.toolsets, tokens=policy.tokens) if settings.toolsets else None
        )
        self._stored = StoredReplies()
        self._bodies = RequestBodies(
            BodyLimits(
                max_bytes=MAX_BODY_BYTES,
                max_items=None,  # what is too complex to be read is passed on unread
                max_client_bytes=MAX_CLIENT_BODY_BYTES,
                max_total_bytes=MAX_TOTAL_BODY_BYTES,
            )
        )

    @property
    def open_requests(self) -> int:
        """Return the number of requests in progress."""
        return self._open_by_client.total()

    @property
    def buffered_bytes(self) -> int:
        """Return the memory used by the bodies of all open requests, in bytes."""
        return self._bodies.buffered_bytes

    async def close(self) -> None:
        """Close the connections to providers, and stop indexing tools of clients."""
        await self._connections.close()
        await asyncio.to_thread(self._catalogs.close)
        if self._tools is not None:
            await asyncio.to_thread(self._tools.close)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request to the model proxy."""
        if scope["type"] != "http":
            return
        send = add_safe_headers(send)
        path = scope["path"].removeprefix("/v1/")
        family: Family = "openai"
        try:
            headers = parse_headers(scope)
            require_single_keys(scope["headers"])
            family = _find_family(path, headers)
            require_program(headers)
            admitted = await admit_client(self._policy, headers)
            _require_plain_path(path)
            self._require_free_slot(admitted)
            await self._require_quota(admitted)
        except RequestRefused as error:
            await self._refuse(error, family, send)
            return
        client = admitted.client.id
        self._open_by_client[client] += 1
        try:
            with self._bodies.reserve(client) as reservation:
                await self._serve(scope, path, family, admitted, _ClientBody(receive, reservation), send)
        finally:
            self._open_by_client[client] -= 1
            if not self._open_by_client[client]:
                del self._open_by_client[client]

    async def _require_quota(self, admitted: AdmittedClient) -> None:
        """Count a model request towards the user's limits. Raises RequestRefused if a limit is reached."""
        try:
            await self._policy.tokens.require_quota(admitted.client, MODEL_METERS)
        except QuotaExceeded as error:
            raise RequestRefused(
                429,
                str(error),
                retry_after_s=error.retry_after_s,
                log_text=f"client {admitted.client.name}: {error}",
            ) from None
        except OSError as error:
            log.warning("limits of the client %s cannot be checked: %s", admitted.client.name, error)
            problem = "Your limits cannot be checked now: the database cannot be reached."
            raise RequestRefused(503, problem, retry_after_s=RETRY_AFTER_S) from None

    def _find_spending_quotas(self, client: GatewayClient) -> Quotas | None:
        """Return the quotas if the tokens or cost of this client's user are limited; otherwise None."""
        quotas = self._policy.tokens.quotas
        try:
            return quotas if quotas is not None and quotas.limits_spending(client.user_id) else None
        except OSError:  # the next request is refused if the users cannot be read until then
            return None

    def _count_reply(self, request: ProxyRequest, reply: Reply, is_whole: bool) -> None:
        """Count the tokens and cost of a model's reply towards the user's limits."""
        client = request.admitted.client
        if (quotas := self._find_spending_quotas(client)) is None:
            return
        usage = find_usage(reply, request.body or b"", request.content, is_whole=is_whole)
        provider = self.upstreams.find(request.model, request.family).provider
        cost = self._prices.charge([name for name in (reply.model, request.model) if name], provider, usage)
        with suppress(OSError):  # as above: the reply must not fail
            quotas.spend(client.user_id, {"tokens_per_day": usage.total_tokens, "cost_per_day": cost})

    def _require_free_slot(self, admitted: AdmittedClient) -> None:
        """Raise RequestRefused if this client or all clients together have too many open requests."""
        if self.open_requests >= self._max_requests:
            raise RequestRefused(503, f"More than {self._max_requests:,} requests are open. Try again later.")
        share = max(1, int(self._max_requests * CLIENT_SHARE))
        if admitted.token_headers and self._open_by_client[admitted.client.id] >= share:
            raise RequestRefused(
                429, f"More than {share:,} requests of this client are open. Try again later."
            )

    async def _serve(
        self, scope: Scope, path: str, family: Family, admitted: AdmittedClient, body: _ClientBody, send: Send
    ) -> None:
        """Read and answer a request of an accepted client."""
        try:
            request = await self._read_request(scope, path, family, admitted, body)
            self._require_known_model(request)
            self._require_key_permission(request)
            await self._require_allowed_model(request)
            await self._require_own_data(request)
        except RequestRefused as error:
            await self._refuse(error, family, send)
            return
        except ClientGone:
            return
        checked = send_while_valid(admitted.is_still_valid, send)
        try:
            await _run_until_disconnect(self._respond(request, body, checked), body)
        except AccessEnded as error:
            await self._refuse(RequestRefused(401, str(error)), family, send)

    async def _refuse(self, error: RequestRefused, family: Family, send: Send) -> None:
        log.info("a model request was refused with status %d: %s", error.status, error.log_text)
        challenge = error.challenge
        if not challenge and error.status == 401 and self._policy.oauth is not None:
            challenge = self._policy.oauth.challenge
        await send_error(
            send,
            family,
            error.status,
            error.problem,
            retry_after_s=error.retry_after_s,
            challenge=challenge,
        )

    def _require_known_model(self, request: ProxyRequest) -> None:
        """Raise RequestRefused if an unknown model could send the client's API key to the wrong provider."""
        if not request.model and self.upstreams.receive_client_keys:
            raise RequestRefused(
                400,
                "The request names no model that can be read, so the provider of its key is not known."
                " Name the model in an uncompressed JSON body, or use `key: own` in proxy.upstreams.",
            )

    def _require_key_permission(self, request: ProxyRequest) -> None:
        """Raise RequestRefused if the client's token does not permit using the configured API key."""
        upstream, client = self.upstreams.find(request.model, request.family), request.admitted.client
        if not upstream.uses_client_key and not client.may_use_keys:
            raise RequestRefused(
                403,
                f"The token {client.name!r} may not use the configured key of the provider"
                f" {upstream.provider!r}. Create a token with `toolfold token add NAME --models`.",
            )

    async def _require_allowed_model(self, request: ProxyRequest) -> None:
        """Raise RequestRefused if a rule of the client's user or teams forbids the model or its key."""
        await require_allowed_model(
            self._policy.tokens,
            request.admitted.client,
            self.upstreams.find(request.model, request.family),
            method=request.method,
            path=request.path,
            headers=request.headers,
            model=request.model,
            body=request.body,
        )

    async def _require_own_data(self, request: ProxyRequest) -> None:
        """Raise RequestRefused if a request with a shared key could reach data of other users."""
        upstream = self.upstreams.find(request.model, request.family)
        if upstream.uses_client_key:
            return
        named = require_shared_path(request.method, request.path, request.headers)
        replies = {named} if named else set()
        if request.method == "POST" and request.path in CHECKED_PATHS:
            if request.body is None or request.content is None:
                raise RequestRefused(400, "The body of the request must be an uncompressed JSON object.")
            replies = await asyncio.to_thread(list_continued_replies, request.body)
        for each in replies:
            if self._stored.find(request.admitted.client.owner, upstream.provider, each) is None:
                raise refuse_unknown_reply(each)

    async def _read_request(
        self, scope: Scope, path: str, family: Family, admitted: AdmittedClient, body: _ClientBody
    ) -> ProxyRequest:
        """Return the client's request, with its body if that is JSON; other bodies are streamed later."""
        request = ProxyRequest(
            scope["method"], path, scope["query_string"], list(scope["headers"]), admitted, family, None
        )
        is_limited = limits_models(self._policy.tokens, admitted.client)
        request = replace(request, is_limited=is_limited)
        is_counted = self._find_spending_quotas(admitted.client) is not None
        if is_counted:
            require_counted_path(scope["method"], path, has_body=has_body(request.headers))
        if scope["method"] != "POST" or path not in _JSON_PATHS:
            return request
        data = await self._bodies.read_reserved(body.reservation, body.receive)
        # Only folding, the choice of a provider by the name of the model, limits and rules need the content.
        can_fold = self._folder is not None and _find_wire(path) is not None
        is_read = can_fold or self.upstreams.depend_on_model or is_counted or is_limited
        content = await self._parse_body(data, request.headers) if is_read else None
        if not is_counted:
            return replace(request, body=data, content=content)
        made = await asyncio.to_thread(prepare_counted_body, path, request.headers, data, content)
        return replace(request, body=made.body, content=made.content, hides_usage=made.hides_usage)

    async def _parse_body(self, data: bytes, headers: list[tuple[bytes, bytes]]) -> Json | None:
        """Return the JSON object in a body; None if it is compressed, too complex or not a JSON object."""
        if any(name.lower() == b"content-encoding" and value != b"identity" for name, value in headers):
            return None
        if len(data) <= LARGE_BODY_BYTES:  # it can cost no more than a few megabytes
            return self._arrays.parse(data)
        return await asyncio.to_thread(lambda: None if find_excess(data) else self._arrays.parse(data))

    async def _respond(self, request: ProxyRequest, body: _ClientBody, send: Send) -> None:
        """Answer a request of an accepted client, with a time limit for the whole response.

        Raises AccessEnded if the client's token was revoked before anything was sent to it.
        """
        upstream = self.upstreams.find(request.model, request.family)
        recorder = _StartRecorder(UsageHider(send) if request.hides_usage else send)
        events = RequestEvents(
            self._bus,
            client=request.admitted.client.name,
            model=request.model,
            provider=upstream.provider,
            user_id=request.admitted.client.user_id,
            on_reply=functools.partial(self._count_reply, request),
            find_cost=self._prices.find_cost,
        )
        try:
            async with asyncio.timeout(MAX_RESPONSE_S):
                request = self._continue_stored(request, upstream)
                if not await self._respond_folded(request, upstream, recorder, events):
                    await self._forward(request, upstream, body, recorder)
                    if request.path in WIRES and recorder.status == 200:
                        events.note_forwarded()
            if recorder.status >= 400:
                events.note_failure(f"{upstream.provider} answered with status {recorder.status}")
        except (UpstreamFailed, TimeoutError) as error:
            failure = (
                error
                if isinstance(error, UpstreamFailed)
                else UpstreamFailed("The response was not complete within the time limit.", is_timeout=True)
            )
            log.warning("a request for model %r failed: %s", shorten(request.model), failure.problem)
            events.note_failure(failure.problem)
            if not recorder.has_started:
                status = 504 if failure.is_timeout else 502
                await send_error(send, request.family, status, failure.problem)
            # Otherwise the response stays incomplete, and the server closes the connection.

    async def _respond_folded(
        self, request: ProxyRequest, upstream: Upstream, send: _StartRecorder, events: RequestEvents
    ) -> bool:
        """Answer a request with a reduced tools array; return False if it must be forwarded unchanged."""
        wire = _find_wire(request.path)
        if self._folder is None or wire is None or not (request.content and request.content.get("tools")):
            return False
        native = self._native.are_used(upstream, wire, request.model)
        try:
            try:
                return await self._answer_folded(request, upstream, wire, send, events, native=native)
            except FoldingFailed as error:
                if not (native and error.is_refused) or error.has_run:
                    raise
            is_answered = await self._answer_folded(request, upstream, wire, send, events, native=False)
            if is_answered:
                self._native.mark_refused(upstream, request.model)
            return is_answered
        except FoldingFailed as error:
            log.warning(
                "a request for model %r is forwarded with all its tools: %s", shorten(request.model), error
            )
            return False

    async def _answer_folded(
        self,
        request: ProxyRequest,
        upstream: Upstream,
        wire: Wire,
        send: _StartRecorder,
        events: RequestEvents,
        *,
        native: bool,
    ) -> bool:
        """Reduce a request's tools array and answer the request; return False if that is impossible.

        Raises FoldingFailed or AccessEnded if nothing was sent to the client.
        """
        try:
            fold = await self._fold(request, wire, native=native)
        except Exception:
            log.exception(
                "the tools of a request for model %r could not be reduced; it is forwarded unchanged",
                shorten(request.model),
            )
            return False
        if fold is None:
            return False
        exchange = FoldedExchange(
            fold,
            upstream,
            functools.partial(self._open_round, request, upstream, fold.request.headers),
            send,
            events,
            max_rounds=self._choose_max_rounds(fold),
            keep_alive_s=self._keep_alive_s,
            is_still_valid=request.admitted.is_still_valid,
            keep_stored=functools.partial(self._stored.add, request.admitted.client.owner, upstream.provider),
        )
        await (exchange.count() if request.path in COUNTING_WIRES else exchange.run())
        return True

    def _choose_max_rounds(self, fold: Fold) -> int:
        """Return the maximum number of replies with tool calls that the proxy answers itself."""
        if fold.added is None:
            return self._max_search_rounds
        return max(self._max_search_rounds, self._max_tool_rounds)

    async def _fold(self, request: ProxyRequest, wire: Wire, *, native: bool) -> Fold | None:
        """Return a request with a reduced tools array, computed in a thread if it may be slow."""
        client, content, tools = request.admitted.client, request.content or {}, self._tools
        if self._folder is None:
            return None
        find = functools.partial(tools.find, client, wire) if tools is not None else None
        fold = functools.partial(
            self._folder.fold,
            content,
            wire,
            client.id,
            Caller(client.name, user_id=client.user_id),
            native=native,
            find_added=find,
            is_counted=request.path in COUNTING_WIRES,
        )
        is_short = len(request.body or b"") <= LARGE_BODY_BYTES
        if is_short and find is None and self._folder.is_prepared(content, wire):
            return fold()
        return await asyncio.to_thread(fold)

    def _open_round(
        self, request: ProxyRequest, upstream: Upstream, added_headers: Mapping[str, str], body: Json
    ) -> AbstractAsyncContextManager[UpstreamResponse]:
        """Send a rewritten request to a provider, requesting an uncompressed response."""
        headers, url = self._build_target(request, upstream)
        headers = _refuse_compression(headers)
        for name, value in added_headers.items():
            headers = add_header_value(headers, name, value)
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        owner = request.admitted.client.owner
        return self._connections.send(upstream, "POST", url, headers, content, owner=owner)

    def _build_target(
        self, request: ProxyRequest, upstream: Upstream
    ) -> tuple[list[tuple[bytes, bytes]], str]:
        """Return the headers and the URL with which a request is sent to its provider."""
        headers = upstream.build_headers(
            request.headers, request.admitted.token_headers, is_limited=request.is_limited
        )
        return headers, upstream.build_url(request.path, request.query, is_limited=request.is_limited)

    def _continue_stored(self, request: ProxyRequest, upstream: Upstream) -> ProxyRequest:
        """Add the provider's reply id and hidden tool results to a request that continues a stored reply."""
        wire, content = _find_wire(request.path), request.content
        previous = content.get("previous_response_id") if content and wire is WIRES["responses"] else None
        if not isinstance(previous, str):
            return request
        stored = self._stored.find(request.admitted.client.owner, upstream.provider, previous)
        if stored is None or not (stored.results or stored.id != previous):
            return request
        messages = wire.read_messages(content) if wire and content else None
        if wire is None or content is None or messages is None:
            return request
        content = {**content, "previous_response_id": stored.id}
        content = wire.replace_messages(content, [*stored.results, *messages])
        return replace(request, content=content, body=json.dumps(content).encode())

    async def _forward(
        self, request: ProxyRequest, upstream: Upstream, body: _ClientBody, send: Send
    ) -> None:
        """Forward a request to the provider, and the response to the client, unchanged.

        If the reply is read too, because tokens are counted or it is stored, it must not be compressed.
        """
        headers, url = self._build_target(request, upstream)
        content: bytes | AsyncIterator[bytes] | None = request.body
        if content is None and has_body(request.headers):
            content = body.stream(MAX_STREAMED_BODY_BYTES)
            if not any(name.lower() == b"transfer-encoding" for name, _ in request.headers):
                headers += [each for each in request.headers if each[0].lower() == b"content-length"]
        open_response = functools.partial(
            self._connections.send,
            upstream,
            request.method,
            url,
            body=content,
            owner=request.admitted.client.owner,
        )
        counted = self._make_counter(request, upstream)
        if counted is None:
            async with open_response(headers=headers) as response:
                await relay_response(response, send)
            return
        headers = _refuse_compression(headers)
        is_abandoned = False
        try:
            async with open_response(headers=headers) as response:
                await relay_response(counted.observe(response), send)
        except asyncio.CancelledError:  # the provider answers the request although the client has gone
            is_abandoned = not counted.is_refused
            raise
        finally:
            if counted.has_started or is_abandoned:  # it does nothing for users without a limit
                self._count_reply(request, counted.finish(), counted.is_whole)

    def _make_counter(self, request: ProxyRequest, upstream: Upstream) -> ForwardedReply | None:
        """Return a parser of a forwarded reply if its tokens are counted or it may be stored; else None."""
        owner = request.admitted.client.owner
        is_stored = request.path == "responses" and not upstream.uses_client_key

        def note_id(reply_id: str) -> None:
            if is_stored:
                self._stored.add(owner, upstream.provider, StoredReply(reply_id, reply_id, []))

        if request.method != "POST" or request.path not in COUNTED_PATHS:
            return None
        if not is_stored and self._find_spending_quotas(request.admitted.client) is None:
            return None
        return ForwardedReply(WIRES.get(request.path, WIRES["chat/completions"]), note_id)


class _ClientBody:
    """Reader of a client's request body that also detects a disconnect of the client."""

    def __init__(self, receive: Receive, reservation: BodyReservation) -> None:
        self._receive = receive
        self.reservation = reservation
        """The memory that the body takes, if it is not passed on as it arrives."""
        self._is_complete = asyncio.Event()

    async def receive(self) -> Any:
        """Return the next ASGI message from the client."""
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._is_complete.set()
        return message

    async def stream(self, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield the request body as it arrives. Raises UpstreamFailed if the client disconnects."""
        while not self._is_complete.is_set():
            async with asyncio.timeout(MAX_BODY_PAUSE_S):
                message = await self.receive()
            part: bytes = message.get("body", b"")
            max_bytes -= len(part)
            if message["type"] != "http.request" or max_bytes < 0:
                raise UpstreamFailed("The body of the request is too long or was not sent completely.")
            if part:
                yield part

    async def wait_for_disconnect(self) -> None:
        """Wait until the client disconnects after sending its request."""
        await self._is_complete.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


class _StartRecorder:
    """An ASGI `send` function that records whether the response has started, and its status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_started = False
        self.status = 0

    async def __call__(self, message: Any) -> None:
        self.has_started = True
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)


async def _run_until_disconnect(work: Awaitable[None], body: _ClientBody) -> None:
    """Run `work`, and cancel it if the client disconnects."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(body.wait_for_disconnect())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (working, watching):
            if not each.done():
                each.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        with suppress(asyncio.CancelledError):
            await working


def _require_plain_path(path: str) -> None:
    """Raise RequestRefused for a URL path that leaves the provider's API, such as one with `..`."""
    if "\\" in path or any(part in (".", "..") for part in path.split("/")):
        raise RequestRefused(400, "The path must not contain '.', '..' or a backslash.")


def _find_wire(path: str) -> Wire | None:
    """Return the model API of a URL path if requests to this path may contain tools; otherwise None."""
    return WIRES.get(path) or COUNTING_WIRES.get(path)


def _find_family(path: str, headers: dict[str, str]) -> Family:
    """Return the API family of a request, OpenAI or Anthropic, by its path and headers."""
    if path == "messages" or path.startswith("messages/") or "anthropic-version" in headers:
        return "anthropic"
    return "openai"


def _refuse_compression(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the request headers, changed to request an uncompressed response that the proxy can parse."""
    kept = [each for each in headers if each[0].lower() != b"accept-encoding"]
    return [*kept, (b"accept-encoding", b"identity")]


async def send_error(
    send: Send, family: Family, status: int, problem: str, *, retry_after_s: int = 0, challenge: str = ""
) -> None:
    """Send an error of the proxy in the format of the client's API.

    `challenge` is the value of the header WWW-Authenticate; status 401 has one in any case.
    """
    body = json.dumps(render_error(family, status, problem)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if challenge or status == 401:
        headers.append((b"www-authenticate", (challenge or 'Bearer realm="toolfold"').encode("latin-1")))
    if retry_after_s:
        headers.append((b"retry-after", str(retry_after_s).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def render_error(family: Family, status: int, problem: str) -> Json:
    """Return the body of an error response in the format of the client's API."""
    kind = _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    if family == "anthropic":
        return {"type": "error", "error": {"type": kind, "message": f"toolfold: {problem}"}}
    error = {"message": f"toolfold: {problem}", "type": kind, "param": None, "code": None}
    return {"error": error}
