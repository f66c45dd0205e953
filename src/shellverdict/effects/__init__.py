"""Derive the effects of running one program (files deleted, data sent …) from its arguments.

`find_effects` calls the handlers registered for the program's name. An effect is a fact with plain traits;
the rules decide whether it matters. The kind of the affected path is among the traits, such as `in:system`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shellverdict.effects.clearing import find_clearing_effects
from shellverdict.effects.code_settings import find_setting_effects
from shellverdict.effects.container_mounts import MOUNT_HANDLERS
from shellverdict.effects.copying import COPY_HANDLERS
from shellverdict.effects.deleting import DELETE_HANDLERS
from shellverdict.effects.disks import DISK_HANDLERS, find_mkfs_effects
from shellverdict.effects.exported_variables import VARIABLE_HANDLERS, find_search_path_effects
from shellverdict.effects.kernel import KERNEL_HANDLERS
from shellverdict.effects.networks import NETWORK_HANDLERS
from shellverdict.effects.output_options import OUTPUT_HANDLERS
from shellverdict.effects.permissions import PERMISSION_HANDLERS
from shellverdict.effects.processes import PROCESS_HANDLERS, find_endless_output_effects
from shellverdict.effects.protected_arguments import find_protected_argument_effects
from shellverdict.effects.redirects import find_redirect_effects
from shellverdict.effects.run_context import EffectHandlers, RunContext
from shellverdict.effects.runtime_variables import find_runtime_variable_effects
from shellverdict.effects.secrets import find_secret_effects, prints_confidential
from shellverdict.effects.sending import sent_words
from shellverdict.effects.services import SERVICE_HANDLERS, find_init_script_effects
from shellverdict.effects.unpacking import UNPACK_HANDLERS
from shellverdict.effects.uploading import UPLOAD_HANDLERS
from shellverdict.effects.wrapped_commands import find_wrapped_command_effects
from shellverdict.effects.writing import WRITE_HANDLERS
from shellverdict.paths import PathClassifier
from shellverdict.paths.patterns import NamePattern
from shellverdict.shell.runs import ProgramRun
from shellverdict.shell.words import Word
from shellverdict.verdict import CommandEffect

__all__ = ["find_effects", "prints_confidential", "sent_words"]

_HANDLERS: tuple[EffectHandlers, ...] = (
    *(
        DELETE_HANDLERS,
        COPY_HANDLERS,
        UNPACK_HANDLERS,
        WRITE_HANDLERS,
        OUTPUT_HANDLERS,
        DISK_HANDLERS,
        PERMISSION_HANDLERS,
    ),
    *(
        PROCESS_HANDLERS,
        SERVICE_HANDLERS,
        NETWORK_HANDLERS,
        KERNEL_HANDLERS,
        MOUNT_HANDLERS,
        UPLOAD_HANDLERS,
        VARIABLE_HANDLERS,
    ),
)


def find_effects(run: ProgramRun, paths: PathClassifier) -> Iterator[CommandEffect]:
    """Yield every effect (file deleted, data sent …) that running a program would have, in any order."""
    if run.is_remote:
        paths = paths.for_other_machine()
    yield from find_redirect_effects(RunContext(run, paths))
    yield from find_clearing_effects(RunContext(run, paths))
    yield from find_runtime_variable_effects(RunContext(run, paths))
    yield from find_search_path_effects(RunContext(run, paths))
    yield from find_setting_effects(RunContext(run, paths))
    for name in _possible_names(run):
        context = RunContext(run if name == run.name else _rename_program(run, name), paths)
        yield from _handler_effects(name, context)
        known = any(name in handlers for handlers in _HANDLERS)
        yield from find_protected_argument_effects(name, context, known=known)
        yield from find_wrapped_command_effects(name, context, _handler_effects, known=known)
        yield from find_endless_output_effects(context)
        yield from find_init_script_effects(context)
        yield from find_secret_effects(context)


def _handler_effects(name: str, context: RunContext) -> Iterator[CommandEffect]:
    """Yield the effects found by the handlers that are registered for the program `name`."""
    for handlers in _HANDLERS:
        if name in handlers:
            yield from handlers[name](context)
    yield from find_mkfs_effects(name, context)


def _possible_names(run: ProgramRun) -> Iterator[str]:
    """Yield the program's name and, if it is a pattern (`/bin/r?`), every known name that it matches."""
    name = run.name.lower().removesuffix(".exe")
    yield name
    if run.name.is_pattern:
        pattern = NamePattern(name)
        yield from (each for handlers in _HANDLERS for each in handlers if pattern.matches(each))


def _rename_program(run: ProgramRun, name: str) -> ProgramRun:
    return replace(run, argv=(Word(name), *run.argv[1:]))
