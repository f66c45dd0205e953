"""Where tools come from: built-in modules, plugins, catalog files.

Each source is supervised: one that fails is reported with its reason and the others load on.
"""

from toolfold.sources.builtin import load_builtin
from toolfold.sources.catalog import load_catalog, sample_catalog
from toolfold.sources.plugins import Plugin, PluginFolder, load_plugins
from toolfold.sources.report import SourceReport

__all__ = [
    "Plugin",
    "PluginFolder",
    "SourceReport",
    "load_builtin",
    "load_catalog",
    "load_plugins",
    "sample_catalog",
]
