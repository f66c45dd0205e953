"""What a server answered, as what a model reads, looks at and listens to.

Takes the answers of the protocol as plain data: text, structured values, images, sounds, embedded
resources and links. What is no text stands in the text by a label, where it stood in the answer. Foreign
words pass through `mark`, which may change how they are told. Knows no connection, bounds nothing for the
model and keeps nothing on disk: both are done where every result passes.
"""

from __future__ import annotations

import base64
import binascii
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from toolfold.errors import shorten
from toolfold.json_limits import find_excess
from toolfold.model import Content, Json, Media, encodable, read_json
from toolfold.sources.mcp.pictures import picture, sound

__all__ = [
    "Mark",
    "as_it_is",
    "content_of",
    "listed_prompts",
    "listed_resources",
    "marked",
    "prompt_content",
    "resource_content",
]

Mark = Callable[[str], str]
Kind = Literal["image", "audio", "file"]

DEEPEST = 64
LARGEST_IMAGE = 3_750_000  # bytes: as text they are the five million that providers take
MOST_PIXELS = 8_000  # on a side
MOST_IMAGES = 20
LONGEST_LABEL = 300
_NO_JSON = object()
_TEXTUAL = ("application/json", "application/xml", "application/yaml", "application/javascript")


def as_it_is(text: str) -> str:
    """The mark that changes nothing."""
    return text


def content_of(result: Any, server: str, *, mark: Mark = as_it_is) -> Content:
    """The answer to a call of a tool."""
    mark = functools.cache(mark)  # its words may be marked twice: for the model, and in the answer as it came
    said = _plain(result)
    is_error = said.get("isError") is True
    reading = _Reading()
    reading.blocks(said.get("content"))
    value = reading.value(said.get("structuredContent"))
    if is_error and not value:
        value = f"MCP server {server!r} says that the call failed, and no more."
    told = marked(value, mark)
    raw = result if told == value else _marked_answer(result, said, mark)
    return Content(value=told, blocks=tuple(reading.media), is_error=is_error, raw=raw)


def _marked_answer(result: Any, said: Mapping[str, Any], mark: Mark) -> Any:
    """A server's own answer, its words told as the mark tells them, for whoever takes it as it is."""
    told = {**said, "content": [_marked_block(block, mark) for block in _listed(said.get("content", ()))]}
    if "structuredContent" in said:
        told["structuredContent"] = marked(said["structuredContent"], mark)
    return told if isinstance(result, Mapping) else type(result).model_validate(told)


def _marked_block(block: Any, mark: Mark) -> Any:
    if not isinstance(block, Mapping):
        return block
    if block.get("type") == "text":
        return {**block, "text": mark(_text(block.get("text")))}
    resource = block.get("resource")
    if isinstance(resource, Mapping) and isinstance(resource.get("text"), str):
        return {**block, "resource": {**resource, "text": mark(resource["text"])}}
    return block


def resource_content(result: Any, *, mark: Mark = as_it_is) -> Content:
    """The answer to `resources/read`. One text needs no heading: the model asked for it by its address."""
    reading = _Reading()
    contents = _maps(_plain(result).get("contents"))
    for each in contents:
        reading.resource(each, heading=len(contents) > 1)
    return Content(value=marked(reading.value(), mark), blocks=tuple(reading.media), raw=result)


def prompt_content(result: Any, *, mark: Mark = as_it_is) -> Content:
    """The answer to `prompts/get`."""
    said, media, counted = _plain(result), list[Media](), Counter[str]()
    messages: list[Json] = []
    for message in _maps(said.get("messages")):
        reading = _Reading(media, counted)
        reading.blocks(_listed(message.get("content")))
        messages.append({"role": _text(message.get("role")), "text": reading.value()})
    value = _said({"description": said.get("description"), "messages": messages})
    return Content(value=marked(value, mark), blocks=tuple(media), raw=result)


def listed_resources(result: Any, templates: Any = None, *, mark: Mark = as_it_is) -> Content:
    """The answers to `resources/list` and `resources/templates/list`."""
    page, patterns = _plain(result), _plain(templates)
    value = {
        "resources": [_resource(each, "uri") for each in _maps(page.get("resources"))],
        "templates": [_resource(each, "uriTemplate") for each in _maps(patterns.get("resourceTemplates"))],
        "next_cursor": page.get("nextCursor"),
    }
    return Content(value=marked(_said(value), mark), raw=result)


def listed_prompts(result: Any, *, mark: Mark = as_it_is) -> Content:
    """The answer to `prompts/list`."""
    page = _plain(result)
    prompts = [_prompt(each) for each in _maps(page.get("prompts"))]
    value = _said({"prompts": prompts, "next_cursor": page.get("nextCursor")})
    return Content(value=marked(value, mark), raw=result)


class _Reading:
    """Blocks, one after the other, and what they come to."""

    def __init__(self, media: list[Media] | None = None, counted: Counter[str] | None = None) -> None:
        self.media = [] if media is None else media
        self._counted = Counter[str]() if counted is None else counted
        self._lines: list[str] = []
        self._notes: list[str] = []  # those of the lines that are ours
        self._texts: list[str] = []  # those that are the server's

    def value(self, structured: Any = None) -> Any:
        """What the model reads: where text and structured value say the same, the one with structure."""
        said = "\n".join(self._lines)
        if structured is None:
            return said
        if self._texts and not _says_the_same(self._texts, structured):
            return {"text": said, "structured": structured}
        return {"structured": structured, "beside": "\n".join(self._notes)} if self._notes else structured

    def blocks(self, blocks: Any) -> None:
        for block in _maps(blocks):
            self._block(block)

    def resource(self, resource: Mapping[str, Any], *, heading: bool = True) -> None:
        """The contents of a resource: text as text, whatever it was sent as."""
        uri, mime = _text(resource.get("uri")), _text(resource.get("mimeType"))
        text = resource.get("text")
        if not isinstance(text, str):
            text = _as_text(resource.get("blob"), mime)
        if text is None:
            self._medium(_kind_of(mime), resource.get("blob"), mime or "application/octet-stream", uri)
            return
        if heading:
            self._note(f"({_joined('resource', uri, mime)})")
        self._text(text)

    def _block(self, block: Mapping[str, Any]) -> None:
        kind = block.get("type")
        if kind == "text":
            self._text(_text(block.get("text")))
        elif kind in ("image", "audio"):
            self._medium(
                "image" if kind == "image" else "audio", block.get("data"), _text(block.get("mimeType"))
            )
        elif kind == "resource" and isinstance(block.get("resource"), Mapping):
            self.resource(block["resource"])
        elif kind == "resource_link":
            self._note(f"({_link(block)})")
        else:
            self._note(f"(a block of the kind {_label(kind)!r}, which cannot be shown)")

    def _text(self, text: str) -> None:
        self._texts.append(text)
        self._lines.append(text)

    def _note(self, line: str) -> None:
        self._notes.append(line)
        self._lines.append(line)

    def _medium(self, kind: Kind, data: Any, mime: str, name: str = "") -> None:
        decoded = _decoded(data)
        if decoded is None:
            self._note(f"({_joined(kind, name, mime)}: it cannot be read, its data is not base64)")
            return
        kind, mime = self._judged(kind, mime, decoded)
        self._counted[kind] += 1
        label = f"{kind} {self._counted[kind]}"
        self.media.append(Media(kind=kind, mime_type=_label(mime), data=decoded, label=label))
        self._note(f"({_joined(label, name, mime)}, {len(decoded):,} bytes)")

    def _judged(self, kind: Kind, mime: str, data: bytes) -> tuple[Kind, str]:
        """As what it can be used. An image that no model takes is a file, which tools can still read."""
        if kind == "audio":
            return kind, sound(data) or mime
        found = picture(data) if kind == "image" else None
        if found is None:
            return "file", mime
        fits = len(data) <= LARGEST_IMAGE and max(found.width, found.height) <= MOST_PIXELS
        return ("image" if fits and self._counted["image"] < MOST_IMAGES else "file"), found.mime_type


def _plain(result: Any) -> Mapping[str, Any]:
    """An answer as the protocol spells it, whether it has been read into a model or not."""
    if isinstance(result, Mapping):
        return result
    if result is None:
        return {}
    plain: Json = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return plain


def _says_the_same(texts: Sequence[str], structured: Any) -> bool:
    """Whether the structured value holds all that the texts say, itself or in one of its parts."""
    said = [(text.strip(), _parsed(text)) for text in texts]
    parts = [structured, *(structured.values() if isinstance(structured, Mapping) else ())]
    if len(said) == 1 and any(_tells(part, said[0]) for part in parts):
        return True
    lists = (part for part in parts if isinstance(part, list) and len(part) == len(said))
    return any(all(map(_tells, part, said)) for part in lists)


def _tells(value: Any, said: tuple[str, Any]) -> bool:
    text, parsed = said
    try:
        return bool(value.strip() == text if isinstance(value, str) else value == parsed)
    except RecursionError:
        return False


def _parsed(text: str) -> Any:
    if find_excess(text.encode("utf-8", "replace")):
        return _NO_JSON
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        return _NO_JSON


def marked(value: Any, mark: Mark, depth: int = 0) -> Any:
    """A value with every text in it told as the mark tells it."""
    if depth > DEEPEST:
        return "… (nested too deeply)"
    if isinstance(value, str):
        return mark(encodable(value))
    if isinstance(value, Mapping):
        return {mark(encodable(str(key))): marked(each, mark, depth + 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [marked(each, mark, depth + 1) for each in value]
    return value


def _as_text(blob: Any, mime: str) -> str | None:
    """What was sent as bytes and is text by its own word."""
    plain = mime.partition(";")[0].strip().lower()
    if not (plain.startswith("text/") or plain in _TEXTUAL or plain.endswith(("+json", "+xml"))):
        return None
    decoded = _decoded(blob)
    try:
        return None if decoded is None else decoded.decode()
    except UnicodeDecodeError:
        return None


def _decoded(data: Any) -> bytes | None:
    if not isinstance(data, str) or not data:
        return None
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError):
        return None


def _kind_of(mime: str) -> Kind:
    family = mime.partition("/")[0].lower()
    return "image" if family == "image" else "audio" if family == "audio" else "file"


def _link(link: Mapping[str, Any]) -> str:
    names = _joined("a resource to read", _text(link.get("uri")), _text(link.get("mimeType")))
    described = _label(link.get("title") or link.get("name")), _label(link.get("description"))
    about = "; ".join(each for each in described if each)
    return f"{names}: {about}" if about else names


def _resource(resource: Mapping[str, Any], address: str) -> Json:
    return _said(
        {
            "uri": resource.get(address),
            "name": resource.get("title") or resource.get("name"),
            "description": resource.get("description"),
            "type": resource.get("mimeType"),
            "bytes": resource.get("size"),
        }
    )


def _prompt(prompt: Mapping[str, Any]) -> Json:
    taken = [
        _said({key: argument.get(key) for key in ("name", "description", "required")})
        for argument in _maps(prompt.get("arguments"))
    ]
    named = {key: prompt.get(key) for key in ("name", "title", "description")}
    return _said({**named, "arguments": taken})


def _said(values: Mapping[str, Any]) -> Json:
    """Without what was left out."""
    return {key: value for key, value in values.items() if value not in (None, "", [])}


def _joined(*facts: str) -> str:
    return ", ".join(_label(fact) for fact in facts if fact)


def _label(value: Any) -> str:
    """A foreign word that stands inside a line of ours."""
    return shorten(" ".join(_text(value).split()), LONGEST_LABEL)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _listed(value: Any) -> Iterable[Any]:
    """One block, or several: revisions of the protocol differ."""
    return value if isinstance(value, (list, tuple)) else (value,)


def _maps(values: Any) -> list[Mapping[str, Any]]:
    return [each for each in values if isinstance(each, Mapping)] if isinstance(values, (list, tuple)) else []
