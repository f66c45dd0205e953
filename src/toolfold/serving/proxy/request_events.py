"""Publish events of model requests for the dashboard, the usage history, logs and tracing.

Texts of messages and replies are never published. Searches of the model are published by the session that
answers them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from toolfold.core.errors import CallError
from toolfold.core.events import EventBus, ModelReplied, ToolsSelected, TurnFinished, Usage
from toolfold.core.types import BRIDGE_CALL, BRIDGE_NAMES, ToolCall, make_encodable
from toolfold.models.reply import Reply
from toolfold.selection.turn import unwrap
from toolfold.serving.proxy.folding import Fold

MAX_PROBLEM_CHARS = 500
MAX_MODEL_CHARS = 200
"""A client can name a model of any length."""


class RequestEvents:
    """Publishes the events of one model request of a client."""

    def __init__(
        self,
        bus: EventBus,
        *,
        client: str,
        model: str,
        provider: str,
        user_id: str = "",
        on_reply: Callable[[Reply, bool], None] = lambda _reply, _is_whole: None,
        find_cost: Callable[[str, Usage], float | None] | None = None,
    ) -> None:
        """Create a publisher; requests without a session are published under the client's name.

        `user_id` is the user to which the client belongs; empty if it belongs to none.
        `on_reply` is called with each reply, and False if the reply is incomplete. `find_cost` returns the
        cost of a model's tokens; by default, their list price.
        """
        self._on_reply, self._find_cost = on_reply, find_cost or find_list_price
        self._bus, self._model, self._provider = bus, make_encodable(model[:MAX_MODEL_CHARS]), provider
        self._session_id, self._user_id = f"proxy:{client}", user_id
        self._started = time.monotonic()

    def start_round(self, fold: Fold, *, has_all_tools: bool = False) -> None:
        """Publish an event with the tools of the next request to the provider."""
        self._started = time.monotonic()
        self._session_id = fold.session.id
        if not self._bus.has_listeners_for(ToolsSelected):
            return
        report = fold.report
        self._bus.publish(
            ToolsSelected(
                session_id=self._session_id,
                turn=0,
                shown=tuple(fold.entries) if has_all_tools else fold.shown_names,
                available=len(fold.entries),
                tool_search=not has_all_tools,
                tokens=report.sent_tokens + (report.saved_tokens if has_all_tools else 0),
                tokens_saved=0 if has_all_tools else max(0, report.saved_tokens),
                why=fold.turn.why,
            )
        )

    def end_round(self, reply: Reply) -> None:
        """Publish an event for the provider's reply."""
        model = reply.model or self._model
        self._on_reply(reply, True)
        if self._bus.has_listeners_for(ModelReplied):
            calls = tuple(name for call in reply.calls if (name := _find_tool(call)))
            self._publish_reply(model, reply.usage, calls)

    def note_interrupted(self, reply: Reply) -> None:
        """Count the tokens in the received part of an interrupted reply."""
        self._on_reply(reply, False)

    def note_forwarded(self) -> None:
        """Publish an event for the provider's reply to a request that was forwarded unchanged."""
        if self._model and self._bus.has_listeners_for(ModelReplied):
            self._publish_reply(self._model, Usage(), ())

    def note_failure(self, problem: str) -> None:
        """Publish an event for a failed request."""
        if self._bus.has_listeners_for(TurnFinished):
            text = f"{self._model or 'a model request'}: {problem}"[:MAX_PROBLEM_CHARS]
            self._bus.publish(TurnFinished(session_id=self._session_id, turn=0, reason="error", error=text))

    def _publish_reply(self, model: str, usage: Usage, calls: tuple[str, ...]) -> None:
        self._bus.publish(
            ModelReplied(
                session_id=self._session_id,
                turn=0,
                model=model,
                usage=usage,
                cost=self._find_cost(model, usage),
                duration_s=time.monotonic() - self._started,
                calls=calls,
                provider=self._provider,
                user_id=self._user_id,
            )
        )


def find_list_price(model: str, usage: Usage) -> float | None:
    """Return the cost of tokens at list price in dollars; None if the model's price is unknown."""
    from toolfold.selection.turn.pricing import cost_of_call, find_prices

    return cost_of_call(usage, find_prices(model))


def _find_tool(call: ToolCall) -> str:
    """Return the name of the tool run by a call; empty for a tool search or a malformed call."""
    if call.name != BRIDGE_CALL:
        return "" if call.name in BRIDGE_NAMES else call.name
    try:
        return unwrap(call).name
    except CallError:
        return ""
