"""Programs that the reader must know by name, and the one that a word stands for."""

from __future__ import annotations

import shlex

from shellverdict.names import names
from shellverdict.shell.state import State
from shellverdict.shell.words import GAP, Word, expression, gap

__all__ = [
    "DELETING",
    "SAME_SHELL",
    "SEEN_THROUGH",
    "SENDERS",
    "SHELLS",
    "WRITING",
    "env_words",
    "program",
]


SHELLS = names("sh bash dash zsh ksh mksh ash fish csh tcsh rbash pwsh")
# What these run, they run in the shell that is there.
SAME_SHELL = names("eval source . command builtin exec trap time coproc")
# What these print is what they run prints.
SEEN_THROUGH = SHELLS | SAME_SHELL | names("sudo env nice timeout nohup doas stdbuf busybox")
WRITING = names("cp mv tee install ln")
DELETING = names("rm rmdir unlink shred srm wipe truncate")
SENDERS = names(
    "curl wget nc ncat netcat socat scp sftp rsync ftp http https aws gsutil gcloud az rclone mail mailx "
    "mutt sendmail gh ssh telnet openssl s3cmd"
)
# Programs whose name a file pattern in the place of a command could be spelling.
WORTH_HIDING = names(
    "rm dd mkfs shred wipefs shutdown reboot poweroff halt chmod chown mv cp tee sh bash dash zsh nc curl "
    "wget python python3 perl ruby node php kill killall pkill find xargs sudo su passwd crontab systemctl "
    "cat ssh"
)
LONGEST_PATTERN = 256
WHERE_PROGRAMS_ARE = ("", "/bin/", "/usr/bin/", "/sbin/", "/usr/sbin/", "/usr/local/bin/")


def program(word: Word, state: State) -> Word:
    """The bare name of the program behind a word: links, copies and patterns seen through."""
    if word in state.programs:
        return state.programs[word]
    if "/" not in word and "PATH" in state.variables:
        own = (known for path, known in state.programs.items() if path.rpartition("/")[2] == word)
        word = next(own, word)
    if word.startswith(("=", "zf_")) and word.known:  # zsh: the path of a program, and its own file commands
        word = Word(word.removeprefix("=").removeprefix("zf_") or word)
    if "/" in word and state.path(word) in state.programs:
        return state.programs[state.path(word)]
    if word.pattern and len(word) > LONGEST_PATTERN:
        return gap()
    if word.pattern and GAP not in word:
        matches = expression(word).fullmatch
        hidden = (n for n in sorted(WORTH_HIDING) if any(matches(f + n) for f in WHERE_PROGRAMS_ARE))
        return Word(next(hidden, gap()))
    if not word.known:
        return gap(word.marks) if GAP in word.rpartition("/")[2] else Word(word.rpartition("/")[2])
    return Word(word.rstrip("/").rpartition("/")[2] or word)


def env_words(argv: tuple[Word, ...]) -> tuple[Word, ...]:
    """`env -S 'rm -rf' x` as `env rm -rf x`: the text is words, and what follows belongs to them."""
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
        return (*argv[:place], *before, *_words(text), *rest)
    return argv


def _words(text: str) -> list[Word]:
    try:
        return [Word(each) for each in shlex.split(text)]
    except ValueError:
        return [gap()]
