"""The `cronjob` toolset: schedule jobs and list scheduled jobs.

A job is a task for an agent without a user. It never may use more than the session that created it, and
cannot create jobs itself. Creating and changing jobs needs approval; `toolfold cron run` runs them. Clients
of a gateway see and change only their own jobs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from toolfold.config.web_settings import MessagesSettings
from toolfold.core.types import CallContext, Effect, Json, Meaning, Source, Tool
from toolfold.core.untrusted_text import mark_texts
from toolfold.state.store.jobs import Job
from toolfold.tools.builtin import OutsideText, Services
from toolfold.tools.builtin._builtin import build_builtin_tool
from toolfold.tools.scheduled_jobs import (
    MAX_NAME_CHARS,
    MAX_PROMPT_CHARS,
    STDIO_PREFIX,
    JobRejected,
    ScheduledJobs,
    describe_job,
    describe_run,
)
from toolfold.tools.schedules import MAX_SCHEDULE_CHARS

SOURCE = Source("builtin", "cronjob")
SEND_TOOL = "send_message"
STDIO_CLIENT = "stdio"
MAX_TOOLSETS = 50
_NO_SCHEDULER = (
    "No scheduler is running, so the job will not run: tell the user to start `toolfold cron run`."
)

_CRONJOB: Json = {
    "description": (
        "Schedule a task for an agent, once or repeatedly, or change, pause, resume or remove a scheduled"
        " job."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "action": {"enum": ["create", "update", "pause", "resume", "remove"]},
            "job": {
                "type": "string",
                "maxLength": MAX_NAME_CHARS,
                "description": "Id or name of the job; for all actions but create.",
            },
            "schedule": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_SCHEDULE_CHARS,
                "description": 'Cron expression ("30 8 * * 1-5"), time ("2026-12-24T18:00") or interval'
                ' ("every 2 hours", "every 3 days at 09:00", "in 20 minutes").',
            },
            "prompt": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_PROMPT_CHARS,
                "description": "The task, with everything the agent must know: it sees nothing of this"
                " conversation and can ask nobody.",
            },
            "name": {"type": "string", "maxLength": MAX_NAME_CHARS},
            "send_to": {
                "type": "string",
                "description": "Target{send_message? of send_message} that gets each result; empty for none.",
            },
            "toolsets": {
                "type": "array",
                "maxItems": MAX_TOOLSETS,
                "items": {"type": "string"},
                "description": "Toolsets it may use, out of yours. Default: all of yours.",
            },
            "missed": {
                "enum": ["once", "skip"],
                "description": "If no scheduler ran at a planned time: run once later (default), or skip it.",
            },
            "time_zone": {
                "type": "string",
                "maxLength": 60,
                "description": "Such as Europe/Berlin. Default: the user's.",
            },
        },
        "required": ["action"],
        "additionalProperties": False,
    },
}
_CRONJOB_LIST: Json = {
    "description": "List the scheduled jobs with their next times, or show one with its last results.",
    "parameters": {
        "type": "object",
        "properties": {
            "job": {
                "type": "string",
                "maxLength": MAX_NAME_CHARS,
                "description": "Id or name of one job, to see its runs.",
            }
        },
        "additionalProperties": False,
    },
}


def tools(services: Services) -> list[Tool]:
    """Return the tools `cronjob` and `cronjob_list`."""
    if services.jobs is None:
        return []
    jobs = CronTools(services.jobs, services.messages, services.outside_text)
    words = ("remind", "reminder", "schedule", "recurring", "timer", "later", "cron", "periodically")
    return [
        build_builtin_tool(
            name="cronjob",
            toolset="cronjob",
            schema=_CRONJOB,
            handler=jobs.change,
            emoji="⏰",
            effects=(Effect.WRITE, Effect.SCHEDULE),
            judged_as=dict.fromkeys(_CRONJOB["parameters"]["properties"], Meaning.NOTE),
            precheck=jobs.check_change,
            standalone=True,  # code in a loop could schedule many jobs with one approval
            synonyms=words,
            source=SOURCE,
        ),
        build_builtin_tool(
            name="cronjob_list",
            toolset="cronjob",
            schema=_CRONJOB_LIST,
            handler=jobs.show,
            emoji="🗓️",
            effects=(Effect.READ,),
            synonyms=words,
            source=SOURCE,
        ),
    ]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class CronTools:
    """Handlers of the tools `cronjob` and `cronjob_list`."""

    jobs: ScheduledJobs
    messages: MessagesSettings
    outside_text: OutsideText

    def show(self, args: Json, context: CallContext) -> Json:
        """Return the caller's scheduled jobs or, if a job is named, that job with its last runs."""
        if not args.get("job"):
            jobs = self.jobs.store.list_jobs(_name_client(context), since=context.caller.since)
            listed = [self._describe(job, context) for job in jobs]
            return {"jobs": listed, "scheduler_running": self.jobs.has_scheduler()}
        job = self._find(args, context)
        runs = [describe_run(run, job.zone) for run in self.jobs.store.list_runs(job.id, limit=5)]
        marked: Json = {"runs": mark_texts(runs, self.outside_text.mark_untrusted)}
        return {**self._describe(job, context), **marked}

    def _describe(self, job: Job, context: CallContext) -> Json:
        """Return a description of a job for the model; texts of other clients are marked as untrusted."""
        described = describe_job(job)
        if job.client == _name_client(context):
            return described
        marked: Json = mark_texts(described, self.outside_text.mark_untrusted)
        return marked

    def check_change(self, args: Json, context: CallContext) -> None:
        """Raise JobRejected or ScheduleError if the change of a job would be rejected."""
        match args["action"]:
            case "create":
                self.jobs.check(self._draft(args, context))
            case "update":
                self._apply(self._find_changeable(args, context), args, context)
            case "resume":
                _require_keys(context)
                self._find(args, context)
            case _:
                self._find(args, context)

    def change(self, args: Json, context: CallContext) -> Json:
        """Create, change, pause, resume or remove a scheduled job."""
        match args["action"]:
            case "create":
                job = self.jobs.create(self._draft(args, context))
            case "update":
                job = self._update(args, context)
            case "pause":
                job = self.jobs.pause(self._find(args, context).id)
            case "resume":
                _require_keys(context)
                job = self.jobs.resume(self._find(args, context).id)
            case _:
                job = self._find(args, context)
                self.jobs.store.remove_job(job.id)
                return {"removed": job.id}
        note = {} if job.state != "active" or self.jobs.has_scheduler() else {"note": _NO_SCHEDULER}
        return {**self._describe(job, context), **note}

    def _draft(self, args: Json, context: CallContext) -> Job:
        _require_keys(context)
        for name in ("schedule", "prompt"):
            if not args.get(name):
                raise JobRejected(f"`{name}` is needed to create a job.")
        draft = Job(
            prompt=args["prompt"],
            schedule=args["schedule"],
            times={},
            zone="",
            limits=tuple(limit.to_json() for limit in context.grant_limits),
            created_by=context.session_id,
            client=_name_client(context),
        )
        return self._apply(draft, args, context)

    def _find_changeable(self, args: Json, context: CallContext) -> Job:
        _require_keys(context)
        found = self._find(args, context)
        if found.directory != str(self.jobs.directory):
            raise JobRejected(
                "The job works in another directory than this session, so it cannot be changed from here."
                " Create a new job, or let the user change it with `toolfold cron edit`."
            )
        return found

    def _update(self, args: Json, context: CallContext) -> Job:
        found = self._find_changeable(args, context)

        def change(job: Job) -> Job:
            # Also limited by this session: it may have less than the one that created the job.
            added = [limit.to_json() for limit in context.grant_limits]
            limits = (*job.limits, *(limit for limit in added if limit not in job.limits))
            return self._apply(replace(job, limits=limits), args, context)

        return self.jobs.change(found.id, change)

    def _apply(self, job: Job, args: Json, context: CallContext) -> Job:
        """Return a copy of a job, changed by a call. Raises JobRejected if the change is not allowed."""
        granted = list(context.nested.tools) if context.nested else []
        changes: dict[str, Any] = {
            field: args[name]
            for name, field in (
                ("prompt", "prompt"),
                ("schedule", "schedule"),
                ("name", "name"),
                ("missed", "missed"),
                ("time_zone", "zone"),
            )
            if name in args
        }
        if "toolsets" in args:
            _require_known(args["toolsets"], {tool.toolset for tool in granted})
            changes["toolsets"] = tuple(args["toolsets"])
        if "send_to" in args:
            self._check_target(args["send_to"], {tool.name for tool in granted})
            changes["send_to"] = args["send_to"]
        return replace(job, **changes)

    def _check_target(self, target: str, granted: Collection[str]) -> None:
        if target and SEND_TOOL not in granted:
            raise JobRejected(f"This session may not use {SEND_TOOL}, so its jobs cannot send messages.")
        if target and target not in self.messages.targets:
            known = ", ".join(self.messages.targets) or "none"
            raise JobRejected(f"There is no message target {target[:60]!r}. The targets are: {known}.")

    def _find(self, args: Json, context: CallContext) -> Job:
        if not args.get("job"):
            raise JobRejected("`job` is needed: the id or name of a job. cronjob_list lists them.")
        return self.jobs.store.find_job(args["job"], _name_client(context), since=context.caller.since)


def _name_client(context: CallContext) -> str:
    """Return the gateway client whose jobs a call may access; empty for the local agent (all jobs).

    A client over stdio chooses its name itself, so it must not become the client of a token.
    """
    if context.client == STDIO_CLIENT:
        return f"{STDIO_PREFIX}{context.caller.name}"
    return context.caller.name or context.client


def _require_keys(context: CallContext) -> None:
    """Raise JobRejected if the client may not use API keys of model providers, which every run needs."""
    if not context.caller.may_use_keys:
        raise JobRejected(
            "A job works with the user's model, and the token of this client may not use the user's keys of"
            " model providers. The user can create one that may: `toolfold token add NAME --models`."
        )


def _require_known(toolsets: Collection[str], known: Collection[str]) -> None:
    for name in toolsets:
        if name not in known:
            raise JobRejected(
                f"{name[:60]!r} is not a toolset of this session. Its toolsets: {', '.join(sorted(known))}."
            )
