"""Sources of tools: built-in modules, plugins and catalog files.

A source that fails is reported with the reason; the others still load.
"""
