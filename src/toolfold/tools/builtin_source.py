"""Find the built-in tool modules and load them in order of their names.

A module that cannot be imported, usually because an optional package is missing, is reported and skipped.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Iterable

import toolfold.tools.builtin
from toolfold.core.registry import Registry
from toolfold.tools.builtin import Services
from toolfold.tools.source_report import FAILED, LOADED, SourceReport, describe_exception

log = logging.getLogger(__name__)


def load_builtin(
    registry: Registry,
    services: Services,
    *,
    package: str = "toolfold.tools.builtin",
    path: Iterable[str] | None = None,
) -> list[SourceReport]:
    """Register the tools of all modules in a package, except modules whose names start with an underscore."""
    modules = pkgutil.iter_modules(toolfold.tools.builtin.__path__ if path is None else path)
    names = sorted(module.name for module in modules if not module.name.startswith("_"))
    return [_load_module(registry, services, package, name) for name in names]


def _load_module(registry: Registry, services: Services, package: str, name: str) -> SourceReport:
    try:
        module = importlib.import_module(f"{package}.{name}")
        tools = registry.add_all(module.tools(services))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a native extension may raise something other than Exception
        log.warning("the built-in tools %r were not loaded: %s", name, describe_exception(error))
        return SourceReport(kind="builtin", name=name, state=FAILED, error=describe_exception(error))
    return SourceReport(kind="builtin", name=name, state=LOADED, tools=tuple(tool.name for tool in tools))
