"""Checks of tool annotations that contradict the tool's name and description.

Reports only hints that make a tool look more harmless than its description; the opposite does no damage.
Compares names and leading words; what the tool really does is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolfold.sources.mcp.scan.findings import Finding
from toolfold.sources.mcp.tool_listing import ListedTool

_NAME_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_DESTRUCTIVE_VERBS: frozenset[str] = frozenset(
    re.findall(
        r"\w+",
        "delete remove drop purge wipe erase destroy truncate uninstall reset revoke kill terminate ove"
        "rwrite shred"
        " prune unlink flush rm clear empty nuke deprovision decommission evict expunge discard rollbac"
        "k ban",
    )
)
_CHANGING_VERBS: frozenset[str] = _DESTRUCTIVE_VERBS | frozenset(
    re.findall(
        r"\w+",
        "create update write send post publish push insert edit move rename merge commit transfer pay b"
        "uy order"
        " grant invite subscribe submit apply restart shutdown reboot install deploy upload put patch m"
        "odify"
        " cancel disable enable block mute archive approve reject assign refund charge withdraw sign re"
        "lease tweet"
        " reply forward share unshare replace lock unlock encrypt mail"
        " sell trade invoke upgrade downgrade unsubscribe reassign",
    )
)
_EXECUTING_VERBS: frozenset[str] = frozenset(
    re.findall(
        r"\w+",
        "run execute exec eval shell spawn",
    )
)
_READING_VERBS: frozenset[str] = frozenset(
    re.findall(
        r"\w+",
        "view show list get read look browse preview display check inspect review see describe explain "
        "find search"
        " returns shows lists gets reads previews displays checks finds searches says tells explains co"
        "mputes counts"
        " calculates validates estimates converts formats parses renders simulates compares extracts",
    )
)
_SENDING_VERBS = frozenset(
    {"send", "post", "publish", "tweet", "upload", "forward", "share", "mail", "submit", "push"}
)
_NON_IDEMPOTENT_VERBS = frozenset(
    {"pay", "charge", "transfer", "withdraw", "refund", "buy", "sell", "order", "trade", "tweet"}
)
_OUTSIDE_WORLD = re.compile(
    r"\b(?:web|internet|public|external|third[- ]part|url|webhook|address|recipient|email|e-mail|remote"
    r"|cloud|social|online|everyone)",
    re.IGNORECASE,
)
_DECLARED_HARMLESS = re.compile(
    r"\b(?:nothing is|deletes nothing|installs nothing|changes nothing|writes nothing|sends nothing"
    r"|without (?:changing|modifying|"
    r"writing|saving|sending)|read[- ]only|does not (?:change|modify|write|delete|send|save|store)"
    r"|doesn't|dry[- ]run|would be|preview"
    r"|no side effects|in memory|simulat|select statements?|select quer)",
    re.IGNORECASE,
)
_COMMAND_WORDS = re.compile(
    r"\b(?:shell|command|script|code|program|process|terminal|bash|python|javascript|binary)\b", re.IGNORECASE
)
_TEXT_WORDS = re.compile(
    r"\b(?:text|string|words?|json|characters?|list|array|lines?|markdown|html|xml|csv|stop ?words)\b",
    re.IGNORECASE,
)


def scan_hints(tool: ListedTool) -> Iterator[Finding]:
    """Yield a finding for each annotation that understates what name and description say."""
    hints = tool.annotations
    excerpt = f"{tool.name}: {tool.description[:160]}"
    if hints.get("readOnlyHint") is True and _changes_something(tool):
        yield Finding(
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
        yield Finding(
            "annotation",
            "annotations.destructiveHint",
            excerpt,
            "it is marked non-destructive, but its name or description says that it destroys something",
        )
    if (
        hints.get("openWorldHint") is False
        and _main_verb(tool.name) in _SENDING_VERBS
        and _OUTSIDE_WORLD.search(tool.description)
    ):
        why = "it is marked closed-world, but its description says that it reaches outside systems"
        yield Finding("annotation", "annotations.openWorldHint", excerpt, why)
    if hints.get("idempotentHint") is True and _main_verb(tool.name) in _NON_IDEMPOTENT_VERBS:
        why = "it is marked idempotent, but its name says that every call has an effect"
        yield Finding("annotation", "annotations.idempotentHint", excerpt, why)
    titles = {tool.title, str(hints.get("title") or "")}
    if (
        any(_first_word(title) in _READING_VERBS for title in titles if title)
        and _main_verb(tool.name) in _DESTRUCTIVE_VERBS
    ):
        yield Finding(
            "annotation", "title", excerpt, "its title describes reading, but its name says that it deletes"
        )


def _changes_something(tool: ListedTool) -> bool:
    if _DECLARED_HARMLESS.search(tool.description):
        return False
    name_verb, description_verb = _main_verb(tool.name), _stem_verb(_first_word(tool.description))
    if _first_word(tool.description) in _READING_VERBS:
        return False
    if name_verb in _EXECUTING_VERBS or description_verb in _EXECUTING_VERBS:
        return bool(_COMMAND_WORDS.search(tool.description))
    if name_verb in _CHANGING_VERBS:
        return description_verb in _CHANGING_VERBS or description_verb not in _READING_VERBS
    return description_verb in _DESTRUCTIVE_VERBS or (
        description_verb in _CHANGING_VERBS
        and name_verb not in _READING_VERBS
        and not _TEXT_WORDS.search(tool.description)
    )


def _destroys_something(tool: ListedTool) -> bool:
    if _DECLARED_HARMLESS.search(tool.description) or _first_word(tool.description) in _READING_VERBS:
        return False
    unambiguous_verbs = _DESTRUCTIVE_VERBS - {"clear", "discard", "remove", "flush"}
    return (
        _main_verb(tool.name) in unambiguous_verbs
        or _stem_verb(_first_word(tool.description)) in unambiguous_verbs
    )


def _main_verb(name: str) -> str:
    """Return the verb of a tool name: the first word, or a later one if only that is a known verb."""
    parts: list[str] = [part.lower() for part in _NAME_PART.findall(name)]
    if parts and parts[0] not in _READING_VERBS:
        if parts[0] in _CHANGING_VERBS | _EXECUTING_VERBS:
            return parts[0]
        for part in (parts[-1], *parts[1:2]):
            if part in _DESTRUCTIVE_VERBS or part == "push":
                return part
    return parts[0] if parts else ""


def _first_word(text: str) -> str:
    match = re.search(r"[A-Za-z]+", text)
    return match[0].lower() if match else ""


def is_action(word: str) -> bool:
    """Return True if a lower-case word is a known verb of reading, changing or executing."""
    return not {word, _stem_verb(word)}.isdisjoint(_READING_VERBS | _CHANGING_VERBS | _EXECUTING_VERBS)


def _stem_verb(word: str) -> str:
    """Return the base form of "removes", "pushes" or "applies"."""
    if word.endswith("ies"):
        return word[:-3] + "y"
    for ending in ("es", "s"):
        if word.endswith(ending) and word[: -len(ending)] in _CHANGING_VERBS | _EXECUTING_VERBS:
            return word[: -len(ending)]
    return word
