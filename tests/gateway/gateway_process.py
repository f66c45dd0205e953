"""Run `toolfold serve` as a separate process, for tests of sockets, limits and startup."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gateway.harness import TIMEOUT_S
from tests.known_vectors import LIGHT_MODEL

_URL = re.compile(r"at http://(?:127\.0\.0\.1|0\.0\.0\.0):(\d+)/mcp")


@dataclass
class GatewayProcess:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a gateway with its own settings."""
    own = {"TOOLFOLD_HOME": str(home), "PATH": os.environ["PATH"], "HOME": str(home), "COLUMNS": "200"}
    return own | LIGHT_MODEL


def write_settings(home: Path, settings: dict[str, Any]) -> None:
    """Write the user's settings file as JSON, which is valid YAML."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.yaml").write_text(json.dumps(settings))


@contextmanager
def gateway_process(
    home: Path,
    *words: str,
    code: Sequence[str] = ("-m", "toolfold"),
    preexec: Callable[[], None] | None = None,
    cwd: Path | None = None,
) -> Iterator[GatewayProcess]:
    """Run `toolfold serve` on a free port until the block ends. `code` are the interpreter's arguments."""
    home.mkdir(parents=True, exist_ok=True)
    log = home / "gateway.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *code, "serve", "--port", "0", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=cwd or home,
            env=environment(home),
            preexec_fn=preexec,
        )
    try:
        yield GatewayProcess(process, _wait_for_port(process, log), log)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


def _wait_for_port(process: subprocess.Popen[bytes], log: Path) -> int:
    end = time.monotonic() + TIMEOUT_S
    while (found := _URL.search(log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    return int(found[1])
