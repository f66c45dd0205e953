"""Directories that a tool empties before it fills them anew, named by an option, an operand or a variable."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from shellverdict.effects.scene import Scene
from shellverdict.names import names
from shellverdict.options import Options
from shellverdict.places import Place
from shellverdict.shell.words import Word
from shellverdict.verdict import Effect

__all__ = ["clearing_effects"]

_LAUNCHERS = names("npx bunx pnpx")
_MODULE = re.compile(r"-[A-Za-z]*m")  # -m, or -Im and the like
# Where site generators put what they make, beside the usual build directories.
_GENERATED = names("site public _site book _book")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clearer:
    """How one tool is told to empty a directory.

    `words` is the subcommand. One of `switches` must be given, unless there are none; with one of `unless`
    nothing is emptied. `unbidden` says that directories of the project are emptied without the switch.
    """

    words: tuple[str, ...] = ()
    switches: frozenset[str] = frozenset()
    unless: frozenset[str] = frozenset()
    options: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    operands: bool = False
    unbidden: bool = False


_CLEARERS: Mapping[str, tuple[_Clearer, ...]] = {
    **dict.fromkeys(names("venv virtualenv"), (_Clearer(switches=names("--clear"), operands=True),)),
    "uv": (
        _Clearer(words=("venv",), switches=names("--clear -c"), operands=True),
        _Clearer(words=("cache", "clean"), options=names("--cache-dir"), variables=names("UV_CACHE_DIR")),
    ),
    "pip": (
        _Clearer(words=("cache", "purge"), options=names("--cache-dir"), variables=names("PIP_CACHE_DIR")),
    ),
    "cargo": (
        _Clearer(
            words=("clean",),
            options=names("--target-dir"),
            variables=names("CARGO_TARGET_DIR CARGO_BUILD_TARGET_DIR"),
        ),
    ),
    "go": (
        _Clearer(words=("clean",), switches=names("-modcache"), variables=names("GOMODCACHE")),
        _Clearer(
            words=("clean",), switches=names("-cache -testcache -fuzzcache"), variables=names("GOCACHE")
        ),
    ),
    **dict.fromkeys(
        names("vite astro"),
        (
            _Clearer(
                words=("build",), switches=names("--emptyOutDir"), options=names("--outDir"), unbidden=True
            ),
        ),
    ),
    "mkdocs": (_Clearer(words=("build",), unless=names("--dirty"), options=names("-d --site-dir")),),
    "mdbook": tuple(_Clearer(words=(verb,), options=names("-d --dest-dir")) for verb in ("build", "clean")),
    "jekyll": (_Clearer(words=("build",), options=names("-d --destination")),),
    "zola": (_Clearer(words=("build",), switches=names("--force"), options=names("-o --output-dir")),),
    "hugo": (_Clearer(switches=names("--cleanDestinationDir"), options=names("-d --destination")),),
    "webpack": (_Clearer(switches=names("--output-clean"), options=names("-o --output-path")),),
    "tsup": (_Clearer(switches=names("--clean"), options=names("-d --out-dir")),),
    "ng": (_Clearer(words=("build",), options=names("--output-path")),),
    "typedoc": (_Clearer(options=names("--out")),),
    **dict.fromkeys(
        names("npm yarn"),
        (
            _Clearer(
                words=("cache", "clean"),
                options=names("--cache --cache-folder"),
                variables=names("npm_config_cache NPM_CONFIG_CACHE YARN_CACHE_FOLDER"),
            ),
        ),
    ),
}
_OTHER_VALUES = names("--prompt -p --python")
_FALSE = names("false 0 no off")


def clearing_effects(scene: Scene) -> Iterator[Effect]:
    """The directories that a tool is told to empty, where what they hold may be lost."""
    argv = _behind_launcher(scene.run.argv)
    for clearer in _CLEARERS.get(argv[0].lower(), ()) if argv else ():
        for word in _cleared(clearer, argv, scene.run.assigned):
            found = scene.delete(word, "cleared", recursive=True)
            if not _is_harmless(scene, word, found) and _is_bidden(clearer, argv, found):
                yield found


def _behind_launcher(argv: Sequence[Word]) -> Sequence[Word]:
    """The tool that is really meant: `python3 -m venv`, `npx vite`."""
    if argv and argv[0] in _LAUNCHERS:
        at = next((n for n, word in enumerate(argv[1:], 1) if not word.startswith("-")), len(argv))
        return argv[at:]
    if argv and argv[0].startswith(("python", "pypy")):
        options = list(takewhile(lambda word: word.startswith("-"), argv[1:8]))
        module = next((n for n, word in enumerate(options, 1) if _MODULE.fullmatch(word)), None)
        return argv if module is None else argv[module + 1 :]
    return argv


def _cleared(clearer: _Clearer, argv: Sequence[Word], assigned: Mapping[str, Word]) -> Iterator[Word]:
    values = clearer.options | (_OTHER_VALUES - clearer.switches)
    options = Options.read(argv, values, clusters=False, abbreviated=False)
    length = len(clearer.words)
    if options.operands[:length] != clearer.words or options.has(*clearer.unless or ("--help",)):
        return
    if clearer.switches and not clearer.unbidden and not options.has(*clearer.switches):
        return
    yield from options.values(*clearer.options) if clearer.options else ()
    yield from (assigned[name] for name in sorted(clearer.variables) if assigned.get(name))
    yield from options.operands[length:] if clearer.operands else ()


def _is_bidden(clearer: _Clearer, argv: Sequence[Word], found: Effect) -> bool:
    if not clearer.unbidden:
        return True
    given = {word.partition("=")[0]: word.partition("=")[2] for word in argv if word.startswith("--")}
    asked = [value.lower() for name, value in given.items() if name in clearer.switches]
    if any(value in _FALSE for value in asked):
        return False
    return bool(asked) or f"in:{Place.PROJECT}" in found.traits


def _is_harmless(scene: Scene, word: Word, found: Effect) -> bool:
    """Whether what is emptied can be made again, or is not there."""
    within = f"in:{Place.PROJECT}" in found.traits or f"in:{Place.TEMP}" in found.traits
    lost = {f"in:{place}" for place in (Place.HISTORY, Place.OWN, Place.UNKNOWN)} | {"everything"}
    if within and lost.isdisjoint(found.traits):
        made = {"regenerable", f"in:{Place.REMADE}", f"in:{Place.TEMP}"}
        if not made.isdisjoint(found.traits) or word.rstrip("/").rpartition("/")[2] in _GENERATED:
            return True
    return scene.places.is_missing(word, scene.run.cwd)
