"""What a server wants of a person or of the model, as plain data, and which answers fit.

A server's words are foreign: bounded, and without characters that nobody sees. A form is flat (texts,
numbers, yes or no, choices), so that every place that can show a list of fields can show it; anything else is
refused. An address is only ever data: nothing here opens it. Knows no connection and no way to a person.
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

from toolfold.errors import shorten
from toolfold.model import FrozenDict, Json, freeze
from toolfold.visible import visible

Kind = Literal["text", "number", "integer", "switch", "choice", "choices"]

MOST_FIELDS = 40
MOST_CHOICES = 500
LONGEST_MESSAGE = 4_000
LONGEST_LABEL = 400
LONGEST_URL = 4_000
LONGEST_ANSWER = 100_000

_FORMATS = frozenset({"email", "uri", "date", "date-time"})
_BOUNDS: Mapping[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength"),
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "array": ("minItems", "maxItems"),
    "boolean": (),
}
_KINDS: Mapping[str, Kind] = {
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
_UNFIT_FOR_ADDRESSES = re.compile(r"[\s\\\x00-\x20\x7f-\x9f]")
_OURS = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the values a field may have, and what it is called."""

    value: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One thing a form asks for."""

    name: str
    kind: Kind
    title: str = ""
    description: str = ""
    choices: tuple[Choice, ...] = ()
    default: Any = None
    required: bool = False
    schema: FrozenDict = field(default_factory=FrozenDict)

    def read(self, text: str) -> Any:
        """What somebody typed, as the value it stands for; as it is, where it stands for none."""
        word = text.strip()
        if self.kind == "switch":
            return {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}.get(
                word.lower(), text
            )
        if self.kind in ("number", "integer"):
            return _number(word, text)
        return [each.strip() for each in text.split(",") if each.strip()] if self.kind == "choices" else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Something that only a person can say: a form, an address to visit, or leave to use the model."""

    server: str
    """Who asks. Always show it: its words may claim to be anybody's."""
    mode: Literal["form", "url", "sampling"]
    message: str
    fields: tuple[Field, ...] = ()
    url: str = ""
    """Show it whole, and open it only when the person has said so."""
    host: str = ""
    warnings: tuple[str, ...] = ()
    problem: str = ""
    """What was wrong with the answer before, when it is asked again."""
    withdrawn: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    """Set when nobody waits for the answer any more."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the person said: `accept`, with the values of a form; `decline`; or `cancel` for no answer."""

    action: Literal["accept", "decline", "cancel"]
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a server wants the model to answer."""

    server: str
    messages: tuple[FrozenDict, ...]
    """Each with `role` and a list of `content` blocks, as the protocol writes them."""
    system: str = ""
    max_tokens: int
    temperature: float | None = None
    stop: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    """Names of models the server would like; nobody is bound by them."""

    def question(self) -> Question:
        """What the person reads before it is sent: all of it, as far as it fits."""
        said = [f"system: {self.system}"] if self.system else []
        said += [
            f"{each['role']}: {_block_text(block)}" for each in self.messages for block in each["content"]
        ]
        return Question(server=self.server, mode="sampling", message=_words("\n".join(said), LONGEST_MESSAGE))


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the model answered."""

    text: str
    model: str = "unknown"
    stop_reason: str = "endTurn"


def form(server: str, message: str, schema: Mapping[str, Any]) -> Question:
    """The form a server asks to be filled in. Raises ValueError with the reason why it cannot be shown."""
    asked = schema.get("properties")
    if schema.get("type", "object") != "object" or not isinstance(asked, Mapping):
        raise ValueError("its form is no list of fields")
    if len(asked) > MOST_FIELDS:
        raise ValueError(f"its form has more than {MOST_FIELDS} fields")
    listed = schema.get("required")
    required = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    if unknown := set(required) - set(asked):
        raise ValueError(f"its form requires {shorten(sorted(unknown)[0], 80)!r}, which it does not have")
    fields = tuple(_field(str(name), each, name in required) for name, each in asked.items())
    return Question(
        server=server,
        mode="form",
        message=_words(message, LONGEST_MESSAGE),
        fields=fields,
        warnings=_about_secrets(fields),
    )


def visit(server: str, message: str, url: str) -> Question:
    """The address a server wants a person to go to. Raises ValueError where nobody should be shown it."""
    if len(url) > LONGEST_URL or _UNFIT_FOR_ADDRESSES.search(url) or visible(url) != url:
        raise ValueError("its address is too long, or has characters that no address has")
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode()
    except ValueError:
        raise ValueError("its address cannot be read") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("its address is none of the web")
    if "@" in parts.netloc:
        raise ValueError("its address hides where it leads: a name stands before the host")
    return Question(
        server=server,
        mode="url",
        message=_words(message, LONGEST_MESSAGE),
        url=url,
        host=host,
        warnings=tuple(_about_address(parts.scheme, host)),
    )


def fitting(question: Question, values: Mapping[str, Any]) -> Json:
    """The values to send: those that were asked for, and what the form suggests where nothing was said.

    None takes a suggestion back. Raises ValueError with what does not fit.
    """
    given = {each.name: values.get(each.name, each.default) for each in question.fields}
    answer = {name: _plain(value) for name, value in given.items() if value is not None}
    for each in question.fields:
        if each.name in answer:
            _require_fit(each, answer[each.name])
        elif each.required:
            raise ValueError(f"{each.name}: an answer is required")
    return answer


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


def _require_fit(each: Field, value: Any) -> None:
    import jsonschema_rs

    if len(repr(value)) > LONGEST_ANSWER:
        raise ValueError(f"{each.name}: the answer is too long")
    try:
        validator = jsonschema_rs.validator_for(copy.deepcopy(each.schema), validate_formats=True)
        problem = next(iter(validator.iter_errors(value)), None)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{each.name}: {shorten(str(error))}") from None
    if problem is not None:
        raise ValueError(f"{each.name}: {shorten(problem.message)}")


def _field(name: str, asked: Any, required: bool) -> Field:
    if not isinstance(asked, Mapping) or str(asked.get("type")) not in _KINDS:
        raise ValueError(
            f"its form asks for {shorten(name, 80)!r}, which is neither text, number, switch nor choice"
        )
    kind = _KINDS[asked["type"]]
    offered = asked.get("items") if kind == "choices" else asked
    choices = _choices(offered if isinstance(offered, Mapping) else {}, asked.get("enumNames"))
    if kind == "choices" and not choices:
        raise ValueError(f"its form asks for a list {shorten(name, 80)!r} without saying of what")
    return Field(
        name=name,
        kind="choice" if kind == "text" and choices else kind,
        title=_words(asked.get("title"), LONGEST_LABEL),
        description=_words(asked.get("description"), LONGEST_MESSAGE),
        choices=choices,
        default=_default(asked),
        required=required,
        schema=_schema(asked, choices),
    )


def _schema(asked: Mapping[str, Any], choices: Sequence[Choice]) -> FrozenDict:
    """The part of the schema that is checked: nothing in it refers elsewhere or takes long."""
    kind = asked["type"]
    schema: Json = {"type": kind}
    for bound in _BOUNDS[kind]:
        if isinstance(value := asked.get(bound), (int, float)) and not isinstance(value, bool):
            schema[bound] = value
    if kind == "string" and str(asked.get("format")) in _FORMATS:
        schema["format"] = asked["format"]
    if choices:
        allowed = {"enum": [each.value for each in choices]}
        schema |= {"items": allowed} if kind == "array" else allowed
    frozen: FrozenDict = freeze(schema)
    return frozen


def _choices(offered: Mapping[str, Any], names: Any) -> tuple[Choice, ...]:
    values = offered.get("enum")
    if isinstance(values, list):
        labels = names if isinstance(names, list) and len(names) == len(values) else values
        pairs = list(zip(values, labels, strict=True))
    else:
        titled = offered.get("oneOf") or offered.get("anyOf")
        listed = titled if isinstance(titled, list) else []
        pairs = [(each.get("const"), each.get("title")) for each in listed if isinstance(each, Mapping)]
    if len(pairs) > MOST_CHOICES:
        raise ValueError(f"its form offers more than {MOST_CHOICES} choices")
    return tuple(
        Choice(value, _words(label, LONGEST_LABEL) or value)
        for value, label in pairs
        if isinstance(value, str)
    )


def _default(asked: Mapping[str, Any]) -> Any:
    default = asked.get("default")
    if isinstance(default, list):
        return tuple(each for each in default if isinstance(each, str))
    return default if isinstance(default, (str, int, float, bool)) else None


def _about_secrets(fields: Sequence[Field]) -> tuple[str, ...]:
    telling = [f for f in fields if _SECRET_WORDS.search(f"{f.name} {f.title} {f.description}")]
    return tuple(
        f"{shorten(each.name, 80)!r} may be a secret, which no server should ask for in a form"
        for each in telling
    )


def _about_address(scheme: str, host: str) -> list[str]:
    warnings = []
    if scheme == "http" and host not in _OURS:
        warnings.append("the way there is not encrypted")
    if any(label.startswith("xn--") for label in host.split(".")):
        warnings.append(f"the host is not written in plain letters: {host}")
    return warnings


def _words(value: Any, most: int) -> str:
    return shorten(visible(value), most) if isinstance(value, str) else ""


def _block_text(block: Mapping[str, Any]) -> str:
    text = block.get("text")
    return text if isinstance(text, str) else f"({block.get('type', 'something')})"


def _number(word: str, text: str) -> Any:
    try:
        return int(word)
    except ValueError:
        pass
    try:
        number = float(word)
    except ValueError:
        return text
    return number if math.isfinite(number) else text
