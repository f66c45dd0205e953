"""Fixtures that run the command line in a temporary directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from toolfold.cli.app import run


@dataclass(frozen=True)
class Done:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Toolfold = Callable[..., Done]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary settings, state and project; the terminal is wide, so that tables are not wrapped."""
    directory = tmp_path / "home"
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.setenv("TOOLFOLD_HOME", str(directory))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("TOOLFOLD_CONFIG", raising=False)
    monkeypatch.chdir(project)
    return directory


@pytest.fixture
def toolfold(home: Path, capfd: pytest.CaptureFixture[str]) -> Toolfold:
    """Return a function that runs a command line in this process."""

    def call(*arguments: str) -> Done:
        code = run(arguments)
        captured = capfd.readouterr()
        return Done(code, captured.out, captured.err)

    return call
