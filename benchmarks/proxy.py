"""Measure what the model proxy adds to a request, compared with the provider itself and with LiteLLM's proxy.

    python benchmarks/proxy.py [--calls 200] [--tools 226] [--litellm PROGRAM] [--json FILE]

The provider on this machine answers at once. One client sends chat completions with the same tools in turn to

* `direct`: the provider;
* `forwarding`: `toolfold serve` with `proxy.folding: off`;
* `folding`: `toolfold serve` with `proxy.folding: on`, which sends the bridge tools instead;
* `litellm`: LiteLLM's proxy, if its program is given with `--litellm`.

Times are wall-clock times to the first byte of the body and to its end; `adds` is the median of the
differences to `direct`. `retrieval` is the median time that the proxy reports, in the header
`x-toolfold-folding`, for encoding the message and searching for tools; `beyond` is the median of the
differences without this time. Throughput is that of 16 clients at once. `CPU` is what the process in front
uses for a request, which a busy machine changes least. Memory is its resident memory, idle and with 200 open
streams.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent))

from measuring.processes import cpu_of, free_port
from measuring.scores import median_difference, spread

UPSTREAM = Path(__file__).parent / "measuring" / "model_upstream.py"
TOOLFOLD = str(Path(sys.executable).with_name("toolfold"))
KEY = f"sk-{secrets.token_hex(32)}"
CLIENTS = 16
BURST = 10
STREAMS = 200
WARM_CALLS = 5
START_TIMEOUT_S = 600.0
_RETRIEVAL = re.compile(rb"retrieval_ms=([0-9.]+)")


@dataclass(slots=True)
class Front:
    """One compared endpoint and its measurements."""

    name: str
    url: str
    pid: int
    first: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    retrieval: list[float] = field(default_factory=list)
    """Seconds that the proxy reports for encoding and searching."""
    rate: float = 0.0
    cpu_ms: float = 0.0
    idle_mb: float = 0.0
    streaming_mb: float = 0.0

    def row(self, direct: Front) -> list[str]:
        added = [
            median_difference(mine, theirs) * 1e3
            for mine, theirs in ((self.first, direct.first), (self.total, direct.total))
        ]
        beyond = [
            median_difference([time - part for time, part in zip(mine, self.retrieval, strict=True)], theirs)
            for mine, theirs in ((self.first, direct.first), (self.total, direct.total))
        ]
        retrieval = spread([each * 1e3 for each in self.retrieval])["p50"]
        first, total = (spread([each * 1e3 for each in times]) for times in (self.first, self.total))
        memory = [f"{self.cpu_ms:.2f}", f"{self.idle_mb:.0f}", f"{self.streaming_mb:.0f}"]
        return [
            self.name,
            *(f"{first[key]:.2f}" for key in ("p50", "p99")),
            *(f"{total[key]:.2f}" for key in ("p50", "p99")),
            *(f"{each:+.2f}" for each in added),
            f"{retrieval:.2f}",
            *(f"{each * 1e3:+.2f}" for each in beyond),
            f"{self.rate:.0f}",
            *(memory if self.pid else [""] * len(memory)),
        ]


class Connection:
    """A client's connection, which is kept open between requests."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, body: bytes) -> tuple[float, float, float]:
        """Send a request; return the seconds to the first byte of the response's body and to its end.

        The third number is the seconds of the proxy's retrieval, as it reports them.
        """
        reader, writer = await self._open()
        started = time.perf_counter()
        writer.write(self._render_request(body))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200"), head
        await _read_piece(reader, head)
        first = time.perf_counter() - started
        if b"transfer-encoding: chunked" in head:
            while await _read_piece(reader, head):
                pass
        total, reported = time.perf_counter() - started, _RETRIEVAL.search(head)
        return first, total, float(reported[1]) / 1e3 if reported else 0.0

    async def begin_stream(self, body: bytes) -> None:
        """Send a request and read the first piece of its stream."""
        reader, writer = await self._open()
        writer.write(self._render_request(body))
        await _read_piece(reader, (await reader.readuntil(b"\r\n\r\n")).lower())

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()

    def _render_request(self, body: bytes) -> bytes:
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: %s\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer %s\r\ncontent-length: %d\r\n\r\n%s"
            % (self._address.netloc.encode(), KEY.encode(), len(body), body)
        )

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None or self._streams[0].at_eof():  # servers close it after some seconds
            self._streams = await asyncio.open_connection(
                self._address.hostname, self._address.port, limit=1 << 24
            )
        return self._streams


async def _read_piece(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """Return the next chunk of a response's body, or the whole body if it has a length."""
    if b"transfer-encoding: chunked" not in head:
        length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
        return await reader.readexactly(int(length))
    size = int((await reader.readline()).strip(), 16)
    return (await reader.readexactly(size + 2))[:-2]


def make_tools(count: int) -> list[dict[str, Any]]:
    """Return `count` tools from the sample catalog, all with different names."""
    text = files("toolfold").joinpath("tools/sample/catalog.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    tools = []
    for number in range(count):
        function = rows[number % len(rows)].get("function") or rows[number % len(rows)]
        kept = {key: function[key] for key in ("description", "parameters") if key in function}
        tools.append({"type": "function", "function": {"name": f"{function['name'][:50]}_{number}", **kept}})
    return tools


def make_body(tools: list[dict[str, Any]], text: str, *, stream: bool) -> bytes:
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": "gpt-4.1", "messages": messages, "tools": tools, "stream": stream}).encode()


@contextmanager
def start_fronts(folder: Path, litellm: str) -> Iterator[list[Front]]:
    """Start the model provider and the proxies in front of it."""
    with ExitStack() as stack:
        port = free_port()
        stack.enter_context(running([sys.executable, str(UPSTREAM), str(port)], port, folder))
        fronts = [Front("direct", f"http://127.0.0.1:{port}", 0)]
        for name, folding in (("forwarding", "off"), ("folding", "on")):
            own = free_port()
            home = folder / name
            home.mkdir()
            provider = {"dialect": "openai", "base_url": f"http://127.0.0.1:{port}/v1"}
            settings = {"providers": {"openai": provider}, "proxy": {"folding": folding}}
            (home / "settings.yaml").write_text(json.dumps(settings))
            env = {"TOOLFOLD_HOME": str(home), "TOOLFOLD_CONFIG": str(home / "settings.yaml")}
            process = stack.enter_context(running([TOOLFOLD, "serve", "--port", str(own)], own, folder, env))
            fronts.append(Front(name, f"http://127.0.0.1:{own}", process.pid))
        if litellm:
            own = free_port()
            process = stack.enter_context(start_litellm(litellm, own, port, folder))
            fronts.append(Front("litellm", f"http://127.0.0.1:{own}", process.pid))
        yield fronts


@contextmanager
def start_litellm(program: str, own: int, port: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    target = {"model": "openai/gpt-4.1", "api_base": f"http://127.0.0.1:{port}/v1", "api_key": "sk-test"}
    settings = {"model_list": [{"model_name": "gpt-4.1", "litellm_params": target}]}
    (folder / "litellm.yaml").write_text(json.dumps(settings))
    command = [program, "--config", str(folder / "litellm.yaml"), "--host", "127.0.0.1", "--port", str(own)]
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": KEY}
    with running(command, own, folder, env) as process:
        yield process


@contextmanager
def running(
    command: Sequence[str], port: int, folder: Path, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the end of the `with` block; wait until its port is open."""
    with (
        (folder / f"{port}.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(env or {})}) as process,
    ):
        try:
            end = time.monotonic() + START_TIMEOUT_S
            while not is_open(port):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{command[0]} did not start: {(folder / f'{port}.log').read_text()}")
                time.sleep(0.1)
            yield process
        finally:
            process.terminate()
            process.wait(30)


def is_open(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
            return True
        return False
    return True


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def measure(fronts: list[Front], calls: int, tools: list[dict[str, Any]]) -> None:
    connections = [Connection(front.url) for front in fronts]
    for number in range(WARM_CALLS + calls):
        body = make_body(tools, f"What will the weather be tomorrow? ({number})", stream=True)
        for front, connection in zip(fronts, connections, strict=True):
            first, total, retrieval = await connection.ask(body)
            if number >= WARM_CALLS:
                front.first.append(first)
                front.total.append(total)
                front.retrieval.append(retrieval)
    for connection in connections:
        connection.close()
    for front in fronts:
        before = cpu_of(front.pid)
        front.rate = await measure_rate(front, make_body(tools, "Hello", stream=False))
        front.cpu_ms = (cpu_of(front.pid) - before) / (CLIENTS * (BURST + 1)) * 1e3
        if front.pid:
            front.idle_mb = resident_mb(front.pid)
            front.streaming_mb = await measure_streams(front, make_body(tools, "SLOW", stream=True))


async def measure_rate(front: Front, body: bytes) -> float:
    """Return the requests per second of several clients at once."""
    clients = [Connection(front.url) for _ in range(CLIENTS)]

    async def work(client: Connection) -> None:
        for _ in range(BURST):
            await client.ask(body)

    await asyncio.gather(*(client.ask(body) for client in clients))
    started = time.perf_counter()
    await asyncio.gather(*map(work, clients))
    rate = CLIENTS * BURST / (time.perf_counter() - started)
    for client in clients:
        client.close()
    return rate


async def measure_streams(front: Front, body: bytes) -> float:
    """Return the resident memory while many streams are open, in MB."""
    clients = [Connection(front.url) for _ in range(STREAMS)]
    for start in range(0, STREAMS, 20):
        await asyncio.gather(*(client.begin_stream(body) for client in clients[start : start + 20]))
    memory = resident_mb(front.pid)
    for client in clients:
        client.close()
    return memory


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--tools", type=int, default=226)
    parser.add_argument("--litellm", default="", help="LiteLLM's program, to compare with its proxy")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, start_fronts(Path(folder), options.litellm) as fronts:
        asyncio.run(measure(fronts, options.calls, make_tools(options.tools)))
    header = [
        "",
        "first p50",
        "p99",
        "end p50",
        "p99",
        "adds first",
        "adds end",
        "retrieval",
        "beyond 1st",
        "beyond end",
        "req/s",
        "CPU ms",
        "MB",
        f"MB, {STREAMS}",
    ]
    for row in (header, *(front.row(fronts[0]) for front in fronts)):
        print("  ".join(cell.rjust(11) for cell in row))
    if options.json:
        rows = [dict(zip(header[1:], front.row(fronts[0])[1:], strict=True)) for front in fronts]
        options.json.write_text(
            json.dumps({front.name: row for front, row in zip(fronts, rows, strict=True)}, indent=1)
        )


if __name__ == "__main__":
    main()
