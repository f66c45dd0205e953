"""Every configurable backend can be built from the settings."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from toolfold.config import Config, load_config
from toolfold.config.settings import BackendName
from toolfold.environments.factory import BACKENDS, build_backend
from toolfold.environments.local import safe_variables
from toolfold.errors import ConfigError, EnvironmentFailed

NAMES = get_args(get_args(BackendName)[0])


def make_config(tmp_path: Path, **terminal: object) -> Config:
    env = {"TOOLFOLD_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    return load_config(project=tmp_path, env=env, overrides={"terminal": terminal})


def test_every_configurable_backend_name_is_known() -> None:
    assert set(NAMES) == set(BACKENDS)


@pytest.mark.parametrize("name", NAMES)
def test_backend_is_built_from_settings(name: str, tmp_path: Path) -> None:
    config = make_config(tmp_path, backend=name, image="some/image", ssh={"host": "build.example"})
    assert build_backend(config, name).name == name


def test_ssh_without_host_is_a_config_error(tmp_path: Path) -> None:
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
def test_project_settings_cannot_change_the_backend(key: str, value: str, tmp_path: Path) -> None:
    usual = getattr(make_config(tmp_path).terminal, key)
    (tmp_path / "toolfold.yaml").write_text(f"terminal:\n  {key}: {value}\n")
    assert getattr(make_config(tmp_path).terminal, key) == usual


@pytest.mark.parametrize("name", ["x,", "x:y"])
async def test_special_characters_in_project_path_mount_nothing_else(name: str, tmp_path: Path) -> None:
    project = tmp_path / name / "etc"
    project.mkdir(parents=True)
    with pytest.raises(EnvironmentFailed, match="Rename the directory"):
        await build_backend(make_config(project, image="some/image"), "apptainer").open()


def test_only_known_harmless_variables_are_passed_on() -> None:
    named = dict.fromkeys(
        ("PATH", "LC_ALL", "LC_TOKEN", "TERM_TOKEN", "XPATH", "HOME2", "SHELLS", "AWS_KEY"), "x"
    )
    assert set(safe_variables(named)) == {"PATH", "LC_ALL"}
