"""Where this runtime's own program lies: its package, its script, and an environment made for it alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from shellverdict.names import names

__all__ = ["is_own_program", "program_places"]

_PROGRAM = "toolfold"
_PACKAGES = names("toolfold shellverdict")
_PACKAGE_FOLDERS = names("site-packages dist-packages")
_SCRIPT_FOLDERS = names("bin scripts")
_SCRIPTS = names("toolfold toolfold.exe toolfold-script.py")
# Environments that `uv tool install` and `pipx install` make for one program, by the folders above them.
_TOOL_FOLDERS = (("uv", "tools"), ("pipx", "venvs"))


def program_places(workspace: Path, package: Path | None = None, prefix: Path | None = None) -> list[Path]:
    """The places of the running program.

    A workspace that is the checkout the package runs from is exempt: there the package is what is worked on.
    """
    package = package or Path(__file__).resolve().parents[2] / _PROGRAM
    prefix = prefix or Path(sys.prefix)
    if package.parent.name == "src" and package.parent.parent == workspace.resolve():
        return []
    packages = [package.parent / name for name in sorted(_PACKAGES)]
    return [*packages, *_scripts(prefix), *([prefix] if prefix.name == _PROGRAM else [])]


def _scripts(prefix: Path) -> Iterator[Path]:
    yield prefix / "bin" / _PROGRAM
    if Path(sys.argv[0]).name in _SCRIPTS:
        yield Path(sys.argv[0]).absolute()


def is_own_program(parts: Sequence[str]) -> bool:
    """Whether the lower-case parts of a path lead to an installed copy of this program, whichever runs."""
    if len(parts) > 1 and parts[-1] in _SCRIPTS and parts[-2] in _SCRIPT_FOLDERS:
        return True
    for at, part in enumerate(parts[1:], 1):
        if part in _PACKAGES and parts[at - 1] in _PACKAGE_FOLDERS:
            return True
        if part == _PROGRAM and tuple(parts[at - 2 : at]) in _TOOL_FOLDERS:
            return True
        if parts[at - 1] in _PACKAGE_FOLDERS and part.startswith(f"{_PROGRAM}-"):
            return True
    return False
