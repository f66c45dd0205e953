"""Links of the documentation lead somewhere, and figures of the README are those that its commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Toolfold
from tests.cli.conftest import toolfold as toolfold  # a fixture
from tests.test_documented_commands import PAGES, ROOT

LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
TOLERANCE = 0.08
"""Difference from the README that a small change of rankings may cause."""


def find_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the documentation site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = [re.sub(r"[^\w\- ]", "", title.lower()).strip() for title in HEADING.findall(text)]
    return {title.replace(" ", "-") for title in titles}


def find_dead_links(page: Path) -> list[str]:
    """Return the links of a page to files and headings that do not exist."""
    dead = []
    for match in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
        link = match[1] or match[2]
        path, _, anchor = link.partition("#")
        target = page if not path else page.parent / path
        if "://" in link or link.startswith("mailto:"):
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in find_anchors(target)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_within_the_documentation_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert find_dead_links(page) == []


def test_link_check_reports_missing_files_and_headings(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title\n[a](#a-title) [b](#other) [c](gone.md) [d](page.md#a-title) `[e](code.md)`\n")
    assert find_dead_links(page) == ["#other", "gone.md"]


def test_readme_states_the_figures_that_its_commands_print(toolfold: Toolfold) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    stated = {
        tuple(row[:2]): row[2:]
        for row in re.findall(
            r"^\| (\d+) \| (\d+) \| ([\d,]+) \| ([\d.]+)% \| (\d+)% to (\d+)% ", readme, re.M
        )
    }
    assert stated
    for row in toolfold("cost", "--by-size", "--json").json:
        figures = stated.pop((str(row["servers"]), str(row["tools"])), None)
        if figures:
            assert figures[:2] == (f"{row['tokens']:,}", f"{row['context_saved']:.1%}".rstrip("%"))
            dollars = row["dollars_of_eager"]["claude-sonnet-4-6"]
            assert [int(figure) / 100 for figure in figures[2:]] == pytest.approx(dollars, abs=TOLERANCE)
    assert stated == {}


@pytest.mark.parametrize(
    ("mode", "figure"), [("hybrid", r"(\d\d)% of the tools"), ("keyword", r"(\d\d)% by key")]
)
def test_readme_states_the_recall_that_eval_prints(toolfold: Toolfold, mode: str, figure: str) -> None:
    stated = re.search(figure, (ROOT / "README.md").read_text(encoding="utf-8"))
    measured = re.search(r"^ all +\d+ +\S+ +(\S+)", toolfold("eval", "--sample", "--mode", mode).out, re.M)
    assert stated is not None
    assert measured is not None
    assert int(stated[1]) / 100 == pytest.approx(float(measured[1]), abs=0.02)
