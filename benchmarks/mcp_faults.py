"""Measure the result, time and memory of each server fault: the table in benchmarks/results/mcp-faults.md.

    python benchmarks/mcp_faults.py [--only NAME,…] [--bare] [--write FILE]

Every fault runs in its own process. For faults during a call the supervised server is already connected.
The time is measured from the call to its result; if a fault can only be detected by a timeout, the timeout
is shown too. Memory is the growth of the process's peak size. `--bare` runs some of the faults with the
official SDK's client alone, without a timeout of its own, for at most four seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.mcp.faults import FAULTS, SERVER, Fault, free_port, http_settings, run_fault, stdio_settings

from toolfold.config.servers_settings import McpServerSettings

HTTP = SERVER.with_name("fault_http.py")
BARE_SECONDS = 4.0
WAITS = "no response yet"
PARALLEL_FAULTS = 2
SDK_FAULTS = (
    *("stdio-silent-at-start", "stdio-nameless-tool", "stdio-hang", "stdio-crash", "stdio-broken-frame"),
    *("stdio-bad-utf8", "stdio-wrong-id", "stdio-huge", "stdio-flood", "http-cut-in-body", "http-wrong-id"),
    *("http-huge-body", "http-flood", "http-session-forgotten", "sse-post-refused"),
)
MEGABYTE = 1_000_000
TITLES = {"stdio": "Over standard input and output", "http": "Over Streamable HTTP", "sse": "Over SSE"}


@contextlib.contextmanager
def reachable(fault: Fault) -> Iterator[McpServerSettings]:
    """Run a faulty server in its own process, so that its memory is not counted; yield its settings."""
    limits = {"connect_timeout_seconds": fault.connect_timeout, "call_timeout_seconds": fault.call_timeout}
    if fault.transport == "stdio":
        yield stdio_settings(fault.name, **limits)
        return
    path = "sse" if fault.transport == "sse" else "mcp"
    if fault.name == "refused":
        yield http_settings(f"http://127.0.0.1:{free_port()}/{path}", fault.transport, **limits)
        return
    words = [sys.executable, str(HTTP), "--fault", fault.name]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield http_settings(
                f"http://127.0.0.1:{int(process.stdout.readline())}/{path}", fault.transport, **limits
            )
        finally:
            process.kill()


def run_with_toolfold(fault: Fault) -> dict[str, Any]:
    import mcp  # noqa: F401 - loaded before anything is measured

    before = 0.0

    async def measure(folder: Path) -> dict[str, Any]:
        nonlocal before
        if fault.occurs_during_call:  # what a first connection needs is no cost of the fault
            await run_fault(replace(fault, name=""), folder, settings=stdio_settings())
        before = _peak_memory()
        met = await run_fault(fault, folder, settings)
        return {"answer": met.answer, "said": met.message, "seconds": met.seconds, "then": met.next_answer}

    with tempfile.TemporaryDirectory() as folder, reachable(fault) as settings:
        found = asyncio.run(measure(Path(folder)))
    return {**found, "megabytes": (_peak_memory() - before) / MEGABYTE}


def run_with_sdk(fault: Fault) -> dict[str, Any]:
    with reachable(fault) as settings:
        return asyncio.run(_run_sdk_client(fault, settings))


async def _run_sdk_client(fault: Fault, settings: McpServerSettings) -> dict[str, Any]:
    from mcp import Client

    began, before = time.perf_counter(), _peak_memory()
    watch = None if fault.occurs_during_call else _start_watchdog()
    try:
        async with Client(_open_transport(settings)) as client:
            if fault.occurs_during_call:
                await client.call_tool("echo", {"text": "before"})
                watch = _start_watchdog()
            began, before = time.perf_counter(), _peak_memory()
            result: Any = await client.call_tool("echo", {"text": "now"})
            answer = f"answers {str(getattr(result.content[0], 'text', ''))[:20]!r}"
            return _make_result(answer, began, before)
    except BaseException as error:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return _make_result(f"{type(error).__name__}: {str(error)[:60]}", began, before)
    finally:
        if watch is not None:
            watch.cancel()


def _start_watchdog() -> threading.Timer:
    """Start a timer that reports a missing response and kills all processes, as a client may hang forever."""
    before = _peak_memory()

    def give_up() -> None:
        grown = (_peak_memory() - before) / MEGABYTE
        print(json.dumps({"answer": WAITS, "seconds": BARE_SECONDS, "megabytes": grown}), flush=True)
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError):
                if int(file.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                    os.kill(int(file.parent.name), signal.SIGKILL)
        os._exit(0)

    timer = threading.Timer(BARE_SECONDS, give_up)
    timer.daemon = True
    timer.start()
    return timer


def _make_result(answer: str, began: float, before: float) -> dict[str, Any]:
    megabytes = (_peak_memory() - before) / MEGABYTE
    return {"answer": answer, "seconds": time.perf_counter() - began, "megabytes": megabytes}


def _open_transport(settings: McpServerSettings) -> Any:
    from mcp.client.sse import sse_client
    from mcp.client.stdio import StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client

    if settings.effective_transport == "stdio":
        return stdio_client(StdioServerParameters(command=settings.command, args=list(settings.args)))
    return (
        sse_client(settings.url)
        if settings.effective_transport == "sse"
        else streamable_http_client(settings.url)
    )


def _peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run_in_process(fault: Fault, *, bare: bool) -> dict[str, Any]:
    """Measure one server fault in a process of its own."""
    words = [sys.executable, __file__, "--one", str(fault), *(["--bare"] if bare else [])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120.0, check=False)
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    except (ValueError, IndexError):
        return {"answer": "ends the whole program", "seconds": 0.0, "megabytes": 0.0}
    return found


def row(fault: Fault) -> str:
    ours = run_in_process(fault, bare=False)
    is_error = ours["answer"] == fault.answer and ours["said"] != ours["answer"]
    then = "works" if ours["then"] == "again" else "fails with advice"
    limit = f" (after a limit of {fault.min_seconds:g} s)" if fault.min_seconds else ""
    late = max(0.0, ours["seconds"] - fault.min_seconds)
    answer = f"`{ours['answer']}`" if is_error else "the response"
    return f"| {fault.description} | {answer} | {late:.2f}{limit} | {ours['megabytes']:.0f} | {then} |"


def table(faults: Sequence[Fault]) -> str:
    lines: list[str] = []
    for way, title in TITLES.items():
        wanted = [fault for fault in faults if fault.transport == way]
        lines += [
            f"## {title}",
            "",
            "| fault | result | seconds | MB | next call |",
        ]
        lines += ["|---|---|---|---|---|", *map_in_parallel(row, wanted), ""]
    return "\n".join(lines)


def sdk_table(faults: Sequence[Fault]) -> str:
    """Return a table of how the SDK's client alone handles the same faults."""
    wanted = [fault for fault in faults if str(fault) in SDK_FAULTS]
    lines = [SDK_HEAD, "| fault | transport | the client alone |", "|---|---|---|"]
    return "\n".join([*lines, *map_in_parallel(_bare_row, wanted), ""])


def _bare_row(fault: Fault) -> str:
    return (
        f"| {fault.description} | {fault.transport} | {_describe_result(run_in_process(fault, bare=True))} |"
    )


def map_in_parallel(work: Callable[[Fault], str], faults: Sequence[Fault]) -> list[str]:
    with ThreadPoolExecutor(PARALLEL_FAULTS) as pool:
        found = []
        for line in pool.map(work, faults):
            found.append(line)
            print(line, file=sys.stderr)
        return found


def _describe_result(bare: dict[str, Any]) -> str:
    said = " ".join(bare["answer"].replace("|", "/").split())
    grown = f", {bare['megabytes']:.0f} MB" if bare["megabytes"] >= 20 else ""
    return f"{said} ({bare['seconds']:.1f} s{grown})" if said != WAITS else f"{WAITS}{grown}"


HEAD = """\
# Faults of MCP servers

Written by `python benchmarks/mcp_faults.py --bare --write benchmarks/results/mcp-faults.md`.
Each row is a server that has one fault (`tests/mcp/fault_server.py`, `tests/mcp/fault_http.py`);
`tests/mcp/test_faults.py` asserts every result.

* **Result** is the `kind` of the error (see `toolfold.mcp.faults`), or "the response" if the call
  succeeds despite the fault.
* **Seconds** is the time from the call to its result, or from the expiry of a timeout. For faults at startup
  it includes the start of the server.
* **MB** is the peak memory growth of the client's process.

One run, on a machine with two slow cores that others used at the same time; two faults were tested in
parallel.

"""


SDK_HEAD = f"""\
## The SDK's client alone

The official client without Toolfold and without any timeout, with some of the same faults, observed for
{BARE_SECONDS:g} seconds.
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--only", default="", help="comma-separated names of faults")
    options.add_argument("--bare", action="store_true", help="also run the SDK's client alone")
    options.add_argument("--write", type=Path)
    options.add_argument("--one", default="", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        fault = next(each for each in FAULTS if str(each) == given.one)
        print(json.dumps(run_with_sdk(fault) if given.bare else run_with_toolfold(fault)))
        return
    wanted = [each for each in FAULTS if not given.only or str(each) in given.only.split(",")]
    text = HEAD + table(wanted) + (f"\n{sdk_table(wanted)}" if given.bare else "")
    if given.write:
        given.write.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
