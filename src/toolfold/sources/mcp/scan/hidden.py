"""Characters that a model reads and a person does not see.

Knows characters alone, nothing of what the text around them says. Marks that have their place in ordinary
writing (joiners in emoji and in Persian, the mark that colours an emoji, marks of direction beside text that
runs from right to left, flags) are not taken for hiding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FLAG = "\U0001f3f4[\U000e0061-\U000e007a]{3,6}\U000e007f"
_RIGHT_TO_LEFT = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc"

_UNPARTED = "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"

# What no eye sees, or what moves or breaks the text around it.
_UNSEEN = (
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U0010ffff"
)
_ANY = re.compile(f"[{_UNSEEN}]")
_RUN = re.compile(f"{_FLAG}|[{_UNSEEN}]+")
_HARMLESS = re.compile(
    f"{_FLAG}"
    "|(?<=[^\x00-\x7f])\ufe0f?\u200d(?=[^\x00-\x7f])"
    "|(?<=[^\x00-\x7f])[\u200c\u200d](?=[^\x00-\x7f]|\\s|$)"
    "|(?<=[^\x00-\x7f])[\ufe0e\ufe0f]|(?<=[#*0-9])\ufe0f"
    f"|(?<=[{_RIGHT_TO_LEFT}])[\u200e\u200f\u061c]|[\u200e\u200f\u061c](?=[{_RIGHT_TO_LEFT}])"
    f"|(?<=[{_UNPARTED}])\u200b|\u200b(?=[{_UNPARTED}])"
    "|(?<=[\u3400-\u9fff])[\ufe00-\ufe0f\U000e0100-\U000e01ef]|(?<=[\u1820-\u18aa])[\u180b-\u180e]"
    "|(?<=[^\\W\\d_]{2})\xad(?=[^\\W\\d_]{2})|(?<=[^a-zA-Z])\u2060|\u2060(?=[^a-zA-Z])"
)
_TURNED = re.compile("[\u202a-\u202c\u2066-\u2069]")
_RIGHT = re.compile(f"[{_RIGHT_TO_LEFT}]")
_TAGS = re.compile("[\U000e0000-\U000e007f]")
_DIRECTION = re.compile("[\u202a-\u202e\u2066-\u2069]")
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_TERMINAL = re.compile("\x1b[\\[\\]()#;?0-9]")
_BREAKS = re.compile("[\x0b\x0c\x85\u2028\u2029]")
_PADDING = re.compile(r"[^\S\n]{120,}|\n(?:[^\S\n]{0,200}\n){11,}")


@dataclass(frozen=True, slots=True)
class Run:
    """Hidden characters that stand side by side."""

    start: int
    end: int
    what: str
    says: str = ""
    """What the characters spell, where they spell something."""


def hidden_runs(text: str) -> Iterator[Run]:
    """Every run of hidden characters that has no place in ordinary writing."""
    if text.isascii() and text.isprintable():
        return
    for match in _RUN.finditer(text):
        start, end = match.span()
        if not _is_harmless(text, start, end):
            yield Run(start, end, _named(match[0]), spelt(match[0]))


def padding(text: str) -> tuple[int, int] | None:
    """Emptiness wide or high enough to push what follows it out of sight."""
    for match in _PADDING.finditer(text):
        if text[match.end() : match.end() + 200].strip():
            return match.span()
    return None


def bare(text: str) -> str:
    """The text without its hidden characters; what has its place stays."""
    parts, at = [], 0
    for run in hidden_runs(text):
        between = text[run.start : run.end]
        parts += [text[at : run.start], "\n" if _BREAKS.search(between) else ""]
        at = run.end
    return "".join([*parts, text[at:]]) if at else text


def stripped(text: str) -> str:
    """The text without any character of the sort, whether it has its place or not."""
    return _ANY.sub("", text)


def legible(text: str) -> str:
    """For a person's eyes: every hidden character by its number, every stretch of emptiness by its length."""
    text = re.sub(r"[^\S\n]{9,}", lambda match: f" ⟨{len(match[0])} blanks⟩ ", text)
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return _RUN.sub(lambda match: match[0] if _is_flag(match[0]) else _numbered(match[0]), text)


def spelt(run: str) -> str:
    """The words that tag characters or selectors stand for."""
    tags = "".join(chr(ord(each) - 0xE0000) for each in run if 0xE0020 <= ord(each) < 0xE007F)
    if tags:
        return tags
    values = [_selected(each) for each in run if _SELECTORS.match(each)]
    text = bytes(each for each in values if each is not None).decode("utf-8", "replace")
    return text if len(text) >= 4 and text.isprintable() else ""


def _selected(each: str) -> int | None:
    """The byte a variation selector carries, when a text is written in them."""
    number = ord(each)
    if 0xFE00 <= number <= 0xFE0F:
        return number - 0xFE00
    return number - 0xE0100 + 16 if 0xE0100 <= number <= 0xE01EF else None


def _is_harmless(text: str, start: int, end: int) -> bool:
    run = text[start:end]
    if _is_flag(run) or (start == 0 and run == "\ufeff"):
        return True
    if run in ("\u200e", "\u200f", "\u061c"):
        return _RIGHT.search(text) is not None
    if _TURNED.fullmatch(run):
        # Embeddings and isolates serve text of both directions, and hide nothing when they are closed again.
        return _RIGHT.search(text) is not None and _is_closed(text)
    if end - start > 2:
        return False
    at = start
    while at < end:
        match = _HARMLESS.match(text, at)
        if match is None:
            return False
        at = match.end()
    return True


def _is_closed(text: str) -> bool:
    opened = sum(text.count(each) for each in "\u2066\u2067\u2068")
    turned = sum(text.count(each) for each in "\u202a\u202b")
    return opened == text.count("\u2069") and turned == text.count("\u202c")


def _is_flag(run: str) -> bool:
    return run.startswith("\U0001f3f4")


def _named(run: str) -> str:
    if _TAGS.search(run):
        return "tag characters, which spell text that nobody sees"
    if _TERMINAL.match(run) or "\x1b" in run:
        return "terminal control characters"
    if _DIRECTION.search(run):
        return "marks that turn the direction of the text"
    if _SELECTORS.search(run):
        return "variation selectors where there is nothing to vary"
    return "characters without width or shape"


def _numbered(run: str) -> str:
    said = spelt(run)
    if said:
        return f"⟨hidden: {said}⟩"
    shown = "".join(f"⟨U+{ord(each):04X}⟩" for each in run[:8])
    return shown if len(run) <= 8 else f"{shown}⟨and {len(run) - 8} more⟩"
