"""An HTTP server with scripted answers in the formats of the three model APIs."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from toolfold.core.types import Json

CALL = {"name": "forecast", "arguments": '{"city": "Porto"}'}


def chat_chunks() -> list[Json]:
    def chunk(delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {
            "id": "c1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m-1",
            "choices": [choice],
        }

    first, second = CALL["arguments"][:8], CALL["arguments"][8:]
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": 7,
        "total_tokens": 27,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    named = {
        "index": 0,
        "id": "call_1",
        "type": "function",
        "function": {"name": "forecast", "arguments": first},
    }
    return [
        chunk({"role": "assistant", "content": "Let me "}),
        chunk({"content": "look."}),
        chunk({"tool_calls": [named]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": second}}]}),
        chunk({}, "tool_calls"),
        {**chunk({}), "choices": [], "usage": usage},
    ]


def message_events() -> list[Json]:
    usage = {
        "input_tokens": 4,
        "cache_read_input_tokens": 16,
        "cache_creation_input_tokens": 0,
        "output_tokens": 1,
    }
    message = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m-1",
        "content": [],
        "usage": usage,
    }
    tool = {"type": "tool_use", "id": "call_1", "name": "forecast", "input": {}}
    partial = [CALL["arguments"][:8], CALL["arguments"][8:]]
    return [
        {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Let me "}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "look."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": tool},
        *(
            {
                "type": "content_block_delta",
                "index": 1,
                "delta": {"type": "input_json_delta", "partial_json": part},
            }
            for part in partial
        ),
        {"type": "content_block_stop", "index": 1},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 7},
        },
        {"type": "message_stop"},
    ]


def response_body() -> Json:
    text = {"type": "output_text", "text": "Let me look.", "annotations": []}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m-1",
        "status": "completed",
        "output": [
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]},
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "status": "completed", **CALL},
        ],
        "usage": {
            "input_tokens": 20,
            "input_tokens_details": {"cached_tokens": 16},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 27,
        },
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def response_events() -> list[Json]:
    started = {**response_body(), "status": "in_progress", "output": [], "usage": None}
    delta = {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0}
    return [
        {"type": "response.created", "sequence_number": 0, "response": started},
        {**delta, "sequence_number": 1, "delta": "Let me ", "logprobs": []},
        {**delta, "sequence_number": 2, "delta": "look.", "logprobs": []},
        {"type": "response.completed", "sequence_number": 3, "response": response_body()},
    ]


def chat_body() -> Json:
    call = {"id": "call_1", "type": "function", "function": CALL}
    message = {"role": "assistant", "content": "Let me look.", "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    usage = chat_chunks()[-1]["usage"]
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m-1",
        "choices": [choice],
        "usage": usage,
    }


def message_body() -> Json:
    content = [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "call_1", "name": "forecast", "input": json.loads(CALL["arguments"])},
    ]
    start = message_events()[0]["message"]
    usage = {**start["usage"], "output_tokens": 7}
    return {**start, "content": content, "stop_reason": "tool_use", "usage": usage}


STREAMS = {"chat/completions": chat_chunks, "messages": message_events, "responses": response_events}
BODIES = {"chat/completions": chat_body, "messages": message_body, "responses": response_body}


class ScriptedServer:
    """Answers each request with the next planned failure, or with the scripted reply."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Json, dict[str, str]]] = []
        self.failures: list[tuple[int, dict[str, str], Json]] = []
        self.stream_errors: list[Json] = []
        """Errors reported in streams, after the status 200."""
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler, path: str, body: Json) -> None:
        if self.failures:
            status, headers, problem = self.failures.pop(0)
            _send(handler, status, json.dumps(problem), headers)
        elif body.get("stream"):
            named = path != "chat/completions"
            events = STREAMS[path]()
            if self.stream_errors:
                problem = self.stream_errors.pop(0)
                events = [{"type": "error", **(problem if path == "responses" else {"error": problem})}]
            lines = [
                (f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n"
                for event in events
            ]
            end = "" if named else "data: [DONE]\n\n"
            _send(handler, 200, "".join(lines) + end, {"content-type": "text/event-stream"})
        else:
            _send(handler, 200, json.dumps(BODIES[path]()), {})


def _send(handler: BaseHTTPRequestHandler, status: int, text: str, headers: dict[str, str]) -> None:
    data = text.encode()
    handler.send_response(status)
    for name, value in {"content-type": "application/json", **headers}.items():
        handler.send_header(name, value)
    handler.send_header("content-length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


@contextlib.contextmanager
def serve_models(scripted: ScriptedServer | None = None) -> Iterator[ScriptedServer]:
    """Serve on a free port of this machine."""
    server = scripted or ScriptedServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            path = self.path.removeprefix("/v1/").partition("?")[0]
            server.requests.append((path, body, {name.lower(): text for name, text in self.headers.items()}))
            server.answer(self, path, body)

        def do_GET(self) -> None:
            listing = {"object": "list", "data": [{"id": "m-1", "object": "model", "context_length": 32_000}]}
            _send(self, 200, json.dumps({**listing, "has_more": False}), {})

        def log_message(self, *_: Any) -> None:
            """Keep the test output quiet."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
