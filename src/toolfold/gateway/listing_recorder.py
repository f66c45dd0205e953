"""Keeps the record of listing answers up to date while the gateway serves its client over stdio.

Sees every message in both directions. Drops the gateway's own answers to requests that were answered from the
record, and tells the client that a list has changed if they differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from sysconfig import get_path
from typing import TYPE_CHECKING, Any

from toolfold.config.atomic import make_private_folder, replace
from toolfold.config.trust import PLUGINS_FOLDER, PROJECT_FILE
from toolfold.errors import ToolfoldError
from toolfold.gateway.listing_record import (
    LISTINGS,
    MAX_FILES,
    MAX_INPUTS,
    RECORDED,
    ListingRecord,
    ListingRequest,
    digest_inputs,
    parse_request,
)

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.gateway.server import Gateway
    from toolfold.runtime import Runtime

SAVE_DELAY_S = 0.2
"""Answers that follow each other closely are written at once."""
MAX_PENDING = 100

Answered = dict[tuple[str, int | str], tuple[str, str]]


class ListingRecorder:
    """Listing answers of one connection. Without a file it records nothing."""

    def __init__(self, file: Path | None, gateway: Gateway, answered: Answered) -> None:
        self._gateway, self._answered = gateway, answered
        self._record = ListingRecord(file) if file else None
        if self._record:
            self._record.read()
        self._pending: dict[tuple[str, int | str], ListingRequest] = {}
        self._client = ""
        """What the client declared with `initialize`."""
        self.is_input_closed = False
        """Set at the end of input: requests that are cut short then say nothing about the lists."""
        self._saving: asyncio.Task[None] | None = None
        self._telling: set[asyncio.Task[None]] = set()
        gateway.on_list_changed = self.forget

    def see_message(self, message: Any) -> None:
        """Note a request of the client's whose answer is to be recorded."""
        id_, method = getattr(message, "id", None), getattr(message, "method", None)
        request = parse_request(method, id_, getattr(message, "params", None))
        if request is None or request.method not in RECORDED:
            return
        if request.method == "initialize":
            self._client = request.client
        if len(self._pending) < MAX_PENDING:
            self._pending[request.key] = request

    def is_answered(self, message: Any) -> bool:
        """Record an answer of the gateway's. Return whether the client has one to the same request."""
        id_ = getattr(message, "id", None)
        if hasattr(message, "method") or not isinstance(id_, int | str):
            return False
        key = type(id_).__name__, id_
        request, early = self._pending.pop(key, None), self._answered.pop(key, None)
        result = _result_text(message) if request or early else None
        if request:
            self._keep(request, result)
        if early and _differ(result, early[1]):
            self._tell(LISTINGS.get(early[0]))
        return early is not None

    def forget(self, kind: str) -> None:
        """Drop the answers of this kind: the client is told that they hold no longer."""
        for answers in self._record.clients.values() if self._record else ():
            for method in [each for each in answers if LISTINGS.get(each) == kind]:
                del answers[method]
        self._save_soon()

    async def close(self) -> None:
        """Write what is not written yet."""
        if self._saving is not None and not self._saving.done():
            self._saving.cancel()
            await asyncio.to_thread(self._save)

    def _keep(self, request: ListingRequest, result: str | None) -> None:
        if self._record is None or (result is None and self.is_input_closed):
            return
        client = request.client or self._client
        answers = self._record.clients.pop(client, {})
        self._record.clients[client] = answers  # the latest client is the last
        if result is None:
            answers.pop(request.method, None)
        elif answers.get(request.method) != result:
            answers[request.method] = result
        else:
            return
        self._save_soon()

    def _tell(self, kind: str | None) -> None:
        if kind is None or self.is_input_closed:
            return
        task = asyncio.create_task(self._gateway.tell_changed(kind))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    def _save_soon(self) -> None:
        if self._record is not None and (self._saving is None or self._saving.done()):
            self._saving = asyncio.create_task(self._save_later())

    async def _save_later(self) -> None:
        await asyncio.sleep(SAVE_DELAY_S)
        await asyncio.to_thread(self._save)

    def _save(self) -> None:
        """Write the file. Without it the next start takes longer, nothing else."""
        assert self._record is not None  # noqa: S101 - asked for by whoever has one
        file = self._record.file
        with contextlib.suppress(OSError, ValueError, ToolfoldError, RuntimeError):
            text = self._record.text(digest_inputs(record_inputs(self._gateway.runtime)))
            make_private_folder(file.parent)
            replace(file, text.encode(), mode=0o600)
            _prune(file.parent)


def _result_text(message: Any) -> str | None:
    """Return the result as it stands on the line; None for an error."""
    found = json.loads(message.model_dump_json(by_alias=True, exclude_unset=True)).get("result")
    return None if found is None else json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def _differ(result: str | None, recorded: str) -> bool:
    return result is None or json.loads(result) != json.loads(recorded)


def record_inputs(runtime: Runtime) -> Iterator[Path]:
    """Yield every file and folder that decides what clients are shown."""
    config = runtime.config
    yield config.paths.user_file
    yield config.paths.state_dir / "trust.json"
    yield from _project_files(config)
    for folder in (config.plugins_folder, config.paths.project_dir / PLUGINS_FOLDER):
        yield from _below(folder)
    yield from runtime.mcp.listing_files()
    if installed := get_path("purelib"):  # its names have the versions of all packages
        yield Path(installed)


def _project_files(config: Config) -> Iterator[Path]:
    """Yield where a project is looked for, as far up as one was found."""
    start = config.paths.current_dir
    for folder in (start, *start.parents):
        yield folder / PROJECT_FILE
        if folder == config.paths.project_dir:
            return
        yield folder / ".git"


def _below(folder: Path) -> Iterator[Path]:
    yield folder
    count = 0
    for each in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if "__pycache__" not in each.parts:
            yield each
            count += 1
            if count > MAX_INPUTS:
                return


def _prune(folder: Path) -> None:
    """Remove the oldest files beyond MAX_FILES."""
    files = sorted(folder.glob("*.json"), key=lambda each: each.stat().st_mtime, reverse=True)
    for each in files[MAX_FILES:]:
        each.unlink(missing_ok=True)
