"""What servers ask of people and of the model, answered by policy first and by a person second.

Fails closed: where nobody can be asked, the server is told beforehand that it need not ask; no answer in
time, an answer that does not fit, or a question that cannot be shown is a no. One question of a server is
asked at a time, and few wait. What is asked and answered is never logged. Knows no connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolfold.config.servers import McpServer
from toolfold.errors import shorten
from toolfold.loops import MOST_ASKED, Loops, OutOfTime
from toolfold.model import freeze
from toolfold.sources.mcp.questions import Question, Reply, Sampled, Wish, fitting, form, visit

if TYPE_CHECKING:
    import mcp_types
    from mcp.client.session import ElicitationFnT, SamplingFnT

log = logging.getLogger(__name__)

__all__ = ["People", "Voice"]

Elicit = Callable[[Question], Any]
"""Asks a person. Heard are a Reply, the values of a form, and True as a plain yes; the rest is a no."""
Sampler = Callable[[Wish], Any]
"""Asks the model. Gives a Sampled or a text."""

SECONDS_TO_ANSWER = 300.0
MOST_WAITING = 4
MOST_TRIES = 3
MOST_TOKENS = 8_192
LARGEST_WISH = 400_000  # characters
_INVALID_PARAMS = -32602
_INTERNAL_ERROR = -32603
_REFUSED_BY_PERSON = -1
_DECLINE, _CANCEL = Reply("decline"), Reply("cancel")


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """How a person and the model are reached, if they are."""

    elicit: Elicit | None = None
    sampler: Sampler | None = None
    loops: Loops = dataclasses.field(default_factory=Loops)
    seconds: float = SECONDS_TO_ANSWER

    def voice(self, server: str, settings: McpServer) -> Voice:
        """The one who answers this server."""
        return Voice(self, server, settings)


class Voice:
    """Answers one server. `elicitation` and `sampling` are None where it is not to ask at all."""

    def __init__(self, people: People, server: str, settings: McpServer) -> None:
        self._people, self._server, self._settings = people, server, settings
        self._turn = asyncio.Lock()
        self._open = 0

    @property
    def waiting(self) -> bool:
        """Whether somebody is being asked now: what the server does meanwhile takes no time of its own."""
        return self._open > 0

    @property
    def elicitation(self) -> ElicitationFnT | None:
        """For the connection; a server that is always declined is told so when it asks."""
        return self._elicit if self._people.elicit or self._settings.elicitation == "decline" else None

    @property
    def sampling(self) -> SamplingFnT | None:
        """For the connection. Asking first needs somebody to ask."""
        allowed = {"allow": True, "ask": self._people.elicit is not None, "deny": False}
        return self._sample if self._people.sampler and allowed[self._settings.sampling] else None

    async def _elicit(
        self, context: Any, params: mcp_types.ElicitRequestParams
    ) -> mcp_types.ElicitResult | mcp_types.ErrorData:
        import mcp_types

        del context
        if self._settings.elicitation == "decline":
            return mcp_types.ElicitResult(action="decline")
        try:
            question = self._question(params)
        except ValueError as error:
            log.warning("MCP server %r asks what cannot be asked: %s", self._server, error)
            return mcp_types.ErrorData(code=_INVALID_PARAMS, message=f"Not shown to anybody: {error}")
        reply = await self._asked(question)
        log.info("MCP server %r asked a person (%s): %s", self._server, question.mode, reply.action)
        if reply.action == "accept" and question.mode == "form":
            return mcp_types.ElicitResult(action="accept", content=dict(reply.values))
        return mcp_types.ElicitResult(action=reply.action)

    async def _sample(
        self, context: Any, params: mcp_types.CreateMessageRequestParams
    ) -> mcp_types.CreateMessageResult | mcp_types.ErrorData:
        import mcp_types

        del context
        try:
            wish = _wish(self._server, params)
        except ValueError as error:
            return mcp_types.ErrorData(code=_INVALID_PARAMS, message=str(error))
        if self._settings.sampling != "allow" and (await self._asked(wish.question())).action != "accept":
            return mcp_types.ErrorData(code=_REFUSED_BY_PERSON, message="The use of the model was refused.")
        sampled = await self._sampled(wish)
        log.info("MCP server %r asked the model: %s", self._server, "answered" if sampled else "no answer")
        if sampled is None:
            return mcp_types.ErrorData(code=_INTERNAL_ERROR, message="The model gave no answer.")
        return mcp_types.CreateMessageResult(
            role="assistant",
            content=mcp_types.TextContent(type="text", text=sampled.text),
            model=sampled.model,
            stop_reason=sampled.stop_reason,
        )

    def _question(self, params: mcp_types.ElicitRequestParams) -> Question:
        if params.mode == "url":
            return visit(self._server, params.message, params.url)
        return form(self._server, params.message, params.requested_schema)

    async def _asked(self, question: Question) -> Reply:
        """What the person says, asked again where it does not fit. The time is that of all tries together."""
        try:
            async with self._place(), asyncio.timeout(self._people.seconds):
                for _ in range(MOST_TRIES):
                    reply = await self._answer(question)
                    if reply.action != "accept" or question.mode != "form":
                        return reply
                    try:
                        return Reply("accept", fitting(question, reply.values))
                    except ValueError as error:
                        question = _again(question, str(error))
        except TimeoutError:
            log.warning("nobody answered MCP server %r in time", self._server)
        except _TooMany:
            log.warning("MCP server %r asks more than anybody can answer", self._server)
            return _DECLINE
        return _CANCEL

    async def _answer(self, question: Question) -> Reply:
        if self._people.elicit is None:
            return _CANCEL
        try:
            said = await self._people.loops.within(
                self._people.seconds, self._people.elicit, question, most=MOST_ASKED
            )
        except OutOfTime:
            raise TimeoutError from None
        except Exception as error:
            log.error("asking for MCP server %r failed: %s", self._server, type(error).__name__)
            return _CANCEL
        finally:
            question.withdrawn.set()
        return _heard(said)

    async def _sampled(self, wish: Wish) -> Sampled | None:
        if self._people.sampler is None:
            return None
        try:
            async with self._place():
                said = await self._people.loops.within(
                    self._people.seconds, self._people.sampler, wish, most=MOST_ASKED
                )
        except (OutOfTime, _TooMany):
            return None
        except Exception as error:
            log.error("the model did not answer MCP server %r: %s", self._server, type(error).__name__)
            return None
        if isinstance(said, str):
            return Sampled(said)
        return said if isinstance(said, Sampled) else None

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """One at a time; whoever finds a long line is sent away, for a person cannot answer a flood."""
        if self._open >= MOST_WAITING:
            raise _TooMany
        self._open += 1
        try:
            async with self._turn:
                yield
        finally:
            self._open -= 1


class _TooMany(Exception):
    """More questions wait than anybody will answer."""


def _again(question: Question, problem: str) -> Question:
    return dataclasses.replace(question, problem=problem, withdrawn=threading.Event())


def _heard(said: object) -> Reply:
    if isinstance(said, Reply):
        return said if said.action in ("accept", "decline") else _CANCEL
    if said is True:
        return Reply("accept")
    if isinstance(said, Mapping):
        return Reply("accept", said)
    return _DECLINE if said is False else _CANCEL


def _wish(server: str, params: mcp_types.CreateMessageRequestParams) -> Wish:
    """Raises ValueError where the request is not one that is answered."""
    if params.tools or params.tool_choice:
        raise ValueError("Tools cannot be used here.")
    if params.max_tokens < 1:
        raise ValueError("maxTokens must be at least one.")
    messages = [_message(each) for each in params.messages]
    if sum(len(str(each)) for each in messages) + len(params.system_prompt or "") > LARGEST_WISH:
        raise ValueError(f"The request is larger than {LARGEST_WISH:,} characters.")
    hints = (params.model_preferences and params.model_preferences.hints) or []
    return Wish(
        server=server,
        messages=tuple(freeze(each) for each in messages),
        system=params.system_prompt or "",
        max_tokens=min(params.max_tokens, MOST_TOKENS),
        temperature=params.temperature,
        stop=tuple(params.stop_sequences or ()),
        hints=tuple(shorten(hint.name, 100) for hint in hints[:8] if hint.name),
    )


def _message(message: mcp_types.SamplingMessage) -> dict[str, Any]:
    blocks = [
        block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in message.content_as_list
    ]
    return {"role": message.role, "content": blocks}
