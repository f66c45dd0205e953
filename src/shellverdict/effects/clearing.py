"""Detect directories that a build tool empties before it writes its output to them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from shellverdict.effects.run_context import RunContext
from shellverdict.names import split_names
from shellverdict.options import Options
from shellverdict.paths import PathKind
from shellverdict.shell.words import Word
from shellverdict.verdict import CommandEffect

__all__ = ["find_clearing_effects"]

_LAUNCHERS = split_names("npx bunx pnpx")
_MODULE_OPTION = re.compile(r"-[A-Za-z]*m")  # -m, or -Im and the like
# Output directories of site generators, besides the usual build directories.
_GENERATED = split_names("site public _site book _book")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClearingRule:
    """Rule that says when a build tool empties its output directory, and which arguments name the directory.

    `words` is the subcommand. One of `switches` must be given, unless there are none; with one of `unless`
    nothing is emptied. `implicit` means that directories inside the project are emptied without the switch.
    """

    words: tuple[str, ...] = ()
    switches: frozenset[str] = frozenset()
    unless: frozenset[str] = frozenset()
    options: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    operands: bool = False
    implicit: bool = False


_CLEARING_RULES: Mapping[str, tuple[_ClearingRule, ...]] = {
    **dict.fromkeys(
        split_names("venv virtualenv"), (_ClearingRule(switches=split_names("--clear"), operands=True),)
    ),
    "uv": (
        _ClearingRule(words=("venv",), switches=split_names("--clear -c"), operands=True),
        _ClearingRule(
            words=("cache", "clean"),
            options=split_names("--cache-dir"),
            variables=split_names("UV_CACHE_DIR"),
        ),
    ),
    "pip": (
        _ClearingRule(
            words=("cache", "purge"),
            options=split_names("--cache-dir"),
            variables=split_names("PIP_CACHE_DIR"),
        ),
    ),
    "cargo": (
        _ClearingRule(
            words=("clean",),
            options=split_names("--target-dir"),
            variables=split_names("CARGO_TARGET_DIR CARGO_BUILD_TARGET_DIR"),
        ),
    ),
    "go": (
        _ClearingRule(
            words=("clean",), switches=split_names("-modcache"), variables=split_names("GOMODCACHE")
        ),
        _ClearingRule(
            words=("clean",),
            switches=split_names("-cache -testcache -fuzzcache"),
            variables=split_names("GOCACHE"),
        ),
    ),
    **dict.fromkeys(
        split_names("vite astro"),
        (
            _ClearingRule(
                words=("build",),
                switches=split_names("--emptyOutDir"),
                options=split_names("--outDir"),
                implicit=True,
            ),
        ),
    ),
    "mkdocs": (
        _ClearingRule(words=("build",), unless=split_names("--dirty"), options=split_names("-d --site-dir")),
    ),
    "mdbook": tuple(
        _ClearingRule(words=(verb,), options=split_names("-d --dest-dir")) for verb in ("build", "clean")
    ),
    "jekyll": (_ClearingRule(words=("build",), options=split_names("-d --destination")),),
    "zola": (
        _ClearingRule(
            words=("build",), switches=split_names("--force"), options=split_names("-o --output-dir")
        ),
    ),
    "hugo": (
        _ClearingRule(switches=split_names("--cleanDestinationDir"), options=split_names("-d --destination")),
    ),
    "webpack": (
        _ClearingRule(switches=split_names("--output-clean"), options=split_names("-o --output-path")),
    ),
    "tsup": (_ClearingRule(switches=split_names("--clean"), options=split_names("-d --out-dir")),),
    "ng": (_ClearingRule(words=("build",), options=split_names("--output-path")),),
    "typedoc": (_ClearingRule(options=split_names("--out")),),
    **dict.fromkeys(
        split_names("npm yarn"),
        (
            _ClearingRule(
                words=("cache", "clean"),
                options=split_names("--cache --cache-folder"),
                variables=split_names("npm_config_cache NPM_CONFIG_CACHE YARN_CACHE_FOLDER"),
            ),
        ),
    ),
}
_OTHER_VALUES = split_names("--prompt -p --python")
_FALSE = split_names("false 0 no off")


def find_clearing_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield a deletion effect for each directory that a build tool empties, if that may lose data."""
    argv = _strip_launcher(context.run.argv)
    for rule in _CLEARING_RULES.get(argv[0].lower(), ()) if argv else ():
        for word in _cleared_directories(rule, argv, context.run.env_assignments):
            effect = context.delete_effect(word, "cleared", recursive=True)
            if not _is_harmless(context, word, effect) and _is_requested(rule, argv, effect):
                yield effect


def _strip_launcher(argv: Sequence[Word]) -> Sequence[Word]:
    """Return a command's arguments without a leading launcher such as `python3 -m` or `npx`."""
    if argv and argv[0] in _LAUNCHERS:
        at = next((n for n, word in enumerate(argv[1:], 1) if not word.startswith("-")), len(argv))
        return argv[at:]
    if argv and argv[0].startswith(("python", "pypy")):
        options = list(takewhile(lambda word: word.startswith("-"), argv[1:8]))
        module = next((n for n, word in enumerate(options, 1) if _MODULE_OPTION.fullmatch(word)), None)
        return argv if module is None else argv[module + 1 :]
    return argv


def _cleared_directories(
    rule: _ClearingRule, argv: Sequence[Word], assigned: Mapping[str, Word]
) -> Iterator[Word]:
    """Yield the output directories that a build tool empties according to one rule."""
    values = rule.options | (_OTHER_VALUES - rule.switches)
    options = Options.parse(argv, values, clusters=False, abbreviated=False)
    length = len(rule.words)
    if options.operands[:length] != rule.words or options.has(*rule.unless or ("--help",)):
        return
    if rule.switches and not rule.implicit and not options.has(*rule.switches):
        return
    yield from options.values(*rule.options) if rule.options else ()
    yield from (assigned[name] for name in sorted(rule.variables) if assigned.get(name))
    yield from options.operands[length:] if rule.operands else ()


def _is_requested(rule: _ClearingRule, argv: Sequence[Word], effect: CommandEffect) -> bool:
    """Return True if the options, or the defaults, of a build tool make it empty its output directory."""
    if not rule.implicit:
        return True
    long_options = {word.partition("=")[0]: word.partition("=")[2] for word in argv if word.startswith("--")}
    switch_values = [value.lower() for name, value in long_options.items() if name in rule.switches]
    if any(value in _FALSE for value in switch_values):
        return False
    return bool(switch_values) or f"in:{PathKind.PROJECT}" in effect.traits


def _is_harmless(context: RunContext, word: Word, effect: CommandEffect) -> bool:
    """Return True if emptying a directory loses nothing: it does not exist or can be generated again."""
    is_inside = f"in:{PathKind.PROJECT}" in effect.traits or f"in:{PathKind.TEMP}" in effect.traits
    unsafe_traits = {f"in:{place}" for place in (PathKind.HISTORY, PathKind.OWN, PathKind.UNKNOWN)} | {
        "everything"
    }
    if is_inside and unsafe_traits.isdisjoint(effect.traits):
        regenerable_traits = {"regenerable", f"in:{PathKind.REMADE}", f"in:{PathKind.TEMP}"}
        if (
            not regenerable_traits.isdisjoint(effect.traits)
            or word.rstrip("/").rpartition("/")[2] in _GENERATED
        ):
            return True
    return context.paths.is_missing(word, context.run.cwd)
