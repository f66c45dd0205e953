"""A scripted model behind the four HTTP APIs that MCP client programs use.

Real client programs are pointed at it instead of a provider. It answers each request with the next step of a
script: the tool results and replies in the conversation say which one, so that retries get the same answer.
A step that calls a tool needs that tool in the request, under whatever full name the client gave it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]
MAX_BODY_BYTES = 32_000_000


@dataclass(frozen=True)
class Say:
    """The model replies with text, which ends its turn. Each text of a script is unique."""

    text: str


@dataclass(frozen=True)
class Call:
    """The model calls a tool by the name that the gateway lists."""

    tool: str
    arguments: Json = field(default_factory=dict)


Step = Say | Call


@dataclass(frozen=True)
class ListedTool:
    """A tool in a request: the name to call it by, and the namespace that some clients put it in."""

    name: str
    namespace: str = ""


@dataclass
class ModelServer:
    """URL of the server, its script, and every request that it received."""

    url: str
    script: Sequence[Step]
    task: str
    requests: list[Json] = field(default_factory=list)
    missing_tools: int = 0
    """How often a step needed a tool that the client had not listed yet."""

    def task_requests(self) -> list[Json]:
        """Return the requests about the task, without those for titles and summaries."""
        return [each for each in self.requests if self.task in json.dumps(each)]

    def tool_results(self) -> list[str]:
        """Return the tool results of the longest conversation, as JSON text."""
        found = [_read_results(each) for each in self.task_requests()]
        return max(found, key=len, default=[])

    def listed_tools(self) -> list[ListedTool]:
        """Return the tools of the first request about the task that has any."""
        return next((tools for each in self.task_requests() if (tools := list_tools(each))), [])

    def next_step(self, request: Json) -> Step:
        """Return the step of the script that answers the request."""
        text = json.dumps(request)
        if self.task not in text or not list_tools(request):
            return Say("ok")
        said = [step for step in self.script if isinstance(step, Say) and step.text in text]
        done = len(_read_results(request)) + len(said)
        return self.script[done] if done < len(self.script) else Say("the script has ended")


@contextmanager
def serve_model(task: str, script: Sequence[Step]) -> Iterator[ModelServer]:
    """Run a scripted model on a free loopback port."""
    model = ModelServer("", script, task)

    class Handler(_Handler):
        server_model = model

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    model.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    server_model: ModelServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send("application/json", b'{"object": "list", "data": [], "models": []}')

    def do_POST(self) -> None:
        length = min(int(self.headers.get("content-length") or 0), MAX_BODY_BYTES)
        try:
            request = json.loads(self.rfile.read(length) or b"{}")
        except ValueError:
            request = {}
        path = self.path.partition("?")[0]
        if path.endswith(("/count_tokens", ":countTokens")):
            self._send("application/json", b'{"input_tokens": 10, "totalTokens": 10}')
            return
        self.server_model.requests.append(request)
        step = self.server_model.next_step(request)
        if isinstance(step, Call):
            step = self._name_tool(step, request)
        self._send("text/event-stream", _stream_reply(path, request, step))

    def _name_tool(self, step: Call, request: Json) -> Step:
        for tool in list_tools(request):
            if tool.name == step.tool or tool.name.endswith(("_" + step.tool, "." + step.tool)):
                return _NamedCall(tool.name, step.arguments, tool.namespace)
        self.server_model.missing_tools += 1
        listed = ", ".join(tool.name for tool in list_tools(request))
        return Say(f"NOT LISTED: {step.tool}; the client listed {listed}")

    def _send(self, content_type: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Keep the test output free of access logs."""


@dataclass(frozen=True)
class _NamedCall(Call):
    namespace: str = ""


def list_tools(request: Json) -> list[ListedTool]:
    """Return the tools of a request in any of the four API formats."""
    found = []
    for tool in request.get("tools") or []:
        inner = tool.get("tools") or tool.get("functionDeclarations")
        if isinstance(inner, list):
            found += [ListedTool(str(each.get("name")), str(tool.get("name") or "")) for each in inner]
        else:
            found.append(ListedTool(str(tool.get("name") or tool.get("function", {}).get("name"))))
    return found


def _read_results(request: Json) -> list[str]:
    """Return the tool results of a request in any of the four API formats, as JSON text, in order."""
    found = []
    for message in request.get("messages") or request.get("input") or request.get("contents") or []:
        if not isinstance(message, dict):
            continue
        if message.get("role") == "tool" or message.get("type") == "function_call_output":
            found.append(json.dumps(message))
        parts = message.get("content") or message.get("parts")
        found += [json.dumps(part) for part in parts if _is_result(part)] if isinstance(parts, list) else []
    return found


def _is_result(part: Any) -> bool:
    return isinstance(part, dict) and (part.get("type") == "tool_result" or "functionResponse" in part)


def _stream_reply(path: str, request: Json, step: Step) -> bytes:
    if path.endswith("/messages"):
        return _stream_anthropic(step)
    if path.endswith("/responses"):
        return _stream_responses(step)
    if "GenerateContent" in path or "generateContent" in path:
        return _stream_gemini(step, streaming="stream" in path)
    return _stream_chat(step, streaming=bool(request.get("stream")))


def _encode_events(events: Sequence[Json], *, named: bool) -> bytes:
    lines = []
    for event in events:
        head = f"event: {event['type']}\n" if named else ""
        lines.append(f"{head}data: {json.dumps(event)}\n\n")
    return "".join(lines).encode()


def _stream_anthropic(step: Step) -> bytes:
    usage = {"input_tokens": 10, "output_tokens": 5}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "scripted", "content": []}
    if isinstance(step, Say):
        block: Json = {"type": "text", "text": ""}
        delta: Json = {"type": "text_delta", "text": step.text}
        reason = "end_turn"
    else:
        block = {"type": "tool_use", "id": _call_id(step), "name": step.tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(step.arguments)}
        reason = "tool_use"
    return _encode_events(
        [
            {
                "type": "message_start",
                "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage},
            },
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": None},
                "usage": usage,
            },
            {"type": "message_stop"},
        ],
        named=True,
    )


def _stream_responses(step: Step) -> bytes:
    if isinstance(step, Say):
        text = {"type": "output_text", "text": step.text, "annotations": []}
        item: Json = {"type": "message", "id": "msg_1", "role": "assistant", "content": [text]}
    else:
        item = {"type": "function_call", "id": "fc_1", "call_id": _call_id(step), "name": step.tool}
        item["arguments"] = json.dumps(step.arguments)
        if isinstance(step, _NamedCall) and step.namespace:
            item["namespace"] = step.namespace
    item["status"] = "completed"
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}  # type: ignore[dict-item]
    response: Json = {"id": "resp_1", "object": "response", "status": "in_progress", "output": []}
    return _encode_events(
        [
            {"type": "response.created", "response": response},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {
                "type": "response.completed",
                "response": {**response, "status": "completed", "output": [item], "usage": usage},
            },
        ],
        named=True,
    )


def _stream_gemini(step: Step, *, streaming: bool) -> bytes:
    part = (
        {"text": step.text}
        if isinstance(step, Say)
        else {"functionCall": {"name": step.tool, "args": step.arguments}}
    )
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    reply = {"candidates": [candidate], "usageMetadata": usage}
    return _encode_events([reply], named=False) if streaming else json.dumps(reply).encode()


def _stream_chat(step: Step, *, streaming: bool) -> bytes:
    if isinstance(step, Say):
        message: Json = {"role": "assistant", "content": step.text}
        reason = "stop"
    else:
        function = {"name": step.tool, "arguments": json.dumps(step.arguments)}
        message = {"role": "assistant", "content": None}
        message["tool_calls"] = [{"index": 0, "id": _call_id(step), "type": "function", "function": function}]
        reason = "tool_calls"
    head = {"id": "chatcmpl-1", "model": "scripted", "created": 0}
    if not streaming:
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return json.dumps({**head, "object": "chat.completion", "choices": [choice]}).encode()
    chunks = [{"index": 0, "delta": message, "finish_reason": None}]
    chunks.append({"index": 0, "delta": {}, "finish_reason": reason})
    events = [{**head, "object": "chat.completion.chunk", "choices": [each]} for each in chunks]
    return _encode_events(events, named=False) + b"data: [DONE]\n\n"


def _call_id(step: Call) -> str:
    """Return an id that is unique within a script."""
    return f"call_{abs(hash((step.tool, json.dumps(step.arguments)))) % 10**10}"
