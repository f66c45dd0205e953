"""Data types for elicitation and sampling requests of MCP servers, and validation of replies.

Texts of a server are limited in length and stripped of invisible characters. A form is flat (text, number,
yes/no, choices), so that any interface can show it; other forms are refused. A URL is never opened here.
Knows neither connections nor user interfaces.
"""

from __future__ import annotations

import copy
import math
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from toolfold.core.errors import shorten
from toolfold.core.invisible_characters import remove_invisible
from toolfold.core.types import FrozenDict, Json, freeze

FieldKind = Literal["text", "number", "integer", "switch", "choice", "choices"]

MAX_FIELDS = 40
MAX_CHOICES = 500
MAX_MESSAGE_CHARS = 4_000
MAX_LABEL_CHARS = 400
MAX_URL_CHARS = 4_000
MAX_ANSWER_CHARS = 100_000

_FORMATS = frozenset({"email", "uri", "date", "date-time"})
_BOUND_KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength"),
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "array": ("minItems", "maxItems"),
    "boolean": (),
}
_KINDS: Mapping[str, FieldKind] = {
    "string": "text",
    "number": "number",
    "integer": "integer",
    "boolean": "switch",
    "array": "choices",
}
_SECRET_WORDS = re.compile(
    r"(?i)passw(?:or)?d|passphrase|\bpwd\b|secret|credential|api.?key|private.?key|access.?key|token"
    r"|card.?number|\bcvv\b|\bpin\b|one.?time.?code|\botp\b|social.?security"
)
_INVALID_URL_CHARS = re.compile(r"[\s\\\x00-\x20\x7f-\x9f]")
_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class FieldChoice:
    """Permitted value of a form field, and its label."""

    value: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """One field of an elicitation form."""

    name: str
    kind: FieldKind
    title: str = ""
    description: str = ""
    choices: tuple[FieldChoice, ...] = ()
    default: Any = None
    required: bool = False
    schema: FrozenDict = field(default_factory=FrozenDict)

    def parse_input(self, text: str) -> Any:
        """Convert typed text to the type of the form field; return the text unchanged if that fails."""
        stripped = text.strip()
        if self.kind == "switch":
            return {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}.get(
                stripped.lower(), text
            )
        if self.kind in ("number", "integer"):
            return _parse_number(stripped, text)
        return [each.strip() for each in text.split(",") if each.strip()] if self.kind == "choices" else text


@dataclass(frozen=True, slots=True, kw_only=True)
class ElicitationRequest:
    """A server's request to a person: a form, a URL to visit, or permission to use the model."""

    server: str
    """Name of the requesting server. Must be shown, because the message may pretend to be from another."""
    mode: Literal["form", "url", "sampling"]
    message: str
    fields: tuple[FormField, ...] = ()
    url: str = ""
    """URL for the person to visit. It must be shown in full, and opened only if the person agrees."""
    host: str = ""
    warnings: tuple[str, ...] = ()
    problem: str = ""
    """Problem with the person's previous reply, if they are asked again."""
    withdrawn: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    """Event that is set when the reply is no longer needed."""


@dataclass(frozen=True, slots=True)
class ElicitationReply:
    """A person's reply: `accept` with the values of the form, `decline`, or `cancel` (no answer)."""

    action: Literal["accept", "decline", "cancel"]
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """A server's request to use the model."""

    server: str
    messages: tuple[FrozenDict, ...]
    """Messages for the model, each with `role` and a list of `content` blocks, as in the protocol."""
    system: str = ""
    max_tokens: int
    temperature: float | None = None
    stop: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    """Names of models that the server prefers; they are not binding."""

    def to_approval_request(self) -> ElicitationRequest:
        """Return a request for a person's permission that displays the sampling prompt, shortened if long."""
        lines = [f"system: {self.system}"] if self.system else []
        lines += [
            f"{each['role']}: {_block_text(block)}" for each in self.messages for block in each["content"]
        ]
        return ElicitationRequest(
            server=self.server, mode="sampling", message=_clean_text("\n".join(lines), MAX_MESSAGE_CHARS)
        )


@dataclass(frozen=True, slots=True)
class SamplingResult:
    """The model's response to a sampling request."""

    text: str
    model: str = "unknown"
    stop_reason: str = "endTurn"


def parse_form(server: str, message: str, schema: Mapping[str, Any]) -> ElicitationRequest:
    """Parse a server's form request. Raises ValueError with the reason if the form cannot be displayed."""
    properties = schema.get("properties")
    if schema.get("type", "object") != "object" or not isinstance(properties, Mapping):
        raise ValueError("the requested form is not an object with properties")
    if len(properties) > MAX_FIELDS:
        raise ValueError(f"the requested form has more than {MAX_FIELDS} fields")
    listed = schema.get("required")
    required = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    if unknown := set(required) - set(properties):
        raise ValueError(
            f"the requested form requires {shorten(sorted(unknown)[0], 80)!r}, which is not one of its fields"
        )
    fields = tuple(_parse_field(str(name), each, name in required) for name, each in properties.items())
    return ElicitationRequest(
        server=server,
        mode="form",
        message=_clean_text(message, MAX_MESSAGE_CHARS),
        fields=fields,
        warnings=_warn_about_secrets(fields),
    )


def parse_url_request(server: str, message: str, url: str) -> ElicitationRequest:
    """Parse a server's request to visit a URL. Raises ValueError if the URL must not be displayed."""
    if len(url) > MAX_URL_CHARS or _INVALID_URL_CHARS.search(url) or remove_invisible(url) != url:
        raise ValueError("the requested URL is too long or has invalid characters")
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode()
    except ValueError:
        raise ValueError("the requested URL cannot be parsed") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("the requested URL is not http or https")
    if "@" in parts.netloc:
        raise ValueError("the requested URL hides its destination by a user name before the host")
    return ElicitationRequest(
        server=server,
        mode="url",
        message=_clean_text(message, MAX_MESSAGE_CHARS),
        url=url,
        host=host,
        warnings=tuple(_warn_about_url(parts.scheme, host)),
    )


def validate_values(request: ElicitationRequest, values: Mapping[str, Any]) -> Json:
    """Return the form values to send: the values of known fields, with defaults for missing values.

    None removes a default. Raises ValueError with the first invalid value.
    """
    chosen = {each.name: values.get(each.name, each.default) for each in request.fields}
    answer = {name: _tuple_to_list(value) for name, value in chosen.items() if value is not None}
    for each in request.fields:
        if each.name in answer:
            _validate_value(each, answer[each.name])
        elif each.required:
            raise ValueError(f"{each.name}: a value is required")
    return answer


def _tuple_to_list(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


def _validate_value(each: FormField, value: Any) -> None:
    import jsonschema_rs

    if len(repr(value)) > MAX_ANSWER_CHARS:
        raise ValueError(f"{each.name}: the value is too long")
    try:
        validator = jsonschema_rs.validator_for(copy.deepcopy(each.schema), validate_formats=True)
        problem = next(iter(validator.iter_errors(value)), None)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{each.name}: {shorten(str(error))}") from None
    if problem is not None:
        raise ValueError(f"{each.name}: {shorten(problem.message)}")


def _parse_field(name: str, declared: Any, required: bool) -> FormField:
    if not isinstance(declared, Mapping) or str(declared.get("type")) not in _KINDS:
        raise ValueError(
            f"the requested form asks for {shorten(name, 80)!r}, which is not text, number, yes/no or choice"
        )
    kind = _KINDS[declared["type"]]
    source = declared.get("items") if kind == "choices" else declared
    choices = _parse_choices(source if isinstance(source, Mapping) else {}, declared.get("enumNames"))
    if kind == "choices" and not choices:
        raise ValueError(f"the requested form has a list field {shorten(name, 80)!r} without choices")
    return FormField(
        name=name,
        kind="choice" if kind == "text" and choices else kind,
        title=_clean_text(declared.get("title"), MAX_LABEL_CHARS),
        description=_clean_text(declared.get("description"), MAX_MESSAGE_CHARS),
        choices=choices,
        default=_parse_default(declared),
        required=required,
        schema=_build_field_schema(declared, choices),
    )


def _build_field_schema(declared: Mapping[str, Any], choices: Sequence[FieldChoice]) -> FrozenDict:
    """Return a form field's schema for validation, without keywords that are slow to check."""
    kind = declared["type"]
    schema: Json = {"type": kind}
    for bound in _BOUND_KEYWORDS[kind]:
        if isinstance(value := declared.get(bound), (int, float)) and not isinstance(value, bool):
            schema[bound] = value
    if kind == "string" and str(declared.get("format")) in _FORMATS:
        schema["format"] = declared["format"]
    if choices:
        allowed = {"enum": [each.value for each in choices]}
        schema |= {"items": allowed} if kind == "array" else allowed
    frozen: FrozenDict = freeze(schema)
    return frozen


def _parse_choices(source: Mapping[str, Any], names: Any) -> tuple[FieldChoice, ...]:
    values = source.get("enum")
    if isinstance(values, list):
        labels = names if isinstance(names, list) and len(names) == len(values) else values
        pairs = list(zip(values, labels, strict=True))
    else:
        titled = source.get("oneOf") or source.get("anyOf")
        listed = titled if isinstance(titled, list) else []
        pairs = [(each.get("const"), each.get("title")) for each in listed if isinstance(each, Mapping)]
    if len(pairs) > MAX_CHOICES:
        raise ValueError(f"the requested form offers more than {MAX_CHOICES} choices")
    return tuple(
        FieldChoice(value, _clean_text(label, MAX_LABEL_CHARS) or value)
        for value, label in pairs
        if isinstance(value, str)
    )


def _parse_default(declared: Mapping[str, Any]) -> Any:
    default = declared.get("default")
    if isinstance(default, list):
        return tuple(each for each in default if isinstance(each, str))
    return default if isinstance(default, (str, int, float, bool)) else None


def _warn_about_secrets(fields: Sequence[FormField]) -> tuple[str, ...]:
    suspicious = [f for f in fields if _SECRET_WORDS.search(f"{f.name} {f.title} {f.description}")]
    return tuple(
        f"{shorten(each.name, 80)!r} may be a secret, which a server should not ask for in a form"
        for each in suspicious
    )


def _warn_about_url(scheme: str, host: str) -> list[str]:
    warnings = []
    if scheme == "http" and host not in _LOOPBACK_HOSTS:
        warnings.append("the connection is not encrypted")
    if any(label.startswith("xn--") for label in host.split(".")):
        warnings.append(f"the host name has non-ASCII characters: {host}")
    return warnings


def _clean_text(value: Any, max_chars: int) -> str:
    return shorten(remove_invisible(value), max_chars) if isinstance(value, str) else ""


def _block_text(block: Mapping[str, Any]) -> str:
    text = block.get("text")
    return text if isinstance(text, str) else f"({block.get('type', 'something')})"


def _parse_number(stripped: str, text: str) -> Any:
    try:
        return int(stripped)
    except ValueError:
        pass
    try:
        number = float(stripped)
    except ValueError:
        return text
    return number if math.isfinite(number) else text
