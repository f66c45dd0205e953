"""From a run to what it runs, by the tables or by a reader of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from types import MappingProxyType

from shellverdict.names import names
from shellverdict.shell.inner import carriers, git, hosts, interpreters, lists, shells, terminals
from shellverdict.shell.inner.environment import from_assignments
from shellverdict.shell.inner.generic import follow
from shellverdict.shell.inner.nouns import UNKNOWN, Inner, Reader
from shellverdict.shell.inner.programs import programs
from shellverdict.shell.runs import Run
from shellverdict.shell.words import GAP

__all__ = ["inner", "runs_others"]

_MOST = 256  # things one run runs; what comes behind them is as good as unknown


_READERS: Mapping[str, Reader] = MappingProxyType(
    {
        **shells.READERS,
        **lists.READERS,
        **hosts.READERS,
        **terminals.READERS,
        **carriers.READERS,
        **interpreters.READERS,
        **git.READERS,
    }
)


def inner(run: Run) -> tuple[Inner, ...]:
    """Everything a run runs in turn; nothing where it only does its own work.

    Standard input counts as code only where it is known to come from somewhere (`run.stdin`).
    """
    everything = chain(from_assignments(run.assigned, run.path or run.name), _of_program(run))
    found = tuple(islice(everything, _MOST + 1))
    return found if len(found) <= _MOST else (*found[:_MOST], Inner(argv=(UNKNOWN,)))


def _of_program(run: Run) -> Iterator[Inner]:
    name = program_name(run.name)
    if reader := _READERS.get(name):
        yield from reader(run)
    elif program := programs().get(name):
        yield from follow(run, program, name)


_CARRIERS = names(
    "m4 gcc g++ cc c++ clang clang++ gfortran cpp ld rpmspec rpmbuild tmux screen zellij dtach abduco "
    "compgen complete autoconf automake autoreconf ctags cscope groff troff pdflatex gs ffmpeg convert "
    "magick dot mc ranger nnn lf dpkg-buildpackage debuild mock logrotate procmail fetchmail getmail irssi "
    "weechat newsboat mpv vlc xterm"
)


def runs_others(run: Run) -> bool:
    """Whether the program is one that is known to run others, or code, by some of its words or its input."""
    name = program_name(run.name)
    return name in _READERS or name in programs() or name in _CARRIERS


_SAME: Mapping[str, str] = MappingProxyType(
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


def program_name(name: str) -> str:
    """The name a program is known by: without the version, the ending, or a distribution's prefix."""
    if GAP in name:
        return ""
    name = name.removesuffix(".exe")
    for spelled in (name, name.lower()):
        spelled = _SAME.get(spelled, spelled)
        if spelled in _READERS or spelled in programs():
            return spelled
        bare = spelled.rstrip("0123456789.-")
        bare = _SAME.get(bare, bare)
        if bare != spelled and (bare in _READERS or bare in programs()):
            return bare
    if name.startswith(("ld-linux", "ld-musl", "ld.so", "ld64.so", "ld-2")):
        return "ld.so"
    return name
