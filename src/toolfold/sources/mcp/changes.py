"""Which changes of a tool need a person, and which cannot weaken safety.

`find_meaningful_changes` compares a tool with the version that a person accepted. It reads definitions only:
whether a changed text is suspicious is the scanner's question, which the caller asks as well. Comparing with
the last version that a person saw, and not with the last one recorded, makes many small steps add up.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from toolfold.errors import shorten
from toolfold.model import Effect, FrozenDict
from toolfold.sources.mcp.offers import Offer, canonical_json
from toolfold.sources.mcp.scan import legible
from toolfold.sources.mcp.scan.hints import is_action
from toolfold.sources.mcp.tools import read_by_approval

__all__ = ["cautious_annotations", "find_meaningful_changes"]

MAX_TITLE_CHARS = 80
MAX_TITLE_WORDS = 10
MAX_NEW_TITLE_WORDS = 6
"""Words in titles of one tool that its accepted version does not have anywhere."""
MAX_ADDED_PARAMETERS = 3
MAX_ADDED_DESCRIPTION_CHARS = 200
MAX_ADDED_SCHEMA_CHARS = 600
MAX_COMPARED_WORDS = 2_000
MAX_REASONS = 20

_MISSING: Any = object()
_HINTS = frozenset({"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"})
_CAUTIOUS = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}
_NAMED_SCHEMAS = frozenset({"properties", "$defs", "definitions"})
_SUBSCHEMAS = frozenset({"items", "additionalProperties", "anyOf", "oneOf", "allOf", "prefixItems", "not"})
_DRAFTS = re.compile(r"https?://json-schema\.org/[\w./-]{1,60}#?", re.ASCII)

# Words, joined by what has a meaning inside of them; then every sign that is no plain punctuation.
_TOKENS = re.compile(r"""[\w$]+(?:[.,'’@/:\\=-]+[\w$]+)*|[^\w \t\r\n.,;:!?"'`()‘’“”…–—-]""")
_PARTS = re.compile(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![a-z])|\d+")
_TITLE = re.compile(r"""[\w .,:;!?'"()&/+-]*""")
_TITLE_WORDS = frozenset(
    re.findall(
        r"\w+",
        "argument arguments input inputs output outputs schema param params parameter parameters dict "
        "result results response model type tool root",
    )
)

_FLAT_TYPES = frozenset({"string", "integer", "number", "boolean", "null"})
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
SENSITIVE_NAMES = _DATA_WORDS | frozenset(
    re.findall(
        r"\w+",
        # what runs, where it runs, what it is given
        "code javascript js python sql exec execute eval run stdin keystrokes keys send env environment cwd "
        "workdir working args argv "
        # where something is written or sent
        "destination dest target output to link href host hostname address addresses endpoint webhook "
        "callback proxy recipient recipients cc bcc mail domain server port header headers cookie cookies "
        "key auth authorization "
        # what makes a call do more
        "force recursive overwrite delete remove purge sudo admin confirm confirmed yes approve approved "
        "unsafe "
        # what draws out the conversation
        "context history prompt prompts system message messages chat memory thought thoughts reasoning "
        "reason model transcript note notes sidenote instruction instructions",
    )
)
"""Words in a parameter's name that need a person: what runs, where, with what, or who reads it."""


def find_meaningful_changes(before: Offer, after: Offer) -> tuple[str, ...]:
    """List what a person must decide about, one line each; nothing where every change is harmless.

    Harmless are, compared with the version that a person accepted:

    - the order of keys and of `required`, and how a number is written;
    - blanks, case and plain punctuation in descriptions, as long as the words stay the same;
    - titles of the tool, its schemas, parameters and annotations that are short and plain, keep the words of
      the title before, bring no other verb ("Show" for "Stop"), and together at most MAX_NEW_TITLE_WORDS
      words that the accepted version does not have anywhere; titles that are gone;
    - `$schema` of a known draft, `examples` that are gone, `additionalProperties` that is forbidden now;
    - the protocol's four hints, unless approval would ask about less than before;
    - up to MAX_ADDED_PARAMETERS optional parameters of a simple type, with a short description, a default
      that switches nothing on, and a name that says neither command, path, address nor the like.

    Everything else has a meaning: words, types, defaults, enums, what is required, removed parameters, output
    schemas. Never raises.
    """
    try:
        reasons = list(_changes(before, after))
    except (RecursionError, TypeError, ValueError, AttributeError):
        reasons = ["it cannot be compared"]
    return tuple(dict.fromkeys(reasons))[:MAX_REASONS]


def cautious_annotations(before: Offer, after: Offer) -> FrozenDict:
    """Return the accepted annotations with those new hints that make the tool look worse.

    For whoever believes hints, such as the clients of a gateway: nobody has agreed to the others.
    """
    worse = {
        name: value
        for name, value in after.annotations.items()
        if name in _CAUTIOUS and value is _CAUTIOUS[name]
    }
    return FrozenDict({**before.annotations, **worse})


def _changes(before: Offer, after: Offer) -> Iterator[str]:
    yield from _text_change("description", before.description, after.description)
    yield from _annotation_changes(before, after)
    yield from _schema_changes("", before.input_schema, after.input_schema)
    yield from _added_parameter_changes(before, after)
    if before.output_schema is None or after.output_schema is None:
        if before.output_schema is not after.output_schema:
            yield f"its output schema was {'added' if before.output_schema is None else 'removed'}"
    else:
        yield from _schema_changes("output", before.output_schema, after.output_schema)
    yield from _title_changes(before, after)
    yield from _approval_changes(before, after)


def _text_change(where: str, old: Any, new: Any) -> Iterator[str]:
    if not isinstance(old, str) or not isinstance(new, str):
        yield f"{legible(where)} is no text"
    elif old != new and _tokens(old) != _tokens(new):
        yield f"{legible(where)}: {_word_difference(old, new)}"


def _tokens(text: str) -> list[str]:
    # Only ASCII has no letters that merely look alike in another case.
    return [token.lower() if token.isascii() else token for token in _TOKENS.findall(text)]


def _word_difference(old: str, new: str) -> str:
    """Show what was taken out as [-…-] and what was put in as {+…+}, with a few words around it."""
    was, now = legible(old).split(), legible(new).split()
    if len(was) + len(now) > MAX_COMPARED_WORDS:
        return "its words have changed (too long to compare by words)"
    parts = []
    for kind, start, end, new_start, new_end in difflib.SequenceMatcher(None, was, now, False).get_opcodes():
        if kind == "equal":
            parts.append(_abridged(was[start:end]))
            continue
        parts += [f"[-{' '.join(was[start:end])}-]"] if start < end else []
        parts += [f"{{+{' '.join(now[new_start:new_end])}+}}"] if new_start < new_end else []
    return " ".join(parts)


def _abridged(words: list[str]) -> str:
    return " ".join(words if len(words) <= 8 else [*words[:3], "…", *words[-3:]])


def _annotation_changes(before: Offer, after: Offer) -> Iterator[str]:
    for name in sorted({*before.annotations, *after.annotations} - {"title"}):
        old, new = before.annotations.get(name, _MISSING), after.annotations.get(name, _MISSING)
        if _is_same(old, new):
            continue
        if name not in _HINTS or not isinstance(new if new is not _MISSING else True, bool):
            yield f"the annotation {_quoted(name)} {_went(old, new)}"


def _approval_changes(before: Offer, after: Offer) -> Iterator[str]:
    """Whether approval would ask about less, or read other arguments as commands and paths."""
    (old_effects, old_meanings), (new_effects, new_meanings) = (
        read_by_approval(before),
        read_by_approval(after),
    )
    lost = sorted(effect.name.lower() for effect in old_effects - new_effects - {Effect.READ})
    if lost:
        yield f"it no longer declares the effects that it had: {', '.join(lost)}"
    if old_meanings != new_meanings:
        yield "other arguments would be read as commands or paths"


def _schema_changes(where: str, old: Any, new: Any) -> Iterator[str]:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        if not _is_same(old, new):
            yield f"{_at(where)} has changed"
        return
    for key in sorted({*old, *new}):
        was, now = old.get(key, _MISSING), new.get(key, _MISSING)
        if not _is_same(was, now):
            yield from _keyword_changes(where, key, was, now)


def _keyword_changes(where: str, key: str, old: Any, new: Any) -> Iterator[str]:
    if key in _NAMED_SCHEMAS and isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _named_changes(where, key, old, new)
    elif key == "description" and isinstance(old, str) and isinstance(new, str):
        yield from _text_change(f"{_at(where)}: description", old, new)
    elif key in _SUBSCHEMAS and isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _schema_changes(where, old, new)
    elif key in _SUBSCHEMAS and isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for was, now in zip(old, new, strict=True):
            yield from _schema_changes(where, was, now)
    elif not _is_harmless_keyword(key, old, new):
        yield f"{_at(where)}: {_quoted(key)} {_went(old, new)}"


def _is_harmless_keyword(key: str, old: Any, new: Any) -> bool:
    if key == "title":
        return new is _MISSING or isinstance(new, str)  # the words of titles are counted together
    if key == "$schema":
        return new is _MISSING or (isinstance(new, str) and _DRAFTS.fullmatch(new) is not None)
    if key == "required":
        return _has_same_items(old, new)
    if key == "additionalProperties":
        return (old is _MISSING or old is True) and (new is _MISSING or isinstance(new, bool))
    return key in ("examples", "example") and new is _MISSING


def _has_same_items(old: Any, new: Any) -> bool:
    """Whether two lists differ in their order only; a list that is missing is empty."""
    lists = [[] if each is _MISSING else each for each in (old, new)]
    if not all(isinstance(each, list) for each in lists):
        return False
    first, second = (sorted(map(canonical_json, each)) for each in lists)
    return first == second


def _named_changes(where: str, key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    kind = "parameter" if key == "properties" else "definition"
    for name in sorted({*old, *new}):
        place = f"{where}.{name}" if where else name
        if name not in new:
            yield f"the {kind} {_quoted(place)} was removed"
        elif name in old:
            yield from _schema_changes(place, old[name], new[name])
        elif where or key != "properties":  # those of the tool itself are looked at one by one
            yield f"the {kind} {_quoted(place)} was added"


def _added_parameter_changes(before: Offer, after: Offer) -> Iterator[str]:
    old, new = before.input_schema.get("properties"), after.input_schema.get("properties")
    if not isinstance(new, Mapping) or not isinstance(old, Mapping):
        return  # told of where the schemas are compared
    added = [name for name in new if name not in old]
    for name in added:
        if problem := _added_parameter_problem(name, new[name]):
            yield f"the parameter {_quoted(name)} was added, and {problem}"
    if len(added) > MAX_ADDED_PARAMETERS:
        yield f"{len(added)} parameters were added: {', '.join(map(_quoted, added[:10]))}"


def _added_parameter_problem(name: str, schema: Any) -> str:
    """Return why an added parameter needs a person. (A required one changes `required`.)"""
    if not _is_simple(schema) or len(canonical_json(schema)) > MAX_ADDED_SCHEMA_CHARS:
        return "is of no simple type"
    if not SENSITIVE_NAMES.isdisjoint(_words(name)) or not name.isascii():
        return "its name says that it matters what is put there"
    description = schema.get("description", "")
    if not isinstance(description, str) or _is_long(description, MAX_ADDED_DESCRIPTION_CHARS):
        return "its description is long"
    if _takes_text(schema) and not _DATA_WORDS.isdisjoint(_words(description)):
        return "its description speaks of commands, paths, addresses or secrets"
    if schema.get("default") and (
        schema["default"] is True or not isinstance(schema["default"], (int, float))
    ):
        return "its default may change what a call does"
    return ""


def _is_long(text: str, max_chars: int) -> bool:
    """Whether a text is longer than this; other scripts say as much with a third of the characters."""
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


def _takes_text(schema: Mapping[str, Any]) -> bool:
    return '"string"' in canonical_json(schema)


def _title_changes(before: Offer, after: Offer) -> Iterator[str]:
    """Titles are shown to people who approve: they may add to a tool's words and not make light of them."""
    known = set(_words(json.dumps(before.plain(), ensure_ascii=False)))
    old = dict(_titles(before))
    changed = {path: title for path, title in _titles(after) if title and title != old.get(path, "")}
    fresh: set[str] = set()
    for path, title in sorted(changed.items()):
        words = _words(title)
        new = set(words) - known - _TITLE_WORDS
        if _is_long(title, MAX_TITLE_CHARS) or len(words) > MAX_TITLE_WORDS or not _TITLE.fullmatch(title):
            yield f"a title is long or unusual: {shorten(legible(title), 160)!r}"
        elif not set(_words(old.get(path, ""))) <= {*words, *_TITLE_WORDS} or any(map(is_action, new)):
            yield f"a title says something else: {_word_difference(old.get(path, ''), title)}"
        fresh |= new
    if len(fresh) > MAX_NEW_TITLE_WORDS:
        yield f"its titles say something new: {shorten(legible('; '.join(changed.values())), 300)}"


def _words(text: str) -> list[str]:
    return [part.lower() for part in _PARTS.findall(text)]


def _titles(offer: Offer) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every title that a model or a client may be shown, with its place."""
    yield from _titles_in((), offer.plain())


def _titles_in(path: tuple[str, ...], node: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key == "title" and isinstance(value, str):
                yield (*path, key), value
            else:
                yield from _titles_in((*path, key), value)
    elif isinstance(node, list):
        for place, value in enumerate(node):
            yield from _titles_in((*path, str(place)), value)


def _is_same(old: Any, new: Any) -> bool:
    if old is _MISSING or new is _MISSING:
        return old is new
    return old is new or canonical_json(old) == canonical_json(new)


def _at(where: str) -> str:
    return f"the parameter {_quoted(where)}" if where else "the input schema"


def _quoted(name: str) -> str:
    return repr(shorten(legible(name), 80))


def _went(old: Any, new: Any) -> str:
    def told(value: Any) -> str:
        return shorten(legible(json.dumps(value, ensure_ascii=False)), 160)

    if old is _MISSING:
        return f"was added: {told(new)}"
    return f"was removed: {told(old)}" if new is _MISSING else f"changed from {told(old)} to {told(new)}"
