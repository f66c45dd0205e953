"""Scheduled jobs and their runs in an SQLite file or a PostgreSQL database shared by several processes.

A run is claimed in the same transaction that moves its job to the next time, so that no other process can
start the same run. A run whose process has ended counts as interrupted and is not repeated: a tool may have
sent or deleted something already. Knows nothing of schedules: the caller computes times.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from toolfold.core.errors import CallError, error_message
from toolfold.core.types import Json, read_json
from toolfold.state.copy_report import CopyReport
from toolfold.state.database import clean_text
from toolfold.state.store.records import has_owner_ended
from toolfold.state.store.sqlite_file import close_on_error, open_private_file, write_transaction

if TYPE_CHECKING:
    from toolfold.state.database import Database, RowCursor

Value = TypeVar("Value")
Values: TypeAlias = Sequence[Any] | Mapping[str, Any]

CLAIM_LIFETIME_S = 120.0
MAX_SERVICE_AGE_S = 7 * 86_400.0
"""Time after which a scheduler that has ended without saying so is forgotten."""
MAX_RUNS_PER_JOB = 50
MAX_RESULT_CHARS = 20_000
MAX_FINISHED_JOBS = 100

JobState = Literal["active", "paused", "finished"]
MissedPolicy = Literal["once", "skip"]
RunState = Literal["running", "completed", "failed", "interrupted", "missed"]

_LOCK_KEY = 0x746F6F6C6A6F6273
"""Number of the lock with which one process at a time changes jobs in PostgreSQL: "tooljobs" as ASCII."""
_NAMED_MARK = re.compile(r":([a-z_]+)")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, prompt TEXT NOT NULL, schedule TEXT NOT NULL,
    times TEXT NOT NULL, zone TEXT NOT NULL, limits TEXT NOT NULL, toolsets TEXT NOT NULL,
    send_to TEXT NOT NULL, missed TEXT NOT NULL, model TEXT NOT NULL, directory TEXT NOT NULL,
    created REAL NOT NULL, created_by TEXT NOT NULL, state TEXT NOT NULL,
    next_run REAL, owner TEXT NOT NULL DEFAULT '', claimed REAL NOT NULL DEFAULT 0,
    client TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS jobs_by_time ON jobs (next_run) WHERE state = 'active';
CREATE TABLE IF NOT EXISTS runs (
    number INTEGER PRIMARY KEY, job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    planned REAL NOT NULL, started REAL NOT NULL, ended REAL, state TEXT NOT NULL, session_id TEXT NOT NULL,
    result TEXT NOT NULL, error TEXT NOT NULL, delivery TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS runs_by_job ON runs (job_id, number);
CREATE TABLE IF NOT EXISTS services (owner TEXT PRIMARY KEY, seen REAL NOT NULL);
"""


class UnknownJob(CallError):
    """No scheduled job has this id or name."""

    def __init__(self, job: str) -> None:
        super().__init__(f"There is no scheduled job {job[:80]!r}. `toolfold cron list` lists them.")


class DamagedJob(CallError):
    """What is stored of a scheduled job cannot be read."""

    def __init__(self, job: str) -> None:
        super().__init__(f"The scheduled job {job[:80]!r} is damaged. Remove it, and create it again.")


class JobIsRunning(CallError):
    """Another process is running the scheduled job."""

    def __init__(self, job: Job) -> None:
        super().__init__(f"The job {job.id} is running already, in the process {job.owner}.")


class TooManyJobs(CallError):
    """The limit on scheduled jobs is reached."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"There are {limit:,} scheduled jobs already, which is the limit (cron.max_jobs)."
            " Remove one first."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Scheduled task for an agent, with its run times."""

    prompt: str
    schedule: str
    """The schedule as the user wrote it."""
    times: Json
    """The schedule as data, for the code that computes times."""
    zone: str
    id: str = field(default_factory=lambda: secrets.token_hex(4))
    name: str = ""
    limits: tuple[Json, ...] = ()
    """Restrictions of the session that created the job; runs have the same ones."""
    toolsets: tuple[str, ...] | None = None
    """The only toolsets that runs may use; None for all that `limits` leave."""
    send_to: str = ""
    """Target of `send_message` that receives the result of each run."""
    missed: MissedPolicy = "once"
    """What happens if no scheduler ran at the planned time: run once as soon as one does, or skip the run."""
    model: str = ""
    directory: str = ""
    """Working directory of the runs."""
    created: float = field(default_factory=time.time)
    created_by: str = ""
    """Id of the session whose model created the job; empty for the user."""
    state: JobState = "active"
    next_run: float | None = None
    owner: str = ""
    """The process that runs the job now, as HOST:PID:TOKEN; empty if none does."""
    claimed: float = 0.0
    client: str = ""
    """The gateway client that created the job; empty for the user and the user's own agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a scheduled job."""

    number: int
    job_id: str
    planned: float
    started: float
    state: RunState
    ended: float | None = None
    session_id: str = ""
    result: str = ""
    error: str = ""
    delivery: str = ""
    """What became of the message with the result; empty if none was to be sent."""


Advance = Callable[[Job, float], float | None]
"""Returns the first time of a job's schedule after a moment; None if there is none."""
_JSON_FIELDS = ("times", "limits", "toolsets")
_COLUMNS = tuple(each.name for each in fields(Job))


class Statements(Protocol):
    """Interface to run SQL statements with `?` or `:name` parameters in one transaction."""

    def query(self, statement: str, values: Values = ()) -> Sequence[Mapping[str, Any]]:
        """Return the rows selected by an SQL statement."""

    def change(self, statement: str, values: Values = ()) -> int:
        """Run an SQL statement and return the number of changed rows."""


class JobStore(ABC):
    """Interface of a store of scheduled jobs. Thread-safe, and safe for several processes."""

    @abstractmethod
    def close(self) -> None:
        """Close the database file if it is open."""

    @abstractmethod
    def _transact(self, work: Callable[[Statements], Value]) -> Value:
        """Run a function, possibly more than once, in a transaction that locks all jobs."""

    @abstractmethod
    def _read(self, statement: str, values: Values = ()) -> Sequence[Mapping[str, Any]]:
        """Return the rows selected by one SQL statement."""

    def add_job(self, job: Job, *, max_jobs: int) -> None:
        """Store a new job. Raises TooManyJobs if there are already `max_jobs` unfinished jobs."""

        def add(db: Statements) -> None:
            (row,) = db.query("SELECT count(*) AS count FROM jobs WHERE state != 'finished'")
            if row["count"] >= max_jobs:
                raise TooManyJobs(max_jobs)
            db.change(
                "DELETE FROM jobs WHERE state = 'finished' AND owner = '' AND id NOT IN (SELECT id FROM jobs"
                " WHERE state = 'finished' ORDER BY created DESC LIMIT ?)",
                (MAX_FINISHED_JOBS,),
            )
            marks = ", ".join(f":{name}" for name in _COLUMNS)
            db.change(f"INSERT INTO jobs ({', '.join(_COLUMNS)}) VALUES ({marks})", _to_row(job))  # noqa: S608

        self._transact(add)

    def copy_from(self, source: JobStore, *, max_jobs: int, dry_run: bool) -> CopyReport:
        """Add the unfinished jobs that this store lacks, without runs; with `dry_run`, only report it."""
        report, known = CopyReport("scheduled jobs"), {each.id for each in self.list_jobs()}
        for job in source.list_jobs():
            name = job.name or job.id
            if job.state == "finished":
                continue
            if job.id in known:
                report.present.append(name)
            elif not job.times:
                report.conflicts[name] = "is damaged in the file"
            else:
                try:
                    if not dry_run:
                        self.add_job(replace(job, owner="", claimed=0.0), max_jobs=max_jobs)
                    report.copied.append(name)
                except TooManyJobs as error:
                    report.conflicts[name] = str(error)
        return report

    def find_job(self, text: str, client: str = "", *, since: float = 0.0) -> Job:
        """Return a job by its id, the beginning of its id, or its name. Raises UnknownJob.

        With `client`, only jobs that this client created, at the time `since` or later, are found.
        """
        jobs = self.list_jobs(client, since=since)
        for matches in (
            [job for job in jobs if job.id == text],
            [job for job in jobs if job.name and job.name.casefold() == text.casefold()],
            [job for job in jobs if text and job.id.startswith(text)],
        ):
            if len(matches) == 1:
                return matches[0]
        raise UnknownJob(text)

    def list_jobs(self, client: str = "", *, since: float = 0.0) -> list[Job]:
        """Return all jobs, or a client's jobs created since a given time, in order of their next run."""
        order = "ORDER BY state = 'finished', next_run IS NULL, next_run, created"
        rows = self._read(f"SELECT * FROM jobs {order}")  # noqa: S608
        return [
            _read_job_or_placeholder(row)
            for row in rows
            if not client or (row["client"] == client and row["created"] >= since)
        ]

    def update_job(self, job_id: str, change: Callable[[Job], Job]) -> Job:
        """Apply `change` to a job and store the job that it returns. Raises UnknownJob."""

        def update(db: Statements) -> Job:
            changed = replace(change(_find(db, job_id)), id=job_id)
            _write(db, changed)
            return changed

        return self._transact(update)

    def remove_job(self, job_id: str) -> None:
        """Remove a job and its run history; a run in progress is not interrupted."""
        if not self._transact(lambda db: db.change("DELETE FROM jobs WHERE id = ?", (job_id,))):
            raise UnknownJob(job_id)

    def next_time(self) -> float | None:
        """Return the earliest run time of active jobs that are not running; None if there is no such job."""
        (row,) = self._read("SELECT min(next_run) AS first FROM jobs WHERE state = 'active' AND owner = ''")
        return None if row["first"] is None else float(row["first"])

    def claim_due(
        self, owner: str, now: float, advance: Advance, *, grace_s: float
    ) -> tuple[Job, Run] | None:
        """Claim one due job for a process and return the job and its new run; None if no job is due.

        Runs that are later than `grace_s` and whose job skips missed runs are recorded as missed instead. A
        job whose next time cannot be computed is paused, with the reason in a failed run.
        """

        def claim(db: Statements) -> tuple[Job, Run] | None:
            _release_ended(db, now)
            rows = db.query(
                "SELECT * FROM jobs WHERE state = 'active' AND owner = '' AND next_run <= ?"
                " ORDER BY next_run",
                (now,),
            )
            for row in rows:
                planned = float(row["next_run"])
                try:
                    job = _read_job(row)
                    following = advance(job, now)
                except Exception as error:  # a broken job must not keep the others from running
                    _pause_broken(db, row["id"], planned, now, error)
                    continue
                job = replace(job, next_run=following, state="finished" if following is None else "active")
                if job.missed == "skip" and now - planned > grace_s:
                    _write(db, job)
                    _insert_run(db, job.id, planned, now, "missed")
                    continue
                job = replace(job, owner=owner, claimed=now)
                _write(db, job)
                return job, _insert_run(db, job.id, planned, now, "running")
            return None

        return self._transact(claim)

    def claim_now(self, job_id: str, owner: str, now: float) -> tuple[Job, Run]:
        """Claim a job for an immediate run, due or not. Raises UnknownJob or JobIsRunning."""

        def claim(db: Statements) -> tuple[Job, Run]:
            _release_ended(db, now)
            job = _find(db, job_id)
            if job.owner:
                raise JobIsRunning(job)
            job = replace(job, owner=owner, claimed=now)
            _write(db, job)
            return job, _insert_run(db, job.id, now, now, "running")

        return self._transact(claim)

    def finish_run(self, run: Run, owner: str) -> None:
        """Store the outcome of a run and release its job if `owner` still holds the claim."""
        outcome = (
            run.ended,
            run.state,
            run.session_id,
            run.result[:MAX_RESULT_CHARS],
            run.error[:MAX_RESULT_CHARS],
            run.delivery,
            run.number,
        )

        def finish(db: Statements) -> None:
            if db.change(
                "UPDATE runs SET ended = ?, state = ?, session_id = ?, result = ?, error = ?, delivery = ?"
                " WHERE number = ? AND state = 'running'",
                outcome,
            ):
                db.change(
                    "UPDATE jobs SET owner = '', claimed = 0 WHERE id = ? AND owner = ?", (run.job_id, owner)
                )

        self._transact(finish)

    def renew_claims(self, owner: str, now: float, job_ids: Iterable[str] = ()) -> None:
        """Extend the claims of a process on its running jobs, and record that the process is alive."""
        ids = list(job_ids)

        def renew(db: Statements) -> None:
            for each in ids:
                db.change("UPDATE jobs SET claimed = ? WHERE owner = ? AND id = ?", (now, owner, each))
            db.change(
                "INSERT INTO services (owner, seen) VALUES (?, ?)"
                " ON CONFLICT (owner) DO UPDATE SET seen = excluded.seen",
                (owner, now),
            )
            db.change("DELETE FROM services WHERE seen < ?", (now - MAX_SERVICE_AGE_S,))

        self._transact(renew)

    def remove_service(self, owner: str) -> None:
        """Record that a scheduler process has ended."""
        self._transact(lambda db: db.change("DELETE FROM services WHERE owner = ?", (owner,)))

    def has_service(self, now: float) -> bool:
        """Return True if a scheduler process is running."""
        rows = self._read("SELECT owner, seen FROM services")
        return any(now - row["seen"] < CLAIM_LIFETIME_S and not has_owner_ended(row["owner"]) for row in rows)

    def list_runs(self, job_id: str = "", *, limit: int = 20) -> list[Run]:
        """Return the newest runs of one job or of all jobs, newest first."""
        condition, values = ("WHERE job_id = ?", (job_id, limit)) if job_id else ("", (limit,))
        query = f"SELECT * FROM runs {condition} ORDER BY number DESC LIMIT ?"  # noqa: S608
        return [Run(**dict(row)) for row in self._read(query, values)]


class SqliteJobStore(JobStore):
    """The scheduled jobs of one user, in an SQLite file that is opened on first use."""

    def __init__(self, file: Path) -> None:
        self._file, self._lock = file, threading.RLock()
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            db = open_private_file(self._file, synchronous="FULL")
            with close_on_error(db):
                db.executescript(_SCHEMA)
                _add_missing_column(db)
            self._connection = db
        return self._connection

    def _transact(self, work: Callable[[Statements], Value]) -> Value:
        with self._lock, write_transaction(self._db):
            return work(_SqliteStatements(self._db))

    def _read(self, statement: str, values: Values = ()) -> Sequence[Mapping[str, Any]]:
        with self._lock:
            return _SqliteStatements(self._db).query(statement, values)


class _SqliteStatements:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def query(self, statement: str, values: Values = ()) -> Sequence[Mapping[str, Any]]:
        return [dict(row) for row in self._db.execute(statement, values)]

    def change(self, statement: str, values: Values = ()) -> int:
        return self._db.execute(statement, values).rowcount


class PostgresJobStore(JobStore):
    """The scheduled jobs of all replicas, in a PostgreSQL database that the caller closes."""

    def __init__(self, database: Database) -> None:
        """Create a job store in an open database with up-to-date tables."""
        self._database = database

    def close(self) -> None:
        """Do nothing: the database belongs to the caller."""

    def _transact(self, work: Callable[[Statements], Value]) -> Value:
        def run(cursor: RowCursor) -> Value:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
            return work(_PostgresStatements(cursor))

        return self._database.run(run)

    def _read(self, statement: str, values: Values = ()) -> Sequence[Mapping[str, Any]]:
        return self._database.run(lambda cursor: _PostgresStatements(cursor).query(statement, values))


class _PostgresStatements:
    def __init__(self, cursor: RowCursor) -> None:
        self._cursor = cursor

    def query(self, statement: str, values: Values = ()) -> Sequence[Mapping[str, Any]]:
        return self._execute(statement, values).fetchall()

    def change(self, statement: str, values: Values = ()) -> int:
        return self._execute(statement, values).rowcount

    def _execute(self, statement: str, values: Values) -> RowCursor:
        plain = _NAMED_MARK.sub(r"%(\1)s", statement).replace("?", "%s").encode()
        if isinstance(values, Mapping):
            return self._cursor.execute(plain, {key: _clean(each) for key, each in values.items()})
        return self._cursor.execute(plain, [_clean(each) for each in values])


def open_job_store(file: Path, database: Database | None) -> JobStore:
    """Return the job store: the database shared by replicas or, if none is configured, the user's file."""
    return SqliteJobStore(file) if database is None else PostgresJobStore(database)


def _clean(value: object) -> object:
    return clean_text(value) if isinstance(value, str) else value


def _find(db: Statements, job_id: str) -> Job:
    rows = db.query("SELECT * FROM jobs WHERE id = ?", (job_id,))
    if not rows:
        raise UnknownJob(job_id)
    return _read_job(rows[0])


def _release_ended(db: Statements, now: float) -> None:
    """Release the jobs of processes that have ended or stopped renewing their claims."""
    for row in db.query("SELECT id, owner, claimed FROM jobs WHERE owner != ''"):
        if now - row["claimed"] < CLAIM_LIFETIME_S and not has_owner_ended(row["owner"]):
            continue
        db.change("UPDATE jobs SET owner = '', claimed = 0 WHERE id = ?", (row["id"],))
        db.change(
            "UPDATE runs SET state = 'interrupted', ended = ?, error = ?"
            " WHERE job_id = ? AND state = 'running'",
            (now, "the scheduler ended during the run", row["id"]),
        )


def _pause_broken(db: Statements, job_id: str, planned: float, now: float, error: Exception) -> None:
    """Pause a job because its next run time cannot be computed; record the reason as a failed run."""
    db.change("UPDATE jobs SET state = 'paused', next_run = NULL WHERE id = ?", (job_id,))
    reason = f"the job was paused, because its next time cannot be computed: {error_message(error)}"
    _insert_run(db, job_id, planned, now, "failed", reason[:MAX_RESULT_CHARS])


def _insert_run(
    db: Statements, job_id: str, planned: float, now: float, state: RunState, error: str = ""
) -> Run:
    ended = None if state == "running" else now
    (row,) = db.query(
        "INSERT INTO runs (job_id, planned, started, ended, state, session_id, result, error, delivery)"
        " VALUES (?, ?, ?, ?, ?, '', '', ?, '') RETURNING number",
        (job_id, planned, now, ended, state, error),
    )
    db.change(
        "DELETE FROM runs WHERE job_id = ? AND number NOT IN"
        " (SELECT number FROM runs WHERE job_id = ? ORDER BY number DESC LIMIT ?)",
        (job_id, job_id, MAX_RUNS_PER_JOB),
    )
    number = int(row["number"])
    return Run(
        number=number, job_id=job_id, planned=planned, started=now, ended=ended, state=state, error=error
    )


def _write(db: Statements, job: Job) -> None:
    assignments = ", ".join(f"{name} = :{name}" for name in _COLUMNS)
    db.change(f"UPDATE jobs SET {assignments} WHERE id = :id", _to_row(job))  # noqa: S608


def _add_missing_column(db: sqlite3.Connection) -> None:
    """Add the column `client` to a job file of an older version; existing jobs belong to the local user."""
    if "client" not in {row["name"] for row in db.execute("PRAGMA table_info(jobs)")}:
        with contextlib.suppress(sqlite3.OperationalError):  # another process has just added it
            db.execute("ALTER TABLE jobs ADD COLUMN client TEXT NOT NULL DEFAULT ''")


def _to_row(job: Job) -> Json:
    values = asdict(job)
    return values | {key: json.dumps(values[key]) for key in _JSON_FIELDS}


def _read_job(row: Mapping[str, Any]) -> Job:
    """Return the job of a row. Raises DamagedJob."""
    values = dict(row)
    try:
        values |= {key: read_json(values[key]) for key in _JSON_FIELDS}
        toolsets = values["toolsets"]
        values["limits"], values["toolsets"] = (
            tuple(values["limits"]),
            None if toolsets is None else tuple(toolsets),
        )
        return Job(**values)
    except (ValueError, TypeError, RecursionError):
        raise DamagedJob(values["id"]) from None


def _read_job_or_placeholder(row: Mapping[str, Any]) -> Job:
    """Return the job of a row or, if it is damaged, a paused job that can be seen and removed."""
    try:
        return _read_job(row)
    except DamagedJob as error:
        return Job(
            id=row["id"], prompt=str(error), schedule="(damaged)", times={}, zone="UTC", state="paused"
        )
