"""Learn from usage: a message or search that led to a successful call becomes an example for the tool.

Sessions report the user's message, dispatch reports every call that ended; nothing of a tool's result is read
except whether it succeeded and, for `tool_search`, which tools were found. Secrets are removed. The work is
done in a background thread, and no failure reaches a call.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from toolfold.core.types import (
    BRIDGE_NAMES,
    BRIDGE_SEARCH,
    CallContext,
    Json,
    Tool,
    ToolCall,
    ToolResult,
    read_json,
)
from toolfold.safety.redaction import Redaction
from toolfold.selection.retrieval.example_messages import MAX_MESSAGE_CHARS
from toolfold.selection.retrieval.learned_store import Origin
from toolfold.selection.retrieval.tool_search import Retriever
from toolfold.selection.turn import Turn

log = logging.getLogger(__name__)

MAX_TRACKED_SESSIONS = 1_000
MAX_QUEUED_JOBS = 256
"""Number of observations that wait for the background thread; more are dropped."""
MAX_TOOLS_PER_TEXT = 3
"""A text is learned for the first tools that are called after it: of a long task it says little."""
MAX_SEARCHES_PER_SESSION = 8
MESSAGE_LIFETIME_S = 3_600.0
SEARCH_LIFETIME_S = 600.0
"""How long after a message or search a call is taken to be its result."""


@dataclass(slots=True)
class _Request:
    """A user message or tool search in a session, and the tools called for it."""

    texts: tuple[str, ...]
    """The texts that may be learned; empty if the message is too long."""
    origin: Origin
    expires: float
    found: frozenset[str] | None = None
    """The tools that a search returned; None for a message."""
    called: dict[str, None] = field(default_factory=dict)
    turn: Turn | None = None
    digest: bytes = b""
    """Hash of the whole message, by which a repeated message is recognized; empty for a search."""

    def accepts(self, name: str, now: float) -> bool:
        """Return True if a call of the tool should be attributed to this message or search."""
        if now > self.expires or name in self.called or len(self.called) >= MAX_TOOLS_PER_TEXT:
            return False
        return self.found is None or name in self.found


@dataclass(slots=True)
class _SessionUse:
    """The latest messages and searches of a session, to which later calls are attributed."""

    message: _Request | None = None
    searches: list[_Request] = field(default_factory=list)


class _Worker:
    """Runs jobs sequentially in a thread that ends when the queue is empty."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Callable[[], None]] = queue.Queue(MAX_QUEUED_JOBS)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, job: Callable[[], None]) -> None:
        """Queue a job for the background thread; drop it if the queue is full."""
        with self._lock:
            try:
                self._jobs.put_nowait(job)
            except queue.Full:
                return
            if self._thread is None:
                # Not a daemon: the interpreter would stop it while it writes.
                self._thread = threading.Thread(target=self._run, name="toolfold-learning")
                self._thread.start()

    def wait(self) -> None:
        """Wait until the background thread has finished all queued jobs."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    self._thread = None
                    return
            try:
                job()
            except Exception:
                log.warning("learning from a tool call failed", exc_info=True)


class UsageTracker:
    """Observes messages, searches and calls of sessions to improve tool search. Thread-safe."""

    def __init__(self, retriever: Retriever, redact: Redaction) -> None:
        self._retriever, self._redact = retriever, redact
        self._worker = _Worker()
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, _SessionUse] = OrderedDict()

    def with_retriever(self, retriever: Retriever) -> UsageTracker:
        """Return a tracker for sessions with another retriever; both trackers share one worker thread."""
        tracker = UsageTracker(retriever, self._redact)
        tracker._worker = self._worker
        return tracker

    @property
    def enabled(self) -> bool:
        """Return True if learning is enabled."""
        return self._retriever.learned.enabled

    def note_message(self, session_id: str, client: str, text: str, turn: Turn) -> None:
        """Record the user's latest message in a session, unless it repeats the previous message."""
        if not self.enabled or not text:
            return
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
        with self._lock:
            use = self._session(session_id)
            if use.message is not None and use.message.digest == digest:
                use.message.turn = turn
                return
            closed = [*use.searches, *([use.message] if use.message else ())]
            use.searches = []
            expires = time.monotonic() + MESSAGE_LIFETIME_S
            # A longer text is not learned, but it ends what was asked before.
            texts = (text,) if len(text) <= MAX_MESSAGE_CHARS else ()
            use.message = _Request(texts, "message", expires, turn=turn, digest=digest)
        self._weaken_uncalled(closed, client)

    def observe_call(self, turn: Turn, call: ToolCall, result: ToolResult, context: CallContext) -> None:
        """Record a `tool_search` call, or learn from a successful call of another tool. Never raises."""
        if not self.enabled or not result.ok or context.parents:
            return  # a call from inside a tool was chosen by code, not for a message
        try:
            if call.name == BRIDGE_SEARCH:
                self._note_search(turn, call, result, context)
            elif call.name not in BRIDGE_NAMES:
                self.note_success(turn, result.name, context.session_id, context.caller.learner)
        except Exception:
            log.warning("learning from a tool call failed", exc_info=True)

    def note_success(self, turn: Turn, name: str, session_id: str, client: str) -> None:
        """Learn that a tool was called successfully for the latest message or search of a session."""
        tool = turn.snapshot.get(name)
        if tool is None or tool.core or name in turn.direct:
            return  # always shown: nothing to learn
        now = time.monotonic()
        with self._lock:
            use = self._session(session_id)
            searched = next((each for each in reversed(use.searches) if each.accepts(name, now)), None)
            said = use.message if use.message and use.message.accepts(name, now) else None
            requests = [each for each in (searched, said) if each is not None]
            for request in requests:
                request.called[name] = None
                request.turn = turn
            jobs = [(request, len(request.called) == 1) for request in requests if request.texts]
        for request, is_new in jobs:
            self._learn(turn, tool, request, client, is_new_request=is_new)

    def wait(self) -> None:
        """Wait until everything learned from messages and calls so far has been stored."""
        self._worker.wait()

    def _session(self, session_id: str) -> _SessionUse:
        use = self._sessions.pop(session_id, None) or _SessionUse()
        self._sessions[session_id] = use
        while len(self._sessions) > MAX_TRACKED_SESSIONS:
            self._sessions.popitem(last=False)
        return use

    def _note_search(self, turn: Turn, call: ToolCall, result: ToolResult, context: CallContext) -> None:
        asked, answer = _read_object(call.arguments), _read_object(result.text)
        given = (asked.get("query"), *_read_list(asked.get("queries")))
        texts = tuple(each for each in given if isinstance(each, str) and len(each) <= MAX_MESSAGE_CHARS)
        matches = (each.get("name") for each in _read_list(answer.get("matches")) if isinstance(each, dict))
        found = frozenset(name for name in matches if isinstance(name, str))
        request = _Request(texts, "search", time.monotonic() + SEARCH_LIFETIME_S, found, turn=turn)
        with self._lock:
            searches = self._session(context.session_id).searches
            searches.append(request)
            closed = [searches.pop(0)] if len(searches) > MAX_SEARCHES_PER_SESSION else []
        self._weaken_uncalled(closed, context.caller.learner)

    def _learn(self, turn: Turn, tool: Tool, request: _Request, client: str, *, is_new_request: bool) -> None:
        def learn() -> None:
            problem = self._retriever.learn(
                turn.snapshot,
                tool,
                [self._redact(text) for text in request.texts],
                client=client,
                origin=request.origin,
                is_new_request=is_new_request,
            )
            if problem:
                log.debug("nothing is learned from a call of %s: %s", tool.name, problem)

        self._worker.add(learn)

    def _weaken_uncalled(self, requests: Sequence[_Request], client: str) -> None:
        """Lower the weight of learned messages whose tools were offered for a request but not called."""
        for request in requests:
            if request.called and len(request.texts) == 1 and request.turn is not None:
                self._worker.add(functools.partial(self._count_misses, request, client))

    def _count_misses(self, request: _Request, client: str) -> None:
        if request.turn is not None:
            self._retriever.count_misses(
                request.turn.snapshot,
                self._redact(request.texts[0]),
                client=client,
                called=frozenset(request.called),
                offered=request.turn.offered_names,
            )


def _read_object(value: object) -> Json:
    if isinstance(value, str):
        try:
            value = read_json(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _read_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
