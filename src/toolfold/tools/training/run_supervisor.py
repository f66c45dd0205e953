"""Run one training command independently of the process that started it.

Started as `python -m toolfold.tools.training.run_supervisor DIRECTORY`. Reads `run.json` there, and
keeps `state.json` and a log of limited size. Holds a lock on the file `lock` while it runs, by which others
can see that it does. Ends the command when its time is over, when a file `stop` appears, or on SIGTERM. If
the supervisor is killed, the system kills the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

POLL_S = 0.2
STOP_TIMEOUT_S = 10.0
"""How long the command may take to end after SIGTERM, before it is killed."""
CHUNK_BYTES = 65_536
PR_SET_PDEATHSIG = 1


def main(directory: Path) -> None:
    """Detach from the parent process, then run the command described in `run.json`."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    run = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    Supervisor(directory, run).supervise()
    os._exit(0)


class BoundedLog:
    """Log file of limited size; at half the limit it is renamed, replacing the previous renamed file."""

    def __init__(self, file: Path, max_bytes: int) -> None:
        self._file, self._limit, self._size = file, max_bytes // 2, 0
        self._stream = file.open("wb", buffering=0)

    def write(self, data: bytes) -> None:
        """Append output of the command to the log."""
        data = data[-self._limit :]  # one piece may be larger than the log
        if self._size + len(data) > self._limit:
            self._stream.close()
            self._file.replace(self._file.with_suffix(".old"))
            self._stream, self._size = self._file.open("wb", buffering=0), 0
        self._stream.write(data)
        self._size += len(data)


class Supervisor:
    """Starts a command, logs its output, and ends it at its time limit or on a stop request."""

    def __init__(self, directory: Path, run: dict[str, Any]) -> None:
        self._directory, self._run = directory, run
        self._log = BoundedLog(directory / "output.log", run["max_log_bytes"])
        self._stop_requested = False

    def supervise(self) -> None:
        """Run the command until it ends, and record how it ended."""
        signal.signal(signal.SIGTERM, self._request_stop)
        started = time.time()
        if (self._directory / "stop").exists():  # who started the run has given up waiting for it
            self._write_state(state="stopped", started=started, ended=started)
            return
        try:
            process = self._start()
        except (OSError, ValueError) as error:
            self._write_state(state="failed", error=f"the command could not be started: {error}")
            return
        self._write_state(state="running", process=process.pid, started=started)
        reason = self._follow(process, started + self._run["max_seconds"])
        code = process.wait()
        state = reason or ("completed" if code == 0 else "failed")
        self._write_state(state=state, exit_code=code, started=started, ended=time.time())

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - the user has configured the command
            self._run["command"],
            cwd=self._run["directory"],
            env=self._run["environment"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_prepare_command,
        )

    def _follow(self, process: subprocess.Popen[bytes], deadline: float) -> str:
        """Log the output until the command ends; return why the command was stopped, or an empty string."""
        reason, kill_at = "", 0.0
        for data in _read_output(process):
            self._log.write(data)
            if not reason and (reason := self._find_reason(deadline)):
                kill_at = time.time() + STOP_TIMEOUT_S
                _signal_group(process, signal.SIGTERM)
            elif reason and time.time() > kill_at:
                _signal_group(process, signal.SIGKILL)
        _signal_group(process, signal.SIGKILL)  # what the command has left running
        return reason

    def _find_reason(self, deadline: float) -> str:
        if self._stop_requested or (self._directory / "stop").exists():
            return "stopped"
        return "timed_out" if time.time() > deadline else ""

    def _request_stop(self, *_: object) -> None:
        self._stop_requested = True

    def _write_state(self, **state: Any) -> None:
        file = self._directory / "state.json"
        temporary = file.with_suffix(".new")
        temporary.write_text(json.dumps(state), encoding="utf-8")
        temporary.replace(file)


def _read_output(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Yield the command's output until the command ends; yield b"" after POLL_S seconds without output.

    What is left in the pipe then is yielded too. A process that the command has left behind may keep the pipe
    open, so its end is not waited for.
    """
    if process.stdout is None:
        return
    descriptor = process.stdout.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            has_ended = process.poll() is not None
            is_ready = bool(selector.select(0 if has_ended else POLL_S))
            data = os.read(descriptor, CHUNK_BYTES) if is_ready else b""
            yield data
            if not data and has_ended:
                return
            if is_ready and not data:
                time.sleep(POLL_S)  # the command has closed its output and goes on


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _prepare_command() -> None:
    """Make the system kill the command if the supervisor dies, and mark it as started by a tool call."""
    import resource

    from toolfold.core.tool_processes import SERVER_MARK_KB

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_RSS, (SERVER_MARK_KB * 1_024,) * 2)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
