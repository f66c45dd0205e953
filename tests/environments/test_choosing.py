"""Every place that the settings can name can be made from the settings."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from toolfold.config import Config, load
from toolfold.config.settings import Place
from toolfold.environments.choosing import BACKENDS, backend
from toolfold.environments.local import harmless
from toolfold.errors import ConfigError, EnvironmentFailed

NAMES = get_args(get_args(Place)[0])


def settings(tmp_path: Path, **terminal: object) -> Config:
    env = {"TOOLFOLD_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    return load(project=tmp_path, env=env, overrides={"terminal": terminal})


def test_every_name_of_the_settings_is_a_place() -> None:
    assert set(NAMES) == set(BACKENDS)


@pytest.mark.parametrize("name", NAMES)
def test_a_place_is_made_from_the_settings(name: str, tmp_path: Path) -> None:
    config = settings(tmp_path, backend=name, image="some/image", ssh={"host": "build.example"})
    assert backend(config, name).name == name


def test_ssh_must_be_told_where_to_go(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"terminal\.ssh\.host"):
        backend(settings(tmp_path), "ssh")


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
def test_a_project_cannot_choose_where_commands_run(key: str, value: str, tmp_path: Path) -> None:
    usual = getattr(settings(tmp_path).terminal, key)
    (tmp_path / "toolfold.yaml").write_text(f"terminal:\n  {key}: {value}\n")
    assert getattr(settings(tmp_path).terminal, key) == usual


@pytest.mark.parametrize("name", ["x,", "x:y"])
async def test_a_project_s_name_shows_an_instance_nothing_else(name: str, tmp_path: Path) -> None:
    project = tmp_path / name / "etc"
    project.mkdir(parents=True)
    with pytest.raises(EnvironmentFailed, match="Rename the folder"):
        await backend(settings(project, image="some/image"), "apptainer").open()


def test_only_what_no_secret_is_called_is_taken_for_harmless() -> None:
    named = dict.fromkeys(
        ("PATH", "LC_ALL", "LC_TOKEN", "TERM_TOKEN", "XPATH", "HOME2", "SHELLS", "AWS_KEY"), "x"
    )
    assert set(harmless(named)) == {"PATH", "LC_ALL"}
