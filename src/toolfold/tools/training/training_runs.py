"""Training runs on this machine: start a supervisor for each run, read its state and log, and stop it.

A run is a directory. Runs outlive the process that started them, and are found again by a later one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolfold.core.errors import CallError
from toolfold.core.tool_processes import SERVER_MARK_KB
from toolfold.core.types import Json

MAX_STORED_RUNS = 200
MAX_METRIC_LINES = 50
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.1
_ACTIVE_STATES = ("starting", "running")
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables of this process that the supervisor of a run gets; keys are not among them."""
# Sets the resource limit that marks processes of tool calls (see `core.tool_processes`), then runs a program.
_MARK_SCRIPT = """
limit=$1
shift
{ ulimit -S -m "$limit" && ulimit -H -m "$limit"; } 2>/dev/null
exec "$@"
"""
_RUN_ID = re.compile(r"[\w-]{1,80}")
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
METRIC_NAME = re.compile(r"[A-Za-z][\w/.-]{0,40}")
_METRIC = re.compile(rf"({METRIC_NAME.pattern})\s*[=:]\s*({_NUMBER})\b")


class TrainingFailed(CallError):
    """Raised if a training run cannot be started, found or stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Command of a training run on this machine, and its limits."""

    name: str
    """Name of the training environment."""
    command: Sequence[str]
    directory: Path
    environment: Mapping[str, str] = field(repr=False)
    parameters: Json
    max_seconds: float
    max_log_bytes: int


class LocalRuns:
    """Training runs on this machine, stored in one directory."""

    def __init__(self, directory: Path, *, max_runs: int) -> None:
        self._directory, self._max_runs = directory, max_runs

    def start(self, spec: RunSpec) -> str:
        """Start a training run and return its id. Raises TrainingFailed if it does not start."""
        run_id = f"{spec.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        folder = self._directory / run_id
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _hold_lock(self._directory / "start.lock"):  # no other run may start between count and launch
            self._check_limit()
            self._remove_oldest()
            folder.mkdir(mode=0o700)
            self._launch(folder, spec)
        return run_id

    def _check_limit(self) -> None:
        active = sum(self.read(each)["state"] in _ACTIVE_STATES for each in self.list_ids())
        if active >= self._max_runs:
            raise TrainingFailed(
                f"{active} training runs are running already, which is the limit (training.max_runs)."
            )

    def _launch(self, folder: Path, spec: RunSpec) -> None:
        file = folder / "run.json"
        try:
            _write_private(file, json.dumps(_describe_spec(spec, folder)))
            _run_supervisor(folder)
            self._wait_for_state(folder)
        except BaseException:
            (folder / "stop").touch(mode=0o600)  # for a supervisor that starts late
            raise
        finally:
            file.unlink(missing_ok=True)  # the environment of the command may contain keys

    def _wait_for_state(self, folder: Path) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while not (folder / "state.json").exists():
            if time.monotonic() > end:
                raise TrainingFailed("The training run did not start in time.")
            time.sleep(POLL_S)
        state = _read_json(folder / "state.json")
        if state.get("error"):
            raise TrainingFailed(f"The training run failed: {state['error']}.")

    def list_ids(self) -> list[str]:
        """Return the ids of all stored runs, newest first."""
        folders = self._directory.iterdir() if self._directory.is_dir() else ()
        found = [each for each in folders if (each / "summary.json").is_file()]
        return [each.name for each in sorted(found, key=lambda each: each.stat().st_mtime, reverse=True)]

    def read(self, run_id: str) -> Json:
        """Return the state of a training run. Raises TrainingFailed if the run does not exist."""
        folder = self._find(run_id)
        state = _read_json(folder / "state.json") or {"state": "starting"}
        if state["state"] in _ACTIVE_STATES and not _is_locked(folder / "lock"):
            state = _read_json(folder / "state.json") or state  # it may have ended in the meantime
            if state["state"] in _ACTIVE_STATES:
                state = {**state, "state": "lost"}
        summary = _read_json(folder / "summary.json")
        return {"run": run_id, **summary, **{key: state[key] for key in state if key != "process"}}

    def read_log(self, run_id: str, max_chars: int) -> str:
        """Return the end of a run's output."""
        folder = self._find(run_id)
        text = b""
        for name in ("output.old", "output.log"):
            try:
                text += (folder / name).read_bytes()[-max_chars * 4 :]
            except FileNotFoundError:
                continue
        return text.decode(errors="replace")[-max_chars:]

    def read_metrics(self, run_id: str) -> Json:
        """Return the last value of each metric that a run has printed as `name=value` or JSON lines."""
        return find_metrics(self.read_log(run_id, 200_000))

    def stop(self, run_id: str) -> Json:
        """Stop a training run and wait until it has ended."""
        folder = self._find(run_id)
        if self.read(run_id)["state"] != "running":
            raise TrainingFailed(f"The training run {run_id!r} is not running.")
        (folder / "stop").touch(mode=0o600)
        end = time.monotonic() + STOP_TIMEOUT_S
        while _is_locked(folder / "lock"):
            if time.monotonic() > end:
                raise TrainingFailed(f"The training run {run_id!r} was asked to stop but is still running.")
            time.sleep(POLL_S)
        return self.read(run_id)

    def has(self, run_id: str) -> bool:
        """Return True if a run with this id is stored."""
        return bool(_RUN_ID.fullmatch(run_id)) and (self._directory / run_id / "summary.json").is_file()

    def _find(self, run_id: str) -> Path:
        if not self.has(run_id):
            raise TrainingFailed(
                f"There is no training run {run_id[:80]!r}. rl_list_runs lists all training runs."
            )
        return self._directory / run_id

    def _remove_oldest(self) -> None:
        import shutil

        for run_id in self.list_ids()[MAX_STORED_RUNS - 1 :]:
            if self.read(run_id)["state"] not in _ACTIVE_STATES:
                shutil.rmtree(self._directory / run_id, ignore_errors=True)


def find_metrics(text: str) -> Json:
    """Return the last value of each metric in a text with JSON lines or pairs such as `loss=0.5`."""
    metrics: Json = {}
    for line in text.splitlines():
        values = _read_line(line)
        if values:
            metrics = {**{k: v for k, v in metrics.items() if k not in values}, **values}
    return dict(list(metrics.items())[-MAX_METRIC_LINES:])


def _read_line(line: str) -> Json:
    stripped = line.strip()
    if stripped.startswith("{"):
        try:
            data = json.loads(stripped)
        except (ValueError, RecursionError):
            data = None
        if isinstance(data, dict):
            return {
                key: value
                for key, value in data.items()
                if isinstance(value, (int, float))
                and not isinstance(value, bool)
                and METRIC_NAME.fullmatch(key)
            }
    return {name: float(value) for name, value in _METRIC.findall(stripped[:2_000])}


def _describe_spec(spec: RunSpec, folder: Path) -> Json:
    summary = {"environment": spec.name, "parameters": spec.parameters, "created": time.time()}
    _write_private(folder / "summary.json", json.dumps(summary))
    return {
        "command": list(spec.command),
        "directory": str(spec.directory),
        "environment": {**spec.environment, **_mark(folder)},
        "max_seconds": spec.max_seconds,
        "max_log_bytes": spec.max_log_bytes,
    }


def _mark(folder: Path) -> dict[str, str]:
    """Return the environment variable that marks the processes of a run as started by a tool call."""
    return {"TOOLFOLD_RUN": f"training {folder.name}"}


def _run_supervisor(folder: Path) -> None:
    """Start a run's supervisor as an independent process. Raises TrainingFailed if it does not start."""
    python = (sys.executable, "-P", "-m", "toolfold.tools.training.run_supervisor", str(folder.absolute()))
    try:
        subprocess.run(  # noqa: S603 - a module of this package
            ["/bin/sh", "-c", _MARK_SCRIPT, "sh", str(SERVER_MARK_KB), *python],
            cwd=folder,  # Python imports nothing from the workspace, where tool calls write
            env={**{each: os.environ[each] for each in _INHERITED if each in os.environ}, **_mark(folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TrainingFailed("The training run did not start in time.") from None


@contextlib.contextmanager
def _hold_lock(file: Path) -> Iterator[None]:
    """Lock a file in a `with` block. Raises TrainingFailed if the lock is not free in time."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + START_TIMEOUT_S
    try:
        while not _try_lock(descriptor):
            if time.monotonic() > end:
                raise TrainingFailed("Another training run is being started. Try again in a minute.")
            time.sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_locked(file: Path) -> bool:
    """Return True if the run's lock is held, which means that its supervisor is running."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _read_json(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _write_private(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
