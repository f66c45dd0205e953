"""What holds when things go wrong on the way to a place: the guard is lost, or hears nothing any more."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.environments.places import folders, local, traces
from tests.environments.test_contract import FOREVER, asleep_somewhere, until
from toolfold.environments import Environment
from toolfold.errors import EnvironmentFailed


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    with folders(tmp_path) as options:
        return options


async def gone_except(token: str, pid: int) -> None:
    async def gone() -> bool:
        return all(trace.startswith(f"{pid}:") for trace in traces(token))

    await until(gone)


async def test_a_silent_client_counts_as_gone(options: dict[str, str], token: str) -> None:
    command = f"export MARK={token}; {FOREVER}"
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.environments.places", "leased", json.dumps(options)),
        *("foreground", command),
        env=dict(os.environ),
    )
    try:
        await asleep_somewhere(token)
        client.send_signal(signal.SIGSTOP)
        await gone_except(token, client.pid)
    finally:
        client.kill()
        await client.wait()


async def test_a_killed_guard_is_replaced(options: dict[str, str], token: str) -> None:
    async with Environment(local(options)) as environment:
        await environment.run("cd /usr; export KEPT=1")
        for trace in traces(options["notes"]):
            if "shell/guard" in trace:
                with contextlib.suppress(ProcessLookupError):  # one may end with the other
                    os.kill(int(trace.partition(":")[0]), signal.SIGKILL)
        done = await environment.run(f"pwd; echo $KEPT; export MARK={token}; {FOREVER}", seconds=1)
        assert done.timed_out
        assert done.output == "/usr\n1\n"
        assert traces(token) == []


async def test_a_place_that_cannot_be_used_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("not a folder")
    environment = Environment(local({"home": str(tmp_path), "notes": str(tmp_path / "notes")}))
    with pytest.raises(EnvironmentFailed, match=r"local cannot run commands: .*Try again"):
        await environment.run("true")
    await environment.close()
