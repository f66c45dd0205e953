"""Read one server's entry in another client's configuration file, key by key.

Keys that are read are checked; keys that no reader asks for are reported at the end. Knows no client: the
format modules decide which keys exist and what they mean.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from toolfold.config.servers_settings import McpServerSettings, parse_server_settings
from toolfold.core.errors import shorten
from toolfold.core.types import Json, make_encodable
from toolfold.mcp.importing.import_types import ClientConfigFile, ImportedServer, RejectedEntryError
from toolfold.mcp.importing.variables import Variables

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
_MAX_REMARK_CHARS = 300


class EntryReader:
    """Reads one server's entry in a configuration file; collects its settings and remarks for the user."""

    def __init__(self, entry: Any, variables: Variables) -> None:
        if not isinstance(entry, Mapping):
            raise RejectedEntryError("the server's entry is not a mapping")
        self._unread = dict(entry)
        self.variables = variables
        self.settings: Json = {}
        self.remarks: list[str] = []

    def translate(self, text: str, *, is_value: bool = False) -> str:
        return self.variables.translate(text, self.remarks, is_value=is_value)

    def take(self, *keys: str) -> Any:
        """Return the first non-empty value of the given keys of the entry, and mark these keys as read."""
        values = [self._unread.pop(key, None) for key in keys]
        return next((value for value in values if value not in (None, "", [], {})), None)

    def has(self, *keys: str) -> bool:
        """Return True if the entry has an unread value for one of the keys."""
        return any(self._unread.get(key) not in (None, "") for key in keys)

    def read_text(self, *keys: str, is_value: bool = False) -> str:
        value = self.take(*keys)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise RejectedEntryError(f"{keys[0]} is not text")
        return self.translate(value, is_value=is_value)

    def read_texts(self, *keys: str) -> list[str]:
        value = self.take(*keys) or []
        if not isinstance(value, list) or not all(_is_scalar(item) for item in value):
            raise RejectedEntryError(f"{keys[0]} is not a list of strings")
        return [self.translate(_as_text(item)) for item in value]

    def read_names(self, *keys: str) -> list[str]:
        """Return a list of names from the entry without expanding variables; a string is split at spaces."""
        value = self.take(*keys) or []
        value = value.split() if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise RejectedEntryError(f"{keys[0]} is not a list of names")
        return value

    def read_pairs(self, *keys: str) -> dict[str, str]:
        value = self.take(*keys) or {}
        if not isinstance(value, Mapping) or not all(
            each is None or _is_scalar(each) for each in value.values()
        ):
            raise RejectedEntryError(f"{keys[0]} is not a mapping of names to strings")
        return {
            name: self.translate(_as_text(each), is_value=True)
            for name, each in value.items()
            if each is not None
        }

    def read_mapping(self, *keys: str) -> Mapping[str, Any]:
        value = self.take(*keys) or {}
        if not isinstance(value, Mapping):
            raise RejectedEntryError(f"{keys[0]} is not a mapping")
        return value

    def read_flag(self, *keys: str) -> bool | None:
        value = self.take(*keys)
        return value if isinstance(value, bool) else None

    def read_seconds(self, key: str, setting: str, *, per_second: float = 1) -> None:
        """Read a time limit in seconds from the entry, clamped to the allowed range."""
        value = self.take(key)
        if value is None:
            return
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
            or value <= 0
        ):
            self.add_remark(f"{key} is not a valid time limit and is left out")
            return
        limit = _clamp(value / per_second, setting)
        self.settings[setting] = limit
        if limit > _default_value("max_call_seconds") and setting == "call_timeout_seconds":
            self.settings["max_call_seconds"] = limit

    def read_tool_names(self, key: str, setting: str) -> None:
        """Read the tool names of an entry; escape them for a Toolfold setting that contains glob patterns."""
        if names := self.read_names(key):
            self.settings[setting] = [glob.escape(name) for name in names]

    def set(self, setting: str, value: Any) -> None:
        """Set a value in the settings of the imported server, unless the value is empty."""
        if value not in (None, "", [], {}):
            self.settings[setting] = value

    def add_remark(self, text: str) -> None:
        self.remarks.append(text)

    def ignore(self, *keys: str) -> None:
        """Mark keys as read because they have no meaning for Toolfold."""
        for key in keys:
            self._unread.pop(key, None)

    def set_transport(self, transport: str, *, url: str) -> None:
        """Set the transport from the client's name for it. Raises RejectedEntryError for an unknown name."""
        known = _TRANSPORTS.get(transport.lower()) if transport else None
        if transport and known is None:
            raise RejectedEntryError(f"the server's transport {shorten(transport, 40)!r} is not supported")
        if known == "sse" or (known is None and url.split("?")[0].rstrip("/").endswith("/sse")):
            self.settings["transport"] = "sse"
        if known == "stdio" and url and not self.settings.get("command"):
            raise RejectedEntryError("the server's transport is stdio, but it has a URL and no command")

    def list_unread(self) -> list[str]:
        """Return a remark for each key of the entry that was not read."""
        return [f"{shorten(str(key), 60)} has no counterpart and is left out" for key in self._unread]

    def finish(self, name: str, source: ClientConfigFile) -> ImportedServer:
        """Return the imported server. Raises RejectedEntryError if its settings are not valid."""
        self.remarks += self.list_unread()
        try:
            parse_server_settings(self.settings)
        except ValidationError as error:
            raise RejectedEntryError(_describe_error(error)) from None
        remarks = tuple(
            dict.fromkeys(shorten(make_encodable(each), _MAX_REMARK_CHARS) for each in self.remarks)
        )
        return ImportedServer(name, source, self.settings, remarks)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, int, float))


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _default_value(setting: str) -> float:
    default: float = McpServerSettings.model_fields[setting].default
    return default


def _clamp(seconds: float, setting: str) -> float:
    from toolfold.config.describe import number_bounds

    low, high = number_bounds(McpServerSettings.model_fields[setting]) or (seconds, seconds)
    return round(float(min(max(seconds, low), high)), 3)


def _describe_error(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(each) for each in first["loc"])
    message = make_encodable(first["msg"].removeprefix("Value error, "))
    return shorten(make_encodable(f"{where}: {message}" if where else message), _MAX_REMARK_CHARS)
