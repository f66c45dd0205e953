"""Configured synonyms for tools, toolsets and servers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import RuntimeOpener
from tests.retrieval.catalog import CATALOG, CountingModel, make_tool
from toolfold.core.registry import Registry
from toolfold.selection.retrieval.synonyms import Synonyms
from toolfold.selection.retrieval.tool_search import Mode, Retriever
from toolfold.selection.retrieval.vector_store import VectorFile

JIRA = make_tool("mcp_jira_create_issue", "Create", server="jira", toolset="mcp-jira", synonyms=["task"])


def test_synonyms_can_be_configured_for_a_tool_name_or_toolset_name_or_server_name() -> None:
    for name in ("mcp_jira_create_issue", "mcp-jira", "jira"):
        assert Synonyms({name: ["ticket", "bug report"]}).of(JIRA) == ("ticket", "bug report")
    for name in ("", "mcp_jira", "MCP-JIRA", "mcp_jira_create"):
        assert Synonyms({name: ["ticket"]}).of(JIRA) == ()


def test_synonyms_can_be_configured_by_the_original_tool_name() -> None:
    short = replace(JIRA, name="mcp_jira_abc123", original_name="mcp.jira/create issue")
    assert Synonyms({"mcp.jira/create issue": ["ticket"]}).of(short) == ("ticket",)


def test_synonyms_of_a_tool_and_its_toolset_and_its_server_are_merged_without_duplicates() -> None:
    words = {"mcp-jira": ["tracker", "ticket"], "mcp_jira_create_issue": ["ticket", "bug report"]}
    assert Synonyms(words).of(JIRA) == ("ticket", "bug report", "tracker")


def test_configured_synonyms_are_added_to_the_synonyms_that_the_author_of_a_tool_has_given() -> None:
    (read,) = Synonyms({"jira": ["ticket"]}).add_synonyms([JIRA])
    assert read.synonyms == ("ticket", "task")
    assert replace(read, synonyms=JIRA.synonyms).definition() == JIRA.definition()
    assert JIRA.synonyms == ("task",)


def test_add_synonyms_returns_the_same_object_for_a_tool_without_configured_synonyms() -> None:
    tools = (*CATALOG, JIRA)
    read = Synonyms({"jira": ["ticket"]}).add_synonyms(tools)
    assert [one is other for one, other in zip(tools, read, strict=True)] == [True] * len(CATALOG) + [False]


def test_add_synonyms_returns_the_given_tuple_of_tools_if_no_synonyms_are_configured() -> None:
    tools = (*CATALOG, JIRA)
    assert Synonyms().add_synonyms(tools) is tools
    assert Synonyms({}).add_synonyms(tools) is tools


def test_add_synonyms_returns_the_same_tool_objects_again_for_unchanged_tools() -> None:
    synonyms, before = Synonyms({"jira": ["ticket"]}), (JIRA, CATALOG[0])
    read = synonyms.add_synonyms(before)
    assert synonyms.add_synonyms(before) is read
    later = synonyms.add_synonyms((CATALOG[1], JIRA))
    assert later is not read
    assert later[1] is read[0]


def test_tool_with_configured_synonyms_is_garbage_collected_after_removal_from_the_registry() -> None:
    synonyms, tool = Synonyms({"jira": ["ticket"]}), replace(JIRA)
    gone = weakref.ref(tool)
    synonyms.add_synonyms([tool])
    synonyms.add_synonyms(CATALOG)
    del tool
    gc.collect()
    assert gone() is None


# In a search


def retriever(
    words: Mapping[str, Sequence[str]], counting: CountingModel, folder: Path | None = None
) -> Retriever:
    return Retriever(
        counting.embedder, None, VectorFile(folder) if folder else None, synonyms=Synonyms(words)
    )


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    registry.add_all([*CATALOG, JIRA])
    return registry


@pytest.mark.parametrize("mode", ["keyword", "hybrid"])
@pytest.mark.parametrize("name", ["mcp_jira_create_issue", "mcp-jira", "jira"])
def test_tool_is_found_by_its_configured_synonyms(registry: Registry, name: str, mode: Mode) -> None:
    finder = retriever({name: ["gizmo trouble"]}, CountingModel())
    first = finder.find(registry.snapshot(), "file some gizmo trouble", mode=mode, limit=3)[0]
    assert first.name == "mcp_jira_create_issue"
    assert first.matched == ("gizmo", "trouble")


def test_configured_synonyms_are_part_of_the_embedded_text_of_a_tool(registry: Registry) -> None:
    counting = CountingModel()
    retriever({"jira": ["gizmo trouble"]}, counting).find(
        registry.snapshot(), "hello there", mode="hybrid", limit=3
    )
    assert [text for text in counting.texts if "gizmo trouble" in text] == [
        text for text in counting.texts if "jira" in text
    ]


def test_changing_synonyms_re_embeds_only_the_tools_with_changed_synonyms(
    registry: Registry, tmp_path: Path
) -> None:
    counting = CountingModel()
    for words, texts in (
        ({}, len(CATALOG) + 1),
        ({"jira": ["ticket"]}, 1),
        ({"jira": ["ticket"]}, 0),
        ({"jira": ["bug"], "memory": ["remember"]}, 2),
    ):
        retriever(words, counting, tmp_path).find(registry.snapshot(), "", mode="hybrid", limit=1)
        assert counting.take_count() == texts


def test_configured_synonyms_do_not_change_the_tool_objects_in_the_registry(registry: Registry) -> None:
    before = registry.snapshot().ordered
    retriever({"jira": ["ticket"]}, CountingModel()).find(
        registry.snapshot(), "ticket", mode="hybrid", limit=1
    )
    assert all(one is other for one, other in zip(before, registry.snapshot().ordered, strict=True))
    assert registry.snapshot()["mcp_jira_create_issue"].synonyms == ("task",)


# From the settings


def test_search_of_a_runtime_finds_a_tool_by_a_synonym_from_the_settings(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_test_runtime(
        {"tools.rag_embed_model": "light", "tools.synonyms": {"read_file": ["gizmo"]}}
    )
    snapshot = runtime.registry.snapshot()
    assert runtime.retriever.find(snapshot, "a gizmo please", mode="keyword", limit=1)[0].name == "read_file"
    assert "gizmo" not in snapshot["read_file"].synonyms


def test_misspelt_tool_name_in_the_synonym_settings_gives_a_warning(
    open_test_runtime: RuntimeOpener, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["write_flie", "mcp_github_delete_everything", "read_file", "file"]
    open_test_runtime({"tools.synonyms": {name: ["x"] for name in names}})
    (said,) = [record.getMessage() for record in caplog.records if "synonyms" in record.getMessage()]
    assert said.startswith(
        "tools.synonyms: there is no tool, toolset or server 'write_flie'. Did you mean write_file"
    )


def test_synonyms_configured_for_a_preset_or_user_defined_toolset_cause_a_warning(
    open_test_runtime: RuntimeOpener, caplog: pytest.LogCaptureFixture
) -> None:
    open_test_runtime(
        {"tools.synonyms": {"toolfold-cli": ["x"], "mine": ["y"]}, "toolsets": {"mine": {"tools": []}}}
    )
    assert "'toolfold-cli' is a bundle of other tools and toolsets; add the synonyms" in caplog.text
    assert "'mine' is a bundle" in caplog.text


def test_misspelt_tool_name_in_the_synonyms_gives_a_warning_when_a_similar_tool_is_registered_later(
    open_test_runtime: RuntimeOpener, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("mcp_jira_creat_issue", "mcp_jira_create_issue", "zzz")
    runtime = open_test_runtime({"tools.synonyms": {name: ["x"] for name in names}})
    assert "tools.synonyms" not in caplog.text
    for tool in (JIRA, CATALOG[0], CATALOG[1]):
        runtime.registry.add(tool)
        runtime.session()
    (said,) = [record.getMessage() for record in caplog.records if "synonyms" in record.getMessage()]
    assert said.startswith(
        "tools.synonyms: there is no tool, toolset or server 'mcp_jira_creat_issue'. Did you mean mcp_jira"
    )
