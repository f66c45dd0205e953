"""Two real gateways that share one database: tokens, approvals and accepted tools are the same for both."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from tests.gateway.gateway_process import GatewayProcess, environment, gateway_process, write_settings
from tests.gateway.harness import TIMEOUT_S, result_text, wait_until
from tests.postgres import PostgresServer
from toolfold.mcp.lock import SharedPins
from toolfold.mcp.tool_listing import parse_tool
from toolfold.state.database import open_database

LISTING_SERVER = Path(__file__).parents[1] / "mcp" / "listing_server.py"
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "read",
        "description": "Reads a note.",
        "inputSchema": SCHEMA,
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "wipe",
        "description": "Deletes all notes.",
        "inputSchema": SCHEMA,
        "annotations": {"destructiveHint": True},
    },
    {
        "name": "export",
        "description": "Sends the notes to any address.",
        "inputSchema": SCHEMA,
        "annotations": {"readOnlyHint": True},
    },
]
ACCEPTED_BEFORE = [*TOOLS[:2], {**TOOLS[2], "description": "Prints the notes."}]


@dataclass
class Replica:
    """A running gateway and its own settings directory."""

    home: Path
    gateway: GatewayProcess

    def toolfold(self, *words: str) -> str:
        """Run a command with the settings of this replica and return its output."""
        done = subprocess.run(
            [sys.executable, "-m", "toolfold", *words],
            env=environment(self.home),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def ask_status(self, token: str = "") -> int:
        """Send a request to the gateway and return the status of the response."""
        headers = {"Accept": "application/json, text/event-stream"}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        return httpx2.post(self.gateway.url, json=body, headers=headers, timeout=TIMEOUT_S).status_code

    @asynccontextmanager
    async def client(self, token: str = "") -> AsyncIterator[Client]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http,
            Client(streamable_http_client(self.gateway.url, http_client=http), mode="legacy") as client,
        ):
            yield client


class Page:
    """A signed-in page of a replica's dashboard, which follows the events."""

    def __init__(self, replica: Replica) -> None:
        origin = f"http://127.0.0.1:{replica.gateway.port}"
        self._http = httpx2.Client(base_url=origin, timeout=TIMEOUT_S, headers={"origin": origin})
        code = re.findall(r"#code=(\S+)", replica.gateway.log.read_text())[-1]
        response = self._http.post("/ui/api/sign-in", json={"code": code})
        assert response.status_code == 200, response.text
        self._http.headers["x-toolfold-page-key"] = response.json()["page_key"]

    @contextmanager
    def follow_events(self) -> Iterator[None]:
        with self._http.stream("GET", "/ui/api/events") as response:
            assert response.status_code == 200
            lines = response.iter_lines()
            next(lines)
            yield

    def list_questions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._http.get("/ui/api/approvals").json()["pending"]
        return found

    def answer(self, question_id: str, answer: str) -> int:
        body = {"id": question_id, "answer": answer}
        return self._http.post("/ui/api/approvals/answer", json=body).status_code

    def close(self) -> None:
        self._http.close()


@pytest.fixture(scope="module")
def replicas(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Replica, Replica]]:
    url, directory = postgres.create_database(), tmp_path_factory.mktemp("replicas")
    listing = directory / "tools.json"
    listing.write_text(json.dumps({"tools/list": {"tools": TOOLS}}))
    _accept_earlier_versions(url)
    server = {"command": sys.executable, "args": [str(LISTING_SERVER), str(listing)]}
    settings = {
        "store": url,
        "mcp": {"servers": {"notes": server}, "wait_seconds": 60.0},
        "tools": {"rag_embed_model": "light"},
        "telemetry": {"prometheus": True},
    }
    for name in ("one", "two"):
        write_settings(directory / name, settings)
    with gateway_process(directory / "one") as one, gateway_process(directory / "two") as two:
        replicas = Replica(directory / "one", one), Replica(directory / "two", two)
        for each in replicas:
            wait_until(lambda: "#code=" in each.gateway.log.read_text())  # noqa: B023 - called at once
        yield replicas


def _accept_earlier_versions(url: str) -> None:
    """Accept the tools as they were, so that the changed one must be reviewed."""
    database = open_database(url)
    assert database is not None
    SharedPins(database).accept("notes", [parse_tool(each) for each in ACCEPTED_BEFORE])
    database.close()


async def list_names(replica: Replica) -> set[str]:
    async with replica.client() as client:
        return {tool.name for tool in (await client.list_tools()).tools}


async def has_tool(replica: Replica, name: str) -> bool:
    return name in await list_names(replica)


async def repeat_until(is_true: Callable[[], Awaitable[bool]]) -> None:
    """Repeat a check until it returns True; fail after TIMEOUT_S."""
    async with asyncio.timeout(TIMEOUT_S):
        while not await is_true():  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.05)


async def wait_for(condition: Callable[[], Any]) -> None:
    await asyncio.to_thread(wait_until, condition)


async def test_approval_question_of_one_replica_can_be_answered_in_the_dashboard_of_another_replica(
    replicas: tuple[Replica, Replica],
) -> None:
    one, two = replicas
    page = Page(two)
    with page.follow_events():
        async with one.client() as client:

            async def call_until_asked() -> Any:
                """Call until the first replica knows that a page is open elsewhere."""
                while True:
                    result = await client.call_tool("notes_wipe", {"text": "x"})
                    if "nobody could be asked" not in result_text(result):
                        return result

            calling = asyncio.create_task(call_until_asked())
            await wait_for(page.list_questions)
            (question,) = page.list_questions()
            assert question["tool"] == "notes_wipe"
            assert not calling.done()
            assert page.answer(question["id"], "always-and-more") == 409
            assert page.answer(question["id"], "once") == 200
            result = await calling
            assert not result.is_error, result_text(result)
            assert page.answer(question["id"], "once") == 409  # an answer counts once
            await wait_for(lambda: page.list_questions() == [])
    page.close()


async def test_call_that_needs_approval_is_refused_if_no_replica_has_an_open_dashboard(
    replicas: tuple[Replica, Replica],
) -> None:
    async with replicas[0].client() as client:

        async def is_refused() -> bool:  # the page of an earlier test may still count as open for a moment
            return "nobody could be asked" in result_text(await client.call_tool("notes_wipe", {}))

        await repeat_until(is_refused)


async def test_tool_accepted_by_a_person_on_one_replica_can_be_called_on_the_other_replica(
    replicas: tuple[Replica, Replica],
) -> None:
    one, two = replicas
    for each in replicas:
        assert await list_names(each) == {"notes_read", "notes_wipe"}
    await asyncio.to_thread(one.toolfold, "mcp", "review", "--all", "--yes")
    for each in replicas:
        await repeat_until(lambda: has_tool(each, "notes_export"))  # noqa: B023 - called at once
    async with two.client() as client:
        result = await client.call_tool("notes_export", {"text": "hello"})
    assert "hello" in result_text(result)


class RoundRobin(httpx2.AsyncHTTPTransport):
    """Sends each request to the next replica, like a load balancer."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        super().__init__()
        self.use(replicas)

    def use(self, replicas: Sequence[Replica]) -> None:
        """Send requests to these replicas from now on."""
        self._ports = itertools.cycle([each.gateway.port for each in replicas])

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        port = next(self._ports)
        request.url = request.url.copy_with(port=port)
        request.headers["host"] = f"127.0.0.1:{port}"
        return await super().handle_async_request(request)


async def test_calls_of_a_client_with_the_newest_protocol_revision_can_alternate_between_replicas(
    replicas: tuple[Replica, Replica],
) -> None:
    async with (
        httpx2.AsyncClient(transport=RoundRobin(replicas), timeout=TIMEOUT_S) as http,
        Client(
            streamable_http_client(replicas[0].gateway.url, http_client=http), mode="2026-07-28"
        ) as client,
    ):
        for number in range(4):
            result = await client.call_tool("notes_read", {"text": f"note {number}"})
            assert f"note {number}" in result_text(result)


async def test_session_of_a_client_with_an_older_protocol_revision_can_be_used_on_every_replica(
    replicas: tuple[Replica, Replica],
) -> None:
    async with (
        httpx2.AsyncClient(transport=RoundRobin(replicas), timeout=TIMEOUT_S) as http,
        Client(streamable_http_client(replicas[0].gateway.url, http_client=http), mode="legacy") as client,
    ):
        names = [{tool.name for tool in (await client.list_tools()).tools} for _ in range(3)]
        assert all("notes_read" in each for each in names)
        results = await asyncio.gather(
            *(client.call_tool("notes_read", {"text": f"note {number}"}) for number in range(6))
        )
        for number, result in enumerate(results):
            assert f"note {number}" in result_text(result)


def post(replica: Replica, message: dict[str, Any], session: str = "", token: str = "") -> httpx2.Response:
    """Send a message of revision 2025-11-25 to a replica."""
    headers = {"Accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
    headers |= {"mcp-session-id": session} if session else {}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    return httpx2.post(replica.gateway.url, json=message, headers=headers, timeout=TIMEOUT_S)


def open_session(replica: Replica) -> str:
    info = {"name": "test", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
    response = post(replica, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    assert response.status_code == 200, response.text
    return str(response.headers["mcp-session-id"])


def test_session_ended_on_one_replica_is_invalid_on_all_replicas(replicas: tuple[Replica, Replica]) -> None:
    one, two = replicas
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    session = open_session(one)
    assert post(two, ping, session).status_code == 200
    headers = {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
    assert httpx2.delete(two.gateway.url, headers=headers, timeout=TIMEOUT_S).status_code == 200
    assert post(two, ping, session).status_code == 404
    wait_until(lambda: post(one, ping, session).status_code == 404)
    assert post(one, ping, "0" * 32).status_code == 404


def test_session_delete_request_returns_503_while_the_database_fails_and_succeeds_on_retry(
    replicas: tuple[Replica, Replica],
) -> None:
    one = replicas[0]
    database = open_database(json.loads((one.home / "config.yaml").read_text())["store"])
    assert database is not None
    session = open_session(one)
    headers = {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
    try:
        database.execute("ALTER TABLE mcp_sessions RENAME TO unreachable_sessions")
        try:
            response = httpx2.delete(one.gateway.url, headers=headers, timeout=TIMEOUT_S)
        finally:
            database.execute("ALTER TABLE unreachable_sessions RENAME TO mcp_sessions")
    finally:
        database.close()
    assert (response.status_code, "Try again" in response.text) == (503, True)
    assert httpx2.delete(one.gateway.url, headers=headers, timeout=TIMEOUT_S).status_code == 200
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    assert [post(each, ping, session).status_code for each in replicas] == [404, 404]


async def test_client_session_continues_on_another_replica_after_the_first_replica_was_killed(
    replicas: tuple[Replica, Replica], tmp_path: Path
) -> None:
    write_settings(tmp_path, json.loads((replicas[0].home / "config.yaml").read_text()))
    with gateway_process(tmp_path) as gateway:
        third = Replica(tmp_path, gateway)
        transport = RoundRobin((third,))
        async with (
            httpx2.AsyncClient(transport=transport, timeout=TIMEOUT_S) as http,
            Client(streamable_http_client(gateway.url, http_client=http), mode="legacy") as client,
        ):
            assert "before" in result_text(await client.call_tool("notes_read", {"text": "before"}))
            gateway.process.kill()
            gateway.process.wait()
            transport.use(replicas)
            assert "after" in result_text(await client.call_tool("notes_read", {"text": "after"}))


async def test_creating_or_revoking_a_token_on_one_replica_takes_effect_on_both_replicas(
    replicas: tuple[Replica, Replica],
) -> None:
    one, two = replicas
    token = await asyncio.to_thread(one.toolfold, "token", "add", "bob", "--toolset", "mcp-notes")
    await wait_for(
        lambda: two.ask_status() == 401 and one.ask_status() == 401
    )  # a token is needed from now on
    await wait_for(lambda: 401 not in (one.ask_status(token), two.ask_status(token)))
    async with two.client(token) as client:
        assert "hello" in result_text(await client.call_tool("notes_read", {"text": "hello"}))
    assert "bob" in await asyncio.to_thread(two.toolfold, "token", "list")
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    other = await asyncio.to_thread(one.toolfold, "token", "add", "eve", "--toolset", "mcp-notes")
    info = {"name": "test", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    session = post(one, opening, token=token).headers["mcp-session-id"]
    await wait_for(lambda: two.ask_status(other) != 401)
    assert post(two, ping, session, other).status_code == 404  # a session belongs to its token
    headers = {"mcp-session-id": session, "Authorization": f"Bearer {other}"}
    assert httpx2.delete(two.gateway.url, headers=headers, timeout=TIMEOUT_S).status_code == 404
    assert post(two, ping, session, token).status_code == 200  # only its own client can end it
    await asyncio.to_thread(two.toolfold, "token", "revoke", "bob")
    await wait_for(lambda: one.ask_status(token) == 401 and two.ask_status(token) == 401)


async def test_access_rules_and_call_limits_set_on_one_replica_apply_on_both_replicas(
    replicas: tuple[Replica, Replica],
) -> None:
    one, two = replicas

    async def run(replica: Replica, words: str) -> str:
        return await asyncio.to_thread(replica.toolfold, *words.split())

    await run(one, "user add ann")
    token = await run(two, "token add ann-laptop --user ann")
    await wait_for(lambda: 401 not in (one.ask_status(token), two.ask_status(token)))
    async with one.client(token) as first, two.client(token) as second:

        async def all_list(expected: set[str]) -> bool:
            listed = [{tool.name for tool in (await each.list_tools()).tools} for each in (first, second)]
            return all(expected == names & {"notes_read", "notes_wipe"} for names in listed)

        await repeat_until(lambda: all_list({"notes_read", "notes_wipe"}))
        await run(one, "user deny ann tool:notes_wipe")
        await repeat_until(lambda: all_list({"notes_read"}))
        for each in (first, second):
            assert "not available" in result_text(await each.call_tool("notes_wipe", {"text": "x"}))
        await run(two, "user limit ann --calls-per-day 0")
        await repeat_until(lambda: are_refused(0, first, second))
        await run(one, "user limit ann --calls-per-day 3")
        accepted = 0

        async def use_up() -> bool:
            nonlocal accepted
            outcomes = [await try_call(each) for each in (first, second)]
            accepted += outcomes.count("ok")
            return all("limit of 3 calls per day for you" in each for each in outcomes)

        await repeat_until(use_up)
        assert accepted == 3
        await run(one, "user limit ann --calls-per-day none")
        await repeat_until(lambda: are_accepted(first, second))
    for replica in replicas:
        metrics = await asyncio.to_thread(read_metrics, replica)
        assert 'limit="calls_per_day"' in metrics
        assert "ann" not in metrics


def read_metrics(replica: Replica) -> str:
    return httpx2.get(replica.gateway.url.replace("/mcp", "/metrics"), timeout=TIMEOUT_S).text


async def try_call(client: Client) -> str:
    """Return whether a call was accepted, or the reason why it was refused."""
    try:
        return "failed" if (await client.call_tool("notes_read", {"text": "x"})).is_error else "ok"
    except MCPError as error:
        return str(error)


async def are_refused(limit: int, *clients: Client) -> bool:
    outcomes = [await try_call(each) for each in clients]
    return all(f"limit of {limit} calls per day for you" in each for each in outcomes)


async def are_accepted(*clients: Client) -> bool:
    return {await try_call(each) for each in clients} == {"ok"}
