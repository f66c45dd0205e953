"""Detect commands after which typed text may be changed before a program receives it.

Keys can be redefined (`stty`, `bind`, `histchars`), and a program can read part of a line and leave the rest
to the shell (`head -c 5`). Text written after such a command may have another meaning.
"""

from __future__ import annotations

import re

from shellverdict.shell.runs import STDIN_PATHS, ProgramRun

__all__ = [
    "KEY_VARIABLES",
    "code_redefines_keys",
    "may_read_partial_line",
    "redefines_keys",
    "repeats_commands",
]

KEY_VARIABLES = frozenset({"histchars", "HISTCHARS", "INPUTRC"})
"""Shell variables that redefine the meaning of characters or keys."""

_HARMLESS_WORDS = {
    "stty": re.compile(r"-a|-g|--all|--save|size|speed|rows|cols|columns|\d+|-?echo|sane|-?ixon"),
    "bind": re.compile(
        r"-[lpPsSvVX]+|set (?:enable-bracketed-paste|bell-style|completion-ignore-case|show-all-if-ambiguous"
        r"|page-completions|colored-stats) \w+"
    ),
    "bindkey": re.compile(r"-[elL]+"),
    "zle": re.compile(r"-[lL]+"),
    "tset": re.compile(r"-[qQs]"),
    "reset": re.compile(r"-[qQs]"),
    "loadkeys": re.compile(r"-h"),
}
_EDITING_MODE_OPTION = re.compile(r"vi(?:raw|-\w+)?|-?\w*o?vi")
_KEY_CHANGING_CODE = re.compile(
    r"\bstty\b|termios|\btty\.set|parse_and_bind|read_init_file|setRawMode|tcsetattr"
)
_INLINE_READ = re.compile(r"(?i:stdin)|os\.read\(|sysread|getc|(?:readSync|open)\(\s*0")
_PART_OPTIONS = {
    "head": re.compile(r"-\w*c.*|--b.*"),
    "read": re.compile(r"-\w*[nNdku].*"),
    "readarray": re.compile(r"-\w*d.*"),
    "mapfile": re.compile(r"-\w*d.*"),
    "od": re.compile(r"-\w*N.*|--read-bytes.*"),
    "xxd": re.compile(r"-l.*|-len.*"),
    "hexdump": re.compile(r"-\w*n.*"),
    "dd": re.compile(r"(?:bs|ibs|count|if)=.*"),
}
_INTERPRETERS = re.compile(r"python[\d.]*|perl|ruby|node|php|lua[\d.]*")


def redefines_keys(run: ProgramRun) -> bool:
    """Return True if a command, such as `stty` or `bind`, may redefine keys of its terminal."""
    name, words = str(run.name), [str(word) for word in run.argv[1:]]
    if "INPUTRC" in run.env_assignments or any(word.startswith("INPUTRC=") for word in words):
        return True
    if name in ("set", "setopt"):
        return any(_EDITING_MODE_OPTION.fullmatch(word) for word in words)
    if name in ("tmux", "screen"):
        return any(word.startswith("bind") for word in words)
    harmless = _HARMLESS_WORDS.get(name)
    return harmless is not None and not all(harmless.fullmatch(word) for word in words)


def code_redefines_keys(line: str) -> bool:
    """Return True if a line in a language other than shell may redefine keys of the terminal."""
    return _KEY_CHANGING_CODE.search(line) is not None


def repeats_commands(run: ProgramRun, shell: str) -> bool:
    """Return True for `r` in zsh and `hist` in ksh, which repeat an earlier command."""
    return shell in ("zsh", "ksh", "ksh93", "mksh") and run.path in ("r", "hist")


def may_read_partial_line(run: ProgramRun) -> bool:
    """Return True if a program may read only part of a typed line, so that the shell runs the rest."""
    if run.stdin is None or not run.stdin.is_interactive:
        return False
    if _INTERPRETERS.fullmatch(run.name):
        return any(_INLINE_READ.search(word) for word in run.argv[1:] if not word.startswith(("/", "./")))
    options = _PART_OPTIONS.get(str(run.name))
    if options is None:
        return False
    return any(options.fullmatch(word) for word in run.argv[1:]) and not _reads_file(run)


def _reads_file(run: ProgramRun) -> bool:
    """Return True if a program reads a file instead of its standard input."""
    if run.name in ("read", "readarray", "mapfile"):
        return False
    if run.name == "dd":
        files = [word.removeprefix("if=") for word in run.argv[1:] if word.startswith("if=")]
        return any(not _is_standard_input(word) for word in files)
    operands = [word for word in run.argv[1:] if not word.isdigit() and (word == "-" or word[:1] != "-")]
    return bool(operands) and not any(map(_is_standard_input, operands))


def _is_standard_input(word: str) -> bool:
    return word in STDIN_PATHS or word.startswith(("/dev/fd", "/dev/tty", "/dev/pts", "/proc/"))
