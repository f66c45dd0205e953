"""Git settings whose values are commands: pagers, editors, aliases, filters, helpers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shellverdict.shell.inner.inner_command import InnerCommand, to_literal
from shellverdict.shell.words import Word

__all__ = ["read_git_setting"]

_COMMAND_SETTINGS = re.compile(
    r"core\.(pager|editor|sshcommand|fsmonitor|askpass|gitproxy|alternaterefscommand)|diff\.external|sequence\.editor"
    r"|pager\.[^.]+|gpg(\.[^.]+)?\.program|credential(\..*)?\.helper|interactive\.difffilter|uploadpack\.packobjectshook"
    r"|(diff|merge|filter|difftool|mergetool|browser|man|guitool|trailer|tar|hook|sendemail)\..+\."
    r"(command|textconv|driver|clean|smudge|process|cmd|path|postcommand)|(diff|merge)tool\..+\.(cmd|path)"
    r"|submodule\..+\.update|remote\..+\.(uploadpack|receivepack|proxy)|gui\.[^.]+|instaweb\.browser|tar\..+\.command"
    r"|sendemail\.(sendmailcmd|tocmd|cccmd|headercmd)|web\.browser|gpg\.ssh\.defaultkeycommand|imap\.tunnel",
    re.IGNORECASE,
)
_NON_COMMAND_VALUES = frozenset(
    {
        "",
        "true",
        "false",
        "yes",
        "no",
        "on",
        "off",
        "0",
        "1",
        "cache",
        "store",
        "osxkeychain",
        "manager",
        "manager-core",
    }
)


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
