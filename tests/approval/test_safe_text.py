"""Displayed commands show every deceptive character."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from shellverdict.spoof import INVISIBLE_CHARACTERS
from tests.cases import check_cases
from toolfold.core.invisible_characters import remove_invisible
from toolfold.safety.approval.safe_text import make_visible, shorten_middle


@check_cases(
    "text",
    [
        "rm -rf build",
        "echo 'grüß Gott'",
        "echo 日本語",
        "echo привет мир",
        "echo ελληνικά",
        "ls \n  -l",
        "echo naïve ✓ 🎉",
    ],
)
def test_make_visible_leaves_ordinary_text_in_any_script_unchanged(text: str) -> None:
    assert make_visible(text) == text


@check_cases(
    ("text", "visible"),
    [
        ("ls\rrm -rf ~", "ls‹CR›rm -rf ~"),
        ("ls\x1b[2Krm", "ls‹ESC›[2Krm"),
        ("ls\x08\x08rm", "ls‹BS›‹BS›rm"),
        ("a\tb", "a‹TAB›b"),
        ("a\x9bb", "a‹U+009B›b"),
        ("a\u202eb\u2066", "a‹U+202E›b‹U+2066›"),
        ("r\u200bm\u2060\ufeff", "r‹U+200B›m‹U+2060›‹U+FEFF›"),
        ("a\u3164b\u2800c", "a‹U+3164›b‹U+2800›c"),
        ("a\xa0b\u2003c", "a‹U+00A0›b‹U+2003›c"),
        ("a\U000e0041b", "a‹U+E0041›b"),
        ("x\ufe0f", "x‹U+FE0F›"),
        ("ｒｍ", "‹U+FF52›‹U+FF4D›"),
        ("𝐫𝐦", "‹U+1D42B›‹U+1D426›"),
        ("rm –rf", "rm ‹U+2013›rf"),
        ("a；b∕c", "a‹U+FF1B›b‹U+2215›c"),
        ("cаt", "c‹U+0430›t"),  # a Cyrillic а
        ("сор", "‹U+0441›‹U+043E›‹U+0440›"),  # three Cyrillic letters
        ("\ud800", "‹U+D800›"),
        ("a\u2028b", "a‹U+2028›b"),
    ],
)
def test_make_visible_replaces_invisible_and_lookalike_characters_with_names_or_code_points(
    text: str, visible: str
) -> None:
    assert make_visible(text) == visible


@given(st.text())
def test_make_visible_leaves_no_invisible_characters_and_keeps_printable_ascii_in_order(text: str) -> None:
    visible = make_visible(text)
    kinds = {unicodedata.category(each) for each in visible if each != "\n"}
    assert not kinds & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    plain = [each for each in text if each == "\n" or (each.isascii() and each.isprintable())]
    remaining = iter(visible)
    assert all(each in remaining for each in plain)


def test_text_shortened_in_the_middle_states_the_number_of_omitted_characters() -> None:
    visible = shorten_middle("a" * 3_000 + "b" * 3_000, 1_000)
    assert visible.startswith("a" * 500)
    assert visible.endswith("b" * 500)
    assert "5,000 characters are not shown" in visible
    assert shorten_middle("short") == "short"


def test_make_visible_escapes_every_character_that_other_modules_treat_as_invisible() -> None:
    invisible = [
        character
        for character in map(chr, (*range(0x10000), *range(0x1BC00, 0x1D200), *range(0xE0000, 0xE1000)))
        if character != "\n"
        and (INVISIBLE_CHARACTERS.match(character) or remove_invisible(f"a{character}b") == "ab")
    ]
    assert len(invisible) > 8_000
    assert [character for character in invisible if character in make_visible(character)] == []
