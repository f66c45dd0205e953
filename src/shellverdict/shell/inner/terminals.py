"""Find commands that run in another terminal, repeatedly, or later: tmux, watch, at and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from shellverdict.shell.inner.generic import code_from_stdin, command_from_words
from shellverdict.shell.inner.inner_command import InnerCommand, join_words, to_literal
from shellverdict.shell.inner.option_spec import parse_options, parse_spec
from shellverdict.shell.runs import STDIN_PATHS, ProgramRun
from shellverdict.shell.words import Word

__all__ = ["READERS"]

_SCRIPT = parse_spec(
    "-c>sh --command>sh -E= --echo= -I= -O= -B= -T= -m= -o= -t? -q -a -e -f -r --quiet --return"
)


def _read_script(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the command of `script`: the code after `-c` (util-linux), or the words after the file (BSD)."""
    reading = parse_options(run.argv[1:], _SCRIPT, stop_at_operand=False)
    if reading.runs_nothing:
        return
    codes = reading.values("-c", "--command")
    for code in codes:
        yield InnerCommand(code=to_literal(code), wrapper="script")
    if not codes:
        yield from command_from_words(run, parse_options(run.argv[1:], _SCRIPT).operands[1:], "script")


_FLOCK = parse_spec(
    "-c>sh --command>sh -w= --timeout= --wait= -E= --conflict-exit-code= -s -x -e -u -n -o -F -v"
)


def _read_flock(run: ProgramRun) -> Iterator[InnerCommand]:
    reading = parse_options(run.argv[1:], _FLOCK)
    if reading.runs_nothing:
        return
    behind = parse_options(reading.operands[1:], _FLOCK)
    codes = (*reading.values("-c", "--command"), *behind.values("-c", "--command"))
    for code in codes:
        yield InnerCommand(code=to_literal(code), wrapper="flock")
    if not codes:
        yield from command_from_words(run, behind.operands, "flock")


_WATCH = parse_spec(
    "-n= --interval= -q= --equexit= -s= --shotsdir= -x --exec -d? -b -c -C -e -g -p -r -t -w --differences?"
)


def _read_watch(run: ProgramRun) -> Iterator[InnerCommand]:
    reading = parse_options(run.argv[1:], _WATCH)
    if reading.runs_nothing or not reading.operands:
        return
    if reading.has("-x", "--exec"):
        yield from command_from_words(run, reading.operands, "watch")
    else:
        yield InnerCommand(
            code=join_words(reading.operands), wrapper="watch", has_unknown_operands=run.has_unknown_operands
        )


_TMUX = parse_spec("-c= -f= -L= -S= -T= -2 -C -D -l -N -u -v -V!")


_TMUX_NEW = parse_spec("-c= -e= -f= -F= -n= -s= -t= -x= -y= -l= -p= -b -A -d -D -E -P -X -h -v -k -a -Z -I")


_TMUX_SEND = parse_spec("-c= -N= -t= -F -H -K -l -M -R -X")


_TMUX_RUN = parse_spec("-c= -d= -t= -b -C")


_TMUX_WINDOW_COMMANDS = frozenset(
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


_TMUX_RUN_COMMANDS = frozenset(["run-shell", "run", "if-shell", "if", "pipe-pane", "pipep"])


def _read_tmux(run: ProgramRun) -> Iterator[InnerCommand]:
    words = parse_options(run.argv[1:], _TMUX).operands
    for part in _split_tmux_commands(words):
        yield from _read_tmux_command(part)


def _split_tmux_commands(words: Sequence[Word]) -> Iterator[Sequence[Word]]:
    begin = 0
    for place, word in enumerate(words):
        if word in (";", "\\;"):
            yield words[begin:place]
            begin = place + 1
    yield words[begin:]


def _read_tmux_command(words: Sequence[Word]) -> Iterator[InnerCommand]:
    if not words:
        return
    name, rest = words[0], words[1:]
    if name in _TMUX_WINDOW_COMMANDS:
        operands = parse_options(rest, _TMUX_NEW).operands
        if operands:
            yield InnerCommand(code=join_words(operands), wrapper="tmux")
    elif name in _TMUX_RUN_COMMANDS:
        for word in parse_options(rest, _TMUX_RUN).operands:
            yield InnerCommand(code=to_literal(word), wrapper="tmux")
    elif name in ("send-keys", "send"):
        yield from _code_from_keys(parse_options(rest, _TMUX_SEND).operands)


_ENTER_KEYS = frozenset({"Enter", "C-m", "KPEnter", "C-j"})


def _code_from_keys(words: Sequence[Word]) -> Iterator[InnerCommand]:
    """Return the text that `tmux send-keys` types, as shell code; the key Enter ends a line."""
    text = "".join(
        "\n" if word in _ENTER_KEYS else {"Space": " ", "Tab": "\t"}.get(word, word) for word in words
    )
    if text.strip():
        yield InnerCommand(code=to_literal(text), wrapper="tmux")


_SCREEN = parse_spec(
    "-c= -e= -h= -p= -S= -s= -t= -T= -U -A -a -d -D -m -O -q -r? -R? -x? -L -l -v! -wipe! -ls! -list! -X:"
)


def _read_screen(run: ProgramRun) -> Iterator[InnerCommand]:
    reading = parse_options(run.argv[1:], _SCREEN)
    if reading.runs_nothing:
        return
    if not reading.has("-X"):
        yield from command_from_words(run, reading.operands, "screen")
    elif reading.operands[:1] == (Word("stuff"),):
        typed = " ".join(reading.operands[1:])
        for key in ("\\n", "\\r", "\\015", "\\012", "^M", "^J"):
            typed = typed.replace(key, "\n")
        yield InnerCommand(code=to_literal(typed), wrapper="screen")
    elif reading.operands[:1] in ((Word("exec"),), (Word("screen"),)):
        yield from command_from_words(run, reading.operands[1:], "screen")


_CRONTAB = parse_spec("-u= -l! -r! -e! -i -s -n -c= -T! -x= -V!")


def _read_crontab(run: ProgramRun) -> Iterator[InnerCommand]:
    reading = parse_options(run.argv[1:], _CRONTAB, stop_at_operand=False)
    if reading.runs_nothing:
        return
    if reading.operands and reading.operands[0] not in STDIN_PATHS:
        yield InnerCommand(source="file", file=reading.operands[0], language="crontab", wrapper="crontab")
    else:
        yield from code_from_stdin(run, "crontab", "crontab")


_ENTR = parse_spec("-a -c -d -n -p -r -s -x -z")


def _read_entr(run: ProgramRun) -> Iterator[InnerCommand]:
    reading = parse_options(run.argv[1:], _ENTR)
    if reading.has("-s"):
        yield InnerCommand(code=join_words(reading.operands), wrapper="entr")
    else:
        words = tuple(Word("./\ufdd0") if word == "/_" else word for word in reading.operands)
        yield from command_from_words(run, words, "entr")


def _read_ssh_agent(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the command of `ssh-agent command`; nothing if ssh-agent is given no command."""
    reading = parse_options(run.argv[1:], parse_spec("-a= -E= -O= -P= -t= -c -D -d -k! -s"))
    if not reading.runs_nothing:
        yield from command_from_words(run, reading.operands, "ssh-agent")


def _read_terminal(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the command that a terminal emulator runs, given after `--`, `-e` or `-x`."""
    words = run.argv[1:]
    for place, word in enumerate(words):
        if word in ("--", "-e", "-x", "--execute", "--command"):
            yield from command_from_words(run, words[place + 1 :], run.name)
            if word in ("-e", "--command") and len(words) > place + 1 and " " in words[place + 1]:
                yield InnerCommand(code=to_literal(words[place + 1]), wrapper=run.name)
            return
        if word.startswith("--command="):
            yield InnerCommand(code=to_literal(word.partition("=")[2]), wrapper=run.name)


READERS: Mapping[str, Callable[[ProgramRun], Iterator[InnerCommand]]] = MappingProxyType(
    {
        "script": _read_script,
        "flock": _read_flock,
        "lckdo": _read_flock,
        "watch": _read_watch,
        "viddy": _read_watch,
        "tmux": _read_tmux,
        "byobu": _read_tmux,
        "screen": _read_screen,
        "crontab": _read_crontab,
        "entr": _read_entr,
        "ssh-agent": _read_ssh_agent,
        "gnome-terminal": _read_terminal,
        "xfce4-terminal": _read_terminal,
        "mate-terminal": _read_terminal,
        "lxterminal": _read_terminal,
        "terminator": _read_terminal,
        "tilix": _read_terminal,
        "x-terminal-emulator": _read_terminal,
        "urxvt": _read_terminal,
        "rxvt": _read_terminal,
        "st": _read_terminal,
    }
)
