"""The endpoints of a provider's API as its Python SDK describes them, and valid responses of each.

The source of the SDK's resources contains the method, path and response type of every endpoint. A response is
the smallest value that fits the type, so it is what the SDK itself must be able to read.
"""

from __future__ import annotations

import ast
import datetime
import importlib
import inspect
import json
import pkgutil
import re
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic
from typing_extensions import TypeAliasType

from tests.proxy.upstream import Answer, Prepared, Received
from toolfold.core.types import Json

_VERBS = {"_get": "GET", "_post": "POST", "_put": "PUT", "_patch": "PATCH", "_delete": "DELETE"}
_LIST = "_get_api_list"
_EVENT_ORDER = (
    *("response.created", "response.completed"),
    *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
    *("message_delta", "message_stop"),
)
"""The events of a complete reply, in the order in which a provider sends them."""
_SCALARS: dict[Any, Any] = {
    str: "text",
    int: 1,
    float: 1.5,
    bool: True,
    bytes: "text",
    datetime.datetime: "2026-01-02T03:04:05Z",
    datetime.date: "2026-01-02",
    object: "any",
    Any: "any",
}


@dataclass(frozen=True)
class Endpoint:
    """An endpoint of an API, and what it responds."""

    method: str
    path: re.Pattern[str]
    response: Any
    """The type of the response's body."""
    event: Any = None
    """The type of the events, if the response can be streamed."""

    def respond(self, request: Received) -> Prepared:
        """Return a valid response."""
        if self.event is not None and _wants_stream(request):
            return _stream_events(self.event)
        if self.response is None or self.response is type(None):
            return Prepared(parts=[b""], status=204, headers={})
        if not _is_json_type(self.response):
            return Prepared(parts=[b"content"], headers={"content-type": "application/octet-stream"})
        return Prepared(parts=[json.dumps(make_value(self.response)).encode()])


def answer_like(package: str, modules: Sequence[str] | None = None) -> Answer:
    """Return a function that answers the requests of an SDK, with status 404 for unknown endpoints.

    `modules` are the modules of the SDK's resources whose endpoints are known; by default all.
    """
    endpoints = read_endpoints(package, modules)

    def answer(request: Received) -> Prepared:
        path = request.path.partition("?")[0]
        for endpoint in endpoints:
            if endpoint.method == request.method and endpoint.path.fullmatch(path):
                return endpoint.respond(request)
        error = {"error": {"message": f"there is no {request.method} {path}", "type": "not_found"}}
        return Prepared(parts=[json.dumps(error).encode()], status=404)

    return answer


def read_endpoints(package: str, modules: Sequence[str] | None = None) -> list[Endpoint]:
    """Return the endpoints in the source of an SDK's resources, those with the fewest parameters first."""
    resources = importlib.import_module(f"{package}.resources")
    names = modules or [
        each.name.removeprefix(f"{resources.__name__}.")
        for each in pkgutil.walk_packages(resources.__path__, f"{resources.__name__}.")
    ]
    found: dict[tuple[str, str], Endpoint] = {}
    for name in names:
        for endpoint in _read_module(importlib.import_module(f"{resources.__name__}.{name}")):
            found.setdefault((endpoint.method, endpoint.path.pattern), endpoint)
    return sorted(found.values(), key=lambda each: each.path.pattern.count("[^/]+"))


def _read_module(module: types.ModuleType) -> Iterator[Endpoint]:
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, options = node.func.attr, {each.arg: each.value for each in node.keywords}
        path = _find_path(node)
        if path is None or name not in {*_VERBS, _LIST}:
            continue
        response = _evaluate(options.get("page" if name == _LIST else "cast_to"), module)
        verb = _evaluate(options.get("method"), module) if name == _LIST else None
        method = str(verb or "get").upper() if name == _LIST else _VERBS[name]
        events = typing.get_args(_evaluate(options.get("stream_cls"), module))
        yield Endpoint(method, path, response, events[0] if events else None)


def _find_path(call: ast.Call) -> re.Pattern[str] | None:
    """Return a pattern for the path that is the first argument of a call; None if it is no literal."""
    path = call.args[0] if call.args else None
    if isinstance(path, ast.Call) and path.args:  # a template that is filled in
        path = path.args[0]
    if not isinstance(path, ast.Constant) or not isinstance(path.value, str):
        return None
    literal = path.value.partition("?")[0].removeprefix("/v1")
    pieces = re.split(r"\{\w+\}", literal)
    return re.compile("/v1" + "[^/]+".join(map(re.escape, pieces)))


def _evaluate(node: ast.expr | None, module: types.ModuleType) -> Any:
    """Return the type that an expression of a module names; None if it depends on the call's arguments."""
    if node is None:
        return None
    try:
        return eval(compile(ast.Expression(node), module.__name__, "eval"), {**vars(module), **vars(typing)})
    except NameError:
        return None


def make_value(kind: Any) -> Any:
    """Return the smallest JSON value that fits a type of an SDK."""
    if isinstance(kind, TypeAliasType):
        return make_value(kind.__value__)
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return parts[0]
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return make_value(parts[0])
    if origin in (typing.Union, types.UnionType):
        return make_value(next(each for each in parts if each is not type(None)))
    if inspect.isclass(kind) and issubclass(kind, pydantic.BaseModel):
        return _make_object(kind)
    if inspect.isclass(origin or kind) and issubclass(origin or kind, dict):
        return {"key": make_value(parts[1])} if parts else {}
    if origin is not None and parts:  # lists and other iterables
        return [make_value(parts[0])]
    return [] if kind is list else "any"


def _make_object(model: type[pydantic.BaseModel]) -> Json:
    """Return an object with the required fields of a model, and with one entry if it is a page of a list."""
    model.model_rebuild()
    fields = model.model_fields.items()
    wanted = {"data"} if any("Page" in base.__name__ for base in model.__mro__) else set()
    value = {
        field.alias or name: make_value(field.annotation)
        for name, field in fields
        if field.is_required() or name in wanted
    }
    return {**value, "has_more": False} if "has_more" in value else value


def _stream_events(kind: Any) -> Prepared:
    """Return a stream with one event of each type that a complete reply has."""
    while isinstance(kind, TypeAliasType) or typing.get_origin(kind) is typing.Annotated:
        kind = kind.__value__ if isinstance(kind, TypeAliasType) else typing.get_args(kind)[0]
    variants = (
        typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    )
    events = [make_value(each) for each in variants]
    known = [event for name in _EVENT_ORDER for event in events if event.get("type") == name]
    parts = [_render_event(event) for event in known or events]
    if not known:
        parts.append(b"data: [DONE]\n\n")
    return Prepared(parts=parts, headers={"content-type": "text/event-stream"}, chunked=True)


def _render_event(event: Json) -> bytes:
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


def _wants_stream(request: Received) -> bool:
    try:
        content = request.json
    except ValueError:
        return b'name="stream"\r\n\r\ntrue' in request.body
    return isinstance(content, dict) and content.get("stream") is True


def _is_json_type(kind: Any) -> bool:
    """Return False for the SDK's classes of binary responses."""
    return not (inspect.isclass(kind) and "Binary" in kind.__name__)
