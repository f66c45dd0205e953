"""Whether a call may run: the last question before it does.

A tool that declares a destructive effect runs only when somebody agrees. Nobody to ask, no answer in
time, an answer that is not a plain yes, or a failing question all mean no.
"""

from __future__ import annotations

import copy
import logging

from toolfold.errors import Refused
from toolfold.loops import MOST_ASKED, Loops, OutOfTime
from toolfold.model import ApprovalRequest, Approver, CallContext, Effect, Json, Tool

log = logging.getLogger(__name__)

__all__ = ["Approval"]


class Approval:
    """Asks one approver, within a time limit, about the calls that need asking."""

    def __init__(self, approver: Approver | None, loops: Loops, *, timeout: float = 300.0) -> None:
        self._approver, self._loops, self._timeout = approver, loops, timeout

    async def require(self, tool: Tool, args: Json, context: CallContext) -> None:
        """Return where the call may run; raise Refused where it may not."""
        if Effect.DESTRUCTIVE not in tool.effects:
            return
        if self._approver is None:
            raise _refused(tool, "it can destroy data and there is nobody to ask")
        reason = f"{tool.name} declares that it can destroy data"
        request = ApprovalRequest(tool, copy.deepcopy(args), reason, context.session_id)
        if await self._ask(self._approver, tool, request) is not True:
            raise _refused(tool, "the person asked said no")

    async def _ask(self, approver: Approver, tool: Tool, request: ApprovalRequest) -> object:
        try:
            return await self._loops.within(self._timeout, approver, request, most=MOST_ASKED)
        except OutOfTime:
            raise _refused(tool, f"nobody answered within {self._timeout:g} s") from None
        except Exception as error:
            log.exception("asking about %r failed; the call is refused", tool.name)
            raise _refused(tool, "the question could not be asked") from error


def _refused(tool: Tool, why: str) -> Refused:
    return Refused(f"{tool.name!r} was refused: {why}. It was not invoked; do not try it again unasked.")
