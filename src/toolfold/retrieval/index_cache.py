"""Write a search index to a file, and read it back with validation.

A file may be damaged, foreign, of another model or malicious, so everything is checked before it is used.
The caller decides which file belongs to which tools, and what to do without one.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolfold.retrieval.array_files import open_arrays
from toolfold.retrieval.lexical import FIELDS, MAX_NAME_TERMS, KeywordIndex
from toolfold.retrieval.text import WordTokenizer
from toolfold.retrieval.vectors import MAX_DIMENSIONS, PackedVectors, Sketch, Vectors

FORMAT = 4
MAX_INDEX_FILE_BYTES = 4 << 30
"""A larger index is not stored; that of a million tools has more than 1 GB."""
_EMPTY_CHECKSUM = bytes(16)
_PROBE_SIZE = 64


@dataclass(frozen=True, slots=True, eq=False)
class IndexCache:
    """Content of a search index file; partial if some tools are not embedded yet."""

    checksums: Sequence[bytes]
    """One per position; empty if there is no tool, or no vector yet."""
    lexical: KeywordIndex
    packed: PackedVectors | None
    sketch: Sketch | None = None
    """Recomputed on loading if it is missing."""


def write_index(file: Path, cache: IndexCache, model: str) -> None:
    """Write the index file atomically; on failure, the existing file remains unchanged.

    Raises OSError if it cannot be written, or would be too large to be read again.
    """
    arrays = _to_arrays(cache, model)
    if sum(each.nbytes for each in arrays.values()) > MAX_INDEX_FILE_BYTES:
        raise OSError(f"the search index would have more than {MAX_INDEX_FILE_BYTES:,} bytes")
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".index-")
    try:
        with os.fdopen(descriptor, "wb") as temporary:
            np.savez(temporary, **arrays)  # type: ignore[arg-type]
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _to_arrays(cache: IndexCache, model: str) -> dict[str, NDArray[Any]]:
    lexical, packed, sketch = cache.lexical, cache.packed, cache.sketch
    arrays: dict[str, NDArray[Any]] = {
        "about": np.frombuffer(json.dumps(_make_header(lexical, model)).encode(), np.uint8),
        "checksums": np.frombuffer(b"".join(s or _EMPTY_CHECKSUM for s in cache.checksums), np.uint8),
        "terms": np.frombuffer("\n".join(lexical.terms).encode(), np.uint8),
        "starts": lexical.starts,
        "places": lexical.positions,
        "weights": lexical.weights.astype(np.float16),
        "names": lexical.names,
    }
    if packed is not None:
        arrays |= {"vectors": packed.numbers, "scales": packed.scales}
    if sketch is not None:
        arrays |= {"directions": sketch.directions, "sketch": sketch.rows}
    return arrays


def _make_header(lexical: KeywordIndex, model: str) -> dict[str, Any]:
    return {"format": FORMAT, "model": model, "size": lexical.size, "lengths": dict(lexical.lengths)}


def read_index(
    file: Path, model: str, words: WordTokenizer
) -> tuple[tuple[bytes, ...], KeywordIndex, Vectors | None]:
    """Return the tool checksums, the keyword index and the vectors stored in an index file.

    Raises ValueError or KeyError if the file is not a valid index of this model.
    """
    with open_arrays(file, MAX_INDEX_FILE_BYTES) as stored:
        header = json.loads(stored["about"].tobytes())
        if header.get("format") != FORMAT or header.get("model") != model:
            raise ValueError("the index file was written by another version of Toolfold or for another model")
        sums = np.frombuffer(stored["checksums"].tobytes(), "V16").tolist()
        terms = stored["terms"].tobytes().decode().split()
        lexical = KeywordIndex(
            words=words,
            size=int(header["size"]),
            terms=dict(zip(terms, range(len(terms)), strict=True)),
            starts=stored["starts"],
            positions=stored["places"],
            weights=_check_weights(stored["weights"]),
            names=stored["names"],
            lengths=header["lengths"],
        )
        if len(lexical.terms) != len(terms):
            raise ValueError("a term occurs twice")
        _check_consistency(lexical, len(sums))
        vectors = _load_vectors(stored, len(sums)) if "vectors" in stored else None
    _probe_search(lexical, vectors)
    return tuple(b"" if s == _EMPTY_CHECKSUM else s for s in sums), lexical, vectors


def _probe_search(lexical: KeywordIndex, vectors: Vectors | None) -> None:
    """Run a test search, which raises an error if the loaded index cannot be searched."""
    positions = np.arange(min(lexical.size, _PROBE_SIZE))
    message = " ".join([*lexical.terms][:_PROBE_SIZE])
    scores, _ = lexical.scores(message)
    lexical.matched(message, positions.tolist())
    lexical.name_coverage(message, positions)
    if vectors is not None:
        vectors.similarities(np.ones(vectors.width, np.float32), positions[:0], scores)


def _check_weights(weights: NDArray[Any]) -> NDArray[np.float32]:
    if weights.dtype != np.float16 or weights.ndim != 1 or not ((weights >= 0) & (weights <= 1)).all():
        raise ValueError("the keyword weights in the index file are not float16 numbers between 0 and 1")
    return weights.astype(np.float32)


def _load_vectors(stored: Mapping[str, NDArray[Any]], size: int) -> Vectors:
    numbers, scales = stored["vectors"], stored["scales"]
    is_valid = numbers.dtype == np.int8 and numbers.ndim == 2 and len(numbers) == size
    is_valid = is_valid and 0 < numbers.shape[1] <= MAX_DIMENSIONS
    sketch = None
    if "sketch" in stored:
        sketch = Sketch(stored["directions"], stored["sketch"])
        is_valid = is_valid and sketch.rows.ndim == 2
        is_valid = is_valid and _is_finite(sketch.directions, (numbers.shape[1], sketch.rows.shape[1]))
        is_valid = is_valid and _is_finite(sketch.rows, (size, sketch.rows.shape[1]))
    if not (is_valid and _is_finite(scales, (size,)) and bool((scales >= 0).all())):
        raise ValueError("the vectors in the index file are incomplete or have the wrong type")
    return Vectors.of(PackedVectors(numbers, scales), sketch)


def _is_finite(array: NDArray[Any], shape: tuple[int, ...]) -> bool:
    return array.dtype == np.float32 and array.shape == shape and bool(np.isfinite(array).all())


def _check_consistency(lexical: KeywordIndex, size: int) -> None:
    is_valid = (
        lexical.size == size
        and _are_row_offsets(lexical.starts, len(lexical.terms), lexical.positions, size)
        and lexical.names.shape == (size, MAX_NAME_TERMS)
        and _are_int32_in_range(lexical.names, -1, len(lexical.terms))
        and len(lexical.weights) == len(lexical.positions)
        and all(_is_length(lexical.lengths[name]) for name in FIELDS)
    )
    if not is_valid:
        raise ValueError("the sizes or types of the arrays in the index file do not match")


def _is_length(length: Any) -> bool:
    return isinstance(length, (int, float)) and 0 < length < np.inf


def _are_row_offsets(starts: NDArray[Any], rows: int, numbers: NDArray[Any], below: int) -> bool:
    """Return True if `starts` are valid row offsets into `numbers` and all numbers are less than `below`."""
    return (
        starts.dtype == np.int64
        and numbers.ndim == 1
        and starts.shape == (rows + 1,)
        and starts[0] == 0
        and starts[-1] == len(numbers)
        and bool((np.diff(starts) >= 0).all())
        and _are_int32_in_range(numbers, 0, below)
    )


def _are_int32_in_range(numbers: NDArray[Any], lowest: int, below: int) -> bool:
    if numbers.dtype != np.int32:
        return False
    return not numbers.size or bool(numbers.min() >= lowest and numbers.max() < below)
