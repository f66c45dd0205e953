"""Measure how long a client waits while another client or a server sends expensive input.

    python benchmarks/hostile_load.py [--only PART] [--rounds 3] [--scale 1] [--json FILE]

A real `toolfold serve` on loopback has three servers behind it: a harmless one, and one over stdio and one
over HTTP that answer in expensive ways. One client calls the harmless server every 20 ms while another
process runs one attack. Reported for each attack, from the round with the shortest worst wait and as the
median of all rounds: the first client's waits, how long the attack took, how it ended, the gateway's CPU
time, its peak memory and the files it wrote. Every attack sends less than 16 MB and ends after 60 seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measuring.processes import cpu_of
from measuring.scores import spread
from tests.mcp.load_server import BODIES, LINES, RESULTS, chunk, repeat_in_pieces

LOAD = str(Path(__file__).resolve().parent.parent / "tests" / "mcp" / "load_server.py")
ECHO = str(Path(__file__).parent / "measuring" / "gateway_echo.py")
TOOLFOLD = str(Path(sys.executable).with_name("toolfold"))
EVERY_S = 0.02
ATTACK_TIMEOUT_S = 60.0
SETTLE_S = 0.3
MAX_WAIT_MS = 250.0
_PARAMS = b'{"name":"echo_echo","arguments":{"text":"a","x":%s}}'
_CALL = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":' + _PARAMS + b"}"

Attack = Callable[[str, float], str]


def connect(url: str) -> socket.socket:
    address = urlsplit(url)
    made = socket.create_connection((address.hostname, address.port), timeout=ATTACK_TIMEOUT_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def head(*lines: str, host: str = "127.0.0.1") -> bytes:
    fields = [f"Host: {host}", "Accept: application/json, text/event-stream", *lines]
    return ("POST /mcp HTTP/1.1\r\n" + "\r\n".join(fields) + "\r\n\r\n").encode()


_CHUNKED = ("Content-Type: application/json", "Transfer-Encoding: chunked")


def exchange(url: str, parts: Iterator[bytes]) -> str:
    """Send the parts of a request; return the status line of the response, or how the connection ended."""
    with connect(url) as made:
        try:
            for part in parts:
                made.sendall(part)
        except OSError:
            pass  # it may have answered before
        try:
            return made.recv(4_096).decode("latin-1").partition("\r\n")[0] or "closed"
        except OSError as error:
            return type(error).__name__


def tiny_chunks(*lines: str, host: str = "127.0.0.1") -> Attack:
    def run(url: str, scale: float) -> str:
        def parts() -> Iterator[bytes]:
            yield head(*_CHUNKED, *lines, host=host)
            yield from repeat_in_pieces(chunk(b" "), 2_000_000 * scale)
            yield b"0\r\n\r\n"

        return exchange(url, parts())

    return run


def post(body: Callable[[float], bytes], *lines: str) -> Attack:
    def run(url: str, scale: float) -> str:
        made = body(scale)
        start = head("Content-Type: application/json", f"Content-Length: {len(made)}", *lines)
        return exchange(url, iter([start, made]))

    return run


def legacy_call(value: Callable[[float], bytes]) -> Attack:
    """Return an attack that calls a tool in a session, with an expensive argument."""

    def run(url: str, scale: float) -> str:
        session = open_session(url)
        return post(lambda n: _CALL % value(n), f"Mcp-Session-Id: {session}")(url, scale)

    return run


def open_session(url: str) -> str:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    opened = send_message(url, message)
    session = opened.getheader("mcp-session-id") or ""
    opened.read()
    send_message(url, {"jsonrpc": "2.0", "method": "notifications/initialized"}, session).read()
    return session


def send_message(url: str, message: Mapping[str, Any], session: str = "") -> http.client.HTTPResponse:
    address = urlsplit(url)
    made = http.client.HTTPConnection(address.hostname or "", address.port, timeout=ATTACK_TIMEOUT_S)
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    headers |= {"Mcp-Session-Id": session} if session else {}
    made.request("POST", "/mcp", json.dumps(message), headers)
    return made.getresponse()


def many_headers(url: str, scale: float) -> str:
    fields = b"a: b\r\n" * int(2_000_000 * scale)
    return exchange(url, iter([b"POST /mcp HTTP/1.1\r\n", fields, b"\r\n"]))


def many_trailers(url: str, scale: float) -> str:
    trailers = b"a: b\r\n" * int(2_000_000 * scale)
    return exchange(url, iter([head(*_CHUNKED) + chunk(b"{}") + b"0\r\n", trailers, b"\r\n"]))


def slow_bodies(url: str, scale: float) -> str:
    """Send many request bodies concurrently, one byte at a time."""
    opened = [connect(url) for _ in range(int(200 * scale))]
    for each in opened:
        each.sendall(head("Content-Type: application/json", "Content-Length: 9000000"))
    for _ in range(20):
        for each in opened:
            each.sendall(b" ")
        time.sleep(0.1)
    for each in opened:
        each.close()
    return "held for 2 s"


def load(server: str, kind: str) -> Attack:
    """Return an attack that calls the expensive tool of a server."""

    def run(url: str, scale: float) -> str:
        params = {"name": f"{server}_load", "arguments": {"kind": kind, "scale": scale}}
        message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
        answer = send_message(url, message, open_session(url)).read().decode("utf-8", "replace")
        said = next((line[6:] for line in answer.splitlines() if '"id":2' in line), answer)
        return f"{len(said):,} characters: {said[33:150]}"

    return run


def no_attack(_url: str, _scale: float) -> str:
    time.sleep(2)
    return "nothing was sent"


ATTACKS: Mapping[str, Attack] = {
    "none, for comparison": no_attack,
    "client: 2 million chunks, wrong token": tiny_chunks("Authorization: Bearer wrong"),
    "client: 2 million chunks, wrong host": tiny_chunks(host="example.org"),
    "client: 2 million chunks": tiny_chunks(),
    "client: 12 MB of headers": many_headers,
    "client: 12 MB of trailers": many_trailers,
    "client: 200 slow bodies": slow_bodies,
    "client: call with 3 million empty lists": legacy_call(
        lambda n: b"[" + b"[]," * int(3_000_000 * n) + b"1]"
    ),
    "client: call with 2 million strings": legacy_call(lambda n: b"[" + b'"",' * int(2_000_000 * n) + b"1]"),
    "client: call with 30,000 objects": legacy_call(lambda n: b"[" + b'{"a":1},' * int(30_000 * n) + b"1]"),
    "client: call with 90,000 numbers": legacy_call(lambda n: b"[" + b"1234," * int(90_000 * n) + b"1]"),
    "client: call with 9 MB of text": legacy_call(lambda n: b'"' + b"a," * int(4_500_000 * n) + b'"'),
    "client: call 4 million levels deep": legacy_call(
        lambda n: b"[" * int(4_000_000 * n) + b"]" * int(4_000_000 * n)
    ),
    **{f"stdio server: {kind}": load("pipe", kind) for kind in (*RESULTS, *LINES)},
    **{
        f"HTTP server: {kind}": load("web", kind)
        for kind in (*BODIES, "headers", "lists", "images", "newlines")
    },
}


@dataclass(slots=True)
class Figures:
    """Measurements during one attack."""

    attack: str
    ended: str
    worst_ms: list[float]
    p50_ms: list[float]
    p99_ms: list[float]
    seconds: list[float]
    cpu_seconds: list[float]
    peak_mb: float
    files: int

    def row(self) -> list[str]:
        best = self.worst_ms.index(min(self.worst_ms))
        return [
            self.attack,
            f"{self.worst_ms[best]:.0f}",
            f"{statistics.median(self.worst_ms):.0f}",
            f"{self.p50_ms[best]:.0f} / {self.p99_ms[best]:.0f}" if best < len(self.p50_ms) else "",
            f"{statistics.median(self.seconds or [ATTACK_TIMEOUT_S]):.1f}",
            f"{statistics.median(self.cpu_seconds or [0.0]):.1f}",
            f"{self.peak_mb:.0f}",
            str(self.files),
            self.ended.replace("|", "/"),
        ]


@dataclass(slots=True)
class Gateway:
    url: str
    pid: int
    home: Path

    @property
    def cpu_seconds(self) -> float:
        return cpu_of(self.pid)

    def reset_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    @property
    def peak_mb(self) -> float:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1_024

    @property
    def files(self) -> int:
        return sum(1 for each in self.home.rglob("*") if each.is_file())


@contextmanager
def gateway() -> Iterator[Gateway]:
    from tests.mcp.servers import run_http_server

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tf-")))
        log = folder / "log"
        log.mkdir()

        def start(argv: list[str], env: Mapping[str, str]) -> Any:
            words = ["sh", "-c", 'exec "$@" --port "$PORT"', "sh", *argv]
            file = log / f"{Path(argv[-1]).stem}.log"
            return stack.enter_context(
                run_http_server(words, lambda port: {"PORT": str(port), **env}, "/mcp", file)
            )

        web = start([sys.executable, LOAD], {})
        home = folder / "home"
        home.mkdir()
        servers = {
            "echo": {"command": sys.executable, "args": [ECHO]},
            "pipe": {"command": sys.executable, "args": [LOAD], "call_timeout_seconds": 30},
            "web": {"url": web.url, "call_timeout_seconds": 30},
        }
        settings = {"mcp": {"servers": servers, "wait_seconds": 30}}
        (home / "settings.yaml").write_text(json.dumps(settings), encoding="utf-8")
        env = {"TOOLFOLD_HOME": str(home), "TOOLFOLD_CONFIG": str(home / "settings.yaml")}
        served = start([TOOLFOLD, "serve"], env)
        yield Gateway(served.url, served.pid, home)


def attack_in_process(name: str, url: str, scale: float, pipe: Any) -> None:
    signal.alarm(int(ATTACK_TIMEOUT_S) + 5)
    try:
        pipe.send(ATTACKS[name](url, scale))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}"[:100])


async def waits_during(gate: Gateway, name: str, scale: float) -> tuple[list[float], float, str]:
    """Return how long a harmless client waits during an attack, and the attack's duration and result."""
    from mcp import Client

    receiving, sending = multiprocessing.Pipe(duplex=False)
    attack = multiprocessing.get_context("spawn").Process(
        target=attack_in_process, args=(name, gate.url, scale, sending)
    )
    waits: list[float] = []
    async with Client(gate.url, mode="legacy") as client:

        async def call() -> None:
            began = time.perf_counter()
            await client.call_tool("echo_echo", {"text": "hello"})
            waits.append(time.perf_counter() - began)

        for _ in range(20):
            await call()
        waits.clear()
        began = time.perf_counter()
        attack.start()
        while attack.is_alive():
            await call()
            await asyncio.sleep(EVERY_S)
        took, end = time.perf_counter() - began, time.perf_counter() + SETTLE_S
        while time.perf_counter() < end:
            await call()
    return waits, took, receiving.recv() if receiving.poll() else f"exit code {attack.exitcode}"


async def measure(gate: Gateway, found: Figures, scale: float) -> None:
    gate.reset_peak()
    files, cpu = gate.files, gate.cpu_seconds
    waits, took, found.ended = await waits_during(gate, found.attack, scale)
    told = spread([each * 1e3 for each in waits])
    found.worst_ms.append(max(waits) * 1e3)
    found.p50_ms.append(told["p50"])
    found.p99_ms.append(told["p99"])
    found.seconds.append(took)
    found.cpu_seconds.append(gate.cpu_seconds - cpu)
    found.peak_mb = max(found.peak_mb, gate.peak_mb)
    found.files = max(found.files, gate.files - files)


def measure_all(names: list[str], rounds: int, scale: float) -> Iterator[Figures]:
    """Run one attack after the other; restart the gateway after it has given up a server."""
    with ExitStack() as stack:
        gate = stack.enter_context(gateway())
        for name in names:
            found = Figures(name, "", [], [], [], [], [], 0.0, 0)
            for _ in range(rounds):
                try:
                    asyncio.run(measure(gate, found, scale))
                except Exception as error:
                    found.ended = f"the harmless client failed: {type(error).__name__}: {error}"[:100]
                    found.worst_ms.append(ATTACK_TIMEOUT_S * 1e3)
                if found.ended.startswith("the harmless") or name.rpartition(": ")[2] in LINES:
                    stack.close()
                    gate = stack.enter_context(gateway())
            yield found


HEADS = ["attack", "worst wait ms, best round", "median round", "p50 / p99 ms", "took s", "CPU s", "peak MB"]
HEADS += ["files", "ended with"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", default="", help="only attacks whose names contain this")
    add("--rounds", type=int, default=3, help="gateways that each attack is run against")
    add("--scale", type=float, default=1.0, help="multiplies the items of every attack")
    add("--json", type=Path, help="write the whole result to this file")
    chosen = parser.parse_args()
    everything = []
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores\n")
    for row in (HEADS, ["---"] * len(HEADS)):
        print(f"| {' | '.join(row)} |")
    names = [name for name in ATTACKS if chosen.only in name]
    for found in measure_all(names, chosen.rounds, min(chosen.scale, 1.0)):
        everything.append(found)
        print(f"| {' | '.join(found.row())} |", flush=True)
    slow = [each.attack for each in everything if min(each.worst_ms) >= MAX_WAIT_MS]
    print(
        f"\nload {os.getloadavg()[0]:.1f}; {len(slow)} above {MAX_WAIT_MS:g} ms: {', '.join(slow) or 'none'}"
    )
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(each) for each in everything]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
