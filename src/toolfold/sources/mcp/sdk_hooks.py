"""Changes to a client session of the SDK that it has no option for.

Replaces private methods of the SDK, and refuses a release that no longer has them: limits would not hold.
The gateway does the same to the SDK's session manager (`gateway.http_sessions`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from toolfold.model import Json
from toolfold.sources.mcp.list_results import PROBLEMS_KEY, repair_list_result
from toolfold.sources.mcp.result_limits import truncate_result
from toolfold.sources.mcp.sdk import require_methods

_MAX_ENTRIES_IN_LOOP = 50
"""Lists with more entries than this are repaired in a thread."""


def repair_list_results(session: Any, protocol: Callable[[], str], note: Callable[[str], None]) -> None:
    """Cut and repair what the server answers before the SDK validates it, and note each problem."""
    dispatcher: Any = getattr(session, "_dispatcher", None)
    require_methods(dispatcher, "send_raw_request")
    send = dispatcher.send_raw_request

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

    dispatcher.send_raw_request = send_and_repair


def _count_entries(result: Any) -> int:
    values = result.values() if isinstance(result, dict) else ()
    return sum(len(value) for value in values if isinstance(value, list))


def stamp_client_capabilities(session: Any, capabilities: Callable[[], Json | None]) -> None:
    """Let each request name what the client behind it can be asked, and not what we can.

    A server of the newest revision reads this from every request; the SDK writes its own answer.
    """
    from mcp_types import CLIENT_CAPABILITIES_META_KEY

    require_methods(session, "_stamp")
    stamp = session._stamp

    def stamp_both(data: Json, options: Any) -> None:
        stamp(data, options)
        if (allowed := capabilities()) is not None:
            data["params"]["_meta"][CLIENT_CAPABILITIES_META_KEY] = allowed

    session._stamp = stamp_both
