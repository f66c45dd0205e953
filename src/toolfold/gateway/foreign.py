"""What servers say beside the text of a result, as the clients of a gateway may have it.

Addresses stand under the name of the server that gave them, so that none of them leads to another server;
words that address the model are marked as everywhere. Knows the protocol's types, and no client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from toolfold.sources.mcp.courier import in_its_name
from toolfold.sources.mcp.pool import mark

Address = Callable[[str], str]

_OF_THE_WEB = ("http://", "https://")  # clients fetch these themselves
_WORDS = ("title", "description")


def has_addresses(answer: Any) -> bool:
    """Whether there is more in the answer to a call than words and pictures."""
    return any(block.type in ("resource", "resource_link") for block in answer.content)


def result(answer: Any, address: Address) -> Any:
    """The answer to a call of a tool."""
    return answer.model_copy(update={"content": [_block(block, address) for block in answer.content]})


def read(answer: Any, address: Address) -> Any:
    """The answer to `resources/read`."""
    contents = [
        each.model_copy(update={"uri": address(str(each.uri)), **_marked(each, ("text",))})
        for each in answer.contents
    ]
    return answer.model_copy(update={"contents": contents})


def prompt(answer: Any, address: Address) -> Any:
    """The answer to `prompts/get`."""
    messages = [
        each.model_copy(update={"content": _said(_block(each.content, address))}) for each in answer.messages
    ]
    return answer.model_copy(update={"messages": messages, **_marked(answer, ("description",))})


def listed(items: Iterable[tuple[str, Any]], field: str, name: Callable[[str, str], str]) -> list[Any]:
    """Resources, templates or prompts of several servers, each with the name that clients know it by."""
    return [
        each.model_copy(update={field: name(server, str(getattr(each, field))), **_marked(each, _WORDS)})
        for server, each in items
    ]


def asked(answer: Any, server: str) -> Any:
    """What a server wants to know before it goes on, in its own name."""
    requests = {
        key: each.model_copy(update={"params": in_its_name(each.params, server)})
        if hasattr(each.params, "message")
        else each
        for key, each in (answer.input_requests or {}).items()
    }
    return answer.model_copy(update={"input_requests": requests or None})


def _block(block: Any, address: Address) -> Any:
    if block.type == "resource_link":
        uri = _under(str(block.uri), address)
        return block.model_copy(update={"uri": uri, **_marked(block, _WORDS)})
    if block.type == "resource":
        return block.model_copy(update={"resource": _resource(block.resource, address)})
    return block


def _resource(resource: Any, address: Address) -> Any:
    uri = _under(str(resource.uri), address)
    return resource.model_copy(update={"uri": uri, **_marked(resource, ("text",))})


def _said(block: Any) -> Any:
    return block.model_copy(update=_marked(block, ("text",))) if block.type == "text" else block


def _under(uri: str, address: Address) -> str:
    return uri if uri.lower().startswith(_OF_THE_WEB) else address(uri)


def _marked(item: Any, fields: Iterable[str]) -> dict[str, str]:
    found = {field: getattr(item, field, None) for field in fields}
    return {field: mark(words) for field, words in found.items() if isinstance(words, str)}
