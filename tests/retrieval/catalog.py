"""Tools and models shared by the retrieval tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolfold.core.authoring import build_tool
from toolfold.core.types import Source, Tool
from toolfold.selection.retrieval.embedding import FunctionEmbedder


def make_tool(
    name: str,
    description: str = "",
    properties: Mapping[str, Any] | None = None,
    *,
    server: str = "",
    toolset: str = "user",
    **options: Any,
) -> Tool:
    """Build a tool that is only searched, never run."""
    schema: dict[str, Any] = {"description": description}
    if properties is not None:
        schema["parameters"] = {"type": "object", "properties": dict(properties)}
    source = Source("mcp", server) if server else None
    return build_tool(name=name, toolset=toolset, schema=schema, handler=len, source=source, **options)


CATALOG: tuple[Tool, ...] = (
    make_tool("browser_navigate", "Open a web page in the browser", {"url": {"type": "string"}}),
    make_tool("calendar_create_event", "Put an event or a reminder into the calendar at a date and time"),
    make_tool("image_generate", "Draw a picture from a description"),
    make_tool("memory", "Save a fact about the user for later conversations"),
    make_tool("process", "List, poll and stop background processes that are running"),
    make_tool("send_message", "Send a chat message to a person or a channel"),
    make_tool("terminal", "Run a shell command on this machine", {"command": {"type": "string"}}),
    make_tool("weather_forecast", "The weather of the coming days at a place"),
)


class CountingModel:
    """Embedder that counts letters, records its texts and can be made to fail."""

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

    def take_count(self) -> int:
        """Return the number of texts embedded since the last call."""
        count, self.texts = len(self.texts), []
        return count
