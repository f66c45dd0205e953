"""Tests of the files of trained weights."""

from __future__ import annotations

import ast
import gc
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from toolfold.mcp.scan.classifier import load_classifier
from toolfold.selection.retrieval.context import ContextRanker
from toolfold.selection.retrieval.embedding import read_message_mean
from toolfold.selection.retrieval.need import NeedClassifier
from toolfold.selection.retrieval.ranking import Ranker
from toolfold.selection.retrieval.weight_files import load_arrays, save_arrays, shipped_weights

ARRAYS: dict[str, NDArray[Any]] = {
    "bytes": np.arange(-3, 3, dtype=np.int8).reshape(2, 3),
    "half": np.linspace(0, 1, 5, dtype=np.float16),
    "single": np.array([[0.1], [np.inf]], np.float32),
    "number": np.array(0.25),
    "text": np.array(["a", "größer"]),
    "none": np.zeros((0, 4), np.float32),
}


def test_arrays_read_from_a_file_equal_the_arrays_written(tmp_path: Path) -> None:
    file = tmp_path / "some.arrays"
    save_arrays(file, ARRAYS)
    found = load_arrays(file)
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


def test_array_in_another_memory_order_is_read_with_its_values(tmp_path: Path) -> None:
    array = np.arange(6, dtype=">f4").reshape(2, 3).T
    save_arrays(tmp_path / "some.arrays", {"array": array})
    assert (load_arrays(tmp_path / "some.arrays")["array"] == array).all()


def test_array_of_objects_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be stored"):
        save_arrays(tmp_path / "some.arrays", {"objects": np.array([object()])})
    assert not list(tmp_path.iterdir())


def _header(**arrays: object) -> bytes:
    return json.dumps({"format": "toolfold arrays 1", "arrays": arrays}).encode() + b"\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04",
        b"[]\n",
        b'{"format": "toolfold arrays 2", "arrays": {}}\n',
        _header(a=["<f4", [2]]) + b"1234567",
        _header(a=["<f4", [2]]) + b"123456789",
        _header(a=["<f4", [-1]]),
        _header(a=["<f4", [0.5]]) + b"12",
        _header(a=["<f4", [1 << 62]]) + b"1234",
        _header(a=["|O", [1]]) + b"12345678",
        _header(a=["<f4,<f4", [1]]) + b"12345678",
        _header(a=[[["x", "<f4"]], [1]]) + b"1234",
    ],
)
def test_damaged_file_raises_a_value_error_with_its_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "some.arrays"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"some\.arrays is not a complete file of arrays"):
        load_arrays(file)


class _Garbage:
    """Object whose finalizer runs Python code, during which another thread can take over."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(50):
            pass


@pytest.fixture
def frequent_thread_switches() -> Iterator[None]:
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("frequent_thread_switches")
def test_shipped_weights_can_be_loaded_while_another_thread_parses_python_code() -> None:
    source = "x = {'a': (1, 2, [3, (4,)])}\n" * 50
    stop, parsed, problems = threading.Event(), threading.Event(), list[Exception]()

    def parse() -> None:
        while not stop.is_set():
            for _ in range(30):
                _Garbage()
            try:
                ast.parse(source)
            except Exception as error:
                problems.append(error)
            parsed.set()

    thread = threading.Thread(target=parse)
    thread.start()
    try:
        assert parsed.wait(60)
        for _ in range(20):
            for _ in range(30):
                _Garbage()
            load_classifier.__wrapped__()
            ContextRanker.shipped()
            NeedClassifier.shipped("encoder")
            Ranker.shipped("light")
            read_message_mean(shipped_weights(), "light", 192)
    finally:
        stop.set()
        thread.join()
    assert problems == []
