"""Ask for approval in a chat: send the question with a code, and take a reply with that code as the answer.

The code is the id of the question in an `ApprovalQueue`, so it is valid for one answer to one question while
that waits. It exists only in memory and in the chat. Only replies of the configured sender count, and they
allow a call once or refuse it. One process at a time asks in the chats of a user; the others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolfold.config import Config
from toolfold.config.atomic import make_private_directory
from toolfold.config.web_settings import MessageTarget
from toolfold.core.errors import ConfigError, ToolfoldError
from toolfold.core.loops import EventLoops, LoopThread
from toolfold.core.types import Answer, ApprovalRequest
from toolfold.mcp.oauth.file_lock import hold_lock
from toolfold.runtime.chat.ntfy_replies import NtfyReader
from toolfold.runtime.chat.replies import RepliesUnavailable, Reply, ReplyReader
from toolfold.runtime.chat.telegram_replies import TelegramReader
from toolfold.safety.approval.prompting import QuestionUnanswered
from toolfold.safety.approval.queue import ApprovalQueue, StaleQuestion
from toolfold.safety.approval.safe_text import make_line_visible, make_visible, shorten_middle
from toolfold.safety.redaction import Redaction
from toolfold.tools.builtin.message import MessageFailed, deliver_message, open_message_service

log = logging.getLogger(__name__)

__all__ = ["ChatApprover", "build_chat_approver"]

TITLE = "Toolfold: approval needed"
CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # without letters that look like digits
CODE_LENGTH = 8
MAX_WRONG_CODES = 5
MAX_QUESTIONS = 20
MAX_TEXT_BYTES = 3_000  # of 4,096 that a message of Telegram or ntfy has
MAX_REASON_CHARS = 200
MAX_REASONS = 4
MAX_REDACTED_CHARS = 20_000
RETRY_S = 5.0
CLOSE_TIMEOUT_S = 5.0
_ANSWER = re.compile(rf"\s*(yes|once|no)\s+([{CODE_LETTERS}]{{{CODE_LENGTH}}})\s*", re.IGNORECASE | re.ASCII)
_MAX_ANSWER_CHARS = 100
_READERS: Mapping[str, Callable[[Any, str], ReplyReader]] = {"tgram": TelegramReader, "ntfys": NtfyReader}


def build_chat_approver(config: Config, loops: EventLoops) -> ChatApprover | None:
    """Return what asks in the chat of `approval.ask_by`; None if that is not set. Raises ConfigError."""
    name = config.approval.ask_by
    if not name:
        return None
    target = config.messages.targets.get(name)
    if target is None:
        known = ", ".join(config.messages.targets) or "none"
        raise ConfigError(
            f"there is no message target {name!r}",
            key="approval.ask_by",
            hint=f"use a name in messages.targets ({known})",
        )
    return ChatApprover(
        name,
        target,
        config.environment.get(target.url_env, "").strip(),
        loops,
        redact=Redaction(config.secret_values(), max_chars=MAX_REDACTED_CHARS),
        link=_find_dashboard_url(config),
        send_timeout_s=config.messages.timeout_seconds,
        lock_file=config.paths.state_dir / "chat-approval.lock",
        lock_timeout_s=config.approval.timeout_seconds,
    )


def _find_dashboard_url(config: Config) -> str:
    """Return the URL of the dashboard as browsers reach it; empty if it is not known."""
    if not config.dashboard.enabled:
        return ""
    return config.dashboard.oidc.url or (
        f"{config.gateway.url.rstrip('/')}/ui/" if config.gateway.url else ""
    )


class ChatApprover:
    """Approver that asks in the chat of one message target, from a thread of its own."""

    def __init__(
        self,
        name: str,
        target: MessageTarget,
        url: str,
        loops: EventLoops,
        *,
        redact: Redaction,
        link: str,
        send_timeout_s: float,
        lock_file: Path,
        lock_timeout_s: float,
    ) -> None:
        self.takes_answers = bool(target.answers_from)
        self._name, self._target, self._url, self._loops = name, target, url, loops
        self._redact, self._link, self._send_timeout_s = redact, link, send_timeout_s
        self._lock_file, self._lock_timeout_s = lock_file, lock_timeout_s
        self._thread = LoopThread("toolfold-chat")
        # All of these are used only in that thread's event loop:
        self._queue = ApprovalQueue(most=MAX_QUESTIONS, make_id=make_code)
        self._wrong_codes = Counter[str]()
        self._open_questions = 0
        self._had_stranger = False
        self._reading: asyncio.Task[None] | None = None
        self._start: asyncio.Future[str] | None = None

    async def __call__(self, request: ApprovalRequest, /) -> Answer:
        """Ask in the chat and wait for the answer. Raises QuestionUnanswered if it cannot be given there."""
        return await self._thread.run(lambda: self._ask(request))

    def close(self) -> None:
        """Stop reading the chat; open questions are void."""
        self._thread.close(self._stop_reading, CLOSE_TIMEOUT_S)

    async def _ask(self, request: ApprovalRequest) -> Answer:
        self._open_questions += 1
        try:
            service = await self._loops.run_in_thread(self._open_service)
            if self.takes_answers:
                await self._start_reading(service)
                return await self._ask_with_code(service, request)
            await self._send(service, self._format_question(request)[0] + self._explain_elsewhere())
        except (MessageFailed, RepliesUnavailable, ImportError) as error:
            log.warning("the approval question was not sent to %s: %s", self._name, error)
            raise QuestionUnanswered("the question could not be sent to the chat") from None
        finally:
            self._open_questions -= 1
            if not self._open_questions:
                await self._stop_reading()
        raise QuestionUnanswered("the question cannot be answered in the chat")

    def _open_service(self) -> Any:
        if not self._url:
            raise MessageFailed(f"the environment variable {self._target.url_env} is not set")
        return open_message_service(self._name, self._url)

    async def _ask_with_code(self, service: Any, request: ApprovalRequest) -> Answer:
        """Send a question with a new code, and wait until the queue has an answer for the code."""
        text, is_complete = self._format_question(request)
        # What is not shown completely can only be refused.
        offered = (Answer.ONCE, Answer.DENY) if is_complete else (Answer.DENY,)
        asked = replace(
            request, answers=tuple(each for each in offered if each in (*request.answers, Answer.DENY))
        )
        waiting = asyncio.create_task(self._queue(asked))
        code = ""
        try:
            await asyncio.sleep(0)  # the task puts the question into the queue
            code = next((each.id for each in self._queue.pending() if each.request is asked), "")
            if code:
                await self._send(service, text + _explain_answers(code, asked.answers))
            return await waiting
        finally:
            self._wrong_codes.pop(code, None)
            waiting.cancel()
            await asyncio.wait({waiting})

    async def _send(self, service: Any, text: str) -> None:
        await self._loops.run_in_thread(
            lambda: deliver_message(self._name, service, text, TITLE, timeout_s=self._send_timeout_s)
        )

    async def _start_reading(self, service: Any) -> None:
        """Read replies from now on, unless that is done already. Raises RepliesUnavailable."""
        if self._start is None or self._reading is None or self._reading.done():
            make_reader = _READERS.get(str(service.secure_protocol))
            if make_reader is None:
                raise RepliesUnavailable(
                    f"answers cannot be read from this service, so {self._name} must not have `answers_from`"
                )
            reader = make_reader(service, self._target.answers_from)
            self._start = asyncio.get_running_loop().create_future()
            self._reading = asyncio.create_task(self._read_replies(reader, self._start))
        if problem := await asyncio.shield(self._start):
            raise RepliesUnavailable(problem)

    async def _stop_reading(self) -> None:
        reading, self._reading = self._reading, None  # a new question starts another one
        if reading is not None:
            reading.cancel()
            await asyncio.wait({reading})

    async def _read_replies(self, reader: ReplyReader, start: asyncio.Future[str]) -> None:
        """Read replies until cancelled. `start` receives an empty text when older replies are known."""
        import httpx2

        problem = "replies cannot be read"
        try:
            make_private_directory(self._lock_file.parent)
            async with (
                hold_lock(self._lock_file, self._lock_timeout_s),
                httpx2.AsyncClient(follow_redirects=False, timeout=None) as client,
            ):
                with _silence_requests():
                    problem = await self._read_once(reader, client, is_first=True)
                    if problem:
                        return
                    start.set_result("")
                    while True:
                        await asyncio.sleep(RETRY_S if problem else reader.pause_s)
                        problem = await self._read_once(reader, client, last_problem=problem)
        except (TimeoutError, OSError, ValueError) as error:
            problem = f"replies cannot be read ({type(error).__name__})"
            log.warning("the chat %s: %s", self._name, problem)
        finally:
            if not start.done():
                start.set_result(problem)

    async def _read_once(
        self, reader: ReplyReader, client: Any, *, is_first: bool = False, last_problem: str = ""
    ) -> str:
        """Read replies, and use them unless they are older than the question; return why that failed."""
        try:
            replies = await reader.read(client)
        except RepliesUnavailable as error:
            if not is_first and str(error) != last_problem:
                log.warning("the replies in the chat %s cannot be read at the moment: %s", self._name, error)
            return str(error)
        for each in () if is_first else replies:
            self._use_reply(each)
        return ""

    def _use_reply(self, reply: Reply) -> None:
        """Answer the question that a reply names by its code, if its sender is the configured one."""
        answer = _ANSWER.fullmatch(reply.text) if len(reply.text) <= _MAX_ANSWER_CHARS else None
        if reply.sender != self._target.answers_from:
            level = logging.DEBUG if self._had_stranger else logging.WARNING  # strangers may write a lot
            self._had_stranger = True
            log.log(level, "a reply in the chat %s is ignored: its sender may not answer", self._name)
        elif answer is not None:
            value = Answer.DENY if answer[1].lower() == "no" else Answer.ONCE
            try:
                self._queue.answer(answer[2].upper(), value)
            except StaleQuestion:
                self._count_wrong_code()
            except ToolfoldError:
                log.warning("a reply in the chat %s is ignored: the call can only be refused", self._name)

    def _count_wrong_code(self) -> None:
        """Count a wrong code for all open questions, and refuse those with too many."""
        log.warning("a reply in the chat %s has a code that belongs to no open question", self._name)
        for question in self._queue.pending():
            self._wrong_codes[question.id] += 1
            if self._wrong_codes[question.id] >= MAX_WRONG_CODES:
                log.warning("an approval question is refused, because %d codes were wrong", MAX_WRONG_CODES)
                with contextlib.suppress(StaleQuestion):
                    self._queue.answer(question.id, Answer.DENY)

    def _format_question(self, request: ApprovalRequest) -> tuple[str, bool]:
        """Return the text of a question, and whether it shows the call completely.

        Secrets are removed, and every line of the call is marked. URLs are spelled so that no chat service
        fetches them for a preview.
        """
        redact = self._redact.with_secrets_from(request.command)

        def show(text: str) -> str:
            return make_visible(redact(text)).replace("://", "[:]//")

        def show_line(text: str) -> str:
            return make_line_visible(shorten_middle(redact(text), MAX_REASON_CHARS)).replace("://", "[:]//")

        rest = {name: each for name, each in request.args.items() if each != request.command}
        arguments = json.dumps(rest, ensure_ascii=False, indent=1, default=str) if rest else ""
        call = "\n".join(filter(None, (request.command, arguments)))
        is_complete = len(call) <= MAX_REDACTED_CHARS
        head = [
            f"{show_line(request.tool.name)} needs approval ({request.category}, {request.severity}).",
            *(f"Why: {show_line(each)}" for each in (request.reason, *request.also)[:MAX_REASONS]),
            *([f"Client: {show_line(request.client)}"] if request.client else []),
            "It would run:",
        ]
        shown = show(call)
        is_complete = is_complete and len("\n".join((*head, shown)).encode()) <= MAX_TEXT_BYTES
        if not is_complete:
            head, shown = [head[0], "It is too long to be shown here completely:"], shorten_middle(shown, 500)
        return "\n".join((*head, *(f"| {line}" for line in shown.split("\n")))), is_complete

    def _explain_elsewhere(self) -> str:
        return f"\n\nAnswer it in the dashboard: {self._link}" if self._link else "\n\nAnswer it in Toolfold."


def make_code() -> str:
    """Return a new code that cannot be guessed."""
    return "".join(secrets.choice(CODE_LETTERS) for _ in range(CODE_LENGTH))


def _explain_answers(code: str, answers: tuple[Answer, ...]) -> str:
    yes = f"yes {code}\nor: " if Answer.ONCE in answers else ""
    return f"\n\nReply with one of these lines, which are valid once:\n{yes}no {code}"


@contextlib.contextmanager
def _silence_requests() -> Iterator[None]:
    """Suppress the log of this thread's requests, whose URLs contain tokens."""
    own = threading.get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != own

    logger = logging.getLogger("httpx2")
    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)
