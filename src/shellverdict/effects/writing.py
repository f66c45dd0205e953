"""Files written, emptied and edited in place."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shellverdict.effects.scene import Family, Scene
from shellverdict.names import names
from shellverdict.options import Options
from shellverdict.places import Place
from shellverdict.shell.words import EMPTY, Word
from shellverdict.verdict import Effect, Kind

__all__ = ["WRITING", "fed_nothing"]


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
            yield scene.write(word, *(("empty",) if fed_nothing(scene) else ()))


def fed_nothing(scene: Scene) -> bool:
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
    else:
        yield scene.fill(directory or Word("."), "edited")


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


def _rescued(scene: Scene) -> Iterator[Effect]:
    """Copiers of whole disks: from, to, and perhaps a record of what was copied."""
    values = names("-b -B -c -d -e -E -g -G -H -i -I -K -l -m -o -O -p -Q -r -s -S -T -X -Z")
    operands = scene.options(values).operands
    if len(operands) > 1:
        yield scene.write(operands[1], "raw")


def _said_by_option(scene: Scene) -> Iterator[Effect]:
    for word in scene.options(names("-s -o -O -L -a --source --output --overwrite")).values(
        "-o", "-O", "--output", "--overwrite"
    ):
        if word != "-":
            yield scene.write(word, "raw")


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


WRITING: Family = {
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
    **dict.fromkeys(names("uniq xxd nbdcopy"), _last_operand),
    **dict.fromkeys(names("ddrescue dd_rescue gddrescue dd_rhelp safecopy myrescue"), _rescued),
    **dict.fromkeys(
        names("partclone partclone.ext4 partclone.dd partclone.ntfs partclone.restore pv"), _said_by_option
    ),
    **dict.fromkeys(names("split csplit"), _split),
    **dict.fromkeys(names("sponge script"), _operands_written),
    "ssh-keygen": _keygen,
}
