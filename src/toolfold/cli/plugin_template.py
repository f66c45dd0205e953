"""The text of the files of a new plugin: a package with one tool, an entry point and a test."""

from __future__ import annotations

from string import Template

__all__ = ["render_plugin"]

_PYPROJECT = Template("""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "toolfold-$dashed"
version = "0.1.0"
description = "Tools for Toolfold: $dashed."
requires-python = ">=3.11"
dependencies = ["toolfold"]

[project.entry-points."toolfold.plugins"]
$name = "$name"

[tool.hatch.build.targets.wheel]
packages = ["src/$name"]
""")
_MODULE = Template('''\
"""The plugin $name: one tool, to be replaced by yours."""

from toolfold import tool


@tool(effects=["read"], parallel=True, synonyms=["length", "how long"])
def ${name}_count_words(text: str) -> dict[str, int]:
    """Count the words and characters of a text.

    Args:
        text: The text to count.
    """
    return {"words": len(text.split()), "characters": len(text)}


def register(plugin):
    """Register the tools of this plugin."""
    plugin.add(${name}_count_words)
''')
_TEST = Template('''\
"""The tools of the plugin, called as a model calls them: through a session, with a private home."""

import json
from pathlib import Path

import pytest
from toolfold import load_config, open_runtime

SOURCES = Path(__file__).parents[1] / "src"


@pytest.fixture
def session(tmp_path):
    env = {"TOOLFOLD_HOME": str(tmp_path), "HOME": str(tmp_path)}
    settings = {"plugins": {"folder": str(SOURCES)}}
    with open_runtime(load_config(project=tmp_path, env=env, overrides=settings)) as runtime:
        yield runtime.session(["$name"])


def test_words_and_characters_are_counted(session):
    result = session.call_sync("${name}_count_words", {"text": "three short words"})
    assert result.ok, result.error
    assert json.loads(result.text) == {"words": 3, "characters": 17}


def test_missing_argument_is_rejected(session):
    assert not session.call_sync("${name}_count_words", {}).ok
''')
_README = Template("""\
# toolfold-$dashed

A plugin for Toolfold. The tools are in `src/$name/__init__.py`.

    python -m pytest                       # run the tests
    pip install -e .                       # install it; Toolfold finds it by its entry point
    toolfold plugins                       # see its state
    toolfold call ${name}_count_words '{"text": "three short words"}'
""")


def render_plugin(name: str) -> dict[str, str]:
    """Return the files of a new plugin by their relative paths."""
    words = {"name": name, "dashed": name.replace("_", "-")}
    templates = {
        "pyproject.toml": _PYPROJECT,
        f"src/{name}/__init__.py": _MODULE,
        f"tests/test_{name}.py": _TEST,
        "README.md": _README,
    }
    return {path: template.substitute(words) for path, template in templates.items()}
