"""Build the HTTP request of an API operation from the arguments of a call.

Writes parameters in the styles that OpenAPI defines, and bodies as JSON, forms, multipart or files. Adds no
credentials and sends nothing.
"""

from __future__ import annotations

import json
import mimetypes
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from toolfold.core.errors import CallError, shorten
from toolfold.core.types import Json
from toolfold.tools.openapi.operations import BODY_ARGUMENT, ApiOperation, BodyFormat, ParameterBinding

__all__ = ["ApiRequest", "build_request"]

ReadFile = Callable[[str], bytes]
_RESERVED = ":/?#[]@!$&'()*+,;="
_DELIMITERS = {"spaceDelimited": "%20", "pipeDelimited": "|"}


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """An HTTP request without credentials."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = field(default=None, repr=False)


def build_request(operation: ApiOperation, base_url: str, args: Json, read_file: ReadFile) -> ApiRequest:
    """Return the HTTP request for a call. Raises CallError if an argument cannot be sent.

    `read_file` returns the content of a file that a call names by its path.
    """
    path, query = operation.path, list[str]()
    headers: dict[str, str] = {"Accept": "application/json, text/*;q=0.8, */*;q=0.5"}
    cookies: list[str] = []
    for binding in operation.bindings:
        if binding.location == "path":
            path = path.replace(f"{{{binding.name}}}", _write_path_value(binding, args.get(binding.argument)))
        elif args.get(binding.argument) is None:
            continue
        elif binding.location == "query":
            query += _write_query(binding, args[binding.argument])
        elif binding.location == "header":
            headers[binding.name] = _check_header(binding, _join(binding, args[binding.argument], str))
        else:
            cookies.append(f"{quote(binding.name)}={_join(binding, args[binding.argument], _quote_all)}")
    if cookies:
        headers["Cookie"] = "; ".join(cookies)
    body: bytes | None = None
    if operation.body and args.get(BODY_ARGUMENT) is not None:
        media_type, body = _write_body(operation.body, args[BODY_ARGUMENT], read_file)
        headers["Content-Type"] = media_type
    url = f"{base_url.rstrip('/')}{path}"
    return ApiRequest(operation.method, f"{url}?{'&'.join(query)}" if query else url, headers, body)


def _write_path_value(binding: ParameterBinding, value: Any) -> str:
    """Return a value for a URL path, escaped so that it cannot change the path. Raises CallError for `..`."""
    text = _join(binding, value, _quote_all)
    if text in ("", ".", ".."):
        raise CallError(
            f"{binding.argument!r} must not be {shorten(str(value), 40)!r}:"
            " the value becomes a segment of the URL's path."
        )
    if binding.style == "label":
        return f".{text}"
    return f";{quote(binding.name)}={text}" if binding.style == "matrix" else text


def _join(binding: ParameterBinding, value: Any, write: Callable[[str], str]) -> str:
    """Return a value as text; separate the items of lists and objects by commas."""
    if binding.is_json:
        return write(json.dumps(value))
    if isinstance(value, dict):
        parts = [
            f"{write(key)}={write(_to_text(each))}"
            if binding.explode
            else f"{write(key)},{write(_to_text(each))}"
            for key, each in value.items()
        ]
        return ",".join(parts)
    if isinstance(value, list):
        return ",".join(write(_to_text(each)) for each in value)
    return write(_to_text(value))


def _write_query(binding: ParameterBinding, value: Any) -> Iterator[str]:
    """Yield the escaped `name=value` pairs of a URL query for one parameter."""
    name = _quote_all(binding.name)
    write = _quote_reserved if binding.allows_reserved else _quote_all
    if binding.is_json:
        yield f"{name}={_quote_all(json.dumps(value))}"
    elif binding.style == "deepObject" and isinstance(value, (dict, list)):
        yield from (f"{_quote_all(key)}={write(each)}" for key, each in flatten_value(binding.name, value))
    elif isinstance(value, dict) and binding.explode:
        yield from (f"{_quote_all(key)}={write(_to_text(each))}" for key, each in value.items())
    elif isinstance(value, dict):
        yield f"{name}={','.join(f'{write(key)},{write(_to_text(each))}' for key, each in value.items())}"
    elif isinstance(value, list) and binding.explode:
        yield from (f"{name}={write(_to_text(each))}" for each in value)
    elif isinstance(value, list):
        delimiter = _DELIMITERS.get(binding.style, ",")
        yield f"{name}={delimiter.join(write(_to_text(each)) for each in value)}"
    else:
        yield f"{name}={write(_to_text(value))}"


def flatten_value(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the fields of a nested value as `name[key]`, which most form parsers accept."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from flatten_value(f"{name}[{key}]" if name else str(key), each)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            is_nested = isinstance(each, (dict, list))
            yield from flatten_value(f"{name}[{number}]" if is_nested else f"{name}[]", each)
    elif value is not None:
        yield name, _to_text(value)


def _write_body(form: BodyFormat, value: Any, read_file: ReadFile) -> tuple[str, bytes]:
    """Return the content type and the bytes of a request body."""
    plain = form.media_type.partition(";")[0].strip().lower()
    if form.files == ("",):
        return form.media_type if "*" not in plain else "application/octet-stream", read_file(str(value))
    if plain == "application/x-www-form-urlencoded":
        pairs = flatten_value("", _require_object(value))
        return plain, "&".join(f"{_quote_all(key)}={_quote_all(each)}" for key, each in pairs).encode()
    if plain.startswith("multipart/"):
        return _write_multipart(_list_parts(form, _require_object(value), read_file))
    if (
        isinstance(value, str)
        and (plain.startswith("text/") or plain.endswith("xml"))
        and plain != "text/json"
    ):
        return f"{plain}; charset=utf-8", value.encode()
    media_type = "application/json" if "*" in plain else form.media_type
    return media_type, json.dumps(value, ensure_ascii=False).encode()


def _require_object(value: Any) -> Json:
    if not isinstance(value, dict):
        raise CallError("The argument 'body' must be an object with the fields of the form.")
    return value


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    data: bytes
    file_name: str = ""
    media_type: str = ""


def _list_parts(form: BodyFormat, value: Json, read_file: ReadFile) -> Iterator[_Part]:
    for name, each in value.items():
        if name in form.files:
            for path in each if isinstance(each, list) else [each]:
                file_name = str(path).rpartition("/")[2]
                media_type = mimetypes.guess_type(file_name)[0] or "application/octet-stream"
                yield _Part(name, read_file(str(path)), file_name, media_type)
        elif isinstance(each, (dict, list)):
            yield _Part(name, json.dumps(each).encode(), media_type="application/json")
        elif each is not None:
            yield _Part(name, _to_text(each).encode())


def _write_multipart(parts: Iterable[_Part]) -> tuple[str, bytes]:
    boundary = f"toolfold-{secrets.token_hex(16)}"  # cannot occur in data that was written before it
    written: list[bytes] = []
    for part in parts:
        disposition = f'form-data; name="{_quote_field(part.name)}"'
        if part.file_name:
            disposition += f'; filename="{_quote_field(part.file_name)}"'
        kind = f"\r\nContent-Type: {part.media_type}" if part.media_type else ""
        written.append(f"--{boundary}\r\nContent-Disposition: {disposition}{kind}\r\n\r\n".encode())
        written += [part.data, b"\r\n"]
    written.append(f"--{boundary}--\r\n".encode())
    return f"multipart/form-data; boundary={boundary}", b"".join(written)


def _quote_field(text: str) -> str:
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _check_header(binding: ParameterBinding, text: str) -> str:
    if not text.isprintable() or not text.isascii():
        raise CallError(f"{binding.argument!r} is sent as a header, so it must be printable ASCII text.")
    return text


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value)  # true, 1.5, and nested values as JSON


def _quote_all(text: str) -> str:
    return quote(text, safe="")


def _quote_reserved(text: str) -> str:
    return quote(text, safe=_RESERVED)
