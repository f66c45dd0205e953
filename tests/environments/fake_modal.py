"""A minimal Modal server for its real SDK: sandboxes are directories, programs run on this machine.

Implements only the calls that find, create, use and terminate a sandbox. A program belongs to its sandbox by
a variable in its environment; terminating the sandbox kills all processes with that variable. Like the real
server, it leaves a program's input open when a client disconnects.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from google.protobuf import empty_pb2
from grpclib import GRPCError, Status
from grpclib.const import Handler
from grpclib.server import Server, Stream
from modal_proto import api_pb2, task_command_router_pb2
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from tests.environments.fake_sandboxes import Program, Sandboxes
from toolfold.tools.environments import TerminalSize

router_pb2 = task_command_router_pb2
UNEXPIRED_TOKEN = "e30.eyJleHAiOjk5OTk5OTk5OTk5fQ.e30"  # an unsigned token, valid until the year 5138

_Method = Callable[[Any], Awaitable[Any]]


class Service:
    """Implemented methods of a gRPC service; others are answered with `unimplemented`."""

    def __init__(self, base: Any, methods: Mapping[str, _Method], streams: Mapping[str, Any]) -> None:
        names: frozenset[str] = base.__abstractmethods__
        everything = type(base.__name__, (base,), dict.fromkeys(names))()
        self._handlers: dict[str, Handler] = {}
        for path, handler in everything.__mapping__().items():
            name = path.rpartition("/")[2]
            if name in methods:
                self._handlers[path] = handler._replace(func=_make_handler(methods[name]))
            elif name in streams:
                self._handlers[path] = handler._replace(func=streams[name])

    def __mapping__(self) -> dict[str, Handler]:
        return self._handlers


def _make_handler(method: _Method) -> Callable[[Stream[Any, Any]], Awaitable[None]]:
    async def answer(stream: Stream[Any, Any]) -> None:
        request = await stream.recv_message()
        await stream.send_message(await method(request))

    return answer


class ControlPlane:
    """Service that finds, creates and terminates sandboxes."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        self.url = ""

    def service(self) -> Service:
        methods: dict[str, _Method] = {
            "ClientHello": self.hello,
            "AuthTokenGet": self.token,
            "AppGetOrCreate": self.app,
            "ImageGetOrCreate": self.image,
            "EnvironmentGetOrCreate": self.environment,
            "SandboxCreateV2": self.create,
            "SandboxGetFromName": self.nothing,
            "SandboxGetFromNameV2": self.find,
            "SandboxGetTaskIdV2": self.task,
            "SandboxGetCommandRouterAccess": self.access,
            "SandboxWaitV2": self.state,
            "SandboxTerminateV2": self.terminate,
        }
        return Service(ModalClientBase, methods, {})

    async def hello(self, _: empty_pb2.Empty) -> api_pb2.ClientHelloResponse:
        return api_pb2.ClientHelloResponse()

    async def token(self, _: api_pb2.AuthTokenGetRequest) -> api_pb2.AuthTokenGetResponse:
        return api_pb2.AuthTokenGetResponse(token=UNEXPIRED_TOKEN)

    async def app(self, request: api_pb2.AppGetOrCreateRequest) -> api_pb2.AppGetOrCreateResponse:
        return api_pb2.AppGetOrCreateResponse(app_id=f"ap-{request.app_name}")

    async def image(self, _: api_pb2.ImageGetOrCreateRequest) -> api_pb2.ImageGetOrCreateResponse:
        done = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
        return api_pb2.ImageGetOrCreateResponse(image_id="im-1", result=done)

    async def environment(
        self, _: api_pb2.EnvironmentGetOrCreateRequest
    ) -> api_pb2.EnvironmentGetOrCreateResponse:
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        metadata = api_pb2.EnvironmentMetadata(name="main", settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata)

    async def create(self, request: api_pb2.SandboxCreateV2Request) -> api_pb2.SandboxCreateV2Response:
        wanted = request.definition
        if self._sandboxes.named(wanted.name):
            raise GRPCError(Status.ALREADY_EXISTS, f"there is a sandbox {wanted.name} already")
        blocked = api_pb2.NetworkAccess.NetworkAccessType.BLOCKED
        limits: dict[str, object] = {
            **{tag.tag_name: tag.tag_value for tag in request.tags},
            "cpus": wanted.resources.milli_cpu_max / 1_000,
            "memory": wanted.resources.memory_mb_max,
            "seconds": wanted.timeout_secs,
            "idle_seconds": wanted.idle_timeout_secs,
            "network": wanted.network_access.network_access_type != blocked,
        }
        name = self._sandboxes.create(wanted.name, limits)
        return api_pb2.SandboxCreateV2Response(sandbox_id=f"sb-{name}", task_id=_task_id(name))

    async def nothing(self, _: object) -> object:
        raise GRPCError(Status.NOT_FOUND, "there is no such sandbox")

    async def find(self, request: api_pb2.SandboxGetFromNameRequest) -> api_pb2.SandboxGetFromNameResponse:
        name = self._sandboxes.named(request.sandbox_name)
        if not name:
            raise GRPCError(Status.NOT_FOUND, f"there is no sandbox {request.sandbox_name}")
        return api_pb2.SandboxGetFromNameResponse(sandbox_id=f"sb-{name}")

    async def task(self, request: api_pb2.SandboxGetTaskIdRequest) -> api_pb2.SandboxGetTaskIdResponse:
        return api_pb2.SandboxGetTaskIdResponse(task_id=_task_id(_sandbox_name(request.sandbox_id)))

    async def access(
        self, _: api_pb2.SandboxGetCommandRouterAccessRequest
    ) -> api_pb2.SandboxGetCommandRouterAccessResponse:
        return api_pb2.SandboxGetCommandRouterAccessResponse(url=self.url, jwt=UNEXPIRED_TOKEN)

    async def state(self, request: api_pb2.SandboxWaitRequest) -> api_pb2.SandboxWaitResponse:
        if self._sandboxes.runs(_sandbox_name(request.sandbox_id)):
            return api_pb2.SandboxWaitResponse()
        ended = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_TERMINATED)
        return api_pb2.SandboxWaitResponse(result=ended)

    async def terminate(self, request: api_pb2.SandboxTerminateRequest) -> api_pb2.SandboxTerminateResponse:
        await self._sandboxes.end(_sandbox_name(request.sandbox_id))
        return api_pb2.SandboxTerminateResponse()


class Router:
    """Service that runs programs."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        self._programs: dict[str, Program] = {}
        self._taken: dict[str, int] = {}

    def service(self) -> Service:
        methods: dict[str, _Method] = {
            "TaskExecStart": self.start,
            "TaskExecStdinWrite": self.write,
            "TaskExecWait": self.wait,
        }
        return Service(TaskCommandRouterBase, methods, {"TaskExecStdioRead": self.read})

    async def start(self, request: router_pb2.TaskExecStartRequest) -> router_pb2.TaskExecStartResponse:
        env: dict[str, str] = {}
        for source in request.secret_sources:
            env.update(source.env.contents)
        size = None
        if request.HasField("pty_info"):
            size = TerminalSize(request.pty_info.winsz_rows or 24, request.pty_info.winsz_cols or 80)
        sandbox = self._sandboxes.get(_sandbox_name(request.task_id))
        if sandbox is None:
            raise GRPCError(Status.NOT_FOUND, "the sandbox has ended")
        self._programs[request.exec_id] = sandbox.start(request.command_args, env, size)
        return router_pb2.TaskExecStartResponse()

    async def write(
        self, request: router_pb2.TaskExecStdinWriteRequest
    ) -> router_pb2.TaskExecStdinWriteResponse:
        """Write input once even if it is sent repeatedly, by its offset."""
        program = self._program(request)
        taken = self._taken.get(request.exec_id, 0)
        self._taken[request.exec_id] = max(taken, request.offset + len(request.data))
        await program.write(request.data[max(0, taken - request.offset) :])
        if request.eof:
            program.close_input()
        return router_pb2.TaskExecStdinWriteResponse()

    async def wait(self, request: router_pb2.TaskExecWaitRequest) -> router_pb2.TaskExecWaitResponse:
        program = self._program(request)
        code = await program.wait()
        self._program(request)
        return (
            router_pb2.TaskExecWaitResponse(signal=-code)
            if code < 0
            else router_pb2.TaskExecWaitResponse(code=code)
        )

    async def read(self, stream: Stream[Any, Any]) -> None:
        request = await stream.recv_message()
        program = self._program(request)
        errors = request.file_descriptor == router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDERR
        while data := await program.read(errors=errors):
            await stream.send_message(router_pb2.TaskExecStdioReadResponse(data=data))
        self._program(request)

    def _program(self, request: Any) -> Program:
        if request.exec_id not in self._programs or not self._sandboxes.runs(_sandbox_name(request.task_id)):
            raise GRPCError(Status.NOT_FOUND, "the sandbox has ended")
        return self._programs[request.exec_id]


def _task_id(name: str) -> str:
    return f"ta-{name}-V"


def _sandbox_name(identity: str) -> str:
    return identity.split("-")[1]


async def serve(folder: str) -> None:
    """Serve until stdin is closed, which means that the test process has exited."""
    sandboxes = Sandboxes(folder)
    control = ControlPlane(sandboxes)
    server = Server([control.service(), Router(sandboxes).service()])
    await server.start("127.0.0.1", 0)
    port = server._server.sockets[0].getsockname()[1]
    control.url = f"http://127.0.0.1:{port}"
    print(control.url, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await sandboxes.close()
    server.close()
    os._exit(0)  # do not wait for connected clients


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
