"""Detect keys, tokens and passwords that a command reads or sends to another machine.

`prints_confidential` tells the shell reader that a run's output is secret, so that it can mark the pipe.
"""

from __future__ import annotations

from collections.abc import Iterator

from shellverdict.effects.disclosing import (
    DATABASE_DUMPERS,
    NON_REVEALING_PROGRAMS,
    PRINTING_PROGRAMS,
    ROUTINE_PRINTERS,
    copied_secrets,
    has_confidential_word,
    holds_secrets,
    is_private,
    lists_private_directory,
    prints_secrets,
    read_files,
    read_secret_files,
    reads_confidential_input,
    secret_search_targets,
)
from shellverdict.effects.run_context import RunContext
from shellverdict.effects.sending import (
    PROGRAMS_THAT_MAY_SEND,
    SENDING_PROGRAMS,
    fetches_cloud_metadata,
    sent_files,
    sent_words,
)
from shellverdict.paths import PathClassifier
from shellverdict.shell.runs import STDIN_PATHS, ProgramRun
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["find_secret_effects", "prints_confidential"]

_REMOTE_PROGRAMS = frozenset(("docker", "podman", "kubectl", "nerdctl", "oc", "ssh", "lxc"))
_REVEALING_OR_SENDING = PRINTING_PROGRAMS | PROGRAMS_THAT_MAY_SEND | _REMOTE_PROGRAMS


def prints_confidential(run: ProgramRun, paths: PathClassifier) -> bool:
    """Return True if a program may print a secret, judged by its arguments and its input."""
    context = RunContext(run, paths.for_other_machine() if run.is_remote else paths)
    name = run.name.lower()
    if name in NON_REVEALING_PROGRAMS or not _may_reveal_or_send(run, name):
        return False
    if reads_confidential_input(run):
        return not SENDING_PROGRAMS & {name}
    if name in ("echo", "printf", "print") and has_confidential_word(run.argv):
        return True
    if lists_private_directory(context) or _prints_remote_secrets(context, name):
        return True
    return prints_secrets(run, name) or any(
        is_private(context.classify(word)) for word in read_files(context)
    )


def _prints_remote_secrets(context: RunContext, name: str) -> bool:
    """Return True if a program on another machine or in a container prints secrets that are stored there."""
    if name not in _REMOTE_PROGRAMS:
        return False
    there = context.paths.for_other_machine()
    words = context.run.argv[2:32]
    return any(
        word in DATABASE_DUMPERS or (word[:1] == "/" and is_private(there.classify(word))) for word in words
    )


def _may_reveal_or_send(run: ProgramRun, name: str) -> bool:
    """Return True if a program may print or send the content of files."""
    return name in _REVEALING_OR_SENDING or bool(run.redirects) or reads_confidential_input(run)


def find_secret_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield effects for secrets that a program reads or sends, and for requests for cloud credentials."""
    run = context.run
    if not _may_reveal_or_send(run, run.name.lower()):
        return
    sent = list(sent_files(context))[:400]
    flows_in = any(word in STDIN_PATHS for word in sent)
    redirected = [r.target for r in run.redirects if r.operator == "<" and flows_in]
    for word in (*sent, *redirected):
        if word in STDIN_PATHS:
            if reads_confidential_input(run):
                yield context.new_effect(EffectKind.EXFILTRATE, "network", "in:secret")
            continue
        path_info = context.classify(word)
        if is_private(path_info) or holds_secrets(path_info):
            yield context.new_effect(
                EffectKind.EXFILTRATE, "network", *path_info.traits, target=path_info.path
            )
    printed_words = (
        run.argv
        if any(word in STDIN_PATHS for word in sent) and run.name in ("echo", "printf", "print")
        else ()
    )
    if has_confidential_word((*sent_words(run), *printed_words)):
        yield context.new_effect(EffectKind.EXFILTRATE, "network", "in:secret")
    if not sent:
        for word in (*read_secret_files(context), *copied_secrets(context), *secret_search_targets(context)):
            path_info = context.classify(word)
            yield context.new_effect(EffectKind.DISCLOSE, *path_info.traits, target=path_info.path)
        if prints_secrets(run, run.name.lower()) and run.name not in ROUTINE_PRINTERS:
            system = ("in:secret", "in:system") if run.name == "getent" else ("told",)
            yield context.new_effect(EffectKind.DISCLOSE, *system)
    if fetches_cloud_metadata(run):
        yield context.new_effect(EffectKind.DISCLOSE, "metadata", "network", "in:secret")
