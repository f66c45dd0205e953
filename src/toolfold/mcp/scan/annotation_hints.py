"""Find tool annotations that contradict the tool's name and description.

Reports only hints that make a tool look more harmless than its description; the opposite does no damage.
Compares names and leading words; what the tool really does is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from toolfold.mcp.scan.findings import ScanFinding
from toolfold.mcp.scan.vocabulary import get_pattern, get_word_set
from toolfold.mcp.tool_listing import ListedTool

_NAME_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


def scan_hints(tool: ListedTool) -> Iterator[ScanFinding]:
    """Yield a finding for each annotation that contradicts the tool's name or description."""
    hints = tool.annotations
    excerpt = f"{tool.name}: {tool.description[:160]}"
    if hints.get("readOnlyHint") is True and _changes_something(tool):
        yield ScanFinding(
            "annotation",
            "annotations.readOnlyHint",
            excerpt,
            "it is marked read-only, but its name or description says that it changes something",
        )
    elif (
        hints.get("destructiveHint") is False
        and hints.get("readOnlyHint") is not True
        and _destroys_something(tool)
    ):
        yield ScanFinding(
            "annotation",
            "annotations.destructiveHint",
            excerpt,
            "it is marked non-destructive, but its name or description says that it destroys something",
        )
    if (
        hints.get("openWorldHint") is False
        and _main_verb(tool.name) in get_word_set("sending_verbs")
        and get_pattern("outside_world").search(tool.description)
    ):
        why = "it is marked closed-world, but its description says that it reaches outside systems"
        yield ScanFinding("annotation", "annotations.openWorldHint", excerpt, why)
    if hints.get("idempotentHint") is True and _main_verb(tool.name) in get_word_set("non_idempotent_verbs"):
        why = "it is marked idempotent, but its name says that every call has an effect"
        yield ScanFinding("annotation", "annotations.idempotentHint", excerpt, why)
    titles = {tool.title, str(hints.get("title") or "")}
    if any(_first_word(title) in get_word_set("reading_verbs") for title in titles if title) and _main_verb(
        tool.name
    ) in get_word_set("destructive_verbs"):
        yield ScanFinding(
            "annotation", "title", excerpt, "its title describes reading, but its name says that it deletes"
        )


def _changes_something(tool: ListedTool) -> bool:
    if get_pattern("declared_harmless").search(tool.description):
        return False
    name_verb, description_verb = _main_verb(tool.name), _stem_verb(_first_word(tool.description))
    if _first_word(tool.description) in get_word_set("reading_verbs"):
        return False
    if name_verb in get_word_set("executing_verbs") or description_verb in get_word_set("executing_verbs"):
        return bool(get_pattern("command_words").search(tool.description))
    if name_verb in _changing_verbs():
        return description_verb in _changing_verbs() or description_verb not in get_word_set("reading_verbs")
    return description_verb in get_word_set("destructive_verbs") or (
        description_verb in _changing_verbs()
        and name_verb not in get_word_set("reading_verbs")
        and not get_pattern("text_words").search(tool.description)
    )


def _destroys_something(tool: ListedTool) -> bool:
    if get_pattern("declared_harmless").search(tool.description) or _first_word(
        tool.description
    ) in get_word_set("reading_verbs"):
        return False
    unambiguous_verbs = get_word_set("destructive_verbs") - get_word_set("ambiguous_destructive_verbs")
    return (
        _main_verb(tool.name) in unambiguous_verbs
        or _stem_verb(_first_word(tool.description)) in unambiguous_verbs
    )


def _main_verb(name: str) -> str:
    """Return the main verb of a tool name: usually the first word, or a destructive verb further on."""
    parts: list[str] = [part.lower() for part in _NAME_PART.findall(name)]
    if parts and parts[0] not in get_word_set("reading_verbs"):
        if parts[0] in _changing_verbs() | get_word_set("executing_verbs"):
            return parts[0]
        for part in (parts[-1], *parts[1:2]):
            if part in get_word_set("destructive_verbs") or part == "push":
                return part
        if not get_word_set("reading_verbs").isdisjoint(parts[1:2]):  # after a prefix: github_get_issue
            return parts[1]
    return parts[0] if parts else ""


def _first_word(text: str) -> str:
    match = re.search(r"[A-Za-z]+", text)
    return match[0].lower() if match else ""


def is_action(word: str) -> bool:
    """Return True if a lower-case word is a known verb for reading, changing or executing."""
    return not {word, _stem_verb(word)}.isdisjoint(
        get_word_set("reading_verbs") | _changing_verbs() | get_word_set("executing_verbs")
    )


def _stem_verb(word: str) -> str:
    """Return the base form of a verb, such as "remove" for "removes" or "apply" for "applies"."""
    if word.endswith("ies"):
        return word[:-3] + "y"
    for ending in ("es", "s"):
        if word.endswith(ending) and word[: -len(ending)] in _changing_verbs() | get_word_set(
            "executing_verbs"
        ):
            return word[: -len(ending)]
    return word


@cache
def _changing_verbs() -> frozenset[str]:
    return get_word_set("changing_verbs") | get_word_set("destructive_verbs")
