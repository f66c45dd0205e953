"""What holds for every configuration, however odd."""

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
from toolfold.errors import ConfigError

NUMBERS = [each for each in describe_settings() if each.low is not None]
PLAIN = [each for each in describe_settings() if "<name>" not in each.key]
CHOSEN = {"approval.isolated", "approval.allowed_tools"}  # lists whose entries have a form
USABLE = [each for each in PLAIN if not each.choices and each.key not in CHOSEN]
COMMENTED = "# one\ntools:  # two\n  selection: hybrid  # three\n\n  # four\n# five\nlog_level: info # six\n"
NAMES = sorted({part for each in describe_settings() for part in each.key.split(".")})

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(NAMES)
junk = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=8), inner, max_size=5)
    ),
    max_leaves=20,
)


def loaded(text: str | bytes = "", **more: Any) -> Config:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.yaml")
        file.write_bytes(text if isinstance(text, bytes) else text.encode(errors="replace"))
        env = {"TOOLFOLD_HOME": folder, **more.pop("env", {})}
        return load_config(project=Path(folder), env=env, **more)


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
        "a map of lists": st.just({"some tool": ("one word", "2")}),  # another map would lose this one
    }.get(kind, st.nothing())


def value_within(setting: Setting) -> st.SearchStrategy[Any]:
    """A value that the setting can have."""
    if setting.type == "a whole number" and setting.high is not None:
        return st.integers(int(setting.low or 0), int(setting.high))
    if setting.type == "a number" and setting.high is not None:
        return st.floats(setting.low or 0, setting.high)
    return value_for(setting.type)


def loads_or_is_refused(text: str | bytes = "", **more: Any) -> None:
    """Anything but a ConfigError fails the test by itself."""
    with suppress(ConfigError):
        assert isinstance(loaded(text, **more), Config)


@settings(deadline=None)
@given(junk)
def test_any_values_load_or_are_refused(tree: Any) -> None:
    loads_or_is_refused(json.dumps(tree))
    loads_or_is_refused(json.dumps(tree, ensure_ascii=False))
    loads_or_is_refused(overrides=tree if isinstance(tree, dict) else {"tools": tree})


@settings(deadline=None)
@given(st.text() | st.binary() | st.text(alphabet=":-[]{}#&*!|>'\"%@`, \n\tab1~?<=", max_size=60))
def test_any_text_loads_or_is_refused(text: str | bytes) -> None:
    loads_or_is_refused(text)


@settings(deadline=None)
@given(st.sampled_from(PLAIN), st.text(st.characters(exclude_characters="\0")))
def test_any_variable_and_argument_loads_or_is_refused(setting: Any, text: str) -> None:
    variable = "TOOLFOLD_" + setting.key.upper().replace(".", "__")
    loads_or_is_refused(env={variable: text})
    loads_or_is_refused(overrides=[f"{setting.key}={text}"])


@settings(deadline=None)
@given(st.sampled_from(NUMBERS), st.integers() | st.floats() | st.integers(-(10**400), 10**400))
def test_any_number_ends_in_its_range(setting: Any, number: float) -> None:
    if isinstance(number, float) and not math.isfinite(number):
        with pytest.raises(ConfigError, match="must be a"):
            loaded(overrides={setting.key: number})
        return
    broken = setting.type == "a whole number" and isinstance(number, float)
    if not setting.key.startswith("tools.") and (broken or not setting.low <= number <= setting.high):
        with pytest.raises(ConfigError, match="must be"):
            loaded(overrides={setting.key: number})
        return
    config = loaded(overrides={setting.key: number})
    assert setting.low <= get_value(config, setting.key) <= setting.high
    assert config.warnings or setting.low <= number <= setting.high


@settings(deadline=None)
@given(st.data())
def test_what_is_set_is_what_is_read_and_comments_stay(data: st.DataObject) -> None:
    text = COMMENTED
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.yaml")
        file.write_text(text)
        chosen = data.draw(st.lists(st.sampled_from(USABLE), min_size=1, max_size=4))
        for setting in chosen:
            value = data.draw(value_within(setting))
            set_value(file, setting.key, value)
            config = load_config(project=Path(folder), env={"TOOLFOLD_HOME": folder, "HOME": folder})
            _assert_holds(get_value(config, setting.key), value, setting, Path(folder))
            assert [line for line in file.read_text().split("\n") if line in text.split("\n")] == text.split(
                "\n"
            )
        for setting in data.draw(st.permutations(chosen)):
            unset_value(file, setting.key)
        assert file.read_text() == text


def test_what_is_not_set_can_be_unset_and_nothing_changes(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(COMMENTED)
    for setting in USABLE:
        unset_value(file, setting.key)
    assert file.read_text() == COMMENTED


def _assert_holds(found: Any, value: Any, setting: Any, folder: Path) -> None:
    if "path" in setting.type:
        assert isinstance(found, Path) or len(found) == len(value)
    elif setting.low is not None:
        assert found == min(max(value, setting.low), setting.high) or setting.key.endswith("_limit")
    else:
        assert found == (tuple(value) if isinstance(value, list) else value)


layers = st.lists(st.none() | st.integers(1, 50), min_size=4, max_size=4)


@settings(deadline=None)
@given(layers)
def test_the_last_layer_that_speaks_wins(values: list[int | None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home, project = Path(folder, "home"), Path(folder, "project")
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
        said = [value for value in values if value is not None]
        assert config.tools.rag_top_k == (said[-1] if said else 8)
