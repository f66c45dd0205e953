"""What a terminal makes of keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shellverdict.interactive.terminal_input import InputEvent, new_events, transcribe


def lines(text: str, *, pty: bool = True) -> list[str]:
    found = transcribe([("write", text)], pty=pty)
    return [*(each.text for each in found.events), found.partial]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ls\r", ["ls", ""]),
        ("ls\n", ["ls", ""]),
        ("lss\x7f\r", ["ls", ""]),
        ("rm\x15ls\r", ["ls", ""]),
        ("a\rb\x7f\x7f\x7fc", ["a", "c"]),
    ],
)
def test_simple_editing_is_resolved(text: str, expected: list[str]) -> None:
    assert lines(text) == expected


@pytest.mark.parametrize(
    "key", ["\x1b[A", "\x12", "\x16", "\x17", "\x08", "\x1a", "\x01", "\x0c", "a\t", "a\x04"]
)
def test_other_editing_is_unclear(key: str) -> None:
    assert transcribe([("write", key)], pty=True).unclear_key
    assert not transcribe([("write", key)], pty=False).unclear_key


def test_interrupt_and_end_are_events() -> None:
    found = transcribe([("write", "half\x03\x04"), ("signal", "INT"), ("signal", "CONT")], pty=True)
    assert found.events == [InputEvent("break"), InputEvent("end"), InputEvent("break")]


def test_without_editing_the_keys_count_as_plain_characters_that_nobody_sees() -> None:
    found = transcribe([("write", "ab\x7fc\r")], pty=True, editing=False)
    assert (found.events, found.has_editing) == ([InputEvent("line", "abc")], True)


def test_a_pipe_resolves_nothing_and_drops_nul() -> None:
    assert lines("r\0m\x7f\rx\n", pty=False) == ["rm\x7f\rx", ""]


@given(st.lists(st.text(alphabet="ab \n\r\t\x7f\x15\x03\x04\x1b", max_size=12), max_size=6), st.booleans())
def test_writes_in_pieces_make_the_same_lines_as_in_one(pieces: list[str], pty: bool) -> None:
    whole = transcribe([("write", "".join(pieces))], pty=pty)
    assert transcribe([("write", each) for each in pieces], pty=pty) == whole


@given(
    st.text(alphabet="ab\n\r\x7f\x15\x03", max_size=20), st.text(alphabet="ab\n\r\x7f\x15\x03", max_size=20)
)
def test_a_write_changes_no_event_before_it(first: str, second: str) -> None:
    before = transcribe([("write", first)], pty=True)
    after = transcribe([("write", first), ("write", second)], pty=True)
    assert after.events == [*before.events, *new_events(before, after)]
