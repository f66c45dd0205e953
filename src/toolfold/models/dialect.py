"""Interface of a model dialect, and code shared by all dialects.

Messages are passed in the dialect's own format: what the caller wrote is never translated.
"""

from __future__ import annotations

import base64
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from toolfold.core.types import BRIDGE_SEARCH, Definition, Json, Media, ToolCall, ToolResult, read_json
from toolfold.models.reply import ModelRequest, Reply, ReplyReader

DialectName = Literal["openai", "anthropic", "responses"]
Message = Mapping[str, Any]

DEFAULT_MEDIA_KINDS = ("image",)
"""The kinds of media that most models accept beside text."""
MEDIA_SENDER = "tool_media"
"""The `name` of a user message that holds only the media of a tool result."""
DEFERRED = {"defer_loading": True}
NOTICE_OPENING = "[Notice from the agent's runtime, not from the user]"
"""Beginning of a message with the role `user` that no person wrote, such as a request to continue."""

_COMBINATORS = ("oneOf", "anyOf", "allOf")
_VERSION = re.compile(r"(?<!\d)(\d{1,2})(?:[-.](\d{1,2}))?(?![\d])")


class Dialect(ABC):
    """A provider's format of tools, messages and tool results. Stateless and shared."""

    name: ClassVar[DialectName]
    default_model: ClassVar[str] = ""
    """The model family whose prices apply when a request names no model."""
    model_family: ClassVar[str] = ""
    """The part of a model name that shows that the provider itself made the model."""
    accepts_tools_in_input: ClassVar[bool] = False
    """True if tools can be added in the middle of a conversation; the model can call them from there on."""
    lists_deferred_tools: ClassVar[bool] = False
    """True if the tools array may contain tools that are loaded only when a tool result names them."""
    requires_output_limit: ClassVar[bool] = False
    """True if every request must limit the tokens of the reply."""
    native_headers: ClassVar[Mapping[str, str]] = {}
    """HTTP headers that a request with deferred tools (loaded on demand) needs."""

    @abstractmethod
    def render_tool(self, definition: Definition) -> Json:
        """Return one tool as an entry of the request's tools array."""

    @abstractmethod
    def render_tools(
        self,
        definitions: Sequence[Definition],
        *,
        deferred: Sequence[Definition] = (),
        native: bool = False,
        cache_after: int = 0,
    ) -> list[Json]:
        """Return the tools array of a request; deferred tools, which are loaded on demand, come last.

        `native` uses the provider's own tool search. `cache_after` marks the end of the constant tools for
        providers that cache prompts only up to explicit marks.
        """

    @abstractmethod
    def render_result(
        self,
        result: ToolResult,
        media: Sequence[Media],
        *,
        deferred: Mapping[str, Definition] | None = None,
    ) -> list[Json]:
        """Return the message parts that contain one tool result, in order."""

    @abstractmethod
    def is_result_part(self, part: Json) -> bool:
        """Return True if a message part is a tool result rather than accompanying text or media."""

    def render_results(
        self,
        results: Sequence[ToolResult],
        *,
        deferred: Mapping[str, Definition] | None = None,
        media_kinds: Collection[str] = DEFAULT_MEDIA_KINDS,
    ) -> list[Json]:
        """Return the messages with the tool results of one reply, to be appended to the history.

        Providers require results before anything else. Where tools are `deferred`, a result of tool_search
        loads those that it found. Long texts in other results are written as text, not as JSON strings.
        """
        parts = []
        for result in results:
            media = [each for each in result.media if each.kind in media_kinds]
            if not is_search_result(result, deferred):
                result = replace(result, text=write_as_text(result.text))
            parts += self.render_result(result, media, deferred=deferred)
        return self.wrap_parts(sorted(parts, key=lambda part: not self.is_result_part(part)))

    def wrap_parts(self, parts: list[Json]) -> list[Json]:
        """Combine message parts into messages; in most dialects, each part is already a whole message."""
        return parts

    def append_text(self, message: Message, text: str) -> Json:
        """Return a copy of the message with the text appended."""
        content = message.get("content")
        if isinstance(content, (list, tuple)):
            return {**message, "content": [*content, self.render_text(text)]}
        return {**message, "content": f"{content}\n\n{text}" if content else text}

    def render_text(self, text: str) -> Json:
        """Return a text as part of a message's content."""
        return {"type": "text", "text": text}

    def render_added_tools(self, definitions: Sequence[Definition]) -> Json:  # noqa: ARG002
        """Return an input item that defines additional tools, in dialects that support such items."""
        raise TypeError(f"the {self.name} format does not support tool definitions between messages")

    @abstractmethod
    def build_body(self, request: ModelRequest) -> Json:
        """Return the JSON body of a model request."""

    @abstractmethod
    def start_reply(self) -> ReplyReader:
        """Return a parser for the events of one streamed reply."""

    @abstractmethod
    def read_reply(self, body: Json) -> Reply:
        """Parse the reply in the response body of a call without streaming."""

    @abstractmethod
    def user_message(self, text: str) -> Json:
        """Return a message from the user."""

    @abstractmethod
    def render_image(self, image: Media) -> Json:
        """Return an image as part of a message's content."""

    def user_message_with_images(self, text: str, images: Sequence[Media]) -> Json:
        """Return a message from the user that contains a text and images."""
        parts = [self.render_text(text), *map(self.render_image, images)]
        return {**self.user_message(text), "content": parts}

    @abstractmethod
    def assistant_message(self, text: str) -> Json:
        """Return a message from the model that contains only text."""

    @abstractmethod
    def render_calls(self, text: str, calls: Sequence[ToolCall]) -> list[Json]:
        """Return a model reply with this text and these tool calls, as messages."""

    @abstractmethod
    def find_calls(self, messages: Sequence[Message]) -> list[tuple[str, str]]:
        """Return the id and tool name of every tool call in the messages, in order."""

    @abstractmethod
    def find_result_ids(self, messages: Sequence[Message]) -> set[str]:
        """Return the ids of the tool calls whose results the messages contain."""

    def find_text(self, message: Message) -> str:
        """Return the readable text of a message of any role."""
        content = message.get("content")
        if isinstance(content, str):
            return content
        parts = (part.get("text") for part in select_mappings(content))
        return "\n".join(part for part in parts if isinstance(part, str))

    @abstractmethod
    def explain_missing_native(self, model: str) -> str:
        """Return why a model cannot load tools on demand; empty if it can or this is unknown."""

    def is_other_vendor(self, model: str) -> bool:
        """Return True if a model's name shows that it was not made by the vendor that defined this API."""
        return bool(model) and self.model_family not in model.lower()


def simplify_schema(schema: Json) -> Json:
    """Return an object schema without top-level `anyOf` and similar keywords, which providers reject.

    The parameters that the alternatives name are kept; which of them go together is checked when the tool
    is called.
    """
    if schema.get("type") == "object" and not any(key in schema for key in _COMBINATORS):
        return schema
    plain = {key: value for key, value in schema.items() if key not in _COMBINATORS}
    branches = [each for key in _COMBINATORS for each in select_mappings(schema.get(key))]
    properties: Json = {}
    for part in [*branches, plain]:
        own = part.get("properties")
        properties |= own if isinstance(own, dict) else {}
    return {**plain, "type": "object", **({"properties": properties} if properties else {})}


def is_user_message(message: Message) -> bool:
    """Return True if a person wrote the message; False for tool results, even with the role `user`."""
    content = message.get("content")
    if message.get("name") == MEDIA_SENDER:
        return False
    if message.get("role") != "user" or not (content is None or isinstance(content, (str, list, tuple))):
        return False
    if is_notice(message):
        return False
    parts = () if content is None or isinstance(content, str) else content
    return not parts or not all(map(_is_from_runtime, parts))


def _is_from_runtime(part: Any) -> bool:
    """Return True for a part of a message with the role `user` that no person wrote."""
    if not isinstance(part, Mapping):
        return False
    return part.get("type") == "tool_result" or is_notice_text(part.get("text"))


def is_notice(message: Message) -> bool:
    """Return True for a message of the runtime to the model."""
    content = message.get("content")
    first = next(iter(select_mappings(content)), {}).get("text") if not isinstance(content, str) else content
    return message.get("role") == "user" and is_notice_text(first)


def is_notice_text(text: Any) -> bool:
    """Return True for a text that the runtime wrote for the model under the role `user`."""
    return isinstance(text, str) and text.startswith(NOTICE_OPENING)


def is_instruction(message: Message) -> bool:
    """Return True for system and developer messages."""
    return message.get("role") in ("system", "developer")


def split_search_result(text: str, deferred: Mapping[str, Definition]) -> tuple[list[str], str]:
    """Split a tool_search result into tool names that the provider can load and the remaining text."""
    try:
        result = read_json(text)
    except ValueError:
        return [], text
    if not isinstance(result, dict):
        return [], text
    matches = select_mappings(result.get("matches"))
    names = [name for match in matches if isinstance(name := match.get("name"), str) and name in deferred]
    others = [match for match in matches if match.get("name") not in names]
    rest = {key: value for key, value in result.items() if key != "matches"}
    rest |= {"matches": others} if others else {}
    return list(dict.fromkeys(names)), json.dumps(rest, ensure_ascii=False) if rest else ""


def write_as_text(result: str) -> str:
    """Return a JSON result with its texts of several lines written as they are, below the other fields.

    As JSON strings, files and diffs cost a third more tokens. The fields come first, in one line, so that no
    text can be taken for one of them. A result without such texts is returned unchanged.
    """
    if "\\n" not in result:
        return result
    try:
        value = read_json(result)
    except ValueError:
        return result
    if not isinstance(value, dict):
        return result
    texts = {key: each for key, each in value.items() if isinstance(each, str) and "\n" in each}
    fields = {key: each for key, each in value.items() if key not in texts}
    if not texts or "error" in value:
        return result
    if not fields and len(texts) == 1:
        return next(iter(texts.values()))
    header = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return "\n".join([header, *(f"--- {key}\n{text}" for key, text in texts.items())])


def is_search_result(result: ToolResult, deferred: Mapping[str, Definition] | None) -> bool:
    """Return True for a `tool_search` result whose tools the provider can load."""
    return deferred is not None and result.name == BRIDGE_SEARCH


def is_older_version(model: str, family: str, first: tuple[int, int]) -> bool:
    """Return True if the version in a model name is older than `first`; False if there is no version."""
    _, found, rest = model.lower().partition(family)
    version = _VERSION.search(rest) if found else None
    return version is not None and (int(version[1]), int(version[2] or 0)) < first


def arguments_text(call: ToolCall) -> str:
    """Return the arguments of a tool call as JSON text."""
    if isinstance(call.arguments, str):
        return call.arguments or "{}"
    return json.dumps(call.arguments or {}, ensure_ascii=False)


def repair_arguments(arguments: Any) -> str:
    """Return the arguments of an earlier call as the text of a JSON object, for the next request.

    Several servers refuse every request whose history has arguments that are not a JSON object. A valid text
    is returned as it is, so that the prompt cache still matches.
    """
    if isinstance(arguments, Mapping):
        return json.dumps(dict(arguments), ensure_ascii=False)
    text = arguments if isinstance(arguments, str) else ""
    for _ in range(2):  # some models encode the JSON twice
        try:
            value = read_json(text)
        except (ValueError, RecursionError):
            return "{}"
        if isinstance(value, dict):
            return text
        if not isinstance(value, str):
            return "{}"
        text = value
    return "{}"


def encode_base64(media: Media) -> str:
    """Return the media's bytes as base64 text."""
    return base64.b64encode(media.data).decode()


def data_uri(media: Media) -> str:
    """Return the media as a data URI."""
    return f"data:{media.mime_type};base64,{encode_base64(media)}"


def select_mappings(values: Any) -> list[Json]:
    """Return the dictionaries in a list; an empty list for any other value."""
    return [each for each in values if isinstance(each, dict)] if isinstance(values, (list, tuple)) else []
