"""Hash chain of audit log entries: each entry contains the previous entry's hash, to detect changes.

An entry is one line of JSON that ends with its hash. Knows no files and databases, nor what entries mean.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from toolfold.core.types import Json

FIRST_HASH = "0" * 64
"""The previous hash of the first entry."""
MAX_PROBLEMS = 20
_END = re.compile(r',"number":(\d{1,18}),"previous":"([0-9a-f]{64})","hash":"([0-9a-f]{64})"\}$')


class Link(NamedTuple):
    """Link of the hash chain: number of an audit log entry, its hash, and the hash of the entry before it."""

    number: int
    previous: str
    hash: str


START = Link(0, "", FIRST_HASH)
"""What the first entry follows."""


def seal_entry(entry: Json, last: Link) -> tuple[str, Link]:
    """Return the log line of an entry that follows `last` in the hash chain, and the entry's own link."""
    chained = {**entry, "number": last.number + 1, "previous": last.hash}
    text = json.dumps(chained, ensure_ascii=True, separators=(",", ":"))
    link = Link(last.number + 1, last.hash, _hash_text(text))
    return f'{text[:-1]},"hash":"{link.hash}"}}', link


def read_link(line: str) -> Link | None:
    """Return the entry number and hashes that a log line contains; None if it has no hash."""
    found = _END.search(line)
    return Link(int(found[1]), found[2], found[3]) if found else None


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _is_intact(line: str, link: Link) -> bool:
    return _hash_text(line[: -len(f',"hash":"{link.hash}"}}')] + "}") == link.hash


@dataclass(slots=True)
class ChainReport:
    """Report about the check of the hash chain of an audit log."""

    entries: int = 0
    """Number of entries that are unchanged and in the right position."""
    first: int = 0
    """Number of the first intact entry; above 1 if older entries were removed."""
    head: str = ""
    """Hash of the last entry; it depends on all entries before."""
    older: int = 0
    """Number of entries without hashes, written by older versions of Toolfold."""
    incomplete: int = 0
    """Number of lines that are not complete entries, which a crash during writing can leave."""
    problems: list[str] = field(default_factory=list)

    @property
    def is_intact(self) -> bool:
        return not self.problems


def verify_chain(lines: Iterable[str], known: str = "") -> ChainReport:
    """Check that every audit log entry is unchanged and follows the entry before it.

    `known` is a hash that was noted earlier, and must be the hash of one of the entries.
    """
    report, last, has_known = ChainReport(), None, not known
    for line in lines:
        link = read_link(line)
        if link is None:
            _count_unchained(line, report)
            continue
        problem = _find_problem(line, link, last)
        if problem and len(report.problems) < MAX_PROBLEMS:
            report.problems.append(problem)
        report.entries += not problem
        report.first = report.first or link.number
        has_known = has_known or (link.hash == known and not problem)
        last, report.head = link, link.hash
    if report.older and report.first > 1:
        report.problems.append(
            f"entries without a hash come before entry {report.first}: the entries before it were replaced"
        )
    if not has_known:
        report.problems.append(
            f"no entry has the hash {known[:64]}: entries were removed or replaced since it was noted"
        )
    return report


def _find_problem(line: str, link: Link, last: Link | None) -> str:
    if not _is_intact(line, link):
        return f"entry {link.number} was changed: its content does not match its hash"
    if last is None or (link.previous == last.hash and link.number == last.number + 1):
        return ""
    if link.number != last.number + 1:
        return f"entry {link.number} follows entry {last.number}: entries were removed, added or moved"
    return f"entry {link.number} does not follow the entry before it: that one was replaced"


def _count_unchained(line: str, report: ChainReport) -> None:
    """Count an audit log line without a hash; report a problem if it follows entries with hashes."""
    if not _is_object(line):
        report.incomplete += 1
    elif report.entries or report.problems:
        if len(report.problems) < MAX_PROBLEMS:
            report.problems.append("an entry without a hash was added, or the hash of an entry was removed")
    else:
        report.older += 1


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def find_last_link(lines_newest_first: Iterator[str]) -> Link:
    """Return the number and hashes of the newest entry in the hash chain; `START` if there is none."""
    return next((link for line in lines_newest_first if (link := read_link(line))), START)
