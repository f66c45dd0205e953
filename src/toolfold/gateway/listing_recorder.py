"""Keep the recorded answers to list requests up to date while the gateway is running.

`AnswerRecorder` writes the record. `ListingRecorder` sees every message of the client over stdio in both
directions: it drops the gateway's own answers to requests that were answered from the record, and notifies
the client that a list has changed if they differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from sysconfig import get_path
from typing import TYPE_CHECKING

from toolfold.config.atomic import make_private_directory, replace_file
from toolfold.config.record import SettingsRecord
from toolfold.config.trust import PLUGINS_DIR, PROJECT_FILE
from toolfold.errors import ToolfoldError
from toolfold.gateway.listing_record import (
    LISTINGS,
    MAX_FILES,
    MAX_INPUTS,
    RECORDED,
    HttpStart,
    ListingRecord,
    ListingRequest,
    digest_inputs,
    parse_request,
)

if TYPE_CHECKING:
    from mcp_types import JSONRPCMessage

    from toolfold.config import Config
    from toolfold.gateway.server import Gateway
    from toolfold.runtime import Runtime

SAVE_DELAY_S = 0.2
"""Answers that follow within this time are written together."""
MAX_PENDING = 100

Answered = dict[tuple[str, int | str], tuple[str, str]]


class AnswerRecorder:
    """Records answers to list requests in a file; does nothing if there is no file."""

    def __init__(self, file: Path | None, gateway: Gateway, http: HttpStart | None = None) -> None:
        self._gateway = gateway
        self._record = ListingRecord(file) if file else None
        if self._record:
            self._record.read()
            self._record.http = http
        self._save_task: asyncio.Task[None] | None = None
        self._notifying: set[asyncio.Task[None]] = set()
        gateway.on_list_changed = self.drop_answers

    def record_result(self, client: str, method: str, result: str | None) -> None:
        """Record the gateway's list result for a client; None removes the recorded result."""
        if self._record is not None and self._record.record_result(client, method, result):
            self._schedule_save()

    def drop_answers(self, kind: str) -> None:
        """Remove the recorded answers for a kind of list, such as tools, because that list has changed."""
        for answers in self._record.clients.values() if self._record else ():
            for method in [each for each in answers if LISTINGS.get(each) == kind]:
                del answers[method]
        self._schedule_save()

    def compare_answer(self, method: str, result: str | None, recorded: str) -> None:
        """Notify clients of a changed list if the result differs from the recorded result sent to them."""
        kind = LISTINGS.get(method)
        if kind is None or not _has_changed(result, recorded):
            return
        task = asyncio.create_task(self._gateway.notify_list_changed(kind))
        self._notifying.add(task)
        task.add_done_callback(self._notifying.discard)

    async def close(self) -> None:
        """Save unsaved answers to the record file."""
        if self._save_task is not None and not self._save_task.done():
            self._save_task.cancel()
            await asyncio.to_thread(self._write_record)

    def _schedule_save(self) -> None:
        if self._record is not None and (self._save_task is None or self._save_task.done()):
            self._save_task = asyncio.create_task(self._save_after_delay())

    async def _save_after_delay(self) -> None:
        await asyncio.sleep(SAVE_DELAY_S)
        await asyncio.to_thread(self._write_record)

    def _write_record(self) -> None:
        """Write the record file; ignore errors, because the gateway works without a record."""
        assert self._record is not None  # noqa: S101 - only scheduled if there is a record
        file, http = self._record.file, self._record.http
        with contextlib.suppress(OSError, ValueError, ToolfoldError, RuntimeError):
            inputs = list_record_inputs(self._gateway.runtime, has_tokens=http is not None)
            text = self._record.to_json(digest_inputs(inputs))
            make_private_directory(file.parent)
            replace_file(file, text.encode(), mode=0o600)
            _remove_old_files(file.parent)


class ListingRecorder(AnswerRecorder):
    """Records answers to a stdio client's list requests, for use by the next gateway process."""

    def __init__(self, file: Path | None, gateway: Gateway, answered: Answered) -> None:
        super().__init__(file, gateway)
        self._answered = answered
        self._pending: dict[tuple[str, int | str], ListingRequest] = {}
        self._client = ""
        """Digest of what the client declared with `initialize`."""
        self.is_input_closed = False
        """Set at the end of input: errors of requests that are cancelled then are not recorded."""

    def see_message(self, message: JSONRPCMessage) -> None:
        """Store a client's request if its answer will be recorded."""
        id_, method = getattr(message, "id", None), getattr(message, "method", None)
        request = parse_request(method, id_, getattr(message, "params", None))
        if request is None or request.method not in RECORDED:
            return
        if request.method == "initialize":
            self._client = request.client
        if len(self._pending) < MAX_PENDING:
            self._pending[request.key] = request

    def record_answer(self, message: JSONRPCMessage) -> bool:
        """Record the gateway's answer to a list request; return True if the client already has an answer."""
        id_ = getattr(message, "id", None)
        if hasattr(message, "method") or not isinstance(id_, int | str):
            return False
        key = type(id_).__name__, id_
        request, early = self._pending.pop(key, None), self._answered.pop(key, None)
        result = _result_text(message) if request or early else None
        if request and not (result is None and self.is_input_closed):
            self.record_result(request.client or self._client, request.method, result)
        if early and not self.is_input_closed:
            self.compare_answer(early[0], result, early[1])
        return early is not None


def _result_text(message: JSONRPCMessage) -> str | None:
    """Return the result in a JSON-RPC response of the SDK as JSON text; None for an error response."""
    return format_result(json.loads(message.model_dump_json(by_alias=True, exclude_unset=True)))


def format_result(response: dict[str, object]) -> str | None:
    """Return the result in a parsed JSON-RPC response as JSON text; None for an error response."""
    found = response.get("result")
    return None if found is None else json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def _has_changed(result: str | None, recorded: str) -> bool:
    return result is None or json.loads(result) != json.loads(recorded)


def list_record_inputs(runtime: Runtime, *, has_tokens: bool) -> Iterator[Path]:
    """Yield every file and directory that influences the lists sent to clients.

    With `has_tokens`, also those that decide whether clients need a token.
    """
    config = runtime.config
    if has_tokens:
        yield config.paths.state_dir / "gateway" / "tokens.json"
        yield SettingsRecord(config.paths.state_dir).file
    yield config.paths.user_file
    yield config.paths.state_dir / "trust.json"
    yield from _project_files(config)
    for folder in (config.plugins_folder, config.paths.project_dir / PLUGINS_DIR):
        yield from _walk_directory(folder)
    yield from runtime.mcp.listing_files()
    if installed := get_path("purelib"):  # its entries contain the versions of all packages
        yield Path(installed)


def _project_files(config: Config) -> Iterator[Path]:
    """Yield the paths that were searched for a project's settings file or repository."""
    start = config.paths.current_dir
    for folder in (start, *start.parents):
        yield folder / PROJECT_FILE
        if folder == config.paths.project_dir:
            return
        yield folder / ".git"


def _walk_directory(folder: Path) -> Iterator[Path]:
    yield folder
    count = 0
    for each in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if "__pycache__" not in each.parts:
            yield each
            count += 1
            if count > MAX_INPUTS:
                return


def _remove_old_files(folder: Path) -> None:
    """Delete the oldest record files above the limit MAX_FILES."""
    files = sorted(folder.glob("*.json"), key=lambda each: each.stat().st_mtime, reverse=True)
    for each in files[MAX_FILES:]:
        each.unlink(missing_ok=True)
