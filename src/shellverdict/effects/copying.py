"""Detect files that a command copies, moves, links or mirrors, on this machine or to another machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from shellverdict.effects.permissions import mode_traits
from shellverdict.effects.run_context import UNKNOWN_WORD, EffectHandlers, RunContext
from shellverdict.names import split_names
from shellverdict.options import Options
from shellverdict.paths import PathKind
from shellverdict.paths.known_names import DIRECTORIES
from shellverdict.paths.patterns import matches_everything
from shellverdict.shell.words import EMPTY, GAP, Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["COPY_HANDLERS"]


_COPY_VALUES = split_names(
    "-t --target-directory -S --suffix -m --mode -o --owner -g --group --strip-program --sparse --no-preserve"
)
_REMOTE = re.compile(r"(?:[\w.@-]|\[[0-9A-Fa-f:.]+\])+:(?!\\)|[a-z0-9+]+://", re.ASCII)


def is_remote(word: Word) -> bool:
    """Return True if an operand of scp, rsync or a similar program names another machine."""
    match = _REMOTE.match(word)
    return match is not None and not re.match(r"[A-Za-z]:[\\/]", word)


def _split_operands(context: RunContext, options: Options) -> tuple[tuple[Word, ...], Word | None]:
    """Return the sources and the destination of a copy; the destination may be given by `-t`."""
    operands = options.operands
    destination = options.value("-t", "--target-directory")
    if destination is not None:
        return operands, destination
    if len(operands) < 2:
        return operands, UNKNOWN_WORD if context.run.has_unknown_operands else None
    return operands[:-1], operands[-1]


def _put_effects(
    context: RunContext, sources: Sequence[Word], destination: Word, *traits: str
) -> Iterator[CommandEffect]:
    """Yield the effects on the destination file or directory when files are copied or moved."""
    emptied = ("empty",) if len(sources) == 1 and sources[0] == "/dev/null" else ()
    make_effect = (
        context.fill_effect
        if _copies_directory_contents(sources) or "whole" in traits
        else context.write_effect
    )
    destination_effect = make_effect(destination, *traits, *emptied)
    yield destination_effect
    if not _is_directory_destination(context, sources, destination):
        return
    for source in sources[:16]:
        name = source.rstrip("/").rpartition("/")[2]
        if name and name not in (".", "..") and GAP not in name:
            yield from _effects_inside_directory(
                context, destination_effect, Word(f"{destination.rstrip('/') or '/'}/{name}"), *traits
            )


def _copies_directory_contents(sources: Sequence[Word]) -> bool:
    """Return True if all files of a directory are copied, as in `cp e/. x` or `cp e/* x`."""
    return any(
        word in (".", "..") or word.endswith(("/.", "/..")) or _matches_everything(word) for word in sources
    )


def _matches_everything(word: Word) -> bool:
    return matches_everything(word.rpartition("/")[2])


def _is_directory_destination(context: RunContext, sources: Sequence[Word], destination: Word) -> bool:
    """Return True if the command's text shows that the destination of a copy is a directory."""
    if len(sources) > 1 or destination.endswith(("/", "/.", "/..")) or destination in (".", ".."):
        return True
    path_info = context.classify(destination)
    if path_info.kinds & {PathKind.HOME, PathKind.ROOT, PathKind.SYSTEM_ROOT}:
        return True
    return path_info.path.rpartition("/")[2].lower() in DIRECTORIES


def _effects_inside_directory(
    context: RunContext, destination_effect: CommandEffect, word: Word, *traits: str
) -> Iterator[CommandEffect]:
    """Yield a write effect if a file copied into a directory is sensitive there, such as `.bashrc` in `~`."""
    file_effect = context.write_effect(word, *traits)
    relevant_traits = {
        f"in:{place}"
        for place in (PathKind.SECRET, PathKind.STARTUP, PathKind.AGENT, PathKind.OWN, PathKind.DEVICE)
    }
    if (file_effect.traits - destination_effect.traits) & relevant_traits:
        yield file_effect


def _cp_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(_COPY_VALUES - split_names("-m --mode -o --owner -g"))
    sources, destination = _split_operands(context, options)
    if options.has("-l", "--link", "-s", "--symbolic-link"):
        yield from _link_source_effects(context, sources)
    if destination is not None:
        yield from _put_effects(context, sources, destination, "copied", *_overlay_traits(options))


def _overlay_traits(options: Options) -> tuple[str, ...]:
    """Return the trait (keyword) `whole` if `cp -r -T` merges a directory into its destination."""
    recursive = options.has("-r", "-R", "--recursive", "-a", "--archive")
    return ("whole",) if recursive and options.has("-T", "--no-target-directory") else ()


def _link_source_effects(context: RunContext, sources: Sequence[Word]) -> Iterator[CommandEffect]:
    """Yield an effect for each new link to a protected file: writes to the link would change that file."""
    for source in context.iter_operands(sources):
        kinds_inside = context.paths.kinds_replaced_by_filling(source, context.run.cwd)
        protected_kinds = (context.classify(source).kinds | kinds_inside) & {
            PathKind.OWN,
            PathKind.AGENT,
            PathKind.STARTUP,
        }
        if protected_kinds:
            yield context.new_effect(
                EffectKind.WRITE, "linked", *(f"in:{place}" for place in protected_kinds), target=source
            )


def _mv_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(_COPY_VALUES - split_names("-m --mode -o --owner -g"))
    sources, destination = _split_operands(context, options)
    if destination is None:
        return
    lost = PathKind.STREAM in context.classify(destination)
    for word in context.iter_operands(sources):
        yield _move_source_effect(context, word, lost)
    yield from _put_effects(context, sources, destination, "moved-in")


def _move_source_effect(context: RunContext, word: Word, lost: bool) -> CommandEffect:
    """Return the effect of `mv` on the moved file; less severe for project files and temporary files."""
    path_info = context.classify(word, follow_link=False, recursive=True)
    renamed = not lost and path_info.kinds & {PathKind.PROJECT, PathKind.TEMP}
    source_info = (
        replace(path_info, kinds=path_info.kinds - {PathKind.SECRET, PathKind.DATA}) if renamed else path_info
    )
    return context.destroy_effect(
        EffectKind.OVERWRITE, word, source_info, "moved", *(("lost",) if lost else ())
    )


def _install_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(_COPY_VALUES)
    mode = options.value("-m", "--mode")
    if options.has("-d", "--directory"):
        for word in context.iter_operands(options.operands):
            yield context.write_effect(word, kind=EffectKind.WRITE)
        return
    sources, destination = _split_operands(context, options)
    if destination is None:
        return
    yield from _put_effects(context, sources, destination, "copied")
    opened = mode_traits(mode) & {"setuid", "setgid", "world-writable"} if mode is not None else ()
    if opened:
        yield context.destroy_effect(
            EffectKind.PERMISSIONS, destination, context.classify(destination), *opened
        )


def _is_readable_by_others(context: RunContext, word: Word) -> bool:
    """Return True if other users of the machine can read a file, judged by its location."""
    return bool(context.classify(word).kinds & {PathKind.OUTSIDE, PathKind.SYSTEM, PathKind.TEMP})


def _ln_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(_COPY_VALUES - split_names("-m --mode -o --owner -g"))
    sources, destination = _split_operands(context, options)
    kind = EffectKind.OVERWRITE if options.has("-f", "--force") else EffectKind.WRITE
    if destination is not None:
        yield context.write_effect(destination, "linked", kind=kind)
    yield from _link_source_effects(context, sources)
    for source in context.iter_operands(sources):
        if (
            destination is not None
            and PathKind.SECRET in context.classify(source)
            and _is_readable_by_others(context, destination)
        ):
            yield context.new_effect(EffectKind.DISCLOSE, "linked", "in:secret", target=source)


_RSYNC_VALUES = split_names(
    "-e --rsh -f --filter --exclude --include --exclude-from --include-from --files-from -T --temp-dir "
    "--bwlimit --port --timeout --backup-dir --suffix --chmod --chown --log-file --password-file "
    "--partial-dir --max-size --min-size --max-delete --compare-dest --copy-dest --link-dest -M "
    "--remote-option --rsync-path -B --block-size"
)


def _rsync_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(_RSYNC_VALUES, abbreviated=False)
    if options.has("-n", "--dry-run") or len(options.operands) < 2:
        return
    *sources, destination = options.operands
    mode = options.value("--chmod")
    if mode is not None and "setuid" in mode_traits(Word(mode.lstrip("FD"))):
        yield context.new_effect(EffectKind.PERMISSIONS, "setuid", target=destination)
    for word in options.values(
        "--log-file", "--write-batch", "--only-write-batch", "--backup-dir", "--partial-dir"
    ):
        yield context.write_effect(word, kind=EffectKind.WRITE)
    if options.has_prefix("--del"):
        yield _mirror_effect(context, destination)
    if options.has("--remove-source-files", "--remove-sent-files"):
        for word in context.iter_operands(sources):
            yield context.delete_effect(word, "copied-first", recursive=True)
    if is_remote(destination):
        yield _remote_write_effect(context, destination)
    else:
        whole = ("whole",) if any(word.endswith("/") for word in sources) else ()
        yield from _put_effects(context, sources, destination, "copied", *whole)


def _mirror_effect(context: RunContext, destination: Word) -> CommandEffect:
    """Return the effect of mirroring (`rsync --delete` …), which deletes files missing from the source."""
    if not is_remote(destination):
        path_info = context.classify(destination, recursive=True)
        return context.destroy_effect(EffectKind.OVERWRITE, destination, path_info, "mirrored", "recursive")
    there = Word(destination.partition(":")[2])
    path_info = context.paths.for_other_machine().classify(there, recursive=True)
    return context.destroy_effect(EffectKind.OVERWRITE, there, path_info, "mirrored", "recursive", "network")


def _remote_write_effect(context: RunContext, destination: Word) -> CommandEffect:
    away = RunContext(context.run, context.paths.for_other_machine())
    return away.write_effect(Word(destination.partition(":")[2]), "network", "copied")


_SCP_VALUES = split_names("-c -D -F -i -J -l -o -P -S -X -s")


def _scp_effects(context: RunContext) -> Iterator[CommandEffect]:
    *sources, destination = context.parse_options(_SCP_VALUES).operands or (EMPTY,)
    if not sources:
        return
    if is_remote(destination):
        yield _remote_write_effect(context, destination)
    else:
        yield from _put_effects(context, sources, destination, "copied")


def _rclone_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(abbreviated=False)
    if options.has("-n", "--dry-run") or not options.operands:
        return
    verb, *paths = options.operands
    if verb in ("sync", "delete", "deletefile", "purge", "rmdir", "rmdirs", "cleanup", "bisync") and paths:
        yield _mirror_effect(context, paths[-1])
    if verb in ("move", "moveto") and paths:
        yield _mirror_effect(context, paths[0])
    if verb in ("copy", "copyto", "move", "moveto") and len(paths) > 1 and not is_remote(paths[-1]):
        yield context.fill_effect(paths[-1], "copied")


def _container_copy_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield the local files that `docker cp container:file path` or `kubectl cp` writes."""
    values = split_names(
        "-n --namespace -c --container --context --kubeconfig --host -H --config --log-level -l"
    )
    operands = context.parse_options(values, abbreviated=False).operands
    if "cp" not in operands[:2]:
        return
    paths = operands[operands.index(Word("cp")) + 1 :]
    if len(paths) > 1 and is_remote(paths[0]) and not is_remote(paths[-1]) and paths[-1] != "-":
        yield from _put_effects(context, list(paths[:-1]), paths[-1], "copied")


COPY_HANDLERS: EffectHandlers = {
    **dict.fromkeys(split_names("docker podman nerdctl kubectl oc"), _container_copy_effects),
    **dict.fromkeys(split_names("cp gcp"), _cp_effects),
    **dict.fromkeys(split_names("mv gmv"), _mv_effects),
    **dict.fromkeys(split_names("install ginstall"), _install_effects),
    **dict.fromkeys(split_names("ln link"), _ln_effects),
    "rsync": _rsync_effects,
    **dict.fromkeys(split_names("scp pscp"), _scp_effects),
    "rclone": _rclone_effects,
}
