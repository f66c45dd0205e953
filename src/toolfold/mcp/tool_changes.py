"""Compare a tool with its accepted version, to find changes that a person must decide about.

Compares definitions only; suspicious texts are found by the scanner, which the caller runs as well. Comparing
with the version that a person accepted, not with the last one recorded, makes small steps add up.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from toolfold.core.errors import shorten
from toolfold.core.types import Effect, FrozenDict
from toolfold.mcp.mcp_tools import approval_traits
from toolfold.mcp.scan import escape_hidden
from toolfold.mcp.scan.annotation_hints import is_action
from toolfold.mcp.tool_listing import ListedTool, canonical_json

__all__ = ["cautious_annotations", "find_meaningful_changes"]

MAX_TITLE_CHARS = 80
MAX_TITLE_WORDS = 10
MAX_NEW_TITLE_WORDS = 6
"""Words in titles of one tool that do not occur anywhere in its accepted version."""
MAX_ADDED_PARAMETERS = 3
MAX_ADDED_DESCRIPTION_CHARS = 200
MAX_ADDED_SCHEMA_CHARS = 600
MAX_COMPARED_WORDS = 2_000
MAX_REASONS = 20
MAX_STRUCTURE_DEPTH = 4
MAX_STRUCTURE_PROPERTIES = 20
MAX_STRUCTURE_NAME_CHARS = 30
MAX_STRUCTURE_NAME_WORDS = 3

_MISSING: Any = object()
_HINTS = frozenset({"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"})
_CAUTIOUS_VALUES = {
    "readOnlyHint": False,
    "destructiveHint": True,
    "idempotentHint": False,
    "openWorldHint": True,
}
_NAMED_SCHEMAS = frozenset({"properties", "$defs", "definitions"})
_SUBSCHEMAS = frozenset({"items", "additionalProperties", "anyOf", "oneOf", "allOf", "prefixItems", "not"})
_SCHEMA_DRAFTS = re.compile(r"https?://json-schema\.org/[\w./-]{1,60}#?", re.ASCII)

# Words, including the characters inside of them that carry meaning; then all other meaningful characters.
_TOKENS = re.compile(r"""[\w$]+(?:[.,'’@/:\\=-]+[\w$]+)*|[^\w \t\r\n.,;:!?"'`()‘’“”…–—-]""")
_WORD_PARTS = re.compile(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![a-z])|\d+")
_PLAIN_TITLE = re.compile(r"""[\w .,:;!?'"()&/+-]*""")
_GENERIC_TITLE_WORDS = frozenset(
    re.findall(
        r"\w+",
        "argument arguments input inputs output outputs schema param params parameter parameters dict "
        "result results response model type tool root",
    )
)

_FLAT_TYPES = frozenset({"string", "integer", "number", "boolean", "null"})
_TYPES = _FLAT_TYPES | {"object", "array"}
_LENGTH_LIMITS = frozenset({"minItems", "maxItems", "minLength", "maxLength"})
_PARAMETER_KEYS = frozenset(
    {"type", "title", "description", "enum", "items", "anyOf", "default", "minimum", "maximum"}
    | {"exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems"}
    | {"uniqueItems", "multipleOf"}
)
_DATA_WORDS = frozenset(
    re.findall(
        r"\w+",
        "command commands commandline cmd shell bash script path paths file files filepath filename "
        "directory dir folder url urls uri email password passwords token tokens secret secrets credential "
        "credentials conversation conversations",
    )
)
_CONVERSATION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "context history prompt prompts system message messages chat memory thought thoughts reasoning "
        "reason model transcript note notes sidenote instruction instructions",
    )
)
"""Words that suggest text of the conversation, which a number cannot contain."""
_EFFECT_WORDS = frozenset(
    re.findall(
        r"\w+",
        # what runs, where it runs, its input
        "code javascript js python sql exec execute eval run stdin keystrokes keys send env environment cwd "
        "workdir working args argv "
        # where data is written or sent
        "destination dest target output to link href host hostname address addresses endpoint webhook "
        "callback proxy recipient recipients cc bcc mail domain server port header headers cookie cookies "
        "key auth authorization "
        # what extends the effect of a call
        "force recursive overwrite delete remove purge sudo admin confirm confirmed yes approve approved "
        "unsafe",
    )
)
SENSITIVE_NAMES = _DATA_WORDS | _CONVERSATION_WORDS | _EFFECT_WORDS
"""Words in a parameter's name that need a decision: what runs, where, with which data, who receives it."""


def find_meaningful_changes(before: ListedTool, after: ListedTool) -> tuple[str, ...]:
    """Return the changes of a tool that a person must decide about; empty if no change needs a decision.

    Harmless, compared with the accepted version, are:

    - the order of keys and of `required`, and the notation of numbers;
    - whitespace, case and plain punctuation in descriptions, as long as the words are the same;
    - short, plain titles of the tool, its schemas, parameters and annotations that keep the words of the
      previous title, add no other verb ("Show" for "Stop"), and together add at most MAX_NEW_TITLE_WORDS
      words that do not occur anywhere in the accepted version; removed titles;
    - `$schema` of a known draft, removed `examples`, `additionalProperties` that is now forbidden;
    - limits on the length of texts and lists that only exclude empty or longer ones;
    - an added output schema that consists of types and short names, without any other text;
    - the protocol's four hints, unless approval would ask about less than before;
    - up to MAX_ADDED_PARAMETERS optional parameters of a simple type, with a short description, a default
      that enables nothing, and a name that does not suggest a command, path, URL or the like.

    All other changes are meaningful: words, types, defaults, enums, required or removed parameters, changed
    output schemas. Never raises.
    """
    try:
        reasons = list(_find_changes(before, after))
    except (RecursionError, TypeError, ValueError, AttributeError):
        reasons = ["it cannot be compared with the accepted version"]
    return tuple(dict.fromkeys(reasons))[:MAX_REASONS]


def cautious_annotations(before: ListedTool, after: ListedTool) -> FrozenDict:
    """Return the accepted annotations, plus new annotations that make the tool look less safe.

    For readers of hints, such as gateway clients: the other new hints were not accepted by anyone.
    """
    worse = {
        name: value
        for name, value in after.annotations.items()
        if name in _CAUTIOUS_VALUES and value is _CAUTIOUS_VALUES[name]
    }
    return FrozenDict({**before.annotations, **worse})


def _find_changes(before: ListedTool, after: ListedTool) -> Iterator[str]:
    yield from _find_text_change("description", before.description, after.description)
    yield from _find_annotation_changes(before, after)
    yield from _find_schema_changes("", before.input_schema, after.input_schema)
    yield from _find_added_parameter_changes(before, after)
    if before.output_schema is None or after.output_schema is None:
        if before.output_schema is not after.output_schema and not _is_plain_structure(after.output_schema):
            yield f"its output schema was {'added' if before.output_schema is None else 'removed'}"
    else:
        yield from _find_schema_changes("output", before.output_schema, after.output_schema)
    yield from _find_title_changes(before, after)
    yield from _find_approval_changes(before, after)


def _find_text_change(location: str, old: Any, new: Any) -> Iterator[str]:
    if not isinstance(old, str) or not isinstance(new, str):
        yield f"{escape_hidden(location)} is not text"
    elif old != new and _tokenize_text(old) != _tokenize_text(new):
        yield f"{escape_hidden(location)}: {_describe_word_difference(old, new)}"


def _tokenize_text(text: str) -> list[str]:
    # Lower-casing non-ASCII letters could make different letters equal.
    return [token.lower() if token.isascii() else token for token in _TOKENS.findall(text)]


def _describe_word_difference(old: str, new: str) -> str:
    """Show the difference of two texts: removed words as [-…-] and added words as {+…+}."""
    was, now = escape_hidden(old).split(), escape_hidden(new).split()
    if len(was) + len(now) > MAX_COMPARED_WORDS:
        return "its text has changed (too long to compare word by word)"
    parts = []
    for kind, start, end, new_start, new_end in difflib.SequenceMatcher(None, was, now, False).get_opcodes():
        if kind == "equal":
            parts.append(_abridge_words(was[start:end]))
            continue
        parts += [f"[-{' '.join(was[start:end])}-]"] if start < end else []
        parts += [f"{{+{' '.join(now[new_start:new_end])}+}}"] if new_start < new_end else []
    return " ".join(parts)


def _abridge_words(words: list[str]) -> str:
    return " ".join(words if len(words) <= 8 else [*words[:3], "…", *words[-3:]])


def _find_annotation_changes(before: ListedTool, after: ListedTool) -> Iterator[str]:
    for name in sorted({*before.annotations, *after.annotations} - {"title"}):
        old, new = before.annotations.get(name, _MISSING), after.annotations.get(name, _MISSING)
        if _is_equal(old, new):
            continue
        if name not in _HINTS or not isinstance(new if new is not _MISSING else True, bool):
            yield f"the annotation {_quote_name(name)} {_describe_change(old, new)}"


def _find_approval_changes(before: ListedTool, after: ListedTool) -> Iterator[str]:
    """Yield changes of a tool that lead to fewer approval prompts or change which arguments are checked."""
    (old_effects, old_meanings), (new_effects, new_meanings) = (
        approval_traits(before),
        approval_traits(after),
    )
    lost = sorted(effect.name.lower() for effect in old_effects - new_effects - {Effect.READ})
    if lost:
        yield f"it no longer declares these effects: {', '.join(lost)}"
    if old_meanings != new_meanings:
        yield "other arguments would be treated as commands or paths"


def _find_schema_changes(location: str, old: Any, new: Any) -> Iterator[str]:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        if not _is_equal(old, new):
            yield f"{_describe_location(location)} has changed"
        return
    for key in sorted({*old, *new}):
        was, now = old.get(key, _MISSING), new.get(key, _MISSING)
        if not _is_equal(was, now):
            yield from _find_keyword_changes(location, key, was, now)


def _find_keyword_changes(location: str, key: str, old: Any, new: Any) -> Iterator[str]:
    if key in _NAMED_SCHEMAS and isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _find_named_changes(location, key, old, new)
    elif key == "description" and isinstance(old, str) and isinstance(new, str):
        yield from _find_text_change(f"{_describe_location(location)}: description", old, new)
    elif key in _SUBSCHEMAS and isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _find_schema_changes(location, old, new)
    elif key in _SUBSCHEMAS and isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for was, now in zip(old, new, strict=True):
            yield from _find_schema_changes(location, was, now)
    elif not _is_harmless_keyword(key, old, new):
        yield f"{_describe_location(location)}: {_quote_name(key)} {_describe_change(old, new)}"


def _is_harmless_keyword(key: str, old: Any, new: Any) -> bool:
    if key == "title":
        return new is _MISSING or isinstance(new, str)  # title words are checked in _find_title_changes
    if key == "$schema":
        return new is _MISSING or (isinstance(new, str) and _SCHEMA_DRAFTS.fullmatch(new) is not None)
    if key == "required":
        return _has_same_items(old, new)
    if key == "additionalProperties":
        return (old is _MISSING or old is True) and (new is _MISSING or isinstance(new, bool))
    if key in _LENGTH_LIMITS:
        return _is_narrower(key, old, new)
    return key in ("examples", "example") and new is _MISSING


def _is_narrower(key: str, old: Any, new: Any) -> bool:
    """Return True if a changed length limit only forbids empty values or lowers the maximum.

    A higher minimum would make the model send more than before, so it is not harmless.
    """
    if type(new) is not int or (old is not _MISSING and type(old) is not int):
        return False
    if key.startswith("min"):
        return new == 1 and (old is _MISSING or old == 0)
    return new >= 1 and (old is _MISSING or new < old)


def _is_plain_structure(schema: Any, depth: int = 0) -> bool:
    """Return True if a schema has only types and short names, and no text that could instruct a model."""
    if not isinstance(schema, Mapping) or depth > MAX_STRUCTURE_DEPTH:
        return False
    return all(_is_plain_keyword(key, value, depth) for key, value in schema.items())


def _is_plain_keyword(key: str, value: Any, depth: int) -> bool:
    if key == "type":
        kinds = value if isinstance(value, list) else [value]
        return all(isinstance(kind, str) and kind in _TYPES for kind in kinds)
    if key == "properties":
        return (
            isinstance(value, Mapping)
            and len(value) <= MAX_STRUCTURE_PROPERTIES
            and all(map(_is_plain_name, value))
            and all(_is_plain_structure(each, depth + 1) for each in value.values())
        )
    if key == "required":
        return isinstance(value, list) and all(
            isinstance(each, str) and _is_plain_name(each) for each in value
        )
    if key == "items":
        return _is_plain_structure(value, depth + 1)
    if key == "$schema":
        return isinstance(value, str) and _SCHEMA_DRAFTS.fullmatch(value) is not None
    return key == "additionalProperties" and isinstance(value, bool)


def _is_plain_name(name: str) -> bool:
    is_short = len(name) <= MAX_STRUCTURE_NAME_CHARS and len(_split_words(name)) <= MAX_STRUCTURE_NAME_WORDS
    return is_short and name.isascii() and name.isidentifier()


def _has_same_items(old: Any, new: Any) -> bool:
    """Return True if two lists differ only in their order; a missing list is treated as empty."""
    lists = [[] if each is _MISSING else each for each in (old, new)]
    if not all(isinstance(each, list) for each in lists):
        return False
    first, second = (sorted(map(canonical_json, each)) for each in lists)
    return first == second


def _find_named_changes(
    location: str, key: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[str]:
    kind = "parameter" if key == "properties" else "definition"
    for name in sorted({*old, *new}):
        path = f"{location}.{name}" if location else name
        if name not in new:
            yield f"the {kind} {_quote_name(path)} was removed"
        elif name in old:
            yield from _find_schema_changes(path, old[name], new[name])
        elif location or key != "properties":  # top-level parameters are checked one by one
            yield f"the {kind} {_quote_name(path)} was added"


def _find_added_parameter_changes(before: ListedTool, after: ListedTool) -> Iterator[str]:
    old, new = before.input_schema.get("properties"), after.input_schema.get("properties")
    if not isinstance(new, Mapping) or not isinstance(old, Mapping):
        return  # reported by the comparison of schemas
    added = [name for name in new if name not in old]
    for name in added:
        if problem := _describe_parameter_problem(name, new[name]):
            yield f"the parameter {_quote_name(name)} was added, and {problem}"
    if len(added) > MAX_ADDED_PARAMETERS:
        yield f"{len(added)} parameters were added: {', '.join(map(_quote_name, added[:10]))}"


def _describe_parameter_problem(name: str, schema: Any) -> str:
    """Return why an added parameter of a tool needs a person's decision."""
    if not _is_simple(schema) or len(canonical_json(schema)) > MAX_ADDED_SCHEMA_CHARS:
        return "is not of a simple type"
    sensitive = SENSITIVE_NAMES - _CONVERSATION_WORDS if _is_number(schema) else SENSITIVE_NAMES
    if not sensitive.isdisjoint(_split_words(name)) or not name.isascii():
        return "its name suggests sensitive data"
    description = schema.get("description", "")
    if not isinstance(description, str) or _is_long(description, MAX_ADDED_DESCRIPTION_CHARS):
        return "its description is long"
    if _accepts_text(schema) and not _DATA_WORDS.isdisjoint(_split_words(description)):
        return "its description mentions commands, paths, URLs or secrets"
    if schema.get("default") and (
        schema["default"] is True or not isinstance(schema["default"], (int, float))
    ):
        return "its default may change what a call does"
    return ""


def _is_long(text: str, max_chars: int) -> bool:
    """Return True if a text has more than `max_chars` characters.

    For text that is not ASCII, the limit is a third of that.
    """
    return len(text) > (max_chars if text.isascii() else max_chars // 3)


def _is_simple(schema: Any) -> bool:
    if not isinstance(schema, Mapping) or not _PARAMETER_KEYS.issuperset(schema):
        return False
    kinds, choices = schema.get("type", []), schema.get("anyOf", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or not isinstance(choices, list) or not (kinds or choices):
        return False
    inner = [*choices, *([schema["items"]] if "items" in schema else [])]
    flat = _FLAT_TYPES | ({"array"} if "items" in schema else set())
    return all(isinstance(kind, str) and kind in flat for kind in kinds) and all(map(_is_simple, inner))


def _is_number(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") in ("integer", "number") and "anyOf" not in schema


def _accepts_text(schema: Mapping[str, Any]) -> bool:
    return '"string"' in canonical_json(schema)


def _find_title_changes(before: ListedTool, after: ListedTool) -> Iterator[str]:
    """Yield changes of titles that a person must decide about, because approval prompts show titles."""
    accepted_words = set(_split_words(json.dumps(before.to_json(), ensure_ascii=False)))
    old = dict(_iter_titles(before))
    changed = {path: title for path, title in _iter_titles(after) if title and title != old.get(path, "")}
    new_words: set[str] = set()
    for path, title in sorted(changed.items()):
        words = _split_words(title)
        new = set(words) - accepted_words - _GENERIC_TITLE_WORDS
        if (
            _is_long(title, MAX_TITLE_CHARS)
            or len(words) > MAX_TITLE_WORDS
            or not _PLAIN_TITLE.fullmatch(title)
        ):
            yield f"a title is long or unusual: {shorten(escape_hidden(title), 160)!r}"
        elif not set(_split_words(old.get(path, ""))) <= {*words, *_GENERIC_TITLE_WORDS} or any(
            map(is_action, new)
        ):
            yield f"a title has another meaning: {_describe_word_difference(old.get(path, ''), title)}"
        new_words |= new
    if len(new_words) > MAX_NEW_TITLE_WORDS:
        yield f"its titles contain new statements: {shorten(escape_hidden('; '.join(changed.values())), 300)}"


def _split_words(text: str) -> list[str]:
    return [part.lower() for part in _WORD_PARTS.findall(text)]


def _iter_titles(tool: ListedTool) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every title in a tool definition that a client may display, with its path."""
    yield from _iter_titles_in((), tool.to_json())


def _iter_titles_in(path: tuple[str, ...], node: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key == "title" and isinstance(value, str):
                yield (*path, key), value
            else:
                yield from _iter_titles_in((*path, key), value)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _iter_titles_in((*path, str(index)), value)


def _is_equal(old: Any, new: Any) -> bool:
    if old is _MISSING or new is _MISSING:
        return old is new
    return old is new or canonical_json(old) == canonical_json(new)


def _describe_location(location: str) -> str:
    return f"the parameter {_quote_name(location)}" if location else "the input schema"


def _quote_name(name: str) -> str:
    return repr(shorten(escape_hidden(name), 80))


def _describe_change(old: Any, new: Any) -> str:
    def format_value(value: Any) -> str:
        return shorten(escape_hidden(json.dumps(value, ensure_ascii=False)), 160)

    if old is _MISSING:
        return f"was added: {format_value(new)}"
    return (
        f"was removed: {format_value(old)}"
        if new is _MISSING
        else f"changed from {format_value(old)} to {format_value(new)}"
    )
