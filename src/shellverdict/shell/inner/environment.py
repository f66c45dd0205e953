"""Variables of the environment that make a program run something.

A pager, an editor, a library to load first: whoever sets the variable chooses the code. Which program would
look at which variable is not asked; a harmless value stays harmless, whoever reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from shellverdict.shell.inner.gitsettings import git_setting
from shellverdict.shell.inner.nouns import Inner, as_typed
from shellverdict.shell.words import GAP, Word

__all__ = ["INSTALLED", "from_assignments"]

_COMMANDS = frozenset(
    [
        "PAGER",
        "MANPAGER",
        "GIT_PAGER",
        "SYSTEMD_PAGER",
        "AWS_PAGER",
        "GH_PAGER",
        "BAT_PAGER",
        "DELTA_PAGER",
        "PSQL_PAGER",
        "EDITOR",
        "VISUAL",
        "FCEDIT",
        "GIT_EDITOR",
        "GIT_SEQUENCE_EDITOR",
        "KUBE_EDITOR",
        "SUDO_EDITOR",
        "SYSTEMD_EDITOR",
        "SVN_EDITOR",
        "HGEDITOR",
        "CVSEDITOR",
        "PSQL_EDITOR",
        "GIT_SSH_COMMAND",
        "GIT_EXTERNAL_DIFF",
        "GIT_PROXY_COMMAND",
        "PROMPT_COMMAND",
        "BROWSER",
        "GH_BROWSER",
        "GH_EDITOR",
        "GIT_ASKPASS",
        "SSH_ASKPASS",
        "SUDO_ASKPASS",
        "GIT_SSH",
        "RSYNC_RSH",
        "CVS_RSH",
        "SVN_SSH",
        "RSH",
        "FZF_DEFAULT_COMMAND",
        "FZF_CTRL_T_COMMAND",
        "MAILER",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "CARGO_BUILD_RUSTC_WRAPPER",
        "RSYNC_CONNECT_PROG",
        "DPKG_PAGER",
        "TEXEDIT",
        "CMAKE_C_COMPILER_LAUNCHER",
        "CMAKE_CXX_COMPILER_LAUNCHER",
        "GEM_EDITOR",
    ]
)
_PIPED = frozenset({"LESSOPEN", "LESSCLOSE"})
_FILES: Mapping[str, str] = MappingProxyType(
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
_LIBRARIES = frozenset({"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_INSERT_LIBRARIES"})
INSTALLED = ("/usr/", "/opt/", "/lib", "/bin/", "/sbin/", "/nix/", "/snap/")
_LANGUAGE_OPTIONS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "NODE_OPTIONS": ("node", ("-r", "--require", "--import", "--loader", "--experimental-loader")),
        "RUBYOPT": ("ruby", ("-r",)),
        "JAVA_TOOL_OPTIONS": ("binary", ("-javaagent:", "-agentpath:")),
        "_JAVA_OPTIONS": ("binary", ("-javaagent:", "-agentpath:")),
    }
)
_CODE: Mapping[str, str] = MappingProxyType(
    {"PS4": "sh", "PERL5DB": "perl", "VIMINIT": "vim", "EXINIT": "vim", "GVIMINIT": "vim", "PS0": "sh"}
)
_PERL_CODE = re.compile(r"(?:^|\s)-[a-zA-Z]*[eE]\s*(.*)", re.DOTALL)
_GIT_KEY = re.compile(r"GIT_CONFIG_KEY_\d+")
_GIT_PARAMETER = re.compile(r"'([^']*(?:'='[^']*)?)'")


def from_assignments(assigned: Mapping[str, Word], program: str = "") -> Iterator[Inner]:
    """What these variables make a program run; most of them any program."""
    yield from _git_settings(assigned)
    for name, value in assigned.items():
        if name in _LIBRARIES and (_is_installed(value) or (name.endswith("PATH") and _is_own(program))):
            continue
        if value:
            yield from _of(name, value)


def _git_settings(assigned: Mapping[str, Word]) -> Iterator[Inner]:
    """Settings for git that come in pairs of variables, or all in one."""
    for name, key in assigned.items():
        if _GIT_KEY.fullmatch(name):
            yield from git_setting(key, assigned.get(name.replace("KEY", "VALUE"), Word("")))
        elif name == "GIT_CONFIG_PARAMETERS":
            for setting in _GIT_PARAMETER.findall(key):
                yield from git_setting(*setting.replace("'='", "=").partition("=")[::2])


def _is_own(program: str) -> bool:
    """Whether a program lies in the project: that it has libraries beside it is no surprise."""
    return "/" in program and not program.startswith(INSTALLED)


def _is_installed(value: str) -> bool:
    return all(part.startswith(INSTALLED) or not part.strip(GAP) for part in value.replace(":", " ").split())


def _of(name: str, value: Word) -> Iterator[Inner]:
    if name in _COMMANDS:
        yield Inner(code=as_typed(value), through=name, more_operands=True)
    elif name in _PIPED:
        yield Inner(code=as_typed(value.lstrip("|-")), through=name, more_operands=True)
    elif language := _FILES.get(name):
        yield Inner(source="file", file=value, language=language, through=name)
    elif name in _CODE:
        yield from _code(name, value)
    elif name in _LANGUAGE_OPTIONS:
        yield from _loaded(name, value)
    elif name == "PERL5OPT" and (found := _PERL_CODE.search(value)):
        yield Inner(code=as_typed(found[1]), language="perl", through=name)


def _code(name: str, value: Word) -> Iterator[Inner]:
    """A prompt is code only where it has a substitution in it."""
    if _CODE[name] != "sh":
        yield Inner(code=as_typed(value), language=_CODE[name], through=name)
    elif "$(" in value or "`" in value:
        yield Inner(code=Word(f'echo "{as_typed(value)}"'), through=name)


def _loaded(name: str, value: Word) -> Iterator[Inner]:
    language, options = _LANGUAGE_OPTIONS[name]
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
                yield Inner(source="file", file=Word(file), language=language, through=name)
            break
