"""Results are always valid JSON and never longer than allowed."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import os
import re
import stat
import subprocess
import sys
import threading
import time
import types
import uuid
from collections import UserDict, UserList, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.thorough import try_examples
from tests.timing import run_with_limit
from toolfold.runtime import results as results_module
from toolfold.runtime.results import RETENTION_S, ResultStore, render

SESSION = "session-1"


def reject_constant(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is not JSON")


def render_and_load(value: object) -> Any:
    """Return the value after rendering it and parsing it strictly."""
    text = render(value)
    text.encode("utf-8")  # a lone surrogate would fail here
    answer = json.loads(text, parse_constant=reject_constant)
    assert isinstance(answer, (dict, list))
    json.dumps(answer, ensure_ascii=False).encode("utf-8")  # also an escaped one
    return answer


# -- any value ------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: object
    y: object = None


class Model(pydantic.BaseModel):
    when: datetime.date = datetime.date(2030, 1, 2)
    ratio: float = 0.5


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__

    def __hash__(self) -> int:
        return 7


class DanglingProxy:
    """Proxy whose real object is missing."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise RuntimeError("nothing behind this proxy")


class BrokenMapping(dict[str, object]):
    def items(self) -> NoReturn:
        raise KeyError("gone")


class Recursing:
    def model_dump(self, **_: object) -> Recursing:
        return Recursing()


def make_cycle() -> list[object]:
    inner: list[object] = []
    inner += [inner, inner, {"again": inner}]
    return inner


def make_nested(levels: int) -> object:
    value: object = "bottom"
    for _ in range(levels):
        value = [value]
    return value


ODDITIES: tuple[Callable[[], object], ...] = (
    lambda: 10**5000,
    lambda: -(10**4999),
    lambda: decimal.Decimal("1.5"),
    lambda: complex(1, 2),
    lambda: uuid.UUID(int=5),
    lambda: Path("/a"),
    lambda: Colour.RED,
    lambda: Model,
    lambda: Model(ratio=float("nan")),
    lambda: Point,
    Unprintable,
    DanglingProxy,
    lambda: BrokenMapping(a=1),
    Recursing,
    object,
    lambda: len,
    lambda: ValueError("x"),
    lambda: ...,
    lambda: range(3),
    lambda: deque([1, b"2"]),
    lambda: UserDict({"a": {1}}),
    lambda: UserList([1]),
    lambda: types.MappingProxyType({"a": float("inf")}),
    lambda: {"a": 1}.keys(),
    lambda: memoryview(b"view"),
    lambda: bytearray(b"\xff"),
    lambda: datetime.datetime(2030, 1, 1),
    lambda: '{"a": "\\ud800"}',
    lambda: '{"a": NaN}',
    lambda: '{"a": 1e999, "b": "\\udfff"}',
    lambda: "[" * 5000,
    lambda: '{"a":',
    lambda: "\ufeff{}",
    make_cycle,
    lambda: make_nested(3000),
    lambda: make_nested(80),
    lambda: Point(Unprintable(), make_cycle()),
)
KEYS = st.one_of(st.text(max_size=3), st.integers(), st.none(), st.binary(max_size=2))
ANYTHING = st.recursive(
    st.one_of(
        st.floats(),
        st.integers(),
        st.text(st.characters()),
        st.binary(max_size=8),
        st.integers(0, len(ODDITIES) - 1).map(lambda place: ODDITIES[place]()),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Point, inner),
        st.dictionaries(KEYS, inner, max_size=3),
        st.sets(st.one_of(st.integers(), st.text(max_size=3), st.floats()), max_size=3),
    ),
    max_leaves=5,
)


@check_cases("made", ODDITIES)
def test_tool_result_with_unusual_objects_or_numbers_is_rendered_as_strict_json(
    made: Callable[[], object],
) -> None:
    for value in (made(), [made(), made()], {"a": made()}, Point(made())):
        render_and_load(value)


@try_examples(200)
@given(ANYTHING)
def test_tool_result_with_arbitrary_python_values_is_rendered_as_strict_json(value: object) -> None:
    render_and_load(value)


@check_cases(
    ("value", "meant"),
    [
        ({"a": 1}, {"a": 1}),
        ("plain", {"result": "plain"}),
        (None, {"result": None}),
        ([1, 2], {"result": [1, 2]}),
        (5, {"result": 5}),
        ({"n": float("nan")}, {"n": None}),
        ({1: "one", None: 2}, {"1": "one", "null": 2}),
        ({"a": b"bytes"}, {"a": "bytes"}),
        ({"a": {3, 1, 2}}, {"a": [1, 2, 3]}),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        ({"a": UserDict({"b": 1})}, {"a": {"b": 1}}),
        ({"a": deque([1, 2])}, {"a": [1, 2]}),
        ({"a": (1, 2)}, {"a": [1, 2]}),
        (Point(1, [Point(2)]), {"result": {"x": 1, "y": [{"x": 2, "y": None}]}}),
        (Point(float("nan")), {"result": {"x": None, "y": None}}),
        (Model(), {"result": {"when": "2030-01-02", "ratio": 0.5}}),
        ({"p": Path("/a/b")}, {"p": "/a/b"}),
        ("half a pair: \ud800", {"result": "half a pair: \ufffd"}),
        ('{"a":"\\ud800"}', {"a": "\ufffd"}),
        ('{"a":"\\ud83d\\ude00"}', {"a": "😀"}),
    ],
)
def test_tool_results_of_common_types_are_rendered_as_json(value: object, meant: object) -> None:
    assert render_and_load(value) == meant


@check_cases("text", ['{"a": 1}', " [1, 2] ", "{}", '{"a": {"b": "\\u00e9"}}'])
def test_tool_result_text_that_is_a_json_object_is_returned_unchanged(text: str) -> None:
    assert render(text) == text


@check_cases("text", ["5", '"quoted"', "true", "null", "{'a': 1}", '{"a": NaN}', "{"])
def test_tool_result_text_that_is_not_a_json_object_becomes_the_value_of_the_key_result(text: str) -> None:
    assert render_and_load(text) == {"result": text}


def test_self_reference_in_a_tool_result_is_replaced_by_a_notice() -> None:
    value: dict[str, object] = {"name": "a"}
    value["self"] = value
    assert render_and_load(value) == {"name": "a", "self": "… (contains itself)"}


def test_list_that_occurs_twice_in_a_result_is_rendered_both_times() -> None:
    shared = [1]
    assert render_and_load({"a": shared, "b": shared, "n": float("inf")}) == {"a": [1], "b": [1], "n": None}


def test_value_in_a_tool_result_whose_repr_raises_is_replaced_by_a_notice() -> None:
    answer = render_and_load({"good": 1, "bad": Unprintable()})
    assert answer == {"good": 1, "bad": "… (Unprintable cannot be shown: RuntimeError)"}


@pytest.mark.thorough
def test_result_of_forty_mutually_referencing_objects_is_rendered_within_the_time_limit() -> None:
    web = [Point(None) for _ in range(40)]
    for point in web:
        point.x = list(web)
    run_with_limit(lambda: render(web))


# -- large results ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "results"


@pytest.fixture
def results(folder: Path) -> ResultStore:
    return ResultStore(folder, max_chars=1_000)


def truncate_value(
    results: ResultStore, value: object, reader: str | None = "read_file"
) -> tuple[Any, Path | None]:
    text, stored = results.truncate(render(value), name="probe", session_id=SESSION, reader=reader)
    return json.loads(text), stored


def test_tool_result_below_the_length_limit_is_returned_completely(
    results: ResultStore, folder: Path
) -> None:
    text = render("a" * 900)
    assert results.truncate(text, name="probe", session_id=SESSION, reader=None) == (text, None)
    assert not folder.exists()


def test_truncated_result_contains_its_start_and_end_and_the_path_of_the_stored_file(
    results: ResultStore,
) -> None:
    lines = "\n".join(f"line {number}" for number in range(1, 1001))
    answer, stored = truncate_value(results, lines)
    assert answer["truncated"] is True
    assert answer["characters"] == len(render(lines))
    assert "line 1\nline 2\n" in answer["head"]
    assert "line 999\nline 1000" in answer["tail"]
    assert answer["stored"] == str(stored)
    assert answer["note"] == "read the rest with read_file(path, offset, limit)"


def test_truncated_result_mentions_that_a_session_without_read_file_cannot_read_the_stored_file(
    results: ResultStore,
) -> None:
    answer, _ = truncate_value(results, "a" * 5000, reader=None)
    assert "a file reading tool, which this session does not have" in answer["note"]


def test_every_line_of_a_large_text_result_is_in_the_stored_file(results: ResultStore) -> None:
    lines = [f"line {number}" for number in range(1, 1001)]
    answer, stored = truncate_value(results, "\n".join(lines))
    assert stored is not None
    kept = stored.read_text(encoding="utf-8")
    assert all(line in kept.splitlines() for line in lines[1:-1])
    assert answer["lines"] == kept.count("\n") + 1


def test_large_json_result_is_stored_completely_in_lines_of_at_most_1500_characters(
    results: ResultStore,
) -> None:
    _, stored = truncate_value(results, {"blob": "x" * 50_000, "list": list(range(5000))})
    assert stored is not None
    kept = stored.read_text(encoding="utf-8")
    assert max(map(len, kept.split("\n"))) <= 1_500
    assert kept.count("x") == 50_000


def test_large_json_result_with_little_nesting_is_stored_with_one_line_per_value(
    results: ResultStore,
) -> None:
    _, stored = truncate_value(results, {"rows": [{"id": number} for number in range(300)]})
    assert stored is not None
    assert '   "id": 299' in stored.read_text().splitlines()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 400 + ",".join(["1"] * 40_000) + "]" * 400, id="deep"),
        pytest.param("[" + ",".join(["123456"] * 190_000) + "]", id="long"),
    ],
)
def test_very_deep_or_very_long_json_result_is_stored_in_wrapped_lines_without_indentation(
    results: ResultStore, text: str
) -> None:
    _, stored = results.truncate(render(text), name="probe", session_id=SESSION, reader=None)
    assert stored is not None
    kept = stored.read_text()
    assert kept.replace("\n", "") == text
    assert max(map(len, kept.split("\n"))) <= 1_500


@pytest.mark.parametrize("text", ["[" + "[]," * 200_000 + "1]", "[" * 600 + "]" * 600], ids=["many", "deep"])
def test_result_text_with_too_many_or_too_deeply_nested_json_values_is_rendered_as_plain_text(
    text: str,
) -> None:
    assert json.loads(render(text)) == {"result": text}


@pytest.mark.parametrize("line", ["x" * 1_499, "x" * 1_500, "x" * 4_000, "\\", "\t"])
def test_large_text_result_is_stored_completely_in_lines_of_at_most_1500_characters(
    results: ResultStore, line: str
) -> None:
    text = f"{line}\n" * 2_000
    _, stored = results.truncate(render(text), name="probe", session_id=SESSION, reader=None)
    assert stored is not None
    kept = stored.read_text()
    assert max(map(len, kept.split("\n"))) <= 1_500
    assert kept.replace("\n", "").count(line.replace("\\", "\\\\")) >= 2_000


def format_reference(text: str) -> str:
    """Format a result like `_format_lines`, but in the simple way: escape by escape and line by line."""
    plain = {"\\n": "\n", "\\r\\n": "\n", "\\t": "\t"}
    text = re.sub(r"\\r\\n|\\.", lambda escape: plain.get(escape[0], escape[0]), text)
    lines = text.split("\n")
    return "\n".join("\n".join(wrap_line(line)) for line in lines)


def wrap_line(line: str) -> list[str]:
    return [line[start : start + 1_500] for start in range(0, max(1, len(line)), 1_500)]


@try_examples(200)
@given(
    st.lists(
        st.sampled_from(["\n", "\r\n", "\r", "\t", "\\", "n", "r", "\\n", '"', "a" * 1_499, "b" * 1_501])
    )
)
def test_result_split_into_lines_slice_by_slice_has_the_same_lines_as_split_at_once(
    parts: list[str],
) -> None:
    text = render("".join(parts) + " ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results_module, "_SLICE_CHARS", 1_500)
        patch.setattr(results_module, "_indent_json", lambda given: given)
        assert results_module._format_lines(text) == format_reference(text)


def test_stored_result_keeps_backslashes_of_a_windows_path_and_converts_escaped_newlines(
    results: ResultStore,
) -> None:
    _, stored = truncate_value(results, {"path": "C:\\new\\table", "text": "a\tb\r\nc", "rest": "x" * 2000})
    assert stored is not None
    kept = stored.read_text(encoding="utf-8")
    assert r'"C:\\new\\table"' in kept
    assert "a\tb\nc" in kept


@try_examples(100)
@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
    st.sampled_from([1_000, 1_500, 10_000]),
)
def test_truncated_tool_result_never_exceeds_the_configured_number_of_characters(
    piece: str, most: int
) -> None:
    folder = Path("/dev/null/nowhere")  # cannot be created: the limit holds with and without a file
    text, stored = ResultStore(folder, max_chars=most).truncate(
        render(piece * (most // len(piece) + 1)), name="probe", session_id=SESSION, reader="read_file"
    )
    assert stored is None
    assert len(text) <= most
    json.loads(text)


@pytest.mark.parametrize("piece", ["a", "\x00", "\\", '"', "\n", "é", "😀", "\x7f"])
def test_excerpt_of_a_large_result_is_valid_json_within_the_smallest_allowed_length_limit(
    results: ResultStore, piece: str
) -> None:
    text, stored = results.truncate(
        render(piece * 3000), name="p" * 64, session_id=SESSION, reader="read_file"
    )
    assert stored is not None
    assert len(text) <= 1_000
    json.loads(text)


def test_excerpt_of_a_large_result_stays_within_its_limit_even_with_a_very_long_file_path(
    tmp_path: Path,
) -> None:
    folder = tmp_path / ("d" * 200) / ("e" * 200) / ("f" * 150)
    text, stored = ResultStore(folder, max_chars=1_000).truncate(
        render("a" * 3000), name="probe", session_id=SESSION, reader="read_file"
    )
    assert stored is not None
    assert len(text) <= 1_000
    assert json.loads(text)["stored"] == str(stored)


def test_lone_surrogate_in_a_result_is_stored_as_a_replacement_character(results: ResultStore) -> None:
    text, stored = results.truncate(
        render('{"a": "\\ud800' + "x" * 5000 + '"}'), name="probe", session_id=SESSION, reader=None
    )
    assert stored is not None
    assert "\ufffd" in stored.read_text(encoding="utf-8")
    text.encode("utf-8")


def test_stored_result_and_session_directory_are_accessible_only_to_their_owner_with_any_umask(
    results: ResultStore, folder: Path
) -> None:
    before = os.umask(0)
    try:
        _, stored = truncate_value(results, "a" * 5000)
    finally:
        os.umask(before)
    assert stored is not None
    assert stored.parent == folder / SESSION == results.session_dir(SESSION)
    assert stat.S_IMODE(stored.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600


def test_directory_of_stored_results_is_made_accessible_only_to_its_owner(tmp_path: Path) -> None:
    base = tmp_path / "state" / "results"
    ResultStore(base, max_chars=2_000).truncate("x" * 9_000, name="t", session_id=SESSION, reader=None)
    assert stat.S_IMODE(base.stat().st_mode) == 0o700
    base.chmod(0o755)  # as created by an earlier version
    ResultStore(base, max_chars=2_000).prune()
    assert stat.S_IMODE(base.stat().st_mode) == 0o700


def test_each_session_has_its_own_directory_of_stored_results(results: ResultStore) -> None:
    stored = [
        results.truncate(render("a" * 5000), name="probe", session_id=session, reader=None)[1]
        for session in ("one", "two")
    ]
    assert [path.parent.name for path in stored if path] == ["one", "two"]


@pytest.mark.parametrize(
    ("mime", "suffix"),
    [
        ("application/pdf", ".pdf"),
        ("audio/mpeg", ".mp3"),
        ("image/svg+xml; charset=utf-8", ".svg"),
        ("audio/x-wav", ".wav"),
        ("../../etc/passwd", ".bin"),
        ("text/" + "x" * 500, ".bin"),
        ("", ".bin"),
    ],
)
def test_file_in_a_tool_result_is_stored_unchanged(
    results: ResultStore, folder: Path, mime: str, suffix: str
) -> None:
    path = results.store_file(b"\x00\xff", name="tool", mime_type=mime, session_id=SESSION)
    assert path is not None
    assert (path.read_bytes(), path.suffix, path.parent) == (b"\x00\xff", suffix, folder / SESSION)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_stored_results_of_one_tool_do_not_overwrite_each_other(results: ResultStore) -> None:
    first, second = truncate_value(results, "a" * 5000)[1], truncate_value(results, "b" * 5000)[1]
    assert first is not None
    assert second is not None
    assert "a" * 100 in first.read_text()
    assert "b" * 100 in second.read_text()


def test_model_gets_start_and_end_of_a_large_result_if_storing_the_result_fails(
    results: ResultStore, folder: Path
) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("a file where the folder should be")
    answer, stored = truncate_value(results, "a" * 5000)
    assert stored is None
    assert answer["head"]
    assert answer["tail"]
    assert "could not be stored" in answer["note"]


def test_no_partial_file_is_left_if_storing_a_large_result_fails(folder: Path, tmp_path: Path) -> None:
    script = f"""
import resource, signal
from pathlib import Path
from toolfold.runtime.results import ResultStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
text = '{{"a": "' + "x" * 500_000 + '"}}'
store = ResultStore(Path({str(folder)!r}), max_chars=1000)
print(store.truncate(text, name="p", session_id="s", reader=None)[1])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "None", done.stderr
    assert list((folder / "s").iterdir()) == []


# -- pruning ----------------------------------------------------------------------------------


def test_pruning_deletes_only_stored_results_older_than_the_retention_time(
    results: ResultStore, folder: Path
) -> None:
    old, fresh = folder / "old", folder / "fresh"
    for each in (old, fresh):
        each.mkdir(parents=True)
        (each / "result.txt").write_text("text")
    long_ago = time.time() - RETENTION_S - 60
    os.utime(old, (long_ago, long_ago))
    results.prune()
    assert not old.exists()
    assert (fresh / "result.txt").read_text() == "text"


def test_pruning_stored_results_does_not_follow_symlinks(
    results: ResultStore, folder: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.txt").write_text("precious")
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(outside)
    long_ago = time.time() - RETENTION_S - 60
    os.utime(outside, (long_ago, long_ago))
    os.utime(folder / "link", (long_ago, long_ago), follow_symlinks=False)
    results.prune()
    assert (outside / "precious.txt").read_text() == "precious"


def test_pruning_without_a_results_directory_does_nothing(results: ResultStore, folder: Path) -> None:
    results.prune()
    assert not folder.exists()


def test_concurrent_pruning_of_old_results_by_four_threads_raises_no_error(
    results: ResultStore, folder: Path
) -> None:
    long_ago = time.time() - RETENTION_S - 60
    for number in range(300):
        (folder / str(number)).mkdir(parents=True)
        os.utime(folder / str(number), (long_ago, long_ago))
    together = threading.Barrier(4)

    def forget(_: int) -> None:
        together.wait(60)
        results.prune()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(forget, range(4)))
    assert list(folder.iterdir()) == []


def test_result_truncated_to_100_characters_contains_its_length_instead_of_an_excerpt(tmp_path: Path) -> None:
    results = ResultStore(tmp_path / "results", max_chars=100)
    text, stored = results.truncate("x" * 5_000, name="tool", session_id="s", reader=None)
    shown = json.loads(text)
    assert stored is not None
    assert (shown["head"], shown["tail"]) == ("", "")
    assert shown["characters"] == 5_000
