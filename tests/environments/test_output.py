"""Command output is truncated and decoded, and its end is detected, however it is split into chunks."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from toolfold.tools.environments.command_output import OutputBuffer, decode_text, trim_partial_character
from toolfold.tools.environments.end_mark import CommandExit, EndMarkParser

pieces = st.lists(st.binary(max_size=60), max_size=20)
texts = st.text(max_size=200)


def split_at(data: bytes, places: list[int]) -> list[bytes]:
    """Split the data into chunks."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(pieces, st.integers(2, 100), st.integers(0, 500))
def test_output_longer_than_the_limit_is_truncated_and_stored_in_a_file(
    written: list[bytes], most: int, largest: int
) -> None:
    everything = b"".join(written)
    with tempfile.TemporaryDirectory() as folder:
        output = OutputBuffer(max_bytes=most, directory=Path(folder), max_file_bytes=largest)
        for piece in written:
            output.append(piece)
        output.finish()
        assert output.total_bytes == len(everything)
        if len(everything) <= most:
            assert output.text() == decode_text(everything)
            assert output.file is None
        else:
            assert output.file is not None
            assert everything.startswith(output.file.read_bytes())
            assert output.file.stat().st_size + output.lost_bytes == len(everything)
            assert "bytes omitted" in output.text()


@given(texts, st.lists(st.integers(0, 1_000), max_size=5))
def test_output_listener_receives_all_text_for_any_split_of_the_output_into_chunks(
    text: str, places: list[int]
) -> None:
    heard: list[str] = []
    output = OutputBuffer(max_bytes=10, listener=heard.append)
    for piece in split_at(text.encode(errors="replace"), places):
        output.append(piece)
    output.finish()
    assert "".join(heard) == decode_text(text.encode(errors="replace"))


@given(texts, st.integers(4, 40))
def test_truncating_output_does_not_split_multibyte_characters(text: str, most: int) -> None:
    output = OutputBuffer(max_bytes=most)
    output.append(text.encode(errors="replace"))
    assert "\ufffd" not in output.text() or "\ufffd" in text or "?" in text


@given(st.text(max_size=50), st.integers(0, 200))
def test_incomplete_utf8_character_at_the_end_of_an_output_chunk_is_removed(text: str, at: int) -> None:
    data = text.encode(errors="replace")[:at]
    whole = trim_partial_character(data)
    whole.decode()
    assert data.startswith(whole)
    assert len(data) - len(whole) < 4


@given(
    st.binary(max_size=300),
    st.integers(0, 255),
    st.text(max_size=40),
    st.lists(st.integers(0, 1_000), max_size=8),
)
def test_end_mark_after_command_output_is_parsed_for_any_split_of_the_output_into_chunks(
    written: bytes, code: int, folder: str, places: list[int]
) -> None:
    ending = EndMarkParser()
    mark = b"\x1e" + ending.mark.encode()
    path = f"/{folder}".encode("utf-8", "replace").replace(b"\x1e", b"")
    passed = b"".join(map(ending.feed, split_at(written + mark + b" %d " % code + path + mark, places)))
    assert passed == written
    assert ending.exit == CommandExit(code, path.decode("utf-8", "surrogateescape"))
    assert ending.flush() == b""


@given(st.binary(max_size=300), st.lists(st.integers(0, 1_000), max_size=8), st.integers(0, 26))
def test_output_without_an_end_mark_is_returned_completely(
    written: bytes, places: list[int], mark_bytes: int
) -> None:
    ending = EndMarkParser()
    data = written + (b"\x1e" + ending.mark.encode() + b" ")[:mark_bytes]
    passed = b"".join(map(ending.feed, split_at(data, places)))
    assert passed + ending.flush() == data
    assert ending.exit is None


@given(
    st.lists(
        st.sampled_from([b"x", b" ", b"12 /", b"\x1e", b"MARK", b"\x1eMARK ", b"\x1eMARK"]), max_size=20
    ),
    st.lists(st.integers(0, 300), max_size=8),
)
def test_output_that_contains_parts_of_end_marks_is_returned_unchanged(
    parts: list[bytes], places: list[int]
) -> None:
    ending = EndMarkParser()
    data = b"".join(parts).replace(b"MARK", ending.mark.encode())
    passed = b"".join(map(ending.feed, split_at(data, places)))
    if ending.exit is None:
        assert passed + ending.flush() == data
    assert data.startswith(passed)


def test_output_after_an_unfinished_end_mark_is_buffered_only_up_to_a_limit() -> None:
    ending = EndMarkParser()
    begun = b"\x1e" + ending.mark.encode() + b" "
    passed = ending.feed(begun) + b"".join(ending.feed(b"y" * 10_000) for _ in range(20))
    assert len(passed) > 150_000
    assert passed + ending.flush() == begun + b"y" * 200_000
    assert ending.exit is None
