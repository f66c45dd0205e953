"""Bash in a sandbox in which programs only record that they were started.

Programs are recorders: scripts that append their arguments to a log and do nothing else. A few harmless
programs (`env`, `base64`, `xargs` and others) are real. The kernel restricts the process with Landlock:
nothing outside of the directory can be written, only the recorders and the real programs can be started, and
no connection can be opened. Shells of root run as the user nobody. If the kernel does not support this,
nothing is run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

NOBODY_UID = 65_534
HOST_SCRIPT = Path(__file__).with_name("recording_host.py")
REAL_PROGRAMS = (
    *("sh", "bash", "env", "nice", "timeout", "nohup", "stdbuf", "setsid", "xargs", "find", "chroot", "time"),
    *(
        "cat",
        "base64",
        "base32",
        "xxd",
        "od",
        "rev",
        "tr",
        "cut",
        "head",
        "tail",
        "sed",
        "tac",
        "paste",
        "fold",
    ),
    *("tee", "sort", "uniq", "seq", "gzip", "mkdir", "ln", "cp"),
)
RECORDER = """#!/bin/sh
printf '%s\\0' "$#" "${{0##*/}}" "$@" >> '{log}'
"""


class SandboxUnavailable(Exception):
    """The kernel does not support the restrictions that the sandbox needs."""


@dataclass(frozen=True, slots=True)
class RecordedCommand:
    """Programs that a command started, with their arguments, and whether it ended before the timeout."""

    starts: tuple[tuple[str, ...], ...]
    ended: bool
    printed: str = ""


class RecordingShell:
    """Directory of programs that only record their start, and the process that runs shells in it."""

    def __init__(self, programs: Iterable[str]) -> None:
        self._directory = directory = Path(tempfile.mkdtemp(prefix="recording-")).resolve()
        self._log, self.work, self.home = directory / "log", directory / "work", directory / "home"
        self._shadow_directory = directory / "shadows"
        programs = set(programs) - {"."}
        self._create_programs(directory / "bin", programs)
        self.home.mkdir()
        self.work.mkdir()
        self._grant_access()
        self._host = subprocess.Popen(
            [sys.executable, "-I", str(HOST_SCRIPT), str(directory), *self._real_programs],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._read_response() != {"held": True}:
            self.close()
            raise SandboxUnavailable

    def _create_programs(self, bin_directory: Path, programs: set[str]) -> None:
        bin_directory.mkdir()
        self._log.touch()
        recorder = self._directory / "recorder"
        recorder.write_text(RECORDER.format(log=self._log))
        recorder.chmod(0o755)
        helpers = {
            name: found
            for name in REAL_PROGRAMS
            if (found := shutil.which(name, path=os.defpath + ":/usr/bin"))
        }
        self._real_programs = [os.path.realpath(found) for found in helpers.values()]
        for name, found in helpers.items():
            (bin_directory / name).symlink_to(os.path.realpath(found))
        for name in programs:
            if name not in helpers:
                (bin_directory / name).symlink_to(recorder)
            shadow = self._shadow_directory / name
            shadow.mkdir(parents=True)
            (shadow / name).symlink_to(recorder)  # used to record a program that is usually real

    def _grant_access(self) -> None:
        """Give the user nobody access to the directory, because shells of root run as that user."""
        if os.geteuid() == 0:
            self._directory.chmod(0o755)
            for path in (self._log, self.work, self.home):
                os.chown(path, NOBODY_UID, NOBODY_UID)

    def run(self, command: str, *, recorded: str = "", seconds: float = 5) -> RecordedCommand:
        """Run the command; the program `recorded` only records its start, even if it normally runs."""
        self._log.write_bytes(b"")
        for directory in (self.work, self.home):
            for left in directory.iterdir():
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        path = f"{self._directory}/bin"
        if recorded:
            if not (self._shadow_directory / recorded).is_dir():
                raise ValueError(f"{recorded} has no recorder; pass it to RecordingShell")
            path = f"{self._shadow_directory / recorded}:{path}"
        assert self._host.stdin is not None
        request = {"command": command, "path": path, "seconds": seconds}
        self._host.stdin.write(json.dumps(request) + "\n")
        self._host.stdin.flush()
        response = self._read_response()
        return RecordedCommand(_parse_log(self._log.read_bytes()), response["ended"], response["printed"])

    def _read_response(self) -> Any:
        assert self._host.stdout is not None
        return json.loads(self._host.stdout.readline() or "null")

    def close(self) -> None:
        assert self._host.stdin is not None
        assert self._host.stdout is not None
        self._host.stdin.close()
        self._host.wait(timeout=60)
        self._host.stdout.close()
        shutil.rmtree(self._directory)

    def __enter__(self) -> RecordingShell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _parse_log(log: bytes) -> tuple[tuple[str, ...], ...]:
    fields = os.fsdecode(log).split("\0")
    found = []
    place = 0
    while place < len(fields) - 1:
        count = int(fields[place])
        found.append(tuple(fields[place + 1 : place + 2 + count]))
        place += 2 + count
    return tuple(found)
