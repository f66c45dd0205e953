"""Convert results of MCP servers to content for a model.

Takes results as plain data: text, structured values, images, audio, embedded resources and links. Media are
replaced in the text by a label. All texts of the server pass through a marker function, which may change
them. Knows no connection, does not shorten for the model and stores nothing: the dispatch line does both.
"""

from __future__ import annotations

import base64
import binascii
import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from toolfold.core.errors import shorten
from toolfold.core.json_limits import find_excess
from toolfold.core.types import Content, Json, Media, SourceResponse, read_json
from toolfold.core.untrusted_text import MAX_VALUE_DEPTH, TextMarker, leave_unmarked, mark_texts
from toolfold.mcp.media_types import detect_audio_type, detect_image

if TYPE_CHECKING:
    import mcp_types

__all__ = [
    "McpResponse",
    "mark_result",
    "prompt_content",
    "prompt_list_content",
    "resource_content",
    "resource_list_content",
    "tool_result_content",
]

R = TypeVar("R", bound=Any)
MediaKind = Literal["image", "audio", "file"]

MAX_IMAGE_BYTES = 3_750_000  # 5 MB in base64, the limit of providers
MAX_IMAGE_SIDE_PIXELS = 8_000
MAX_IMAGES = 20
MAX_LABEL_CHARS = 300
_MARKED_FIELDS = frozenset({"text", "description", "title"})
_NOT_JSON = object()
_TEXT_TYPES = ("application/json", "application/xml", "application/yaml", "application/javascript")


@dataclass(frozen=True, slots=True)
class McpResponse(SourceResponse):
    """Response of an MCP server: a result or an error."""

    result: mcp_types.Result | Exception | Mapping[str, Any]


def tool_result_content(result: Any, server: str, *, mark: TextMarker = leave_unmarked) -> Content:
    """Convert the result of an MCP tool call to content for a model."""
    mark = functools.cache(mark)  # every text is marked twice: for the model and for protocol clients
    plain = _result_to_json(result)
    is_error = plain.get("isError") is True
    reader = _BlockReader()
    reader.read_blocks(plain.get("content"))
    value = reader.to_value(plain.get("structuredContent"))
    if is_error and not value:
        value = f"MCP server {server!r} reported an error without details."
    marked = mark_texts(value, mark)
    raw = McpResponse(mark_result(result, mark))
    return Content(value=marked, blocks=tuple(reader.media), is_error=is_error, raw=raw)


def mark_result(result: R, mark: TextMarker) -> R:
    """Put markers around injected instructions in a result that is passed on to MCP clients.

    The one place where results of tools, resources and prompts are marked for protocol clients. Names, URIs
    and data stay as they are: clients send them back.
    """
    plain = _result_to_json(result)
    marked = _mark_protocol_texts(plain, mark)
    if marked == plain:
        return result
    validated: R = marked if isinstance(result, Mapping) else type(result).model_validate(marked)
    return validated


def _mark_protocol_texts(value: Any, mark: TextMarker, depth: int = 0) -> Any:
    if depth > MAX_VALUE_DEPTH:
        return value
    if isinstance(value, (list, tuple)):
        return [_mark_protocol_texts(each, mark, depth + 1) for each in value]
    if not isinstance(value, Mapping):
        return value
    return {key: _mark_protocol_field(key, each, mark, depth) for key, each in value.items()}


def _mark_protocol_field(key: str, value: Any, mark: TextMarker, depth: int) -> Any:
    if key == "structuredContent":
        return mark_texts(value, mark)
    if key in _MARKED_FIELDS and isinstance(value, str):
        return mark(value)
    return value if key == "_meta" else _mark_protocol_texts(value, mark, depth + 1)


def resource_content(result: Any, *, mark: TextMarker = leave_unmarked) -> Content:
    """Convert the result of `resources/read` to content for a model."""
    mark = functools.cache(mark)
    reader = _BlockReader()
    contents = _keep_mappings(_result_to_json(result).get("contents"))
    for each in contents:
        reader.read_resource(each, heading=len(contents) > 1)
    return Content(
        value=mark_texts(reader.to_value(), mark),
        blocks=tuple(reader.media),
        raw=McpResponse(mark_result(result, mark)),
    )


def prompt_content(result: Any, *, mark: TextMarker = leave_unmarked) -> Content:
    """Convert the result of `prompts/get` to content for a model."""
    mark = functools.cache(mark)
    plain, media, counts = _result_to_json(result), list[Media](), Counter[str]()
    messages: list[Json] = []
    for message in _keep_mappings(plain.get("messages")):
        reader = _BlockReader(media, counts)
        reader.read_blocks(_as_sequence(message.get("content")))
        messages.append({"role": _text_or_empty(message.get("role")), "text": reader.to_value()})
    value = _omit_empty({"description": plain.get("description"), "messages": messages})
    return Content(
        value=mark_texts(value, mark), blocks=tuple(media), raw=McpResponse(mark_result(result, mark))
    )


def resource_list_content(
    result: Any, templates: Any = None, *, mark: TextMarker = leave_unmarked
) -> Content:
    """Convert the results of `resources/list` and `resources/templates/list` to content for a model."""
    page, patterns = _result_to_json(result), _result_to_json(templates)
    value = {
        "resources": [_describe_resource(each, "uri") for each in _keep_mappings(page.get("resources"))],
        "templates": [
            _describe_resource(each, "uriTemplate")
            for each in _keep_mappings(patterns.get("resourceTemplates"))
        ],
        "next_cursor": page.get("nextCursor"),
    }
    return Content(value=mark_texts(_omit_empty(value), mark), raw=McpResponse(mark_result(result, mark)))


def prompt_list_content(result: Any, *, mark: TextMarker = leave_unmarked) -> Content:
    """Convert the result of `prompts/list` to content for a model."""
    page = _result_to_json(result)
    prompts = [_describe_prompt(each) for each in _keep_mappings(page.get("prompts"))]
    value = _omit_empty({"prompts": prompts, "next_cursor": page.get("nextCursor")})
    return Content(value=mark_texts(value, mark), raw=McpResponse(mark_result(result, mark)))


class _BlockReader:
    """Collects the server's text, notes added by Toolfold, and media from the content blocks of a result."""

    def __init__(self, media: list[Media] | None = None, counts: Counter[str] | None = None) -> None:
        self.media = [] if media is None else media
        self._counts = Counter[str]() if counts is None else counts
        self._lines: list[str] = []
        self._notes: list[str] = []  # lines added here
        self._texts: list[str] = []  # lines of the server

    def to_value(self, structured: Any = None) -> Any:
        """Return the content for the model, without the texts if they only repeat the structured value."""
        text = "\n".join(self._lines)
        if structured is None:
            return text
        if self._texts and not _is_redundant_text(self._texts, structured):
            return {"text": text, "structured": structured}
        return {"structured": structured, "beside": "\n".join(self._notes)} if self._notes else structured

    def read_blocks(self, blocks: Any) -> None:
        for block in _keep_mappings(blocks):
            self._read_block(block)

    def read_resource(self, resource: Mapping[str, Any], *, heading: bool = True) -> None:
        """Add the contents of a resource, as text if they can be decoded."""
        uri, mime = _text_or_empty(resource.get("uri")), _text_or_empty(resource.get("mimeType"))
        text = resource.get("text")
        if not isinstance(text, str):
            text = _decode_text(resource.get("blob"), mime)
        if text is None:
            self._add_media(_media_kind(mime), resource.get("blob"), mime or "application/octet-stream", uri)
            return
        if heading:
            self._add_note(f"({_join_labels('resource', uri, mime)})")
        self._add_text(text)

    def _read_block(self, block: Mapping[str, Any]) -> None:
        kind = block.get("type")
        if kind == "text":
            self._add_text(_text_or_empty(block.get("text")))
        elif kind in ("image", "audio"):
            self._add_media(
                "image" if kind == "image" else "audio",
                block.get("data"),
                _text_or_empty(block.get("mimeType")),
            )
        elif kind == "resource" and isinstance(block.get("resource"), Mapping):
            self.read_resource(block["resource"])
        elif kind == "resource_link":
            self._add_note(f"({_describe_link(block)})")
        else:
            self._add_note(f"(a content block of the unsupported type {_clean_label(kind)!r})")

    def _add_text(self, text: str) -> None:
        self._texts.append(text)
        self._lines.append(text)

    def _add_note(self, line: str) -> None:
        self._notes.append(line)
        self._lines.append(line)

    def _add_media(self, kind: MediaKind, data: Any, mime: str, name: str = "") -> None:
        decoded = _decode_base64(data)
        if decoded is None:
            self._add_note(f"({_join_labels(kind, name, mime)}: unreadable, its data is not base64)")
            return
        kind, mime = self._classify_media(kind, mime, decoded)
        self._counts[kind] += 1
        label = f"{kind} {self._counts[kind]}"
        self.media.append(Media(kind=kind, mime_type=_clean_label(mime), data=decoded, label=label))
        self._add_note(f"({_join_labels(label, name, mime)}, {len(decoded):,} bytes)")

    def _classify_media(self, kind: MediaKind, mime: str, data: bytes) -> tuple[MediaKind, str]:
        """Return the kind and MIME type of media by their content; an unsupported image becomes a file."""
        if kind == "audio":
            return kind, detect_audio_type(data) or mime
        image = detect_image(data) if kind == "image" else None
        if image is None:
            return "file", mime
        fits = len(data) <= MAX_IMAGE_BYTES and max(image.width, image.height) <= MAX_IMAGE_SIDE_PIXELS
        return ("image" if fits and self._counts["image"] < MAX_IMAGES else "file"), image.mime_type


def _result_to_json(result: Any) -> Mapping[str, Any]:
    """Return a result as JSON data, whether it is an SDK object or a mapping."""
    if isinstance(result, Mapping):
        return result
    if result is None:
        return {}
    plain: Json = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return plain


def _is_redundant_text(texts: Sequence[str], structured: Any) -> bool:
    """Return True if the texts of a result only repeat its structured value or a member of that value."""
    pairs = [(text.strip(), _parse_json(text)) for text in texts]
    parts = [structured, *(structured.values() if isinstance(structured, Mapping) else ())]
    if len(pairs) == 1 and any(_matches_text(part, pairs[0]) for part in parts):
        return True
    lists = (part for part in parts if isinstance(part, list) and len(part) == len(pairs))
    return any(all(map(_matches_text, part, pairs)) for part in lists)


def _matches_text(value: Any, expected: tuple[str, Any]) -> bool:
    text, parsed = expected
    try:
        return bool(value.strip() == text if isinstance(value, str) else value == parsed)
    except RecursionError:
        return False


def _parse_json(text: str) -> Any:
    if find_excess(text.encode("utf-8", "replace")):
        return _NOT_JSON
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _decode_text(blob: Any, mime: str) -> str | None:
    """Decode binary content that has a text MIME type; return None if the type or the bytes are not text."""
    plain = mime.partition(";")[0].strip().lower()
    if not (plain.startswith("text/") or plain in _TEXT_TYPES or plain.endswith(("+json", "+xml"))):
        return None
    decoded = _decode_base64(blob)
    try:
        return None if decoded is None else decoded.decode()
    except UnicodeDecodeError:
        return None


def _decode_base64(data: Any) -> bytes | None:
    if not isinstance(data, str) or not data:
        return None
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError):
        return None


def _media_kind(mime: str) -> MediaKind:
    family = mime.partition("/")[0].lower()
    return "image" if family == "image" else "audio" if family == "audio" else "file"


def _describe_link(link: Mapping[str, Any]) -> str:
    names = _join_labels(
        "resource link", _text_or_empty(link.get("uri")), _text_or_empty(link.get("mimeType"))
    )
    described = _clean_label(link.get("title") or link.get("name")), _clean_label(link.get("description"))
    about = "; ".join(each for each in described if each)
    return f"{names}: {about}" if about else names


def _describe_resource(resource: Mapping[str, Any], address: str) -> Json:
    return _omit_empty(
        {
            "uri": resource.get(address),
            "name": resource.get("title") or resource.get("name"),
            "description": resource.get("description"),
            "type": resource.get("mimeType"),
            "bytes": resource.get("size"),
        }
    )


def _describe_prompt(prompt: Mapping[str, Any]) -> Json:
    arguments = [
        _omit_empty({key: argument.get(key) for key in ("name", "description", "required")})
        for argument in _keep_mappings(prompt.get("arguments"))
    ]
    named = {key: prompt.get(key) for key in ("name", "title", "description")}
    return _omit_empty({**named, "arguments": arguments})


def _omit_empty(values: Mapping[str, Any]) -> Json:
    """Return the mapping without entries whose values are empty."""
    return {key: value for key, value in values.items() if value not in (None, "", [])}


def _join_labels(*facts: str) -> str:
    return ", ".join(_clean_label(fact) for fact in facts if fact)


def _clean_label(value: Any) -> str:
    """Return a short text from a server as a single line without control characters."""
    return shorten(" ".join(_text_or_empty(value).split()), MAX_LABEL_CHARS)


def _text_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _as_sequence(value: Any) -> Iterable[Any]:
    """Return content as a list of blocks, even if it is a single block."""
    return value if isinstance(value, (list, tuple)) else (value,)


def _keep_mappings(values: Any) -> list[Mapping[str, Any]]:
    return [each for each in values if isinstance(each, Mapping)] if isinstance(values, (list, tuple)) else []
