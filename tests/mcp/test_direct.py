"""HTTP to servers over connections of our own, against a real socket that says what it is told to."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from toolfold.sources.mcp.direct import Direct

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
LAST = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello"
ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


class Speaker:
    """Answers each request with the same bytes."""

    def __init__(self, answer: bytes, *, closes: bool) -> None:
        self.answer, self.closes, self.connections = answer, closes, 0
        self.heard: list[bytes] = []
        self.meetings: set[asyncio.Task[Any] | None] = set()
        self.port = 0

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.meetings.add(asyncio.current_task())
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
                self.heard.append(head + await reader.readexactly(length))
                writer.write(self.answer)
                if self.closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def speaking(answer: bytes, *, closes: bool = False, tls: Any = None) -> AsyncIterator[Speaker]:
    speaker = Speaker(answer, closes=closes)
    server = await asyncio.start_server(speaker.meet, "127.0.0.1", 0, ssl=tls)
    speaker.port = server.sockets[0].getsockname()[1]
    try:
        yield speaker
    finally:
        server.close()
        await asyncio.gather(*filter(None, speaker.meetings), return_exceptions=True)
        await asyncio.sleep(0)


@asynccontextmanager
async def calling(port: int, scheme: str = "http", **options: Any) -> AsyncIterator[httpx2.AsyncClient]:
    url = f"{scheme}://localhost:{port}"
    async with httpx2.AsyncClient(transport=Direct(), base_url=url, timeout=20, **options) as client:
        yield client


@pytest.mark.parametrize(
    "answer", [LENGTH, CHUNKED, EARLY + LENGTH], ids=["length", "chunked", "early hints"]
)
async def test_one_connection_carries_one_request_after_the_other(answer: bytes) -> None:
    async with speaking(answer) as speaker, calling(speaker.port) as client:
        for number in range(3):
            response = await client.post("/mcp?a=1", json={"number": number})
            assert (response.status_code, response.text) == (200, "hello")
        assert speaker.connections == 1
        assert speaker.heard[2].startswith(b"POST /mcp?a=1 HTTP/1.1\r\n")
        assert speaker.heard[2].endswith(b'{"number":2}')


async def test_requests_at_once_have_connections_of_their_own() -> None:
    async with speaking(LENGTH) as speaker, calling(speaker.port) as client:
        answers = await asyncio.gather(*(client.get("/") for _ in range(5)))
        assert [each.text for each in answers] == ["hello"] * 5


@pytest.mark.parametrize(("answer", "closes"), [(LAST, True), (LENGTH, True)], ids=["told", "untold"])
async def test_a_connection_that_the_server_left_is_used_no_more(answer: bytes, closes: bool) -> None:
    async with speaking(answer, closes=closes) as speaker, calling(speaker.port) as client:
        for _ in range(3):
            assert (await client.get("/")).text == "hello"
            await asyncio.sleep(0.05)
        assert speaker.connections == 3


async def test_an_answer_that_nobody_hears_to_its_end_leaves_no_connection_behind() -> None:
    async with speaking(ENDLESS) as speaker, calling(speaker.port) as client:
        for _ in range(2):
            async with client.stream("GET", "/") as response:
                async for piece in response.aiter_raw():
                    assert piece == b"hello"
                    break
        assert speaker.connections == 2


async def test_faults_have_the_names_that_callers_know() -> None:
    async with speaking(b"") as speaker:
        free = speaker.port
    async with calling(free) as client:
        with pytest.raises(httpx2.ConnectError):
            await client.get("/")
    for answer, fault in (
        (b"", httpx2.RemoteProtocolError),
        (CUT, httpx2.RemoteProtocolError),
        (b"no HTTP at all\r\n\r\n", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * 300_000, httpx2.RemoteProtocolError),
    ):
        async with speaking(answer, closes=True) as speaker, calling(speaker.port) as client:
            with pytest.raises(fault):
                await client.post("/", json={})


async def test_who_waits_too_long_is_told_so_and_who_stops_waiting_frees_the_place() -> None:
    async with speaking(b"") as speaker, calling(speaker.port) as client:
        with pytest.raises(httpx2.ReadTimeout):
            await client.get("/", timeout=httpx2.Timeout(20, read=0.05))
        waiting = [asyncio.create_task(client.get("/")) for _ in range(100)]
        await asyncio.sleep(0.1)
        with pytest.raises(httpx2.PoolTimeout):
            await client.get("/", timeout=httpx2.Timeout(20, pool=0.05))
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        speaker.answer = LENGTH
        assert (await client.get("/")).text == "hello"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    file = tmp_path / "both.pem"
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    words += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(tmp_path / "key"), "-out", str(file)]
    subprocess.run(words, check=True, capture_output=True)
    file.write_bytes(file.read_bytes() + (tmp_path / "key").read_bytes())
    return file


async def test_only_a_certificate_that_is_trusted_is_talked_to(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    async with speaking(LENGTH, tls=tls) as speaker:
        async with calling(speaker.port, "https") as client:
            with pytest.raises(httpx2.ConnectError):
                await client.get("/")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with calling(speaker.port, "https") as client:
            for _ in range(2):
                assert (await client.post("/", json={})).text == "hello"
    assert len(speaker.heard) == 2
