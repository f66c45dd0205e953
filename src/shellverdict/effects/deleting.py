"""Detect files that a command deletes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile

from shellverdict.effects.run_context import UNKNOWN_WORD, EffectHandlers, RunContext
from shellverdict.names import split_names
from shellverdict.options import Options
from shellverdict.paths import PathClassifier, PathKind
from shellverdict.paths.known_names import is_regenerable_path
from shellverdict.shell.runs import ProgramRun
from shellverdict.shell.words import ANY, EMPTY, GAP, STAR, Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["DELETE_HANDLERS", "deletes_only_generated_files", "deletes_search_results"]


def _rm_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options()
    recursive = options.has("-r", "-R", "--recursive") or options.has_unknown_option
    traits = ["forced"] if options.has("-f", "--force") else []
    if options.has("--no-preserve-root"):
        traits.append("no-preserve-root")
    for word in context.iter_operands(options.operands):
        yield context.delete_effect(word, *traits, recursive=recursive)


def _cmake_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield the files and directories that `cmake -E rm` or `cmake -E remove_directory` deletes."""
    words = context.run.argv[1:]
    if words[:1] == ("-E",) and words[1:2] and words[1] in ("rm", "remove", "remove_directory"):
        switches = {word for word in words[2:] if word.startswith("-")}
        whole = words[1] == "remove_directory" or any(letter in word for word in switches for letter in "rR")
        for word in context.iter_operands(word for word in words[2:] if word not in switches):
            yield context.delete_effect(word, recursive=whole)


def _rmdir_effects(context: RunContext) -> Iterator[CommandEffect]:
    for word in context.iter_operands(context.parse_options().operands):
        yield context.delete_effect(word, "only-empty")


def _unlink_effects(context: RunContext) -> Iterator[CommandEffect]:
    for word in context.iter_operands(context.parse_options().operands):
        yield context.delete_effect(word)


def _shred_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield the files that `shred` overwrites beyond recovery, even if it does not remove them."""
    options = context.parse_options(split_names("-n --iterations -s --size --random-source -l -p -P -S"))
    recursive = options.has("-r", "-R", "--recursive")
    for word in context.iter_operands(options.operands):
        yield context.delete_effect(word, "shredded", "forced", recursive=recursive)


def _rimraf_effects(context: RunContext) -> Iterator[CommandEffect]:
    for word in context.iter_operands(context.parse_options().operands):
        yield context.delete_effect(word, "forced", recursive=True)


_TRASHED_FOR_GOOD = frozenset({PathKind.ROOT, PathKind.SYSTEM, PathKind.SYSTEM_ROOT, PathKind.HOME})


def _trash_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield the effects of moving files to the trash and of emptying the trash.

    Files in the trash can be restored, except where the system or a home needs them to work.
    """
    operands = context.parse_options().operands
    if context.run.name == "trash-empty" or context.parse_options().has("--empty"):
        yield context.new_effect(EffectKind.DELETE, "trash", "everything", "recursive", "shredded")
        return
    if context.run.name in _TRASH_VERB_PROGRAMS:
        if operands[:1] and operands[0] not in ("trash", "remove", "del", "rm"):
            return
        operands = operands[1:]
    for word in context.iter_operands(operands):
        whole = not _TRASHED_FOR_GOOD.isdisjoint(context.classify(word, follow_link=False).kinds)
        yield context.delete_effect(word, "trashed", recursive=whole)


_TRASH_VERB_PROGRAMS = split_names("gio kioclient kioclient5 gtrash")


def _dos_delete_effects(context: RunContext) -> Iterator[CommandEffect]:
    switches = {word.lower() for word in context.run.argv[1:] if re.fullmatch("/[A-Za-z]", word)}
    for word in context.iter_operands(w for w in context.run.argv[1:] if w.lower() not in switches):
        yield context.delete_effect(
            word, *(("forced",) if "/f" in switches else ()), recursive="/s" in switches
        )


MAX_FIND_WORDS = 400
_FIND_WRITES = split_names("-fprint -fprint0 -fprintf -fls")
_FIND_TESTS = split_names(
    "-name -iname -path -ipath -wholename -regex -iregex -mtime -mmin -atime -amin -ctime -cmin -newer "
    "-size -empty -user -group -perm -links -inum -samefile"
)
_FIND_ACTIONS = ("-delete", "-exec", "-ok")


def _find_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = context.run.argv[1:]
    starts = _find_starts(words)
    if "-delete" in words:
        some = _selects_some_files(words)
        for word in context.iter_operands(starts or (Word("."),)):
            effect = context.delete_effect(word, recursive=True)
            names = _required_names(words)
            only_generated = bool(names) and _finds_only_generated(context, word, names)
            effect = replace(effect, traits=effect.traits | {"regenerable"}) if only_generated else effect
            yield _narrow_effect(effect, words) if some else effect
    for at, word in enumerate(words[:-1]):
        if word in _FIND_WRITES and at < MAX_FIND_WORDS:
            yield context.write_effect(words[at + 1])
    yield from _protected_search_effects(context, words)


_FD = split_names("fd fdfind")
_FINDERS = split_names("find gfind bfs") | _FD
_HARMLESS_BESIDE_FIND = split_names("rm xargs cd echo true :")
_CHANGING_PROGRAMS = split_names("chmod chown rm mv cp sed tee truncate unlink shred ln chattr perl")
_PROTECTED_KINDS = (PathKind.AGENT, PathKind.OWN, PathKind.GUARD)


def _protected_search_effects(context: RunContext, words: Sequence[Word]) -> Iterator[CommandEffect]:
    """Yield an effect for each protected file that a `find` command finds by its name and then modifies."""
    if not {"!", "-not", "-prune"}.isdisjoint(words):
        return
    acts = any(a.startswith(("-exec", "-ok")) and b in _CHANGING_PROGRAMS for a, b in pairwise(words))
    if not acts and "-delete" not in words:
        return
    if acts:
        yield from _change_below_effects(context, words)
    for test, word in pairwise(words[:MAX_FIND_WORDS]):
        if test in ("-name", "-iname", "-path", "-ipath", "-wholename"):
            protected_kinds = [
                place for place in _PROTECTED_KINDS if place in context.classify(Word(word.replace("*", "x")))
            ]
            if protected_kinds:
                yield context.new_effect(
                    EffectKind.OVERWRITE, "redirected", *(f"in:{p}" for p in protected_kinds), target=word
                )


def _change_below_effects(context: RunContext, words: Sequence[Word]) -> Iterator[CommandEffect]:
    """Yield effects for the protected files in a directory tree if `find` modifies every file in the tree."""
    for start in context.iter_operands(_find_starts(words)):
        wide = not context.classify(start).kinds.isdisjoint({PathKind.HOME, PathKind.ROOT})
        within = context.paths.kinds_replaced_by_filling(start, context.run.cwd)
        if within and not (wide and _selects_some_files(words)):
            yield context.new_effect(
                EffectKind.OVERWRITE, "found", *(f"in:{place}" for place in within), target=start
            )


def _selects_some_files(words: Sequence[Word]) -> bool:
    """Return True if a `find` command tests files before its first action, so that it skips some files."""
    if not {"!", "-not", "-o", "-or", ","}.isdisjoint(words):
        return False
    tests = tuple(takewhile(lambda word: not word.startswith(_FIND_ACTIONS), words))
    return any(
        word in _FIND_TESTS and set(value) - set("*.?/") - {STAR, ANY, GAP}
        for word, value in zip(tests, (*tests[1:], EMPTY), strict=False)
    )


def _narrow_effect(effect: CommandEffect, words: Sequence[Word]) -> CommandEffect:
    """Return a less severe deletion effect, because tests such as `-name` limit what `find` deletes."""
    narrower = {
        f"in:{PathKind.ROOT}": f"in:{PathKind.SYSTEM}",
        f"in:{PathKind.HOME}": f"in:{PathKind.INSIDE_HOME}",
    }
    traits = effect.traits - {"everything", f"in:{PathKind.SYSTEM_ROOT}", f"in:{PathKind.OWN}"}
    required_names = [word for test, word in pairwise(words[:MAX_FIND_WORDS]) if test in ("-name", "-iname")]
    generated = (
        {f"in:{PathKind.REMADE}"}
        if required_names and all(is_regenerable_path((word,)) for word in required_names)
        else set()
    )
    return replace(
        effect, traits=frozenset(narrower.get(trait, trait) for trait in traits) | {"narrowed"} | generated
    )


def deletes_only_generated_files(runs: Sequence[ProgramRun], paths: PathClassifier) -> bool:
    """Return True if a command deletes only untracked, generated files that `find` has found."""
    finders = [run for run in runs if run.name in _FINDERS]
    if not finders or not all(run.name in _FINDERS | _HARMLESS_BESIDE_FIND for run in runs):
        return False
    if not all(_passes_on_results(run) for run in runs if run.name == "xargs" or "xargs" in run.wrappers):
        return False
    starts = [(run, start) for run in finders for start in _search_starts(run)]
    result_words = {
        GAP,
        *(f"{start.rstrip('/')}/{name}" for run, start in starts for name in _result_names(run)),
    }
    deleted = [
        word
        for run in runs
        if deletes_search_results(run)
        for word in run.argv[1:]
        if not word.startswith("-")
    ]
    return result_words.issuperset(deleted) and all(
        _finds_only_generated(RunContext(run, paths), start, _searched_names(run)) for run, start in starts
    )


def _result_names(run: ProgramRun) -> tuple[str, ...]:
    """Return the file names that may stand for a result of `find`: a placeholder and its `-name` patterns."""
    return (GAP, *_searched_names(run))


_XARGS_OPTION = re.compile(
    r"-[0rtx]*(?:[nPL]\d*)?|\d+|-I.*|\{\}|%|-d.*|\\n|--null|--no-run-if-empty|--verbose|--max-(?:args|procs)=\d+"
)


def _passes_on_results(run: ProgramRun) -> bool:
    """Return True if `xargs` gets its items from another program, such as `find`, and not from a file."""
    if run.stdin is None or run.stdin.text is not None or run.stdin.taints:
        return False
    if run.name != "xargs":
        return True
    return all(_XARGS_OPTION.fullmatch(word) for word in takewhile(lambda word: word != "rm", run.argv[1:]))


def deletes_search_results(run: ProgramRun) -> bool:
    """Return True if a program deletes the files that a search, such as `find`, has printed."""
    return run.name == "rm" and run.has_unknown_operands


def _search_starts(run: ProgramRun) -> tuple[Word, ...]:
    """Return the directories in which a run of `find` or `fd` searches."""
    if run.name not in _FD:
        return _find_starts(run.argv[1:]) or (Word("."),)
    return _parse_fd(run).operands[1:] or (Word("."),)


def _searched_names(run: ProgramRun) -> tuple[Word, ...]:
    """Return patterns for the names that `find` or `fd` finds; empty if it may find other files too."""
    if run.name not in _FD:
        return _required_names(run.argv[1:])
    options = _parse_fd(run)
    if options.has("-p", "--full-path", "--search-path", "--base-directory", "--and"):
        return ()
    extensions = tuple(Word(f"*.{each.lstrip('.')}") for each in options.values("-e", "--extension"))
    if {Word("*.log"), Word("*.orig")}.intersection(extensions):
        return ()  # perhaps the only record of what happened
    names = [each for each in options.operands[:1] if each != "."]
    # The pattern may be only a part of the name; a tool's name is seldom a part of another name.
    return extensions or tuple(
        Word(each.removeprefix("^").removesuffix("$").replace("\\.", ".")) for each in names
    )


def _parse_fd(run: ProgramRun) -> Options:
    words = tuple(takewhile(lambda word: word not in _FD_ACTIONS, run.argv))
    return Options.parse(words, _FD_VALUES)


_FD_ACTIONS = split_names("-x -X --exec --exec-batch")
_FD_VALUES = split_names(
    "-d --max-depth --min-depth --exact-depth -E --exclude -t --type -e --extension -S --size -o --owner "
    "-c --color --changed-within --changed-before --max-results --and -j --search-path "
    "--threads --base-directory"
)


def _finds_only_generated(context: RunContext, start: Word, required_names: Sequence[Word]) -> bool:
    """Return True if a search for these names below `start` finds only untracked, generated files."""
    return bool(required_names) and all(
        GAP not in word and context.paths.are_generated_below(start, context.run.cwd, _as_glob(word))
        for word in required_names
    )


_NARROWING_TESTS = split_names(
    "-type -maxdepth -mindepth -mtime -mmin -size -path -ipath -wholename -newer -user -regex"
)
_NARROWING_FLAGS = split_names("-empty -xdev -mount -depth -prune -a -and")
_PRINTING = split_names("-print -print0")
_ALTERNATIVES = split_names("-name -iname -o -or")


def _required_names(words: Sequence[Word]) -> tuple[Word, ...]:
    r"""Return the `-name` patterns, one of which a file must match before `find` prints or deletes it.

    Supported are start points, tests that must all hold, a group of names (`\( -name a -o -name b \)`),
    excluded directories (`-path x -prune -o`) and at most one deleting action, as the last term. Any other
    word gives an empty tuple. So does an action before the first `-name`, because it applies to every file.
    """
    if len(words) > MAX_FIND_WORDS:
        return ()
    rest = list(words)
    while rest and (rest[0] in ("-H", "-P") or (rest[0].is_known and not _starts_expression(rest[0]))):
        rest.pop(0)
    required: list[Word] = []
    while rest:
        term = rest.pop(0)
        if term in ("-path", "-name") and rest[1:3] in (["-prune", "-o"], ["-prune", "-or"]):
            rest = rest[3:]
        elif term in ("!", "-not") and rest[1:] and rest[0] in {"-name", "-iname", *_NARROWING_TESTS}:
            rest = rest[2:]
        elif term in ("-name", "-iname") and rest:
            required.append(rest.pop(0))
        elif term == "(" and not required and Word(")") in rest:
            group, rest = rest[: rest.index(Word(")"))], rest[rest.index(Word(")")) + 1 :]
            if not all(word in _ALTERNATIVES for word in (*group[::3], *group[2::3])):
                return ()
            required += group[1::3]
        elif term in _NARROWING_TESTS and rest:
            rest.pop(0)
        elif term in _NARROWING_FLAGS or (term in _PRINTING and required):
            continue
        else:
            return tuple(required) if _is_deleting_action([term, *rest]) else ()
    return tuple(required)


def _is_deleting_action(words: Sequence[Word]) -> bool:
    """Return True if an action of `find` only deletes: `-delete`, or `-exec rm {}` without other operands."""
    if words[0] == "-delete":
        return len(words) == 1
    if words[0] not in ("-exec", "-execdir") or words[1:2] not in (["rm"], ["/bin/rm"]):
        return False
    options = list(takewhile(lambda word: word.startswith("-"), words[2:]))
    return words[2 + len(options) :] in (["{}", "+"], ["{}", ";"])


def _starts_expression(word: Word) -> bool:
    return word.startswith(("-", "(", "!", ",", ")"))


def _as_glob(word: Word) -> str:
    return str(word.literal)


def _find_starts(words: Sequence[Word]) -> tuple[Word, ...]:
    if "-files0-from" in words:
        return (UNKNOWN_WORD,)
    starts: list[Word] = []
    for before, word in zip((EMPTY, *words), words, strict=False):
        if word in ("-H", "-L", "-P", "-D", "--") or before == "-D" or re.fullmatch("-O[0-9]*", word):
            continue
        if _starts_expression(word):
            break
        starts.append(word)
    return tuple(starts)


DELETE_HANDLERS: EffectHandlers = {
    **dict.fromkeys(split_names("rm grm"), _rm_effects),
    **dict.fromkeys(split_names("rimraf del-cli"), _rimraf_effects),
    "rmdir": _rmdir_effects,
    "cmake": _cmake_effects,
    "unlink": _unlink_effects,
    **dict.fromkeys(split_names("shred srm wipe scrub sfill secure-delete"), _shred_effects),
    **dict.fromkeys(
        split_names("trash-empty trash-put trash rmtrash gvfs-trash gvfs-rm send2trash"), _trash_effects
    ),
    **dict.fromkeys(_TRASH_VERB_PROGRAMS, _trash_effects),
    **dict.fromkeys(split_names("del erase rd deltree"), _dos_delete_effects),
    **dict.fromkeys(_FINDERS - _FD, _find_effects),
}
