"""Find code that shells run, and code that builtins such as `eval`, `source` and `trap` run."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from shellverdict.shell.inner.environment import commands_from_variables
from shellverdict.shell.inner.generic import code_from_stdin, script_from_operands, split_assignments
from shellverdict.shell.inner.inner_command import (
    UNKNOWN_WORD,
    InnerCommand,
    InnerCommandReader,
    join_words,
    to_literal,
)
from shellverdict.shell.inner.option_spec import parse_options, parse_spec
from shellverdict.shell.runs import STDIN_PATHS, ProgramRun
from shellverdict.shell.words import Word

__all__ = ["READERS"]

_FILE_OPTIONS = frozenset({"--rcfile", "--init-file"})
_LONG_VALUE_OPTIONS = frozenset({"--emulate"})


@dataclass(slots=True)
class _ShellOptions:
    """Options and operands of a Bourne-like shell. The code of `-c` is the first operand."""

    flags: set[str] = field(default_factory=set)
    files: list[Word] = field(default_factory=list)
    operands: tuple[Word, ...] = ()

    @classmethod
    def parse(cls, words: tuple[Word, ...]) -> _ShellOptions:
        self, at = cls(), 0
        while at < len(words):
            word = words[at]
            at += 1
            name = word.partition("=")[0]
            if word == "-" and "c" not in self.flags:
                break
            if word in ("--", "-"):
                break
            if name in _FILE_OPTIONS and at <= len(words):
                value = (
                    Word(word.partition("=")[2]) if "=" in word else (words[at] if at < len(words) else None)
                )
                at += "=" not in word
                self.files += [value] if value else []
            elif name.startswith("--"):
                self.flags.add(name)
                at += name in _LONG_VALUE_OPTIONS and "=" not in word
            elif len(word) > 1 and word[0] in "-+":
                self.flags |= set(word[1:]) if word[0] == "-" else set()
                at += sum(letter in "oO" for letter in word[1:9])
            else:
                at -= 1
                break
        self.operands = words[at:]
        return self


def _read_shell(run: ProgramRun) -> Iterator[InnerCommand]:
    shell = _ShellOptions.parse(run.argv[1:])
    if shell.flags & {"--version", "--help", "n", "D", "--dump-strings", "--dump-po-strings"}:
        return
    for file in shell.files:
        yield InnerCommand(source="file", file=file)
    if "c" in shell.flags:
        yield from _read_inline_code(run, shell)
    elif "s" in shell.flags:
        yield from code_from_stdin(run, "sh", arguments=shell.operands)
    else:
        yield from script_from_operands(run, shell.operands, "sh", "")


def _read_inline_code(run: ProgramRun, shell: _ShellOptions) -> Iterator[InnerCommand]:
    if shell.operands:
        yield InnerCommand(
            code=to_literal(shell.operands[0]),
            arguments=shell.operands[1:],
            has_unknown_operands=run.has_unknown_operands,
        )
    elif run.has_unknown_operands:
        yield InnerCommand(source="stdin")


_COMPGEN = parse_spec("-W= -C>sh -F= -P= -S= -X= -A= -G= -o=")


def _read_compgen(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the code that options of `compgen` make bash run: words (`-W`), a command, a function."""
    reading = parse_options(run.argv[1:], _COMPGEN, stop_at_operand=False)
    for words in reading.values("-W"):
        if "$" in words or "`" in words:
            yield InnerCommand(code=Word(f"echo {to_literal(words)}"), wrapper=run.name)
    for code in reading.values("-C"):
        yield InnerCommand(code=to_literal(code), wrapper=run.name, has_unknown_operands=True)
    for function in reading.values("-F"):
        yield InnerCommand(argv=(function,), wrapper=run.name)


def _read_history(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the line that `history -s` adds, which `fc` or `!` can run later."""
    if run.argv[1:2] == (Word("-s"),):
        yield InnerCommand(code=join_words(run.argv[2:]), wrapper="history")


_FC = parse_spec("-e= -l! -n -r -s -L! -R! -W! -A! -I! -p! -P!")


def _read_fc(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return an unknown command for `fc`, which runs a line of the shell history."""
    if not parse_options(run.argv[1:], _FC).runs_nothing:
        yield InnerCommand(argv=(UNKNOWN_WORD,), wrapper="fc")


_NU = parse_spec(
    "-c>sh --commands>sh -e>sh --execute>sh -h! -v! --config= --env-config= --log-level= -t= -I="
)
_EXTERNAL_CARET = re.compile(r"(^|[\s|;({])\^(?=[\w./~])")


def _read_nu(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return Nushell code as shell code, without the `^` that marks external programs."""
    reading = parse_options(run.argv[1:], _NU)
    if reading.runs_nothing:
        return
    codes = reading.values("-c", "--commands", "-e", "--execute")
    for code in codes:
        yield InnerCommand(code=to_literal(_EXTERNAL_CARET.sub(r"\1", code)), arguments=reading.operands)
    if not codes:
        yield from script_from_operands(run, reading.operands, "sh", "")


_FISH = parse_spec(
    "-c>fish --command>fish -C>fish --init-command>fish -n! --no-execute! -v! -h! -d= --debug= -o= "
    "--debug-output= -f= --features= --profile= --profile-startup= -p= -i -l -N -P --interactive --login "
    "--no-config --private"
)


def _read_fish(run: ProgramRun) -> Iterator[InnerCommand]:
    reading = parse_options(run.argv[1:], _FISH)
    if reading.runs_nothing:
        return
    codes = reading.values("-c", "--command", "-C", "--init-command")
    for code in codes:
        yield InnerCommand(code=to_literal(code), language="fish", arguments=reading.operands)
    if not reading.values("-c", "--command"):
        yield from script_from_operands(run, reading.operands, "fish", "")


def _read_eval(run: ProgramRun) -> Iterator[InnerCommand]:
    words = run.argv[1:]
    words = words[1:] if words[:1] == (Word("--"),) else words
    if words:
        yield InnerCommand(code=join_words(words))
    elif run.has_unknown_operands:
        yield InnerCommand(source="stdin")


def _read_source(run: ProgramRun) -> Iterator[InnerCommand]:
    words = run.argv[1:]
    if words[:1] == (Word("-p"),):
        words = words[2:]
    words = words[1:] if words[:1] == (Word("--"),) else words
    if words and words[0] in STDIN_PATHS:
        yield from code_from_stdin(run, "sh", arguments=words[1:])
    elif words:
        yield InnerCommand(source="file", file=words[0], arguments=words[1:])


def _read_trap(run: ProgramRun) -> Iterator[InnerCommand]:
    words = run.argv[1:]
    words = words[1:] if words[:1] == (Word("--"),) else words
    if len(words) > 1 and words[0] not in ("-", "") and words[0][0] != "-":
        yield InnerCommand(code=to_literal(words[0]), wrapper="trap")


def _read_export(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the commands that exported variables such as PAGER make later programs run."""
    for word in run.argv[1:]:
        assigned, _ = split_assignments((word,))
        yield from commands_from_variables(assigned)


def _read_callback(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the code that `mapfile -C code` or `bind -x '"key": code'` registers to run later."""
    wanted = "-x" if run.name == "bind" else "-C"
    words = run.argv[1:]
    for place, word in enumerate(words[:-1]):
        if word == wanted:
            code = words[place + 1]
            code = Word(code.partition(":")[2]) if wanted == "-x" else code
            yield InnerCommand(code=to_literal(code), wrapper=run.name, has_unknown_operands=True)


def _read_powershell(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the code in PowerShell's options, which ignore case and may be abbreviated."""
    words = run.argv[1:]
    at = 0
    while at < len(words):
        name = words[at].lower()
        key = "-" + name.lstrip("-/") if name[:1] in ("-", "/") else ""
        at += 1
        if not key:
            at -= 1
            break
        if (
            _is_abbreviation_of(key, "-command", 2)
            or _is_abbreviation_of(key, "-commandwithargs", 9)
            or key == "-cwa"
        ):
            yield from _code_from_words_or_stdin(run, words[at:])
            return
        if _is_abbreviation_of(key, "-encodedcommand", 2) or key == "-ec":
            yield from _read_encoded_command(words[at : at + 1])
            return
        if _is_abbreviation_of(key, "-file", 2):
            yield from script_from_operands(run, words[at:], "powershell", "")
            return
        if _is_abbreviation_of(key, "-version", 2) or _is_abbreviation_of(key, "-help", 2) or key == "-?":
            return
        at += any(
            _is_abbreviation_of(key, long, min_length) for long, min_length in _POWERSHELL_VALUE_OPTIONS
        )
    if run.name.lower().startswith("pwsh") or not words[at:]:
        yield from script_from_operands(run, words[at:], "powershell", "")
    else:
        yield from _code_from_words_or_stdin(run, words[at:])


_POWERSHELL_VALUE_OPTIONS = (
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


def _is_abbreviation_of(name: str, full: str, min_length: int) -> bool:
    return len(name) >= min_length and full.startswith(name)


def _code_from_words_or_stdin(run: ProgramRun, words: tuple[Word, ...]) -> Iterator[InnerCommand]:
    if words[:1] == (Word("-"),) or not words:
        yield from code_from_stdin(run, "powershell")
    else:
        yield InnerCommand(code=join_words(words), language="powershell")


def _read_encoded_command(words: tuple[Word, ...]) -> Iterator[InnerCommand]:
    for word in words:
        yield InnerCommand(code=_decode_utf16(word), language="powershell", wrapper="encoded")


def _decode_utf16(word: Word) -> Word:
    try:
        text = base64.b64decode(word + "=" * (-len(word) % 4), validate=True).decode("utf-16-le")
    except (binascii.Error, ValueError):
        return UNKNOWN_WORD
    return Word(text)


def _read_cmd(run: ProgramRun) -> Iterator[InnerCommand]:
    words = run.argv[1:]
    for place, word in enumerate(words):
        if word.lower() in ("/c", "/k", "/r"):
            yield InnerCommand(code=join_words(words[place + 1 :]), language="cmd")
            return
    yield from code_from_stdin(run, "cmd")


READERS: Mapping[str, InnerCommandReader] = MappingProxyType(
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
            _read_shell,
        ),
        "fish": _read_fish,
        "nu": _read_nu,
        "eval": _read_eval,
        "source": _read_source,
        ".": _read_source,
        "trap": _read_trap,
        **dict.fromkeys(["export", "declare", "typeset", "readonly", "local", "setenv"], _read_export),
        **dict.fromkeys(["mapfile", "readarray", "bind"], _read_callback),
        **dict.fromkeys(["complete", "compgen"], _read_compgen),
        "history": _read_history,
        "fc": _read_fc,
        "pwsh": _read_powershell,
        "powershell": _read_powershell,
        "pwsh-preview": _read_powershell,
        "cmd": _read_cmd,
    }
)
