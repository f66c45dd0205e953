"""Import a plugin's file from source, without reading or writing compiled files.

A directory is trusted by its readable content: bytecode and compiled modules in it are not run, and none are
written to it, neither now nor when a submodule is first imported during a call. Knows nothing of plugins or
tools.
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

from toolfold.core.errors import SourceError

_MODULE_PREFIX = "_toolfold_plugin_"


def import_file(file: Path) -> ModuleType:
    """Import a module or package file; on failure, remove it from sys.modules."""
    # Use a unique name: another runtime may have a plugin of the same name with different code.
    name = _MODULE_PREFIX + secrets.token_hex(8)
    loader = _SourceOnlyLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    if spec is None:
        raise SourceError(f"{file} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    _install_finder()
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        _remove_modules(name)
        raise
    return module


def _remove_modules(name: str) -> None:
    for module in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
        del sys.modules[module]


def _install_finder() -> None:
    if not any(isinstance(finder, _SubmoduleFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _SubmoduleFinder())


class _SourceOnlyLoader(SourceFileLoader):
    """Module loader that neither reads nor writes cached bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        file = self.get_filename(fullname)
        return self.source_to_code(self.get_data(file), file)

    def set_data(self, *_: Any, **__: Any) -> None:
        return


class _SubmoduleFinder(MetaPathFinder):
    """Finds submodules of packages that `import_file` has imported."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002  (importlib passes it)
    ) -> ModuleSpec | None:
        if not fullname.startswith(_MODULE_PREFIX):
            return None
        for directory in path or ():
            if spec := FileFinder(directory, (_SourceOnlyLoader, SOURCE_SUFFIXES)).find_spec(fullname):
                return spec
        # Stop here: Python's own finders would come next and would load a compiled module.
        raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
