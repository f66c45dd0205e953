"""The official conformance suite, in server mode, against a server behind the gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.gateway.harness import free_port, serve_gateway, wait_until
from tests.mcp.servers import conformance_command

FIXTURE = Path(__file__).parent / "conformance_fixture.py"
EXTENSIONS = "server-tasks-"
"""Scenarios of an extension that the gateway does not offer."""


@contextmanager
def run_fixture_server() -> Iterator[str]:
    import urllib.error
    import urllib.request

    port = free_port()
    process = subprocess.Popen([sys.executable, str(FIXTURE), str(port)])
    url = f"http://127.0.0.1:{port}/mcp"

    def is_ready() -> bool:
        try:
            urllib.request.urlopen(url, timeout=1)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    try:
        wait_until(is_ready)
        yield url
    finally:
        process.kill()
        process.wait()


@pytest.mark.clients
@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(("revision", "protocol"), [("2025-11-25", "legacy"), ("2026-07-28", "auto")])
def test_gateway_passes_every_core_scenario_of_the_mcp_conformance_suite(
    tmp_path: Path, revision: str, protocol: str
) -> None:
    runner = conformance_command()
    with run_fixture_server() as behind:
        servers = {"fixture": {"url": behind, "prefix": "", "protocol": protocol}}
        settings = {"tools.tool_search.enabled": "off"}
        with serve_gateway(tmp_path / "home", servers, **settings) as served:
            wait_until(lambda: served.runtime.mcp.listing("fixture") is not None)
            words = [
                *runner,
                "server",
                "--url",
                served.url,
                "--requirements",
                revision,
                "-o",
                str(tmp_path / "out"),
            ]
            subprocess.run(words, capture_output=True, timeout=300, check=False)
    found = sorted(tmp_path.glob("out/**/checks.json"))
    assert len(found) >= 30
    failures = [
        (file.parent.name, check["id"], check.get("errorMessage"))
        for file in found
        if not file.parent.name.startswith((EXTENSIONS, "server-server-sse-polling", "server-json-schema"))
        for check in json.loads(file.read_text())
        if check["status"] == "FAILURE"
    ]
    assert failures == []
