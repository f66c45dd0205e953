"""Detect the effects of shell redirections (`> file`), whichever program they belong to."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shellverdict.effects.run_context import RunContext
from shellverdict.effects.writing import reads_dev_null
from shellverdict.names import split_names
from shellverdict.shell.words import Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["find_redirect_effects"]


_SILENT_PROGRAMS = split_names(": true false exec")
_DEVICE_REMOVAL_FILE = re.compile(r"/sys/(?:block|class|bus|devices)/.*/(?:delete|remove|unbind)")


def find_redirect_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield the effects of a program's redirections, such as the files they write."""
    for redirect in context.run.redirects[:256]:
        if not redirect.is_output or _is_descriptor_copy(redirect.operator, redirect.target):
            continue
        added = ">>" in redirect.operator or redirect.operator == "<>"
        emptied = ("empty",) if not added and _prints_nothing(context, redirect.descriptor) else ()
        kind = EffectKind.WRITE if added else EffectKind.OVERWRITE
        yield context.write_effect(
            redirect.target, "redirected", *(("added",) if added else ()), *emptied, kind=kind
        )
    for redirect in context.run.redirects[:256]:
        if redirect.is_output:
            yield from _kernel_effects(context, redirect.target)


def _kernel_effects(context: RunContext, target: Word) -> Iterator[CommandEffect]:
    """Yield the effect of writing to a kernel file that triggers an action, such as /proc/sysrq-trigger."""
    path = context.classify(target).path
    if path == "/proc/sysrq-trigger":
        yield context.new_effect(EffectKind.SERVICE, "machine", "stopped", target=target)
    elif _DEVICE_REMOVAL_FILE.fullmatch(path):
        yield context.new_effect(EffectKind.FORMAT, "removed", "in:device", target=target)


def _is_descriptor_copy(operator: str, target: Word) -> bool:
    """Return True for `2>&1` and `>&-`, which write to no file."""
    return operator.endswith("&") and re.fullmatch(r"[0-9]*-?", target) is not None


def _prints_nothing(context: RunContext, descriptor: str) -> bool:
    argv = context.run.argv
    if descriptor not in ("", "1") and len(argv) > 1:
        return False
    if not argv or (argv[0] in _SILENT_PROGRAMS and len(argv) == 1):
        return True
    rest = argv[1:]
    if argv[0] in ("echo", "printf"):
        return all(word in ("", "-n", "-e", "-ne", "-en") for word in rest)
    if argv[0] in ("head", "tail"):
        return rest[:2] in (("-c", "0"), ("-n", "0")) or rest[:1] in (("-c0",), ("-n0",), ("-0",))
    return argv[0] == "cat" and (rest == ("/dev/null",) or (not rest and reads_dev_null(context)))
