"""Exceptions, grouped by who can solve the problem: the user, the developer or the model.

    ToolfoldError
    ├── ConfigError            a person must change a setting; names the key, the file and the line
    │   └── StartedByTool      only the user may do this, not a process that a tool call started
    ├── RegistryError          the code that registers a tool must change
    │   ├── InvalidTool        the definition is invalid
    │   ├── ReservedName       the name belongs to a bridge tool
    │   └── NameTaken          another toolset has the name and `override=False`
    ├── UnknownToolset         a grant names a toolset that does not exist
    ├── UnknownAccount         a user or team was named that does not exist
    ├── SourceError            one source of tools failed; the others keep working
    └── CallError              becomes a result the model can act on
        ├── OutOfScope         the session was never granted this tool
        ├── BridgeMisuse       a bridge tool was called in a way that cannot be unwrapped
        ├── InvalidArguments   the arguments do not fit the schema; nothing was run
        ├── Refused            a hook, a policy or a person refused; nothing was run
        ├── NeedsAgent         the tool keeps its state in an agent and there is none
        ├── EnvironmentFailed  the environment that runs commands is unreachable or was lost
        └── ToolFailed         the handler raised an exception or timed out

Anything else that escapes is a bug. Knows nothing of the rest of the package.
"""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable, Sequence


class ToolfoldError(Exception):
    """Base class of all exceptions that Toolfold raises deliberately."""


class ConfigError(ToolfoldError):
    """A setting is invalid. The message names the key, its file and line, and a valid value."""

    def __init__(
        self,
        problem: str,
        *,
        key: str = "",
        file: str = "",
        line: int | None = None,
        hint: str = "",
    ) -> None:
        self.problem, self.key, self.file, self.line, self.hint = problem, key, file, line, hint
        where = ", ".join(part for part in (file, f"line {line}" if line else "") if part)
        text = problem + (f" ({where})" if where else "")
        super().__init__(f"{text}\n  {hint}" if hint else text)


class StartedByTool(ConfigError):
    """The operation is reserved for the user, but the process was started by a tool call."""

    def __init__(self, action: str, why: str) -> None:
        super().__init__(
            f"{action} is not allowed here: only the user may do that, and this process was started by"
            f" a tool call ({why})",
            hint="run the command in your own terminal, not in a shell that a tool started",
        )


class RegistryError(ToolfoldError):
    """A tool cannot be registered."""


class InvalidTool(RegistryError):
    """The definition of a tool is invalid."""


class ReservedName(RegistryError):
    """The tool name belongs to a bridge tool (`tool_search` …), or could be mistaken for one."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} is reserved for the runtime's own bridge tools. Register it under another name."
        )


class NameTaken(RegistryError):
    """Another toolset has a tool with this name, and replacing it was not allowed."""

    def __init__(self, name: str, toolset: str) -> None:
        super().__init__(f"{name!r} is already registered by toolset {toolset!r}.")


class UnknownToolset(ToolfoldError):
    """A named toolset does not exist."""

    def __init__(self, name: str, near: Sequence[str] = ()) -> None:
        super().__init__(
            f"there is no toolset {name!r}.{did_you_mean(near)}"
            " Run `toolfold tools list --toolsets` to see them all."
        )


class UnknownAccount(ToolfoldError):
    """A named user or team does not exist."""

    def __init__(self, kind: str, name: str, near: Sequence[str] = ()) -> None:
        super().__init__(
            f"there is no {kind} {name!r}.{did_you_mean(near)} Run `toolfold {kind} list` to see them all."
        )


class SourceError(ToolfoldError):
    """A source of tools (module, plugin or server) cannot be used."""


class CallError(ToolfoldError):
    """A tool call failed; message and details tell the model how to proceed."""

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.details = details


class OutOfScope(CallError):
    """The session is not allowed to use this tool."""

    def __init__(
        self, name: str, near: Sequence[str] = (), *, hint: str = "Call one of the tools you were given."
    ) -> None:
        super().__init__(
            f"{shorten(name)!r} is not available in this session.{did_you_mean(near) or f' {hint}'}"
        )


class BridgeMisuse(CallError):
    """A bridge tool (`tool_call` …) was called with arguments that do not describe a tool call."""


class InvalidArguments(CallError):
    """The arguments of a call do not match the tool's schema. The tool was not run."""


class Refused(CallError):
    """A hook, policy or person refused the call, or did not answer in time. The tool was not run."""


class NeedsAgent(CallError):
    """The tool needs the state of an agent, such as its plan, but this session has no agent."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} is run by the agent itself, and this session has no agent that offers it."
        )


class EnvironmentFailed(CallError):
    """The environment for commands is unreachable or was lost. Not raised for failing commands."""

    def __init__(self, problem: str, *, advice: str) -> None:
        super().__init__(f"{problem} {advice}")
        self.problem, self.advice = problem, advice


class ToolFailed(CallError):
    """The handler of a tool raised an exception or timed out."""


def did_you_mean(near: Sequence[str]) -> str:
    """Return " Did you mean …?" with similar names; empty if there are none."""
    return f" Did you mean {', '.join(near)}?" if near else ""


def closest_names(name: str, known: Iterable[str], *, count: int = 3) -> list[str]:
    """Return the known names most similar to a misspelled name."""
    wanted = shorten(name, 80)
    trigrams = _trigrams(wanted)
    # difflib takes up to 100 µs per name, so shared trigrams preselect candidates.
    likely = heapq.nlargest(40, known, key=lambda each: (len(trigrams & _trigrams(each)), each))
    return difflib.get_close_matches(wanted, likely, n=count, cutoff=0.6)


def _trigrams(text: str) -> set[str]:
    padded = f" {text.casefold()} "
    return {padded[start : start + 3] for start in range(len(padded) - 2)}


def error_message(error: BaseException) -> str:
    """Return the message of an exception, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception:
        return "(no message)"


def shorten(text: str, limit: int = 200) -> str:
    """Truncate text from another source, such as another program's error, for use in an error message."""
    return text if len(text) <= limit else text[:limit] + "…"


def escape_unprintable(text: str) -> str:
    """Escape line breaks and control characters, so that text of a client cannot forge lines of a log."""
    return text if text.isprintable() else repr(text)[1:-1]


def join_names(names: Sequence[str], limit: int) -> str:
    """Join names up to a maximum number: `a, b and 3 more`."""
    more = len(names) - limit
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:limit])} and {more:,} more"
