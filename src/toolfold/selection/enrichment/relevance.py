"""Measure how well example messages fit a tool's definition, with the shipped embedding models.

The limits in `retrieval.example_messages` are calibrated on these models, so the configured embedding model
is not used here.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import replace

from toolfold.core.types import Tool
from toolfold.selection.retrieval.document import query_text
from toolfold.selection.retrieval.embedding import EmbeddingUnavailable
from toolfold.selection.retrieval.example_messages import MessageFit
from toolfold.selection.retrieval.index import Index
from toolfold.selection.retrieval.indexing import Indexer
from toolfold.selection.retrieval.multilingual import MultilingualEmbedder
from toolfold.selection.retrieval.vector_store import VectorStore

log = logging.getLogger(__name__)


class DefinitionSimilarity:
    """Compares example messages with the definitions of all tools of a catalog."""

    def __init__(self, tools: Sequence[Tool], store: VectorStore | None = None) -> None:
        """Prepare to compare messages with these tools' definitions; `store` has their vectors."""
        self._tools, self._store = tools, store
        self._embedder = MultilingualEmbedder()

    @functools.cached_property
    def _index(self) -> Index:
        plain = [replace(tool, messages=()) if tool.messages else tool for tool in self._tools]
        return Indexer(self._embedder, self._store).index(plain)

    def __call__(self, tool: Tool, messages: Sequence[str]) -> list[MessageFit]:
        """Return how well each message fits the tool; a perfect fit if no embedding model is available."""
        position = self._index.by_name.get(tool.name)
        vectors = self._index.vectors
        try:
            rows = self._embedder.embed([query_text(message) for message in messages], "query")
        except EmbeddingUnavailable as error:
            log.warning("cannot check whether example messages fit their tools: %s", error)
            return [MessageFit(1.0)] * len(messages)
        if vectors is None or position is None:
            return [MessageFit(1.0)] * len(messages)
        scores = rows @ vectors.packed.dequantize().T
        own = scores[:, position].copy()
        scores[:, [number for number, each in enumerate(self._index.tools) if not _is_other(each, tool)]] = -1
        best = scores.argmax(1)
        return [
            MessageFit(float(score), float(row[number]), self._name_at(int(number)))
            for score, row, number in zip(own, scores, best, strict=True)
        ]

    def _name_at(self, position: int) -> str:
        tool = self._index.tools[position]
        return tool.name if tool else ""


def _is_other(each: Tool | None, tool: Tool) -> bool:
    """Return True if a tool is neither `tool` itself nor a copy of it on another server."""
    return each is not None and (each.own_name, each.description) != (tool.own_name, tool.description)
