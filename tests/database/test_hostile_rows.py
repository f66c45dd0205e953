"""Rows and notices that another program with access to the shared database has forged or damaged."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from toolfold.mcp.lock import LOCK_FILE, SharedPins
from toolfold.mcp.tool_listing import parse_tool
from toolfold.mcp.trust import Trust
from toolfold.safety.approval.shared_audit import SharedAuditLog
from toolfold.serving.dashboard.shared_questions import (
    MAX_DESCRIPTION_BYTES,
    MAX_REMOTE_QUESTIONS,
    SharedQuestions,
)
from toolfold.serving.gateway.client_tokens import SharedTokens
from toolfold.state.database import Database, DatabaseError, open_database
from toolfold.state.store.jobs import DamagedJob, Job, open_job_store

WAIT_S = 60.0
DAMAGED = ["", "{", "[" * 100_000, '"text"', "5", "NaN", '{"tools": {"a": {"hash": 5}}}']
DESCRIPTION: dict[str, Any] = {
    **dict.fromkeys(("tool", "emoji", "session", "command", "part", "reason", "severity", "category"), "x"),
    **dict.fromkeys(("client", "user"), "x"),
    "process": 1,
    "id": "real",
    "at": 5.0,
    "also": [],
    "rules": [],
    "answers": [{"value": "once", "text": "Once", "meaning": ""}],
}


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def answers() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def questions(database: Database, answers: list[tuple[str, str]]) -> Iterator[SharedQuestions]:
    def answer(question_id: str, text: str) -> bool:
        answers.append((question_id, text))
        return True

    opened = SharedQuestions(database, is_page_open=lambda: True, answer_own=answer)
    with closing(opened):
        yield opened


def add_question(database: Database, row_id: str, description: str, answers: str = '["once"]') -> None:
    database.execute(
        "INSERT INTO questions (id, replica, description, answers, asked, expires)"
        " VALUES (%s, 'other', %s, %s, 0, now() + interval '1 hour')",
        (row_id, description, answers),
    )


@pytest.mark.parametrize(
    "description",
    [
        *DAMAGED,
        json.dumps({**DESCRIPTION, "id": "another"}),
        json.dumps({**DESCRIPTION, "at": "now"}),
        json.dumps({**DESCRIPTION, "answers": None}),
        json.dumps({**DESCRIPTION, "answers": [None]}),
        json.dumps({**DESCRIPTION, "command": "x" * MAX_DESCRIPTION_BYTES}),
        '{"id": "forged"}',
    ],
    ids=lambda text: text[:40],
)
def test_damaged_question_of_a_replica_is_not_shown_and_other_questions_are(
    database: Database, questions: SharedQuestions, description: str
) -> None:
    add_question(database, "forged", description)
    add_question(database, "real", json.dumps(DESCRIPTION))
    wait_until(lambda: bool(questions.list_remote()))
    assert questions.list_remote() == [DESCRIPTION]


def test_question_with_damaged_answers_cannot_be_answered(
    database: Database, questions: SharedQuestions
) -> None:
    for number, text in enumerate((*DAMAGED, "null")):
        add_question(database, f"forged {number}", json.dumps(DESCRIPTION), text)
        assert not questions.answer(f"forged {number}", "once")


def test_forged_questions_do_not_displace_answers_to_own_questions(
    database: Database, questions: SharedQuestions, answers: list[tuple[str, str]]
) -> None:
    questions.add("own", {**DESCRIPTION, "id": "own"}, ("once",))
    wait_until(lambda: bool(database.query("SELECT 1 FROM questions WHERE id = 'own'")))
    for number in range(MAX_REMOTE_QUESTIONS + 1):
        add_question(database, f"forged {number}", "{")
    database.execute("UPDATE questions SET answer = 'once' WHERE id = 'own'")
    wait_until(lambda: bool(answers))
    assert set(answers) == {("own", "once")}


@pytest.mark.parametrize("toolsets", [*DAMAGED, "{}"], ids=lambda text: text[:40])
def test_damaged_token_is_refused_and_other_tokens_stay_valid(database: Database, toolsets: str) -> None:
    tokens = SharedTokens(database)
    good, damaged = tokens.add("good", ["web"]), tokens.add("damaged", ["web"])
    database.execute("UPDATE tokens SET toolsets = %s WHERE name = 'damaged'", (toolsets,))
    reopened = SharedTokens(database)
    assert reopened.find(damaged) is None
    client = reopened.find(good)
    assert client is not None
    assert client.toolsets == ("web",)
    assert [each.name for each in reopened.list_clients()] == ["good"]
    assert reopened.revoke("damaged")


@pytest.mark.parametrize("table", ["users", "teams"])
@pytest.mark.parametrize("limits", ["", "{", "[" * 100_000, "5", "NaN", '{"calls_per_day": "x"}'])
def test_damaged_user_or_team_is_refused_with_its_members_and_others_are_served(
    database: Database, table: str, limits: str
) -> None:
    tokens = SharedTokens(database)
    users = tokens.users
    ann, bob = users.add_user("ann"), users.add_user("bob")
    users.add_team("desk")
    users.join_team("desk", "bob")
    of_ann, of_bob = tokens.add("a", user_id=ann.id), tokens.add("b", user_id=bob.id)
    database.execute(f"UPDATE {table} SET limits = %s WHERE name IN ('bob', 'desk')", (limits,))
    reopened = SharedTokens(database)
    assert reopened.find(of_ann) is not None
    assert reopened.find(of_bob) is None  # the rules that restrict it are unknown
    reopened.users.add_user("cleo")
    assert len(database.query("SELECT 1 FROM users")) == 3  # a change of others keeps the damaged rows
    assert len(database.query("SELECT 1 FROM team_members")) == 1


@pytest.mark.parametrize("text", DAMAGED, ids=lambda text: text[:40])
def test_tools_of_a_server_with_damaged_acceptances_are_held_and_other_servers_are_not(
    database: Database, tmp_path: Path, text: str
) -> None:
    tool = parse_tool({"name": "track", "description": "Tracks a parcel."})
    trust = Trust(lambda _server: tmp_path / LOCK_FILE, shared=SharedPins(database))
    for server in ("shop", "bank"):
        assert trust.check_tools(server, "pin", [tool]).held == ()
    database.execute("UPDATE pins SET tools = %s WHERE server = 'shop'", (text,))
    trust = Trust(lambda _server: tmp_path / LOCK_FILE, shared=SharedPins(database))
    assert trust.check_tools("bank", "pin", [tool]).held == ()
    assert [each.tool.name for each in trust.check_tools("shop", "pin", [tool]).held] == ["track"]
    trust.accept("shop", [tool])  # a review repairs the entry
    assert trust.check_tools("shop", "pin", [tool]).held == ()


@pytest.mark.parametrize("column", ["times", "limits", "toolsets"])
def test_damaged_job_is_listed_and_removable_but_cannot_run(
    database: Database, tmp_path: Path, column: str
) -> None:
    store = open_job_store(tmp_path / "jobs.db", database)
    for name in ("good", "damaged"):
        job = Job(id=name, prompt="look", schedule="daily", times={}, zone="UTC", next_run=5.0)
        store.add_job(job, max_jobs=10)
    database.execute(f"UPDATE jobs SET {column} = %s WHERE id = 'damaged'", ("[" * 100_000,))
    assert {job.id: job.state for job in store.list_jobs()} == {"good": "active", "damaged": "paused"}
    with pytest.raises(DamagedJob, match="Remove it"):
        store.claim_now("damaged", "host:1:x", 10.0)
    claimed = store.claim_due("host:1:x", 10.0, lambda _job, _now: None, grace_s=60)
    assert claimed is not None
    assert claimed[0].id == "good"
    assert store.claim_due("host:1:x", 10.0, lambda _job, _now: None, grace_s=60) is None
    store.remove_job(store.find_job("damaged").id)
    assert [job.id for job in store.list_jobs()] == ["good"]


def test_damaged_entries_of_the_shared_audit_log_are_skipped_when_it_is_shown(database: Database) -> None:
    log = SharedAuditLog(database)
    for number, line in enumerate(("{", "[" * 100_000, "5", '{"tool": "terminal"}'), start=1):
        database.execute("INSERT INTO audit VALUES (%s, '', '', %s)", (number, line))
    assert log.read_entries() == [{"tool": "terminal"}]


def test_flood_of_notices_causes_few_reads_and_forged_topics_none(
    database: Database, database_url: str
) -> None:
    is_blocked, may_continue, ended = threading.Event(), threading.Event(), threading.Event()
    reads: list[str] = []

    def read() -> None:
        reads.append("users")
        is_blocked.set()
        assert may_continue.wait(WAIT_S)

    database.on_change("users", read)
    assert is_blocked.wait(WAIT_S)
    with psycopg.connect(database_url, autocommit=True) as other:
        for number in range(3_000):
            other.execute(
                "SELECT pg_notify('toolfold_changes', %s)", ("users" if number % 2 else f"'; {number}",)
            )
        database.on_change("end", ended.set)
        other.execute("SELECT pg_notify('toolfold_changes', 'end')")
    may_continue.set()
    assert ended.wait(WAIT_S)
    assert len(reads) < 30


@pytest.mark.parametrize("how", ["no rights", "no schema", "read only"])
def test_role_without_the_needed_rights_gets_an_error_that_names_them(
    database: Database, database_url: str, how: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute("DROP ROLE IF EXISTS limited")
        owner.execute("CREATE ROLE limited LOGIN")
        if how != "no schema":
            owner.execute("GRANT USAGE ON SCHEMA toolfold TO limited")
            owner.execute("GRANT SELECT ON toolfold.migrations TO limited")
        if how == "read only":
            owner.execute("GRANT ALL ON ALL TABLES IN SCHEMA toolfold TO limited")
            owner.execute("ALTER ROLE limited SET default_transaction_read_only = on")
    try:
        with pytest.raises(DatabaseError, match="The role in the setting `store` must be able to"):  # noqa: PT012 - opening or writing may fail
            opened = open_database(database_url.replace("user=postgres", "user=limited"))
            assert opened is not None
            with closing(opened):
                SharedTokens(opened).add("desk")
    finally:
        with psycopg.connect(database_url, autocommit=True) as owner:
            owner.execute("DROP OWNED BY limited")
            owner.execute("DROP ROLE limited")


def test_role_that_can_only_read_and_change_rows_is_sufficient_once_the_tables_exist(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute("DROP ROLE IF EXISTS replica")
        owner.execute("CREATE ROLE replica LOGIN")
        owner.execute("GRANT USAGE ON SCHEMA toolfold TO replica")
        owner.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA toolfold TO replica")
    try:
        opened = open_database(database_url.replace("user=postgres", "user=replica"))
        assert opened is not None
        with closing(opened):
            tokens = SharedTokens(opened)
            user = tokens.users.add_user("ann")
            assert tokens.find(tokens.add("desk", user_id=user.id)) is not None
            job = Job(prompt="look", schedule="daily", times={}, zone="UTC")
            open_job_store(tmp_path / "jobs.db", opened).add_job(job, max_jobs=10)
            with pytest.raises(DatabaseError, match=r"must be owner|permission denied"):
                opened.execute("DROP TABLE tokens")
    finally:
        with psycopg.connect(database_url, autocommit=True) as owner:
            owner.execute("DROP OWNED BY replica")
            owner.execute("DROP ROLE replica")
