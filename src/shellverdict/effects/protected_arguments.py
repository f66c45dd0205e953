"""Detect protected files, such as shell startup files, in arguments of programs with unknown effects.

A program with a handler reports what it writes. Any other program may write to every file it is given, so
only known readers may get this runtime's own files and files that other programs run later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from shellverdict.effects.run_context import MAX_OPERANDS, RunContext
from shellverdict.names import split_names
from shellverdict.paths import PathKind
from shellverdict.shell.words import Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["READ_ONLY_PROGRAMS", "find_protected_argument_effects"]

READ_ONLY_PROGRAMS = split_names(
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
# These run, show or manage start-up files as intended. The runtime's own files stay protected from them.
_STARTUP_FILE_USERS = split_names(
    ". source sh bash zsh dash ksh mksh fish csh tcsh tmux screen psql mysql sqlite3 gdb direnv git ssh "
    "scp sftp sudo visudo vi vim nvim view nano pico emacs emacsclient code code-insiders codium subl "
    "micro hx helix kak gedit kate mate zed idea pycharm ed crontab systemctl service systemd-run chezmoi "
    "yadm stow dotbot rcup mackup shfmt prettier bats awk gawk mawk python python3 node ruby perl "
    "fwupdmgr"
)
# These change files in their working directory that are not among their arguments.
_WORKDIR_PROGRAMS = split_names("patch git cmake")
_GIT_CHANGES = split_names(
    "apply am pull checkout switch reset restore merge rebase stash checkout-index read-tree"
)
_GIT_READS = split_names(
    "status log diff show branch ls-files ls-tree rev-parse rev-list blame grep remote describe shortlog "
    "cat-file for-each-ref name-rev reflog whatchanged check-ignore count-objects fsck version help var"
)
_INTERPRETERS = re.compile(r"(?:pip|python)[\d.]*\Z")  # of the runtime's own virtual environment
_OPTION_PREFIX = re.compile(r"\A(?:-{0,2}[\w.+-]*=|-[A-Za-z](?=[/~.]))")


def find_protected_argument_effects(
    name: str, context: RunContext, *, known: bool
) -> Iterator[CommandEffect]:
    """Yield the effects of running a program on protected files or in a protected directory.

    `known` means that a handler already reports what the program writes.
    """
    if name in READ_ONLY_PROGRAMS or not context.run.argv:
        return
    if not known or (name in _WORKDIR_PROGRAMS and _find_workdir(context, name) is not None):
        for word in islice(context.run.argv[1:], MAX_OPERANDS):
            yield from _argument_effects(context, name, word)
    if not known or name in _WORKDIR_PROGRAMS:
        yield from _workdir_effects(context, name)
    if (
        _INTERPRETERS.match(name)
        and "/" in context.run.path
        and PathKind.OWN in context.classify(context.run.path)
    ):
        yield context.new_effect(
            EffectKind.WRITE, "handed", f"names:{PathKind.OWN}", target=context.run.path, detail=str(name)
        )


def _argument_effects(context: RunContext, name: str, word: Word) -> Iterator[CommandEffect]:
    """Yield the effect of passing a protected path, or a directory that contains one, to a program."""
    value = _OPTION_PREFIX.sub("", word)
    for text in map(Word, (word, value, value.partition(":")[0])):  # the last: a bind mount
        if "/" in text and text.is_known and "://" not in text:
            protected_kind = _find_protected_kind(context, name, text)
            if protected_kind is not None:
                yield context.new_effect(
                    EffectKind.WRITE, "handed", f"names:{protected_kind}", target=text, detail=name
                )
                return


def _find_protected_kind(context: RunContext, name: str, word: Word) -> PathKind | None:
    """Return `OWN` for Toolfold's own files, `STARTUP` for files that shells run at startup, or None.

    Also None for a startup file that the program `name` is known to use.
    """
    path_info = context.classify(word)
    if PathKind.OWN in path_info:
        return PathKind.OWN
    if (
        PathKind.STARTUP in path_info
        and PathKind.PROJECT not in path_info
        and name not in _STARTUP_FILE_USERS | {"patch", "cmake"}
    ):
        return PathKind.STARTUP if path_info.kinds & {PathKind.INSIDE_HOME, PathKind.SYSTEM} else None
    return None


def _workdir_effects(context: RunContext, name: str) -> Iterator[CommandEffect]:
    """Yield the effect of running in a protected directory, where the program may change any file."""
    workdir = _find_workdir(context, name)
    if workdir is None or not workdir.is_known or workdir in (".", ""):
        return
    protected_kind = _find_protected_kind(context, "" if name in _WORKDIR_PROGRAMS else name, workdir)
    if protected_kind is None and name == "git" and not _GIT_CHANGES.isdisjoint(context.run.argv):
        above = PathKind.HOME not in context.classify(
            workdir
        ) and PathKind.OWN in context.paths.kinds_replaced_by_filling(workdir)
        protected_kind = PathKind.OWN if above else None
    if protected_kind is not None:
        yield context.new_effect(
            EffectKind.WRITE, "handed", f"names:{protected_kind}", target=workdir, detail=name
        )


def _find_workdir(context: RunContext, name: str) -> Word | None:
    """Return the directory in which a program may change files; None for git commands that only read."""
    if name != "git":
        return context.run.cwd
    options = context.parse_options(
        split_names("-C -c --git-dir --work-tree --namespace --exec-path"), permuted=False
    )
    if not options.operands or options.operands[0] in _GIT_READS:
        return None
    return options.value("--work-tree", "--git-dir") or options.value("-C") or context.run.cwd
