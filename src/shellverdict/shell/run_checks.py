"""Find effects of running one program, given its arguments and the files that earlier programs created."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from shellverdict.shell.embedded import find_files_loaded_by_name, has_option_like_target
from shellverdict.shell.programs import SHELLS, UPLOAD_PROGRAMS, WRITING_PROGRAMS
from shellverdict.shell.runs import ProgramRun
from shellverdict.shell.state import ShellState
from shellverdict.shell.words import EMPTY, GAP, Taint, Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = [
    "COMMAND_IN_SUBSCRIPT",
    "NETWORK_PATHS",
    "check_arguments",
    "check_file_names",
    "check_program",
    "check_redirect_targets",
]

NETWORK_PATHS = ("/dev/tcp/", "/dev/udp/")
LOOPBACK_PATHS = tuple(
    f"{prefix}{host}/" for prefix in NETWORK_PATHS for host in ("127.0.0.1", "localhost", "::1")
)
# Standard input of another process; `self` is the process that opens it.
OTHER_PROCESS_STDIN = re.compile(
    rf"/proc/(?!self/|thread-self/)[^/]*(?:/task/[^/]*)?/fd/(?:0|[{GAP}-\ufddf])"
)
# Builtins that take a variable name and evaluate its subscript, which may contain a command.
NAME_EVALUATING_BUILTINS = frozenset(
    {"let", "test", "[", "printf", "read", "unset", "declare", "typeset", "local", "mapfile"}
)
COMMAND_IN_SUBSCRIPT = re.compile(r"^\w+\[[^\]]*(?:\$\(|`)")
COMMAND_IN_ASSIGNED_SUBSCRIPT = re.compile(r"^\w+=\w+\[[^\]]*(?:\$\(|`)")


def check_arguments(run: ProgramRun) -> Iterator[CommandEffect]:
    """Yield an effect for each way in which a program's arguments make a shell run a hidden command."""
    words = run.argv[1:]
    if any(word.startswith("BASH_FUNC_") for word in words):
        yield _unreadable(run, "a shell function is passed in an environment variable")
    if any(COMMAND_IN_ASSIGNED_SUBSCRIPT.search(word) for word in words):
        yield _unreadable(run, "the value contains a command that arithmetic evaluation would run")
    if run.name in NAME_EVALUATING_BUILTINS and any(COMMAND_IN_SUBSCRIPT.search(word) for word in words):
        yield _unreadable(run, "a variable name contains a command that the shell would run")


def check_redirect_targets(
    run: ProgramRun, is_confidential: Callable[[ProgramRun], bool]
) -> Iterator[CommandEffect]:
    """Yield the effects of redirecting output to other processes, to unknown files and to the network."""
    words = run.argv[1:] if run.name in WRITING_PROGRAMS or run.name in ("dd", "sponge", "socat") else ()
    targets = (*words, *(each.target for each in run.redirects if each.is_output))
    if any(OTHER_PROCESS_STDIN.search(target) for target in targets):
        yield _unreadable(run, "it may write to the standard input of another process", run.path)
    for redirect in run.redirects:
        target = redirect.target
        if redirect.is_output and target[:1] == GAP:
            yield _unreadable(run, "the file it writes is not known", target)
        is_remote = target.startswith(NETWORK_PATHS) and not target.startswith(LOOPBACK_PATHS)
        if is_remote and (run.name in SHELLS or run.name == "exec"):
            yield CommandEffect(EffectKind.REVERSE_SHELL, target, span=run.span)
        elif is_remote and redirect.is_output and run.argv and is_confidential(run):
            traits = frozenset({"network", "in:secret"})
            yield CommandEffect(EffectKind.EXFILTRATE, target, traits, run.span)


def check_program(run: ProgramRun, state: ShellState) -> Iterator[CommandEffect]:
    """Yield effects for programs of unknown name, uploads of copied secrets, and writes to unknown files."""
    if not run.name.is_known:
        yield _unreadable(run, "the name of the program is not known", run.path, run.path.taints)
    yield from _check_secret_upload(run, state)
    if run.name in WRITING_PROGRAMS and run.argv[-1][:1] == GAP and not run.wrappers:
        yield _unreadable(run, "the file it writes is not known", run.path)


def _check_secret_upload(run: ProgramRun, state: ShellState) -> Iterator[CommandEffect]:
    """Yield an effect for each uploaded file into which the same command has copied a secret."""
    if run.name not in UPLOAD_PROGRAMS:
        return
    secret = {path for path, stream in state.written_files.items() if Taint.CONFIDENTIAL in stream.taints}
    for word in run.argv[1:] if secret else ():
        if state.resolve_path(Word(word.rpartition("@")[2].rpartition("=")[2])) in secret:
            traits = frozenset({str(Taint.CONFIDENTIAL)})
            yield CommandEffect(EffectKind.EXFILTRATE, word, traits, run.span)


def check_file_names(run: ProgramRun, state: ShellState) -> Iterator[CommandEffect]:
    """Yield effects for new files named like an option, and for loaded files with unknown content.

    The program loads them by default because of their name, such as `Makefile`.
    """
    if has_option_like_target(run):
        yield _unreadable(run, "a created file is named like a command-line option", run.path)
    for path, taints in find_files_loaded_by_name(run, state.written_files):
        traits = frozenset(map(str, taints or {Taint.UNREAD}))
        yield CommandEffect(EffectKind.RUN_UNREAD, Word(path), traits, run.span)


def _unreadable(
    run: ProgramRun, detail: str, target: Word = EMPTY, taints: Iterable[str] = ()
) -> CommandEffect:
    return CommandEffect(EffectKind.UNREADABLE, target, frozenset(map(str, taints)), run.span, detail)
