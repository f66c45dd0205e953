"""A model proxy for tests: a real runtime on a real port, in front of a provider on this machine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import socket

import uvicorn

from tests.gateway.harness import wait_until
from toolfold import load_config
from toolfold.core.types import Approver
from toolfold.runtime.runtime import Runtime, open_runtime
from toolfold.serving.gateway.client_tokens import Tokens
from toolfold.serving.gateway.http_app import make_access_policy, make_app, make_server_config
from toolfold.serving.proxy import Proxy


@dataclass
class RunningProxy:
    """A proxy that is served, with the parts that tests look at."""

    url: str
    proxy: Proxy
    runtime: Runtime
    tokens: Tokens


@contextmanager
def serve_proxy(
    home: Path,
    upstream: str,
    overrides: Mapping[str, object] | None = None,
    *,
    allow_anonymous: bool = True,
    environment: Mapping[str, str] | None = None,
    port: int = 0,
    approver: Approver | None = None,
) -> Iterator[RunningProxy]:
    """Serve a proxy whose default providers are both at the URL `upstream`; by default on a free port."""
    settings = {
        "providers.openai": {"dialect": "openai", "base_url": f"{upstream}/v1"},
        "providers.anthropic": {"dialect": "anthropic", "base_url": upstream},
        "mcp.enabled": False,
        **(overrides or {}),
    }
    env = {"TOOLFOLD_HOME": str(home), "PATH": "/usr/bin:/bin", **(environment or {})}
    config = load_config(overrides=settings, env=env)
    tokens = Tokens(home / "tokens.json")
    with (
        open_runtime(config, approver=approver, behind_gateway=True) as runtime,
        contextlib.closing(socket()) as listening,
    ):
        listening.bind(("127.0.0.1", port))
        policy = make_access_policy(
            "127.0.0.1", tokens, toolsets=None, hosts=(), origins=(), allow_anonymous=allow_anonymous
        )
        proxy = Proxy(runtime, policy)
        app = make_app(runtime, policy, beside=[proxy])
        server = uvicorn.Server(make_server_config(app, log_level="critical"))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        try:
            yield RunningProxy(f"http://127.0.0.1:{listening.getsockname()[1]}", proxy, runtime, tokens)
        finally:
            server.should_exit = server.force_exit = True
            thread.join(20)
