"""With a key that users share, only requests for replies pass, and stored replies belong to one user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.gateway.harness import TIMEOUT_S
from tests.proxy.harness import RunningProxy, serve_proxy
from tests.proxy.upstream import Prepared, Received, Upstream, serve_upstream

STREAM = {"content-type": "text/event-stream"}
ASK = {"model": "gpt-x", "input": "hi"}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with serve_upstream() as made:
        yield made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[RunningProxy]:
    settings = {
        "providers.house": {"base_url": f"{upstream.url}/v1", "key_env": "HOUSE_KEY"},
        "proxy.upstreams": {"*": {"provider": "house"}},
    }
    home = tmp_path_factory.mktemp("proxy")
    with serve_proxy(
        home, upstream.url, settings, allow_anonymous=False, environment={"HOUSE_KEY": "sk-house"}
    ) as made:
        yield made


@pytest.fixture(scope="module")
def tokens(served: RunningProxy) -> dict[str, str]:
    users = {name: served.tokens.users.add_user(name).id for name in ("ann", "bob")}
    return {
        "ann": served.tokens.add("ann-laptop", user_id=users["ann"]),
        "ann-phone": served.tokens.add("ann-phone", user_id=users["ann"]),
        "bob": served.tokens.add("bob-laptop", user_id=users["bob"]),
    }


@pytest.fixture(autouse=True)
def _clean(upstream: Upstream) -> None:
    upstream.received.clear()
    upstream.prepared.clear()


def send(
    served: RunningProxy,
    token: str,
    method: str,
    path: str,
    body: object = None,
    headers: dict[str, str] | None = None,
) -> httpx2.Response:
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    sent = {"x-toolfold-token": token, **(headers or {})}
    return httpx2.request(method, f"{served.url}/v1/{path}", content=content, headers=sent, timeout=TIMEOUT_S)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "files"),
        ("GET", "files/file-1/content"),
        ("POST", "files"),
        ("DELETE", "files/file-1"),
        ("POST", "batches"),
        ("GET", "batches"),
        ("GET", "messages/batches/msgbatch_1/results"),
        ("POST", "messages/batches"),
        ("GET", "responses"),
        ("GET", "responses/resp_unknown"),
        ("DELETE", "responses/resp_unknown"),
        ("POST", "responses/resp_unknown/cancel"),
        ("GET", "responses/resp_unknown/input_items"),
        ("GET", "chat/completions"),
        ("DELETE", "models/ft:gpt-x"),
        ("GET", "organization/admin_api_keys"),
        ("POST", "organization/invites"),
        ("POST", "fine_tuning/jobs"),
        ("POST", "vector_stores"),
        ("POST", "chat/completions/"),
        ("POST", "Chat/Completions"),
        ("POST", "conversations"),
        ("PUT", "chat/completions"),
        ("OPTIONS", "models"),
        ("GET", "admin/models"),
    ],
)
def test_shared_key_is_not_sent_with_other_methods_and_paths_than_those_for_replies(
    served: RunningProxy, upstream: Upstream, tokens: dict[str, str], method: str, path: str
) -> None:
    answer = send(served, tokens["ann"], method, path, {"model": "gpt-x"} if method == "POST" else None)
    assert answer.status_code in (403, 404)
    assert answer.json()["error"]["message"]
    assert not upstream.received


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("POST", "chat/completions", "application/json"),
        ("POST", "completions", "application/json"),
        ("POST", "embeddings", "application/json"),
        ("POST", "messages", "application/json"),
        ("POST", "messages/count_tokens", "application/json"),
        ("POST", "responses", "application/json"),
        ("POST", "responses/input_tokens", "application/json"),
        ("POST", "images/generations", "application/json"),
        ("POST", "moderations", "application/json"),
        ("POST", "audio/transcriptions", "multipart/form-data; boundary=x"),
        ("GET", "models", ""),
        ("GET", "models/gpt-x", ""),
        ("GET", "models/meta/llama", ""),
    ],
)
def test_shared_key_is_sent_with_requests_for_replies_and_model_lists(
    served: RunningProxy, upstream: Upstream, tokens: dict[str, str], method: str, path: str, kind: str
) -> None:
    headers = {"content-type": kind} if kind else {}
    body = {"model": "gpt-x", "input": "x", "messages": []} if method == "POST" else None
    assert send(served, tokens["ann"], method, path, body, headers).status_code == 200
    (received,) = upstream.received
    assert received.header("authorization") == "Bearer sk-house"


def test_provider_gets_only_known_headers_and_query_parameters_with_a_shared_key(
    served: RunningProxy, upstream: Upstream, tokens: dict[str, str]
) -> None:
    dropped = {
        "Helicone-Target-URL": "https://evil.example",
        "X-Original-URL": "/v1/files",
        "x-rewrite-url": "/",
        "x-forwarded-host": "evil.example",
        "x-portkey-config": "{}",
        "idempotency-key": "1",
        "x-model": "gpt-secret",
        "OpenAI-Organization": "org",
        "cookie": "a=b",
        "x-anything": "1",
    }
    kept = {"openai-beta": "assistants=v2", "anthropic-beta": "x-2025", "user-agent": "test/1"}
    query = "sig=abc&model=o1&beta=1;model=o1&api-version=2025-01-01&url=http://e&beta=true&%6dodel=o1"
    path = f"chat/completions?{query}"
    send(served, tokens["ann"], "POST", path, {"model": "gpt-x", "messages": []}, {**dropped, **kept})
    (received,) = upstream.received
    assert received.path == "/v1/chat/completions?api-version=2025-01-01&beta=true"
    assert {name: received.header(name) for name in kept} == kept
    assert not [name for name in dropped if received.header(name.lower())]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("responses", {"input": "x", "conversation": "conv_1"}),
        ("responses", {"input": "x", "conversation": {"id": "conv_1"}}),
        ("responses", {"input": "x", "prompt": {"id": "pmpt_1"}}),
        ("responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
        ("responses", {"input": [{"id": "msg_1"}]}),
        ("responses", {"input": [{"id": "ig_1", "type": "image_generation_call", "status": "completed"}]}),
        (
            "responses",
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}]},
        ),
        ("responses", {"input": "x", "tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}),
        ("responses", {"input": "x", "tools": [{"type": "code_interpreter", "container": "cntr_1"}]}),
        (
            "responses",
            {
                "input": "x",
                "tools": [
                    {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file-1"]}}
                ],
            },
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}]},
        ),
        ("chat/completions", {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}),
        (
            "messages",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "document", "source": {"type": "file", "file_id": "file_1"}}],
                    }
                ]
            },
        ),
        ("messages", {"messages": [], "container": "container_1"}),
        ("messages", {"messages": [], "Container": {"id": "container_1"}}),
        ("messages/count_tokens", {"messages": [{"role": "user", "content": [{"file_id": "file_1"}]}]}),
    ],
)
def test_request_that_refers_to_data_stored_at_the_provider_is_refused_with_a_shared_key(
    served: RunningProxy, upstream: Upstream, tokens: dict[str, str], path: str, body: dict[str, object]
) -> None:
    answer = send(served, tokens["ann"], "POST", path, {"model": "gpt-x", **body})
    assert answer.status_code == 403
    assert "stored at the provider" in answer.json()["error"]["message"]
    assert not upstream.received


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "gpt-x", "messages": [], "fil\\u0065_id": "file-1"}',
        b'{"model": "gpt-x", "messages": [], "container": "c", "container": null}',
        b'{"model": "gpt-x", "input": "x", "previous_response_id": "resp_a", "previous_response_id": null}',
    ],
)
def test_reference_to_stored_data_is_found_behind_escapes_and_duplicate_keys(
    served: RunningProxy, upstream: Upstream, tokens: dict[str, str], body: bytes
) -> None:
    assert send(served, tokens["ann"], "POST", "messages", body).status_code in (403, 404)
    assert not upstream.received


def test_unreadable_body_is_refused_with_a_shared_key(
    served: RunningProxy, upstream: Upstream, tokens: dict[str, str]
) -> None:
    for headers in ({"content-encoding": "gzip"}, {"content-type": "text/plain"}):
        answer = send(served, tokens["ann"], "POST", "messages", {"model": "x", "messages": []}, headers)
        assert answer.status_code == 400
    assert send(served, tokens["ann"], "POST", "responses", b"no json").status_code == 400
    assert not upstream.received


def test_arguments_and_schemas_of_the_clients_tools_may_contain_any_key(
    served: RunningProxy, upstream: Upstream, tokens: dict[str, str]
) -> None:
    call = {"type": "tool_use", "id": "a", "name": "open", "input": {"file_id": "1", "container": "2"}}
    quoted = {"type": "text", "text": "x", "citations": [{"file_id": "file_1"}]}
    body = {
        "model": "gpt-x",
        "messages": [{"role": "assistant", "content": [call, quoted]}],
        "tools": [{"name": "open", "input_schema": {"properties": {"file_id": {"type": "string"}}}}],
    }
    assert send(served, tokens["ann"], "POST", "messages", body).status_code == 200
    assert len(upstream.received) == 1


def answer_with_id(reply_id: str, *, is_stream: bool) -> Prepared:
    reply = {"id": reply_id, "object": "response", "status": "completed", "output": []}
    if not is_stream:
        return Prepared([json.dumps(reply).encode()])
    events = [{"type": f"response.{each}", "response": reply} for each in ("created", "completed")]
    parts = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events]
    return Prepared(parts, headers=STREAM, chunked=True)


@pytest.mark.parametrize("is_stream", [False, True])
def test_stored_reply_can_be_continued_and_read_only_by_the_user_who_requested_it(
    served: RunningProxy, upstream: Upstream, tokens: dict[str, str], is_stream: bool
) -> None:
    reply_id = f"resp_{is_stream}"
    upstream.prepared.append(answer_with_id(reply_id, is_stream=is_stream))
    assert send(served, tokens["ann"], "POST", "responses", {**ASK, "stream": is_stream}).status_code == 200
    upstream.received.clear()
    statuses = {}
    for name, token in tokens.items():
        continued = send(served, token, "POST", "responses", {**ASK, "previous_response_id": reply_id})
        read = send(served, token, "GET", f"responses/{reply_id}")
        listed = send(served, token, "GET", f"responses/{reply_id}/input_items?limit=5")
        statuses[name] = {each.status_code for each in (continued, read, listed)}
    deleted = send(served, tokens["bob"], "DELETE", f"responses/{reply_id}")
    assert statuses == {"ann": {200}, "ann-phone": {200}, "bob": {404}}
    assert deleted.status_code == 404
    assert len(upstream.received) == 6
    assert send(served, tokens["ann"], "DELETE", f"responses/{reply_id}").status_code == 200


def test_id_in_the_text_of_a_reply_does_not_make_a_user_the_owner_of_a_stored_reply(
    served: RunningProxy, upstream: Upstream, tokens: dict[str, str]
) -> None:
    text = 'data: {"response": {"id": "resp_other"}}'
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    reply = {"id": "resp_bob", "output": [item, {"id": "resp_other", "type": "message", "content": []}]}
    upstream.prepared.append(Prepared([json.dumps(reply).encode()]))
    send(served, tokens["bob"], "POST", "responses", ASK)
    assert send(served, tokens["bob"], "GET", "responses/resp_bob").status_code == 200
    assert send(served, tokens["bob"], "GET", "responses/resp_other").status_code == 404


def test_client_with_its_own_key_uses_every_path_and_header(tmp_path: Path, upstream: Upstream) -> None:
    upstream.answer = None
    with serve_proxy(tmp_path, upstream.url) as served:
        headers = {"authorization": "Bearer sk-client", "x-anything": "1"}
        url = f"{served.url}/v1/files?purpose=batch"
        assert httpx2.get(url, headers=headers, timeout=TIMEOUT_S).status_code == 200
    (received,) = upstream.received
    assert isinstance(received, Received)
    assert (received.path, received.header("x-anything")) == ("/v1/files?purpose=batch", "1")


def test_kept_connection_to_the_provider_is_not_shared_between_users(
    served: RunningProxy, upstream: Upstream, tokens: dict[str, str]
) -> None:
    before = upstream.connections
    ask = {"model": "gpt-x", "messages": []}
    users = [served.tokens.add(f"t{number}", user_id="") for number in range(2)]
    for token in (*users, *users):
        assert send(served, token, "POST", "chat/completions", ask).status_code == 200
    assert upstream.connections - before == 2


def test_provider_whose_header_has_a_control_character_causes_status_502(
    served: RunningProxy, upstream: Upstream, tokens: dict[str, str]
) -> None:
    headers = {"content-type": "application/json", "x-request-id": "a\x01b"}
    upstream.prepared.append(Prepared([b"{}"], headers=headers))
    answer = send(served, tokens["ann"], "POST", "chat/completions", {"model": "gpt-x", "messages": []})
    assert answer.status_code == 502
    assert "malformed" in answer.json()["error"]["message"]


def test_provider_that_sends_one_byte_per_chunk_is_cut_off_and_others_are_served(
    served: RunningProxy, upstream: Upstream, tokens: dict[str, str]
) -> None:
    ask = {"model": "gpt-x", "messages": []}
    upstream.prepared.append(Prepared([b"x"] * 20_000, headers=STREAM, chunked=True))
    with pytest.raises(httpx2.RemoteProtocolError):
        send(served, tokens["ann"], "POST", "chat/completions", ask)
    assert send(served, tokens["bob"], "POST", "chat/completions", ask).status_code == 200
