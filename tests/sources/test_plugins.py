from __future__ import annotations

import importlib.util
import logging
import marshal
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from tests.conftest import RuntimeOpener
from toolfold import Runtime, build_tool, tool
from toolfold.config import locate_paths, trust_project
from toolfold.core.errors import SourceError
from toolfold.tools.plugin_source import Plugin
from toolfold.tools.source_report import SourceReport

TOOL = """
def register(plugin):
    plugin.register(name={name!r}, schema={{"description": "A tool."}}, handler=lambda args: {answer!r})
"""


def source(name: str, answer: str = "ok") -> str:
    return TOOL.format(name=name, answer=answer)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def reports(runtime: Runtime) -> dict[str, SourceReport]:
    return {report.name: report for report in runtime.sources if report.kind != "builtin"}


@pytest.fixture
def user(home: Path) -> Path:
    return home / "plugins"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path / ".toolfold" / "plugins"


@pytest.fixture
def trust_tmp_project(home: Path, tmp_path: Path) -> Callable[[], None]:
    return lambda: trust_project(tmp_path, locate_paths(project=tmp_path, env={"TOOLFOLD_HOME": str(home)}))


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory on sys.path with installed packages."""
    folder = tmp_path_factory.mktemp("site")
    monkeypatch.syspath_prepend(folder)
    return folder


def install(site: Path, name: str, target: str, files: dict[str, str]) -> None:
    write(
        site,
        {
            f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
            f"{name}-1.0.dist-info/entry_points.txt": f"[toolfold.plugins]\n{name} = {target}\n",
            **files,
        },
    )


def test_plugin_from_an_entry_point_of_an_installed_package_is_loaded(
    site: Path, open_test_runtime: RuntimeOpener
) -> None:
    install(site, "tf_weather", "tf_weather_code", {"tf_weather_code.py": source("forecast", "sunny")})
    runtime = open_test_runtime()
    assert reports(runtime)["tf_weather"] == SourceReport(
        kind="entry point",
        name="tf_weather",
        state="loaded",
        location="tf_weather tf_weather_code",
        tools=("forecast",),
    )
    assert runtime.handle_function_call("forecast", {}) == '{"result":"sunny"}'
    assert runtime.resolve_toolset("tf_weather") == ["forecast"]


def test_entry_point_that_refers_to_a_function_calls_the_function_to_register_the_plugin(
    site: Path, open_test_runtime: RuntimeOpener
) -> None:
    code = source("forecast").replace("def register", "def bring")
    install(site, "tf_direct", "tf_direct_code:bring", {"tf_direct_code.py": code})
    assert reports(open_test_runtime())["tf_direct"].tools == ("forecast",)


def test_plugin_package_installed_in_two_directories_of_the_python_path_is_loaded_once(
    site: Path,
    open_test_runtime: RuntimeOpener,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(site, "tf_twice", "tf_twice_code", {"tf_twice_code.py": source("twice")})
    install(tmp_path_factory.mktemp("older"), "tf_twice", "tf_twice_code", {})
    monkeypatch.setattr(sys, "path", [*sys.path, str(next(site.parent.glob("older*")))])
    found = [report for report in open_test_runtime().sources if report.name == "tf_twice"]
    assert [report.state for report in found] == ["loaded"]


def test_installed_package_with_broken_metadata_does_not_prevent_loading_other_plugins(
    site: Path, open_test_runtime: RuntimeOpener, caplog: pytest.LogCaptureFixture
) -> None:
    broken = site / "tf_garbled-1.0.dist-info"
    broken.mkdir()
    (broken / "entry_points.txt").write_bytes(b"[toolfold.plugins]\nx = \xff\xfe\n")
    install(site, "tf_half", "tf_half_code", {"tf_half_code.py": source("half")})
    (site / "tf_half-1.0.dist-info" / "METADATA").unlink()
    install(site, "tf_whole", "tf_whole_code", {"tf_whole_code.py": source("whole")})
    runtime = open_test_runtime()
    assert "skipped a package whose entry points cannot be read: UnicodeDecodeError" in caplog.text
    assert reports(runtime)["tf_half"].state == "loaded"
    assert reports(runtime)["tf_whole"].state == "loaded"
    assert {"half", "whole"} <= runtime.registry.snapshot().keys()


def test_plugin_with_a_broken_entry_point_is_reported_as_failed(
    site: Path, open_test_runtime: RuntimeOpener
) -> None:
    install(site, "tf_gone", "tf_gone_code:missing", {"tf_gone_code.py": ""})
    assert reports(open_test_runtime())["tf_gone"].error.startswith("AttributeError")


def test_plugin_files_and_packages_in_the_user_directory_are_loaded(
    user: Path, open_test_runtime: RuntimeOpener
) -> None:
    write(user, {"single.py": source("one"), "pack/__init__.py": "from .inner import register"})
    write(user, {"pack/inner.py": source("two")})
    runtime = open_test_runtime()
    assert {name: (each.kind, each.state, each.tools) for name, each in reports(runtime).items()} == {
        "single": ("user folder", "loaded", ("one",)),
        "pack": ("user folder", "loaded", ("two",)),
    }
    assert runtime.handle_function_call("two", {}) == '{"result":"ok"}'


def test_plugins_are_loaded_from_entry_points_before_user_and_project_directories(
    site: Path,
    user: Path,
    project: Path,
    open_test_runtime: RuntimeOpener,
    trust_tmp_project: Callable[[], None],
) -> None:
    install(site, "tf_z_installed", "tf_z_code", {"tf_z_code.py": source("z")})
    write(user, {"b.py": source("b"), "c.py": source("c")})
    write(project, {"a.py": source("a")})
    trust_tmp_project()
    assert list(reports(open_test_runtime())) == ["tf_z_installed", "b", "c", "a"]


def test_files_with_names_starting_with_a_dot_or_underscore_are_not_loaded_as_plugins(
    user: Path, open_test_runtime: RuntimeOpener
) -> None:
    write(
        user,
        dict.fromkeys(("_private.py", ".hidden.py", "notes.txt", "folder/code.py"), "raise RuntimeError"),
    )
    assert reports(open_test_runtime()) == {}


def test_unreadable_plugin_directory_is_reported_without_preventing_the_start_of_the_runtime(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_test_runtime({"plugins.folder": "/" + "x" * 300})
    (report,) = reports(runtime).values()
    assert (report.kind, report.state) == ("user folder", "failed")
    assert "File name too long" in report.error
    assert "read_file" in runtime.registry.snapshot()


def test_plugins_of_an_untrusted_project_are_not_executed(
    project: Path, tmp_path: Path, open_test_runtime: RuntimeOpener
) -> None:
    marker = tmp_path / "ran"
    write(project, {"evil.py": f"open({str(marker)!r}, 'w')\n" + source("evil")})
    runtime = open_test_runtime()
    report = reports(runtime)["evil"]
    assert report.state == "untrusted"
    assert report.error == "not trusted; review it, then run `toolfold plugins trust`"
    assert report.tools == ()
    assert "evil" not in runtime.registry.snapshot()
    assert not marker.exists()


def test_plugins_of_a_trusted_project_are_loaded(
    project: Path, open_test_runtime: RuntimeOpener, trust_tmp_project: Callable[[], None]
) -> None:
    write(project, {"local.py": source("local")})
    trust_tmp_project()
    runtime = open_test_runtime()
    assert reports(runtime)["local"].kind == "project folder"
    assert reports(runtime)["local"].state == "loaded"
    assert runtime.handle_function_call("local", {}) == '{"result":"ok"}'


@pytest.mark.parametrize("change", ["edited", "added", "removed"])
def test_plugins_of_a_project_changed_after_the_user_trusted_it_are_not_executed(
    change: str,
    project: Path,
    tmp_path: Path,
    open_test_runtime: RuntimeOpener,
    trust_tmp_project: Callable[[], None],
) -> None:
    marker = tmp_path / "ran"
    write(project, {"local.py": source("local"), "other.py": source("other")})
    trust_tmp_project()
    noted = f"open({str(marker)!r}, 'w')\n" + source("local")
    if change == "removed":
        (project / "other.py").unlink()
    else:
        write(project, {"local.py" if change == "edited" else "new.py": noted})
    runtime = open_test_runtime()
    assert {report.state for report in reports(runtime).values()} == {"untrusted"}
    assert reports(runtime)["local"].error.startswith("changed since you trusted it; review it")
    assert "local" not in runtime.registry.snapshot()
    assert not marker.exists()


def test_plugins_of_a_trusted_project_are_not_loaded_if_open_runtime_is_called_with_trusted_false(
    project: Path, open_test_runtime: RuntimeOpener, trust_tmp_project: Callable[[], None]
) -> None:
    write(project, {"local.py": source("local")})
    trust_tmp_project()
    runtime = open_test_runtime(trusted=False)
    assert reports(runtime)["local"].error == "the current configuration was loaded without trusting it"
    assert "local" not in runtime.registry.snapshot()


def test_running_a_plugin_of_a_trusted_project_writes_no_bytecode_files_to_the_project(
    project: Path,
    open_test_runtime: RuntimeOpener,
    trust_tmp_project: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write(
        project,
        {
            "pack/__init__.py": """
from .early import ANSWER

def late(args):
    from .deep.late import WORD
    return WORD

def register(plugin):
    plugin.register(name="late", schema={}, handler=late)
""",
            "pack/early.py": "ANSWER = 1",
            "pack/deep/late.py": "WORD = 'imported in the call'",
        },
    )
    trust_tmp_project()
    before = sorted(project.rglob("*"))
    assert open_test_runtime().handle_function_call("late", {}) == '{"result":"imported in the call"}'
    assert sorted(project.rglob("*")) == before
    assert reports(open_test_runtime())["pack"].state == "loaded"


@pytest.mark.parametrize(
    ("ending", "expected_error"),
    [
        ("raise ValueError('halfway')", "ValueError: halfway"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("class Panic(BaseException): pass\n    raise Panic('native')", "Panic: native"),
        (
            "class Mute(Exception):\n        def __str__(self): raise ValueError\n    raise Mute",
            "Mute",
        ),
        ("plugin.register(name='tool_search', schema={}, handler=print)", "ReservedName: 'tool_search'"),
        ("plugin.register(name='Tool-Call', schema={}, handler=print)", "ReservedName: 'Tool-Call'"),
        ("plugin.register(name='', schema={}, handler=print)", "InvalidTool"),
        ("plugin.add(print)", "SourceError: expected a Tool"),
        ("plugin.hook('before', print)", "SourceError: unknown hook 'before'"),
        ("plugin.hook('pre_tool_call', 'text')", "SourceError"),
        (
            "plugin.toolset('other', tools='first')",
            "SourceError: `tools` and `includes` of a toolset must be lists of names",
        ),
        (
            "plugin.toolset('other', includes=[1])",
            "SourceError: `tools` and `includes` of a toolset must be lists of names",
        ),
        ("plugin.toolset(5)", "SourceError: the name and the description of a toolset must be strings"),
        ("plugin.hooks.append(('pre_tool_call', 5))", "AttributeError"),
    ],
)
def test_plugin_that_raises_during_registration_registers_no_tools_and_no_hooks_and_no_toolsets(
    ending: str,
    expected_error: str,
    user: Path,
    open_test_runtime: RuntimeOpener,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad = f"""
def refuse(tool, args, context):
    raise RuntimeError("this hook must never run")

def register(plugin):
    plugin.register(name="first", schema={{}}, handler=lambda args: "ran")
    plugin.hook("pre_tool_call", refuse)
    plugin.toolset("bundle", tools=["first"])
    {ending}
"""
    write(user, {"bad.py": bad, "good.py": source("good")})
    runtime = open_test_runtime()
    report = reports(runtime)["bad"]
    assert report.state == "failed"
    assert report.error.startswith(expected_error)
    assert (report.tools, report.hooks, report.toolsets) == ((), (), ())
    assert "skipped the plugin 'bad'" in caplog.text
    assert "first" not in runtime.registry.snapshot()
    assert "bundle" not in runtime.toolsets().listing()
    assert runtime.handle_function_call("good", {}) == '{"result":"ok"}'


@pytest.mark.parametrize(
    ("code", "expected_error"),
    [
        ("import no_such_package_anywhere", "ModuleNotFoundError: No module named"),
        ("raise SystemExit('not here')", "SystemExit: not here"),
        ("def register(plugin:", "SyntaxError"),
        ("x = 1", "SourceError: the plugin has no synchronous function register(plugin)"),
        ("register = 5", "SourceError: the plugin has no synchronous function register(plugin)"),
        (
            "async def register(plugin): pass",
            "SourceError: the plugin has no synchronous function register(plugin)",
        ),
        ("def register(): pass", "TypeError"),
    ],
)
def test_invalid_plugin_file_is_reported_with_the_reason(
    code: str, expected_error: str, user: Path, open_test_runtime: RuntimeOpener
) -> None:
    write(user, {"bad.py": code, "good.py": source("good")})
    runtime = open_test_runtime()
    assert reports(runtime)["bad"].state == "failed"
    assert reports(runtime)["bad"].error.startswith(expected_error)
    assert reports(runtime)["good"].state == "loaded"


def test_modules_of_a_plugin_whose_import_failed_are_removed_from_sys_modules(
    user: Path, open_test_runtime: RuntimeOpener
) -> None:
    write(user, {"pack/__init__.py": "from . import inner\nraise ValueError", "pack/inner.py": "x = 1"})
    before = set(sys.modules)
    assert reports(open_test_runtime())["pack"].state == "failed"
    assert {each for each in set(sys.modules) - before if "toolfold_plugin" in each} == set()


def stale_bytecode(file: Path, code: str) -> bytes:
    """Return unchecked hash-based bytecode (PEP 552), which Python would run without reading the source."""
    flags, source_hash = (1).to_bytes(4, "little"), bytes(8)
    return importlib.util.MAGIC_NUMBER + flags + source_hash + marshal.dumps(compile(code, str(file), "exec"))


@pytest.mark.parametrize("shipped", ["plain.py", "pack/__init__.py", "pack/inner.py"])
def test_plugin_is_loaded_from_its_source_and_not_from_stale_bytecode(
    shipped: str, user: Path, open_test_runtime: RuntimeOpener
) -> None:
    write(
        user,
        {
            "plain.py": source("plain"),
            "pack/__init__.py": "from .inner import register",
            "pack/inner.py": source("packed"),
        },
    )
    cached = Path(importlib.util.cache_from_source(str(user / shipped)))
    cached.parent.mkdir()
    cached.write_bytes(stale_bytecode(user / shipped, source("evil")))
    assert {"plain", "packed"} <= set(open_test_runtime().registry.snapshot())
    assert "evil" not in open_test_runtime().registry.snapshot()


@pytest.mark.parametrize("name", ["inner.pyc", "inner/__init__.pyc", f"inner{EXTENSION_SUFFIXES[0]}"])
def test_compiled_submodule_of_a_plugin_package_is_never_loaded_instead_of_its_source(
    name: str, user: Path, open_test_runtime: RuntimeOpener
) -> None:
    write(user, {"pack/__init__.py": "from .inner import register", "pack/inner.py": source("packed")})
    (user / "pack" / name).parent.mkdir(exist_ok=True)
    (user / "pack" / name).write_bytes(stale_bytecode(user / "pack" / name, source("evil")))
    assert reports(open_test_runtime())["pack"].tools == ("packed",)
    (user / "pack" / "inner.py").unlink()
    report = reports(open_test_runtime())["pack"]
    assert (report.state, report.tools) == ("failed", ())
    assert report.error.startswith(
        ("ModuleNotFoundError: No module named", "ImportError: cannot import name")
    )


def test_installed_plugin_package_with_the_name_prefix_toolfold_plugin_is_loaded(
    site: Path, user: Path, open_test_runtime: RuntimeOpener
) -> None:
    write(user, {"own.py": source("own")})
    open_test_runtime()
    name = "toolfold_plugin_x"
    inner = {f"{name}/__init__.py": "from .inner import register", f"{name}/inner.py": source("installed")}
    install(site, name, name, inner)
    assert reports(open_test_runtime())[name].tools == ("installed",)


def test_keyboard_interrupt_during_plugin_loading_aborts_opening_the_runtime(
    user: Path, open_test_runtime: RuntimeOpener
) -> None:
    write(user, {"slow.py": "raise KeyboardInterrupt"})
    with pytest.raises(KeyboardInterrupt):
        open_test_runtime()


def test_disabled_plugin_is_listed_but_not_imported(
    user: Path, tmp_path: Path, open_test_runtime: RuntimeOpener
) -> None:
    marker = tmp_path / "ran"
    write(user, {"noisy.py": f"open({str(marker)!r}, 'w')\n" + source("noisy")})
    runtime = open_test_runtime({"plugins.disabled": ["noisy"]})
    assert reports(runtime)["noisy"].state == "disabled"
    assert "noisy" not in runtime.registry.snapshot()
    assert not marker.exists()


def test_plugins_are_not_imported_if_the_setting_plugins_enabled_is_false(
    user: Path, tmp_path: Path, open_test_runtime: RuntimeOpener
) -> None:
    marker = tmp_path / "ran"
    write(user, {"noisy.py": f"open({str(marker)!r}, 'w')\n" + source("noisy")})
    assert reports(open_test_runtime({"plugins.enabled": False})) == {}
    assert not marker.exists()


def test_plugin_hooks_can_refuse_calls_and_change_arguments_and_results(
    user: Path, open_test_runtime: RuntimeOpener
) -> None:
    write(
        user,
        {
            "guard.py": """
from toolfold import Refused, tool

@tool(toolset="guard")
def shout(text: str) -> str:
    return text.upper()

def before(tool, args, context):
    if args.get("text") == "secret":
        raise Refused("not that word")
    return {"text": args["text"] + "!"} if tool.name == "shout" else None

async def after(tool, args, result, context):
    return {"expected_error": result.value}

def register(plugin):
    plugin.add(shout)
    plugin.hook("pre_tool_call", before)
    plugin.hook("post_tool_call", after)
"""
        },
    )
    runtime = open_test_runtime()
    assert reports(runtime)["guard"].hooks == ("pre_tool_call", "post_tool_call")
    assert runtime.handle_function_call("shout", {"text": "hi"}) == '{"expected_error":"HI!"}'
    assert runtime.handle_function_call("shout", {"text": "secret"}) == '{"error":"not that word"}'


def test_toolset_declared_by_a_plugin_can_be_granted_to_a_session(
    user: Path, open_test_runtime: RuntimeOpener
) -> None:
    write(
        user,
        {
            "bundle.py": """
def register(plugin):
    plugin.register(name="inside", schema={}, handler=lambda args: "ok")
    plugin.register(name="beside", schema={}, handler=lambda args: "ok")
    plugin.toolset("reading", tools=["inside", "read_file"], includes=["todo"], description="To read.")
"""
        },
    )
    runtime = open_test_runtime()
    assert reports(runtime)["bundle"].toolsets == ("reading",)
    assert runtime.session(["reading"]).granted() == {"inside", "read_file", "todo"}
    assert runtime.toolsets().listing()["reading"].description == "To read."


@pytest.mark.parametrize("name", ["toolfold-gateway", "all", "web_tools", "mcp-github", "file", "earlier"])
def test_plugin_cannot_redefine_an_existing_toolset(
    name: str, user: Path, open_test_runtime: RuntimeOpener
) -> None:
    write(user, {"a.py": "def register(plugin): plugin.toolset('earlier', tools=['read_file'])"})
    write(user, {"b.py": f"def register(plugin): plugin.toolset({name!r}, includes=['terminal', 'file'])"})
    runtime = open_test_runtime()
    assert "that name is already in use" in reports(runtime)["b"].error
    assert runtime.session(["toolfold-gateway"]).granted().isdisjoint({"read_file", "write_file"})
    assert runtime.session(["earlier"]).granted() == {"read_file"}


def test_plugin_tool_that_replaces_a_built_in_tool_is_used_and_a_warning_is_logged(
    user: Path, open_test_runtime: RuntimeOpener, caplog: pytest.LogCaptureFixture
) -> None:
    write(user, {"mine.py": source("read_file", "mine")})
    with caplog.at_level(logging.WARNING):
        runtime = open_test_runtime()
    assert (
        "tool 'read_file' of toolset 'mine' (plugin mine) replaces the tool"
        " of the same name of toolset 'file'" in caplog.text
    )
    assert runtime.handle_function_call("read_file", {}) == '{"result":"mine"}'
    assert "read_file" not in runtime.session(["file"]).granted()


def test_tool_registered_by_a_plugin_with_a_built_in_source_is_marked_as_a_plugin_tool(
    user: Path, open_test_runtime: RuntimeOpener
) -> None:
    write(
        user,
        {
            "posing.py": """
from toolfold.core.types import Source

def register(plugin):
    plugin.register(name="posing", schema={}, handler=print, core=True, source=Source("builtin", "x"))
"""
        },
    )
    found = open_test_runtime().registry.snapshot()["posing"]
    assert str(found.source) == "plugin posing"
    assert not found.core


def test_user_and_project_plugins_with_equal_names_import_submodules_of_their_own_package(
    user: Path, project: Path, open_test_runtime: RuntimeOpener, trust_tmp_project: Callable[[], None]
) -> None:
    code = """
def answer(args):
    from .inner import ANSWER
    return ANSWER

def register(plugin):
    plugin.register(name="{name}", schema={{}}, handler=answer)
"""
    write(user, {"pack/__init__.py": code.format(name="users"), "pack/inner.py": "ANSWER = 'user'"})
    write(project, {"pack/__init__.py": code.format(name="projects"), "pack/inner.py": "ANSWER = 'project'"})
    trust_tmp_project()
    runtime = open_test_runtime()
    assert runtime.handle_function_call("projects", {}) == '{"result":"project"}'
    assert runtime.handle_function_call("users", {}) == '{"result":"user"}'


def test_changed_plugin_file_takes_effect_only_in_runtimes_opened_later(
    user: Path, open_test_runtime: RuntimeOpener
) -> None:
    pack = {"pack/__init__.py": "from .inner import register"}
    write(user, {**pack, "pack/inner.py": source("which", "old")})
    first = open_test_runtime()
    write(user, {**pack, "pack/inner.py": source("which", "newer")})
    second = open_test_runtime()
    assert first.handle_function_call("which", {}) == '{"result":"old"}'
    assert second.handle_function_call("which", {}) == '{"result":"newer"}'


def test_plugin_object_lists_its_added_tools_hooks_and_toolsets_without_a_runtime() -> None:
    @tool(toolset="mine")
    def greet() -> str:
        return "hello"

    plugin = Plugin("mine")
    plugin.add(greet)
    plugin.add(build_tool(name="by_value", toolset="mine", schema={}, handler=print))
    plugin.hook("post_tool_call", print)
    plugin.toolset("some", tools=["greet"])
    assert [each.name for each in plugin.tools] == ["greet", "by_value"]
    assert plugin.hooks == (("post_tool_call", print),)
    assert [each.name for each in plugin.toolsets] == ["some"]
    with pytest.raises(SourceError, match="use pre_tool_call or post_tool_call"):
        plugin.hook("sometimes", print)
