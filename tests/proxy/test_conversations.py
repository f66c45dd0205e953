"""Requests of one conversation are recognised, also if others start with the same message."""

from __future__ import annotations

from toolfold.core.types import Json
from toolfold.models.wire import WIRES
from toolfold.serving.proxy import conversations
from toolfold.serving.proxy.conversations import Conversations

WIRE = WIRES["messages"]
HELLO: Json = {"role": "user", "content": "Hello"}
NEXT: Json = {"role": "user", "content": "Go on"}


def say(text: str) -> Json:
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def call(call_id: str) -> Json:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": call_id, "name": "t", "input": {}}]}


def start(known: Conversations, *, text: str = "", call_ids: tuple[str, ...] = ()) -> bytes:
    """Return the key of a new conversation that got this reply."""
    key = known.find("client", [HELLO], WIRE)
    known.note_reply(key, "client", [HELLO], call_ids, text)
    return key


def test_two_conversations_with_the_same_first_message_are_distinguished_by_the_first_reply() -> None:
    known = Conversations()
    first, second, third = start(known, text="One"), start(known, text="Two"), start(known, call_ids=("a",))
    assert len({first, second, third}) == 3
    assert known.find("client", [HELLO, say("One"), NEXT], WIRE) == first
    assert known.find("client", [HELLO, say("Two"), NEXT, say("One"), NEXT], WIRE) == second
    assert known.find("client", [HELLO, call("a"), NEXT], WIRE) == third


def test_cache_marker_added_to_the_first_message_does_not_start_a_new_conversation() -> None:
    known = Conversations()
    first = start(known, text="One")
    block = {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}
    assert known.find("client", [{"role": "user", "content": [block]}, say("One")], WIRE) == first


def test_equal_messages_from_two_clients_are_treated_as_two_conversations() -> None:
    known = Conversations()
    assert known.find("other", [HELLO, say("One")], WIRE) != start(known, text="One")


def test_conversation_not_seen_before_is_identified_by_its_first_message_and_reply() -> None:
    known = Conversations()
    first = known.find("client", [HELLO, say("One"), NEXT], WIRE)
    assert known.find("client", [HELLO, say("One"), NEXT, say("Two"), NEXT], WIRE) == first
    assert known.find("client", [HELLO, say("Other"), NEXT], WIRE) != first


def test_token_counting_request_does_not_start_a_new_conversation() -> None:
    known = Conversations()
    counted = [known.find("client", [HELLO], WIRE, is_counted=True) for _ in range(2)]
    assert counted[0] == counted[1] != known.find("client", [HELLO], WIRE)


def test_proxy_forgets_the_oldest_conversation_above_the_maximum_number_of_conversations() -> None:
    known = Conversations()
    first = start(known, text="first")
    for number in range(conversations.MAX_CONVERSATIONS):
        known.note_reply(b"key", "client", [HELLO], (), str(number))
    assert known.find("client", [HELLO, say("first")], WIRE) != first
