"""Find the paths of Toolfold's own program: its packages, its script, its virtual environment."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from shellverdict.names import split_names

__all__ = ["is_own_program", "runtime_program_paths"]

_PROGRAM = "toolfold"
_PACKAGES = split_names("toolfold shellverdict")
_PACKAGE_DIRECTORIES = split_names("site-packages dist-packages")
_SCRIPT_DIRECTORIES = split_names("bin scripts")
_SCRIPTS = split_names("toolfold toolfold.exe toolfold-script.py")
# Parent directories of the environments that `uv tool install` and `pipx install` create for one program.
_TOOL_DIRECTORIES = (("uv", "tools"), ("pipx", "venvs"))


def runtime_program_paths(
    workspace: Path, package: Path | None = None, prefix: Path | None = None
) -> list[Path]:
    """Return the paths of the installed Toolfold program, which commands must not change.

    Empty if the workspace is the checkout that the package is run from: there the package is being developed.
    """
    package = package or Path(__file__).resolve().parents[2] / _PROGRAM
    prefix = prefix or Path(sys.prefix)
    if package.parent.name == "src" and package.parent.parent == workspace.resolve():
        return []
    packages = [package.parent / name for name in sorted(_PACKAGES)]
    return [*packages, *_script_paths(prefix), *([prefix] if prefix.name == _PROGRAM else [])]


def _script_paths(prefix: Path) -> Iterator[Path]:
    yield prefix / "bin" / _PROGRAM
    if Path(sys.argv[0]).name in _SCRIPTS:
        yield Path(sys.argv[0]).absolute()


def is_own_program(parts: Sequence[str]) -> bool:
    """Return True if a path, given as lower-case components, leads to an installed copy of Toolfold."""
    if len(parts) > 1 and parts[-1] in _SCRIPTS and parts[-2] in _SCRIPT_DIRECTORIES:
        return True
    for at, part in enumerate(parts[1:], 1):
        if part in _PACKAGES and parts[at - 1] in _PACKAGE_DIRECTORIES:
            return True
        if part == _PROGRAM and tuple(parts[at - 2 : at]) in _TOOL_DIRECTORIES:
            return True
        if parts[at - 1] in _PACKAGE_DIRECTORIES and part.startswith(f"{_PROGRAM}-"):
            return True
    return False
