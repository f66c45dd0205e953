"""Detect settings by which one program is made to run or load other code.

A variable before the program (`GIT_SSH_COMMAND=…`), a git setting (`-c core.fsmonitor=…`), an option that
loads a file (`node --require …`) or names a program (`go test -exec …`): the command looks harmless and runs
something else. Files of the project are as trustworthy as the project itself and are not reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from shellverdict.effects.exported_variables import (
    SEARCH_PATH_VARIABLES,
    SYSTEM_PREFIXES,
    find_value_check,
    is_custom_command,
)
from shellverdict.effects.run_context import MAX_OPERANDS, RunContext
from shellverdict.names import split_names
from shellverdict.paths import PathKind
from shellverdict.shell.inner.environment import COMMAND_VARIABLES
from shellverdict.shell.inner.git_settings import classify_git_setting, given_git_settings
from shellverdict.shell.words import GAP, Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["find_setting_effects"]

_FILE_OPTIONS: Mapping[str, str] = {
    "node nodejs": "-r --require --import --loader --experimental-loader --experimental-config-file",
    "tsx ts-node nodemon": "-r --require --import --exec -x",
    "mocha nyc c8": "-r --require --config",
    "jest vitest eslint prettier webpack rollup vite babel stylelint karma ava": "-c --config --plugin "
    "--rulesdir --resolve-plugins-relative-to --setupFiles --globalSetup --resolver --transform",
    "bun deno": "-r --preload --require --import --config",
    "ruby rspec rake": "-r -I",
    "perl": "-I",
    "php": "-c -d",
    "lua luajit": "-l",
    "java": "-javaagent: -agentpath: -agentlib: -Xbootclasspath/a: -Xbootclasspath/p:",
    "ssh slogin autossh scp sftp": "-F -I -S -D",
    "curl": "-K --config --engine",
    "wget wget2": "--config",
    "gdb": "-x --command -ix --init-command",
    "lldb": "-s --source -S --source-before-file",
    "vim vi nvim view gvim ex": "-S -u -U -l",
    "emacs": "-l --load --script",
    "less": "-k --lesskey-file --lesskey-src",
    "make gmake": "-f --file --makefile -I --include-dir",
    "ninja": "-f",
    "just": "-f --justfile",
    "task": "-t --taskfile",
    "cmake": "-P -C",
    "pytest py.test": "-c --config-file --rootdir --confcutdir",
    "tox": "-c --conf",
    "nox": "-f --noxfile",
    "gradle gradlew": "-I --init-script -c --settings-file",
    "mvn mvnw": "-s --settings -gs --global-settings",
    "bazel bazelisk": "--bazelrc --run_under",
    "cargo": "--config",
    "go": "-overlay -modfile",
    "npm pnpm yarn npx": "--script-shell --userconfig --globalconfig --node-options",
    "bundle bundler": "--gemfile",
    "pre-commit": "-c --config",
    "guix": "-f -m -l --manifest",
    "nano": "-f --rcfile",
    "man": "-C --config-file",
    "helm": "--post-renderer",
    "git": "--exec-path --template",
    "tmux": "-f",
    "screen": "-c",
    "sqlite3": "-init",
    "mysql mariadb": "--defaults-file --defaults-extra-file --plugin-dir",
    "mutt": "-F",
    "gcc g++ clang cc c++": "-B -fplugin= -specs= -fplugin -wrapper",
    "openssl": "-engine -provider-path -provider",
    "nmap": "--script --datadir",
    "svn": "--config-dir --config-option",
    "hg": "--config",
    "fish": "-C --init-command",
}
_COMMAND_OPTIONS: Mapping[str, str] = {
    "go": "-toolexec --toolexec -exec --exec -vettool --vettool",
    "rsync": "-e --rsh --rsync-path",
    "git": "-x --extcmd --exec -O --open-files-in-pager -u --upload-pack --receive-pack",
    "zip": "-TT --unzip-command",
    "sshfs": "-o",
    "mosh": "--ssh",
    "strace ltrace perf": "-o",
    "just": "--shell",
    "man": "-P --pager -H --html",
    "helm": "--post-renderer",
    "bazel bazelisk": "--run_under",
}
_OPTIONS = {
    name: (tuple(_FILE_OPTIONS.get(names, "").split()), tuple(_COMMAND_OPTIONS.get(names, "").split()))
    for names in (*_FILE_OPTIONS, *_COMMAND_OPTIONS)
    for name in names.split()
}
_SSH_COMMANDS = re.compile(
    r"(?:proxycommand|localcommand|knownhostscommand|remotecommand|match|pkcs11provider|securitykeyprovider"
    r"|xauthlocation|include)[\s=]+(.*)",
    re.IGNORECASE | re.DOTALL,
)
# Programs that variables and settings usually name, and that run nothing of their own accord.
_USUAL_PROGRAMS = split_names(
    "head tail tee sort grep rg fd find awk cp mv echo hx micro kak joe ed ex gedit kate mate zed idea "
    "notepad nvr sccache ccache distcc icecc cachepot firefox chromium google-chrome wslview open "
    "xdg-open rsh cat less more most bat delta difft diff-so-fancy vi vim nvim nano emacs emacsclient "
    "code codium cursor subl true false : none ssh plink tsh gpg gpg2 gpgsm git git-lfs gh glab aws "
    "gcloud az nc ncat netcat corkscrew connect cloudflared step teleport sed watchman rs-git-fsmonitor "
    "ssh-askpass ksshaskpass jq textutil pandoc exiftool prettier black ruff meld vimdiff nbdime "
    "git-nbdiffdriver nbstripout gzip zstd xz"
)
_SCRATCH_VARIABLES = split_names("XDG_CONFIG_HOME XDG_DATA_HOME TERMINFO LOCPATH NLSPATH SHELL")
_PROGRAMS_WITH_HOOKS = split_names("git hub tar zip man less gdb lldb vim vi nvim emacs rsync watch rebase")
_INTERPRETERS = split_names("sh bash zsh dash ksh fish python python3 perl ruby node php lua")
_MAKE = split_names("make gmake bmake nmake")
_ASSIGNING = _MAKE | split_names("env genv sudo doas cmake")
_COMPILER_SETTING = re.compile("COMPILER|TOOLCHAIN|LAUNCHER|LINKER|PROJECT_INCLUDE|RULE_LAUNCH|MAKE_PROGRAM")
_SEPARATORS = re.compile(r"[\s=:,;'\"|]+")


def find_setting_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield an effect for each setting of a program that makes it run or load code of unknown origin."""
    run = context.run
    if run.is_remote:
        return
    for name, value in (*run.env_assignments.items(), *_assigned_words(context)):
        if name not in _SCRATCH_VARIABLES | SEARCH_PATH_VARIABLES and _is_dangerous_variable(
            context, name, value
        ):
            yield _new_effect(context, name, value)
    if run.name in ("git", "hub", "yadm"):
        for key, value in given_git_settings(run.argv, run.env_assignments):
            if _is_dangerous_git_setting(context, key, value):
                yield _new_effect(context, key, value)
    for option, value in _given_options(context):
        yield _new_effect(context, option, value)
    if not _PROGRAMS_WITH_HOOKS.isdisjoint(run.wrappers) and _is_foreign_program(context):
        yield _new_effect(context, run.wrappers[-1], run.path)


def _assigned_words(context: RunContext) -> Iterator[tuple[str, Word]]:
    """Yield the variables that arguments set: `env CC=…`, `make CC=…`, `cmake -DCMAKE_C_COMPILER=…`."""
    for word in context.run.argv[1:MAX_OPERANDS] if context.run.name in _ASSIGNING else ():
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            yield name, Word(value)
        elif word.startswith(("--eval", "-E")) and context.run.name in _MAKE:
            yield "MAKEFLAGS", Word(f"--eval {value}")
        elif word.startswith("-D") and _COMPILER_SETTING.search(name):
            yield "CC", Word(value)


def _new_effect(context: RunContext, name: str, value: Word) -> CommandEffect:
    return context.new_effect(EffectKind.PRIVILEGE, "variable", "once", target=value, detail=name)


def _is_dangerous_variable(context: RunContext, name: str, value: Word) -> bool:
    check = find_value_check(name)
    if check is None or not value:
        return False
    if name in COMMAND_VARIABLES and _is_unusual_command(value):
        return not _is_own(context, value)
    return check(context, value) and not _is_own(context, value)


def _is_dangerous_git_setting(context: RunContext, key: str, value: Word) -> bool:
    match classify_git_setting(key, value):
        case "command":
            return _is_unusual_command(value) and not _is_own(context, value)
        case "terminal":
            command = Word(value.lstrip("!"))
            is_dangerous = is_custom_command(context, command) or _is_unusual_command(command)
            return is_dangerous and not _is_own(context, value)
        case "path":
            return _has_foreign_path(context, value)
    return False


def _is_unusual_command(value: Word) -> bool:
    words = value.lstrip("|-! ").split()
    return bool(words) and words[0].rpartition("/")[2] not in _USUAL_PROGRAMS


def _given_options(context: RunContext) -> Iterator[tuple[str, Word]]:
    """Yield the options of a program, with their values, that load or run a file of unknown origin."""
    run = context.run
    words = run.argv[:MAX_OPERANDS]
    if run.name.startswith("python") and words[1:2] == ("-m",):
        words = words[2:]
    files, commands = _OPTIONS.get(words[0] if words else "", ((), ()))
    words = words[1:]
    for place, word in enumerate(words):
        if run.name in ("ssh", "scp", "sftp", "slogin", "autossh") and word.startswith("-o"):
            setting = _SSH_COMMANDS.match(word[2:].strip() or "".join(words[place + 1 : place + 2]))
            if setting and _is_unusual_command(Word(setting[1])):
                yield "-o", Word(setting[1])
        for option in (*files, *commands):
            value = _option_value(word, option, words[place + 1 : place + 2])
            if value is None:
                continue
            if option in commands:
                if is_custom_command(context, value) and not _is_own(context, value):
                    yield option, value
            elif _has_foreign_path(context, value):
                yield option, value


def _option_value(word: str, option: str, rest: tuple[Word, ...]) -> Word | None:
    """Return the value of an option in `--option=value`, `--option value`, `-ovalue` or `-option:value`."""
    if word == option:
        return rest[0] if rest else None
    if not word.startswith(option) or (word.startswith("--") and word[len(option)] != "="):
        return None
    if len(option) > 2 and option[-1] not in ":=" and word[len(option)] != "=":
        return None
    return Word(word[len(option) :].lstrip("="))


def _is_foreign_program(context: RunContext) -> bool:
    """Return True if the program is a file of unknown origin, or an interpreter that runs such a file."""
    run = context.run
    if "/" in run.path and _has_foreign_path(context, run.path):
        return True
    scripts = [word for word in run.argv[1:] if not word.startswith("-")][:1]
    return run.name in _INTERPRETERS and any(_has_foreign_path(context, word) for word in scripts)


def _paths(value: str) -> list[str]:
    return [part for part in _SEPARATORS.split(value)[:64] if "/" in part]


def _has_foreign_path(context: RunContext, value: Word) -> bool:
    """Return True if a value names a URL, or a file outside of the project, home and system."""
    return (
        "://" in value
        or value.startswith("data:")
        or any(_is_foreign(context, part) for part in _paths(value))
    )


def _is_foreign(context: RunContext, part: str) -> bool:
    if part.startswith((*SYSTEM_PREFIXES, GAP)):
        return False
    kinds = context.classify(Word(part)).kinds
    return PathKind.PROJECT not in kinds and bool(kinds & {PathKind.TEMP, PathKind.OUTSIDE})


def _is_own(context: RunContext, value: Word) -> bool:
    """Return True if a value names files, and all of them are in the project or the home directory."""
    return bool(_paths(value)) and not _has_foreign_path(context, value)
