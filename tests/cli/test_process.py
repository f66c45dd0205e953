"""The installed command as a separate process: completion, signals and pipes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Toolfold
from tests.known_vectors import LIGHT_MODEL

TOOLFOLD = str(Path(sys.executable).with_name("toolfold"))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    path = f"{Path(TOOLFOLD).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "TOOLFOLD_HOME": str(tmp_path / "home"), "PATH": path, **LIGHT_MODEL}


@pytest.mark.parametrize(
    ("shell", "script"),
    [
        (
            "bash",
            'eval "$(toolfold completion bash)"; COMP_WORDS=(toolfold pl); COMP_CWORD=1;'
            ' _toolfold_completion toolfold; echo "${COMPREPLY[@]}"',
        ),
        (
            "zsh",
            'autoload -U compinit; compinit -u; eval "$(toolfold completion zsh)"; echo $_comps[toolfold]',
        ),
        ("fish", "toolfold completion fish | source; complete -C 'toolfold pl'"),
    ],
)
def test_completion_script_completes_a_toolfold_command_in_a_real_shell(
    shell: str, script: str, environment: dict[str, str]
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    flags = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [shell, *flags, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "plugins" in done.stdout or "_toolfold_completion" in done.stdout, done


def test_toolfold_command_prints_no_traceback_if_its_output_pipe_is_closed(
    environment: dict[str, str],
) -> None:
    command = f"{TOOLFOLD} config schema --json | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr


def test_ctrl_c_during_a_tool_call_cancels_the_tool_and_exits_with_code_130(
    environment: dict[str, str], tmp_path: Path
) -> None:
    directory = tmp_path / "plugins"
    directory.mkdir()
    started, ended = tmp_path / "started", tmp_path / "ended"
    (directory / "slow.py").write_text(
        "import asyncio, pathlib\n"
        "from toolfold import tool\n"
        "@tool\n"
        "async def wait_long() -> str:\n"
        "    'Wait.'\n"
        f"    pathlib.Path({str(started)!r}).touch()\n"
        "    try:\n"
        "        await asyncio.sleep(600)\n"
        "    finally:\n"
        f"        pathlib.Path({str(ended)!r}).touch()\n"
        "def register(plugin): plugin.add(wait_long)\n"
    )
    process = subprocess.Popen(
        [TOOLFOLD, "--set", f"plugins.folder={directory}", "call", "wait_long"],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 240
    while not started.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130, errors
    assert ended.exists()
    assert "Traceback" not in errors


@pytest.mark.thorough
def test_ctrl_c_stops_the_gateway_without_printing_an_error(
    environment: dict[str, str], tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [TOOLFOLD, "serve", "--port", "0"], env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    shown = [process.stderr.readline() for _ in range(4)]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert shown[2].startswith("Dashboard, valid once within 10 minutes: http://127.0.0.1:"), shown
    assert shown[3] == "Press Ctrl-C to stop.\n", shown
    assert (process.returncode, errors.strip()) == (0, "")


@pytest.mark.thorough
@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("mcp", "serve")])
def test_gateway_does_not_start_if_the_option_toolset_names_an_unknown_toolset(
    command: tuple[str, ...], environment: dict[str, str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [TOOLFOLD, *command, "--toolset", "nope"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 4
    assert "here is no toolset 'nope'" in done.stderr


@pytest.mark.parametrize(
    ("host", "advice"),
    [
        ("nobody.invalid", "The host name was not found."),
        ("no..name", "The host name was not found."),
        ("192.0.2.7", "It is not an address of this machine."),
        ("127.0.0.1", "Choose another port with --port."),
    ],
)
def test_gateway_bind_error_states_whether_the_address_or_the_port_is_the_cause(
    host: str, advice: str, toolfold: Toolfold
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = toolfold("serve", "--host", host, "--port", str(taken.getsockname()[1]))
    assert done.code == 3
    assert f"{host} port" in done.err
    assert advice in done.err
    assert ("--port" in done.err) == (host == "127.0.0.1")
