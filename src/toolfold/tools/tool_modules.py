"""Load the `@tool` functions of Python modules that the user names, by file or by dotted name.

Naming a module is permission to run its code, as `python FILE` is.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from toolfold.core.authoring import ToolFunction
from toolfold.core.errors import ConfigError
from toolfold.core.types import Tool
from toolfold.tools.source_import import import_file
from toolfold.tools.source_report import describe_exception

__all__ = ["load_tool_modules"]


def load_tool_modules(names: Iterable[str]) -> list[Tool]:
    """Import modules and return the tools that they define. Raises ConfigError."""
    found: dict[str, tuple[Tool, str]] = {}
    for name in names:
        tools = _find_tools(_import_module(name), name)
        if not tools:
            raise ConfigError(
                f"{name} defines no tools",
                hint="decorate a function of the module with @tool (from toolfold import tool)",
            )
        for tool in tools:
            other, origin = found.setdefault(tool.name, (tool, name))
            if other is not tool:
                raise ConfigError(
                    f"two tools are named {tool.name!r}: one of {origin} and one of {name}",
                    hint='rename one of them: @tool(name="…")',
                )
    return [tool for tool, _ in found.values()]


def _find_tools(module: ModuleType, name: str) -> list[Tool]:
    try:
        values = [each.tool if isinstance(each, ToolFunction) else each for each in vars(module).values()]
    except Exception as error:  # building the tool reads the types of its function
        raise ConfigError(f"{name}: {describe_exception(error)}") from error
    return [each for each in values if isinstance(each, Tool)]


def _import_module(name: str) -> ModuleType:
    is_file = name.endswith(".py") or os.sep in name
    file = Path(name).resolve()
    if is_file and not file.is_file():
        raise ConfigError(f"there is no file {name}", hint="name a file, or a module such as shop.tools")
    # As Python does for `python FILE` and `python -m MODULE`, so that it finds the modules beside it.
    directory = str(file.parent if is_file else Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        return import_file(file) if is_file else importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit: the message must name the module
        place, line = _find_line(error, directory)
        raise ConfigError(
            f"{name} cannot be imported: {describe_exception(error)}", file=place, line=line
        ) from error


def _find_line(error: BaseException, directory: str) -> tuple[str, int | None]:
    """Return the innermost file and line of the user's code where an error was raised."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(directory + os.sep)]
    return (own[-1].filename, own[-1].lineno) if own else ("", None)
