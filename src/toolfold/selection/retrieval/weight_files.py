"""Files of trained weights: a line of JSON with names, types and shapes of arrays, then their bytes.

numpy's own files are not used, because numpy parses their headers as Python code. Python 3.11 fails if two
threads parse code at the same time.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_FORMAT = "toolfold arrays 1"
_MAX_HEADER_BYTES = 65_536
_TYPE = re.compile(r"(\|[biu]1|<[iuf][248]|<U[1-9]\d{0,3})")


def shipped_weights() -> Traversable:
    """Return the directory of the model weights that ship with the package."""
    return files("toolfold").joinpath("selection/retrieval/weights")


def save_arrays(file: Path, arrays: Mapping[str, ArrayLike]) -> None:
    """Write named arrays of numbers or strings to a file."""
    stored = {name: np.asarray(each) for name, each in arrays.items()}
    little = {name: each.astype(each.dtype.newbyteorder("<"), "C") for name, each in stored.items()}
    fields = {name: [_require_type(each.dtype.str), each.shape] for name, each in little.items()}
    header = json.dumps({"format": _FORMAT, "arrays": fields}, separators=(",", ":"))
    file.write_bytes(b"".join([header.encode(), b"\n", *(each.tobytes() for each in little.values())]))


def load_arrays(file: Traversable) -> dict[str, NDArray[Any]]:
    """Read a file of named arrays; the arrays are read-only. Raises ValueError if it is damaged."""
    try:
        with file.open("rb") as opened:
            header = json.loads(opened.readline(_MAX_HEADER_BYTES))
            if header["format"] != _FORMAT:
                raise ValueError("unknown format")
            arrays = {}
            fields = header["arrays"]
            for name, (dtype, shape) in fields.items():
                element = np.dtype(_require_type(dtype))
                content = opened.read(element.itemsize * math.prod(shape))
                arrays[name] = np.frombuffer(content, element).reshape(shape)
            if opened.read(1) or any(arrays[name].shape != tuple(fields[name][1]) for name in fields):
                raise ValueError("its length is wrong")
            return arrays
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"{file.name} is not a complete file of arrays: {error}") from error


def _require_type(dtype: str) -> str:
    if not _TYPE.fullmatch(dtype):
        raise ValueError(f"arrays of type {dtype!r} cannot be stored")
    return dtype
