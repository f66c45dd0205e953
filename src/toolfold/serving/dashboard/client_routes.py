"""The clients page: access tokens of the gateway, their scopes, and the tools that each client sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolfold.core.errors import ToolfoldError
from toolfold.core.types import Json
from toolfold.serving.dashboard.confirmations import ProposedChange
from toolfold.serving.dashboard.local_gateways import find_login_name
from toolfold.serving.dashboard.texts import show_exact_line, show_name
from toolfold.serving.gateway.client_tokens import LOGIN_CLIENT_PREFIX
from toolfold.serving.gateway.request_bodies import RequestRefused
from toolfold.serving.gateway.server import open_session
from toolfold.serving.gateway.status import read_statuses

if TYPE_CHECKING:
    from toolfold.runtime.runtime import Runtime
    from toolfold.runtime.session import Session
    from toolfold.serving.gateway.client_tokens import GatewayClient, TokenStore

MAX_CLIENTS = 200
MAX_TOOLS = 2_000
CLIENTS_PAGE = "/ui/clients"


class ClientAdmin:
    """Shows and changes which clients may use the gateway. Methods block: call them in a thread."""

    def __init__(self, runtime: Runtime, tokens: TokenStore) -> None:
        self._runtime, self._tokens = runtime, tokens

    def list_clients(self) -> Json:
        """Return the clients with a token, those that are connected now, and the choices for a new token."""
        clients, users = self._tokens.list_clients(), self._tokens.users.directory().users
        owners = {each.name: users[each.user_id].name for each in clients if each.user_id in users}
        folder = self._runtime.config.paths.state_dir / "gateway" / "status"
        connected = [
            {
                "name": show_name(str(each.get("name", ""))),
                "token": show_name(str(each.get("token", ""))),
                "user": show_name(
                    _find_user(str(each.get("token", "")), owners)
                    if gateway.get("address")
                    else find_login_name()  # the same user, or the status file could not be read
                ),
                "process": gateway.get("pid"),
                "tools": tools if isinstance(tools := each.get("tools"), int) else 0,
                "busy": bool(each.get("busy")),
                "gateway": show_name(str(gateway.get("address") or "stdio")),
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
                    "user": show_name(owners.get(each.name, "")),
                }
                for each in clients[:MAX_CLIENTS]
            ],
            "total": len(clients),
            "connected": connected[:MAX_CLIENTS],
            "toolsets": sorted(self._runtime.toolsets().listing())[:1_000],
            "users": sorted(each.name for each in users.values())[:1_000],
        }

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
        name, toolsets, user = str(body.get("name") or ""), body.get("toolsets"), str(body.get("user") or "")
        if toolsets is not None and not (
            isinstance(toolsets, list) and toolsets and all(isinstance(each, str) for each in toolsets)
        ):
            raise RequestRefused(400, "toolsets must be a list of names.")
        self._runtime.toolsets().require(toolsets or ())
        user_id = self._tokens.users.directory().require_user(user).id if user else ""

        def create() -> str:
            self._runtime.toolsets().require(toolsets or ())
            token = self._tokens.add(name, toolsets, user_id=user_id)
            return f"Copy the token now; it is not shown again: {token}"

        everything = "all toolsets of the gateway, and the configured keys of model providers"
        granted = everything if toolsets is None else ", ".join(toolsets)
        details = {"Name of the client": show_name(name), "May use": show_exact_line(granted, 100_000)}
        if user:
            details["Belongs to the user, whose rules apply too"] = show_name(user)
        return ProposedChange("Create a token?", details, "Create the token", create, CLIENTS_PAGE)

    def revoke(self, name: str) -> Json:
        """Delete a client's token, scheduled jobs and allowed tools. Raises RequestRefused."""
        if not self._tokens.revoke(name):
            raise RequestRefused(404, "There is no client of this name.")
        return self.list_clients()


def _find_user(token: str, owners: Mapping[str, str]) -> str:
    """Return the user of a connected client: the owner of its token, or the user who has logged in."""
    if token.startswith(LOGIN_CLIENT_PREFIX):
        return token.removeprefix(LOGIN_CLIENT_PREFIX)
    return owners.get(token, "")
