"""What a command costs in each place, next to the bare client of that place in the same run.

    python benchmarks/environments.py [--places local,docker] [--runs 30] [--json]

Starts what it needs (a dockerd, podman, an sshd, apptainer) as the tests do, below one temporary folder, and
takes it away again; a place that cannot be had is named with the reason. Three things are timed by the clock:

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.environments import elsewhere
from tests.environments.places import KINDS, Kind
from tests.environments.servers import SERVERS

from toolfold.environments import Bounds, Environment

PLACES = ("local", "sandbox", "docker", "podman", "ssh", "apptainer")
MEGABYTES = 100
AT_ONCE = 20
TRIES = 3
COLUMNS = ("ours", "bare", "over", "least", "ours", "bare", "ours", "bare")
HEADING = f"""\
{"":<10} {"empty command, ms":^31} {f"{MEGABYTES} MB, MB/s":^15} {f"{AT_ONCE} at once, ms":^15}
{"place":<10} {" ".join(f"{each:>7}" for each in COLUMNS)}"""
MUCH = f"head -c {MEGABYTES}000000 /dev/zero"


@dataclass(frozen=True)
class Bare:
    """How somebody without us runs a command in the same place."""

    words: Sequence[str]
    env: Mapping[str, str]

    def start(self, command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.words, command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, **self.env},
        )

    def run(self, command: str) -> None:
        with self.start(command) as process:
            assert process.stdout is not None
            while process.stdout.read(1 << 18):
                pass
        if process.returncode:
            raise SystemExit(f"{self.words[0]}: exit code {process.returncode}")

    def run_at_once(self, command: str, count: int) -> None:
        for process in [self.start(command) for _ in range(count)]:
            process.communicate()


@dataclass(frozen=True)
class Row:
    """What was measured in one place: seconds, ours and the bare client's."""

    place: str
    empty: float
    bare_empty: float
    over: float
    least_over: float
    much: float
    bare_much: float
    at_once: float
    bare_at_once: float


@contextmanager
def bare(kind: Kind, options: Mapping[str, str], folder: Path) -> Iterator[Bare]:
    """The bare client of a place that is open already."""
    if kind.name == "local":
        yield Bare(("bash", "-c"), {})
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
        yield Bare(("bwrap", *outside, "bash", "-c"), {})
    elif kind.name == "ssh":
        with master(options, folder) as client:
            yield client
    elif kind.name == "apptainer":
        name = elsewhere.wanted_instance(options).name
        yield Bare((options["program"], "--silent", "exec", f"instance://{name}", "bash", "-c"), options)
    else:
        yield Bare((options["program"], "exec", "-i", elsewhere.name_of(options), "bash", "-c"), options)


@contextmanager
def master(options: Mapping[str, str], folder: Path) -> Iterator[Bare]:
    """ssh over a connection that is open already, and over one of its own where that is full."""
    to = [
        *("ssh", "-o", f"ControlPath={folder}/socket", "-o", f"UserKnownHostsFile={options['known_hosts']}"),
        *("-i", options["identity"], "-p", options["port"], options["host"]),
    ]
    subprocess.run([*to[:1], "-o", "ControlMaster=yes", "-fN", *to[1:]], check=True)
    yield Bare(to, {})
    subprocess.run([*to[:1], "-O", "exit", *to[1:]], check=True, capture_output=True)


async def measure(kind: Kind, options: Mapping[str, str], folder: Path, runs: int) -> Row:
    async with Environment(
        kind.make(options), outputs=folder / "outputs", bounds=Bounds(stored=1 << 30, seconds=600)
    ) as environment:
        await environment.run("true")
        with bare(kind, options, folder) as client:
            ours, theirs = await in_turn(environment, client, runs)
            return Row(
                kind.name,
                statistics.median(ours),
                statistics.median(theirs),
                statistics.median(one - other for one, other in zip(ours, theirs, strict=True)),
                min(ours) - min(theirs),
                min([await timed(environment.run(MUCH)) for _ in range(TRIES)]),
                min(clocked(lambda: client.run(MUCH)) for _ in range(TRIES)),
                min([await timed(at_once(environment)) for _ in range(TRIES)]),
                min(clocked(lambda: client.run_at_once("true", AT_ONCE)) for _ in range(TRIES)),
            )


async def at_once(environment: Environment) -> None:
    await asyncio.gather(*(environment.run("true") for _ in range(AT_ONCE)))


async def in_turn(environment: Environment, client: Bare, runs: int) -> tuple[list[float], list[float]]:
    """Empty commands, ours and the bare client's, so that both meet the same load."""
    client.run("true")
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range((runs + 1) // 2):  # ours first and last: what one leaves to be cleaned up slows the next
        ours.append(await timed(environment.run("true")))
        theirs.append(clocked(lambda: client.run("true")))
        theirs.append(clocked(lambda: client.run("true")))
        ours.append(await timed(environment.run("true")))
    return ours, theirs


async def timed(work: object) -> float:
    began = time.perf_counter()
    await work  # type: ignore[misc]
    return time.perf_counter() - began


def clocked(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
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
    parser.add_argument("--places", default=",".join(PLACES), help=f"some of {', '.join(PLACES)}")
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


if __name__ == "__main__":
    main()
