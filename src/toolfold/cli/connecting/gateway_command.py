"""Find a command that starts the gateway from any program, even without the user's shell environment.

Desktop applications get a short PATH. Programs that are not on it are given by their absolute path. Starts
nothing.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolfold.mcp.importing.gateways import SERVE_ARGUMENTS

_NAME = "toolfold"
_DESKTOP_PATHS = {
    "darwin": "/usr/bin:/bin:/usr/sbin:/sbin",
    "linux": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
}
# Directories of the temporary environments that `uvx` creates.
_UV_CACHE_DIRECTORIES = frozenset({"archive-v0", "environments-v2", "builds-v0"})


@dataclass(frozen=True, slots=True)
class RunningProgram:
    """Path and Python environment of the running program, which are needed to start it again."""

    script: Path
    """Path of the running `toolfold` script."""
    interpreter: Path
    prefix: Path
    """Directory of the Python environment in which Toolfold is installed."""
    platform: str
    environment: Mapping[str, str]


def current_program(environment: Mapping[str, str]) -> RunningProgram:
    """Return the path and Python environment of the running program, which are needed to start it again."""
    invoked = Path(sys.argv[0]).absolute() if sys.argv and sys.argv[0] else Path()
    beside = Path(sys.executable).with_name(_NAME + Path(sys.executable).suffix)
    script = invoked if invoked.stem == _NAME and invoked.is_file() else beside
    return RunningProgram(script, Path(sys.executable), Path(sys.prefix), sys.platform, environment)


def gateway_command(running: RunningProgram, *, with_uvx: bool = False) -> tuple[str, ...]:
    """Return the command that starts the gateway from any environment."""
    if with_uvx or _UV_CACHE_DIRECTORIES & set(running.prefix.parts):
        return (_locate_program(running, "uvx"), _NAME, *SERVE_ARGUMENTS)
    if _is_pipx_run(running.prefix):
        return (_locate_program(running, "pipx"), "run", _NAME, *SERVE_ARGUMENTS)
    if not running.script.is_file():
        return (str(running.interpreter), "-c", "from toolfold.cli import main; main()", *SERVE_ARGUMENTS)
    found = shutil.which(_NAME, path=_desktop_path(running))
    is_same = found is not None and running.script.is_file() and Path(found).samefile(running.script)
    return (_NAME if is_same else str(running.script), *SERVE_ARGUMENTS)


def _locate_program(running: RunningProgram, program: str) -> str:
    """Return the program's name if desktop applications find it in their PATH, otherwise its full path."""
    if shutil.which(program, path=_desktop_path(running)):
        return program
    return shutil.which(program, path=running.environment.get("PATH")) or program


def _is_pipx_run(prefix: Path) -> bool:
    return "pipx" in prefix.parts and "venvs" not in prefix.parts


def _desktop_path(running: RunningProgram) -> str:
    return _DESKTOP_PATHS.get(running.platform) or running.environment.get("PATH", "")
