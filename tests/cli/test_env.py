"""`toolfold env`: list and test backends, and open a shell in one."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.conftest import Toolfold
from tests.environments.backend_kinds import find_traces
from toolfold.cli.interactive_terminal import _TerminalModes
from toolfold.tools.environments import TerminalSize
from toolfold.tools.environments.local_process import LocalProcess

TIMEOUT_S = 60.0
TOOLFOLD = str(Path(sys.executable).with_name("toolfold"))


def install_programs(directory: Path, **texts: str) -> str:
    """Write executable scripts into a directory; returns a PATH that begins with it."""
    directory.mkdir()
    for name, text in texts.items():
        (directory / name).write_text(f"#!/bin/sh\n{text}\n")
        (directory / name).chmod(0o755)
    return f"{directory}{os.pathsep}{os.environ['PATH']}"


class TestList:
    def test_env_list_shows_every_backend_and_marks_the_configured_backend(self, toolfold: Toolfold) -> None:
        found = {each["name"]: each for each in toolfold("env", "list", "--json").json}
        assert {"local", "sandbox"} <= found.keys()
        assert [name for name, each in found.items() if each["configured"]] == ["local"]
        assert found["local"]["available"]

    def test_env_list_shows_reason_and_advice_for_an_unusable_backend(
        self, toolfold: Toolfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = install_programs(
            tmp_path / "bin", bwrap="echo bwrap: namespaces are forbidden here >&2; exit 1"
        )
        monkeypatch.setenv("PATH", path)
        done = toolfold("--set", "terminal.backend=sandbox", "env", "list")
        assert done.code == 0
        backends = toolfold("--set", "terminal.backend=sandbox", "env", "list", "--json").json
        sandbox = next(each for each in backends if each["name"] == "sandbox")
        assert "namespaces are forbidden here" in sandbox["reason"]
        assert "Use docker or local." in sandbox["advice"]
        assert "the configured backend sandbox cannot be used" in done.err
        assert "local" in done.err

    def test_env_list_fits_80_columns_without_breaking_words(
        self, toolfold: Toolfold, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        done = toolfold("--set", "terminal.backend=ssh", "env", "list")
        assert "terminal.ssh.host is not set" in done.out
        assert "toolfold config set terminal.ssh.host NAME" in done.out
        assert "configured" in done.out
        table = done.out.rpartition("test one with `toolfold env test")[0]
        assert max(map(len, table.splitlines())) <= 80


class TestTest:
    def test_env_test_passes_all_eight_checks_on_the_local_backend(self, toolfold: Toolfold) -> None:
        done = toolfold("env", "test", "local", "--json")
        trials = done.json["trials"]
        assert (done.code, done.json["passed"]) == (0, True), trials
        assert len(trials) == 8
        assert all(each["milliseconds"] > 0 for each in trials)

    def test_env_test_uses_the_configured_backend_by_default(self, toolfold: Toolfold) -> None:
        done = toolfold("env", "test")
        assert done.code == 0
        assert "✓" in done.out
        assert "✗" not in done.out
        assert "local works." in done.out

    def test_env_test_reports_a_failed_check_and_still_runs_the_remaining_checks(
        self, toolfold: Toolfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", install_programs(tmp_path / "bin", stty="echo nonsense"))
        done = toolfold("env", "test", "local", "--json")
        assert done.code == 1
        assert [each["what"] for each in done.json["trials"] if not each["passed"]] == ["terminal"]
        shown = toolfold("env", "test", "local")
        assert "local does not work: the command printed 'nonsense" in shown.out

    def test_env_test_of_an_unusable_backend_prints_the_reason_and_lists_other_backends(
        self, toolfold: Toolfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", install_programs(tmp_path / "bin", bwrap="echo forbidden >&2; exit 1"))
        done = toolfold("env", "test", "sandbox")
        assert done.code == 1
        assert "sandbox does not work: forbidden" in done.out
        assert "Use docker or local." in done.out

    def test_env_test_of_an_unknown_backend_suggests_a_similar_backend_name(self, toolfold: Toolfold) -> None:
        done = toolfold("env", "test", "sandbx")
        assert done.code == 4
        assert "Did you mean sandbox?" in done.err


class Screen:
    """User at a terminal, who types and waits for output."""

    def __init__(self, client: LocalProcess) -> None:
        self.client = client
        self.seen = ""

    async def type(self, text: str) -> None:
        await self.client.write(text.encode())

    async def until(self, pattern: str) -> re.Match[str]:
        """Wait for output that matches the pattern, and discard everything up to its end."""
        async with asyncio.timeout(TIMEOUT_S):
            while not (found := re.search(pattern, self.seen)):
                data = await self.client.read()
                assert data, f"the process ended after {self.seen!r}"
                self.seen += data.decode(errors="replace")
        self.seen = self.seen[found.end() :]
        return found


async def wait_for_process(token: str) -> None:
    """Wait until a process with the token in its environment is running."""
    async with asyncio.timeout(TIMEOUT_S):
        while not any(": sleep" in trace for trace in find_traces(token)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def wait_for_process_end(token: str) -> None:
    """Wait until no process has the token in its environment; killed processes end with a delay."""
    async with asyncio.timeout(TIMEOUT_S):
        while find_traces(token):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


WRAPPER_SCRIPT = (
    "stty -g; sh -c 'echo pid=$$; exec \"$0\" env shell {backend}' {toolfold}; echo code=$?; stty -g"
)


@pytest.fixture
async def screen(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Screen]:
    """`env shell` in a terminal, started by a shell that prints the terminal modes before and after."""
    backend = getattr(request, "param", "")
    if backend == "sandbox" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed: `apt-get install bubblewrap`")
    (tmp_path / "project").mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "SHELL": "/bin/bash",
        "TOOLFOLD_HOME": str(tmp_path / "home"),
    }
    client = LocalProcess.start(
        ["sh", "-c", WRAPPER_SCRIPT.format(toolfold=TOOLFOLD, backend=backend)],
        env=environment,
        pty=TerminalSize(30, 90),
        cwd=str(tmp_path / "project"),
    )
    yield Screen(client)
    await client.close()


class OpenShell:
    """A shell that is ready for input."""

    def __init__(self, screen: Screen, before: str, pid: int) -> None:
        self.screen, self._before, self.pid = screen, before, pid

    @classmethod
    async def open_on(cls, screen: Screen) -> OpenShell:
        before = (await screen.until(r"([0-9a-f]+(?::[0-9a-f]+)+)\r\n"))[1]
        pid = int((await screen.until(r"pid=(\d+)"))[1])
        await screen.until("Leave with `exit` or Ctrl-D")
        await screen.type("echo re''ady\n")
        await screen.until("ready")
        return cls(screen, before, pid)

    async def expect_exit(self, code: int) -> None:
        """Check that the shell exits with the given code and that the terminal modes are restored."""
        assert int((await self.screen.until(r"code=(\d+)"))[1]) == code
        assert (await self.screen.until(r"([0-9a-f]+(?::[0-9a-f]+)+)\r\n"))[1] == self._before


class TestShell:
    async def test_env_shell_starts_in_the_project_directory_and_returns_the_exit_code_of_the_shell(
        self, screen: Screen
    ) -> None:
        opened = await OpenShell.open_on(screen)
        await screen.type("echo $((6 * 7)) $PWD $(test -t 0 && echo terminal)\n")
        await screen.until(r"42 \S+/project terminal")
        await screen.type("exit 3\n")
        await opened.expect_exit(3)

    @pytest.mark.thorough
    @pytest.mark.parametrize("screen", ["local", "sandbox"], indirect=True)
    async def test_resizing_the_terminal_resizes_the_terminal_of_env_shell(self, screen: Screen) -> None:
        opened = await OpenShell.open_on(screen)
        await screen.type("stty size\n")
        await screen.until("30 90")
        screen.client.resize(TerminalSize(41, 123))
        await screen.type("until [ \"$(stty size)\" = '41 123' ]; do sleep 0.1; done; echo fol''lowed\n")
        await screen.until("followed")
        await screen.type("exit\n")
        await opened.expect_exit(0)

    @pytest.mark.thorough(keep=1)
    @pytest.mark.parametrize("screen", ["local", "sandbox"], indirect=True)
    async def test_ctrl_c_in_env_shell_interrupts_the_running_command(self, screen: Screen) -> None:
        opened = await OpenShell.open_on(screen)
        token = f"token{secrets.token_hex(8)}"
        await screen.type(f"MARK={token} sleep 86400\n")
        await wait_for_process(token)
        await screen.type("\x03")
        await screen.until(r"\^C")
        await screen.type("echo status $?\n")
        await screen.until("status 130")
        await screen.type("exit 0\n")
        await opened.expect_exit(0)

    async def test_ctrl_d_at_the_prompt_of_env_shell_ends_the_shell(self, screen: Screen) -> None:
        opened = await OpenShell.open_on(screen)
        await screen.type("\x04")
        await opened.expect_exit(0)

    @pytest.mark.thorough
    async def test_pressing_the_detach_key_three_times_ends_an_unresponsive_env_shell(
        self, screen: Screen
    ) -> None:
        opened, token = await OpenShell.open_on(screen), f"token{secrets.token_hex(8)}"
        await screen.type(f"trap '' INT TERM HUP; MARK={token} sleep 86400\n")
        await wait_for_process(token)
        await screen.type("\x03\x03")
        await screen.type("\x1d\x1d\x1d")
        await screen.until("detached: the shell and its processes were terminated")
        await opened.expect_exit(0)
        await wait_for_process_end(token)

    async def test_termination_signal_ends_env_shell_and_restores_the_terminal(self, screen: Screen) -> None:
        opened, token = await OpenShell.open_on(screen), f"token{secrets.token_hex(8)}"
        await screen.type(f"MARK={token} sleep 86400\n")
        await wait_for_process(token)
        os.kill(opened.pid, signal.SIGTERM)
        await opened.expect_exit(143)
        await wait_for_process_end(token)

    @pytest.mark.thorough
    async def test_env_shell_resets_the_terminal_modes_that_a_killed_program_left_enabled(
        self, screen: Screen
    ) -> None:
        opened = await OpenShell.open_on(screen)
        await screen.type(r"printf '\033[?1049h\033[?25l\033[?1000;1006h'; kill -9 $$" + "\n")
        after = (await screen.until(r"((?:\x1b\[\?\d+[hl])+)(?:[^\x1b]*)code="))[1]
        assert {"\x1b[?1049l", "\x1b[?25h", "\x1b[?1000l", "\x1b[?1006l"} <= set(
            re.findall(r"\x1b\[\?\d+[hl]", after)
        )
        screen.seen = "code=" + screen.seen
        await opened.expect_exit(137)

    def test_env_shell_without_a_terminal_prints_an_error_with_advice(self, tmp_path: Path) -> None:
        done = subprocess.run(
            [TOOLFOLD, "env", "shell"],
            input="echo no\n",
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env={**os.environ, "TOOLFOLD_HOME": str(tmp_path)},
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert "an interactive shell needs a terminal" in done.stderr
        assert "toolfold call terminal" in done.stderr


MODES = st.sampled_from([b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25l", b"\x1b[?25h", b"\x1b[?1;2004h", b"x"])


@given(st.lists(st.one_of(MODES, st.binary(max_size=9))), st.integers(1, 7))
def test_terminal_reset_sequence_does_not_depend_on_how_the_output_is_split_into_chunks(
    parts: list[bytes], cut: int
) -> None:
    whole, pieces, data = _TerminalModes(), _TerminalModes(), b"".join(parts)
    whole.track(data)
    for first in range(0, len(data), cut):
        pieces.track(data[first : first + cut])
    assert pieces.reset_sequence() == whole.reset_sequence()
