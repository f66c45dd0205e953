"""Find tools whose example messages share most of their words with a query.

A field of the keyword index says which words the messages of a tool contain; it does not know which words are
in the same message. A query that repeats an example message, or most of it, is strong evidence for its tool.
The gain of a tool is limited, whatever its messages contain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from toolfold.core.types import Tool
from toolfold.selection.retrieval.ranking import Positions, Scores
from toolfold.selection.retrieval.text import WordTokenizer

# Chosen on the sets of `benchmarks/enrichment.py` (docs/retrieval.md).
MAX_MATCH_GAIN = 0.6
MIN_MATCH = 1 / 3
MIN_SHARED_TERMS = 2


@dataclass(frozen=True, slots=True, eq=False)
class MessageMatches:
    """Index of the terms of example messages, for finding tools whose messages match a query."""

    messages: Mapping[str, Positions]
    """Term → numbers of the messages that contain it."""
    lengths: Positions
    """Number of distinct terms of each message."""
    owners: Positions
    """Position of the tool of each message."""
    size: int
    """Number of positions in the index."""

    @classmethod
    def of(cls, tools: Sequence[Tool | None], words: WordTokenizer) -> MessageMatches:
        """Build the index from the terms of the tools' example messages."""
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        lengths: list[int] = []
        owners: list[int] = []
        for position, tool in enumerate(tools):
            for message in tool.messages if tool else ():
                terms = words.message_terms(message).content_terms
                for term in terms:
                    numbers[term].append(len(owners))
                owners.append(position)
                lengths.append(len(terms))
        messages = {term: np.array(each, np.int64) for term, each in numbers.items()}
        return cls(messages, np.array(lengths, np.int64), np.array(owners, np.int64), len(tools))

    def gains(self, words: WordTokenizer, query: str) -> Scores | None:
        """Return each tool's score gain as a share of a perfect match's score; None if no message matches.

        A message matches if it and the query have at least a third of their terms, and two, in common.
        """
        asked = words.message_terms(query).content_terms
        known = [self.messages[term] for term in asked if term in self.messages]
        if not known:
            return None
        shared = np.bincount(np.concatenate(known), minlength=len(self.owners))
        match = (shared / np.maximum(self.lengths, len(asked))).astype(np.float32)
        match[(match < MIN_MATCH) | (shared < MIN_SHARED_TERMS)] = 0
        if not match.any():
            return None
        gains = np.zeros(self.size, np.float32)
        np.maximum.at(gains, self.owners, match**2 * np.float32(MAX_MATCH_GAIN))
        return gains
