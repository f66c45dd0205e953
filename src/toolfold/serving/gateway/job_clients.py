"""Decide whether a gateway client's scheduled job may still run, and with which toolsets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from toolfold.core.types import GrantLimit
from toolfold.serving.gateway.client_tokens import ANONYMOUS, LOGIN_CLIENT_PREFIX, TokenStore
from toolfold.tools.scheduled_jobs import STDIO_PREFIX, JobRejected

if TYPE_CHECKING:
    from toolfold.state.store.jobs import Job


def limit_jobs_by_token(
    tokens: TokenStore, *, allow_anonymous: bool
) -> Callable[[Job], Sequence[GrantLimit]]:
    """Return a function that limits a client's job to the toolsets that its token currently allows.

    It raises JobRejected if the client has lost its token. Programs that connect over stdio have none.
    """

    def limit(job: Job) -> Sequence[GrantLimit]:
        if job.client.startswith(STDIO_PREFIX):
            return ()
        if job.client == ANONYMOUS and (allow_anonymous or not tokens.are_in_use()):
            return ()
        if job.client.startswith(LOGIN_CLIENT_PREFIX):
            raise JobRejected(f"{job.client!r} has created the job with a login, which cannot be repeated")
        found = next((each for each in tokens.list_clients() if each.name == job.client), None)
        # A newer token of the same name may belong to somebody else.
        if found is None or found.created > job.created or not tokens.is_valid(found):
            raise JobRejected(f"the client {job.client!r}, which created the job, no longer has its token")
        if not found.may_use_keys:
            raise JobRejected(f"the token of the client {job.client!r} may not use the keys of your models")
        return tokens.list_limits(found)

    return limit
