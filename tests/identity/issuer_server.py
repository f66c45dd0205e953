"""An identity provider for tests of attacks: serves metadata and keys over HTTP, and signs any claims.

It can also misbehave: answer with huge, slow or redirected documents. `provider.py` runs a real provider.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

RESOURCE = "https://tools.example.com/mcp"
LIFETIME_S = 300


class SigningKey:
    """A private key with its id and public form."""

    def __init__(self, key_id: str, *, kind: str = "RSA", bits: int = 2_048) -> None:
        self.key_id, self.algorithm = key_id, {"RSA": "RS256", "EC": "ES256"}[kind]
        self.private: Any = (
            rsa.generate_private_key(65_537, bits)
            if kind == "RSA"
            else ec.generate_private_key(ec.SECP256R1())
        )

    @property
    def public_pem(self) -> bytes:
        content: bytes = self.private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return content

    def to_jwk(self) -> dict[str, Any]:
        algorithm = jwt.get_algorithm_by_name(self.algorithm)
        public = algorithm.to_jwk(self.private.public_key(), as_dict=True)
        return {**public, "kid": self.key_id, "use": "sig", "alg": self.algorithm}

    def sign(self, claims: dict[str, Any], **header: Any) -> str:
        return jwt.encode(
            claims, self.private, self.algorithm, headers={"kid": self.key_id, "typ": "at+jwt", **header}
        )


class IssuerServer:
    """A running provider; `keys` and `replies` may be changed at any time."""

    def __init__(self, url: str, *keys: SigningKey) -> None:
        self.url, self.keys = url, list(keys)
        self.replies: dict[str, tuple[int, dict[str, str], bytes]] = {}
        """Path → status, headers and body that are sent instead of the usual document."""
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        """Headers of each request, by their names in lower case."""
        self.release = threading.Event()
        """Requests of `/slow` are answered after this was set."""

    def claims(self, subject: str = "alice-1", **more: Any) -> dict[str, Any]:
        """Return the claims of a valid access token, changed by `more`; None removes a claim."""
        now = int(time.time())
        claims = {
            "iss": self.url,
            "sub": subject,
            "aud": RESOURCE,
            "iat": now,
            "exp": now + LIFETIME_S,
            "scope": "toolfold",
            **more,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, subject: str = "alice-1", **more: Any) -> str:
        return self.keys[0].sign(self.claims(subject, **more))

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        self.requests.append(path)
        if path in self.replies:
            return self.replies[path]
        if path == "/.well-known/openid-configuration":
            document: dict[str, Any] = {"issuer": self.url, "jwks_uri": f"{self.url}/jwks"}
        elif path == "/jwks":
            document = {"keys": [key.to_jwk() for key in self.keys]}
        elif path == "/slow":
            self.release.wait(60)
            document = {}
        else:
            return 404, {}, b"{}"
        return 200, {}, json.dumps(document).encode()


@contextmanager
def serve_issuer(*keys: SigningKey) -> Iterator[IssuerServer]:
    """Run a provider with these keys on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.headers.append({name.lower(): value for name, value in self.headers.items()})
            status, headers, body = issuer.answer(self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:  # the reader has given up
                return

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer = IssuerServer(f"http://127.0.0.1:{server.server_port}", *keys)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield issuer
        finally:
            issuer.release.set()
            server.shutdown()
            thread.join(20)
