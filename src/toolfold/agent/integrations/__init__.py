"""Adapters that let agent frameworks use Toolfold's tools: one module per framework.

Each adapter shows the framework's model the tools that fit the conversation, and sends every tool call to a
session, including calls of tools that were not shown. No module here is imported by another package.
"""
