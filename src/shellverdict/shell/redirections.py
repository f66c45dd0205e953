"""Apply redirections to the state of the analyzed shell: files written, descriptors opened."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from shellverdict.shell.expansion import Expansion
from shellverdict.shell.run_checks import NETWORK_PATHS
from shellverdict.shell.runs import ProgramRun, Redirect, TextStream
from shellverdict.shell.state import ShellState
from shellverdict.shell.streams import EMPTY_STREAM, UNKNOWN_STREAM, concatenate_streams
from shellverdict.shell.tree import Redirection
from shellverdict.shell.words import Taint, Word

__all__ = [
    "apply_output_redirects",
    "descriptor_number",
    "evaluate_redirects",
    "keep_redirects_open",
    "open_input",
]

CAT = Word("cat")
DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")


def evaluate_redirects(
    redirections: Iterable[Redirection],
    stdin: TextStream | None,
    expansion: Expansion,
    state: ShellState,
    is_confidential: Callable[[ProgramRun], bool],
) -> tuple[tuple[Redirect, ...], TextStream | None]:
    """Return the redirections with expanded targets, and the standard input that results from them."""
    found: list[Redirect] = []
    for redirection in redirections:
        sign = redirection.operator
        text = expansion.expand_text(redirection.target, tilde=sign not in ("<<", "<<-"))
        if sign in ("<<<", "<<", "<<-"):
            text = text.literal
            fed = TextStream(Word(text + "\n") if sign == "<<<" else text, text.taints)
            if redirection.descriptor in ("", "0"):
                stdin = fed
            else:
                state.input_descriptors[_allocate_descriptor(redirection.descriptor, state)] = fed
            continue
        if sign in ("<", "<>") and redirection.descriptor in ("", "0"):
            stdin = open_input(text, state, is_confidential)
        elif sign in ("<", "<>") and redirection.descriptor.isdigit():
            state.input_descriptors[redirection.descriptor] = open_input(text, state, is_confidential)
        elif sign == "<&" and text in state.input_descriptors:
            stdin = state.input_descriptors[text]
        if redirection.descriptor.isdigit() and text.startswith(NETWORK_PATHS):
            state.input_descriptors[redirection.descriptor] = TextStream(None, frozenset({Taint.NETWORK}))
        found.append(Redirect(sign, state.follow_symlinks(text), redirection.descriptor))
    return tuple(found), stdin


def open_input(path: Word, state: ShellState, is_confidential: Callable[[ProgramRun], bool]) -> TextStream:
    """Return the content of a file that is opened for reading."""
    if path.startswith(NETWORK_PATHS):
        return TextStream(None, frozenset({Taint.NETWORK}))
    if path == "/dev/null":
        return EMPTY_STREAM
    if number := descriptor_number(path):
        return state.written_files.get(
            state.resolve_path(path), state.input_descriptors.get(number, UNKNOWN_STREAM)
        )
    own = state.written_files.get(state.resolve_path(path))
    if own is None and is_confidential(ProgramRun(argv=(CAT, path), path=CAT, cwd=state.cwd)):
        return TextStream(None, frozenset({Taint.UNREAD, Taint.CONFIDENTIAL}))
    opened = own or state.find_file(state.resolve_path(path))
    return opened or TextStream(None, frozenset({Taint.UNREAD}))


def apply_output_redirects(
    printed: TextStream, redirects: tuple[Redirect, ...], state: ShellState
) -> TextStream:
    """Record the redirected output of a program in its target files; return the output left on stdout."""
    for redirect in redirects:
        if not redirect.is_output or redirect.descriptor not in ("", "1"):
            continue
        if redirect.operator == ">&" and redirect.target in state.output_descriptors:
            path = state.resolve_path(state.output_descriptors[redirect.target])
            state.written_files[path] = concatenate_streams(
                state.written_files.get(path, EMPTY_STREAM), printed
            )
        elif redirect.operator == ">&" and (redirect.target.isdigit() or redirect.target == "-"):
            if redirect.target == "1":
                continue
        elif redirect.target in ("/dev/stdout", "/dev/fd/1"):
            continue
        else:
            path = state.resolve_path(redirect.target)
            before = state.find_file(path) if ">>" in redirect.operator else None
            state.written_files[path] = concatenate_streams(before, printed) if before else printed
        printed = EMPTY_STREAM
    return printed


def keep_redirects_open(redirects: Iterable[Redirect], stdin: TextStream | None, state: ShellState) -> None:
    """Apply `exec` with redirections but no command, which redirects all following commands."""
    for redirect in redirects:
        if redirect.descriptor.isdigit() and redirect.is_output:
            state.output_descriptors[redirect.descriptor] = redirect.target
        elif redirect.descriptor in ("", "0") and stdin is not None:
            state.input_descriptors["0"] = stdin


def descriptor_number(path: str) -> str:
    """Return the number in a path such as `/dev/fd/3`; empty for other paths."""
    found = DESCRIPTOR.fullmatch(path)
    return found.group(1) if found else ""


def _allocate_descriptor(descriptor: str, state: ShellState) -> str:
    """Return the descriptor of a redirection; for `{name}<file`, choose a number and assign it to `name`."""
    if not descriptor.startswith("{"):
        return descriptor
    number = str(10 + len(state.input_descriptors))
    state.set_variable(descriptor.strip("{}"), Word(number))
    return number
