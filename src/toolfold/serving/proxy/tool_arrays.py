"""Parse model requests faster by caching the tools array, which clients repeat in every request.

A tools array is recognised by its text. An array of the same text is the same Python list each time, which
must not be changed, so that what was computed from it can be found again by its identity.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import secrets
import threading
from collections import OrderedDict
from typing import Any

from toolfold.core.types import Json

MAX_ARRAYS = 32
MAX_ARRAY_CHARS = 4_000_000
MIN_ARRAY_CHARS = 2_000
MAX_LEARN_ATTEMPTS = 4
"""How many arrays under keys `tools` are parsed to find the text of the request's own; each costs time."""
MAX_KEYS = 32
"""How many keys `tools` of a request are compared with the known arrays."""
_TOOLS_KEY = re.compile(r'"tools"\s*:\s*(?=\[)')
_TOOLS_KEY_BYTES = re.compile(_TOOLS_KEY.pattern.encode())
_decode = json.JSONDecoder().raw_decode


class ToolArrays:
    """Cache of the tools arrays of recent requests, in order of last use. Thread-safe."""

    def __init__(self) -> None:
        self._placeholder = secrets.token_hex(16)
        self._known: OrderedDict[bytes, list[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def parse(self, data: bytes) -> Json | None:
        """Return the JSON object in a request body; None if the body is not a JSON object."""
        try:
            content = self._parse_known(data) or json.loads(text := data.decode())
        except (ValueError, RecursionError):
            return None
        if not isinstance(content, dict):
            return None
        tools = content.get("tools")
        if isinstance(tools, list) and tools and not self._is_known(tools):
            with contextlib.suppress(RecursionError):
                self._learn(text, tools)
        return content

    def _parse_known(self, data: bytes) -> Json | None:
        """Return the JSON object in a body with a cached tools array; None if the array is not cached.

        A tools array in a string of the body has escaped quotation marks, and so is not found there.
        """
        start, array = self._find_known(data)
        if not array:
            return None
        shortened = b'%b"%b"%b' % (data[:start], self._placeholder.encode(), data[start + len(array) :])
        content = json.loads(shortened.decode())
        if not isinstance(content, dict) or content.get("tools") != self._placeholder:
            return None
        with self._lock:
            tools = self._known.get(array)
            if tools is None:
                return None
            self._known.move_to_end(array)
        return {**content, "tools": tools}

    def _find_known(self, data: bytes) -> tuple[int, bytes]:
        """Return the position and text of a cached tools array in a body; 0 and empty if there is none."""
        known = list(reversed(self._known))
        for match in itertools.islice(_TOOLS_KEY_BYTES.finditer(data), MAX_KEYS if known else 0):
            for array in known:
                if data.startswith(array, match.end()):
                    return match.end(), array
        return 0, b""

    def _is_known(self, tools: list[Any]) -> bool:
        return any(tools is known for known in list(self._known.values()))

    def _learn(self, text: str, tools: list[Any]) -> None:
        """Cache the JSON text of a request's tools array, so that it is not parsed again."""
        for match in itertools.islice(_TOOLS_KEY.finditer(text), MAX_LEARN_ATTEMPTS):
            found, end = _decode(text, match.end())
            if found != tools or json.dumps(found) != json.dumps(tools):  # for Python, 0 equals False
                continue
            array = text[match.end() : end]
            if MIN_ARRAY_CHARS <= len(array) <= MAX_ARRAY_CHARS:
                with self._lock:
                    self._known[array.encode()] = tools
                    while len(self._known) > MAX_ARRAYS:
                        self._known.popitem(last=False)
            return
