"""Replies are remembered by their calls or their text, in one conversation, within a limit of bytes."""

from __future__ import annotations

from toolfold.core.types import Json
from toolfold.models.wire import WIRES
from toolfold.serving.proxy.reply_memory import ReplyMemory

WIRE = WIRES["messages"]
HERE = b"this conversation"
QUESTION: Json = {"role": "user", "content": "Hi"}


def reply(*blocks: Json) -> Json:
    return {"role": "assistant", "content": list(blocks)}


def call(call_id: str, name: str = "forecast", **more: Json) -> Json:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}, **more}


def test_reply_sent_back_by_the_client_is_replaced_by_the_original_messages_of_the_provider() -> None:
    memory, original = (
        ReplyMemory(),
        [reply(call("s", "tool_search")), QUESTION, reply(call("a", "tool_call"))],
    )
    memory.remember(HERE, ["a"], "", original)
    assert memory.restore(HERE, [QUESTION, reply(call("a"))], WIRE) == [QUESTION, *original]
    assert memory.restore(HERE, [reply(call("a"), call("b"))], WIRE) == [reply(call("a"), call("b"))]
    assert memory.restore(b"another conversation", [reply(call("a"))], WIRE) == [reply(call("a"))]


def test_reply_without_tool_calls_is_replaced_by_the_remembered_messages_with_equal_text() -> None:
    memory, original = ReplyMemory(), [QUESTION, reply({"type": "text", "text": "It is sunny."})]
    memory.remember(HERE, [], "Let me see. It is sunny.", original)
    seen = reply({"type": "text", "text": "Let me see."}, {"type": "text", "text": "It is sunny."})
    assert memory.restore(HERE, [seen], WIRE) == original


def test_cache_marker_set_by_the_client_is_copied_to_the_restored_original_reply() -> None:
    memory, mark = ReplyMemory(), {"type": "ephemeral"}
    memory.remember(HERE, ["a"], "", [reply(call("a", "tool_call"))])
    (restored,) = memory.restore(HERE, [reply(call("a", cache_control=mark))], WIRE)
    assert restored == reply(call("a", "tool_call", cache_control=mark))


def test_oldest_remembered_replies_are_forgotten_above_the_byte_limit() -> None:
    memory = ReplyMemory(max_bytes=1_000)
    for name in ("a", "b"):
        memory.remember(HERE, [name], "", [reply({"type": "text", "text": "x" * 600})])
    assert memory.restore(HERE, [reply(call("a"))], WIRE) == [reply(call("a"))]
    assert memory.restore(HERE, [reply(call("b"))], WIRE) != [reply(call("b"))]
