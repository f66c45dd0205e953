"""Files deleted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile

from shellverdict.effects.scene import UNKNOWN, Family, Scene
from shellverdict.names import names
from shellverdict.places import Place, Places
from shellverdict.places.names import remade
from shellverdict.shell.runs import Run
from shellverdict.shell.words import ANY, EMPTY, GAP, STAR, Word
from shellverdict.verdict import Effect, Kind

__all__ = ["DELETING", "deletes_found", "found_are_made"]


def _rm(scene: Scene) -> Iterator[Effect]:
    options = scene.options()
    recursive = options.has("-r", "-R", "--recursive") or options.unclear
    traits = ["forced"] if options.has("-f", "--force") else []
    if options.has("--no-preserve-root"):
        traits.append("no-preserve-root")
    for word in scene.each(options.operands):
        yield scene.delete(word, *traits, recursive=recursive)


def _cmake(scene: Scene) -> Iterator[Effect]:
    """Its own small shell: `cmake -E rm -rf src`."""
    words = scene.run.argv[1:]
    if words[:1] == ("-E",) and words[1:2] and words[1] in ("rm", "remove", "remove_directory"):
        switches = {word for word in words[2:] if word.startswith("-")}
        whole = words[1] == "remove_directory" or any(letter in word for word in switches for letter in "rR")
        for word in scene.each(word for word in words[2:] if word not in switches):
            yield scene.delete(word, recursive=whole)


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


_TRASHED_FOR_GOOD = frozenset({Place.ROOT, Place.SYSTEM, Place.SYSTEM_ROOT, Place.HOME})


def _trash(scene: Scene) -> Iterator[Effect]:
    """Into the trash and out of it. What was put there can be taken back, unless a system lived on it."""
    operands = scene.options().operands
    if scene.run.name == "trash-empty" or scene.options().has("--empty"):
        yield scene.effect(Kind.DELETE, "trash", "everything", "recursive", "shredded")
        return
    if scene.run.name in _BY_VERB:
        if operands[:1] and operands[0] not in ("trash", "remove", "del", "rm"):
            return
        operands = operands[1:]
    for word in scene.each(operands):
        whole = not _TRASHED_FOR_GOOD.isdisjoint(scene.where(word, follow=False).places)
        yield scene.delete(word, "trashed", recursive=whole)


_BY_VERB = names("gio kioclient kioclient5 gtrash")


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
_FIND_ACTIONS = ("-delete", "-exec", "-ok")


def _find(scene: Scene) -> Iterator[Effect]:
    words = scene.run.argv[1:]
    starts = _find_starts(words)
    if "-delete" in words:
        some = _chooses(words)
        for word in scene.each(starts or (Word("."),)):
            found = scene.delete(word, recursive=True)
            made = some and _finds_only_made(scene, word, words)
            found = replace(found, traits=found.traits | {"regenerable"}) if made else found
            yield _narrowed(found, words) if some else found
    for at, word in enumerate(words[:-1]):
        if word in _FIND_WRITES and at < MOST_LOOKED_AT:
            yield scene.write(words[at + 1])
    yield from _sought_out(scene, words)


_FINDERS = names("find gfind bfs")
_BESIDE_FINDERS = names("rm xargs cd echo true :")
_CHANGERS = names("chmod chown rm mv cp sed tee truncate unlink shred ln chattr perl")
_GUARDED = (Place.AGENT, Place.OWN, Place.GUARD)


def _sought_out(scene: Scene, words: Sequence[Word]) -> Iterator[Effect]:
    """Guarded files that are looked for by name, for something to be done to them."""
    if not {"!", "-not", "-prune"}.isdisjoint(words):
        return
    acts = any(a.startswith(("-exec", "-ok")) and b in _CHANGERS for a, b in pairwise(words))
    if not acts and "-delete" not in words:
        return
    if acts:
        yield from _found_below(scene, words)
    for test, word in pairwise(words[:MOST_LOOKED_AT]):
        if test in ("-name", "-iname", "-path", "-ipath", "-wholename"):
            found = [place for place in _GUARDED if place in scene.where(Word(word.replace("*", "x")))]
            if found:
                yield scene.effect(Kind.OVERWRITE, "redirected", *(f"in:{p}" for p in found), target=word)


def _found_below(scene: Scene, words: Sequence[Word]) -> Iterator[Effect]:
    """Whatever lies below a directory is changed, the guarded files in it too."""
    for start in scene.each(_find_starts(words)):
        wide = not scene.where(start).places.isdisjoint({Place.HOME, Place.ROOT})
        within = scene.places.filled(start, scene.run.cwd)
        if within and not (wide and _chooses(words)):
            yield scene.effect(Kind.OVERWRITE, "found", *(f"in:{place}" for place in within), target=start)


def _chooses(words: Sequence[Word]) -> bool:
    """Whether only some files are meant: a test that most files fail stands before the first action."""
    if not {"!", "-not", "-o", "-or", ","}.isdisjoint(words):
        return False
    tests = tuple(takewhile(lambda word: not word.startswith(_FIND_ACTIONS), words))
    return any(
        word in _FIND_TESTS and set(value) - set("*.?/") - {STAR, ANY, GAP}
        for word, value in zip(tests, (*tests[1:], EMPTY), strict=False)
    )


def _narrowed(found: Effect, words: Sequence[Word]) -> Effect:
    """Of a whole tree only a part goes, so that what stands above it is not lost."""
    inside = {f"in:{Place.ROOT}": f"in:{Place.SYSTEM}", f"in:{Place.HOME}": f"in:{Place.INSIDE_HOME}"}
    kept = found.traits - {"everything", f"in:{Place.SYSTEM_ROOT}", f"in:{Place.OWN}"}
    sought = [word for test, word in pairwise(words[:MOST_LOOKED_AT]) if test in ("-name", "-iname")]
    made = {f"in:{Place.REMADE}"} if sought and all(remade((word,)) for word in sought) else set()
    return replace(found, traits=frozenset(inside.get(trait, trait) for trait in kept) | {"narrowed"} | made)


def found_are_made(runs: Sequence[Run], places: Places) -> bool:
    """Whether a command only looks for files that tools make, none of them tracked, and deletes them."""
    finders = [run for run in runs if run.name in _FINDERS]
    if not finders or not all(run.name in _FINDERS | _BESIDE_FINDERS for run in runs):
        return False
    if not all(_hands_on_found(run) for run in runs if run.name == "xargs" or "xargs" in run.through):
        return False
    starts = [(run, start) for run in finders for start in _find_starts(run.argv[1:]) or (Word("."),)]
    given = {GAP, *(f"{start.rstrip('/')}/{name}" for run, start in starts for name in _found_names(run))}
    found = [word for run in runs if deletes_found(run) for word in run.argv[1:] if not word.startswith("-")]
    return given.issuperset(found) and all(
        _finds_only_made(Scene(run, places), start, run.argv[1:]) for run, start in starts
    )


def _found_names(run: Run) -> tuple[str, ...]:
    return (GAP, *_required_names(run.argv[1:]))


_XARGS_OPTION = re.compile(
    r"-[0rtx]*(?:[nPL]\d*)?|\d+|-I.*|\{\}|%|-d.*|\\n|--null|--no-run-if-empty|--verbose|--max-(?:args|procs)=\d+"
)


def _hands_on_found(run: Run) -> bool:
    """Whether the names that `xargs` adds are those another program prints, not those in a file or a text."""
    if run.stdin is None or run.stdin.text is not None or run.stdin.marks:
        return False
    if run.name != "xargs":
        return True
    return all(_XARGS_OPTION.fullmatch(word) for word in takewhile(lambda word: word != "rm", run.argv[1:]))


def deletes_found(run: Run) -> bool:
    """Whether a program deletes what a search hands to it."""
    return run.name == "rm" and run.more_operands


def _finds_only_made(scene: Scene, start: Word, words: Sequence[Word]) -> bool:
    """Whether all that a search can find below a directory has names that tools make, and none is tracked."""
    sought = _required_names(words)
    return bool(sought) and all(
        GAP not in word and scene.places.is_made_below(start, scene.run.cwd, _as_glob(word))
        for word in sought
    )


_NARROWING_TESTS = names("-type -maxdepth -mindepth -mtime -mmin -size")
_NARROWING_FLAGS = names("-empty -xdev -mount -depth -prune")
_PRINTING = names("-print -print0")


def _required_names(words: Sequence[Word]) -> tuple[Word, ...]:
    """The `-name` patterns that everything printed, deleted or handed to `rm` has to match.

    Only one form is understood: start points, tests all of which must hold, and at most one action that
    deletes, as the last term. Every other word, operators included, gives an empty tuple. So does an action
    in front of the first `-name`, because it acts on every file.
    """
    if len(words) > MOST_LOOKED_AT:
        return ()
    rest = list(words)
    while rest and (rest[0] in ("-H", "-P") or (rest[0].known and not _starts_expression(rest[0]))):
        rest.pop(0)
    required: list[Word] = []
    while rest:
        term = rest.pop(0)
        if term in ("-name", "-iname") and rest:
            required.append(rest.pop(0))
        elif term in _NARROWING_TESTS and rest:
            rest.pop(0)
        elif term in _NARROWING_FLAGS or (term in _PRINTING and required):
            continue
        else:
            return tuple(required) if _is_deleting_action([term, *rest]) else ()
    return tuple(required)


def _is_deleting_action(words: Sequence[Word]) -> bool:
    """Whether the words are one action to the end: `-delete`, or `-exec rm` of nothing but what was found."""
    if words[0] == "-delete":
        return len(words) == 1
    if words[0] not in ("-exec", "-execdir") or words[1:2] not in (["rm"], ["/bin/rm"]):
        return False
    options = list(takewhile(lambda word: word.startswith("-"), words[2:]))
    return words[2 + len(options) :] in (["{}", "+"], ["{}", ";"])


def _starts_expression(word: Word) -> bool:
    return word.startswith(("-", "(", "!", ",", ")"))


def _as_glob(word: Word) -> str:
    return str(word.typed)


def _find_starts(words: Sequence[Word]) -> tuple[Word, ...]:
    if "-files0-from" in words:
        return (UNKNOWN,)
    starts: list[Word] = []
    for before, word in zip((EMPTY, *words), words, strict=False):
        if word in ("-H", "-L", "-P", "-D", "--") or before == "-D" or re.fullmatch("-O[0-9]*", word):
            continue
        if _starts_expression(word):
            break
        starts.append(word)
    return tuple(starts)


DELETING: Family = {
    **dict.fromkeys(names("rm grm"), _rm),
    **dict.fromkeys(names("rimraf del-cli"), _rimraf),
    "rmdir": _rmdir,
    "cmake": _cmake,
    "unlink": _unlink,
    **dict.fromkeys(names("shred srm wipe scrub sfill secure-delete"), _shred),
    **dict.fromkeys(names("trash-empty trash-put trash rmtrash gvfs-trash gvfs-rm send2trash"), _trash),
    **dict.fromkeys(_BY_VERB, _trash),
    **dict.fromkeys(names("del erase rd deltree"), _dos_delete),
    **dict.fromkeys(_FINDERS, _find),
}
