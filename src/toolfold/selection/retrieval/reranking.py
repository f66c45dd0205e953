"""Rerank the tools found by keywords and vectors, with similarities from an embedding service.

One request per message. A tool's vector is requested once and stored like those of the search index. On any
failure there is no reranking and the first ranking is used. The caller selects the shortlist and combines the
rankings.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from toolfold.core.types import Tool
from toolfold.selection.retrieval.document import query_text
from toolfold.selection.retrieval.embedding import Embedder, EmbeddingUnavailable, Matrix, OutageLog
from toolfold.selection.retrieval.index import embedding_text
from toolfold.selection.retrieval.vector_store import VectorStore, document_checksum
from toolfold.selection.retrieval.vectors import PackedVectors

SHORTLIST_SIZE = 50
"""Number of tools that are reranked."""
_BATCH_SIZE = 32


class Reranker:
    """Computes the similarity of shortlisted tools to a message with an embedding service."""

    def __init__(self, embedder: Embedder, store: VectorStore | None) -> None:
        self._embedder, self._store = embedder, store
        self._outage_log = OutageLog("search results are not reranked")

    def similarities(self, message: str, tools: Sequence[Tool]) -> Matrix | None:
        """Return each tool's similarity to the message, from -1 to 1; None if the service fails."""
        text = query_text(message)
        if not text or not tools:
            return None
        try:
            (query_vector,) = self._embedder.embed([text], "query")
            vectors = self._tool_vectors(tools, len(query_vector))
        except EmbeddingUnavailable as error:
            self._outage_log.warn_once(str(error))
            return None
        near: Matrix = vectors @ query_vector
        return near if near.any() else None

    def _tool_vectors(self, tools: Sequence[Tool], width: int) -> Matrix:
        texts = [embedding_text(tool) for tool in tools]
        known = self._read_stored(list(dict.fromkeys(texts)), width)
        missing = list(dict.fromkeys(text for text in texts if text not in known))
        for start in range(0, len(missing), _BATCH_SIZE):
            batch = missing[start : start + _BATCH_SIZE]
            known |= zip(batch, self._embed_batch(batch, width), strict=True)
        return np.stack([known[text] for text in texts])

    def _read_stored(self, texts: Sequence[str], width: int) -> dict[str, Matrix]:
        """Return the stored vectors of texts; none if another model has this name now."""
        if self._store is None:
            return {}
        sums = [document_checksum(text, ()) for text in texts]
        positions, packed = self._store.read(self._embedder.name, sums)
        if packed.width != width:
            return {}
        return dict(zip([texts[each] for each in positions], packed.dequantize(), strict=True))

    def _embed_batch(self, texts: Sequence[str], width: int) -> Matrix:
        vectors = self._embedder.embed(texts, "tool")
        if vectors.shape[1] != width:
            lengths = f"{vectors.shape[1]} numbers for tools but {width} for a message"
            raise EmbeddingUnavailable(f"{self._embedder.name} returned vectors of {lengths}")
        packed = PackedVectors.of(vectors)
        if self._store is not None:
            sums = [document_checksum(text, ()) for text in texts]
            self._store.write(self._embedder.name, sums, packed)
        return packed.dequantize()  # as read from the store, so that the ranking stays the same
