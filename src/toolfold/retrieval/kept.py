"""An index as a file: written at once, read without trust.

A file may be broken, foreign, of another model or made to do harm; what is read is checked until every
search can use it. Which file belongs to which tools, and what is done without one, is the caller's to say.
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

from toolfold.retrieval.lexical import FIELDS, LONGEST_NAME, Lexical
from toolfold.retrieval.stored import arrays_in
from toolfold.retrieval.text import Words
from toolfold.retrieval.vectors import WIDEST, Packed, Sketch, Vectors

FORMAT = 2
LARGEST_FILE = 1 << 30
_NO_SUM = bytes(16)
_TRIED = 64


@dataclass(frozen=True, slots=True, eq=False)
class IndexCache:
    """What is kept of an index, whole or as far as it has come."""

    checksums: Sequence[bytes]
    """In the order of the places; empty for one whose tool is not there, or has no vector yet."""
    lexical: Lexical
    packed: Packed | None
    sketch: Sketch | None = None
    """One that is not kept is drawn again."""


def write(file: Path, kept: IndexCache, model: str) -> None:
    """Replace the file as a whole, or leave it as it is."""
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".index-")
    try:
        with os.fdopen(descriptor, "wb") as temporary:
            np.savez(temporary, **_arrays(kept, model))  # type: ignore[arg-type]
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _arrays(kept: IndexCache, model: str) -> dict[str, NDArray[Any]]:
    lexical, packed, sketch = kept.lexical, kept.packed, kept.sketch
    arrays: dict[str, NDArray[Any]] = {
        "about": np.frombuffer(json.dumps(_about(lexical, model)).encode(), np.uint8),
        "checksums": np.frombuffer(b"".join(s or _NO_SUM for s in kept.checksums), np.uint8),
        "terms": np.frombuffer("\n".join(lexical.terms).encode(), np.uint8),
        "starts": lexical.starts,
        "places": lexical.places,
        "weights": lexical.weights.astype(np.float16),
        "names": lexical.names,
    }
    if packed is not None:
        arrays |= {"vectors": packed.numbers, "scales": packed.scales}
    if sketch is not None:
        arrays |= {"directions": sketch.directions, "sketch": sketch.rows}
    return arrays


def _about(lexical: Lexical, model: str) -> dict[str, Any]:
    return {"format": FORMAT, "model": model, "size": lexical.size, "lengths": dict(lexical.lengths)}


def read(file: Path, model: str, words: Words) -> tuple[tuple[bytes, ...], Lexical, Vectors | None]:
    """The index in a file: its tools' checksums, and both legs.

    Raises ValueError or KeyError for one that is not what it should be.
    """
    with arrays_in(file, LARGEST_FILE) as stored:
        about = json.loads(stored["about"].tobytes())
        if about.get("format") != FORMAT or about.get("model") != model:
            raise ValueError("it was made by another version or model")
        sums = np.frombuffer(stored["checksums"].tobytes(), "V16").tolist()
        terms = stored["terms"].tobytes().decode().split()
        lexical = Lexical(
            words=words,
            size=int(about["size"]),
            terms=dict(zip(terms, range(len(terms)), strict=True)),
            starts=stored["starts"],
            places=stored["places"],
            weights=_stored_weights(stored["weights"]),
            names=stored["names"],
            lengths=about["lengths"],
        )
        if len(lexical.terms) != len(terms):
            raise ValueError("it has a term twice")
        _require_whole(lexical, len(sums))
        vectors = _stored_vectors(stored, len(sums)) if "vectors" in stored else None
    _try_out(lexical, vectors)
    return tuple(b"" if s == _NO_SUM else s for s in sums), lexical, vectors


def _try_out(lexical: Lexical, vectors: Vectors | None) -> None:
    """Ask what every search asks: a file that gets past the checks and cannot answer must not stay."""
    places = np.arange(min(lexical.size, _TRIED))
    message = " ".join([*lexical.terms][:_TRIED])
    scores, _ = lexical.scores(message)
    lexical.matched(message, places.tolist())
    lexical.name_coverage(message, places)
    if vectors is not None:
        vectors.near(np.ones(vectors.width, np.float32), places[:0], scores)


def _stored_weights(weights: NDArray[Any]) -> NDArray[np.float32]:
    if weights.dtype != np.float16 or weights.ndim != 1 or not ((weights >= 0) & (weights <= 1)).all():
        raise ValueError("its weights are not weights")
    return weights.astype(np.float32)


def _stored_vectors(stored: Mapping[str, NDArray[Any]], size: int) -> Vectors:
    numbers, scales = stored["vectors"], stored["scales"]
    sound = numbers.dtype == np.int8 and numbers.ndim == 2 and len(numbers) == size
    sound = sound and 0 < numbers.shape[1] <= WIDEST
    sketch = None
    if "sketch" in stored:
        sketch = Sketch(stored["directions"], stored["sketch"])
        sound = sound and sketch.rows.ndim == 2
        sound = sound and _is_finite(sketch.directions, (numbers.shape[1], sketch.rows.shape[1]))
        sound = sound and _is_finite(sketch.rows, (size, sketch.rows.shape[1]))
    if not (sound and _is_finite(scales, (size,)) and bool((scales >= 0).all())):
        raise ValueError("its vectors are not whole")
    return Vectors.of(Packed(numbers, scales), sketch)


def _is_finite(array: NDArray[Any], shape: tuple[int, ...]) -> bool:
    return array.dtype == np.float32 and array.shape == shape and bool(np.isfinite(array).all())


def _require_whole(lexical: Lexical, size: int) -> None:
    sound = (
        lexical.size == size
        and _are_rows(lexical.starts, len(lexical.terms), lexical.places, size)
        and lexical.names.shape == (size, LONGEST_NAME)
        and _are_numbers(lexical.names, -1, len(lexical.terms))
        and len(lexical.weights) == len(lexical.places)
        and all(_is_length(lexical.lengths[name]) for name in FIELDS)
    )
    if not sound:
        raise ValueError("its parts do not fit together")


def _is_length(length: Any) -> bool:
    return isinstance(length, (int, float)) and 0 < length < np.inf


def _are_rows(starts: NDArray[Any], rows: int, numbers: NDArray[Any], below: int) -> bool:
    """Whether `starts` cuts `numbers` into so many rows, and all of them are numbers of something."""
    return (
        starts.dtype == np.int64
        and numbers.ndim == 1
        and starts.shape == (rows + 1,)
        and starts[0] == 0
        and starts[-1] == len(numbers)
        and bool((np.diff(starts) >= 0).all())
        and _are_numbers(numbers, 0, below)
    )


def _are_numbers(numbers: NDArray[Any], lowest: int, below: int) -> bool:
    if numbers.dtype != np.int32:
        return False
    return not numbers.size or bool(numbers.min() >= lowest and numbers.max() < below)
