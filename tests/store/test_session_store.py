"""The contract of a session store, checked for SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from toolfold.state.database import open_database
from toolfold.state.store import (
    MessageRecord,
    SessionInUse,
    SessionRecord,
    SessionStore,
    SqliteSessionStore,
    UnknownSession,
)
from toolfold.state.store.postgres import PostgresSessionStore

ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "sessions.db"


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, file: Path) -> str:
    """The file or the database of the store."""
    is_file = request.param == "sqlite"
    return str(file) if is_file else str(request.getfixturevalue("database_url"))


def open_store_at(address: str) -> SessionStore:
    if not address.startswith("postgresql:"):
        return SqliteSessionStore(Path(address))
    database = open_database(address)
    assert database is not None
    return PostgresSessionStore(database, owns_database=True)


@pytest.fixture
def store(address: str) -> Iterator[SessionStore]:
    store = open_store_at(address)
    yield store
    store.close()


def session(name: str = "one", **options: object) -> SessionRecord:
    return SessionRecord(id=name, model="scripted:x", dialect="openai", **options)  # type: ignore[arg-type]


def message(text: str, role: str = "user", turn: int = 1) -> MessageRecord:
    return MessageRecord(body={"role": role, "content": text}, role=role, text=text, turn=turn)


def texts(store: SessionStore, name: str = "one") -> list[str]:
    return [each.text for each in store.load_messages(name)]


def test_loaded_session_equals_the_session_that_was_created(store: SessionStore) -> None:
    record = session(system="Be brief.", toolsets=("file",), state={"todos": [1]})
    store.create_session(record)
    assert store.load_session("one") == record


def test_error_for_loading_an_unknown_session_contains_the_session_id(store: SessionStore) -> None:
    with pytest.raises(UnknownSession, match="'missing'"):
        store.load_session("missing")


def test_stored_messages_keep_their_order_and_exact_content(store: SessionStore) -> None:
    store.create_session(session())
    body = {"role": "assistant", "content": "Grüße", "z": 1, "a": [None, 1.5]}
    store.append_messages("one", [message("first")])
    store.append_messages("one", [MessageRecord(body=body, role="assistant"), message("third", turn=2)])
    loaded = store.load_messages("one")
    assert [each.body for each in loaded][1] == body
    assert list(loaded[1].body) == ["role", "content", "z", "a"]
    assert store.load_session("one").turns == 2


def test_appending_messages_to_a_stored_session_saves_its_state_and_deletes_the_draft_reply(
    store: SessionStore,
) -> None:
    store.create_session(session())
    store.save_draft("one", "half an ans")
    assert store.load_draft("one") == "half an ans"
    store.append_messages("one", [message("answer", "assistant")], state={"todos": [2]})
    assert store.load_draft("one") == ""
    assert store.load_session("one").state == {"todos": [2]}


def test_summary_replaces_the_summarised_messages_on_load_and_the_originals_stay_stored(
    store: SessionStore,
) -> None:
    store.create_session(session())
    numbers = store.append_messages("one", [message(text) for text in ("a", "b", "c", "d")])
    store.replace_messages("one", numbers[:2], "compressed", summary=message("a and b"))
    assert texts(store) == ["a and b", "c", "d"]
    again = [each.number for each in store.load_messages("one")[:2]]
    store.replace_messages("one", again, "compressed", summary=message("all of it"))
    store.append_messages("one", [message("e")])
    assert texts(store) == ["all of it", "d", "e"]
    assert len(store.load_messages("one", active_only=False)) == 7


def test_result_of_a_finished_tool_call_is_stored_until_its_result_message_is_appended(
    store: SessionStore,
) -> None:
    store.create_session(session())
    store.start_calls("one", {"c1": "terminal", "c2": "read_file"})
    store.finish_call("one", "c1", {"text": "done"})
    calls = {each.call_id: each for each in store.load_calls("one")}
    assert (calls["c1"].is_finished, calls["c1"].result) == (True, {"text": "done"})
    assert (calls["c2"].is_finished, calls["c2"].result) == (False, None)
    store.append_messages("one", [message("results", "tool")], finished_calls=["c1", "c2"])
    assert all(each.is_finished and each.result is None for each in store.load_calls("one"))


def test_search_in_stored_sessions_excludes_the_current_session_and_undone_messages(
    store: SessionStore,
) -> None:
    store.create_session(session("one", title="Boats"))
    store.create_session(session("two"))
    numbers = store.append_messages("one", [message("the blue sailing boat"), message("a boat undone")])
    store.append_messages("two", [message("boat of this session")])
    store.replace_messages("one", numbers[1:], "undone")
    found = store.search_messages("sailing BOAT", without_session="two")
    assert [(each.session_id, each.title) for each in found] == [("one", "Boats")]
    assert "blue sailing boat" in found[0].snippet


@pytest.mark.parametrize("query", ['"', "AND OR NOT", "a* NEAR(b", "col:umn", "", "'; DROP TABLE messages"])
def test_search_in_stored_sessions_accepts_query_syntax_and_sql_without_an_error(
    store: SessionStore, query: str
) -> None:
    store.create_session(session())
    store.append_messages("one", [message("nothing here")])
    assert isinstance(store.search_messages(query), list)


def test_stored_sessions_are_listed_newest_first_without_delegated_sessions(store: SessionStore) -> None:
    for name, parent in (("one", ""), ("two", ""), ("child", "one")):
        store.create_session(session(name, parent=parent))
    store.append_messages("one", [message("again")])
    assert [each.id for each in store.list_sessions()] == ["one", "two"]


def test_deleting_a_session_removes_its_messages_and_delegated_sessions(store: SessionStore) -> None:
    store.create_session(session())
    store.create_session(session("child", parent="one"))
    store.create_session(session("grandchild", parent="child"))
    store.append_messages("grandchild", [message("secret word")])
    store.delete_session("one")
    assert store.search_messages("secret") == []
    for name in ("child", "grandchild"):
        with pytest.raises(UnknownSession):
            store.load_session(name)


def test_stored_session_claimed_by_one_owner_cannot_be_claimed_by_another_until_released(
    store: SessionStore,
) -> None:
    store.create_session(session())
    store.claim_session("one", "me")
    store.claim_session("one", "me")
    with pytest.raises(SessionInUse, match="open in another process"):
        store.claim_session("one", "other")
    store.release_session("one", "other")  # not its own: no effect
    with pytest.raises(SessionInUse):
        store.claim_session("one", "other")
    store.release_session("one", "me")
    store.claim_session("one", "other")


def test_session_store_returns_messages_with_nul_characters_and_emoji_unchanged(store: SessionStore) -> None:
    text = "nul \0 and half of a pair \ud83d"
    body = {"role": "user", "content": "nul \0"}
    store.create_session(session(title="Grüße\U0001f600"))
    store.append_messages("one", [MessageRecord(body=body, role="user", text=text.replace("\ud83d", "?"))])
    assert store.load_messages("one")[0].body == body
    assert store.load_session("one").title == "Grüße\U0001f600"


def test_half_of_a_surrogate_pair_in_messages_and_drafts_is_stored_as_a_replacement_character(
    store: SessionStore,
) -> None:
    store.create_session(session(title="half \ud83d"))
    body = {"role": "user", "content": "half \ud83d"}
    store.append_messages("one", [MessageRecord(body=body, role="user", text="half \ud83d")])
    store.save_draft("one", "half \ud83d")
    assert store.load_messages("one")[0].text == "half \ufffd"
    assert store.load_draft("one") == "half \ufffd"
    assert store.load_session("one").title == "half \ufffd"


def test_search_in_stored_sessions_ignores_accents_and_case(store: SessionStore) -> None:
    store.create_session(session())
    store.append_messages("one", [message("Die Straßenbahn nach Köln")])
    assert [each.session_id for each in store.search_messages("KOLN")] == ["one"]


def test_message_appended_by_another_process_is_read_from_the_same_session_store(
    store: SessionStore, address: str
) -> None:
    store.create_session(session())
    store.append_messages("one", [message("from here")])
    script = (
        "import sys; from tests.store.test_session_store import *\n"
        "store = open_store_at(sys.argv[1])\n"
        "assert [m.text for m in store.load_messages('one')] == ['from here']\n"
        "record = MessageRecord(body={'role': 'user'}, role='user', text='from there')\n"
        "store.append_messages('one', [record])\n"
        "store.close()\n"
    )
    subprocess.run([sys.executable, "-c", script, address], check=True, timeout=60, cwd=ROOT)
    assert texts(store) == ["from here", "from there"]


def test_messages_appended_concurrently_by_eight_threads_are_numbered_without_gaps(
    store: SessionStore,
) -> None:
    store.create_session(session())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.append_messages("one", [message(str(number))]), range(24)))
    loaded = store.load_messages("one")
    assert sorted(int(each.text) for each in loaded) == list(range(24))
    assert [each.number for each in loaded] == [float(number) for number in range(1, 25)]


class TestSqliteFile:
    def test_only_the_owner_can_read_the_session_store_file(self, file: Path) -> None:
        SqliteSessionStore(file).close()
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o077 == 0

    def test_session_store_file_written_by_a_newer_version_is_refused(self, file: Path) -> None:
        SqliteSessionStore(file).close()
        with sqlite3.connect(file) as database:
            database.execute("PRAGMA user_version = 99")
        database.close()
        with pytest.raises(RuntimeError, match="newer version"):
            SqliteSessionStore(file)
