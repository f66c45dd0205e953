"""Variables that name code, set for every program that follows.

A pager, a library, a file read at the start: whoever exports one chooses what later commands run, however
harmless they look. What a variable does to the one command it stands in front of is read elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from shellverdict.effects.scene import MOST_OPERANDS, Family, Scene
from shellverdict.names import names
from shellverdict.options import Options
from shellverdict.places import Place
from shellverdict.shell.words import EMPTY, GAP, Word
from shellverdict.verdict import Effect, Kind

__all__ = ["VARIABLES"]

_COMMANDS = names(
    "PAGER MANPAGER GIT_PAGER SYSTEMD_PAGER AWS_PAGER GH_PAGER BAT_PAGER DELTA_PAGER PSQL_PAGER EDITOR "
    "VISUAL FCEDIT GIT_EDITOR GIT_SEQUENCE_EDITOR KUBE_EDITOR SUDO_EDITOR SYSTEMD_EDITOR SVN_EDITOR "
    "HGEDITOR PSQL_EDITOR GH_EDITOR BROWSER GH_BROWSER GIT_SSH GIT_SSH_COMMAND GIT_EXTERNAL_DIFF "
    "GIT_PROXY_COMMAND GIT_ASKPASS SSH_ASKPASS SUDO_ASKPASS RSYNC_RSH CVS_RSH SVN_SSH RSH MAILER LESSOPEN "
    "LESSCLOSE RUSTC RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER CARGO_BUILD_RUSTC_WRAPPER CC CXX LD AR CPP FC "
    "MAKE CMAKE_C_COMPILER FZF_DEFAULT_COMMAND FZF_CTRL_T_COMMAND MANROFFOPT TERMCMD TERMINAL "
    "KUBECTL_EXTERNAL_DIFF SHELL DOCKER_HOST_COMMAND npm_config_script_shell NPM_CONFIG_SCRIPT_SHELL "
    "PYTHONBREAKPOINT"
)
_FILES = names(
    "BASH_ENV ENV ZDOTDIR PYTHONSTARTUP INPUTRC LD_PRELOAD LD_AUDIT DYLD_INSERT_LIBRARIES "
    "GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM GIT_CONFIG GIT_EXEC_PATH GIT_TEMPLATE_DIR OPENSSL_CONF "
    "OPENSSL_ENGINES GCONV_PATH R_PROFILE R_PROFILE_USER R_ENVIRON R_ENVIRON_USER VIMRUNTIME MYVIMRC "
    "PYTHONHOME XDG_CONFIG_HOME XDG_DATA_HOME TERMINFO WGETRC CURL_HOME PSQLRC SCREENRC "
    "NPM_CONFIG_GLOBALCONFIG SYSTEMD_UNIT_PATH LOCPATH NLSPATH MAKEFILES GDBHISTFILE"
)
_FOLDERS = names(
    "PYTHONPATH PERL5LIB PERLLIB RUBYLIB NODE_PATH CLASSPATH LUA_PATH LUA_CPATH GEM_PATH GEM_HOME "
    "LD_LIBRARY_PATH DYLD_LIBRARY_PATH DYLD_FRAMEWORK_PATH CMAKE_PREFIX_PATH EMACSLOADPATH TCLLIBPATH"
)
_CODE = names("PROMPT_COMMAND PERL5DB VIMINIT EXINIT GVIMINIT LUA_INIT")
_OPTIONS: Mapping[str, re.Pattern[str]] = {
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
    "GREP_OPTIONS": re.compile("-f"),
}
_OTHER_NAMES = {
    "_JAVA_OPTIONS": "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS": "JAVA_TOOL_OPTIONS",
    "GNUMAKEFLAGS": "MAKEFLAGS",
    "MAVEN_OPTS": "JAVA_TOOL_OPTIONS",
    "GRADLE_OPTS": "JAVA_TOOL_OPTIONS",
}
_INSTALLED = ("/usr/", "/opt/", "/lib", "/bin/", "/sbin/", "/nix/", "/snap/", "/Applications/", "/dev/null")
_RUNNERS = names(
    "sh bash zsh dash ksh fish python python3 perl ruby node php env eval exec curl wget nc socat sudo"
)
_SHELL_SIGNS = re.compile(r"[;|&`<>]|\$\(|ProxyCommand|LocalCommand|KnownHostsCommand", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_]\w*")


def _runs_a_command(_: Scene, value: Word) -> bool:
    """Whether it is more than a program that is installed under its name, with options."""
    text = value.lstrip("|- ")
    first = text.split(None, 1)[0] if text.split() else ""
    if not first or first.startswith(GAP):
        return False
    if _SHELL_SIGNS.search(text):
        return True
    program = first.rpartition("/")[2]
    told = len(text.split()) > 1
    return (program in _RUNNERS and told) or ("/" in first and not first.startswith(_INSTALLED))


def _leads_elsewhere(scene: Scene, value: Word) -> bool:
    """Whether a file to be read or loaded lies where anybody may have put it."""
    paths = [part for part in re.split("[: ]", value) if "/" in part or part.endswith((".so", ".sh"))]
    return any(not part.startswith((*_INSTALLED, GAP)) and not _usual_home(scene, part) for part in paths)


def _usual_home(scene: Scene, part: str) -> bool:
    """`~/.config` and the like are where such files are anyway."""
    path = scene.where(Word(part)).path
    return path.startswith(scene.places.home) and path.rpartition("/")[2] in names(
        ".config .inputrc .local share zsh .zsh .psqlrc"
    )


def _searched_elsewhere(scene: Scene, value: Word) -> bool:
    """Whether modules are looked for outside of the project and of what is installed."""
    for part in islice(value.split(":"), 64):
        if "/" in part and not part.startswith((*_INSTALLED, GAP)):
            places = scene.where(Word(part)).places
            if Place.PROJECT not in places and places & {Place.TEMP, Place.OUTSIDE}:
                return True
    return False


def _is_code(_: Scene, value: Word) -> bool:
    return bool(value.strip(GAP + " "))


def _check(name: str) -> Callable[[Scene, Word], bool] | None:
    name = _OTHER_NAMES.get(name, name)
    if name in _OPTIONS:
        return lambda _, value: _OPTIONS[name].search(value) is not None
    kinds = ((_COMMANDS, _runs_a_command), (_FILES, _leads_elsewhere), (_FOLDERS, _searched_elsewhere))
    return next((check for known, check in (*kinds, (_CODE, _is_code)) if name in known), None)


def _exported(scene: Scene) -> Iterator[Effect]:
    options = Options.read(scene.run.argv)
    if options.has("-p", "-f", "-F") and not options.has("-x"):
        return
    for word in islice(options.operands, MOST_OPERANDS):
        name, equals, value = word.partition("=")
        name = name.removesuffix("+")
        if not _NAME.fullmatch(name):
            continue
        check = _check(value if options.has("-n") and scene.run.name != "export" else name)
        if check is None:
            continue
        if not equals:
            unseen = name in _COMMANDS | _CODE | _OPTIONS.keys() or name in _FILES - {"ENV"}
            asked = unseen and scene.run.name == "export" and not options.has("-n")
        else:
            asked = options.has("-n") or check(scene, Word(value))
        if asked:
            yield scene.effect(Kind.PRIVILEGE, "variable", target=Word(value) or EMPTY, detail=name)


def _set_in_c_shell(scene: Scene) -> Iterator[Effect]:
    words = scene.run.argv[1:]
    if len(words) > 1:
        check = _check(words[0])
        if check is not None and check(scene, words[1]):
            yield scene.effect(Kind.PRIVILEGE, "variable", target=words[1], detail=words[0])


VARIABLES: Family = {
    **dict.fromkeys(names("export declare typeset readonly"), _exported),
    "setenv": _set_in_c_shell,
}
