"""The command that starts the gateway from a program that has not seen the user's shell.

A program with windows is started by the desktop, with a short PATH. What it cannot find there is named by its
whole path. Looks at files and starts nothing.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolfold.sources.mcp.importing.gateways import SERVE_ARGUMENTS

_NAME = "toolfold"
_OF_DESKTOPS = {
    "darwin": "/usr/bin:/bin:/usr/sbin:/sbin",
    "linux": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
}
# Where `uvx` and `pipx run` put what they throw away again.
_PASSING_UV = frozenset({"archive-v0", "environments-v2", "builds-v0"})


@dataclass(frozen=True, slots=True)
class Running:
    """This very program, as far as starting it again is concerned."""

    script: Path
    """The `toolfold` that was run."""
    interpreter: Path
    prefix: Path
    """The environment it is installed in."""
    platform: str
    environment: Mapping[str, str]


def here(environment: Mapping[str, str]) -> Running:
    """What runs now."""
    called = Path(sys.argv[0]).absolute() if sys.argv and sys.argv[0] else Path()
    beside = Path(sys.executable).with_name(_NAME + Path(sys.executable).suffix)
    script = called if called.stem == _NAME and called.is_file() else beside
    return Running(script, Path(sys.executable), Path(sys.prefix), sys.platform, environment)


def command_of(running: Running, *, with_uvx: bool = False) -> tuple[str, ...]:
    """The words that start the gateway, wherever they are said."""
    if with_uvx or _PASSING_UV & set(running.prefix.parts):
        return (_found(running, "uvx"), _NAME, *SERVE_ARGUMENTS)
    if _is_of_pipx_run(running.prefix):
        return (_found(running, "pipx"), "run", _NAME, *SERVE_ARGUMENTS)
    if not running.script.is_file():
        return (str(running.interpreter), "-c", "from toolfold.cli import main; main()", *SERVE_ARGUMENTS)
    usual = shutil.which(_NAME, path=_path_of_desktop(running))
    is_same = usual is not None and running.script.is_file() and Path(usual).samefile(running.script)
    return (_NAME if is_same else str(running.script), *SERVE_ARGUMENTS)


def _found(running: Running, program: str) -> str:
    """The program by its name where a desktop finds it, by its path where only the user does."""
    if shutil.which(program, path=_path_of_desktop(running)):
        return program
    return shutil.which(program, path=running.environment.get("PATH")) or program


def _is_of_pipx_run(prefix: Path) -> bool:
    return "pipx" in prefix.parts and "venvs" not in prefix.parts


def _path_of_desktop(running: Running) -> str:
    return _OF_DESKTOPS.get(running.platform) or running.environment.get("PATH", "")
