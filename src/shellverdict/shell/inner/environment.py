"""Find the commands that environment variables, such as PAGER or LD_PRELOAD, make a program run.

A pager, an editor, a library to load first: whoever sets the variable chooses the code. Which programs use a
variable is not considered, because a harmless value is harmless for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from shellverdict.names import split_names
from shellverdict.shell.inner.git_settings import read_git_setting
from shellverdict.shell.inner.inner_command import InnerCommand, to_literal
from shellverdict.shell.words import GAP, Word

__all__ = ["COMMAND_VARIABLES", "INSTALLED_PREFIXES", "commands_from_variables"]

COMMAND_VARIABLES = split_names(
    "PAGER MANPAGER GIT_PAGER SYSTEMD_PAGER AWS_PAGER GH_PAGER BAT_PAGER DELTA_PAGER PSQL_PAGER EDITOR "
    "VISUAL FCEDIT GIT_EDITOR GIT_SEQUENCE_EDITOR KUBE_EDITOR SUDO_EDITOR SYSTEMD_EDITOR SVN_EDITOR "
    "HGEDITOR CVSEDITOR PSQL_EDITOR GIT_SSH_COMMAND GIT_EXTERNAL_DIFF GIT_PROXY_COMMAND PROMPT_COMMAND "
    "BROWSER GH_BROWSER GH_EDITOR GIT_ASKPASS SSH_ASKPASS SUDO_ASKPASS GIT_SSH RSYNC_RSH CVS_RSH SVN_SSH "
    "RSH FZF_DEFAULT_COMMAND FZF_CTRL_T_COMMAND MAILER RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER "
    "CARGO_BUILD_RUSTC_WRAPPER RSYNC_CONNECT_PROG DPKG_PAGER TEXEDIT CMAKE_C_COMPILER_LAUNCHER "
    "CMAKE_CXX_COMPILER_LAUNCHER GEM_EDITOR"
)
_PIPE_VARIABLES = frozenset({"LESSOPEN", "LESSCLOSE"})
_CODE_FILE_VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "BASH_ENV": "sh",
        "ENV": "sh",
        "PYTHONSTARTUP": "python",
        "INPUTRC": "readline",
        "LD_PRELOAD": "binary",
        "LD_AUDIT": "binary",
        "LD_LIBRARY_PATH": "binary",
        "DYLD_INSERT_LIBRARIES": "binary",
        "DYLD_LIBRARY_PATH": "binary",
        "PERL5LIB": "",
        "OPENSSL_CONF": "",
        "GIT_EXEC_PATH": "binary",
        "GIT_TEMPLATE_DIR": "",
    }
)
_LIBRARY_VARIABLES = frozenset(
    {"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_INSERT_LIBRARIES"}
)
INSTALLED_PREFIXES = ("/usr/", "/opt/", "/lib", "/bin/", "/sbin/", "/nix/", "/snap/")
_OPTION_VARIABLES: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "NODE_OPTIONS": ("node", ("-r", "--require", "--import", "--loader", "--experimental-loader")),
        "RUBYOPT": ("ruby", ("-r",)),
        "JAVA_TOOL_OPTIONS": ("binary", ("-javaagent:", "-agentpath:")),
        "_JAVA_OPTIONS": ("binary", ("-javaagent:", "-agentpath:")),
    }
)
_CODE_VARIABLES: Mapping[str, str] = MappingProxyType(
    {"PS4": "sh", "PERL5DB": "perl", "VIMINIT": "vim", "EXINIT": "vim", "GVIMINIT": "vim", "PS0": "sh"}
)
_PERL_CODE = re.compile(r"(?:^|\s)-[a-zA-Z]*[eE]\s*(.*)", re.DOTALL)
_GIT_KEY = re.compile(r"GIT_CONFIG_KEY_\d+")
_GIT_PARAMETER = re.compile(r"'([^']*(?:'='[^']*)?)'")


def commands_from_variables(env_assignments: Mapping[str, Word], program: str = "") -> Iterator[InnerCommand]:
    """Yield the commands and code that assigned environment variables make a program run."""
    yield from _read_git_variables(env_assignments)
    for name, value in env_assignments.items():
        if name in _LIBRARY_VARIABLES and (
            _is_installed(value) or (name.endswith("PATH") and _is_project_program(program))
        ):
            continue
        if value:
            yield from _read_variable(name, value)


def _read_git_variables(env_assignments: Mapping[str, Word]) -> Iterator[InnerCommand]:
    """Return the commands that settings in GIT_CONFIG_* variables make git run."""
    for name, key in env_assignments.items():
        if _GIT_KEY.fullmatch(name):
            yield from read_git_setting(key, env_assignments.get(name.replace("KEY", "VALUE"), Word("")))
        elif name == "GIT_CONFIG_PARAMETERS":
            for setting in _GIT_PARAMETER.findall(key):
                yield from read_git_setting(*setting.replace("'='", "=").partition("=")[::2])


def _is_project_program(program: str) -> bool:
    """Return True if a program is called by a path outside the system directories, such as `./build/app`.

    A program of the project is expected to load libraries from the project.
    """
    return "/" in program and not program.startswith(INSTALLED_PREFIXES)


def _is_installed(value: str) -> bool:
    return all(
        part.startswith(INSTALLED_PREFIXES) or not part.strip(GAP) for part in value.replace(":", " ").split()
    )


def _read_variable(name: str, value: Word) -> Iterator[InnerCommand]:
    if name in COMMAND_VARIABLES:
        yield InnerCommand(code=to_literal(value), wrapper=name, has_unknown_operands=True)
    elif name in _PIPE_VARIABLES:
        yield InnerCommand(code=to_literal(value.lstrip("|-")), wrapper=name, has_unknown_operands=True)
    elif language := _CODE_FILE_VARIABLES.get(name):
        yield InnerCommand(source="file", file=value, language=language, wrapper=name)
    elif name in _CODE_VARIABLES:
        yield from _read_code_variable(name, value)
    elif name in _OPTION_VARIABLES:
        yield from _read_option_variable(name, value)
    elif name == "PERL5OPT" and (found := _PERL_CODE.search(value)):
        yield InnerCommand(code=to_literal(found[1]), language="perl", wrapper=name)


def _read_code_variable(name: str, value: Word) -> Iterator[InnerCommand]:
    """Yield the code in a variable such as PS1; a prompt is code only if it has a command substitution."""
    if _CODE_VARIABLES[name] != "sh":
        yield InnerCommand(code=to_literal(value), language=_CODE_VARIABLES[name], wrapper=name)
    elif "$(" in value or "`" in value:
        yield InnerCommand(code=Word(f'echo "{to_literal(value)}"'), wrapper=name)


def _read_option_variable(name: str, value: Word) -> Iterator[InnerCommand]:
    language, options = _OPTION_VARIABLES[name]
    words = value.split()
    for place, word in enumerate(words):
        for option in options:
            if word == option:
                file = words[place + 1] if place + 1 < len(words) else ""
            elif word.startswith(option):
                file = word.removeprefix(option).removeprefix("=")
            else:
                continue
            if file:
                yield InnerCommand(source="file", file=Word(file), language=language, wrapper=name)
            break
