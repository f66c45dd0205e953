"""Programs that run something besides their own work: recipes, hooks, previews, loaders, sandboxes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from shellverdict.shell.inner.generic import command, follow, script
from shellverdict.shell.inner.nouns import Inner, as_typed
from shellverdict.shell.inner.options import read, spec
from shellverdict.shell.inner.programs import programs
from shellverdict.shell.runs import Run
from shellverdict.shell.words import Word

__all__ = ["READERS"]


def _capsh(run: Run) -> Iterator[Inner]:
    """Everything behind `--` or `==` is handed to bash."""
    for place, word in enumerate(run.argv):
        if word in ("--", "=="):
            yield Inner(argv=(Word("bash"), *run.argv[place + 1 :]), through="capsh")
            return


_BWRAP_TWO = frozenset(
    [
        "--ro-bind",
        "--bind",
        "--dev-bind",
        "--bind-try",
        "--ro-bind-try",
        "--dev-bind-try",
        "--symlink",
        "--setenv",
        "--file",
        "--bind-data",
        "--ro-bind-data",
        "--chmod",
        "--remount-ro",
        "--overlay",
    ]
)


_BWRAP_ONE = frozenset(
    [
        "--chdir",
        "--unsetenv",
        "--proc",
        "--dev",
        "--tmpfs",
        "--dir",
        "--mqueue",
        "--lock-file",
        "--sync-fd",
        "--seccomp",
        "--uid",
        "--gid",
        "--hostname",
        "--args",
        "--argv0",
        "--exec-label",
        "--file-label",
        "--block-fd",
        "--userns",
        "--userns2",
        "--pidns",
        "--info-fd",
        "--json-status-fd",
        "--cap-add",
        "--cap-drop",
        "--perms",
        "--size",
        "--add-seccomp-fd",
        "--userns-block-fd",
        "--overlay-src",
    ]
)


def _bwrap(run: Run) -> Iterator[Inner]:
    words, at = run.argv[1:], 0
    while at < len(words) and words[at].startswith("--"):
        if words[at] in ("--", "--help", "--version"):
            at += 1 if words[at] == "--" else len(words)
            break
        at += 3 if words[at] in _BWRAP_TWO else 2 if words[at] in _BWRAP_ONE else 1
    yield from command(run, words[at:], "bwrap")


_PERF = spec(
    "-e= --event= -F= -p= -t= -C= -c= -o= -i= -r= -I= -x= -G= --call-graph= -m= -u= -D= -a -g -d -v -q -s -n"
)


_PERF_RUNS = frozenset({"stat", "record", "trace", "top", "mem", "c2c", "lock", "sched", "kmem", "ftrace"})


def _perf(run: Run) -> Iterator[Inner]:
    words = run.argv[1:]
    if not words or words[0] not in _PERF_RUNS:
        return
    operands = read(words[1:], _PERF).operands
    if operands[:1] == (Word("record"),):
        operands = read(operands[1:], _PERF).operands
    yield from command(run, operands, "perf")


_MAKE = spec(
    "-C= --directory= -f@make --file@make --makefile@make -I= --include-dir= -j? --jobs? -l? "
    "--load-average? -o= --old-file= -W= --what-if= -O? --eval>make -E>make -n! --dry-run! --just-print! "
    "--recon! -q! --question! -v! -p -B -d -e -i -k -r -R -s -S -t -w"
)


def _make(run: Run) -> Iterator[Inner]:
    """Options that give rules, and variables whose values are shell code in the end (SHELL, CC…)."""
    reading = read(run.argv[1:], _MAKE, stop=False)
    if reading.quits:
        return
    for code in reading.values("--eval", "-E"):
        yield Inner(code=as_typed(code), language="make")
    for file in reading.values("-f", "--file", "--makefile"):
        yield from script(run, (file,), "make", "")
    for word in reading.operands:
        name, equals, value = word.partition("=")
        if equals and ("$(shell" in value or name.rstrip(":+?!") in ("SHELL", "MAKE")):
            yield Inner(code=as_typed(value), language="make-value", through="make")


_CMAKE = spec(
    "-P@cmake -C@cmake -S= -B= -G= -D= -U= -T= -A= --toolchain@cmake --build! --install! --open! --workflow!"
)
_CMAKE_TOOLS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"remove_directory": ("rm", "-rf"), "remove": ("rm", "-f"), "rm": ("rm",)}
)


def _cmake(run: Run) -> Iterator[Inner]:
    """`-P script`, and `-E`: a few programs of its own, some of which run others."""
    words = run.argv[1:]
    if words[:1] == (Word("-E"),) and len(words) > 1:
        yield from _cmake_tool(run, words[1], words[2:])
        return
    reading = read(words, _CMAKE, stop=False)
    for name, value in reading.options:
        if value is not None and name in ("-P", "-C", "--toolchain"):
            yield from script(run, (value,), "cmake", "")
        elif value is not None and name == "-D" and "_FILE=" in value:
            yield from script(run, (Word(value.partition("=")[2]),), "cmake", "")


def _cmake_tool(run: Run, tool: Word, words: tuple[Word, ...]) -> Iterator[Inner]:
    if tool in _CMAKE_TOOLS:
        yield Inner(argv=(*(Word(word) for word in _CMAKE_TOOLS[tool]), *words), through="cmake")
    elif tool == "chdir":
        yield from command(run, words[1:], "cmake")
    elif tool == "time":
        yield from command(run, words, "cmake")
    elif tool == "env":
        yield from command(run, (Word("env"), *words), "cmake")


_LD = spec(
    "--library-path= --inhibit-rpath= --audit@binary --preload@binary --argv0= --list! --verify! "
    "--list-tunables!"
)


def _loader(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], _LD)
    if reading.quits:
        return
    for file in reading.values("--audit", "--preload"):
        yield Inner(source="file", file=file, language="binary", through="ld.so")
    yield from command(run, reading.operands, "ld.so")


def _apt(run: Run) -> Iterator[Inner]:
    """apt's and dpkg's settings that are commands to run before or after."""
    settings = read(run.argv[1:], spec("-o= --option= -c= -t= -a="), stop=False).values("-o", "--option")
    for setting in (
        *settings,
        *(w for w in run.argv[1:] if w.startswith(("--pre-invoke=", "--post-invoke="))),
    ):
        name, _, value = setting.partition("=")
        if "invoke" in name.lower() or name.lower().startswith(("dpkg::pre-install", "dir::bin")):
            yield Inner(code=as_typed(value), through=run.name)


def _rpm(run: Run) -> Iterator[Inner]:
    """`rpm --eval '%(command)'`."""
    yield from follow(run, programs()["rpm"], "rpm")
    for word in run.argv[1:]:
        if "%(" in word:
            yield Inner(code=as_typed(word.partition("%(")[2].rstrip(")")), through="rpm")


_FZF_RUNS = re.compile(
    r"\b(?:execute|execute-silent|execute-multi|reload|reload-sync|become|preview|transform)[\[({:~!@#$%^&*;/|](.*)"
)


def _fzf(run: Run) -> Iterator[Inner]:
    """`--preview code`, and `--bind key:execute(code)`."""
    yield from follow(run, programs()["fzf"], "fzf")
    for word in run.argv[1:]:
        if found := _FZF_RUNS.search(word):
            yield Inner(code=as_typed(found[1].rstrip(")]}")), through="fzf")


def _less(run: Run) -> Iterator[Inner]:
    """`less +!command` (and `more`, `most`): what stands behind + is typed at the start."""
    for word in run.argv[1:]:
        if word == "--":
            return
        if word.startswith("+") and "!" in word:
            yield Inner(code=as_typed(word.partition("!")[2]), through="less")


READERS: Mapping[str, Callable[[Run], Iterator[Inner]]] = MappingProxyType(
    {
        "fzf": _fzf,
        "capsh": _capsh,
        "bwrap": _bwrap,
        "perf": _perf,
        "make": _make,
        "gmake": _make,
        "bmake": _make,
        "ld.so": _loader,
        "cmake": _cmake,
        "less": _less,
        "more": _less,
        "most": _less,
        "apt": _apt,
        "apt-get": _apt,
        "aptitude": _apt,
        "dpkg": _apt,
        "rpm": _rpm,
    }
)
