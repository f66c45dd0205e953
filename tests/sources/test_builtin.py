from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from toolfold import Registry, Runtime
from toolfold.tools.builtin import Services
from toolfold.tools.builtin_source import load_builtin
from toolfold.tools.files import Workspace
from toolfold.tools.source_report import SourceReport

PACKAGE = "built_for_this_test"
VALID_MODULE = """
from toolfold import build_tool

def tools(services):
    return [build_tool(name={name!r}, toolset="t", schema={{}}, handler=lambda args: "ok")]
"""

Load = Callable[[dict[str, str]], list[SourceReport]]


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def load(tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Return a function that writes modules to a package and loads them as built-in tools."""

    def load(modules: dict[str, str]) -> list[SourceReport]:
        folder = tmp_path / PACKAGE
        folder.mkdir()
        (folder / "__init__.py").touch()
        for name, source in modules.items():
            (folder / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        services = Services(workspace=Workspace(tmp_path))
        return load_builtin(registry, services, package=PACKAGE, path=[str(folder)])

    yield load
    for name in [each for each in sys.modules if each.split(".")[0] == PACKAGE]:
        del sys.modules[name]


def test_runtime_reports_every_built_in_tool_module_as_loaded_with_its_tools(runtime: Runtime) -> None:
    found = {report.name: report for report in runtime.sources if report.kind == "builtin"}
    assert {"agent", "file"} <= found.keys()
    assert {report.state for report in found.values()} == {"loaded"}
    assert set(found["file"].tools) == {"read_file", "write_file", "patch", "search_files"}


def test_built_in_tool_modules_are_loaded_in_alphabetical_order(load: Load, registry: Registry) -> None:
    reports = load({name: VALID_MODULE.format(name=name) for name in ("middle", "last_z", "first_a")})
    assert [report.name for report in reports] == ["first_a", "last_z", "middle"]
    assert list(registry.snapshot()) == ["first_a", "last_z", "middle"]


def test_tool_modules_of_two_directories_are_loaded_in_alphabetical_order(
    load: Load, registry: Registry, tmp_path: Path
) -> None:
    second_directory = tmp_path / "second_directory"
    second_directory.mkdir()
    (second_directory / "a.py").write_text(VALID_MODULE.format(name="a"))
    load({"b": VALID_MODULE.format(name="b"), "__init__": f"__path__.append({str(second_directory)!r})"})
    search_path = [str(tmp_path / PACKAGE), str(second_directory)]
    services = Services(workspace=Workspace(tmp_path))
    reports = load_builtin(registry, services, package=PACKAGE, path=search_path)
    assert [report.name for report in reports] == ["a", "b"]


def test_tool_module_with_a_missing_dependency_is_logged_and_skipped(
    load: Load, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        reports = load(
            {
                "a": VALID_MODULE.format(name="before"),
                "b": "import no_such_package_anywhere",
                "c": VALID_MODULE.format(name="after"),
            }
        )
    assert [report.state for report in reports] == ["loaded", "failed", "loaded"]
    assert reports[1].error == "ModuleNotFoundError: No module named 'no_such_package_anywhere'"
    assert reports[1].tools == ()
    assert f"the built-in tools 'b' were not loaded: {reports[1].error}" in caplog.text
    assert list(registry.snapshot()) == ["before", "after"]


@pytest.mark.parametrize(
    ("source", "expected_error"),
    [
        ("def tools(services:", "SyntaxError"),
        ("raise SystemExit('not on this platform')", "SystemExit: not on this platform"),
        ("class Panic(BaseException): pass\nraise Panic('native code')", "Panic: native code"),
        ("class Mute(Exception):\n def __str__(self): raise ValueError\nraise Mute", "Mute"),
        ("", "AttributeError"),
        ("def tools(services): return [1]", "InvalidTool"),
        ("def tools(services): return None", "TypeError"),
        ("raise ValueError('x' * 100_000)", "ValueError: xxx"),
    ],
    ids=["syntax", "exit", "panic", "unprintable", "no-function", "no-tools", "nothing", "long"],
)
def test_exception_during_import_of_one_tool_module_does_not_prevent_loading_other_modules(
    source: str, expected_error: str, load: Load, registry: Registry
) -> None:
    failed, loaded = load({"bad": source, "good": VALID_MODULE.format(name="fine")})
    assert failed.state == "failed"
    assert failed.error.startswith(expected_error)
    assert len(failed.error) < 600
    assert loaded.state == "loaded"
    assert list(registry.snapshot()) == ["fine"]


def test_keyboard_interrupt_during_import_of_a_tool_module_propagates_and_registers_no_tools(
    load: Load, registry: Registry
) -> None:
    with pytest.raises(KeyboardInterrupt):
        load({"a": "raise KeyboardInterrupt", "b": VALID_MODULE.format(name="never")})
    assert list(registry.snapshot()) == []


def test_tool_module_with_one_invalid_tool_registers_none_of_its_tools(
    load: Load, registry: Registry
) -> None:
    source = """
from toolfold import build_tool

def tools(services):
    made = [build_tool(name=n, toolset="t", schema={}, handler=print) for n in ("fine", "tool_call")]
    return made
"""
    (report,) = load({"greedy": source})
    assert report.state == "failed"
    assert "'tool_call' is reserved" in report.error
    assert list(registry.snapshot()) == []


def test_tool_module_with_a_name_starting_with_an_underscore_is_not_loaded(
    load: Load, registry: Registry
) -> None:
    reports = load({"_shared": "raise RuntimeError('imported')", "good": VALID_MODULE.format(name="fine")})
    assert [(report.name, report.state) for report in reports] == [("good", "loaded")]


def test_loading_built_in_tools_from_an_empty_search_path_registers_nothing(
    registry: Registry, tmp_path: Path
) -> None:
    assert load_builtin(registry, Services(workspace=Workspace(tmp_path)), path=[]) == []
    assert list(registry.snapshot()) == []
