"""Toolfold's tools in agent frameworks: one module per framework, imported by its users only.

Each adapter shows the framework's model the tools that fit the conversation, and sends every tool call to a
session, including calls of tools that were not shown. No module here is imported by another package.
"""
