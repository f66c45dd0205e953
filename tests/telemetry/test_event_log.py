"""The event log: one line of JSON for each event, without content unless configured."""

from __future__ import annotations

import json
import logging

import pytest

from tests.conftest import RuntimeOpener, recording_tool
from toolfold.core.types import Json
from toolfold.runtime.telemetry.event_log import LOGGER_NAME


def read_lines(caplog: pytest.LogCaptureFixture) -> list[Json]:
    return [json.loads(each.message) for each in caplog.records if each.name == LOGGER_NAME]


@pytest.mark.parametrize("include_content", [False, True])
async def test_events_are_logged_as_json_lines_and_include_message_content_only_if_configured(
    open_test_runtime: RuntimeOpener, caplog: pytest.LogCaptureFixture, include_content: bool
) -> None:
    caplog.set_level(logging.INFO, logger=LOGGER_NAME)
    runtime = open_test_runtime({"telemetry.log_events": True, "telemetry.include_content": include_content})
    runtime.registry.add(recording_tool("count_boats", "harbour", []))
    await runtime.session().call("count_boats", call_id="c1")
    started, finished = read_lines(caplog)
    assert (started["type"], started["tool"], started["call_id"]) == ("tool_started", "count_boats", "c1")
    assert (finished["type"], finished["ok"]) == ("tool_finished", True)
    assert ("arguments" in started, "result" in finished) == (include_content, include_content)


async def test_tool_call_writes_no_event_if_the_event_log_is_not_configured(
    open_test_runtime: RuntimeOpener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=LOGGER_NAME)
    runtime = open_test_runtime()
    runtime.registry.add(recording_tool("count_boats", "harbour", []))
    await runtime.session().call("count_boats")
    assert read_lines(caplog) == []
    assert not runtime.events.has_listeners


@pytest.mark.parametrize("include_content", [False, True])
async def test_tool_name_invented_by_the_model_is_logged_only_if_message_content_is_logged(
    open_test_runtime: RuntimeOpener, caplog: pytest.LogCaptureFixture, include_content: bool
) -> None:
    caplog.set_level(logging.INFO, logger=LOGGER_NAME)
    runtime = open_test_runtime({"telemetry.log_events": True, "telemetry.include_content": include_content})
    await runtime.session().call("the password is hunter2")
    (finished,) = read_lines(caplog)
    assert finished["tool"] == ("the password is hunter2" if include_content else "(unknown)")
    assert ("hunter2" in str(finished)) == include_content
