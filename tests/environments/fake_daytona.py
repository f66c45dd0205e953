"""A minimal Daytona server for its real SDK: sandboxes are directories, programs run on this machine.

Implements only the calls that find, create, use and delete a sandbox. Like the real server, it starts an
interactive shell in a terminal, disconnects a client that falls behind, leaves the terminal of a
disconnected client open, and reports the end of a shell without waiting for its output.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from tests.environments.fake_sandboxes import Program, Sandbox, Sandboxes
from toolfold.tools.environments import TerminalSize

MAX_QUEUED_CHUNKS = 256
MAX_QUEUED_INPUT = 1_024
MAX_MESSAGE_BYTES = 64 * 1024
EXIT_CONTROL = "X-Daytona-Pty-Exit-Control"
VARIABLES = "X-Daytona-Pty-Envs~"


class Api:
    """Endpoints that find, create and delete sandboxes."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        self.url = ""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/sandbox", self.create),
            web.get("/sandbox/{name}", self.find),
            web.delete("/sandbox/{name}", self.delete),
            web.post("/sandbox/{name}/last-activity", self.noted),
        ]

    async def create(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        if self._sandboxes.named(wanted["name"]):
            return _error_response(409, f"there is a sandbox {wanted['name']} already")
        limits = {
            "home": wanted["labels"]["home"],
            "cpus": wanted["cpu"],
            "memory": wanted["memory"] * 1_024,
            "idle_seconds": wanted["autoStopInterval"] * 60,
            "deleted_seconds": wanted["autoDeleteInterval"] * 60,
            "network": not wanted["networkBlockAll"],
        }
        return web.json_response(self._described(self._sandboxes.create(wanted["name"], limits)))

    async def find(self, request: web.Request) -> web.Response:
        identity = self._identity(request)
        return web.json_response(self._described(identity)) if identity else _error_response(404, "not found")

    async def delete(self, request: web.Request) -> web.Response:
        identity = self._identity(request)
        if not identity:
            return _error_response(404, "not found")
        described = self._described(identity)
        await self._sandboxes.end(identity)
        return web.json_response({**described, "state": "destroyed"})

    async def noted(self, _: web.Request) -> web.Response:
        return web.Response()

    def _identity(self, request: web.Request) -> str:
        name = request.match_info["name"]
        return name if self._sandboxes.runs(name) else self._sandboxes.named(name)

    def _described(self, identity: str) -> dict[str, object]:
        sandbox = self._sandboxes.get(identity)
        assert sandbox is not None
        return {
            "id": identity,
            "organizationId": "us",
            "name": sandbox.name,
            "user": "root",
            "env": {},
            "labels": {},
            "public": False,
            "networkBlockAll": not sandbox.limits["network"],
            "kvm": False,
            "target": "here",
            "cpu": sandbox.limits["cpus"],
            "gpu": 0,
            "memory": 2,
            "disk": 5,
            "state": "started",
            "toolboxProxyUrl": f"{self.url}/toolbox",
        }


class Terminal:
    """A terminal in a fake sandbox, with its connected client."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.typed: asyncio.Queue[bytes] = asyncio.Queue(MAX_QUEUED_INPUT)
        self.dropped_bytes = False
        self._work = [asyncio.ensure_future(each) for each in (self._show(), self._type())]

    async def _show(self) -> None:
        while data := await self.program.read():
            if self.waiting.qsize() >= MAX_QUEUED_CHUNKS:
                self.dropped_bytes = True
                self.waiting.put_nowait(None)
            if not self.dropped_bytes:
                self.waiting.put_nowait(data)

    async def _type(self) -> None:
        """Write queued input, also after the client has disconnected."""
        while True:
            await self.program.write(await self.typed.get())

    async def code(self) -> int:
        code = await self.program.wait()
        return code if code >= 0 else 128 - code


class Toolbox:
    """Endpoints that run programs."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        self._terminals: dict[str, Terminal] = {}

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/toolbox/{sandbox}/work-dir", self.folder),
            web.post("/toolbox/{sandbox}/process/execute", self.execute),
            web.get("/toolbox/{sandbox}/process/pty/create-connect", self.connect),
            web.post("/toolbox/{sandbox}/process/pty/{terminal}/resize", self.resize),
        ]

    async def folder(self, request: web.Request) -> web.Response:
        return web.json_response({"dir": str(self._sandbox(request).folder)})

    async def execute(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        program = self._sandbox(request).start(["bash", "-c", wanted["command"]], {}, None)
        program.close_input()
        written: list[bytes] = []
        while data := await program.read():
            written.append(data)
        return web.json_response({"exitCode": await program.wait(), "result": b"".join(written).decode()})

    async def connect(self, request: web.Request) -> web.StreamResponse:
        sandbox, asked = self._sandbox(request), request.query
        size = TerminalSize(int(asked["rows"]), int(asked["cols"]))
        env = {"TERM": "xterm-256color", **_read_variables(request)}
        terminal = Terminal(sandbox.start(["bash", "-i", "-l"], env, size))
        self._terminals[asked["id"]] = terminal
        socket = web.WebSocketResponse(protocols=(EXIT_CONTROL,), max_msg_size=MAX_MESSAGE_BYTES)
        await socket.prepare(request)
        await socket.send_str(json.dumps({"type": "control", "status": "connected"}))
        work = [
            asyncio.create_task(each)
            for each in (
                _receive_input(socket, terminal),
                _send_output(socket, terminal),
                _send_exit(socket, terminal),
            )
        ]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in work:
                each.cancel()
            await asyncio.wait(work)
        return socket

    async def resize(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        self._terminals[request.match_info["terminal"]].program.resize(
            TerminalSize(wanted["rows"], wanted["cols"])
        )
        described = {"id": request.match_info["terminal"], "active": True, "createdAt": "", "cwd": "/"}
        return web.json_response({**described, "envs": {}, "lazyStart": False, **wanted})

    def _sandbox(self, request: web.Request) -> Sandbox:
        sandbox = self._sandboxes.get(request.match_info["sandbox"])
        if sandbox is None:
            raise web.HTTPNotFound(text=json.dumps({"message": "the sandbox was deleted"}))
        return sandbox


async def _receive_input(socket: web.WebSocketResponse, terminal: Terminal) -> None:
    async for message in socket:
        if message.type == WSMsgType.BINARY:
            await terminal.typed.put(message.data)


async def _send_output(socket: web.WebSocketResponse, terminal: Terminal) -> None:
    while (data := await terminal.waiting.get()) is not None:
        await socket.send_bytes(data)
    await socket.close(code=WSCloseCode.POLICY_VIOLATION, message=b"slow consumer")


async def _send_exit(socket: web.WebSocketResponse, terminal: Terminal) -> None:
    code = await terminal.code()
    await socket.send_str(json.dumps({"type": "control", "status": "exited", "exitCode": code}))
    await socket.close(code=WSCloseCode.OK, message=json.dumps({"exitCode": code}).encode())


def _read_variables(request: web.Request) -> Mapping[str, str]:
    for protocol in request.headers.get("Sec-WebSocket-Protocol", "").split(","):
        if protocol.strip().startswith(VARIABLES):
            encoded = protocol.strip().removeprefix(VARIABLES)
            found: dict[str, str] = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
            return found
    return {}


def _error_response(status: int, message: str) -> web.Response:
    return web.json_response({"message": message, "statusCode": status}, status=status)


@web.middleware  # type: ignore[untyped-decorator]
async def _check_key(request: web.Request, handler: Any) -> web.StreamResponse:
    if request.headers.get("Authorization") != "Bearer dtn-test":
        return _error_response(401, "who are you?")
    answer: web.StreamResponse = await handler(request)
    return answer


async def serve(folder: str) -> None:
    """Serve until stdin is closed, which means that the test process has exited."""
    sandboxes = Sandboxes(folder)
    api = Api(sandboxes)
    application = web.Application(middlewares=[_check_key])
    application.add_routes([*api.routes(), *Toolbox(sandboxes).routes()])
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    api.url = f"http://{host}:{port}"
    print(api.url, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await sandboxes.close()
    os._exit(0)  # do not wait for connected clients


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
