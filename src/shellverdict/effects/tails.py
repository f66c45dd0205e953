"""Programs that destroy, named among the words of a program of which nothing is known.

Nobody can list every wrapper. Where the words of an unknown program end in what would destroy something if
it were run, it is likely to be run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from shellverdict.effects.handed import READERS
from shellverdict.effects.scene import Scene
from shellverdict.names import names
from shellverdict.places import Place
from shellverdict.shell.inner.programs import programs
from shellverdict.shell.words import Word
from shellverdict.verdict import Effect, Kind

__all__ = ["tail_effects"]

MOST_WORDS = 64  # of a program's words, looked at for the name of another
MOST_TRIED = 8  # names of programs; who has more among a program's words is asked about
DEEPEST = 3

_DESTROYERS = names(
    "rm shred srm wipe dd dcfldd mkfs mke2fs mkswap wipefs blkdiscard fdisk sfdisk sgdisk parted unlink "
    "truncate chmod chown chgrp mv tee find rsync cp ln install hdparm nvme cryptsetup rimraf"
)
_SHELLS = names("sh bash zsh dash ksh ash busybox")
# To these, such words are text, the names of packages, or commands of their own.
_OTHERWISE = names(
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
# What else these do is known, and not that they run a command, at least behind this word.
_BEHIND: Mapping[str, str] = {"ip": "exec", "podman": "unshare", "sg": "", "start-stop-daemon": ""}
_NAME = re.compile(r"(?:/?(?:[\w.-]+/)*)((?:mkfs\.)?[a-z0-9][\w-]*)\Z")
_LOST = frozenset(
    f"in:{place}"
    for place in (
        *(Place.ROOT, Place.HOME, Place.SYSTEM, Place.SYSTEM_ROOT, Place.DEVICE),
        *(Place.OWN, Place.AGENT, Place.SECRET, Place.STARTUP, Place.DATA),
    )
)

_Effects = Callable[[str, Scene], Iterator[Effect]]


def tail_effects(name: str, scene: Scene, told: _Effects, *, known: bool) -> Iterator[Effect]:
    """At most one: that something destructive is named behind `name`."""
    if not _unheard_of(name, scene, known):
        return
    # Programs of the project are given such lines to look at, as often as to run.
    lines = 0 if "/" in scene.run.path and not scene.run.path.startswith("/") else DEEPEST
    found = _first(scene.run.argv[1:], scene, told, lines)
    if found is not None:
        yield scene.effect(Kind.UNREADABLE, "tail", target=found, detail=name)


def _unheard_of(name: str, scene: Scene, known: bool) -> bool:
    if name in _BEHIND:
        return _BEHIND[name] in ("", *scene.run.argv[1:])
    if known or name in READERS or name in _OTHERWISE or name in _SHELLS or name in programs():
        return False
    return name not in _DESTROYERS and not name.startswith("mkfs.")


def _first(words: Sequence[Word], scene: Scene, told: _Effects, lines: int) -> Word | None:
    """The first name behind which something would be lost; `lines` is how deep words may be whole lines."""
    tried = 0
    for at, word in enumerate(islice(words, MOST_WORDS)):
        program = _program(word)
        if program in _DESTROYERS or program.startswith("mkfs."):
            tried += 1
            if tried > MOST_TRIED:
                return Word(program)
            if _destroys((Word(program), *words[at + 1 :]), scene, told):
                return Word(program)
        elif " " in word and lines:
            found = _first([Word(part) for part in _parts(word)][:MOST_WORDS], scene, told, lines - 1)
            if found is not None and _program(Word(word.split(None, 1)[0])) in _DESTROYERS | _SHELLS:
                return found
    return None


def _program(word: str) -> str:
    found = _NAME.match(word) if len(word) < 64 else None
    return found[1] if found else ""


def _parts(text: str) -> list[str]:
    return [part.strip("'\";") for part in text[:4096].split()]


def _destroys(argv: tuple[Word, ...], scene: Scene, told: _Effects) -> bool:
    inner = replace(scene.run, argv=argv, path=argv[0], redirects=(), stdin=None)
    return any(_loses(effect) for effect in islice(told(argv[0], Scene(inner, scene.places)), 64))


def _loses(effect: Effect) -> bool:
    if effect.kind is Kind.FORMAT:
        return True
    if effect.kind is Kind.DELETE and not effect.traits.isdisjoint({"recursive", "shredded", "everything"}):
        return True
    touched = not _LOST.isdisjoint(effect.traits)
    return touched and effect.kind in (Kind.DELETE, Kind.OVERWRITE, Kind.PERMISSIONS)
