"""A real shell in an empty place, where every program only writes down that it was started.

Programs are recorders: scripts that append their words to a log and do nothing. A few harmless helpers
(`env`, `base64`, `xargs`…) are real. The kernel holds everything in (Landlock): nothing outside of the folder
can be written, nothing but the recorders and the helpers can be started, no connection can be opened; and the
shells run as nobody where root could be lost. Where the kernel cannot do that, nothing is run at all.
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

NOBODY = 65_534
HOST = Path(__file__).with_name("recording_host.py")
HELPERS = (
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


class NotHeld(Exception):
    """The kernel cannot hold a shell in here."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The programs that were started, with their words, and whether the shell ended by itself."""

    starts: tuple[tuple[str, ...], ...]
    ended: bool
    printed: str = ""


class Recording:
    """A folder with recorders, and the process that runs shells in it."""

    def __init__(self, programs: Iterable[str]) -> None:
        self._folder = folder = Path(tempfile.mkdtemp(prefix="recording-")).resolve()
        self._log, self.work, self.home = folder / "log", folder / "work", folder / "home"
        self._shadows = folder / "shadows"
        programs = set(programs) - {"."}
        self._fill(folder / "bin", programs)
        self.home.mkdir()
        self.work.mkdir()
        self._hand_over()
        self._host = subprocess.Popen(
            [sys.executable, "-I", str(HOST), str(folder), *self._real],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._answer() != {"held": True}:
            self.close()
            raise NotHeld

    def _fill(self, bin_folder: Path, programs: set[str]) -> None:
        bin_folder.mkdir()
        self._log.touch()
        recorder = self._folder / "recorder"
        recorder.write_text(RECORDER.format(log=self._log))
        recorder.chmod(0o755)
        helpers = {
            name: found for name in HELPERS if (found := shutil.which(name, path=os.defpath + ":/usr/bin"))
        }
        self._real = [os.path.realpath(found) for found in helpers.values()]
        for name, found in helpers.items():
            (bin_folder / name).symlink_to(os.path.realpath(found))
        for name in programs:
            if name not in helpers:
                (bin_folder / name).symlink_to(recorder)
            shadow = self._shadows / name
            shadow.mkdir(parents=True)
            (shadow / name).symlink_to(recorder)  # a helper can be recorded as well, where a case asks for it

    def _hand_over(self) -> None:
        """Shells of root run as nobody, who must be able to come here."""
        if os.geteuid() == 0:
            self._folder.chmod(0o755)
            for path in (self._log, self.work, self.home):
                os.chown(path, NOBODY, NOBODY)

    def run(self, command: str, *, recorded: str = "", seconds: float = 5) -> Recorded:
        """Run the command; `recorded` is a program that must be a recorder whatever else it is."""
        self._log.write_bytes(b"")
        for folder in (self.work, self.home):
            for left in folder.iterdir():
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        path = f"{self._folder}/bin"
        if recorded:
            if not (self._shadows / recorded).is_dir():
                raise ValueError(f"{recorded} is no recorder here")
            path = f"{self._shadows / recorded}:{path}"
        assert self._host.stdin is not None
        question = {"command": command, "path": path, "seconds": seconds}
        self._host.stdin.write(json.dumps(question) + "\n")
        self._host.stdin.flush()
        answer = self._answer()
        return Recorded(_starts(self._log.read_bytes()), answer["ended"], answer["printed"])

    def _answer(self) -> Any:
        assert self._host.stdout is not None
        return json.loads(self._host.stdout.readline() or "null")

    def close(self) -> None:
        assert self._host.stdin is not None
        assert self._host.stdout is not None
        self._host.stdin.close()
        self._host.wait(timeout=60)
        self._host.stdout.close()
        shutil.rmtree(self._folder)

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _starts(log: bytes) -> tuple[tuple[str, ...], ...]:
    fields = os.fsdecode(log).split("\0")
    found = []
    place = 0
    while place < len(fields) - 1:
        count = int(fields[place])
        found.append(tuple(fields[place + 1 : place + 2 + count]))
        place += 2 + count
    return tuple(found)
