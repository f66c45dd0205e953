"""Property-based tests of loading and editing configurations."""

from __future__ import annotations

import json
import math
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolfold.config import Config, describe_settings, get_value, load_config, set_value, unset_value
from toolfold.config.describe import Setting
from toolfold.core.errors import ConfigError

NUMBERS = [each for each in describe_settings() if each.low is not None]
PLAIN = [each for each in describe_settings() if "<name>" not in each.key]
STRUCTURED = {  # not every text is valid
    "approval.isolated",
    "approval.allowed_tools",
    "telemetry.service_name",
    "terminal.backend",
    "web.search.url",
    "images.url",
    "speech.url",
    "store",
    "gateway.oauth.issuer",
    "gateway.oauth.resource",
    "dashboard.oidc.issuer",
    "dashboard.oidc.url",
    "dashboard.oidc.teams",
}
SETTABLE = [each for each in PLAIN if not each.choices and each.key not in STRUCTURED]
COMMENTED = "# one\ntools:  # two\n  selection: hybrid  # three\n\n  # four\n# five\nlog_level: info # six\n"
NAMES = sorted({part for each in describe_settings() for part in each.key.split(".")})

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(NAMES)
arbitrary_values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=8), inner, max_size=5)
    ),
    max_leaves=20,
)


def load_text(text: str | bytes = "", **more: Any) -> Config:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "config.yaml")
        file.write_bytes(text if isinstance(text, bytes) else text.encode(errors="replace"))
        env = {"TOOLFOLD_HOME": directory, **more.pop("env", {})}
        return load_config(project=Path(directory), env=env, **more)


def value_for(kind: str) -> st.SearchStrategy[Any]:
    words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
    return {
        "a whole number": st.integers(1000, 1001),
        "a number": st.floats(1, 50),
        "true or false": st.booleans(),
        "text": words,
        "a path": words,
        "a path or null": words.filter(lambda word: word.strip().lower() not in ("", "null")),
        "a list of names": st.lists(words, max_size=4),
        "a list of paths": st.lists(words, max_size=4),
        "a list of names or null": st.lists(words, max_size=4),
        "a mapping of lists": st.just({"some tool": ("one word", "2")}),  # a second one would replace entries
    }.get(kind, st.nothing())


def value_within(setting: Setting) -> st.SearchStrategy[Any]:
    """Return a strategy for valid values of the setting."""
    if setting.type == "a whole number" and setting.high is not None:
        return st.integers(int(setting.low or 0), int(setting.high))
    if setting.type == "a number" and setting.high is not None:
        return st.floats(setting.low or 0, setting.high)
    return value_for(setting.type)


def load_or_reject(text: str | bytes = "", **more: Any) -> None:
    """Load, accepting a ConfigError; any other exception fails the test."""
    with suppress(ConfigError):
        assert isinstance(load_text(text, **more), Config)


@settings(deadline=None)
@given(arbitrary_values)
def test_arbitrary_value_of_a_setting_is_loaded_or_raises_config_error(tree: Any) -> None:
    load_or_reject(json.dumps(tree))
    load_or_reject(json.dumps(tree, ensure_ascii=False))
    load_or_reject(overrides=tree if isinstance(tree, dict) else {"tools": tree})


@settings(deadline=None)
@given(st.text() | st.binary() | st.text(alphabet=":-[]{}#&*!|>'\"%@`, \n\tab1~?<=", max_size=60))
def test_arbitrary_text_in_a_settings_file_is_loaded_or_raises_config_error(text: str | bytes) -> None:
    load_or_reject(text)


@settings(deadline=None)
@given(st.sampled_from(PLAIN), st.text(st.characters(exclude_characters="\0")))
def test_arbitrary_text_in_a_settings_variable_or_argument_is_loaded_or_raises_config_error(
    setting: Any, text: str
) -> None:
    variable = "TOOLFOLD_" + setting.key.upper().replace(".", "__")
    load_or_reject(env={variable: text})
    load_or_reject(overrides=[f"{setting.key}={text}"])


@settings(deadline=None)
@given(st.sampled_from(NUMBERS), st.integers() | st.floats() | st.integers(-(10**400), 10**400))
def test_arbitrary_number_for_a_setting_is_clamped_to_its_range_or_raises_config_error(
    setting: Any, number: float
) -> None:
    if isinstance(number, float) and not math.isfinite(number):
        with pytest.raises(ConfigError, match="must be a"):
            load_text(overrides={setting.key: number})
        return
    is_fraction = setting.type == "a whole number" and isinstance(number, float)
    if not setting.key.startswith("tools.") and (is_fraction or not setting.low <= number <= setting.high):
        with pytest.raises(ConfigError, match="must be"):
            load_text(overrides={setting.key: number})
        return
    config = load_text(overrides={setting.key: number})
    assert setting.low <= get_value(config, setting.key) <= setting.high
    assert config.warnings or setting.low <= number <= setting.high


@settings(deadline=None)
@given(st.data())
def test_arbitrary_value_written_by_set_value_is_read_back_and_comments_are_kept(
    data: st.DataObject,
) -> None:
    text = COMMENTED
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "config.yaml")
        file.write_text(text)
        chosen = data.draw(st.lists(st.sampled_from(SETTABLE), min_size=1, max_size=4))
        for setting in chosen:
            value = data.draw(value_within(setting))
            set_value(file, setting.key, value)
            config = load_config(project=Path(directory), env={"TOOLFOLD_HOME": directory, "HOME": directory})
            _assert_value(get_value(config, setting.key), value, setting, Path(directory))
            assert [line for line in file.read_text().split("\n") if line in text.split("\n")] == text.split(
                "\n"
            )
        for setting in data.draw(st.permutations(chosen)):
            unset_value(file, setting.key)
        assert file.read_text() == text


def test_unset_value_of_a_setting_that_is_not_in_the_file_leaves_the_file_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(COMMENTED)
    for setting in SETTABLE:
        unset_value(file, setting.key)
    assert file.read_text() == COMMENTED


def _assert_value(found: Any, value: Any, setting: Any, directory: Path) -> None:
    if "path" in setting.type:
        assert isinstance(found, Path) or len(found) == len(value)
    elif setting.low is not None:
        assert found == min(max(value, setting.low), setting.high) or setting.key.endswith("_limit")
    else:
        assert found == (tuple(value) if isinstance(value, list) else value)


layers = st.lists(st.none() | st.integers(1, 50), min_size=4, max_size=4)


@settings(deadline=None)
@given(layers)
def test_arguments_override_variables_then_project_file_then_user_file_in_every_combination(
    values: list[int | None],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        home, project = Path(directory, "home"), Path(directory, "project")
        home.mkdir()
        project.mkdir()
        user, shared, variable, argument = values
        for file, value in ((home / "config.yaml", user), (project / "toolfold.yaml", shared)):
            file.write_text(f"tools: {{rag_top_k: {value}}}" if value else "")
        env = {"TOOLFOLD_HOME": str(home)} | (
            {"TOOLFOLD_TOOLS__RAG_TOP_K": str(variable)} if variable else {}
        )
        overrides = [f"tools.rag_top_k={argument}"] if argument else []
        config = load_config(project=project, env=env, overrides=overrides)
        set_values = [value for value in values if value is not None]
        assert config.tools.rag_top_k == (set_values[-1] if set_values else 8)
