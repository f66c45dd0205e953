"""Gateways over stdio in the dashboard: their calls, their approval questions, and who may answer these."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types
import pytest
from mcp import Client, StdioServerParameters

from tests.dashboard.conftest import NOTES
from tests.dashboard.harness import TIMEOUT_S, DashboardProcess, run_dashboard, write_home
from tests.known_vectors import LIGHT_MODEL
from toolfold.serving.dashboard.local_gateways import FollowedGateways
from toolfold.serving.gateway.control import short_socket_path

Json = dict[str, Any]


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[DashboardProcess]:
    write_home(tmp_path, NOTES)
    with run_dashboard(tmp_path) as process:
        yield process


class Page:
    """The requests of a page that is signed in."""

    def __init__(self, http: httpx2.AsyncClient, key: str, origin: str) -> None:
        self._http, self.headers = http, {"x-toolfold-page-key": key, "origin": origin}

    async def read(self, path: str) -> Json:
        response = await self._http.get(f"/ui/api/{path}", headers=self.headers)
        found: Json = response.json()
        return found

    async def wait_for(self, path: str, find: Callable[[Json], Any]) -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                if found := find(await self.read(path)):
                    return found
                await asyncio.sleep(0.05)

    async def answer(self, question: Json, answer: str) -> int:
        body = {"id": question["id"], "answer": answer}
        response = await self._http.post("/ui/api/approvals/answer", json=body, headers=self.headers)
        return response.status_code

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Follow the events, as a page does while it is open."""
        async with self._http.stream("GET", "/ui/api/events", headers=self.headers) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            yield


@asynccontextmanager
async def sign_in(dashboard: DashboardProcess) -> AsyncIterator[Page]:
    origin = f"http://127.0.0.1:{dashboard.port}"
    async with httpx2.AsyncClient(base_url=origin, timeout=TIMEOUT_S) as http:
        link = await asyncio.to_thread(dashboard.run, "link")
        code = link.partition("#code=")[2]
        response = await http.post("/ui/api/sign-in", json={"code": code}, headers={"origin": origin})
        yield Page(http, response.json()["page_key"], origin)


@asynccontextmanager
async def connect(home: Path) -> AsyncIterator[Client]:
    """Start a gateway over stdio with a client that cannot ask its user."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "toolfold", "mcp", "serve"],
        env={**os.environ, "TOOLFOLD_HOME": str(home), **LIGHT_MODEL},
        cwd=str(home),
    )
    about = mcp_types.Implementation(name="editor", version="1")
    async with Client(server, client_info=about) as client:
        yield client


async def delete_note(client: Client) -> str:
    arguments = {"name": "notes_delete_note", "arguments": {"id": "7"}}
    result = await client.call_tool("tool_call", arguments)
    (block,) = result.content
    assert isinstance(block, mcp_types.TextContent)
    return block.text


def have_connected(page_data: Json) -> Json | None:
    return page_data if page_data["connected"] else None


def find_process(page_data: Json) -> int:
    (client,) = page_data["connected"]
    assert (client["name"], client["user"], client["gateway"]) == ("editor", getpass.getuser(), "stdio")
    process: int = client["process"]
    return process


async def test_question_of_a_stdio_gateway_is_answered_on_the_page_of_a_dashboard(
    dashboard: DashboardProcess,
) -> None:
    async with sign_in(dashboard) as page, connect(dashboard.home) as client:
        await client.list_tools()
        process = await page.wait_for("clients", lambda found: found["connected"] and find_process(found))
        async with page.open():
            for answer, expected in (("deny", "the request was declined"), ("once", '{"id": "7"}')):
                calling = asyncio.create_task(wait_until_asked(client))
                (question,) = await page.wait_for("approvals", lambda found: found["pending"])
                assert question["tool"] == "notes_delete_note"
                assert question["client"] == "editor"
                assert question["user"] == getpass.getuser()
                assert question["process"] == process
                assert await page.answer(question, answer) == 200
                assert expected in await calling
                await page.wait_for("approvals", lambda found: not found["pending"])
                assert await page.answer(question, answer) == 409


async def wait_until_asked(client: Client) -> str:
    """Repeat the call until somebody can be asked: the gateway learns a moment later that a page is open."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if "nobody could be asked" not in (text := await delete_note(client)):
                return text
            await asyncio.sleep(0.05)


async def test_calls_of_a_stdio_gateway_appear_in_the_activity_and_usage_of_a_dashboard(
    dashboard: DashboardProcess,
) -> None:
    async with sign_in(dashboard) as page, connect(dashboard.home) as client:
        await client.call_tool("tool_call", {"name": "notes_add_note", "arguments": {"text": "hello"}})
        calls = await page.wait_for("activity", finished_calls)
        assert [(each["tool"], each["client"], each["user"]) for each in calls] == [
            ("notes_add_note", "editor", getpass.getuser())
        ]
        assert calls[0]["process"] == find_process(await page.wait_for("clients", have_connected))
        await page.wait_for("overview?period=hour", lambda found: found["totals"]["calls"] == 1)


def finished_calls(activity: Json) -> list[Json]:
    return [each for each in activity["events"] if each["type"] == "tool_finished"]


async def test_question_is_refused_at_once_without_an_open_page_and_disappears_with_its_process(
    dashboard: DashboardProcess,
) -> None:
    async with sign_in(dashboard) as page, connect(dashboard.home) as client:
        assert "nobody could be asked for approval" in await delete_note(client)
        async with page.open():
            calling = asyncio.create_task(wait_until_asked(client))
            await page.wait_for("approvals", lambda found: found["pending"])
            process = find_process(await page.wait_for("clients", have_connected))
            os.kill(process, 9)
            await page.wait_for("approvals", lambda found: not found["pending"])
            await page.wait_for("clients", lambda found: not found["connected"])
            calling.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await calling


async def test_answer_to_a_gateway_that_ends_meanwhile_is_reported_as_too_late(tmp_path: Path) -> None:
    texts = ("tool", "emoji", "session", "command", "part", "reason", "severity", "category")
    lists = dict.fromkeys(("also", "rules", "answers"), ())
    question = {
        "id": "q",
        "at": 1.0,
        "process": 1,
        "client": "",
        "user": "",
        **dict.fromkeys(texts, "x"),
        **lists,
    }

    async def end_when_answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(json.dumps({"questions": [question]}).encode() + b"\n")
        while b"answer" not in await reader.readline():
            pass
        writer.close()

    directory = tmp_path / "gateway" / "control"
    directory.mkdir(parents=True)
    with short_socket_path(directory, "g.sock") as path:
        server = await asyncio.start_unix_server(end_when_answered, path)
    followed = FollowedGateways(tmp_path, is_page_open=lambda: True, receive_event=print)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not followed.list_remote():  # noqa: ASYNC110 - filled by a thread
                await asyncio.sleep(0.01)
        assert not await asyncio.to_thread(followed.answer, "q", "once")
        assert not followed.list_remote()
    finally:
        await asyncio.to_thread(followed.close)
        server.close()


async def test_process_of_a_tool_call_can_neither_answer_a_question_nor_make_the_gateway_ask(
    dashboard: DashboardProcess, tmp_path: Path
) -> None:
    async with connect(dashboard.home) as client:
        await client.list_tools()
        (socket,) = (dashboard.home / "state/gateway/control").glob("*.sock")
        code = (
            "import json, socket, sys\n"
            "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
            's.sendall(b\'{"request": "follow"}\\n{"has_page": true}\\n\')\n'
            "print(s.makefile().readline())\n"
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, socket.name),
            cwd=socket.parent,  # the whole path may be too long for a socket
            env={**os.environ, "TOOLFOLD_RUN": "1"},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        assert "a tool call has started this process" in json.loads(out)["error"]
        assert "nobody could be asked" in await delete_note(client)
