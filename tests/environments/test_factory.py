"""Every configurable backend can be built from the settings."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from toolfold.config import Config, load_config
from toolfold.config.settings import BuiltinBackend
from toolfold.core.errors import ConfigError, EnvironmentFailed
from toolfold.tools.environments.environment_factory import (
    BACKENDS,
    backend_names,
    build_backend,
    build_environment,
)
from toolfold.tools.environments.local import safe_variables

NAMES = get_args(BuiltinBackend)


def make_config(tmp_path: Path, **terminal: object) -> Config:
    env = {"TOOLFOLD_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    return load_config(project=tmp_path, env=env, overrides={"terminal": terminal})


def test_every_terminal_backend_name_that_the_settings_accept_has_an_implementation() -> None:
    assert set(NAMES) == set(BACKENDS)


@pytest.mark.parametrize("name", NAMES)
def test_every_terminal_backend_can_be_created_from_the_settings_by_name(name: str, tmp_path: Path) -> None:
    config = make_config(tmp_path, backend=name, image="some/image", ssh={"host": "build.example"})
    assert build_backend(config, name).name == name


def test_ssh_backend_without_a_host_raises_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"terminal\.ssh\.host"):
        build_backend(make_config(tmp_path), "ssh")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("backend", "docker"),
        ("image", "evil"),
        ("keep", "false"),
        ("network", "true"),
        ("environment", "[A]"),
        ("sandbox", "{visible: [/etc]}"),
        ("ssh", "{host: evil.example, identity: ~/.ssh/id, known_hosts: ./known}"),
    ],
)
def test_project_settings_cannot_change_the_terminal_backend_or_its_options(
    key: str, value: str, tmp_path: Path
) -> None:
    usual = getattr(make_config(tmp_path).terminal, key)
    (tmp_path / "toolfold.yaml").write_text(f"terminal:\n  {key}: {value}\n")
    assert getattr(make_config(tmp_path).terminal, key) == usual


@pytest.mark.parametrize("name", ["x,", "x:y"])
async def test_apptainer_backend_rejects_a_project_path_with_characters_that_are_special_in_mount_options(
    name: str, tmp_path: Path
) -> None:
    project = tmp_path / name / "etc"
    project.mkdir(parents=True)
    with pytest.raises(EnvironmentFailed, match="Rename the directory"):
        await build_backend(make_config(project, image="some/image"), "apptainer").open()


def test_only_known_harmless_environment_variables_are_passed_to_commands() -> None:
    named = dict.fromkeys(
        ("PATH", "LC_ALL", "LC_TOKEN", "TERM_TOKEN", "XPATH", "HOME2", "SHELLS", "AWS_KEY"), "x"
    )
    assert set(safe_variables(named)) == {"PATH", "LC_ALL"}


PLUGIN = """
from toolfold.tools.environments.local import Local


class Tree(Local):
    name = "plugin:tree"


def build(config):
    state = config.paths.state_dir / "tree"
    return Tree(home=config.workspace, state_dir=state, environment=config.environment)


def build_number(config):
    return 7
"""


@pytest.fixture
def installed_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real installed distribution with entry points, on the import path."""
    site = tmp_path / "site"
    metadata = site / "tree_backend-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "tree_backend.py").write_text(PLUGIN)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tree-backend\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[toolfold.backends]\ntree = tree_backend:build\n"
        "number = tree_backend:build_number\ngone = missing:x\n"
    )
    monkeypatch.syspath_prepend(str(site))


@pytest.mark.usefixtures("installed_plugin")
class TestPluginBackends:
    async def test_command_runs_in_a_terminal_backend_that_an_installed_package_provides(
        self, tmp_path: Path
    ) -> None:
        config = make_config(tmp_path, backend="plugin:tree")
        async with build_environment(config) as environment:
            done = await environment.run("echo from the tree")
        assert (done.exit_code, done.output.strip()) == (0, "from the tree")

    def test_terminal_backends_provided_by_installed_packages_are_listed(self) -> None:
        assert {"plugin:tree", "plugin:number", "local"} <= set(backend_names())

    @pytest.mark.parametrize(
        ("name", "problem"),
        [
            ("oak", "no installed package provides"),
            ("number", "not a .* Backend"),
            ("gone", "cannot be loaded"),
        ],
    )
    def test_plugin_backend_that_is_missing_or_cannot_be_loaded_raises_a_config_error(
        self, tmp_path: Path, name: str, problem: str
    ) -> None:
        with pytest.raises(ConfigError, match=problem):
            build_backend(make_config(tmp_path), f"plugin:{name}")
