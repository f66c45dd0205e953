"""What a tool call would do, as far as anyone can tell before it runs.

A tool says which of its arguments are commands and which name files that it writes; where it says nothing,
names that everybody uses for them speak for it. A server's word about its own tools is heard where it makes
a call look worse, and believed where it makes it look better only if the configuration trusts that server.
Decides nothing: what follows from a subject is for the chain to say.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from shellverdict.interactive.process_input import ProcessInput, replace_surrogates
from shellverdict.paths import PathClassifier, PathInfo, PathKind
from shellverdict.shell.words import MAX_TEXT_CHARS, NO_VARIABLES, Word
from shellverdict.verdict import Finding, Severity, Verdict
from toolfold.approval.kinds import DESTRUCTIVE, PATTERNS
from toolfold.errors import shorten
from toolfold.model import MCP_PREFIX, MCP_SOURCE, Effect, FrozenDict, Json, Meaning, Source, Tool

log = logging.getLogger(__name__)

__all__ = ["Judging", "Subject", "Subjects"]

TOOL = "tool:"
SELF = "self-protection"
LONGEST_PATH = 4_096
LONGEST_KEY = 4_096
LONGEST_LISTED = 1_000
MOST_PARTS = 2_000

# What an argument is called where a tool does not say what it is.
_COMMANDS = frozenset({"command", "cmd", "commands", "shell_command", "command_line", "commandline", "bash"})
_PATHS = frozenset(
    {"path", "paths", "file", "files", "file_path", "filepath", "filename", "destination", "dest", "target"}
    | {"target_path", "output", "output_path", "output_file", "new_path", "to", "to_path", "target_file"}
)
_INPUTS = frozenset({"stdin", "keystrokes", "send_keys", "stdin_data"})
_FOLDERS = frozenset({"cwd", "workdir", "working_directory", "working_dir"})
_UNTOLD = "< ..."  # the judge's word, in a shape, for input that nobody has read
# And its words for the folder of one command, which no shell understands; the folder is quoted as for one.
_IN_FOLDER = re.compile(r"""\(in (?:'[^']*'|"'"|[^\s()'"])+\) """)
_SYSTEM = frozenset({PathKind.ROOT, PathKind.SYSTEM, PathKind.SYSTEM_ROOT, PathKind.DEVICE})
_CHANGES = frozenset({Effect.WRITE, Effect.EXECUTE, Effect.DESTRUCTIVE})
_NO_PATHS = frozenset({Meaning.COMMAND, Meaning.NOTE, Meaning.INPUT, Meaning.INPUT_CONTEXT})
_HARMLESS = (bool, int, float, type(None))


class Judging(Protocol):
    """Reads a command and says what would become of running it."""

    def __call__(
        self, command: str, *, cwd: str | None = None, variables: Mapping[str, Word] = ...
    ) -> Verdict: ...


@dataclass(frozen=True, slots=True)
class Subject:
    """One call, read: what was found in it, and what a grant for it would cover."""

    tool: Tool
    args: Json
    verdict: Verdict
    command: str = ""
    key: str = ""
    """The call, spelled one way; empty where no grant can cover it."""
    listed: str = ""
    """How it would stand in the allow-list; empty where it cannot."""
    own_server: str = ""
    """The MCP server that the tool comes from, if the user added that server."""

    @property
    def is_only_declared(self) -> bool:
        """Whether nothing was found but that the tool declares that it can destroy data."""
        return self.rules == (declared_rule(self.tool),) and not self.verdict.unread

    @property
    def grant_key(self) -> str:
        """What a grant for the session covers; empty where there can be none.

        Of a tool of a server that the user added, every call whose only finding is the declared effect.
        """
        if self.own_server and self.is_only_declared:
            return f"{DESTRUCTIVE}{self.own_server} {self.tool.name}"
        return self.key

    @property
    def rules(self) -> tuple[str, ...]:
        return _rules_of(self.verdict)

    @property
    def questionable(self) -> bool:
        return self.verdict.dangerous or self.verdict.unread


class Subjects:
    """Reads calls. Without a judge, every command or input is one that nobody has read."""

    def __init__(
        self,
        judge: Judging | None = None,
        *,
        judge_input: Callable[[ProcessInput], Verdict] | None = None,
        places: PathClassifier | None = None,
        trusted_servers: Collection[str] = (),
        own_servers: Collection[str] = (),
        elsewhere: Mapping[tuple[Source, str], Subjects] | None = None,
    ) -> None:
        """`own_servers` are the MCP servers that the user added.

        `elsewhere` reads the calls of tools whose commands run on another ground, by source and name.
        """
        self._own_servers = frozenset(own_servers)
        self._judge, self._judge_input, self._places = judge, judge_input, places or PathClassifier()
        self._trusted = frozenset(trusted_servers)
        self._elsewhere = elsewhere or {}

    def read(self, tool: Tool, args: Json, variables: Mapping[str, Word] = NO_VARIABLES) -> Subject:
        """What the call would do. Never raises: what cannot be read is marked as unread.

        `variables` are shell variables set by earlier commands.
        """
        if other := self._elsewhere.get((tool.source, tool.name)):
            return other.read(tool, args, variables)
        try:
            return self._read(tool, args, variables)
        except Exception:
            log.exception("a call of %r could not be judged", tool.name)
            return Subject(tool, args, _unjudged(""))

    def judge(
        self, command: str, cwd: str | None = None, variables: Mapping[str, Word] = NO_VARIABLES
    ) -> Verdict:
        """The verdict on one command. A judge that fails has not read it."""
        if self._judge is None or len(command) > MAX_TEXT_CHARS:
            return _unjudged(command)
        try:
            return self._judge(command, cwd=cwd, variables=variables)
        except Exception:
            log.exception("a command could not be judged; somebody must see it")
            return _unjudged(command)

    def of_command(self, command: str, cwd: str | None = None, tool: Tool | None = None) -> Subject:
        """A command by itself, as a tool that runs commands would bring it, or this one."""
        args = {"command": command} if cwd is None else {"command": command, "cwd": cwd}
        bringing = replace(_ANY_SHELL, source=tool.source, name=tool.name) if tool else _ANY_SHELL
        return self.read(bringing, args)

    def spell(self, entry: str) -> tuple[str, frozenset[str] | None]:
        """An entry of the allow-list in the one spelling, and the rules that it meets; None for whichever."""
        if entry.startswith(TOOL):
            return _spelled_call(entry) or entry, None
        told = _told(entry)
        verdict = self.judge(told)
        there = (rule for other in self._elsewhere.values() for rule in _rules_of(other.judge(told)))
        # Without its folders it may be another command, which nobody has agreed to.
        spelled = _shape(verdict) if told == entry else ""
        return spelled, frozenset(_rules_of(verdict)).union(there)

    def idle(self, entry: str) -> str:
        """Why an entry of the allow-list can never count; nothing where it can."""
        if entry.startswith(TOOL):
            return "" if _spelled_call(entry) else _NO_CALL
        told = _told(entry)
        verdicts = [self.judge(told), *(other.judge(told) for other in self._elsewhere.values())]
        if all(verdict.blocked for verdict in verdicts):
            return f"this is never run, whoever agrees: {verdicts[0].reason}"
        if not any(_listed(_shape(verdict)) for verdict in verdicts):
            return "it cannot be told beforehand all that it would do, so that it is asked about each time"
        return ""

    def _read(self, tool: Tool, args: Json, variables: Mapping[str, Word]) -> Subject:
        if not tool.judged_as and not self._may_change(tool):
            return Subject(tool, args, _NOTHING)
        meanings = self._meanings(tool, args)
        commands = self._commands(tool, args, meanings)
        folder = next((args[name] for name in _named(meanings, Meaning.FOLDER)), None)
        folder = folder if isinstance(folder, str) else None
        verdicts = [self.judge(each, folder, variables) for each in commands]
        written = self._input(args, meanings, commands, folder)
        if written is not None:
            verdicts.append(self.judge_input(written))
            commands = [*commands, written.description]
        verdict = _joined(verdicts)
        found = (*verdict.findings, *self._about_writes(tool, args, meanings), *self._declared(tool))
        verdict = replace(verdict, findings=tuple(dict.fromkeys(found)))
        subject = Subject(tool, args, verdict, "\n".join(commands), own_server=self._own_server(tool))
        if not subject.questionable or written is not None:
            # Nobody will be asked; or it is input, and the same text may mean something else the next time.
            return subject
        key, listed = _keys(tool, args, meanings, verdict)
        return replace(subject, key=key, listed=listed)

    def _input(
        self, args: Json, meanings: Mapping[str, Meaning], commands: list[str], folder: str | None
    ) -> ProcessInput | None:
        """The text that a call would give to a program, or None where there is none."""
        contexts = [args[name] for name in _named(meanings, Meaning.INPUT_CONTEXT)]
        texts = [each for name in _named(meanings, Meaning.INPUT) for each in _texts(args[name])]
        if not contexts and not any(texts):
            return None
        if not contexts and commands:  # the input of the very command that the call starts
            text = replace_surrogates("".join(texts))
            return ProcessInput(command="\n".join(commands), workdir=folder, text=text, closes_input=True)
        return ProcessInput.from_arguments(contexts[0] if contexts else None, "".join(texts))

    def judge_input(self, written: ProcessInput) -> Verdict:
        """The verdict on a write to a process. A judge that fails has not read it."""
        if self._judge_input is None:
            return _unjudged(written.description)
        try:
            return self._judge_input(written)
        except Exception:
            log.exception("the input of a process could not be judged; somebody must see it")
            return _unjudged(written.description)

    def _commands(self, tool: Tool, args: Json, meanings: Mapping[str, Meaning]) -> list[str]:
        named = _named(meanings, Meaning.COMMAND)
        commands = [each for name in named for each in _commands(name, args[name])]
        if not tool.judged_as and self._may_execute(tool):
            commands += _nested_commands(args)
        return [each for each in commands if each.strip()]

    def _meanings(self, tool: Tool, args: Json) -> Mapping[str, Meaning]:
        """What the arguments are: as declared, and by their names where a tool is silent on itself."""
        if tool.judged_as:
            return {name: meaning for name, meaning in tool.judged_as.items() if name in args}
        guessed: dict[str, Meaning] = {}
        for name, value in args.items():
            plain = name.casefold()
            if plain in _COMMANDS and self._may_execute(tool):
                guessed[name] = Meaning.COMMAND
            elif plain in _INPUTS and self._may_execute(tool):
                guessed[name] = Meaning.INPUT
            elif plain in _FOLDERS and isinstance(value, str):
                guessed[name] = Meaning.FOLDER
            elif plain in _PATHS and Effect.WRITE in tool.effects:
                guessed[name] = Meaning.PATH
        return guessed

    def _may_execute(self, tool: Tool) -> bool:
        return Effect.EXECUTE in tool.effects or self._is_strange(tool)

    def _is_strange(self, tool: Tool) -> bool:
        """Whether it comes from a server whose word on its own tools is not believed."""
        from_server = tool.source.kind == "mcp" or tool.toolset.startswith(MCP_PREFIX)
        return from_server and tool.server not in self._trusted

    def _own_server(self, tool: Tool) -> str:
        return tool.server if tool.source.kind == MCP_SOURCE and tool.server in self._own_servers else ""

    def _declared(self, tool: Tool) -> Iterator[Finding]:
        if Effect.DESTRUCTIVE in tool.effects:
            reason = f"{tool.name} declares that it can destroy data"
            yield Finding(declared_rule(tool), "data-loss", Severity.MEDIUM, reason)

    def _about_writes(self, tool: Tool, args: Json, meanings: Mapping[str, Meaning]) -> Iterator[Finding]:
        named = _named(meanings, Meaning.PATH)
        if not named and not self._may_change(tool):
            return
        places = self._places.with_fresh_limits()
        for name in named:
            for path in _texts(args[name]):
                yield from _about_place(places.classify(Word(path)), path)
        if self._may_change(tool):
            paths = (path for name, value in args.items() for path in _paths(name, value, meanings))
            if any(PathKind.OWN in places.classify(Word(path)) for path in paths):
                yield _OWN

    def _may_change(self, tool: Tool) -> bool:
        return not _CHANGES.isdisjoint(tool.effects) or self._is_strange(tool)


def declared_rule(tool: Tool) -> str:
    """Return the rule name of the finding that a tool declares itself destructive."""
    return f"{DESTRUCTIVE}{tool.name}"


_ANY_SHELL = Tool(
    name="shell",
    toolset="",
    description="",
    parameters=FrozenDict(),
    handler=lambda _args, _context: None,
    judged_as=FrozenDict(command=Meaning.COMMAND, cwd=Meaning.FOLDER),
)
_NOTHING = Verdict("")
_NO_CALL = "behind the name it needs all arguments, as a JSON object"
_OWN = Finding(
    "own-configuration",
    SELF,
    Severity.CRITICAL,
    "it reaches for the runtime's own settings, hooks or records",
    blocked=True,
)


def _about_place(where: PathInfo, path: str) -> Iterator[Finding]:
    """What a person should know before a file is written there."""
    named = shorten(path, 80)
    if PathKind.OWN in where:
        yield _OWN
    if PathKind.STARTUP in where:
        reason = f"{named} is read and run by something else later"
        yield Finding("write-startup", "persistence", Severity.HIGH, reason)
    if PathKind.AGENT in where:
        yield Finding("write-protected", SELF, Severity.CRITICAL, f"{named} tells agents what they may do")
    if not _SYSTEM.isdisjoint(where.kinds):
        yield Finding("write-system", "overwrite", Severity.HIGH, f"{named} belongs to the system")
    if PathKind.SECRET in where and PathKind.PROJECT not in where:
        yield Finding("write-secret", "overwrite", Severity.MEDIUM, f"{named} holds keys or passwords")
    if not where.path.is_known:
        yield Finding("write-unknown", "unreadable", Severity.HIGH, f"{named} may be any file")


def _rules_of(verdict: Verdict) -> tuple[str, ...]:
    return tuple(dict.fromkeys(finding.rule for finding in verdict.findings))


def _unjudged(command: str) -> Verdict:
    reason = "nobody could tell what it would do"
    finding = Finding("unjudged", "unreadable", Severity.HIGH, reason, (0, len(command)))
    return Verdict(command, (finding,), unread=True)


def _named(meanings: Mapping[str, Meaning], wanted: Meaning) -> list[str]:
    return [name for name, meaning in meanings.items() if meaning is wanted]


def _commands(name: str, value: Any) -> list[str]:
    """The command lines that an argument stands for: text, the words of one, or, in the plural, several."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise TypeError(f"a command is text or a list of words, not {type(value).__name__}")
    return list(value) if name.casefold().endswith("commands") else [shlex.join(value)]


def _nested_commands(args: Json) -> Iterator[str]:
    """Commands by their usual names further down, where a tool has not said where to look."""
    for place in _maps([each for each in args.values() if isinstance(each, (dict, list))]):
        for name, value in place.items():
            if name.casefold() in _COMMANDS and isinstance(value, (str, list)):
                yield from _commands(name, value)


def _joined(verdicts: list[Verdict]) -> Verdict:
    """Several commands and inputs of one call, as one verdict over all of their text."""
    if len(verdicts) == 1:
        return verdicts[0]
    findings: list[Finding] = []
    start = 0
    for verdict in verdicts:
        findings += [_moved(each, start) for each in verdict.findings]
        start += len(verdict.command) + 1
    command = "\n".join(verdict.command for verdict in verdicts)
    left = {name: value for verdict in verdicts for name, value in verdict.leaves.items()}
    return Verdict(command, tuple(findings), unread=any(verdict.unread for verdict in verdicts), leaves=left)


def _moved(finding: Finding, by: int) -> Finding:
    first, last = finding.span
    return replace(finding, span=(first + by, last + by))


def _told(entry: str) -> str:
    """An entry as a shell would be told it: the changes of folder stand in it as commands of their own."""
    return _IN_FOLDER.sub("", entry)


def _shape(verdict: Verdict) -> str:
    """What may stand for a command in the allow-list; nothing where it was not read in full, or where it
    would be taken for an entry about a tool, a rule or a kind."""
    return "" if verdict.unread or verdict.shape.startswith((TOOL, *PATTERNS)) else verdict.shape


def _keys(tool: Tool, args: Json, meanings: Mapping[str, Meaning], verdict: Verdict) -> tuple[str, str]:
    """What a grant of this session covers, and how the same would stand in the allow-list.

    Numbers and switches beside a command (a time limit) do not change what it does; text may. What was found
    belongs to it: where the same words come to mean something else, somebody is asked again.
    """
    if not _named(meanings, Meaning.COMMAND):
        spelled = f"{TOOL}{tool.listed_name or tool.name} {_canonical(args)}"
        return _short(spelled), spelled if len(spelled) <= LONGEST_LISTED else ""
    shape = _shape(verdict)
    if not shape:
        return "", ""
    known = {name for name, meaning in meanings.items() if meaning in (Meaning.COMMAND, Meaning.NOTE)}
    beside = {
        name: value for name, value in args.items() if name not in known and not isinstance(value, _HARMLESS)
    }
    found = sorted({f"{finding.rule}: {finding.reason}" for finding in verdict.findings})
    listed = _listed(shape) if beside.keys() <= set(_named(meanings, Meaning.FOLDER)) else ""
    return _short(f"{tool.name} {_canonical(beside)} {shape} {found}"), listed


def _listed(shape: str) -> str:
    """How a command of this shape stands in the allow-list; nothing where it cannot."""
    return shape if _UNTOLD not in shape and len(shape) <= LONGEST_LISTED else ""


def _spelled_call(entry: str) -> str:
    """An entry about a tool in the one spelling; nothing where the arguments are missing."""
    name, _, written = entry.partition(" ")
    try:
        args = json.loads(written)
    except (ValueError, RecursionError):
        return ""
    return f"{name} {_canonical(args)}" if isinstance(args, dict) else ""


def _short(key: str) -> str:
    """A key that is kept for as long as a session lasts."""
    return key if len(key) <= LONGEST_KEY else hashlib.sha256(key.encode(errors="replace")).hexdigest()


def _canonical(value: Json) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(", ", ": "), default=str)


def _texts(value: Any) -> Iterator[str]:
    """All text in a value."""
    return (each for each in _parts(value) if isinstance(each, str))


def _maps(value: Any) -> Iterator[Mapping[str, Any]]:
    """All maps in a value."""
    return (each for each in _parts(value) if isinstance(each, Mapping))


def _parts(value: Any) -> Iterator[Any]:
    """A value and all that is in it. Raises where that is more than anyone would look through."""
    waiting: list[Any] = [value]
    for _ in range(MOST_PARTS):
        if not waiting:
            return
        each = waiting.pop()
        yield each
        if isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, (list, tuple)):
            waiting += each
    if waiting:
        raise ValueError(f"an argument of more than {MOST_PARTS:,} parts")


def _paths(name: str, value: Any, meanings: Mapping[str, Meaning]) -> Iterator[str]:
    """What in an argument names a file: all of one that is called so, elsewhere what starts like one."""
    if meanings.get(name) in _NO_PATHS:
        return
    called = meanings.get(name) is Meaning.PATH or name.casefold() in _PATHS
    for text in _texts(value):
        path = text.removeprefix("file://")
        if 0 < len(path) <= LONGEST_PATH and "\0" not in path and (called or path.startswith(("/", "~"))):
            yield path
