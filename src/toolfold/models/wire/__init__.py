"""Parsing and rewriting of model API requests and streams for the proxy, with one module for each API."""

from toolfold.models.wire.chat_completions import ChatWire
from toolfold.models.wire.interface import BodyMerger, ClientTool, ResolveCall, StreamMerger, Wire
from toolfold.models.wire.messages import MessagesWire
from toolfold.models.wire.responses import ResponsesWire
from toolfold.models.wire.sse import EventParser, EventTooLong, ServerSentEvent

__all__ = [
    "COUNTING_WIRES",
    "WIRES",
    "BodyMerger",
    "ClientTool",
    "EventParser",
    "EventTooLong",
    "ResolveCall",
    "ServerSentEvent",
    "StreamMerger",
    "Wire",
]

WIRES: dict[str, Wire] = {
    "chat/completions": ChatWire(),
    "messages": MessagesWire(),
    "responses": ResponsesWire(),
}
"""The APIs whose requests can be folded, by path below /v1."""

COUNTING_WIRES: dict[str, Wire] = {
    "messages/count_tokens": WIRES["messages"],
    "responses/input_tokens": WIRES["responses"],
}
"""The APIs that count the tokens of a request, by path below /v1."""
