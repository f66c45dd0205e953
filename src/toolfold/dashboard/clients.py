"""The clients page: access tokens of the gateway, their scopes, and the tools that each client sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolfold.dashboard.confirmations import ProposedChange
from toolfold.dashboard.local_gateways import find_login_name
from toolfold.dashboard.texts import show_exact_line, show_name
from toolfold.errors import ToolfoldError
from toolfold.gateway.request_bodies import RequestRefused
from toolfold.gateway.server import open_session
from toolfold.gateway.status import read_statuses
from toolfold.model import Json

if TYPE_CHECKING:
    from toolfold.gateway.tokens import GatewayClient, TokenStore
    from toolfold.runtime import Runtime
    from toolfold.session import Session

MAX_CLIENTS = 200
MAX_TOOLS = 2_000
CLIENTS_PAGE = "/ui/clients"


class ClientAdmin:
    """Shows and changes which clients may use the gateway. Methods block: call them in a thread."""

    def __init__(self, runtime: Runtime, tokens: TokenStore) -> None:
        self._runtime, self._tokens = runtime, tokens

    def list_clients(self) -> Json:
        """Return the clients with a token, those that are connected now, and the toolsets to choose from."""
        folder = self._runtime.config.paths.state_dir / "gateway" / "status"
        connected = [
            {
                "name": show_name(str(each.get("name", ""))),
                "token": show_name(str(each.get("token", ""))),
                "tools": tools if isinstance(tools := each.get("tools"), int) else 0,
                "busy": bool(each.get("busy")),
                "gateway": show_name(str(gateway.get("address") or "stdio")),
                "user": show_name(self._name_user(each, gateway)),
                "process": gateway["pid"],
            }
            for gateway in read_statuses(folder)
            for each in gateway.get("clients", ())
        ]
        return {
            "clients": [
                {
                    "name": each.name,
                    "toolsets": None if each.toolsets is None else list(each.toolsets),
                    "created": each.created,
                    "tools": self._count_tools(each),
                }
                for each in self._tokens.list_clients()[:MAX_CLIENTS]
            ],
            "connected": connected[:MAX_CLIENTS],
            "toolsets": sorted(self._runtime.toolsets().listing())[:1_000],
        }

    def _name_user(self, client: Mapping[str, Any], gateway: Mapping[str, Any]) -> str:
        """Return the user of a connected client; over stdio, the user who runs the dashboard too."""
        if not gateway.get("address"):
            return find_login_name()
        return self._tokens.users.name_user(str(client.get("user_id") or ""))

    def _open_session(self, client: GatewayClient) -> Session:
        return open_session(
            self._runtime, client.toolsets, find_limits=lambda: self._tokens.list_limits(client)
        )

    def _count_tools(self, client: GatewayClient) -> int | None:
        try:
            return len(self._open_session(client).granted())
        except ToolfoldError:  # a toolset was removed since
            return None

    def list_tools(self, name: str) -> Json:
        """Return the tools that a client may use, and the tools in its tool list. Raises RequestRefused."""
        client = next((each for each in self._tokens.list_clients() if each.name == name), None)
        if client is None:
            raise RequestRefused(404, "There is no client of this name.")
        try:
            session = self._open_session(client)
        except ToolfoldError as error:
            raise RequestRefused(409, str(error)) from None
        turn = session.assemble()
        return {
            "granted": [show_name(each) for each in sorted(session.granted())[:MAX_TOOLS]],
            "shown": [show_name(tool.name) for tool in turn.tools[:MAX_TOOLS]],
        }

    def add(self, body: Mapping[str, Any]) -> ProposedChange:
        """Propose a client; when it is confirmed, its token is shown, only once. Raises RequestRefused."""
        name, toolsets = str(body.get("name") or ""), body.get("toolsets")
        if toolsets is not None and not (
            isinstance(toolsets, list) and toolsets and all(isinstance(each, str) for each in toolsets)
        ):
            raise RequestRefused(400, "toolsets must be a list of names.")
        self._runtime.toolsets().require(toolsets or ())

        def create() -> str:
            self._runtime.toolsets().require(toolsets or ())
            return f"Copy the token now; it is not shown again: {self._tokens.add(name, toolsets)}"

        everything = "all toolsets of the gateway, and the configured keys of model providers"
        granted = everything if toolsets is None else ", ".join(toolsets)
        details = {"Name of the client": show_name(name), "May use": show_exact_line(granted, 100_000)}
        return ProposedChange("Create a token?", details, "Create the token", create, CLIENTS_PAGE)

    def revoke(self, name: str) -> Json:
        """Delete a client's token, scheduled jobs and allowed tools. Raises RequestRefused."""
        if not self._tokens.revoke(name):
            raise RequestRefused(404, "There is no client of this name.")
        return self.list_clients()
