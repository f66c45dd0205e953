"""Detect changes of file permissions, owners, access lists and attributes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from shellverdict.effects.run_context import EffectHandlers, RunContext
from shellverdict.names import split_names
from shellverdict.options import Options
from shellverdict.shell.words import EMPTY, Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["PERMISSION_HANDLERS", "mode_traits"]

MAX_MODE_CHARS = 256

_SYSTEM_OWNER = re.compile(r"(?:root|nobody|daemon|bin|sys|0|65534)(?:[:.].*)?$|:(?:root|nogroup|nobody|0)$")
_OCTAL = re.compile(r"[=+-]?[0-7]{1,5}")
_CLAUSE = re.compile(r"([ugoa]*)((?:[=+-](?:[ugo]|[rwxXst]*))+)")
_CHANGE = re.compile(r"([=+-])([ugo]|[rwxXst]*)")


def mode_traits(mode: Word) -> frozenset[str]:
    """Return keywords (traits) for the access that a chmod mode grants or removes."""
    if not mode.is_known or len(mode) > MAX_MODE_CHARS:
        return frozenset({"unknown-mode"})
    if _OCTAL.fullmatch(mode):
        return _octal_traits(mode)
    traits: set[str] = set()
    for clause in mode.split(",")[:32]:
        traits |= _clause_traits(clause)
    return frozenset(traits)


def _octal_traits(mode: str) -> frozenset[str]:
    if mode.startswith("-"):
        return frozenset()
    bits = int(mode.lstrip("=+"), 8)
    conditions = {
        "setuid": bits & 0o4000,
        "setgid": bits & 0o2000,
        "world-writable": bits & 0o002 and not bits & 0o1000,
        "world-readable": bits & 0o004,
        "locked": not bits & 0o777,
        "not-run": not bits & 0o100,
    }
    return frozenset(trait for trait, holds in conditions.items() if holds)


def _clause_traits(clause: str) -> set[str]:
    match = _CLAUSE.fullmatch(clause)
    traits: set[str] = set()
    if match is None:
        return traits
    who = match[1]
    for sign, what in _CHANGE.findall(match[2]):
        traits |= _revoked_traits(who, what) if sign == "-" else _granted_traits(who, what)
        if sign == "=" and not what and ("u" in who or "a" in who):
            traits.add("locked")
    return traits


def _granted_traits(who: str, what: str) -> set[str]:
    traits: set[str] = set()
    others = "o" in who or "a" in who
    if others and ("w" in what or what in ("u", "g")):
        traits.add("world-writable")
    if others and "r" in what:
        traits.add("world-readable")
    if "s" in what:
        traits |= {"setuid"} if who != "g" else {"setgid"}
    return traits


def _revoked_traits(who: str, what: str) -> set[str]:
    if who and "a" not in who and "u" not in who:
        return set()
    whole = "r" in what and "w" in what
    return ({"locked"} if whole else set()) | ({"not-run"} if "x" in what else set())


def _chmod_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = Options.parse(_modes_as_operands(context.run.argv), split_names("--reference"))
    like = options.value("--reference")
    mode, *files = options.operands or (EMPTY,)
    traits = mode_traits(mode) if like is None else frozenset({"like-another"})
    targets = files if like is None else list(options.operands)
    yield from _change_effects(context, targets, options.has("-R", "--recursive"), *traits)


def _modes_as_operands(argv: Sequence[Word]) -> list[Word]:
    """Return chmod's arguments with modes such as `-x` rewritten, so that they do not look like options."""
    is_mode = re.compile(r"-[rwxXst][rwxXst,=+ugoa-]*|-[0-7]+")
    return [Word("=" + word) if is_mode.fullmatch(word) else word for word in argv]


def _change_effects(
    context: RunContext, targets: Sequence[Word], recursive: bool, *traits: str
) -> Iterator[CommandEffect]:
    closed = ("locked",) if recursive and "not-run" in traits else ()  # directories become inaccessible
    for word in context.iter_operands(targets):
        path_info = context.classify(word, recursive=recursive)
        kind = ("recursive", *closed) if recursive else ()
        yield context.destroy_effect(EffectKind.PERMISSIONS, word, path_info, *traits, *kind)


def _chown_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("--reference --from"))
    files = options.operands if options.has("--reference") else options.operands[1:]
    away = ("given-away",) if _SYSTEM_OWNER.match(next(iter(options.operands), EMPTY)) else ()
    yield from _change_effects(context, files, options.has("-R", "--recursive"), "owner", *away)


def _setfacl_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(
        split_names("-m --modify -x --remove -M -X --modify-file --remove-file --set --set-file")
    )
    if options.has("--test"):
        return
    rules = ",".join(options.values("-m", "--modify", "--set"))
    traits = {"access-list"}
    if re.search(r"(?:^|,)\s*(?:d(?:efault)?:)?o(?:ther)?:[^,]*w", rules):
        traits.add("world-writable")
    if options.has("--restore"):
        yield context.new_effect(EffectKind.PERMISSIONS, *traits)
    yield from _change_effects(context, options.operands, options.has("-R", "--recursive"), *traits)


def _setcap_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-n"))
    words = options.operands
    if options.has("-r"):
        yield from _change_effects(context, words, False, "capability")
    elif len(words) > 1:
        yield from _change_effects(context, words[1:], False, "capability", "setuid")


def _filecap_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = context.parse_options().operands
    if len(words) > 1:
        yield from _change_effects(context, words[:1], False, "capability", "setuid")


def _security_label_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(
        split_names("-u -r -t -l --user --role --type --range --reference -n -v -s -V -g")
    )
    about = options.value("-n", "-s")
    powers = ("setuid",) if about is not None and "capability" in about else ()
    files = options.operands[1:] if context.run.name == "chacl" else options.operands
    yield from _change_effects(context, files, options.has("-R", "--recursive"), "access-list", *powers)


def _chattr_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = [word for word in context.run.argv[1:] if not word.startswith(("-", "+", "="))]
    recursive = any(re.fullmatch("-[RVf]*R[RVf]*", word) for word in context.run.argv[1:])
    yield from _change_effects(context, words, recursive, "attributes")


def _chflags_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options()
    yield from _change_effects(context, options.operands[1:], options.has("-R"), "attributes")


def _xattr_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield an effect if `xattr` removes the quarantine attribute, with which macOS marks downloads."""
    options = context.parse_options()
    if options.has("-c") or (options.has("-d") and options.operands[:1] == ("com.apple.quarantine",)):
        yield from _change_effects(context, options.operands[1:], options.has("-r"), "attributes")


def _icacls_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = context.run.argv[1:]
    switches = {word.lower() for word in words}
    if switches & {"/grant", "/deny", "/remove", "/reset", "/setowner", "/inheritance:r", "/g", "/p"}:
        everyone = ("world-writable",) if any("everyone" in word for word in switches) else ()
        yield from _change_effects(context, words[:1], "/t" in switches, "access-list", *everyone)


def _takeown_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = context.run.argv[1:]
    switches = {word.lower() for word in words}
    files = [b for a, b in pairwise(words) if a.lower() == "/f"]
    yield from _change_effects(context, files, "/r" in switches, "owner")


def _mkdir_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-m --mode -Z --context"))
    mode = options.value("-m", "--mode")
    if mode is not None:
        yield from _change_effects(context, options.operands, False, *mode_traits(mode))


def _umask_effects(context: RunContext) -> Iterator[CommandEffect]:
    if any(re.fullmatch("0+", word) for word in context.run.argv[1:]):
        yield context.new_effect(EffectKind.PERMISSIONS, "umask")


PERMISSION_HANDLERS: EffectHandlers = {
    **dict.fromkeys(split_names("chmod gchmod"), _chmod_effects),
    **dict.fromkeys(split_names("chown chgrp gchown lchown"), _chown_effects),
    **dict.fromkeys(split_names("setfacl nfs4_setfacl"), _setfacl_effects),
    "setcap": _setcap_effects,
    "filecap": _filecap_effects,
    **dict.fromkeys(split_names("chcon chacl setfattr attr"), _security_label_effects),
    "chattr": _chattr_effects,
    "chflags": _chflags_effects,
    "xattr": _xattr_effects,
    **dict.fromkeys(split_names("icacls cacls"), _icacls_effects),
    "takeown": _takeown_effects,
    "mkdir": _mkdir_effects,
    "umask": _umask_effects,
}
