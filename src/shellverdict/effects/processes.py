"""Detect commands that kill processes, create very large files, or write output without end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from shellverdict.effects.run_context import EffectHandlers, RunContext
from shellverdict.names import split_names
from shellverdict.paths import PathKind
from shellverdict.shell.words import Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["PROCESS_HANDLERS", "find_endless_output_effects"]


_KILL_SIGNAL = re.compile(r"-?(?:s|-signal)?=?(?:9|(?:SIG)?KILL)", re.IGNORECASE)


def _kill_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = list(context.run.argv[1:])
    if any(re.fullmatch(r"-[lL]|--list.*|--table", word) for word in words[:1]):
        return
    signal, targets = _parse_signal(words)
    if signal == "0":
        return  # only checks that the process exists
    forced = ("forced",) if _KILL_SIGNAL.fullmatch(signal) else ()
    for word in context.iter_operands(targets):
        traits = _process_traits(word)
        if traits is not None:
            yield context.new_effect(EffectKind.PROCESS, *traits, *forced, target=word)


def _parse_signal(words: Sequence[Word]) -> tuple[str, Sequence[Word]]:
    """Return the signal and the target processes of a `kill` command.

    The first word with a dash is the signal; later ones are process groups.
    """
    signal, at = "TERM", 0
    if words[:1] and words[0] in ("-s", "-n", "--signal", "-q"):
        signal, at = (str(words[1]), 2) if len(words) > 1 else ("", 1)
    elif words[:1] and words[0].startswith("-") and words[0] != "--":
        signal, at = words[0].lstrip("-").removeprefix("signal="), 1
    return signal, [word for word in words[at:] if word != "--"]


def _process_traits(word: Word) -> tuple[str, ...] | None:
    """Return keywords (traits) for a target of `kill`, such as `pid` or `all`; None for a shell job."""
    if word.startswith("%"):
        return None  # a job of the current shell
    if not word.is_known:
        return ("unknown",)
    if word == "-1":
        return ("all",)
    if word == "1":
        return ("init", "all")
    if re.fullmatch(r"-[0-9]+|0", word):
        return ("group",)
    return ("pid",)


_PKILL_VALUES = split_names(
    "--signal -u --euid -U --uid -G --group -g --pgroup -P --parent -s --session -t --terminal -F "
    "--pidfile --ns --nslist"
)
_KILLALL_VALUES = split_names(
    "-s --signal -u --user -o --older-than -y --younger-than -n --ns -Z --context -t -c"
)


# Tools that a developer starts to serve, watch or test a project, and command lines that name only them.
_DEVELOPMENT_SERVER = re.compile(
    r"(?:npm|pnpm|yarn|bun)( run)? (?:dev|start|serve|watch|test|storybook|preview)(?::[\w-]+)?"
    r"|(?:npx |node_modules/\.bin/|pnpm |yarn |bunx )?(?:vite(?:st)?|jest|nodemon|ts-node(?:-dev)?|tsx|tsc"
    r"|esbuild|webpack(?:-dev-server)?|rollup|parcel|next(?:-server)?|nuxt|astro|remix|ng|expo|gatsby|hugo"
    r"|jekyll|mkdocs|storybook|turbo|uvicorn|hypercorn|watchexec|browser-sync|live-server|http-server|json-server|wrangler"
    r"|playwright|cypress|chromedriver|geckodriver|pytest|karma|metro|concurrently)(?: [\w./:=@-]+){0,6}"
    r"|(?:python3? )?manage\.py runserver|python3? -m (?:http\.server|flask|uvicorn|pytest)(?: [\w.:-]+)*"
    r"|(?:node|python3?|ruby|bun|tsx|php) (?:[\w-]+/)*[\w-]+\.(?:[cm]?[jt]s|py|rb|php)"
    r"|flask run|rails s(?:erver)?|(?:bin/)?rails server|php artisan serve|php -S [\w.:]+|mix phx\.server"
    r"|cargo (?:watch|run)|go run(?: [\w./-]+)?|\./gradlew bootRun|dotnet watch"
)


def _killall_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = context.run.argv[1:]
    if context.run.name == "killall5":
        yield context.new_effect(EffectKind.PROCESS, "all")
        return
    options = context.parse_options(_PKILL_VALUES if context.run.name == "pkill" else _KILLALL_VALUES)
    if options.has("-l", "--list", "-V", "--version", "--help", "-h") and not options.operands:
        return
    if "-0" in words:
        return
    forced = ("forced",) if any(_KILL_SIGNAL.fullmatch(word) for word in words) else ()
    owner = ("all",) if options.has("-u", "--user", "-U", "--euid", "--uid", "-G", "--group") else ()
    for word in context.iter_operands(options.operands):
        every = ("all",) if re.fullmatch(r"[.*^$]*", word) else ()
        is_own = not owner and word.is_known and _DEVELOPMENT_SERVER.fullmatch(word)
        kind = "own-server" if is_own else "named"
        yield context.new_effect(EffectKind.PROCESS, kind, *forced, *owner, *every, target=word)
    if not options.operands and (owner or options.has("-P", "-g", "-s", "-t", "--parent", "--pgroup")):
        yield context.new_effect(EffectKind.PROCESS, "named", *forced, *owner)


def _fuser_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-n --namespace"))
    if not options.has("-k", "--kill"):
        return
    # With -m, a number is a file, and everything that uses its file system is killed.
    is_known = options.operands and not context.run.has_unknown_operands
    own = is_known and not options.has("-m", "--mount", "-M", "-c")
    kind = "own-server" if own and all(map(_is_development_port, options.operands)) else "named"
    yield context.new_effect(EffectKind.PROCESS, kind, "forced")


_PORT = re.compile(r"(?:(\d{4,5})/tcp|(\d{4,5}))")
_SHARED_SERVER_PORTS = frozenset(
    (1433, 1521, 2375, 2376, 2379, 3306, 5432, 5672, 6379, 6443, 9042, 9092, 9200, 9300, 11211, 27017)
)


def _is_development_port(word: Word) -> bool:
    """Return True if developers run servers at a TCP port, and no databases or clusters."""
    match = _PORT.fullmatch(word)
    return match is not None and int(match[1] or match[2]) not in {*_SHARED_SERVER_PORTS, *range(1024)}


def _taskkill_effects(context: RunContext) -> Iterator[CommandEffect]:
    switches = {word.lower().lstrip("/-") for word in context.run.argv[1:]}
    if switches & {"im", "pid", "fi"}:
        yield context.new_effect(EffectKind.PROCESS, "named", *(("forced",) if "f" in switches else ()))


def _slay_effects(context: RunContext) -> Iterator[CommandEffect]:
    for word in context.iter_operands(context.parse_options().operands):
        yield context.new_effect(EffectKind.PROCESS, "named", target=word)


def _xkill_effects(context: RunContext) -> Iterator[CommandEffect]:
    if len(context.run.argv) == 1 or context.parse_options().has("-a", "-id", "-i"):
        yield context.new_effect(EffectKind.PROCESS, "named")


def _tmux_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = context.run.argv[1:]
    if any(re.fullmatch("kill-(?:server|session|window|pane)|quit|kill", word) for word in words[:6]):
        yield context.new_effect(EffectKind.PROCESS, "named")


_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50, "e": 60}
_SIZE = re.compile(r"[+>%<]?([0-9]{1,15})(?:([kmgtpe])(?:i?b)?)?(?:x.*)?", re.IGNORECASE)
MAX_FILE_BYTES = 100 << 30  # more than most machines have free


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    return int(match[1]) << _UNITS[(match[2] or "").lower()] if match else 0


def _size_effects(context: RunContext, size: int) -> Iterator[CommandEffect]:
    if size >= MAX_FILE_BYTES:
        yield context.new_effect(EffectKind.PROCESS, "huge")


def _sized_file_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield the effect of creating a very large file, for example with `fallocate`."""
    options = context.parse_options(split_names("-l --length -s --size -o --offset -c --bytes -n --lines"))
    size_text = options.value("-l", "--length", "-s", "--size", "-c", "--bytes")
    if context.run.name == "mkfile" and options.operands:
        size_text = options.operands[0]
    only_reads = context.run.name == "head" and not (
        options.operands and options.operands[-1] in _ENDLESS_FILES
    )
    if size_text is not None and not only_reads:
        yield from _size_effects(context, _parse_size(size_text))


def _dd_size_effects(context: RunContext) -> Iterator[CommandEffect]:
    given = dict(word.split("=", 1) for word in context.run.argv[1:32] if "=" in word)
    if given.get("if") in _ENDLESS_FILES and "of" in given:
        yield from _size_effects(
            context, _parse_size(given.get("bs", "512")) * _parse_size(given.get("count", "1"))
        )


_ENDLESS = split_names("yes")
_ENDLESS_FILES = ("/dev/zero", "/dev/urandom", "/dev/random", "/dev/full")


def find_endless_output_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield the effect of a program that writes without end, to a file or in the background."""
    argv = context.run.argv
    endless = bool(argv) and (argv[0] in _ENDLESS or (argv[0] == "cat" and argv[-1] in _ENDLESS_FILES))
    if not endless:
        return
    outputs = [r.target for r in context.run.redirects if r.is_output and r.descriptor in ("", "1")]
    if outputs and (context.run.background or PathKind.STREAM not in context.classify(outputs[-1])):
        yield context.new_effect(EffectKind.PROCESS, "endless")


PROCESS_HANDLERS: EffectHandlers = {
    "kill": _kill_effects,
    **dict.fromkeys(split_names("killall killall5 pkill skill"), _killall_effects),
    "fuser": _fuser_effects,
    **dict.fromkeys(split_names("taskkill tskill"), _taskkill_effects),
    "xkill": _xkill_effects,
    "slay": _slay_effects,
    **dict.fromkeys(split_names("fallocate mkfile head xfs_mkfile"), _sized_file_effects),
    **dict.fromkeys(split_names("dd gdd dcfldd"), _dd_size_effects),
    **dict.fromkeys(split_names("tmux screen"), _tmux_effects),
}
