"""Strict HTTP/1.1 request parser that works in steps of a chosen size, independent of sockets.

Where two programs could disagree about the end of a request, an attacker can hide a second request in it. So
nothing is accepted that HTTP allows a server to refuse: lines without a carriage return, folded headers,
repeated lengths, a length together with chunks, control characters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Headers = list[tuple[bytes, bytes]]

MAX_HEADER_BYTES = 16_384
MAX_CHUNK_LINE_BYTES = 4_096
MAX_SMALL_CHUNKS = 1_000
"""Chunks of a body that may have any size; further ones must have MIN_CHUNK_BYTES on average."""
MIN_CHUNK_BYTES = 256

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_VALUE = rb"[\t\x20-\x7e\x80-\xff]*+"
FIELD_NAME, FIELD_VALUE = re.compile(_TOKEN), re.compile(_VALUE)
_FIELD_LINES = rb"(?:" + _TOKEN + rb":" + _VALUE + rb"\r\n)*+"
_HEAD = re.compile(rb"(%b) ([\x21-\x7e]++) HTTP/(1\.[01])\r\n(%b)\r\n" % (_TOKEN, _FIELD_LINES))
_TRAILERS = re.compile(_FIELD_LINES + rb"\r\n")
_FIELD = re.compile(rb"([^:]++):([^\r]*+)\r\n")  # of lines that were checked
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;" + _VALUE + rb")?\r\n")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_BLANK_LINE = re.compile(rb"\n\r?\n")  # also ends headers that are not valid, which are refused at once
_FIRST_PRINTABLE = 0x21


class BadRequest(Exception):
    """Raised for a request that is invalid or exceeds a limit; the message is sent to the client."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """Request line and headers of a request."""

    method: str
    target: bytes
    version: str
    headers: Headers
    """Names in lower case."""
    body_length: int | None
    """None if the body is sent in chunks."""
    is_kept_alive: bool
    """True if the client may send another request over the connection."""
    expects_continue: bool
    """True if the client waits for the response 100 before it sends the body."""


def parse_head(head: bytes) -> RequestHead:
    """Parse a request line and headers, which end with an empty line. Raises BadRequest."""
    found = _HEAD.fullmatch(head)
    if found is None:
        raise BadRequest("The request line or a header is not valid HTTP/1.1.")
    method, target, version, lines = found.groups()
    headers = [(name.lower(), value.strip(b" \t")) for name, value in _FIELD.findall(lines)]
    names, values = [name for name, _ in headers], dict(headers)
    is_1_1 = version == b"1.1"
    for name in (b"host", b"content-length", b"transfer-encoding"):
        if names.count(name) > 1:
            raise BadRequest(f"The header {name.decode()} is repeated.")
    if is_1_1 and b"host" not in values:
        raise BadRequest("The header host is missing.")
    return RequestHead(
        method.decode(),
        target,
        version.decode(),
        headers,
        _find_body_length(values, allows_chunks=is_1_1),
        is_1_1 and b"close" not in _split_values(headers, b"connection"),
        is_1_1 and b"100-continue" in _split_values(headers, b"expect"),
    )


def _find_body_length(values: dict[bytes, bytes], *, allows_chunks: bool) -> int | None:
    """Return the length of the body; None if the body is sent in chunks."""
    length, coding = values.get(b"content-length"), values.get(b"transfer-encoding")
    if coding is not None:
        if coding.lower() != b"chunked" or not allows_chunks or length is not None:
            raise BadRequest("The header transfer-encoding must be chunked, without a content-length.")
        return None
    if length is None:
        return 0
    if _LENGTH.fullmatch(length) is None:
        raise BadRequest("The header content-length is not a valid number.")
    return int(length)


def _split_values(headers: Headers, wanted: bytes) -> list[bytes]:
    """Return the values of a comma-separated header, in lower case."""
    texts = [value.lower() for name, value in headers if name == wanted]
    return [each.strip() for text in texts for each in text.split(b",")]


class RequestReader:
    """Reads the requests of one connection sequentially from the bytes in `buffer`."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.head: RequestHead | None = None
        """The request that is being read, or was read last; None while headers are read."""
        self.is_complete = False
        """True if the request was read up to its end."""
        self._searched = 0
        """Length of the start of the buffer in which there is no empty line."""
        self._missing = 0
        """Bytes that are missing of the body, or of the current chunk."""
        self._is_chunk_ending = self._is_in_trailers = False
        self._chunks = self._body_bytes = 0

    @property
    def is_in_body(self) -> bool:
        """Return True if the headers, but not the whole body, have been read."""
        return self.head is not None and not self.is_complete

    def start_next(self) -> None:
        """Prepare for the next request after the current request is complete."""
        self.head, self.is_complete = None, False

    def read_head(self) -> RequestHead | None:
        """Return the headers of a request once all have arrived; None before that. Raises BadRequest."""
        buffer = self.buffer
        if buffer and buffer[0] < _FIRST_PRINTABLE:  # such as TLS, or an empty line
            raise BadRequest("The request line is not valid HTTP/1.1.")
        block = self._take_block()
        if block is None:
            return None
        self.head = head = parse_head(block)
        self._chunks = self._body_bytes = 0
        self._is_chunk_ending = self._is_in_trailers = False
        self._missing = head.body_length or 0
        self.is_complete = head.body_length == 0
        return head

    def read_body(self, max_bytes: int) -> tuple[bytearray, bool]:
        """Parse the next bytes of the body, up to approximately `max_bytes`.

        Returns the content, and True if more can be parsed now. Raises BadRequest.
        """
        content = bytearray()
        if self.head is not None and self.head.body_length is not None:
            self._read_part(content, max_bytes)
            self.is_complete = not self._missing
            return content, bool(self.buffer) and not self.is_complete
        end = max(0, len(self.buffer) - max_bytes)
        while self._read_chunked(content, max_bytes):
            if self.is_complete or len(self.buffer) <= end:
                break
        else:
            return content, False
        return content, bool(self.buffer) and not self.is_complete

    def _read_part(self, content: bytearray, max_bytes: int) -> bool:
        """Move bytes of the body from the buffer to `content`; return False if the buffer is empty."""
        part = self.buffer[: min(self._missing, max_bytes)]
        if part:
            del self.buffer[: len(part)]
            content += part
            self._missing -= len(part)
        return bool(part)

    def _count_chunk(self, size: int) -> None:
        self._chunks += 1
        self._body_bytes += size
        if self._chunks > MAX_SMALL_CHUNKS + self._body_bytes // MIN_CHUNK_BYTES:
            raise BadRequest(
                f"The body has more than {MAX_SMALL_CHUNKS:,} chunks of less than {MIN_CHUNK_BYTES} bytes."
                " Send larger chunks."
            )

    def _read_chunked(self, content: bytearray, max_bytes: int) -> bool:
        """Parse the next element of a chunked body; return False if it has not arrived yet."""
        if self._is_in_trailers:
            return self._read_trailers()
        if self._missing:
            has_part = self._read_part(content, max_bytes)
            self._is_chunk_ending = not self._missing
            return has_part
        return self._end_chunk() if self._is_chunk_ending else self._read_chunk_line()

    def _end_chunk(self) -> bool:
        end = self.buffer[:2]
        if not b"\r\n".startswith(end):
            raise BadRequest("A chunk of the body is longer than its size.")
        if len(end) < 2:
            return False
        del self.buffer[:2]
        self._is_chunk_ending = False
        return True

    def _read_chunk_line(self) -> bool:
        end = self.buffer.find(b"\n", 0, MAX_CHUNK_LINE_BYTES)
        if end < 0:
            if len(self.buffer) >= MAX_CHUNK_LINE_BYTES:
                raise BadRequest("The size of a chunk of the body is not valid.")
            return False
        found = _CHUNK_LINE.fullmatch(bytes(self.buffer[: end + 1]))
        if found is None:
            raise BadRequest("The size of a chunk of the body is not valid.")
        del self.buffer[: end + 1]
        self._missing = int(found[1], 16)
        self._is_in_trailers = not self._missing
        self._count_chunk(self._missing)
        return True

    def _read_trailers(self) -> bool:
        """Skip the trailer fields after the last chunk, because they are not used."""
        if self.buffer[:2] == b"\r\n":
            del self.buffer[:2]
        else:
            if self.buffer[:1] == b"\n":
                raise BadRequest("The headers behind the body are not valid HTTP/1.1.")
            block = self._take_block()
            if block is None:
                return False
            if _TRAILERS.fullmatch(block) is None:
                raise BadRequest("The headers behind the body are not valid HTTP/1.1.")
        self.is_complete = True
        return True

    def _take_block(self) -> bytes | None:
        """Remove and return the buffer's bytes up to the first empty line; None if there is none yet."""
        buffer = self.buffer
        found = _BLANK_LINE.search(buffer, max(0, self._searched - 2), MAX_HEADER_BYTES)
        if found is None:
            if len(buffer) >= MAX_HEADER_BYTES:
                raise BadRequest(f"The headers are longer than {MAX_HEADER_BYTES:,} bytes.")
            self._searched = len(buffer)
            return None
        block = bytes(buffer[: found.end()])
        del buffer[: found.end()]
        self._searched = 0
        return block
