"""Find characters that a model reads but a person cannot see.

Looks at characters only, not at the meaning of the text. Legitimate uses are not reported: joiners in emoji
and Persian, emoji variation selectors, direction marks beside right-to-left text, and flags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FLAG = "\U0001f3f4[\U000e0061-\U000e007a]{3,6}\U000e007f"
_RIGHT_TO_LEFT = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc"

_SCRIPTS_WITHOUT_SPACES = "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"

# Invisible characters, and those that move or reorder the text around them.
_HIDDEN = (
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U0010ffff"
)
_HIDDEN_CHARACTER = re.compile(f"[{_HIDDEN}]")
_HIDDEN_RUN = re.compile(f"{_FLAG}|[{_HIDDEN}]+")
_LEGITIMATE_USE = re.compile(
    f"{_FLAG}"
    "|(?<=[^\x00-\x7f])\ufe0f?\u200d(?=[^\x00-\x7f])"
    "|(?<=[^\x00-\x7f])[\u200c\u200d](?=[^\x00-\x7f]|\\s|$)"
    "|(?<=[^\x00-\x7f])[\ufe0e\ufe0f]|(?<=[#*0-9])\ufe0f"
    f"|(?<=[{_RIGHT_TO_LEFT}])[\u200e\u200f\u061c]|[\u200e\u200f\u061c](?=[{_RIGHT_TO_LEFT}])"
    f"|(?<=[{_SCRIPTS_WITHOUT_SPACES}])\u200b|\u200b(?=[{_SCRIPTS_WITHOUT_SPACES}])"
    "|(?<=[\u3400-\u9fff])[\ufe00-\ufe0f\U000e0100-\U000e01ef]|(?<=[\u1820-\u18aa])[\u180b-\u180e]"
    "|(?<=[^\\W\\d_]{2})\xad(?=[^\\W\\d_]{2})|(?<=[^a-zA-Z])\u2060|\u2060(?=[^a-zA-Z])"
)
_CLOSABLE_DIRECTION_MARK = re.compile("[\u202a-\u202c\u2066-\u2069]")
_RIGHT_TO_LEFT_LETTER = re.compile(f"[{_RIGHT_TO_LEFT}]")
_TAG_CHARACTER = re.compile("[\U000e0000-\U000e007f]")
_DIRECTION_MARK = re.compile("[\u202a-\u202e\u2066-\u2069]")
_VARIATION_SELECTOR = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_TERMINAL_SEQUENCE = re.compile("\x1b[\\[\\]()#;?0-9]")
_LINE_BREAK = re.compile("[\x0b\x0c\x85\u2028\u2029]")
_PADDING = re.compile(r"[^\S\n]{120,}|\n(?:[^\S\n]{0,200}\n){11,}")


@dataclass(frozen=True, slots=True)
class HiddenRun:
    """Consecutive hidden characters in a text."""

    start: int
    end: int
    description: str
    decoded_text: str = ""
    """The text the characters encode; empty if they encode none."""


def find_hidden_runs(text: str) -> Iterator[HiddenRun]:
    """Yield each sequence of hidden characters without a legitimate use."""
    if text.isascii() and text.isprintable():
        return
    for match in _HIDDEN_RUN.finditer(text):
        start, end = match.span()
        if not _is_legitimate(text, start, end):
            yield HiddenRun(start, end, _describe_run(match[0]), decode_hidden_run(match[0]))


def find_padding(text: str) -> tuple[int, int] | None:
    """Return the span of white space that pushes the following text out of view; None if there is none."""
    for match in _PADDING.finditer(text):
        if text[match.end() : match.end() + 200].strip():
            return match.span()
    return None


def remove_hidden_runs(text: str) -> str:
    """Return the text without hidden characters, except those with a legitimate use."""
    parts, position = [], 0
    for run in find_hidden_runs(text):
        removed = text[run.start : run.end]
        parts += [text[position : run.start], "\n" if _LINE_BREAK.search(removed) else ""]
        position = run.end
    return "".join([*parts, text[position:]]) if position else text


def remove_hidden_characters(text: str) -> str:
    """Return the text without any hidden character, including legitimate ones."""
    return _HIDDEN_CHARACTER.sub("", text)


def escape_hidden(text: str) -> str:
    """Replace hidden characters by their code points, and long white space by its length."""
    text = re.sub(r"[^\S\n]{9,}", lambda match: f" ⟨{len(match[0])} blanks⟩ ", text)
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return _HIDDEN_RUN.sub(lambda match: match[0] if _is_flag(match[0]) else _escape_run(match[0]), text)


def decode_hidden_run(run: str) -> str:
    """Return the text encoded by hidden characters; empty if they encode no text."""
    tags = "".join(chr(ord(each) - 0xE0000) for each in run if 0xE0020 <= ord(each) < 0xE007F)
    if tags:
        return tags
    values = [_decode_selector(each) for each in run if _VARIATION_SELECTOR.match(each)]
    text = bytes(each for each in values if each is not None).decode("utf-8", "replace")
    return text if len(text) >= 4 and text.isprintable() else ""


def _decode_selector(selector: str) -> int | None:
    """Return the byte that a variation selector encodes, or None."""
    number = ord(selector)
    if 0xFE00 <= number <= 0xFE0F:
        return number - 0xFE00
    return number - 0xE0100 + 16 if 0xE0100 <= number <= 0xE01EF else None


def _is_legitimate(text: str, start: int, end: int) -> bool:
    run = text[start:end]
    if _is_flag(run) or (start == 0 and run == "\ufeff"):
        return True
    if run in ("\u200e", "\u200f", "\u061c"):
        return _RIGHT_TO_LEFT_LETTER.search(text) is not None
    if _CLOSABLE_DIRECTION_MARK.fullmatch(run):
        # Bidirectional text needs embeddings and isolates; they hide nothing if each one is closed.
        return _RIGHT_TO_LEFT_LETTER.search(text) is not None and _has_balanced_direction_marks(text)
    if end - start > 2:
        return False
    position = start
    while position < end:
        match = _LEGITIMATE_USE.match(text, position)
        if match is None:
            return False
        position = match.end()
    return True


def _has_balanced_direction_marks(text: str) -> bool:
    isolates = sum(text.count(mark) for mark in "\u2066\u2067\u2068")
    embeddings = sum(text.count(mark) for mark in "\u202a\u202b")
    return isolates == text.count("\u2069") and embeddings == text.count("\u202c")


def _is_flag(run: str) -> bool:
    return run.startswith("\U0001f3f4")


def _describe_run(run: str) -> str:
    if _TAG_CHARACTER.search(run):
        return "invisible tag characters"
    if _TERMINAL_SEQUENCE.match(run) or "\x1b" in run:
        return "terminal control characters"
    if _DIRECTION_MARK.search(run):
        return "marks that change the text direction"
    if _VARIATION_SELECTOR.search(run):
        return "variation selectors without a base character"
    return "invisible characters"


def _escape_run(run: str) -> str:
    decoded = decode_hidden_run(run)
    if decoded:
        return f"⟨hidden: {decoded}⟩"
    shown = "".join(f"⟨U+{ord(each):04X}⟩" for each in run[:8])
    return shown if len(run) <= 8 else f"{shown}⟨and {len(run) - 8} more⟩"
