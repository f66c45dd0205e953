"""The core data types: Tool, ToolCall, ToolResult, Effect, and the interfaces between components.

Pure data. Imports no other module of the project, reads no file, runs no tool.
"""

from __future__ import annotations

import copy
import json
import math
import re
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol, runtime_checkable

Json = dict[str, Any]

MCP_PREFIX = "mcp-"
USER_LEARNER_PREFIX = "user:"
"""Start of the names under which tool search learns from users, whose messages are private."""
BUILTIN_SOURCE, MCP_SOURCE = "builtin", "mcp"
ANONYMOUS_CLIENT = "(local)"
"""Name of a gateway client without a token; no token can have this name."""
BRIDGE_SEARCH = "tool_search"
BRIDGE_DESCRIBE = "tool_describe"
BRIDGE_CALL = "tool_call"
BRIDGE_NAMES = frozenset({BRIDGE_SEARCH, BRIDGE_DESCRIBE, BRIDGE_CALL})


_SURROGATE = re.compile("[\ud800-\udfff]")
_SLICE_CHARS = 100_000  # per call into C, during which no other thread runs


class Effect(StrEnum):
    """Possible effect of a tool (read, write, execute …), which determines whether calls need approval."""

    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"
    NETWORK = "network"
    SEND = "send"
    """Sends something to other people, which cannot be undone."""
    SPEND = "spend"
    """Uses a service that charges for each call."""
    CONTROL = "control"
    """Operates devices in the physical world."""
    SCHEDULE = "schedule"
    """Schedules work of a model for a later time, when nobody can be asked for approval."""
    INSTRUCT = "instruct"
    """Stores text that models follow as instructions in later sessions."""
    DESTRUCTIVE = "destructive"


class Meaning(StrEnum):
    """Meaning of a tool argument (a command, a path …), for approval decisions."""

    COMMAND = "command"
    """A shell command, or a list of its words; parsed as a shell does."""
    FOLDER = "folder"
    """Working directory of the shell command in another argument."""
    PATH = "path"
    """A file, or several, that the tool writes."""
    PYTHON = "python"
    """Python code; judged like the argument of `python3 -c`."""
    INPUT = "input"
    """Text for a running program, judged together with the argument INPUT_CONTEXT."""
    INPUT_CONTEXT = "input-context"
    """What is known about the program that receives the input; set by the runtime."""
    NOTE = "note"
    """Text that does not change what the call does."""
    DEVICES = "devices"
    """Name of a class of devices, such as `light`; an approval covers only calls for this class."""


def _raise_read_only(_self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError(
        "tool schemas are shared and read-only; change a copy, such as one that session.definitions() returns"
    )


class FrozenDict(dict[str, Any]):
    """Read-only dict that sessions can share; modifications raise TypeError."""

    __slots__ = ()

    __setitem__ = __delitem__ = __ior__ = _raise_read_only
    clear = pop = popitem = setdefault = update = _raise_read_only

    def __deepcopy__(self, memo: dict[int, Any]) -> Json:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenDict, (dict(self),))


class FrozenList(list[Any]):
    """Read-only list, used inside a FrozenDict."""

    __slots__ = ()

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _raise_read_only
    append = extend = insert = pop = remove = clear = sort = reverse = _raise_read_only

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(value, memo) for value in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenList, (list(self),))


_TEXT_TYPES = (str, bytes, bytearray, memoryview)
_MAX_INTERNED_CHARS = 32  # short strings such as "type" occur in every schema, so they are stored once


def freeze(value: Any) -> Any:
    """Return a read-only deep copy of a JSON value."""
    kind = type(value)
    if kind is str:
        text: str = value if value.isascii() else make_encodable(value)
        return sys.intern(text) if len(text) <= _MAX_INTERNED_CHARS else text
    if kind is bool or kind is int or value is None:
        return value
    if kind is dict or isinstance(value, Mapping):  # the exact type first, because it is faster
        return FrozenDict({freeze(str(key)): freeze(each) for key, each in value.items()})
    if kind is list or (isinstance(value, Sequence) and not isinstance(value, _TEXT_TYPES)):
        return FrozenList([freeze(each) for each in value])
    if isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise TypeError(f"{value!r} is not a JSON value")


def copy_mutable(value: Any) -> Any:
    """Return a deep copy of a JSON value as plain mutable dicts and lists."""
    if isinstance(value, dict):
        return {key: copy_mutable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [copy_mutable(each) for each in value]
    return value


def read_json(text: str, *, unique_keys: bool = False) -> Any:
    """Parse strict JSON, without NaN and Infinity.

    With `unique_keys`, repeated keys of an object are rejected, too; the standard leaves their meaning
    open.
    """
    hook = _reject_repeated_keys if unique_keys else None
    return json.loads(text, parse_constant=_reject_constant, object_pairs_hook=hook)


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _reject_repeated_keys(pairs: list[tuple[str, Any]]) -> Json:
    value = dict(pairs)
    if len(value) < len(pairs):
        ((repeated, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {repeated[:40]!r} occurs more than once in a JSON object")
    return value


def make_json_encodable(value: Any) -> Any:
    """Return a copy of JSON data in which lone surrogates are replaced in all texts."""
    if isinstance(value, str):
        return make_encodable(value)
    if isinstance(value, dict):
        return {make_json_encodable(key): make_json_encodable(each) for key, each in value.items()}
    return [make_json_encodable(each) for each in value] if isinstance(value, list | tuple) else value


def make_encodable(text: str) -> str:
    """Replace lone surrogates in a text, because providers reject them."""
    if text.isascii():
        return text
    try:
        text.encode()  # much faster than a search
    except UnicodeEncodeError:
        return "".join(
            _SURROGATE.sub("\ufffd", text[start : start + _SLICE_CHARS])
            for start in range(0, len(text), _SLICE_CHARS)
        )
    return text


@dataclass(frozen=True, slots=True)
class Source:
    """Origin of a tool: its kind (`builtin`, `plugin`, `mcp`, `catalog` or `user`) and its name."""

    kind: str = "user"
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


@runtime_checkable
class AgentServices(Protocol):
    """Interface of an agent that itself runs stateful tools such as `todo`."""

    @property
    def offers(self) -> frozenset[str]:
        """Return the names of the tools that the agent itself runs, such as `todo`."""

    def run(self, name: str, args: Json) -> Any | Awaitable[Any]:
        """Run one of the tools that the agent itself runs, such as `todo`."""


@dataclass(frozen=True, slots=True)
class GrantLimit:
    """Limits on the toolsets of a session, in addition to the configuration."""

    enabled: tuple[str, ...] | None = None
    """Toolsets that may be used; None means all."""
    disabled: tuple[str, ...] = ()
    """Toolsets that may not be used."""

    def to_json(self) -> Json:
        """Return the limits on toolsets as JSON data."""
        enabled = None if self.enabled is None else list(self.enabled)
        return {"enabled": enabled, "disabled": list(self.disabled)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GrantLimit:
        """Create the limits on toolsets from JSON data returned by `to_json`."""
        enabled = data["enabled"]
        return cls(None if enabled is None else tuple(enabled), tuple(data["disabled"]))


@dataclass(frozen=True, slots=True)
class Caller:
    """The gateway client that made a call."""

    name: str = ""
    """Name of the client's access token; over stdio, the name that the client reports."""
    asks_user: bool = False
    """True if the configuration trusts the client to ask its own user before each call."""
    may_use_keys: bool = True
    """True if work for the client may use the user's API keys of model providers."""
    user_id: str = ""
    """Id of the user that the client's token belongs to; empty if it belongs to none."""
    since: float = 0.0
    """When the client's token or user was created; what an earlier client of the same name has is not its."""

    @property
    def learner(self) -> str:
        """Return the name under which this client's messages are learned, shared by all clients of a user."""
        if self.user_id:
            return USER_LEARNER_PREFIX + self.user_id
        # A client over stdio chooses its name, which must not be that of a user.
        return self.name.replace(":", " ", 1) if self.name.startswith(USER_LEARNER_PREFIX) else self.name


class CallOrigin:
    """Base class of data about a call's client, passed by a gateway to the server that runs the call."""

    __slots__ = ()


class SourceResponse:
    """Base class of a server's original response to a call, which a gateway can forward to its client."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """Information about a tool call for the tool's handler."""

    session_id: str
    call_id: str = ""
    task_id: str | None = None
    user_task: str | None = None
    agent: AgentServices | None = None
    readable: tuple[Path, ...] = ()
    """Directories outside the workspace that this session may read, such as its stored results."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set when the call is cancelled; a long synchronous handler should check it."""
    client: str = ""
    """Client that owns the call, if several share a runtime; handlers must keep their state apart."""
    caller: Caller = field(default_factory=Caller)
    """The gateway client that made the call, for approval."""
    report_progress: Progress = field(default_factory=lambda: _ignore_progress, repr=False, compare=False)
    """Function with which the handler reports the progress of the call."""
    surface: CallOrigin | None = field(default=None, repr=False, compare=False)
    """Data from the gateway that is passed unchanged to the server that executes the call."""
    parents: tuple[str, ...] = ()
    """IDs of the calls inside which this one was made, the outermost first; empty for a call of the model."""
    grant_limits: tuple[GrantLimit, ...] = ()
    """Limits on the session's toolsets, which also apply to work that the call starts outside the session."""
    nested: NestedCalls | None = field(default=None, repr=False, compare=False)
    """Object with which the handler calls other tools of the session; set while the handler runs."""


class NestedCalls(Protocol):
    """Interface through which a tool's handler calls tools of the same session, with the usual checks."""

    @property
    def tools(self) -> Sequence[Tool]:
        """Return the tools that the handler may call."""

    def __call__(self, name: str, arguments: Json | str | None = None) -> Awaitable[ToolResult]:
        """Run one tool call inside a handler; errors are returned as results, not raised."""


class Progress(Protocol):
    """Interface of the progress function of a running tool."""

    def __call__(
        self, message: str = "", progress: float | None = None, total: float | None = None
    ) -> None: ...


def _ignore_progress(message: str = "", progress: float | None = None, total: float | None = None) -> None:
    """Discard a progress report; used for calls whose progress nobody observes."""


Handler = Callable[[Json, CallContext], Any]
Check = Callable[[], Any]
Precheck = Callable[[Json, CallContext], Any]
Definition = Json


class Adapt(Protocol):
    """Interface of a function that adapts a tool's definition to the other tools that are available."""

    def __call__(self, definition: Definition, present: frozenset[str], /) -> Definition: ...


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class Tool:
    """A tool: name, description, parameter schema, handler and metadata."""

    name: str
    toolset: str
    description: str
    parameters: FrozenDict
    handler: Handler
    original_name: str = ""
    """The name that the author gave the tool, if providers do not accept that name."""
    listed_name: str = ""
    """Name shown by the command line and to clients of the gateway, if it differs from `name`."""
    alias: str = ""
    """Another name that callers and settings may use: with the prefix `mcp_`, if `name` has none."""
    title: str = ""
    emoji: str = ""
    synonyms: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    """Example messages of users who need the tool. Only search reads them."""
    is_async: bool = False
    check: Check | None = None
    requires_env: tuple[str, ...] = ()
    effects: frozenset[Effect] = frozenset()
    judged_as: Mapping[str, Meaning] = field(default_factory=FrozenDict)
    """Arguments that approval must examine, with their meaning."""
    parallel: bool = False
    """True if the tool may run in parallel with other calls of the same model reply."""
    core: bool = False
    """True if the tool belongs to the runtime itself and is never deferred behind tool search."""
    agent_level: bool = False
    """True if the agent itself runs the tool and keeps its state."""
    is_auxiliary: bool = False
    """True if the tool serves other items of its source, such as resources; ranked below other tools."""
    standalone: bool = False
    """True if only the model may call the tool, not a handler or code that another tool runs."""
    timeout: float | None = None
    """Time limit in seconds, if it differs from the configured one."""
    adapt: Adapt | None = None
    precheck: Precheck | None = None
    """Function that raises CallError if a call will be refused in any case; runs before anyone is asked."""
    source: Source = Source()

    def __post_init__(self) -> None:
        if type(self.parameters) is not FrozenDict:  # a tool built directly, from a mutable schema
            object.__setattr__(self, "parameters", freeze(dict(self.parameters)))

    @property
    def server(self) -> str:
        """Return the name of the tool's MCP server or other source; without one, its toolset's name."""
        return self.source.name or self.toolset.removeprefix(MCP_PREFIX)

    @property
    def names(self) -> tuple[str, ...]:
        """Return all names of the tool that callers and settings may use."""
        every = (self.name, self.listed_name, self.alias, self.original_name)
        return tuple(name for name in every if name)

    @property
    def own_name(self) -> str:
        """Return the name that the tool's author chose, without the prefix of the MCP server."""
        chosen = self.original_name or self.name
        return (
            chosen.removeprefix(mcp_original_name(self.server, ""))
            if self.source.kind == MCP_SOURCE
            else chosen
        )

    def definition(self) -> Definition:
        """Return the tool in the OpenAI format, as a new dict that shares the tool's parameter schema."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }


def mcp_original_name(server: str, tool: str) -> str:
    """Return the full name of an MCP server's tool: `mcp__SERVER__TOOL`."""
    return f"mcp__{server}__{tool}"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of a model. `arguments` may be the provider's unparsed JSON text."""

    name: str
    arguments: Json | str | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """Image, audio or file in a tool result."""

    kind: Literal["image", "audio", "file"]
    mime_type: str
    data: bytes = field(repr=False)
    label: str = ""
    """Name of the image, audio or file in the text of the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Return value of a handler that combines text, media and structured data."""

    value: Any
    """The value for the model to read."""
    blocks: tuple[Media, ...] = ()
    """Images, audio and files that belong to the value."""
    is_error: bool = False
    """True if the tool ran and reports a failure."""
    raw: SourceResponse | None = field(default=None, repr=False)
    """The original response in the format of the tool's source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """Result of a tool call. `text` is always valid JSON, ready for the model."""

    call_id: str
    name: str
    text: str
    error: str | None = None
    value: Any = None
    """Return value of the handler, for callers in this process."""
    milliseconds: float = 0.0
    stored: Path | None = None
    """File with the complete result, if it was too large for the model."""
    media: tuple[Media, ...] = ()
    """Images and audio of the result; the text contains their names."""
    raw: SourceResponse | None = field(default=None, repr=False)
    """The complete response in the format of the tool's source; None if a hook has changed the result."""
    whole_text: str | None = field(default=None, repr=False)
    """The text before it was shortened for the model; None if it was short, or a hook has changed it."""

    @property
    def ok(self) -> bool:
        return self.error is None


class PreToolCall(Protocol):
    """Hook before a call: returns None or new arguments to continue; raises Refused to prevent the call."""

    def __call__(
        self, tool: Tool, args: Json, context: CallContext, /
    ) -> Json | Awaitable[Json | None] | None: ...


class PostToolCall(Protocol):
    """Hook after a call: returns None to keep the result, or a value that replaces it."""

    def __call__(self, tool: Tool, args: Json, result: ToolResult, context: CallContext, /) -> Any: ...


class Answer(StrEnum):
    """A person's answer to an approval question."""

    ONCE = "once"
    SESSION = "session"
    """Allow the same call for the rest of the session."""
    KIND = "kind"
    """Allow all calls with the same kinds of risk for the rest of the session."""
    ALWAYS = "always"
    """Allow the same call from now on; stored in the configuration."""
    ALWAYS_KIND = "always-kind"
    """Allow all calls with the same kinds of risk from now on; stored in the configuration."""
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """Question to a person: may this tool run with these arguments?"""

    tool: Tool
    args: Json
    reason: str
    session_id: str
    command: str = ""
    """The shell command, if the call has one."""
    part: str = ""
    """The part of the command that is risky."""
    category: str = ""
    severity: str = ""
    also: tuple[str, ...] = ()
    """Further findings about the call, in plain words."""
    rules: tuple[str, ...] = ()
    """Names of the rules that matched."""
    kinds: tuple[str, ...] = ()
    """Kinds of the matched rules, in words, which `Answer.KIND` and `Answer.ALWAYS_KIND` would allow."""
    covers: str = ""
    """The call in normalized form, which `Answer.SESSION` and `Answer.ALWAYS` would allow."""
    answers: tuple[Answer, ...] = (Answer.ONCE, Answer.DENY)
    """The answers that the person can choose from; any other answer means no."""
    withdrawn: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    """Event that is set when the answer is no longer needed."""
    session_covers: str = ""
    """What `Answer.SESSION` would allow, in words; empty if it allows only the same call."""
    client: str = ""
    """Name of the gateway's client that made the call; empty if there is none."""
    user_id: str = ""
    """Id of the gateway's user who made the call; empty if there is none."""


class Approver(Protocol):
    """Function that asks a person to approve a call; True or one of the offered answers allows it."""

    def __call__(self, request: ApprovalRequest, /) -> bool | Answer | Awaitable[bool | Answer]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UserQuestion:
    """Question from the model to the user (the `clarify` tool)."""

    text: str
    choices: tuple[str, ...] = ()
    """Suggested answers; the user may give another one."""
    session_id: str = ""
    withdrawn: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    """Event that is set when the answer is no longer needed."""


class Asker(Protocol):
    """Function that asks the user a question of the model, and returns None if there is no answer.

    May block or be async. It is called again only after the previous question was answered or withdrawn.
    """

    def __call__(self, question: UserQuestion, /) -> str | Awaitable[str | None] | None: ...
