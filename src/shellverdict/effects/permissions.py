"""Who may read, write and run a file, changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from shellverdict.effects.scene import Family, Scene
from shellverdict.names import names
from shellverdict.options import Options
from shellverdict.shell.words import EMPTY, Word
from shellverdict.verdict import Effect, Kind

__all__ = ["PERMISSIONS", "mode_traits"]

LONGEST_MODE = 256

_NOBODYS = re.compile(r"(?:root|nobody|daemon|bin|sys|0|65534)(?:[:.].*)?$|:(?:root|nogroup|nobody|0)$")
_OCTAL = re.compile(r"[=+-]?[0-7]{1,5}")
_CLAUSE = re.compile(r"([ugoa]*)((?:[=+-](?:[ugo]|[rwxXst]*))+)")
_CHANGE = re.compile(r"([=+-])([ugo]|[rwxXst]*)")


def mode_traits(mode: Word) -> frozenset[str]:
    """What a mode opens or closes, in plain words."""
    if not mode.known or len(mode) > LONGEST_MODE:
        return frozenset({"unknown-mode"})
    if _OCTAL.fullmatch(mode):
        return _octal_traits(mode)
    found: set[str] = set()
    for clause in mode.split(",")[:32]:
        found |= _clause_traits(clause)
    return frozenset(found)


def _octal_traits(mode: str) -> frozenset[str]:
    if mode.startswith("-"):
        return frozenset()
    bits = int(mode.lstrip("=+"), 8)
    found = {
        "setuid": bits & 0o4000,
        "setgid": bits & 0o2000,
        "world-writable": bits & 0o002 and not bits & 0o1000,
        "world-readable": bits & 0o004,
        "locked": not bits & 0o777,
        "not-run": not bits & 0o100,
    }
    return frozenset(trait for trait, holds in found.items() if holds)


def _clause_traits(clause: str) -> set[str]:
    match = _CLAUSE.fullmatch(clause)
    found: set[str] = set()
    if match is None:
        return found
    who = match[1]
    for sign, what in _CHANGE.findall(match[2]):
        found |= _taken(who, what) if sign == "-" else _given(who, what)
        if sign == "=" and not what and ("u" in who or "a" in who):
            found.add("locked")
    return found


def _given(who: str, what: str) -> set[str]:
    found: set[str] = set()
    others = "o" in who or "a" in who
    if others and ("w" in what or what in ("u", "g")):
        found.add("world-writable")
    if others and "r" in what:
        found.add("world-readable")
    if "s" in what:
        found |= {"setuid"} if who != "g" else {"setgid"}
    return found


def _taken(who: str, what: str) -> set[str]:
    if who and "a" not in who and "u" not in who:
        return set()
    whole = "r" in what and "w" in what
    return ({"locked"} if whole else set()) | ({"not-run"} if "x" in what else set())


def _chmod(scene: Scene) -> Iterator[Effect]:
    options = Options.read(_modes_as_operands(scene.run.argv), names("--reference"))
    like = options.value("--reference")
    mode, *files = options.operands or (EMPTY,)
    traits = mode_traits(mode) if like is None else frozenset({"like-another"})
    targets = files if like is None else list(options.operands)
    yield from _changed(scene, targets, options.has("-R", "--recursive"), *traits)


def _modes_as_operands(argv: Sequence[Word]) -> list[Word]:
    """`chmod -x file` has a mode, not an option."""
    is_mode = re.compile(r"-[rwxXst][rwxXst,=+ugoa-]*|-[0-7]+")
    return [Word("=" + word) if is_mode.fullmatch(word) else word for word in argv]


def _changed(scene: Scene, targets: Sequence[Word], recursive: bool, *traits: str) -> Iterator[Effect]:
    closed = ("locked",) if recursive and "not-run" in traits else ()  # nobody can enter the directories
    for word in scene.each(targets):
        where = scene.where(word, whole=recursive)
        kind = ("recursive", *closed) if recursive else ()
        yield scene.destroy(Kind.PERMISSIONS, word, where, *traits, *kind)


def _chown(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("--reference --from"))
    files = options.operands if options.has("--reference") else options.operands[1:]
    away = ("given-away",) if _NOBODYS.match(next(iter(options.operands), EMPTY)) else ()
    yield from _changed(scene, files, options.has("-R", "--recursive"), "owner", *away)


def _setfacl(scene: Scene) -> Iterator[Effect]:
    options = scene.options(
        names("-m --modify -x --remove -M -X --modify-file --remove-file --set --set-file")
    )
    if options.has("--test"):
        return
    rules = ",".join(options.values("-m", "--modify", "--set"))
    traits = {"access-list"}
    if re.search(r"(?:^|,)\s*(?:d(?:efault)?:)?o(?:ther)?:[^,]*w", rules):
        traits.add("world-writable")
    if options.has("--restore"):
        yield scene.effect(Kind.PERMISSIONS, *traits)
    yield from _changed(scene, options.operands, options.has("-R", "--recursive"), *traits)


def _setcap(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-n"))
    words = options.operands
    if options.has("-r"):
        yield from _changed(scene, words, False, "capability")
    elif len(words) > 1:
        yield from _changed(scene, words[1:], False, "capability", "setuid")


def _filecap(scene: Scene) -> Iterator[Effect]:
    words = scene.options().operands
    if len(words) > 1:
        yield from _changed(scene, words[:1], False, "capability", "setuid")


def _labelled(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-u -r -t -l --user --role --type --range --reference -n -v -s -V -g"))
    about = options.value("-n", "-s")
    powers = ("setuid",) if about is not None and "capability" in about else ()
    files = options.operands[1:] if scene.run.name == "chacl" else options.operands
    yield from _changed(scene, files, options.has("-R", "--recursive"), "access-list", *powers)


def _chattr(scene: Scene) -> Iterator[Effect]:
    words = [word for word in scene.run.argv[1:] if not word.startswith(("-", "+", "="))]
    recursive = any(re.fullmatch("-[RVf]*R[RVf]*", word) for word in scene.run.argv[1:])
    yield from _changed(scene, words, recursive, "attributes")


def _chflags(scene: Scene) -> Iterator[Effect]:
    options = scene.options()
    yield from _changed(scene, options.operands[1:], options.has("-R"), "attributes")


def _xattr(scene: Scene) -> Iterator[Effect]:
    """Where a file came from, forgotten: the system no longer asks before it runs."""
    options = scene.options()
    if options.has("-c") or (options.has("-d") and options.operands[:1] == ("com.apple.quarantine",)):
        yield from _changed(scene, options.operands[1:], options.has("-r"), "attributes")


def _icacls(scene: Scene) -> Iterator[Effect]:
    words = scene.run.argv[1:]
    switches = {word.lower() for word in words}
    if switches & {"/grant", "/deny", "/remove", "/reset", "/setowner", "/inheritance:r", "/g", "/p"}:
        everyone = ("world-writable",) if any("everyone" in word for word in switches) else ()
        yield from _changed(scene, words[:1], "/t" in switches, "access-list", *everyone)


def _takeown(scene: Scene) -> Iterator[Effect]:
    words = scene.run.argv[1:]
    switches = {word.lower() for word in words}
    files = [b for a, b in pairwise(words) if a.lower() == "/f"]
    yield from _changed(scene, files, "/r" in switches, "owner")


def _mkdir(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-m --mode -Z --context"))
    mode = options.value("-m", "--mode")
    if mode is not None:
        yield from _changed(scene, options.operands, False, *mode_traits(mode))


def _umask(scene: Scene) -> Iterator[Effect]:
    if any(re.fullmatch("0+", word) for word in scene.run.argv[1:]):
        yield scene.effect(Kind.PERMISSIONS, "umask")


PERMISSIONS: Family = {
    **dict.fromkeys(names("chmod gchmod"), _chmod),
    **dict.fromkeys(names("chown chgrp gchown lchown"), _chown),
    **dict.fromkeys(names("setfacl nfs4_setfacl"), _setfacl),
    "setcap": _setcap,
    "filecap": _filecap,
    **dict.fromkeys(names("chcon chacl setfattr attr"), _labelled),
    "chattr": _chattr,
    "chflags": _chflags,
    "xattr": _xattr,
    **dict.fromkeys(names("icacls cacls"), _icacls),
    "takeown": _takeown,
    "mkdir": _mkdir,
    "umask": _umask,
}
