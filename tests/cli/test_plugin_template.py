"""`toolfold plugins new`: the plugin that it creates works, passes its own tests and can be installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.cli.conftest import Toolfold


def run_python(*arguments: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=directory, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_plugin_created_from_the_template_is_found_and_its_tool_can_be_called(toolfold: Toolfold) -> None:
    done = toolfold("plugins", "new", "word_tools")
    assert done.code == 0, done.err
    folder = ("--set", "plugins.folder=toolfold-word-tools/src")
    (plugin,) = toolfold(*folder, "plugins", "list", "--json").json
    assert (plugin["state"], plugin["tools"]) == ("loaded", ["word_tools_count_words"])
    called = toolfold(*folder, "call", "word_tools_count_words", '{"text": "three short words"}')
    assert called.code == 0, called.err
    assert called.json == {"words": 3, "characters": 17}


@pytest.mark.thorough
def test_generated_tests_of_a_plugin_created_from_the_template_pass(toolfold: Toolfold) -> None:
    assert toolfold("plugins", "new", "weather", "--directory", "mine").code == 0
    assert "2 passed" in run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", directory=Path("mine"))


def test_plugin_created_from_the_template_can_be_built_and_has_an_entry_point(toolfold: Toolfold) -> None:
    assert toolfold("plugins", "new", "weather").code == 0
    build = "from hatchling.build import build_wheel; print(build_wheel('.'))"
    name = run_python("-c", build, directory=Path("toolfold-weather")).strip()
    with zipfile.ZipFile(Path("toolfold-weather") / name) as wheel:
        (file,) = [each for each in wheel.namelist() if each.endswith("/entry_points.txt")]
        assert wheel.read(file).decode().split() == ["[toolfold.plugins]", "weather", "=", "weather"]


@pytest.mark.parametrize("name", ["Weather", "my-tools", "class", "1st", "../x"])
def test_plugin_name_that_is_not_a_valid_python_package_name_is_rejected(
    toolfold: Toolfold, name: str
) -> None:
    done = toolfold("plugins", "new", name)
    assert done.code == 2
    assert "must be a Python name" in done.err


def test_creating_a_plugin_does_not_overwrite_an_existing_directory(toolfold: Toolfold) -> None:
    Path("toolfold-weather").mkdir()
    done = toolfold("plugins", "new", "weather")
    assert done.code == 1
    assert "already exists" in done.err
    assert list(Path("toolfold-weather").iterdir()) == []
