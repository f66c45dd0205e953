"""The store of scheduled jobs: claims, missed runs, limits and several processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from toolfold.state.database import open_database
from toolfold.state.store.jobs import (
    CLAIM_LIFETIME_S,
    MAX_RUNS_PER_JOB,
    Job,
    JobIsRunning,
    JobStore,
    SqliteJobStore,
    TooManyJobs,
    UnknownJob,
    open_job_store,
)

NOW = 1_000_000.0
OWNER = f"{socket.gethostname()}:{os.getpid()}:test"
CLAIM_ALL = """
import sys
from pathlib import Path
from toolfold.state.store.jobs import open_job_store
from toolfold.state.database import open_database
where = sys.argv[1]
store = open_job_store(Path(where), open_database(where) if where.startswith("postgresql:") else None)
sys.stdin.readline()  # all processes start to claim at the same moment
while claimed := store.claim_due(sys.argv[2], 1_000_000.0, lambda job, now: None, grace_s=60):
    print(claimed[0].id)
"""


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The file or the database with the jobs; both must behave the same."""
    if request.param == "sqlite":
        return str(tmp_path / "state" / "jobs.db")
    return str(request.getfixturevalue("database_url"))


@pytest.fixture
def store(where: str) -> Iterator[JobStore]:
    with open_store(where) as opened:
        yield opened


@contextmanager
def open_store(where: str) -> Iterator[JobStore]:
    database = open_database(where) if where.startswith("postgresql:") else None
    opened = open_job_store(Path(where), database)
    yield opened
    opened.close()
    if database is not None:
        database.close()


def test_job_file_of_an_older_version_can_be_opened_and_its_jobs_belong_to_the_local_user(
    tmp_path: Path,
) -> None:
    store = SqliteJobStore(tmp_path / "jobs.db")
    store.add_job(make_job(name="old"), max_jobs=10)
    store._db.execute("ALTER TABLE jobs DROP COLUMN client")
    store.close()
    assert [(job.name, job.client) for job in store.list_jobs()] == [("old", "")]
    assert store.list_jobs("desk") == []
    store.close()


def make_job(**values: object) -> Job:
    job = Job(prompt="Work", schedule="hourly", times={"kind": "interval"}, zone="UTC", next_run=NOW - 10)
    return replace(job, **values)  # type: ignore[arg-type]


def advance_hour(_job: Job, now: float) -> float:
    return now + 3_600


def test_scheduled_job_is_still_stored_after_the_store_is_closed_and_reopened(
    store: JobStore, where: str
) -> None:
    job = make_job(
        name="work", toolsets=("web",), limits=({"enabled": None, "disabled": ["file"]},), send_to="me"
    )
    store.add_job(job, max_jobs=5)
    store.close()
    with open_store(where) as again:
        assert again.list_jobs() == [job]
        assert again.find_job("WORK") == again.find_job(job.id[:6]) == job
    if isinstance(store, SqliteJobStore):
        assert Path(where).stat().st_mode & 0o777 == 0o600


def test_due_job_is_claimed_by_only_one_scheduler_and_its_next_run_time_is_set(store: JobStore) -> None:
    job = make_job()
    store.add_job(job, max_jobs=5)
    claimed = store.claim_due(OWNER, NOW, advance_hour, grace_s=60)
    assert claimed is not None
    assert (claimed[0].owner, claimed[0].next_run, claimed[1].planned) == (OWNER, NOW + 3_600, NOW - 10)
    store.renew_claims(OWNER, NOW + 7_200, [job.id])
    assert store.claim_due(OWNER, NOW + 7_200, advance_hour, grace_s=60) is None  # it is still running
    with pytest.raises(JobIsRunning):
        store.claim_now(job.id, OWNER, NOW)
    store.finish_run(replace(claimed[1], state="completed", ended=NOW, result="done"), OWNER)
    assert store.claim_due(OWNER, NOW, advance_hour, grace_s=60) is None  # not due yet
    assert [run.result for run in store.list_runs(job.id)] == ["done"]


def test_forty_due_jobs_are_each_claimed_only_once_by_two_concurrent_processes(
    store: JobStore, where: str
) -> None:
    for number in range(40):
        store.add_job(make_job(next_run=NOW - number), max_jobs=50)
    command = [sys.executable, "-c", CLAIM_ALL, where]
    processes = [
        subprocess.Popen([*command, f"host{n}:1:x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for n in range(2)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    claimed = [line for process in processes for line in process.communicate(timeout=120)[0].split()]
    assert len(claimed) == len(set(claimed)) == 40


def test_job_run_of_a_dead_process_is_marked_as_interrupted_and_not_repeated(store: JobStore) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    job = make_job()
    store.add_job(job, max_jobs=5)
    assert store.claim_due(f"{socket.gethostname()}:{process.pid}:x", NOW, advance_hour, grace_s=60)
    assert store.claim_due(OWNER, NOW + 1, advance_hour, grace_s=60) is None
    (run,) = store.list_runs(job.id)
    assert (run.state, run.error) == ("interrupted", "the scheduler ended during the run")
    assert store.find_job(job.id).owner == ""


def test_job_can_be_claimed_after_the_claim_of_another_machine_has_expired(
    store: JobStore,
) -> None:
    job = make_job()
    store.add_job(job, max_jobs=5)
    assert store.claim_due("elsewhere:1:x", NOW, advance_hour, grace_s=60)
    store.renew_claims("elsewhere:1:x", NOW + 100, [job.id])
    later = NOW + 100 + CLAIM_LIFETIME_S
    assert store.claim_due(OWNER, later - 1, advance_hour, grace_s=60) is None
    assert store.find_job(job.id).owner == "elsewhere:1:x"
    assert store.claim_due(OWNER, later + 3_600, advance_hour, grace_s=10**6) is not None


def test_scheduler_with_an_expired_claim_cannot_finish_the_run_of_the_next_scheduler(
    store: JobStore,
) -> None:
    job = make_job()
    store.add_job(job, max_jobs=5)
    _, lost = store.claim_now(job.id, "elsewhere:1:x", NOW)
    _, current = store.claim_now(job.id, OWNER, NOW + CLAIM_LIFETIME_S + 1)
    store.finish_run(replace(lost, state="completed", ended=NOW), "elsewhere:1:x")
    assert store.find_job(job.id).owner == OWNER
    assert [run.state for run in store.list_runs(job.id)] == ["running", "interrupted"]
    store.finish_run(replace(current, state="completed", ended=NOW), OWNER)
    assert store.find_job(job.id).owner == ""


def test_claim_of_a_job_that_the_scheduler_no_longer_runs_is_not_renewed(store: JobStore) -> None:
    job = make_job()
    store.add_job(job, max_jobs=5)
    store.claim_now(job.id, OWNER, NOW)
    store.renew_claims(OWNER, NOW + 100, ())
    assert store.find_job(job.id).claimed == NOW


def test_job_store_returns_no_next_run_time_while_its_only_job_is_running(store: JobStore) -> None:
    store.add_job(make_job(), max_jobs=5)
    claimed = store.claim_due(OWNER, NOW, lambda _job, now: now + 1, grace_s=60)
    assert claimed is not None
    assert store.next_time() is None
    store.finish_run(replace(claimed[1], state="completed", ended=NOW), OWNER)
    assert store.next_time() == NOW + 1


def test_job_whose_next_run_time_cannot_be_computed_is_paused_and_other_jobs_still_run(
    store: JobStore,
) -> None:
    broken, unreadable = make_job(zone="Mars/Olympus", next_run=NOW - 30), make_job(next_run=NOW - 20)
    sound = make_job()
    for job in (broken, unreadable, sound):
        store.add_job(job, max_jobs=5)
    store._transact(lambda db: db.change("UPDATE jobs SET limits = '{' WHERE id = ?", (unreadable.id,)))

    def advance(job: Job, now: float) -> float:
        if job.zone != "UTC":
            raise UnknownJob(job.zone)
        return now + 3_600

    claimed = store.claim_due(OWNER, NOW, advance, grace_s=60)
    assert claimed is not None
    assert claimed[0].id == sound.id
    (run,) = store.list_runs(broken.id)
    assert (run.state, run.ended) == ("failed", NOW)
    assert "Mars/Olympus" in run.error
    assert [run.state for run in store.list_runs(unreadable.id)] == ["failed"]
    assert store.claim_due(OWNER, NOW, advance, grace_s=60) is None


def test_job_that_missed_several_run_times_runs_once_or_not_at_all_as_configured(store: JobStore) -> None:
    late, skipping = make_job(next_run=NOW - 90_000), make_job(next_run=NOW - 90_000, missed="skip")
    store.add_job(late, max_jobs=5)
    store.add_job(skipping, max_jobs=5)
    claimed = store.claim_due(OWNER, NOW, advance_hour, grace_s=300)
    assert claimed is not None
    assert claimed[0].id == late.id
    assert claimed[0].next_run == NOW + 3_600  # once, not once for each missed hour
    assert store.claim_due(OWNER, NOW, advance_hour, grace_s=300) is None
    assert [run.state for run in store.list_runs(skipping.id)] == ["missed"]
    assert store.find_job(skipping.id).next_run == NOW + 3_600


def test_job_without_further_run_times_is_finished_and_does_not_count_towards_max_jobs(
    store: JobStore,
) -> None:
    job = make_job()
    store.add_job(job, max_jobs=1)
    claimed = store.claim_due(OWNER, NOW, lambda _job, _now: None, grace_s=60)
    assert claimed is not None
    assert claimed[0].state == "finished"
    store.finish_run(replace(claimed[1], state="completed", ended=NOW), OWNER)
    assert store.next_time() is None
    store.add_job(make_job(), max_jobs=1)  # a finished job does not count


def test_number_of_jobs_and_number_of_stored_runs_per_job_are_limited(
    store: JobStore,
) -> None:
    job = make_job()
    store.add_job(job, max_jobs=1)
    with pytest.raises(TooManyJobs, match=r"cron\.max_jobs"):
        store.add_job(make_job(), max_jobs=1)
    for _ in range(MAX_RUNS_PER_JOB + 3):
        _, run = store.claim_now(job.id, OWNER, NOW)
        store.finish_run(replace(run, state="completed", ended=NOW), OWNER)
    assert len(store.list_runs(job.id, limit=1_000)) == MAX_RUNS_PER_JOB


def test_removing_a_job_deletes_its_runs_and_a_later_lookup_raises_unknown_job(store: JobStore) -> None:
    job = make_job()
    store.add_job(job, max_jobs=5)
    store.claim_now(job.id, OWNER, NOW)
    store.remove_job(job.id)
    assert store.list_runs() == []
    with pytest.raises(UnknownJob, match=job.id):
        store.find_job(job.id)


def test_scheduler_counts_as_running_only_while_it_renews_its_claims(store: JobStore) -> None:
    assert not store.has_service(NOW)
    store.renew_claims(OWNER, NOW)
    assert store.has_service(NOW + 60)
    assert not store.has_service(NOW + CLAIM_LIFETIME_S + 1)
    store.remove_service(OWNER)
    assert not store.has_service(NOW)
