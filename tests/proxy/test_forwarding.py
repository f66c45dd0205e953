"""The proxy forwards requests and responses unchanged, and each key only to the provider it belongs to."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.cases import check_cases
from tests.gateway.harness import TIMEOUT_S, wait_until
from tests.proxy.harness import RunningProxy, serve_proxy
from tests.proxy.upstream import Prepared, Upstream, serve_upstream
from toolfold.core.errors import ConfigError

STREAM = {"content-type": "text/event-stream; charset=utf-8"}
CHAT = (
    b'{ "model":"gpt-x",  "messages":[{"role":"user","content":"\\u00e9 \xc3\xa9"}], "tools":[], "n": 1.0 }'
)
MESSAGES = b'{"model": "claude-x", "max_tokens": 5, "messages": [ ]}'
PATHS = [
    ("chat/completions", CHAT),
    ("responses", b'{"model":"gpt-x","input":"hi","previous_response_id":"resp_1"}'),
    ("messages?beta=true", MESSAGES),
    ("messages/count_tokens", MESSAGES),
    ("embeddings", b'{"model":"text-embedding-x","input":["a","b"]}'),
    ("completions", b"not JSON at all"),
]


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with serve_upstream() as made:
        yield made


@pytest.fixture(autouse=True)
def _clean(upstream: Upstream) -> None:
    upstream.received.clear()
    upstream.prepared.clear()
    upstream.was_closed.clear()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[RunningProxy]:
    with serve_proxy(tmp_path_factory.mktemp("proxy"), upstream.url, {"proxy.folding": "off"}) as made:
        yield made


def post(served: RunningProxy, path: str, body: bytes, **headers: str) -> httpx2.Response:
    sent = {"content-type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
    return httpx2.post(f"{served.url}/v1/{path}", content=body, headers=sent, timeout=TIMEOUT_S)


@pytest.mark.parametrize(("path", "body"), PATHS, ids=[path for path, _ in PATHS])
def test_request_body_and_response_body_are_forwarded_byte_for_byte(
    served: RunningProxy, upstream: Upstream, path: str, body: bytes
) -> None:
    answer = b'{"ok":  true, "text": "\\u00e9"}\n'
    upstream.prepared.append(
        Prepared([answer], headers={"content-type": "application/json", "x-request-id": "7"})
    )
    response = post(served, path, body, authorization="Bearer sk-client", openai_organization="org")
    (received,) = upstream.received
    assert received.body == body
    assert received.path == f"/v1/{path}"
    assert received.header("authorization") == "Bearer sk-client"
    assert received.header("openai-organization") == "org"
    assert response.content == answer
    assert response.headers["x-request-id"] == "7"


def test_client_gets_each_stream_event_before_the_provider_has_sent_the_next_event(
    served: RunningProxy, upstream: Upstream
) -> None:
    gate = threading.Event()
    events = [b'data: {"n": 1}\n\n', b": ping\r\n\r\n", b"data: [DONE]\n\n"]
    upstream.prepared.append(Prepared(events, headers=STREAM, chunked=True, gate=gate))
    received = b""
    with httpx2.stream(
        "POST", f"{served.url}/v1/chat/completions", content=CHAT, timeout=TIMEOUT_S
    ) as response:
        for part in response.iter_raw():
            received += part
            if received == events[0]:
                gate.set()  # the provider goes on only after the client has its first event
    assert received == b"".join(events)


def test_gzip_compressed_response_of_the_provider_is_forwarded_without_decompression(
    served: RunningProxy, upstream: Upstream
) -> None:
    import gzip

    data = gzip.compress(b'{"a": 1}', mtime=0)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    upstream.prepared.append(Prepared([data], headers=headers))
    with httpx2.stream("POST", f"{served.url}/v1/embeddings", content=b"{}", timeout=TIMEOUT_S) as response:
        assert b"".join(response.iter_raw()) == data


@pytest.mark.parametrize("status", [400, 401, 429, 500, 529])
def test_error_response_of_the_provider_is_forwarded_with_its_status_body_and_headers(
    served: RunningProxy, upstream: Upstream, status: int
) -> None:
    problem = b'{"error": {"message": "as the provider says"}}'
    headers = {"content-type": "application/json", "retry-after": "3", "x-should-retry": "false"}
    upstream.prepared.append(Prepared([problem], status, headers))
    response = post(served, "chat/completions", CHAT)
    assert (response.status_code, response.content) == (status, problem)
    assert response.headers["retry-after"] == "3"
    assert len(upstream.received) == 1


def test_response_stays_incomplete_for_the_client_if_the_connection_to_the_provider_breaks(
    served: RunningProxy, upstream: Upstream
) -> None:
    upstream.prepared.append(Prepared([b"data: 1\n\n"], headers=STREAM, chunked=True, is_cut=True))
    with (
        pytest.raises(httpx2.RemoteProtocolError),
        httpx2.stream("POST", f"{served.url}/v1/messages", content=MESSAGES, timeout=TIMEOUT_S) as response,
    ):
        response.read()


def test_unreachable_provider_causes_status_502_with_an_error_in_the_format_of_the_api(
    tmp_path: Path,
) -> None:
    with serve_proxy(tmp_path, "http://127.0.0.1:9") as served:
        chat, messages = post(served, "chat/completions", CHAT), post(served, "messages", MESSAGES)
    assert chat.status_code == messages.status_code == 502
    assert "'openai'" in chat.json()["error"]["message"]
    assert messages.json()["error"]["type"] == "api_error"
    assert messages.json()["type"] == "error"


def test_client_gets_status_504_if_the_provider_does_not_answer_within_the_configured_timeout(
    tmp_path: Path, upstream: Upstream
) -> None:
    gate = threading.Event()
    upstream.prepared.append(Prepared(start=gate))
    provider = {"dialect": "openai", "base_url": f"{upstream.url}/v1", "timeout_seconds": 0.3}
    with serve_proxy(tmp_path, upstream.url, {"providers.openai": provider}) as served:
        response = post(served, "chat/completions", CHAT)
        gate.set()
    assert response.status_code == 504
    assert "did not answer in time" in response.json()["error"]["message"]


def test_request_at_the_provider_is_cancelled_if_the_client_disconnects(
    served: RunningProxy, upstream: Upstream
) -> None:
    upstream.prepared.append(Prepared([b"data: 1\n\n"], headers=STREAM, chunked=True, waits_for_close=True))
    with httpx2.stream(
        "POST", f"{served.url}/v1/chat/completions", content=CHAT, timeout=TIMEOUT_S
    ) as response:
        next(response.iter_raw())
    assert upstream.was_closed.wait(TIMEOUT_S)
    wait_until(lambda: served.proxy.open_requests == 0)


def test_file_and_model_list_requests_are_forwarded_with_their_method_path_and_body(
    served: RunningProxy, upstream: Upstream
) -> None:
    upload = b"\x00binary" * 50_000
    httpx2.post(f"{served.url}/v1/files", content=upload, headers={"content-type": "x/y"}, timeout=TIMEOUT_S)
    httpx2.delete(f"{served.url}/v1/files/f1", timeout=TIMEOUT_S)
    httpx2.get(f"{served.url}/v1/models?limit=5", timeout=TIMEOUT_S)
    first, second, third = upstream.received
    assert (first.method, first.path, first.body) == ("POST", "/v1/files", upload)
    assert first.header("content-length") == str(len(upload))
    assert (second.method, second.path) == ("DELETE", "/v1/files/f1")
    assert (third.method, third.path) == ("GET", "/v1/models?limit=5")


def test_request_is_sent_to_the_first_provider_whose_pattern_matches_the_model(
    tmp_path: Path, upstream: Upstream
) -> None:
    with serve_upstream() as other:
        settings = {
            "providers.house": {"dialect": "openai", "base_url": f"{other.url}/v1", "key_env": "HOUSE_KEY"},
            "proxy.upstreams": {"house-[a-z]": {"provider": "nowhere"}, "House-*": {"provider": "house"}},
            "providers.nowhere": {"dialect": "openai", "base_url": "http://127.0.0.1:9/v1"},
        }
        with serve_proxy(tmp_path, upstream.url, settings, environment={"HOUSE_KEY": "sk-house"}) as served:
            post(served, "chat/completions", b'{"model":"house-a"}', authorization="Bearer sk-client")
            post(served, "chat/completions", b'{"model":"gpt-1"}', authorization="Bearer sk-client")
        (to_house,), (to_default,) = other.received, upstream.received
    assert to_house.header("authorization") == "Bearer sk-house"
    assert "sk-client" not in str(to_house.headers)
    assert to_default.header("authorization") == "Bearer sk-client"


def test_misspelt_provider_in_the_settings_prevents_startup_and_the_error_suggests_a_name(
    tmp_path: Path,
) -> None:
    settings = {"proxy.upstreams": {"*": {"provider": "opnai"}}}
    with (
        pytest.raises(ConfigError, match="openai"),
        serve_proxy(tmp_path, "http://127.0.0.1:9", settings),
    ):
        raise AssertionError("the proxy started")


def test_client_token_is_accepted_in_both_supported_headers_and_never_forwarded_to_the_provider(
    tmp_path: Path, upstream: Upstream
) -> None:
    with serve_proxy(tmp_path, upstream.url, allow_anonymous=False) as served:
        token = served.tokens.add("editor")
        refused = post(served, "chat/completions", CHAT, authorization="Bearer sk-client")
        accepted = post(
            served, "chat/completions", CHAT, authorization="Bearer sk-client", x_toolfold_token=token
        )
        as_key = post(served, "messages", MESSAGES, x_api_key=token)
        wrong = post(served, "messages", MESSAGES, x_api_key=token + "x")
    assert (refused.status_code, wrong.status_code) == (401, 401)
    assert "toolfold token add" in refused.json()["error"]["message"]
    assert wrong.json()["error"]["type"] == "authentication_error"
    assert (accepted.status_code, as_key.status_code) == (200, 200)
    with_key, with_token = upstream.received
    assert with_key.header("authorization") == "Bearer sk-client"
    assert with_token.header("x-api-key") is None
    assert token not in f"{with_key.headers} {with_token.headers}"


def test_token_limited_to_toolsets_needs_the_option_may_use_keys_to_use_the_configured_api_key(
    tmp_path: Path, upstream: Upstream
) -> None:
    settings = {
        "providers.house": {"base_url": f"{upstream.url}/v1", "key_env": "HOUSE_KEY"},
        "proxy.upstreams": {"gpt-*": {"provider": "house"}},
    }
    environment = {"HOUSE_KEY": "sk-house"}
    with serve_proxy(
        tmp_path, upstream.url, settings, allow_anonymous=False, environment=environment
    ) as served:
        tokens = {
            "limited": served.tokens.add("limited", ["web"]),
            "allowed": served.tokens.add("allowed", ["web"], may_use_keys=True),
            "whole": served.tokens.add("whole"),
            "forbidden": served.tokens.add("forbidden", may_use_keys=False),
        }
        answers = {
            name: post(served, "chat/completions", CHAT, x_toolfold_token=token)
            for name, token in tokens.items()
        }
        own = post(served, "messages", MESSAGES, x_api_key="sk-client", x_toolfold_token=tokens["limited"])
    statuses = {name: each.status_code for name, each in answers.items()}
    assert statuses == {"limited": 403, "allowed": 200, "whole": 200, "forbidden": 403}
    assert "toolfold token add NAME --models" in answers["limited"].json()["error"]["message"]
    assert own.status_code == 200
    assert [each.header("authorization") for each in upstream.received] == ["Bearer sk-house"] * 2 + [None]


def test_request_with_a_foreign_host_or_origin_header_is_refused(
    served: RunningProxy, upstream: Upstream
) -> None:
    wrong_host = post(served, "chat/completions", CHAT, host="evil.example")
    wrong_origin = post(served, "chat/completions", CHAT, origin="https://evil.example")
    assert (wrong_host.status_code, wrong_origin.status_code) == (421, 403)
    assert upstream.received == []


def test_concurrent_request_above_the_setting_max_requests_gets_status_503(
    tmp_path: Path, upstream: Upstream
) -> None:
    gate = threading.Event()
    upstream.prepared.append(Prepared([b"a", b"b"], gate=gate, chunked=True))
    with serve_proxy(tmp_path, upstream.url, {"proxy.max_requests": 1}) as served:
        first = threading.Thread(target=post, args=(served, "chat/completions", CHAT))
        first.start()
        wait_until(lambda: len(upstream.received) == 1)
        refused = post(served, "chat/completions", CHAT)
        gate.set()
        first.join()
    assert refused.status_code == 503
    assert len(upstream.received) == 1


def test_request_body_above_the_size_limit_is_refused_and_not_forwarded(
    served: RunningProxy, upstream: Upstream
) -> None:
    from toolfold.serving.proxy.proxy_app import MAX_BODY_BYTES

    response = post(served, "messages", b" " * (MAX_BODY_BYTES + 1))
    assert response.status_code == 413
    assert upstream.received == []


def test_api_keys_and_message_texts_of_requests_are_not_logged(
    served: RunningProxy, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="toolfold")
    body = json.dumps({"model": "gpt-x", "messages": [{"role": "user", "content": "private text"}]}).encode()
    post(served, "chat/completions", body, authorization="Bearer sk-very-secret")
    upstream.prepared.append(Prepared([b"x"], chunked=True, is_cut=True))
    with pytest.raises(httpx2.HTTPError):
        post(served, "chat/completions", body, authorization="Bearer sk-very-secret")
    assert caplog.records
    assert "very-secret" not in caplog.text
    assert "private text" not in caplog.text


TRAVERSALS = ["house-x%2f..%2f..%2fapi%2fdelete%3Fq=1", "house-x/%2e%2e/%2e%2e/admin", "a%5c..%5cb"]


@check_cases("path", TRAVERSALS)
def test_request_path_with_parent_directory_segments_is_refused_and_not_forwarded(
    served: RunningProxy, upstream: Upstream, path: str
) -> None:
    response = send_raw(served, f"GET /v1/models/{path} HTTP/1.1")
    assert b" 400 " in response.split(b"\r\n")[0]
    assert upstream.received == []


def test_percent_encoded_characters_of_a_request_path_stay_encoded_when_forwarded(
    served: RunningProxy, upstream: Upstream
) -> None:
    upstream.prepared.append(Prepared([b"{}"]))
    send_raw(served, "GET /v1/models/a%3Fb%252e%01 HTTP/1.1")
    (received,) = upstream.received
    assert received.path == "/v1/models/a%3Fb%252e%01"


def test_cross_site_browser_request_without_an_origin_header_is_refused(
    served: RunningProxy, upstream: Upstream
) -> None:
    url = f"{served.url}/v1/models/x"
    assert httpx2.get(url, headers={"sec-fetch-site": "cross-site"}, timeout=TIMEOUT_S).status_code == 403
    assert upstream.received == []


def test_request_with_two_api_key_headers_is_refused(served: RunningProxy, upstream: Upstream) -> None:
    headers = [("x-api-key", "tf_one"), ("x-api-key", "sk-two")]
    assert httpx2.get(f"{served.url}/v1/models", headers=headers, timeout=TIMEOUT_S).status_code == 400
    assert upstream.received == []


def test_client_cookies_and_api_keys_are_not_sent_to_a_provider_with_a_configured_api_key(
    tmp_path: Path, upstream: Upstream
) -> None:
    settings = {
        "proxy.upstreams": {"house-*": {"provider": "house"}},
        "providers.house": {"dialect": "openai", "base_url": f"{upstream.url}/v1", "key_env": "HOUSE_KEY"},
    }
    environment = {"HOUSE_KEY": "sk-house"}
    private = {"cookie": "a=b", "x-goog-api-key": "sk-goog", "OpenAI-Organization": "org", "openai-beta": "x"}
    upstream.prepared.append(Prepared([b"{}"]))
    with serve_proxy(tmp_path, upstream.url, settings, environment=environment) as served:
        url = f"{served.url}/v1/chat/completions?key=sk-query&beta=1"
        httpx2.post(url, content=b'{"model": "house-1"}', headers=private, timeout=TIMEOUT_S)
    (received,) = upstream.received
    assert received.path == "/v1/chat/completions?beta=1"
    assert received.header("authorization") == "Bearer sk-house"
    assert received.header("openai-beta") == "x"
    for name in ("cookie", "x-goog-api-key", "openai-organization"):
        assert not received.header(name), name


@pytest.mark.parametrize("has_upstreams", [True, False])
def test_connection_error_of_the_default_provider_names_the_setting_proxy_upstreams_if_set(
    tmp_path: Path, upstream: Upstream, has_upstreams: bool
) -> None:
    settings = {
        "proxy.upstreams": {"house-*": {"provider": "house"}} if has_upstreams else {},
        "providers.house": {"dialect": "openai", "base_url": f"{upstream.url}/v1"},
    }
    with serve_proxy(tmp_path, "http://127.0.0.1:9", settings) as served:
        response = httpx2.get(f"{served.url}/v1/models", timeout=TIMEOUT_S)
    message = response.json()["error"]["message"]
    assert response.status_code == 502
    assert "The connection to the provider 'openai' failed" in message
    assert ("proxy.upstreams" in message) is has_upstreams
    assert upstream.received == []


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_request_with_an_unreadable_model_field_is_refused_without_sending_an_api_key_to_a_provider(
    tmp_path: Path, upstream: Upstream, encoding: str
) -> None:
    settings = {
        "proxy.upstreams": {"other-*": {"provider": "other", "key": "client"}},
        "providers.other": {"dialect": "openai", "base_url": f"{upstream.url}/other"},
    }
    headers = {"authorization": "Bearer sk-other", "content-encoding": encoding}
    with serve_proxy(tmp_path, upstream.url, settings) as served:
        response = httpx2.post(
            f"{served.url}/v1/chat/completions", content=b"\x1f\x8b", headers=headers, timeout=TIMEOUT_S
        )
    assert response.status_code == 400
    assert "names no model" in response.text
    assert upstream.received == []


def send_raw(served: RunningProxy, request_line: str) -> bytes:
    """Send a request whose path the client does not normalise, and return the response."""
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        connection.sendall(f"{request_line}\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        received = b""
        while part := connection.recv(65_536):
            received += part
        return received
