"""Shells, and what makes the running shell read more code: `eval`, `source`, `trap`."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from shellverdict.shell.inner.environment import from_assignments
from shellverdict.shell.inner.generic import assignments, script, standard_input
from shellverdict.shell.inner.nouns import UNKNOWN, Inner, Reader, as_typed, joined
from shellverdict.shell.inner.options import read, spec
from shellverdict.shell.runs import STANDARD_INPUT, Run
from shellverdict.shell.words import Word

__all__ = ["READERS"]

_LONG_WITH_FILE = frozenset({"--rcfile", "--init-file"})
_LONG_WITH_VALUE = frozenset({"--emulate"})


@dataclass(slots=True)
class _Shell:
    """The options of a Bourne-like shell: clusters, `+` as well as `-`, and -c as a flag, not as a value."""

    flags: set[str] = field(default_factory=set)
    files: list[Word] = field(default_factory=list)
    operands: tuple[Word, ...] = ()

    @classmethod
    def of(cls, words: tuple[Word, ...]) -> _Shell:
        self, at = cls(), 0
        while at < len(words):
            word = words[at]
            at += 1
            name = word.partition("=")[0]
            if word == "-" and "c" not in self.flags:
                break
            if word in ("--", "-"):
                break
            if name in _LONG_WITH_FILE and at <= len(words):
                value = (
                    Word(word.partition("=")[2]) if "=" in word else (words[at] if at < len(words) else None)
                )
                at += "=" not in word
                self.files += [value] if value else []
            elif name.startswith("--"):
                self.flags.add(name)
                at += name in _LONG_WITH_VALUE and "=" not in word
            elif len(word) > 1 and word[0] in "-+":
                self.flags |= set(word[1:]) if word[0] == "-" else set()
                at += sum(letter in "oO" for letter in word[1:9])
            else:
                at -= 1
                break
        self.operands = words[at:]
        return self


def _shell(run: Run) -> Iterator[Inner]:
    shell = _Shell.of(run.argv[1:])
    if shell.flags & {"--version", "--help", "n", "D", "--dump-strings", "--dump-po-strings"}:
        return
    for file in shell.files:
        yield Inner(source="file", file=file)
    if "c" in shell.flags:
        yield from _given(run, shell)
    elif "s" in shell.flags:
        yield from standard_input(run, "sh", arguments=shell.operands)
    else:
        yield from script(run, shell.operands, "sh", "")


def _given(run: Run, shell: _Shell) -> Iterator[Inner]:
    if shell.operands:
        yield Inner(
            code=as_typed(shell.operands[0]), arguments=shell.operands[1:], more_operands=run.more_operands
        )
    elif run.more_operands:
        yield Inner(source="stdin")


_COMPGEN = spec("-W= -C>sh -F= -P= -S= -X= -A= -G= -o=")


def _compgen(run: Run) -> Iterator[Inner]:
    """Completion: the words of -W are expanded, -C is a command, -F a function."""
    reading = read(run.argv[1:], _COMPGEN, stop=False)
    for words in reading.values("-W"):
        if "$" in words or "`" in words:
            yield Inner(code=Word(f"echo {as_typed(words)}"), through=run.name)
    for code in reading.values("-C"):
        yield Inner(code=as_typed(code), through=run.name, more_operands=True)
    for function in reading.values("-F"):
        yield Inner(argv=(function,), through=run.name)


def _history(run: Run) -> Iterator[Inner]:
    """A line that is put into the history is there to be run by `fc` or `!`."""
    if run.argv[1:2] == (Word("-s"),):
        yield Inner(code=joined(run.argv[2:]), through="history")


_FC = spec("-e= -l! -n -r -s -L! -R! -W! -A! -I! -p! -P!")


def _fc(run: Run) -> Iterator[Inner]:
    """`fc` runs a line of the history, which is not known here."""
    if not read(run.argv[1:], _FC).quits:
        yield Inner(argv=(UNKNOWN,), through="fc")


_NU = spec("-c>sh --commands>sh -e>sh --execute>sh -h! -v! --config= --env-config= --log-level= -t= -I=")
_OUTSIDE = re.compile(r"(^|[\s|;({])\^(?=[\w./~])")


def _nu(run: Run) -> Iterator[Inner]:
    """Nushell's own words are much like any shell's; a caret only says that a program is meant."""
    reading = read(run.argv[1:], _NU)
    if reading.quits:
        return
    codes = reading.values("-c", "--commands", "-e", "--execute")
    for code in codes:
        yield Inner(code=as_typed(_OUTSIDE.sub(r"\1", code)), arguments=reading.operands)
    if not codes:
        yield from script(run, reading.operands, "sh", "")


_FISH = spec(
    "-c>fish --command>fish -C>fish --init-command>fish -n! --no-execute! -v! -h! -d= --debug= -o= "
    "--debug-output= -f= --features= --profile= --profile-startup= -p= -i -l -N -P --interactive --login "
    "--no-config --private"
)


def _fish(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], _FISH)
    if reading.quits:
        return
    codes = reading.values("-c", "--command", "-C", "--init-command")
    for code in codes:
        yield Inner(code=as_typed(code), language="fish", arguments=reading.operands)
    if not reading.values("-c", "--command"):
        yield from script(run, reading.operands, "fish", "")


def _eval(run: Run) -> Iterator[Inner]:
    words = run.argv[1:]
    words = words[1:] if words[:1] == (Word("--"),) else words
    if words:
        yield Inner(code=joined(words))
    elif run.more_operands:
        yield Inner(source="stdin")


def _source(run: Run) -> Iterator[Inner]:
    words = run.argv[1:]
    if words[:1] == (Word("-p"),):
        words = words[2:]
    words = words[1:] if words[:1] == (Word("--"),) else words
    if words and words[0] in STANDARD_INPUT:
        yield from standard_input(run, "sh", arguments=words[1:])
    elif words:
        yield Inner(source="file", file=words[0], arguments=words[1:])


def _trap(run: Run) -> Iterator[Inner]:
    words = run.argv[1:]
    words = words[1:] if words[:1] == (Word("--"),) else words
    if len(words) > 1 and words[0] not in ("-", "") and words[0][0] != "-":
        yield Inner(code=as_typed(words[0]), through="trap")


def _export(run: Run) -> Iterator[Inner]:
    """`export PAGER=…` works on every program that comes later."""
    for word in run.argv[1:]:
        assigned, _ = assignments((word,))
        yield from from_assignments(assigned)


def _callback(run: Run) -> Iterator[Inner]:
    """`mapfile -C code`, `bind -x '"key": code'`."""
    wanted = "-x" if run.name == "bind" else "-C"
    words = run.argv[1:]
    for place, word in enumerate(words[:-1]):
        if word == wanted:
            code = words[place + 1]
            code = Word(code.partition(":")[2]) if wanted == "-x" else code
            yield Inner(code=as_typed(code), through=run.name, more_operands=True)


def _powershell(run: Run) -> Iterator[Inner]:
    """PowerShell's options are read without regard to case, and shortened at will."""
    words = run.argv[1:]
    at = 0
    while at < len(words):
        name = words[at].lower()
        key = "-" + name.lstrip("-/") if name[:1] in ("-", "/") else ""
        at += 1
        if not key:
            at -= 1
            break
        if _means(key, "-command", 2) or _means(key, "-commandwithargs", 9) or key == "-cwa":
            yield from _typed_or_piped(run, words[at:])
            return
        if _means(key, "-encodedcommand", 2) or key == "-ec":
            yield from _encoded(words[at : at + 1])
            return
        if _means(key, "-file", 2):
            yield from script(run, words[at:], "powershell", "")
            return
        if _means(key, "-version", 2) or _means(key, "-help", 2) or key == "-?":
            return
        at += any(_means(key, long, least) for long, least in _POWERSHELL_VALUES)
    if run.name.lower().startswith("pwsh") or not words[at:]:
        yield from script(run, words[at:], "powershell", "")
    else:
        yield from _typed_or_piped(run, words[at:])


_POWERSHELL_VALUES = (
    ("-executionpolicy", 3),
    ("-ep", 3),
    ("-windowstyle", 2),
    ("-inputformat", 3),
    ("-outputformat", 2),
    ("-psconsolefile", 2),
    ("-configurationname", 4),
    ("-workingdirectory", 3),
    ("-settingsfile", 3),
)


def _means(given: str, full: str, least: int) -> bool:
    return len(given) >= least and full.startswith(given)


def _typed_or_piped(run: Run, words: tuple[Word, ...]) -> Iterator[Inner]:
    if words[:1] == (Word("-"),) or not words:
        yield from standard_input(run, "powershell")
    else:
        yield Inner(code=joined(words), language="powershell")


def _encoded(words: tuple[Word, ...]) -> Iterator[Inner]:
    for word in words:
        yield Inner(code=_utf16(word), language="powershell", through="encoded")


def _utf16(word: Word) -> Word:
    try:
        text = base64.b64decode(word + "=" * (-len(word) % 4), validate=True).decode("utf-16-le")
    except (binascii.Error, ValueError):
        return UNKNOWN
    return Word(text)


def _cmd(run: Run) -> Iterator[Inner]:
    words = run.argv[1:]
    for place, word in enumerate(words):
        if word.lower() in ("/c", "/k", "/r"):
            yield Inner(code=joined(words[place + 1 :]), language="cmd")
            return
    yield from standard_input(run, "cmd")


READERS: Mapping[str, Reader] = MappingProxyType(
    {
        **dict.fromkeys(
            [
                "sh",
                "bash",
                "dash",
                "zsh",
                "ksh",
                "mksh",
                "ash",
                "rbash",
                "rksh",
                "rzsh",
                "yash",
                "posh",
                "pdksh",
                "oksh",
                "loksh",
                "lksh",
                "csh",
                "tcsh",
                "elvish",
                "xonsh",
                "rc",
                "es",
                "ion",
                "nash",
                "osh",
            ],
            _shell,
        ),
        "fish": _fish,
        "nu": _nu,
        "eval": _eval,
        "source": _source,
        ".": _source,
        "trap": _trap,
        **dict.fromkeys(["export", "declare", "typeset", "readonly", "local", "setenv"], _export),
        **dict.fromkeys(["mapfile", "readarray", "bind"], _callback),
        **dict.fromkeys(["complete", "compgen"], _compgen),
        "history": _history,
        "fc": _fc,
        "pwsh": _powershell,
        "powershell": _powershell,
        "pwsh-preview": _powershell,
        "cmd": _cmd,
    }
)
