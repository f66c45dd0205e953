"""This machine, as it is: a command may do whatever its user may.

What reaches a command of the runtime's own environment are harmless variables and those that are named.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolfold.environments.backend import Backend, Channel, Readiness, Size
from toolfold.environments.client import Client

# Not every name that begins with LC_: servers let all of those in, so that some carry other things by them.
_HARMLESS = re.compile(
    "PATH|HOME|LANG|LANGUAGE|TERM|USER|LOGNAME|SHELL|TZ|TMPDIR|LC_(ALL|CTYPE|NUMERIC|TIME|COLLATE|MONETARY"
    "|MESSAGES|PAPER|NAME|ADDRESS|TELEPHONE|MEASUREMENT|IDENTIFICATION)"
)
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def harmless(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that every program may know."""
    return {name: value for name, value in environment.items() if _HARMLESS.fullmatch(name)}


class Local(Backend):
    """Commands run beside us, in sessions of their own."""

    name = "local"

    def __init__(self, *, home: Path, notes: Path, environment: Mapping[str, str]) -> None:
        """`home` is where tasks begin, `notes` a folder of ours."""
        self._home, self._notes = home, notes
        self._environment = {"PATH": _USUAL_PATH, **harmless(environment)}

    @property
    def folder(self) -> str:
        return str(self._notes)

    @property
    def home(self) -> str:
        return str(self._home)

    async def check(self) -> Readiness:
        if not os.access("/proc/self/environ", os.R_OK):  # by which what a command started is found again
            return Readiness(False, "there is no /proc here", "Commands need Linux: use docker or ssh.")
        if not shutil.which("sh", path=self._environment["PATH"]):
            return Readiness(False, "there is no shell here", "Install one, or put it on PATH.")
        return Readiness(True)

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], pty: Size | None) -> Channel:
        return Client.start(argv, env={**self._environment, **env}, pty=pty, cwd="/")
