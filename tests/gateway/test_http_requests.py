"""The gateway's HTTP parser accepts no request that h11 refuses, and reads the others like h11."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfold.serving.gateway.http_requests import (
    MAX_CHUNK_LINE_BYTES,
    MAX_HEADER_BYTES,
    MAX_SMALL_CHUNKS,
    BadRequest,
    RequestReader,
)

Parsed = tuple[str, bytes, str, list[tuple[bytes, bytes]], bytes]

LINES = b"POST /mcp HTTP/1.1\r\nHost: x\r\n"
CHUNKED = LINES + b"Transfer-Encoding: chunked\r\n\r\n"


def parse_here(pieces: list[bytes]) -> list[Parsed] | None:
    """Return the complete requests in the pieces that arrive; None if one of them is refused."""
    reader, found, body = RequestReader(), list[Parsed](), b""
    try:
        for piece in pieces:
            reader.buffer += piece
            while True:
                head = reader.head or reader.read_head()
                if head is None:
                    break
                can_continue = True
                while can_continue and reader.is_in_body:
                    content, can_continue = reader.read_body(7)
                    body += content
                if not reader.is_complete:
                    break
                found.append((head.method, head.target, head.version, head.headers, body))
                if not head.is_kept_alive:
                    return found
                body = b""
                reader.start_next()
    except BadRequest:
        return None
    return found


def parse_with_h11(pieces: list[bytes]) -> list[Parsed] | None:
    connection, found, body = h11.Connection(h11.SERVER, MAX_HEADER_BYTES), list[Parsed](), b""
    request = None
    try:
        for piece in pieces:
            connection.receive_data(piece)
            while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Request):
                    request, body = event, b""
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    assert request is not None
                    texts = request.method.decode(), request.target, request.http_version.decode()
                    found.append((*texts, list(request.headers), body))
                    connection.send(h11.Response(status_code=404, headers=[(b"content-length", b"0")]))
                    connection.send(h11.EndOfMessage())
                    if connection.our_state is h11.MUST_CLOSE:
                        return found
                    connection.start_next_cycle()
    except h11.RemoteProtocolError:
        return None
    return found


def split(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [piece for piece in (*pieces, data) if piece]  # h11 takes an empty one for the end


METHODS = st.sampled_from(
    [b"GET", b"POST", b"HEAD", b"CONNECT", b"p(st", b"", b"\r\nGET", b" GET", b"G\x00T"]
)
TARGETS = st.sampled_from(
    [b"/", b"/mcp?a=1", b"http://other/mcp", b"*", b"/a b", b"/\xc3", b"/\x7f", b"", b"//x"]
)
VERSIONS = st.sampled_from(
    [b"HTTP/1.1"] * 6 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.10", b"http/1.1", b"", b"HTTP/1"]
)
ENDS = st.sampled_from([b"\r\n"] * 20 + [b"\n", b"\r", b"\r\r\n", b""])
FIELDS = st.sampled_from(
    [
        *(b"Host: x", b"Host: x", b"Host: x", b"host:", b"HOST : x", b"X-Empty:", b"X-Text: a \t b  "),
        *(b"X-Control: a\x01b", b"X-Null: \x00", b"X-Feed: \x0c", b"X-Return: a\rb", b"X-Bytes: \xff\x80"),
        *(b" folded", b"\tfolded", b"No colon", b": no name", b"N\xc3me: x", b"Na me: x", b"X-Delete: \x7f"),
        *(
            b"Connection: close",
            b"Connection: keep-alive, Upgrade",
            b"Upgrade: websocket",
            b"Expect: 100-continue",
        ),
        *(b"Content-Length: 5", b"Content-Length: 5", b"Content-Length: 5, 5", b"Content-Length: 3, 5"),
        *(b"Content-Length: +5", b"Content-Length: -1", b"Content-Length: 0x5", b"Content-Length: 5 5"),
        *(b"Content-Length: " + b"9" * 30, b"Content-Length:", b"Content_Length: 5", b"Content-Length: \xb2"),
        *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", b"Transfer-Encoding: Chunked "),
        *(
            b"Transfer-Encoding: gzip, chunked",
            b"Transfer-Encoding: identity",
            b"Transfer-Encoding:\x0bchunked",
        ),
        *(
            b"Transfer-Encoding: chunked, chunked",
            b"Transfer-Encoding : chunked",
            b"Transfer-Encoding: xchunked",
        ),
    ]
)
BODIES = st.lists(
    st.sampled_from(
        [
            *(
                b"hello",
                b"5\r\nhello\r\n",
                b"5\r\nhello\r\n",
                b"5;name=value\r\nhello\r\n",
                b"05\r\nhello\r\n",
            ),
            *(
                b"0\r\n\r\n",
                b"0\r\n\r\n",
                b"0\r\n\r\n",
                b"0\r\nX-Trailer: a\r\n\r\n",
                b"0\r\nbad trailer\r\n\r\n",
            ),
            *(b"5\nhello\n", b"5\r\nhello", b"5\r\nhelloworld\r\n", b"5 \r\nhello\r\n", b"5 ;a\r\nhello\r\n"),
            *(
                b"0x5\r\nhello\r\n",
                b"-5\r\nhello\r\n",
                b"+5\r\nhello\r\n",
                b"\r\n",
                b"f" * 30 + b"\r\n",
                b"0\r\n\n",
            ),
            *(
                b"5;a\nb\r\nhello\r\n",
                b"5;a\rb\r\nhello\r\n",
                b"g\r\n",
                b"",
                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            ),
        ]
    ),
    max_size=4,
).map(b"".join)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    lines = [b" ".join([draw(METHODS), draw(TARGETS), draw(VERSIONS)]), *draw(st.lists(FIELDS, max_size=5))]
    head = b"".join(line + draw(ENDS) for line in lines)
    return head + draw(ENDS) + draw(BODIES)


@given(st.lists(requests(), min_size=1, max_size=2).map(b"".join), st.lists(st.integers(1, 60), max_size=6))
def test_parser_agrees_with_h11_on_every_accepted_request_independent_of_packet_boundaries(
    data: bytes, sizes: list[int]
) -> None:
    here, there = parse_here(split(data, sizes)), parse_with_h11(split(data, sizes))
    assert here == parse_here([data])
    if here is not None:
        assert there is not None
        assert normalize(here) == normalize(there)[: len(here)]


def normalize(requests: list[Parsed]) -> list[Parsed]:
    """Return requests with the value of Transfer-Encoding in lower case, as h11 does."""
    return [(*first, lower_coding(headers), body) for *first, headers, body in requests]  # type: ignore[misc]


def lower_coding(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value.lower() if name == b"transfer-encoding" else value) for name, value in headers]


@pytest.mark.parametrize(
    "data",
    [
        LINES.replace(b"\r\n", b"\n") + b"\n",
        LINES + b"X: a\n\r\n",
        LINES + b"X: a\r\n folded\r\n\r\n",
        LINES + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        LINES + b"Content-Length: 5, 5\r\n\r\nhello",
        LINES + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        LINES + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        LINES + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        LINES + b"Host: y\r\n\r\n",
        LINES + b"Name : x\r\n\r\n",
        LINES + b"X: \x01\r\n\r\n",
        LINES + b"X: \x7f\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\n\r\n",
        b"POST /mcp HTTP/1.2\r\nHost: x\r\n\r\n",
        b"POST /mcp\r\n\r\n",
        b"POST /mcp HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"\r\nPOST /mcp HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01",
        CHUNKED + b"5\nhello",
        CHUNKED + b"5\r\nhelloX",
        CHUNKED + b"5 \r\nhello\r\n",
        CHUNKED + b"f" * 16 + b"\r\n",
        CHUNKED + b"5;" + b"a" * MAX_CHUNK_LINE_BYTES,
        CHUNKED + b"0\r\n" + b"a: b\r\n" * MAX_HEADER_BYTES,
        CHUNKED + b"0\r\n\n",
        CHUNKED + b"0\r\nbad\r\n\r\n",
        LINES + b"a: b\r\n" * MAX_HEADER_BYTES,
    ],
)
def test_request_that_http_servers_could_parse_differently_is_refused(data: bytes) -> None:
    assert parse_here([data]) is None
    assert parse_here([data[at : at + 1] for at in range(len(data))][: 2 * MAX_HEADER_BYTES]) is None


@pytest.mark.parametrize("ending", [b"0\r\n\r\n", b"0\r\nX-Trailer: a\r\n\r\n", b"000;x=1\r\n\r\n"])
def test_request_after_a_chunked_body_on_the_same_connection_is_parsed(ending: bytes) -> None:
    data = CHUNKED + b"5;a=b\r\nhello\r\n" + ending + LINES + b"\r\n"
    for pieces in ([data], [data[at : at + 1] for at in range(len(data))]):
        found = parse_here(pieces)
        assert found is not None
        assert [each[4] for each in found] == [b"hello", b""]


@pytest.mark.parametrize(
    ("fields", "is_kept_alive"),
    [(b"", True), (b"Connection: Close\r\n", False), (b"Connection: a\r\nConnection: b, close\r\n", False)],
)
def test_connection_is_not_kept_alive_if_any_connection_header_contains_close(
    fields: bytes, is_kept_alive: bool
) -> None:
    reader = RequestReader()
    reader.buffer += LINES + fields + b"\r\n"
    head = reader.read_head()
    assert head is not None
    assert head.is_kept_alive is is_kept_alive


@pytest.mark.parametrize("is_chunked", [False, True])
def test_request_body_is_accepted_in_any_number_of_network_packets(is_chunked: bool) -> None:
    size = 2 * MAX_SMALL_CHUNKS
    head = CHUNKED + b"%x\r\n" % size if is_chunked else LINES + b"Content-Length: %d\r\n\r\n" % size
    end = [b"\r\n0\r\n\r\n"] if is_chunked else []
    found = parse_here([head, *[b"a"] * size, *end])
    assert found is not None
    assert [body for *_, body in found] == [b"a" * size]
