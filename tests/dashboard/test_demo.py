"""The demo of the dashboard shows sample data and never touches the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.harness import DashboardProcess
from tests.dashboard.test_access import Visitor
from toolfold.models.scripted import ScriptedProvider
from toolfold.serving.dashboard.dashboard_app import DEMO_HEADER
from toolfold.serving.dashboard.demo_routes import Demo, DemoParts

DEMO = {DEMO_HEADER: "1"}


@pytest.fixture
def visitor(dashboard: DashboardProcess) -> Iterator[Visitor]:
    found = Visitor(dashboard)
    found.http.headers["x-toolfold-page-key"] = found.sign_in(dashboard)
    yield found
    found.http.close()


def test_demo_shows_a_sample_history_sample_tools_and_the_calls_of_a_scripted_model(
    visitor: Visitor,
) -> None:
    sample = visitor.http.get("/ui/api/overview", headers=DEMO).json()
    assert sample["totals"]["calls"] > 1_000
    assert sample["catalog"]["tools"] > 280
    assert visitor.http.get("/ui/api/overview").json()["totals"]["calls"] == 0
    chat = visitor.http.get("/ui/api/chat", headers=DEMO).json()
    assert chat["model"]
    assert len(chat["suggestions"]) > 1
    assert visitor.http.get("/ui/api/chat").json()["suggestions"] == []


def test_change_of_a_tool_in_the_demo_does_not_change_the_users_settings(visitor: Visitor) -> None:
    change = {"name": "almanac_createEvent", "change": "disable"}
    assert visitor.post("tools/change", change, **DEMO).json()["state"] == "off"
    address = "/ui/api/tool?name=almanac_createEvent"
    assert visitor.http.get(address, headers=DEMO).json()["state"] == "off"
    assert visitor.http.get(address).json()["state"] != "off"


def test_demo_is_refused_to_a_browser_that_has_not_signed_in(dashboard: DashboardProcess) -> None:
    stranger = Visitor(dashboard)
    assert stranger.http.get("/ui/api/overview", headers=DEMO).status_code == 401
    assert stranger.post("tools/change", {}, **DEMO).status_code == 401
    stranger.http.close()


async def test_demo_that_cannot_be_opened_leaves_nothing_behind_and_is_tried_again() -> None:
    directories: list[Path] = []

    def fail(directory: Path, _: Any) -> Any:
        directories.append(directory)
        raise OSError("no space left")

    demo = Demo(DemoParts(fail, lambda: ScriptedProvider([]), ("Hello",)), lambda *_: pytest.fail("opened"))
    for _ in range(2):
        with pytest.raises(OSError, match="no space"):
            await demo.load_routes()
        assert not directories[-1].exists()
    assert len(set(directories)) == 2
    await demo.close()
