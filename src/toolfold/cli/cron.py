"""`toolfold cron`: schedule tasks for an agent, manage them, and run them when they are due."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.activity import clean_line
from toolfold.cli.app import EXIT_FAILED, Invocation, json_option
from toolfold.cli.output import (
    escape_text,
    format_count,
    print_json,
    print_line,
    print_note,
    print_table,
    print_warning,
)
from toolfold.cli.run import interrupt_on_signals
from toolfold.cli.server_commands import confirm
from toolfold.cli.shared_database import use_database
from toolfold.core.errors import CallError

if TYPE_CHECKING:
    from toolfold.agent.scheduler import Scheduler
    from toolfold.config import Config
    from toolfold.state.store.jobs import Job, Run
    from toolfold.tools.scheduled_jobs import ScheduledJobs

PREVIEW_TIMES = 5
_MISSED = click.Choice(["once", "skip"])
_NO_SCHEDULER = "no scheduler is running: start one with `toolfold cron run`"
_NO_MODEL = (
    "no model is configured, so the job will fail: give the job one with --model, or run"
    " `toolfold config set agent.model PROVIDER:MODEL`"
)


@click.group("cron")
def command() -> None:
    """Schedule tasks for an agent, manage them, and run them when they are due.

    JOB is the id of a job, the beginning of one, or its name.
    """


def _open_jobs(config: Config) -> ScheduledJobs:
    from toolfold.runtime.parts import JOBS_FILE
    from toolfold.state.store.jobs import open_job_store
    from toolfold.tools.scheduled_jobs import ScheduledJobs

    store = open_job_store(config.paths.state_dir / JOBS_FILE, use_database(config))
    return ScheduledJobs(store, config.cron, config.paths.current_dir)


@contextlib.contextmanager
def _jobs(invocation: Invocation) -> Iterator[ScheduledJobs]:
    jobs = _open_jobs(invocation.load_config())
    try:
        yield jobs
    except CallError as error:
        raise click.ClickException(str(error)) from None
    finally:
        jobs.store.close()


@command.command("add")
@click.argument("schedule")
@click.argument("prompt")
@click.option("--name", default="", help="Name of the job.")
@click.option(
    "--to", "send_to", default="", metavar="TARGET", help="Send each result to this message target."
)
@click.option(
    "--toolset", "toolsets", multiple=True, metavar="NAME", help="Allow only this toolset. Repeatable."
)
@click.option(
    "--missed",
    type=_MISSED,
    default="once",
    show_default=True,
    help="What to do about missed runs: run the job once, or skip the runs.",
)
@click.option(
    "--time-zone", default="", metavar="ZONE", help="Time zone of the schedule, such as Europe/Berlin."
)
@click.option(
    "--model",
    default="",
    metavar="PROVIDER:MODEL",
    help="Model to use. Default: cron.model or, if it is empty, agent.model.",
)
@json_option
@click.pass_obj
def add(invocation: Invocation, /, as_json: bool, **values: Any) -> None:
    """Schedule a task: SCHEDULE as cron expression, time or interval, PROMPT for the agent.

    \b
    toolfold cron add "30 8 * * 1-5" "Summarise the new issues" --to team
    toolfold cron add "0 3 * * 0" "Delete build directories older than a month"
    """
    from toolfold.state.store.jobs import Job
    from toolfold.tools.scheduled_jobs import describe_job

    _check_references(invocation, values)
    zone, toolsets = values.pop("time_zone"), values.pop("toolsets") or None
    with _jobs(invocation) as jobs:
        job = jobs.create(Job(**values, zone=zone, toolsets=toolsets, times={}))
        has_scheduler = jobs.has_scheduler()
    if as_json:
        print_json(describe_job(job))
        return
    print_line(f"added {job.id}: {escape_text(_format_next(job))}")
    config = invocation.load_config(quiet=True)
    if not (job.model or config.cron.model or config.agent.model):
        print_warning(_NO_MODEL)
    if not has_scheduler:
        print_note(_NO_SCHEDULER)


def _describe_last(run: Run | None) -> dict[str, str]:
    """Return the outcome of a job's last run; empty if the job has not run yet."""
    return {"last_run": run.state} if run else {}


def _check_references(invocation: Invocation, values: dict[str, Any]) -> None:
    """Raise an error if a job names a message target, a model or a toolset that does not exist."""
    config = invocation.load_config()
    target = values["send_to"]
    if target and target not in config.messages.targets:
        known = ", ".join(config.messages.targets) or "none; add one to the setting messages.targets"
        raise click.UsageError(f"there is no message target {target!r}. Known targets: {known}")
    if values["model"]:
        from toolfold.models.model_names import parse_model_name

        parse_model_name(values["model"], config, key="--model")
    if values["toolsets"]:
        with invocation.open_runtime() as runtime:
            runtime.toolsets().require(values["toolsets"])


@command.command("list")
@json_option
@click.pass_obj
def list_jobs(invocation: Invocation, as_json: bool) -> None:
    """List all jobs; the job that runs next comes first."""
    from toolfold.tools.scheduled_jobs import describe_job

    with _jobs(invocation) as jobs:
        found, has_scheduler = jobs.store.list_jobs(), jobs.has_scheduler()
        last_runs = {job.id: next(iter(jobs.store.list_runs(job.id, limit=1)), None) for job in found}
    if as_json:
        print_json([describe_job(job) | _describe_last(last_runs[job.id]) for job in found])
        return
    if not found:
        print_line('no jobs are scheduled. Add one: toolfold cron add "30 8 * * 1-5" "…"')
        return
    print_table(
        format_count(len(found), "job"),
        ("id", "schedule", "next run", "last run", "task"),
        (
            (
                job.id,
                clean_line(job.schedule, 60),
                _format_next(job),
                _describe_last(last_runs[job.id]).get("last_run", ""),
                clean_line(job.name or job.prompt, 60),
            )
            for job in found
        ),
        no_wrap="id",
    )
    if failed := [job.id for job in found if (run := last_runs[job.id]) and run.state == "failed"]:
        print_note(f"to see why a run failed: toolfold cron show {failed[0]}")
    if not has_scheduler:
        print_note(_NO_SCHEDULER)


@command.command("show")
@click.argument("job")
@click.option(
    "-n", "--last", default=5, show_default=True, type=click.IntRange(1, 50), help="Number of runs."
)
@json_option
@click.pass_obj
def show(invocation: Invocation, job: str, last: int, as_json: bool) -> None:
    """Show a job and its last runs with their results."""
    from toolfold.tools.scheduled_jobs import describe_job, format_moment

    with _jobs(invocation) as jobs:
        found = jobs.store.find_job(job)
        runs = jobs.store.list_runs(found.id, limit=last)
    if as_json:
        print_json({**describe_job(found), "runs": [asdict(run) for run in runs]})
        return
    for key, value in describe_job(found).items():
        print_line(f"{key}: {escape_text(clean_line(str(value), 2_000))}")
    for run in runs:
        session = f" · session {run.session_id}" if run.session_id else ""
        print_line(
            f"\n[bold]{escape_text(format_moment(run.planned, found.zone))}[/bold] {run.state}{session}"
        )
        for text in (run.result, run.error, run.delivery and f"message: {run.delivery}"):
            if text:
                print_line(escape_text(clean_line(text, 2_000)))


@command.command("edit")
@click.argument("job")
@click.option("--schedule", help="New schedule.")
@click.option("--prompt", help="New task.")
@click.option("--name", help="New name.")
@click.option(
    "--to", "send_to", metavar="TARGET", help="Send each result to this message target; empty for none."
)
@click.option(
    "--missed", type=_MISSED, help="What to do about missed runs: run the job once, or skip the runs."
)
@click.option("--time-zone", "zone", metavar="ZONE", help="Time zone of the schedule, such as Europe/Berlin.")
@click.option("--model", metavar="PROVIDER:MODEL", help="Model to use; empty for the setting cron.model.")
@click.pass_obj
def edit(invocation: Invocation, /, job: str, **values: str | None) -> None:
    """Change the schedule, the task or the options of a job."""
    given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    if not given:
        raise click.UsageError("nothing to change: give --schedule, --prompt or another option")
    _check_references(invocation, {"send_to": "", "model": "", "toolsets": (), **given})
    with _jobs(invocation) as jobs:
        changed = jobs.change(jobs.store.find_job(job).id, lambda before: replace(before, **given))
    print_line(f"changed {changed.id}: {escape_text(_format_next(changed))}")


@command.command("pause")
@click.argument("job")
@click.pass_obj
def pause(invocation: Invocation, job: str) -> None:
    """Keep a job from running until it is resumed."""
    with _jobs(invocation) as jobs:
        print_line(f"paused {jobs.pause(jobs.store.find_job(job).id).id}")


@command.command("resume")
@click.argument("job")
@click.pass_obj
def resume(invocation: Invocation, job: str) -> None:
    """Let a paused job run again."""
    with _jobs(invocation) as jobs:
        resumed = jobs.resume(jobs.store.find_job(job).id)
    print_line(f"resumed {resumed.id}: {escape_text(_format_next(resumed))}")


@command.command("remove")
@click.argument("job")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def remove(invocation: Invocation, job: str, yes: bool) -> int:
    """Remove a job and the record of its runs."""
    with _jobs(invocation) as jobs:
        found = jobs.store.find_job(job)
        print_note(f"{found.id}  {escape_text(clean_line(found.name or found.prompt, 100))}")
        if not confirm("Remove this job?", yes):
            print_line("nothing was removed.")
            return EXIT_FAILED
        jobs.store.remove_job(found.id)
    print_line(f"removed {found.id}")
    return 0


@command.command("preview")
@click.argument("schedule")
@click.option(
    "--time-zone", default="", metavar="ZONE", help="Time zone of the schedule, such as Europe/Berlin."
)
@json_option
@click.pass_obj
def preview(invocation: Invocation, schedule: str, time_zone: str, as_json: bool) -> None:
    """Show the next times of a SCHEDULE, without adding a job."""
    from toolfold.tools.schedules import find_zone, local_zone_name, parse_schedule

    name = time_zone or invocation.load_config().cron.time_zone or local_zone_name()
    now = datetime.now(UTC)
    try:
        zone = find_zone(name)
        times = list(parse_schedule(schedule, now, zone).upcoming(now, zone, PREVIEW_TIMES))
    except CallError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        print_json({"time_zone": name, "times": [each.astimezone(zone).isoformat() for each in times]})
        return
    for each in times:
        print_line(escape_text(f"{each.astimezone(zone):%a %Y-%m-%d %H:%M %Z}"))


@command.command("run")
@click.argument("job", required=False)
@click.option("--due", is_flag=True, help="Run the jobs that are due now, then exit.")
@click.pass_obj
def run_jobs(invocation: Invocation, job: str | None, due: bool) -> int:
    """Run jobs when they are due, until stopped; with JOB, run only that job, now.

    Stop it with Ctrl-C or SIGTERM: jobs that are running get time to end (cron.stop_seconds); a second
    signal interrupts them. Several processes can run at the same time; each run is made by one of them.
    """
    from toolfold.agent.scheduler import Scheduler
    from toolfold.serving.gateway.client_tokens import open_tokens
    from toolfold.serving.gateway.job_clients import limit_jobs_by_token

    config = invocation.load_config()
    limit_client = limit_jobs_by_token(
        open_tokens(config, use_database(config)), allow_anonymous=config.gateway.allow_anonymous
    )
    with _jobs(invocation) as jobs:

        async def work() -> int:
            scheduler = Scheduler(jobs, config, report=_report, limit_client=limit_client)
            with interrupt_on_signals(scheduler.stop):
                return await _run_scheduler(scheduler, jobs, job, due)

        return asyncio.run(work())


async def _run_scheduler(scheduler: Scheduler, jobs: ScheduledJobs, job: str | None, due: bool) -> int:
    if job:
        run = await scheduler.run_job(jobs.store.find_job(job).id)
        return 0 if run.state == "completed" else EXIT_FAILED
    if due:
        print_line(f"{format_count(await scheduler.run_due(), 'job')} run")
        return 0
    active = sum(each.state == "active" for each in jobs.store.list_jobs())
    print_line(f"waiting for {format_count(active, 'job')}; stop with Ctrl-C")
    await scheduler.run()
    print_line("stopped")
    return 0


def _report(job: Job, run: Run) -> None:
    """Print that the run of a scheduled job started or ended."""
    name = clean_line(job.name or job.prompt, 60)
    if run.state == "running":
        print_line(escape_text(f"{job.id} {name}: started"))
        return
    print_line(escape_text(f"{job.id} {name}: {run.state}{f' ({run.error})' if run.error else ''}"))
    if run.result:
        print_line(escape_text(clean_line(run.result, 2_000)))
    if run.delivery:
        print_line(escape_text(f"message to {job.send_to}: {run.delivery}"))


def _format_next(job: Job) -> str:
    from toolfold.tools.scheduled_jobs import format_moment

    if job.owner:
        return "running now"
    return format_moment(job.next_run, job.zone) if job.next_run is not None else job.state
