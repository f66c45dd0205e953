"""Providers behind TLS: their certificates are verified, and their connections are used again with care."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.gateway.harness import TIMEOUT_S
from tests.proxy.clients import APIS, make_tools
from tests.proxy.harness import RunningProxy, serve_proxy
from tests.proxy.scripted_model import Say, ScriptedModel
from tests.proxy.upstream import Prepared, Upstream, serve_upstream
from tests.proxy.weather_tools import FORECAST_CALL, SEARCH, TOOLS
from toolfold.core.types import Json

PATHS = {"chat": "chat/completions", "messages": "messages", "responses": "responses"}
AUTHORITY_KEY_USAGE = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)
"""Python 3.13 checks certificates strictly: they need their use and the identifiers of their keys."""
DAY = datetime.timedelta(days=1)
each_api = pytest.mark.parametrize("api", APIS)


@dataclass(frozen=True)
class Authority:
    """A certificate authority of this test."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def file(self) -> Path:
        """Return the file with the authority's certificate, which is created if it does not exist."""
        file = self.folder / "authority.pem"
        file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return file

    def make_context(self, host: str, *, is_expired: bool = False) -> ssl.SSLContext:
        """Return the TLS settings of a server with a certificate for a host."""
        key = ec.generate_private_key(ec.SECP256R1())
        end = datetime.datetime.now(datetime.UTC) + (-DAY if is_expired else DAY)
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        certificate = build_certificate(host, key, end).issuer_name(self.certificate.subject)
        certificate = certificate.add_extension(issuer, critical=False).add_extension(names, critical=False)
        signed = certificate.sign(self.key, hashes.SHA256())
        file = self.folder / f"{host}-{is_expired}.pem"
        encoding, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        file.write_bytes(
            key.private_bytes(encoding, private, serialization.NoEncryption()) + signed.public_bytes(encoding)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def build_certificate(
    name: str, key: ec.EllipticCurvePrivateKey, end: datetime.datetime
) -> x509.CertificateBuilder:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - 2 * DAY)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    key, end = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC) + DAY
    builder = build_certificate("authority of this test", key, end)
    builder = builder.issuer_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of this test")])
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(AUTHORITY_KEY_USAGE, critical=True)
    return Authority(tmp_path_factory.mktemp("authority"), key, builder.sign(key, hashes.SHA256()))


@contextmanager
def serve(
    home: Path, context: ssl.SSLContext, folding: str = "off"
) -> Iterator[tuple[RunningProxy, Upstream]]:
    """Serve a proxy in front of a provider with these TLS settings."""
    settings = {"proxy.folding": folding, "tools.rag_embed_model": "light"}
    with serve_upstream(context) as upstream, serve_proxy(home, upstream.url, settings) as served:
        yield served, upstream


@pytest.fixture(scope="module")
def trusted(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningProxy, Upstream, list[str]]]:
    """A proxy that trusts the authority of its provider, and the names that the provider was asked for."""
    context, names = authority.make_context("localhost"), []
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(authority.file))
        with serve(tmp_path_factory.mktemp("trusted"), context, "on") as (served, upstream):
            yield served, upstream, names


def post(served: RunningProxy, api: str, *, stream: bool = False) -> httpx2.Response:
    body: Json = {"model": "m", "tools": make_tools(api, TOOLS), "stream": stream}
    said = [{"role": "user", "content": "What will the weather be in Porto?"}]
    body |= {"input": said} if api == "responses" else {"messages": said, "max_tokens": 100}
    return httpx2.post(f"{served.url}/v1/{PATHS[api]}", json=body, timeout=TIMEOUT_S)


@each_api
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_request_after_a_tool_search_reuses_the_tls_connection_to_the_provider(
    trusted: tuple[RunningProxy, Upstream, list[str]], api: str, stream: bool
) -> None:
    served, upstream, names = trusted
    before = upstream.connections
    upstream.answer = ScriptedModel([Say("", [SEARCH]), Say("Found.", [FORECAST_CALL])])
    response = post(served, api, stream=stream)
    assert response.status_code == 200
    assert "get_forecast" in response.text
    assert "rounds=2" in response.headers["x-toolfold-folding"]
    assert upstream.connections - before <= 1
    assert set(names) == {"localhost"}


def test_next_request_succeeds_after_the_provider_closed_the_idle_tls_connection(
    trusted: tuple[RunningProxy, Upstream, list[str]],
) -> None:
    served, upstream, _ = trusted
    upstream.received.clear()
    upstream.closes_after_response = True
    try:
        for _ in range(3):
            upstream.has_closed.clear()
            upstream.answer = ScriptedModel([Say("Sunny.")])
            assert "Sunny." in post(served, "chat").text
            assert upstream.has_closed.wait(TIMEOUT_S)
    finally:
        upstream.closes_after_response = False
    assert len(upstream.received) == 3


def test_request_is_not_retried_if_the_provider_closes_the_tls_connection_without_a_response(
    trusted: tuple[RunningProxy, Upstream, list[str]],
) -> None:
    served, upstream, _ = trusted
    upstream.answer = ScriptedModel([Say("Sunny.")])
    assert "Sunny." in post(served, "chat").text
    upstream.received.clear()
    before = upstream.connections
    upstream.answer = lambda _: Prepared(is_dropped=True)
    response = post(served, "chat")
    assert response.status_code == 502
    assert "disconnected without sending a response" in response.json()["error"]["message"]
    assert (len(upstream.received), upstream.connections) == (1, before)


def test_stream_ends_with_an_error_event_if_the_tls_connection_to_the_provider_breaks(
    trusted: tuple[RunningProxy, Upstream, list[str]],
) -> None:
    served, upstream, _ = trusted
    upstream.received.clear()
    parts = ScriptedModel([Say("This text is long.")])
    upstream.answer = lambda request: Prepared(
        parts(request).parts[:4], headers={"content-type": "text/event-stream"}, chunked=True, is_cut=True
    )
    response = post(served, "messages", stream=True)
    assert "This te" in response.text
    assert response.text.strip().split("\n\n")[-1].startswith("event: error")
    assert len(upstream.received) == 1


REFUSED = {
    "expired": ("localhost", True, "certificate has expired"),
    "other host": ("other.example", False, "Hostname mismatch, certificate is not valid for 'localhost'"),
}


def check_refusal(served: RunningProxy, upstream: Upstream, api: str, reason: str) -> None:
    response = post(served, api)
    error = response.json()
    assert response.status_code == 502
    assert error["error"]["type"] == "api_error"
    assert (error.get("type") == "error") == (api == "messages")
    assert f"the server's certificate is not valid: {reason}" in error["error"]["message"]
    assert error["error"]["message"].startswith("toolfold: The connection to the provider ")
    assert upstream.received == []


@pytest.mark.parametrize("problem", REFUSED)
def test_provider_certificate_that_is_expired_or_issued_for_another_host_is_refused(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    host, is_expired, reason = REFUSED[problem]
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    with serve(tmp_path, authority.make_context(host, is_expired=is_expired)) as (served, upstream):
        check_refusal(served, upstream, "chat", reason)


def test_provider_certificate_of_an_unknown_authority_causes_an_error_response_in_each_api(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with serve(tmp_path, authority.make_context("localhost"), "on") as (served, upstream):
        for api in APIS:
            check_refusal(served, upstream, api, "unable to get local issuer certificate")
