"""`toolfold sessions`: list, show, search, export and delete."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Toolfold
from tests.cli.scripts import WriteScript, call, write_script
from toolfold.state.store import SqliteSessionStore

__all__ = ["write_script"]


@pytest.fixture
def session_id(toolfold: Toolfold, write_script: WriteScript) -> str:
    """A stored session with one tool call, whose texts contain terminal escapes."""
    Path("notes.txt").write_text("four \x1b[2J boats and ``` a fence", encoding="utf-8")
    model = write_script(
        call("read_file", path="notes.txt"), "There are **four** boats.\x1b]0;title\x07", name="boats"
    )
    assert toolfold("run", "How many boats\x1b[31m are there?", "--model", model).code == 0
    listed = toolfold("sessions", "list", "--json").json
    return str(listed[0]["id"])


def test_sessions_list_command_shows_the_newest_session_first(
    toolfold: Toolfold, session_id: str, write_script: WriteScript
) -> None:
    toolfold("run", "Another question", "--model", write_script("Yes."))
    listed = toolfold("sessions", "list", "--json").json
    assert listed[0]["title"] == "Another question"
    assert listed[1]["id"] == session_id
    assert listed[1]["turns"] == 1
    printed = toolfold("sessions", "list").out
    assert session_id in printed
    assert "\x1b[31m are" not in printed


def test_sessions_list_command_explains_how_to_start_a_session_if_none_is_stored(toolfold: Toolfold) -> None:
    assert "toolfold chat" in toolfold("sessions", "list").out


def test_sessions_show_command_prints_the_conversation_without_terminal_escape_sequences(
    toolfold: Toolfold, session_id: str
) -> None:
    done = toolfold("sessions", "show", session_id[:6])
    assert "> How many boats" in done.out
    assert 'read_file {"path": "notes.txt"}' in done.out
    assert "There are **four** boats." in done.out
    assert "\x1b" not in done.out
    assert "\x07" not in done.out
    roles = [each["role"] for each in toolfold("sessions", "show", "last", "--json").json["transcript"]]
    assert roles == ["user", "call", "result", "assistant"]


def test_sessions_search_command_finds_messages_by_their_words(toolfold: Toolfold, session_id: str) -> None:
    found = toolfold("sessions", "search", "fence", "--json").json
    assert [(each["session_id"], each["role"]) for each in found] == [(session_id, "tool")]
    assert session_id in toolfold("sessions", "search", "boats").out
    assert "no message" in toolfold("sessions", "search", "zeppelin").out


def test_sessions_export_command_prints_markdown_and_writes_json_to_a_json_file(
    toolfold: Toolfold, session_id: str
) -> None:
    text = toolfold("sessions", "export", session_id).out
    assert text.startswith("# How many boats")
    assert "````\n" in text  # longer than the fence in the result
    assert "\x1b" not in text
    done = toolfold("sessions", "export", session_id, "-o", "session.json")
    assert done.code == 0
    exported = json.loads(Path("session.json").read_text(encoding="utf-8"))
    assert exported["id"] == session_id
    assert exported["messages"][-1]["message"]["content"].startswith("There are **four** boats.")
    assert Path("session.json").stat().st_mode & 0o077 == 0


def test_sessions_export_command_makes_an_existing_file_readable_only_by_its_owner(
    toolfold: Toolfold, session_id: str
) -> None:
    file = Path("session.md")
    file.write_text("old", encoding="utf-8")
    file.chmod(0o644)
    assert toolfold("sessions", "export", session_id, "-o", str(file)).code == 0
    assert file.read_text(encoding="utf-8").startswith("# How many boats")
    assert file.stat().st_mode & 0o077 == 0


def test_sessions_export_command_fails_for_an_unwritable_path(toolfold: Toolfold, session_id: str) -> None:
    done = toolfold("sessions", "export", session_id, "-o", "missing/session.md")
    assert done.code == 1
    assert "cannot be written" in done.err


def test_session_deleted_with_the_sessions_delete_command_is_no_longer_listed(
    toolfold: Toolfold, session_id: str
) -> None:
    assert toolfold("sessions", "delete", session_id, "--yes").code == 0
    assert toolfold("sessions", "list", "--json").json == []
    missing = toolfold("sessions", "show", session_id)
    assert missing.code == 4
    assert "there is no session" in missing.err


def test_sessions_delete_command_without_a_terminal_deletes_nothing_and_suggests_the_option_yes(
    toolfold: Toolfold, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    done = toolfold("sessions", "delete", session_id)
    assert done.code == 1
    assert "Confirmation needs a terminal" in done.err
    assert "--yes" in done.err
    assert len(toolfold("sessions", "list", "--json").json) == 1


def test_sessions_delete_command_refuses_a_session_that_is_open_in_another_process(
    toolfold: Toolfold, session_id: str, home: Path
) -> None:
    store = SqliteSessionStore(next(home.rglob("sessions.db")))
    store.claim_session(session_id, "elsewhere:1:x")
    done = toolfold("sessions", "delete", session_id, "--yes")
    store.close()
    assert done.code == 1
    assert "open in another process" in done.err
    assert len(toolfold("sessions", "list", "--json").json) == 1


def test_word_last_in_place_of_a_session_id_selects_the_newest_session_with_messages(
    toolfold: Toolfold, home: Path, session_id: str
) -> None:
    store = SqliteSessionStore(next(home.rglob("sessions.db")))
    record = store.load_session(session_id)
    store.create_session(replace(record, id="f" * 16, turns=0, updated=record.updated + 1))
    store.close()
    assert [each["turns"] for each in toolfold("sessions", "list", "--json").json] == [0, 1]
    assert toolfold("sessions", "show", "last", "--json").json["id"] == session_id


def test_word_last_in_place_of_a_session_id_fails_if_no_session_has_messages(toolfold: Toolfold) -> None:
    done = toolfold("sessions", "show", "last")
    assert done.code == 4
    assert "no stored session with messages" in done.err


def test_session_id_prefix_that_two_sessions_share_is_refused(
    toolfold: Toolfold, home: Path, session_id: str
) -> None:
    with_same_start = session_id[:4] + "f" * 12
    store = SqliteSessionStore(next(home.rglob("sessions.db")))
    record = store.load_session(session_id)
    store.create_session(replace(record, id=with_same_start))
    store.close()
    done = toolfold("sessions", "show", session_id[:4])
    assert done.code == 4
    assert "2 sessions start with" in done.err
