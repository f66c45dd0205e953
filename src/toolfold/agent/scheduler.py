"""Run scheduled jobs: wait for due jobs, run them with an agent, and store and send the results.

Every run has a runtime and a session of its own, opened with the settings that are in force then. Nobody can
be asked during a run, so calls that need approval are refused. The only exception is the message with the
result: its target was approved together with the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from toolfold.agent.agent import Agent
from toolfold.agent.agent_limits import AgentLimits
from toolfold.agent.conversation import TurnResult
from toolfold.config import Config
from toolfold.config.load import reload_config
from toolfold.core.errors import ToolfoldError, error_message
from toolfold.core.types import Answer, ApprovalRequest, GrantLimit
from toolfold.models.client import ModelClient
from toolfold.runtime.runtime import Runtime, open_runtime
from toolfold.state.store.jobs import Job, Run, RunState
from toolfold.tools.scheduled_jobs import JobRejected, ScheduledJobs

log = logging.getLogger(__name__)

POLL_S = 15.0
"""How long the scheduler sleeps at most, so that it notices new jobs and changed clocks."""
CLOSE_TIMEOUT_S = 60.0
"""How long an interrupted run may take to end."""
STORE_DELAYS_S = (0.5, 2.0, 5.0)
STORE_ERRORS = (OSError, sqlite3.OperationalError)
"""What a store raises if another process locks it for too long, or if its database cannot be reached."""
"""How long to wait after each failed attempt to store the outcome of a run, before the next one."""
MAX_MESSAGE_CHARS = 9_000
_SEND_TOOL = "send_message"
_NOT_IN_RUNS = ("cronjob",)
_INSTRUCTIONS = (
    "You work on a scheduled job. Nobody can answer questions or approve calls now; calls that need approval"
    " are refused. Your last message is the result that the user reads later{delivery}: state what you found"
    " or did, and what you could not do."
)

JobReport = Callable[[Job, Run], None]
ClientFactory = Callable[[Job], ModelClient]
JobLimit = Callable[[Job], Sequence[GrantLimit]]
"""Returns what the client that created a job may use now. Raises JobRejected if the job may not run."""


@dataclass(slots=True)
class _ActiveRun:
    """A running scheduled job and its agent (None until the agent is open)."""

    job: Job
    agent: Agent | None = None


class Scheduler:
    """Runs the scheduled jobs of one user until it is stopped. Several processes can share the jobs."""

    def __init__(
        self,
        jobs: ScheduledJobs,
        config: Config,
        *,
        report: JobReport = lambda _job, _run: None,
        make_client: ClientFactory | None = None,
        limit_client: JobLimit | None = None,
    ) -> None:
        """Create a scheduler.

        `report` is called when a run starts and when it ends. `make_client` returns the model client of a
        run, instead of the configured model. `limit_client` is asked before each run of a job that a client
        of the gateway created; without it, these jobs do not run.
        """
        self._limit_client = limit_client or _refuse_client
        self._jobs, self._config, self._report, self._make_client = jobs, config, report, make_client
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._stopping, self._changed = asyncio.Event(), asyncio.Event()
        self._running: dict[asyncio.Task[Run], _ActiveRun] = {}

    async def run(self) -> None:
        """Run due jobs until `stop` is called, then wait for running jobs to end."""
        try:
            while not self._stopping.is_set():
                await self._renew_claims()
                await self._start_due()
                await self._wait_for_next()
            await self._finish_running()
        finally:
            await self._remove_service()

    async def run_due(self) -> int:
        """Run all due jobs to completion and return their number."""
        count = 0
        while not self._stopping.is_set():
            count += await self._start_due()
            if not self._running:
                return count
            await self._wait_for_running(None)
        await self._finish_running()
        return count

    async def run_job(self, job_id: str) -> Run:
        """Run one job immediately, regardless of its schedule, and return the outcome."""
        job, run = self._jobs.store.claim_now(job_id, self._owner, self._jobs.clock())
        task = self._start(job, run)
        try:
            await self._wait_for_running(None)
        finally:
            task.cancel()  # has no effect on a task that has ended
            await self._remove_service()
        return task.result()

    async def _remove_service(self) -> None:
        with contextlib.suppress(*STORE_ERRORS):  # others notice after a while that it has ended
            await asyncio.to_thread(self._jobs.store.remove_service, self._owner)

    def stop(self) -> None:
        """Start no more jobs; `run` returns when the running jobs end. A second call interrupts the jobs."""
        if self._stopping.is_set():
            self._interrupt_running()
        self._stopping.set()
        self._changed.set()

    async def _start_due(self) -> int:
        """Start due jobs up to the concurrency limit, and return the number of started jobs."""
        settings, count = self._jobs.settings, 0
        while len(self._running) < settings.max_parallel:
            try:
                claimed = await asyncio.to_thread(
                    self._jobs.store.claim_due,
                    self._owner,
                    self._jobs.clock(),
                    self._jobs.advance,
                    grace_s=settings.missed_after_seconds,
                )
            except STORE_ERRORS as error:  # locked by another process for too long
                log.warning("scheduled jobs could not be read: %s", error)
                return count
            if claimed is None:
                return count
            self._start(*claimed)
            count += 1
        return count

    def _start(self, job: Job, run: Run) -> asyncio.Task[Run]:
        task = asyncio.create_task(self._run_claimed(job, run))
        self._running[task] = _ActiveRun(job)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Run]) -> None:
        self._running.pop(task, None)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the outcome of a scheduled job could not be stored", exc_info=error)

    async def _wait_for_next(self) -> None:
        """Wait until a job is due, a job ends or `stop` is called, at most `POLL_S` seconds."""
        try:
            following = await asyncio.to_thread(self._jobs.store.next_time)
        except STORE_ERRORS as error:
            log.warning("scheduled jobs could not be read: %s", error)
            following = None
        delay = POLL_S if following is None else min(POLL_S, max(0.05, following - self._jobs.clock()))
        if len(self._running) >= self._jobs.settings.max_parallel:
            delay = POLL_S
        self._changed.clear()
        if not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), delay)

    async def _finish_running(self) -> None:
        await self._wait_for_running(self._jobs.settings.stop_seconds)
        self._interrupt_running()
        await self._wait_for_running(CLOSE_TIMEOUT_S)
        for task in tuple(self._running):
            task.cancel()
        await self._wait_for_running(None)

    async def _wait_for_running(self, seconds: float | None) -> None:
        """Wait for the running jobs, at most `seconds`, and renew this process's claims on the jobs."""
        loop = asyncio.get_running_loop()
        end = None if seconds is None else loop.time() + seconds
        while self._running and (end is None or loop.time() < end):
            left = POLL_S if end is None else min(POLL_S, end - loop.time())
            await asyncio.wait(tuple(self._running), timeout=max(0.0, left))
            await self._renew_claims()

    def _interrupt_running(self) -> None:
        for active in self._running.values():
            if active.agent is not None:
                active.agent.interrupt()

    async def _renew_claims(self) -> None:
        try:
            job_ids = [active.job.id for active in self._running.values()]
            now = self._jobs.clock()
            await asyncio.to_thread(self._jobs.store.renew_claims, self._owner, now, job_ids)
        except STORE_ERRORS as error:
            log.warning("the reservation of running scheduled jobs could not be renewed: %s", error)
        await self._interrupt_refused()

    async def _interrupt_refused(self) -> None:
        """Interrupt running jobs whose client may no longer run them, such as after a token was revoked."""
        for active in [each for each in self._running.values() if each.job.client]:
            try:
                await asyncio.to_thread(self._limit_client, active.job)
            except JobRejected as error:
                if active.agent is not None:
                    log.warning(
                        "the scheduled job %s was interrupted, because its client may no longer run it: %s",
                        active.job.id,
                        error,
                    )
                    active.agent.interrupt()
            except ToolfoldError as error:
                log.warning(
                    "the permission of a client to run its scheduled job %s could not be checked: %s",
                    active.job.id,
                    error,
                )

    async def _run_claimed(self, job: Job, run: Run) -> Run:
        """Run a job claimed by this process; store and return the outcome, even after an error."""
        try:
            self._report_run(job, run)
            run = await self._work(job, run)
        except asyncio.CancelledError:
            run = replace(run, state="interrupted", error="the scheduler was stopped")
        except ToolfoldError as error:
            run = replace(run, state="failed", error=error_message(error))
        except Exception as error:  # a bug must not end the scheduler
            log.exception("the scheduled job %s failed", job.id)
            run = replace(run, state="failed", error=f"{type(error).__name__}: {error_message(error)}")
        run = replace(run, ended=self._jobs.clock())
        await self._store_outcome(run)
        self._report_run(job, run)
        return run

    def _report_run(self, job: Job, run: Run) -> None:
        try:
            self._report(job, run)
        except Exception as error:  # such as a closed output; the job does not depend on it
            log.warning("the start or end of the scheduled job %s could not be reported: %s", job.id, error)

    async def _store_outcome(self, run: Run) -> None:
        """Store the outcome of a job; retry if another process locks the database file for too long."""
        for delay in STORE_DELAYS_S:
            try:
                await asyncio.to_thread(self._jobs.store.finish_run, run, self._owner)
            except STORE_ERRORS as error:
                log.warning("the outcome of a scheduled job could not be stored; trying again: %s", error)
                await asyncio.sleep(delay)
            else:
                return
        await asyncio.to_thread(self._jobs.store.finish_run, run, self._owner)

    async def _work(self, job: Job, run: Run) -> Run:
        grant = await asyncio.to_thread(self._find_limits, job)
        runtime = await asyncio.to_thread(self._open_runtime, job)
        try:
            async with self._open_agent(job, runtime, grant) as agent:
                task = asyncio.current_task()
                if task is not None:
                    self._running[task].agent = agent
                result = await agent.run(job.prompt)
                run = _with_result(replace(run, session_id=agent.session_id), result)
                if job.send_to:
                    run = replace(run, delivery=await self._deliver(job, run, agent))
            return run
        finally:
            await asyncio.to_thread(runtime.close)

    def _find_limits(self, job: Job) -> Sequence[GrantLimit]:
        """Return the limits of the client that created a job; pause the job if the client may not run it."""
        try:
            return self._limit_client(job) if job.client else ()
        except JobRejected as error:
            self._jobs.store.update_job(job.id, lambda each: replace(each, state="paused", next_run=None))
            raise JobRejected(f"the job was paused: {error_message(error)}") from None

    def _open_runtime(self, job: Job) -> Runtime:
        directory = Path(job.directory)
        if not directory.is_dir():
            raise ToolfoldError(f"the working directory of the job does not exist: {directory}")
        return open_runtime(reload_config(self._config, directory), client_names=True)

    def _open_agent(self, job: Job, runtime: Runtime, grant: Sequence[GrantLimit]) -> Agent:
        settings, known = runtime.config.cron, runtime.toolsets()
        existing = [  # a toolset that is missing now grants nothing, and takes nothing away
            GrantLimit(
                None if each.enabled is None else tuple(filter(known.knows, each.enabled)),
                tuple(filter(known.knows, each.disabled)),
            )
            for each in grant
        ]
        delivery = f", sent to {job.send_to!r}" if job.send_to else ""
        limits = AgentLimits.from_settings(runtime.config.agent)
        return Agent(
            self._make_client(job) if self._make_client else job.model or settings.model,
            toolsets=job.toolsets,
            disabled_toolsets=_NOT_IN_RUNS,
            runtime=runtime,
            instructions=_INSTRUCTIONS.format(delivery=delivery),
            limits=replace(
                limits,
                max_steps=min(limits.max_steps, settings.max_steps),
                max_seconds=min(limits.max_seconds, settings.max_run_seconds),
            ),
            grant_limits=[GrantLimit(), *existing, *map(GrantLimit.from_json, job.limits)],
        )

    async def _deliver(self, job: Job, run: Run, agent: Agent) -> str:
        """Send the result of a job with the tool `send_message`; return True on success."""
        if job.send_to not in agent.runtime.config.messages.targets:
            return f"not sent: there is no message target {job.send_to[:60]!r} in messages.targets"
        title = f"{job.name or job.prompt[:60]}: {run.state}"
        text = (run.result or run.error or "(no result)")[:MAX_MESSAGE_CHARS]
        args = {"target": job.send_to, "title": title[:200], "text": text}
        session = agent.session.delegate()  # a call outside of the turn, in which the tool may not be shown
        result = await session.call(_SEND_TOOL, args, approver=_allow_delivery)
        return "sent" if result.ok else f"not sent: {result.error}"


def _refuse_client(job: Job) -> Sequence[GrantLimit]:
    raise JobRejected(f"this scheduler cannot check the token of the client {job.client!r}")


def _allow_delivery(request: ApprovalRequest) -> Answer:
    """Approve a tool call only if it is the message that delivers a job's result."""
    is_delivery = request.tool.name == _SEND_TOOL and request.rules == ("message-sent",)
    return Answer.ONCE if is_delivery else Answer.DENY


def _with_result(run: Run, result: TurnResult) -> Run:
    states: dict[str, RunState] = {"completed": "completed", "interrupted": "interrupted"}
    reasons = {
        "completed": "",
        "interrupted": "the scheduler was stopped",
        "error": result.error,
    }
    why = reasons.get(result.reason, f"the run reached its {result.reason.replace('_', ' ')}")
    return replace(run, state=states.get(result.reason, "failed"), result=result.text, error=why)
