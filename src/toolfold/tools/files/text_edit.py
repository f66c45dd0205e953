"""Find and replace text in a file: exactly, or approximately if the match is unambiguous.

Works on strings and bytes in memory and touches no file. An edit is made only if it is certain which text
is meant; otherwise an error shows what is needed to try again.
"""

from __future__ import annotations

import codecs
import difflib
import heapq
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

from toolfold.core.errors import CallError, shorten
from toolfold.tools.files.text_files import encode_text, replace_surrogates, require_size

MAX_EDITS, MAX_INDENTATION = 10_000, 200
MAX_DIFF_CHARS, MAX_NEAREST_CHARS, MAX_NEAREST_LINES = 4_000, 2_000, 30
MIN_SIMILARITY, MIN_SIMILAR_CHARS = 0.92, 40
MAX_COMPARED_LINES, MAX_COMPARED_CHARS, MAX_COMPARED_LINE_CHARS, COMPARE_TIMEOUT_S = (
    20_000,
    2_000_000,
    500,
    2.0,
)

_PLAIN_PUNCTUATION = str.maketrans("‘’‚‛“”„‟′″‐‑‒–—―−\u00a0\u2007\u202f", "''''\"\"\"\"'\"-------   ")


@dataclass(frozen=True, slots=True)
class Edit:
    """Edit that replaces the characters from `start` to `end` by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class EditCandidates:
    """Candidate edits, one for each match of the old text, and the strategy that found the matches."""

    strategy: str
    edits: Sequence[Edit]


@dataclass(frozen=True, slots=True)
class Document:
    """Document with LF line endings and no byte order mark, and the data to restore the original format.

    Mixed line ends are left as they are. Bytes that are not UTF-8 are preserved as surrogates.
    """

    text: str
    mark: bytes
    crlf: bool
    mixed: bool

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
        text = data.removeprefix(mark).decode("utf-8", "surrogateescape")
        pairs, ends = text.count("\r\n"), text.count("\n")
        crlf = 0 < pairs == ends
        return cls(text.replace("\r\n", "\n") if crlf else text, mark, crlf, 0 < pairs < ends)

    def adapt_line_ends(self, text: str) -> str:
        return text if self.mixed else text.replace("\r\n", "\n")

    def encode_edits(self, edits: Sequence[Edit]) -> bytes:
        require_size(len(self.text) + sum(len(each.text) for each in edits), "The patched file")
        text = _apply_edits(self.text, edits)
        if text == self.text:
            raise CallError("The patch would change nothing. Check whether it is already applied.")
        if self.crlf:
            text = text.replace("\n", "\r\n")
        data = self.mark + text.encode("utf-8", "surrogateescape")
        require_size(len(data), "The patched file")
        return data


def _apply_edits(text: str, edits: Sequence[Edit]) -> str:
    pieces, position = [], 0
    for edit in edits:
        pieces += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*pieces, text[position:]])


def require_not_cancelled(cancelled: threading.Event) -> None:
    """Raise CallError if the edit was cancelled."""
    if cancelled.is_set():
        raise CallError("Patching was cancelled. Nothing was changed.")


def find_edits(
    document: Document, old: str, new: str, name: str, cancelled: threading.Event
) -> EditCandidates:
    """Return an edit for each match of `old`: exact matches or, if there are none, approximate matches."""
    encode_text(old, "old")
    encode_text(new, "new")
    if not old:
        raise CallError("`old` is empty. Give the text to replace; to create a file, use write_file.")
    if old == new:
        raise CallError("`old` and `new` are the same: the patch would change nothing.")
    text, old, new = document.text, document.adapt_line_ends(old), document.adapt_line_ends(new)
    for strategy, edits in _try_strategies(text, old, new, cancelled):
        require_not_cancelled(cancelled)
        if edits:
            return EditCandidates(strategy, edits)
    return _find_similar(text, old, new, name, cancelled)


def _try_strategies(
    text: str, old: str, new: str, cancelled: threading.Event
) -> Iterator[tuple[str, list[Edit]]]:
    yield "exact", _substring_edits(text, old, new)
    if old.strip():
        yield (
            "ignoring typographic punctuation",
            _substring_edits(_plain_punctuation(text), _plain_punctuation(old), new),
        )
        yield "ignoring trailing whitespace", _line_edits(text, old, new, str.rstrip, cancelled)
        yield "ignoring indentation", _line_edits(text, old, new, str.strip, cancelled)


def _plain_punctuation(text: str) -> str:
    return text.translate(_PLAIN_PUNCTUATION)


def _substring_edits(text: str, old: str, new: str) -> list[Edit]:
    return [Edit(at, at + len(old), new) for at in _find_occurrences(text, old, len(old))]


def _find_occurrences(text: str, wanted: str, step: int) -> list[int]:
    positions, position = list[int](), text.find(wanted)
    while position >= 0:
        positions.append(position)
        if len(positions) > MAX_EDITS:
            raise CallError(
                f"`old` occurs more than {MAX_EDITS:,} times. Include more of the surrounding text."
            )
        position = text.find(wanted, position + step)
    return positions


def _line_edits(
    text: str, old: str, new: str, normalize: Callable[[str], str], cancelled: threading.Event
) -> list[Edit]:
    # One search in one string instead of line by line: linear even if all lines are the same.
    haystack, needle = _normalize_lines(text, normalize), _normalize_lines(old.removesuffix("\n"), normalize)
    positions = _find_occurrences(haystack, needle, len(needle) - 1)
    if not positions:
        return []
    require_size(len(positions) * len(new), "The text of all replacements")
    lines, height = text.split("\n"), needle.count("\n") - 1
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    replacement = _LineReplacement.from_texts(old, new)
    edits, line, position = list[Edit](), 0, 0
    for found_at in positions:
        require_not_cancelled(cancelled)
        line += haystack.count("\n", position, found_at)
        position = found_at
        edits.append(replacement.edit(lines[line : line + height], starts[line]))
    return edits


def _normalize_lines(text: str, normalize: Callable[[str], str]) -> str:
    return "\n" + "\n".join(map(normalize, _plain_punctuation(text).split("\n"))) + "\n"


@dataclass(frozen=True, slots=True)
class _LineReplacement:
    """Replacement of matched lines by new lines with the indentation of the file."""

    indents: Sequence[str | None]
    lines: Sequence[str]
    deletes: bool

    @classmethod
    def from_texts(cls, old: str, new: str) -> Self:
        ended = old.endswith("\n")
        body = new.removesuffix("\n") if ended else new
        return cls([*map(_indentation, old.split("\n"))], body.split("\n"), deletes=ended and not new)

    def edit(self, block: Sequence[str], start: int) -> Edit:
        """Return the edit that replaces a block of lines and keeps the file's indentation and line ending."""
        end = start + sum(len(line) + 1 for line in block) - 1
        if self.deletes:
            return Edit(start, end + 1, "")
        ending = "\r" if block[0].endswith("\r") else ""
        new_lines = [line.removesuffix("\r") for line in self._match_indentation(block)]
        carriage_returns = len(block[-1]) - len(block[-1].removesuffix("\r"))
        return Edit(start, end - carriage_returns, f"{ending}\n".join(new_lines))

    def _match_indentation(self, block: Sequence[str]) -> Sequence[str]:
        """Return the new lines with the file's indentation, inferred from the matched lines."""
        learned: dict[str, str] = {}
        for indent, line in zip(self.indents, block, strict=False):
            actual = _indentation(line)
            # Longer ones do not occur in code, and each character costs a look-up per line.
            if indent is not None and actual is not None and len(indent) <= MAX_INDENTATION:
                learned.setdefault(indent, actual)
        if all(given == actual for given, actual in learned.items()):
            return self.lines
        shortest = min(learned, key=len)
        return [_reindent_line(line, learned, shortest) for line in self.lines]


def _indentation(line: str) -> str | None:
    """Return the leading whitespace of a line; None for a blank line."""
    text = line.lstrip()
    return line[: len(line) - len(text)] if text else None


def _reindent_line(line: str, learned: Mapping[str, str], shortest: str) -> str:
    indent = _indentation(line)
    if indent is None:
        return line
    for length in range(min(len(indent), MAX_INDENTATION), -1, -1):
        if indent[:length] in learned:
            return learned[indent[:length]] + line[length:]
    missing = max(0, len(shortest) - len(indent))
    actual = learned[shortest]
    return actual[: max(0, len(actual) - missing)] + line.lstrip()


def _find_similar(text: str, old: str, new: str, name: str, cancelled: threading.Event) -> EditCandidates:
    """Return the only block of lines similar to `old`, or raise a CallError with the most similar block."""
    lines, wanted = text.split("\n"), old.removesuffix("\n").split("\n")
    deadline = time.monotonic() + COMPARE_TIMEOUT_S
    ranked = _rank_blocks(lines, wanted, deadline, cancelled)
    if not ranked:
        raise CallError(
            f"`old` does not occur in {name!r}, and no similar text was found. Read the file again."
        )
    score, start_line = ranked[0]
    # Short texts can be similar and mean different things: `retries = 3`, `retries = 5`.
    is_distinctive = len(wanted) > 1 and len(old.strip()) >= MIN_SIMILAR_CHARS
    is_unique = [each >= MIN_SIMILARITY for each, _ in ranked].count(
        True
    ) == 1 and time.monotonic() < deadline
    if is_distinctive and is_unique:
        start = sum(len(line) + 1 for line in lines[:start_line])
        edit = _LineReplacement.from_texts(old, new).edit(lines[start_line : start_line + len(wanted)], start)
        return EditCandidates(f"similar text ({score:.0%})", [edit])
    raise CallError(
        f"`old` does not occur in {name!r}. The nearest text is from line {start_line + 1}:\n"
        f"{_number_lines(lines, start_line, len(wanted))}\n"
        "Nothing was changed. Copy `old` from the file, without the line numbers, and call again."
    )


def _number_lines(lines: Sequence[str], at: int, count: int) -> str:
    block = lines[at : at + min(count, MAX_NEAREST_LINES)]
    return shorten(
        "\n".join(f"{at + 1 + i}\t{replace_surrogates(line)}" for i, line in enumerate(block)),
        MAX_NEAREST_CHARS,
    )


def _rank_blocks(
    lines: Sequence[str], wanted: Sequence[str], deadline: float, cancelled: threading.Event
) -> list[tuple[float, int]]:
    """Return the blocks of lines most similar to the wanted lines, best first; fewer if time runs out."""
    if len(lines) > MAX_COMPARED_LINES or sum(map(len, lines)) > MAX_COMPARED_CHARS:
        return []
    ranked = []
    for start in _find_promising_starts(lines, wanted):
        block = lines[start : start + len(wanted)]
        ranked.append((_similarity(block, wanted, deadline, cancelled), start))
        if time.monotonic() > deadline:
            break
    return sorted(ranked, key=lambda each: (-each[0], each[1]))


def _find_promising_starts(lines: Sequence[str], wanted: Sequence[str], max_starts: int = 12) -> list[int]:
    """Return the start lines of the blocks that share the most words with `wanted`.

    One pass of a sliding window.
    """
    want = Counter(word for line in wanted for word in _split_words(line))
    bags = [[word for word in _split_words(line) if word in want] for line in lines]
    have, shared, size = Counter[str](), 0, min(len(wanted), len(lines))
    scores = list[tuple[int, int]]()
    for index, bag in enumerate(bags):
        for word in bag:
            shared += have[word] < want[word]
            have[word] += 1
        for word in bags[index - size] if index >= size else ():
            have[word] -= 1
            shared -= have[word] < want[word]
        if index >= size - 1 and shared:
            scores.append((shared, size - 1 - index))
    return [-start for _, start in heapq.nlargest(max_starts, scores)]


def _split_words(line: str) -> list[str]:
    return re.findall(r"\w+", line)


def _strip_line(line: str) -> str:
    return _plain_punctuation(line).strip()


def _similarity(
    block: Sequence[str], wanted: Sequence[str], deadline: float, cancelled: threading.Event
) -> float:
    """Return the similarity of two blocks of lines from 0 to 1, weighted by line length.

    Lines not compared in time count as different.
    """
    total = alike = 0.0
    for actual, given in zip(map(_strip_line, block), map(_strip_line, wanted), strict=False):
        require_not_cancelled(cancelled)
        weight = max(len(actual), len(given)) + 1
        total += weight
        if actual == given:
            alike += weight
        elif weight <= MAX_COMPARED_LINE_CHARS and time.monotonic() < deadline:
            alike += weight * difflib.SequenceMatcher(None, actual, given, autojunk=False).ratio()
    return alike / total if total and len(block) == len(wanted) else 0.0


def choose_edits(candidates: EditCandidates, text: str, name: str, *, replace_all: bool) -> Sequence[Edit]:
    """Return the edits to apply. Raises CallError for several edits unless `replace_all` is set."""
    if replace_all or len(candidates.edits) == 1:
        return candidates.edits
    shown_lines = ", ".join(str(line) for line in _line_numbers(text, candidates.edits[:10]))
    raise CallError(
        f"`old` occurs {len(candidates.edits)} times in {name!r} ({candidates.strategy}), at lines"
        f" {shown_lines}{', …' if len(candidates.edits) > 10 else ''}. Nothing was changed."
        " Include more of the surrounding lines in `old`, or set replace_all."
    )


def _line_numbers(text: str, edits: Sequence[Edit]) -> Iterator[int]:
    number, position = 1, 0
    for edit in edits:
        number += text.count("\n", position, edit.start)
        position = edit.start
        yield number


def render_diff(text: str, edits: Sequence[Edit], name: str) -> str:
    """Return a unified diff, built from the edits without comparing the whole texts, which can be slow."""
    parts, size, line_shift = [f"--- {name}\n+++ {name}\n"], 0, 0
    for region in _group_edits(text, edits):
        hunk, more = _render_hunk(text, region, line_shift)
        parts.append(hunk)
        line_shift += more
        size += len(hunk)
        if size > MAX_DIFF_CHARS:
            parts = [shorten("".join(parts), MAX_DIFF_CHARS), "\n[diff truncated]"]
            break
    return replace_surrogates("".join(parts))


@dataclass(frozen=True, slots=True)
class _DiffRegion:
    """Region of a file with edits close enough to share a diff hunk, and the complete lines around them."""

    start: int
    end: int
    first_line: int
    edits: Sequence[Edit]


def _group_edits(text: str, edits: Sequence[Edit]) -> Iterator[_DiffRegion]:
    counted, line, end = 0, 1, 0
    pending = list(edits)
    while pending:
        start, taken = max(end, _start_of_line_before(text, pending[0].start, 3)), 0
        while taken < len(pending) and (not taken or pending[taken].start <= end):
            end = _end_of_line_after(text, max(pending[taken].start, pending[taken].end - 1), 3)
            taken += 1
            if end - start > MAX_DIFF_CHARS:  # the rest would be cut off anyway
                break
        line += text.count("\n", counted, start)
        counted = start
        yield _DiffRegion(start, end, line, pending[:taken])
        pending = pending[taken:]


def _start_of_line_before(text: str, position: int, count: int) -> int:
    position = text.rfind("\n", 0, position) + 1
    for _ in range(count):
        position = text.rfind("\n", 0, max(0, position - 1)) + 1
    return position


def _end_of_line_after(text: str, position: int, count: int) -> int:
    for _ in range(count + 1):
        position = text.find("\n", position) + 1 or len(text)
    return position


def _render_hunk(text: str, region: _DiffRegion, line_shift: int) -> tuple[str, int]:
    before = text[region.start : region.end]
    moved = [Edit(e.start - region.start, e.end - region.start, e.text) for e in region.edits]
    old, new = _split_lines(before), _split_lines(_apply_edits(before, moved))
    head = f"@@ -{region.first_line},{len(old)} +{region.first_line + line_shift},{len(new)} @@\n"
    return head + "".join(_diff_lines(old, new)), len(new) - len(old)


def _split_lines(text: str) -> list[str]:
    lines = [f"{line}\n" for line in text.split("\n")]
    return lines[:-1] if text.endswith("\n") or not text else lines


def _diff_lines(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    if len(old) * len(new) > 10_000:
        yield from (f"-{line}" for line in old)
        yield from (f"+{line}" for line in new)
        return
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new).get_opcodes():
        if tag == "equal":
            yield from (f" {line}" for line in old[a:b])
        else:
            yield from (f"-{line}" for line in old[a:b])
            yield from (f"+{line}" for line in new[c:d])
