"""Tools and models that the tests of retrieval share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolfold.authoring import build_tool
from toolfold.model import Source, Tool
from toolfold.retrieval.embedding import FunctionEmbedder


def made(
    name: str,
    description: str = "",
    properties: Mapping[str, Any] | None = None,
    *,
    server: str = "",
    toolset: str = "user",
    **options: Any,
) -> Tool:
    """A tool that only has to be found."""
    schema: dict[str, Any] = {"description": description}
    if properties is not None:
        schema["parameters"] = {"type": "object", "properties": dict(properties)}
    source = Source("mcp", server) if server else None
    return build_tool(name=name, toolset=toolset, schema=schema, handler=len, source=source, **options)


CATALOG: tuple[Tool, ...] = (
    made("browser_navigate", "Open a web page in the browser", {"url": {"type": "string"}}),
    made("calendar_create_event", "Put an event or a reminder into the calendar at a date and time"),
    made("image_generate", "Draw a picture from a description"),
    made("memory", "Save a fact about the user for later conversations"),
    made("process", "List, poll and stop background processes that are running"),
    made("send_message", "Send a chat message to a person or a channel"),
    made("terminal", "Run a shell command on this machine", {"command": {"type": "string"}}),
    made("weather_forecast", "The weather of the coming days at a place"),
)


class Counting:
    """An embedder of letters that remembers what it was asked, and fails when told to."""

    def __init__(self, letters: str = "abcdefghijklmnopqrstuvwxyz", name: str = "letters") -> None:
        self.texts: list[str] = []
        self.broken = False
        self._letters = letters
        self.embedder = FunctionEmbedder(self._count, name)

    def _count(self, texts: Sequence[str]) -> list[list[float]]:
        if self.broken:
            raise ConnectionError("nobody is at home")
        self.texts += texts
        return [[1.0 + text.lower().count(letter) for letter in self._letters] for text in texts]

    def asked(self) -> int:
        """How many texts since the last time this was asked."""
        count, self.texts = len(self.texts), []
        return count
