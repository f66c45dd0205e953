"""The demo of the dashboard: sample tools, sample users and a made-up usage history.

It has a runtime and a directory of its own, which exist until the dashboard is closed, and never reads or
changes what belongs to the user.
"""

from __future__ import annotations

import asyncio
import math
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolfold.serving.dashboard.recorder import HISTORY_FILE
from toolfold.serving.gateway.client_tokens import open_tokens
from toolfold.state.store.usage import SqliteUsageStore, UsageEntry

if TYPE_CHECKING:
    from toolfold.models.client import ModelClient
    from toolfold.runtime.runtime import Runtime
    from toolfold.serving.dashboard.approval_routes import PageApprover
    from toolfold.serving.dashboard.dashboard import Dashboard
    from toolfold.serving.dashboard.dashboard_app import Routes
    from toolfold.state.users import UserStore

TOOLS = (
    *("almanac_listEvents", "ferrywell_track-consignment", "read_file", "brightcart_getOrder", "terminal"),
    *("almanac_findAvailability", "search_files", "larkpost_send_message"),
)
"""Tools of the made-up usage history, the most used ones first."""
HISTORY_HOURS = 26


@dataclass(frozen=True, slots=True)
class DemoParts:
    """What the demo is made of."""

    open_runtime: Callable[[Path, PageApprover], Runtime]
    """Opens a runtime with sample tools in an empty directory."""
    make_model: Callable[[], ModelClient]
    messages: Sequence[str]
    """Messages that the model can answer; the first one is answered when the demo is opened."""


class Demo:
    """Opens the demo when a page first asks for it. Belongs to one event loop."""

    def __init__(
        self, parts: DemoParts, open_dashboard: Callable[[Runtime, PageApprover], Dashboard]
    ) -> None:
        """Create the demo without opening it; `open_dashboard` makes a dashboard for the sample runtime."""
        self._parts, self._open_dashboard = parts, open_dashboard
        self._opened = AsyncExitStack()
        self._lock = asyncio.Lock()
        self._routes: Routes | None = None

    async def load_routes(self) -> Routes:
        """Return the JSON interface to the demo's data."""
        async with self._lock:
            if self._routes is None:
                async with AsyncExitStack() as opened:
                    self._routes = await self._open(opened)
                    self._opened = opened.pop_all()
        return self._routes

    async def close(self) -> None:
        """Close the demo and delete its directory."""
        async with self._lock:  # it may just be opened
            await self._opened.aclose()

    async def _open(self, opened: AsyncExitStack) -> Routes:
        from toolfold.serving.dashboard.approval_routes import make_page_approver

        approver = make_page_approver(())
        directory = opened.enter_context(tempfile.TemporaryDirectory(prefix="toolfold-demo-"))
        runtime = await asyncio.to_thread(self._parts.open_runtime, Path(directory), approver)
        opened.push_async_callback(asyncio.to_thread, runtime.close)
        tokens = await asyncio.to_thread(open_tokens, runtime.config, runtime.database)
        await asyncio.to_thread(write_sample_users, tokens.users)
        users = tuple(tokens.users.directory().users)
        history = runtime.config.paths.state_dir / HISTORY_FILE
        await asyncio.to_thread(write_sample_history, history, TOOLS, users)
        dashboard = self._open_dashboard(runtime, approver)
        opened.push_async_callback(dashboard.close)
        await dashboard.chat.send("", self._parts.messages[0])
        return dashboard.make_routes(tokens)


def write_sample_users(users: UserStore) -> None:
    """Add some users and teams."""
    for name in ("ann", "ben", "chloe"):
        users.add_user(name, is_admin=name == "ann")
    for team, members in {"support": ("ann", "ben"), "sales": ("chloe",)}.items():
        users.add_team(team)
        for member in members:
            users.join_team(team, member)


def write_sample_history(file: Path, tools: Sequence[str], users: Sequence[str] = ()) -> None:
    """Write a usage history as a busy day of an agent and some clients leaves it."""
    rng, now = random.Random(7), time.time()  # noqa: S311 - made-up figures
    entries: list[UsageEntry] = []
    for minute in range(HISTORY_HOURS * 60):
        at = now - minute * 60
        busy = 1.6 + math.sin(at / 86_400 * 2 * math.pi) + 0.5 * math.sin(at / 9_000)
        count = max(0, round(rng.gauss(busy, 1.2)))
        entries += [_make_entry(rng, at - rng.random() * 60, tools, users) for _ in range(count)]
    store = SqliteUsageStore(file)
    store.add(entries)
    store.close()


def _make_entry(rng: random.Random, at: float, tools: Sequence[str], users: Sequence[str]) -> UsageEntry:
    kind = rng.choices(("call", "search", "model"), (6, 2, 3))[0]
    is_model = kind == "model"
    ok = rng.random() < (0.96 if kind == "call" else 0.87)
    found = 5 if ok or rng.random() < 0.6 else 0
    return UsageEntry(
        at=at,
        kind=kind,
        name=tools[min(len(tools) - 1, int(rng.expovariate(0.35)))],
        ok=ok,
        refused=kind == "call" and rng.random() < 0.01,
        ms=rng.lognormvariate(4.2, 0.9),
        tokens=rng.randint(900, 4_000) if is_model else found,
        saved_tokens=rng.randint(9_000, 14_000) if is_model else rng.choice((0, 0, 6_200)),
        cost=0.006 * rng.random() if is_model else 0.0,
        saved_cost=0.018 * rng.random() if is_model else 0.0,
        user_id=rng.choice((*users, "")),
    )
