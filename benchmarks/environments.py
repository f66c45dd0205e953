"""Measure the overhead of a command in each environment, compared with the environment's own client.

    python benchmarks/environments.py [--places local,docker] [--runs 30] [--json]

Starts what it needs (a dockerd, podman, an sshd, apptainer) as the tests do, below one temporary folder, and
takes it away again; a place that cannot be had is named with the reason. Modal and Daytona are servers of the
tests on this machine, and their bare client is their own SDK: what is seen is what we add to it, not what a
network and a cloud cost. Three things are timed by the clock:

* an empty command, ours and the bare client's in turn: medians, the median of the differences, and the
  difference of the fastest, which a busy machine spoils least;
* 100 MB of output, which ours keeps on disk and the bare client's reader throws away, the best of three;
* 20 empty commands at once, the best of three.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.environments import cloud_backends, server_backends
from tests.environments.backend_kinds import KINDS, Kind
from tests.environments.servers import SERVERS

from toolfold.tools.environments import Environment, EnvironmentLimits

if TYPE_CHECKING:
    import daytona
    import modal

PLACES = ("local", "sandbox", "docker", "podman", "ssh", "apptainer", "modal", "daytona")
MEGABYTES = 100
AT_ONCE = 20
TRIES = 3
COLUMNS = ("ours", "bare", "over", "least", "ours", "bare", "ours", "bare")
HEADING = f"""\
{"":<10} {"empty command, ms":^31} {f"{MEGABYTES} MB, MB/s":^15} {f"{AT_ONCE} at once, ms":^15}
{"place":<10} {" ".join(f"{each:>7}" for each in COLUMNS)}"""
MUCH = f"head -c {MEGABYTES}000000 /dev/zero"
MUCH_TEXT = f"{MUCH} | tr '\\0' x"  # Daytona's SDK has no other output


class Bare(Protocol):
    """Client that runs a command in the same environment without Toolfold."""

    async def run(self, command: str) -> None: ...

    async def run_at_once(self, command: str, count: int) -> None: ...


@dataclass(frozen=True)
class Program:
    """Client that is a command-line program."""

    words: Sequence[str]
    env: Mapping[str, str]

    def start(self, command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.words, command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, **self.env},
        )

    async def run(self, command: str) -> None:
        with self.start(command) as process:
            assert process.stdout is not None
            while process.stdout.read(1 << 18):
                pass
        if process.returncode:
            raise SystemExit(f"{self.words[0]}: exit code {process.returncode}")

    async def run_at_once(self, command: str, count: int) -> None:
        for process in [self.start(command) for _ in range(count)]:
            process.communicate()


@dataclass(frozen=True)
class ModalSdk:
    sandbox: modal.Sandbox

    async def run(self, command: str) -> None:
        process = await self.sandbox.exec.aio("bash", "-c", command, text=False)
        async for _ in process.stdout:
            pass
        await process.wait.aio()

    async def run_at_once(self, command: str, count: int) -> None:
        await asyncio.gather(*(self.run(command) for _ in range(count)))


@dataclass(frozen=True)
class DaytonaSdk:
    sandbox: daytona.AsyncSandbox

    async def run(self, command: str) -> None:
        await self.sandbox.process.exec(command)

    async def run_at_once(self, command: str, count: int) -> None:
        await asyncio.gather(*(self.run(command) for _ in range(count)))


@dataclass(frozen=True)
class Row:
    """Times in seconds of Toolfold and of the bare client in one environment."""

    place: str
    empty: float
    bare_empty: float
    over: float
    least_over: float
    much: float
    bare_much: float
    at_once: float
    bare_at_once: float


@asynccontextmanager
async def bare(kind: Kind, options: Mapping[str, str], folder: Path) -> AsyncIterator[Bare]:
    """Yield a client that runs commands in an open environment without Toolfold."""
    if kind.name == "modal":
        import modal

        name = cloud_backends.sandbox_name("modal", options)
        yield ModalSdk(await modal.Sandbox.from_name.aio("toolfold", name))
    elif kind.name == "daytona":
        import daytona

        config = daytona.DaytonaConfig(
            api_key=cloud_backends.TOKENS["daytona"]["DAYTONA_API_KEY"], api_url=options["url"]
        )
        async with daytona.AsyncDaytona(config) as client:
            yield DaytonaSdk(await client.get(cloud_backends.sandbox_name("daytona", options)))
    else:
        with program(kind, options, folder) as found:
            yield found


@contextmanager
def program(kind: Kind, options: Mapping[str, str], folder: Path) -> Iterator[Program]:
    if kind.name == "local":
        yield Program(("bash", "-c"), {})
    elif kind.name == "sandbox":
        outside = (
            "--unshare-pid",
            "--unshare-net",
            "--ro-bind",
            "/",
            "/",
            "--dev",
            "/dev",
            "--proc",
            "/proc",
        )
        yield Program(("bwrap", *outside, "bash", "-c"), {})
    elif kind.name == "ssh":
        with master(options, folder) as client:
            yield client
    elif kind.name == "apptainer":
        name = server_backends.instance_spec(options).name
        yield Program((options["program"], "--silent", "exec", f"instance://{name}", "bash", "-c"), options)
    else:
        yield Program(
            (options["program"], "exec", "-i", server_backends.container_name(options), "bash", "-c"), options
        )


@contextmanager
def master(options: Mapping[str, str], folder: Path) -> Iterator[Program]:
    """Yield an ssh client that uses a shared connection, or a new one if the shared one is full."""
    to = [
        *("ssh", "-o", f"ControlPath={folder}/socket", "-o", f"UserKnownHostsFile={options['known_hosts']}"),
        *("-i", options["identity"], "-p", options["port"], options["host"]),
    ]
    subprocess.run([*to[:1], "-o", "ControlMaster=yes", "-fN", *to[1:]], check=True)
    yield Program(to, {})
    subprocess.run([*to[:1], "-O", "exit", *to[1:]], check=True, capture_output=True)


async def measure(kind: Kind, options: Mapping[str, str], folder: Path, runs: int) -> Row:
    async with Environment(
        kind.make(options),
        output_dir=folder / "outputs",
        limits=EnvironmentLimits(max_stored_bytes=1 << 30, timeout_s=600),
    ) as environment:
        await environment.run("true")
        much = MUCH_TEXT if kind.name in cloud_backends.MAKERS else MUCH
        async with bare(kind, options, folder) as client:
            ours, theirs = await in_turn(environment, client, runs)
            return Row(
                kind.name,
                statistics.median(ours),
                statistics.median(theirs),
                statistics.median(one - other for one, other in zip(ours, theirs, strict=True)),
                min(ours) - min(theirs),
                min([await timed(environment.run(much)) for _ in range(TRIES)]),
                min([await timed(client.run(much)) for _ in range(TRIES)]),
                min([await timed(at_once(environment)) for _ in range(TRIES)]),
                min([await timed(client.run_at_once("true", AT_ONCE)) for _ in range(TRIES)]),
            )


async def at_once(environment: Environment) -> None:
    await asyncio.gather(*(environment.run("true") for _ in range(AT_ONCE)))


async def in_turn(environment: Environment, client: Bare, runs: int) -> tuple[list[float], list[float]]:
    """Time empty commands with Toolfold and the bare client alternately, so that both see the same load."""
    await client.run("true")
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range((runs + 1) // 2):  # ours first and last: what one leaves to be cleaned up slows the next
        ours.append(await timed(environment.run("true")))
        theirs.append(await timed(client.run("true")))
        theirs.append(await timed(client.run("true")))
        ours.append(await timed(environment.run("true")))
    return ours, theirs


async def timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


def rows(places: Sequence[str], runs: int) -> Iterator[Row]:
    kinds = {kind.name: kind for kind in KINDS}
    for place in places:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tf-")))
            try:
                options = stack.enter_context(kinds[place].prepared(folder))
            except pytest.skip.Exception as reason:
                print(f"{place}: left out, {reason}", file=sys.stderr)
                continue
            yield asyncio.run(measure(kinds[place], options, folder, runs))


def table(row: Row) -> str:
    milliseconds = (row.empty, row.bare_empty, row.over, row.least_over, row.at_once, row.bare_at_once)
    empty, bare_empty, over, least_over, many, bare_many = (seconds * 1e3 for seconds in milliseconds)
    rate, bare_rate = MEGABYTES / row.much, MEGABYTES / row.bare_much
    return (
        f"{row.place:<10} {empty:>7.1f} {bare_empty:>7.1f} {over:>+7.1f} {least_over:>+7.1f}"
        f" {rate:>7.0f} {bare_rate:>7.0f} {many:>7.0f} {bare_many:>7.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--places", default=",".join(PLACES), help=f"comma-separated environments: {', '.join(PLACES)}"
    )
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if unknown := set(asked.places.split(",")) - set(PLACES):
        parser.error(f"there is no place {', '.join(sorted(unknown))}")
    if not asked.json:
        print(HEADING)
    try:
        for row in rows(asked.places.split(","), asked.runs):
            print(json.dumps(asdict(row)) if asked.json else table(row), flush=True)
    finally:
        SERVERS.close()
        cloud_backends.CLOUD_SERVERS.close()


if __name__ == "__main__":
    main()
