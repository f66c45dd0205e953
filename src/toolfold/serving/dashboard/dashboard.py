"""Connect the dashboard's pages to a runtime, and manage their resources while the server runs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from toolfold import __version__
from toolfold.core.types import Json
from toolfold.safety.redaction import Redaction
from toolfold.serving.dashboard.activity_routes import MAX_STREAMS, ActivityFeed
from toolfold.serving.dashboard.approval_routes import MAX_SHOWN_CHARS, PageApprover
from toolfold.serving.dashboard.catalog_routes import CatalogView
from toolfold.serving.dashboard.chat_routes import ChatSessions
from toolfold.serving.dashboard.client_routes import ClientAdmin
from toolfold.serving.dashboard.dashboard_app import Answerer, DashboardApp, DashboardRequest, Routes
from toolfold.serving.dashboard.demo_routes import Demo, DemoParts
from toolfold.serving.dashboard.evaluation_routes import Evaluations
from toolfold.serving.dashboard.local_gateways import FollowedGateways, GatewayFeed
from toolfold.serving.dashboard.overview_routes import describe_overview, describe_servers
from toolfold.serving.dashboard.own_activity import OwnActivity
from toolfold.serving.dashboard.playground_routes import describe_choices, explain_message
from toolfold.serving.dashboard.recorder import UsageRecorder, find_journal, open_history
from toolfold.serving.dashboard.server_routes import ServerAdmin
from toolfold.serving.dashboard.shared_questions import SharedQuestions
from toolfold.serving.dashboard.user_routes import UserAdmin
from toolfold.serving.gateway.http_app import AccessPolicy
from toolfold.serving.gateway.request_bodies import RequestRefused
from toolfold.state.database import DatabaseError

if TYPE_CHECKING:
    from toolfold.models.client import ModelClient
    from toolfold.runtime.runtime import Runtime
    from toolfold.serving.dashboard.oidc import DashboardLogins
    from toolfold.serving.gateway.client_tokens import TokenStore

MAX_PARALLEL_EXPLANATIONS = 2


class Dashboard:
    """Connects the pages of the dashboard to one runtime, which they show and change."""

    def __init__(
        self,
        runtime: Runtime,
        approver: PageApprover,
        *,
        demo: DemoParts | None = None,
        chat_model: ModelClient | None = None,
        suggestions: Sequence[str] = (),
    ) -> None:
        """Start recording the runtime's events; the runtime must have been opened with `approver`.

        With `demo`, pages can show sample data instead. The chat uses `chat_model` instead of the configured
        model, and proposes the messages `suggestions`.
        """
        self._runtime, self._approver = runtime, approver
        self._redact = Redaction(runtime.config.secret_values(), max_chars=MAX_SHOWN_CHARS)
        self._store = open_history(runtime.config, runtime.database)
        self._recorder = UsageRecorder(
            runtime.events,
            self._store,
            with_content=runtime.config.dashboard.history_content,
            journal=find_journal(runtime.config),
        )
        self._feed = ActivityFeed(runtime.events, self._redact)
        self._catalog = CatalogView(runtime, self._store.count_calls, self._redact)
        self._servers = ServerAdmin(runtime, self._redact)
        self.chat = ChatSessions(runtime, self._redact, client=chat_model, suggestions=suggestions)
        self._demo = None if demo is None else Demo(demo, functools.partial(_open_demo_dashboard, demo))
        self._evaluations = Evaluations(runtime, self._redact)
        self._explaining = asyncio.Semaphore(MAX_PARALLEL_EXPLANATIONS)
        approver.is_page_open = lambda: self._feed.open_streams > 0
        if runtime.database is not None:
            approver.exchanges.append(
                SharedQuestions(
                    runtime.database, is_page_open=approver.is_page_open, answer_own=approver.answer_own
                )
            )
        self.gateway_feed = GatewayFeed(approver, self._feed)
        """Shows the questions and events of this process to other dashboards of the user."""
        approver.exchanges += [
            self.gateway_feed,
            FollowedGateways(
                runtime.config.paths.state_dir,
                is_page_open=approver.is_page_open,
                receive_event=self._feed.add_foreign,
            ),
        ]
        self._feed.on_stream_change = approver.update_pages

    def make_app(
        self,
        policy: AccessPolicy,
        *,
        port: int,
        print_link: Callable[[str], None],
        has_logins: bool = False,
    ) -> DashboardApp:
        """Return the ASGI app that serves the dashboard.

        With `has_logins`, the app is at the URL to which the identity provider of the settings redirects.
        """
        self._approver.name_user = self._feed.name_user = policy.tokens.users.name_user
        return DashboardApp(
            self.make_routes(policy.tokens),
            policy,
            self._redact,
            port=port,
            print_link=print_link,
            close=self.close,
            make_logins=self._make_logins(policy) if has_logins else None,
            load_demo=None if self._demo is None else self._demo.load_routes,
        )

    def make_routes(self, tokens: TokenStore) -> Routes:
        """Return the JSON interface to the runtime, and to the clients and users with these tokens."""
        clients, own = ClientAdmin(self._runtime, tokens), OwnActivity(tokens, self._store)
        users = UserAdmin(tokens, self._store)
        return Routes(
            self._list_reads(clients) | {"users": _in_thread(lambda _: users.list_users())},
            self._list_writes(clients)
            | {
                "users/add": _in_thread(lambda request: users.add(request.body)),
                "users/change": _in_thread(lambda request: users.change(request.body)),
                "teams/change": _in_thread(lambda request: users.change_team(request.body)),
            },
            {"events": self._stream_events},
            own={"own": _in_thread(lambda request: self._describe_own(own, request))},
        )

    def _make_logins(self, policy: AccessPolicy) -> Callable[[str], DashboardLogins] | None:
        """Return a function that creates `DashboardLogins`; None if no identity provider is configured."""
        from toolfold.serving.dashboard.oidc import DashboardLogins

        config, users = self._runtime.config, policy.tokens.users
        if not config.dashboard.oidc.issuer:
            return None
        return lambda cookie_name: DashboardLogins(config, users, cookie_name)

    async def close(self) -> None:
        """Stop what the pages have started, and store the usage history."""
        if self._demo is not None:
            await self._demo.close()
        await self.chat.close()
        await self._servers.close()
        await asyncio.to_thread(self._evaluations.close)
        self._feed.close()
        await asyncio.to_thread(self._approver.close)
        await asyncio.to_thread(self._recorder.close)
        self._store.close()

    def _list_reads(self, clients: ClientAdmin) -> dict[str, Answerer]:
        return {
            "about": _in_thread(lambda _: self._describe_about()),
            "overview": _in_thread(self._describe_overview),
            "tools": _in_thread(lambda request: self._catalog.list_page(request.query)),
            "tool": _in_thread(lambda request: self._catalog.describe_tool(request.query.get("name", ""))),
            "choices": _in_thread(lambda _: describe_choices(self._runtime)),
            "activity": _in_thread(lambda _: self._list_activity()),
            "approvals": _in_thread(lambda _: {"pending": self._approver.list_pending()}),
            "servers": _in_thread(lambda _: self._servers.list_servers()),
            "servers/log": _in_thread(lambda request: self._servers.read_log(request.query.get("name", ""))),
            "clients": _in_thread(lambda _: clients.list_clients()),
            "clients/tools": _in_thread(lambda request: clients.list_tools(request.query.get("name", ""))),
            "evaluation": _in_thread(lambda _: self._evaluations.describe()),
            "evaluation/result": _in_thread(lambda _: self._evaluations.load_result()),
            "chat": lambda request: self.chat.describe(request.query.get("session", "")),
        }

    def _list_writes(self, clients: ClientAdmin) -> dict[str, Answerer]:
        return {
            "explain": self._explain,
            "tools/change": _in_thread(self._change_tool),
            "tools/accept": _in_thread(self._accept_tool),
            "approvals/answer": _in_thread(self._answer_approval),
            "servers/add": _in_thread(lambda request: self._servers.add(request.body)),
            "servers/change": _in_thread(
                lambda request: self._servers.change(request.text("name"), request.text("change"))
            ),
            "servers/test": lambda request: self._servers.test(request.text("name")),
            "servers/cancel-test": lambda request: self._servers.cancel_test(request.text("name")),
            "servers/login": lambda request: self._servers.log_in(request.text("name")),
            "clients/add": _in_thread(lambda request: clients.add(request.body)),
            "clients/revoke": _in_thread(lambda request: clients.revoke(request.text("name"))),
            "evaluation/start": _in_thread(lambda request: self._evaluations.start(request.body)),
            "evaluation/cancel": _in_thread(lambda _: self._evaluations.cancel()),
            "chat/send": lambda request: self.chat.send(
                str(request.body.get("session") or ""), request.text("message")
            ),
            "chat/stop": lambda request: self.chat.stop(request.text("session")),
        }

    def _describe_about(self) -> Json:
        config = self._runtime.config
        return {
            "version": __version__,
            "model": config.agent.model,
            "project": str(config.paths.project_dir),
            "history": config.dashboard.history,
            "history_content": config.dashboard.history_content,
        }

    def _describe_overview(self, request: DashboardRequest) -> Json:
        self._recorder.flush()
        period = request.query.get("period", "day")
        return describe_overview(self._runtime, self._catalog, self._store, self._redact, period)

    def _describe_own(self, own: OwnActivity, request: DashboardRequest) -> Json:
        self._recorder.flush()
        return own.describe(request.client)

    def _list_activity(self) -> Json:
        events, position, _ = self._feed.read_after(0)
        return {"events": events, "position": position}

    async def _explain(self, request: DashboardRequest) -> Json:
        async with self._explaining:  # each explanation uses a whole core for a moment
            return await asyncio.to_thread(explain_message, self._runtime, request.body)

    def _change_tool(self, request: DashboardRequest) -> Json:
        change = request.text("change")
        if change not in ("enable", "disable", "pin", "unpin"):
            raise RequestRefused(400, "change must be enable, disable, pin or unpin.")
        self._catalog.change_tool(request.text("name"), change)
        return self._catalog.describe_tool(request.text("name"))

    def _accept_tool(self, request: DashboardRequest) -> Json:
        self._catalog.accept_held(request.text("name"), request.text("fingerprint"))
        return self._catalog.describe_tool(request.text("name"))

    def _answer_approval(self, request: DashboardRequest) -> Json:
        try:
            is_answered = self._approver.answer(request.text("id"), request.text("answer"))
        except DatabaseError as error:
            raise RequestRefused(503, f"The answer could not be stored: {error}") from None
        if not is_answered:
            raise RequestRefused(409, "This question is no longer open, or does not accept this answer.")
        return {}

    def _stream_events(self, request: DashboardRequest) -> AsyncIterator[bytes]:
        if self._feed.open_streams >= MAX_STREAMS:
            raise RequestRefused(503, "Too many pages of the dashboard are open. Close some of them.")
        after = request.query.get("after", "")
        position = int(after) if after.isascii() and after.isdecimal() and len(after) < 16 else 0
        return self._feed.stream(position, self._describe_live)

    def _describe_live(self) -> Json:
        """Return the data that every page of the dashboard shows: open approval questions and MCP servers."""
        return {
            "approvals": self._approver.list_pending(),
            "servers": describe_servers(self._runtime, self._redact),
        }


def _open_demo_dashboard(parts: DemoParts, runtime: Runtime, approver: PageApprover) -> Dashboard:
    return Dashboard(runtime, approver, chat_model=parts.make_model(), suggestions=parts.messages)


def _in_thread(answer: Callable[[DashboardRequest], Any]) -> Answerer:
    """Return a coroutine function that runs a blocking function in a thread."""

    async def run(request: DashboardRequest) -> Any:
        return await asyncio.to_thread(answer, request)

    return run
