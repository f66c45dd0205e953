"""What a running gateway tells other processes of its user: a small file, written while it runs.

Each gateway has a file of its own, which only the user can read and which is removed when the gateway ends. A
file that a killed gateway left behind is ignored, and removed by the next gateway that starts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from toolfold.config.atomic import make_private_folder, replace
from toolfold.errors import ToolfoldError
from toolfold.model import Json, read_json

if TYPE_CHECKING:
    from toolfold.gateway.server import Gateway
    from toolfold.runtime import Runtime

UPDATE_INTERVAL_S = 2.0
MAX_STATUS_BYTES = 1 << 20
MAX_STATUS_FILES = 200
MAX_CLIENTS_REPORTED = 200
MAX_ERROR_CHARS = 500

log = logging.getLogger(__name__)


class StatusFile:
    """Keeps the file of one gateway up to date, from a thread of its own."""

    def __init__(self, folder: Path, describe: Callable[[], Json]) -> None:
        self._folder, self._describe = folder, describe
        self._file = folder / f"{os.getpid()}.json"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway-status", daemon=True)

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError, ToolfoldError):
            make_private_folder(self._folder)
            _remove_stale_files(self._folder)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(UPDATE_INTERVAL_S)
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

    def _run(self) -> None:
        last = b""
        while True:
            content = json.dumps({"pid": os.getpid(), **self._describe_safely()}, ensure_ascii=False).encode()
            if content != last and len(content) <= MAX_STATUS_BYTES and not self._ended.is_set():
                with contextlib.suppress(OSError, ToolfoldError):
                    replace(self._file, content, mode=0o600)
                    last = content
            if self._ended.wait(UPDATE_INTERVAL_S):
                return

    def _describe_safely(self) -> Json:
        """Describe the gateway. It changes meanwhile; what cannot be read now is read the next time."""
        try:
            return self._describe()
        except Exception as error:
            log.debug("the status of the gateway cannot be read: %s", error)
            return {}


def describe_gateway(
    runtime: Runtime, gateway: Gateway | None, redact: Callable[[str], str], **about: Any
) -> Json:
    """Return the state of the servers and the clients of a gateway, without secrets."""
    servers = [
        {
            "name": each.name,
            "state": each.state,
            "tools": each.tools,
            "held": each.held,
            "error": redact(each.error)[:MAX_ERROR_CHARS],
        }
        for each in runtime.mcp.states()
    ]
    seats = list(gateway.seats())[:MAX_CLIENTS_REPORTED] if gateway else []
    clients = [
        {
            "name": seat.display_name,
            "token": "" if seat.client.name == "stdio" else seat.client.name,
            "toolsets": seat.client.toolsets,
            "tools": len(seat.session.granted()),
            "busy": seat.is_busy,
        }
        for seat in seats
    ]
    return {**about, "servers": servers, "clients": clients}


def read_statuses(folder: Path) -> list[Json]:
    """Return what the gateways that run have written, oldest first."""
    found = []
    for file, pid in _status_files(folder):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            if not _is_running(pid) or file.stat().st_size > MAX_STATUS_BYTES:
                continue
            status = read_json(file.read_text("utf-8"))
            if isinstance(status, dict) and status.get("pid") == pid:
                found.append(status)
    return sorted(found, key=lambda each: str(each.get("started", "")))


def _status_files(folder: Path) -> Iterator[tuple[Path, int]]:
    try:
        for file in islice(folder.iterdir(), MAX_STATUS_FILES):
            if file.suffix == ".json" and file.stem.isdecimal() and len(file.stem) < 12:
                yield file, int(file.stem)
    except OSError:
        return


def _remove_stale_files(folder: Path) -> None:
    for file, pid in list(_status_files(folder)):
        if not _is_running(pid) or pid == os.getpid():
            file.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    """Whether a process of this user has the number."""
    if os.name != "posix":  # elsewhere, os.kill would end it
        return True
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return pid > 0


def now() -> str:
    """The local time, as people read it."""
    return time.strftime("%Y-%m-%d %H:%M:%S")
