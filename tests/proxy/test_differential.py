"""The proxy compared with the provider itself, over generated conversations in every API.

Without folding, requests and responses pass byte for byte. With folding, a client sees the same texts, calls
and stop reasons as without, whichever way the model reaches its tools; and each request of a conversation
continues the one before it, so that the provider's prompt cache stays valid.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.gateway.harness import TIMEOUT_S
from tests.proxy.clients import APIS, KEY, Seen, ask, make_tools
from tests.proxy.harness import RunningProxy, serve_proxy
from tests.proxy.scripted_model import EVENT_STREAM, Say, ScriptedModel
from tests.proxy.upstream import Prepared, Upstream, serve_upstream
from tests.proxy.weather_tools import TOOLS, names_of
from tests.thorough import RUN_ALL_VARIABLE
from toolfold.core.types import BRIDGE_NAMES, Json
from toolfold.serving.proxy.inert_responses import SAFE_HEADERS

pytestmark = pytest.mark.skipif(
    not (find_spec("openai") and find_spec("anthropic")),
    reason="the packages openai and anthropic are not installed",
)

each_api = pytest.mark.parametrize("api", APIS)
PATHS = {"chat": "chat/completions", "messages": "messages", "responses": "responses"}
generated = settings(
    max_examples=100 if os.environ.get(RUN_ALL_VARIABLE) else 8,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # an example is too slow to be shrunk
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
PER_CONNECTION = frozenset({"host", "connection", "transfer-encoding", "content-length", "date"})
"""Headers that belong to one connection, and the date, which every server writes itself."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with serve_upstream() as made:
        yield made


@pytest.fixture(scope="module")
def forwarding(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[RunningProxy]:
    with serve_proxy(tmp_path_factory.mktemp("off"), upstream.url, {"proxy.folding": "off"}) as made:
        yield made


@pytest.fixture(scope="module")
def folding(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[RunningProxy]:
    settings = {"proxy.folding": "on", "tools.rag_embed_model": "light"}
    with serve_proxy(tmp_path_factory.mktemp("on"), upstream.url, settings) as made:
        yield made


words = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"]) | st.sampled_from('{}[]"\\\n: ,😀'), max_size=40
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
header_values = st.text(
    st.characters(min_codepoint=33, max_codepoint=126) | st.just(" "), min_size=1, max_size=20
).map(lambda text: text.strip() or "x")
headers = st.dictionaries(st.sampled_from(["x-request-id", "x-beta", "x-trace", "accept"]), header_values)
response_headers = st.dictionaries(
    st.sampled_from(["x-request-id", "openai-version", "x-ratelimit-reset", "etag"]), header_values
)


@each_api
@generated
@given(data=st.data())
def test_proxy_that_hides_no_tools_forwards_requests_and_responses_byte_for_byte(
    forwarding: RunningProxy, upstream: Upstream, api: str, data: st.DataObject
) -> None:
    content = data.draw(st.dictionaries(words, json_values, max_size=5)) | {"model": "m"}
    spaces = data.draw(st.sampled_from([None, 1, "\t"]))
    body = json.dumps(content, indent=spaces, ensure_ascii=data.draw(st.booleans())).encode()
    sent = {"authorization": f"Bearer {KEY}", "content-type": "application/json", **data.draw(headers)}
    parts = data.draw(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=4))
    status = data.draw(st.sampled_from([200, 200, 400, 429, 503]))
    answered = {**EVENT_STREAM, **data.draw(response_headers), "retry-after": "3", "server": "provider"}
    chunked = data.draw(st.booleans())
    seen = []
    for url in (upstream.url, forwarding.url):
        upstream.received.clear()
        upstream.answer = lambda _: Prepared(parts, status, answered, chunked=chunked)
        with httpx2.stream(
            "POST", f"{url}/v1/{PATHS[api]}?beta=true", content=body, headers=sent, timeout=TIMEOUT_S
        ) as response:
            got = b"".join(response.iter_raw())
        (received,) = upstream.received
        seen.append(
            (
                (received.path, received.body, compared(received.headers)),
                (response.status_code, got, without_own(compared(response.headers.multi_items()))),
            )
        )
    direct, proxied = seen
    assert proxied[0] == direct[0]
    assert proxied[1] == direct[1]


def compared(sent: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers that must not change."""
    return sorted((name.lower(), value) for name, value in sent if name.lower() not in PER_CONNECTION)


def without_own(received: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers of a response without those that the proxy adds to every response."""
    own = {(name.decode(), value.decode()) for name, value in SAFE_HEADERS}
    return [each for each in received if each not in own]


@dataclass(frozen=True)
class ModelTurn:
    """What a model does in one turn: text and calls of the client's tools, with searches before if folded."""

    text: str
    calls: Sequence[tuple[str, Json]]
    searches: int
    is_mixed: bool
    """True if the last search is in the same reply as the calls."""

    @property
    def direct(self) -> list[Say]:
        return [Say(self.text, self.calls)]

    @property
    def folded(self) -> list[Say]:
        """Return the same turn of a model that has bridge tools only."""
        search: tuple[str, Json] = ("tool_search", {"query": "weather"})
        calls = [("tool_call", {"name": name, "arguments": given}) for name, given in self.calls]
        replies = [Say("", [search]) for _ in range(self.searches)]
        first = [search] if self.is_mixed and calls else []
        return [*replies, Say(self.text, [*first, *calls])]


cities = st.sampled_from(["Porto", "São Paulo", 'a "quoted" {city}', "東京", "\n"])
calls = st.lists(
    st.builds(lambda city, days: ("get_forecast", {"city": city, "days": days}), cities, st.integers(0, 9))
    | st.builds(lambda amount: ("ledger_operation_7", {"amount": amount}), st.integers(-5, 5)),
    max_size=3,
)
turns = st.builds(
    ModelTurn,
    st.sampled_from(["", "Let me look.", "Ünïcode 😀 {text}", 'tool_search "quoted"']),
    calls,
    st.integers(0, 2),
    st.booleans(),
).filter(lambda turn: turn.text or turn.calls)
numbers = itertools.count()


@pytest.mark.thorough(keep=("stream",))
@each_api
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@generated
@given(script=st.lists(turns, min_size=1, max_size=3))
def test_client_gets_the_same_texts_and_tool_calls_with_and_without_a_tool_hiding_proxy(
    folding: RunningProxy, upstream: Upstream, api: str, stream: bool, script: list[ModelTurn]
) -> None:
    question = f"What will the weather be? ({next(numbers)})"
    direct, _ = converse(upstream.url, upstream, api, stream, question, [turn.direct for turn in script])
    folded, requests = converse(
        folding.url, upstream, api, stream, question, [turn.folded for turn in script]
    )
    assert [describe(seen) for seen in folded] == [describe(seen) for seen in direct]
    assert all(set(names_of(request)) <= {*BRIDGE_NAMES} for request in requests)
    for before, after in itertools.pairwise(requests):
        check_continuation(before, after)


def describe(seen: Seen) -> tuple[str, list[tuple[str, Any]], str]:
    return seen.text, seen.calls, seen.reason


def check_continuation(before: Json, after: Json) -> None:
    """Check that a request starts with the bytes of the one before, up to the end of its conversation."""
    key = "input" if "input" in after else "messages"
    assert json.dumps({**after, key: []}) == json.dumps({**before, key: []})
    earlier, later = json.dumps(before[key]), json.dumps(after[key])
    assert later.startswith(earlier.removesuffix("]"))


def converse(
    url: str, upstream: Upstream, api: str, stream: bool, question: str, script: Sequence[Sequence[Say]]
) -> tuple[list[Seen], list[Json]]:
    """Let a client use the model for several turns; return what it sees and what the provider gets."""
    messages: list[Json] = [{"role": "user", "content": question}]
    seen, requests, tools = [], [], make_tools(api, TOOLS)
    for number, replies in enumerate(script):
        model = ScriptedModel(list(replies), _numbers=itertools.count(10 * number + 1))
        upstream.answer = model
        seen.append(ask(api, url, messages, stream=stream, tools=tools))
        requests += model.requests
        messages += as_history(api, seen[-1])
        messages += answer(api, seen[-1]) or [{"role": "user", "content": "Go on."}]
    return seen, requests


def as_history(api: str, seen: Seen) -> list[Json]:
    """Return a reply as a client puts it into its history."""
    if api == "chat":
        return [seen.raw.choices[0].message.model_dump(exclude_none=True, exclude={"parsed"})]
    if api == "messages":
        blocks = [block.model_dump(exclude_none=True) for block in seen.raw.content]
        return [{"role": "assistant", "content": blocks}]
    return [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in seen.raw.output]


def answer(api: str, seen: Seen) -> list[Json]:
    """Return the results of the calls of a reply."""
    if api == "chat":
        return [{"role": "tool", "tool_call_id": each, "content": "done"} for each in seen.call_ids]
    if api == "responses":
        return [{"type": "function_call_output", "call_id": each, "output": "done"} for each in seen.call_ids]
    results = [{"type": "tool_result", "tool_use_id": each, "content": "done"} for each in seen.call_ids]
    return [{"role": "user", "content": results}] if results else []
