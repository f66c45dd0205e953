"""Find the commands that a wrapper program runs, by `programs.toml` or by a function for the program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from types import MappingProxyType

from shellverdict.names import split_names
from shellverdict.shell.inner import (
    build_and_system_tools,
    find_and_xargs,
    git,
    interpreters,
    remote,
    shells,
    terminals,
)
from shellverdict.shell.inner.environment import commands_from_variables
from shellverdict.shell.inner.generic import read_table_program
from shellverdict.shell.inner.inner_command import UNKNOWN_WORD, InnerCommand, InnerCommandReader
from shellverdict.shell.inner.program_tables import load_programs
from shellverdict.shell.runs import ProgramRun
from shellverdict.shell.words import GAP

__all__ = ["can_run_commands", "find_inner_commands"]

_MAX_INNER_COMMANDS = 256  # per run; what exceeds the limit is treated as unknown


_READERS: Mapping[str, InnerCommandReader] = MappingProxyType(
    {
        **shells.READERS,
        **find_and_xargs.READERS,
        **remote.READERS,
        **terminals.READERS,
        **build_and_system_tools.READERS,
        **interpreters.READERS,
        **git.READERS,
    }
)


def find_inner_commands(run: ProgramRun) -> tuple[InnerCommand, ...]:
    """Return all commands and code that a program runs, as `sudo` and `sh -c` do; empty if it runs none.

    Standard input counts as code only if it is known to be redirected (`run.stdin`).
    """
    everything = chain(
        commands_from_variables(run.env_assignments, run.path or run.name), _read_program_words(run)
    )
    found = tuple(islice(everything, _MAX_INNER_COMMANDS + 1))
    return (
        found
        if len(found) <= _MAX_INNER_COMMANDS
        else (*found[:_MAX_INNER_COMMANDS], InnerCommand(argv=(UNKNOWN_WORD,)))
    )


def _read_program_words(run: ProgramRun) -> Iterator[InnerCommand]:
    name = normalize_program_name(run.name)
    if reader := _READERS.get(name):
        yield from reader(run)
    elif program := load_programs().get(name):
        yield from read_table_program(run, program, name)


_OTHER_RUNNERS = split_names(
    "m4 gcc g++ cc c++ clang clang++ gfortran cpp ld rpmspec rpmbuild tmux screen zellij dtach abduco "
    "compgen complete autoconf automake autoreconf ctags cscope groff troff pdflatex gs ffmpeg convert "
    "magick dot mc ranger nnn lf dpkg-buildpackage debuild mock logrotate procmail fetchmail getmail irssi "
    "weechat newsboat mpv vlc xterm"
)


def can_run_commands(run: ProgramRun) -> bool:
    """Return True if the program is known to run other programs or code from its arguments or input."""
    name = normalize_program_name(run.name)
    return name in _READERS or name in load_programs() or name in _OTHER_RUNNERS


_PROGRAM_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "nodejs": "node",
        "gawk": "awk",
        "mawk": "awk",
        "nawk": "awk",
        "original-awk": "awk",
        "gsed": "sed",
        "gtar": "tar",
        "bsdtar": "tar",
        "mariadb": "mysql",
        "mongo": "mongosh",
        "sqlite": "sqlite3",
        "r": "R",
        "rscript": "Rscript",
        "batcat": "bat",
        "fdfind": "fd",
        "gfind": "find",
        "gxargs": "xargs",
        "genv": "env",
        "gnice": "nice",
        "gnohup": "nohup",
        "gstdbuf": "stdbuf",
        "gsplit": "split",
        "gsort": "sort",
        "gchroot": "chroot",
        "kubecolor": "kubectl",
        "x86_64": "linux64",
        "uname26": "linux64",
        "ppc64": "linux64",
        "proxychains4": "proxychains",
        "clickhouse": "clickhouse-client",
        "clickhouse-local": "clickhouse-client",
        "red": "ed",
        "nushell": "nu",
        "strace64": "strace",
        "fakeroot-ng": "fakeroot",
        "cmd.exe": "cmd",
    }
)


def normalize_program_name(name: str) -> str:
    """Return the canonical program name: without version, `.exe` suffix or distribution prefix."""
    if GAP in name:
        return ""
    name = name.removesuffix(".exe")
    for spelled in (name, name.lower()):
        spelled = _PROGRAM_ALIASES.get(spelled, spelled)
        if spelled in _READERS or spelled in load_programs():
            return spelled
        bare = spelled.rstrip("0123456789.-")
        bare = _PROGRAM_ALIASES.get(bare, bare)
        if bare != spelled and (bare in _READERS or bare in load_programs()):
            return bare
    if name.startswith(("ld-linux", "ld-musl", "ld.so", "ld64.so", "ld-2")):
        return "ld.so"
    return name
