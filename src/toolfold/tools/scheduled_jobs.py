"""Create and change scheduled jobs, for the tool `cronjob` and the command line.

Checks what people and models enter, and computes the next time of a job. Runs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path

from toolfold.config.cron_settings import CronSettings
from toolfold.core.errors import CallError
from toolfold.core.types import Json
from toolfold.state.store.jobs import Job, JobState, JobStore, Run
from toolfold.tools.schedules import Schedule, ScheduleError, find_zone, local_zone_name, parse_schedule

MAX_PROMPT_CHARS = 20_000
MAX_NAME_CHARS = 60
SHOWN_RESULT_CHARS = 1_000
STDIO_PREFIX = "stdio:"
"""Precedes the name of a client over stdio, which the client chooses itself; no token has such a name."""


class JobRejected(CallError):
    """A scheduled job cannot be created or changed as requested."""


class ScheduledJobs:
    """The scheduled jobs of one user."""

    def __init__(
        self,
        store: JobStore,
        settings: CronSettings,
        directory: Path,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Manage the scheduled jobs in a job store.

        `directory` is the working directory of new jobs; `clock` returns the seconds since 1970.
        """
        self.store, self.settings, self.clock = store, settings, clock
        self.directory = directory

    def create(self, draft: Job) -> Job:
        """Store a new scheduled job. Raises ScheduleError, JobRejected or TooManyJobs.

        Of the draft, the schedule is a text; an empty time zone means the configured one.
        """
        job = self.check(draft)
        self.store.add_job(job, max_jobs=self.settings.max_jobs)
        return job

    def check(self, draft: Job) -> Job:
        """Return the job that `create` would store. Raises ScheduleError or JobRejected."""
        zone = draft.zone or self.settings.time_zone or local_zone_name()
        job = self._plan(replace(draft, zone=zone, directory=draft.directory or str(self.directory)))
        self._check_text(job)
        return job

    def change(self, job_id: str, change: Callable[[Job], Job]) -> Job:
        """Change a job; recompute its next run time if the schedule or time zone changes."""

        def apply(job: Job) -> Job:
            changed = change(job)
            self._check_text(changed, job.id)
            if (changed.schedule, changed.zone) != (job.schedule, job.zone):
                changed = replace(self._plan(changed), state=_restart(job.state))
            return changed

        return self.store.update_job(job_id, apply)

    def pause(self, job_id: str) -> Job:
        """Pause a scheduled job until it is resumed."""
        return self.store.update_job(job_id, lambda job: replace(job, state="paused", next_run=None))

    def resume(self, job_id: str) -> Job:
        """Resume a paused job. Raises JobRejected if it has no future run time."""

        def restart(job: Job) -> Job:
            following = self.advance(job, self.clock())
            if following is None:
                raise JobRejected(f"The time of the job has passed ({job.schedule}). Give it a new schedule.")
            return replace(job, state="active", next_run=following)

        return self.store.update_job(job_id, restart)

    def advance(self, job: Job, moment: float) -> float | None:
        """Return a job's first run time after the given moment; None if there is none."""
        schedule = Schedule.from_json(job.times)
        following = schedule.next_after(datetime.fromtimestamp(moment, UTC), find_zone(job.zone))
        return None if following is None else following.timestamp()

    def has_scheduler(self) -> bool:
        """Return True if a scheduler process is active."""
        return self.store.has_service(self.clock())

    def _plan(self, job: Job) -> Job:
        zone, now = find_zone(job.zone), datetime.fromtimestamp(self.clock(), UTC)
        schedule = parse_schedule(job.schedule, now, zone)
        following = schedule.next_after(now, zone)
        if following is None:
            raise ScheduleError(f"The schedule {job.schedule!r} has no run time in the future.")
        return replace(
            job, schedule=job.schedule.strip(), times=schedule.to_json(), next_run=following.timestamp()
        )

    def _check_text(self, job: Job, job_id: str = "") -> None:
        if not job.prompt.strip():
            raise JobRejected("The job needs a task: what the agent should do.")
        if len(job.prompt) > MAX_PROMPT_CHARS:
            raise JobRejected(f"The task has more than {MAX_PROMPT_CHARS:,} characters.")
        if len(job.name) > MAX_NAME_CHARS or not (job.name == "" or job.name.isprintable()):
            raise JobRejected(f"The name must be one line of at most {MAX_NAME_CHARS} characters.")
        taken = {each.name.casefold() for each in self.store.list_jobs() if each.name and each.id != job_id}
        if job.name.casefold() in taken:
            raise JobRejected(f"Another job has the name {job.name!r}. Choose another name.")


def describe_job(job: Job) -> Json:
    """Return a description of a job as JSON data, for a person or a model."""
    optional = {
        "name": job.name,
        "client": job.client,
        "send_to": job.send_to,
        "toolsets": None if job.toolsets is None else list(job.toolsets),
        "next_run": format_moment(job.next_run, job.zone) if job.next_run else None,
    }
    return {
        "id": job.id,
        "schedule": job.schedule,
        "time_zone": job.zone,
        "prompt": job.prompt,
        "state": "running" if job.owner else job.state,
        "missed": job.missed,
        **{key: value for key, value in optional.items() if value},
    }


def describe_run(run: Run, zone: str) -> Json:
    """Return a description of a run as JSON data, for a person or a model, with long results truncated."""
    optional = {
        "session": run.session_id,
        "result": run.result[:SHOWN_RESULT_CHARS],
        "error": run.error,
        "delivery": run.delivery,
    }
    return {
        "planned": format_moment(run.planned, zone),
        "state": run.state,
        **{key: value for key, value in optional.items() if value},
    }


def format_moment(moment: float, zone: str) -> str:
    """Return a moment as text such as `2026-12-24 18:00 CET`, in UTC if the time zone is unknown."""
    try:
        known: tzinfo = find_zone(zone)
    except ScheduleError:  # the job can still be listed and changed
        known = UTC
    return f"{datetime.fromtimestamp(moment, known):%Y-%m-%d %H:%M %Z}"


def _restart(state: JobState) -> JobState:
    return "active" if state == "finished" else state
