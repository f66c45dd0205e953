"""Backend that runs commands on this machine without isolation.

Of the runtime's environment, commands get only harmless variables and those named in the settings.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolfold.tools.environments.backend import Backend, Channel, Readiness, TerminalSize
from toolfold.tools.environments.local_process import LocalProcess

# Not every LC_ name: ssh servers accept all of them, so some people pass unrelated data in them.
_SAFE_NAMES = re.compile(
    "PATH|HOME|LANG|LANGUAGE|TERM|USER|LOGNAME|SHELL|TZ|TMPDIR|LC_(ALL|CTYPE|NUMERIC|TIME|COLLATE|MONETARY"
    "|MESSAGES|PAPER|NAME|ADDRESS|TELEPHONE|MEASUREMENT|IDENTIFICATION)"
)
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def safe_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that are harmless for any program to see."""
    return {name: value for name, value in environment.items() if _SAFE_NAMES.fullmatch(name)}


class Local(Backend):
    """Backend that runs commands on this machine, each in a separate process session."""

    name = "local"

    def __init__(self, *, home: Path, state_dir: Path, environment: Mapping[str, str]) -> None:
        """Store the settings: shell sessions start in `home`; Toolfold's own files are in `state_dir`."""
        self._home, self._state = home, state_dir
        self._environment = {"PATH": _DEFAULT_PATH, **safe_variables(environment)}

    @property
    def state_dir(self) -> str:
        return str(self._state)

    @property
    def home(self) -> str:
        return str(self._home)

    async def check(self) -> Readiness:
        if not os.access("/proc/self/environ", os.R_OK):  # the guard finds a command's processes there
            return Readiness(
                False, "this system has no /proc", "The local backend needs Linux. Use docker or ssh."
            )
        if not shutil.which("sh", path=self._environment["PATH"]):
            return Readiness(False, "there is no `sh` on PATH", "Install a shell, or add it to PATH.")
        return Readiness(True)

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], pty: TerminalSize | None
    ) -> Channel:
        return LocalProcess.start(argv, env={**self._environment, **env}, pty=pty, cwd="/")
