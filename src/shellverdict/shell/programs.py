"""Names of programs that need special analysis, and lookup of the program that a word refers to."""

from __future__ import annotations

import shlex

from shellverdict.names import split_names
from shellverdict.shell.state import ShellState
from shellverdict.shell.words import GAP, Word, compile_pattern, unknown_word

__all__ = [
    "DELETING_PROGRAMS",
    "IN_SHELL_COMMANDS",
    "SHELLS",
    "TRANSPARENT_WRAPPERS",
    "UPLOAD_PROGRAMS",
    "WRITING_PROGRAMS",
    "expand_env_split_string",
    "resolve_program",
]


SHELLS = split_names("sh bash dash zsh ksh mksh ash fish csh tcsh rbash pwsh")
# Commands that run their code in the current shell.
IN_SHELL_COMMANDS = split_names("eval source . command builtin exec trap time coproc")
# Programs that print exactly what the command they run prints.
TRANSPARENT_WRAPPERS = (
    SHELLS | IN_SHELL_COMMANDS | split_names("sudo env nice timeout nohup doas stdbuf busybox")
)
WRITING_PROGRAMS = split_names("cp mv tee install ln")
DELETING_PROGRAMS = split_names("rm rmdir unlink shred srm wipe truncate")
UPLOAD_PROGRAMS = split_names(
    "curl wget nc ncat netcat socat scp sftp rsync ftp http https aws gsutil gcloud az rclone mail mailx "
    "mutt sendmail gh ssh telnet openssl s3cmd"
)
# Programs that a file pattern in place of a command name may be meant to hide.
SENSITIVE_PROGRAMS = split_names(
    "rm dd mkfs shred wipefs shutdown reboot poweroff halt chmod chown mv cp tee sh bash dash zsh nc curl "
    "wget python python3 perl ruby node php kill killall pkill find xargs sudo su passwd crontab systemctl "
    "cat ssh"
)
MAX_PATTERN_CHARS = 256
PROGRAM_DIRECTORIES = ("", "/bin/", "/usr/bin/", "/sbin/", "/usr/sbin/", "/usr/local/bin/")


def resolve_program(word: Word, state: ShellState) -> Word:
    """Return the name of the program to which a word refers, following copies, links and file patterns."""
    if word in state.program_copies:
        return state.program_copies[word]
    if "/" not in word and "PATH" in state.variables:
        own = (known for path, known in state.program_copies.items() if path.rpartition("/")[2] == word)
        word = next(own, word)
    if word.startswith(("=", "zf_")) and word.is_known:  # zsh: `=rm` is the path of rm, `zf_rm` a builtin rm
        word = Word(word.removeprefix("=").removeprefix("zf_") or word)
    if "/" in word and state.resolve_path(word) in state.program_copies:
        return state.program_copies[state.resolve_path(word)]
    if word.is_pattern and len(word) > MAX_PATTERN_CHARS:
        return unknown_word()
    if word.is_pattern and GAP not in word:
        matches = compile_pattern(word).fullmatch
        hidden = (n for n in sorted(SENSITIVE_PROGRAMS) if any(matches(f + n) for f in PROGRAM_DIRECTORIES))
        return Word(next(hidden, unknown_word()))
    if not word.is_known:
        return unknown_word(word.taints) if GAP in word.rpartition("/")[2] else Word(word.rpartition("/")[2])
    return Word(word.rstrip("/").rpartition("/")[2] or word)


def expand_env_split_string(argv: tuple[Word, ...]) -> tuple[Word, ...]:
    """Return the arguments of `env` with the string of `-S` split: `env -S 'rm -rf' x` is `env rm -rf x`."""
    for place, word in enumerate(argv[1:], start=1):
        if not word.startswith("-") or word == "--":
            break
        cluster, found, text = word.partition("=" if word.startswith("--split-string") else "S")
        if not found or (word.startswith("--") and not word.startswith("--split-string=")):
            continue
        rest = argv[place + 1 :]
        if not text and rest:
            text, rest = rest[0], rest[1:]
        before = () if cluster in ("-", "--split-string") else (Word(cluster),)
        return (*argv[:place], *before, *_split_words(text), *rest)
    return argv


def _split_words(text: str) -> list[Word]:
    try:
        return [Word(each) for each in shlex.split(text)]
    except ValueError:
        return [unknown_word()]
