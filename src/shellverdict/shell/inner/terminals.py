"""Programs that run a command in a terminal of its own, again and again, or later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from shellverdict.shell.inner.generic import command, standard_input
from shellverdict.shell.inner.nouns import Inner, as_typed, joined
from shellverdict.shell.inner.options import read, spec
from shellverdict.shell.runs import STANDARD_INPUT, Run
from shellverdict.shell.words import Word

__all__ = ["READERS"]

_SCRIPT = spec("-c>sh --command>sh -E= --echo= -I= -O= -B= -T= -m= -o= -t? -q -a -e -f -r --quiet --return")


def _script(run: Run) -> Iterator[Inner]:
    """util-linux takes code by -c; BSD takes a command behind the file."""
    reading = read(run.argv[1:], _SCRIPT, stop=False)
    if reading.quits:
        return
    codes = reading.values("-c", "--command")
    for code in codes:
        yield Inner(code=as_typed(code), through="script")
    if not codes:
        yield from command(run, read(run.argv[1:], _SCRIPT).operands[1:], "script")


_FLOCK = spec("-c>sh --command>sh -w= --timeout= --wait= -E= --conflict-exit-code= -s -x -e -u -n -o -F -v")


def _flock(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], _FLOCK)
    if reading.quits:
        return
    behind = read(reading.operands[1:], _FLOCK)
    codes = (*reading.values("-c", "--command"), *behind.values("-c", "--command"))
    for code in codes:
        yield Inner(code=as_typed(code), through="flock")
    if not codes:
        yield from command(run, behind.operands, "flock")


_WATCH = spec(
    "-n= --interval= -q= --equexit= -s= --shotsdir= -x --exec -d? -b -c -C -e -g -p -r -t -w --differences?"
)


def _watch(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], _WATCH)
    if reading.quits or not reading.operands:
        return
    if reading.has("-x", "--exec"):
        yield from command(run, reading.operands, "watch")
    else:
        yield Inner(code=joined(reading.operands), through="watch", more_operands=run.more_operands)


_TMUX = spec("-c= -f= -L= -S= -T= -2 -C -D -l -N -u -v -V!")


_TMUX_NEW = spec("-c= -e= -f= -F= -n= -s= -t= -x= -y= -l= -p= -b -A -d -D -E -P -X -h -v -k -a -Z -I")


_TMUX_SEND = spec("-c= -N= -t= -F -H -K -l -M -R -X")


_TMUX_RUN = spec("-c= -d= -t= -b -C")


_TMUX_OPENS = frozenset(
    [
        "new-session",
        "new",
        "new-window",
        "neww",
        "split-window",
        "splitw",
        "respawn-pane",
        "respawnp",
        "respawn-window",
        "respawnw",
        "display-popup",
        "popup",
    ]
)


_TMUX_RUNS = frozenset(["run-shell", "run", "if-shell", "if", "pipe-pane", "pipep"])


def _tmux(run: Run) -> Iterator[Inner]:
    words = read(run.argv[1:], _TMUX).operands
    for part in _parts(words):
        yield from _tmux_command(part)


def _parts(words: Sequence[Word]) -> Iterator[Sequence[Word]]:
    begin = 0
    for place, word in enumerate(words):
        if word in (";", "\\;"):
            yield words[begin:place]
            begin = place + 1
    yield words[begin:]


def _tmux_command(words: Sequence[Word]) -> Iterator[Inner]:
    if not words:
        return
    name, rest = words[0], words[1:]
    if name in _TMUX_OPENS:
        operands = read(rest, _TMUX_NEW).operands
        if operands:
            yield Inner(code=joined(operands), through="tmux")
    elif name in _TMUX_RUNS:
        for word in read(rest, _TMUX_RUN).operands:
            yield Inner(code=as_typed(word), through="tmux")
    elif name in ("send-keys", "send"):
        yield from _typed_keys(read(rest, _TMUX_SEND).operands)


_KEYS = frozenset({"Enter", "C-m", "KPEnter", "C-j"})


def _typed_keys(words: Sequence[Word]) -> Iterator[Inner]:
    """Keys are typed one after another without blanks between words; Enter ends a line."""
    text = "".join("\n" if word in _KEYS else {"Space": " ", "Tab": "\t"}.get(word, word) for word in words)
    if text.strip():
        yield Inner(code=as_typed(text), through="tmux")


_SCREEN = spec(
    "-c= -e= -h= -p= -S= -s= -t= -T= -U -A -a -d -D -m -O -q -r? -R? -x? -L -l -v! -wipe! -ls! -list! -X:"
)


def _screen(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], _SCREEN)
    if reading.quits:
        return
    if not reading.has("-X"):
        yield from command(run, reading.operands, "screen")
    elif reading.operands[:1] == (Word("stuff"),):
        typed = " ".join(reading.operands[1:])
        for key in ("\\n", "\\r", "\\015", "\\012", "^M", "^J"):
            typed = typed.replace(key, "\n")
        yield Inner(code=as_typed(typed), through="screen")
    elif reading.operands[:1] in ((Word("exec"),), (Word("screen"),)):
        yield from command(run, reading.operands[1:], "screen")


_CRONTAB = spec("-u= -l! -r! -e! -i -s -n -c= -T! -x= -V!")


def _crontab(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], _CRONTAB, stop=False)
    if reading.quits:
        return
    if reading.operands and reading.operands[0] not in STANDARD_INPUT:
        yield Inner(source="file", file=reading.operands[0], language="crontab", through="crontab")
    else:
        yield from standard_input(run, "crontab", "crontab")


_ENTR = spec("-a -c -d -n -p -r -s -x -z")


def _entr(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], _ENTR)
    if reading.has("-s"):
        yield Inner(code=joined(reading.operands), through="entr")
    else:
        words = tuple(Word("./\ufdd0") if word == "/_" else word for word in reading.operands)
        yield from command(run, words, "entr")


def _agent(run: Run) -> Iterator[Inner]:
    """`ssh-agent command`; without one it only prints."""
    reading = read(run.argv[1:], spec("-a= -E= -O= -P= -t= -c -D -d -k! -s"))
    if not reading.quits:
        yield from command(run, reading.operands, "ssh-agent")


def _terminal(run: Run) -> Iterator[Inner]:
    """Terminals take a command behind `--`, `-e` or `-x`."""
    words = run.argv[1:]
    for place, word in enumerate(words):
        if word in ("--", "-e", "-x", "--execute", "--command"):
            yield from command(run, words[place + 1 :], run.name)
            if word in ("-e", "--command") and len(words) > place + 1 and " " in words[place + 1]:
                yield Inner(code=as_typed(words[place + 1]), through=run.name)
            return
        if word.startswith("--command="):
            yield Inner(code=as_typed(word.partition("=")[2]), through=run.name)


READERS: Mapping[str, Callable[[Run], Iterator[Inner]]] = MappingProxyType(
    {
        "script": _script,
        "flock": _flock,
        "lckdo": _flock,
        "watch": _watch,
        "viddy": _watch,
        "tmux": _tmux,
        "byobu": _tmux,
        "screen": _screen,
        "crontab": _crontab,
        "entr": _entr,
        "ssh-agent": _agent,
        "gnome-terminal": _terminal,
        "xfce4-terminal": _terminal,
        "mate-terminal": _terminal,
        "lxterminal": _terminal,
        "terminator": _terminal,
        "tilix": _terminal,
        "x-terminal-emulator": _terminal,
        "urxvt": _terminal,
        "rxvt": _terminal,
        "st": _terminal,
    }
)
