"""Scripted model, served over HTTP on the loopback interface in OpenAI's chat format.

The script says which tools a message takes. The model calls one of them only if the request tells how: in
the tools array, beside a message, or in the answer of a search. Otherwise it searches with the user's own
words, twice at most. It keeps no state: all it knows stands in the request.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from toolfold.core.types import BRIDGE_CALL, BRIDGE_DESCRIBE, BRIDGE_NAMES, BRIDGE_SEARCH, Json, read_json

Habit = Literal["calls", "describes"]
"""Whether the model calls a tool from its signature, or requests the whole schema first."""

MAX_SEARCHES = 2
MANY_HITS = 20
DONE = "Done: this is what came of it, in a sentence or two."
CHAT = "Gladly, in a sentence or two."
GIVEN_UP = "I found no tool for that."
_TOLD = re.compile(r"^- ([^\s(]+)\(", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """The tools that each message needs, and the arguments with which the model calls them."""

    needs: Mapping[str, Sequence[frozenset[str]]]
    """By message: for each need, the tools that satisfy it."""
    arguments: Mapping[str, Json]

    def open_needs(self, words: str, called: Sequence[str]) -> list[frozenset[str]]:
        """Return the needs of a message that are not satisfied yet."""
        return [need for need in self.needs.get(words, ()) if not need.intersection(called)]


class ScriptedModel:
    """Answers chat requests. A model name that ends in `describes` requests schemas first."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def __call__(self, request: Json) -> Json:
        """Return the reply as a chat completion."""
        history = RequestHistory(request["messages"])
        words = self._user_words(history.user)
        called = [name for name, _ in history.calls]
        needs = self._script.open_needs(words, called)
        if not needs:
            return _text_reply(DONE if called else CHAT)
        shown = {tool["function"]["name"] for tool in request.get("tools", ())}
        habit: Habit = "describes" if str(request.get("model", "")).endswith("describes") else "calls"
        calls = self._make_calls(history, words, needs, shown, habit)
        return _calls_reply(calls, len(request["messages"])) if calls else _text_reply(GIVEN_UP)

    def _user_words(self, text: str) -> str:
        """Return the user's text without the note that Toolfold may append."""
        return max((words for words in self._script.needs if text.startswith(words)), key=len, default=text)

    def _make_calls(
        self,
        history: RequestHistory,
        words: str,
        needs: Sequence[frozenset[str]],
        shown: set[str],
        habit: Habit,
    ) -> list[tuple[str, Json]]:
        """Call every needed tool that is available; search for the others or request their schemas."""
        known = (shown - BRIDGE_NAMES) | history.told | history.described
        known |= history.found if habit == "calls" else set()
        calls: list[tuple[str, Json]] = []
        missing: list[frozenset[str]] = []
        for need in needs:
            name = min(need & known, default=None)
            if name is None:
                missing.append(need)
            else:
                calls.append(_route_call(name, self._script.arguments.get(name, {}), shown))
        return calls + (_make_searches(history, words, missing) if missing and BRIDGE_SEARCH in shown else [])


def _route_call(name: str, arguments: Json, shown: set[str]) -> tuple[str, Json]:
    """Call a tool by name if it is in the tools array, else through Toolfold's call tool."""
    if name in shown or BRIDGE_CALL not in shown:
        return name, arguments
    return BRIDGE_CALL, {"name": name, "arguments": arguments}


def _make_searches(
    history: RequestHistory, words: str, missing: Sequence[frozenset[str]]
) -> list[tuple[str, Json]]:
    found = [min(need & history.named) for need in missing if need & history.named]
    if found:
        return [(BRIDGE_DESCRIBE, {"name": found[0]} if len(found) == 1 else {"names": found})]
    if history.searches >= MAX_SEARCHES:
        return []
    return [(BRIDGE_SEARCH, {"query": words} | ({"limit": MANY_HITS} if history.searches else {}))]


class RequestHistory:
    """State read from a request: the newest user message, the calls since, and the described tools."""

    def __init__(self, messages: Sequence[Json]) -> None:
        newest = max(place for place, each in enumerate(messages) if each["role"] == "user")
        self.user: str = messages[newest]["content"]
        self.calls = [
            _unwrap_call(call) for each in messages[newest:] for call in each.get("tool_calls") or ()
        ]
        self.searches = sum(1 for name, _ in self.calls if name == BRIDGE_SEARCH)
        self.told = {
            name for each in messages if each["role"] == "user" for name in _TOLD.findall(each["content"])
        }
        answers = list(_call_results(messages))
        hits = [hit for name, told in answers if name == BRIDGE_SEARCH for hit in told.get("matches", ())]
        self.named = {hit["name"] for hit in hits}
        self.found = {hit["name"] for hit in hits if "signature" in hit}
        self.described = {
            each["name"]
            for name, told in answers
            if name == BRIDGE_DESCRIBE
            for each in told.get("tools", [told])
            if "parameters" in each
        }


def _unwrap_call(call: Json) -> tuple[str, Json]:
    name, arguments = call["function"]["name"], read_json(call["function"]["arguments"])
    return (arguments["name"], arguments["arguments"]) if name == BRIDGE_CALL else (name, arguments)


def _call_results(messages: Sequence[Json]) -> Iterator[tuple[str, Json]]:
    """Yield the results of calls with the names of the called tools."""
    names = {
        call["id"]: call["function"]["name"] for each in messages for call in each.get("tool_calls") or ()
    }
    for each in messages:
        if each["role"] == "tool":
            told = read_json(each["content"])
            yield names.get(each["tool_call_id"], ""), told if isinstance(told, dict) else {}


def _text_reply(text: str) -> Json:
    return _make_completion({"role": "assistant", "content": text}, "stop")


def _calls_reply(calls: Sequence[tuple[str, Json]], place: int) -> Json:
    written = [
        {
            "id": f"call_{place}_{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
        for number, (name, arguments) in enumerate(calls)
    ]
    return _make_completion({"role": "assistant", "content": None, "tool_calls": written}, "tool_calls")


def _make_completion(message: Json, reason: str) -> Json:
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {"id": "chatcmpl-scripted", "object": "chat.completion", "choices": [choice]}


@contextmanager
def served(model: Callable[[Json], Json]) -> Iterator[str]:
    """Serve the model; yield the URL of `/v1/chat/completions`."""

    class EndpointHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/chat/completions":
                self._send_json(200, model(read_json(body.decode())))
            else:
                self._send_json(404, {"error": {"message": "only /v1/chat/completions is served"}})

        def _send_json(self, status: int, answer: Json) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (its name in the library)
            """Suppress logging: standard error shows progress."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), EndpointHandler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/chat/completions"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
