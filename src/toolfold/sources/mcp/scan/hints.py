"""Annotations that contradict what a tool says it does.

A hint that makes a tool look more harmless than its name and description is worth a look; the other way round
nobody is hurt. Reads names and first words only: it cannot know what a tool really does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolfold.sources.mcp.offers import Offer
from toolfold.sources.mcp.scan.findings import Finding

_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_DESTROYS: frozenset[str] = frozenset(
    re.findall(
        r"\w+",
        "delete remove drop purge wipe erase destroy truncate uninstall reset revoke kill terminate ove"
        "rwrite shred"
        " prune unlink flush rm clear empty nuke deprovision decommission evict expunge discard rollbac"
        "k ban",
    )
)
_CHANGES: frozenset[str] = _DESTROYS | frozenset(
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
_RUNS: frozenset[str] = frozenset(
    re.findall(
        r"\w+",
        "run execute exec eval shell spawn",
    )
)
_LOOKS: frozenset[str] = frozenset(
    re.findall(
        r"\w+",
        "view show list get read look browse preview display check inspect review see describe explain "
        "find search"
        " returns shows lists gets reads previews displays checks finds searches says tells explains co"
        "mputes counts"
        " calculates validates estimates converts formats parses renders simulates compares extracts",
    )
)
_REACHES_OUT = frozenset(
    {"send", "post", "publish", "tweet", "upload", "forward", "share", "mail", "submit", "push"}
)
_ADDS_UP = frozenset(
    {"pay", "charge", "transfer", "withdraw", "refund", "buy", "sell", "order", "trade", "tweet"}
)
_ABROAD = re.compile(
    r"\b(?:web|internet|public|external|third[- ]part|url|webhook|address|recipient|email|e-mail|remote"
    r"|cloud|social|online|everyone)",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"\b(?:nothing is|deletes nothing|installs nothing|changes nothing|writes nothing|sends nothing"
    r"|without (?:changing|modifying|"
    r"writing|saving|sending)|read[- ]only|does not (?:change|modify|write|delete|send|save|store)"
    r"|doesn't|dry[- ]run|would be|preview"
    r"|no side effects|in memory|simulat|select statements?|select quer)",
    re.IGNORECASE,
)
_COMMANDS = re.compile(
    r"\b(?:shell|command|script|code|program|process|terminal|bash|python|javascript|binary)\b", re.IGNORECASE
)
_TEXTUAL = re.compile(
    r"\b(?:text|string|words?|json|characters?|list|array|lines?|markdown|html|xml|csv|stop ?words)\b",
    re.IGNORECASE,
)


def scan_hints(offer: Offer) -> Iterator[Finding]:
    """Where the annotations make light of what name and description say."""
    hints = offer.annotations
    said = f"{offer.name}: {offer.description[:160]}"
    if hints.get("readOnlyHint") is True and _changes(offer):
        yield Finding(
            "annotation", "annotations.readOnlyHint", said, "it says that it only reads, and names a change"
        )
    elif hints.get("destructiveHint") is False and hints.get("readOnlyHint") is not True and _destroys(offer):
        yield Finding(
            "annotation",
            "annotations.destructiveHint",
            said,
            "it says that nothing is lost, and names a loss",
        )
    if (
        hints.get("openWorldHint") is False
        and _verb(offer.name) in _REACHES_OUT
        and _ABROAD.search(offer.description)
    ):
        told = "it says that it stays inside, and names what lies outside"
        yield Finding("annotation", "annotations.openWorldHint", said, told)
    if hints.get("idempotentHint") is True and _verb(offer.name) in _ADDS_UP:
        told = "it says that a second call changes nothing, and names what adds up"
        yield Finding("annotation", "annotations.idempotentHint", said, told)
    titles = {offer.title, str(hints.get("title") or "")}
    if any(_first(title) in _LOOKS for title in titles if title) and _verb(offer.name) in _DESTROYS:
        yield Finding("annotation", "title", said, "its title speaks of looking, and its name of removing")


def _changes(offer: Offer) -> bool:
    if _HARMLESS.search(offer.description):
        return False
    named, told = _verb(offer.name), _stem(_first(offer.description))
    if _first(offer.description) in _LOOKS:
        return False
    if named in _RUNS or told in _RUNS:
        return bool(_COMMANDS.search(offer.description))
    if named in _CHANGES:
        return told in _CHANGES or told not in _LOOKS
    return told in _DESTROYS or (
        told in _CHANGES and named not in _LOOKS and not _TEXTUAL.search(offer.description)
    )


def _destroys(offer: Offer) -> bool:
    if _HARMLESS.search(offer.description) or _first(offer.description) in _LOOKS:
        return False
    strong = _DESTROYS - {"clear", "discard", "remove", "flush"}
    return _verb(offer.name) in strong or _stem(_first(offer.description)) in strong


def _verb(name: str) -> str:
    """The word in a name that says what is done: the first, or the last where that is the verb."""
    parts: list[str] = [part.lower() for part in _PARTS.findall(name)]
    if parts and parts[0] not in _LOOKS:
        if parts[0] in _CHANGES | _RUNS:
            return parts[0]
        for part in (parts[-1], *parts[1:2]):
            if part in _DESTROYS or part == "push":
                return part
    return parts[0] if parts else ""


def _first(text: str) -> str:
    match = re.search(r"[A-Za-z]+", text)
    return match[0].lower() if match else ""


def is_action(word: str) -> bool:
    """Whether a word, in lower case, says what a tool does: a verb of reading, changing or running."""
    return not {word, _stem(word)}.isdisjoint(_LOOKS | _CHANGES | _RUNS)


def _stem(word: str) -> str:
    """The verb of "removes", "pushes" or "applies"."""
    if word.endswith("ies"):
        return word[:-3] + "y"
    for ending in ("es", "s"):
        if word.endswith(ending) and word[: -len(ending)] in _CHANGES | _RUNS:
            return word[: -len(ending)]
    return word
