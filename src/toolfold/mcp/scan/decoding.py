"""Decode text in encodings that a model can read: Base64, hex, and shifted, spaced or reversed letters.

Only decodes; does not judge the decoded text.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import html
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from urllib.parse import unquote_to_bytes

from toolfold.mcp.scan.vocabulary import get_words

MAX_ENCODED_CHARS = 20_000  # per encoded span

_BASE64 = re.compile(r"(?<![\w+/-])[A-Za-z0-9+/_-]{16,}={0,2}(?![\w+/])")
_BASE32 = re.compile(r"(?<![A-Z2-7])[A-Z2-7]{24,}={0,6}(?![A-Z2-7])")
_HEX = re.compile(r"(?<![0-9a-fA-F])(?:0x)?(?:[0-9a-fA-F]{2}[ ,:]?(?:0x)?){8,}(?![0-9a-fA-F])")
_PERCENT = re.compile(r"(?:[\w.-]{0,8}%[0-9a-fA-F]{2}){6,}[\w.-]{0,40}")
_ESCAPES = re.compile(r"(?:\\(?:x[0-9a-fA-F]{2}|u\{?[0-9a-fA-F]{4,6}\}?|[0-7]{3})[ ]?){5,}")
_ENTITIES = re.compile(r"(?:&#x?[0-9a-fA-F]{2,6};\s?){4,}")
_CHARACTER_CODES = re.compile(r"(?<![\d.])(?:\d{2,3}[ ,;-]\s?){9,}\d{2,3}(?![\d.])")
_BITS = re.compile(r"(?<![01])(?:[01]{8}[ ,]?){5,}(?![01])")
_MORSE = re.compile(r"(?<![\w.-])(?:[.·•-]{1,5}[ /|]{1,3}){8,}[.·•-]{1,5}(?![\w.-])")
_SPACED_LETTERS = re.compile(r"(?<![^\W_])(?:[^\W\d_][ .\-_*·|/+,~\n]{1,3}){7,}[^\W\d_](?![^\W_])")
_LEET = re.compile(r"(?<!\w)(?=\w*\d)(?=\w*[a-z])[a-z0-9@$!]{3,}(?!\w)", re.IGNORECASE)
_PIG_LATIN = re.compile(r"\b[a-z]+(?:ay|way)\b", re.IGNORECASE)
_BRAILLE_TEXT = re.compile("[\u2801-\u28ff][\u2800-\u28ff ]{5,}")
_FLAG_LETTERS = re.compile("(?:[\U0001f1e6-\U0001f1ff][ \u200b]?){5,}")
_CONCATENATED_STRINGS = re.compile(r"[\"'][^\"'\n]{1,40}[\"'](?:\s*\+\s*[\"'][^\"'\n]{1,40}[\"']){2,}")
_BRAILLE_LETTERS = dict(
    zip(
        (1, 3, 9, 25, 17, 11, 27, 19, 10, 26, 5, 7, 13, 29, 21, 15, 31, 23, 14, 30, 37, 39, 58, 45, 61, 53),
        "abcdefghijklmnopqrstuvwxyz",
        strict=True,
    )
)
_SHORT_WORD = re.compile(r"\b[a-z]{3,12}\b")
_UPSIDE_DOWN_LETTER = re.compile("[ǝɹɐʇɥʍʎɔɟƃɯɾʞʌᴉ]")
_UPRIGHT_LETTERS = str.maketrans("ɐqɔpǝɟƃɥᴉıɾʞʃɯuodbɹsʇnʌʍxʎzƖ", "abcdefghiijklmnopqrstuvwxyzl")
_CODE_POINTS = re.compile(r"(?:U\+[0-9A-Fa-f]{4,5}[ ,;]{0,2}){5,}")
_QUOTED_PRINTABLE = re.compile(r"(?:=[0-9A-F]{2}){6,}")
_LEET_LETTERS = str.maketrans("013457@$!", "oleast" + "asi")
_MORSE_CODE = {
    ".-": "a", "-...": "b", "-.-.": "c", "-..": "d", ".": "e", "..-.": "f", "--.": "g", "....": "h", "."
    ".": "i",
    ".---": "j", "-.-": "k", ".-..": "l", "--": "m", "-.": "n", "---": "o", ".--.": "p", "--.-": "q", ""
    ".-.": "r",
    "...": "s", "-": "t", "..-": "u", "...-": "v", ".--": "w", "-..-": "x", "-.--": "y", "--..": "z",
}  # fmt: skip


def decode_text(text: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (encoded text, decoded text, True if certainly encoded) for each encoding found in a text."""
    yield from _decode_shifted(text)
    if text.count("\n") >= 5 or text.count(". ") >= 5:
        yield from _decode_initials(text)
    if not _any_encoding().search(text):
        return
    for pattern, decode in _DECODERS:
        for match in pattern.finditer(text):
            decoded = decode(match[0][:MAX_ENCODED_CHARS])
            if decoded and is_readable_text(decoded):
                yield (
                    match[0],
                    decoded,
                    pattern not in (_SPACED_LETTERS, _FLAG_LETTERS, _BRAILLE_TEXT, _CONCATENATED_STRINGS),
                )
    yield from _decode_whole_text(text)
    if len(spelled := _word_pattern("spelling_alphabet").findall(text.lower())) >= 5:
        yield text, "".join(word[0] for word in spelled), False


def is_readable_text(text: str) -> bool:
    """Return True if decoded text is mostly letters and spaces, not arbitrary bytes."""
    if not text.isprintable() and not text.replace("\n", " ").replace("\t", " ").isprintable():
        return False
    letters = sum(each.isalpha() or each == " " for each in text)
    return len(text) >= 6 and letters >= 0.7 * len(text)


def _decode_whole_text(text: str) -> Iterator[tuple[str, str, bool]]:
    """Decode a whole text that is reversed, upside-down, in leetspeak or in pig Latin."""
    if len(_UPSIDE_DOWN_LETTER.findall(text)) >= 3:
        yield text, text.lower().translate(_UPRIGHT_LETTERS)[::-1], False
    if len(_word_pattern("reversed_words").findall(text)) >= 2:
        yield text, text[::-1], False
        yield text, " ".join(word[::-1] for word in text.split(" ")), False
    if len(_LEET.findall(text)) >= 3:
        yield text, text.lower().translate(_LEET_LETTERS), False
        yield text, text.lower().translate(str.maketrans("1", "i")).translate(_LEET_LETTERS), False
    if len(_PIG_LATIN.findall(text)) >= 4:
        for count in (1, 2):  # the number of letters moved to the end is unknown
            yield text, " ".join(_from_pig_latin(word, count) for word in text.split()), False


def _decode_shifted(text: str) -> Iterator[tuple[str, str, bool]]:
    """Decode Caesar shifts and mirrored alphabets, which are recognised by shifted common words."""
    shifts = _shifted_words()
    hits = Counter(shifts[word] for word in shifts.keys() & set(_SHORT_WORD.findall(text.lower())))
    for shift, count in hits.items():
        if count >= 2:
            yield text, "".join(_shift_letter(each, -shift) for each in text.lower()), False
    if len(_mirrored_words() & set(_SHORT_WORD.findall(text.lower()))) >= 2:
        yield text, _mirror_letters(text.lower()), False


@cache
def _shifted_words() -> dict[str, int]:
    return {
        "".join(_shift_letter(each, by) for each in word): by
        for by in range(1, 26)
        for word in get_words("common_words")
    }


@cache
def _mirrored_words() -> frozenset[str]:
    return frozenset(map(_mirror_letters, get_words("common_words")))


def _mirror_letters(text: str) -> str:
    """Replace each letter by its mirror in the alphabet: a by z, b by y, and so on."""
    return "".join(chr(219 - ord(each)) if "a" <= each <= "z" else each for each in text)


def _shift_letter(letter: str, by: int) -> str:
    return chr((ord(letter) - 97 + by) % 26 + 97) if "a" <= letter <= "z" else letter


def _decode_initials(text: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the first letters of lines or sentences if they spell a word that is typical of injections."""
    for parts in (text.split("\n"), re.split(r"[.!?]\s+", text)):
        letters = "".join(part.strip()[:1].lower() for part in parts)
        if len(letters) >= 6 and _has_suspicious_word(letters):
            yield text, "ignore all previous instructions: " + letters, False


def _from_pig_latin(word: str, moved_letters: int) -> str:
    bare = word.strip(".,;:!?").lower()
    if not bare.endswith("ay") or len(bare) < 4:
        return word
    body = bare[:-3] if bare.endswith("way") else bare[:-2]
    return body if bare.endswith("way") else body[-moved_letters:] + body[:-moved_letters]


def _from_base64(text: str) -> str:
    """Decode Base64 text, even if it is compressed, in UTF-16 or encoded twice."""
    body = text.rstrip("=").replace("-", "+").replace("_", "/")
    decoded = _decode_utf8(
        lambda: _decompress(base64.b64decode(body + "=" * (-len(body) % 4), validate=True))
    )
    return (
        _decode_utf8(lambda: base64.b64decode(decoded, validate=True)) or decoded
        if _BASE64.fullmatch(decoded)
        else decoded
    )


def _decompress(data: bytes) -> bytes:
    if data[:1] == b"\x78":
        with contextlib.suppress(zlib.error):  # the byte is also the letter x, so it may be plain text
            return zlib.decompressobj().decompress(data, MAX_ENCODED_CHARS)
    if len(data) > 12 and not any(data[1::2]):
        return data[::2]
    return data


def _from_base32(text: str) -> str:
    body = text.rstrip("=")
    return _decode_utf8(lambda: base64.b32decode(body + "=" * (-len(body) % 8)))


def _from_hex(text: str) -> str:
    digits = re.sub(r"0x|[ ,:]", "", text)
    return _decode_utf8(lambda: binascii.unhexlify(digits[: len(digits) // 2 * 2]))


def _from_escapes(text: str) -> str:
    numbers = re.findall(r"\\(?:x([0-9a-fA-F]{2})|u\{?([0-9a-fA-F]{4,6})\}?|([0-7]{3}))", text)
    return "".join(chr(min(int(x or u, 16) if x or u else int(o, 8), 0x10FFFF)) for x, u, o in numbers)


def _from_numbers(text: str) -> str:
    return "".join(chr(int(each)) for each in re.findall(r"\d+", text) if 31 < int(each) < 127)


def _from_bits(text: str) -> str:
    return "".join(chr(int(each, 2)) for each in re.findall(r"[01]{8}", text))


def _from_morse(text: str) -> str:
    dashed = text.replace("·", ".").replace("•", ".")
    words = re.split(r"\s*[/|]\s*|\s{2,}", dashed)
    return " ".join("".join(_MORSE_CODE.get(each, "?") for each in word.split()) for word in words)


def _from_spaced(text: str) -> str:
    wide = re.split(r"[ .\-_*·|/+,~]{2,}", text)
    decoded = " ".join(re.sub(r"[ .\-_*·|/+,~]", "", word) for word in wide)
    if len(wide) == 1 and _has_suspicious_word(decoded.lower()):  # word boundaries are unknown
        return f"ignore all previous instructions: {decoded}"
    return decoded


def _from_braille(text: str) -> str:
    return "".join(_BRAILLE_LETTERS.get(ord(each) - 0x2800, " ") for each in text)


def _from_flags(text: str) -> str:
    return "".join(
        chr(ord(each) - 0x1F1E6 + 97) if 0x1F1E6 <= ord(each) <= 0x1F1FF else each for each in text
    )


def _from_concatenation(text: str) -> str:
    return "".join(re.findall(r"[\"']([^\"']*)[\"']", text))


@cache
def _word_pattern(name: str) -> re.Pattern[str]:
    """Return a regular expression that matches any word of a word list."""
    return re.compile(rf"\b(?:{'|'.join(get_words(name))})\b", re.IGNORECASE)


def _has_suspicious_word(letters: str) -> bool:
    return any(word in letters for word in get_words("acrostic_words"))


@cache
def _any_encoding() -> re.Pattern[str]:
    """Return a regular expression that matches text in any supported encoding, as a fast first check."""
    reversed_words = _word_pattern("reversed_words").pattern
    return re.compile(
        r"[A-Za-z0-9+/_-]{16}|[01]{8}|U\+[0-9A-F]{4}|=[0-9A-F]{2}=|[ǝɹɐʇɥʍʎ]|%[0-9a-fA-F]{2}\w{0,8}%|\\[xu0-7]|&#"
        r"|\d{2,3}[ ,;-]\s?\d{2,3}[ ,;-]|[0-9a-fA-F]{2}[ :][0-9a-fA-F]{2}[ :]"
        r"|(?:[.·•-]{1,5}[ /|]{1,3}){5}|(?:\b\w[^\w\n]{1,3}){6}|\d[a-z]|[a-z]\d|['\"] ?\+ ?['\"]"
        r"|[\u2800-\u28ff]|[\U0001f1e6-\U0001f1ff]"
        rf"|{reversed_words}|(?:ay|way)\b[^.]{{1,20}}ay\b",
        re.IGNORECASE,
    )


def _decode_utf8(decode: Callable[[], bytes]) -> str:
    try:
        return decode().decode("utf-8")
    except (ValueError, binascii.Error):
        return ""


_DECODERS: tuple[tuple[re.Pattern[str], Callable[[str], str]], ...] = (
    (_BASE64, _from_base64),
    (_BASE32, _from_base32),
    (_HEX, _from_hex),
    (_PERCENT, lambda text: unquote_to_bytes(text).decode("utf-8", "replace")),
    (_ESCAPES, _from_escapes),
    (_ENTITIES, html.unescape),
    (_CHARACTER_CODES, _from_numbers),
    (_BITS, _from_bits),
    (
        _CODE_POINTS,
        lambda text: "".join(chr(int(each, 16)) for each in re.findall(r"[0-9A-Fa-f]{4,5}", text)),
    ),
    (_QUOTED_PRINTABLE, lambda text: bytes.fromhex(text.replace("=", "")).decode("utf-8", "replace")),
    (_MORSE, _from_morse),
    (_SPACED_LETTERS, _from_spaced),
    (_BRAILLE_TEXT, _from_braille),
    (_FLAG_LETTERS, _from_flags),
    (_CONCATENATED_STRINGS, _from_concatenation),
)
