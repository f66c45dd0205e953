"""Processes ended, or started without end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from shellverdict.effects.scene import Family, Scene
from shellverdict.names import names
from shellverdict.places import Place
from shellverdict.shell.words import Word
from shellverdict.verdict import Effect, Kind

__all__ = ["PROCESSES", "process_effects"]


_FORCED = re.compile(r"-?(?:s|-signal)?=?(?:9|(?:SIG)?KILL)", re.IGNORECASE)


def _kill(scene: Scene) -> Iterator[Effect]:
    words = list(scene.run.argv[1:])
    if any(re.fullmatch(r"-[lL]|--list.*|--table", word) for word in words[:1]):
        return
    signal, targets = _signal(words)
    if signal == "0":
        return  # asks whether a process is there
    forced = ("forced",) if _FORCED.fullmatch(signal) else ()
    for word in scene.each(targets):
        traits = _process(word)
        if traits is not None:
            yield scene.effect(Kind.PROCESS, *traits, *forced, target=word)


def _signal(words: Sequence[Word]) -> tuple[str, Sequence[Word]]:
    """The signal and what it is sent to: the first word with a dash is the signal, later ones are groups."""
    signal, at = "TERM", 0
    if words[:1] and words[0] in ("-s", "-n", "--signal", "-q"):
        signal, at = (str(words[1]), 2) if len(words) > 1 else ("", 1)
    elif words[:1] and words[0].startswith("-") and words[0] != "--":
        signal, at = words[0].lstrip("-").removeprefix("signal="), 1
    return signal, [word for word in words[at:] if word != "--"]


def _process(word: Word) -> tuple[str, ...] | None:
    if word.startswith("%"):
        return None  # a job of this very shell
    if not word.known:
        return ("unknown",)
    if word == "-1":
        return ("all",)
    if word == "1":
        return ("init", "all")
    if re.fullmatch(r"-[0-9]+|0", word):
        return ("group",)
    return ("pid",)


_PKILL_VALUES = names(
    "--signal -u --euid -U --uid -G --group -g --pgroup -P --parent -s --session -t --terminal -F "
    "--pidfile --ns --nslist"
)
_KILLALL_VALUES = names("-s --signal -u --user -o --older-than -y --younger-than -n --ns -Z --context -t -c")


# Started by a developer a moment ago, and named with enough words to mean nothing else.
_DEVELOPMENT_SERVER = re.compile(
    r"(?:npm|pnpm|yarn|bun)( run)? (?:dev|start|serve|watch|test|storybook|preview)(?::[\w-]+)?"
    r"|(?:npx )?(?:next|vite|nuxt|astro|remix|ng|expo|gatsby|hugo|jekyll|mkdocs|storybook)"
    r" (?:dev|serve|start|server|preview)"
    r"|webpack(?:-dev-server| serve)|(?:python3? )?manage\.py runserver|python3? -m http\.server(?: \d+)?"
    r"|flask run|rails s(?:erver)?|(?:bin/)?rails server|php artisan serve|mix phx\.server"
    r"|cargo watch"
)


def _killall(scene: Scene) -> Iterator[Effect]:
    words = scene.run.argv[1:]
    if scene.run.name == "killall5":
        yield scene.effect(Kind.PROCESS, "all")
        return
    options = scene.options(_PKILL_VALUES if scene.run.name == "pkill" else _KILLALL_VALUES)
    if options.has("-l", "--list", "-V", "--version", "--help", "-h") and not options.operands:
        return
    if "-0" in words:
        return
    forced = ("forced",) if any(_FORCED.fullmatch(word) for word in words) else ()
    owner = ("all",) if options.has("-u", "--user", "-U", "--euid", "--uid", "-G", "--group") else ()
    for word in scene.each(options.operands):
        every = ("all",) if re.fullmatch(r"[.*^$]*", word) else ()
        by_line = options.has("-f", "--full") and not owner and word.known
        kind = "own-server" if by_line and _DEVELOPMENT_SERVER.fullmatch(word) else "named"
        yield scene.effect(Kind.PROCESS, kind, *forced, *owner, *every, target=word)
    if not options.operands and (owner or options.has("-P", "-g", "-s", "-t", "--parent", "--pgroup")):
        yield scene.effect(Kind.PROCESS, "named", *forced, *owner)


def _fuser(scene: Scene) -> Iterator[Effect]:
    if scene.options(names("-n --namespace")).has("-k", "--kill"):
        yield scene.effect(Kind.PROCESS, "named", "forced")


def _taskkill(scene: Scene) -> Iterator[Effect]:
    switches = {word.lower().lstrip("/-") for word in scene.run.argv[1:]}
    if switches & {"im", "pid", "fi"}:
        yield scene.effect(Kind.PROCESS, "named", *(("forced",) if "f" in switches else ()))


def _named_process(scene: Scene) -> Iterator[Effect]:
    for word in scene.each(scene.options().operands):
        yield scene.effect(Kind.PROCESS, "named", target=word)


def _xkill(scene: Scene) -> Iterator[Effect]:
    if len(scene.run.argv) == 1 or scene.options().has("-a", "-id", "-i"):
        yield scene.effect(Kind.PROCESS, "named")


def _tmux(scene: Scene) -> Iterator[Effect]:
    words = scene.run.argv[1:]
    if any(re.fullmatch("kill-(?:server|session|window|pane)|quit|kill", word) for word in words[:6]):
        yield scene.effect(Kind.PROCESS, "named")


_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50, "e": 60}
_SIZE = re.compile(r"[+>%<]?([0-9]{1,15})(?:([kmgtpe])(?:i?b)?)?(?:x.*)?", re.IGNORECASE)
TOO_MUCH = 100 << 30  # bytes; more than most machines have to spare


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(text)
    return int(found[1]) << _UNITS[(found[2] or "").lower()] if found else 0


def _fills(scene: Scene, size: int) -> Iterator[Effect]:
    if size >= TOO_MUCH:
        yield scene.effect(Kind.PROCESS, "huge")


def _sized(scene: Scene) -> Iterator[Effect]:
    """Programs that make a file of a size somebody asks for."""
    size = scene.options(names("-l --length -s --size -o --offset -c --bytes -n --lines"))
    taken = size.value("-l", "--length", "-s", "--size", "-c", "--bytes")
    if scene.run.name == "mkfile" and size.operands:
        taken = size.operands[0]
    cut = scene.run.name == "head" and not (size.operands and size.operands[-1] in _ENDLESS_FILES)
    if taken is not None and not cut:
        yield from _fills(scene, _bytes(taken))


def _dd_sized(scene: Scene) -> Iterator[Effect]:
    given = dict(word.split("=", 1) for word in scene.run.argv[1:32] if "=" in word)
    if given.get("if") in _ENDLESS_FILES and "of" in given:
        yield from _fills(scene, _bytes(given.get("bs", "512")) * _bytes(given.get("count", "1")))


_ENDLESS = names("yes")
_ENDLESS_FILES = ("/dev/zero", "/dev/urandom", "/dev/random", "/dev/full")


def process_effects(scene: Scene) -> Iterator[Effect]:
    """Programs that never end, with nobody to stop them or onto a disk."""
    argv = scene.run.argv
    endless = bool(argv) and (argv[0] in _ENDLESS or (argv[0] == "cat" and argv[-1] in _ENDLESS_FILES))
    if not endless:
        return
    outputs = [r.target for r in scene.run.redirects if r.writes and r.descriptor in ("", "1")]
    if outputs and (scene.run.background or Place.STREAM not in scene.where(outputs[-1])):
        yield scene.effect(Kind.PROCESS, "endless")


PROCESSES: Family = {
    "kill": _kill,
    **dict.fromkeys(names("killall killall5 pkill skill"), _killall),
    "fuser": _fuser,
    **dict.fromkeys(names("taskkill tskill"), _taskkill),
    "xkill": _xkill,
    "slay": _named_process,
    **dict.fromkeys(names("fallocate mkfile head xfs_mkfile"), _sized),
    **dict.fromkeys(names("dd gdd dcfldd"), _dd_sized),
    **dict.fromkeys(names("tmux screen"), _tmux),
}
