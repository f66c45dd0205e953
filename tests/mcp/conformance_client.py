"""Client that the official conformance runner starts: Toolfold with one server.

`python -m tests.mcp.conformance_client URL`; the runner passes the rest in environment variables. Everything
goes through a runtime and its dispatch line, as for a model. The simulated user approves every call, fills
in forms with their defaults, and logs in when required. Exits with 0 if everything succeeded.

`python -m tests.mcp.conformance_client --ready SOCKET` loads everything once and runs each scenario in a
forked process until its standard input ends: loading takes ten times as long as a scenario.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from toolfold import Runtime, open_runtime
from toolfold.config import load_config
from toolfold.core.types import Json, ToolResult
from toolfold.mcp.elicitation_requests import ElicitationRequest
from toolfold.mcp.faults import ServerFailed
from toolfold.mcp.oauth import log_in
from toolfold.mcp.tool_listing import ListedTool

SERVER = "tested"
DOCUMENT = "https://conformance-test.local/client-metadata.json"
PATIENCE = 60.0
LOADED = (
    "anyio._backends._asyncio",
    "h11",
    "jsonschema_rs",
    "mcp.client.sse",
    "mcp.client.streamable_http",
    "toolfold.tools.environments.local",
    "toolfold.mcp.oauth.provider",
    "toolfold.mcp.scan.scanner",
    "toolfold.mcp.http_transport",
    "toolfold.tools.builtin.agent",
    "toolfold.tools.builtin.file",
)
"""Modules that a scenario needs."""
MAX_LOGINS = 3
"""Number of times that the simulated user logs in."""


@dataclass(frozen=True, slots=True)
class ScenarioRequest:
    """Parameters of a scenario from the runner."""

    url: str
    scenario: str
    context: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> Json:
        """Return the server settings as a user would have written them."""
        oauth = {"client_metadata_url": DOCUMENT}
        if client := self.context.get("client_id"):
            oauth = {"client_id": client, "client_secret": self.context.get("client_secret", "")}
        return {"mcp": {"wait_seconds": PATIENCE, "servers": {SERVER: {"url": self.url, "oauth": oauth}}}}


def main() -> int:
    """Run the scenario in a home directory of its own."""
    asked = ScenarioRequest(
        sys.argv[-1],
        os.environ["MCP_CONFORMANCE_SCENARIO"],
        json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}"),
    )
    with tempfile.TemporaryDirectory() as folder:
        home = {"TOOLFOLD_HOME": folder, "HOME": folder}
        config = load_config(project=Path(folder), env={**os.environ, **home}, overrides=asked.settings)
        with open_runtime(config, approver=lambda _request: True, elicit=accept_form_defaults) as runtime:
            return asyncio.run(_ScenarioRunner(runtime, asked).run())


def serve_scenarios(place: str) -> int:
    """Run the scenarios that arrive at the socket until standard input ends."""
    for name in LOADED:
        import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reap forked processes automatically
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(place)
        door.listen(64)
        print("ready", flush=True)
        while door in select.select([door, sys.stdin], [], [])[0]:
            caller, _ = door.accept()
            if os.fork() == 0:
                os._exit(_serve(caller))
            caller.close()
    return 0


def _serve(caller: socket.socket) -> int:
    """Run a scenario for the caller, with its output streams and environment."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, outputs, *_ = socket.recv_fds(caller, 1, 2)
    for own, given in zip((1, 2), outputs, strict=True):
        os.dup2(given, own)
    asked = json.loads(caller.makefile().readline())
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv[1:] = [asked["url"]]
    threading.Thread(target=lambda: caller.recv(1) or os._exit(1), daemon=True).start()
    code = 1
    try:
        code = main()
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    caller.sendall(f"{code}\n".encode())
    return code


def accept_form_defaults(question: ElicitationRequest) -> Json:
    """Return the defaults of a form, and True for fields without one."""
    return {
        each.name: True if each.default is None and each.kind == "switch" else each.default
        for each in question.fields
    }


async def follow_redirects(address: str) -> str:
    """Simulate a browser in which the user is already logged in at the issuer; return the redirect URL."""
    import httpx2

    async with httpx2.AsyncClient(follow_redirects=False, timeout=PATIENCE) as client:
        return str((await client.get(address)).headers["location"])


class _ScenarioRunner:
    """Uses the server as the scenario requires."""

    def __init__(self, runtime: Runtime, asked: ScenarioRequest) -> None:
        self._runtime, self._asked = runtime, asked
        self._logins = self._failures = 0

    async def run(self) -> int:
        """Run the scenario; return 0 on success."""
        while self._state.state == "login" and await self._log_in():
            await self._restart()
        if self._state.state != "up":
            print(self._state)
            return 1
        self._session = self._runtime.session([f"mcp-{SERVER}"])
        await _SCENARIOS.get(self._asked.scenario, _ScenarioRunner.call_each)(self)
        return min(self._failures, 1)

    async def list_tools(self) -> None:
        """Do nothing, because opening the runtime has already listed the tools."""

    async def call_each(self) -> None:
        """Call each tool with minimal arguments."""
        for offer in self._listed_tools.values():
            required = offer.input_schema.get("required", ())
            await self._call(offer.name, dict.fromkeys(required, "any"))

    async def add(self) -> None:
        """Call a tool with numeric arguments."""
        await self._call("add_numbers", {"a": 2, "b": 3})

    async def call_from_context(self) -> None:
        """Call the tools with the arguments that the runner gives."""
        for call in self._asked.context["toolCalls"]:
            await self._call(call["name"], call["arguments"])

    async def use_all(self) -> None:
        """Call each tool, read each resource, get each prompt."""
        await self.call_each()
        for resource in (await self._call("list_resources", {})).value["resources"]:
            await self._call("read_resource", {"uri": resource["uri"]})
        for prompt in (await self._call("list_prompts", {})).value["prompts"]:
            await self._call("get_prompt", {"name": prompt["name"]})

    async def echo_schema(self) -> None:
        """Send a tool's schema back as it was received."""
        schema = self._listed_tools["json_schema_2020_12_tool"].input_schema
        await self._call("json_schema_echo", {"schema": schema})

    @property
    def _state(self) -> Any:
        return self._runtime.mcp.states()[0]

    @property
    def _listed_tools(self) -> dict[str, ListedTool]:
        listing = self._runtime.mcp.listing(SERVER)
        return {offer.name: offer for offer in listing.tools} if listing else {}

    async def _call(self, tool: str, args: Json) -> ToolResult:
        """Call a tool as a model would; log in and repeat the call if a login is required."""
        name = f"mcp_{SERVER}_{tool}"
        result = await self._session.call(name, args)
        while _wants_login(result) and await self._log_in():
            result = await self._session.call(name, args)
        print(tool, result.text[:2_000])
        self._failures += not result.ok
        return result

    async def _log_in(self) -> bool:
        """Return True if the login succeeded and the maximum number of logins is not reached."""
        self._logins += 1
        if self._logins > MAX_LOGINS:
            return False
        config = self._runtime.config
        settings, folder = config.mcp.servers[SERVER], config.paths.state_dir / "oauth"
        try:
            await log_in(SERVER, settings, folder, environment=config.environment, open_url=follow_redirects)
        except ServerFailed as error:
            print(error)
            return False
        return True

    async def _restart(self) -> None:
        try:
            await asyncio.to_thread(self._runtime.mcp.restart, SERVER)
        except ServerFailed as error:
            print(error)


def _wants_login(result: ToolResult) -> bool:
    return not result.ok and json.loads(result.text).get("kind") == "needs-login"


_SCENARIOS: Mapping[str, Callable[[_ScenarioRunner], Awaitable[None]]] = {
    "initialize": _ScenarioRunner.list_tools,
    "request-metadata": _ScenarioRunner.list_tools,
    "json-schema-ref-no-deref": _ScenarioRunner.list_tools,
    "tools_call": _ScenarioRunner.add,
    "http-custom-headers": _ScenarioRunner.call_from_context,
    "http-standard-headers": _ScenarioRunner.use_all,
    "json-schema-2020-12-preservation": _ScenarioRunner.echo_schema,
}


if __name__ == "__main__":
    sys.exit(serve_scenarios(sys.argv[2]) if sys.argv[1] == "--ready" else main())
