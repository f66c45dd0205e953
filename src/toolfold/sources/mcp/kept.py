"""What servers listed when they were last asked, on disk: their tools are there before they are.

A file a server, by all that decides what is started: with other arguments it is another server. Read
without trust, as if the server said it. Whatever cannot be read is as good as not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path

from toolfold.config.atomic import replace
from toolfold.config.servers import McpServer
from toolfold.errors import ToolfoldError
from toolfold.model import Json, read_json
from toolfold.sources.mcp.offers import Listing, read_offers

LARGEST = 50_000_000
FORMAT = 3


class ListingCache:
    """The listings of all servers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str, settings: McpServer) -> tuple[Listing, float] | None:
        """What a server listed, and how many seconds ago."""
        try:
            file = self.file(name, settings)
            status = file.stat()
            if status.st_size > LARGEST:
                return None
            found = read_json(file.read_text("utf-8"))
            return _listing(found), max(0.0, time.time() - status.st_mtime)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def write(self, name: str, settings: McpServer, listing: Listing) -> None:
        """Keep a listing. A cache that cannot be written costs time, nothing else.

        The same listing gives the same content, so that others can compare it; its age is that of the file.
        """
        said: Json = {
            "format": FORMAT,
            "tools": [offer.plain() for offer in listing.offers],
            "instructions": listing.instructions,
            "resources": listing.has_resources,
            "prompts": listing.has_prompts,
            "protocol": listing.protocol,
            "version": listing.version,
            "problems": listing.problems,
        }
        with contextlib.suppress(OSError, ToolfoldError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            text = json.dumps(said, ensure_ascii=False)
            replace(self.file(name, settings), text.encode(), mode=0o600)
            self.file(name, settings).with_suffix(".failed").unlink(missing_ok=True)

    def read_item_lists(self, name: str, settings: McpServer) -> dict[str, list[Json]]:
        """Return the other lists of a server (resources, templates, prompts), by the method they answer."""
        try:
            file = self.item_lists_file(name, settings)
            if file.stat().st_size > LARGEST:
                return {}
            found = read_json(file.read_text("utf-8"))
            if found["format"] != FORMAT:
                return {}
            return {method: [dict(item) for item in found["lists"][method]] for method in found["lists"]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}

    def write_item_lists(self, name: str, settings: McpServer, lists: Mapping[str, list[Json]]) -> None:
        """Keep them."""
        with contextlib.suppress(OSError, ToolfoldError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            text = json.dumps({"format": FORMAT, "lists": lists}, ensure_ascii=False)
            replace(self.item_lists_file(name, settings), text.encode(), mode=0o600)

    def failed_before(self, name: str, settings: McpServer) -> bool:
        """Whether it could not be listed the last time: then nobody waits for it."""
        return self.file(name, settings).with_suffix(".failed").exists()

    def note_failure(self, name: str, settings: McpServer) -> None:
        """It could not be listed."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.file(name, settings).with_suffix(".failed").touch()

    def forgive(self, name: str) -> None:
        """Whatever kept it from being listed is mended: wait for it again."""
        for file in self._folder.glob(f"{name}-*.failed") if self._folder.is_dir() else ():
            file.unlink(missing_ok=True)

    def forget(self, name: str) -> None:
        """The server is gone, or was changed."""
        for file in self._folder.glob(f"{name}-*") if self._folder.is_dir() else ():
            file.unlink(missing_ok=True)

    def file(self, name: str, settings: McpServer) -> Path:
        """Return the file of a server that is started like this."""
        decides = settings.model_dump_json(
            include={"command", "args", "env", "pass_env", "cwd", "url", "transport", "headers"}
        )
        digest = hashlib.sha256(f"{name} {decides}".encode()).hexdigest()
        return self._folder / f"{name}-{digest[:16]}.json"

    def item_lists_file(self, name: str, settings: McpServer) -> Path:
        """Return the file of a server's other lists."""
        return self.file(name, settings).with_suffix(".items.json")


def _listing(found: Json) -> Listing:
    if found["format"] != FORMAT:
        raise ValueError("another form")
    offers, _ = read_offers(found["tools"])
    return Listing(
        offers=offers,
        instructions=str(found["instructions"]),
        has_resources=found["resources"] is True,
        has_prompts=found["prompts"] is True,
        protocol=str(found["protocol"]),
        version=str(found["version"]),
        problems=tuple(map(str, found.get("problems", ()))),
    )
