"""Detect destructive commands in the arguments of an unknown program that may run its arguments.

Not every wrapper can be listed. If the arguments of an unknown program end in a command that would destroy
something, the program probably runs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from shellverdict.effects.protected_arguments import READ_ONLY_PROGRAMS
from shellverdict.effects.run_context import RunContext
from shellverdict.names import split_names
from shellverdict.paths import PathKind
from shellverdict.shell.inner.program_tables import load_programs
from shellverdict.shell.words import Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["find_wrapped_command_effects"]

MAX_WORDS = 64  # arguments searched for a program name
MAX_CANDIDATES = 8  # program names examined; with more, the user is asked
MAX_NESTING = 3

_DESTROYERS = split_names(
    "rm shred srm wipe dd dcfldd mkfs mke2fs mkswap wipefs blkdiscard fdisk sfdisk sgdisk parted unlink "
    "truncate chmod chown chgrp mv tee find rsync cp ln install hdparm nvme cryptsetup rimraf"
)
_SHELLS = split_names("sh bash zsh dash ksh ash busybox")
# For these, such words are text, package names or subcommands of their own.
_NON_WRAPPERS = split_names(
    "git gh glab hub hg svn jj npm pnpm yarn npx bunx bun pip pipx uv uvx poetry pdm conda mamba cargo go "
    "gem bundle composer brew apt apt-get apt-cache aptitude dpkg rpm dnf yum zypper apk pacman yay paru "
    "emerge snap flatpak port pkg nix nix-env guix choco winget scoop docker podman nerdctl kubectl oc "
    "helm aws gcloud gsutil az s3cmd mc rclone b2 sed awk gawk mawk perl python python3 ruby node php lua "
    "deno make gmake ninja just task cowsay figlet toilet banner say espeak fzf zenity dialog whiptail "
    "tmux screen vi vim nvim nano emacs code complete compgen compdef bind update-alternatives dpkg-query "
    "dpkg-divert mandb apropos whatis cheat explainshell howdoi systemctl service rc-service journalctl "
    "crontab ssh scp sftp curl wget http mail mutt sendmail claude codex aider gemini llm ollama todo "
    "jrnl nb obsidian pass ansible terraform tofu pulumi psql mysql sqlite3 redis-cli mongosh lxc incus "
    "virsh vagrant fly heroku vercel netlify firebase wrangler"
)
# These have handlers for other effects, but also run a command, some only after this subcommand.
_WRAPPER_SUBCOMMANDS: Mapping[str, str] = {
    "ip": "exec",
    "podman": "unshare",
    "sg": "",
    "start-stop-daemon": "",
}
_NAME = re.compile(r"(?:/?(?:[\w.-]+/)*)((?:mkfs\.)?[a-z0-9][\w-]*)\Z")
_VALUABLE_TRAITS = frozenset(
    f"in:{place}"
    for place in (
        *(PathKind.ROOT, PathKind.HOME, PathKind.SYSTEM, PathKind.SYSTEM_ROOT, PathKind.DEVICE),
        *(PathKind.OWN, PathKind.AGENT, PathKind.SECRET, PathKind.STARTUP, PathKind.DATA),
    )
)

_EffectFinder = Callable[[str, RunContext], Iterator[CommandEffect]]


def find_wrapped_command_effects(
    name: str, context: RunContext, find_effects: _EffectFinder, *, known: bool
) -> Iterator[CommandEffect]:
    """Yield an effect if the arguments of the program `name` contain a destructive command.

    `find_effects` returns the effects of a program by its name.
    """
    if not _may_wrap_command(name, context, known):
        return
    # Programs of the project often get such command lines as data, for example in tests.
    lines = 0 if "/" in context.run.path and not context.run.path.startswith("/") else MAX_NESTING
    program = _find_destroyer(context.run.argv[1:], context, find_effects, lines)
    if program is not None:
        yield context.new_effect(EffectKind.UNREADABLE, "tail", target=program, detail=name)


def _may_wrap_command(name: str, context: RunContext, known: bool) -> bool:
    """Return True if the program is unknown, or is known to run a command given in its arguments."""
    if name in _WRAPPER_SUBCOMMANDS:
        return _WRAPPER_SUBCOMMANDS[name] in ("", *context.run.argv[1:])
    if (
        known
        or name in READ_ONLY_PROGRAMS
        or name in _NON_WRAPPERS
        or name in _SHELLS
        or name in load_programs()
    ):
        return False
    return name not in _DESTROYERS and not name.startswith("mkfs.")


def _find_destroyer(
    words: Sequence[Word], context: RunContext, find_effects: _EffectFinder, lines: int
) -> Word | None:
    """Return the program of the first destructive command in an argument list, such as `rm` in `rm -rf x`.

    `lines` limits the nesting of arguments that are whole command lines.
    """
    tried = 0
    for at, word in enumerate(islice(words, MAX_WORDS)):
        program = _program_name(word)
        if program in _DESTROYERS or program.startswith("mkfs."):
            tried += 1
            if tried > MAX_CANDIDATES:
                return Word(program)
            if _would_destroy((Word(program), *words[at + 1 :]), context, find_effects):
                return Word(program)
        elif " " in word and lines:
            inner = _find_destroyer(
                [Word(part) for part in _split_words(word)][:MAX_WORDS], context, find_effects, lines - 1
            )
            if inner is not None and _program_name(Word(word.split(None, 1)[0])) in _DESTROYERS | _SHELLS:
                return inner
    return None


def _program_name(word: str) -> str:
    match = _NAME.match(word) if len(word) < 64 else None
    return match[1] if match else ""


def _split_words(text: str) -> list[str]:
    return [part.strip("'\";") for part in text[:4096].split()]


def _would_destroy(argv: tuple[Word, ...], context: RunContext, find_effects: _EffectFinder) -> bool:
    inner = replace(context.run, argv=argv, path=argv[0], redirects=(), stdin=None)
    return any(
        _is_loss(effect) for effect in islice(find_effects(argv[0], RunContext(inner, context.paths)), 64)
    )


def _is_loss(effect: CommandEffect) -> bool:
    """Return True if an effect destroys data, such as formatting a disk or deleting a directory tree."""
    if effect.kind is EffectKind.FORMAT:
        return True
    if effect.kind is EffectKind.DELETE and not effect.traits.isdisjoint(
        {"recursive", "shredded", "everything"}
    ):
        return True
    touched = not _VALUABLE_TRAITS.isdisjoint(effect.traits)
    return touched and effect.kind in (EffectKind.DELETE, EffectKind.OVERWRITE, EffectKind.PERMISSIONS)
