"""Cache the tool lists of MCP servers on disk, so that tools are known before servers start.

One file for each server and start configuration: with other arguments it is another server. Cached data is
validated like data from the server. A file that cannot be read counts as missing. `shared_listings` stores
the same lists in the database that replicas share.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from toolfold.config.atomic import replace_file
from toolfold.config.servers_settings import McpServerSettings
from toolfold.core.errors import ToolfoldError
from toolfold.core.types import Json, read_json
from toolfold.mcp.tool_listing import Listing, parse_tools

MAX_CACHE_FILE_BYTES = 50_000_000
FORMAT_VERSION = 3
DIGEST_CHARS = 16
"""Length of the hash of the start configuration in the name of a file."""
START_SETTINGS = frozenset(
    {"command", "args", "env", "pass_env", "cwd", "url", "transport", "protocol", "headers", "credentials"}
)
"""Settings on which the tools that a server lists may depend. A list is used only with the same ones."""
LISTING_ERRORS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors that `parse_listing` raises for damaged data."""


class ListingCache:
    """Cached tool lists of all MCP servers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, name: str, settings: McpServerSettings) -> tuple[Listing, float] | None:
        """Return a server's cached tool list and its age in seconds, or None."""
        try:
            file = self.listing_file(name, settings)
            status = file.stat()
            if status.st_size > MAX_CACHE_FILE_BYTES:
                return None
            return parse_listing(file.read_text("utf-8")), max(0.0, time.time() - status.st_mtime)
        except (OSError, *LISTING_ERRORS):
            return None

    def write(self, name: str, settings: McpServerSettings, listing: Listing, *, age_s: float = 0.0) -> None:
        """Store a server's tool list. Write errors are ignored, because the cache only saves time.

        The same listing gives the same content, so that files can be compared; the age is that of the file.
        """
        with contextlib.suppress(OSError, ToolfoldError):
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = self.listing_file(name, settings)
            replace_file(file, serialize_listing(listing, ascii_only=False).encode(), mode=0o600)
            if age_s:
                os.utime(file, (time.time(), time.time() - age_s))
            file.with_suffix(".failed").unlink(missing_ok=True)

    def read_item_lists(self, name: str, settings: McpServerSettings) -> dict[str, list[Json]]:
        """Return a server's cached resources, templates and prompts by list method (`prompts/list` …)."""
        try:
            file = self.item_lists_file(name, settings)
            if file.stat().st_size > MAX_CACHE_FILE_BYTES:
                return {}
            data = read_json(file.read_text("utf-8"))
            if data["format"] != FORMAT_VERSION:
                return {}
            return {method: [dict(item) for item in data["lists"][method]] for method in data["lists"]}
        except (OSError, *LISTING_ERRORS):
            return {}

    def write_item_lists(
        self, name: str, settings: McpServerSettings, lists: Mapping[str, list[Json]]
    ) -> None:
        """Store a server's resources, templates and prompts."""
        with contextlib.suppress(OSError, ToolfoldError):
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            text = json.dumps({"format": FORMAT_VERSION, "lists": lists}, ensure_ascii=False)
            replace_file(self.item_lists_file(name, settings), text.encode(), mode=0o600)

    def has_failed(self, name: str, settings: McpServerSettings) -> bool:
        """Return True if the last attempt to list the server's tools failed."""
        return self.listing_file(name, settings).with_suffix(".failed").exists()

    def record_failure(self, name: str, settings: McpServerSettings) -> None:
        """Record that listing the server's tools failed."""
        with contextlib.suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.listing_file(name, settings).with_suffix(".failed").touch()

    def clear_failure(self, name: str) -> None:
        """Delete the record that listing the server's tools failed."""
        for file in self._list_files(name):
            if file.suffix == ".failed":
                file.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        """Delete all cached files of a server that was removed or changed."""
        for file in self._list_files(name):
            file.unlink(missing_ok=True)

    def _list_files(self, name: str) -> list[Path]:
        """Return all cached files of a server, but no files of servers whose names start with its name."""
        own = re.compile(rf"{re.escape(name)}-[0-9a-f]{{{DIGEST_CHARS}}}\..*")
        files = self._directory.iterdir() if self._directory.is_dir() else ()
        return [each for each in files if own.fullmatch(each.name)]

    def listing_file(self, name: str, settings: McpServerSettings) -> Path:
        """Return the file in which a server's tool list is cached."""
        start_settings = settings.model_dump_json(include=set(START_SETTINGS))
        digest = hashlib.sha256(f"{name} {start_settings}".encode()).hexdigest()
        return self._directory / f"{name}-{digest[:DIGEST_CHARS]}.json"

    def item_lists_file(self, name: str, settings: McpServerSettings) -> Path:
        """Return the cache file of a server's resources, templates and prompts."""
        return self.listing_file(name, settings).with_suffix(".items.json")


def serialize_listing(listing: Listing, *, ascii_only: bool = True) -> str:
    """Serialize a tool list as JSON; equal lists give equal texts."""
    plain: Json = {
        "format": FORMAT_VERSION,
        "tools": [tool.to_json() for tool in listing.tools],
        "instructions": listing.instructions,
        "resources": listing.has_resources,
        "prompts": listing.has_prompts,
        "protocol": listing.protocol,
        "version": listing.version,
        "problems": listing.problems,
    }
    return json.dumps(plain, ensure_ascii=ascii_only)


def parse_listing(text: str) -> Listing:
    """Parse a tool list from JSON and validate its tools. Raises one of LISTING_ERRORS."""
    data: Json = read_json(text)
    if data["format"] != FORMAT_VERSION:
        raise ValueError("the stored tool list has another format version")
    tools, _ = parse_tools(data["tools"])
    return Listing(
        tools=tools,
        instructions=str(data["instructions"]),
        has_resources=data["resources"] is True,
        has_prompts=data["prompts"] is True,
        protocol=str(data["protocol"]),
        version=str(data["version"]),
        problems=tuple(map(str, data.get("problems", ()))),
    )
