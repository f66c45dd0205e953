"""By default, nothing uses the network and nothing is written outside Toolfold's directories."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

from tests.gateway.harness import fault_server, result_text
from tests.thorough import thorough_count
from tests.tracing import Trace, read_trace, trace_argv, untraceable_reason

TELEMETRY_DELAY_S = thorough_count(15, 1)
"""How long programs stay after the model was loaded: telemetry of a library begins some ten seconds later."""
RUN_TIMEOUT_S = 300
LINGERING = f"""
import sys, time
from toolfold.cli.app import run
code = run(sys.argv[1:])
assert "onnxruntime" in sys.modules
time.sleep({TELEMETRY_DELAY_S})
sys.exit(code)
"""
IN_A_CHILD = "import socket; socket.create_connection(('192.0.2.1', 80))"
HARMLESS_DEVICES = {Path("/dev/null"), Path("/dev/tty")}


@pytest.fixture(scope="module", autouse=True)
def tracing() -> None:
    if reason := untraceable_reason():
        pytest.skip(reason)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Environment of a new user account, with a name server address."""
    for name in ("home", "toolfold", "tmp", "work"):
        (tmp_path / name).mkdir()
    settings = {"mcp": {"servers": {"a": fault_server("--tools", "40")}, "wait_seconds": 60}}
    settings["tools"] = {"tool_search": {"enabled": True}}
    (tmp_path / "toolfold" / "config.yaml").write_text(json.dumps(settings))
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "TOOLFOLD_HOME": str(tmp_path / "toolfold"),
        "TMPDIR": str(tmp_path / "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


async def run_traced(argv: Sequence[str], env: Mapping[str, str], record: Path) -> Trace:
    """Run a program to its end and return its trace."""
    process = await asyncio.create_subprocess_exec(
        *trace_argv(argv, record),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=env,
        cwd=record.parent / "work",
    )
    try:
        async with asyncio.timeout(RUN_TIMEOUT_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, output.decode(errors="replace")
    return read_trace(record)


async def use_gateway(env: Mapping[str, str], record: Path) -> Trace:
    """List, search and call tools through `toolfold mcp serve`, and stay connected for a while."""
    # The search shares no word with the tool, so it has to wait until the tools are embedded.
    program = [sys.executable, "-m", "toolfold", "--set", "tools.patience_seconds=60", "mcp", "serve"]
    command, *arguments = trace_argv(program, record)
    server = StdioServerParameters(command=command, args=arguments, env=dict(env), cwd=record.parent / "work")
    async with asyncio.timeout(RUN_TIMEOUT_S), Client(server) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert "tool_search" in listed
        found = result_text(await client.call_tool("tool_search", {"query": "reverberation of my voice"}))
        assert "a_echo" in found
        called = await client.call_tool("tool_call", {"name": "a_echo", "arguments": {"text": "hello"}})
        assert "hello" in result_text(called)
        await asyncio.sleep(TELEMETRY_DELAY_S)
    return read_trace(record)


def find_foreign_writes(trace: Trace, tmp_path: Path) -> list[Path]:
    """Return files written neither to Toolfold's directory nor as temporary files."""
    return [
        path
        for path in trace.written
        if not path.is_relative_to(tmp_path / "toolfold")
        and not _is_temporary(path, tmp_path / "tmp")
        and path not in HARMLESS_DEVICES
        and "__pycache__" not in path.parts
        and not path.is_relative_to("/proc/self")
    ]


OWN_SOCKET = re.compile(
    r'^bind\(.*AF_UNIX, sun_path="(?:/proc/self/fd/\d+|[^"]*/toolfold/[^"]*/control)/\d+-[0-9a-f]{8}\.sock"'
)
"""The gateway's control socket in its state directory, which only commands of the same user can open."""


def _is_temporary(path: Path, folder: Path) -> bool:
    """Return True if Python's tempfile chose the name; other files in the directory are permanent."""
    inside = path.relative_to(folder).parts[:1] if path.is_relative_to(folder) else ()
    return bool(inside) and re.fullmatch(r"(?:tmp|toolfold-(?:[a-z]+-)?)?[a-z0-9_]{8}", inside[0]) is not None


@pytest.mark.thorough(keep=("gateway",))
@pytest.mark.parametrize("program", ["demo", "search", "gateway"])
async def test_demo_and_search_commands_and_the_gateway_use_no_network_and_write_only_toolfold_files(
    program: str, environment: dict[str, str], tmp_path: Path
) -> None:
    record = tmp_path / "trace"
    arguments = {"demo": ["demo"], "search": ["search", "--sample", "write to Ana"]}
    if program == "gateway":
        trace = await use_gateway(environment, record)
    else:
        command = [sys.executable, "-c", LINGERING, *arguments[program]]
        trace = await run_traced(command, environment, record)
    assert trace.written, "nothing was recorded"
    assert not [each for each in trace.contacts if not OWN_SOCKET.search(each)]
    assert not find_foreign_writes(trace, tmp_path)
    assert list((tmp_path / "home").iterdir()) == []


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("socket.create_connection(('192.0.2.1', 80), 1)", "192.0.2.1"),
        ("socket.create_connection(('2001:db8::1', 80), 1)", "2001:db8::1"),
        ("socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))", "192.0.2.1"),
        ("socket.getaddrinfo('collector.example', 443)", "/etc/"),
        ("socket.socket(socket.AF_UNIX).connect('/run/collector')", "/run/collector"),
        ("threading.Thread(target=socket.create_connection, args=[('192.0.2.1', 80)]).start()", "192.0.2.1"),
        (f"subprocess.run([sys.executable, '-c', {IN_A_CHILD!r}])", "192.0.2.1"),
    ],
)
async def test_system_call_tracer_detects_network_access(
    program: str, expected: str, environment: dict[str, str], tmp_path: Path
) -> None:
    text = f"import socket, subprocess, sys, threading\ntry: {program}\nexcept OSError: pass"
    trace = await run_traced([sys.executable, "-c", text], environment, tmp_path / "trace")
    assert expected in "".join(trace.contacts)


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize(
    "program",
    [
        "open(home + '/deviceid', 'w')",
        "os.mkdir(home + '/deviceid')",
        "os.chdir(home); open('deviceid', 'a')",
        "os.close(os.open('deviceid', os.O_CREAT | os.O_RDWR, dir_fd=os.open(home, os.O_RDONLY)))",
        "os.rename(home + '/../work', home + '/deviceid')",
    ],
)
async def test_system_call_tracer_detects_writes_to_files_that_do_not_belong_to_toolfold(
    program: str, environment: dict[str, str], tmp_path: Path
) -> None:
    text = f"import os\nhome = os.environ['HOME']\n{program}"
    trace = await run_traced([sys.executable, "-c", text], environment, tmp_path / "trace")
    assert tmp_path / "home" / "deviceid" in find_foreign_writes(trace, tmp_path)


async def test_system_call_tracer_ignores_file_reads_and_local_socket_pairs(
    environment: dict[str, str], tmp_path: Path
) -> None:
    text = (
        "import asyncio, socket\nopen('/etc/passwd').read()\na, b = socket.socketpair()\na.send(b'x')\n"
        "asyncio.run(asyncio.sleep(0))"
    )
    trace = await run_traced([sys.executable, "-c", text], environment, tmp_path / "trace")
    assert trace.contacts == ()
    assert not find_foreign_writes(trace, tmp_path)
