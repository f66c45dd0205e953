"""Detect the end of a command by a random mark that its shell prints after the output.

The shell on the target ends the output with an unguessable mark, which contains the exit code and the
working directory. It cannot be confused with a failure of the client program, and it arrives even if
processes that the command left running hold the output open.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

NO_DIRECTORY_CODE = -1
"""Reported instead of an exit code if the requested working directory could not be entered."""
MAX_MARK_BODY_BYTES = 1 << 15
"""Maximum bytes between the two halves of the mark, where the working directory is."""
_SIGN = b"\x1e"
_CODE = re.compile(rb"-?[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class CommandExit:
    """Exit code and final working directory of a command."""

    exit_code: int
    directory: str


class EndMarkParser:
    """Parser that separates a command's output from the mark that its shell prints at the end."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(12)
        self.exit: CommandExit | None = None
        self._start = _SIGN + self.mark.encode() + b" "
        self._end = _SIGN + self.mark.encode()
        self._pending = b""

    def feed(self, data: bytes) -> bytes:
        """Return the output in the received bytes, without final bytes that may belong to the end mark."""
        if self.exit:
            return b""
        data, self._pending = self._pending + data, b""
        at = data.find(self._start)
        while at >= 0 and not self._parse_at(data, at):
            at = data.find(self._start, at + 1)
        if at < 0:
            at = len(data) - _partial_mark_length(data, self._start)
        self._pending = b"" if self.exit else data[at:]
        return data[:at]

    def flush(self) -> bytes:
        """Return the output bytes that `feed` held back because they might have started an end mark."""
        held, self._pending = self._pending, b""
        return b"" if self.exit else held

    def _parse_at(self, data: bytes, at: int) -> bool:
        """Return True if an end mark starts at position `at`, or may start there but has not fully arrived.

        A command can find out its mark and print invalid ones.
        """
        begin = at + len(self._start)
        body = data[begin : begin + MAX_MARK_BODY_BYTES]
        end = body.find(self._end)
        if end < 0:
            return len(body) < MAX_MARK_BODY_BYTES
        code, _, folder = body[:end].partition(b" ")
        if _CODE.fullmatch(code):
            self.exit = CommandExit(int(code), folder.decode("utf-8", "surrogateescape"))
        return self.exit is not None


def _partial_mark_length(data: bytes, start: bytes) -> int:
    """Return how many bytes at the end of the data may be the start of an end mark."""
    position = data.rfind(_SIGN, max(0, len(data) - len(start) + 1))
    return len(data) - position if position >= 0 and start.startswith(data[position:]) else 0
