"""Settings: what they are, where they come from, what is said when one is wrong."""

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
from toolfold.errors import ConfigError


class Place:
    """A home and a project of their own, and nothing of the machine the tests run on."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.project = folder / "project"
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

    def refusal(self, user: str | None = None, project: str | None = None, **more: Any) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            self.load(user, project, **more)
        return caught.value


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# Defaults and shapes


def test_nothing_written_gives_the_defaults(place: Place) -> None:
    config = place.load()
    assert config.tools == ToolsSettings()
    assert config.tools.selection == "eager"
    assert config.tools.rag_top_k == 8
    assert config.tools.tool_search.enabled == "auto"
    assert config.tools.tool_search.reranker.endpoint == "http://localhost:11434/v1/embeddings"
    assert config.tools.enabled_toolsets is None
    assert config.log_level == "warning"
    assert config.warnings == ()


@pytest.mark.parametrize(
    "text", ["", "# nothing yet\n", "---\n", "tools:\n", "tools:\n  tool_search:\n", "\ufeff"]
)
def test_an_empty_file_or_section_says_nothing(place: Place, text: str) -> None:
    assert place.load(text).tools == ToolsSettings()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *(("true", "auto"), ("yes", "auto"), ("1", "auto"), ("auto", "auto")),
        *(("on", "on"), ("ON", "on"), ("off", "off"), ("false", "off"), ("False", "off")),
    ],
)
def test_tool_search_may_be_one_word(place: Place, written: str, meant: str) -> None:
    assert place.load(f"tools: {{tool_search: {written}}}").tools.tool_search.enabled == meant


@pytest.mark.parametrize(
    ("written", "said"),
    [("maybe", "'maybe'"), ("5", "5"), ("0.5", "0.5"), ("''", "''"), ("2026-01-01", "'2026-01-01'")],
)
def test_any_other_word_for_tool_search_is_refused(place: Place, written: str, said: str) -> None:
    error = place.refusal(f"tools:\n  tool_search: {written}\n")
    assert f"tools.tool_search.enabled must be auto, on or off, not {said} (" in str(error)
    assert error.line == 2


@pytest.mark.parametrize(
    ("written", "meant"),
    [(word, "on") for word in ("on", "true", "yes", "1", "ON", "True", '"1"')]
    + [(word, "off") for word in ("off", "false", "no", "0", "Off", "FALSE", '"no"')]
    + [("auto", "auto"), ("AUTO", "auto")],
)
def test_enabled_takes_every_usual_spelling(place: Place, written: str, meant: str) -> None:
    config = place.load(f"tools:\n  tool_search:\n    enabled: {written}\n")
    assert config.tools.tool_search.enabled == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [("embeded", "embedded"), ("Light", "light"), ("lite", "light"), ("auxilary", "auxiliary")],
)
def test_a_misspelt_embedding_model_is_pointed_out(place: Place, written: str, meant: str) -> None:
    config = place.load(f"tools:\n  rag_embed_model: {written}\n")
    assert config.tools.rag_embed_model == written
    (warning,) = config.warnings
    assert f"did you mean {meant}?" in warning
    assert f"{place.user_file}, line 2" in warning


@pytest.mark.parametrize(
    "written", ["embedded", "light", "auxiliary", "embeddinggemma", "nomic-embed-text", "bge-m3", "e5"]
)
def test_the_name_of_a_model_is_no_slip(place: Place, written: str) -> None:
    assert place.load(f"tools: {{rag_embed_model: {written}}}").warnings == ()


def test_the_tree_cannot_be_changed(place: Place) -> None:
    config = place.load("toolsets: {mine: {tools: [read_file]}}")
    with pytest.raises(pydantic.ValidationError):
        config.tools.rag_top_k = 3
    with pytest.raises(TypeError):
        config.toolsets["other"] = config.toolsets["mine"]
    with pytest.raises(TypeError):
        config.environment["X"] = "1"  # type: ignore[index]


def test_toolsets_are_bundles_by_name(place: Place) -> None:
    config = place.load("toolsets:\n  mine: {description: My own, tools: [a], includes: [web]}\n  empty:\n")
    assert config.toolsets["mine"].tools == ("a",)
    assert config.toolsets["mine"].includes == ("web",)
    assert config.toolsets["empty"].tools == ()


def test_relative_paths_start_where_they_are_written(place: Place) -> None:
    config = place.load("files: {workspace: w, extra_roots: [~/notes, /abs]}\n")
    assert config.workspace == place.home / "w"
    assert config.files.extra_roots == (place.home / "notes", Path("/abs"))
    config = place.load("", "files: {workspace: w}", trusted=True)
    assert config.workspace == place.project / "w"


def test_folders_have_defaults(place: Place) -> None:
    config = place.load()
    assert config.workspace == place.project
    assert config.plugins_folder == place.home / "plugins"
    assert config.paths.state_dir.is_relative_to(place.home)
    assert config.paths.cache_dir.is_relative_to(place.home)


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
def test_a_number_out_of_range_is_clamped(place: Place, key: str, written: str, used: float) -> None:
    config = place.load(f"tools:\n  {key}: {written}\n")
    assert getattr(config.tools, key) == used
    assert len(config.warnings) == (0 if written == "12.0" else 1)


def test_a_number_out_of_range_elsewhere_is_an_error(place: Place) -> None:
    with pytest.raises(ConfigError, match=r"approval.timeout_seconds must be"):
        place.load("approval:\n  timeout_seconds: 0\n")


def test_the_warning_of_a_clamped_number_names_key_file_and_line(place: Place) -> None:
    config = place.load("tools:\n  rag_top_k: 99\n")
    assert config.warnings == (
        f"tools.rag_top_k is 99, but it must be from 1 to 50: 50 is used instead ({place.user_file}, line 2)",
    )
    config = place.load("tools:\n  rag_top_k: 9.5\n")
    assert "is 9.5, but it must be a whole number: 9 is used instead" in config.warnings[0]


@pytest.mark.parametrize("written", [".inf", "-.inf", ".nan", "many", "true", "null", "[8]", "{a: 1}", '"8"'])
def test_what_is_no_whole_number_is_an_error(place: Place, written: str) -> None:
    error = place.refusal(f"tools:\n  rag_top_k: {written}\n")
    assert "tools.rag_top_k must be a whole number, not" in str(error)
    assert (error.key, error.file, error.line) == ("tools.rag_top_k", str(place.user_file), 2)
    assert error.hint == "use a number from 1 to 50"


def test_the_default_search_limit_never_exceeds_the_limit(place: Place) -> None:
    config = place.load("tools:\n  tool_search:\n    search_default_limit: 9\n    max_search_limit: 4\n")
    assert config.tools.tool_search.search_default_limit == 4
    assert "search_default_limit is 9, more than max_search_limit; 4 is used instead" in config.warnings[0]
    assert "line 3" in config.warnings[0]
    assert ToolSearchSettings(max_search_limit=3).search_default_limit == 3


# Errors


def test_an_unknown_key_reads_like_a_sentence_with_a_hint(place: Place) -> None:
    error = place.refusal("tools:\n  tool_search:\n    threshold_pc: 7\n")
    assert str(error) == (
        f"tools.tool_search.threshold_pc is not a setting ({place.user_file}, line 3)\n"
        "  did you mean threshold_pct?"
    )
    assert (error.key, error.line) == ("tools.tool_search.threshold_pc", 3)


def test_a_key_in_the_wrong_section_is_pointed_to_the_right_one(place: Place) -> None:
    assert place.refusal("selection: hybrid").hint == "did you mean tools.selection?"


def test_a_wrong_choice_lists_the_choices(place: Place) -> None:
    error = place.refusal("tools:\n  selection: hybird\n")
    assert "must be eager, hybrid, semantic or keyword, not 'hybird'" in str(error)
    assert error.hint == "did you mean hybrid?"


def test_all_problems_are_told_at_once_in_the_order_of_the_file(place: Place) -> None:
    error = place.refusal("tools:\n  rag_top: 1\n  selection: all\nfoo: 1\n")
    lines = [line for line in str(error).splitlines() if not line.startswith("  ")]
    assert [line.rpartition("line ")[2] for line in lines] == ["2)", "3)", "4)"]
    assert (error.key, error.line) == ("tools.rag_top", 2)


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        (b"tools: [", "not valid YAML", 1),
        (b"tools:\n\tselection: eager", "not valid YAML", 2),
        (b"a: 1\n---\nb: 2\n", "not valid YAML", 2),
        (b"- one\n", "must be a map of settings", 1),
        (b"just text", "must be a map of settings", 1),
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
def test_a_broken_file_is_an_error_with_its_place(
    place: Place, text: bytes, said: str, line: int | None
) -> None:
    place.user_file.write_bytes(text)
    error = place.refusal()
    assert said in str(error)
    assert (error.file, error.line) == (str(place.user_file), line)


def test_a_project_file_may_be_smaller_than_your_own(place: Place) -> None:
    comments = "# nothing\n" * 7_000
    assert place.load(comments).warnings == ()
    error = place.refusal("", comments)
    assert "the file is larger than 64 KiB" in str(error)
    assert error.file == str(place.project_file)


def test_a_number_too_long_to_print_is_an_error_wherever_it_comes_from(place: Place) -> None:
    error = place.refusal(overrides={"tools.tool_search": 16**6000})
    assert "tools.tool_search.enabled must be auto, on or off, not a very large number" in str(error)


def test_aliases_cannot_make_a_small_file_large(place: Place) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 12)]
    assert "aliases expand to too many values" in str(place.refusal("\n".join(rows)))


def test_a_modest_alias_is_fine(place: Place) -> None:
    config = place.load("tools:\n  disabled: &off [a, b]\n  disabled_toolsets: *off\n")
    assert config.tools.disabled == config.tools.disabled_toolsets == ("a", "b")


def test_what_cannot_be_read_is_an_error(place: Place) -> None:
    place.user_file.mkdir()
    assert "this is not a file" in str(place.refusal())
    place.user_file.rmdir()
    os.mkfifo(place.user_file)
    assert "this is not a file" in str(place.refusal())


def test_a_file_that_was_asked_for_must_exist(place: Place, tmp_path: Path) -> None:
    error = place.refusal(env={"TOOLFOLD_CONFIG": str(tmp_path / "none.yaml")})
    assert "cannot be read: No such file" in str(error)
    assert place.load(env={"TOOLFOLD_CONFIG": "/dev/null"}).tools == ToolsSettings()


def test_dates_and_odd_words_are_text(place: Place) -> None:
    assert place.load("tools: {rag_embed_model: 2024-01-01}").tools.rag_embed_model == "2024-01-01"


def test_text_that_nothing_could_show_is_refused(place: Place) -> None:
    assert "must be text" in str(place.refusal('tools: {rag_embed_model: "a\\0b"}'))
    assert "must be text" in str(place.refusal('tools: {rag_embed_model: "\\ud800"}'))
    assert "must be a path" in str(place.refusal('files: {workspace: "a\\0b"}'))


def test_a_toolset_name_with_a_dot_is_refused(place: Place) -> None:
    error = place.refusal("toolsets:\n  my.set: {tools: [a]}\n")
    assert "'my.set' cannot be the name of a toolset" in str(error)
    assert error.line == 2


# Synonyms


def test_synonyms_are_lists_of_phrases_by_name(place: Place) -> None:
    config = place.load(
        "tools:\n  synonyms:\n    mcp_jira_create: [ticket, bug report]\n    mcp-github: [repo]\n"
    )
    assert config.tools.synonyms == {"mcp_jira_create": ("ticket", "bug report"), "mcp-github": ("repo",)}
    assert place.load("tools:\n  synonyms:\n").tools.synonyms == {}
    with pytest.raises(TypeError):
        config.tools.synonyms["other"] = ()


def test_synonyms_of_all_layers_come_together(place: Place) -> None:
    config = place.load(
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
    ("written", "said"),
    [
        ("3", "tools.synonyms must be a map of lists, not 3"),
        ("{a: b}", "tools.synonyms.a must be a list of at most 50 words or phrases, not 'b'"),
        ("{a: [3]}", "tools.synonyms.a[0] must be text of 1 to 100 characters, not 3"),
        ("{a: [b, '']}", "tools.synonyms.a[1] must be text of 1 to 100 characters, not ''"),
        (f"{{a: [{'b' * 101}]}}", "tools.synonyms.a[0] must be text of 1 to 100 characters, not 'bbb"),
        (f"{{a: [{'b, ' * 51}]}}", "tools.synonyms.a must be a list of at most 50 words or phrases, not 51"),
        ('{"a\\0": [b]}', "cannot be the name of a tool"),
    ],
)
def test_synonyms_that_cannot_be_used_are_refused(place: Place, written: str, said: str) -> None:
    error = place.refusal(f"tools:\n  synonyms: {written}\n")
    assert said in str(error)
    assert error.line == 2


def test_the_longest_and_most_synonyms_are_taken(place: Place) -> None:
    config = place.load(f"tools: {{synonyms: {{a: [{', '.join(['b' * 100] * 50)}]}}}}")
    assert config.tools.synonyms["a"] == ("b" * 100,) * 50


def test_synonyms_are_set_and_unset_by_name(tmp_path: Path) -> None:
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
def test_a_tool_search_has_one_of_four_modes(place: Place, mode: str) -> None:
    config = place.load(f"tools: {{tool_search: {{reranker: {{mode: {mode}}}}}}}")
    assert config.tools.tool_search.reranker.mode == mode.lower()


def test_a_mode_no_search_has_is_refused(place: Place) -> None:
    error = place.refusal("tools: {tool_search: {reranker: {mode: rerang}}}")
    assert "must be keyword, semantic, hybrid or rerank, not 'rerang'" in str(error)
    assert error.hint == "did you mean rerank?"


# Layers


def test_each_layer_wins_over_the_one_before(place: Place) -> None:
    layers: list[Callable[[], Config]] = [
        lambda: place.load("tools: {selection: hybrid}"),
        lambda: place.load(None, "tools: {selection: semantic}"),
        lambda: place.load(env={"TOOLFOLD_TOOLS__SELECTION": "keyword"}),
        lambda: place.load(env={"TOOLFOLD_TOOLS__SELECTION": "keyword"}, overrides=["tools.selection=eager"]),
    ]
    configs = [layer() for layer in layers]
    assert [config.tools.selection for config in configs] == ["hybrid", "semantic", "keyword", "eager"]
    assert [config.origins["tools.selection"] for config in configs] == [
        f"user file {place.user_file}:1",
        f"project file {place.project_file}:1",
        "environment TOOLFOLD_TOOLS__SELECTION",
        "argument",
    ]
    assert configs[0].origins["tools.rag_top_k"] == "default"


def test_maps_merge_and_lists_replace(place: Place) -> None:
    config = place.load(
        "tools: {rag_top_k: 3, pinned: [a, b], tool_search: {threshold_pct: 20}}",
        "tools: {pinned: [c], tool_search: false}",
        trusted=True,
    )
    assert config.tools.rag_top_k == 3
    assert config.tools.pinned == ("c",)
    assert config.tools.tool_search == ToolSearchSettings(enabled="off", threshold_pct=20)


def test_variables_spell_lists_paths_and_nested_keys(place: Place) -> None:
    config = place.load(
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
    assert config.workspace == place.home / "w"
    assert config.toolsets["mine"].tools == ("a",)
    assert config.log_level == "debug"
    assert config.tools.selection == "eager"


def test_a_variable_that_names_no_setting_is_an_error(place: Place) -> None:
    error = place.refusal(env={"TOOLFOLD_TOOLS__SELECTON": "hybrid"})
    assert str(error) == (
        "tools.selecton is not a setting (environment TOOLFOLD_TOOLS__SELECTON)\n  did you mean selection?"
    )


def test_a_variable_of_another_program_is_left_alone_and_a_misspelt_one_is_named(place: Place) -> None:
    config = place.load(env={"TOOLFOLD_SESSION": "1", "TOOLFOLD_LOG_LEVL": "debug"})
    assert config.warnings == (
        "TOOLFOLD_LOG_LEVL is not a setting and is ignored. Did you mean TOOLFOLD_LOG_LEVEL?",
    )


def test_overrides_may_be_a_nested_mapping(place: Place) -> None:
    config = place.load(
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
def test_a_wrong_override_says_argument(place: Place, overrides: Any) -> None:
    assert "(argument)" in str(place.refusal(overrides=overrides))


def test_a_mapping_that_contains_itself_is_an_error(place: Place) -> None:
    loop: dict[str, object] = {}
    loop["tools"] = loop
    assert "nested too deeply" in str(place.refusal(overrides=loop))


def test_the_project_file_is_found_from_below_but_not_beyond_the_repository(place: Place) -> None:
    below = place.project / "src" / "deep"
    below.mkdir(parents=True)
    assert locate_paths(project=below, env=place.env).project_file is None
    place.project_file.write_text("log_level: info")
    paths = locate_paths(project=below, env=place.env)
    assert (paths.project_file, paths.project_dir) == (place.project_file, place.project)
    (below / ".git").mkdir()
    paths = locate_paths(project=below, env=place.env)
    assert (paths.project_file, paths.project_dir) == (None, below)


def test_a_user_file_that_is_also_the_project_file_counts_once(place: Place) -> None:
    place.project_file.write_text("plugins: {enabled: false}")
    config = load_config(project=place.project, env=place.env, user_file=place.project_file)
    assert config.paths.project_file is None
    assert config.plugins.enabled is False


def test_without_a_home_of_its_own_the_platform_says_where_things_lie(place: Place) -> None:
    paths = locate_paths(project=place.project, env={})
    assert paths.config_dir.name == "toolfold"
    assert paths.user_file == paths.config_dir / "config.yaml"


# The environment


def test_missing_variables_are_those_unset_or_empty(place: Place) -> None:
    config = place.load(env={"A": "1", "B": ""})
    assert config.missing_env(["A", "B", "C"]) == ("B", "C")


def test_secrets_are_found_by_name_and_never_shown(place: Place) -> None:
    config = place.load(
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
def test_every_usual_name_of_a_secret_is_known(place: Place, name: str) -> None:
    assert place.load(env={name: "hunter2-hunter2"}).secret_values() == ("hunter2-hunter2",)


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "SSH_AUTH_SOCK", "GIT_ASKPASS", "PATH", "AUTHOR"])
def test_a_name_that_only_resembles_a_secret_is_none(place: Place, name: str) -> None:
    assert place.load(env={name: "/home/me/project"}).secret_values() == ()


def test_the_password_in_an_address_is_a_secret_as_written_and_as_meant(place: Place) -> None:
    config = place.load(
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


def test_a_project_nobody_trusts_cannot_grant_itself_anything(place: Place) -> None:
    config = place.load(None, GRANTING)
    assert config.files.extra_roots == ()
    assert config.toolsets == {}
    assert config.log_level == "warning"
    assert config.project_trusted is False
    assert config.warnings == (
        f"files.extra_roots is ignored until you trust its folder ({place.project_file}, line 2)",
        f"toolsets is ignored until you trust its folder ({place.project_file}, line 3)",
        f"log_level is ignored until you trust its folder ({place.project_file}, line 5)",
    )


@pytest.mark.parametrize("trusted", [False, True])
def test_a_project_never_says_where_your_own_plugins_lie(place: Place, trusted: bool) -> None:
    written = "plugins:\n  folder: tools\n  enabled: true\n  disabled: []\n"
    config = place.load("plugins: {enabled: false, disabled: [a]}", written, trusted=trusted)
    assert config.plugins == PluginsSettings(enabled=False, disabled=("a",))
    said = "plugins.folder is ignored in a project; only your own file may set it"
    assert config.warnings[0] == f"{said} ({place.project_file}, line 2)"
    assert len(config.warnings) == 3


@pytest.mark.parametrize(
    "written", ["workspace: /etc", "workspace: ..", "extra_roots: [src, link/deep]", "workspace: loop"]
)
def test_a_trusted_project_cannot_lead_the_file_tools_out_of_its_folder(place: Place, written: str) -> None:
    (place.project / "link").symlink_to("/etc")
    (place.project / "loop").symlink_to("loop")
    config = place.load(None, f"files:\n  {written}\n", trusted=True)
    assert config.files == FilesSettings()
    key = f"files.{written.partition(':')[0]}"
    assert config.warnings == (
        f"{key} is ignored: it leads out of the project's folder ({place.project_file}, line 2)",
    )


def test_a_folder_that_becomes_a_link_after_it_was_trusted_is_not_followed(place: Place) -> None:
    data = place.project / "data"
    data.mkdir()
    trust_project(place.project, place.load(None, "files: {extra_roots: [data]}").paths)
    assert place.load().files.extra_roots == (data,)
    data.rmdir()
    data.symlink_to("/etc")
    assert place.load().files.extra_roots == ()


LIMITS = [
    "tools.timeout_seconds",
    "tools.max_parallel",
    "tools.result_max_chars",
    "availability.timeout_seconds",
    "availability.grace_seconds",
    "approval.timeout_seconds",
]


@pytest.mark.parametrize("key", LIMITS)
def test_an_untrusted_project_may_lower_a_limit_and_never_raise_it(place: Place, key: str) -> None:
    section, _, name = key.partition(".")
    default = next(each.default for each in describe_settings() if each.key == key)

    def limited(user: float | None, project: float, trusted: bool = False) -> Config:
        mine = "" if user is None else f"{section}: {{{name}: {user}}}"
        return place.load(mine, f"{section}: {{{name}: {project}}}", trusted=trusted)

    assert get_value(limited(None, default // 2), key) == default // 2
    assert limited(None, default // 2).warnings == ()
    raised = limited(None, default + 1)
    assert get_value(raised, key) == default
    assert raised.warnings == (
        f"{key} may only be lowered until you trust its folder ({place.project_file}, line 1)",
    )
    assert get_value(limited(default // 2, default), key) == default // 2
    assert get_value(limited(default + 2, default + 1), key) == default + 1
    assert get_value(limited(None, default + 1, trusted=True), key) == default + 1


def test_what_was_trusted_can_be_checked_again_before_it_is_run(place: Place) -> None:
    plugin = place.project / ".toolfold" / "plugins" / "a.py"
    plugin.parent.mkdir(parents=True)
    plugin.write_text("1")
    assert is_still_trusted(place.load()) is False
    trust_project(place.project, place.load().paths)
    config, vouched = place.load(), place.load(trusted=True)
    assert is_still_trusted(config) is True
    plugin.write_text("2")
    assert is_still_trusted(config) is False
    assert is_still_trusted(vouched) is True


def test_every_granting_setting_is_ignored_from_an_untrusted_project(place: Place) -> None:
    values = {"true or false": "true", "text": "x", "a path or null": "x", "a list of names": "[x]"}
    for setting in describe_settings():
        if setting.grants and "<name>" not in setting.key:
            opened = "".join(f"{{{name}: " for name in setting.key.split("."))
            config = place.load(None, opened + values.get(setting.type, "[x]") + "}" * opened.count("{"))
            assert config.origins[setting.key] == "default", setting.key
            assert setting.key in config.warnings[0]


@pytest.mark.parametrize("trusted", [False, True])
def test_a_project_may_restrict_but_not_lift_a_restriction(place: Place, trusted: bool) -> None:
    config = place.load(
        "tools: {disabled: [a], disabled_toolsets: [x], enabled_toolsets: [web, files]}",
        "tools: {disabled: [b], disabled_toolsets: [], enabled_toolsets: [files, terminal]}",
        trusted=trusted,
    )
    assert config.tools.disabled == ("a", "b")
    assert config.tools.disabled_toolsets == ("x",)
    assert config.tools.enabled_toolsets == ("files",)
    assert config.warnings == ()
    config = place.load(
        "tools: {enabled_toolsets: [web]}", "tools: {enabled_toolsets: null}", trusted=trusted
    )
    assert config.tools.enabled_toolsets == ("web",)


def test_an_untrusted_project_cannot_redefine_a_toolset(place: Place) -> None:
    config = place.load("toolsets: {safe: {tools: [read]}}", "toolsets: {safe: {tools: [terminal]}}")
    assert config.toolsets["safe"].tools == ("read",)


def test_a_trusted_project_is_believed_until_it_changes(place: Place) -> None:
    paths = place.load(None, GRANTING).paths
    assert get_trust_state(place.project, paths) == "untrusted"
    trust_project(place.project, paths)
    assert get_trust_state(place.project, paths) == "trusted"
    config = place.load()
    assert config.files.extra_roots == (place.project / "data",)
    assert config.log_level == "debug"
    assert config.project_trusted is True
    config = place.load(None, GRANTING + "# more\n")
    assert get_trust_state(place.project, paths) == "changed"
    assert config.files.extra_roots == ()
    assert "until you trust its folder again: it has changed" in config.warnings[0]
    assert untrust_project(place.project, paths) is True
    assert untrust_project(place.project, paths) is False
    assert load_trusted_projects(paths) == {}


def test_any_change_below_the_plugin_folder_ends_trust(place: Place) -> None:
    paths = place.load(None, "log_level: info").paths
    plugins = place.project / ".toolfold" / "plugins"
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
        trust_project(place.project, paths)
        assert get_trust_state(place.project, paths) == "trusted"
        change()
        assert get_trust_state(place.project, paths) == "changed"


def test_a_linked_plugin_is_watched_where_it_leads(place: Place, tmp_path: Path) -> None:
    paths = place.load().paths
    plugins = place.project / ".toolfold" / "plugins"
    plugins.mkdir(parents=True)
    (tmp_path / "elsewhere.py").write_text("1")
    (plugins / "p.py").symlink_to(tmp_path / "elsewhere.py")
    trust_project(place.project, paths)
    (tmp_path / "elsewhere.py").write_text("2")
    assert get_trust_state(place.project, paths) == "changed"


def test_what_cannot_be_watched_cannot_be_trusted(place: Place, tmp_path: Path) -> None:
    paths = place.load().paths
    plugins = place.project / ".toolfold" / "plugins"
    plugins.parent.mkdir()
    plugins.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="linked plugin folder"):
        trust_project(place.project, paths)
    plugins.unlink()
    plugins.mkdir()
    (plugins / "p").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="linked plugin folder"):
        trust_project(place.project, paths)
    (plugins / "p").unlink()
    os.mkfifo(plugins / "p")
    with pytest.raises(ConfigError, match="only files and folders"):
        trust_project(place.project, paths)
    with pytest.raises(ConfigError, match="no such folder"):
        trust_project(place.project / "none", paths)


def test_the_trust_store_is_private_and_leaves_nothing_beside_it(place: Place) -> None:
    paths = place.load().paths
    trust_project(place.project, paths)
    file = paths.state_dir / "trust.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    left = [each for each in paths.state_dir.iterdir() if each.name != "settings"]  # notes of own changes
    assert left == [file]
    assert list(load_trusted_projects(paths)) == [place.project.resolve()]


@pytest.mark.parametrize("text", ["{", "[]", '{"/x": 1}', "\xff", "[" * 100_000])
def test_a_damaged_trust_store_is_an_error_and_not_trust(place: Place, text: str) -> None:
    paths = place.load().paths
    paths.state_dir.mkdir(parents=True)
    (paths.state_dir / "trust.json").write_text(text, encoding="latin-1")
    assert "trusted folders cannot be read" in str(place.refusal(None, GRANTING))


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


def test_setting_a_value_changes_only_that_value(file: Path) -> None:
    set_value(file, "tools.selection", "hybrid")
    assert file.read_text() == FILE.replace("selection: eager ", "selection: hybrid ")


def test_replacing_a_list_keeps_the_comments_around_it(file: Path) -> None:
    set_value(file, "tools.disabled", ["x y", "null", "z"])
    assert file.read_text() == FILE.replace(
        '  disabled:  # off\n  - web\n  - "terminal"\n', '  disabled: ["x y", "null", z]  # off\n'
    )


def test_a_new_key_joins_its_section_before_the_comment_of_the_next(file: Path) -> None:
    set_value(file, "tools.tool_search.threshold_pct", "5")
    assert file.read_text() == FILE.replace(
        "  timeout_seconds: 60\n", "  timeout_seconds: 60\n  tool_search:\n    threshold_pct: 5\n"
    )


def test_a_new_section_goes_to_the_end(file: Path) -> None:
    set_value(file, "plugins.disabled", "a,b")
    assert file.read_text() == FILE + "plugins:\n  disabled: [a, b]\n"


def test_missing_files_and_folders_are_created(tmp_path: Path) -> None:
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
def test_every_way_to_write_a_section_is_kept(tmp_path: Path, before: str, after: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(before.encode())
    set_value(file, "tools.rag_top_k", "3")
    assert file.read_bytes().decode() == after


def test_a_one_word_section_is_unfolded_when_something_is_set_in_it(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("tools:\n  tool_search: false # quiet\n")
    set_value(file, "tools.tool_search.threshold_pct", 5)
    assert file.read_text() == "tools:\n  tool_search: {enabled: off, threshold_pct: 5} # quiet\n"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("tools.selektion", "x", "tools.selektion is not a setting\n  did you mean selection?"),
        ("tools.selection", "x", "tools.selection must be eager, hybrid, semantic or keyword, not 'x'"),
        ("tools.rag_top_k", "[", "this is not valid YAML"),
        ("tools", "5", "tools must be a map of settings, not 5"),
        ("", "5", " is not a setting"),
        ("toolsets.a b.tools", "x", "'a b' cannot be the name of a toolset"),
    ],
)
def test_a_refused_change_leaves_the_file_untouched(file: Path, key: str, value: str, said: str) -> None:
    before = file.stat()
    with pytest.raises(ConfigError) as caught:
        set_value(file, key, value)
    assert said in str(caught.value)
    assert file.read_text() == FILE
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_file_that_is_wrong_elsewhere_is_not_written(file: Path) -> None:
    file.write_text(FILE + "foo: 1\n")
    with pytest.raises(ConfigError, match="foo is not a setting") as caught:
        set_value(file, "tools.selection", "hybrid")
    assert caught.value.line == 14
    assert file.read_text() == FILE + "foo: 1\n"


def test_a_change_through_an_alias_is_left_to_the_person(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    text = "tools:\n  disabled: &off [a]\n  disabled_toolsets: *off\n"
    file.write_text(text)
    for key in ("tools.disabled", "tools.disabled_toolsets"):
        with pytest.raises(ConfigError, match="change it by hand"):
            set_value(file, key, "[b]")
        assert file.read_text() == text
    set_value(file, "tools.rag_top_k", 3)
    assert file.read_text() == text + "  rag_top_k: 3\n"


def test_a_clamped_number_is_written_and_said(file: Path) -> None:
    assert "50 is used instead" in set_value(file, "tools.rag_top_k", "99")[0]
    assert "rag_top_k: 99" in file.read_text()


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX")
@pytest.mark.parametrize("mode", [0o644, 0o664, 0o640])
def test_a_user_file_that_others_could_read_is_made_private(file: Path, mode: int) -> None:
    file.chmod(mode)
    (remark,) = set_value(file, "log_level", "debug")
    assert f"{mode:04o}" in remark
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert set_value(file, "log_level", "info") == ()


def test_a_new_user_file_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        set_value(tmp_path / "new.yaml", "log_level", "debug")
        replace_settings(tmp_path / "other.yaml", "log_level: info\n")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.glob("*.yaml")} == {0o600}


def test_a_project_file_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "toolfold.yaml"
    file.write_text("log_level: info\n")
    file.chmod(0o644)
    assert set_value(file, "log_level", "debug") == ()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_a_link_is_followed(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(file.name)
    set_value(link, "log_level", "debug")
    assert link.is_symlink()
    assert "log_level: debug" in file.read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["config.yaml", "link.yaml"]


def test_a_project_file_that_links_out_of_its_folder_is_not_written(place: Place) -> None:
    victim = place.home / ".bashrc"
    victim.write_text("# my shell\n")
    place.project_file.symlink_to(victim)
    changes: list[Callable[[], object]] = [
        lambda: set_value(place.project_file, "tools.rag_top_k", 3),
        lambda: replace_settings(place.project_file, "tools: {rag_top_k: 3}\n"),
    ]
    for change in changes:
        with pytest.raises(ConfigError, match="the link leads out of the project's folder"):
            change()
    assert victim.read_text() == "# my shell\n"


def test_a_project_file_that_links_within_its_folder_is_written(place: Place) -> None:
    (place.project / "settings.yaml").write_text("")
    place.project_file.symlink_to("settings.yaml")
    set_value(place.project_file, "tools.rag_top_k", 3)
    assert (place.project / "settings.yaml").read_text() == "tools:\n  rag_top_k: 3\n"


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
def test_setting_a_section_never_drops_what_else_is_in_it(tmp_path: Path, key: str, value: str) -> None:
    file = tmp_path / "config.yaml"
    text = "tools:\n  rag_top_k: 3\n  tool_search: {threshold_pct: 5}\ntoolsets: {mine: {description: x}}\n"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        set_value(file, key, value)
    assert f"{key} holds other settings, which would be lost" in str(caught.value)
    assert caught.value.hint == f"set one setting below {key} at a time, or unset {key} first"
    assert file.read_text() == text


def test_a_section_may_be_set_where_nothing_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("tools: {rag_top_k: 3, tool_search: {threshold_pct: 5}}\n")
    set_value(file, "tools.tool_search", "{threshold_pct: 6, enabled: on}")
    assert file.read_text() == "tools: {rag_top_k: 3, tool_search: {threshold_pct: 6, enabled: on}}\n"
    set_value(file, "tools.tool_search", "false")
    assert file.read_text() == "tools: {rag_top_k: 3, tool_search: false}\n"
    set_value(file, "approval", "{timeout_seconds: 5}")
    assert "approval" in file.read_text()


def test_a_link_to_itself_is_an_error(tmp_path: Path) -> None:
    link = tmp_path / "config.yaml"
    link.symlink_to("config.yaml")
    with pytest.raises(ConfigError):
        set_value(link, "log_level", "debug")


def test_unsetting_takes_out_the_line_and_nothing_else(file: Path) -> None:
    assert unset_value(file, "tools.disabled") is True
    assert file.read_text() == FILE.replace('  disabled:  # off\n  - web\n  - "terminal"\n', "")
    assert unset_value(file, "tools.disabled") is False
    assert unset_value(file, "tools") is True
    assert unset_value(file, "log_level") is True
    assert file.read_text() == "# My settings\n\n\n# The end\n"


def test_unsetting_the_last_key_takes_its_section_unless_it_holds_comments(tmp_path: Path) -> None:
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


def test_unsetting_can_remove_a_key_that_is_no_setting(file: Path) -> None:
    file.write_text(FILE + "foo: 1\n")
    assert unset_value(file, "foo") is True
    assert file.read_text() == FILE
    with pytest.raises(ConfigError, match="foo is not a setting"):
        unset_value(file, "foo")


def test_unsetting_in_a_file_that_does_not_exist_creates_nothing(tmp_path: Path) -> None:
    assert unset_value(tmp_path / "a" / "config.yaml", "log_level") is False
    assert list(tmp_path.iterdir()) == []


def test_processes_do_not_lose_each_others_changes(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    code = "import sys; from pathlib import Path; from toolfold.config import set_value\n"
    code += "for n in range(5): set_value(Path(sys.argv[1]), f'toolsets.{sys.argv[2]}{n}.tools', '[a]')"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(file), name]) for name in "abcd"]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0, 0]
    config = load_config(project=tmp_path, env={"TOOLFOLD_HOME": str(tmp_path)})
    assert sorted(config.toolsets) == sorted(f"{name}{n}" for name in "abcd" for n in range(5))
    assert list(tmp_path.iterdir()) == [file]


# Describing


def test_every_setting_is_described_with_one_sentence(place: Place) -> None:
    settings = {each.key: each for each in describe_settings()}
    assert all(each.description.endswith(".") for each in settings.values())
    assert settings["tools.rag_top_k"].range == "from 1 to 50"
    assert settings["tools.selection"].choices == ("eager", "hybrid", "semantic", "keyword")
    assert settings["plugins.folder"].grants is True
    assert settings["tools.selection"].grants is False
    config = place.load()
    for key, setting in settings.items():
        if "<name>" not in key:
            value = get_value(config, key)
            assert setting.default == (list(value) if isinstance(value, tuple) else value)


def test_get_finds_settings_sections_and_toolsets(place: Place) -> None:
    config = place.load("toolsets: {mine: {tools: [a]}}")
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
def test_get_names_what_was_meant(place: Place, key: str, hint: str) -> None:
    config = place.load("toolsets: {mine: {tools: [a]}}")
    with pytest.raises(ConfigError, match="is not a setting") as caught:
        get_value(config, key)
    assert hint in caught.value.hint


def test_the_json_schema_accepts_what_loads(place: Place) -> None:
    schema = jsonschema_rs.validator_for(build_json_schema())
    for search in (True, False, {"enabled": "on"}, {"enabled": False}):
        assert schema.is_valid({"tools": {"tool_search": search, "rag_top_k": 3}, "toolsets": {"a": {}}})
    assert schema.is_valid({"tools": {"synonyms": {"a": ["b"]}}})
    assert not schema.is_valid({"tools": {"synonyms": {"a": "b"}}})
    assert not schema.is_valid({"tools": {"synonyms": {"a": ["b" * 101]}}})
    assert not schema.is_valid({"tools": {"rag_top": 3}})
    assert not schema.is_valid({"tools": {"rag_top_k": 99}})
    assert build_json_schema()["$defs"]["PluginsSettings"]["properties"]["folder"]["grants"] is True


def test_a_file_that_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        replace_file(tmp_path / ("x" * 250), b"content")
