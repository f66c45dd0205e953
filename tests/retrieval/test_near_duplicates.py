"""The same tool on several servers does not fill the list of hits."""

from __future__ import annotations

from tests.cases import check_cases
from tests.retrieval.catalog import CATALOG, make_tool
from toolfold.selection.retrieval.embedding import Embedder, LightEmbedder
from toolfold.selection.retrieval.index import Index
from toolfold.selection.retrieval.indexing import Indexer
from toolfold.selection.retrieval.tool_search import Mode, Searcher

DUPLICATES = [
    make_tool(
        f"mcp_disk{number}_read_file",
        "Read the whole text of a file on the disk",
        {"path": {"type": "string"}},
        server=f"disk{number}",
    )
    for number in range(6)
]
OTHER_TOOLS = [
    make_tool("mcp_notes_search", "Find a note by the text in it", server="notes"),
    make_tool("mcp_pdf_pages", "Read the pages of a PDF file as text", server="pdf"),
    make_tool("mcp_disk1_write_file", "Write text into a file on the disk", server="disk1"),
]
LIGHT = LightEmbedder()


def search_names(message: str, mode: Mode, limit: int, model: Embedder | None = LIGHT) -> list[str]:
    index: Index = Indexer(model, None).index([*CATALOG, *DUPLICATES, *OTHER_TOOLS])
    return [hit.name for hit in Searcher(model, None).search(index, message, mode=mode, limit=limit)]


@check_cases("mode", ["keyword", "semantic", "hybrid"])
def test_only_two_of_many_duplicate_tools_are_among_the_first_five_hits(mode: Mode) -> None:
    names = search_names("read the text of a file", mode, 5)
    assert sum(name.endswith("_read_file") for name in names) == 2
    assert names[0].endswith("_read_file")
    assert "mcp_pdf_pages" in names


def test_only_two_duplicate_tools_are_among_the_first_five_hits_without_an_embedding_model() -> None:
    names = search_names("read the text of a file", "keyword", 5, None)
    assert sum(name.endswith("_read_file") for name in names) == 2


def test_all_duplicate_tools_are_among_the_first_fifty_hits() -> None:
    names = search_names("read the text of a file", "keyword", 50)
    assert {tool.name for tool in DUPLICATES} <= set(names)


def test_duplicate_tool_of_the_server_named_in_the_message_ranks_before_other_duplicates() -> None:
    assert search_names("use mcp_disk4_read_file for this file", "hybrid", 5)[0] == "mcp_disk4_read_file"
    assert search_names("read the text of a file with disk3", "keyword", 5)[0] == "mcp_disk3_read_file"


def test_read_and_write_tools_of_one_server_are_not_treated_as_duplicates() -> None:
    names = search_names("write or read a file on the disk", "keyword", 3)
    assert "mcp_disk1_write_file" in names
