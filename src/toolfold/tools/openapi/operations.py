"""Read the operations of an OpenAPI document, to create tools from them.

A record has all that a call needs: name, description, JSON Schema of the arguments, and where each argument
belongs in the HTTP request. An operation that cannot be called is reported with the reason and left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolfold.core.errors import shorten
from toolfold.core.types import Json
from toolfold.tools.openapi.api_document import OpenApiDocument, UnresolvedReference
from toolfold.tools.openapi.api_schemas import SchemaReader

__all__ = ["ApiOperation", "BodyFormat", "ParameterBinding", "SkippedOperation", "read_operations"]

METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
SAFE_METHODS = frozenset({"get", "head", "options"})
MAX_OPERATIONS = 20_000
MAX_DESCRIPTION_CHARS = 600
MAX_SUMMARY_CHARS = 200
BODY_ARGUMENT = "body"
_LOCATIONS = ("path", "query", "header", "cookie")
_DEFAULT_STYLES = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
_STYLES = frozenset({"simple", "label", "matrix", "form", "spaceDelimited", "pipeDelimited", "deepObject"})
_SET_BY_CLIENT = frozenset(
    {"accept", "content-type", "authorization", "host", "content-length", "connection", "transfer-encoding"}
)
"""Headers that the client sets itself; a document's definition of them is ignored."""
_ARGUMENT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TAG = re.compile(r"<[^<>]{1,200}>")
_LINK = re.compile(r"\[([^\[\]]{1,200})\]\([^()\s]{1,500}\)")
_PAGE_ARGUMENTS = frozenset(
    {
        *("page", "per_page", "page_size", "pagesize", "page_token", "pagetoken", "page_number", "cursor"),
        *("limit", "offset", "starting_after", "ending_before", "after", "before", "next_token", "continue"),
        *("nexttoken", "start_cursor", "next_cursor", "skip", "pagelen", "$skip", "$top", "maxresults"),
    }
)
_CHANGING_VERBS = frozenset(
    {
        *("add", "approve", "attach", "cancel", "change", "create", "delete", "detach", "disable", "enable"),
        *(
            "import",
            "invite",
            "kick",
            "modify",
            "move",
            "post",
            "purge",
            "put",
            "reboot",
            "release",
            "remove",
        ),
        *(
            "rename",
            "replace",
            "reset",
            "restore",
            "revoke",
            "run",
            "send",
            "set",
            "start",
            "stop",
            "terminate",
        ),
        *("transfer", "update", "upload", "write"),
    }
)
_CURSOR_ARGUMENTS = frozenset({"after", "before", "limit", "continue"})


@dataclass(frozen=True, slots=True)
class ParameterBinding:
    """Position and format of a tool argument in the HTTP request."""

    argument: str
    name: str
    """Name of the parameter in the request; the argument's name may differ."""
    location: str
    """`path`, `query`, `header` or `cookie`."""
    style: str = "form"
    explode: bool = True
    is_json: bool = False
    allows_reserved: bool = False


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """Format in which the argument `body` is written to the HTTP request."""

    media_type: str
    files: tuple[str, ...] = ()
    """Fields whose values are paths of files to upload; `""` if the whole body is one file."""
    deep_fields: bool = True
    """True if nested values of a form are written as `field[key]=value`."""


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """One operation of an API as a tool: its definition, and how to call it."""

    name: str
    description: str
    parameters: Json
    method: str
    path: str
    bindings: tuple[ParameterBinding, ...] = ()
    body: BodyFormat | None = None
    security: tuple[tuple[str, ...], ...] = ()
    """Alternative groups of security schemes; a group needs all its schemes, an empty group nothing."""
    page_arguments: tuple[str, ...] = ()
    """Arguments that select a page of a long result."""
    tags: tuple[str, ...] = ()
    only_reads: bool = False
    """True if calls of the operation change nothing."""

    def to_json(self) -> Json:
        """Return the API operation as a JSON value."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> ApiOperation:
        """Build an operation from the JSON value of `to_json`. Raises KeyError, TypeError or ValueError."""
        body = value["body"]
        return ApiOperation(
            name=value["name"],
            description=value["description"],
            parameters=value["parameters"],
            method=value["method"],
            path=value["path"],
            bindings=tuple(ParameterBinding(**each) for each in value["bindings"]),
            body=BodyFormat(body["media_type"], tuple(body["files"]), body["deep_fields"]) if body else None,
            security=tuple(tuple(each) for each in value["security"]),
            page_arguments=tuple(value["page_arguments"]),
            tags=tuple(value["tags"]),
            only_reads=value["only_reads"] is True,
        )


@dataclass(frozen=True, slots=True)
class SkippedOperation:
    """Operation for which no tool was created, and the reason."""

    method: str
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.method.upper()} {self.path}: {self.reason}"


class _CannotCall(ValueError):
    """Raised if an operation cannot be called; the message gives the reason."""


def read_operations(
    document: OpenApiDocument, *, prefix: str, base_url: str = ""
) -> tuple[list[ApiOperation], list[SkippedOperation]]:
    """Return the operations of a document, with prefixed tool names, and the skipped operations.

    `base_url` is where requests will be sent; empty for the document's first server.
    """
    reader = _OperationReader(document, base_url)
    found: list[ApiOperation] = []
    skipped: list[SkippedOperation] = []
    names = _OperationNames(prefix)
    for method, path, item, operation in _list_operations(document, skipped):
        try:
            if len(found) >= MAX_OPERATIONS:
                raise _CannotCall(f"only the first {MAX_OPERATIONS:,} operations are used")
            found.append(reader.read(names, method, path, item, operation))
        except (UnresolvedReference, _CannotCall) as problem:
            skipped.append(SkippedOperation(method, path, str(problem)))
    return found, skipped


def _list_operations(
    document: OpenApiDocument, skipped: list[SkippedOperation]
) -> Iterator[tuple[str, str, Json, Json]]:
    paths = document.root.get("paths")
    for path, reference in paths.items() if isinstance(paths, dict) else ():
        if not path.startswith("/"):  # an extension such as x-notes
            continue
        try:
            item = document.resolve(reference)
        except UnresolvedReference as problem:
            skipped.append(SkippedOperation("*", path, str(problem)))
            continue
        for method in METHODS:
            operation = item.get(method) if isinstance(item, dict) else None
            if isinstance(operation, dict):
                yield method, path, item, operation


class _OperationNames:
    """Creates a readable, unique tool name for each operation of an API."""

    def __init__(self, prefix: str) -> None:
        self._prefix, self._taken = prefix, set[str]()

    def choose(self, method: str, path: str, operation: Json) -> str:
        for words in self._candidates(method, path, operation):
            name = f"{self._prefix}_{'_'.join(words)}"
            if name not in self._taken:
                break
        base, number = name, 2
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name)
        return name

    def _candidates(self, method: str, path: str, operation: Json) -> Iterator[list[str]]:
        by_path = [method, *split_words(path)]
        operation_id = operation.get("operationId")
        words = split_words(operation_id) if isinstance(operation_id, str) else []
        if words:
            yield self._without_prefix(_without_path(words, method, path))
            yield self._without_prefix(words)
        fixed = [word for part in path.split("/") if not part.startswith("{") for word in split_words(part)]
        yield [method, *fixed] if fixed else by_path
        yield by_path

    def _without_prefix(self, words: list[str]) -> list[str]:
        """Remove a leading API name from an operation's words, because the tool prefix contains it."""
        own = split_words(self._prefix)
        return words[len(own) :] if words[: len(own)] == own and len(words) > len(own) else words


def _without_path(words: list[str], method: str, path: str) -> list[str]:
    """Return the words of an operation id without the path and method that FastAPI appends."""
    end = [*split_words(path), method]
    return words[: -len(end)] if words[-len(end) :] == end and len(words) > len(end) else words


def split_words(text: str) -> list[str]:
    """Return the words of a name in lower case: `listPets` and `List pets` give the same words."""
    spaced = _CAMEL.sub(" ", text) if not text.isupper() else text
    return [word.lower() for word in _NOT_IN_NAMES.split(spaced) if word]


class _OperationReader:
    """Reads single operations of one OpenAPI document."""

    def __init__(self, document: OpenApiDocument, base_url: str) -> None:
        self._document, self._schemas = document, SchemaReader(document)
        first = document.list_servers()[:1] or ["/"]
        self._base_urls = _list_forms(first[0]) | _list_forms(base_url or first[0])
        self._default_security = document.root.get("security")

    def read(
        self, names: _OperationNames, method: str, path: str, item: Json, operation: Json
    ) -> ApiOperation:
        self._require_main_server(operation, item)
        properties: Json = {}
        required: list[str] = []
        bindings = self._read_parameters(path, item, operation, properties, required)
        body = self._read_body(operation, properties, required)
        pages = _find_page_arguments(bindings) if method == "get" else ()
        parameters: Json = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            parameters["required"] = required
        security = operation.get("security", self._default_security)
        return ApiOperation(
            name=names.choose(method, path, operation),
            description=_describe(method, path, operation, pages),
            parameters=parameters,
            method=method.upper(),
            path=path,
            bindings=tuple(bindings),
            body=body,
            security=_read_security(security),
            page_arguments=pages,
            tags=tuple(str(tag) for tag in _as_list(operation.get("tags"))),
            only_reads=method in SAFE_METHODS and not _has_changing_verb(operation),
        )

    def _require_main_server(self, operation: Json, item: Json) -> None:
        """Raise _CannotCall if an operation names its own servers and the API's server is not among them.

        Whole URLs are compared: another host must not get credentials, and another path is another API.
        """
        own = self._document.list_servers(operation) or self._document.list_servers(item)
        if own and all(self._base_urls.isdisjoint(_list_forms(url)) for url in own):
            raise _CannotCall(f"it is on another server ({shorten(own[0], 100)})")

    def _read_parameters(
        self, path: str, item: Json, operation: Json, properties: Json, required: list[str]
    ) -> list[ParameterBinding]:
        bindings: list[ParameterBinding] = []
        for parameter in self._list_parameters(item, operation):
            name, location = str(parameter["name"]), parameter["in"]
            argument = _choose_argument(name, location, properties)
            is_json, schema = _find_parameter_schema(parameter)
            properties[argument] = self._describe_parameter(parameter, schema)
            if parameter.get("required") is True or location == "path":
                required.append(argument)
            style = parameter.get("style")
            style = style if style in _STYLES else _DEFAULT_STYLES[location]
            explode = parameter.get("explode", style in ("form", "deepObject"))
            reserved = parameter.get("allowReserved") is True
            bindings.append(
                ParameterBinding(argument, name, location, style, explode is True, is_json, reserved)
            )
        missing = set(re.findall(r"\{([^{}]*)\}", path)) - {b.name for b in bindings if b.location == "path"}
        if missing:
            raise _CannotCall(f"the path parameter {shorten(min(missing), 60)!r} is not defined")
        return bindings

    def _list_parameters(self, item: Json, operation: Json) -> Iterable[Json]:
        """Return the parameters of an operation, including those inherited from its path."""
        found: dict[tuple[str, str], Json] = {}
        for reference in (*_as_list(item.get("parameters")), *_as_list(operation.get("parameters"))):
            parameter = self._document.resolve(reference)
            if not isinstance(parameter, dict) or parameter.get("in") not in _LOCATIONS:
                continue
            name = str(parameter.get("name", ""))
            if name and not (parameter["in"] == "header" and name.lower() in _SET_BY_CLIENT):
                found[name, parameter["in"]] = parameter
        return found.values()

    def _describe_parameter(self, parameter: Json, schema: Any) -> Json:
        described = self._schemas.read(schema)
        text = parameter.get("description")
        if isinstance(text, str) and text.strip():
            described["description"] = shorten(clean_text(text), 400)
        return described

    def _read_body(self, operation: Json, properties: Json, required: list[str]) -> BodyFormat | None:
        body = self._document.resolve(operation.get("requestBody"))
        content = body.get("content") if isinstance(body, dict) else None
        if not isinstance(content, dict) or not content:
            return None
        media_type = min(content, key=_rank_media_type)
        media = self._document.resolve(content[media_type])
        schema = media.get("schema") if isinstance(media, dict) else None
        described, files = self._describe_body(media_type, schema)
        argument = _choose_argument(BODY_ARGUMENT, "body", properties)
        if argument != BODY_ARGUMENT:  # an unrelated parameter has the name
            raise _CannotCall("a parameter and the body have the same name")
        if isinstance(body.get("description"), str) and "description" not in described:
            described["description"] = shorten(clean_text(body["description"]), 400)
        properties[argument] = described
        if body.get("required") is True or _required_names(described):
            required.append(argument)
        return BodyFormat(media_type, files)

    def _describe_body(self, media_type: str, schema: Any) -> tuple[Json, tuple[str, ...]]:
        """Return the JSON Schema of a request body, and the names of its file fields."""
        plain = _plain_type(media_type)
        if _is_json_type(plain) or plain == "application/x-www-form-urlencoded":
            return self._schemas.read(schema), ()
        if plain.startswith("multipart/"):
            return self._describe_multipart(schema)
        if plain.startswith("text/") or plain.endswith("xml"):
            return {"type": "string", "description": f"Text of the type {plain}."}, ()
        return {"type": "string", "description": f"Path of the file to send ({shorten(plain, 60)})."}, ("",)

    def _describe_multipart(self, schema: Any) -> tuple[Json, tuple[str, ...]]:
        described = self._schemas.read(schema)
        files = tuple(
            name
            for name, each in described.get("properties", {}).items()
            if self._is_file(schema, name, each)
        )
        if files:
            described["properties"] = dict(described["properties"])  # shared with other operations
        for name in files:
            note = described["properties"][name].get("description", "")
            text = f"Path of the file to upload. {note}".strip()
            is_list = described["properties"][name].get("type") == "array"
            path: Json = {"type": "string"}
            described["properties"][name] = (
                {"type": "array", "items": path, "description": text}
                if is_list
                else {**path, "description": text}
            )
        return described, files

    def _is_file(self, schema: Any, name: str, described: Json) -> bool:
        """Return True if a form field is a file: `format: binary` (OpenAPI 3.0), `contentMediaType` (3.1)."""
        if described.get("format") == "binary" or described.get("items", {}).get("format") == "binary":
            return True
        owner = self._document.resolve(schema)
        properties = owner.get("properties") if isinstance(owner, dict) else None
        field_schema = self._document.resolve(properties.get(name)) if isinstance(properties, dict) else None
        return isinstance(field_schema, dict) and "contentMediaType" in field_schema


def _has_changing_verb(operation: Json) -> bool:
    """Return True if an id such as `GET_DeleteVolume` indicates that a GET request changes data."""
    words = split_words(str(operation.get("operationId", "")))
    return not _CHANGING_VERBS.isdisjoint(words[:2] if words[:1] == ["get"] else words[:1])


def _list_forms(url: str) -> set[str]:
    """Return the URL without a trailing slash and, if it has no scheme, its http and https variants."""
    plain = url.rstrip("/")
    return {plain, f"https:{plain}", f"http:{plain}"} if plain.startswith("//") else {plain}


def _choose_argument(name: str, location: str, properties: Mapping[str, Any]) -> str:
    """Return an argument name that is unique and that all model providers accept."""
    plain = name if _ARGUMENT_NAME.fullmatch(name) else _NOT_IN_NAMES.sub("_", name).strip("_")[:60]
    plain = plain or location
    if plain == BODY_ARGUMENT and location != "body":
        plain = f"{BODY_ARGUMENT}_{location}"
    candidate, number = plain, 2
    if candidate in properties:
        candidate = f"{plain}_{location}"
    while candidate in properties:
        candidate, number = f"{plain}_{number}", number + 1
    return candidate


def _find_parameter_schema(parameter: Json) -> tuple[bool, Any]:
    """Return whether a parameter's value is encoded as JSON, and the parameter's schema."""
    content = parameter.get("content")
    if isinstance(content, dict) and content:
        media = next(iter(content.values()))
        return True, media.get("schema") if isinstance(media, dict) else None
    return False, parameter.get("schema")


def _rank_media_type(media_type: str) -> int:
    """Return a rank for how easily a model can write a body of this media type; lower is better."""
    plain = _plain_type(media_type)
    if _is_json_type(plain):
        return 0 if plain == "application/json" else 1
    order = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
    return order.index(plain) + 2 if plain in order else 9


def _plain_type(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()


def _is_json_type(plain: str) -> bool:
    return plain in ("application/json", "text/json", "*/*", "application/*") or plain.endswith("+json")


def _required_names(schema: Mapping[str, Any]) -> Sequence[Any]:
    required = schema.get("required")
    return required if isinstance(required, list) else ()


def _find_page_arguments(bindings: Iterable[ParameterBinding]) -> tuple[str, ...]:
    found = [b for b in bindings if b.location == "query" and b.name.lower() in _PAGE_ARGUMENTS]
    if all(b.name.lower() in _CURSOR_ARGUMENTS for b in found) and len(found) < 2:
        return ()  # one of these words alone can mean something else
    return tuple(b.argument for b in found)


def _read_security(security: Any) -> tuple[tuple[str, ...], ...]:
    alternatives = [each for each in _as_list(security) if isinstance(each, dict)]
    return tuple(tuple(str(name) for name in each) for each in alternatives)


def _describe(method: str, path: str, operation: Json, pages: Sequence[str]) -> str:
    """Return the description of a tool: summary, details, endpoint and pagination."""
    summary = _clean_value(operation.get("summary"), MAX_SUMMARY_CHARS)
    details = _clean_value(operation.get("description"), MAX_DESCRIPTION_CHARS)
    if details.lower().startswith(summary.lower().rstrip(".")):
        summary = ""
    words = " ".join(split_words(str(operation.get("operationId") or f"{method} {path}")))
    sentences = [_end_sentence(part) for part in (summary, details) if part] or [_end_sentence(words)]
    if operation.get("deprecated") is True:
        sentences.append("Deprecated.")
    if pages:
        sentences.append(f"Long results have pages: {', '.join(pages)}.")
    return " ".join([*sentences, f"({method.upper()} {shorten(path, 120)})"])


def _end_sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…", ":")) else f"{text}."


def _clean_value(value: Any, limit: int) -> str:
    return shorten(clean_text(value), limit) if isinstance(value, str) else ""


def clean_text(text: str) -> str:
    """Return Markdown or HTML as one line of plain text."""
    return " ".join(_LINK.sub(r"\1", _TAG.sub(" ", text[:20_000])).split())


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
