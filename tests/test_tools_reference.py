"""The reference of the built-in tools in the documentation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.thorough
def test_tools_reference_page_is_up_to_date_with_the_built_in_tools() -> None:
    script = [sys.executable, str(ROOT / "scripts/tools_reference.py")]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
