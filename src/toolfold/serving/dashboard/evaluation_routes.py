"""The evaluation page: measure tool search on the user's tools and messages, as `toolfold eval` does.

One evaluation runs at a time, in a thread of its own, with an index that is separate from the runtime's. It
can be cancelled between two searches and between two batches of tools that are embedded.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from toolfold.core.errors import SourceError, error_message
from toolfold.core.json_limits import find_excess
from toolfold.core.registry import Snapshot
from toolfold.core.types import BRIDGE_NAMES, Json
from toolfold.runtime.evaluation import (
    COMPARED_MODES,
    MAX_RANKED,
    EvalResults,
    MissedNeed,
    Quality,
    build_recall_curve,
    count_selection_errors,
    count_tool_tokens,
    explain_miss,
    find_input_problems,
    find_misses,
    measure_quality,
    run_queries,
)
from toolfold.selection.retrieval.ranking_metrics import Query, parse_queries
from toolfold.serving.dashboard.texts import show_line, show_name
from toolfold.serving.gateway.request_bodies import RequestRefused
from toolfold.tools.catalog import parse_catalog, sample_catalog

if TYPE_CHECKING:
    from toolfold.core.types import Tool
    from toolfold.runtime.runtime import Runtime
    from toolfold.safety.redaction import Redaction
    from toolfold.selection.retrieval.tool_search import Mode, Retriever

log = logging.getLogger(__name__)

MAX_TOOLS = 20_000
MAX_MESSAGES = 5_000
MAX_MESSAGE_CHARS = 20_000
MAX_ITEMS = 1_000_000
"""JSON values and keys of an uploaded file."""
MAX_SECONDS = 1_800.0
MAX_WORST = 20
"""Messages with reasons, for each mode."""
MAX_KINDS = 50
_CATALOG, _MESSAGES = "tools", "messages"
"""How problems name the inputs."""


class EvaluationStopped(Exception):
    """The user cancelled the evaluation, or it reached its time limit."""


@dataclass(frozen=True, slots=True)
class EvaluationInputs:
    """The inputs of an evaluation: tools, labelled messages, search modes, number of tools per message."""

    tools: Snapshot
    queries: Sequence[Query]
    modes: tuple[Mode, ...]
    top_k: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvaluationProgress:
    """The state of the running or last evaluation."""

    state: str = "none"
    """`none`, `running`, `done`, `cancelled` or `failed`."""
    phase: str = ""
    done: int = 0
    total: int = 0
    problem: str = ""
    number: int = 0
    """Number of the evaluation, by which a page notices that another one has ended."""
    started: float = 0.0


class Evaluations:
    """Runs evaluations for the dashboard and keeps the last result. Thread-safe; methods may block."""

    def __init__(self, runtime: Runtime, redact: Redaction, *, max_seconds: float = MAX_SECONDS) -> None:
        self._runtime, self._redact, self._max_seconds = runtime, redact, max_seconds
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()
        self._deadline = 0.0
        self._progress = EvaluationProgress()
        self._result: Json | None = None

    def describe(self) -> Json:
        """Return the choices that the page offers, and the last evaluation's state without its result."""
        progress = self._progress
        return {
            "modes": list(self._list_modes()),
            "top_k": self._runtime.config.tools.rag_top_k,
            "own_tools": len(self._list_own_tools()),
            "max_messages": MAX_MESSAGES,
            "max_tools": MAX_TOOLS,
            "number": progress.number,
            "state": progress.state,
            "phase": progress.phase,
            "done": progress.done,
            "total": progress.total,
            "problem": progress.problem,
            "seconds": round(time.time() - progress.started) if progress.state == "running" else 0,
        }

    def load_result(self) -> Json:
        """Return the result of the last evaluation. Raises RequestRefused if there is none."""
        if self._result is None:
            raise RequestRefused(404, "There is no result. Run an evaluation first.")
        return self._result

    def start(self, body: Mapping[str, Any]) -> Json:
        """Start an evaluation. Raises RequestRefused if the inputs are invalid or another one is running."""
        if self._is_running():
            raise RequestRefused(409, "An evaluation is running. Wait for it, or cancel it.")
        inputs = self._read_inputs(body)
        with self._lock:
            if self._is_running():
                raise RequestRefused(409, "An evaluation is running. Wait for it, or cancel it.")
            self._cancelled.clear()
            self._deadline = time.monotonic() + self._max_seconds
            number = self._progress.number + 1
            self._progress = EvaluationProgress("running", "starting", number=number, started=time.time())
            self._thread = threading.Thread(target=self._run, args=(inputs,), name="toolfold-evaluation")
            self._thread.start()
        return self.describe()

    def cancel(self) -> Json:
        """Ask the running evaluation to stop."""
        self._cancelled.set()
        return self.describe()

    def close(self) -> None:
        """Stop the running evaluation and wait until it has ended."""
        self._cancelled.set()
        if self._thread is not None:
            self._thread.join()

    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _list_modes(self) -> tuple[Mode, ...]:
        has_reranker = self._runtime.config.tools.tool_search.reranker.enabled
        return (*COMPARED_MODES, "rerank") if has_reranker else COMPARED_MODES

    def _list_own_tools(self) -> list[Tool]:
        """Return the tools that a session can use now."""
        offered = self._runtime.session().assemble().offered
        return [tool for tool in offered if tool.name not in BRIDGE_NAMES]

    def _read_inputs(self, body: Mapping[str, Any]) -> EvaluationInputs:
        modes = tuple(mode for mode in self._list_modes() if mode in (body.get("modes") or ()))
        if not modes:
            raise RequestRefused(400, "Choose at least one mode.")
        top_k = body.get("top_k")
        if not isinstance(top_k, int) or isinstance(top_k, bool) or not 1 <= top_k <= MAX_RANKED:
            raise RequestRefused(400, f"The number of tools must be from 1 to {MAX_RANKED}.")
        try:
            listing, queries = self._load_tools(body), self._load_messages(body)
        except SourceError as error:
            raise RequestRefused(400, show_line(self._redact(str(error)))) from None
        problems = find_input_problems(
            listing, queries, catalog=_CATALOG, messages=_MESSAGES, short_catalog="the catalog"
        )
        return EvaluationInputs(
            Snapshot({tool.name: tool for tool in listing}, 0),
            queries,
            modes,
            top_k,
            tuple(show_line(each) for each in problems),
        )

    def _load_tools(self, body: Mapping[str, Any]) -> Sequence[Tool]:
        match body.get("tools"):
            case "own":
                listing: Sequence[Tool] = self._list_own_tools()
            case "sample":
                listing = sample_catalog()
            case _:
                listing = parse_catalog(_read_text(body, "catalog", _CATALOG), where=_CATALOG)
        if not listing:
            raise RequestRefused(400, "There are no tools. Enter one function definition per line.")
        if len(listing) > MAX_TOOLS:
            raise RequestRefused(400, f"There are more than {MAX_TOOLS:,} tools.")
        return listing

    def _load_messages(self, body: Mapping[str, Any]) -> Sequence[Query]:
        if body.get("messages") == "sample":
            content = files("toolfold").joinpath("tools/sample/queries.jsonl").read_bytes()
        else:
            content = _read_text(body, "queries", _MESSAGES)
        queries = parse_queries(content, where=_MESSAGES)
        if not queries:
            raise RequestRefused(400, "There are no messages. Enter one JSON object per line.")
        if len(queries) > MAX_MESSAGES:
            raise RequestRefused(400, f"There are more than {MAX_MESSAGES:,} messages.")
        if any(len(query.text) > MAX_MESSAGE_CHARS for query in queries):
            raise RequestRefused(400, f"A message is longer than {MAX_MESSAGE_CHARS:,} characters.")
        return queries

    def _run(self, inputs: EvaluationInputs) -> None:
        try:
            self._result = self._evaluate(inputs)
            self._progress = replace(self._progress, state="done")
        except EvaluationStopped as error:
            self._progress = replace(self._progress, state="cancelled", problem=str(error))
        except Exception as error:
            log.exception("an evaluation has failed")
            problem = show_line(self._redact(error_message(error) or type(error).__name__))
            self._progress = replace(self._progress, state="failed", problem=problem)

    def _evaluate(self, inputs: EvaluationInputs) -> Json:
        started = time.monotonic()
        retriever = self._runtime.retriever.make_sibling(
            progress=lambda done, total: self._step("embedding tools", done, total)
        )
        try:
            problems = [*inputs.problems, *self._build_index(retriever, inputs)]
            tool_tokens = count_tool_tokens(
                inputs.tools, lambda done, total: self._step("counting tokens", done, total)
            )
            modes = [self._evaluate_mode(retriever, inputs, mode, tool_tokens) for mode in inputs.modes]
        finally:
            retriever.close()
        return {
            "tools": len(inputs.tools),
            "messages": len(inputs.queries),
            "messages_with_tools": sum(bool(query.gold) for query in inputs.queries),
            "tokens_all": sum(tool_tokens.values()),
            "top_k": inputs.top_k,
            "problems": problems,
            "seconds": round(time.monotonic() - started, 1),
            "modes": modes,
        }

    def _build_index(self, retriever: Retriever, inputs: EvaluationInputs) -> list[str]:
        """Index the tools before the first search; return warnings about the index for the user."""
        if inputs.modes == ("keyword",):
            return []
        retriever.find(inputs.tools, "warm up", mode="hybrid", limit=1)
        state = retriever.index_state()
        if state.is_complete:
            return []
        return [
            f"{state.tools - state.embedded:,} of {state.tools:,} tools have no vector because the embedding"
            " model is missing or has failed; they are found by words only"
        ]

    def _evaluate_mode(
        self, retriever: Retriever, inputs: EvaluationInputs, mode: Mode, tool_tokens: Mapping[str, int]
    ) -> Json:
        results = run_queries(
            retriever,
            inputs.tools,
            inputs.queries,
            mode,
            inputs.top_k,
            settings=self._runtime.config.tools,
            step=lambda done, total: self._step(f"searching ({mode})", done, total),
        )
        found = EvalResults(inputs.tools, list(results), mode, inputs.top_k, tool_tokens)
        quality, misses = measure_quality(found), find_misses(found)
        curve = build_recall_curve(mode, found.results_with_gold, tool_tokens).points if quality else ()
        return {
            "mode": mode,
            "quality": [_describe_quality(each) for each in quality[:MAX_KINDS]],
            "tokens_sent": round(found.mean_tokens_sent, 1),
            "ms": {"p50": found.find_time(0.5), "p99": found.find_time(0.99)},
            "errors": [
                {"what": each.what, "count": each.count, "total": each.total}
                for each in count_selection_errors(found)
            ],
            "curve": [
                {"depth": each.depth, "tokens": round(each.tokens, 1), "recall": round(each.recall, 4)}
                for each in curve
            ],
            "missed": len(misses),
            "worst": [self._describe_miss(found, retriever, each) for each in misses[:MAX_WORST]],
        }

    def _describe_miss(self, found: EvalResults, retriever: Retriever, miss: MissedNeed) -> Json:
        self._step(f"explaining ({found.mode})", 0, 0)
        return {
            "message": show_line(miss.short_message),
            "wanted": show_name(miss.wanted),
            "rank": miss.rank_text,
            "first": [show_name(name) for name in miss.result.ranked[:3]],
            "is_nothing_selected": miss.is_nothing_selected,
            "reasons": [show_line(each) for each in explain_miss(found, retriever, miss)],
        }

    def _step(self, phase: str, done: int, total: int) -> None:
        """Record the evaluation's progress. Raises EvaluationStopped if it is cancelled or takes too long."""
        if self._cancelled.is_set():
            raise EvaluationStopped("The evaluation was cancelled.")
        if time.monotonic() > self._deadline:
            raise EvaluationStopped(
                f"The evaluation took longer than {self._max_seconds / 60:g} minutes."
                " Use fewer tools or messages."
            )
        self._progress = replace(self._progress, phase=phase, done=done, total=total)


def _describe_quality(quality: Quality) -> Json:
    return {
        "kind": show_name(quality.kind),
        "count": quality.count,
        "recall": {str(depth): round(value, 4) for depth, value in quality.recall.items()},
        "mrr": round(quality.reciprocal_rank, 4),
        "ndcg": round(quality.discounted_gain, 4),
    }


def _read_text(body: Mapping[str, Any], name: str, what: str) -> bytes:
    text = body.get(name)
    if not isinstance(text, str):
        raise RequestRefused(400, f"The {what} are missing.")
    content = text.encode("utf-8", "replace")
    if excess := find_excess(content, max_items=MAX_ITEMS):
        raise RequestRefused(413, f"The file with {what} {excess}.")
    return content
