"""Detect exported variables, such as PAGER or LD_PRELOAD, that make later programs run other code.

A pager, a preloaded library or a start-up file: exporting such a variable decides what later commands run,
however harmless they look. A search path such as PYTHONPATH does the same for the one command it precedes;
other variables before a command are handled elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from shellverdict.effects.run_context import MAX_OPERANDS, EffectHandlers, RunContext
from shellverdict.names import split_names
from shellverdict.options import Options
from shellverdict.paths import PathKind
from shellverdict.shell.inner.environment import COMMAND_VARIABLES
from shellverdict.shell.words import EMPTY, GAP, Taint, Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = [
    "SEARCH_PATH_VARIABLES",
    "SYSTEM_PREFIXES",
    "VARIABLE_HANDLERS",
    "find_search_path_effects",
    "find_value_check",
    "is_custom_command",
]

_COMMAND_VARIABLES = COMMAND_VARIABLES | split_names(
    "AR CC CMAKE_C_COMPILER CPP CXX DOCKER_HOST_COMMAND FC KUBECTL_EXTERNAL_DIFF LD LESSCLOSE LESSOPEN "
    "MAKE MANROFFOPT NPM_CONFIG_SCRIPT_SHELL RUSTC SHELL TERMCMD TERMINAL npm_config_script_shell "
    "CMAKE_CXX_COMPILER"
)
_FILE_VARIABLES = split_names(
    "BASH_ENV ENV ZDOTDIR PYTHONSTARTUP INPUTRC LD_PRELOAD LD_AUDIT DYLD_INSERT_LIBRARIES "
    "GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM GIT_CONFIG GIT_EXEC_PATH GIT_TEMPLATE_DIR OPENSSL_CONF "
    "OPENSSL_ENGINES GCONV_PATH R_PROFILE R_PROFILE_USER R_ENVIRON R_ENVIRON_USER VIMRUNTIME MYVIMRC "
    "PYTHONHOME XDG_CONFIG_HOME XDG_DATA_HOME TERMINFO WGETRC CURL_HOME PSQLRC SCREENRC "
    "NPM_CONFIG_GLOBALCONFIG NPM_CONFIG_USERCONFIG npm_config_userconfig npm_config_globalconfig "
    "PIP_CONFIG_FILE UV_CONFIG_FILE ANSIBLE_CONFIG PHPRC PHP_INI_SCAN_DIR DOTNET_STARTUP_HOOKS "
    "PYTHONUSERBASE GOENV GIT_DIR BUNDLE_GEMFILE GH_CONFIG_DIR GLAB_CONFIG_DIR TF_CLI_CONFIG_FILE LESSKEY "
    "LESSKEYIN SSH_SK_PROVIDER CMAKE_TOOLCHAIN_FILE GTK_MODULES GIO_MODULE_DIR QT_PLUGIN_PATH "
    "SYSTEMD_UNIT_PATH LOCPATH NLSPATH MAKEFILES GDBHISTFILE"
)
SEARCH_PATH_VARIABLES = split_names(
    "PYTHONPATH PERL5LIB PERLLIB RUBYLIB NODE_PATH CLASSPATH LUA_PATH LUA_CPATH GEM_PATH GEM_HOME "
    "LD_LIBRARY_PATH DYLD_LIBRARY_PATH DYLD_FRAMEWORK_PATH CMAKE_PREFIX_PATH EMACSLOADPATH TCLLIBPATH "
    "JULIA_LOAD_PATH ERL_LIBS R_LIBS R_LIBS_USER FPATH MODULE_PATH PSModulePath"
)
_CODE_VARIABLES = split_names("PROMPT_COMMAND PERL5DB VIMINIT EXINIT GVIMINIT LUA_INIT")
_OPTION_VARIABLES: Mapping[str, re.Pattern[str]] = {
    "NODE_OPTIONS": re.compile(
        r"(?:^|\s)(?:-r|--require|--import|--loader|--experimental-loader)[\s=]\s*[./~]"
    ),
    "PERL5OPT": re.compile(r"-[MmId](?!strict|warnings|utf8|Devel::Cover|Test2?::)"),
    "RUBYOPT": re.compile(r"-[rI]\s*[./~]"),
    "MAKEFLAGS": re.compile(r"--eval|(?:^|\s)-?-?f(?:ile)?[\s=]|SHELL|--include-dir|(?:^|\s)-I"),
    "TAR_OPTIONS": re.compile(
        r"-action|--to-command|--use-compress|--rsh-command|--info-script|(?:^|\s)-[IF]"
    ),
    "JAVA_TOOL_OPTIONS": re.compile(r"-javaagent|-agentpath|-agentlib|-Xbootclasspath|OnOutOfMemory|OnError"),
    "GOFLAGS": re.compile(r"-toolexec|-exec|-overlay|-modfile"),
    "RUSTFLAGS": re.compile(r"linker=\s*[./~]"),
    "LESS": re.compile(r"(?:^|\s)\+"),
    "RSYNC_CONNECT_PROG": re.compile("."),
    "PYTHONBREAKPOINT": re.compile(r"^(?!0?$|\w*pdb[\w.]*\.set_trace$|IPython|web_pdb|breakpoint$)"),
    "PYTHONWARNINGS": re.compile(r":\d*:[^:,]*\."),
    "ERL_FLAGS": re.compile("-eval|-run|-s "),
    "MANOPT": re.compile(r"-P|--pager|-H|--html"),
    "GREP_OPTIONS": re.compile("-f"),
}
_OTHER_NAMES = {
    "_JAVA_OPTIONS": "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS": "JAVA_TOOL_OPTIONS",
    "GNUMAKEFLAGS": "MAKEFLAGS",
    "MAVEN_OPTS": "JAVA_TOOL_OPTIONS",
    "GRADLE_OPTS": "JAVA_TOOL_OPTIONS",
    "ERL_AFLAGS": "ERL_FLAGS",
    "ERL_ZFLAGS": "ERL_FLAGS",
    "ELIXIR_ERL_OPTIONS": "ERL_FLAGS",
}
SYSTEM_PREFIXES = (
    "/usr/",
    "/opt/",
    "/lib",
    "/bin/",
    "/sbin/",
    "/nix/",
    "/snap/",
    "/Applications/",
    "/dev/null",
)
_INTERPRETERS = split_names(
    "sh bash zsh dash ksh fish python python3 perl ruby node php env eval exec curl wget nc socat sudo"
)
_SHELL_SYNTAX = re.compile(r"[;|&`<>]|\$\(|ProxyCommand|LocalCommand|KnownHostsCommand", re.IGNORECASE)
_QUOTED = re.compile("'[^']*'")
_NAME = re.compile(r"[A-Za-z_]\w*")


def is_custom_command(_: RunContext, value: Word) -> bool:
    """Return True if a variable such as PAGER would run shell code or a program outside system paths."""
    text = value.lstrip("|- ")
    first = text.split(None, 1)[0] if text.split() else ""
    if not first or first.startswith(GAP):
        return False
    if _SHELL_SYNTAX.search(_QUOTED.sub("", text)):
        return True
    program = first.rpartition("/")[2]
    has_arguments = len(text.split()) > 1
    return (program in _INTERPRETERS and has_arguments) or (
        "/" in first and not first.startswith(SYSTEM_PREFIXES)
    )


def _names_untrusted_file(context: RunContext, value: Word) -> bool:
    """Return True if the value of a variable names a file outside the directories of installed software."""
    paths = [part for part in re.split("[: ]", value) if "/" in part or part.endswith((".so", ".sh"))]
    return any(
        not part.startswith((*SYSTEM_PREFIXES, GAP)) and not _is_usual_config(context, part) for part in paths
    )


def _is_usual_config(context: RunContext, part: str) -> bool:
    """Return True for paths such as `~/.config`, which are usual values of configuration variables."""
    path = context.classify(Word(part)).path
    return path.startswith(context.paths.home) and path.rpartition("/")[2] in split_names(
        ".config .inputrc .local share zsh .zsh .psqlrc"
    )


def _searches_untrusted_directory(context: RunContext, value: Word) -> bool:
    """Return True if a search path such as PYTHONPATH has a directory outside the project and the system."""
    for part in islice(value.split(":"), 64):
        if "/" in part and not part.startswith((*SYSTEM_PREFIXES, GAP, "../")):
            kinds_of_part = context.classify(Word(part)).kinds
            if PathKind.PROJECT not in kinds_of_part and kinds_of_part & {PathKind.TEMP, PathKind.OUTSIDE}:
                return True
    return False


def find_search_path_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield an effect for each search path, set for one program, with a directory that anybody can write to.

    Search paths for libraries are handled with the commands that variables make a program run.
    """
    words = context.run.argv[1:] if context.run.name in ("env", "sudo", "doas") else ()
    assigned = [word.partition("=")[::2] for word in islice(words, MAX_OPERANDS)]
    for name, value in (*context.run.env_assignments.items(), *assigned):
        if name in SEARCH_PATH_VARIABLES and not name.startswith(("LD_", "DYLD_")):
            parts = [Word(part) for part in islice(value.split(":"), 64) if "/" in part]
            if any(PathKind.TEMP in context.classify(part).kinds for part in parts):
                yield context.new_effect(
                    EffectKind.RUN_UNREAD, Taint.UNREAD.value, target=Word(value), detail=name
                )


def _is_code(_: RunContext, value: Word) -> bool:
    return bool(value.strip(GAP + " "))


def find_value_check(name: str) -> Callable[[RunContext, Word], bool] | None:
    """Return the function that detects dangerous values of a variable; None if all values are harmless."""
    name = _OTHER_NAMES.get(name, name)
    if name in _OPTION_VARIABLES:
        return lambda _, value: _OPTION_VARIABLES[name].search(value) is not None
    kinds = (
        (_CODE_VARIABLES, _is_code),
        (_COMMAND_VARIABLES, is_custom_command),
        (_FILE_VARIABLES, _names_untrusted_file),
        (SEARCH_PATH_VARIABLES, _searches_untrusted_directory),
    )
    return next((check for known, check in kinds if name in known), None)


def _export_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = Options.parse(context.run.argv)
    if options.has("-p", "-f", "-F") and not options.has("-x"):
        return
    for word in islice(options.operands, MAX_OPERANDS):
        name, equals, value = word.partition("=")
        name = name.removesuffix("+")
        if not _NAME.fullmatch(name):
            continue
        check = find_value_check(value if options.has("-n") and context.run.name != "export" else name)
        if check is None:
            continue
        if not equals:
            has_unknown_value = (
                name in _COMMAND_VARIABLES | _CODE_VARIABLES | _OPTION_VARIABLES.keys()
                or name in _FILE_VARIABLES - {"ENV"}
            )
            is_dangerous = has_unknown_value and context.run.name == "export" and not options.has("-n")
        else:
            is_dangerous = options.has("-n") or check(context, Word(value))
        if is_dangerous:
            yield context.new_effect(
                EffectKind.PRIVILEGE, "variable", target=Word(value) or EMPTY, detail=name
            )


def _setenv_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = context.run.argv[1:]
    if len(words) > 1:
        check = find_value_check(words[0])
        if check is not None and check(context, words[1]):
            yield context.new_effect(EffectKind.PRIVILEGE, "variable", target=words[1], detail=words[0])


VARIABLE_HANDLERS: EffectHandlers = {
    **dict.fromkeys(split_names("export declare typeset readonly"), _export_effects),
    "setenv": _setenv_effects,
}
