"""Vectors in a file of the machine: no text is embedded twice, and no content of the file can do harm."""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.retrieval.catalog import CATALOG, CountingModel, make_tool
from toolfold.selection.retrieval import vector_store
from toolfold.selection.retrieval.indexing import Indexer
from toolfold.selection.retrieval.vector_store import FILE_NAME, VectorFile
from toolfold.selection.retrieval.vectors import PackedVectors

MODEL = "model"
SUMS = [bytes([number]) * 16 for number in range(8)]


def make_vectors(count: int, width: int = 4, seed: int = 1) -> PackedVectors:
    rows = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return PackedVectors.of(rows)


def run_sql(directory: Path, *statements: str) -> None:
    db = sqlite3.connect(directory / FILE_NAME)
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


def count_stored(directory: Path, sums: list[bytes]) -> int:
    return len(VectorFile(directory).read(MODEL, sums)[0])


def test_stored_vectors_are_read_by_another_process_as_they_were_written(tmp_path: Path) -> None:
    packed = make_vectors(8)
    VectorFile(tmp_path).write(MODEL, SUMS, packed)
    positions, found = VectorFile(tmp_path).read(MODEL, [b"?" * 16, *SUMS[::-1]])
    assert positions == list(range(1, 9))
    assert (found.numbers == packed.numbers[::-1]).all()
    assert (found.scales == packed.scales[::-1]).all()


def test_vectors_of_another_model_are_not_found(tmp_path: Path) -> None:
    VectorFile(tmp_path).write(MODEL, SUMS, make_vectors(8))
    assert VectorFile(tmp_path).read("model-2", SUMS)[0] == []


def test_zero_vectors_are_not_stored(tmp_path: Path) -> None:
    VectorFile(tmp_path).write(MODEL, SUMS, PackedVectors.empty(8, 4))
    assert count_stored(tmp_path, SUMS) == 0


def test_reading_creates_no_file(tmp_path: Path) -> None:
    assert count_stored(tmp_path, SUMS) == 0
    assert list(tmp_path.iterdir()) == []


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "text": lambda data: b"not a store at all",
    "truncated": lambda data: data[: len(data) // 2],
    "zeroed": lambda data: bytes(len(data)),
    "header only": lambda data: data[:100],
    "damaged pages": lambda data: data[:4_096] + bytes(len(data) - 4_096),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_file_is_rebuilt_with_one_log_line(
    tmp_path: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    model, file = CountingModel(), tmp_path / FILE_NAME
    whole = Indexer(model.embedder, VectorFile(tmp_path)).index(CATALOG)
    file.write_bytes(damage(file.read_bytes()))
    model.take_count()
    with caplog.at_level(logging.WARNING):
        index = Indexer(model.embedder, VectorFile(tmp_path)).index(CATALOG)
        assert model.take_count() == len(CATALOG)
        Indexer(model.embedder, VectorFile(tmp_path)).index(CATALOG)
    assert model.take_count() == 0
    assert [f"{FILE_NAME} cannot be used and is rebuilt" in r.message for r in caplog.records] == [True]
    assert index.vectors is not None
    assert whole.vectors is not None
    assert (index.vectors.packed.numbers == whole.vectors.packed.numbers).all()


FOREIGN_SCHEMAS = {
    "another table": ["DROP TABLE vectors", "CREATE TABLE other (x)"],
    "a trigger": ["CREATE TRIGGER t AFTER INSERT ON vectors BEGIN DELETE FROM vectors; END"],
    "a view": ["DROP TABLE vectors", "CREATE VIEW vectors AS SELECT 1 AS key"],
    "another column": ["ALTER TABLE vectors ADD COLUMN x"],
}


@pytest.mark.parametrize("statements", FOREIGN_SCHEMAS.values(), ids=FOREIGN_SCHEMAS.keys())
def test_file_with_another_schema_is_replaced(tmp_path: Path, statements: list[str]) -> None:
    VectorFile(tmp_path).write(MODEL, SUMS, make_vectors(8))
    run_sql(tmp_path, *statements)
    assert count_stored(tmp_path, SUMS) == 0
    VectorFile(tmp_path).write(MODEL, SUMS, make_vectors(8))
    assert count_stored(tmp_path, SUMS) == 8


CHANGED_ROWS = (
    "UPDATE vectors SET scale = 9e999",
    "UPDATE vectors SET scale = scale * 2",
    "UPDATE vectors SET scale = 'long'",
    "UPDATE vectors SET numbers = x'00010203'",
    "UPDATE vectors SET numbers = 'text'",
    "UPDATE vectors SET numbers = zeroblob(20000)",
    "UPDATE vectors SET checksum = 7",
)


@pytest.mark.parametrize("statement", CHANGED_ROWS)
def test_row_that_was_changed_by_another_program_is_not_used(tmp_path: Path, statement: str) -> None:
    VectorFile(tmp_path).write(MODEL, SUMS, make_vectors(8))
    run_sql(tmp_path, f"{statement} WHERE rowid = 3")
    assert VectorFile(tmp_path).read(MODEL, SUMS)[0] == [0, 1, 3, 4, 5, 6, 7]
    VectorFile(tmp_path).write(MODEL, SUMS[2:3], make_vectors(1))
    assert count_stored(tmp_path, SUMS) == 8


def test_stored_vectors_are_right_or_missing_if_any_bit_of_the_file_is_flipped(tmp_path: Path) -> None:
    packed, file = make_vectors(8), tmp_path / FILE_NAME
    VectorFile(tmp_path).write(MODEL, SUMS, packed)
    data, chance = file.read_bytes(), random.Random(11)
    for _ in range(200):
        broken = bytearray(data)
        broken[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        file.write_bytes(broken)
        positions, found = VectorFile(tmp_path).read(MODEL, SUMS)
        assert found.numbers.tobytes() == packed.numbers[positions].tobytes()
        assert (found.scales == packed.scales[positions]).all()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_fifo_in_place_of_the_file_is_replaced_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE_NAME)
    store = VectorFile(tmp_path)
    assert store.read(MODEL, SUMS)[0] == []
    store.write(MODEL, SUMS, make_vectors(8))
    assert count_stored(tmp_path, SUMS) == 8


def test_symlink_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    VectorFile(tmp_path).write(MODEL, SUMS, make_vectors(8))
    file = tmp_path / FILE_NAME
    elsewhere = file.rename(tmp_path / "elsewhere")
    data = elsewhere.read_bytes()
    file.symlink_to(elsewhere)
    VectorFile(tmp_path).write(MODEL, SUMS[:1], make_vectors(1))
    assert not file.is_symlink()
    assert elsewhere.read_bytes() == data
    assert count_stored(tmp_path, SUMS) == 1


def set_age(directory: Path, days: int, condition: str = "1") -> None:
    run_sql(directory, f"UPDATE vectors SET used = used - {days} WHERE {condition}")


def test_vectors_unused_for_long_are_removed_and_those_in_use_stay(tmp_path: Path) -> None:
    VectorFile(tmp_path).write(MODEL, SUMS, make_vectors(8))
    set_age(tmp_path, vector_store.UNUSED_DAYS + 1)
    assert count_stored(tmp_path, SUMS[:3]) == 3  # reading is use
    VectorFile(tmp_path).write(MODEL, [b"n" * 16], make_vectors(1))
    assert VectorFile(tmp_path).read(MODEL, SUMS)[0] == [0, 1, 2]


def test_full_file_drops_vectors_that_were_not_used_lately_and_never_those_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(vector_store, "MAX_FILE_BYTES", 48 * 4_096)
    sums = [number.to_bytes(16, "big") for number in range(600)]
    first, rest = sums[:250], sums[250:]
    VectorFile(tmp_path).write(MODEL, first, make_vectors(250, 500))
    set_age(tmp_path, vector_store.IN_USE_DAYS + 1, "rowid > 50")
    VectorFile(tmp_path).write(MODEL, rest[:150], make_vectors(150, 500))
    assert VectorFile(tmp_path).read(MODEL, first)[0] == list(range(50))
    assert count_stored(tmp_path, rest[:150]) == 150
    assert not caplog.records
    store = VectorFile(tmp_path)
    for start in range(150, 350, 50):
        store.write(MODEL, rest[start : start + 50], make_vectors(50, 500))
    assert VectorFile(tmp_path).read(MODEL, first)[0] == list(range(50))
    assert count_stored(tmp_path, rest[:150]) == 150
    assert ["cannot be stored" in record.message for record in caplog.records] == [True]
    assert (tmp_path / FILE_NAME).stat().st_size <= 48 * 4_096


WRITER = """
import logging, sys
from pathlib import Path
from tests.retrieval.catalog import CATALOG, CountingModel, make_tool
from toolfold.selection.retrieval.indexing import Indexer
from toolfold.selection.retrieval.vector_store import VectorFile
logging.basicConfig()
print("ready", flush=True)
sys.stdin.readline()
for turn in range(25):
    tools = (*CATALOG, *(make_tool(f"tool_{n}") for n in range(turn)))
    index = Indexer(CountingModel().embedder, VectorFile(Path(sys.argv[1]))).index(tools)
    assert {tool.name for tool in index.tools if tool} == {tool.name for tool in tools}
"""


def test_processes_that_write_at_once_leave_all_their_vectors(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [
        subprocess.Popen(command, cwd=root, text=True, stdin=pipe, stdout=pipe, stderr=pipe) for _ in range(3)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    with ThreadPoolExecutor(len(writers)) as pool:
        outputs = list(pool.map(lambda writer: writer.communicate("go\n", 60), writers))
    assert [(writer.returncode, errors) for writer, (_, errors) in zip(writers, outputs, strict=True)] == [
        (0, "")
    ] * 3
    model = CountingModel()
    Indexer(model.embedder, VectorFile(tmp_path)).index(
        (*CATALOG, *(make_tool(f"tool_{n}") for n in range(24)))
    )
    assert model.take_count() == 0
    assert [each.name for each in tmp_path.iterdir()] == [FILE_NAME]


def test_two_catalogs_with_a_common_tool_share_its_vector(tmp_path: Path) -> None:
    model = CountingModel()
    Indexer(model.embedder, VectorFile(tmp_path)).index(CATALOG[:5])
    Indexer(model.embedder, VectorFile(tmp_path)).index(CATALOG[5:])
    model.take_count()
    Indexer(model.embedder, VectorFile(tmp_path)).index(CATALOG)
    assert model.take_count() == 0
