"""Requests of one conversation are recognised, also if others start with the same message."""

from __future__ import annotations

from toolfold.model import Json
from toolfold.providers.wire import WIRES
from toolfold.proxy import conversations
from toolfold.proxy.conversations import Conversations

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


def test_conversations_with_the_same_first_message_are_distinguished_by_the_reply() -> None:
    known = Conversations()
    first, second, third = start(known, text="One"), start(known, text="Two"), start(known, call_ids=("a",))
    assert len({first, second, third}) == 3
    assert known.find("client", [HELLO, say("One"), NEXT], WIRE) == first
    assert known.find("client", [HELLO, say("Two"), NEXT, say("One"), NEXT], WIRE) == second
    assert known.find("client", [HELLO, call("a"), NEXT], WIRE) == third


def test_conversation_is_recognised_if_the_format_or_cache_marker_of_its_first_message_changes() -> None:
    known = Conversations()
    first = start(known, text="One")
    block = {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}
    assert known.find("client", [{"role": "user", "content": [block]}, say("One")], WIRE) == first


def test_equal_messages_of_two_clients_are_separate_conversations() -> None:
    known = Conversations()
    assert known.find("other", [HELLO, say("One")], WIRE) != start(known, text="One")


def test_conversation_that_began_before_the_proxy_started_is_identified_by_its_first_reply() -> None:
    known = Conversations()
    first = known.find("client", [HELLO, say("One"), NEXT], WIRE)
    assert known.find("client", [HELLO, say("One"), NEXT, say("Two"), NEXT], WIRE) == first
    assert known.find("client", [HELLO, say("Other"), NEXT], WIRE) != first


def test_request_that_only_counts_tokens_starts_no_conversation() -> None:
    known = Conversations()
    counted = [known.find("client", [HELLO], WIRE, is_counted=True) for _ in range(2)]
    assert counted[0] == counted[1] != known.find("client", [HELLO], WIRE)


def test_oldest_conversations_are_forgotten_above_the_limit() -> None:
    known = Conversations()
    first = start(known, text="first")
    for number in range(conversations.MAX_CONVERSATIONS):
        known.note_reply(b"key", "client", [HELLO], (), str(number))
    assert known.find("client", [HELLO, say("first")], WIRE) != first
