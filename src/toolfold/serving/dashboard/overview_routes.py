"""The overview page: calls, tokens saved and response times of a period, and the state of the servers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolfold.core.types import Json
from toolfold.serving.dashboard.texts import show_line, show_name

if TYPE_CHECKING:
    from toolfold.runtime.runtime import Runtime
    from toolfold.safety.redaction import Redaction
    from toolfold.serving.dashboard.catalog_routes import CatalogView
    from toolfold.state.store.usage import UsageStore

PERIODS = {"hour": 3_600, "day": 86_400, "week": 7 * 86_400, "month": 30 * 86_400}
BUCKETS = 48
MAX_TOOLS = 8
MAX_SERVERS = 200


def describe_overview(
    runtime: Runtime, catalog: CatalogView, store: UsageStore, redact: Redaction, period: str
) -> Json:
    """Return the figures of the overview for the last `hour`, `day`, `week` or `month`."""
    until = time.time()
    since = until - PERIODS.get(period, PERIODS["day"])
    latencies = store.list_latencies(since, until)
    return {
        "period": period if period in PERIODS else "day",
        "since": since,
        "until": until,
        "totals": store.summarize(since, until),
        "series": store.list_series(since, until, BUCKETS),
        "latency": {f"p{share}": find_percentile(latencies, share / 100) for share in (50, 90, 99)},
        "tools": [
            {**each, "name": show_name(each["name"])} for each in store.list_tools(since, until, MAX_TOOLS)
        ],
        "states": catalog.count_states(),
        "catalog": catalog.measure(),
        "servers": describe_servers(runtime, redact),
        "is_stored": runtime.config.dashboard.history,
        "selection": runtime.config.tools.selection,
    }


def describe_servers(runtime: Runtime, redact: Redaction) -> list[Json]:
    """Return the state of each MCP server, without secrets."""
    return [
        {
            "name": each.name,
            "state": each.state,
            "tools": each.tools,
            "held": each.held,
            "error": show_line(redact(each.error)),
            "protocol": each.protocol,
            "seconds": round(each.seconds, 2),
            "next_try": round(each.next_try),
        }
        for each in runtime.mcp.states()[:MAX_SERVERS]
    ]


def find_percentile(values: Sequence[float], share: float) -> float | None:
    """Return the percentile of sorted values for a share between 0 and 1; None if there are no values."""
    return round(values[min(len(values) - 1, int(len(values) * share))], 1) if values else None
