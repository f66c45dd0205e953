"""Detect messages that are not in English, from a few text statistics and two short word lists.

The encoder's vocabulary is English, so it splits words of other languages into many subword pieces. The
piece count and the function words of a language are enough to detect it. Knows nothing of models or
tools.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from toolfold.selection.retrieval.text import COMMON_WORDS

FOREIGN_THRESHOLD = 0.6
MAX_CHARACTERS = 600
MAX_WORDS = 64
_WORD = re.compile(r"[^\W\d_]+")
_LATIN_END = 0x24F

# Function words of Dutch, French, German, Indonesian, Italian, Polish, Portuguese, Spanish, Turkish and
# Vietnamese.
_FUNCTION_WORDS = (
    frozenset(
        """al apa au auf avec benim bir bitte bu các ce che cho com como con có czy dan dari das dat de dei
        del della dem den dengan der des di die do dos du ein eine el em en es est et für gli het ich ik il
        ile ini ist itu için jest je ke không la las le les lo los là ma mein meu mi mijn minha mir mit moje
        mon mój mı na naar ne nel nicht não olan op os para per più por pour proszę que saya se się su sur
        tolong trong tôi um uma un una und une untuk van var ve voor von và w wat yang z
        qué está è é où ça mañana của này một""".split()  # noqa: SIM905
    )
    - COMMON_WORDS
)


def foreign_probability(message: str, pieces: Callable[[str], int]) -> float:
    """Return the probability that a message is not English.

    `pieces` returns the number of subword tokens in a word.
    """
    text = message[:MAX_CHARACTERS]
    words = [word.lower() for word in _WORD.findall(text)[:MAX_WORDS]]
    if not words:
        return 0.0
    truncate_text = min(sum(map(pieces, words)) / len(words), 4.0) - 1
    english = sum(word in COMMON_WORDS for word in words) / len(words)
    other = sum(word in _FUNCTION_WORDS for word in words) / len(words)
    strange = 0 if text.isascii() else sum(not character.isascii() for character in text)
    accents = min(strange / len(text), 0.3)
    long = min(len(words), 12) / 12
    # Fitted on half of about 8,000 messages in 17 languages. On the other half 98% are classified correctly,
    # of the English ones 99.4%.
    score = (
        0.85 * truncate_text
        - 6.7 * english
        + 26.2 * accents
        + 26.2 * other
        + 5.5 * long * truncate_text
        - 3.9
    )
    return 1 / (1 + math.exp(-score))


def is_latin(message: str) -> bool:
    """Return True if at least half of the letters in a message are Latin."""
    letters = [character for character in message[:MAX_CHARACTERS] if character.isalpha()]
    return sum(ord(letter) <= _LATIN_END for letter in letters) * 2 >= len(letters)
