"""The documentation site has a page for every linked file of the repository, and its links are checked."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))
site_hooks = pytest.importorskip("site_hooks", exc_type=ImportError)


def write_pages(site: Path, **pages: str) -> list[str]:
    """Write pages of a site and return the problems found in them."""
    for name, text in pages.items():
        (site / f"{name}.html").write_text(text, encoding="utf-8")
    return list(site_hooks.check_pages(site))


def test_link_from_docs_to_a_repository_file_is_rewritten_to_the_site_page_of_that_file() -> None:
    text = site_hooks.rewrite_links("[an example](../examples/quickstart.py)", "docs/tools.md")
    assert text == "[an example](files/examples/quickstart.py.md)"


def test_link_from_contributing_md_into_docs_is_rewritten_to_the_site_page() -> None:
    text = site_hooks.rewrite_links("[Tests](docs/testing.md#record)", "CONTRIBUTING.md")
    assert text == "[Tests](../testing.md#record)"


def test_links_inside_code_spans_and_code_blocks_of_a_page_are_not_rewritten() -> None:
    text = "`[a](../examples/quickstart.py)`\n\n```md\n[a](../examples/quickstart.py)\n```\n"
    assert site_hooks.rewrite_links(text, "docs/tools.md") == text


def test_link_to_a_repository_file_whose_text_is_a_code_span_is_rewritten() -> None:
    text = site_hooks.rewrite_links("[`thorough.py`](../tests/thorough.py)", "docs/testing.md")
    assert text == "[`thorough.py`](files/tests/thorough.py.md)"


def test_site_check_reports_links_to_missing_pages_and_missing_anchors(tmp_path: Path) -> None:
    problems = write_pages(
        tmp_path,
        a='<h2 id="top">A</h2><a href="b.html#there">b</a> <a href="#top">top</a>',
        b='<h2 id="here">B</h2><a href="missing.html">x</a> <a href="a.html#gone">a</a>',
    )
    assert problems == [
        "a.html: b.html#there: the page has no such anchor",
        "b.html: missing.html does not exist",
        "b.html: a.html#gone: the page has no such anchor",
    ]


def test_site_check_reports_a_page_that_loads_a_file_from_another_server(tmp_path: Path) -> None:
    problems = write_pages(
        tmp_path, a='<a href="https://example.org">x</a><img src="https://example.org/i.png">'
    )
    assert problems == ["a.html: <img> loads https://example.org/i.png from another server"]


def test_escaped_vertical_bar_in_table_code_is_rendered_without_the_backslash() -> None:
    assert site_hooks.unescape_bars(r"| `a \| b` | c \| d |") == r"| `a | b` | c \| d |"


def test_generated_reference_pages_describe_every_public_name_command_setting_and_event() -> None:
    site_reference = importlib.import_module("site_reference")

    import toolfold
    from toolfold.cli.app import COMMANDS
    from toolfold.config.describe import describe_settings
    from toolfold.core.events import Event

    api, commands = site_reference.render_api(), site_reference.render_commands()
    settings, events = site_reference.render_settings(), site_reference.render_events()
    assert [name for name in toolfold.__all__ if f"### {name}\n" not in api] == []
    assert [name for name in COMMANDS if f"## toolfold {name}\n" not in commands] == []
    assert "### toolfold mcp add\n" in commands
    assert [each.key for each in describe_settings() if f"| `{each.key}` |" not in settings] == []
    assert [
        each.__name__
        for each in Event.__subclasses__()
        if each.__module__ == "toolfold.core.events" and f"## {each.__name__}\n" not in events
    ] == []


def test_leaderboard_uses_only_test_sets_that_were_not_used_to_train_models_of_toolfold() -> None:
    leaderboard = importlib.import_module("site_leaderboard")
    page = leaderboard.render_leaderboard()
    before, heading, after = page.partition("## Recall@5 of the other projects")
    assert "| **Toolfold** |" in before
    assert heading
    assert "| **Toolfold**" not in after.partition("\n## ")[0]
    measured = {row["set"] for row in leaderboard.read_results() if not row["seen"] and row["messages"]}
    assert measured == {"sample"}


def test_leaderboard_states_the_reason_if_a_retriever_has_no_figures_for_a_test_set() -> None:
    leaderboard = importlib.import_module("site_leaderboard")
    row = {
        "set": "large",
        "messages": 100,
        "systems": {
            "slow": {"problem": "too slow: 3 of 100 messages"},
            "part": {"R@5": 0.5, "messages": 60},
            "whole": {"R@5": 0.5, "messages": 100},
        },
    }
    text = "\n".join(leaderboard.render_missing([row]))
    assert "| large | `slow` | too slow: 3 of 100 messages |" in text
    assert "| large | `part` | figures of the first 60 messages |" in text
    assert "whole" not in text
