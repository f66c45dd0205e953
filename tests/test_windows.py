"""Toolfold can be imported without the modules and names that Windows lacks, and ends process trees there.

Windows itself is not available: an interpreter without these modules and names stands in for it, and a
recorder for the functions of its kernel.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolfold.cli.run import interrupt_on_signals
from toolfold.config import atomic
from toolfold.core.sockets import make_arrival_check
from toolfold.mcp.process_tree import ExtendedLimits, WindowsJob
from toolfold.state.store.records import has_owner_ended

SCRIPTS = Path(__file__).parent.parent / "scripts"
LIKE_WINDOWS = """
import asyncio, concurrent.futures, getpass, importlib, importlib.abc, multiprocessing, os, select, shutil
import signal, socket, subprocess, sys, tempfile
import httpx2, mcp, numpy, onnxruntime, prompt_toolkit, pydantic, rich, uvicorn  # they support Windows

MISSING = {"fcntl", "pwd", "grp", "termios", "tty", "resource", "pty"}

class MissingModules(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in MISSING:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, MissingModules())
for name in ("O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "killpg", "getuid",
             "geteuid", "fork", "setsid", "getpgid", "fchmod", "mkfifo", "openpty", "pread"):
    delattr(os, name)
del select.poll
for name in ("SIGKILL", "SIGHUP", "SIGWINCH", "SIGQUIT", "SIGUSR1", "SIGCHLD", "SIGALRM"):
    delattr(signal, name)
for name in sys.argv[1:]:
    importlib.import_module(name)
"""
MODULES = [
    *(
        "toolfold",
        "toolfold.runtime.runtime",
        "toolfold.serving.gateway.server",
        "toolfold.serving.gateway.http_app",
        "toolfold.agent.loop",
    ),
    *(
        "toolfold.mcp.pool",
        "toolfold.serving.proxy",
        "toolfold.serving.dashboard.dashboard_app",
        "toolfold.cli.app",
    ),
    *(
        f"toolfold.cli.{name}"
        for name in ("call", "chat", "config", "connect", "doctor", "mcp", "run", "serve", "ui")
    ),
]


@pytest.mark.thorough
def test_every_toolfold_module_can_be_imported_on_a_system_without_posix_modules() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIKE_WINDOWS, *MODULES],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_incoming_data_and_closed_connections_are_detected_on_systems_without_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(select, "poll")
    ours, theirs = socket.socketpair()
    with ours:
        has_arrivals = make_arrival_check(ours.fileno())
        assert not has_arrivals()
        theirs.send(b"x")
        assert has_arrivals()
        ours.recv(1)
        assert not has_arrivals()
        theirs.close()
        assert has_arrivals()


def test_settings_file_can_be_replaced_on_windows_without_opening_its_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("before")
    with monkeypatch.context() as windows:
        windows.setattr(os, "name", "nt")
        windows.delattr(os, "fchmod")
        windows.delattr(os, "fchown")
        windows.setattr(os, "open", refuse_directories(os.open))
        with atomic.lock_directory(tmp_path):
            atomic.replace_file(file, b"after")
    assert file.read_text() == "after"


def refuse_directories(open_file: Callable[..., int]) -> Callable[..., int]:
    """Return a function like `os.open` on Windows, which cannot open directories."""

    def open_unless_directory(path: str | Path, *arguments: int, **named: int | None) -> int:
        if os.path.isdir(path):  # noqa: PTH112 - `Path` must not be made while `os.name` is changed
            raise PermissionError(13, "Permission denied")
        return open_file(path, *arguments, **named)

    return open_unless_directory


async def test_sigterm_is_handled_even_if_the_event_loop_does_not_support_add_signal_handler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: object, number: int, *rest: object) -> None:
        raise NotImplementedError

    loop = asyncio.get_running_loop()
    with monkeypatch.context() as windows:
        windows.setattr(type(loop), "add_signal_handler", refuse)
        windows.setattr(type(loop), "remove_signal_handler", refuse)
        windows.delattr(signal, "SIGHUP")
        before = signal.getsignal(signal.SIGTERM)
        interrupted = asyncio.Event()
        with interrupt_on_signals(interrupted.set):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(interrupted.wait(), 30)
        assert signal.getsignal(signal.SIGTERM) is before


def test_check_platforms_script_finds_unguarded_uses_of_posix_functions() -> None:
    text = """
import select
def wait(): return select.poll()
def wait_if_possible(): return select.poll() if hasattr(select, "poll") else None
def lock():
    try:
        import fcntl
    except ImportError:
        return
"""
    sys.path.insert(0, str(SCRIPTS))
    check_platforms = importlib.import_module("check_platforms")
    assert list(check_platforms.find_uses(text)) == [(3, "select.poll")]


def test_checking_for_a_dead_session_owner_process_on_windows_sends_no_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(pid: int, number: int) -> None:
        raise AssertionError("a signal was sent")

    with monkeypatch.context() as windows:
        windows.setattr(os, "name", "nt")
        windows.setattr(os, "kill", fail)
        has_ended = has_owner_ended(f"{socket.gethostname()}:{os.getpid()}:token")
    assert not has_ended


class RecordedKernel:
    """Records the calls of kernel functions; each returns a handle, or 0 for the function in `failing`."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self._failing = failing

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            return 0 if name == self._failing else 1000 + len(self.calls)

        return call

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


def test_process_assigned_to_a_windows_job_object_is_terminated_when_the_job_ends() -> None:
    kernel = RecordedKernel()
    job = WindowsJob(4711, kernel)
    assert kernel.names() == [
        *("CreateJobObjectW", "SetInformationJobObject", "OpenProcess"),
        *("AssignProcessToJobObject", "CloseHandle"),
    ]
    assert kernel.calls[2][1][2] == 4711
    job.end()
    job.end()
    assert kernel.calls[5:] == [("TerminateJobObject", (1001, 1)), ("CloseHandle", (1001,))]


@pytest.mark.parametrize("failing", ["SetInformationJobObject", "OpenProcess", "AssignProcessToJobObject"])
def test_handle_of_a_windows_job_object_is_closed_if_its_setup_fails(failing: str) -> None:
    kernel = RecordedKernel(failing)
    with pytest.raises(OSError, match="while a job object was set up"):
        WindowsJob(4711, kernel)
    assert kernel.calls[-1] == ("CloseHandle", (1001,))


def test_ctypes_structure_for_windows_job_limits_has_the_required_size() -> None:
    assert ctypes.sizeof(ExtendedLimits) == (144 if ctypes.sizeof(ctypes.c_void_p) == 8 else 112)
