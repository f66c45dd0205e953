"""The file tools on real files: their answers, and that errors leave files unchanged."""

from __future__ import annotations

import itertools
import json
import os
import re
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.environments.test_kills import children
from tests.thorough import count_examples
from toolfold.core.errors import CallError
from toolfold.core.types import CallContext, Effect, Json, Tool
from toolfold.tools.builtin import Services, file
from toolfold.tools.files import Workspace
from toolfold.tools.files import file_search as search

Call = Callable[..., Any]
TIME_LIMIT_S = 60.0


def make_call(root: Path, **context: Any) -> Call:
    tools = {tool.name: tool for tool in file.tools(Services(workspace=Workspace(root)))}
    made = CallContext(session_id="test", **context)

    def call(name: str, **args: Any) -> Any:
        answer = tools[name].handler(args, made)
        json.dumps(answer, ensure_ascii=False).encode()  # valid JSON for every model
        return answer

    return call


@pytest.fixture
def call(tmp_path: Path) -> Call:
    return make_call(tmp_path)


@contextmanager
def make_context() -> Iterator[tuple[Path, Call]]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder), make_call(Path(folder))


@contextmanager
def cpu_time_below(seconds: float) -> Iterator[None]:
    """Assert a limit on the CPU time of this process and its ended children."""
    start = _cpu_seconds()
    yield
    assert _cpu_seconds() - start < seconds


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def strip_numbers(numbered: str) -> list[str]:
    return [line.split("\t", 1)[1] for line in numbered.split("\n")]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def lines(count: int, width: int = 0) -> str:
    return "".join(f"line {number}{'x' * width}\n" for number in range(1, count + 1))


def without_deadline(**more: Any) -> settings:
    """Disable hypothesis deadlines, because a busy disk is slow to sync."""
    return settings(deadline=None, **more)


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\ufeff"), max_size=200)


# Tool definitions


def offered(tmp_path: Path) -> dict[str, Tool]:
    return {tool.name: tool for tool in file.tools(Services(workspace=Workspace(tmp_path)))}


def test_only_write_file_and_patch_among_the_file_tools_have_the_write_effect(
    tmp_path: Path,
) -> None:
    tools = offered(tmp_path)
    assert sorted(tools) == ["patch", "read_file", "search_files", "write_file"]
    assert {tool.toolset for tool in tools.values()} == {"file"}
    assert all(tool.core for tool in tools.values())
    assert len({tool.emoji for tool in tools.values()} - {""}) == 4
    assert [name for name, tool in tools.items() if tool.parallel] == ["read_file", "search_files"]
    assert [name for name, tool in tools.items() if tool.effects == {Effect.WRITE}] == ["write_file", "patch"]


def test_description_of_a_file_tool_mentions_other_file_tools_only_if_they_are_available(
    tmp_path: Path,
) -> None:
    for tool in offered(tmp_path).values():
        assert tool.adapt is not None
        before = tool.definition()
        alone = tool.adapt(before, frozenset({tool.name}))
        beside = tool.adapt(before, frozenset(offered(tmp_path)))
        others = set(offered(tmp_path)) - {tool.name}
        assert not [each for each in others if each in alone["function"]["description"]]
        assert [each for each in others if each in beside["function"]["description"]]
        assert before == tool.definition()


# read_file


def test_read_file_returns_a_small_file_with_line_numbers(tmp_path: Path, call: Call) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert call("read_file", path="a.txt") == {
        "path": "a.txt",
        "lines": "1\tone\n2\ttwo",
        "first_line": 1,
        "last_line": 2,
        "total_lines": 2,
    }


def test_read_file_with_a_limit_returns_a_page_and_the_offset_of_the_next_page(
    tmp_path: Path, call: Call
) -> None:
    (tmp_path / "a.txt").write_text(lines(10))
    page = call("read_file", path="a.txt", offset=3, limit=2)
    assert page["lines"] == "3\tline 3\n4\tline 4"
    assert (page["first_line"], page["last_line"], page["total_lines"]) == (3, 4, 10)
    assert page["more"] == "Call again with offset=5 to read on."
    assert "more" not in call("read_file", path="a.txt", offset=9, limit=2)


@given(text, st.integers(1, 5))
@without_deadline()
def test_concatenated_pages_of_read_file_equal_the_file(content: str, limit: int) -> None:
    assume(content)
    with make_context() as (root, call):
        (root / "f").write_bytes(content.encode())
        pages = [call("read_file", path="f", limit=limit)]
        while "more" in pages[-1]:
            pages.append(call("read_file", path="f", offset=pages[-1]["last_line"] + 1, limit=limit))
    joined = "\n".join(line for page in pages for line in strip_numbers(page["lines"]))
    unended = "no newline at the end of the file" in pages[-1].get("notes", [])
    assert joined + ("" if unended else "\n") == content
    assert pages[0]["total_lines"] == pages[-1]["last_line"]


def test_read_file_ends_a_page_after_the_last_line_within_the_size_limit(tmp_path: Path, call: Call) -> None:
    (tmp_path / "wide").write_text(lines(200, width=1_000))
    first = call("read_file", path="wide")
    assert 30_000 < len(first["lines"]) < 42_000
    assert first["total_lines"] == 200
    second = call("read_file", path="wide", offset=first["last_line"] + 1)
    assert second["first_line"] == first["last_line"] + 1
    assert second["lines"].startswith(f"{second['first_line']}\tline {second['first_line']}x")


def test_read_file_returns_a_line_that_does_not_fit_on_a_page_at_the_start_of_the_next_page(
    tmp_path: Path, call: Call
) -> None:
    (tmp_path / "wide").write_text("\n".join("y" * 1_900 for _ in range(22)))
    first = call("read_file", path="wide")
    assert first["more"] == "Call again with offset=22 to read on."
    last = call("read_file", path="wide", offset=22)
    assert (last["first_line"], last["last_line"], last["total_lines"]) == (22, 22, 22)


@pytest.mark.parametrize("end", ["", "\n", "\nnext"])
@pytest.mark.parametrize("size", [2_000, 2_001, 8_000, 8_001, 3_000_000])
def test_long_line_in_read_file_is_truncated_with_a_marker(
    tmp_path: Path, call: Call, size: int, end: str
) -> None:
    (tmp_path / "long").write_text("z" * size + end)
    page = call("read_file", path="long")
    cut = "… [truncated]" if size > 2_000 else ""
    assert strip_numbers(page["lines"]) == ["z" * 2_000 + cut] + (["next"] if end == "\nnext" else [])
    assert ("no newline at the end of the file" in page.get("notes", [])) == (end != "\n")
    assert page["total_lines"] == page["last_line"] == (2 if end == "\nnext" else 1)


def test_read_file_does_not_report_invalid_utf8_if_it_truncates_a_line_inside_a_character(
    tmp_path: Path, call: Call
) -> None:
    (tmp_path / "long").write_text("a" + "€" * 5_000 + "\n")
    page = call("read_file", path="long")
    assert page["notes"] == ["lines longer than 2000 characters are truncated"]


def test_read_file_reports_an_empty_file_as_empty(tmp_path: Path, call: Call) -> None:
    (tmp_path / "e").touch()
    assert call("read_file", path="e")["notes"] == ["the file is empty"]
    assert call("read_file", path="e", offset=7)["total_lines"] == 0


@pytest.mark.parametrize("content", ["a\nb\n", "a\nb"])
def test_read_file_error_for_an_offset_past_the_end_states_the_file_length(
    tmp_path: Path, call: Call, content: str
) -> None:
    (tmp_path / "f").write_text(content)
    assert strip_numbers(call("read_file", path="f", offset=2)["lines"]) == ["b"]
    for offset in (3, 4, 10**12):
        with pytest.raises(CallError, match=f"offset {offset} is past the end: the file has 2 lines"):
            call("read_file", path="f", offset=offset)


def test_read_file_normalizes_crlf_bom_and_invalid_utf8_and_reports_each_of_them(
    tmp_path: Path, call: Call
) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfone\r\ncaf\xe9\r\n")
    page = call("read_file", path="f")
    assert strip_numbers(page["lines"]) == ["one", "caf\ufffd"]
    assert set(page["notes"]) == {
        "starts with a byte order mark",
        "CRLF line endings",
        "not valid UTF-8: such bytes are shown as \ufffd",
    }


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("x.png", b"\x89PNG\r\n\x1a\n", "PNG image"),
        ("x.bin", b"abc\0def", "application/octet-stream"),
        ("x", b"abc\0def", "binary data"),
        ("x", bytes(range(1, 256)), "binary data"),
        ("x.txt", "hello".encode("utf-16"), "UTF-16"),
    ],
)
def test_error_of_read_file_for_a_binary_file_states_the_size_and_kind_of_the_file(
    tmp_path: Path, call: Call, name: str, data: bytes, kind: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CallError, match=f"is not a text file but {len(data)} bytes of {kind}"):
        call("read_file", path=name)
    with pytest.raises(CallError, match="is not a text file"):
        call("patch", path=name, old="e", new="f")
    assert (tmp_path / name).read_bytes() == data


@pytest.mark.thorough
def test_read_file_returns_pages_of_a_huge_file_in_limited_cpu_time_without_counting_its_lines(
    tmp_path: Path, call: Call
) -> None:
    with (tmp_path / "huge").open("wb") as huge:
        block = b"0123456789abcde\n" * 65_536
        for _ in range(300):
            huge.write(block)
    with cpu_time_below(10):
        first = call("read_file", path="huge", limit=2)
        late = call("read_file", path="huge", offset=300 * 65_536, limit=2)
    assert first["total_lines"] is None
    assert any("too many to count its lines" in note for note in first["notes"])
    assert late["last_line"] == late["total_lines"] == 300 * 65_536


def test_cancelled_call_of_read_file_raises_call_error(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(lines(1_000))
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(CallError, match="cancelled"):
        make_call(tmp_path, cancelled=cancelled)("read_file", path="f", offset=500)


def test_error_of_read_file_explains_a_missing_file_a_directory_or_a_path_outside_the_workspace(
    tmp_path: Path, call: Call
) -> None:
    (tmp_path / "readme.md").touch()
    for path, reason in [
        ("readm.md", "Did you mean readme.md"),
        (".", "is a directory"),
        ("/etc/passwd", "outside"),
    ]:
        with pytest.raises(CallError, match=reason):
            call("read_file", path=path)


def test_file_tools_can_read_and_search_but_not_change_stored_tool_results_of_their_session(
    tmp_path: Path,
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "r.txt").write_text("needle\n")
    call = make_call(tmp_path / "work", readable=(tmp_path / "results",))
    path = str(tmp_path / "results" / "r.txt")
    assert call("read_file", path=path)["path"] == path
    assert (
        call("search_files", pattern="needle", path=str(tmp_path / "results"))["matches"][0]["file"] == path
    )
    with pytest.raises(CallError, match="outside the workspace"):
        call("write_file", path=path, content="x")
    with pytest.raises(CallError, match="outside the workspace"):
        call("patch", path=path, old="needle", new="x")
    assert Path(path).read_text() == "needle\n"


# write_file


def test_write_file_creates_and_then_replaces_a_file(tmp_path: Path, call: Call) -> None:
    created = call("write_file", path="new/a.txt", content="one\ntwo")
    assert created == {"path": "new/a.txt", "result": "created", "bytes": 7, "lines": 2}
    assert call("write_file", path="new/a.txt", content="")["result"] == "replaced"
    assert (tmp_path / "new/a.txt").read_bytes() == b""


def test_write_file_appends_to_an_existing_or_new_file(tmp_path: Path, call: Call) -> None:
    assert call("write_file", path="a.txt", content="one\n", append=True)["result"] == "created"
    appended = call("write_file", path="a.txt", content="two\n", append=True)
    assert appended == {"path": "a.txt", "result": "appended", "bytes": 8, "lines": 1}
    assert (tmp_path / "a.txt").read_bytes() == b"one\ntwo\n"


@given(text)
@without_deadline()
def test_content_written_with_write_file_is_returned_unchanged_by_read_file(content: str) -> None:
    with make_context() as (root, call):
        written = call("write_file", path="f", content=content)
        assert (root / "f").read_bytes() == content.encode()
        page = call("read_file", path="f")
    assert written["lines"] == page["total_lines"]
    if content:
        assert "\n".join(strip_numbers(page["lines"])) == content.removesuffix("\n")


@pytest.mark.parametrize(
    ("content", "reason"),
    [("a\ud83d", "half of a surrogate pair at character 1"), ("é" * 5_000_001, "10,000,002")],
)
def test_write_file_rejects_surrogates_and_oversized_content_and_keeps_the_old_file(
    tmp_path: Path, call: Call, content: str, reason: str
) -> None:
    (tmp_path / "f").write_text("keep")
    with pytest.raises(CallError, match=reason):
        call("write_file", path="f", content=content)
    assert (tmp_path / "f").read_text() == "keep"
    assert names(tmp_path) == ["f"]


# patch


def patch_file(tmp_path: Path, before: str | bytes, old: str, new: str, **args: Any) -> tuple[str, Json]:
    path = tmp_path / "f.py"
    path.write_bytes(before.encode() if isinstance(before, str) else before)
    answer = make_call(tmp_path)("patch", path="f.py", old=old, new=new, **args)
    return path.read_bytes().decode("utf-8", "surrogateescape"), answer


def patch_error(tmp_path: Path, before: str, old: str, new: str = "NEW", **args: Any) -> str:
    with pytest.raises(CallError) as caught:
        patch_file(tmp_path, before, old, new, **args)
    assert (tmp_path / "f.py").read_bytes() == before.encode()
    assert names(tmp_path) == ["f.py"]
    return str(caught.value)


def test_patch_replaces_an_exact_match_and_returns_a_diff(tmp_path: Path) -> None:
    after, answer = patch_file(tmp_path, lines(9), "line 5", "line five")
    assert after == lines(9).replace("line 5", "line five")
    assert (answer["matched"], answer["replacements"]) == ("exact", 1)
    assert answer["diff"] == (
        "--- f.py\n+++ f.py\n@@ -2,7 +2,7 @@\n"
        " line 2\n line 3\n line 4\n-line 5\n+line five\n line 6\n line 7\n line 8\n"
    )


@given(text, text, text, text)
@without_deadline()
def test_patch_of_text_that_occurs_once_has_the_same_result_as_the_python_method_str_replace(
    head: str, old: str, tail: str, new: str
) -> None:
    before = head + old + tail
    assume(old and old != new and before.count(old) == 1)
    with make_context() as (root, _):
        after, answer = patch_file(root, before, old, new)
    assert after == before.replace(old, new)
    assert answer["matched"] == "exact"


few = st.text(st.sampled_from("ab \n\t"), max_size=30)


@given(few, few.filter(bool), few)
@without_deadline(max_examples=count_examples(300))
def test_arbitrary_patch_either_replaces_the_matched_text_or_leaves_the_file_unchanged(
    before: str, old: str, new: str
) -> None:
    with make_context() as (root, _):
        try:
            after, answer = patch_file(root, before, old, new, replace_all=True)
        except CallError:
            assert (root / "f.py").read_bytes() == before.encode()
            return
    assert after != before
    if answer["matched"] == "exact":
        assert after == before.replace(old, new)
    else:
        assert old not in before


def test_patch_with_multiple_matches_is_rejected_unless_replace_all_is_set(tmp_path: Path) -> None:
    before = "x = 1\ny = 2\nx = 1\n"
    message = patch_error(tmp_path, before, "x = 1")
    assert "occurs 2 times in 'f.py' (exact), at lines 1, 3." in message
    after, answer = patch_file(tmp_path, before, "x = 1", "x = 3", replace_all=True)
    assert after == "x = 3\ny = 2\nx = 3\n"
    assert answer["replacements"] == 2


def test_diff_of_a_patch_shows_distant_edits_as_separate_hunks_with_correct_line_numbers(
    tmp_path: Path,
) -> None:
    before = lines(40).replace("line 5\n", "mark\n").replace("line 30\n", "mark\n")
    _, answer = patch_file(tmp_path, before, "mark\n", "one\ntwo\n", replace_all=True)
    assert "@@ -2,7 +2,8 @@" in answer["diff"]
    assert "@@ -27,7 +28,8 @@" in answer["diff"]
    assert answer["diff"].count("-mark\n+one\n+two\n") == 2


@given(st.lists(st.sampled_from(["x", "a", "b", ""]), max_size=60), st.sampled_from(["y", "y\nz", ""]))
@without_deadline()
def test_hunks_in_the_diff_of_a_patch_have_the_line_numbers_of_the_old_and_new_file(
    content: list[str], new: str
) -> None:
    before = "\n".join(content)
    assume("x" in before)
    with make_context() as (root, _):
        after, answer = patch_file(root, before, "x", new, replace_all=True)
    hunks = re.split(r"^@@ -(\d+),(\d+) \+(\d+),(\d+) @@\n", answer["diff"], flags=re.MULTILINE)[1:]
    for at in range(0, len(hunks), 5):
        start, count, new_start, new_count = map(int, hunks[at : at + 4])
        body = hunks[at + 4].removesuffix("\n").split("\n")
        quoted_old = [line[1:] for line in body if line[:1] in "- "]
        quoted_new = [line[1:] for line in body if line[:1] in "+ "]
        assert quoted_old == before.split("\n")[start - 1 :][:count]
        assert quoted_new == after.split("\n")[new_start - 1 :][:new_count]
    assert answer["diff"].split("\n").count("-x") == before.count("x")


def test_diff_of_a_patch_shows_close_edits_in_one_hunk_without_repeating_lines_between_them(
    tmp_path: Path,
) -> None:
    before = lines(12).replace("line 3\n", "mark\n").replace("line 9\n", "mark\n")
    _, answer = patch_file(tmp_path, before, "mark", "made", replace_all=True)
    assert answer["diff"].count(" line 6\n") == 1


def test_patch_with_empty_invalid_or_unchanged_text_is_rejected(tmp_path: Path) -> None:
    assert "`old` is empty" in patch_error(tmp_path, "a\n", "")
    assert "are the same" in patch_error(tmp_path, "a\n", "a", "a")
    assert "would change nothing" in patch_error(tmp_path, "a\nb\n", "a  \nb", "a\nb")
    assert "half of a surrogate pair" in patch_error(tmp_path, "a\n", "a", "\ud800")


def test_patch_does_not_create_a_missing_file(tmp_path: Path, call: Call) -> None:
    with pytest.raises(CallError, match="does not exist"):
        call("patch", path="sub/f", old="a", new="b")
    assert names(tmp_path) == []


def test_patch_matches_text_that_differs_only_in_typographic_quotes_and_dashes(tmp_path: Path) -> None:
    after, answer = patch_file(tmp_path, "say(“hi” – now)  # it’s\n", 'say("hi" - now)', 'say("ho")')
    assert after == 'say("ho")  # it’s\n'
    assert answer["matched"] == "ignoring typographic punctuation"


def test_patch_matches_text_that_differs_only_in_trailing_whitespace(tmp_path: Path) -> None:
    after, answer = patch_file(tmp_path, "a = 1   \nb = 2\t\nc = 3\n", "a = 1\nb = 2\n", "a = 5\n")
    assert after == "a = 5\nc = 3\n"
    assert answer["matched"] == "ignoring trailing whitespace"


def test_patch_matches_text_with_different_indentation_and_adapts_the_new_text(tmp_path: Path) -> None:
    before = "class A:\n    def f(self):\n        return 1\n\n    x = 2\n"
    old = "def f(self):\n    return 1\n"
    new = "def f(self):\n    if self:\n        return 2\n\n    return 1\n"
    after, answer = patch_file(tmp_path, before, old, new)
    assert after == (
        "class A:\n    def f(self):\n        if self:\n            return 2\n\n"
        "        return 1\n\n    x = 2\n"
    )
    assert answer["matched"] == "ignoring indentation"


def test_patch_converts_indentation_with_spaces_to_tabs_if_the_file_uses_tabs(tmp_path: Path) -> None:
    before = "func f() {\n\tif x {\n\t\treturn\n\t}\n}\n"
    old = "    if x {\n        return\n    }"
    after, _ = patch_file(tmp_path, before, old, "    if y {\n        stop()\n    }\n    go()")
    assert after == "func f() {\n\tif y {\n\t\tstop()\n\t}\n\tgo()\n}\n"


def test_patch_preserves_relative_indentation_of_the_new_text_when_adapting_indentation(
    tmp_path: Path,
) -> None:
    after, _ = patch_file(
        tmp_path, "if a:\n        b()\n        c()\n", "    b()\n    c()", "    b()\nelse:\n    c()"
    )
    assert after == "if a:\n        b()\n    else:\n        c()\n"


def test_patch_replaces_the_only_block_that_is_similar_to_the_old_text(tmp_path: Path) -> None:
    block = "def total(prices):\n    result = sum(prices)\n    return round(result, 2)\n"
    before = f"import os\n\n{block}\n\ndef other(x):\n    return x\n"
    after, answer = patch_file(
        tmp_path, before, block.replace("round(result, 2)", "round(results, 2)"), "pass\n"
    )
    assert after == "import os\n\npass\n\n\ndef other(x):\n    return x\n"
    assert answer["matched"].startswith("similar text (9")


def test_patch_changes_nothing_if_two_blocks_are_similar_to_the_old_text(tmp_path: Path) -> None:
    block = "def total(prices):\n    result = sum(prices)\n    return round(result, 2)\n"
    message = patch_error(tmp_path, block + "\n" + block, block.replace("result, 2", "results, 2"))
    assert "The nearest text is from line 1" in message


def test_patch_does_not_replace_a_similar_single_line_but_quotes_it_in_the_error(
    tmp_path: Path,
) -> None:
    message = patch_error(tmp_path, "retries = 3\ntimeout_seconds = 30\n", "timeout_seconds = 10")
    assert "The nearest text is from line 2:\n2\ttimeout_seconds = 30\n" in message
    assert "Nothing was changed" in message


def test_error_of_patch_says_that_neither_the_old_text_nor_similar_text_was_found(tmp_path: Path) -> None:
    assert "and no similar text was found" in patch_error(tmp_path, "a b c\n", "completely different")
    assert "and no similar text was found" in patch_error(tmp_path, "", "anything")


@pytest.mark.parametrize("old", ["one\ntwo\n", "one\r\ntwo\r\n"])
def test_patch_preserves_crlf_and_byte_order_mark(tmp_path: Path, old: str) -> None:
    after, answer = patch_file(
        tmp_path, b"\xef\xbb\xbfzero\r\none\r\ntwo\r\n", old, old.replace("two", "2\n3")
    )
    assert after == "\ufeffzero\r\none\r\n2\r\n3\r\n"
    assert answer["matched"] == "exact"


def test_patch_preserves_lf_if_the_model_sends_crlf(tmp_path: Path) -> None:
    assert patch_file(tmp_path, "a\nb\nc\n", "a\r\nb", "x\r\ny")[0] == "x\ny\nc\n"


def test_patch_preserves_the_line_ending_of_every_line_in_a_file_with_mixed_line_endings(
    tmp_path: Path,
) -> None:
    assert patch_file(tmp_path, "a\r\nb\r\nc\nd\r\n", "a\nb", "x\ny")[0] == "x\r\ny\r\nc\nd\r\n"


def test_patch_preserves_a_missing_final_newline(tmp_path: Path) -> None:
    assert patch_file(tmp_path, "a\nlast", "last\n", "end\n")[0] == "a\nend"
    assert patch_file(tmp_path, "a\nlast", "last", "end")[0] == "a\nend"


def test_patch_preserves_invalid_utf8_elsewhere_in_the_file(tmp_path: Path) -> None:
    after, answer = patch_file(tmp_path, b"caf\xe9\nold\n", "old", "new")
    assert after.encode("utf-8", "surrogateescape") == b"caf\xe9\nnew\n"
    assert "\ufffd" in answer["diff"]


def test_deleting_a_line_with_trailing_spaces_by_patch_leaves_no_empty_line(
    tmp_path: Path,
) -> None:
    assert patch_file(tmp_path, "a\nb  \nc\n", "b\n", "")[0] == "a\nc\n"


def test_patch_truncates_a_long_diff_in_its_result_with_a_note(tmp_path: Path) -> None:
    _, answer = patch_file(tmp_path, lines(2_000), lines(2_000), lines(1_900, width=3))
    assert len(answer["diff"]) < 4_200
    assert answer["diff"].endswith("[diff truncated]")


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(
    ("before", "old", "replace_all"),
    [
        ("x = 1\n" * 10_000, "x = 1\n" * 4_999 + "x = 2\n", False),
        ("a" * 400 + "\n" + ("a" * 399 + "b\n") * 4_000, ("a" * 399 + "c\n") * 300, False),
        ("ab " * 3_000_000, "ab " * 1_000_000 + "c", False),
        ("a\n" * 100_000, "a", True),
        ("\n".join(f"{n % 7} {n % 11} w" for n in range(10_000)), "1 2 w\n" * 2_000, False),
    ],
    ids=["repeats", "near repeats", "one long line", "too many", "periodic"],
)
def test_patch_of_large_repetitive_text_without_a_unique_match_fails_in_limited_cpu_time(
    tmp_path: Path, before: str, old: str, replace_all: bool
) -> None:
    with cpu_time_below(15):
        patch_error(tmp_path, before, old, replace_all=replace_all)


def test_patch_that_would_make_a_file_larger_than_the_limit_is_rejected(tmp_path: Path) -> None:
    message = patch_error(tmp_path, "a\n" * 9_000, "a", "b" * 1_000_000, replace_all=True)
    assert "the limit is 10,000,000" in message


def test_patch_adapts_thousands_of_different_indentations_in_limited_cpu_time(tmp_path: Path) -> None:
    spaces = ["".join(each) for each in itertools.islice(itertools.product(" \t", repeat=15), 20_000)]
    before = "".join(f"l{number}\n" for number in range(20_000))
    old = "".join(f"{space}l{number}\n" for number, space in enumerate(spaces))
    with cpu_time_below(10):
        after, answer = patch_file(tmp_path, before, old, old.replace("l", "L"))
    assert after == before.replace("l", "L")
    assert answer["matched"] == "ignoring indentation"
    with cpu_time_below(10):
        patch_file(tmp_path, before, old, "\v\n".join(f"\v{number}" for number in range(20_000)))


@pytest.mark.parametrize(
    ("old", "new"),
    [("a" + " " * 1_000_000, "b"), (" a", "b\n" * 100_000), ("\ta", "\v" * 1_000_000 + "b")],
    ids=["long old", "many new lines", "long new"],
)
def test_patch_that_compares_very_long_text_with_thousands_of_lines_fails_in_limited_cpu_time(
    tmp_path: Path, old: str, new: str
) -> None:
    with cpu_time_below(10):
        patch_error(tmp_path, "a\n" * 9_000, old, new)


@pytest.mark.parametrize("old", ["line 5", " line 5\n line 6", "not there at all"])
def test_cancelled_patch_does_not_change_the_file(tmp_path: Path, old: str) -> None:
    (tmp_path / "f").write_text(lines(9))
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(CallError, match=r"cancelled\. Nothing was changed"):
        make_call(tmp_path, cancelled=cancelled)("patch", path="f", old=old, new="x")
    assert (tmp_path / "f").read_text() == lines(9)


def test_patch_makes_thousands_of_replacements_in_limited_cpu_time(tmp_path: Path) -> None:
    with cpu_time_below(10):
        after, answer = patch_file(tmp_path, "a b\n" * 9_999, "a", "c", replace_all=True)
    assert after == "c b\n" * 9_999
    assert answer["replacements"] == 9_999


def test_patch_cannot_change_protected_files(tmp_path: Path, call: Call) -> None:
    (tmp_path / "toolfold.yaml").write_text("approval: ask\n")
    (tmp_path / "link").symlink_to("toolfold.yaml")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "rules").write_text("ask\n")
    (tmp_path / ".toolfold").symlink_to("store")
    for path in ("toolfold.yaml", "link", ".toolfold/rules"):
        with pytest.raises(CallError, match="is protected"):
            call("patch", path=path, old="ask", new="off")
    assert (tmp_path / "toolfold.yaml").read_text() == "approval: ask\n"
    assert (tmp_path / "store" / "rules").read_text() == "ask\n"


# search_files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path, content in {
        "b.py": "import os\nprint('Needle')\n",
        "a.txt": "needle one\r\nnothing\r\nneedle (two)\r\n",
        "src/deep/c.py": "needle = 3\n",
        "src/d.ts": "needle\n",
        ".git/config": "needle\n",
        "node_modules/x/y.js": "needle\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content.encode())
    return tmp_path


def matched_lines(answer: Json) -> list[tuple[str, int]]:
    return [(match["file"], match["line"]) for match in answer["matches"]]


def test_file_search_returns_file_line_number_and_text_of_every_match_in_sorted_order(
    tree: Path, call: Call
) -> None:
    answer = call("search_files", pattern="needle")
    assert matched_lines(answer) == [("a.txt", 1), ("a.txt", 3), ("src/d.ts", 1), ("src/deep/c.py", 1)]
    assert answer["matches"][0]["text"] == "needle one"
    assert answer["files_searched"] == 4
    assert "partial" not in answer


def test_file_search_can_be_limited_by_path_glob_and_case(tree: Path, call: Call) -> None:
    assert matched_lines(call("search_files", pattern="needle", path="src")) == [
        ("src/d.ts", 1),
        ("src/deep/c.py", 1),
    ]
    assert matched_lines(call("search_files", pattern="needle", path="src/d.ts")) == [("src/d.ts", 1)]
    assert matched_lines(call("search_files", pattern="needle", glob="*.py")) == [("src/deep/c.py", 1)]
    assert matched_lines(call("search_files", pattern="needle", glob="src/**/*.ts")) == [("src/d.ts", 1)]
    assert ("b.py", 2) in matched_lines(call("search_files", pattern="NEEDLE", ignore_case=True))


def test_file_search_pattern_is_plain_text_unless_regex_is_set(tree: Path, call: Call) -> None:
    assert matched_lines(call("search_files", pattern="(two)")) == [("a.txt", 3)]
    assert matched_lines(call("search_files", pattern="e.o", glob="*.txt")) == []
    assert matched_lines(call("search_files", pattern=r"^needle\s+\w+$", regex=True)) == [("a.txt", 1)]


def test_search_without_matches_says_if_the_pattern_looks_like_a_regular_expression(call: Call) -> None:
    assert "Set regex" in call("search_files", pattern=r"def \w+\(")["hint"]
    for plain in ("nothing like this", "f(x)", "a.b", "items[0]"):
        assert "hint" not in call("search_files", pattern=plain)


def test_file_search_rejects_an_invalid_regex(tree: Path, call: Call) -> None:
    with pytest.raises(CallError, match="not a valid regular expression: missing \\), unterminated"):
        call("search_files", pattern="(a", regex=True)
    with pytest.raises(CallError, match="not a valid regular expression"):
        call("search_files", pattern="a{99999999999999999999}", regex=True)
    with pytest.raises(CallError, match="cannot span lines"):
        call("search_files", pattern="a\nb")
    with pytest.raises(CallError, match="half of a surrogate pair"):
        call("search_files", pattern="\ud800")


def test_file_search_whose_regex_takes_too_long_returns_earlier_matches_with_a_note(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("aab\n")
    (tmp_path / "b").write_text("a" * 60 + "!\n")
    for seconds in (1, 5, 25):  # a busy machine may take long to reach the second file
        monkeypatch.setattr(search, "SEARCH_TIMEOUT_S", seconds)
        with suppress(CallError):
            answer = call("search_files", pattern="^(a+)+b?$|aab", regex=True)
            if matched_lines(answer):
                break
    assert matched_lines(answer) == [("a", 1)]
    assert answer["partial"].startswith(f"stopped while searching 'b': {seconds} seconds were not enough")


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("pattern", ["((a)|(b))*c", "(?:(a)|(b)|(ab))*?c"])
def test_file_search_whose_regex_needs_too_much_memory_is_stopped_with_an_explanation(
    tmp_path: Path, call: Call, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SEARCH_TIMEOUT_S", 300)  # it must not time out before
    (tmp_path / "a").write_text("abc\n")
    (tmp_path / "b").write_text("ab" * 2_400_000)
    before = max(
        resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)
    )
    answer = call("search_files", pattern=pattern, regex=True)
    assert matched_lines(answer) == [("a", 1)]
    assert answer["partial"].startswith("stopped while searching 'b': ")
    assert "512 MB of memory" in answer["partial"]
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, 600_000)


def test_cancelled_file_search_stops_a_running_regex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SEARCH_TIMEOUT_S", 300)
    (tmp_path / "b").write_text("a" * 60 + "!\n")
    cancelled, others = threading.Event(), children()

    def cancel() -> None:
        end = time.monotonic() + TIME_LIMIT_S
        while not any(is_busy(child) for child in children() - others) and time.monotonic() < end:
            time.sleep(0.02)
        cancelled.set()

    cancelling = threading.Thread(target=cancel)
    cancelling.start()
    answer = make_call(tmp_path, cancelled=cancelled)("search_files", pattern="^(a+)+$", regex=True)
    cancelling.join()
    assert answer["partial"] == "stopped while searching 'b': cancelled"


def is_busy(child: int) -> bool:
    """Return True if a process has used more CPU time than its start takes."""
    try:
        user = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11])
    except OSError:  # the process has ended
        return False
    return user / os.sysconf("SC_CLK_TCK") > 0.5


def test_file_search_leaks_no_file_descriptor(tree: Path, call: Call) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    call("search_files", pattern="needle", limit=1)
    with pytest.raises(CallError):
        call("search_files", pattern="(", regex=True)
    with pytest.raises(CallError):
        call("search_files", pattern="x", path="missing")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_file_search_result_is_marked_as_partial_only_if_there_are_more_matches_than_the_limit(
    tree: Path, call: Call
) -> None:
    assert "partial" not in call("search_files", pattern="needle", limit=4)
    answer = call("search_files", pattern="needle", limit=3)
    assert len(answer["matches"]) == 3
    assert "more than 3 matches" in answer["partial"]


def test_file_search_reports_the_number_of_skipped_binary_and_too_large_files(
    tmp_path: Path, call: Call
) -> None:
    (tmp_path / "bin").write_bytes(b"needle\0")
    (tmp_path / "big").write_bytes(b"needle\n" * 1_000_000)
    (tmp_path / "ok").write_text("needle")
    answer = call("search_files", pattern="needle")
    assert matched_lines(answer) == [("ok", 1)]
    assert answer["files_skipped"] == {"binary": 1, "larger than 5 MB": 1}


def test_file_search_truncates_a_long_line_around_the_match(tmp_path: Path, call: Call) -> None:
    (tmp_path / "min.js").write_text("x" * 50_000 + "needle" + "y" * 50_000)
    (match,) = call("search_files", pattern="needle")["matches"]
    assert "needle" in match["text"]
    assert len(match["text"]) < 310


def test_file_search_finds_files_by_glob_or_part_of_the_name(tree: Path, call: Call) -> None:
    assert call("search_files", pattern="*.py", kind="name")["matches"] == ["b.py", "src/deep/c.py"]
    assert call("search_files", pattern="src/**/*.py", kind="name")["matches"] == ["src/deep/c.py"]
    assert call("search_files", pattern=".t", kind="name")["matches"] == ["a.txt", "src/d.ts"]
    assert call("search_files", pattern="A.TXT", kind="name", ignore_case=True)["matches"] == ["a.txt"]
    assert call("search_files", pattern="deep/", kind="name")["matches"] == ["src/deep/c.py"]
    assert call("search_files", pattern="zzz", kind="name")["matches"] == []
    with pytest.raises(CallError, match="regex works only for kind"):
        call("search_files", pattern="a", kind="name", regex=True)


def test_file_search_with_a_glob_of_hundreds_of_stars_ends_in_limited_cpu_time(
    tmp_path: Path, call: Call
) -> None:
    (tmp_path / ("a" * 200)).touch()
    with cpu_time_below(5):
        assert call("search_files", pattern="*a" * 400 + "b", kind="name")["matches"] == []


def test_file_search_replaces_invalid_utf8_in_the_names_of_matching_files(tmp_path: Path, call: Call) -> None:
    (Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9.txt"))).write_text("needle")
    assert matched_lines(call("search_files", pattern="needle")) == [("caf\ufffd.txt", 1)]


def test_file_search_never_returns_files_outside_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "secret").write_text("needle")
    (tmp_path / "work" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "work" / "up").symlink_to(tmp_path)
    call = make_call(tmp_path / "work")
    assert call("search_files", pattern="needle")["matches"] == []
    assert call("search_files", pattern="secret", kind="name")["matches"] == []
    for path in ("..", "up", "/etc"):
        with pytest.raises(CallError, match="outside"):
            call("search_files", pattern="needle", path=path)


def test_file_search_that_times_out_returns_a_partial_result(
    tree: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SEARCH_TIMEOUT_S", -1.0)
    answer = call("search_files", pattern="needle", kind="name")
    assert answer["matches"] == []
    assert "were not enough" in answer["partial"]


def test_file_search_in_a_tree_without_files_respects_the_timeout(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        (tmp_path / f"{number % 5}" / f"{number}").mkdir(parents=True)
    over = itertools.chain([False] * 3, itertools.repeat(True, 5))  # continuing would exhaust the answers
    assert list(Workspace(tmp_path).files(stop=lambda: next(over))) == []
    monkeypatch.setattr(search, "SEARCH_TIMEOUT_S", -1)
    assert "-1 seconds were not enough" in call("search_files", pattern="x", kind="name")["partial"]


@pytest.mark.thorough
def test_file_search_among_thousands_of_files_finds_a_match_in_limited_cpu_time(
    tmp_path: Path, call: Call
) -> None:
    for number in range(3_000):
        (tmp_path / f"{number % 50}").mkdir(exist_ok=True)
        (tmp_path / f"{number % 50}" / f"{number}.txt").write_text("hay\n" * 20 + f"needle {number}\n")
    with cpu_time_below(10):
        answer = call("search_files", pattern="needle 2999")
    assert matched_lines(answer) == [("49/2999.txt", 21)]
