"""Documents are decoded only as character sets that browsers support, whatever a server declares."""

from __future__ import annotations

import pytest

from toolfold.tools.internet import charsets
from toolfold.tools.internet.charsets import decode_text, find_codec
from toolfold.tools.internet.extraction import extract_text
from toolfold.tools.internet.extraction_worker import _decode_html
from toolfold.tools.internet.fetching import FetchedDocument


@pytest.mark.parametrize(
    ("charset", "text"),
    [
        ("utf-8", "Grüße"),
        ("UTF8", "Grüße"),
        ("iso-8859-1", "Grüße"),
        ("iso-8859-2", "Zażółć"),
        ("ISO-8859-15", "10 €"),
        ("windows-1252", "“10 €”"),
        ("windows-1251", "Привет"),
        ("koi8-r", "Привет"),
        ("gb2312", "你好"),
        ("gb18030", "你好"),
        ("big5", "你好"),
        ("euc-jp", "こんにちは"),
        ("shift_jis", "こんにちは"),
        ("iso-2022-jp", "こんにちは"),
        ("euc-kr", "안녕"),
        ("utf-16le", "Grüße"),
    ],
)
async def test_document_is_decoded_correctly_from_every_character_set_that_browsers_support(
    charset: str, text: str
) -> None:
    data = text.encode(charset)
    document = FetchedDocument("http://x.example/", 200, data, "text/plain", charset)
    assert (await extract_text(document)).text == text
    assert _decode_html(data, charset) == text


@pytest.mark.parametrize(
    "charset",
    ["punycode", "idna", "undefined", "utf-7", "unicode_escape", "rot13", "zlib", "no-such", "a\0b", ""],
)
async def test_document_with_an_unknown_or_dangerous_declared_character_set_is_decoded_as_utf_8(
    charset: str,
) -> None:
    """A document that punycode, for example, would need hours to decode takes no longer than others."""
    data = "Grüße ".encode() * 500_000
    document = FetchedDocument("http://x.example/", 200, data + b"\xff", "text/plain", charset)
    extracted = await extract_text(document)
    assert extracted.text.startswith("Grüße Grüße")
    assert extracted.is_truncated
    assert find_codec(data, charset) == ""
    assert _decode_html(data, charset) is data


def test_byte_order_mark_is_removed_and_invalid_bytes_are_replaced() -> None:
    assert decode_text("\ufeffGrüße".encode(), "utf-8", 100) == ("Grüße", False)
    assert decode_text("Grüße".encode("utf-16"), "iso-8859-1", 100) == ("Grüße", False)
    assert decode_text(b"a\xffb\xc3", "", 100) == ("a�b�", False)


def test_every_supported_character_set_decodes_arbitrary_bytes_without_an_error() -> None:
    for label in charsets._CODECS:
        text, _ = decode_text(bytes(range(256)) * 300, label, 1_000_000)
        assert text, label


def test_multibyte_character_split_across_two_chunks_is_decoded() -> None:
    text = "x" * (charsets.CHUNK_BYTES - 1) + "ü"
    assert decode_text(text.encode(), "utf-8", 100_000) == (text, False)
