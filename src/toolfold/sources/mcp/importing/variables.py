"""What stands between `${` and `}` in other programs' files, in our words.

Each program has a style of its own: some look variables up as shells do, editors write `${env:NAME}` and know
folders, others look nothing up at all. What one of them would pass on as it stands is escaped for us.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toolfold.errors import shorten
from toolfold.sources.mcp.importing.types import RejectedEntryError

Style = Literal["none", "shell", "editor"]

_HELD = re.compile(r"(\$?)\$\{(?:([^{}]*)\})?")
_AS_SHELLS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?::-[^{}]*)?")
_OF_ENVIRONMENT = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
_INPUT = "input:"


@dataclass(frozen=True, slots=True)
class Variables:
    """How one file's text is translated."""

    style: Style = "none"
    folders: Mapping[str, str] = field(default_factory=dict)
    """Names that stand for a folder or a sign, as `userHome` does."""
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the program would ask a person for, by its name."""

    def translated(self, text: str, remarks: list[str], *, is_value: bool = False) -> str:
        """The text with our references. Adds to `remarks` what a person has to do about them.

        `is_value` says that the text is a variable's or a header's: there, `${NAME}` is always meant as a
        reference, whether or not the program looks it up; in an argument it may be meant for a shell.
        """

        def replacement(found: re.Match[str]) -> str:
            dollar, inside = found[1], found[2]
            mine = None if inside is None else self._reference(inside, remarks, is_value=is_value)
            if mine is None:
                return f"{dollar}$${{" + ("" if inside is None else f"{inside}}}")
            if dollar and mine.startswith("${"):
                raise RejectedEntryError(
                    f"{shorten(found[0], 60)!r}: a $ before a reference cannot be written here"
                )
            return dollar + mine

        return _HELD.sub(replacement, text)

    def _reference(self, inside: str, remarks: list[str], *, is_value: bool) -> str | None:
        """What takes the place of `${inside}`, or None where it is meant as it stands."""
        if _AS_SHELLS.fullmatch(inside):
            if self.style == "editor" and inside in self.folders:
                return self.folders[inside]
            return self._as_shells(inside, remarks, is_value=is_value)
        if self.style != "editor":
            return None
        if inside in self.folders:
            return self.folders[inside]
        if name := _OF_ENVIRONMENT.fullmatch(inside):
            return f"${{{name[1]}}}"
        if inside.startswith(_INPUT):
            return self._asked_for(inside.removeprefix(_INPUT), remarks)
        raise RejectedEntryError(f"only the editor itself knows what ${{{shorten(inside, 60)}}} stands for")

    def _as_shells(self, inside: str, remarks: list[str], *, is_value: bool) -> str | None:
        if self.style == "shell":
            return f"${{{inside}}}"
        if self.style == "editor" and inside in ("workspaceFolder", "workspaceFolderBasename"):
            raise RejectedEntryError(f"it uses ${{{inside}}}, and belongs to no project")
        if not is_value:
            return None
        remarks.append(f"${{{inside}}} was passed on as it stands; Toolfold looks the variable up")
        return f"${{{inside}}}"

    def _asked_for(self, name: str, remarks: list[str]) -> str:
        asked = self.inputs.get(name, {})
        variable = variable_name(name)
        about = asked.get("description")
        said = f" ({shorten(about, 80)})" if isinstance(about, str) and about else ""
        remarks.append(f"the editor asks for {shorten(name, 60)!r}{said}: set the variable {variable}")
        default = asked.get("default")
        if isinstance(default, str) and default and not set(default) & set("{}"):
            return f"${{{variable}:-{default}}}"
        return f"${{{variable}}}"


def variable_name(text: str) -> str:
    """A name that a variable can have: `github-token` becomes `GITHUB_TOKEN`."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").upper()[:60] or "VALUE"
    return name if not name[0].isdigit() else f"_{name}"
