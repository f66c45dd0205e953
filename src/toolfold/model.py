"""The nouns of the house: Tool, ToolCall, ToolResult, Effect, and the shapes of what is handed around.

Pure data. Imports nothing of ours, reads no file, runs no tool.
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
MCP_SOURCE = "mcp"
ANONYMOUS_CLIENT = "(local)"
"""The name of a gateway's client that brings no token: no token can have it."""
BRIDGE_SEARCH = "tool_search"
BRIDGE_DESCRIBE = "tool_describe"
BRIDGE_CALL = "tool_call"
BRIDGE_NAMES = frozenset({BRIDGE_SEARCH, BRIDGE_DESCRIBE, BRIDGE_CALL})


_SURROGATE = re.compile("[\ud800-\udfff]")
_SLICE_CHARS = 100_000  # what one call into C may take on, as no other thread runs meanwhile


class Effect(StrEnum):
    """What running a tool may do to the world: approval judges by it."""

    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"
    NETWORK = "network"
    DESTRUCTIVE = "destructive"


class Meaning(StrEnum):
    """What an argument of a tool is to those who judge the call."""

    COMMAND = "command"
    """A shell command, or the words of one: it is read as a shell would."""
    FOLDER = "folder"
    """Where that command is run."""
    PATH = "path"
    """A file, or several, that the tool writes."""
    INPUT = "input"
    """Text for a running program. It is judged together with the argument INPUT_CONTEXT."""
    INPUT_CONTEXT = "input-context"
    """What is known of that program: the runtime sets it."""
    NOTE = "note"
    """Words that change nothing of what the call does."""


def _raise_read_only(_self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError("tool schemas are shared and read-only; change a copy.deepcopy() of this one")


class FrozenDict(dict[str, Any]):
    """A dict that is safe to share between sessions: every attempt to change it raises."""

    __slots__ = ()

    __setitem__ = __delitem__ = __ior__ = _raise_read_only
    clear = pop = popitem = setdefault = update = _raise_read_only

    def __deepcopy__(self, memo: dict[int, Any]) -> Json:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenDict, (dict(self),))


class FrozenList(list[Any]):
    """The list that goes with FrozenDict."""

    __slots__ = ()

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _raise_read_only
    append = extend = insert = pop = remove = clear = sort = reverse = _raise_read_only

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(value, memo) for value in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenList, (list(self),))


_TEXT_TYPES = (str, bytes, bytearray, memoryview)
_MAX_INTERNED_CHARS = (
    32  # characters: "type" and "string" stand in every schema, and each text once in memory
)


def freeze(value: Any) -> Any:
    """A read-only copy of a JSON value: later changes to the original do not reach it."""
    kind = type(value)
    if kind is str:
        text: str = value if value.isascii() else make_encodable(value)
        return sys.intern(text) if len(text) <= _MAX_INTERNED_CHARS else text
    if kind is bool or kind is int or value is None:
        return value
    if kind is dict or isinstance(value, Mapping):  # the exact type first: ten thousand schemas pass here
        return FrozenDict({freeze(str(key)): freeze(each) for key, each in value.items()})
    if kind is list or (isinstance(value, Sequence) and not isinstance(value, _TEXT_TYPES)):
        return FrozenList([freeze(each) for each in value])
    if isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise TypeError(f"{value!r} has no place in JSON")


def read_json(text: str, *, unique_keys: bool = False) -> Any:
    """The value of a JSON text, as the standard has it: NaN and Infinity are no numbers.

    The standard leaves open what a key means that an object has twice; `keys_once` refuses it.
    """
    hook = _reject_repeated_keys if unique_keys else None
    return json.loads(text, parse_constant=_reject_constant, object_pairs_hook=hook)


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _reject_repeated_keys(pairs: list[tuple[str, Any]]) -> Json:
    value = dict(pairs)
    if len(value) < len(pairs):
        ((repeated, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {repeated[:40]!r} is there more than once")
    return value


def make_encodable(text: str) -> str:
    """Without halves of surrogate pairs, which no provider's encoder takes."""
    if text.isascii():
        return text
    try:
        text.encode()  # many times faster than looking for one
    except UnicodeEncodeError:
        return "".join(
            _SURROGATE.sub("\ufffd", text[start : start + _SLICE_CHARS])
            for start in range(0, len(text), _SLICE_CHARS)
        )
    return text


@dataclass(frozen=True, slots=True)
class Source:
    """Where a tool came from: `builtin`, `plugin`, `mcp`, `catalog` or `user`, and which one."""

    kind: str = "user"
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


@runtime_checkable
class AgentServices(Protocol):
    """What an agent gives its own tools: they keep their state in it and nowhere else."""

    @property
    def offers(self) -> frozenset[str]:
        """The agent-level tools this agent can run."""

    def run(self, name: str, args: Json) -> Any | Awaitable[Any]:
        """Run one of them."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The gateway client that made a call."""

    name: str = ""
    """The name of its token; over stdio, the name that the client gives itself."""
    asks_user: bool = False
    """Whether the configuration relies on the client to ask its own user before each call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """What a handler may know of the call it serves."""

    session_id: str
    call_id: str = ""
    task_id: str | None = None
    user_task: str | None = None
    agent: AgentServices | None = None
    readable: tuple[Path, ...] = ()
    """Folders outside the workspace that this session may read: where its large results are kept."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set when nobody waits for the answer any more; a long synchronous handler should look at it."""
    client: str = ""
    """Whose call it is, where several share a runtime: what keeps a state is kept apart for each."""
    caller: Caller = field(default_factory=Caller)
    """The client as approval knows it."""
    report_progress: Progress = field(default=lambda *_, **__: None, repr=False, compare=False)
    """Tells whoever follows the call how far it is."""
    surface: Any = field(default=None, repr=False, compare=False)
    """What the surface that took the call hands to the source that serves it, and nobody between reads."""


class Progress(Protocol):
    """Reports how far a running tool is."""

    def __call__(
        self, message: str = "", progress: float | None = None, total: float | None = None
    ) -> None: ...


Handler = Callable[[Json, CallContext], Any]
Check = Callable[[], Any]
Definition = Json


class Adapt(Protocol):
    """Rewrites a tool's own definition once it is known which tools stand beside it."""

    def __call__(self, definition: Definition, present: frozenset[str], /) -> Definition: ...


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class Tool:
    """One tool, as every part of the runtime knows it."""

    name: str
    toolset: str
    description: str
    parameters: FrozenDict
    handler: Handler
    original_name: str = ""
    """The name its author gave it, where providers would not accept that one."""
    listed_name: str = ""
    """The name by which settings know it, where it is shown under another: a gateway leaves out `mcp_`."""
    title: str = ""
    emoji: str = ""
    synonyms: tuple[str, ...] = ()
    is_async: bool = False
    check: Check | None = None
    requires_env: tuple[str, ...] = ()
    effects: frozenset[Effect] = frozenset()
    judged_as: Mapping[str, Meaning] = field(default_factory=FrozenDict)
    """Which of its arguments approval must look into, and as what."""
    parallel: bool = False
    """May run beside other calls of the same model reply."""
    core: bool = False
    """Belongs to the runtime itself, and is never deferred behind tool search."""
    agent_level: bool = False
    """Run by the agent, which holds its state."""
    is_auxiliary: bool = False
    """Serves what a source has beside its tools; searches rank it below other tools."""
    timeout: float | None = None
    """Seconds, where the configured limit does not fit."""
    adapt: Adapt | None = None
    source: Source = Source()

    def __post_init__(self) -> None:
        if type(self.parameters) is not FrozenDict:  # a tool made by hand, from a schema its author keeps
            object.__setattr__(self, "parameters", freeze(dict(self.parameters)))

    @property
    def server(self) -> str:
        """Who brought it: its source, or the toolset it registered under."""
        return self.source.name or self.toolset.removeprefix(MCP_PREFIX)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name by which settings may mean it."""
        return tuple(name for name in (self.name, self.listed_name, self.original_name) if name)

    @property
    def own_name(self) -> str:
        """The name its author gave it, without that of the server the runtime found it at."""
        chosen = self.original_name or self.name
        return (
            chosen.removeprefix(mcp_original_name(self.server, ""))
            if self.source.kind == MCP_SOURCE
            else chosen
        )

    def definition(self) -> Definition:
        """The OpenAI form. The outer dicts are the caller's own; the schema inside is shared, read-only."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }


def mcp_original_name(server: str, tool: str) -> str:
    """The long name of a server's tool, by which it is found whatever its short one is."""
    return f"mcp__{server}__{tool}"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a model asked for. `arguments` may still be the provider's JSON text."""

    name: str
    arguments: Json | str | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """Something in a result that is no text: an image, a sound or a file."""

    kind: Literal["image", "audio", "file"]
    mime_type: str
    data: bytes = field(repr=False)
    label: str = ""
    """What the text of the result calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a handler returns whose answer is more than one value."""

    value: Any
    """What the model reads."""
    blocks: tuple[Media, ...] = ()
    """What it looks at or listens to, and the files that come with it."""
    is_error: bool = False
    """The tool ran and says that it failed."""
    raw: Any = field(default=None, repr=False)
    """The answer as its source gave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What came of a call. `text` is always a well-formed JSON string, ready for the model."""

    call_id: str
    name: str
    text: str
    error: str | None = None
    value: Any = None
    """What the handler returned, for callers in this process."""
    milliseconds: float = 0.0
    stored: Path | None = None
    """Where the whole of a result lies that was too large for the model."""
    media: tuple[Media, ...] = ()
    """The images and sounds that belong to it; the text says what each is called."""
    raw: Any = field(default=None, repr=False)
    """The answer as its source gave it, unbounded; nothing where a hook has changed the result."""

    @property
    def ok(self) -> bool:
        return self.error is None


class PreToolCall(Protocol):
    """A `pre_tool_call` hook: return None to go on, new arguments to rewrite, or raise Refused."""

    def __call__(
        self, tool: Tool, args: Json, context: CallContext, /
    ) -> Json | Awaitable[Json | None] | None: ...


class PostToolCall(Protocol):
    """A `post_tool_call` hook: return None to leave the result, or the value that replaces it."""

    def __call__(self, tool: Tool, args: Json, result: ToolResult, context: CallContext, /) -> Any: ...


class Answer(StrEnum):
    """What a person may say to a question."""

    ONCE = "once"
    SESSION = "session"
    """And whenever the same is asked in this session."""
    KIND = "kind"
    """And whatever else of the same kinds is found in this session."""
    ALWAYS = "always"
    """And the same from now on: it is written to the configuration."""
    ALWAYS_KIND = "always-kind"
    """And whatever else of the same kinds is found from now on: they are written to the configuration."""
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A question for a person: may this tool run with these arguments?"""

    tool: Tool
    args: Json
    reason: str
    session_id: str
    command: str = ""
    """The shell command, where it is about one."""
    part: str = ""
    """The part of it that somebody must see."""
    category: str = ""
    severity: str = ""
    also: tuple[str, ...] = ()
    """What else was found, in plain words."""
    rules: tuple[str, ...] = ()
    """The rules that met the call."""
    kinds: tuple[str, ...] = ()
    """Their kinds, in words: what `Answer.KIND` and `Answer.ALWAYS_KIND` would let pass."""
    covers: str = ""
    """The call, spelled one way: what `Answer.SESSION` and `Answer.ALWAYS` would let pass."""
    answers: tuple[Answer, ...] = (Answer.ONCE, Answer.DENY)
    """The answers that are heard; any other is a no."""
    withdrawn: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    """Set when nobody waits for the answer any more; who has not asked yet need not."""
    session_covers: str = ""
    """What `Answer.SESSION` would let pass, in words; empty where it is only the same call again."""


class Approver(Protocol):
    """Somebody who can be asked. Only a plain True, which means once, or an offered Answer is a yes."""

    def __call__(self, request: ApprovalRequest, /) -> bool | Answer | Awaitable[bool | Answer]: ...
