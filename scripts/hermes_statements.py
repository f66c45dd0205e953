"""Compare the statements in `docs/coming-from-hermes.md` with `tests/hermes_statements.toml`.

python scripts/hermes_statements.py            fail if they differ
python scripts/hermes_statements.py --write    write the tables
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "coming-from-hermes.md"
TABLE = ROOT / "tests" / "hermes_statements.toml"
BEGIN = "<!-- The tables below are written by scripts/hermes_statements.py --write -->\n"
END = "<!-- end of the tables -->\n"


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, whether it holds, and the tests that prove that."""

    topic: str
    text: str
    verdict: str
    tests: tuple[str, ...]


def read_statements() -> list[Statement]:
    """Return all statements in the order of the file."""
    topics = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return [
        Statement(topic, text, verdict, tuple(tests))
        for topic, rows in topics.items()
        for text, verdict, *tests in rows
    ]


def render_tables() -> str:
    """Return one table for each topic; the second cell is empty if a statement holds."""
    return "\n".join(_render_lines()) + "\n"


def _render_lines() -> Iterator[str]:
    topic = ""
    for each in read_statements():
        if each.topic != topic:
            topic = each.topic
            yield from ("", f"## {topic}", "", "| Hermes | Toolfold |", "|---|---|")
        yield f"| {each.text} | {'' if each.verdict == 'holds' else each.verdict} |"
    yield ""


def main() -> int:
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    written, end, after = rest.partition(END)
    if not begin or not end:
        print(f"{PAGE.name} has no place for the tables: {BEGIN.strip()} … {END.strip()}")
        return 1
    if "--write" in sys.argv:
        PAGE.write_text(f"{before}{begin}{render_tables()}{end}{after}", encoding="utf-8")
    elif written != render_tables():
        print(f"{PAGE.name} differs: python scripts/hermes_statements.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
