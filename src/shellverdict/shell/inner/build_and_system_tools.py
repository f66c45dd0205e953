"""Find commands that build tools, package managers, pagers, loaders and sandboxes run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from shellverdict.shell.inner.generic import command_from_words, read_table_program, script_from_operands
from shellverdict.shell.inner.inner_command import InnerCommand, to_literal
from shellverdict.shell.inner.option_spec import parse_options, parse_spec
from shellverdict.shell.inner.program_tables import load_programs
from shellverdict.shell.runs import ProgramRun
from shellverdict.shell.words import Word

__all__ = ["READERS"]


def _read_capsh(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the command of `capsh`: the arguments after `--` or `==`, which it passes to bash."""
    for place, word in enumerate(run.argv):
        if word in ("--", "=="):
            yield InnerCommand(argv=(Word("bash"), *run.argv[place + 1 :]), wrapper="capsh")
            return


_BWRAP_TWO_VALUE_OPTIONS = frozenset(
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


_BWRAP_VALUE_OPTIONS = frozenset(
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


def _read_bwrap(run: ProgramRun) -> Iterator[InnerCommand]:
    words, at = run.argv[1:], 0
    while at < len(words) and words[at].startswith("--"):
        if words[at] in ("--", "--help", "--version"):
            at += 1 if words[at] == "--" else len(words)
            break
        at += 3 if words[at] in _BWRAP_TWO_VALUE_OPTIONS else 2 if words[at] in _BWRAP_VALUE_OPTIONS else 1
    yield from command_from_words(run, words[at:], "bwrap")


_PERF = parse_spec(
    "-e= --event= -F= -p= -t= -C= -c= -o= -i= -r= -I= -x= -G= --call-graph= -m= -u= -D= -a -g -d -v -q -s -n"
)


_PERF_SUBCOMMANDS = frozenset(
    {"stat", "record", "trace", "top", "mem", "c2c", "lock", "sched", "kmem", "ftrace"}
)


def _read_perf(run: ProgramRun) -> Iterator[InnerCommand]:
    words = run.argv[1:]
    if not words or words[0] not in _PERF_SUBCOMMANDS:
        return
    operands = parse_options(words[1:], _PERF).operands
    if operands[:1] == (Word("record"),):
        operands = parse_options(operands[1:], _PERF).operands
    yield from command_from_words(run, operands, "perf")


_MAKE = parse_spec(
    "-C= --directory= -f@make --file@make --makefile@make -I= --include-dir= -j? --jobs? -l? "
    "--load-average? -o= --old-file= -W= --what-if= -O? --eval>make -E>make -n! --dry-run! --just-print! "
    "--recon! -q! --question! -v! -p -B -d -e -i -k -r -R -s -S -t -w"
)


def _read_make(run: ProgramRun) -> Iterator[InnerCommand]:
    """Yield the code in make's arguments: `--eval` code, makefiles, and variables that contain commands."""
    reading = parse_options(run.argv[1:], _MAKE, stop_at_operand=False)
    if reading.runs_nothing:
        return
    for code in reading.values("--eval", "-E"):
        yield InnerCommand(code=to_literal(code), language="make")
    for file in reading.values("-f", "--file", "--makefile"):
        yield from script_from_operands(run, (file,), "make", "")
    for word in reading.operands:
        name, equals, value = word.partition("=")
        if equals and ("$(shell" in value or name.rstrip(":+?!") in ("SHELL", "MAKE")):
            yield InnerCommand(code=to_literal(value), language="make-value", wrapper="make")


_CMAKE = parse_spec(
    "-P@cmake -C@cmake -S= -B= -G= -D= -U= -T= -A= --toolchain@cmake --build! --install! --open! --workflow!"
)
_CMAKE_TOOLS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"remove_directory": ("rm", "-rf"), "remove": ("rm", "-f"), "rm": ("rm",)}
)


def _read_cmake(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the scripts of `cmake -P`, and the commands that `cmake -E` runs."""
    words = run.argv[1:]
    if words[:1] == (Word("-E"),) and len(words) > 1:
        yield from _read_cmake_tool(run, words[1], words[2:])
        return
    reading = parse_options(words, _CMAKE, stop_at_operand=False)
    for name, value in reading.options:
        if value is not None and name in ("-P", "-C", "--toolchain"):
            yield from script_from_operands(run, (value,), "cmake", "")
        elif value is not None and name == "-D" and "_FILE=" in value:
            yield from script_from_operands(run, (Word(value.partition("=")[2]),), "cmake", "")


def _read_cmake_tool(run: ProgramRun, tool: Word, words: tuple[Word, ...]) -> Iterator[InnerCommand]:
    if tool in _CMAKE_TOOLS:
        yield InnerCommand(argv=(*(Word(word) for word in _CMAKE_TOOLS[tool]), *words), wrapper="cmake")
    elif tool == "chdir":
        yield from command_from_words(run, words[1:], "cmake")
    elif tool == "time":
        yield from command_from_words(run, words, "cmake")
    elif tool == "env":
        yield from command_from_words(run, (Word("env"), *words), "cmake")


_LD = parse_spec(
    "--library-path= --inhibit-rpath= --audit@binary --preload@binary --argv0= --list! --verify! "
    "--list-tunables!"
)


def _read_loader(run: ProgramRun) -> Iterator[InnerCommand]:
    reading = parse_options(run.argv[1:], _LD)
    if reading.runs_nothing:
        return
    for file in reading.values("--audit", "--preload"):
        yield InnerCommand(source="file", file=file, language="binary", wrapper="ld.so")
    yield from command_from_words(run, reading.operands, "ld.so")


def _read_apt(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the commands in apt and dpkg settings that run before or after an installation."""
    settings = parse_options(
        run.argv[1:], parse_spec("-o= --option= -c= -t= -a="), stop_at_operand=False
    ).values("-o", "--option")
    for setting in (
        *settings,
        *(w for w in run.argv[1:] if w.startswith(("--pre-invoke=", "--post-invoke="))),
    ):
        name, _, value = setting.partition("=")
        if "invoke" in name.lower() or name.lower().startswith(("dpkg::pre-install", "dir::bin")):
            yield InnerCommand(code=to_literal(value), wrapper=run.name)


def _read_rpm(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the command in `rpm --eval '%(command)'`."""
    yield from read_table_program(run, load_programs()["rpm"], "rpm")
    for word in run.argv[1:]:
        if "%(" in word:
            yield InnerCommand(code=to_literal(word.partition("%(")[2].rstrip(")")), wrapper="rpm")


_FZF_ACTION = re.compile(
    r"\b(?:execute|execute-silent|execute-multi|reload|reload-sync|become|preview|transform)[\[({:~!@#$%^&*;/|](.*)"
)


def _read_fzf(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the commands of fzf's options `--preview command` and `--bind key:execute(command)`."""
    yield from read_table_program(run, load_programs()["fzf"], "fzf")
    for word in run.argv[1:]:
        if found := _FZF_ACTION.search(word):
            yield InnerCommand(code=to_literal(found[1].rstrip(")]}")), wrapper="fzf")


def _read_less(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the command of `less +!command`; less executes text after `+` as if it were typed."""
    for word in run.argv[1:]:
        if word == "--":
            return
        if word.startswith("+") and "!" in word:
            yield InnerCommand(code=to_literal(word.partition("!")[2]), wrapper="less")


READERS: Mapping[str, Callable[[ProgramRun], Iterator[InnerCommand]]] = MappingProxyType(
    {
        "fzf": _read_fzf,
        "capsh": _read_capsh,
        "bwrap": _read_bwrap,
        "perf": _read_perf,
        "make": _read_make,
        "gmake": _read_make,
        "bmake": _read_make,
        "ld.so": _read_loader,
        "cmake": _read_cmake,
        "less": _read_less,
        "more": _read_less,
        "most": _read_less,
        "apt": _read_apt,
        "apt-get": _read_apt,
        "aptitude": _read_apt,
        "dpkg": _read_apt,
        "rpm": _read_rpm,
    }
)
