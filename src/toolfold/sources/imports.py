"""Imports a plugin's file from its source alone, and leaves the folder it lies in as it was.

A folder is trusted by its content, as a person can read it: bytecode and compiled modules in it are not
run, and none are written into it, now or when one of its modules is first imported in the middle of a
call. Knows nothing of plugins or tools.
"""

from __future__ import annotations

import importlib.util
import secrets
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from toolfold.errors import SourceError

_PREFIX = "_toolfold_plugin_"


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
    """Neither runs nor writes bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        file = self.get_filename(fullname)
        return self.source_to_code(self.get_data(file), file)

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
        for folder in path or ():
            if spec := FileFinder(folder, (_SourceOnly, SOURCE_SUFFIXES)).find_spec(fullname):
                return spec
        # Python's own finders would come next, and would take a compiled module.
        raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
