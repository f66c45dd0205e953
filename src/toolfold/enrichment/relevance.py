"""Measure whether a message fits a tool's definition, with the models that ship with the package.

The limits in `retrieval.example_messages` are calibrated on these models, so the configured embedding model
is not used here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from toolfold.model import Tool
from toolfold.retrieval.document import query_text
from toolfold.retrieval.embedding import EmbeddingUnavailable
from toolfold.retrieval.index import embedding_text
from toolfold.retrieval.multilingual import MultilingualEmbedder

log = logging.getLogger(__name__)


class DefinitionSimilarity:
    """Computes the similarity of messages to the definition of a tool. Loads the models when it is called."""

    def __init__(self) -> None:
        self._embedder = MultilingualEmbedder()

    def __call__(self, tool: Tool, messages: Sequence[str]) -> list[float]:
        """Return one similarity per message; 1 for all if the model cannot be loaded."""
        try:
            vector = self._embedder.embed([embedding_text(tool)], "tool")[0]
            rows = self._embedder.embed([query_text(message) for message in messages], "query")
        except EmbeddingUnavailable as error:
            log.warning("example messages are stored without a check that they fit their tools: %s", error)
            return [1.0] * len(messages)
        return [float(each) for each in rows @ vector]
