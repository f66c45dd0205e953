"""Detect files that a program writes, empties or edits in place."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shellverdict.effects.run_context import EffectHandlers, RunContext
from shellverdict.names import split_names
from shellverdict.options import Options
from shellverdict.paths import PathKind
from shellverdict.shell.words import EMPTY, Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["WRITE_HANDLERS", "reads_dev_null"]


def _dd_effects(context: RunContext) -> Iterator[CommandEffect]:
    given = dict(word.split("=", 1) for word in context.run.argv[1:] if "=" in word)
    if "of" in given:
        emptied = (
            ("empty",) if given.get("if") in ("/dev/zero", "/dev/null", "/dev/urandom", "/dev/random") else ()
        )
        yield context.write_effect(Word(given["of"]), "raw", *emptied)


def _tee_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options()
    if options.has("-a", "--append"):
        for word in context.iter_operands(options.operands):
            yield context.write_effect(word, "added", kind=EffectKind.WRITE)
    else:
        for word in context.iter_operands(options.operands):
            yield context.write_effect(word, *(("empty",) if reads_dev_null(context) else ()))


def reads_dev_null(context: RunContext) -> bool:
    return any(r.operator == "<" and r.target == "/dev/null" for r in context.run.redirects)


def _truncate_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-s --size -r --reference"))
    size = options.value("-s", "--size") or EMPTY
    grows = re.fullmatch(r"[+>%]0*[1-9]\w*", size) is not None
    sets = re.fullmatch(r"0*[1-9]\w*", size) is not None
    for word in context.iter_operands(options.operands):
        if grows or (sets and PathKind.DATA not in context.classify(word)):
            yield context.write_effect(word, "resized", kind=EffectKind.WRITE)
        else:
            yield context.write_effect(word, "empty")


def _fallocate_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-l --length -o --offset"))
    loses = options.has("-p", "--punch-hole", "-c", "--collapse-range", "-z", "--zero-range")
    for word in context.iter_operands(options.operands):
        yield context.write_effect(
            word, *(("empty",) if loses else ()), kind=EffectKind.OVERWRITE if loses else EffectKind.WRITE
        )


def _sed_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = Options.parse(
        context.run.argv,
        split_names("-e --expression -f --file -l --line-length"),
        attached=frozenset({"-i", "-I"}),
    )
    if not options.has("-i", "-I", "--in-place"):
        return
    scripted = options.has("-e", "--expression", "-f", "--file")
    for word in context.iter_operands(options.operands if scripted else options.operands[1:]):
        yield context.write_effect(word, "edited")


def _perl_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = Options.parse(
        context.run.argv,
        split_names("-e -E"),
        attached=split_names("-i -I -M -m -F -l -0 -C -d -D -x"),
        permuted=False,
    )
    if options.has("-i"):
        for word in context.iter_operands(
            options.operands if options.has("-e", "-E") else options.operands[1:]
        ):
            yield context.write_effect(word, "edited")


def _awk_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(
        split_names("-f --file -i --include -v --assign -F --field-separator -e --source -l -o")
    )
    if "inplace" in options.values("-i", "--include"):
        scripted = options.has("-f", "--file", "-e", "--source")
        for word in context.iter_operands(options.operands if scripted else options.operands[1:]):
            yield context.write_effect(word, "edited")


def _in_place_edit_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield the files that programs such as `yq -i` may edit in place."""
    options = context.parse_options(split_names("-f --file -o -p -v -t"))
    if options.has("-i", "--inplace", "--in-place", "--set", "--del", "-L", "-w", "--write"):
        for word in context.iter_operands((*options.operands, *options.values("-f", "--file"))):
            yield context.write_effect(word, "edited")


def _disk_image_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield a write effect for the last operand of a program that writes disk images, such as `qemu-img`."""
    operands = context.parse_options(split_names("-f -O -o -S -m -l --bmap")).operands
    if len(operands) > 1 and operands[0] in ("convert", "create", "copy", "restore", "write"):
        yield context.write_effect(operands[-1], "raw")


def _ed_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-p --prompt -c -S"))
    for word in context.iter_operands(options.operands):
        if not word.startswith("+"):
            yield context.write_effect(word, "edited")


def _patch_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(
        split_names(
            "-i --input -o --output -d --directory -p --strip -r --reject-file -B --prefix -D --ifdef -F "
            "-g -V -Y -z"
        )
    )
    if options.has("--dry-run"):
        return
    target = options.value("-o", "--output") or next(iter(options.operands), None)
    directory = options.value("-d", "--directory")
    if target is not None:
        yield context.write_effect(target, "edited")
    else:
        yield context.fill_effect(directory or Word("."), "edited")


def _crontab_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-u"))
    if options.has("-r"):
        yield context.new_effect(EffectKind.DELETE, "crontab", "everything", "in:startup")
    elif options.operands or options.has("-e") or (context.run.stdin is not None and not options.has("-l")):
        yield context.new_effect(EffectKind.OVERWRITE, "crontab", "in:startup")


def _at_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-f -q -t"))
    if options.has("-l", "-c", "-V"):
        return
    if options.has("-r", "-d") or context.run.name == "atrm":
        yield context.new_effect(EffectKind.DELETE, "scheduled", "in:startup")
    elif options.operands or options.has("-t"):
        yield context.new_effect(EffectKind.WRITE, "scheduled", "in:startup")


def _create_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-m --mode -t -d --date -r --reference -Z --context"))
    for word in context.iter_operands(options.operands):
        yield context.write_effect(word, "created", kind=EffectKind.WRITE)


def _rescue_copy_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield a write effect for the second operand of disk copying programs such as `ddrescue`."""
    values = split_names("-b -B -c -d -e -E -g -G -H -i -I -K -l -m -o -O -p -Q -r -s -S -T -X -Z")
    operands = context.parse_options(values).operands
    if len(operands) > 1:
        yield context.write_effect(operands[1], "raw")


def _output_option_effects(context: RunContext) -> Iterator[CommandEffect]:
    for word in context.parse_options(split_names("-s -o -O -L -a --source --output --overwrite")).values(
        "-o", "-O", "--output", "--overwrite"
    ):
        if word != "-":
            yield context.write_effect(word, "raw")


def _last_operand_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield a write effect for the last operand of a program that takes an input and an output file."""
    operands = context.parse_options(split_names("-f -s -w --skip-chars -l -c -o -S")).operands
    if len(operands) > 1:
        yield context.write_effect(operands[-1])


def _split_effects(context: RunContext) -> Iterator[CommandEffect]:
    operands = context.parse_options(
        split_names("-a -b -C -l -n -t --filter --additional-suffix --bytes --lines --number")
    ).operands
    if len(operands) > 1:
        yield context.write_effect(operands[1], kind=EffectKind.WRITE)


def _all_operands_effects(context: RunContext) -> Iterator[CommandEffect]:
    for word in context.iter_operands(context.parse_options().operands):
        yield context.write_effect(word)


def _ssh_keygen_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(
        split_names("-t -b -f -N -C -m -P -I -n -V -O -s -z -D -F -R -r -Z -a -w -Y")
    )
    target = options.value("-f")
    if target is not None and not options.has("-l", "-y", "-F", "-B", "-H"):
        yield context.write_effect(target, kind=EffectKind.WRITE)


WRITE_HANDLERS: EffectHandlers = {
    **dict.fromkeys(split_names("dd dcfldd dc3dd gdd"), _dd_effects),
    **dict.fromkeys(split_names("tee gtee"), _tee_effects),
    **dict.fromkeys(split_names("truncate gtruncate"), _truncate_effects),
    "fallocate": _fallocate_effects,
    **dict.fromkeys(split_names("sed gsed"), _sed_effects),
    **dict.fromkeys(split_names("perl ruby"), _perl_effects),
    **dict.fromkeys(split_names("ed red ex"), _ed_effects),
    **dict.fromkeys(split_names("awk gawk"), _awk_effects),
    **dict.fromkeys(split_names("qemu-img bmaptool"), _disk_image_effects),
    **dict.fromkeys(split_names("yq crudini xmlstarlet toml dasel"), _in_place_edit_effects),
    "patch": _patch_effects,
    "crontab": _crontab_effects,
    **dict.fromkeys(split_names("at batch atrm"), _at_effects),
    **dict.fromkeys(split_names("touch mkfifo mknod"), _create_effects),
    **dict.fromkeys(split_names("uniq xxd nbdcopy"), _last_operand_effects),
    **dict.fromkeys(
        split_names("ddrescue dd_rescue gddrescue dd_rhelp safecopy myrescue"), _rescue_copy_effects
    ),
    **dict.fromkeys(
        split_names("partclone partclone.ext4 partclone.dd partclone.ntfs partclone.restore pv"),
        _output_option_effects,
    ),
    **dict.fromkeys(split_names("split csplit"), _split_effects),
    **dict.fromkeys(split_names("sponge script"), _all_operands_effects),
    "ssh-keygen": _ssh_keygen_effects,
}
