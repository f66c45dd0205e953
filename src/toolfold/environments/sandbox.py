"""This machine behind a wall: bubblewrap shows a command the system to read and the project to write.

It has its own /tmp and its own processes, no network unless it is allowed, and sees neither the user's
credentials nor the runtime's own files. What looks after the commands runs outside, as in `local`.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from toolfold.environments.backend import Channel, Readiness, Size
from toolfold.environments.client import Client, on_terminal
from toolfold.environments.local import Local

PROBE_SECONDS = 5.0

# Below the user's home: what lets one act as the user elsewhere.
CREDENTIALS = (
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".git-credentials", ".pgpass", ".npmrc",
    ".pypirc", ".my.cnf", ".s3cfg", ".boto", ".vault-token", ".cargo/credentials", ".cargo/credentials.toml",
    ".gem/credentials", ".m2/settings.xml", ".terraform.d", ".huggingface",
    ".config/gcloud", ".config/gh", ".config/hub", ".config/glab-cli", ".config/rclone", ".config/op",
    ".config/doctl", ".config/git/credentials", ".config/containers", ".modal.toml",
    ".password-store", ".local/share/keyrings", ".mozilla", ".thunderbird", ".config/google-chrome",
    ".config/chromium", ".config/BraveSoftware", ".config/microsoft-edge", ".claude", ".codex",
    ".bash_history", ".zsh_history", ".python_history", ".psql_history", ".mysql_history",
)  # fmt: skip

_OUTSIDE = (
    *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--cap-drop", "ALL"),
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
    *("--tmpfs", "/run"),  # sockets of daemons that would do anything for whoever may connect
)


class Sandbox(Local):
    """`local`, with a wall around each command."""

    name = "sandbox"
    gate = "bwrap"
    advice = "Run `toolfold env test sandbox` to see what is wrong."

    def __init__(
        self,
        *,
        home: Path,
        notes: Path,
        environment: Mapping[str, str],
        network: bool = False,
        writable: Iterable[Path] = (),
        hidden: Iterable[Path] = (),
    ) -> None:
        """`writable` are folders beside the project, `hidden` more of what nobody inside may see."""
        super().__init__(home=home, notes=notes, environment=environment)
        self._network = network
        self._writable = (home, *writable)
        self._user = Path(environment.get("HOME", "/"))
        self._hidden = (*(self._user / name for name in CREDENTIALS), *hidden)

    @property
    def shared(self) -> Sequence[tuple[str, str]]:
        return [(str(folder), str(folder)) for folder in self._writable]

    async def check(self) -> Readiness:
        if not shutil.which("bwrap", path=self._environment["PATH"]):
            return Readiness(
                False, "bubblewrap is not installed", "Install it: `apt-get install bubblewrap`, or the like."
            )
        probe = Client.start(["bwrap", *_OUTSIDE, "--unshare-net", "true"], env=self._environment, cwd="/")
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                code = await probe.wait()
            reason = probe.complaint()
        except TimeoutError:
            code, reason = 1, "bubblewrap does not answer"
        finally:
            await probe.close()
        advice = (
            "It needs namespaces, which a container or the kernel's settings may forbid. Use docker or local."
        )
        return Readiness(code == 0, reason, "" if code == 0 else advice)

    async def open(self) -> None:
        for folder in (self._temporary, self._cache):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._nothing.touch()

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], pty: Size | None) -> Channel:
        return Client.start(argv, env={**self._environment, **env}, pty=pty, controls=False, cwd="/")

    def entry(self, tasks: str, *, lasting: bool, terminal: bool) -> Sequence[str]:
        return [
            "bwrap",
            *_OUTSIDE,
            *(() if self._network else ("--unshare-net",)),
            *(() if lasting else ("--die-with-parent",)),
            *self._resolver(),
            *("--bind", str(self._temporary), "/tmp"),  # noqa: S108  (the one inside)
            *self._seen_otherwise(),
            *("--ro-bind", f"{self.folder}/shell", f"{self.folder}/shell"),
            *("--ro-bind", posixpath.dirname(tasks), posixpath.dirname(tasks), "--bind", tasks, tasks),
            *("--setenv", "TMPDIR", "/tmp"),  # noqa: S108
            "--",
            *(("setsid", *on_terminal("/dev/console")) if terminal else ()),
        ]

    @property
    def _temporary(self) -> Path:
        return self._notes / "tmp"

    @property
    def _cache(self) -> Path:
        return self._notes / "cache"

    @property
    def _nothing(self) -> Path:
        return self._notes / "nothing"

    def _cover(self, path: Path) -> tuple[str, ...]:
        """Hide it behind an empty folder, or an empty file."""
        return ("--tmpfs", str(path)) if path.is_dir() else ("--ro-bind", str(self._nothing), str(path))

    def _seen_otherwise(self) -> list[str]:
        """What may be written and what is hidden. The outer first: a later one lies over what is below it."""
        seen = {path: self._cover(path) for path in self._covered()}
        seen |= {path: ("--bind", str(path), str(path)) for path in self._writable}
        outside = (self._user / ".cache").resolve()  # what tools keep for the next time, apart from that
        if outside.is_dir() and outside not in self._writable:
            seen[outside] = ("--bind", str(self._cache), str(outside))
        return [word for path in sorted(seen, key=_depth) for word in seen[path]]

    def _covered(self) -> set[Path]:
        """What is hidden and there to be hidden; a project inside of it is shown again."""
        return {path.resolve() for path in self._hidden if path.exists()}.difference(self._writable)

    def _resolver(self) -> Sequence[str]:
        """How names are looked up may lie in /run, behind a link."""
        found = os.path.realpath("/etc/resolv.conf")
        inside = self._network and found.startswith("/run/") and Path(found).exists()
        return ("--ro-bind", found, found) if inside else ()


def _depth(path: Path) -> int:
    return len(path.parts)
