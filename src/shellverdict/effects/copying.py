"""Files copied, moved, linked and mirrored, here and to other machines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from shellverdict.effects.permissions import mode_traits
from shellverdict.effects.scene import UNKNOWN, Family, Scene
from shellverdict.names import names
from shellverdict.options import Options
from shellverdict.places import Place
from shellverdict.places.names import DIRECTORIES
from shellverdict.places.patterns import broad
from shellverdict.shell.words import EMPTY, GAP, Word
from shellverdict.verdict import Effect, Kind

__all__ = ["COPYING"]


_COPY_VALUES = names(
    "-t --target-directory -S --suffix -m --mode -o --owner -g --group --strip-program --sparse --no-preserve"
)
_REMOTE = re.compile(r"(?:[\w.@-]|\[[0-9A-Fa-f:.]+\])+:(?!\\)|[a-z0-9+]+://", re.ASCII)


def remote(word: Word) -> bool:
    """Whether an operand of scp, rsync and the like names another machine."""
    found = _REMOTE.match(word)
    return found is not None and not re.match(r"[A-Za-z]:[\\/]", word)


def _copied(scene: Scene, options: Options) -> tuple[tuple[Word, ...], Word | None]:
    """The sources and the destination, wherever that stands."""
    operands = options.operands
    destination = options.value("-t", "--target-directory")
    if destination is not None:
        return operands, destination
    if len(operands) < 2:
        return operands, UNKNOWN if scene.run.more_operands else None
    return operands[:-1], operands[-1]


def _put(scene: Scene, sources: Sequence[Word], destination: Word, *traits: str) -> Iterator[Effect]:
    """The destination, both as a file and as the directory that the sources go into."""
    emptied = ("empty",) if len(sources) == 1 and sources[0] == "/dev/null" else ()
    put = scene.fill if _unlisted(sources) or "whole" in traits else scene.write
    into = put(destination, *traits, *emptied)
    yield into
    if not _holds(scene, sources, destination):
        return
    for source in sources[:16]:
        name = source.rstrip("/").rpartition("/")[2]
        if name and name not in (".", "..") and GAP not in name:
            yield from _added(scene, into, Word(f"{destination.rstrip('/') or '/'}/{name}"), *traits)


def _unlisted(sources: Sequence[Word]) -> bool:
    """Whether it is what a directory holds that is put there: `e/.`, `e/*`."""
    return any(word in (".", "..") or word.endswith(("/.", "/..")) or _all_of(word) for word in sources)


def _all_of(word: Word) -> bool:
    return broad(word.rpartition("/")[2])


def _holds(scene: Scene, sources: Sequence[Word], destination: Word) -> bool:
    """Whether the destination is a directory, as far as its spelling tells."""
    if len(sources) > 1 or destination.endswith(("/", "/.", "/..")) or destination in (".", ".."):
        return True
    where = scene.where(destination)
    if where.places & {Place.HOME, Place.ROOT, Place.SYSTEM_ROOT}:
        return True
    return where.path.rpartition("/")[2].lower() in DIRECTORIES


def _added(scene: Scene, into: Effect, word: Word, *traits: str) -> Iterator[Effect]:
    """Only what the name adds: `cp .bashrc ~` writes a start-up file."""
    inside = scene.write(word, *traits)
    telling = {f"in:{place}" for place in (Place.SECRET, Place.STARTUP, Place.AGENT, Place.OWN, Place.DEVICE)}
    if (inside.traits - into.traits) & telling:
        yield inside


def _cp(scene: Scene) -> Iterator[Effect]:
    options = scene.options(_COPY_VALUES - names("-m --mode -o --owner -g"))
    sources, destination = _copied(scene, options)
    if options.has("-l", "--link", "-s", "--symbolic-link"):
        yield from _other_names(scene, sources)
    if destination is not None:
        yield from _put(scene, sources, destination, "copied", *_as_a_whole(options))


def _as_a_whole(options: Options) -> tuple[str, ...]:
    """With `-T` a directory does not go into the other one but is laid over it."""
    recursive = options.has("-r", "-R", "--recursive", "-a", "--archive")
    return ("whole",) if recursive and options.has("-T", "--no-target-directory") else ()


def _other_names(scene: Scene, sources: Sequence[Word]) -> Iterator[Effect]:
    """Another name for what is protected is a way around the protection."""
    for source in scene.each(sources):
        within = scene.places.filled(source, scene.run.cwd)
        led_to = (scene.where(source).places | within) & {Place.OWN, Place.AGENT, Place.STARTUP}
        if led_to:
            yield scene.effect(Kind.WRITE, "linked", *(f"in:{place}" for place in led_to), target=source)


def _mv(scene: Scene) -> Iterator[Effect]:
    options = scene.options(_COPY_VALUES - names("-m --mode -o --owner -g"))
    sources, destination = _copied(scene, options)
    if destination is None:
        return
    lost = Place.STREAM in scene.where(destination)
    for word in scene.each(sources):
        yield _moved_away(scene, word, lost)
    yield from _put(scene, sources, destination, "moved-in")


def _moved_away(scene: Scene, word: Word, lost: bool) -> Effect:
    """What is renamed is still there, so that only the place it leaves matters."""
    where = scene.where(word, follow=False, whole=True)
    renamed = not lost and where.places & {Place.PROJECT, Place.TEMP}
    left = replace(where, places=where.places - {Place.SECRET, Place.DATA}) if renamed else where
    return scene.destroy(Kind.OVERWRITE, word, left, "moved", *(("lost",) if lost else ()))


def _install(scene: Scene) -> Iterator[Effect]:
    options = scene.options(_COPY_VALUES)
    mode = options.value("-m", "--mode")
    if options.has("-d", "--directory"):
        for word in scene.each(options.operands):
            yield scene.write(word, kind=Kind.WRITE)
        return
    sources, destination = _copied(scene, options)
    if destination is None:
        return
    yield from _put(scene, sources, destination, "copied")
    opened = mode_traits(mode) & {"setuid", "setgid", "world-writable"} if mode is not None else ()
    if opened:
        yield scene.destroy(Kind.PERMISSIONS, destination, scene.where(destination), *opened)


def _served(scene: Scene, word: Word) -> bool:
    """Whether others can read what is there."""
    return bool(scene.where(word).places & {Place.OUTSIDE, Place.SYSTEM, Place.TEMP})


def _ln(scene: Scene) -> Iterator[Effect]:
    options = scene.options(_COPY_VALUES - names("-m --mode -o --owner -g"))
    sources, destination = _copied(scene, options)
    kind = Kind.OVERWRITE if options.has("-f", "--force") else Kind.WRITE
    if destination is not None:
        yield scene.write(destination, "linked", kind=kind)
    yield from _other_names(scene, sources)
    for source in scene.each(sources):
        if destination is not None and Place.SECRET in scene.where(source) and _served(scene, destination):
            yield scene.effect(Kind.DISCLOSE, "linked", "in:secret", target=source)


_RSYNC_VALUES = names(
    "-e --rsh -f --filter --exclude --include --exclude-from --include-from --files-from -T --temp-dir "
    "--bwlimit --port --timeout --backup-dir --suffix --chmod --chown --log-file --password-file "
    "--partial-dir --max-size --min-size --max-delete --compare-dest --copy-dest --link-dest -M "
    "--remote-option --rsync-path -B --block-size"
)


def _rsync(scene: Scene) -> Iterator[Effect]:
    options = scene.options(_RSYNC_VALUES, abbreviated=False)
    if options.has("-n", "--dry-run") or len(options.operands) < 2:
        return
    *sources, destination = options.operands
    mode = options.value("--chmod")
    if mode is not None and "setuid" in mode_traits(Word(mode.lstrip("FD"))):
        yield scene.effect(Kind.PERMISSIONS, "setuid", target=destination)
    for word in options.values(
        "--log-file", "--write-batch", "--only-write-batch", "--backup-dir", "--partial-dir"
    ):
        yield scene.write(word, kind=Kind.WRITE)
    if options.starting("--del"):
        yield _mirror(scene, destination)
    if options.has("--remove-source-files", "--remove-sent-files"):
        for word in scene.each(sources):
            yield scene.delete(word, "copied-first", recursive=True)
    if remote(destination):
        yield _write_remotely(scene, destination)
    else:
        whole = ("whole",) if any(word.endswith("/") for word in sources) else ()
        yield from _put(scene, sources, destination, "copied", *whole)


def _mirror(scene: Scene, destination: Word) -> Effect:
    """Everything at the destination that the source lacks is deleted."""
    if not remote(destination):
        where = scene.where(destination, whole=True)
        return scene.destroy(Kind.OVERWRITE, destination, where, "mirrored", "recursive")
    there = Word(destination.partition(":")[2])
    where = scene.places.away().of(there, whole=True)
    return scene.destroy(Kind.OVERWRITE, there, where, "mirrored", "recursive", "network")


def _write_remotely(scene: Scene, destination: Word) -> Effect:
    away = Scene(scene.run, scene.places.away())
    return away.write(Word(destination.partition(":")[2]), "network", "copied")


_SCP_VALUES = names("-c -D -F -i -J -l -o -P -S -X -s")


def _scp(scene: Scene) -> Iterator[Effect]:
    *sources, destination = scene.options(_SCP_VALUES).operands or (EMPTY,)
    if not sources:
        return
    if remote(destination):
        yield _write_remotely(scene, destination)
    else:
        yield from _put(scene, sources, destination, "copied")


def _rclone(scene: Scene) -> Iterator[Effect]:
    options = scene.options(abbreviated=False)
    if options.has("-n", "--dry-run") or not options.operands:
        return
    verb, *paths = options.operands
    if verb in ("sync", "delete", "deletefile", "purge", "rmdir", "rmdirs", "cleanup", "bisync") and paths:
        yield _mirror(scene, paths[-1])
    if verb in ("move", "moveto") and paths:
        yield _mirror(scene, paths[0])
    if verb in ("copy", "copyto", "move", "moveto") and len(paths) > 1 and not remote(paths[-1]):
        yield scene.fill(paths[-1], "copied")


def _container_copy(scene: Scene) -> Iterator[Effect]:
    """`docker cp container:file here`, and kubectl's: what comes out of a container lands on this machine."""
    values = names("-n --namespace -c --container --context --kubeconfig --host -H --config --log-level -l")
    operands = scene.options(values, abbreviated=False).operands
    if "cp" not in operands[:2]:
        return
    paths = operands[operands.index(Word("cp")) + 1 :]
    if len(paths) > 1 and remote(paths[0]) and not remote(paths[-1]) and paths[-1] != "-":
        yield from _put(scene, list(paths[:-1]), paths[-1], "copied")


COPYING: Family = {
    **dict.fromkeys(names("docker podman nerdctl kubectl oc"), _container_copy),
    **dict.fromkeys(names("cp gcp"), _cp),
    **dict.fromkeys(names("mv gmv"), _mv),
    **dict.fromkeys(names("install ginstall"), _install),
    **dict.fromkeys(names("ln link"), _ln),
    "rsync": _rsync,
    **dict.fromkeys(names("scp pscp"), _scp),
    "rclone": _rclone,
}
