"""Detect archives that a command creates, or unpacks over existing files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shellverdict.effects.permissions import mode_traits
from shellverdict.effects.run_context import EffectHandlers, RunContext
from shellverdict.names import split_names
from shellverdict.options import Options
from shellverdict.shell.words import EMPTY, Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["UNPACK_HANDLERS"]


_TAR_VALUES = split_names(
    "-f --file -C --directory -T --files-from -X --exclude-from --exclude --transform --xform "
    "--strip-components -I --use-compress-program -b --blocking-factor --owner --group --mode --mtime -K "
    "--starting-file --to-command -L --tape-length -N --newer -V --label -g --listed-incremental -H "
    "--format --suffix --checkpoint-action"
)


def _tar_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = Options.parse(_add_option_dashes(context.run.argv), _TAR_VALUES)
    if options.has("-x", "--extract", "--get"):
        absolute = ("absolute",) if options.has("-P", "--absolute-names") else ()
        make_effect = (
            context.write_effect if options.operands else context.fill_effect
        )  # named members are known files
        for word in options.values("-C", "--directory") or (Word("."),):
            yield make_effect(word, "extracted")
        if absolute:
            yield context.write_effect(Word("/"), "extracted", *absolute)
    mode = options.value("--mode")
    if mode is not None and "setuid" in mode_traits(mode):
        yield context.new_effect(EffectKind.PERMISSIONS, "setuid")
    archive = options.value("-f", "--file")
    if archive is not None and archive != "-" and options.has("-c", "--create"):
        yield context.write_effect(archive)
    if options.has("--remove-files"):
        for word in context.iter_operands(options.operands):
            yield context.delete_effect(word, "copied-first", recursive=True)


def _add_option_dashes(argv: Sequence[Word]) -> list[Word]:
    """Rewrite old-style options of tar: `tar xfC a.tar /` becomes `tar -x -f a.tar -C /`."""
    if len(argv) < 2 or argv[1].startswith("-") or not argv[1].isalnum() or len(argv[1]) > 32:
        return list(argv)
    words = iter(argv[2:])
    spelled = [argv[0]]
    for letter in argv[1]:
        spelled.append(Word("-" + letter))
        if "-" + letter in _TAR_VALUES:
            spelled.extend(word for word in [next(words, None)] if word is not None)
    return [*spelled, *words]


def _unzip_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-d -P -x"))
    if options.operands and not options.has("-l", "-t", "-p", "-v", "-Z", "-z", "-c"):
        yield context.fill_effect(options.value("-d") or Word("."), "extracted")


def _zip_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-b -t -tt -n -O -P -s -Z -TT -ws"))
    for word in (*options.operands[:1], *options.values("-O", "--out", "--output-file")):
        if word != "-":
            yield context.write_effect(word, "archived", kind=EffectKind.WRITE)
    if options.has("-m", "--move"):
        for word in context.iter_operands(options.operands[1:]):
            yield context.delete_effect(word, "copied-first", recursive=True)


def _seven_zip_effects(context: RunContext) -> Iterator[CommandEffect]:
    verb = context.run.argv[1] if len(context.run.argv) > 1 else EMPTY
    if "-sdel" in context.run.argv:
        for word in context.iter_operands(context.parse_options(clusters=False).operands[2:]):
            yield context.delete_effect(word, "copied-first", recursive=True)
    if verb in ("x", "e"):
        directory = next(
            (Word(w[2:]) for w in context.run.argv if w.startswith("-o") and len(w) > 2), Word(".")
        )
        yield context.fill_effect(directory, "extracted")


def _cpio_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-D --directory -F --file -I -O -R --owner -H --format"))
    if options.has("-i", "--extract") and not options.has("-t", "--list"):
        yield context.fill_effect(options.value("-D", "--directory") or Word("."), "extracted")
    if options.has("-p", "--pass-through"):
        for word in context.iter_operands(options.operands):
            yield context.fill_effect(word, "copied")


_PYTHON_UNPACKS = {"zipfile": split_names("-e --extract"), "tarfile": split_names("-e --extract")}


def _python_unpack_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield the directory to which `python -m zipfile -e` or `python -m tarfile -e` unpacks an archive."""
    words = context.run.argv[1:]
    place = next((at for at, word in enumerate(words) if word == "-m"), None)
    if place is None or len(words) < place + 3:
        return
    extract_options = _PYTHON_UNPACKS.get(words[place + 1], frozenset())
    if words[place + 2] in extract_options:
        directory = words[place + 4 : place + 5]
        yield context.fill_effect(directory[0] if directory else Word("."), "extracted")


UNPACK_HANDLERS: EffectHandlers = {
    **dict.fromkeys(split_names("python python3 pypy pypy3"), _python_unpack_effects),
    **dict.fromkeys(split_names("tar gtar bsdtar star"), _tar_effects),
    "unzip": _unzip_effects,
    "zip": _zip_effects,
    **dict.fromkeys(split_names("7z 7za 7zr unrar rar"), _seven_zip_effects),
    "cpio": _cpio_effects,
}
