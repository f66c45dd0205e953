"""The lock file: what each server's tools were when somebody accepted them.

One JSON file that people can read, compare and commit, beside the file that declares the server. The same
pins give the same bytes, whoever writes them. A tool's hash decides; its definition is kept beside it to show
what has changed. A version that differs harmlessly is recorded beside the accepted one and never takes its
place, so that later versions are still compared with what a person accepted. A file that cannot be read is an
error: taken for an empty one, it would accept everything. Decides nothing itself.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from toolfold.config.atomic import locked, replace
from toolfold.config.authority import require_user
from toolfold.config.fingerprints import ABSENT, fingerprint_of
from toolfold.config.record import ADVICE, SettingsRecord
from toolfold.config.settings import Config
from toolfold.errors import ConfigError
from toolfold.model import Json, read_json
from toolfold.provenance import find_tool_call
from toolfold.sources.mcp.offers import Offer, read_offer

LOCK_FILE = "toolfold.lock"
VERSION = 1
LARGEST_FILE = 64_000_000  # bytes
LARGEST_DEFINITION = 100_000  # characters of JSON; a longer one is kept as its hash alone

_NOTE = "Written by toolfold. What each MCP server's tools were when they were accepted."
_REPAIR = "restore it from version control, or delete it to have every server's tools pinned anew"


@dataclass(frozen=True, slots=True)
class Pin:
    """One tool as it was accepted."""

    fingerprint: str
    offer: Offer | None = None
    """The whole of it, unless it was too long to keep."""
    update: Pin | None = None
    """A version with harmless changes only, which was accepted without asking."""

    def accepts(self, fingerprint: str) -> bool:
        """Whether this version may be used."""
        return fingerprint == self.fingerprint or (
            self.update is not None and fingerprint == self.update.fingerprint
        )


Pins = Mapping[str, Pin]
_Blocks = dict[str, dict[str, Pin]]
_Texts = dict[str, tuple[Pins, str]]
"""How blocks were written, to write them again."""
_NOTHING: Pins = MappingProxyType({})


def lock_file(config: Config, server: str) -> Path:
    """Where a server is pinned: with the project if its file declares the server, else with the user's."""
    declared = config.origins.get(f"mcp.servers.{server}", "")
    project = config.paths.project_file
    if project is not None and declared.startswith(f"project file {project}:"):
        return project.parent / LOCK_FILE
    return config.paths.config_dir / LOCK_FILE


class Lock:
    """One lock file, read anew whenever it has changed. Safe for several threads and processes."""

    def __init__(self, file: Path, record: SettingsRecord | None = None) -> None:
        """With a `record`, a change of the file that Toolfold did not make itself is an error."""
        self.file, self._record = file, record
        self._fingerprint, self._last_step = "", 0
        self._guard = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._blocks: _Blocks = {}
        self._texts: _Texts = {}

    def pins(self, server: str) -> Pins | None:
        """The accepted tools of a server; None if nobody has accepted it yet. Raises ConfigError."""
        with self._guard:
            found = self._read().get(server)
            return None if found is None else MappingProxyType(found)

    def begin(self, server: str, offers: Iterable[Offer]) -> Pins:
        """Pin a server that has no pins yet. Where it has some by now, those stand.

        In a process that a tool call has started nothing is written: the pins hold for this process.
        """
        if find_tool_call():
            return self.pins(server) or MappingProxyType(_pinned(offers))

        def begun(blocks: _Blocks) -> None:
            if server not in blocks:
                blocks[server] = _pinned(offers)

        return self._change(begun).get(server, _NOTHING)

    def accept(self, server: str, offers: Iterable[Offer]) -> None:
        """Pin these as they are now, beside what is pinned already."""
        require_user(f"accepting tools of the MCP server {server!r}")

        def accepted(blocks: _Blocks) -> None:
            blocks[server] = {**blocks.get(server, {}), **_pinned(offers)}

        self._change(accepted)

    def record_updates(self, server: str, offers: Iterable[Offer], compared: Pins) -> None:
        """Record versions that differ harmlessly from these pins. A pin that is another one by now stands.

        In a process that a tool call has started nothing is written.
        """
        if find_tool_call():
            return

        def recorded(blocks: _Blocks) -> None:
            block = dict(blocks.get(server, {}))
            for offer in offers:
                pin = block.get(offer.name)
                if pin is not None and pin.fingerprint == compared[offer.name].fingerprint:
                    update = Pin(offer.fingerprint, _kept(offer))
                    block[offer.name] = Pin(pin.fingerprint, pin.offer, update)
            if server in blocks:
                blocks[server] = block

        self._change(recorded)

    def forget(self, server: str) -> bool:
        """Remove all of a server. False if it was not pinned."""
        require_user(f"forgetting the tools of the MCP server {server!r}")
        if self.pins(server) is None:
            return False
        self._change(lambda blocks: blocks.pop(server, None))
        return True

    def _change(self, change: Callable[[_Blocks], object]) -> _Blocks:
        with self._guard, locked(self.file.parent):
            before = self._read()
            after = dict(before)  # a change puts another block in a block's place
            change(after)
            if after != before:
                content = written(after, self._texts)
                step = 0 if self._record is None else self._record.note_change(self.file, content)
                replace(self.file, content)
                self._keep(after, _seen(self.file), fingerprint_of(content), step)
            return after

    def _read(self) -> _Blocks:
        try:
            seen = _seen(self.file)
            if seen != self._seen:
                step = self._newest_step()
                content = self._content()
                self._require_own(fingerprint_of(content))
                self._keep(_understood(content, self.file), seen, fingerprint_of(content), step)
        except FileNotFoundError:
            if self._fingerprint != ABSENT:
                step = self._newest_step()
                self._require_own(ABSENT)
                self._keep({}, None, ABSENT, step)
        except OSError as error:
            raise _broken(f"cannot be read: {error.strerror}", self.file) from None
        return self._blocks

    def _keep(self, blocks: _Blocks, seen: tuple[int, ...] | None, fingerprint: str, step: int) -> None:
        self._blocks, self._seen, self._fingerprint, self._last_step = blocks, seen, fingerprint, step

    def _newest_step(self) -> int:
        return 0 if self._record is None else self._record.last_step()

    def _require_own(self, now: str) -> None:
        """Raise where the file was changed since it was first read, and not by Toolfold."""
        if self._record is None or not self._fingerprint:
            return
        if self._record.is_own_change(self.file, self._fingerprint, now, since=self._last_step):
            return
        raise ConfigError("the lock file was changed, and not by Toolfold", file=str(self.file), hint=ADVICE)

    def _content(self) -> bytes:
        with self.file.open("rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise _broken(f"is larger than {LARGEST_FILE:,} bytes", self.file)
        return content


def _seen(file: Path) -> tuple[int, ...]:
    state = file.stat()
    return state.st_mtime_ns, state.st_size, state.st_ino


def written(blocks: Mapping[str, Pins], texts: _Texts | None = None) -> bytes:
    """The file's bytes. In ASCII, so that a character nobody sees is seen in a review.

    `texts` remembers blocks: with many servers, most are written as they were.
    """
    texts = {} if texts is None else texts
    for server, pins in blocks.items():
        if server not in texts or texts[server][0] is not pins:
            texts[server] = pins, _text(pins)
    servers = ",".join(f"\n    {json.dumps(server)}: {texts[server][1]}" for server in sorted(blocks))
    listed = f"{{{servers}\n  }}" if servers else "{}"
    return (
        f'{{\n  "note": {json.dumps(_NOTE)},\n  "servers": {listed},\n  "version": {VERSION}\n}}\n'.encode()
    )


def _text(pins: Pins) -> str:
    block = {"tools": {name: _plain(pin) for name, pin in pins.items()}}
    text = json.dumps(block, indent=2, sort_keys=True, ensure_ascii=True)
    return text.replace("\n", "\n    ")  # no line break stands inside a JSON string


def _plain(pin: Pin) -> Json:
    said: Json = {"hash": pin.fingerprint}
    if pin.offer is not None:
        said["definition"] = pin.offer.plain()
    if pin.update is not None:
        said["update"] = _plain(pin.update)
    return said


def _pinned(offers: Iterable[Offer]) -> dict[str, Pin]:
    return {offer.name: Pin(offer.fingerprint, _kept(offer)) for offer in offers}


def _kept(offer: Offer) -> Offer | None:
    return offer if len(json.dumps(offer.plain())) <= LARGEST_DEFINITION else None


def _understood(content: bytes, file: Path) -> _Blocks:
    try:
        found = read_json(content.decode(), keys_once=True)
    except (ValueError, RecursionError):
        raise _broken("is no JSON, or a merge has left its marks in it", file) from None
    if not isinstance(found, dict) or not isinstance(found.get("servers"), dict):
        raise _broken("has no `servers`", file)
    if found.get("version") != VERSION:
        raise ConfigError(
            f"the lock file has version {found.get('version')!r}; this is a toolfold for version {VERSION}",
            file=str(file),
            hint="use the toolfold that wrote it, or a newer one",
        )
    return {server: _block(server, block, file) for server, block in found["servers"].items()}


def _block(server: str, block: Any, file: Path) -> dict[str, Pin]:
    tools = block.get("tools") if isinstance(block, dict) else None
    if not isinstance(tools, dict):
        raise _broken(f"has no `tools` for the server {server!r}", file)
    return {name: _pin(server, name, pin, file) for name, pin in tools.items()}


def _pin(server: str, name: str, pin: Any, file: Path) -> Pin:
    known = pin.get("hash") if isinstance(pin, dict) else None
    if not isinstance(known, str) or not known.startswith("sha256:"):
        raise _broken(f"has no hash for {name!r} of the server {server!r}", file)
    update = _pin(server, name, {**pin["update"], "update": None}, file) if _has_update(pin) else None
    if "definition" not in pin:
        return Pin(known, None, update)
    try:
        offer = read_offer(pin["definition"])
    except ValueError as error:
        raise _broken(f"has an unusable definition of the server {server!r}: {error}", file) from None
    if offer.name != name or offer.fingerprint != known:
        # What a person compared and what is let through must be one and the same.
        raise _broken(f"has a hash for {name!r} of the server {server!r} that is not its definition's", file)
    return Pin(known, offer, update)


def _has_update(pin: Any) -> bool:
    return isinstance(pin.get("update"), dict)


def _broken(problem: str, file: Path) -> ConfigError:
    return ConfigError(f"the lock file {problem}", file=str(file), hint=_REPAIR)
