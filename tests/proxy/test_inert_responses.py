"""A provider's response cannot act in a browser, which sees it in the same origin as the dashboard."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from tests.proxy.harness import RunningProxy, serve_proxy
from tests.proxy.upstream import Prepared, Upstream, serve_upstream

TIMEOUT_S = 60.0
PAGE = b"<script>fetch('/ui/api/servers')</script>"
FOLDED = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": f"tool_{n}", "parameters": {}}} for n in range(60)],
}
REPLY = b'{"id":"1","choices":[{"index":0,"message":{"role":"assistant","content":"x"}}]}'
HOSTILE_HEADERS = {
    "set-cookie": "toolfold_8765=planted; Path=/ui/",
    "service-worker-allowed": "/",
    "content-security-policy": "default-src *",
    "content-security-policy-report-only": "default-src *",
    "clear-site-data": '"storage"',
    "refresh": "0; url=/ui/",
    "link": "</ui/app.js>; rel=preload",
    "location": "/ui/",
    "content-location": "/ui/",
    "access-control-allow-origin": "*",
    "access-control-allow-credentials": "true",
    "strict-transport-security": "max-age=31536000",
    "public-key-pins": "x",
    "expect-ct": "x",
    "nel": "{}",
    "report-to": "{}",
    "reporting-endpoints": 'a="https://example.com"',
    "alt-svc": 'h3=":443"',
    "origin-agent-cluster": "?0",
    "document-policy": "x",
    "permissions-policy": "x",
    "speculation-rules": '"/v1/rules"',
    "supports-loading-mode": "x",
    "sourcemap": "/v1/map",
    "x-sourcemap": "/v1/map",
    "x-content-type-options": "sniff",
    "x-frame-options": "ALLOWALL",
    "x-dns-prefetch-control": "on",
    "x-accel-redirect": "/etc/passwd",
    "x-sendfile": "/etc/passwd",
    "www-authenticate": "Basic realm=x",
    "proxy-authenticate": "Basic realm=x",
    "vary": "*",
    "cache-control": "public, max-age=31536000",
    "expires": "Fri, 01 Jan 2100 00:00:00 GMT",
    "x-unknown": "1",
}
USEFUL_HEADERS = {
    "x-request-id": "req_1",
    "request-id": "req_2",
    "openai-processing-ms": "7",
    "openai-organization": "org",
    "x-ratelimit-remaining-tokens": "9",
    "anthropic-ratelimit-unified-status": "allowed",
    "anthropic-organization-id": "org",
    "x-codex-primary-used-percent": "3",
    "retry-after": "3",
    "retry-after-ms": "3000",
    "x-should-retry": "true",
    "content-disposition": 'attachment; filename="a.wav"',
}
OWN_HEADERS = {
    "content-security-policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with serve_upstream() as made:
        yield made


@pytest.fixture(autouse=True)
def _clean(upstream: Upstream) -> None:
    upstream.received.clear()
    upstream.prepared.clear()


@pytest.fixture(scope="module", params=["off", "on"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, upstream: Upstream
) -> Iterator[RunningProxy]:
    settings = {"proxy.folding": request.param, "tools.rag_embed_model": "light"}
    with serve_proxy(tmp_path_factory.mktemp("proxy"), upstream.url, settings) as made:
        yield made


def ask(served: RunningProxy) -> httpx2.Response:
    return httpx2.post(f"{served.url}/v1/chat/completions", json=FOLDED, timeout=TIMEOUT_S)


def has_own_headers(response: httpx2.Response) -> bool:
    """Return True if a response has the headers of the proxy that forbid scripts, each once."""
    return all(response.headers.get_list(name) == [value] for name, value in OWN_HEADERS.items())


@pytest.mark.parametrize("status", [200, 400, 401, 500])
def test_headers_by_which_a_provider_could_control_a_browser_are_not_forwarded(
    served: RunningProxy, upstream: Upstream, status: int
) -> None:
    sent = {"content-type": "application/json", **HOSTILE_HEADERS}
    upstream.answer = lambda _: Prepared([REPLY], status, sent)
    response = ask(served)
    assert response.status_code == status
    assert has_own_headers(response)
    values = response.headers.multi_items()
    assert [name for name, value in values if HOSTILE_HEADERS.get(name) == value] == []


def test_headers_that_clients_of_model_apis_read_are_forwarded(
    served: RunningProxy, upstream: Upstream
) -> None:
    sent = {"content-type": "application/json", **USEFUL_HEADERS}
    upstream.answer = lambda _: Prepared([REPLY], headers=sent)
    got = ask(served).headers
    assert {name: got.get(name) for name in USEFUL_HEADERS} == USEFUL_HEADERS


@pytest.mark.parametrize("status", [200, 404, 502])
@pytest.mark.parametrize(
    "kind",
    [
        *("text/html", "TEXT/HTML; charset=utf-8", "application/xhtml+xml", "image/svg+xml", "text/xml"),
        *("application/xml", "text/javascript", "application/javascript", "text/css", "application/pdf"),
        *("multipart/x-mixed-replace; boundary=x", "multipart/related", "message/rfc822", "application/wasm"),
        *("application/json, text/html", "application/json\r\ncontent-type: text/html", "text/html;json"),
        *("application/json; a=b, text/html", "json", "", "*/*", "application/x-unknown-content-type"),
        *("application/manifest+json, text/html", "text/event-stream\ttext/html", "text/vtt", "image/x"),
    ],
)
def test_content_that_a_browser_could_run_or_draw_is_forwarded_with_a_type_without_meaning(
    served: RunningProxy, upstream: Upstream, kind: str, status: int
) -> None:
    upstream.answer = lambda _: Prepared([PAGE], status, {"content-type": kind})
    response = httpx2.get(f"{served.url}/v1/files/file-1/content", timeout=TIMEOUT_S)
    assert response.content == PAGE
    assert response.headers.get_list("content-type") == ["application/octet-stream"]
    assert has_own_headers(response)


def test_content_without_a_type_is_forwarded_with_a_type_without_meaning(
    served: RunningProxy, upstream: Upstream
) -> None:
    upstream.answer = lambda _: Prepared([PAGE], headers={})
    response = httpx2.get(f"{served.url}/v1/files/file-1/content", timeout=TIMEOUT_S)
    assert response.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize(
    "kind",
    [
        *("application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"),
        *("application/problem+json", "application/x-ndjson", "application/jsonl", "text/event-stream"),
        *("text/event-stream; charset=utf-8", "text/plain; charset=utf-8", "application/octet-stream"),
        *("audio/mpeg", "audio/wav", "video/mp4", "image/png", "image/jpeg", "image/webp"),
    ],
)
def test_types_of_the_model_apis_are_forwarded_unchanged(
    served: RunningProxy, upstream: Upstream, kind: str
) -> None:
    upstream.answer = lambda _: Prepared([b"content"], headers={"content-type": kind})
    response = httpx2.get(f"{served.url}/v1/files/file-1/content", timeout=TIMEOUT_S)
    assert response.headers.get_list("content-type") == [kind]
    assert has_own_headers(response)


@pytest.mark.parametrize(
    "sent",
    [
        {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
        {"sec-fetch-mode": "navigate"},
        {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "empty"},
        {"sec-fetch-mode": "websocket"},
        {"service-worker": "script"},
        *(
            {"sec-fetch-dest": kind}
            for kind in ("document", "iframe", "frame", "embed", "object", "fencedframe")
        ),
        *({"sec-fetch-dest": kind} for kind in ("serviceworker", "worker", "sharedworker", "audioworklet")),
        *(
            {"sec-fetch-dest": kind}
            for kind in ("script", "style", "image", "json", "manifest", "unheard-of")
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_request_of_a_browser_that_would_show_or_run_the_response_is_refused(
    served: RunningProxy, upstream: Upstream, sent: dict[str, str], method: str
) -> None:
    url = f"{served.url}/v1/models"
    response = httpx2.request(
        method, url, headers={"sec-fetch-site": "same-origin", **sent}, timeout=TIMEOUT_S
    )
    assert response.status_code == 403
    assert "for programs" in response.json()["error"]["message"]
    assert has_own_headers(response)
    assert upstream.received == []


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"sec-fetch-mode": "cors"},
        {"sec-fetch-mode": "cors", "sec-fetch-dest": "empty", "sec-fetch-site": "same-origin"},
        {"sec-fetch-mode": "same-origin", "sec-fetch-dest": "empty", "sec-fetch-site": "same-origin"},
    ],
    ids=str,
)
def test_request_of_a_program_or_of_a_script_is_forwarded(
    served: RunningProxy, upstream: Upstream, sent: dict[str, str]
) -> None:
    upstream.answer = lambda _: Prepared([b'{"data": []}'])
    response = httpx2.get(f"{served.url}/v1/models", headers=sent, timeout=TIMEOUT_S)
    assert response.json() == {"data": []}
    assert has_own_headers(response)


def test_response_without_content_gets_no_content_type(served: RunningProxy, upstream: Upstream) -> None:
    upstream.answer = lambda _: Prepared([b""], 204, {})
    response = httpx2.delete(f"{served.url}/v1/files/file-1", timeout=TIMEOUT_S)
    assert response.status_code == 204
    assert "content-type" not in response.headers
    assert has_own_headers(response)


def test_errors_of_the_proxy_itself_forbid_scripts(served: RunningProxy, upstream: Upstream) -> None:
    upstream.answer = lambda _: Prepared(is_dropped=True)
    failed = ask(served)
    assert failed.status_code == 502
    assert has_own_headers(failed)
    foreign = httpx2.get(f"{served.url}/v1/models", headers={"host": "example.com"}, timeout=TIMEOUT_S)
    assert foreign.status_code == 421
    assert has_own_headers(foreign)
