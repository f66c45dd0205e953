"""Scheduled jobs and their runs in one SQLite file, safe for several processes.

A run is claimed in the same transaction that moves its job to the next time, so that no other process can
start the same run. A run whose process has ended counts as interrupted and is not repeated: a tool may have
sent or deleted something already. Knows nothing of schedules: the caller computes times.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from toolfold.errors import CallError, error_message
from toolfold.model import Json
from toolfold.store.records import has_owner_ended
from toolfold.store.sqlite_file import open_private_file, write_transaction

CLAIM_LIFETIME_S = 120.0
MAX_RUNS_PER_JOB = 50
MAX_RESULT_CHARS = 20_000
MAX_FINISHED_JOBS = 100

JobState = Literal["active", "paused", "finished"]
MissedPolicy = Literal["once", "skip"]
RunState = Literal["running", "completed", "failed", "interrupted", "missed"]

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


class JobIsRunning(CallError):
    """The scheduled job is being run by another process."""

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
    """A task for an agent, with the times at which it runs."""

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


class JobStore:
    """The scheduled jobs of one user. Opens its file when it is first used. Thread-safe."""

    def __init__(self, file: Path) -> None:
        self._file, self._lock = file, threading.RLock()
        self._connection: sqlite3.Connection | None = None

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            db = open_private_file(self._file, synchronous="FULL")
            db.executescript(_SCHEMA)
            _add_missing_column(db)
            self._connection = db
        return self._connection

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, write_transaction(self._db):
            yield self._db

    def add_job(self, job: Job, *, max_jobs: int) -> None:
        """Store a new job. Raises TooManyJobs if there are `max_jobs` that have not finished."""
        with self._transaction() as db:
            (count,) = db.execute("SELECT count(*) FROM jobs WHERE state != 'finished'").fetchone()
            if count >= max_jobs:
                raise TooManyJobs(max_jobs)
            db.execute(
                "DELETE FROM jobs WHERE state = 'finished' AND owner = '' AND id NOT IN (SELECT id FROM jobs"
                " WHERE state = 'finished' ORDER BY created DESC LIMIT ?)",
                (MAX_FINISHED_JOBS,),
            )
            marks = ", ".join(f":{name}" for name in _COLUMNS)
            db.execute(f"INSERT INTO jobs ({', '.join(_COLUMNS)}) VALUES ({marks})", _to_row(job))  # noqa: S608

    def find_job(self, text: str, client: str = "") -> Job:
        """Return a job by its id, the beginning of its id, or its name. Raises UnknownJob.

        With `client`, only jobs that this client created are found.
        """
        jobs = self.list_jobs(client)
        for matches in (
            [job for job in jobs if job.id == text],
            [job for job in jobs if job.name and job.name.casefold() == text.casefold()],
            [job for job in jobs if text and job.id.startswith(text)],
        ):
            if len(matches) == 1:
                return matches[0]
        raise UnknownJob(text)

    def list_jobs(self, client: str = "") -> list[Job]:
        """Return all jobs, or those that one client created; those that run next first."""
        order = "ORDER BY state = 'finished', next_run IS NULL, next_run, created"
        with self._lock:
            rows = self._db.execute(f"SELECT * FROM jobs {order}").fetchall()  # noqa: S608
        return [_read_job(row) for row in rows if not client or row["client"] == client]

    def update_job(self, job_id: str, change: Callable[[Job], Job]) -> Job:
        """Replace a job by a changed one, in one transaction. Raises UnknownJob."""
        with self._transaction() as db:
            row = db.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
            if row is None:
                raise UnknownJob(job_id)
            changed = replace(change(_read_job(row)), id=job_id)
            self._write(db, changed)
        return changed

    def remove_job(self, job_id: str) -> None:
        """Remove a job and the record of its runs; a run in progress ends normally."""
        with self._transaction() as db:
            if not db.execute("DELETE FROM jobs WHERE id = ?", (job_id,)).rowcount:
                raise UnknownJob(job_id)

    def next_time(self) -> float | None:
        """Return the earliest time at which an active job is planned that is not running; None if none is."""
        query = "SELECT min(next_run) FROM jobs WHERE state = 'active' AND owner = ''"
        with self._lock:
            row = self._db.execute(query).fetchone()
        return None if row[0] is None else float(row[0])

    def claim_due(
        self, owner: str, now: float, advance: Advance, *, grace_s: float
    ) -> tuple[Job, Run] | None:
        """Reserve one job that is due for a process, and return it with its run; None if no job is due.

        Runs that are later than `grace_s` and whose job skips missed runs are recorded as missed instead. A
        job whose next time cannot be computed is paused, with the reason in a failed run.
        """
        with self._transaction() as db:
            self._release_ended(db, now)
            rows = db.execute(
                "SELECT * FROM jobs WHERE state = 'active' AND owner = '' AND next_run <= ?"
                " ORDER BY next_run",
                (now,),
            ).fetchall()
            for row in rows:
                planned = float(row["next_run"])
                try:
                    job = _read_job(row)
                    following = advance(job, now)
                except Exception as error:  # a broken job must not keep the others from running
                    self._pause_broken(db, row["id"], planned, now, error)
                    continue
                job = replace(job, next_run=following, state="finished" if following is None else "active")
                if job.missed == "skip" and now - planned > grace_s:
                    self._write(db, job)
                    self._insert_run(db, job.id, planned, now, "missed")
                    continue
                job = replace(job, owner=owner, claimed=now)
                self._write(db, job)
                return job, self._insert_run(db, job.id, planned, now, "running")
        return None

    def claim_now(self, job_id: str, owner: str, now: float) -> tuple[Job, Run]:
        """Reserve a job for a process that runs it at once. Raises UnknownJob, or JobIsRunning."""
        with self._transaction() as db:
            self._release_ended(db, now)
            row = db.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
            if row is None:
                raise UnknownJob(job_id)
            job = _read_job(row)
            if job.owner:
                raise JobIsRunning(job)
            job = replace(job, owner=owner, claimed=now)
            self._write(db, job)
            return job, self._insert_run(db, job.id, now, now, "running")

    def finish_run(self, run: Run, owner: str) -> None:
        """Store the outcome of a run and release its job, unless `owner` has lost its claim."""
        with self._transaction() as db:
            updated = db.execute(
                "UPDATE runs SET ended = ?, state = ?, session_id = ?, result = ?, error = ?, delivery = ?"
                " WHERE number = ? AND state = 'running'",
                (
                    run.ended,
                    run.state,
                    run.session_id,
                    run.result[:MAX_RESULT_CHARS],
                    run.error[:MAX_RESULT_CHARS],
                    run.delivery,
                    run.number,
                ),
            )
            if updated.rowcount:
                db.execute(
                    "UPDATE jobs SET owner = '', claimed = 0 WHERE id = ? AND owner = ?", (run.job_id, owner)
                )

    def renew_claims(self, owner: str, now: float, job_ids: Iterable[str] = ()) -> None:
        """Keep jobs that a process is running reserved for it, and note that the process is running."""
        with self._transaction() as db:
            db.executemany(
                "UPDATE jobs SET claimed = ? WHERE owner = ? AND id = ?",
                [(now, owner, each) for each in job_ids],
            )
            db.execute("INSERT OR REPLACE INTO services VALUES (?, ?)", (owner, now))

    def remove_service(self, owner: str) -> None:
        """Note that a scheduler has ended."""
        with self._transaction() as db:
            db.execute("DELETE FROM services WHERE owner = ?", (owner,))

    def has_service(self, now: float) -> bool:
        """Return True if a scheduler is running."""
        with self._lock:
            rows = self._db.execute("SELECT owner, seen FROM services").fetchall()
        return any(now - row["seen"] < CLAIM_LIFETIME_S and not has_owner_ended(row["owner"]) for row in rows)

    def list_runs(self, job_id: str = "", *, limit: int = 20) -> list[Run]:
        """Return the newest runs, of one job or of all, newest first."""
        condition = "WHERE job_id = ?" if job_id else "WHERE ? = ''"
        query = f"SELECT * FROM runs {condition} ORDER BY number DESC LIMIT ?"  # noqa: S608
        with self._lock:
            return [Run(**dict(row)) for row in self._db.execute(query, (job_id, limit))]

    def close(self) -> None:
        """Close the file, if it was opened."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _release_ended(self, db: sqlite3.Connection, now: float) -> None:
        """Release the jobs that are reserved for processes that have ended or no longer renew that."""
        for row in db.execute("SELECT id, owner, claimed FROM jobs WHERE owner != ''").fetchall():
            if now - row["claimed"] < CLAIM_LIFETIME_S and not has_owner_ended(row["owner"]):
                continue
            db.execute("UPDATE jobs SET owner = '', claimed = 0 WHERE id = ?", (row["id"],))
            db.execute(
                "UPDATE runs SET state = 'interrupted', ended = ?, error = ?"
                " WHERE job_id = ? AND state = 'running'",
                (now, "the scheduler ended during the run", row["id"]),
            )

    def _pause_broken(
        self, db: sqlite3.Connection, job_id: str, planned: float, now: float, error: Exception
    ) -> None:
        """Pause a job whose next time cannot be computed, and record the reason as a failed run."""
        db.execute("UPDATE jobs SET state = 'paused', next_run = NULL WHERE id = ?", (job_id,))
        reason = f"the job was paused, because its next time cannot be computed: {error_message(error)}"
        self._insert_run(db, job_id, planned, now, "failed", reason[:MAX_RESULT_CHARS])

    def _insert_run(
        self,
        db: sqlite3.Connection,
        job_id: str,
        planned: float,
        now: float,
        state: RunState,
        error: str = "",
    ) -> Run:
        ended = None if state == "running" else now
        cursor = db.execute(
            "INSERT INTO runs (job_id, planned, started, ended, state, session_id, result, error, delivery)"
            " VALUES (?, ?, ?, ?, ?, '', '', ?, '')",
            (job_id, planned, now, ended, state, error),
        )
        db.execute(
            "DELETE FROM runs WHERE job_id = ? AND number NOT IN"
            " (SELECT number FROM runs WHERE job_id = ? ORDER BY number DESC LIMIT ?)",
            (job_id, job_id, MAX_RUNS_PER_JOB),
        )
        number = int(cursor.lastrowid or 0)
        return Run(
            number=number,
            job_id=job_id,
            planned=planned,
            started=now,
            ended=ended,
            state=state,
            error=error,
        )

    def _write(self, db: sqlite3.Connection, job: Job) -> None:
        assignments = ", ".join(f"{name} = :{name}" for name in _COLUMNS)
        db.execute(f"UPDATE jobs SET {assignments} WHERE id = :id", _to_row(job))  # noqa: S608


def _add_missing_column(db: sqlite3.Connection) -> None:
    """Add the column `client` to a file that an older version created; its jobs are the user's own."""
    if "client" not in {row["name"] for row in db.execute("PRAGMA table_info(jobs)")}:
        with contextlib.suppress(sqlite3.OperationalError):  # another process has just added it
            db.execute("ALTER TABLE jobs ADD COLUMN client TEXT NOT NULL DEFAULT ''")


def _to_row(job: Job) -> Json:
    values = asdict(job)
    return values | {key: json.dumps(values[key]) for key in _JSON_FIELDS}


def _read_job(row: sqlite3.Row) -> Job:
    values = dict(row)
    values |= {key: json.loads(values[key]) for key in _JSON_FIELDS}
    toolsets = values["toolsets"]
    values["limits"], values["toolsets"] = (
        tuple(values["limits"]),
        None if toolsets is None else tuple(toolsets),
    )
    return Job(**values)
