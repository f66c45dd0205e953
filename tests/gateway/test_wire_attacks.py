"""Hostile HTTP requests to `toolfold serve`: its MCP endpoint, model proxy, dashboard and health checks."""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.cases import check_cases
from tests.gateway.gateway_process import GatewayProcess, gateway_process, write_settings
from tests.gateway.harness import TIMEOUT_S, wait_until
from tests.gateway.test_attacks import HELLO, attacker
from tests.proxy.upstream import Upstream, serve_upstream
from toolfold.config.record import SettingsRecord
from toolfold.serving.dashboard.dashboard_app import MAX_QUERY_FIELDS
from toolfold.serving.dashboard.recorder import HISTORY_FILE
from toolfold.serving.gateway.client_tokens import Tokens

BODY = json.dumps(HELLO)
CHUNKED_BODY = f"{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n"
NESTED = "[" * 100_000 + "]" * 100_000
MODEL_PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses")
SMUGGLED = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass
class Target:
    """A gateway process with the user ann, in front of a model provider on this machine."""

    gateway: GatewayProcess
    upstream: Upstream
    home: Path
    token: str

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.gateway.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.gateway.port), timeout=TIMEOUT_S)

    def head(self, path: str = "/mcp", *fields: str, method: str = "POST", host: str = "") -> str:
        """Return the start of a request of ann, without the empty line that ends its headers."""
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {host or self.host}",
            f"Authorization: Bearer {self.token}",
        ]
        lines += ["Accept: application/json, text/event-stream", "Content-Type: application/json"]
        lines += [f"Origin: http://{self.host}"] if path.startswith("/ui/") else []
        return "".join(f"{line}\r\n" for line in (*lines, *fields))

    def exchange(self, data: str | bytes) -> str:
        """Send bytes, and return what is received until the gateway closes the connection."""
        with self.connect() as raw:
            with contextlib.suppress(OSError):  # refused before everything was sent
                raw.sendall(data.encode("latin-1") if isinstance(data, str) else data)
            parts = []
            while part := raw.recv(65_536):
                parts.append(part)
        return b"".join(parts).decode("latin-1")

    def post(self, path: str, body: str | bytes, *fields: str) -> str:
        content = body if isinstance(body, bytes) else body.encode()
        head = self.head(path, *fields, "Connection: close", f"Content-Length: {len(content)}")
        return self.exchange(f"{head}\r\n".encode() + content)

    def get(self, path: str, *, host: str = "") -> str:
        return self.exchange(self.head(path, "Connection: close", method="GET", host=host) + "\r\n")

    def is_alive(self) -> bool:
        return read_status(self.post("/mcp", BODY)) == 200


def read_status(response: str) -> int:
    return int(response.split(" ", 2)[1])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    home = tmp_path_factory.mktemp("wire") / "home"
    with serve_upstream() as upstream:
        providers = {
            "openai": {"dialect": "openai", "base_url": f"{upstream.url}/v1"},
            "anthropic": {"dialect": "anthropic", "base_url": upstream.url},
        }
        settings = {
            "mcp": {"servers": {"notes": attacker("notes")}},
            "telemetry": {"prometheus": True},
            "tools": {"rag_embed_model": "light"},
            "providers": providers,
        }
        write_settings(home, settings)
        state = home / "state"
        tokens = Tokens(state / "gateway" / "tokens.json", SettingsRecord(state))
        token = tokens.add("ann", user_id=tokens.users.add_user("ann").id)
        with gateway_process(home) as gateway:
            yield Target(gateway, upstream, home, token)
        assert "Traceback" not in gateway.log.read_text()


@check_cases(
    "fields",
    [
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", f"Content-Length: {len(BODY)}"),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
        ("Transfer-Encoding : chunked",),
        ("Transfer-Encoding: \x0bchunked",),
        ("Content-Length: 5", "Content-Length: 6"),
        ("Content-Length: +5",),
        ("Content-Length: 5, 6",),
        ("X-First: a", " Transfer-Encoding: chunked"),
        ("X-First: a\nTransfer-Encoding: chunked",),
        ("X-First: a\rTransfer-Encoding: chunked",),
        ("X-First: a\0b", "Transfer-Encoding: chunked"),
    ],
)
def test_request_with_conflicting_length_headers_is_refused_and_a_smuggled_request_is_not_answered(
    target: Target, fields: tuple[str, ...]
) -> None:
    for path in ("/mcp", "/v1/files", "/ui/api/sign-in"):
        response = target.exchange(f"{target.head(path, *fields)}\r\n{CHUNKED_BODY}{SMUGGLED}")
        assert read_status(response) == 400, path
        assert response.count("HTTP/1.1 ") == 1, path
    assert all(each.path != "/v1/files" for each in target.upstream.received)


def test_http_1_0_request_with_chunked_encoding_is_refused(target: Target) -> None:
    head = target.head("/mcp", "Transfer-Encoding: chunked").replace("HTTP/1.1", "HTTP/1.0")
    assert read_status(target.exchange(f"{head}\r\n{CHUNKED_BODY}")) == 400


@check_cases("size", ["-5", "0x10", "10;a=b\nX", "5 5", "ffffffffffffffffffffff", ""])
def test_request_with_an_invalid_chunk_size_is_refused(target: Target, size: str) -> None:
    head = target.head("/mcp", "Transfer-Encoding: chunked")
    response = target.exchange(f"{head}\r\n{size}\r\n{BODY}\r\n0\r\n\r\n")
    assert read_status(response) == 400


@check_cases(
    "host",
    [
        *("evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "evil.example@127.0.0.1"),
        *("evil.example:80@127.0.0.1", "evil.example\\@127.0.0.1", "127.0.0.1/evil.example", "127.0.0.1?x"),
        *(
            "127.0.0.1#.evil.example",
            "127.0.0.1 evil.example",
            "localhost,evil.example",
            "2130706433",
            "127.1",
        ),
        *("0x7f000001", "[::ffff:127.0.0.1]", "127.0.0.1:80:80", "127.0.0.1:x", "[::1", ":80"),
    ],
)
def test_request_with_a_host_header_other_than_an_allowed_name_is_refused(target: Target, host: str) -> None:
    for path in ("/ui/", "/ui/api/hello", "/v1/models"):
        assert read_status(target.get(path, host=host)) == 421, path
    head = target.head("/mcp", f"Content-Length: {len(BODY)}", host=host)
    assert read_status(target.exchange(f"{head}\r\n{BODY}")) == 421


@check_cases(
    "repeated",
    ["Authorization: Bearer x", "Host: evil.example", "Origin: http://evil.example", "Mcp-Session-Id: x"],
)
def test_request_with_a_repeated_security_header_is_refused(target: Target, repeated: str) -> None:
    first = ("Mcp-Session-Id: y", f"Origin: http://{target.host}")
    for path in ("/mcp", "/v1/chat/completions", "/ui/api/sign-in"):
        fields = first if not path.startswith("/ui/") else first[:1]
        assert read_status(target.post(path, BODY, *fields, repeated)) == 400, path


def test_forwarding_headers_of_reverse_proxies_do_not_bypass_the_token_or_change_the_path(
    target: Target,
) -> None:
    forged = (
        *("X-Forwarded-For: 127.0.0.1", "X-Real-IP: 127.0.0.1", "Forwarded: for=127.0.0.1;by=ann"),
        *("X-Forwarded-User: ann", "X-Remote-User: ann", "Remote-User: ann", "X-Forwarded-Host: localhost"),
        *("X-Original-URL: /ui/api/overview", "X-Rewrite-URL: /healthz", "X-HTTP-Method-Override: GET"),
    )
    for path in ("/mcp", "/v1/models"):
        anonymous = target.head(path, *forged, "Content-Length: 0").replace("Authorization: ", "X-None: ")
        assert read_status(target.exchange(f"{anonymous}Connection: close\r\n\r\n")) == 401, path
    signed_out = target.exchange(
        target.head("/ui/api/overview", *forged, "Connection: close", method="GET") + "\r\n"
    )
    assert read_status(signed_out) == 401
    response = target.exchange(target.head("/mcp/x", *forged, "Connection: close", method="GET") + "\r\n")
    assert read_status(response) == 404


def test_model_provider_does_not_receive_token_and_connection_headers_of_clients(
    target: Target,
) -> None:
    fields = (
        "Connection: keep-alive, X-Hidden",
        "Proxy-Authorization: Basic eDp5",
        "TE: trailers",
        "Upgrade: h2c",
    )
    target.upstream.received.clear()
    head = target.head("/v1/models", *fields, "X-Toolfold-Token: " + target.token, method="GET")
    with target.connect() as raw:
        raw.sendall(f"{head}\r\n".encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 200")
    (received,) = target.upstream.received
    names = {name.lower() for name, _ in received.headers}
    assert not names & {"proxy-authorization", "te", "upgrade", "x-toolfold-token", "authorization"}
    assert target.token not in str(received.headers)


@check_cases(
    "path",
    [
        *(
            "/ui/../../etc/passwd",
            "/ui/%2e%2e/%2e%2e/etc/passwd.txt",
            "/ui/..%2f..%2fapp.py",
            "/ui/../app.py",
        ),
        *("/ui/static_files.py", "/ui/%00.js", "/ui/index.html%00.js", "/ui/..\\app.py", "/ui//etc/hosts.js"),
        *("/mcp/../ui/api/overview", "/mcp%2f..%2fui", "/.well-known/../ui/index.html", "//ui/index.html"),
        *("/v1/../ui/api/overview", "/v1/%2e%2e/ui/x", "/v1/models/../../admin", "/v1/..%5cadmin"),
    ],
)
def test_path_traversal_request_is_neither_served_nor_forwarded(target: Target, path: str) -> None:
    target.upstream.received.clear()
    assert read_status(target.get(path)) in (400, 404)
    assert target.upstream.received == []


@check_cases(
    "body",
    [
        NESTED,
        '{"a":' * 50_000 + "1" + "}" * 50_000,
        f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{NESTED}}}',
        '{"id":' + "9" * 20_000 + "}",
        "{" + ",".join(f'"k{number}":0' for number in range(100_000)) + "}",
        '{"code":"\\ud800","token":"\\ud800"}',
        b'{"code":"\xff\xfe"}',
        '{"code":"x"}'.encode("utf-16"),
        "",
        "null",
    ],
)
def test_request_body_that_is_deeply_nested_or_oversized_or_undecodable_returns_a_4xx_status(
    target: Target, body: str | bytes
) -> None:
    for path in ("/mcp", "/ui/api/sign-in", "/ui/api/login"):
        status = read_status(target.post(path, body))
        assert 400 <= status < 500, (path, status)
    for path in ("/metrics", "/healthz", "/readyz"):
        assert read_status(target.post(path, body)) == 405, path


@check_cases(
    "body",
    [
        NESTED,
        f'{{"model":"m","messages":[],"tools":{NESTED}}}',
        '{"model":"m","max_tokens":' + "9" * 20_000 + "}",
        '{"model":"m","tools":[{"type":"function","function":{"name":1e999,"parameters":NaN}}]}',
        "{" + ",".join(f'"k{number}":0' for number in range(100_000)) + "}",
        b'{"model":"\xff"}',
        '{"model":{"model":["m"]},"tools":{"a":1}}',
    ],
)
def test_malformed_model_request_is_forwarded_unchanged_to_the_provider(
    target: Target, body: str | bytes
) -> None:
    content = body if isinstance(body, bytes) else body.encode()
    for path in MODEL_PATHS:
        target.upstream.received.clear()
        assert read_status(target.post(path, body)) == 200, path
        assert target.upstream.received[0].body == content


def test_malicious_model_name_does_not_stop_usage_recording(target: Target) -> None:
    for model in ("\\ud800", "a\\u0000b", "x" * 500_000, "usual-model"):
        assert read_status(target.post("/v1/chat/completions", f'{{"model":"{model}","messages":[]}}')) == 200
    with contextlib.closing(sqlite3.connect(target.home / "state" / HISTORY_FILE)) as history:
        query = "SELECT name FROM usage WHERE kind = 'model'"
        wait_until(lambda: ("usual-model",) in history.execute(query).fetchall())
        assert max(len(name) for (name,) in history.execute(query)) < 1_000


@check_cases("encoding", ["gzip", "deflate", "br", "identity, gzip"])
def test_compressed_request_body_is_refused_with_status_415(target: Target, encoding: str) -> None:
    for path in ("/mcp", "/ui/api/sign-in"):
        assert (
            read_status(target.post(path, b"\x1f\x8b" + b"0" * 1_000, f"Content-Encoding: {encoding}")) == 415
        )


def test_request_headers_of_several_megabytes_are_refused_on_every_path(target: Target) -> None:
    for path in ("/mcp", "/v1/models", "/ui/", "/healthz"):
        for fields in ("X-Long: " + "a" * 3_000_000, "A: b\r\n" * 50_000):
            response = target.exchange(f"{target.head(path, method='GET')}{fields}\r\n\r\n")
            assert read_status(response) == 400, path


def test_clients_that_send_slowly_or_do_not_read_responses_do_not_delay_other_clients(target: Target) -> None:
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    slow = [target.connect() for _ in range(60)]
    try:
        for number, raw in enumerate(slow):
            if number % 3 == 0:
                raw.sendall(b"POST /mcp HTT")
            elif number % 3 == 1:
                raw.sendall(f"{target.head('/mcp', 'Content-Length: 1000')}\r\n{{".encode())
            else:  # asks for many answers, and reads none of them
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                raw.setblocking(False)
                one = f"{target.head('/ui/app.js', method='GET')}\r\n".encode()
                deadline = time.monotonic() + 0.2
                while select.select([], [raw], [], 0.0)[1] and time.monotonic() < deadline:
                    raw.send(one * 50)
        started = time.monotonic()
        assert all(target.is_alive() for _ in range(5))
        assert read_status(target.post("/mcp", json.dumps(call))) == 400  # needs a session, and is answered
        assert time.monotonic() - started < TIMEOUT_S
    finally:
        for raw in slow:
            raw.close()
    assert target.is_alive()


def test_mcp_session_id_is_refused_without_its_token_and_after_the_session_ended(target: Target) -> None:
    opened = target.post("/mcp", BODY)
    (session,) = re.findall(r"mcp-session-id: (\S+)", opened)
    ping = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "ping"})
    with_session = ("Mcp-Session-Id: " + session, "Mcp-Protocol-Version: 2025-11-25")
    assert read_status(target.post("/mcp", ping, *with_session)) == 200
    stolen = replace(target, token="tf_wrong")
    for method in ("GET", "DELETE"):
        head = stolen.head("/mcp", *with_session, "Connection: close", method=method)
        assert read_status(stolen.exchange(f"{head}\r\n")) == 401
    assert read_status(stolen.post("/mcp", ping, *with_session)) == 401
    assert read_status(target.post("/mcp", ping, *with_session)) == 200
    end = target.head("/mcp", *with_session, "Connection: close", method="DELETE")
    assert read_status(target.exchange(f"{end}\r\n")) == 200
    assert read_status(target.post("/mcp", ping, *with_session)) == 404


def test_dashboard_login_link_can_be_used_only_once(target: Target) -> None:
    wait_until(lambda: "#code=" in target.gateway.log.read_text())
    (code, *_) = re.findall(r"#code=([\w-]+)", target.gateway.log.read_text())
    first = target.post("/ui/api/sign-in", json.dumps({"code": code}))
    assert read_status(first) == 200
    assert read_status(target.post("/ui/api/sign-in", json.dumps({"code": code}))) == 401
    (cookie,) = re.findall(r"set-cookie: ([^;]+)", first)
    (key,) = re.findall(r'"page_key":"([^"]+)', first)
    signed_in = (f"Cookie: {cookie}", f"X-Toolfold-Page-Key: {key}")
    for path in ("/ui/api/approvals/answer", "/ui/api/servers/add", "/ui/api/clients/add"):
        for body in (NESTED, "{" + ",".join(f'"k{number}":0' for number in range(100_000)) + "}", "null"):
            assert read_status(target.post(path, body, *signed_in)) in (400, 413), path
    unknown = json.dumps({"id": "00000000", "answer": "once"})
    assert read_status(target.post("/ui/api/approvals/answer", unknown, *signed_in)) >= 400
    many = "&".join(f"p{number}=1" for number in range(MAX_QUERY_FIELDS + 1))
    head = target.head(f"/ui/api/tools?{many}", *signed_in, "Connection: close", method="GET")
    assert read_status(target.exchange(f"{head}\r\n")) == 400
    assert read_status(target.post("/ui/api/sign-out", "{}", *signed_in)) == 200
    head = target.head("/ui/api/overview", *signed_in, "Connection: close", method="GET")
    assert read_status(target.exchange(f"{head}\r\n")) == 401
