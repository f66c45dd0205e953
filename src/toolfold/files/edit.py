"""Finding a piece of text and replacing it: exactly, or as nearly as is safe.

Works on strings and bytes in memory and touches no file. An edit is made only where it is beyond doubt
which text is meant; all else is refused with what is needed to try again.
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

from toolfold.errors import CallError, shorten
from toolfold.files.text import clean, encode, require_small

MAX_EDITS, MAX_INDENTATION = 10_000, 200
DIFF_CHARACTERS, NEAREST_CHARACTERS, NEAREST_LINES = 4_000, 2_000, 30
SIMILAR_ENOUGH, SIMILAR_CHARACTERS = 0.92, 40
COMPARED_LINES, COMPARED_CHARACTERS, COMPARED_LINE, COMPARED_SECONDS = 20_000, 2_000_000, 500, 2.0

_PLAIN_PUNCTUATION = str.maketrans("‘’‚‛“”„‟′″‐‑‒–—―−\u00a0\u2007\u202f", "''''\"\"\"\"'\"-------   ")


@dataclass(frozen=True, slots=True)
class Edit:
    """Characters `start` to `end` become `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Found:
    """Every place where the text stands, and how it was recognised."""

    strategy: str
    edits: Sequence[Edit]


@dataclass(frozen=True, slots=True)
class Document:
    """A file's text without its byte order mark and with plain line ends, and how to put them back.

    Where line ends are mixed the text keeps them as they are. Bytes that are no UTF-8 survive as surrogates.
    """

    text: str
    mark: bytes
    crlf: bool
    mixed: bool

    @classmethod
    def of(cls, data: bytes) -> Self:
        mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
        text = data.removeprefix(mark).decode("utf-8", "surrogateescape")
        pairs, ends = text.count("\r\n"), text.count("\n")
        crlf = 0 < pairs == ends
        return cls(text.replace("\r\n", "\n") if crlf else text, mark, crlf, 0 < pairs < ends)

    def adapted(self, text: str) -> str:
        return text if self.mixed else text.replace("\r\n", "\n")

    def encoded(self, edits: Sequence[Edit]) -> bytes:
        require_small(len(self.text) + sum(len(each.text) for each in edits), "The patched file")
        text = _applied(self.text, edits)
        if text == self.text:
            raise CallError("The patch would change nothing. Look whether it is already applied.")
        if self.crlf:
            text = text.replace("\n", "\r\n")
        data = self.mark + text.encode("utf-8", "surrogateescape")
        require_small(len(data), "The patched file")
        return data


def _applied(text: str, edits: Sequence[Edit]) -> str:
    pieces, position = [], 0
    for edit in edits:
        pieces += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*pieces, text[position:]])


def require_wanted(cancelled: threading.Event) -> None:
    """Refuse to go on with a patch that was called off."""
    if cancelled.is_set():
        raise CallError("Patching was cancelled. Nothing was changed.")


def find_edits(document: Document, old: str, new: str, name: str, cancelled: threading.Event) -> Found:
    """Where `old` stands in the text: exactly, else by the strictest strategy that finds it at all."""
    encode(old, "old")
    encode(new, "new")
    if not old:
        raise CallError("`old` is empty. Give the text to replace; to create a file, write it whole.")
    if old == new:
        raise CallError("`old` and `new` are the same: the patch would change nothing.")
    text, old, new = document.text, document.adapted(old), document.adapted(new)
    for strategy, edits in _attempts(text, old, new, cancelled):
        require_wanted(cancelled)
        if edits:
            return Found(strategy, edits)
    return _find_similar(text, old, new, name, cancelled)


def _attempts(text: str, old: str, new: str, cancelled: threading.Event) -> Iterator[tuple[str, list[Edit]]]:
    yield "exact", _substring_edits(text, old, new)
    if old.strip():
        yield "ignoring typographic punctuation", _substring_edits(_plain(text), _plain(old), new)
        yield "ignoring trailing whitespace", _line_edits(text, old, new, str.rstrip, cancelled)
        yield "ignoring indentation", _line_edits(text, old, new, str.strip, cancelled)


def _plain(text: str) -> str:
    return text.translate(_PLAIN_PUNCTUATION)


def _substring_edits(text: str, old: str, new: str) -> list[Edit]:
    return [Edit(at, at + len(old), new) for at in _occurrences(text, old, len(old))]


def _occurrences(text: str, wanted: str, step: int) -> list[int]:
    found, at = list[int](), text.find(wanted)
    while at >= 0:
        found.append(at)
        if len(found) > MAX_EDITS:
            raise CallError(f"`old` occurs more than {MAX_EDITS:,} times. Give more of the text around it.")
        at = text.find(wanted, at + step)
    return found


def _line_edits(
    text: str, old: str, new: str, normal: Callable[[str], str], cancelled: threading.Event
) -> list[Edit]:
    # One search in one string instead of line by line: linear also where every line is the same.
    haystack, needle = _by_line(text, normal), _by_line(old.removesuffix("\n"), normal)
    places = _occurrences(haystack, needle, len(needle) - 1)
    if not places:
        return []
    require_small(len(places) * len(new), "The text of all replacements")
    lines, height = text.split("\n"), needle.count("\n") - 1
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    substitute = _Substitute.of(old, new)
    edits, line, position = list[Edit](), 0, 0
    for at in places:
        require_wanted(cancelled)
        line += haystack.count("\n", position, at)
        position = at
        edits.append(substitute.edit(lines[line : line + height], starts[line]))
    return edits


def _by_line(text: str, normal: Callable[[str], str]) -> str:
    return "\n" + "\n".join(map(normal, _plain(text).split("\n"))) + "\n"


@dataclass(frozen=True, slots=True)
class _Substitute:
    """New lines for old ones, taken apart once for all the places where they go."""

    indents: Sequence[str | None]
    lines: Sequence[str]
    deletes: bool

    @classmethod
    def of(cls, old: str, new: str) -> Self:
        ended = old.endswith("\n")
        body = new.removesuffix("\n") if ended else new
        return cls([*map(_indentation, old.split("\n"))], body.split("\n"), deletes=ended and not new)

    def edit(self, block: Sequence[str], start: int) -> Edit:
        """Replace whole lines: the last one keeps its line end, all get the indentation found in the file."""
        end = start + sum(len(line) + 1 for line in block) - 1
        if self.deletes:
            return Edit(start, end + 1, "")
        ending = "\r" if block[0].endswith("\r") else ""
        fresh = [line.removesuffix("\r") for line in self._indented_like(block)]
        kept = len(block[-1]) - len(block[-1].removesuffix("\r"))
        return Edit(start, end - kept, f"{ending}\n".join(fresh))

    def _indented_like(self, block: Sequence[str]) -> Sequence[str]:
        """Indented as the file does, learned from how each of the old lines stands in it."""
        learned: dict[str, str] = {}
        for given, line in zip(self.indents, block, strict=False):
            actual = _indentation(line)
            # No code is indented so far, and every character of what is learned costs a look-up a line.
            if given is not None and actual is not None and len(given) <= MAX_INDENTATION:
                learned.setdefault(given, actual)
        if all(given == actual for given, actual in learned.items()):
            return self.lines
        shortest = min(learned, key=len)
        return [_reindented(line, learned, shortest) for line in self.lines]


def _indentation(line: str) -> str | None:
    """What stands before the text of a line that has any."""
    text = line.lstrip()
    return line[: len(line) - len(text)] if text else None


def _reindented(line: str, learned: Mapping[str, str], shortest: str) -> str:
    indent = _indentation(line)
    if indent is None:
        return line
    for length in range(min(len(indent), MAX_INDENTATION), -1, -1):
        if indent[:length] in learned:
            return learned[indent[:length]] + line[length:]
    missing = max(0, len(shortest) - len(indent))
    actual = learned[shortest]
    return actual[: max(0, len(actual) - missing)] + line.lstrip()


def _find_similar(text: str, old: str, new: str, name: str, cancelled: threading.Event) -> Found:
    """The one block that is nearly `old`; or a refusal that shows the nearest."""
    lines, wanted = text.split("\n"), old.removesuffix("\n").split("\n")
    deadline = time.monotonic() + COMPARED_SECONDS
    ranked = _ranked_blocks(lines, wanted, deadline, cancelled)
    if not ranked:
        raise CallError(f"`old` does not occur in {name!r}, and nothing near was found. Read the file again.")
    score, at = ranked[0]
    # One line, or a few words, can be nearly alike and mean another thing: `retries = 3`, `retries = 5`.
    telling = len(wanted) > 1 and len(old.strip()) >= SIMILAR_CHARACTERS
    only = [each >= SIMILAR_ENOUGH for each, _ in ranked].count(True) == 1 and time.monotonic() < deadline
    if telling and only:
        start = sum(len(line) + 1 for line in lines[:at])
        edit = _Substitute.of(old, new).edit(lines[at : at + len(wanted)], start)
        return Found(f"similar text ({score:.0%})", [edit])
    raise CallError(
        f"`old` does not occur in {name!r}. The nearest text is from line {at + 1}:\n"
        f"{_numbered(lines, at, len(wanted))}\n"
        "Nothing was changed. Copy `old` from the file, without the line numbers, and call again."
    )


def _numbered(lines: Sequence[str], at: int, count: int) -> str:
    block = lines[at : at + min(count, NEAREST_LINES)]
    return shorten(
        "\n".join(f"{at + 1 + i}\t{clean(line)}" for i, line in enumerate(block)), NEAREST_CHARACTERS
    )


def _ranked_blocks(
    lines: Sequence[str], wanted: Sequence[str], deadline: float, cancelled: threading.Event
) -> list[tuple[float, int]]:
    """The likeliest blocks with their similarity, best first; fewer of them when time is out."""
    if len(lines) > COMPARED_LINES or sum(map(len, lines)) > COMPARED_CHARACTERS:
        return []
    ranked = []
    for at in _promising(lines, wanted):
        block = lines[at : at + len(wanted)]
        ranked.append((_similarity(block, wanted, deadline, cancelled), at))
        if time.monotonic() > deadline:
            break
    return sorted(ranked, key=lambda each: (-each[0], each[1]))


def _promising(lines: Sequence[str], wanted: Sequence[str], most: int = 12) -> list[int]:
    """Where blocks start that share the most words with `wanted`, by one pass of a sliding window."""
    want = Counter(word for line in wanted for word in _words(line))
    bags = [[word for word in _words(line) if word in want] for line in lines]
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
    return [-start for _, start in heapq.nlargest(most, scores)]


def _words(line: str) -> list[str]:
    return re.findall(r"\w+", line)


def _bare(line: str) -> str:
    return _plain(line).strip()


def _similarity(
    block: Sequence[str], wanted: Sequence[str], deadline: float, cancelled: threading.Event
) -> float:
    """From 0 to 1, weighted by length. What is left when time is out counts as different."""
    total = alike = 0.0
    for actual, given in zip(map(_bare, block), map(_bare, wanted), strict=False):
        require_wanted(cancelled)
        weight = max(len(actual), len(given)) + 1
        total += weight
        if actual == given:
            alike += weight
        elif weight <= COMPARED_LINE and time.monotonic() < deadline:
            alike += weight * difflib.SequenceMatcher(None, actual, given, autojunk=False).ratio()
    return alike / total if total and len(block) == len(wanted) else 0.0


def choose_edits(found: Found, text: str, name: str, *, replace_all: bool) -> Sequence[Edit]:
    """The one edit that was meant, or all of them where that was asked for."""
    if replace_all or len(found.edits) == 1:
        return found.edits
    some = ", ".join(str(line) for line in _line_numbers(text, found.edits[:10]))
    raise CallError(
        f"`old` matches {len(found.edits)} places in {name!r} ({found.strategy}), at lines {some}"
        f"{', …' if len(found.edits) > 10 else ''}. Nothing was changed. Give more of the text around the one"
        " you mean, or set replace_all."
    )


def _line_numbers(text: str, edits: Sequence[Edit]) -> Iterator[int]:
    number, position = 1, 0
    for edit in edits:
        number += text.count("\n", position, edit.start)
        position = edit.start
        yield number


def diff(text: str, edits: Sequence[Edit], name: str) -> str:
    """A unified diff made edit by edit: comparing two whole files can take minutes on repeated lines."""
    parts, size, grown = [f"--- {name}\n+++ {name}\n"], 0, 0
    for region in _regions(text, edits):
        hunk, more = _hunk(text, region, grown)
        parts.append(hunk)
        grown += more
        size += len(hunk)
        if size > DIFF_CHARACTERS:
            parts = [shorten("".join(parts), DIFF_CHARACTERS), "\n[the diff is cut here]"]
            break
    return clean("".join(parts))


@dataclass(frozen=True, slots=True)
class _Region:
    """Edits near enough to share a hunk, with the whole lines around them."""

    start: int
    end: int
    first_line: int
    edits: Sequence[Edit]


def _regions(text: str, edits: Sequence[Edit]) -> Iterator[_Region]:
    counted, line, end = 0, 1, 0
    pending = list(edits)
    while pending:
        start, taken = max(end, _lines_before(text, pending[0].start, 3)), 0
        while taken < len(pending) and (not taken or pending[taken].start <= end):
            end = _lines_after(text, max(pending[taken].start, pending[taken].end - 1), 3)
            taken += 1
            if end - start > DIFF_CHARACTERS:  # nobody will see what follows
                break
        line += text.count("\n", counted, start)
        counted = start
        yield _Region(start, end, line, pending[:taken])
        pending = pending[taken:]


def _lines_before(text: str, position: int, count: int) -> int:
    position = text.rfind("\n", 0, position) + 1
    for _ in range(count):
        position = text.rfind("\n", 0, max(0, position - 1)) + 1
    return position


def _lines_after(text: str, position: int, count: int) -> int:
    for _ in range(count + 1):
        position = text.find("\n", position) + 1 or len(text)
    return position


def _hunk(text: str, region: _Region, grown: int) -> tuple[str, int]:
    before = text[region.start : region.end]
    moved = [Edit(e.start - region.start, e.end - region.start, e.text) for e in region.edits]
    old, new = _ended_lines(before), _ended_lines(_applied(before, moved))
    head = f"@@ -{region.first_line},{len(old)} +{region.first_line + grown},{len(new)} @@\n"
    return head + "".join(_marked(old, new)), len(new) - len(old)


def _ended_lines(text: str) -> list[str]:
    lines = [f"{line}\n" for line in text.split("\n")]
    return lines[:-1] if text.endswith("\n") or not text else lines


def _marked(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
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
