"""Answer a request with a reduced tools array: handle tool searches, and merge the model's replies.

A round is one request to the provider. Rounds in which the model only searched are answered here; the first
other reply ends the exchange. After the last allowed search the request is sent with all tools.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress

from toolfold.core.types import Json
from toolfold.models.reply import Reply
from toolfold.models.wire import BodyMerger, EventParser, EventTooLong, ServerSentEvent, StreamMerger
from toolfold.safety.redaction import NO_SECRETS
from toolfold.serving.gateway.http_sessions import Send
from toolfold.serving.proxy.folding import Fold
from toolfold.serving.proxy.forwarding import (
    UpstreamFailed,
    UpstreamResponse,
    relay_response,
    select_response_headers,
)
from toolfold.serving.proxy.request_events import RequestEvents
from toolfold.serving.proxy.stored_replies import StoredReply
from toolfold.serving.proxy.upstreams import Headers, Upstream

log = logging.getLogger(__name__)

REPORT_HEADER = b"x-toolfold-folding"
MAX_REPLY_BYTES = 64_000_000
"""Size of a reply that is not streamed."""
_FOLDING_STATUSES = frozenset({400, 404, 413, 415, 422})
"""Statuses with which a provider may refuse a request because of its tools."""
_REWRITTEN_HEADERS = frozenset({b"content-length", b"content-encoding"})

OpenRound = Callable[[Json], AbstractAsyncContextManager[UpstreamResponse]]
"""Sends a request body to the provider."""


class FoldingFailed(Exception):
    """A request with a reduced tools array failed before anything was sent to the client."""

    def __init__(self, problem: str, *, is_refused: bool = False, has_run: bool = False) -> None:
        super().__init__(problem)
        self.is_refused = is_refused
        """True if the provider refused the request as invalid."""
        self.has_run = has_run
        """True if a tool was run for the request, which must not be repeated."""


class AccessEnded(Exception):
    """The client's token was revoked before anything was sent to the client."""


class _ResponseRelayed(Exception):
    """Raised after the provider's error response was forwarded to the client unchanged."""


class FoldedExchange:
    """A client request with a reduced tools array, and the model requests that answer it."""

    def __init__(
        self,
        fold: Fold,
        upstream: Upstream,
        open_round: OpenRound,
        send: Send,
        events: RequestEvents,
        *,
        max_rounds: int,
        keep_alive_s: float,
        is_still_valid: Callable[[], bool],
        keep_stored: Callable[[StoredReply], None],
    ) -> None:
        """Create an exchange; `is_still_valid` returns False once the client loses access to the proxy.

        `keep_stored` gets a reply that the provider stores, before the client gets its end.

        A client that has got nothing of a stream for `keep_alive_s` gets a sign that the reply goes on.
        """
        self._fold, self._upstream, self._open_round, self._send = fold, upstream, open_round, send
        self._keep_alive_s, self._keep_stored = keep_alive_s, keep_stored
        self._max_rounds, self._is_still_valid, self._events = max_rounds, is_still_valid, events
        self._added: list[Json] = []
        """The replies that only searched, and the results they got."""
        self._text = ""
        """The text of all replies."""

    async def run(self) -> None:
        """Send the necessary model requests and answer the client.

        Raises FoldingFailed, UpstreamFailed or AccessEnded if nothing was sent to it.
        """
        try:
            if self._fold.original.get("stream"):
                await self._run_stream()
            else:
                await self._run_whole()
        except _ResponseRelayed:
            return
        finally:
            # The report consists of numbers and fixed texts.
            log.info("a request was folded: %s", self._fold.report, extra={NO_SECRETS: True})

    async def count(self) -> None:
        """Answer a token counting request with the reduced tools array. Raises FoldingFailed."""
        self._fold.report.rounds = 1
        with suppress(_ResponseRelayed):
            async with self._open_round(self._fold.body) as response:
                await self._require_success(response, 1, has_started=False)
                await relay_response(response, self._send, [self._report_header()])

    async def _run_stream(self) -> None:
        fold, client = self._fold, _StreamClient(self._send)
        merger = fold.wire.merge_stream(fold.original, fold.resolve, fold.hidden_names)
        try:
            async with client.keep_alive(merger, self._keep_alive_s):
                is_whole = await self._stream_rounds(merger, client)
            if is_whole:
                for part in merger.finish():
                    await client.write(part)
        except (FoldingFailed, UpstreamFailed, EventTooLong) as error:
            if not client.has_started:
                raise
            self._events.note_failure(str(error))
            await client.write(merger.render_error(str(error)))
        except AccessEnded:
            if not client.has_started:
                raise
        except (_ResponseRelayed, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("merging the replies to a request with reduced tools failed")
            if not client.has_started:
                raise FoldingFailed(f"{type(error).__name__}") from error
            await client.write(merger.render_error("The reply could not be read."))
        await client.end()

    async def _stream_rounds(self, merger: StreamMerger, client: _StreamClient) -> bool:
        """Stream the visible parts of all replies; return False if the provider reports an error."""
        fold, body = self._fold, self._fold.body
        for number in range(1, self._max_rounds + 2):
            merger.start_round()
            fold.report.rounds = number
            is_last = number > self._max_rounds
            self._events.start_round(fold, has_all_tools=is_last and not fold.report.ran)
            async with self._open_counted(self._last_request(body) if is_last else body) as response:
                if response.status_code != 200:
                    client.stop_keep_alive()  # the provider's response may be passed on as it is
                await self._require_success(response, number, has_started=client.has_started)
                client.headers = self._client_headers(response)
                try:
                    async for part in self._read_events(response, merger):
                        await client.write(part)
                except BaseException:  # also if the client has gone: what it has got is counted
                    self._note_interrupted(merger)
                    raise
            if merger.has_failed:
                return False
            if not merger.is_complete:
                raise UpstreamFailed(f"The reply of the provider {self._upstream.provider!r} ended early.")
            for part in merger.end_round():
                await client.write(part)
            self._events.end_round(merger.reply)
            if is_last or merger.visible_calls or not merger.hidden_calls:
                break
            body = await self._continue(body, merger.reply, merger)
        await self._keep(merger.reply, merger, merger.alias, is_last=is_last)
        client.headers = [*client.headers[:-1], self._report_header()]
        return True

    @asynccontextmanager
    async def _open_counted(self, body: Json) -> AsyncIterator[UpstreamResponse]:
        """Send a request body; count the request even if the client disconnects before the reply begins."""
        async with AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(self._open_round(body))
            except asyncio.CancelledError:
                self._events.note_interrupted(Reply(messages=()))
                raise
            yield response

    def _note_interrupted(self, merger: StreamMerger) -> None:
        with suppress(Exception):  # a part of a reply may be unreadable
            self._events.note_interrupted(merger.reply)

    async def _run_whole(self) -> None:
        fold, body = self._fold, self._fold.body
        merger = fold.wire.merge_bodies(fold.original, fold.resolve, fold.hidden_names)
        headers: Headers = []
        for number in range(1, self._max_rounds + 2):
            fold.report.rounds = number
            is_last = number > self._max_rounds
            self._events.start_round(fold, has_all_tools=is_last and not fold.report.ran)
            async with self._open_counted(self._last_request(body) if is_last else body) as response:
                await self._require_success(response, number, has_started=False)
                headers = self._client_headers(response)
                try:
                    content = await _read_whole(response, self._upstream)
                except BaseException:  # also if the client has gone
                    self._events.note_interrupted(Reply(messages=()))
                    raise
            try:
                reply = merger.add(_parse_reply(content))
                self._events.end_round(reply)
                if is_last or merger.visible_calls or not merger.hidden_calls:
                    await self._keep(reply, merger, is_last=is_last)
                    merged = json.dumps(merger.merge(), ensure_ascii=False, separators=(",", ":")).encode()
                    break
                body = await self._continue(body, reply, merger)
            except AccessEnded:
                raise
            except Exception as error:
                log.warning(
                    "the reply to a request with a reduced tools array could not be read: %s",
                    type(error).__name__,
                )
                if any(name.encode() in content for name in fold.hidden_names):
                    raise FoldingFailed("the reply could not be read") from error
                merged = content  # the provider's own, without a call that the client does not know
                break
        headers = [*headers[:-1], self._report_header(), (b"content-length", str(len(merged)).encode())]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": merged})

    async def _continue(self, body: Json, reply: Reply, merger: StreamMerger | BodyMerger) -> Json:
        """Answer tool calls hidden from the client and return the next model request. Raises AccessEnded."""
        self._fold.report.spent += reply.usage
        self._require_access()
        results = await self._fold.answer(merger.hidden_calls)
        self._require_access()  # the tools may have run for a long time
        added = [*self._fold.wire.render_reply(reply), *results]
        self._added += added
        self._text += reply.text
        return self._fold.wire.append_messages(body, added)

    def _require_access(self) -> None:
        if not self._is_still_valid():
            raise AccessEnded("The token was revoked while the request was answered.")

    def _last_request(self, body: Json) -> Json:
        """Return the final model request, which allows no more searches.

        It has the client's whole tools array; if the proxy has run tools, it forbids more calls instead.
        """
        return self._fold.wire.forbid_calls(body) if self._fold.report.ran else self._fold.original

    async def _keep(
        self, reply: Reply, merger: StreamMerger | BodyMerger, alias: str = "", *, is_last: bool
    ) -> None:
        """Store the parts of a reply hidden from the client, for later requests of the conversation."""
        hidden = merger.hidden_calls
        results = await self._fold.answer(hidden, run=False) if hidden else []
        if reply.id:
            self._keep_stored(StoredReply(alias or reply.id, reply.id, results))
        hidden_ids = {call.id for call in hidden}
        shown = [call.id for call in reply.calls if call.id not in hidden_ids]
        if self._fold.note_first_reply is not None:
            self._fold.note_first_reply(shown, self._text + reply.text)
        if not is_last or self._fold.report.ran:
            self._remember(reply, shown, results, is_renamed=merger.has_renamed_calls)

    def _remember(self, reply: Reply, shown: list[str], results: list[Json], *, is_renamed: bool) -> None:
        """Remember a reply in the provider's original form if the client sees a changed form.

        The results of searches beside calls of the client come before those that the client will send.
        """
        has_hidden = any(call.name in self._fold.hidden_names for call in reply.calls)
        if self._added or has_hidden or is_renamed:
            messages = [*self._added, *self._fold.wire.render_reply(reply), *results]
            self._fold.remember(shown, self._text + reply.text, messages)

    async def _require_success(self, response: UpstreamResponse, number: int, *, has_started: bool) -> None:
        """Raise an exception for an error status of the provider; relay its response first if possible."""
        status = response.status_code
        if status == 200:
            return
        if has_started:
            raise UpstreamFailed(f"The provider {self._upstream.provider!r} answered with status {status}.")
        if status in _FOLDING_STATUSES:
            raise FoldingFailed(
                f"the provider refused model request {number}, which has a reduced tools array, "
                f"with status {status}",
                is_refused=True,
                has_run=bool(self._fold.report.ran),
            )
        await relay_response(response, self._send)
        raise _ResponseRelayed

    async def _read_events(self, response: UpstreamResponse, merger: StreamMerger) -> AsyncIterator[bytes]:
        """Yield the events for the client, joining events that arrived together into one chunk."""
        parser = EventParser()
        received = 0
        async for part in response.read():
            received += len(part)
            if received > MAX_REPLY_BYTES:
                raise UpstreamFailed(f"The reply is longer than {MAX_REPLY_BYTES:,} bytes.")
            for shown in _merge_together(parser.feed(part), merger):
                yield shown
        for shown in _merge_together(parser.finish(), merger):
            yield shown

    def _client_headers(self, response: UpstreamResponse) -> Headers:
        """Return the response headers for the client: the provider's, and a header with the saved tokens."""
        kept = [each for each in select_response_headers(response) if each[0] not in _REWRITTEN_HEADERS]
        return [*kept, self._report_header()]

    def _report_header(self) -> tuple[bytes, bytes]:
        return REPORT_HEADER, str(self._fold.report).encode()


class _StreamClient:
    """Sends a streamed reply to the client, with the response headers before the first event."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.headers: Headers = []
        self.has_started = False
        self._lock = asyncio.Lock()
        self._written_at = asyncio.get_running_loop().time()
        self._timer: asyncio.TimerHandle | None = None
        self._sign: asyncio.Task[None] | None = None
        self._is_kept_alive = False

    async def write(self, part: bytes) -> None:
        async with self._lock:
            if not self.has_started:
                self.has_started = True
                await self._send({"type": "http.response.start", "status": 200, "headers": self.headers})
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
            self._written_at = asyncio.get_running_loop().time()

    async def end(self) -> None:
        """End the streamed response to the client."""
        await self._send({"type": "http.response.body", "body": b""})

    @asynccontextmanager
    async def keep_alive(self, merger: StreamMerger, interval_s: float) -> AsyncIterator[None]:
        """Send a keep-alive after each idle interval while the `async with` block runs."""
        self._is_kept_alive = True
        self._schedule_sign(merger, interval_s, interval_s)
        try:
            yield
        except asyncio.CancelledError:
            if self._sign is not None:
                self._sign.cancel()
            raise
        finally:
            self.stop_keep_alive()
            if self._sign is not None:
                with suppress(asyncio.CancelledError, Exception):  # the exchange itself gets the same error
                    await self._sign

    def stop_keep_alive(self) -> None:
        """Send no more keep-alives."""
        self._is_kept_alive = False
        if self._timer is not None:
            self._timer.cancel()

    def _schedule_sign(self, merger: StreamMerger, interval_s: float, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(delay_s, self._send_sign, merger, interval_s)

    def _send_sign(self, merger: StreamMerger, interval_s: float) -> None:
        """Send a keep-alive if nothing was sent for an interval and the response headers are known."""
        left_s = self._written_at + interval_s - asyncio.get_running_loop().time()
        if left_s <= 0 and self.headers and not self._lock.locked():
            self._sign = asyncio.create_task(self._write_sign(merger))
        self._schedule_sign(merger, interval_s, left_s if left_s > 0 else interval_s)

    async def _write_sign(self, merger: StreamMerger) -> None:
        if self._is_kept_alive:  # it may have ended since this task was created
            await self.write(merger.render_keep_alive())


def _merge_together(events: Iterable[ServerSentEvent], merger: StreamMerger) -> Iterator[bytes]:
    """Join events for the client into one chunk; if an event is invalid, yield the preceding events first."""
    shown: list[bytes] = []
    try:
        for event in events:
            shown += merger.feed(event)
    except Exception:
        if shown:
            yield b"".join(shown)
        raise
    if shown:
        yield b"".join(shown)


def _parse_reply(content: bytes) -> Json:
    """Return the JSON object in a reply body. Raises ValueError or TypeError if there is none."""
    parsed = json.loads(content)
    if not isinstance(parsed, dict):
        raise TypeError(f"the reply is a {type(parsed).__name__}")
    return parsed


async def _read_whole(response: UpstreamResponse, upstream: Upstream) -> bytes:
    """Return the body of a response. Raises UpstreamFailed if it is too long."""
    received = bytearray()
    async for part in response.read():
        received += part
        if len(received) > MAX_REPLY_BYTES:
            raise UpstreamFailed(f"The reply of the provider {upstream.provider!r} is too long.")
    return bytes(received)
