"""How output is kept, decoded and known to have ended, whatever pieces it comes in."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from toolfold.environments.ending import Ended, Ending
from toolfold.environments.output import Output, readable, whole_characters

pieces = st.lists(st.binary(max_size=60), max_size=20)
texts = st.text(max_size=200)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in pieces."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(pieces, st.integers(2, 100), st.integers(0, 500))
def test_little_is_kept_whole_and_much_is_bounded(written: list[bytes], most: int, largest: int) -> None:
    everything = b"".join(written)
    with tempfile.TemporaryDirectory() as folder:
        output = Output(most=most, folder=Path(folder), largest_file=largest)
        for piece in written:
            output.take(piece)
        output.finish()
        assert output.total == len(everything)
        if len(everything) <= most:
            assert output.text() == readable(everything)
            assert output.stored is None
        else:
            assert output.stored is not None
            assert everything.startswith(output.stored.read_bytes())
            assert output.stored.stat().st_size + output.lost == len(everything)
            assert "bytes left out" in output.text()


@given(texts, st.lists(st.integers(0, 1_000), max_size=5))
def test_a_listener_hears_the_text_whatever_the_pieces(text: str, places: list[int]) -> None:
    heard: list[str] = []
    output = Output(most=10, listener=heard.append)
    for piece in cut(text.encode(errors="replace"), places):
        output.take(piece)
    output.finish()
    assert "".join(heard) == readable(text.encode(errors="replace"))


@given(texts, st.integers(4, 40))
def test_head_and_tail_are_cut_between_characters(text: str, most: int) -> None:
    output = Output(most=most)
    output.take(text.encode(errors="replace"))
    assert "\ufffd" not in output.text() or "\ufffd" in text or "?" in text


@given(st.text(max_size=50), st.integers(0, 200))
def test_whole_characters_are_a_prefix_that_decodes(text: str, at: int) -> None:
    data = text.encode(errors="replace")[:at]
    whole = whole_characters(data)
    whole.decode()
    assert data.startswith(whole)
    assert len(data) - len(whole) < 4


@given(
    st.binary(max_size=300),
    st.integers(0, 255),
    st.text(max_size=40),
    st.lists(st.integers(0, 1_000), max_size=8),
)
def test_the_end_is_found_whatever_the_pieces(
    written: bytes, code: int, folder: str, places: list[int]
) -> None:
    ending = Ending()
    mark = b"\x1e" + ending.mark.encode()
    path = f"/{folder}".encode("utf-8", "replace").replace(b"\x1e", b"")
    passed = b"".join(map(ending.pass_on, cut(written + mark + b" %d " % code + path + mark, places)))
    assert passed == written
    assert ending.seen == Ended(code, path.decode("utf-8", "surrogateescape"))
    assert ending.rest() == b""


@given(st.binary(max_size=300), st.lists(st.integers(0, 1_000), max_size=8), st.integers(0, 26))
def test_without_its_end_nothing_is_lost(written: bytes, places: list[int], of_the_mark: int) -> None:
    ending = Ending()
    data = written + (b"\x1e" + ending.mark.encode() + b" ")[:of_the_mark]
    passed = b"".join(map(ending.pass_on, cut(data, places)))
    assert passed + ending.rest() == data
    assert ending.seen is None


@given(
    st.lists(
        st.sampled_from([b"x", b" ", b"12 /", b"\x1e", b"MARK", b"\x1eMARK ", b"\x1eMARK"]), max_size=20
    ),
    st.lists(st.integers(0, 300), max_size=8),
)
def test_whatever_a_command_makes_of_its_mark_nothing_is_lost(parts: list[bytes], places: list[int]) -> None:
    ending = Ending()
    data = b"".join(parts).replace(b"MARK", ending.mark.encode())
    passed = b"".join(map(ending.pass_on, cut(data, places)))
    if ending.seen is None:
        assert passed + ending.rest() == data
    assert data.startswith(passed)


def test_a_mark_without_an_end_holds_little_back() -> None:
    ending = Ending()
    begun = b"\x1e" + ending.mark.encode() + b" "
    passed = ending.pass_on(begun) + b"".join(ending.pass_on(b"y" * 10_000) for _ in range(20))
    assert len(passed) > 150_000
    assert passed + ending.rest() == begun + b"y" * 200_000
    assert ending.seen is None
