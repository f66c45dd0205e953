"""The live feed: secrets and invisible characters in events do not reach the page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from toolfold.core.events import (
    EventBus,
    ModelReplied,
    ModelRetried,
    TextReceived,
    ThinkingReceived,
    ToolFinished,
    ToolsSearched,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    Usage,
)
from toolfold.safety.redaction import Redaction
from toolfold.serving.dashboard.activity_routes import MAX_TEXT_CHARS, ActivityFeed

SECRET = "correct-horse-battery-staple-42"


@pytest.fixture
def bus() -> EventBus:
    return EventBus()


@pytest.fixture
def feed(bus: EventBus) -> Iterator[ActivityFeed]:
    found = ActivityFeed(bus, Redaction([SECRET], max_chars=2 * MAX_TEXT_CHARS))
    yield found
    found.close()


def _read(feed: ActivityFeed) -> list[dict[str, Any]]:
    return feed.read_after(0)[0]


@pytest.mark.parametrize("position", [0, MAX_TEXT_CHARS - 10])
@pytest.mark.parametrize(
    "make_event",
    [
        lambda text: TextReceived(session_id="s", turn=1, text=text + "\n"),
        lambda text: ThinkingReceived(session_id="s", turn=1, text=text + "\n"),
        lambda text: TurnStarted(session_id="s", turn=1, message=text),
        lambda text: TurnFinished(session_id="s", turn=1, reason="completed", text=text),
        lambda text: ModelRetried(session_id="s", turn=1, attempt=1, delay_s=1, reason=text),
        lambda text: ToolsSearched(session_id="s", call_id="c", queries=(text,), found=()),
    ],
)
def test_secret_in_the_text_of_an_event_is_redacted_even_if_the_text_is_cut_inside_the_secret(
    bus: EventBus, feed: ActivityFeed, make_event: Any, position: int
) -> None:
    bus.publish(make_event("a " * (position // 2) + SECRET))
    shown = json.dumps(_read(feed))
    assert SECRET[:8] not in shown
    assert "[reda" in shown


def test_secret_split_across_two_chunks_of_a_streamed_answer_is_redacted(
    bus: EventBus, feed: ActivityFeed
) -> None:
    shown, position = "", 0
    for piece in ("The key is ", SECRET[:15], SECRET[15:], ". Anything else?"):
        bus.publish(TextReceived(session_id="s", turn=1, text=piece))
        events, position, _ = feed.read_after(position)
        shown += "".join(each["text"] for each in events)
    bus.publish(ModelReplied(session_id="s", turn=1, model="m", usage=Usage()))
    shown += "".join(each.get("text", "") for each in feed.read_after(position)[0])
    assert shown == "The key is [redacted]. Anything else?"


def test_streamed_texts_of_two_concurrent_sessions_are_not_mixed_in_the_activity_feed(
    bus: EventBus, feed: ActivityFeed
) -> None:
    pieces = [("a", "one"), ("b", "two"), ("a", " three"), ("b", "fold ")]
    for session, text in pieces:
        bus.publish(TextReceived(session_id=session, turn=1, text=text))
    bus.publish(TurnFinished(session_id="a", turn=1, reason="completed"))
    texts = [(each["session_id"], each["text"]) for each in _read(feed) if each["text"]]
    assert texts == [("a", "one "), ("b", "twofold "), ("a", "three")]


def test_invisible_characters_in_tool_names_and_arguments_of_events_are_escaped(
    bus: EventBus, feed: ActivityFeed
) -> None:
    hidden = "\u202egnp.exe"
    bus.publish(
        ToolStarted(session_id="s", call_id=hidden, tool=hidden, arguments={hidden: [hidden]}, toolset=hidden)
    )
    shown = json.dumps(_read(feed), ensure_ascii=False)
    assert "\u202e" not in shown
    assert "202E" in shown


def test_secret_in_tool_arguments_is_not_sent_to_the_activity_page(bus: EventBus, feed: ActivityFeed) -> None:
    async def read_first_message() -> bytes:
        stream = feed.stream(0, dict)
        try:
            return await anext(stream)
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    bus.publish(ToolStarted(session_id="s", call_id="c", tool="t", arguments={"key": [SECRET]}))
    message = asyncio.run(read_first_message()).decode()
    assert SECRET not in message
    assert '"tool":"t"' in message


def test_all_open_dashboard_pages_receive_the_same_events_and_state(
    bus: EventBus, feed: ActivityFeed
) -> None:
    def describe_state() -> dict[str, Any]:
        return {"approvals": [], "servers": []}

    async def read_with_two_pages() -> list[list[dict[str, Any]]]:
        pages = [feed.stream(0, describe_state) for _ in range(2)]
        bus.publish(ToolStarted(session_id="s", call_id="1", tool="t", arguments={}))
        received: list[list[dict[str, Any]]] = [[], []]
        for _ in range(2):
            messages = await asyncio.gather(*(anext(page) for page in pages))
            for page, message in enumerate(messages):
                received[page].append(json.loads(message.decode().removeprefix("data: ")))
            bus.publish(ToolFinished(session_id="s", call_id="1", tool="t", ok=True, duration_s=1.0))
        await pages[0].aclose()  # type: ignore[attr-defined]
        assert feed.open_streams == 1
        await pages[1].aclose()  # type: ignore[attr-defined]
        return received

    first, second = asyncio.run(read_with_two_pages())
    assert first == second
    assert [each["events"][0]["type"] for each in first] == ["tool_started", "tool_finished"]
    assert first[0]["approvals"] == []
    assert "approvals" not in first[1], "the state has not changed"
    assert feed.open_streams == 0
