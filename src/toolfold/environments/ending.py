"""How we know that a command has ended, and how, from within what it writes.

The far side ends its output with a mark that nobody can guess: with it comes the exit code of the command
itself, which no client's own failure can be mistaken for, and it comes although something that the command
left running still holds the output open.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

NOWHERE = -1
"""In place of an exit code, where a command could not begin in the folder that was asked for."""
LONGEST = 1 << 15
"""How many bytes may be between the two halves of the mark: a path is there."""
_SIGN = b"\x1e"
_CODE = re.compile(rb"-?[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and in which folder."""

    code: int
    folder: str


class Ending:
    """Separates what a command wrote from the mark at its end."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(12)
        self.seen: Ended | None = None
        self._start = _SIGN + self.mark.encode() + b" "
        self._end = _SIGN + self.mark.encode()
        self._held = b""

    def pass_on(self, data: bytes) -> bytes:
        """The bytes that are the command's own; what may be a part of the mark waits for more."""
        if self.seen:
            return b""
        data, self._held = self._held + data, b""
        at = data.find(self._start)
        while at >= 0 and not self._look(data, at):
            at = data.find(self._start, at + 1)
        if at < 0:
            at = len(data) - _overlap(data, self._start)
        self._held = b"" if self.seen else data[at:]
        return data[:at]

    def rest(self) -> bytes:
        """What waited in vain."""
        held, self._held = self._held, b""
        return b"" if self.seen else held

    def _look(self, data: bytes, at: int) -> bool:
        """Whether the end begins here, or may. A command can find its mark out and write what it likes."""
        begin = at + len(self._start)
        body = data[begin : begin + LONGEST]
        end = body.find(self._end)
        if end < 0:
            return len(body) < LONGEST
        code, _, folder = body[:end].partition(b" ")
        if _CODE.fullmatch(code):
            self.seen = Ended(int(code), folder.decode("utf-8", "surrogateescape"))
        return self.seen is not None


def _overlap(data: bytes, start: bytes) -> int:
    """How many of the last bytes could be the beginning of the mark, which has one sign, its first byte."""
    at = data.rfind(_SIGN, max(0, len(data) - len(start) + 1))
    return len(data) - at if at >= 0 and start.startswith(data[at:]) else 0
