"""Extend client sessions of the MCP SDK: repair invalid list results, declare client capabilities."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from toolfold.core.types import Json
from toolfold.mcp.list_results import PROBLEMS_KEY, repair_list_result
from toolfold.mcp.result_limits import truncate_result
from toolfold.mcp.sdk_compat import SendRawRequest, add_request_stamp, wrap_raw_requests

_MAX_ENTRIES_IN_LOOP = 50
"""Lists with more entries than this are repaired in a thread."""


def repair_list_results(session: Any, protocol: Callable[[], str], note: Callable[[str], None]) -> None:
    """Patch a session to repair the results of list requests before validation; `note` gets each problem."""

    def wrap(send: SendRawRequest) -> SendRawRequest:
        async def send_and_repair(method: str, *params: Any, **options: Any) -> Any:
            result = truncate_result(await send(method, *params, **options))
            if not method.endswith("/list"):
                return result
            if _count_entries(result) > _MAX_ENTRIES_IN_LOOP:
                repaired = await asyncio.to_thread(repair_list_result, method, protocol(), result)
            else:
                repaired = repair_list_result(method, protocol(), result)
            for problem in (repaired.get("_meta") or {}).get(PROBLEMS_KEY, ()):
                note(f"({problem})")
            return repaired

        return send_and_repair

    wrap_raw_requests(session, wrap)


def _count_entries(result: Any) -> int:
    values = result.values() if isinstance(result, dict) else ()
    return sum(len(value) for value in values if isinstance(value, list))


def stamp_client_capabilities(session: Any, capabilities: Callable[[], Json | None]) -> None:
    """Declare the gateway client's capabilities, rather than Toolfold's, in requests to servers.

    Servers of the newest revision read them from every request.
    """
    from mcp_types import CLIENT_CAPABILITIES_META_KEY

    def stamp(data: Json) -> None:
        if (allowed := capabilities()) is not None:
            data["params"]["_meta"][CLIENT_CAPABILITIES_META_KEY] = allowed

    add_request_stamp(session, stamp)
