"""Delete data of removed users and clients, so that new ones with the same name do not get it.

Scheduled jobs and entries of `approval.allowed_tools` name a client; credentials belong to a user, learned
messages to a user or to a client without a user. Knows no tokens.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection
from contextlib import closing
from typing import TYPE_CHECKING

from toolfold.core.errors import ConfigError, ToolfoldError, error_message
from toolfold.core.types import USER_LEARNER_PREFIX, Caller

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.state.database import Database

_ERRORS = (ToolfoldError, OSError, sqlite3.Error)


class RecordsRemain(ToolfoldError):
    """Raised if a user or client was removed, but some of their data could not be deleted."""

    def __init__(self, problems: Collection[str]) -> None:
        super().__init__(
            "The access has ended, but a new client or user of the same name could get what was not deleted: "
            + "; ".join(problems)
        )


class ClientRecords:
    """Stored data of clients and users, except tokens, with methods that delete it. Methods block."""

    def __init__(self, config: Config, database: Database | None) -> None:
        """Prepare to delete data; files are opened later."""
        self._config, self._database = config, database

    def remove_clients(self, clients: Collection[str]) -> None:
        """Delete learned messages, scheduled jobs and allowed tools of clients. Raises RecordsRemain.

        Messages that were learned from a user, whatever client it used, are kept.
        """
        learners = {Caller(each).learner for each in clients}
        _run_all(
            {
                "learned messages": lambda: self._remove_learned(learners),
                "scheduled jobs": lambda: self._remove_jobs(clients),
                "approval.allowed_tools": lambda: self._remove_allowed_tools(clients),
            }
        )

    def remove_user(self, user_id: str, clients: Collection[str]) -> None:
        """Delete credentials, learned messages, jobs and allowed tools of a user. Raises RecordsRemain."""
        _run_all(
            {
                "credentials": lambda: self._remove_credentials(user_id),
                "learned messages": lambda: self._remove_learned({f"{USER_LEARNER_PREFIX}{user_id}"}),
                "scheduled jobs": lambda: self._remove_jobs(clients),
                "approval.allowed_tools": lambda: self._remove_allowed_tools(clients),
            }
        )

    def _remove_credentials(self, user_id: str) -> None:
        """Delete the stored credentials of a user; this does not require the encryption key."""
        from toolfold.mcp.user_credentials import open_credentials

        with closing(open_credentials(lambda: self._config, self._database)) as credentials:
            credentials.remove(user_id)

    def _remove_learned(self, learners: Collection[str]) -> None:
        """Delete the data that tool search has learned from the messages of users or clients."""
        from toolfold.selection.retrieval.learned_store import open_learned

        with closing(open_learned(self._config.paths.state_dir, self._database)) as learned:
            learned.forget(lambda message: message.client in learners)

    def _remove_jobs(self, clients: Collection[str]) -> None:
        from toolfold.runtime.parts import JOBS_FILE
        from toolfold.state.store.jobs import UnknownJob, open_job_store

        file = self._config.paths.state_dir / JOBS_FILE
        if self._database is None and not file.exists():
            return
        with closing(open_job_store(file, self._database)) as jobs:
            for job in jobs.list_jobs():
                if job.client in clients:
                    try:
                        jobs.remove_job(job.id)
                    except UnknownJob:  # another process has removed it
                        continue

    def _remove_allowed_tools(self, clients: Collection[str]) -> None:
        """Remove clients from the setting `approval.allowed_tools`. Raises ConfigError if that fails."""
        from toolfold.config.load import reload_config
        from toolfold.safety.approval.allowed_tools import KEY, build_allowed_tools

        current = reload_config(self._config)  # entries may have been added since it was loaded
        tools = build_allowed_tools(current)
        found = [entry for entry in tools.entries if _names_client(entry, clients)]
        for entry in found:
            tools.remove(entry)
        left = reload_config(self._config).approval.allowed_tools if found else ()
        if remaining := [entry for entry in left if _names_client(entry, clients)]:
            raise ConfigError(f"{', '.join(remaining)} (from {current.origins.get(KEY, 'unknown')})")


def _names_client(entry: str, clients: Collection[str]) -> bool:
    from toolfold.config.allowed_tool_entries import AllowedTool

    return AllowedTool.parse(entry).client in clients


def _run_all(steps: dict[str, Callable[[], object]]) -> None:
    """Run all functions, even if some fail. Raises RecordsRemain with the names of failed functions."""
    problems = []
    for name, step in steps.items():
        try:
            step()
        except _ERRORS as error:
            problems.append(f"{name}: {error_message(error)}")
    if problems:
        raise RecordsRemain(problems)
