"""Words between the bytes of a program, in whatever pieces they come."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from toolfold.environments.typed import Words

MARK = "unguessable"
_BYTES = st.one_of(
    st.binary(max_size=20), st.sampled_from([b"\x1e", b"\x1eungues", b"\x1eunguessable", b"\x1e\x1e"])
)
_WORDS = st.sampled_from(["", "r", "g", "o", "x 137 it was killed"])


@given(st.lists(st.one_of(_BYTES, _WORDS), max_size=12), st.lists(st.integers(0, 300), max_size=8))
def test_words_and_bytes_are_told_apart_wherever_the_stream_is_cut(
    pieces: list[bytes | str], cuts: list[int]
) -> None:
    # A program that happens to write the beginning of a mark is followed by something that is none.
    stream = b"".join(
        f"\x1e{MARK} {each}\x1e".encode() if isinstance(each, str) else each + b"." for each in pieces
    )
    words, found = Words(MARK), list[bytes | str]()
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for first, last in itertools.pairwise(edges):
        found += words.split(stream[first:last])
    assert [each for each in found if isinstance(each, str)] == [
        each for each in pieces if isinstance(each, str)
    ]
    written = b"".join(each for each in found if isinstance(each, bytes))
    assert written == b"".join(each + b"." for each in pieces if isinstance(each, bytes))


def test_a_byte_that_begins_no_word_waits_for_the_next_one_only() -> None:
    words = Words(MARK)
    assert words.split(b"before \x1e") == [b"before "]
    assert words.split(b"after") == [b"\x1eafter"]
