"""Text in a code that a model undoes in passing: Base64, hex, escapes, letters moved, spaced or turned.

Only decodes. What the decoded text means is for others to say.
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

LONGEST = 20_000  # characters of one encoded stretch that are looked at

_BASE64 = re.compile(r"(?<![\w+/-])[A-Za-z0-9+/_-]{16,}={0,2}(?![\w+/])")
_BASE32 = re.compile(r"(?<![A-Z2-7])[A-Z2-7]{24,}={0,6}(?![A-Z2-7])")
_HEX = re.compile(r"(?<![0-9a-fA-F])(?:0x)?(?:[0-9a-fA-F]{2}[ ,:]?(?:0x)?){8,}(?![0-9a-fA-F])")
_PERCENT = re.compile(r"(?:[\w.-]{0,8}%[0-9a-fA-F]{2}){6,}[\w.-]{0,40}")
_ESCAPES = re.compile(r"(?:\\(?:x[0-9a-fA-F]{2}|u\{?[0-9a-fA-F]{4,6}\}?|[0-7]{3})[ ]?){5,}")
_ENTITIES = re.compile(r"(?:&#x?[0-9a-fA-F]{2,6};\s?){4,}")
_CODES = re.compile(r"(?<![\d.])(?:\d{2,3}[ ,;-]\s?){9,}\d{2,3}(?![\d.])")
_BITS = re.compile(r"(?<![01])(?:[01]{8}[ ,]?){5,}(?![01])")
_MORSE = re.compile(r"(?<![\w.-])(?:[.·•-]{1,5}[ /|]{1,3}){8,}[.·•-]{1,5}(?![\w.-])")
_SPACED = re.compile(r"(?<![^\W_])(?:[^\W\d_][ .\-_*·|/+,~\n]{1,3}){7,}[^\W\d_](?![^\W_])")
_LEET = re.compile(r"(?<!\w)(?=\w*\d)(?=\w*[a-z])[a-z0-9@$!]{3,}(?!\w)", re.IGNORECASE)
_PIG = re.compile(r"\b[a-z]+(?:ay|way)\b", re.IGNORECASE)
_TURNED = re.compile(
    r"\b(?:eht|dna|resu|uoy|ruoy|dnes|erongi|daer|snoitcurtsni|suoiverp|drowssap|terces|lla|llet|ton)\b",
    re.IGNORECASE,
)
_DOTS = re.compile("[\u2801-\u28ff][\u2800-\u28ff ]{5,}")
_FLAGS = re.compile("(?:[\U0001f1e6-\U0001f1ff][ \u200b]?){5,}")
_PIECES = re.compile(r"[\"'][^\"'\n]{1,40}[\"'](?:\s*\+\s*[\"'][^\"'\n]{1,40}[\"']){2,}")
_BRAILLE = dict(
    zip(
        (1, 3, 9, 25, 17, 11, 27, 19, 10, 26, 5, 7, 13, 29, 21, 15, 31, 23, 14, 30, 37, 39, 58, 45, 61, 53),
        "abcdefghijklmnopqrstuvwxyz",
        strict=True,
    )
)
_SHORT_WORDS = re.compile(r"\b[a-z]{3,12}\b")
_COMMON = tuple(
    re.findall(
        r"\w+",
        "the and you user send ignore instructions previous password secret tell file read keys forward"
        " email"
        " without rules system prompt delete with this from every message contents always never",
    )
)
_ACROSTIC = re.compile(
    "ignore|secret|password|delete|exfil|upload|reveal|override|sendkeys|sendenv|steal|obeyme|donttell"
)
_SPOKEN = re.compile(
    r"\b(?:alfa|alpha|bravo|charlie|delta|echo|foxtrot|golf|hotel|india|juliett?|kilo|lima|mike"
    r"|november|oscar|papa|quebec|"
    r"romeo|sierra|tango|uniform|victor|whiskey|xray|yankee|zulu)\b"
)
_UPSIDE_DOWN = re.compile("[ǝɹɐʇɥʍʎɔɟƃɯɾʞʌᴉ]")
_UPRIGHT = str.maketrans("ɐqɔpǝɟƃɥᴉıɾʞʃɯuodbɹsʇnʌʍxʎzƖ", "abcdefghiijklmnopqrstuvwxyzl")
_POINTS = re.compile(r"(?:U\+[0-9A-Fa-f]{4,5}[ ,;]{0,2}){5,}")
_QUOTED = re.compile(r"(?:=[0-9A-F]{2}){6,}")
_ANY = re.compile(
    r"[A-Za-z0-9+/_-]{16}|[01]{8}|U\+[0-9A-F]{4}|=[0-9A-F]{2}=|[ǝɹɐʇɥʍʎ]|%[0-9a-fA-F]{2}\w{0,8}%|\\[xu0-7]|&#"
    r"|\d{2,3}[ ,;-]\s?\d{2,3}[ ,;-]|[0-9a-fA-F]{2}[ :][0-9a-fA-F]{2}[ :]"
    r"|(?:[.·•-]{1,5}[ /|]{1,3}){5}|(?:\b\w[^\w\n]{1,3}){6}|\d[a-z]|[a-z]\d|['\"] ?\+ ?['\"]"
    r"|[\u2800-\u28ff]|[\U0001f1e6-\U0001f1ff]"
    rf"|{_TURNED.pattern}|(?:ay|way)\b[^.]{{1,20}}ay\b",
    re.IGNORECASE,
)
_LETTERS = str.maketrans("013457@$!", "oleast" + "asi")
_MORSE_CODE = {
    ".-": "a", "-...": "b", "-.-.": "c", "-..": "d", ".": "e", "..-.": "f", "--.": "g", "....": "h", "."
    ".": "i",
    ".---": "j", "-.-": "k", ".-..": "l", "--": "m", "-.": "n", "---": "o", ".--.": "p", "--.-": "q", ""
    ".-.": "r",
    "...": "s", "-": "t", "..-": "u", "...-": "v", ".--": "w", "-..-": "x", "-.--": "y", "--..": "z",
}  # fmt: skip


def decoded(text: str) -> Iterator[tuple[str, str, bool]]:
    """Each encoded stretch, what it says, and whether that is certain and not a guess."""
    yield from _shifted(text)
    if text.count("\n") >= 5 or text.count(". ") >= 5:
        yield from _initials(text)
    if not _ANY.search(text):
        return
    for pattern, decode in _STRETCHES:
        for match in pattern.finditer(text):
            said = decode(match[0][:LONGEST])
            if said and is_wordy(said):
                yield match[0], said, pattern not in (_SPACED, _FLAGS, _DOTS, _PIECES)
    yield from _whole(text)
    if len(spoken := _SPOKEN.findall(text.lower())) >= 5:
        yield text, "".join(word[0] for word in spoken), False


def is_wordy(text: str) -> bool:
    """Whether it is text of several words, and not bytes that happen to be letters."""
    if not text.isprintable() and not text.replace("\n", " ").replace("\t", " ").isprintable():
        return False
    letters = sum(each.isalpha() or each == " " for each in text)
    return len(text) >= 6 and letters >= 0.7 * len(text)


def _whole(text: str) -> Iterator[tuple[str, str, bool]]:
    """Codes that leave words parted as they were, so that the whole text is turned at once."""
    if len(_UPSIDE_DOWN.findall(text)) >= 3:
        yield text, text.lower().translate(_UPRIGHT)[::-1], False
    if len(_TURNED.findall(text)) >= 2:
        yield text, text[::-1], False
        yield text, " ".join(word[::-1] for word in text.split(" ")), False
    if len(_LEET.findall(text)) >= 3:
        yield text, text.lower().translate(_LETTERS), False
        yield text, text.lower().translate(str.maketrans("1", "i")).translate(_LETTERS), False
    if len(_PIG.findall(text)) >= 4:
        for moved in (1, 2):  # how many letters went to the end cannot be seen
            yield text, " ".join(_from_pig(word, moved) for word in text.split()), False


def _shifted(text: str) -> Iterator[tuple[str, str, bool]]:
    """Letters moved by any number: found by what common words become."""
    shifts = _shifts()
    hits = Counter(shifts[word] for word in shifts.keys() & set(_SHORT_WORDS.findall(text.lower())))
    for shift, count in hits.items():
        if count >= 2:
            yield text, "".join(_moved(each, -shift) for each in text.lower()), False
    if len(_mirrored_words() & set(_SHORT_WORDS.findall(text.lower()))) >= 2:
        yield text, _mirrored(text.lower()), False


@cache
def _shifts() -> dict[str, int]:
    return {"".join(_moved(each, by) for each in word): by for by in range(1, 26) for word in _COMMON}


@cache
def _mirrored_words() -> frozenset[str]:
    return frozenset(map(_mirrored, _COMMON))


def _mirrored(text: str) -> str:
    """With the alphabet turned round: a for z."""
    return "".join(chr(219 - ord(each)) if "a" <= each <= "z" else each for each in text)


def _moved(letter: str, by: int) -> str:
    return chr((ord(letter) - 97 + by) % 26 + 97) if "a" <= letter <= "z" else letter


def _initials(text: str) -> Iterator[tuple[str, str, bool]]:
    """What the first letters of the lines, or of the sentences, spell."""
    for parts in (text.split("\n"), re.split(r"[.!?]\s+", text)):
        letters = "".join(part.strip()[:1].lower() for part in parts)
        if len(letters) >= 6 and _ACROSTIC.search(letters):
            yield text, "ignore all previous instructions: " + letters, False


def _from_pig(word: str, moved: int) -> str:
    bare = word.strip(".,;:!?").lower()
    if not bare.endswith("ay") or len(bare) < 4:
        return word
    body = bare[:-3] if bare.endswith("way") else bare[:-2]
    return body if bare.endswith("way") else body[-moved:] + body[:-moved]


def _from_base64(text: str) -> str:
    """Also where it was packed before, is written in two bytes a letter, or holds Base64 once more."""
    body = text.rstrip("=").replace("-", "+").replace("_", "/")
    said = _text(lambda: _unpacked(base64.b64decode(body + "=" * (-len(body) % 4), validate=True)))
    return _text(lambda: base64.b64decode(said, validate=True)) or said if _BASE64.fullmatch(said) else said


def _unpacked(found: bytes) -> bytes:
    if found[:1] == b"\x78":
        with contextlib.suppress(zlib.error):  # it is also the letter x, with which any text may begin
            return zlib.decompressobj().decompress(found, LONGEST)
    if len(found) > 12 and not any(found[1::2]):
        return found[::2]
    return found


def _from_base32(text: str) -> str:
    body = text.rstrip("=")
    return _text(lambda: base64.b32decode(body + "=" * (-len(body) % 8)))


def _from_hex(text: str) -> str:
    digits = re.sub(r"0x|[ ,:]", "", text)
    return _text(lambda: binascii.unhexlify(digits[: len(digits) // 2 * 2]))


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
    said = " ".join(re.sub(r"[ .\-_*·|/+,~]", "", word) for word in wide)
    if len(wide) == 1 and _ACROSTIC.search(said.lower()):  # nothing tells where its words end
        return f"ignore all previous instructions: {said}"
    return said


def _from_dots(text: str) -> str:
    return "".join(_BRAILLE.get(ord(each) - 0x2800, " ") for each in text)


def _from_flags(text: str) -> str:
    return "".join(
        chr(ord(each) - 0x1F1E6 + 97) if 0x1F1E6 <= ord(each) <= 0x1F1FF else each for each in text
    )


def _from_pieces(text: str) -> str:
    return "".join(re.findall(r"[\"']([^\"']*)[\"']", text))


def _text(decode: Callable[[], bytes]) -> str:
    try:
        return decode().decode("utf-8")
    except (ValueError, binascii.Error):
        return ""


_STRETCHES: tuple[tuple[re.Pattern[str], Callable[[str], str]], ...] = (
    (_BASE64, _from_base64),
    (_BASE32, _from_base32),
    (_HEX, _from_hex),
    (_PERCENT, lambda text: unquote_to_bytes(text).decode("utf-8", "replace")),
    (_ESCAPES, _from_escapes),
    (_ENTITIES, html.unescape),
    (_CODES, _from_numbers),
    (_BITS, _from_bits),
    (_POINTS, lambda text: "".join(chr(int(each, 16)) for each in re.findall(r"[0-9A-Fa-f]{4,5}", text))),
    (_QUOTED, lambda text: bytes.fromhex(text.replace("=", "")).decode("utf-8", "replace")),
    (_MORSE, _from_morse),
    (_SPACED, _from_spaced),
    (_DOTS, _from_dots),
    (_FLAGS, _from_flags),
    (_PIECES, _from_pieces),
)
