"""Repeated starts of the gateway with servers that are dead, slow or missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gateway.gateway_process import environment, write_settings
from tests.mcp.faults import server_entry
from tests.thorough import thorough_count

STARTER = Path(__file__).with_name("start_many.py")
STARTS = thorough_count(50, 2)
RACE = """
import threading
from toolfold.mcp.sdk_compat import load_sdk

failures = []
ready = threading.Barrier(4)

def load():
    ready.wait()
    try:
        load_sdk()
        import mcp.client.auth, mcp.server.streamable_http_manager
    except BaseException as error:
        failures.append(repr(error))

threads = [threading.Thread(target=load) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
"""


@pytest.mark.thorough
@pytest.mark.timeout(1_200)
def test_gateway_answers_after_each_of_many_starts_even_if_some_servers_fail_or_hang(tmp_path: Path) -> None:
    unset = {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer ${UNSET_VARIABLE}"}}
    good = {f"good_{number}": server_entry("", "--tools", "2") for number in range(3)}
    bad = {
        "unset": unset,
        "refused": {"url": "http://127.0.0.1:9/mcp"},
        "missing": {"command": "a-program-that-nobody-has"},
        "dead": {"command": "/bin/sh", "args": ["-c", "exit 3"]},
        "slow": {"command": "/bin/sleep", "args": ["600"]},
    }
    settings = {"mcp": {"servers": {**good, **bad}, "wait_seconds": 0}}
    write_settings(tmp_path, settings)
    run = {"env": environment(tmp_path), "cwd": tmp_path, "capture_output": True, "text": True}
    subprocess.run([sys.executable, "-m", "toolfold", "mcp", "test", *good], check=True, **run)  # type: ignore[call-overload]
    words = [sys.executable, str(STARTER), str(STARTS), "5"]
    done = subprocess.run(words, **run)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    assert [each for each in json.loads(done.stdout) if each] == []


@pytest.mark.thorough
def test_mcp_sdk_can_be_imported_by_several_threads_concurrently_without_an_error() -> None:
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
