"""aimock: a server from npm that speaks the interfaces of the model providers, with scripted answers.

`scripts/test_servers/small.sh` installs it. Tests are skipped with the reason if it is missing.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from toolfold.core.types import Json

TIMEOUT_S = 60.0
_PROGRAM = Path(sys.prefix, "test_tools/aimock/node_modules/@copilotkit/aimock/dist/cli.js")


@contextlib.contextmanager
def serve_aimock(directory: Path, fixtures: Sequence[Json]) -> Iterator[str]:
    """Serve answers to requests that match; yields the URL. Skips the test if aimock is not installed."""
    node = shutil.which("node")
    if node is None or not _PROGRAM.exists():
        pytest.skip("aimock is not installed: `make test-tools` installs it (needs Node.js and npm)")
    file = directory / "fixtures.json"
    file.write_text(json.dumps({"fixtures": list(fixtures)}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [node, str(_PROGRAM), "-p", str(port), "-f", str(file), "--strict", "--log-level", "warn"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, url)
            yield url
        finally:
            process.terminate()
            process.communicate(timeout=TIMEOUT_S)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(f"{url}/v1/models", timeout=5).close()
            return
        time.sleep(0.05)
    raise AssertionError("aimock did not start")
