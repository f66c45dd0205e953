"""What git runs for somebody: settings that are commands, aliases, filters, `rebase --exec`, `bisect run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from shellverdict.shell.inner.generic import command
from shellverdict.shell.inner.gitsettings import git_setting
from shellverdict.shell.inner.nouns import Inner, as_typed, joined
from shellverdict.shell.inner.options import read, spec
from shellverdict.shell.runs import Run
from shellverdict.shell.words import Word

__all__ = ["READERS"]

_GLOBAL = spec(
    "-C= -c= --git-dir= --work-tree= --namespace= --exec-path? --config-env= --super-prefix= --attr-source= "
    "-p -P --paginate --no-pager --bare --no-replace-objects --literal-pathspecs --html-path! --man-path!"
)


def _git(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], _GLOBAL)
    if reading.quits:
        return
    for setting in reading.values("-c"):
        key, _, value = setting.partition("=")
        yield from git_setting(key, value)
    if not reading.operands:
        return
    name, words = reading.operands[0], reading.operands[1:]
    if reader := _SUBCOMMANDS.get(name):
        yield from reader(run, words)
    for word in words:
        if word.startswith("ext::"):
            yield Inner(argv=_external(word.removeprefix("ext::")), through="git")


def _external(address: str) -> tuple[Word, ...]:
    """The command of an `ext::` address: blanks part its words, `% ` is a blank within one."""
    words = address.replace("% ", "\0").split(" ")
    return tuple(Word(word.replace("\0", " ").replace("%%", "%")) for word in words if word) or (Word(""),)


_CONFIG = spec(
    "-f= --file= --blob= --type= --default= --comment= --value= --url= --get! --get-all! --get-regexp! "
    "--list! -l! --unset! --unset-all! --get-urlmatch! --remove-section! --get-color! --global --system "
    "--local --worktree --add --replace-all --bool --int --path -e"
)


def _config(_run: Run, words: Sequence[Word]) -> Iterator[Inner]:
    reading = read(words, _CONFIG, stop=False)
    operands = reading.operands[1:] if reading.operands[:1] == (Word("set"),) else reading.operands
    if not reading.quits and len(operands) > 1:
        yield from git_setting(operands[0], operands[1], later=True)


def _exec_option(options: str) -> Callable[[Run, Sequence[Word]], Iterator[Inner]]:
    given = spec(options)

    def reader(_run: Run, words: Sequence[Word]) -> Iterator[Inner]:
        for option in read(words, given, stop=False).options:
            if option.value is not None and given.signs.get(option.name) == ">":
                yield Inner(code=as_typed(option.value), through="git", more_operands=True)

    return reader


def _bisect(run: Run, words: Sequence[Word]) -> Iterator[Inner]:
    if words[:1] == (Word("run"),):
        yield from command(run, words[1:], "git")


_FOREACH = spec("-q -r --quiet --recursive")


def _submodule(_run: Run, words: Sequence[Word]) -> Iterator[Inner]:
    words = read(words, _FOREACH).operands
    if words[:1] == (Word("foreach"),):
        operands = read(words[1:], _FOREACH).operands
        if operands:
            yield Inner(code=joined(operands), through="git")


def _subtree_of_commands(_run: Run, words: Sequence[Word]) -> Iterator[Inner]:
    """`git for-each-repo … command` runs git again."""
    operands = read(words, spec("--config= --keep-going")).operands
    yield Inner(argv=(Word("git"), *operands), through="git")


_CLONE = (
    "-u>sh --upload-pack>sh -o= --origin= -b= --branch= --template= --reference= -c= --config= "
    "--depth= --separate-git-dir= -j= --jobs= --filter="
)


def _clone(run: Run, words: Sequence[Word]) -> Iterator[Inner]:
    yield from _exec_option(_CLONE)(run, words)
    for setting in read(words, spec(_CLONE), stop=False).values("-c", "--config"):
        key, _, value = setting.partition("=")
        yield from git_setting(key, value)


_SUBCOMMANDS: Mapping[str, Callable[[Run, Sequence[Word]], Iterator[Inner]]] = MappingProxyType(
    {
        "config": _config,
        "rebase": _exec_option(
            "-x>sh --exec>sh -s= -X= -C? --onto= --strategy= -S? --empty= --rebase-merges?"
        ),
        "bisect": _bisect,
        "submodule": _submodule,
        "for-each-repo": _subtree_of_commands,
        "difftool": _exec_option("-x>sh --extcmd>sh -t= --tool="),
        "filter-branch": _exec_option(
            "--setup>sh --env-filter>sh --tree-filter>sh --index-filter>sh --parent-filter>sh "
            "--msg-filter>sh --commit-filter>sh --tag-name-filter>sh --subdirectory-filter= -d= "
            "--state-branch= --original="
        ),
        "clone": _clone,
        "fetch": _exec_option("--upload-pack>sh --depth= -j= -o="),
        "pull": _exec_option("--upload-pack>sh --depth= -j= -s= -X="),
        "push": _exec_option("--receive-pack>sh --exec>sh -o= --push-option= --repo="),
        "ls-remote": _exec_option("--upload-pack>sh --exec>sh -o= --sort="),
        "archive": _exec_option("--exec>sh --remote= --prefix= -o= --output= --format="),
        "grep": _exec_option("-O>sh --open-files-in-pager>sh -e= -f= -A= -B= -C= -m="),
        "send-email": _exec_option(
            "--sendmail-cmd>sh --to-cmd>sh --cc-cmd>sh --header-cmd>sh --to= --cc= --from= --subject="
        ),
        "instaweb": _exec_option("-b>sh --browser>sh -d= --httpd= -p="),
        "help": _exec_option(""),
        "web--browse": _exec_option("-b>sh --browser>sh -t= -c="),
    }
)

READERS: Mapping[str, Callable[[Run], Iterator[Inner]]] = MappingProxyType(
    {"git": _git, "hub": _git, "yadm": _git}
)
