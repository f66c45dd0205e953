"""Make commands safe to display: characters that could disguise a command are spelled out.

These are control characters, right-to-left text, zero-width characters and lookalike letters. This module
knows nothing about shells: a character escaped here does not make a command dangerous.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["make_line_visible", "make_visible", "shorten_middle"]

_CONTROL_NAMES = {"\r": "CR", "\x1b": "ESC", "\0": "NUL", "\x08": "BS", "\x7f": "DEL", "\t": "TAB"}
# More than `spoof` warns about: escaping a harmless character does no harm.
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Letters or marks in Unicode that are displayed as nothing.
_BLANK_CHARACTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
_VARIATION_SELECTORS = (
    range(0xFE00, 0xFE10),
    range(0xE0100, 0xE01F0),
)  # select another glyph for a letter
# Signs that look like ASCII characters with a meaning to a shell.
_ASCII_SIGN_LOOKALIKES = frozenset(
    "‐‑‒–—―−﹣－‘’‚‛′“”„‟″⁄∕⧸／∖⧵＼․‧∙ꞏ；：﹔﹕｜∣ǀ＆＄＞＜﹥﹤˃˂＊∗﹡～∼˜＃ǃ！＠"
)
# Letters of other scripts that look like Latin ones.
_LATIN_LOOKALIKES = frozenset(
    "АВЕЅІЈКМНОРСТУХаеіјорсухѕһԁԛԝѵӏӀүҮ"  # Cyrillic
    "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧαγικνορυχ"  # Greek
    "օսցհոԼՏ"  # Armenian
    "ᎪᏴᏟᎠᎬᎻᎫᏦᏞᎷᏢᎡᏚᎢᏙᎳᏃ"  # Cherokee
)
_LETTERS = re.compile(r"[^\W\d_]+")


def make_visible(text: str) -> str:
    """Replace every deceptive character by its name in ‹ ›. Line breaks are preserved."""
    if text.isascii() and text.isprintable():
        return text
    characters = list(text)
    for word in _LETTERS.finditer(text):
        if not word[0].isascii() and _looks_latin(word[0]):
            for position in range(*word.span()):
                if not text[position].isascii() and _is_non_latin(text[position]):
                    characters[position] = _escape_character(text[position])
    return "".join(
        _escape_character(each) if len(each) == 1 and each != "\n" and _is_deceptive(each) else each
        for each in characters
    )


def make_line_visible(text: str) -> str:
    """Replace deceptive characters and line breaks, so that text stays on one line of the display."""
    return make_visible(text).replace("\n", "‹LF›")


def shorten_middle(text: str, max_chars: int = 4_000) -> str:
    """Remove the middle of text that is too long, and insert a note with the number of removed characters."""
    if len(text) <= max_chars:
        return text
    removed = len(text) - max_chars
    return (
        f"{text[: max_chars // 2]}\n‹… {removed:,} characters are not shown …›\n{text[-(max_chars // 2) :]}"
    )


def _is_deceptive(character: str) -> bool:
    if character.isascii():
        return not character.isprintable()
    if character in _ASCII_SIGN_LOOKALIKES or character in _BLANK_CHARACTERS:
        return True
    kind = unicodedata.category(character)
    if (
        kind in _INVISIBLE_CATEGORIES
        or kind in ("Zs", "Me")
        or any(ord(character) in each for each in _VARIATION_SELECTORS)
    ):
        return True
    return _is_ascii_in_disguise(character)


def _is_ascii_in_disguise(character: str) -> bool:
    """Return True for full-width, mathematical and enclosed forms of ASCII characters."""
    plain = unicodedata.normalize("NFKC", character)
    return plain != character and plain.isascii()


def _looks_latin(word: str) -> bool:
    """Return True if a word with non-ASCII letters could be read as a word in Latin letters."""
    latin = any(letter.isascii() for letter in word)
    return latin or all(letter in _LATIN_LOOKALIKES for letter in word)


def _is_non_latin(letter: str) -> bool:
    """Return True if a letter belongs to another script than Latin; letters such as `é` are Latin."""
    return not unicodedata.name(letter, "").startswith("LATIN")


def _escape_character(character: str) -> str:
    return f"‹{_CONTROL_NAMES.get(character) or f'U+{ord(character):04X}'}›"
