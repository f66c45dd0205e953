"""Settings of git that are commands: pagers, editors, aliases, filters, helpers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shellverdict.shell.inner.nouns import Inner, as_typed
from shellverdict.shell.words import Word

__all__ = ["git_setting"]

_RUNS = re.compile(
    r"core\.(pager|editor|sshcommand|fsmonitor|askpass|gitproxy|alternaterefscommand)|diff\.external|sequence\.editor"
    r"|pager\.[^.]+|gpg(\.[^.]+)?\.program|credential(\..*)?\.helper|interactive\.difffilter|uploadpack\.packobjectshook"
    r"|(diff|merge|filter|difftool|mergetool|browser|man|guitool|trailer|tar|hook|sendemail)\..+\."
    r"(command|textconv|driver|clean|smudge|process|cmd|path|postcommand)|(diff|merge)tool\..+\.(cmd|path)"
    r"|submodule\..+\.update|remote\..+\.(uploadpack|receivepack|proxy)|gui\.[^.]+|instaweb\.browser|tar\..+\.command"
    r"|sendemail\.(sendmailcmd|tocmd|cccmd|headercmd)|web\.browser|gpg\.ssh\.defaultkeycommand|imap\.tunnel",
    re.IGNORECASE,
)
_NOT_COMMANDS = frozenset(
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


def git_setting(key: str, value: str, *, later: bool = False) -> Iterator[Inner]:
    """What a setting makes git run; `later` where it is only written down for another time."""
    lowered = key.lower()
    if lowered.startswith("alias."):
        if value.startswith("!"):
            yield Inner(code=as_typed(value[1:]), through="git", more_operands=True)
        elif not later and value:
            yield Inner(code=as_typed(f"git {value}"), through="git", more_operands=True)
    elif _RUNS.fullmatch(lowered) and value.lower() not in _NOT_COMMANDS:
        if lowered.startswith("credential") and value[0] not in "!/":
            return
        yield Inner(code=as_typed(value.lstrip("!")), through="git", more_operands=True)
    elif lowered in ("core.hookspath", "init.templatedir") and not later and value not in ("", "/dev/null"):
        yield Inner(source="file", file=Word(value), language="binary", through="git")
