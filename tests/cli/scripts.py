"""Scripts for the scripted model, as files for the model `scripted:FILE`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WriteScript = Callable[..., str]


def call(tool: str, /, text: str = "", **arguments: Any) -> dict[str, Any]:
    """Return a step of a script in which the model calls one tool."""
    return {"text": text, "calls": [{"name": tool, "arguments": arguments}]}


@pytest.fixture
def write_script(tmp_path: Path) -> WriteScript:
    """Return a function that writes a script and returns the name of its model."""

    def write(*steps: Any, name: str = "script", delay_s: float = 0.0) -> str:
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"steps": steps, "delta_delay_s": delay_s}), encoding="utf-8")
        return f"scripted:{file}"

    return write
