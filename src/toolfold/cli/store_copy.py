"""Copy the state that users of the gateway need from files of this machine into the shared database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from toolfold.state.copy_report import CopyReport

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.state.database import Database


def copy_state(config: Config, database: Database, *, dry_run: bool) -> list[CopyReport]:
    """Copy what the database lacks, and return a report for each kind; with `dry_run`, write nothing.

    Raises ConfigError if a tool call may have changed the files, and StartedByTool in a tool call.
    """
    from toolfold.config.authority import require_user
    from toolfold.config.monitor import require_accepted
    from toolfold.config.record import SettingsRecord

    require_user("copying users and tokens")
    require_accepted(config, SettingsRecord(config.paths.state_dir))
    return list(_copy_all(config, database, dry_run=dry_run))


def _copy_all(config: Config, database: Database, *, dry_run: bool) -> Iterator[CopyReport]:
    from toolfold.mcp.lock import LOCK_FILE, LockFile, SharedPins
    from toolfold.mcp.oauth.login_store import EncryptedLoginStore, FileLoginStore
    from toolfold.mcp.user_credentials import CREDENTIALS_FILE, open_credentials
    from toolfold.runtime.parts import JOBS_FILE
    from toolfold.serving.gateway.client_tokens import SharedTokens, Tokens
    from toolfold.state.credentials import OWNER, SharedCredentialStore
    from toolfold.state.store.jobs import open_job_store
    from toolfold.state.users.user_copy import copy_directory

    state_dir = config.paths.state_dir
    source, target = Tokens(state_dir / "gateway" / "tokens.json"), SharedTokens(database)
    directory, users, teams = copy_directory(source.users.directory(), target.users, dry_run=dry_run)
    yield users
    yield teams
    yield target.copy_from(source, directory.users, dry_run=dry_run)
    lock = LockFile(config.paths.config_dir / LOCK_FILE)
    yield SharedPins(database).copy_from(lock, dry_run=dry_run)
    credentials = open_credentials(lambda: config, database)
    if (state_dir / CREDENTIALS_FILE).exists() and isinstance(credentials, SharedCredentialStore):
        with closing(open_credentials(lambda: config, None)) as stored:
            yield credentials.copy_from(stored, directory.users, dry_run=dry_run)
    logins = EncryptedLoginStore(lambda: credentials, OWNER)
    yield FileLoginStore(state_dir / "oauth").copy_to(logins, dry_run=dry_run)
    if (state_dir / JOBS_FILE).exists():
        with closing(open_job_store(state_dir / JOBS_FILE, None)) as jobs:
            known = open_job_store(state_dir / JOBS_FILE, database)
            yield known.copy_from(jobs, max_jobs=config.cron.max_jobs, dry_run=dry_run)
