"""Words that people use for tools."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Opened
from tests.retrieval.catalog import CATALOG, Counting, made
from toolfold.registry import Registry
from toolfold.retrieval.search import Mode, Retriever
from toolfold.retrieval.synonyms import Synonyms

JIRA = made("mcp_jira_create_issue", "Create", server="jira", toolset="mcp-jira", synonyms=["task"])


def test_a_tool_is_known_by_its_name_its_toolset_and_its_server() -> None:
    for name in ("mcp_jira_create_issue", "mcp-jira", "jira"):
        assert Synonyms({name: ["ticket", "bug report"]}).of(JIRA) == ("ticket", "bug report")
    for name in ("", "mcp_jira", "MCP-JIRA", "mcp_jira_create"):
        assert Synonyms({name: ["ticket"]}).of(JIRA) == ()


def test_a_tool_is_known_by_the_name_its_author_gave_it() -> None:
    short = replace(JIRA, name="mcp_jira_abc123", original_name="mcp.jira/create issue")
    assert Synonyms({"mcp.jira/create issue": ["ticket"]}).of(short) == ("ticket",)


def test_all_words_for_a_tool_come_together_each_once() -> None:
    words = {"mcp-jira": ["tracker", "ticket"], "mcp_jira_create_issue": ["ticket", "bug report"]}
    assert Synonyms(words).of(JIRA) == ("ticket", "bug report", "tracker")


def test_words_are_added_to_the_authors_own_and_to_nothing_else() -> None:
    (read,) = Synonyms({"jira": ["ticket"]}).added_to([JIRA])
    assert read.synonyms == ("ticket", "task")
    assert replace(read, synonyms=JIRA.synonyms).definition() == JIRA.definition()
    assert JIRA.synonyms == ("task",)


def test_tools_without_words_are_the_very_same_tools() -> None:
    tools = (*CATALOG, JIRA)
    read = Synonyms({"jira": ["ticket"]}).added_to(tools)
    assert [one is other for one, other in zip(tools, read, strict=True)] == [True] * len(CATALOG) + [False]


def test_without_any_words_the_sequence_is_the_very_same() -> None:
    tools = (*CATALOG, JIRA)
    assert Synonyms().added_to(tools) is tools
    assert Synonyms({}).added_to(tools) is tools


def test_what_did_not_change_keeps_its_identity() -> None:
    synonyms, before = Synonyms({"jira": ["ticket"]}), (JIRA, CATALOG[0])
    read = synonyms.added_to(before)
    assert synonyms.added_to(before) is read
    later = synonyms.added_to((CATALOG[1], JIRA))
    assert later is not read
    assert later[1] is read[0]


def test_a_tool_that_is_gone_is_not_kept() -> None:
    synonyms, tool = Synonyms({"jira": ["ticket"]}), replace(JIRA)
    gone = weakref.ref(tool)
    synonyms.added_to([tool])
    synonyms.added_to(CATALOG)
    del tool
    gc.collect()
    assert gone() is None


# In a search


def retriever(
    words: Mapping[str, Sequence[str]], counting: Counting, folder: Path | None = None
) -> Retriever:
    return Retriever(counting.embedder, None, folder, synonyms=Synonyms(words))


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    registry.add_all([*CATALOG, JIRA])
    return registry


@pytest.mark.parametrize("mode", ["keyword", "hybrid"])
@pytest.mark.parametrize("name", ["mcp_jira_create_issue", "mcp-jira", "jira"])
def test_a_tool_is_found_by_words_that_only_its_user_says(registry: Registry, name: str, mode: Mode) -> None:
    finder = retriever({name: ["gizmo trouble"]}, Counting())
    first = finder.find(registry.snapshot(), "file some gizmo trouble", mode=mode, limit=3)[0]
    assert first.name == "mcp_jira_create_issue"
    assert first.matched == ("gizmo", "trouble")


def test_the_semantic_leg_reads_the_words_too(registry: Registry) -> None:
    counting = Counting()
    retriever({"jira": ["gizmo trouble"]}, counting).find(
        registry.snapshot(), "hello there", mode="hybrid", limit=3
    )
    assert [text for text in counting.texts if "gizmo trouble" in text] == [
        text for text in counting.texts if "jira" in text
    ]


def test_other_words_embed_only_the_tools_they_are_for(registry: Registry, tmp_path: Path) -> None:
    counting = Counting()
    for words, texts in (
        ({}, len(CATALOG) + 1),
        ({"jira": ["ticket"]}, 1),
        ({"jira": ["ticket"]}, 0),
        ({"jira": ["bug"], "memory": ["remember"]}, 2),
    ):
        retriever(words, counting, tmp_path).find(registry.snapshot(), "", mode="hybrid", limit=1)
        assert counting.asked() == texts


def test_the_registry_keeps_its_tools_as_they_were(registry: Registry) -> None:
    before = registry.snapshot().ordered
    retriever({"jira": ["ticket"]}, Counting()).find(registry.snapshot(), "ticket", mode="hybrid", limit=1)
    assert all(one is other for one, other in zip(before, registry.snapshot().ordered, strict=True))
    assert registry.snapshot()["mcp_jira_create_issue"].synonyms == ("task",)


# From the settings


def test_a_runtime_finds_tools_by_the_words_of_its_settings(opened: Opened) -> None:
    runtime = opened({"tools.rag_embed_model": "light", "tools.synonyms": {"read_file": ["gizmo"]}})
    snapshot = runtime.registry.snapshot()
    assert runtime.retriever.find(snapshot, "a gizmo please", mode="keyword", limit=1)[0].name == "read_file"
    assert "gizmo" not in snapshot["read_file"].synonyms


def test_a_misspelt_name_is_pointed_out(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    names = ["write_flie", "mcp_github_delete_everything", "read_file", "file"]
    opened({"tools.synonyms": {name: ["x"] for name in names}})
    (said,) = [record.getMessage() for record in caplog.records if "synonyms" in record.getMessage()]
    assert said.startswith(
        "tools.synonyms: there is no tool, toolset or server 'write_flie'. Did you mean write_file"
    )


def test_a_bundle_has_no_words_of_its_own_and_that_is_pointed_out(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    opened({"tools.synonyms": {"toolfold-cli": ["x"], "mine": ["y"]}, "toolsets": {"mine": {"tools": []}}})
    assert "'toolfold-cli' is a bundle; name its tools" in caplog.text
    assert "'mine' is a bundle" in caplog.text


def test_a_misspelt_name_is_pointed_out_when_its_tool_arrives(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("mcp_jira_creat_issue", "mcp_jira_create_issue", "zzz")
    runtime = opened({"tools.synonyms": {name: ["x"] for name in names}})
    assert "tools.synonyms" not in caplog.text
    for tool in (JIRA, CATALOG[0], CATALOG[1]):
        runtime.registry.add(tool)
        runtime.session()
    (said,) = [record.getMessage() for record in caplog.records if "synonyms" in record.getMessage()]
    assert said.startswith(
        "tools.synonyms: there is no tool, toolset or server 'mcp_jira_creat_issue'. Did you mean mcp_jira"
    )
