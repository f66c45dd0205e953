"""One server's entry in another program's file, taken apart piece by piece.

What is asked for is taken and checked; what nobody asked for is left, and told of at the end. Knows no
program: which pieces an entry has, and what they mean, is said by whoever reads it.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from toolfold.config.servers import McpServerSettings, parse_server_settings
from toolfold.errors import shorten
from toolfold.model import Json, encodable
from toolfold.sources.mcp.importing.types import ClientConfigFile, ImportedServer, RejectedEntryError
from toolfold.sources.mcp.importing.variables import Variables

_TRANSPORTS = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamablehttp": "http",
    "remote": "http",
    "sse": "sse",
}
_LONGEST_REMARK = 300


class EntryReader:
    """What a file says of one server, while it is read."""

    def __init__(self, held: Any, variables: Variables) -> None:
        if not isinstance(held, Mapping):
            raise RejectedEntryError("it is not described by a map")
        self._left = dict(held)
        self.variables = variables
        self.settings: Json = {}
        self.remarks: list[str] = []

    def translated(self, text: str, *, is_value: bool = False) -> str:
        return self.variables.translated(text, self.remarks, is_value=is_value)

    def take(self, *keys: str) -> Any:
        """The first of these that says something; all of them count as read."""
        said = [self._left.pop(key, None) for key in keys]
        return next((each for each in said if each not in (None, "", [], {})), None)

    def has(self, *keys: str) -> bool:
        """Whether one of these keys has a value that was not read yet."""
        return any(self._left.get(key) not in (None, "") for key in keys)

    def text(self, *keys: str, is_value: bool = False) -> str:
        held = self.take(*keys)
        if held is None:
            return ""
        if not isinstance(held, str):
            raise RejectedEntryError(f"{keys[0]} is not text")
        return self.translated(held, is_value=is_value)

    def texts(self, *keys: str) -> list[str]:
        held = self.take(*keys) or []
        if not isinstance(held, list) or not all(_is_plain(each) for each in held):
            raise RejectedEntryError(f"{keys[0]} is not a list of text")
        return [self.translated(_as_text(each)) for each in held]

    def names(self, *keys: str) -> list[str]:
        """A list of names, in which nothing is looked up; one name alone, or several in one text, will do."""
        held = self.take(*keys) or []
        held = held.split() if isinstance(held, str) else held
        if not isinstance(held, list) or not all(isinstance(each, str) for each in held):
            raise RejectedEntryError(f"{keys[0]} is not a list of names")
        return held

    def pairs(self, *keys: str) -> dict[str, str]:
        held = self.take(*keys) or {}
        if not isinstance(held, Mapping) or not all(
            each is None or _is_plain(each) for each in held.values()
        ):
            raise RejectedEntryError(f"{keys[0]} is not a map of text")
        return {
            name: self.translated(_as_text(each), is_value=True)
            for name, each in held.items()
            if each is not None
        }

    def map(self, *keys: str) -> Mapping[str, Any]:
        held = self.take(*keys) or {}
        if not isinstance(held, Mapping):
            raise RejectedEntryError(f"{keys[0]} is not a map")
        return held

    def is_set(self, *keys: str) -> bool | None:
        held = self.take(*keys)
        return held if isinstance(held, bool) else None

    def seconds(self, key: str, setting: str, *, per_second: float = 1) -> None:
        """A time limit, brought between the bounds of ours."""
        held = self.take(key)
        if held is None:
            return
        if (
            isinstance(held, bool)
            or not isinstance(held, (int, float))
            or not math.isfinite(held)
            or held <= 0
        ):
            self.remark(f"{key} is no time limit and is left out")
            return
        wanted = _bounded(held / per_second, setting)
        self.settings[setting] = wanted
        if wanted > _default("max_call_seconds") and setting == "call_timeout_seconds":
            self.settings["max_call_seconds"] = wanted

    def globs(self, key: str, setting: str) -> None:
        """Names of tools, which are globs for us."""
        if names := self.names(key):
            self.settings[setting] = [glob.escape(name) for name in names]

    def put(self, setting: str, value: Any) -> None:
        """What says nothing is not written."""
        if value not in (None, "", [], {}):
            self.settings[setting] = value

    def remark(self, text: str) -> None:
        self.remarks.append(text)

    def ignore(self, *keys: str) -> None:
        """What has no meaning for us, and that nobody misses."""
        for key in keys:
            self._left.pop(key, None)

    def reached(self, transport: str, *, url: str) -> None:
        """How the server is reached, by the word another program has for it."""
        known = _TRANSPORTS.get(transport.lower()) if transport else None
        if transport and known is None:
            raise RejectedEntryError(
                f"it is reached by {shorten(transport, 40)!r}, which Toolfold does not speak"
            )
        if known == "sse" or (known is None and url.split("?")[0].rstrip("/").endswith("/sse")):
            self.settings["transport"] = "sse"
        if known == "stdio" and url and not self.settings.get("command"):
            raise RejectedEntryError("it is to be started, and has only an address")

    def left(self) -> list[str]:
        """What nobody asked for."""
        return [f"{shorten(str(key), 60)} has no counterpart and is left out" for key in self._left]

    def done(self, name: str, place: ClientConfigFile) -> ImportedServer:
        """The finished server. Raises RejectedEntryError where our settings cannot say it."""
        self.remarks += self.left()
        try:
            parse_server_settings(self.settings)
        except ValidationError as error:
            raise RejectedEntryError(_why(error)) from None
        remarks = tuple(dict.fromkeys(shorten(encodable(each), _LONGEST_REMARK) for each in self.remarks))
        return ImportedServer(name, place, self.settings, remarks)


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float))


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _default(setting: str) -> float:
    default: float = McpServerSettings.model_fields[setting].default
    return default


def _bounded(seconds: float, setting: str) -> float:
    from toolfold.config.describe import number_bounds

    low, high = number_bounds(McpServerSettings.model_fields[setting]) or (seconds, seconds)
    return round(float(min(max(seconds, low), high)), 3)


def _why(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(each) for each in first["loc"])
    said = encodable(first["msg"].removeprefix("Value error, "))
    return shorten(encodable(f"{where}: {said}" if where else said), _LONGEST_REMARK)
