"""Finds the built-in tool modules and loads them in order of their names.

A module that cannot be imported, most often because an optional package is missing, is reported and
skipped; the others load on.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Iterable

import toolfold.tools
from toolfold.registry import Registry
from toolfold.sources.report import FAILED, LOADED, SourceReport, reason
from toolfold.tools import Services

log = logging.getLogger(__name__)


def load_builtin(
    registry: Registry,
    services: Services,
    *,
    package: str = "toolfold.tools",
    path: Iterable[str] | None = None,
) -> list[SourceReport]:
    """Register the tools of every module of the package, but for those named with an underscore."""
    found = pkgutil.iter_modules(toolfold.tools.__path__ if path is None else path)
    names = sorted(each.name for each in found if not each.name.startswith("_"))
    return [_load(registry, services, package, name) for name in names]


def _load(registry: Registry, services: Services, package: str, name: str) -> SourceReport:
    try:
        module = importlib.import_module(f"{package}.{name}")
        tools = registry.add_all(module.tools(services))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a native extension may panic with something that is no Exception
        log.warning("built-in tools %r are skipped: %s", name, reason(error))
        return SourceReport(kind="builtin", name=name, state=FAILED, error=reason(error))
    return SourceReport(kind="builtin", name=name, state=LOADED, tools=tuple(tool.name for tool in tools))
