"""Call models over HTTP, through the providers' official packages.

One client for each configured provider. Retries are ours, so that they are reported and can be
cancelled; the packages' own are switched off.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Protocol

from toolfold.core.types import Json, make_json_encodable
from toolfold.models.dialect import Dialect
from toolfold.models.provider_errors import ProviderError, classify_status, read_stream_error
from toolfold.models.reply import Delta, ModelRequest, Reply, ReplyReader

log = logging.getLogger(__name__)

MAX_RETRY_DELAY_S = 60.0
MAX_ERROR_CHARS = 1_000

OnRetry = Callable[[int, float, ProviderError], None]


class ModelClient(Protocol):
    """Interface of a client that sends requests to a model in one provider's format."""

    @property
    def name(self) -> str:
        """Return the provider's name in the configuration."""

    @property
    def model(self) -> str:
        """Return the default model for requests without a model; empty if each request must name one."""

    @property
    def dialect(self) -> Dialect: ...

    def stream(self, request: ModelRequest) -> ReplyStream:
        """Start a model call; the request is sent when the stream is first read."""

    async def list_models(self) -> list[Json]:
        """Return the provider's model list as returned by its API."""

    async def close(self) -> None: ...


class ReplyStream:
    """A streamed model call: iterating yields text chunks, and `reply` is then the complete reply."""

    def __init__(self, events: AsyncIterator[Json], reader: ReplyReader) -> None:
        self._events, self._reader = events, reader
        self._reply: Reply | None = None

    async def __aiter__(self) -> AsyncIterator[Delta]:
        async for event in self._events:
            try:
                readable = make_json_encodable(event)
            except RecursionError:  # like data that is not JSON
                continue
            for delta in self._reader.feed(readable):
                yield delta
        self._reply = self._reader.finish()

    @property
    def reply(self) -> Reply:
        """Return the complete reply, or the part received before an interruption."""
        return self._reply if self._reply is not None else self._reader.finish(interrupted=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Number and delays of retries of a failed model call."""

    max_attempts: int = 4
    first_delay_s: float = 1.0

    def delay(self, attempt: int, error: ProviderError) -> float | None:
        """Return the seconds to wait after a failed attempt (counted from 1), or None to stop retrying."""
        if attempt >= self.max_attempts or not error.is_retryable:
            return None
        if error.retry_after_s is not None:
            return error.retry_after_s if error.retry_after_s <= MAX_RETRY_DELAY_S else None
        backoff: float = self.first_delay_s * 2 ** (attempt - 1)
        return min(MAX_RETRY_DELAY_S, backoff * random.uniform(0.75, 1.25))  # noqa: S311 - spreads load


async def call_model(
    client: ModelClient,
    request: ModelRequest,
    *,
    on_delta: Callable[[Delta], None],
    on_retry: OnRetry,
    on_stream: Callable[[ReplyStream], None],
    retries: RetryPolicy,
) -> Reply:
    """Send a model request and return the reply; retry failures that occur before any text is received.

    `on_stream` receives each attempt's stream, whose `reply` is what there is if the call is cancelled.
    """
    attempt = 0
    while True:
        attempt += 1
        stream, received = client.stream(request), False
        on_stream(stream)
        try:
            async for delta in stream:
                received = True
                on_delta(delta)
            return stream.reply
        except ProviderError as error:
            delay = None if received else retries.delay(attempt, error)
            if delay is None:
                raise
            on_retry(attempt, delay, error)
            await asyncio.sleep(delay)


class OpenAIClient:
    """Client for OpenAI's Chat Completions and Responses APIs through the `openai` package."""

    def __init__(
        self, name: str, dialect: Dialect, *, base_url: str | None, api_key: str, timeout_s: float
    ) -> None:
        openai = import_package("openai", "openai")
        self.name, self.dialect, self.model = name, dialect, ""
        self._errors = openai
        self._client = openai.AsyncOpenAI(
            base_url=base_url, api_key=api_key or "none", timeout=timeout_s, max_retries=0
        )

    def stream(self, request: ModelRequest) -> ReplyStream:
        return ReplyStream(self._read_events(request), self.dialect.start_reply())

    async def _read_events(self, request: ModelRequest) -> AsyncIterator[Json]:
        body = self.dialect.build_body(request)
        is_chat = self.dialect.name == "openai"
        interface = self._client.chat.completions if is_chat else self._client.responses
        async for event in _relay_events(interface.create, body, request, self._errors):
            if event.get("object") == "chat.completion":
                event = _as_chat_chunk(event)
            elif event.get("object") == "response":
                event = {"type": f"response.{event.get('status') or 'completed'}", "response": event}
            yield event

    async def list_models(self) -> list[Json]:
        return await _collect_models(self._client, self._errors)

    async def close(self) -> None:
        await self._client.close()


class AnthropicClient:
    """Client for Anthropic's Messages API through the `anthropic` package."""

    def __init__(
        self, name: str, dialect: Dialect, *, base_url: str | None, api_key: str, timeout_s: float
    ) -> None:
        anthropic = import_package("anthropic", "anthropic")
        self.name, self.dialect, self.model = name, dialect, ""
        self._errors = anthropic
        self._client = anthropic.AsyncAnthropic(
            base_url=base_url, api_key=api_key or "none", timeout=timeout_s, max_retries=0
        )

    def stream(self, request: ModelRequest) -> ReplyStream:
        return ReplyStream(self._read_events(request), self.dialect.start_reply())

    async def _read_events(self, request: ModelRequest) -> AsyncIterator[Json]:
        body = self.dialect.build_body(request)
        async for event in _relay_events(self._client.messages.create, body, request, self._errors):
            if event.get("type") == "message":
                for each in _as_message_events(event):
                    yield each
            else:
                yield event

    async def list_models(self) -> list[Json]:
        return await _collect_models(self._client, self._errors)

    async def close(self) -> None:
        await self._client.close()


async def _relay_events(
    create: Callable[..., Any], body: Json, request: ModelRequest, errors: Any
) -> AsyncIterator[Json]:
    """Yield the events of a streamed model call as JSON, or one complete response without streaming."""
    import httpx2

    known = {key: body.pop(key) for key in ("model", "stream") if key in body}
    stream: Any = None
    try:
        answer = await create(
            **known,
            **_required_arguments(body),
            extra_body=body,
            extra_headers=dict(request.headers) or None,
        )
        if not request.stream:
            yield answer.to_dict()
            return
        stream = answer
        async for event in stream:
            yield event.to_dict()
    except errors.APIError as error:
        raise translate_error(error, errors) from error
    except httpx2.TimeoutException as error:  # not every package translates errors in the middle of a stream
        raise ProviderError("the provider stopped sending its reply", kind="timeout") from error
    except httpx2.HTTPError as error:
        raise ProviderError(f"the connection to the provider was lost: {error}", kind="connection") from error
    finally:
        if stream is not None:
            await stream.close()


def _required_arguments(body: Json) -> Json:
    """Remove and return the fields of the request body that the official packages require as arguments."""
    return {key: body.pop(key) for key in ("messages", "max_tokens", "input") if key in body}


def _as_chat_chunk(completion: Json) -> Json:
    """Convert a complete chat completion to a stream chunk, so that the parser of streams can read it."""
    choices = []
    for choice in completion.get("choices") or []:
        message = choice.get("message") or {}
        calls = [{**call, "index": number} for number, call in enumerate(message.get("tool_calls") or [])]
        choices.append({**choice, "delta": {**message, "tool_calls": calls}})
    return {**completion, "choices": choices}


def _as_message_events(message: Json) -> list[Json]:
    """Convert a complete Anthropic message to stream events, so that the parser of streams can read it."""
    events: list[Json] = [{"type": "message_start", "message": message}]
    for index, block in enumerate(message.get("content") or []):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_stop", "index": index})
    return events


async def _collect_models(client: Any, errors: Any) -> list[Json]:
    models: list[Json] = []
    try:
        async for model in client.models.list():
            models.append(model.to_dict())
            if len(models) >= 5_000:
                break
    except errors.APIError as error:
        raise translate_error(error, errors) from error
    return models


def translate_error(error: Any, errors: Any) -> ProviderError:
    """Convert an exception of a provider's package to a ProviderError."""
    text = " ".join(str(getattr(error, "message", "") or error).split())
    if isinstance(error, errors.APITimeoutError):
        return ProviderError("the provider did not answer in time", kind="timeout")
    if isinstance(error, errors.APIConnectionError):
        return ProviderError(_describe_connection_error(error), kind="connection")
    status = getattr(error, "status_code", None)
    body = getattr(error, "body", None)
    details = body if isinstance(body, dict) else {"message": text}
    if status is None or status < 400:
        return read_stream_error(details.get("error") or details)
    # OpenRouter quotes the error of the provider behind it in `metadata`.
    codes = [str(details.get(key) or "") for key in ("code", "type", "metadata")]
    kind = classify_status(status, " ".join([text, *codes]))
    retry_after = _read_retry_after(error.response.headers)
    return ProviderError(text[:MAX_ERROR_CHARS], kind=kind, retry_after_s=retry_after, status=status)


def _describe_connection_error(error: Any) -> str:
    """Return why a provider is unreachable, with its address but without credentials in the URL."""
    url = error.request.url
    address = str(url.copy_with(userinfo=b"", path="/", query=None, fragment=None)).rstrip("/")
    problem = f"the provider cannot be reached at {address}: {error.__cause__ or error}"
    return f"{problem.rstrip('.')}. Is the server running?" if _is_loopback(url.host) else problem


def _is_loopback(host: str) -> bool:
    """Return True if the host of a URL is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_retry_after(headers: Any) -> float | None:
    """Return the retry delay requested by the provider in seconds; None if there is none."""
    for key, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers.get(key, "")) / unit)
        except ValueError:
            continue
    return None


def import_package(package: str, extra: str) -> Any:
    """Import an optional package. Raises ProviderError with installation advice if it is missing."""
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError:
        raise ProviderError(
            f"the package {package!r} is not installed; install it with: pip install 'toolfold[{extra}]'",
            kind="missing_package",
        ) from None
