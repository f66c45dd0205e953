"""Effects of redirections on the state of the analysed shell: files written, descriptors opened."""

from __future__ import annotations

import re
from collections.abc import Iterable

from shellverdict.shell.runs import Redirect, TextStream
from shellverdict.shell.state import ShellState
from shellverdict.shell.streams import EMPTY_STREAM, concatenate_streams
from shellverdict.shell.words import Word

__all__ = ["allocate_descriptor", "apply_output_redirects", "descriptor_number", "keep_redirects_open"]

DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")


def apply_output_redirects(
    printed: TextStream, redirects: tuple[Redirect, ...], state: ShellState
) -> TextStream:
    """Write output to the files it is redirected to; return the output that reaches the next program."""
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
            before = state.written_files.get(path) if ">>" in redirect.operator else None
            state.written_files[path] = concatenate_streams(before, printed) if before else printed
        printed = EMPTY_STREAM
    return printed


def keep_redirects_open(redirects: Iterable[Redirect], stdin: TextStream | None, state: ShellState) -> None:
    """Apply `exec` with redirections only: they stay open for all following commands."""
    for redirect in redirects:
        if redirect.descriptor.isdigit() and redirect.is_output:
            state.output_descriptors[redirect.descriptor] = redirect.target
        elif redirect.descriptor in ("", "0") and stdin is not None:
            state.input_descriptors["0"] = stdin


def descriptor_number(path: str) -> str:
    """Return the number in a path such as `/dev/fd/3`; empty for other paths."""
    found = DESCRIPTOR.fullmatch(path)
    return found.group(1) if found else ""


def allocate_descriptor(descriptor: str, state: ShellState) -> str:
    """Return the descriptor; for `{name}<file`, choose a free number and assign it to the variable."""
    if not descriptor.startswith("{"):
        return descriptor
    number = str(10 + len(state.input_descriptors))
    state.set_variable(descriptor.strip("{}"), Word(number))
    return number
