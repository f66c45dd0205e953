"""Storage formats of words and vectors in the tables of the search index.

Each word of a tool is stored with its weight in the keyword index: as the position of the word in the
`tsvector`, and roughly as its class, by which the database orders matches. Vectors are sent and received in
the binary format of pgvector's `halfvec`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from toolfold.selection.retrieval.vectors import Matrix

Ids = NDArray[np.int64]

CLASS_WEIGHTS = "{0.2,0.37,0.52,0.68}"
"""Weights of the classes D to A for `ts_rank`."""
_CLASSES = (("A", 0.6), ("B", 0.45), ("C", 0.3), ("D", 0.0))
"""Class of a word by its weight; each class has at least this weight."""
_WEIGHT_SCALE = 10_000
_WORD = re.compile(r"'([^']*)':(\d+)")


def _list_positions() -> list[str]:
    """Return the `tsvector` positions, with labels A to D, that encode the term weights from 0 to 1."""
    return [
        f"{max(1, number)}{next(name for name, least in _CLASSES if number >= least * _WEIGHT_SCALE)}"
        for number in range(_WEIGHT_SCALE + 1)
    ]


_POSITIONS = _list_positions()


def format_words(weights: Mapping[str, float]) -> str:
    """Return words and their weights in the text format of PostgreSQL's `tsvector`."""
    return " ".join(
        [
            f"{quote_word(word)}:{_POSITIONS[round(weight * _WEIGHT_SCALE)]}"
            for word, weight in weights.items()
        ]
    )


def parse_words(text: str) -> dict[str, float]:
    """Return the words of a `tsvector` and their weights."""
    return {word: int(position) / _WEIGHT_SCALE for word, position in _WORD.findall(text)}


def quote_word(word: str) -> str:
    """Quote a word for a `tsvector` or `tsquery`."""
    if "'" in word or "\\" in word:
        word = word.replace("\\", "\\\\").replace("'", "''")
    return f"'{word}'"


def pack_rows(ids: Ids, keys: NDArray[np.int64], vectors: Matrix) -> bytes:
    """Return rows of a vector table in the binary format of PostgreSQL's COPY."""
    width = vectors.shape[1]
    row = np.dtype(
        [
            ("fields", ">i2"),
            *(("tool_size", ">i4"), ("tool", ">i8")),
            *(("toolset_size", ">i4"), ("toolset", ">i8")),
            *(("server_size", ">i4"), ("server", ">i8")),
            ("vector_size", ">i4"),
            ("dimensions", ">i2"),
            ("unused", ">i2"),
            ("vector", ">f2", (width,)),
        ]
    )
    rows = np.zeros(len(ids), row)
    rows["fields"], rows["vector_size"], rows["dimensions"] = 4, 4 + 2 * width, width
    for name, values in (("tool", ids), ("toolset", keys[:, 0]), ("server", keys[:, 1])):
        rows[f"{name}_size"], rows[name] = 8, values
    rows["vector"] = vectors
    return b"PGCOPY\n\xff\r\n\0" + bytes(8) + rows.tobytes() + b"\xff\xff"


def unpack_vectors(values: Sequence[bytes], width: int) -> Matrix:
    """Return vectors from the binary format of pgvector."""
    valid = b"".join(value[4:] for value in values if len(value) == 4 + 2 * width)
    found: Matrix = np.frombuffer(valid, ">f2").astype(np.float32).reshape(-1, width)
    return found


def format_ids(ids: Ids) -> str:
    """Return ids in the text format of a PostgreSQL array."""
    return f"{{{','.join(map(str, ids.tolist()))}}}"


def format_vector(vector: Matrix) -> str:
    """Return a vector in the text format of pgvector."""
    return f"[{','.join(f'{number:.5g}' for number in vector.tolist())}]"
