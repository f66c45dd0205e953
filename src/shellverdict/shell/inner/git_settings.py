"""Git settings whose values are commands: pagers, editors, aliases, filters, helpers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from shellverdict.names import split_names
from shellverdict.shell.inner.inner_command import InnerCommand, to_literal
from shellverdict.shell.words import GAP, Word

__all__ = ["classify_git_setting", "given_git_settings", "read_git_setting"]

_COMMAND_SETTINGS = re.compile(
    r"core\.(pager|editor|sshcommand|fsmonitor|askpass|gitproxy|alternaterefscommand)|diff\.external|sequence\.editor"
    r"|pager\.[^.]+|gpg(\.[^.]+)?\.program|credential(\..*)?\.helper|interactive\.difffilter|uploadpack\.packobjectshook"
    r"|(diff|merge|filter|difftool|mergetool|browser|man|guitool|trailer|tar|hook|sendemail)\..+\."
    r"(command|textconv|driver|clean|smudge|process|cmd|path|postcommand)|(diff|merge)tool\..+\.(cmd|path)"
    r"|submodule\..+\.update|remote\..+\.(uploadpack|receivepack|proxy)|gui\.[^.]+|instaweb\.browser|tar\..+\.command"
    r"|sendemail\.(sendmailcmd|tocmd|cccmd|headercmd)|web\.browser|gpg\.ssh\.defaultkeycommand|imap\.tunnel",
    re.IGNORECASE,
)
_KEY_VARIABLE = re.compile(r"GIT_CONFIG_KEY_\d+")
_TERMINAL_SETTINGS = re.compile(
    r"core\.(pager|editor)|sequence\.editor|pager\..+|interactive\.difffilter|(diff|merge)tool\..+",
    re.IGNORECASE,
)
_PATH_SETTINGS = re.compile(
    r"core\.hookspath|init\.templatedir|include\.path|includeif\..+\.path", re.IGNORECASE
)
_NON_COMMAND_VALUES = split_names(
    "true false yes no on off 0 1 cache store osxkeychain manager manager-core libsecret"
) | {""}


def classify_git_setting(key: str, value: str) -> str:
    """Return the kind of a setting's value: `command`, `terminal` (pager or editor), `path` or empty."""
    if value.lower() in _NON_COMMAND_VALUES:
        return ""
    if key.lower().startswith("alias."):
        return "terminal" if value.startswith("!") else ""
    if _TERMINAL_SETTINGS.fullmatch(key):
        return "terminal"
    if _PATH_SETTINGS.fullmatch(key):
        return "path"
    is_helper_name = key.lower().startswith("credential") and value[0] not in "!/"
    return "command" if _COMMAND_SETTINGS.fullmatch(key) and not is_helper_name else ""


def given_git_settings(
    argv: Sequence[Word], env_assignments: Mapping[str, Word]
) -> Iterator[tuple[str, Word]]:
    """Yield the settings that options and variables give to one git command."""
    for option, word in pairwise(argv):
        if option in ("-c", "--config", "--config-env"):
            key, equals, value = word.partition("=")
            yield key, Word(GAP if option == "--config-env" else value if equals else "true")
    for word in argv:
        name, _, setting = word.partition("=")
        if name in ("--config", "--config-env") and "=" in setting:
            key, _, value = setting.partition("=")
            yield key, Word(GAP if name == "--config-env" else value)
    for name, assigned in env_assignments.items():
        if _KEY_VARIABLE.fullmatch(name):
            yield assigned, env_assignments.get(name.replace("KEY", "VALUE"), Word(""))


def read_git_setting(key: str, value: str, *, is_stored: bool = False) -> Iterator[InnerCommand]:
    """Yield the command that a git setting makes git run; `is_stored` means that git saves the setting."""
    lowered = key.lower()
    if lowered.startswith("alias."):
        if value.startswith("!"):
            yield InnerCommand(code=to_literal(value[1:]), wrapper="git", has_unknown_operands=True)
        elif not is_stored and value:
            yield InnerCommand(code=to_literal(f"git {value}"), wrapper="git", has_unknown_operands=True)
    elif _COMMAND_SETTINGS.fullmatch(lowered) and value.lower() not in _NON_COMMAND_VALUES:
        if lowered.startswith("credential") and value[0] not in "!/":
            return
        yield InnerCommand(code=to_literal(value.lstrip("!")), wrapper="git", has_unknown_operands=True)
    elif (
        lowered in ("core.hookspath", "init.templatedir") and not is_stored and value not in ("", "/dev/null")
    ):
        yield InnerCommand(source="file", file=Word(value), language="binary", wrapper="git")
