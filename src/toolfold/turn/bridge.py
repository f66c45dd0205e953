"""The bridge: one tool through which a model calls the tools it was not shown.

`unwrap` is the first station of dispatch. After it, nothing in the house knows that there was a bridge.
"""

from __future__ import annotations

from toolfold.errors import BridgeMisuse, shown
from toolfold.model import BRIDGE_CALL, BRIDGE_NAMES, ToolCall
from toolfold.validation import parse_arguments


def unwrap(call: ToolCall) -> ToolCall:
    """The real call inside `tool_call(name, arguments)`; any other call as it is."""
    called: object = call.name
    if not isinstance(called, str):
        raise BridgeMisuse(f"a call needs the name of a tool, not {type(called).__name__}. Nothing was run.")
    if called != BRIDGE_CALL:
        return call
    wrapped = parse_arguments(BRIDGE_CALL, call.arguments)
    name = wrapped.pop("name", None)
    arguments = wrapped.pop("arguments", None)
    if not isinstance(name, str) or not name.strip():
        raise BridgeMisuse("tool_call needs `name`, the tool to call, and `arguments`, an object.")
    if name.strip() in BRIDGE_NAMES:
        raise BridgeMisuse(f"{name.strip()!r} is a bridge tool: call it directly, not through tool_call.")
    if wrapped:
        extra = ", ".join(shown(str(key), 40) for key in list(wrapped)[:5])
        raise BridgeMisuse(
            f"tool_call takes only `name` and `arguments`: put {extra} inside `arguments`. Nothing was run."
        )
    return ToolCall(name.strip(), arguments, call.id)
