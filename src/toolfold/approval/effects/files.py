"""Files deleted, moved, overwritten, written and unpacked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from toolfold.approval.effects.scene import UNKNOWN, Family, Scene, names
from toolfold.approval.landmarks import DIRECTORIES
from toolfold.approval.options import Options
from toolfold.approval.places import Place
from toolfold.approval.shell.words import ANY, EMPTY, GAP, STAR, Word
from toolfold.approval.verdict import Effect, Kind

__all__ = ["FILES", "redirect_effects", "remote"]


# --- deletion --------------------------------------------------------------------------------------------


def _rm(scene: Scene) -> Iterator[Effect]:
    options = scene.options()
    recursive = options.has("-r", "-R", "--recursive") or options.unclear
    traits = ["forced"] if options.has("-f", "--force") else []
    if options.has("--no-preserve-root"):
        traits.append("no-preserve-root")
    for word in scene.each(options.operands):
        yield scene.delete(word, *traits, recursive=recursive)


def _rmdir(scene: Scene) -> Iterator[Effect]:
    for word in scene.each(scene.options().operands):
        yield scene.delete(word, "only-empty")


def _unlink(scene: Scene) -> Iterator[Effect]:
    for word in scene.each(scene.options().operands):
        yield scene.delete(word)


def _shred(scene: Scene) -> Iterator[Effect]:
    """Overwritten past recovery, whether or not the name goes too."""
    options = scene.options(names("-n --iterations -s --size --random-source -l -p -P -S"))
    recursive = options.has("-r", "-R", "--recursive")
    for word in scene.each(options.operands):
        yield scene.delete(word, "shredded", "forced", recursive=recursive)


def _rimraf(scene: Scene) -> Iterator[Effect]:
    for word in scene.each(scene.options().operands):
        yield scene.delete(word, "forced", recursive=True)


def _trash(scene: Scene) -> Iterator[Effect]:
    operands = scene.options().operands
    if operands[:1] == ("remove",):
        for word in scene.each(operands[1:]):
            yield scene.delete(word)
    if scene.run.name == "trash-empty" or scene.options().has("--empty"):
        yield scene.effect(Kind.DELETE, "trash", "everything", "recursive", "shredded")


def _dos_delete(scene: Scene) -> Iterator[Effect]:
    switches = {word.lower() for word in scene.run.argv[1:] if re.fullmatch("/[A-Za-z]", word)}
    for word in scene.each(w for w in scene.run.argv[1:] if w.lower() not in switches):
        yield scene.delete(word, *(("forced",) if "/f" in switches else ()), recursive="/s" in switches)


MOST_LOOKED_AT = 400
_FIND_WRITES = names("-fprint -fprint0 -fprintf -fls")
_FIND_TESTS = names(
    "-name -iname -path -ipath -wholename -regex -iregex -mtime -mmin -atime -amin -ctime -cmin -newer "
    "-size -empty -user -group -perm -links -inum -samefile"
)


def _find(scene: Scene) -> Iterator[Effect]:
    words = scene.run.argv[1:]
    starts = _find_starts(words)
    if "-delete" in words:
        some = _chooses(words)
        for word in scene.each(starts or (Word("."),)):
            found = scene.delete(word, recursive=True)
            yield _narrowed(found) if some else found
    for at, word in enumerate(words[:-1]):
        if word in _FIND_WRITES and at < MOST_LOOKED_AT:
            yield scene.write(words[at + 1])


def _chooses(words: Sequence[Word]) -> bool:
    """Whether only some files are meant: a test that most files fail."""
    if not {"!", "-not", "-o", "-or"}.isdisjoint(words):
        return False
    return any(
        word in _FIND_TESTS and set(value) - set("*.?/") - {STAR, ANY, GAP}
        for word, value in zip(words, (*words[1:], EMPTY), strict=False)
    )


def _narrowed(found: Effect) -> Effect:
    """Of a whole tree only a part goes, so that what stands above it is not lost."""
    inside = {f"in:{Place.ROOT}": f"in:{Place.SYSTEM}", f"in:{Place.HOME}": f"in:{Place.INSIDE_HOME}"}
    kept = found.traits - {f"in:{Place.SYSTEM_ROOT}", f"in:{Place.OWN}"}
    return replace(found, traits=frozenset(inside.get(trait, trait) for trait in kept) | {"narrowed"})


def _find_starts(words: Sequence[Word]) -> tuple[Word, ...]:
    starts: list[Word] = []
    for before, word in zip((EMPTY, *words), words, strict=False):
        if word in ("-H", "-L", "-P", "-D", "--") or before == "-D" or re.fullmatch("-O[0-9]*", word):
            continue
        if word.startswith(("-", "(", "!")):
            break
        starts.append(word)
    return tuple(starts)


# --- moving and copying ----------------------------------------------------------------------------------

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
    into = scene.write(destination, *traits, *emptied)
    yield into
    if not _holds(scene, sources, destination):
        return
    for source in sources[:16]:
        name = source.rstrip("/").rpartition("/")[2]
        if name and name not in (".", "..") and GAP not in name:
            yield from _added(scene, into, Word(f"{destination.rstrip('/') or '/'}/{name}"), *traits)


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
    if destination is not None:
        yield from _put(scene, sources, destination, "copied")


def _mv(scene: Scene) -> Iterator[Effect]:
    options = scene.options(_COPY_VALUES - names("-m --mode -o --owner -g"))
    sources, destination = _copied(scene, options)
    if destination is None:
        return
    lost = Place.STREAM in scene.where(destination)
    for word in scene.each(sources):
        yield _moved_away(scene, word, lost)
    yield from _put(scene, sources, destination)


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
    if mode is not None and re.fullmatch(r"[2-7][0-7]{3}|.*\+s.*", mode):
        yield scene.destroy(Kind.PERMISSIONS, destination, scene.where(destination), "setuid")


def _ln(scene: Scene) -> Iterator[Effect]:
    options = scene.options(_COPY_VALUES - names("-m --mode -o --owner -g"))
    sources, destination = _copied(scene, options)
    kind = Kind.OVERWRITE if options.has("-f", "--force") else Kind.WRITE
    if destination is not None:
        yield scene.write(destination, "linked", kind=kind)
    for source in scene.each(sources):
        # Another name for what is protected is a way around the protection.
        led_to = scene.where(source).places & {Place.OWN, Place.AGENT}
        if led_to:
            yield scene.effect(Kind.WRITE, "linked", *(f"in:{place}" for place in led_to), target=source)


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
    if options.starting("--del"):
        yield _mirror(scene, destination)
    if options.has("--remove-source-files", "--remove-sent-files"):
        for word in scene.each(sources):
            yield scene.delete(word, "copied-first", recursive=True)
    if remote(destination):
        yield _write_remotely(scene, destination)
    else:
        yield from _put(scene, sources, destination, "copied")


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
        yield scene.write(paths[-1], "copied")


# --- unpacking -------------------------------------------------------------------------------------------

_TAR_VALUES = names(
    "-f --file -C --directory -T --files-from -X --exclude-from --exclude --transform --xform "
    "--strip-components -I --use-compress-program -b --blocking-factor --owner --group --mode --mtime -K "
    "--starting-file --to-command -L --tape-length -N --newer -V --label -g --listed-incremental -H "
    "--format --suffix --checkpoint-action"
)


def _tar(scene: Scene) -> Iterator[Effect]:
    options = Options.read(_with_dashes(scene.run.argv), _TAR_VALUES)
    if options.has("-x", "--extract", "--get"):
        absolute = ("absolute",) if options.has("-P", "--absolute-names") else ()
        for word in options.values("-C", "--directory") or (Word("."),):
            yield scene.write(word, "extracted")
        if absolute:
            yield scene.write(Word("/"), "extracted", *absolute)
    archive = options.value("-f", "--file")
    if archive is not None and archive != "-" and options.has("-c", "--create"):
        yield scene.write(archive)
    if options.has("--remove-files"):
        for word in scene.each(options.operands):
            yield scene.delete(word, "copied-first", recursive=True)


def _with_dashes(argv: Sequence[Word]) -> list[Word]:
    """`tar xfC a.tar /` as `tar -x -f a.tar -C /`: in the old style the values follow in order."""
    if len(argv) < 2 or argv[1].startswith("-") or not argv[1].isalnum() or len(argv[1]) > 32:
        return list(argv)
    words = iter(argv[2:])
    spelled = [argv[0]]
    for letter in argv[1]:
        spelled.append(Word("-" + letter))
        if "-" + letter in _TAR_VALUES:
            spelled.extend(word for word in [next(words, None)] if word is not None)
    return [*spelled, *words]


def _unzip(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-d -P -x"))
    if options.operands and not options.has("-l", "-t", "-p", "-v", "-Z", "-z", "-c"):
        yield scene.write(options.value("-d") or Word("."), "extracted")


def _seven(scene: Scene) -> Iterator[Effect]:
    verb = scene.run.argv[1] if len(scene.run.argv) > 1 else EMPTY
    if verb in ("x", "e"):
        into = next((Word(w[2:]) for w in scene.run.argv if w.startswith("-o") and len(w) > 2), Word("."))
        yield scene.write(into, "extracted")


def _cpio(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-D --directory -F --file -I -O -R --owner -H --format"))
    if options.has("-i", "--extract") and not options.has("-t", "--list"):
        yield scene.write(options.value("-D", "--directory") or Word("."), "extracted")
    if options.has("-p", "--pass-through"):
        for word in scene.each(options.operands):
            yield scene.write(word, "copied")


# --- writing ---------------------------------------------------------------------------------------------


def _dd(scene: Scene) -> Iterator[Effect]:
    given = dict(word.split("=", 1) for word in scene.run.argv[1:] if "=" in word)
    if "of" in given:
        emptied = (
            ("empty",) if given.get("if") in ("/dev/zero", "/dev/null", "/dev/urandom", "/dev/random") else ()
        )
        yield scene.write(Word(given["of"]), "raw", *emptied)


def _tee(scene: Scene) -> Iterator[Effect]:
    options = scene.options()
    if options.has("-a", "--append"):
        for word in scene.each(options.operands):
            yield scene.write(word, "added", kind=Kind.WRITE)
    else:
        for word in scene.each(options.operands):
            yield scene.write(word, *(("empty",) if _fed_nothing(scene) else ()))


def _fed_nothing(scene: Scene) -> bool:
    return any(r.operator == "<" and r.target == "/dev/null" for r in scene.run.redirects)


def _truncate(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-s --size -r --reference"))
    size = options.value("-s", "--size") or EMPTY
    grows = re.fullmatch(r"[+>%]0*[1-9]\w*", size) is not None
    sets = re.fullmatch(r"0*[1-9]\w*", size) is not None
    for word in scene.each(options.operands):
        if grows or (sets and Place.DATA not in scene.where(word)):
            yield scene.write(word, "resized", kind=Kind.WRITE)
        else:
            yield scene.write(word, "empty")


def _fallocate(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-l --length -o --offset"))
    loses = options.has("-p", "--punch-hole", "-c", "--collapse-range", "-z", "--zero-range")
    for word in scene.each(options.operands):
        yield scene.write(word, *(("empty",) if loses else ()), kind=Kind.OVERWRITE if loses else Kind.WRITE)


def _sed(scene: Scene) -> Iterator[Effect]:
    options = Options.read(
        scene.run.argv, names("-e --expression -f --file -l --line-length"), attached=frozenset({"-i", "-I"})
    )
    if not options.has("-i", "-I", "--in-place"):
        return
    scripted = options.has("-e", "--expression", "-f", "--file")
    for word in scene.each(options.operands if scripted else options.operands[1:]):
        yield scene.write(word, "edited")


def _perl(scene: Scene) -> Iterator[Effect]:
    options = Options.read(
        scene.run.argv, names("-e -E"), attached=names("-i -I -M -m -F -l -0 -C -d -D -x"), permuted=False
    )
    if options.has("-i"):
        for word in scene.each(options.operands if options.has("-e", "-E") else options.operands[1:]):
            yield scene.write(word, "edited")


def _awk(scene: Scene) -> Iterator[Effect]:
    options = scene.options(
        names("-f --file -i --include -v --assign -F --field-separator -e --source -l -o")
    )
    if "inplace" in options.values("-i", "--include"):
        scripted = options.has("-f", "--file", "-e", "--source")
        for word in scene.each(options.operands if scripted else options.operands[1:]):
            yield scene.write(word, "edited")


def _edited_in_place(scene: Scene) -> Iterator[Effect]:
    """Editors of settings: with the option that says so, every operand could be the file."""
    options = scene.options(names("-f --file -o -p -v -t"))
    if options.has("-i", "--inplace", "--in-place", "--set", "--del", "-L", "-w", "--write"):
        for word in scene.each((*options.operands, *options.values("-f", "--file"))):
            yield scene.write(word, "edited")


def _imaged(scene: Scene) -> Iterator[Effect]:
    """Programs that write an image to what is named last."""
    operands = scene.options(names("-f -O -o -S -m -l --bmap")).operands
    if len(operands) > 1 and operands[0] in ("convert", "create", "copy", "restore", "write"):
        yield scene.write(operands[-1], "raw")


def _ed(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-p --prompt -c -S"))
    for word in scene.each(options.operands):
        if not word.startswith("+"):
            yield scene.write(word, "edited")


def _patch(scene: Scene) -> Iterator[Effect]:
    options = scene.options(
        names(
            "-i --input -o --output -d --directory -p --strip -r --reject-file -B --prefix -D --ifdef -F "
            "-g -V -Y -z"
        )
    )
    if options.has("--dry-run"):
        return
    target = options.value("-o", "--output") or next(iter(options.operands), None)
    directory = options.value("-d", "--directory")
    if target is not None:
        yield scene.write(target, "edited")
    elif directory is not None:
        yield scene.write(directory, "edited")


def _crontab(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-u"))
    if options.has("-r"):
        yield scene.effect(Kind.DELETE, "crontab", "everything", "in:startup")
    elif options.operands or options.has("-e") or (scene.run.stdin is not None and not options.has("-l")):
        yield scene.effect(Kind.OVERWRITE, "crontab", "in:startup")


def _at(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-f -q -t"))
    if options.has("-l", "-c", "-V"):
        return
    if options.has("-r", "-d") or scene.run.name == "atrm":
        yield scene.effect(Kind.DELETE, "scheduled", "in:startup")
    elif options.operands or options.has("-t"):
        yield scene.effect(Kind.WRITE, "scheduled", "in:startup")


def _created(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-m --mode -t -d --date -r --reference -Z --context"))
    for word in scene.each(options.operands):
        yield scene.write(word, "created", kind=Kind.WRITE)


def _last_operand(scene: Scene) -> Iterator[Effect]:
    """Programs that write what their second operand names."""
    operands = scene.options(names("-f -s -w --skip-chars -l -c -o -S")).operands
    if len(operands) > 1:
        yield scene.write(operands[-1])


def _split(scene: Scene) -> Iterator[Effect]:
    operands = scene.options(
        names("-a -b -C -l -n -t --filter --additional-suffix --bytes --lines --number")
    ).operands
    if len(operands) > 1:
        yield scene.write(operands[1], kind=Kind.WRITE)


def _operands_written(scene: Scene) -> Iterator[Effect]:
    for word in scene.each(scene.options().operands):
        yield scene.write(word)


def _keygen(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-t -b -f -N -C -m -P -I -n -V -O -s -z -D -F -R -r -Z -a -w -Y"))
    target = options.value("-f")
    if target is not None and not options.has("-l", "-y", "-F", "-B", "-H"):
        yield scene.write(target, kind=Kind.WRITE)


_OUTPUTS: dict[str, frozenset[str]] = {
    **dict.fromkeys(names("sort iconv pandoc strace ltrace time gpg gpg2 age aria2c"), names("-o --output")),
    **dict.fromkeys(names("gcc g++ cc c++ clang clang++ ld as tcc rustc go ar dot"), names("-o")),
    "wget": names("-O --output-document -o --output-file -a --append-output"),
    "curl": names("-o --output -D --dump-header -c --cookie-jar --trace --trace-ascii --stderr"),
    "tcpdump": names("-w"),
    "openssl": names("-out -keyout"),
    "nmap": names("-oN -oX -oG -oA"),
    "yt-dlp": names("-o --output"),
}
_OTHER_VALUES: dict[str, frozenset[str]] = {
    "aria2c": names("-x -s -j -i"),
    "sort": names(
        "-k --key -t --field-separator -S --buffer-size -T --temporary-directory --compress-program"
    ),
    "wget": names(
        "-P --directory-prefix --header --post-data --post-file --user-agent -U --method --body-data"
    ),
    "curl": names(
        "-d --data --data-binary --data-raw --data-urlencode -F --form -H --header -X --request -T "
        "--upload-file -u --user -A --user-agent -e --referer -b --cookie -K --config -x --proxy -m "
        "--max-time --connect-timeout -w --write-out --retry --output-dir --cacert -E --cert --key "
        "--resolve --interface --url -r --range -Y -y -z -C -t -Q -P --json"
    ),
}


_INTO: dict[str, tuple[str, ...]] = {
    "curl": ("--output-dir",),
    "wget": ("-P", "--directory-prefix"),
    "aria2c": ("-d", "--dir"),
}
_NAMED_REMOTELY = ("-O", "--remote-name", "--remote-name-all")


def _outputs(scene: Scene) -> Iterator[Effect]:
    """Programs that say with an option what they write."""
    name = scene.run.name.lower()
    asked, into = _OUTPUTS[name], _INTO.get(name, ())
    whole = name in ("openssl", "nmap")
    values = asked | _OTHER_VALUES.get(name, frozenset()) | frozenset(into)
    options = Options.read(scene.run.argv, values, clusters=not whole, abbreviated=name in ("sort", "wget"))
    directory = options.value(*into)
    for word in options.values(*asked):
        if word != "-":
            path = Word(f"{directory}/{word}") if directory and not word.startswith("/") else word
            yield scene.write(path, *_fetched(name))
    if _keeps_names(name, options):
        yield scene.write(directory or Word("."), *_fetched(name), kind=Kind.WRITE)


def _keeps_names(name: str, options: Options) -> bool:
    """Whether files get the names they had where they were fetched."""
    if name == "curl":
        return options.has(*_NAMED_REMOTELY)
    if name == "wget":
        return bool(options.operands) and not options.has("-O", "--output-document", "--spider")
    return name == "aria2c" and bool(options.operands)


def _fetched(name: str) -> tuple[str, ...]:
    return ("network",) if name in ("curl", "wget", "aria2c", "yt-dlp") else ()


# --- redirections ----------------------------------------------------------------------------------------

_SILENT = names(": true false exec")
_WHOLE_DISK = re.compile(r"/sys/(?:block|class|bus|devices)/.*/(?:delete|remove|unbind)")


def redirect_effects(scene: Scene) -> Iterator[Effect]:
    """What the redirections alone do, whatever the program."""
    for redirect in scene.run.redirects[:256]:
        if not redirect.writes or _duplicates(redirect.operator, redirect.target):
            continue
        added = ">>" in redirect.operator or redirect.operator == "<>"
        emptied = ("empty",) if not added and _prints_nothing(scene, redirect.descriptor) else ()
        kind = Kind.WRITE if added else Kind.OVERWRITE
        yield scene.write(redirect.target, "redirected", *(("added",) if added else ()), *emptied, kind=kind)
    for redirect in scene.run.redirects[:256]:
        if redirect.writes:
            yield from kernel_effects(scene, redirect.target)


def kernel_effects(scene: Scene, target: Word) -> Iterator[Effect]:
    """Files of the kernel that do something when they are written."""
    path = scene.where(target).path
    if path == "/proc/sysrq-trigger":
        yield scene.effect(Kind.SERVICE, "machine", "stopped", target=target)
    elif _WHOLE_DISK.fullmatch(path):
        yield scene.effect(Kind.FORMAT, "removed", "in:device", target=target)


def _duplicates(operator: str, target: Word) -> bool:
    """`2>&1` and `>&-` touch no file."""
    return operator.endswith("&") and re.fullmatch(r"[0-9]*-?", target) is not None


def _prints_nothing(scene: Scene, descriptor: str) -> bool:
    argv = scene.run.argv
    if descriptor not in ("", "1") and len(argv) > 1:
        return False
    if not argv or (argv[0] in _SILENT and len(argv) == 1):
        return True
    rest = argv[1:]
    if argv[0] in ("echo", "printf"):
        return all(word in ("", "-n", "-e", "-ne", "-en") for word in rest)
    if argv[0] in ("head", "tail"):
        return rest[:2] in (("-c", "0"), ("-n", "0")) or rest[:1] in (("-c0",), ("-n0",), ("-0",))
    return argv[0] == "cat" and (rest == ("/dev/null",) or (not rest and _fed_nothing(scene)))


FILES: Family = {
    **dict.fromkeys(names("rm grm"), _rm),
    **dict.fromkeys(names("rimraf del-cli"), _rimraf),
    "rmdir": _rmdir,
    "unlink": _unlink,
    **dict.fromkeys(names("shred srm wipe scrub sfill secure-delete"), _shred),
    **dict.fromkeys(names("trash-empty gio gvfs-trash"), _trash),
    **dict.fromkeys(names("del erase rd deltree"), _dos_delete),
    **dict.fromkeys(names("find gfind bfs"), _find),
    **dict.fromkeys(names("cp gcp"), _cp),
    **dict.fromkeys(names("mv gmv"), _mv),
    **dict.fromkeys(names("install ginstall"), _install),
    **dict.fromkeys(names("ln link"), _ln),
    "rsync": _rsync,
    **dict.fromkeys(names("scp pscp"), _scp),
    "rclone": _rclone,
    **dict.fromkeys(names("tar gtar bsdtar star"), _tar),
    "unzip": _unzip,
    **dict.fromkeys(names("7z 7za 7zr unrar rar"), _seven),
    "cpio": _cpio,
    **dict.fromkeys(names("dd dcfldd dc3dd gdd"), _dd),
    **dict.fromkeys(names("tee gtee"), _tee),
    **dict.fromkeys(names("truncate gtruncate"), _truncate),
    "fallocate": _fallocate,
    **dict.fromkeys(names("sed gsed"), _sed),
    **dict.fromkeys(names("perl ruby"), _perl),
    **dict.fromkeys(names("ed red ex"), _ed),
    **dict.fromkeys(names("awk gawk"), _awk),
    **dict.fromkeys(names("qemu-img bmaptool"), _imaged),
    **dict.fromkeys(names("yq crudini xmlstarlet toml dasel"), _edited_in_place),
    "patch": _patch,
    "crontab": _crontab,
    **dict.fromkeys(names("at batch atrm"), _at),
    **dict.fromkeys(names("touch mkfifo mknod"), _created),
    **dict.fromkeys(names("uniq xxd ddrescue"), _last_operand),
    **dict.fromkeys(names("split csplit"), _split),
    **dict.fromkeys(names("sponge script"), _operands_written),
    "ssh-keygen": _keygen,
    **dict.fromkeys(_OUTPUTS, _outputs),
}
