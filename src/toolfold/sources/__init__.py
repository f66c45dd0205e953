"""Sources of tools: built-in modules, plugins and catalog files.

A source that fails is reported with the reason; the others still load.
"""

from toolfold.sources.builtin import load_builtin
from toolfold.sources.catalog import load_catalog, parse_catalog, sample_catalog
from toolfold.sources.plugins import Plugin, PluginDirectory, load_plugins
from toolfold.sources.source_report import SourceReport

__all__ = [
    "Plugin",
    "PluginDirectory",
    "SourceReport",
    "load_builtin",
    "load_catalog",
    "load_plugins",
    "parse_catalog",
    "sample_catalog",
]
