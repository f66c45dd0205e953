"""Translate `${…}` references in other clients' files to the syntax of Toolfold's settings.

Each client has its own style: some expand variables like a shell, editors write `${env:NAME}` and know
directory names, others expand nothing. Text that a client would pass on unchanged is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toolfold.core.errors import shorten
from toolfold.mcp.importing.import_types import RejectedEntryError

Style = Literal["none", "shell", "editor"]

_REFERENCE = re.compile(r"(\$?)\$\{(?:([^{}]*)\})?")
_SHELL_REFERENCE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?::-[^{}]*)?")
_EDITOR_VARIABLE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
_INPUT_PREFIX = "input:"


@dataclass(frozen=True, slots=True)
class Variables:
    """Rules for translating the `${…}` references in one client's file."""

    style: Style = "none"
    constants: Mapping[str, str] = field(default_factory=dict)
    """Values of predefined names such as `userHome`."""
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Values that the client would ask the user for, by their ids."""

    def translate(self, text: str, remarks: list[str], *, is_value: bool = False) -> str:
        """Translate the references in a text to Toolfold's syntax; append notes for the user to `remarks`.

        `is_value` marks the value of a variable or header: there `${NAME}` is always a reference, even if the
        client does not expand it. In an argument it may be meant for a shell.
        """

        def replace(match: re.Match[str]) -> str:
            dollar, inside = match[1], match[2]
            translation = (
                None if inside is None else self._translate_reference(inside, remarks, is_value=is_value)
            )
            if translation is None:
                return f"{dollar}$${{" + ("" if inside is None else f"{inside}}}")
            if dollar and translation.startswith("${"):
                raise RejectedEntryError(
                    f"{shorten(match[0], 60)!r}: another $ before ${{…}} is not supported"
                )
            return dollar + translation

        return _REFERENCE.sub(replace, text)

    def _translate_reference(self, inside: str, remarks: list[str], *, is_value: bool) -> str | None:
        """Translate `${inside}` to Toolfold's syntax; return None if it is not a variable reference."""
        if _SHELL_REFERENCE.fullmatch(inside):
            if self.style == "editor" and inside in self.constants:
                return self.constants[inside]
            return self._translate_shell_reference(inside, remarks, is_value=is_value)
        if self.style != "editor":
            return None
        if inside in self.constants:
            return self.constants[inside]
        if name := _EDITOR_VARIABLE.fullmatch(inside):
            return f"${{{name[1]}}}"
        if inside.startswith(_INPUT_PREFIX):
            return self._translate_input(inside.removeprefix(_INPUT_PREFIX), remarks)
        raise RejectedEntryError(f"${{{shorten(inside, 60)}}} can only be expanded by the editor itself")

    def _translate_shell_reference(self, inside: str, remarks: list[str], *, is_value: bool) -> str | None:
        if self.style == "shell":
            return f"${{{inside}}}"
        if self.style == "editor" and inside in ("workspaceFolder", "workspaceFolderBasename"):
            raise RejectedEntryError(f"the server uses ${{{inside}}} but belongs to no project")
        if not is_value:
            return None
        remarks.append(f"${{{inside}}} was passed on literally; Toolfold expands the variable")
        return f"${{{inside}}}"

    def _translate_input(self, name: str, remarks: list[str]) -> str:
        declared = self.inputs.get(name, {})
        variable = variable_name(name)
        description = declared.get("description")
        details = f" ({shorten(description, 80)})" if isinstance(description, str) and description else ""
        remarks.append(f"the editor asks for {shorten(name, 60)!r}{details}: set the variable {variable}")
        default = declared.get("default")
        if isinstance(default, str) and default and not set(default) & set("{}"):
            return f"${{{variable}:-{default}}}"
        return f"${{{variable}}}"


def variable_name(text: str) -> str:
    """Return a valid environment variable name: `github-token` becomes `GITHUB_TOKEN`."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").upper()[:60] or "VALUE"
    return name if not name[0].isdigit() else f"_{name}"
