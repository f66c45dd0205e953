"""Guarded files handed to programs of which nothing is known.

A program that has a family of its own says what it writes. Any other may write to whatever it is given, so
that this runtime's own files and those that something else runs later are only given to those that read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from shellverdict.effects.scene import MOST_OPERANDS, Scene
from shellverdict.names import names
from shellverdict.places import Place
from shellverdict.shell.words import Word
from shellverdict.verdict import Effect, Kind

__all__ = ["READERS", "handed_effects"]

READERS = names(
    "cat tac head tail less more most bat batcat grep egrep fgrep zgrep rg ag ack wc nl od xxd hexdump hd "
    "strings diff cmp comm sdiff colordiff delta icdiff difft jq gron fx cut sort uniq tr paste join fold "
    "fmt column pr rev expand unexpand look ls ll la dir vdir exa eza lsd tree find fd fdfind locate stat "
    "file du df ncdu dust readlink realpath basename dirname namei lsof fuser getfacl lsattr getfattr "
    "md5sum sha1sum sha224sum sha256sum sha384sum sha512sum shasum b2sum cksum sum md5 base64 base32 test "
    "[ [[ echo printf : true false cd pushd popd pwd type which whereis command hash help man info tldr "
    "export declare typeset local readonly read unset set return exit trap wait sleep alias unalias "
    "shellcheck yamllint jsonlint tomlq xmllint cloc tokei scc wdiff zcat bzcat xzcat zstdcat gzcat zless "
    "zmore vimdiff inotifywait fswatch entr watch visudo checkbashisms open xdg-open explorer start mkdir "
    "pbcopy clip xclip wl-copy notify-send logger date env printenv id whoami systemd-analyze ssh-add "
    "history fc let eval exec toolfold"
)
# These run or show a start-up file, as they should; that says nothing of our own.
_STARTED_BY = names(
    ". source sh bash zsh dash ksh mksh fish csh tcsh tmux screen psql mysql sqlite3 gdb direnv git ssh "
    "scp sftp sudo visudo vi vim nvim view nano pico emacs emacsclient code code-insiders codium subl "
    "micro hx helix kak gedit kate mate zed idea pycharm ed crontab systemctl service systemd-run chezmoi "
    "yadm stow dotbot rcup mackup shfmt prettier bats awk gawk mawk python python3 node ruby perl "
    "fwupdmgr"
)
# What these change can stand nowhere among their words.
_BY_FOLDER = names("patch git cmake")
_GIT_CHANGES = names(
    "apply am pull checkout switch reset restore merge rebase stash checkout-index read-tree"
)
_GIT_LOOKS = names(
    "status log diff show branch ls-files ls-tree rev-parse rev-list blame grep remote describe shortlog "
    "cat-file for-each-ref name-rev reflog whatchanged check-ignore count-objects fsck version help var"
)
_INTERPRETERS = re.compile(r"(?:pip|python)[\d.]*\Z")  # of the runtime's own environment
_VALUE = re.compile(r"\A(?:-{0,2}[\w.+-]*=|-[A-Za-z](?=[/~.]))")


def handed_effects(name: str, scene: Scene, *, known: bool) -> Iterator[Effect]:
    """What a program is given, or where it works; `known` says that its words tell what it writes."""
    if name in READERS or not scene.run.argv:
        return
    if not known or (name in _BY_FOLDER and _folder(scene, name) is not None):
        for word in islice(scene.run.argv[1:], MOST_OPERANDS):
            yield from _handed(scene, name, word)
    if not known or name in _BY_FOLDER:
        yield from _worked_in(scene, name)
    if _INTERPRETERS.match(name) and "/" in scene.run.path and Place.OWN in scene.where(scene.run.path):
        yield scene.effect(
            Kind.WRITE, "handed", f"names:{Place.OWN}", target=scene.run.path, detail=str(name)
        )


def _handed(scene: Scene, name: str, word: Word) -> Iterator[Effect]:
    value = _VALUE.sub("", word)
    for text in map(Word, (word, value, value.partition(":")[0])):  # the last: what a container is lent
        if "/" in text and text.known and "://" not in text:
            guarded = _guarded(scene, name, text)
            if guarded is not None:
                yield scene.effect(Kind.WRITE, "handed", f"names:{guarded}", target=text, detail=name)
                return


def _guarded(scene: Scene, name: str, word: Word) -> Place | None:
    where = scene.where(word)
    if Place.OWN in where:
        return Place.OWN
    if Place.STARTUP in where and Place.PROJECT not in where and name not in _STARTED_BY | {"patch", "cmake"}:
        return Place.STARTUP if where.places & {Place.INSIDE_HOME, Place.SYSTEM} else None
    return None


def _worked_in(scene: Scene, name: str) -> Iterator[Effect]:
    """A program may change whatever lies where it works."""
    folder = _folder(scene, name)
    if folder is None or not folder.known or folder in (".", ""):
        return
    guarded = _guarded(scene, "" if name in _BY_FOLDER else name, folder)
    if guarded is None and name == "git" and not _GIT_CHANGES.isdisjoint(scene.run.argv):
        above = Place.HOME not in scene.where(folder) and Place.OWN in scene.places.filled(folder)
        guarded = Place.OWN if above else None
    if guarded is not None:
        yield scene.effect(Kind.WRITE, "handed", f"names:{guarded}", target=folder, detail=name)


def _folder(scene: Scene, name: str) -> Word | None:
    """Where it works; None for git where it only looks."""
    if name != "git":
        return scene.run.cwd
    options = scene.options(names("-C -c --git-dir --work-tree --namespace --exec-path"), permuted=False)
    if not options.operands or options.operands[0] in _GIT_LOOKS:
        return None
    return options.value("--work-tree", "--git-dir") or options.value("-C") or scene.run.cwd
