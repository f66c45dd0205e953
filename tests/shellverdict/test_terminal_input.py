"""Typed keys are converted to lines as a terminal does it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shellverdict.interactive.terminal_input import InputEvent, new_events, transcribe
from tests.cases import check_cases


def lines(text: str, *, pty: bool = True) -> list[str]:
    transcript = transcribe([("write", text)], pty=pty)
    return [*(each.text for each in transcript.events), transcript.partial]


@check_cases(
    ("text", "expected"),
    [
        ("ls\r", ["ls", ""]),
        ("ls\n", ["ls", ""]),
        ("lss\x7f\r", ["ls", ""]),
        ("rm\x15ls\r", ["ls", ""]),
        ("a\rb\x7f\x7f\x7fc", ["a", "c"]),
    ],
)
def test_backspace_and_ctrl_u_in_terminal_input_edit_the_typed_line(text: str, expected: list[str]) -> None:
    assert lines(text) == expected


@check_cases("key", ["\x1b[A", "\x12", "\x16", "\x17", "\x08", "\x1a", "\x01", "\x0c", "a\t", "a\x04"])
def test_terminal_input_with_keys_whose_effect_is_unknown_is_marked_as_unclear(key: str) -> None:
    assert transcribe([("write", key)], pty=True).unclear_key
    assert not transcribe([("write", key)], pty=False).unclear_key


def test_ctrl_c_and_sigint_are_recorded_as_interrupts_and_ctrl_d_as_end_of_input() -> None:
    transcript = transcribe([("write", "half\x03\x04"), ("signal", "INT"), ("signal", "CONT")], pty=True)
    assert transcript.events == [InputEvent("break"), InputEvent("end"), InputEvent("break")]


def test_editing_keys_typed_into_a_program_without_line_editing_are_dropped_but_reported() -> None:
    transcript = transcribe([("write", "ab\x7fc\r")], pty=True, editing=False)
    assert (transcript.events, transcript.has_editing) == ([InputEvent("line", "abc")], True)


def test_nul_bytes_are_removed_from_process_input_through_a_pipe() -> None:
    assert lines("r\0m\x7f\rx\n", pty=False) == ["rm\x7f\rx", ""]


@given(st.lists(st.text(alphabet="ab \n\r\t\x7f\x15\x03\x04\x1b", max_size=12), max_size=6), st.booleans())
def test_input_split_over_several_writes_gives_the_same_lines_as_one_write(
    pieces: list[str], pty: bool
) -> None:
    whole = transcribe([("write", "".join(pieces))], pty=pty)
    assert transcribe([("write", each) for each in pieces], pty=pty) == whole


@given(
    st.text(alphabet="ab\n\r\x7f\x15\x03", max_size=20), st.text(alphabet="ab\n\r\x7f\x15\x03", max_size=20)
)
def test_further_terminal_input_does_not_change_lines_entered_earlier(first: str, second: str) -> None:
    before = transcribe([("write", first)], pty=True)
    after = transcribe([("write", first), ("write", second)], pty=True)
    assert after.events == [*before.events, *new_events(before, after)]
