"""Imports a plugin's file, and leaves the folder it lies in as it was.

A folder is trusted by its content, so no bytecode is written into it, now or when one of its modules is
first imported in the middle of a call. Knows nothing of plugins or tools.
"""

from __future__ import annotations

import importlib.util
import secrets
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from pathlib import Path
from types import ModuleType
from typing import Any

from toolfold.errors import SourceError

_PREFIX = "toolfold_plugin_"


def import_file(file: Path) -> ModuleType:
    """The module or, from its `__init__.py`, the package. One that raises is forgotten again."""
    # Each import has a name of its own: another runtime's plugin may be called the same and be other code.
    name = _PREFIX + secrets.token_hex(8)
    loader = _SourceOnly(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    if spec is None:
        raise SourceError(f"{file} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    _install_finder()
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        _forget(name)
        raise
    return module


def _forget(name: str) -> None:
    for each in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
        del sys.modules[each]


def _install_finder() -> None:
    if not any(isinstance(each, _InnerModules) for each in sys.meta_path):
        sys.meta_path.insert(0, _InnerModules())


class _SourceOnly(SourceFileLoader):
    """Writes no bytecode."""

    def set_data(self, *_: Any, **__: Any) -> None:
        return


class _InnerModules(MetaPathFinder):
    """Finds the modules inside packages that were imported here."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002  (importlib passes it)
    ) -> ModuleSpec | None:
        if not fullname.startswith(_PREFIX):
            return None
        loaders = (ExtensionFileLoader, EXTENSION_SUFFIXES), (_SourceOnly, SOURCE_SUFFIXES)
        found = (FileFinder(each, *loaders).find_spec(fullname) for each in path or ())
        return next((spec for spec in found if spec), None)
