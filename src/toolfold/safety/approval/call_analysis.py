"""Analyze the effects of a tool call before it runs.

A tool declares which of its arguments are commands and which are paths that it writes; without a
declaration, usual argument names are used. What an MCP server says about its own tools is believed if it
makes a call look worse; if it makes it look better, only for servers that the configuration trusts. This
module decides nothing; the chain does.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from shellverdict.execution_site import ExecutionSite
from shellverdict.interactive.process_input import ProcessInput, replace_surrogates
from shellverdict.paths import PathClassifier, PathInfo, PathKind
from shellverdict.shell.earlier_files import NO_EARLIER_FILES, EarlierFiles, FileChanges
from shellverdict.shell.runs import TextStream
from shellverdict.shell.words import MAX_TEXT_CHARS, NO_VARIABLES, Word
from shellverdict.verdict import Finding, Severity, Verdict
from toolfold.core.errors import shorten
from toolfold.core.types import MCP_PREFIX, MCP_SOURCE, Effect, FrozenDict, Json, Meaning, Source, Tool
from toolfold.safety.approval.allowed_kinds import (
    CONTROL_PREFIX,
    DESTRUCTIVE_PREFIX,
    PAID_PREFIX,
    PATTERN_PREFIXES,
)
from toolfold.safety.approval.parameter_names import COMMAND_NAMES, DIRECTORY_NAMES, INPUT_NAMES, PATH_NAMES
from toolfold.safety.approval.session_files import SessionFiles

log = logging.getLogger(__name__)

__all__ = ["CallAnalysis", "CallAnalyzer", "JudgeFunction"]

TOOL_PREFIX = "tool:"
SELF_PROTECTION = "self-protection"
SCHEDULE_RULE = "job-scheduled"
INSTRUCTION_RULE = "instructions-changed"
MESSAGE_RULE = "message-sent"
_MESSAGE_DEVICES = "notify"
_ENTITY_CLASS = re.compile(r"\w+(?=\.)")  # of an entity such as lock.front_door
_GUARDED_DEVICES = frozenset({"lock", "alarm_control_panel", "cover", _MESSAGE_DEVICES, "homeassistant"})
"""Classes of devices whose calls are approved one by one: they open doors or send messages. Services of the
class `homeassistant` operate devices of every class."""
MAX_PATH_CHARS = 4_096
MAX_KEY_CHARS = 4_096
MAX_ENTRY_CHARS = 1_000
MAX_VALUES = 2_000

# Usual argument names, for tools that do not declare what their arguments are.
_UNKNOWN_INPUT = "< ..."  # marks unknown input in a command shape
# Marks the working directory of one command in a shape; the directory is shell-quoted.
_WORKDIR_PREFIX = re.compile(r"""\(in (?:'[^']*'|"'"|[^\s()'"])+\) """)
_SYSTEM_KINDS = frozenset({PathKind.ROOT, PathKind.SYSTEM, PathKind.SYSTEM_ROOT, PathKind.DEVICE})
_CHANGING_EFFECTS = frozenset(Effect) - {Effect.READ, Effect.NETWORK}
_RUN_MEANINGS = frozenset({Meaning.COMMAND, Meaning.PYTHON})
_NEVER_PATHS = frozenset(
    {*_RUN_MEANINGS, Meaning.NOTE, Meaning.DEVICES, Meaning.INPUT, Meaning.INPUT_CONTEXT}
)
_PLAIN_TYPES = (bool, int, float, type(None))


class JudgeFunction(Protocol):
    """Interface of a function that judges a shell command and returns a verdict."""

    def __call__(
        self,
        command: str,
        *,
        cwd: str | None = None,
        variables: Mapping[str, Word] = ...,
        earlier_files: EarlierFiles = ...,
    ) -> Verdict: ...


@dataclass(frozen=True, slots=True)
class CallAnalysis:
    """Result of analyzing one tool call: its findings, and the key under which its approval is stored."""

    tool: Tool
    args: Json
    verdict: Verdict
    command: str = ""
    key: str = ""
    """Canonical spelling of the call, under which its approval is stored; empty if it cannot be stored."""
    allowlist_entry: str = ""
    """The allow-list entry that would allow the call permanently; empty if there can be none."""
    own_server: str = ""
    """The MCP server that the tool comes from, if the user configured that server; else empty."""

    @property
    def has_only_declared_effect(self) -> bool:
        """Return True if the only finding about the call is that its tool declares itself destructive."""
        return self.rules == (declared_rule(self.tool),) and not self.verdict.unread

    @property
    def declared_effects(self) -> frozenset[str]:
        """Return the tool's declared effects that need approval; empty if there are other findings."""
        known = {
            declared_rule(self.tool): Effect.DESTRUCTIVE.value,
            paid_rule(self.tool): Effect.SPEND.value,
            control_rule(self.tool): Effect.CONTROL.value,
        }
        if self.verdict.unread or any(rule not in known for rule in self.rules):
            return frozenset()
        return frozenset(known[rule] for rule in self.rules)

    @property
    def devices(self) -> str:
        """Return the class of devices that the call operates, such as locks; empty if it operates none."""
        names = _names_with_meaning(self.tool.judged_as, Meaning.DEVICES)
        return " ".join(str(self.args[name]) for name in names if name in self.args)

    @property
    def needs_approval_each_time(self) -> bool:
        """Return True if each call needs a separate approval, as for unlocking a door."""
        if not _names_with_meaning(self.tool.judged_as, Meaning.DEVICES):
            return False
        keys = (key for mapping in _iterate_mappings(self.args) for key in mapping)
        texts = " ".join((*_iterate_texts(self.args), *keys)).casefold()
        return not _GUARDED_DEVICES.isdisjoint((self.devices, *_ENTITY_CLASS.findall(texts)))

    @property
    def allowlist_spellings(self) -> tuple[str, ...]:
        """Return the allow-list entries that would allow the call, one for each name of the tool."""
        called = f"{TOOL_PREFIX}{_listed_name(self.tool)} "
        if not self.allowlist_entry.startswith(called):
            return (self.allowlist_entry,)
        arguments = self.allowlist_entry.removeprefix(called)
        others = (f"{TOOL_PREFIX}{name} {arguments}" for name in self.tool.names)
        return tuple(dict.fromkeys((self.allowlist_entry, *others)))

    @property
    def grant_key(self) -> str:
        """Return the key under which a session-wide approval is stored; empty if the call cannot have one.

        For a tool of a server that the user added, it covers every call whose only finding is the declared
        effect.
        """
        if self.own_server and self.has_only_declared_effect:
            return f"{DESTRUCTIVE_PREFIX}{self.own_server} {self.tool.name}"
        return self.key

    @property
    def rules(self) -> tuple[str, ...]:
        return _rules_of(self.verdict)

    @property
    def needs_approval(self) -> bool:
        return self.verdict.dangerous or self.verdict.unread


class CallAnalyzer:
    """Analyzes tool calls. Without `judge`, every shell command in a call requires approval."""

    def __init__(
        self,
        judge: JudgeFunction | None = None,
        *,
        judge_input: Callable[[ProcessInput, EarlierFiles], Verdict] | None = None,
        path_classifier: PathClassifier | None = None,
        trusted_servers: Collection[str] = (),
        own_servers: Collection[str] = (),
        other_sites: Mapping[tuple[Source, str], CallAnalyzer] | None = None,
        files: SessionFiles | None = None,
        site: ExecutionSite | None = None,
    ) -> None:
        """Create an analyzer of tool calls.

        `own_servers` are the MCP servers that the user added. `other_sites` are the analyzers for tools
        whose commands run on another execution site, by source and name. `files` are the files that earlier
        calls changed, and `site` is where the commands run, if not on this machine.
        """
        self._files, self._site = files or SessionFiles(), site
        self.own_servers = frozenset(own_servers)
        self._judge, self._judge_input, self._path_classifier = (
            judge,
            judge_input,
            path_classifier or PathClassifier(),
        )
        self._trusted = frozenset(trusted_servers)
        self._other_sites = other_sites or {}

    def analyze(self, tool: Tool, args: Json, variables: Mapping[str, Word] = NO_VARIABLES) -> CallAnalysis:
        """Analyze a tool call. Never raises: a call that cannot be analyzed is marked as not understood.

        `variables` are shell variables set by earlier commands.
        """
        if other := self._other_sites.get((tool.source, tool.name)):
            return other.analyze(tool, args, variables)
        try:
            return self._analyze_call(tool, args, variables)
        except Exception:
            log.exception("a call of %r could not be judged; approval is required", tool.name)
            return CallAnalysis(tool, args, _unjudged_verdict(""))

    def include_changes_since(self, moment: float) -> None:
        """Judge the content of files that changed after `moment` and are run, as in a resumed session."""
        self._files.include_changes_since(moment)

    def remember_changes(self, analysis: CallAnalysis) -> None:
        """Remember the files that an approved call changes; their content is judged when they are run."""
        other = self._other_sites.get((analysis.tool.source, analysis.tool.name))
        self._files.record(analysis.verdict.file_changes, other._site if other else self._site)

    def judge(
        self,
        command: str,
        cwd: str | None = None,
        variables: Mapping[str, Word] = NO_VARIABLES,
        earlier_files: EarlierFiles = NO_EARLIER_FILES,
    ) -> Verdict:
        """Judge one shell command. A command that cannot be judged gets a verdict that requires approval."""
        if self._judge is None or len(command) > MAX_TEXT_CHARS:
            return _unjudged_verdict(command)
        try:
            return self._judge(command, cwd=cwd, variables=variables, earlier_files=earlier_files)
        except Exception:
            log.exception("a command could not be judged; approval is required")
            return _unjudged_verdict(command)

    def analyze_command(self, command: str, cwd: str | None = None, tool: Tool | None = None) -> CallAnalysis:
        """Analyze a shell command as a call of `tool`, or of a generic shell tool."""
        args = {"command": command} if cwd is None else {"command": command, "cwd": cwd}
        shell_tool = replace(_ANY_SHELL, source=tool.source, name=tool.name) if tool else _ANY_SHELL
        return self.analyze(shell_tool, args)

    def normalize_entry(self, entry: str) -> tuple[str, frozenset[str] | None]:
        """Return an allow-list entry in canonical spelling, and the rules it covers (None for all rules)."""
        if entry.startswith(TOOL_PREFIX):
            return _normalize_tool_entry(entry) or entry, None
        stripped = _strip_workdirs(entry)
        verdict = self.judge(stripped)
        there = (rule for other in self._other_sites.values() for rule in _rules_of(other.judge(stripped)))
        # Without its working directories it may be another command, which was not approved.
        normalized = _listable_shape(verdict) if stripped == entry else ""
        return normalized, frozenset(_rules_of(verdict)).union(there)

    def explain_ineffective(self, entry: str) -> str:
        """Return the reason why an allow-list entry can never allow a call; empty if it can allow calls."""
        if entry.startswith(TOOL_PREFIX):
            return "" if _normalize_tool_entry(entry) else _ARGUMENTS_MISSING
        stripped = _strip_workdirs(entry)
        verdicts = [self.judge(stripped), *(other.judge(stripped) for other in self._other_sites.values())]
        if all(verdict.blocked for verdict in verdicts):
            return f"this is always blocked, even with approval: {verdicts[0].reason}"
        if not any(_shape_as_entry(_listable_shape(verdict)) for verdict in verdicts):
            return "its effects cannot be fully determined in advance, so it needs approval each time"
        return ""

    def _analyze_call(self, tool: Tool, args: Json, variables: Mapping[str, Word]) -> CallAnalysis:
        if not tool.judged_as and not self._may_change(tool):
            return CallAnalysis(tool, args, _NO_FINDINGS)
        meanings = self._argument_meanings(tool, args)
        commands = self._find_commands(tool, args, meanings)
        workdir = next((args[name] for name in _names_with_meaning(meanings, Meaning.FOLDER)), None)
        workdir = workdir if isinstance(workdir, str) else None
        earlier = self._files.seen_from(self._site)
        verdicts = [self.judge(each, workdir, variables, earlier) for each in commands]
        written = self._find_input(args, meanings, commands, workdir)
        if written is not None:
            verdicts.append(self.judge_input(written, earlier))
            commands = [*commands, written.description]
        verdict = _join_verdicts(verdicts)
        findings = (
            *verdict.findings,
            *self._path_findings(tool, args, meanings),
            *self._declared_findings(tool),
            *_message_findings(tool, args, meanings),
        )
        changes = replace(
            verdict.file_changes,
            texts={**self._written_files(args, meanings), **verdict.file_changes.texts},
        )
        verdict = replace(verdict, findings=tuple(dict.fromkeys(findings)), file_changes=changes)
        analysis = CallAnalysis(tool, args, verdict, "\n".join(commands), own_server=self._own_server(tool))
        if not analysis.needs_approval or written is not None or analysis.needs_approval_each_time:
            # No approval is needed; or the call must be approved again, such as input of a program.
            return analysis
        key, entry = _grant_keys(tool, args, meanings, verdict)
        return replace(analysis, key=key, allowlist_entry=entry)

    def _find_input(
        self, args: Json, meanings: Mapping[str, Meaning], commands: list[str], workdir: str | None
    ) -> ProcessInput | None:
        """Return the text that a call would write to a running process; None if it writes none."""
        contexts = [args[name] for name in _names_with_meaning(meanings, Meaning.INPUT_CONTEXT)]
        texts = [
            each
            for name in _names_with_meaning(meanings, Meaning.INPUT)
            for each in _iterate_texts(args[name])
        ]
        if not contexts and not any(texts):
            return None
        if not contexts and commands:  # input of the command that this call starts
            text = replace_surrogates("".join(texts))
            return ProcessInput(command="\n".join(commands), workdir=workdir, text=text, closes_input=True)
        return ProcessInput.from_arguments(contexts[0] if contexts else None, "".join(texts))

    def judge_input(self, written: ProcessInput, earlier_files: EarlierFiles = NO_EARLIER_FILES) -> Verdict:
        """Judge text to be written to a running process; if it cannot be judged, it needs approval."""
        if self._judge_input is None:
            return _unjudged_verdict(written.description)
        try:
            return self._judge_input(written, earlier_files)
        except Exception:
            log.exception("the input of a process could not be judged; approval is required")
            return _unjudged_verdict(written.description)

    def _find_commands(self, tool: Tool, args: Json, meanings: Mapping[str, Meaning]) -> list[str]:
        names = _names_with_meaning(meanings, Meaning.COMMAND)
        commands = [each for name in names for each in _command_lines(name, args[name])]
        commands += [_python_command(args[name]) for name in _names_with_meaning(meanings, Meaning.PYTHON)]
        if not tool.judged_as and self._may_execute(tool):
            commands += _nested_commands(args)
        return [each for each in commands if each.strip()]

    def _argument_meanings(self, tool: Tool, args: Json) -> Mapping[str, Meaning]:
        """Return the meaning of each argument (command, path …), as declared or as suggested by its name."""
        if tool.judged_as:
            return {name: meaning for name, meaning in tool.judged_as.items() if name in args}
        guessed: dict[str, Meaning] = {}
        for name, value in args.items():
            plain = name.casefold()
            if plain in COMMAND_NAMES and self._may_execute(tool):
                guessed[name] = Meaning.COMMAND
            elif plain in INPUT_NAMES and self._may_execute(tool):
                guessed[name] = Meaning.INPUT
            elif plain in DIRECTORY_NAMES and isinstance(value, str):
                guessed[name] = Meaning.FOLDER
            elif plain in PATH_NAMES and Effect.WRITE in tool.effects:
                guessed[name] = Meaning.PATH
        return guessed

    def _may_execute(self, tool: Tool) -> bool:
        return Effect.EXECUTE in tool.effects or self._is_untrusted(tool)

    def _is_untrusted(self, tool: Tool) -> bool:
        """Return True if the tool comes from a server whose declarations are not trusted."""
        from_server = tool.source.kind == "mcp" or tool.toolset.startswith(MCP_PREFIX)
        return from_server and tool.server not in self._trusted

    def _own_server(self, tool: Tool) -> str:
        return tool.server if tool.source.kind == MCP_SOURCE and tool.server in self.own_servers else ""

    def _declared_findings(self, tool: Tool) -> Iterator[Finding]:
        if Effect.DESTRUCTIVE in tool.effects:
            reason = f"{tool.name} declares that it can destroy data"
            yield Finding(declared_rule(tool), "data-loss", Severity.MEDIUM, reason)
        if Effect.SEND in tool.effects:
            reason = f"{tool.name} sends a message to other people"
            yield Finding(MESSAGE_RULE, "publish", Severity.MEDIUM, reason)
        if Effect.SPEND in tool.effects:
            reason = f"{tool.name} {_describe_cost(tool)}"
            yield Finding(paid_rule(tool), "cost", Severity.MEDIUM, reason)
        if Effect.CONTROL in tool.effects:
            reason = f"{tool.name} operates devices in the physical world"
            yield Finding(control_rule(tool), "devices", Severity.MEDIUM, reason)
        if Effect.SCHEDULE in tool.effects:
            reason = f"{tool.name} lets a model work later, when nobody can be asked"
            yield Finding(SCHEDULE_RULE, "unattended", Severity.MEDIUM, reason)
        if Effect.INSTRUCT in tool.effects:
            reason = f"{tool.name} changes text that a model follows as instructions in later sessions"
            yield Finding(INSTRUCTION_RULE, "instructions", Severity.MEDIUM, reason)

    def _path_findings(self, tool: Tool, args: Json, meanings: Mapping[str, Meaning]) -> Iterator[Finding]:
        names = _names_with_meaning(meanings, Meaning.PATH)
        if not names and not self._may_change(tool):
            return
        classifier = self._path_classifier.with_fresh_limits()
        for name in names:
            for path in _iterate_texts(args[name]):
                yield from _written_path_findings(classifier.classify(Word(path)), path)
        if self._may_change(tool):
            paths = (path for name, value in args.items() for path in _find_paths(name, value, meanings))
            if any(PathKind.OWN in classifier.classify(Word(path)) for path in paths):
                yield _RUNTIME_FILES_FINDING

    def _written_files(self, args: Json, meanings: Mapping[str, Meaning]) -> dict[str, TextStream]:
        """Return the files that a call names as written, with their text if an argument contains it."""
        content = args.get("content")
        text = Word(content) if isinstance(content, str) else None
        directory = Path(self._path_classifier.session_directory)
        return {
            os.path.normpath(directory / Path(path).expanduser()): TextStream(text)
            for name in _names_with_meaning(meanings, Meaning.PATH)
            for path in _iterate_texts(args[name])
            if 0 < len(path) <= MAX_PATH_CHARS
        }

    def _may_change(self, tool: Tool) -> bool:
        return not _CHANGING_EFFECTS.isdisjoint(tool.effects) or self._is_untrusted(tool)


def declared_rule(tool: Tool) -> str:
    """Return the rule name used in findings about a tool that declares itself destructive."""
    return f"{DESTRUCTIVE_PREFIX}{tool.name}"


def paid_rule(tool: Tool) -> str:
    """Return the rule name used in findings about a tool whose service charges for each call."""
    return f"{PAID_PREFIX}{tool.name}"


def _describe_cost(tool: Tool) -> str:
    if Effect.EXECUTE in tool.effects:  # such as a training run, which may be a command on this machine
        return "starts work that can cost money or many hours of computing"
    return "uses a service that charges for each call"


def control_rule(tool: Tool) -> str:
    """Return the rule name used in findings about a tool that operates devices."""
    return f"{CONTROL_PREFIX}{tool.name}"


_ANY_SHELL = Tool(
    name="shell",
    toolset="",
    description="",
    parameters=FrozenDict(),
    handler=lambda _args, _context: None,
    judged_as=FrozenDict(command=Meaning.COMMAND, cwd=Meaning.FOLDER),
)
_NO_FINDINGS = Verdict("")
_ARGUMENTS_MISSING = "all arguments must follow the tool name as a JSON object"
_RUNTIME_FILES_FINDING = Finding(
    "own-configuration",
    SELF_PROTECTION,
    Severity.CRITICAL,
    "it accesses the runtime's own settings, hooks or records",
    blocked=True,
)


def _message_findings(tool: Tool, args: Json, meanings: Mapping[str, Meaning]) -> Iterator[Finding]:
    """Yield a finding if a call uses a device that sends messages, such as a phone."""
    if any(args[name] == _MESSAGE_DEVICES for name in _names_with_meaning(meanings, Meaning.DEVICES)):
        yield Finding(
            MESSAGE_RULE, "publish", Severity.MEDIUM, f"{tool.name} sends a message to other people"
        )


def _written_path_findings(info: PathInfo, path: str) -> Iterator[Finding]:
    """Yield the findings about a tool call that writes to the file `path`."""
    names = shorten(path, 80)
    if PathKind.OWN in info:
        yield _RUNTIME_FILES_FINDING
    if PathKind.STARTUP in info:
        reason = f"{names} is executed later by another program"
        yield Finding("write-startup", "persistence", Severity.HIGH, reason)
    if PathKind.AGENT in info:
        yield Finding(
            "write-protected", SELF_PROTECTION, Severity.CRITICAL, f"{names} controls what agents may do"
        )
    if not _SYSTEM_KINDS.isdisjoint(info.kinds):
        yield Finding("write-system", "overwrite", Severity.HIGH, f"{names} is a system file")
    if PathKind.SECRET in info and PathKind.PROJECT not in info:
        yield Finding("write-secret", "overwrite", Severity.MEDIUM, f"{names} contains keys or passwords")
    if not info.path.is_known:
        yield Finding("write-unknown", "unreadable", Severity.HIGH, f"{names} may be any file")


def _rules_of(verdict: Verdict) -> tuple[str, ...]:
    return tuple(dict.fromkeys(finding.rule for finding in verdict.findings))


def _unjudged_verdict(command: str) -> Verdict:
    reason = "its effects could not be determined"
    finding = Finding("unjudged", "unreadable", Severity.HIGH, reason, (0, len(command)))
    return Verdict(command, (finding,), unread=True)


def _names_with_meaning(meanings: Mapping[str, Meaning], wanted: Meaning) -> list[str]:
    return [name for name, meaning in meanings.items() if meaning is wanted]


def _python_command(code: Any) -> str:
    """Return Python code as the shell command `python3 -c CODE`, so that it is judged like a command."""
    return f"python3 -c {shlex.quote(code)}" if isinstance(code, str) else ""


def _command_lines(name: str, value: Any) -> list[str]:
    """Return the shell commands in an argument: a string, an argv list, or a list of commands."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise TypeError(f"a command must be a string or a list of strings, not {type(value).__name__}")
    return list(value) if name.casefold().endswith("commands") else [shlex.join(value)]


def _nested_commands(args: Json) -> Iterator[str]:
    """Yield shell commands inside nested arguments, found by argument names such as `command`."""
    for mapping in _iterate_mappings([each for each in args.values() if isinstance(each, (dict, list))]):
        for name, value in mapping.items():
            if name.casefold() in COMMAND_NAMES and isinstance(value, (str, list)):
                yield from _command_lines(name, value)


def _join_verdicts(verdicts: list[Verdict]) -> Verdict:
    """Combine the verdicts on all commands and process inputs of one tool call into one verdict."""
    if len(verdicts) == 1:
        return verdicts[0]
    findings: list[Finding] = []
    start = 0
    for verdict in verdicts:
        findings += [_shift_span(each, start) for each in verdict.findings]
        start += len(verdict.command) + 1
    command = "\n".join(verdict.command for verdict in verdicts)
    exported = {name: value for verdict in verdicts for name, value in verdict.leaves.items()}
    changes = [verdict.file_changes for verdict in verdicts]
    return Verdict(
        command,
        tuple(findings),
        unread=any(verdict.unread for verdict in verdicts),
        leaves=exported,
        file_changes=FileChanges(
            {path: stream for each in changes for path, stream in each.texts.items()},
            {path: name for each in changes for path, name in each.program_copies.items()},
            {path: target for each in changes for path, target in each.symlinks.items()},
            tuple(path for each in changes for path in each.downloaded_directories),
        ),
    )


def _shift_span(finding: Finding, by: int) -> Finding:
    first, last = finding.span
    return replace(finding, span=(first + by, last + by))


def _strip_workdirs(entry: str) -> str:
    """Remove prefixes such as `(in /tmp) `, which name working directories, from an allow-list entry.

    Its `cd` commands stay.
    """
    return _WORKDIR_PREFIX.sub("", entry)


def _listable_shape(verdict: Verdict) -> str:
    """Return a command's canonical spelling for the allow-list; empty if it cannot be an allow-list entry.

    Empty if the command was not read completely, or if its shape looks like an entry for a tool, rule or
    kind.
    """
    return (
        "" if verdict.unread or verdict.shape.startswith((TOOL_PREFIX, *PATTERN_PREFIXES)) else verdict.shape
    )


def _grant_keys(tool: Tool, args: Json, meanings: Mapping[str, Meaning], verdict: Verdict) -> tuple[str, str]:
    """Return the key for storing a session-wide approval of the call, and the allow-list entry for the call.

    Numbers and flags beside a command (a timeout) do not change what it does; text may. The findings are
    part of the key: if the same words get another meaning, approval is needed again.
    """
    if not _RUN_MEANINGS.intersection(meanings.values()):
        normalized = f"{TOOL_PREFIX}{_listed_name(tool)} {_canonical_json(args)}"
        return _hash_if_long(normalized), normalized if len(normalized) <= MAX_ENTRY_CHARS else ""
    shape = _listable_shape(verdict)
    if not shape:
        return "", ""
    known = {name for name, meaning in meanings.items() if meaning in (*_RUN_MEANINGS, Meaning.NOTE)}
    other_args = {
        name: value
        for name, value in args.items()
        if name not in known and not isinstance(value, _PLAIN_TYPES)
    }
    findings = sorted({f"{finding.rule}: {finding.reason}" for finding in verdict.findings})
    entry = (
        _shape_as_entry(shape)
        if other_args.keys() <= set(_names_with_meaning(meanings, Meaning.FOLDER))
        else ""
    )
    return _hash_if_long(f"{tool.name} {_canonical_json(other_args)} {shape} {findings}"), entry


def _listed_name(tool: Tool) -> str:
    """Return the tool's name as it appears in allow-list entries and on the command line."""
    return tool.listed_name or tool.name


def _shape_as_entry(shape: str) -> str:
    """Return a canonical command as an allow-list entry; empty if it is too long or reads unknown input."""
    return shape if _UNKNOWN_INPUT not in shape and len(shape) <= MAX_ENTRY_CHARS else ""


def _normalize_tool_entry(entry: str) -> str:
    """Return a tool's allow-list entry with JSON arguments in canonical form; empty if they are invalid."""
    name, _, written = entry.partition(" ")
    try:
        args = json.loads(written)
    except (ValueError, RecursionError):
        return ""
    return f"{name} {_canonical_json(args)}" if isinstance(args, dict) else ""


def _hash_if_long(key: str) -> str:
    """Return the key of a stored approval, or its hash if the key is long, to save memory."""
    return key if len(key) <= MAX_KEY_CHARS else hashlib.sha256(key.encode(errors="replace")).hexdigest()


def _canonical_json(value: Json) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(", ", ": "), default=str)


def _iterate_texts(value: Any) -> Iterator[str]:
    """Yield all strings in a value and in the lists and mappings nested in it."""
    return (each for each in _iterate_values(value) if isinstance(each, str))


def _iterate_mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all mappings in a value and in the lists and mappings nested in it."""
    return (each for each in _iterate_values(value) if isinstance(each, Mapping))


def _iterate_values(value: Any) -> Iterator[Any]:
    """Yield a value and all values nested in it. Raises ValueError if there are too many."""
    pending: list[Any] = [value]
    for _ in range(MAX_VALUES):
        if not pending:
            return
        each = pending.pop()
        yield each
        if isinstance(each, Mapping):
            pending += each.values()
        elif isinstance(each, (list, tuple)):
            pending += each
    if pending:
        raise ValueError(f"an argument contains more than {MAX_VALUES:,} values")


def _find_paths(name: str, value: Any, meanings: Mapping[str, Meaning]) -> Iterator[str]:
    """Yield all strings of a path argument; for any other argument, only strings that look like paths."""
    if meanings.get(name) in _NEVER_PATHS:
        return
    is_path_argument = meanings.get(name) is Meaning.PATH or name.casefold() in PATH_NAMES
    for text in _iterate_texts(value):
        path = text.removeprefix("file://")
        if (
            0 < len(path) <= MAX_PATH_CHARS
            and "\0" not in path
            and (is_path_argument or path.startswith(("/", "~")))
        ):
            yield path
