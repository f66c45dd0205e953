"""Status file of a running gateway, for other processes such as `toolfold mcp status`.

Each gateway has its own file, which only the user can read and which is removed when the gateway ends. A file
of a gateway that was killed is ignored, and removed when the next gateway starts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Self

from toolfold.config.atomic import make_private_directory, replace_file
from toolfold.core.errors import ToolfoldError
from toolfold.core.types import MCP_SOURCE, Json, read_json

if TYPE_CHECKING:
    from toolfold.runtime.runtime import Runtime
    from toolfold.serving.gateway.server import Gateway

UPDATE_INTERVAL_S = 2.0
MAX_STATUS_BYTES = 1 << 20
MAX_STATUS_FILES = 200
MAX_CLIENTS_REPORTED = 200
MAX_ERROR_CHARS = 500

log = logging.getLogger(__name__)


class StatusFile:
    """Status file of one gateway, kept up to date in a separate thread."""

    def __init__(self, folder: Path, describe: Callable[[], Json]) -> None:
        self._folder, self._describe = folder, describe
        self._file = folder / f"{os.getpid()}.json"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run_thread, name="gateway-status", daemon=True)

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError, ToolfoldError):
            make_private_directory(self._folder)
            _remove_stale_files(self._folder)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(UPDATE_INTERVAL_S)
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

    def _run_thread(self) -> None:
        last = b""
        while True:
            content = json.dumps({"pid": os.getpid(), **self._describe_safely()}, ensure_ascii=False).encode()
            if content != last and len(content) <= MAX_STATUS_BYTES and not self._ended.is_set():
                with contextlib.suppress(OSError, ToolfoldError):
                    replace_file(self._file, content, mode=0o600)
                    last = content
            if self._ended.wait(UPDATE_INTERVAL_S):
                return

    def _describe_safely(self) -> Json:
        """Return the gateway's state; empty if it cannot be read, for example while it changes."""
        try:
            return self._describe()
        except Exception as error:
            log.debug("cannot describe the gateway for its status file: %s", error)
            return {}


def describe_gateway(
    runtime: Runtime, gateway: Gateway | None, redact: Callable[[str], str], **about: str
) -> Json:
    """Return the state of a gateway's servers and clients, without secrets.

    Tools are counted as `toolfold tools list` lists them: those that the settings let sessions use.
    """
    snapshot, off = runtime.registry.snapshot(), runtime.switched_off()
    usable = Counter(
        tool.source.name
        for name, tool in snapshot.items()
        if tool.source.kind == MCP_SOURCE and name not in off
    )
    servers = [
        {
            "name": each.name,
            "state": each.state,
            "tools": usable[each.name],
            "listed": each.tools,
            "held": each.held,
            "error": redact(each.error)[:MAX_ERROR_CHARS],
        }
        for each in runtime.mcp.states()
    ]
    sessions = [each for each in gateway.client_sessions() if not each.is_gone] if gateway else []
    clients = [
        {
            "name": session.display_name,
            "token": "" if session.client.name == "stdio" else session.client.name,
            "toolsets": session.client.toolsets,
            "tools": len(session.session.granted()),
            "busy": session.is_busy,
        }
        for session in sessions[:MAX_CLIENTS_REPORTED]
    ]
    return {**about, "servers": servers, "clients": clients}


def read_statuses(folder: Path) -> list[Json]:
    """Return the status of each running gateway, oldest first."""
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
    """Return True if this user has a running process with this id."""
    if os.name != "posix":  # on Windows, os.kill would end the process
        return True
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return pid > 0


def format_local_time() -> str:
    """Return the current local time as text."""
    return time.strftime("%Y-%m-%d %H:%M:%S")
