"""Settings: defaults, layers, errors, trust in projects, and changes of a file."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
import pydantic
import pytest

from toolfold.config import (
    Config,
    FilesSettings,
    PluginsSettings,
    ToolSearchSettings,
    ToolsSettings,
    build_json_schema,
    describe_settings,
    get_trust_state,
    get_value,
    is_still_trusted,
    load_config,
    load_trusted_projects,
    locate_paths,
    read_file_value,
    replace_settings,
    set_value,
    trust_project,
    unset_value,
    untrust_project,
)
from toolfold.config.atomic import replace_file
from toolfold.core.errors import ConfigError


class Workspace:
    """A temporary home and project directory, independent of the machine the tests run on."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self.project = directory / "project"
        (self.project / ".git").mkdir(parents=True)
        self.home.mkdir()
        self.env = {"TOOLFOLD_HOME": str(self.home), "HOME": str(self.home)}
        self.user_file = self.home / "config.yaml"
        self.project_file = self.project / "toolfold.yaml"

    def load(
        self,
        user: str | None = None,
        project: str | None = None,
        *,
        env: Mapping[str, str] | None = None,
        overrides: Mapping[str, object] | Sequence[str] = (),
        trusted: bool | None = None,
    ) -> Config:
        if user is not None:
            self.user_file.write_text(user)
        if project is not None:
            self.project_file.write_text(project)
        return load_config(
            project=self.project, env={**self.env, **(env or {})}, overrides=overrides, trusted=trusted
        )

    def load_error(self, user: str | None = None, project: str | None = None, **more: Any) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            self.load(user, project, **more)
        return caught.value


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


# Defaults and short forms


def test_settings_have_default_values_without_settings_files_and_environment_variables(
    workspace: Workspace,
) -> None:
    config = workspace.load()
    assert config.tools == ToolsSettings()
    assert config.tools.selection == "auto"
    assert config.tools.rag_top_k == 8
    assert config.tools.tool_search.enabled == "auto"
    assert config.tools.tool_search.reranker.endpoint == "http://localhost:11434/v1/embeddings"
    assert config.tools.enabled_toolsets is None
    assert config.log_level == "warning"
    assert config.warnings == ()


@pytest.mark.parametrize(
    "text", ["", "# nothing yet\n", "---\n", "tools:\n", "tools:\n  tool_search:\n", "\ufeff"]
)
def test_empty_settings_file_or_section_results_in_default_values(workspace: Workspace, text: str) -> None:
    assert workspace.load(text).tools == ToolsSettings()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        *(("true", "auto"), ("yes", "auto"), ("1", "auto"), ("auto", "auto")),
        *(("on", "on"), ("ON", "on"), ("off", "off"), ("false", "off"), ("False", "off")),
    ],
)
def test_setting_tool_search_accepts_on_off_and_auto_instead_of_a_mapping(
    workspace: Workspace, written: str, expected: str
) -> None:
    assert workspace.load(f"tools: {{tool_search: {written}}}").tools.tool_search.enabled == expected


@pytest.mark.parametrize(
    ("written", "message"),
    [("maybe", "'maybe'"), ("5", "5"), ("0.5", "0.5"), ("''", "''"), ("2026-01-01", "'2026-01-01'")],
)
def test_setting_tool_search_rejects_an_unknown_word(
    workspace: Workspace, written: str, message: str
) -> None:
    error = workspace.load_error(f"tools:\n  tool_search: {written}\n")
    assert f"tools.tool_search.enabled must be auto, on or off, not {message} (" in str(error)
    assert error.line == 2


@pytest.mark.parametrize(
    ("written", "expected"),
    [(word, "on") for word in ("on", "true", "yes", "1", "ON", "True", '"1"')]
    + [(word, "off") for word in ("off", "false", "no", "0", "Off", "FALSE", '"no"')]
    + [("auto", "auto"), ("AUTO", "auto")],
)
def test_setting_tool_search_enabled_accepts_common_spellings_of_on_and_off(
    workspace: Workspace, written: str, expected: str
) -> None:
    config = workspace.load(f"tools:\n  tool_search:\n    enabled: {written}\n")
    assert config.tools.tool_search.enabled == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [("embeded", "embedded"), ("Light", "light"), ("lite", "light"), ("auxilary", "auxiliary")],
)
def test_misspelled_embedding_model_causes_a_warning(
    workspace: Workspace, written: str, expected: str
) -> None:
    config = workspace.load(f"tools:\n  rag_embed_model: {written}\n")
    assert config.tools.rag_embed_model == written
    (warning,) = config.warnings
    assert f"did you mean {expected}?" in warning
    assert f"{workspace.user_file}, line 2" in warning


@pytest.mark.parametrize(
    "written", ["embedded", "light", "auxiliary", "embeddinggemma", "nomic-embed-text", "bge-m3", "e5"]
)
def test_embedding_model_name_without_a_misspelling_causes_no_warning(
    workspace: Workspace, written: str
) -> None:
    assert workspace.load(f"tools: {{rag_embed_model: {written}}}").warnings == ()


def test_assigning_to_a_loaded_setting_raises_an_error(workspace: Workspace) -> None:
    config = workspace.load("toolsets: {mine: {tools: [read_file]}}")
    with pytest.raises(pydantic.ValidationError):
        config.tools.rag_top_k = 3
    with pytest.raises(TypeError):
        config.toolsets["other"] = config.toolsets["mine"]
    with pytest.raises(TypeError):
        config.environment["X"] = "1"  # type: ignore[index]


def test_toolset_defined_in_the_settings_contains_its_tools_and_included_toolsets(
    workspace: Workspace,
) -> None:
    config = workspace.load(
        "toolsets:\n  mine: {description: My own, tools: [a], includes: [web]}\n  empty:\n"
    )
    assert config.toolsets["mine"].tools == ("a",)
    assert config.toolsets["mine"].includes == ("web",)
    assert config.toolsets["empty"].tools == ()


def test_relative_paths_in_settings_are_resolved_against_the_directory_of_the_settings_file(
    workspace: Workspace,
) -> None:
    config = workspace.load("files: {workspace: w, extra_roots: [~/notes, /abs]}\n")
    assert config.workspace == workspace.home / "w"
    assert config.files.extra_roots == (workspace.home / "notes", Path("/abs"))
    config = workspace.load("", "files: {workspace: w}", trusted=True)
    assert config.workspace == workspace.project / "w"


def test_default_state_cache_and_plugin_directories_are_inside_the_toolfold_home_directory(
    workspace: Workspace,
) -> None:
    config = workspace.load()
    assert config.workspace == workspace.project
    assert config.plugins_folder == workspace.home / "plugins"
    assert config.paths.state_dir.is_relative_to(workspace.home)
    assert config.paths.cache_dir.is_relative_to(workspace.home)


# Numbers


@pytest.mark.parametrize(
    ("key", "written", "used"),
    [
        ("rag_top_k", "0", 1),
        ("rag_top_k", "99", 50),
        ("rag_top_k", "12.0", 12),
        ("rag_top_k", "12.9", 12),
        ("timeout_seconds", "-5", 0.1),
        ("timeout_seconds", "1e300", 3600),
        ("max_parallel", "9" * 400, 64),
        ("result_max_chars", "5", 1000),
    ],
)
def test_out_of_range_number_in_the_tools_section_is_clamped_to_the_range(
    workspace: Workspace, key: str, written: str, used: float
) -> None:
    config = workspace.load(f"tools:\n  {key}: {written}\n")
    assert getattr(config.tools, key) == used
    assert len(config.warnings) == (0 if written == "12.0" else 1)


def test_out_of_range_number_in_a_section_other_than_tools_is_an_error(workspace: Workspace) -> None:
    with pytest.raises(ConfigError, match=r"approval.timeout_seconds must be"):
        workspace.load("approval:\n  timeout_seconds: 0\n")


def test_warning_for_an_out_of_range_number_names_the_key_file_and_line(workspace: Workspace) -> None:
    config = workspace.load("tools:\n  rag_top_k: 99\n")
    problem = "tools.rag_top_k is 99, but it must be from 1 to 50: 50 is used instead"
    assert config.warnings == (f"{problem} ({workspace.user_file}, line 2)",)
    config = workspace.load("tools:\n  rag_top_k: 9.5\n")
    assert "is 9.5, but it must be a whole number: 9 is used instead" in config.warnings[0]


@pytest.mark.parametrize("written", [".inf", "-.inf", ".nan", "many", "true", "null", "[8]", "{a: 1}", '"8"'])
def test_integer_setting_rejects_text_lists_booleans_and_infinity(workspace: Workspace, written: str) -> None:
    error = workspace.load_error(f"tools:\n  rag_top_k: {written}\n")
    assert "tools.rag_top_k must be a whole number, not" in str(error)
    assert (error.key, error.file, error.line) == ("tools.rag_top_k", str(workspace.user_file), 2)
    assert error.hint == "use a number from 1 to 50"


def test_search_default_limit_above_max_search_limit_is_reduced_to_max_search_limit_with_a_warning(
    workspace: Workspace,
) -> None:
    config = workspace.load("tools:\n  tool_search:\n    search_default_limit: 9\n    max_search_limit: 4\n")
    assert config.tools.tool_search.search_default_limit == 4
    assert "search_default_limit is 9, more than max_search_limit; 4 is used instead" in config.warnings[0]
    assert "line 3" in config.warnings[0]
    assert ToolSearchSettings(max_search_limit=3).search_default_limit == 3


# Errors


def test_error_for_an_unknown_key_suggests_the_closest_key(workspace: Workspace) -> None:
    error = workspace.load_error("tools:\n  tool_search:\n    threshold_pc: 7\n")
    assert str(error) == (
        f"tools.tool_search.threshold_pc is not a setting ({workspace.user_file}, line 3)\n"
        "  did you mean threshold_pct?"
    )
    assert (error.key, error.line) == ("tools.tool_search.threshold_pc", 3)


def test_error_for_a_key_in_the_wrong_section_suggests_the_full_key(workspace: Workspace) -> None:
    assert workspace.load_error("selection: hybrid").hint == "did you mean tools.selection?"


def test_error_for_an_invalid_choice_lists_the_choices(workspace: Workspace) -> None:
    error = workspace.load_error("tools:\n  selection: hybird\n")
    assert "must be auto, eager, hybrid, semantic or keyword, not 'hybird'" in str(error)
    assert error.hint == "did you mean hybrid?"


def test_one_error_message_lists_all_mistakes_of_a_settings_file_in_file_order(workspace: Workspace) -> None:
    error = workspace.load_error("tools:\n  rag_top: 1\n  selection: all\nfoo: 1\n")
    lines = [line for line in str(error).splitlines() if not line.startswith("  ")]
    assert [line.rpartition("line ")[2] for line in lines] == ["2)", "3)", "4)"]
    assert (error.key, error.line) == ("tools.rag_top", 2)


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        (b"tools: [", "not valid YAML", 1),
        (b"tools:\n\tselection: eager", "not valid YAML", 2),
        (b"a: 1\n---\nb: 2\n", "not valid YAML", 2),
        (b"- one\n", "top level of the file must be a mapping", 1),
        (b"just text", "top level of the file must be a mapping", 1),
        (b"tools:\n  rag_top_k: 1\n  rag_top_k: 2\n", "rag_top_k is set twice", 3),
        (b"tools:\n  \xff: 1\n", "not UTF-8 text", 2),
        (b"\xff\xfet\0", "not UTF-8 text", 1),
        (b"1: 2\n", "1 is not the name of a setting", 1),
        (b"? [a]\n: 2\n", "a sequence is not the name of a setting", 1),
        (b"tools: !!python/object:os.system {}\n", "is not supported", 1),
        (b"log_level: !custom x\n", "tag !custom is not supported", 1),
        (b"log_level: \x01\n", "not valid YAML", 1),
        (b'log_level: "\\U00ffffff"\n', "a character that does not exist", None),
        (b"[" * 9_000, "nested too deeply", 1),
        (b"- " * 4_500, "nested too deeply", 1),
        (b"\na: &a [*a]\n", "nested too deeply", 2),
        (b"a: [" + b"1,\n " * 60_000 + b"]", "too many values", 49_997),
        (b"a: 1\nb: !" + b"x" * 10_000, "the line is longer than 10000 characters", 2),
        (b"#" * (1 << 20) + b"\n", "larger than 1 MiB", None),
        (b"tools: {rag_top_k: " + b"9" * 5000 + b"}", "cannot be read as a value", 1),
        (b"tools: {tool_search: 0x" + b"f" * 6000 + b"}", "cannot be read as a value", 1),
    ],
)
def test_error_for_an_invalid_settings_file_names_the_file_and_the_line(
    workspace: Workspace, text: bytes, message: str, line: int | None
) -> None:
    workspace.user_file.write_bytes(text)
    error = workspace.load_error()
    assert message in str(error)
    assert (error.file, error.line) == (str(workspace.user_file), line)


def test_project_settings_file_has_a_lower_size_limit_than_the_user_settings_file(
    workspace: Workspace,
) -> None:
    comments = "# nothing\n" * 7_000
    assert workspace.load(comments).warnings == ()
    error = workspace.load_error("", comments)
    assert "the file is larger than 64 KiB" in str(error)
    assert error.file == str(workspace.project_file)


def test_very_large_number_as_a_settings_override_is_rejected_and_not_printed_in_the_error(
    workspace: Workspace,
) -> None:
    error = workspace.load_error(overrides={"tools.tool_search": 16**6000})
    assert "tools.tool_search.enabled must be auto, on or off, not a very large number" in str(error)


def test_exponentially_expanding_yaml_aliases_in_settings_are_rejected(workspace: Workspace) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 12)]
    assert "aliases expand to too many values" in str(workspace.load_error("\n".join(rows)))


def test_simple_yaml_alias_in_settings_is_accepted(workspace: Workspace) -> None:
    config = workspace.load("tools:\n  disabled: &off [a, b]\n  disabled_toolsets: *off\n")
    assert config.tools.disabled == config.tools.disabled_toolsets == ("a", "b")


def test_loading_an_unreadable_settings_file_raises_config_error(workspace: Workspace) -> None:
    workspace.user_file.mkdir()
    assert "the path is not a regular file" in str(workspace.load_error())
    workspace.user_file.rmdir()
    os.mkfifo(workspace.user_file)
    assert "the path is not a regular file" in str(workspace.load_error())


def test_loading_a_missing_settings_file_that_was_named_explicitly_raises_config_error(
    workspace: Workspace, tmp_path: Path
) -> None:
    error = workspace.load_error(env={"TOOLFOLD_CONFIG": str(tmp_path / "none.yaml")})
    assert "cannot be read: No such file" in str(error)
    assert workspace.load(env={"TOOLFOLD_CONFIG": "/dev/null"}).tools == ToolsSettings()


def test_unquoted_date_in_a_settings_file_is_loaded_as_text(workspace: Workspace) -> None:
    assert workspace.load("tools: {rag_embed_model: 2024-01-01}").tools.rag_embed_model == "2024-01-01"


def test_nul_characters_and_lone_surrogates_in_settings_are_rejected(workspace: Workspace) -> None:
    assert "must be text" in str(workspace.load_error('tools: {rag_embed_model: "a\\0b"}'))
    assert "must be text" in str(workspace.load_error('tools: {rag_embed_model: "\\ud800"}'))
    assert "must be a path" in str(workspace.load_error('files: {workspace: "a\\0b"}'))


def test_toolset_name_with_a_dot_is_rejected(workspace: Workspace) -> None:
    error = workspace.load_error("toolsets:\n  my.set: {tools: [a]}\n")
    assert "'my.set' cannot be the name of a toolset" in str(error)
    assert error.line == 2


# Synonyms


def test_synonyms_setting_maps_tool_or_toolset_names_to_lists_of_phrases(workspace: Workspace) -> None:
    config = workspace.load(
        "tools:\n  synonyms:\n    mcp_jira_create: [ticket, bug report]\n    mcp-github: [repo]\n"
    )
    assert config.tools.synonyms == {"mcp_jira_create": ("ticket", "bug report"), "mcp-github": ("repo",)}
    assert workspace.load("tools:\n  synonyms:\n").tools.synonyms == {}
    with pytest.raises(TypeError):
        config.tools.synonyms["other"] = ()


def test_synonyms_of_user_and_project_settings_are_merged(workspace: Workspace) -> None:
    config = workspace.load(
        "tools: {synonyms: {a: [one], b: [two]}}",
        "tools: {synonyms: {b: [three], c: [four]}}",
        env={"TOOLFOLD_TOOLS__SYNONYMS__D": "five, six seven"},
        overrides=["tools.synonyms.e=[eight]"],
    )
    assert config.tools.synonyms == {
        "a": ("one",),
        "b": ("three",),
        "c": ("four",),
        "d": ("five", "six seven"),
        "e": ("eight",),
    }
    assert get_value(config, "tools.synonyms.d") == ("five", "six seven")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("3", "tools.synonyms must be a mapping of lists, not 3"),
        ("{a: b}", "tools.synonyms.a must be a list of at most 50 words or phrases, not 'b'"),
        ("{a: [3]}", "tools.synonyms.a[0] must be text of 1 to 100 characters, not 3"),
        ("{a: [b, '']}", "tools.synonyms.a[1] must be text of 1 to 100 characters, not ''"),
        (f"{{a: [{'b' * 101}]}}", "tools.synonyms.a[0] must be text of 1 to 100 characters, not 'bbb"),
        (f"{{a: [{'b, ' * 51}]}}", "tools.synonyms.a must be a list of at most 50 words or phrases, not 51"),
        ('{"a\\0": [b]}', "cannot be the name of a tool"),
    ],
)
def test_invalid_synonyms_in_settings_are_rejected(workspace: Workspace, written: str, message: str) -> None:
    error = workspace.load_error(f"tools:\n  synonyms: {written}\n")
    assert message in str(error)
    assert error.line == 2


def test_synonyms_at_the_size_limits_are_accepted(workspace: Workspace) -> None:
    config = workspace.load(f"tools: {{synonyms: {{a: [{', '.join(['b' * 100] * 50)}]}}}}")
    assert config.tools.synonyms["a"] == ("b" * 100,) * 50


def test_synonyms_of_one_tool_can_be_set_and_unset_in_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    set_value(file, "tools.synonyms.mcp_jira_create", "ticket, bug report")
    set_value(file, "tools.synonyms.web", ["page"])
    assert read_file_value(file, "tools.synonyms") == {
        "mcp_jira_create": ["ticket", "bug report"],
        "web": ["page"],
    }
    assert unset_value(file, "tools.synonyms.web")
    assert read_file_value(file, "tools.synonyms") == {"mcp_jira_create": ["ticket", "bug report"]}


@pytest.mark.parametrize("mode", ["keyword", "semantic", "hybrid", "rerank", "Rerank"])
def test_setting_reranker_mode_accepts_keyword_semantic_hybrid_and_rerank_in_any_case(
    workspace: Workspace, mode: str
) -> None:
    config = workspace.load(f"tools: {{tool_search: {{reranker: {{mode: {mode}}}}}}}")
    assert config.tools.tool_search.reranker.mode == mode.lower()


def test_unknown_value_of_reranker_mode_is_rejected(workspace: Workspace) -> None:
    error = workspace.load_error("tools: {tool_search: {reranker: {mode: rerang}}}")
    assert "must be keyword, semantic, hybrid or rerank, not 'rerang'" in str(error)
    assert error.hint == "did you mean rerank?"


# Layers


def test_arguments_override_environment_variables_then_project_file_then_user_file(
    workspace: Workspace,
) -> None:
    layers: list[Callable[[], Config]] = [
        lambda: workspace.load("tools: {selection: hybrid}"),
        lambda: workspace.load(None, "tools: {selection: semantic}"),
        lambda: workspace.load(env={"TOOLFOLD_TOOLS__SELECTION": "keyword"}),
        lambda: workspace.load(
            env={"TOOLFOLD_TOOLS__SELECTION": "keyword"}, overrides=["tools.selection=eager"]
        ),
    ]
    configs = [layer() for layer in layers]
    assert [config.tools.selection for config in configs] == ["hybrid", "semantic", "keyword", "eager"]
    assert [config.origins["tools.selection"] for config in configs] == [
        f"user file {workspace.user_file}:1",
        f"project file {workspace.project_file}:1",
        "environment TOOLFOLD_TOOLS__SELECTION",
        "argument",
    ]
    assert configs[0].origins["tools.rag_top_k"] == "default"


def test_project_settings_extend_mappings_of_user_settings_and_replace_lists(
    workspace: Workspace,
) -> None:
    config = workspace.load(
        "tools: {rag_top_k: 3, pinned: [a, b], tool_search: {threshold_pct: 20}}",
        "tools: {pinned: [c], tool_search: false}",
        trusted=True,
    )
    assert config.tools.rag_top_k == 3
    assert config.tools.pinned == ("c",)
    assert config.tools.tool_search == ToolSearchSettings(enabled="off", threshold_pct=20)


def test_environment_variables_can_set_lists_paths_and_nested_settings(workspace: Workspace) -> None:
    config = workspace.load(
        env={
            "TOOLFOLD_TOOLS__DISABLED": "web, terminal",
            "TOOLFOLD_TOOLS__DISABLED_TOOLSETS": '["x"]',
            "TOOLFOLD_TOOLS__TOOL_SEARCH": "off",
            "TOOLFOLD_TOOLS__TOOL_SEARCH__THRESHOLD_PCT": "3.5",
            "TOOLFOLD_TOOLS__RAG_EMBED_MODEL": "12",
            "TOOLFOLD_FILES__WORKSPACE": "~/w",
            "TOOLFOLD_TOOLSETS__MINE__TOOLS": "a",
            "TOOLFOLD_LOG_LEVEL": "DEBUG",
            "TOOLFOLD_TOOLS__SELECTION": "",
        }
    )
    assert config.tools.disabled == ("web", "terminal")
    assert config.tools.disabled_toolsets == ("x",)
    assert config.tools.tool_search == ToolSearchSettings(enabled="off", threshold_pct=3.5)
    assert config.tools.rag_embed_model == "12"
    assert config.workspace == workspace.home / "w"
    assert config.toolsets["mine"].tools == ("a",)
    assert config.log_level == "debug"
    assert config.tools.selection == "auto"


def test_environment_variable_for_an_unknown_nested_setting_is_an_error(workspace: Workspace) -> None:
    error = workspace.load_error(env={"TOOLFOLD_TOOLS__SELECTON": "hybrid"})
    assert str(error) == (
        "tools.selecton is not a setting (environment TOOLFOLD_TOOLS__SELECTON)\n  did you mean selection?"
    )


def test_misspelled_settings_variable_causes_a_warning_and_unrelated_variables_are_ignored(
    workspace: Workspace,
) -> None:
    config = workspace.load(env={"TOOLFOLD_SESSION": "1", "TOOLFOLD_LOG_LEVL": "debug"})
    assert config.warnings == (
        "TOOLFOLD_LOG_LEVL is not a setting and is ignored. Did you mean TOOLFOLD_LOG_LEVEL?",
    )


def test_setting_overrides_accept_nested_mappings_and_dotted_keys(workspace: Workspace) -> None:
    config = workspace.load(
        overrides={
            "tools": {"rag_top_k": 4, "disabled": ("a",)},
            "files.workspace": Path("/w"),
            "tools.selection": "hybrid",
        }
    )
    assert (config.tools.rag_top_k, config.tools.disabled) == (4, ("a",))
    assert (config.workspace, config.tools.selection) == (Path("/w"), "hybrid")


@pytest.mark.parametrize(
    "overrides",
    [
        ["tools.selection"],
        ["=1"],
        ["tools.rag_top_k=[1"],
        {"tools": {1: 2}},
        {"tools": 5},
        {"": 1},
        ["a.b=1"],
    ],
)
def test_error_for_an_invalid_setting_override_names_the_argument_as_its_origin(
    workspace: Workspace, overrides: Any
) -> None:
    assert "(argument)" in str(workspace.load_error(overrides=overrides))


def test_self_referencing_settings_mapping_is_rejected(workspace: Workspace) -> None:
    loop: dict[str, object] = {}
    loop["tools"] = loop
    assert "nested too deeply" in str(workspace.load_error(overrides=loop))


def test_project_settings_file_is_found_in_parent_directories_up_to_the_repository_root(
    workspace: Workspace,
) -> None:
    below = workspace.project / "src" / "deep"
    below.mkdir(parents=True)
    assert locate_paths(project=below, env=workspace.env).project_file is None
    workspace.project_file.write_text("log_level: info")
    paths = locate_paths(project=below, env=workspace.env)
    assert (paths.project_file, paths.project_dir) == (workspace.project_file, workspace.project)
    (below / ".git").mkdir()
    paths = locate_paths(project=below, env=workspace.env)
    assert (paths.project_file, paths.project_dir) == (None, below)


def test_settings_file_used_as_both_user_and_project_file_is_loaded_only_as_the_user_file(
    workspace: Workspace,
) -> None:
    workspace.project_file.write_text("plugins: {enabled: false}")
    config = load_config(project=workspace.project, env=workspace.env, user_file=workspace.project_file)
    assert config.paths.project_file is None
    assert config.plugins.enabled is False


def test_user_settings_file_is_in_the_platform_configuration_directory_if_toolfold_home_is_not_set(
    workspace: Workspace,
) -> None:
    paths = locate_paths(project=workspace.project, env={})
    assert paths.config_dir.name == "toolfold"
    assert paths.user_file == paths.config_dir / "config.yaml"


# The environment


def test_function_missing_env_returns_the_variables_that_are_unset_or_empty(workspace: Workspace) -> None:
    config = workspace.load(env={"A": "1", "B": ""})
    assert config.missing_env(["A", "B", "C"]) == ("B", "C")


def test_values_of_variables_named_key_or_token_are_absent_from_the_repr_of_the_settings(
    workspace: Workspace,
) -> None:
    config = workspace.load(
        env={
            "OPENAI_API_KEY": "sk-123456789",
            "my_token": "tok-12345",
            "DB_PASSWORD": "short",
            "PATH": "/bin:/usr",
        }
    )
    assert config.secret_values() == ("sk-123456789", "tok-12345")
    assert "sk-123456789" not in repr(config) + config.model_dump_json()


@pytest.mark.parametrize(
    "name",
    ["DB_PASS", "SSHPASS", "MYSQL_PWD", "NPM_AUTH", "SENTRY_DSN", "GITHUB_PAT", "GPG_PASSPHRASE", "A_COOKIE"],
)
def test_values_of_environment_variables_with_common_secret_names_are_treated_as_secrets(
    workspace: Workspace, name: str
) -> None:
    assert workspace.load(env={name: "hunter2-hunter2"}).secret_values() == ("hunter2-hunter2",)


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "SSH_AUTH_SOCK", "GIT_ASKPASS", "PATH", "AUTHOR"])
def test_variables_like_pwd_or_ssh_auth_sock_are_not_treated_as_secrets(
    workspace: Workspace, name: str
) -> None:
    assert workspace.load(env={name: "/home/me/project"}).secret_values() == ()


def test_password_in_a_url_variable_is_treated_as_secret_in_encoded_and_decoded_form(
    workspace: Workspace,
) -> None:
    config = workspace.load(
        env={
            "DATABASE_URL": "postgres://me:hunter2%40hunter@db:5432/app",
            "REDIS_URLS": "redis://:first-of-two@a:1,redis://:second-of-two@b:1",
            "HOMEPAGE_URL": "https://example.org:8080/me@home",
        }
    )
    assert set(config.secret_values()) == {
        "hunter2%40hunter",
        "hunter2@hunter",
        "first-of-two",
        "second-of-two",
    }


# Trust

GRANTING = "files:\n  extra_roots: [data]\ntoolsets:\n  mine: {tools: [a]}\nlog_level: debug\n"


def test_permissions_in_settings_of_an_untrusted_project_are_ignored_with_warnings(
    workspace: Workspace,
) -> None:
    config = workspace.load(None, GRANTING)
    assert config.files.extra_roots == ()
    assert config.toolsets == {}
    assert config.log_level == "warning"
    assert config.project_trusted is False
    assert config.warnings == (
        f"files.extra_roots is ignored until you trust the project ({workspace.project_file}, line 2)",
        f"toolsets is ignored until you trust the project ({workspace.project_file}, line 3)",
        f"log_level is ignored until you trust the project ({workspace.project_file}, line 5)",
    )


@pytest.mark.parametrize("trusted", [False, True])
def test_plugin_settings_in_a_project_file_are_ignored_even_if_the_project_is_trusted(
    workspace: Workspace, trusted: bool
) -> None:
    written = "plugins:\n  folder: tools\n  enabled: true\n  disabled: []\n"
    config = workspace.load("plugins: {enabled: false, disabled: [a]}", written, trusted=trusted)
    assert config.plugins == PluginsSettings(enabled=False, disabled=("a",))
    message = "plugins.folder is ignored in a project: only your own settings file may set it"
    assert config.warnings[0] == f"{message} ({workspace.project_file}, line 2)"
    assert len(config.warnings) == 3


@pytest.mark.parametrize(
    "written",
    [
        "workspace: /etc",
        "workspace: ..",
        "extra_roots: [src, link/deep]",
        "workspace: loop",
        "workspace: loop/x",
    ],
)
def test_trusted_project_cannot_add_a_file_tool_directory_outside_the_project(
    workspace: Workspace, written: str
) -> None:
    (workspace.project / "link").symlink_to("/etc")
    (workspace.project / "loop").symlink_to("loop")
    config = workspace.load(None, f"files:\n  {written}\n", trusted=True)
    assert config.files == FilesSettings()
    key = f"files.{written.partition(':')[0]}"
    assert config.warnings == (
        f"{key} is ignored: it points outside of the project's directory ({workspace.project_file}, line 2)",
    )


def test_additional_file_directory_replaced_by_a_symlink_after_trusting_the_project_is_ignored(
    workspace: Workspace,
) -> None:
    data = workspace.project / "data"
    data.mkdir()
    trust_project(workspace.project, workspace.load(None, "files: {extra_roots: [data]}").paths)
    assert workspace.load().files.extra_roots == (data,)
    data.rmdir()
    data.symlink_to("/etc")
    assert workspace.load().files.extra_roots == ()


LIMITS = [
    "tools.timeout_seconds",
    "tools.max_parallel",
    "tools.result_max_chars",
    "availability.timeout_seconds",
    "availability.grace_seconds",
    "approval.timeout_seconds",
]


@pytest.mark.parametrize("key", LIMITS)
def test_settings_of_an_untrusted_project_can_lower_a_limit_but_not_raise_it(
    workspace: Workspace, key: str
) -> None:
    section, _, name = key.partition(".")
    default = next(each.default for each in describe_settings() if each.key == key)

    def limited(user: float | None, project: float, trusted: bool = False) -> Config:
        mine = "" if user is None else f"{section}: {{{name}: {user}}}"
        return workspace.load(mine, f"{section}: {{{name}: {project}}}", trusted=trusted)

    assert get_value(limited(None, default // 2), key) == default // 2
    assert limited(None, default // 2).warnings == ()
    raised = limited(None, default + 1)
    assert get_value(raised, key) == default
    assert raised.warnings == (
        f"{key} may only be lowered until you trust the project ({workspace.project_file}, line 1)",
    )
    assert get_value(limited(default // 2, default), key) == default // 2
    assert get_value(limited(default + 2, default + 1), key) == default + 1
    assert get_value(limited(None, default + 1, trusted=True), key) == default + 1


def test_already_loaded_project_settings_lose_their_trust_when_a_plugin_of_the_project_changes(
    workspace: Workspace,
) -> None:
    plugin = workspace.project / ".toolfold" / "plugins" / "a.py"
    plugin.parent.mkdir(parents=True)
    plugin.write_text("1")
    assert is_still_trusted(workspace.load()) is False
    trust_project(workspace.project, workspace.load().paths)
    config, vouched = workspace.load(), workspace.load(trusted=True)
    assert is_still_trusted(config) is True
    plugin.write_text("2")
    assert is_still_trusted(config) is False
    assert is_still_trusted(vouched) is True


def test_every_setting_that_grants_permissions_is_ignored_in_an_untrusted_project(
    workspace: Workspace,
) -> None:
    values = {"true or false": "true", "text": "x", "a path or null": "x", "a list of names": "[x]"}
    for setting in describe_settings():
        if setting.grants and "<name>" not in setting.key:
            opened = "".join(f"{{{name}: " for name in setting.key.split("."))
            config = workspace.load(None, opened + values.get(setting.type, "[x]") + "}" * opened.count("{"))
            assert config.origins[setting.key] == "default", setting.key
            assert setting.key in config.warnings[0]


@pytest.mark.parametrize("trusted", [False, True])
def test_project_settings_can_disable_tools_but_not_enable_tools_that_the_user_disabled(
    workspace: Workspace, trusted: bool
) -> None:
    config = workspace.load(
        "tools: {disabled: [a], disabled_toolsets: [x], enabled_toolsets: [web, files]}",
        "tools: {disabled: [b], disabled_toolsets: [], enabled_toolsets: [files, terminal]}",
        trusted=trusted,
    )
    assert config.tools.disabled == ("a", "b")
    assert config.tools.disabled_toolsets == ("x",)
    assert config.tools.enabled_toolsets == ("files",)
    assert config.warnings == ()
    config = workspace.load(
        "tools: {enabled_toolsets: [web]}", "tools: {enabled_toolsets: null}", trusted=trusted
    )
    assert config.tools.enabled_toolsets == ("web",)


def test_untrusted_project_cannot_redefine_a_toolset(workspace: Workspace) -> None:
    config = workspace.load("toolsets: {safe: {tools: [read]}}", "toolsets: {safe: {tools: [terminal]}}")
    assert config.toolsets["safe"].tools == ("read",)


def test_project_loses_trust_when_its_settings_file_changes(workspace: Workspace) -> None:
    paths = workspace.load(None, GRANTING).paths
    assert get_trust_state(workspace.project, paths) == "untrusted"
    trust_project(workspace.project, paths)
    assert get_trust_state(workspace.project, paths) == "trusted"
    config = workspace.load()
    assert config.files.extra_roots == (workspace.project / "data",)
    assert config.log_level == "debug"
    assert config.project_trusted is True
    config = workspace.load(None, GRANTING + "# more\n")
    assert get_trust_state(workspace.project, paths) == "changed"
    assert config.files.extra_roots == ()
    assert "until you trust the project again: it has changed" in config.warnings[0]
    assert untrust_project(workspace.project, paths) is True
    assert untrust_project(workspace.project, paths) is False
    assert load_trusted_projects(paths) == {}


def test_project_loses_trust_when_any_file_in_its_plugin_directory_changes(workspace: Workspace) -> None:
    paths = workspace.load(None, "log_level: info").paths
    plugins = workspace.project / ".toolfold" / "plugins"
    inner = plugins / "one" / "deep"

    def write(file: Path, text: str) -> None:
        file.write_text(text)

    changes: list[Callable[[], object]] = [
        lambda: inner.mkdir(parents=True),
        lambda: write(inner / "a.py", "1"),
        lambda: write(inner / "a.py", "2"),
        lambda: (inner / "a.py").rename(inner / "b.py"),
        lambda: (plugins / "link.py").symlink_to("one/deep/b.py"),
        lambda: (plugins / "link.py").unlink(),
        lambda: (plugins / "link.py").symlink_to("../plugins/one/deep/b.py"),
        lambda: (plugins / "nowhere").symlink_to("missing"),
        lambda: (inner / "b.py").unlink(),
    ]
    for change in changes:
        trust_project(workspace.project, paths)
        assert get_trust_state(workspace.project, paths) == "trusted"
        change()
        assert get_trust_state(workspace.project, paths) == "changed"


def test_project_loses_trust_when_the_target_of_a_symlinked_plugin_changes(
    workspace: Workspace, tmp_path: Path
) -> None:
    paths = workspace.load().paths
    plugins = workspace.project / ".toolfold" / "plugins"
    plugins.mkdir(parents=True)
    (tmp_path / "elsewhere.py").write_text("1")
    (plugins / "p.py").symlink_to(tmp_path / "elsewhere.py")
    trust_project(workspace.project, paths)
    (tmp_path / "elsewhere.py").write_text("2")
    assert get_trust_state(workspace.project, paths) == "changed"


def test_project_with_symlinked_plugin_directories_or_special_files_cannot_be_trusted(
    workspace: Workspace, tmp_path: Path
) -> None:
    paths = workspace.load().paths
    plugins = workspace.project / ".toolfold" / "plugins"
    plugins.parent.mkdir()
    plugins.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="linked plugin directory"):
        trust_project(workspace.project, paths)
    plugins.unlink()
    plugins.mkdir()
    (plugins / "p").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="linked plugin directory"):
        trust_project(workspace.project, paths)
    (plugins / "p").unlink()
    os.mkfifo(plugins / "p")
    with pytest.raises(ConfigError, match="only regular files and directories"):
        trust_project(workspace.project, paths)
    with pytest.raises(ConfigError, match="directory does not exist"):
        trust_project(workspace.project / "none", paths)


def test_trusted_projects_file_is_readable_by_its_owner_only_and_written_without_leftover_files(
    workspace: Workspace,
) -> None:
    paths = workspace.load().paths
    trust_project(workspace.project, paths)
    file = paths.state_dir / "trust.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    left = [
        each for each in paths.state_dir.iterdir() if each.name != "settings"
    ]  # the record of own changes
    assert left == [file]
    assert list(load_trusted_projects(paths)) == [workspace.project.resolve()]


@pytest.mark.parametrize("text", ["{", "[]", '{"/x": 1}', "\xff", "[" * 100_000])
def test_loading_settings_with_a_damaged_trusted_projects_file_is_an_error(
    workspace: Workspace, text: str
) -> None:
    paths = workspace.load().paths
    paths.state_dir.mkdir(parents=True)
    (paths.state_dir / "trust.json").write_text(text, encoding="latin-1")
    assert "trusted projects cannot be read" in str(workspace.load_error(None, GRANTING))


# Changing a file

FILE = """\
# My settings

tools:  # about tools
  selection: eager   # all of them
  disabled:  # off
  - web
  - "terminal"

  # about time
  timeout_seconds: 60

# The end
log_level: info
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(FILE)
    return path


def test_set_value_changes_only_the_given_setting_in_the_settings_file(file: Path) -> None:
    set_value(file, "tools.selection", "hybrid")
    assert file.read_text() == FILE.replace("selection: eager ", "selection: hybrid ")


def test_set_value_that_replaces_a_list_keeps_the_comments_around_it(file: Path) -> None:
    set_value(file, "tools.disabled", ["x y", "null", "z"])
    assert file.read_text() == FILE.replace(
        '  disabled:  # off\n  - web\n  - "terminal"\n', '  disabled: ["x y", "null", z]  # off\n'
    )


def test_set_value_adds_a_new_key_at_the_end_of_its_section_before_the_following_comment(file: Path) -> None:
    set_value(file, "tools.tool_search.threshold_pct", "5")
    assert file.read_text() == FILE.replace(
        "  timeout_seconds: 60\n", "  timeout_seconds: 60\n  tool_search:\n    threshold_pct: 5\n"
    )


def test_set_value_appends_a_new_section_at_the_end_of_the_settings_file(file: Path) -> None:
    set_value(file, "plugins.disabled", "a,b")
    assert file.read_text() == FILE + "plugins:\n  disabled: [a, b]\n"


def test_set_value_creates_missing_file_and_directories(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "config.yaml"
    set_value(file, "tools.rag_top_k", 12)
    assert file.read_text() == "tools:\n  rag_top_k: 12\n"
    assert [each.name for each in file.parent.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tools:\n  # selection: eager\n", "tools:\n  rag_top_k: 3\n  # selection: eager\n"),
        ("tools: {selection: eager}  # c\n", "tools: {selection: eager, rag_top_k: 3}  # c\n"),
        ("{tools: {}}\n", "{tools: {rag_top_k: 3}}\n"),
        ("tools:\n    rag_top_k: 8 # c\n", "tools:\n    rag_top_k: 3 # c\n"),
        ("tools:\n    max_parallel: 8", "tools:\n    max_parallel: 8\n    rag_top_k: 3"),
        ("--- null\n", "--- {tools: {rag_top_k: 3}}\n"),
        ("# only a comment", "# only a comment\ntools:\n  rag_top_k: 3\n"),
        ("'tools':\n  \"rag_top_k\":  4\n", "'tools':\n  \"rag_top_k\":  3\n"),
        ("tools:\r\n  rag_top_k: 8\r\n", "tools:\r\n  rag_top_k: 3\r\n"),
        ("---\ntools:\n  rag_top_k: 8\n...\n", "---\ntools:\n  rag_top_k: 3\n...\n"),
        (
            "tools:\n  rag_embed_model: |-\n    text\n\nlog_level: info\n",
            "tools:\n  rag_embed_model: |-\n    text\n  rag_top_k: 3\n\nlog_level: info\n",
        ),
    ],
)
def test_set_value_keeps_the_yaml_style_newlines_and_comments_of_the_section(
    tmp_path: Path, before: str, after: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(before.encode())
    set_value(file, "tools.rag_top_k", "3")
    assert file.read_bytes().decode() == after


def test_set_value_of_a_tool_search_key_converts_the_value_false_to_a_mapping_with_the_key(
    tmp_path: Path,
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("tools:\n  tool_search: false # quiet\n")
    set_value(file, "tools.tool_search.threshold_pct", 5)
    assert file.read_text() == "tools:\n  tool_search: {enabled: off, threshold_pct: 5} # quiet\n"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tools.selektion", "x", "tools.selektion is not a setting\n  did you mean selection?"),
        ("tools.selection", "x", "tools.selection must be auto, eager, hybrid, semantic or keyword, not 'x'"),
        ("tools.rag_top_k", "[", "this is not valid YAML"),
        ("tools", "5", "tools must be a mapping of settings, not 5"),
        ("", "5", " is not a setting"),
        ("toolsets.a b.tools", "x", "'a b' cannot be the name of a toolset"),
    ],
)
def test_set_value_with_an_invalid_value_leaves_the_settings_file_unchanged(
    file: Path, key: str, value: str, message: str
) -> None:
    before = file.stat()
    with pytest.raises(ConfigError) as caught:
        set_value(file, key, value)
    assert message in str(caught.value)
    assert file.read_text() == FILE
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_set_value_rejects_a_settings_file_that_has_other_errors(file: Path) -> None:
    file.write_text(FILE + "foo: 1\n")
    with pytest.raises(ConfigError, match="foo is not a setting") as caught:
        set_value(file, "tools.selection", "hybrid")
    assert caught.value.line == 14
    assert file.read_text() == FILE + "foo: 1\n"


def test_set_value_refuses_to_change_a_setting_that_is_a_yaml_anchor_or_alias(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    text = "tools:\n  disabled: &off [a]\n  disabled_toolsets: *off\n"
    file.write_text(text)
    for key in ("tools.disabled", "tools.disabled_toolsets"):
        with pytest.raises(ConfigError, match="edit the file by hand"):
            set_value(file, key, "[b]")
        assert file.read_text() == text
    set_value(file, "tools.rag_top_k", 3)
    assert file.read_text() == text + "  rag_top_k: 3\n"


def test_set_value_writes_an_out_of_range_number_and_warns(file: Path) -> None:
    assert "50 is used instead" in set_value(file, "tools.rag_top_k", "99")[0]
    assert "rag_top_k: 99" in file.read_text()


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX")
@pytest.mark.parametrize("mode", [0o644, 0o664, 0o640])
def test_set_value_makes_a_user_settings_file_readable_by_its_owner_only(file: Path, mode: int) -> None:
    file.chmod(mode)
    (remark,) = set_value(file, "log_level", "debug")
    assert f"{mode:04o}" in remark
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert set_value(file, "log_level", "info") == ()


def test_new_user_settings_file_is_readable_by_its_owner_only_even_with_umask_zero(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        set_value(tmp_path / "new.yaml", "log_level", "debug")
        replace_settings(tmp_path / "other.yaml", "log_level: info\n")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.glob("*.yaml")} == {0o600}


def test_set_value_does_not_change_the_file_mode_of_a_project_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "toolfold.yaml"
    file.write_text("log_level: info\n")
    file.chmod(0o644)
    assert set_value(file, "log_level", "debug") == ()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_set_value_on_a_symlinked_settings_file_writes_to_its_target_and_keeps_the_symlink(
    file: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(file.name)
    set_value(link, "log_level", "debug")
    assert link.is_symlink()
    assert "log_level: debug" in file.read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["config.yaml", "link.yaml"]


def test_set_value_refuses_a_project_settings_file_that_is_a_symlink_out_of_the_project(
    workspace: Workspace,
) -> None:
    victim = workspace.home / ".bashrc"
    victim.write_text("# my shell\n")
    workspace.project_file.symlink_to(victim)
    changes: list[Callable[[], object]] = [
        lambda: set_value(workspace.project_file, "tools.rag_top_k", 3),
        lambda: replace_settings(workspace.project_file, "tools: {rag_top_k: 3}\n"),
    ]
    for change in changes:
        with pytest.raises(
            ConfigError, match="the settings file is a link that points outside of the project's directory"
        ):
            change()
    assert victim.read_text() == "# my shell\n"


def test_set_value_accepts_a_project_settings_file_that_is_a_symlink_within_the_project(
    workspace: Workspace,
) -> None:
    (workspace.project / "settings.yaml").write_text("")
    workspace.project_file.symlink_to("settings.yaml")
    set_value(workspace.project_file, "tools.rag_top_k", 3)
    assert (workspace.project / "settings.yaml").read_text() == "tools:\n  rag_top_k: 3\n"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tools", "{selection: eager}"),
        ("tools", "null"),
        ("tools", "{rag_top_k: 1, tool_search: {enabled: on}}"),
        ("tools.tool_search", "{enabled: on}"),
        ("toolsets.mine", "{tools: [b]}"),
    ],
)
def test_set_value_of_a_whole_section_is_rejected_if_it_would_remove_existing_keys(
    tmp_path: Path, key: str, value: str
) -> None:
    file = tmp_path / "config.yaml"
    text = "tools:\n  rag_top_k: 3\n  tool_search: {threshold_pct: 5}\ntoolsets: {mine: {description: x}}\n"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        set_value(file, key, value)
    assert f"{key} contains other settings, which would be lost" in str(caught.value)
    assert (
        caught.value.hint == f"set the parts of {key} one at a time, such as {key}.NAME, or unset {key} first"
    )
    assert file.read_text() == text


def test_set_value_of_a_whole_section_is_accepted_if_it_removes_no_existing_keys(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("tools: {rag_top_k: 3, tool_search: {threshold_pct: 5}}\n")
    set_value(file, "tools.tool_search", "{threshold_pct: 6, enabled: on}")
    assert file.read_text() == "tools: {rag_top_k: 3, tool_search: {threshold_pct: 6, enabled: on}}\n"
    set_value(file, "tools.tool_search", "false")
    assert file.read_text() == "tools: {rag_top_k: 3, tool_search: false}\n"
    set_value(file, "approval", "{timeout_seconds: 5}")
    assert "approval" in file.read_text()


def test_settings_file_that_is_a_symlink_to_itself_is_an_error(tmp_path: Path) -> None:
    link = tmp_path / "config.yaml"
    link.symlink_to("config.yaml")
    with pytest.raises(ConfigError):
        set_value(link, "log_level", "debug")


def test_unset_value_removes_only_the_line_of_that_setting(file: Path) -> None:
    assert unset_value(file, "tools.disabled") is True
    assert file.read_text() == FILE.replace('  disabled:  # off\n  - web\n  - "terminal"\n', "")
    assert unset_value(file, "tools.disabled") is False
    assert unset_value(file, "tools") is True
    assert unset_value(file, "log_level") is True
    assert file.read_text() == "# My settings\n\n\n# The end\n"


def test_unset_value_of_the_last_key_removes_the_section_unless_it_contains_comments(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("tools:\n  tool_search:\n    enabled: on\nlog_level: info\n")
    unset_value(file, "tools.tool_search.enabled")
    assert file.read_text() == "log_level: info\n"
    file.write_text("tools:\n  rag_embed_model: '#'\n")
    unset_value(file, "tools.rag_embed_model")
    assert file.read_text() == ""
    file.write_text("tools:\n  # why\n  rag_top_k: 3\n")
    unset_value(file, "tools.rag_top_k")
    assert file.read_text() == "tools:\n  # why\n"
    file.write_text("{tools: {rag_top_k: 3, max_parallel: 2}}\n")
    unset_value(file, "tools.rag_top_k")
    assert file.read_text() == "{tools: {max_parallel: 2}}\n"


def test_unset_value_removes_unknown_keys_from_the_settings_file(file: Path) -> None:
    file.write_text(FILE + "foo: 1\n")
    assert unset_value(file, "foo") is True
    assert file.read_text() == FILE
    with pytest.raises(ConfigError, match="foo is not a setting"):
        unset_value(file, "foo")


def test_unset_value_does_not_create_a_missing_file(tmp_path: Path) -> None:
    assert unset_value(tmp_path / "a" / "config.yaml", "log_level") is False
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_settings_changed_concurrently_by_several_processes_are_all_saved(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    code = "import sys; from pathlib import Path; from toolfold.config import set_value\n"
    code += "for n in range(5): set_value(Path(sys.argv[1]), f'toolsets.{sys.argv[2]}{n}.tools', '[a]')"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(file), name]) for name in "abcd"]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0, 0]
    config = load_config(project=tmp_path, env={"TOOLFOLD_HOME": str(tmp_path)})
    assert sorted(config.toolsets) == sorted(f"{name}{n}" for name in "abcd" for n in range(5))
    assert list(tmp_path.iterdir()) == [file]


# Describing


def test_description_of_every_setting_states_its_actual_default(workspace: Workspace) -> None:
    settings = {each.key: each for each in describe_settings()}
    assert all(each.description.endswith(".") for each in settings.values())
    assert settings["tools.rag_top_k"].range == "from 1 to 50"
    assert settings["tools.selection"].choices == ("auto", "eager", "hybrid", "semantic", "keyword")
    assert settings["plugins.folder"].grants is True
    assert settings["tools.selection"].grants is False
    config = workspace.load()
    for key, setting in settings.items():
        if "<name>" not in key:
            value = get_value(config, key)
            assert setting.default == (list(value) if isinstance(value, tuple) else value)


def test_get_value_returns_single_settings_whole_sections_and_fields_of_toolsets(
    workspace: Workspace,
) -> None:
    config = workspace.load("toolsets: {mine: {tools: [a]}}")
    assert get_value(config, "tools.rag_top_k") == 8
    assert get_value(config, "tools.tool_search") == ToolSearchSettings()
    assert get_value(config, "toolsets.mine.tools") == ("a",)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("tools.rag_top", "did you mean rag_top_k?"),
        ("toolsets.mime", "did you mean mine?"),
        ("tools.rag_top_k.x", "did you mean tools.rag_top_k?"),
        ("environment", ""),
        ("paths.user_file", ""),
        ("", ""),
    ],
)
def test_get_value_error_for_a_misspelled_key_suggests_the_right_key(
    workspace: Workspace, key: str, hint: str
) -> None:
    config = workspace.load("toolsets: {mine: {tools: [a]}}")
    with pytest.raises(ConfigError, match="is not a setting") as caught:
        get_value(config, key)
    assert hint in caught.value.hint


def test_json_schema_of_the_settings_accepts_every_file_that_can_be_loaded(workspace: Workspace) -> None:
    schema = jsonschema_rs.validator_for(build_json_schema())
    for search in (True, False, {"enabled": "on"}, {"enabled": False}):
        assert schema.is_valid({"tools": {"tool_search": search, "rag_top_k": 3}, "toolsets": {"a": {}}})
    assert schema.is_valid({"tools": {"synonyms": {"a": ["b"]}}})
    assert not schema.is_valid({"tools": {"synonyms": {"a": "b"}}})
    assert not schema.is_valid({"tools": {"synonyms": {"a": ["b" * 101]}}})
    assert not schema.is_valid({"tools": {"rag_top": 3}})
    assert not schema.is_valid({"tools": {"rag_top_k": 99}})
    assert build_json_schema()["$defs"]["PluginsSettings"]["properties"]["folder"]["grants"] is True


def test_replacing_a_settings_file_that_cannot_be_written_raises_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        replace_file(tmp_path / ("x" * 250), b"content")
