"""Whether a message is in another language than English. Five numbers and two short lists of words.

The encoder knows English pieces of words, so it cuts what it does not know into many: together with the
small words of a language that is sign enough. Knows nothing of models or tools.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from toolfold.retrieval.text import COMMON

FOREIGN = 0.6
READ_CHARACTERS = 600
READ_WORDS = 64
_WORD = re.compile(r"[^\W\d_]+")
_LATIN_END = 0x24F

# Small words of Dutch, French, German, Indonesian, Italian, Polish, Portuguese, Spanish, Turkish, Vietnamese.
_SMALL_WORDS = (
    frozenset(
        """al apa au auf avec benim bir bitte bu các ce che cho com como con có czy dan dari das dat de dei
        del della dem den dengan der des di die do dos du ein eine el em en es est et für gli het ich ik il
        ile ini ist itu için jest je ke không la las le les lo los là ma mein meu mi mijn minha mir mit moje
        mon mój mı na naar ne nel nicht não olan op os para per più por pour proszę que saya se się su sur
        tolong trong tôi um uma un una und une untuk van var ve voor von và w wat yang z
        qué está è é où ça mañana của này một""".split()  # noqa: SIM905
    )
    - COMMON
)


def foreignness(message: str, pieces: Callable[[str], int]) -> float:
    """From 0, plainly English, to 1, plainly not; `pieces` tells into how many a word is cut."""
    text = message[:READ_CHARACTERS]
    words = [word.lower() for word in _WORD.findall(text)[:READ_WORDS]]
    if not words:
        return 0.0
    cut = min(sum(map(pieces, words)) / len(words), 4.0) - 1
    english = sum(word in COMMON for word in words) / len(words)
    other = sum(word in _SMALL_WORDS for word in words) / len(words)
    strange = 0 if text.isascii() else sum(not character.isascii() for character in text)
    accents = min(strange / len(text), 0.3)
    long = min(len(words), 12) / 12
    # Fitted on half of some eight thousand messages in seventeen languages: of the other half 98% are told
    # right, and of English ones 99.4%.
    score = 0.85 * cut - 6.7 * english + 26.2 * accents + 26.2 * other + 5.5 * long * cut - 3.9
    return 1 / (1 + math.exp(-score))


def is_latin(message: str) -> bool:
    """Whether most of its letters are of the Latin script."""
    letters = [character for character in message[:READ_CHARACTERS] if character.isalpha()]
    return sum(ord(letter) <= _LATIN_END for letter in letters) * 2 >= len(letters)
