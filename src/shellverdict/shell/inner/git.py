"""Find commands that git runs: settings, aliases, filters, `rebase --exec`, `bisect run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from shellverdict.shell.inner.generic import command_from_words
from shellverdict.shell.inner.git_settings import read_git_setting
from shellverdict.shell.inner.inner_command import InnerCommand, join_words, to_literal
from shellverdict.shell.inner.option_spec import parse_options, parse_spec
from shellverdict.shell.runs import ProgramRun
from shellverdict.shell.words import Word

__all__ = ["READERS"]

_GLOBAL = parse_spec(
    "-C= -c= --git-dir= --work-tree= --namespace= --exec-path? --config-env= --super-prefix= --attr-source= "
    "-p -P --paginate --no-pager --bare --no-replace-objects --literal-pathspecs --html-path! --man-path!"
)


def _read_git(run: ProgramRun) -> Iterator[InnerCommand]:
    reading = parse_options(run.argv[1:], _GLOBAL)
    if reading.runs_nothing:
        return
    for setting in reading.values("-c"):
        key, _, value = setting.partition("=")
        yield from read_git_setting(key, value)
    if not reading.operands:
        return
    name, words = reading.operands[0], reading.operands[1:]
    if reader := _SUBCOMMANDS.get(name):
        yield from reader(run, words)
    for word in words:
        if word.startswith("ext::"):
            yield InnerCommand(argv=_split_ext_address(word.removeprefix("ext::")), wrapper="git")


def _split_ext_address(address: str) -> tuple[Word, ...]:
    """Return the command in git's `ext::` URL, in which `% ` is a blank inside a word."""
    words = address.replace("% ", "\0").split(" ")
    return tuple(Word(word.replace("\0", " ").replace("%%", "%")) for word in words if word) or (Word(""),)


_CONFIG = parse_spec(
    "-f= --file= --blob= --type= --default= --comment= --value= --url= --get! --get-all! --get-regexp! "
    "--list! -l! --unset! --unset-all! --get-urlmatch! --remove-section! --get-color! --global --system "
    "--local --worktree --add --replace-all --bool --int --path -e"
)


def _read_config(_run: ProgramRun, words: Sequence[Word]) -> Iterator[InnerCommand]:
    reading = parse_options(words, _CONFIG, stop_at_operand=False)
    operands = reading.operands[1:] if reading.operands[:1] == (Word("set"),) else reading.operands
    if not reading.runs_nothing and len(operands) > 1:
        yield from read_git_setting(operands[0], operands[1], is_stored=True)


def _create_option_reader(options: str) -> Callable[[ProgramRun, Sequence[Word]], Iterator[InnerCommand]]:
    spec = parse_spec(options)

    def reader(_run: ProgramRun, words: Sequence[Word]) -> Iterator[InnerCommand]:
        for option in parse_options(words, spec, stop_at_operand=False).options:
            if option.value is not None and spec.signs.get(option.name) == ">":
                yield InnerCommand(code=to_literal(option.value), wrapper="git", has_unknown_operands=True)

    return reader


def _read_bisect(run: ProgramRun, words: Sequence[Word]) -> Iterator[InnerCommand]:
    if words[:1] == (Word("run"),):
        yield from command_from_words(run, words[1:], "git")


_FOREACH = parse_spec("-q -r --quiet --recursive")


def _read_submodule(_run: ProgramRun, words: Sequence[Word]) -> Iterator[InnerCommand]:
    words = parse_options(words, _FOREACH).operands
    if words[:1] == (Word("foreach"),):
        operands = parse_options(words[1:], _FOREACH).operands
        if operands:
            yield InnerCommand(code=join_words(operands), wrapper="git")


def _read_for_each_repo(_run: ProgramRun, words: Sequence[Word]) -> Iterator[InnerCommand]:
    """Return the git command of `git for-each-repo … command`."""
    operands = parse_options(words, parse_spec("--config= --keep-going")).operands
    yield InnerCommand(argv=(Word("git"), *operands), wrapper="git")


_CLONE = (
    "-u>sh --upload-pack>sh -o= --origin= -b= --branch= --template= --reference= -c= --config= "
    "--depth= --separate-git-dir= -j= --jobs= --filter="
)


def _read_clone(run: ProgramRun, words: Sequence[Word]) -> Iterator[InnerCommand]:
    yield from _create_option_reader(_CLONE)(run, words)
    for setting in parse_options(words, parse_spec(_CLONE), stop_at_operand=False).values("-c", "--config"):
        key, _, value = setting.partition("=")
        yield from read_git_setting(key, value)


_SUBCOMMANDS: Mapping[str, Callable[[ProgramRun, Sequence[Word]], Iterator[InnerCommand]]] = MappingProxyType(
    {
        "config": _read_config,
        "rebase": _create_option_reader(
            "-x>sh --exec>sh -s= -X= -C? --onto= --strategy= -S? --empty= --rebase-merges?"
        ),
        "bisect": _read_bisect,
        "submodule": _read_submodule,
        "for-each-repo": _read_for_each_repo,
        "difftool": _create_option_reader("-x>sh --extcmd>sh -t= --tool="),
        "filter-branch": _create_option_reader(
            "--setup>sh --env-filter>sh --tree-filter>sh --index-filter>sh --parent-filter>sh "
            "--msg-filter>sh --commit-filter>sh --tag-name-filter>sh --subdirectory-filter= -d= "
            "--state-branch= --original="
        ),
        "clone": _read_clone,
        "fetch": _create_option_reader("--upload-pack>sh --depth= -j= -o="),
        "pull": _create_option_reader("--upload-pack>sh --depth= -j= -s= -X="),
        "push": _create_option_reader("--receive-pack>sh --exec>sh -o= --push-option= --repo="),
        "ls-remote": _create_option_reader("--upload-pack>sh --exec>sh -o= --sort="),
        "archive": _create_option_reader("--exec>sh --remote= --prefix= -o= --output= --format="),
        "grep": _create_option_reader("-O>sh --open-files-in-pager>sh -e= -f= -A= -B= -C= -m="),
        "send-email": _create_option_reader(
            "--sendmail-cmd>sh --to-cmd>sh --cc-cmd>sh --header-cmd>sh --to= --cc= --from= --subject="
        ),
        "instaweb": _create_option_reader("-b>sh --browser>sh -d= --httpd= -p="),
        "help": _create_option_reader(""),
        "web--browse": _create_option_reader("-b>sh --browser>sh -t= -c="),
    }
)

READERS: Mapping[str, Callable[[ProgramRun], Iterator[InnerCommand]]] = MappingProxyType(
    {"git": _read_git, "hub": _read_git, "yadm": _read_git}
)
