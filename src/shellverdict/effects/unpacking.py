"""Archives unpacked onto what is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shellverdict.effects.permissions import mode_traits
from shellverdict.effects.scene import Family, Scene
from shellverdict.names import names
from shellverdict.options import Options
from shellverdict.shell.words import EMPTY, Word
from shellverdict.verdict import Effect, Kind

__all__ = ["UNPACKING"]


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
        put = scene.write if options.operands else scene.fill  # members that are named are known
        for word in options.values("-C", "--directory") or (Word("."),):
            yield put(word, "extracted")
        if absolute:
            yield scene.write(Word("/"), "extracted", *absolute)
    mode = options.value("--mode")
    if mode is not None and "setuid" in mode_traits(mode):
        yield scene.effect(Kind.PERMISSIONS, "setuid")
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
        yield scene.fill(options.value("-d") or Word("."), "extracted")


def _zip(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-b -t -tt -n -O -P -s -Z -TT -ws"))
    for word in (*options.operands[:1], *options.values("-O", "--out", "--output-file")):
        if word != "-":
            yield scene.write(word, "archived", kind=Kind.WRITE)
    if options.has("-m", "--move"):
        for word in scene.each(options.operands[1:]):
            yield scene.delete(word, "copied-first", recursive=True)


def _seven(scene: Scene) -> Iterator[Effect]:
    verb = scene.run.argv[1] if len(scene.run.argv) > 1 else EMPTY
    if "-sdel" in scene.run.argv:
        for word in scene.each(scene.options(clusters=False).operands[2:]):
            yield scene.delete(word, "copied-first", recursive=True)
    if verb in ("x", "e"):
        into = next((Word(w[2:]) for w in scene.run.argv if w.startswith("-o") and len(w) > 2), Word("."))
        yield scene.fill(into, "extracted")


def _cpio(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-D --directory -F --file -I -O -R --owner -H --format"))
    if options.has("-i", "--extract") and not options.has("-t", "--list"):
        yield scene.fill(options.value("-D", "--directory") or Word("."), "extracted")
    if options.has("-p", "--pass-through"):
        for word in scene.each(options.operands):
            yield scene.fill(word, "copied")


_PYTHON_UNPACKS = {"zipfile": names("-e --extract"), "tarfile": names("-e --extract")}


def _python(scene: Scene) -> Iterator[Effect]:
    """`python -m zipfile -e archive folder`, and tarfile's."""
    words = scene.run.argv[1:]
    place = next((at for at, word in enumerate(words) if word == "-m"), None)
    if place is None or len(words) < place + 3:
        return
    asked = _PYTHON_UNPACKS.get(words[place + 1], frozenset())
    if words[place + 2] in asked:
        into = words[place + 4 : place + 5]
        yield scene.fill(into[0] if into else Word("."), "extracted")


UNPACKING: Family = {
    **dict.fromkeys(names("python python3 pypy pypy3"), _python),
    **dict.fromkeys(names("tar gtar bsdtar star"), _tar),
    "unzip": _unzip,
    "zip": _zip,
    **dict.fromkeys(names("7z 7za 7zr unrar rar"), _seven),
    "cpio": _cpio,
}
