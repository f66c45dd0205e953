"""Commands that do the same damage in many ways, and a sandbox that checks whether each one does it.

The goal of a template is one of three: a directory is deleted, a secret reaches another machine, a start-up
file is changed. The sandbox (bubblewrap) has no network, a read-only root, its own process list, a home and a
/tmp in memory, and an unprivileged user; nothing is run without it.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

HOST_PROGRAM = Path(__file__).with_name("differential_host.py")
TEMPLATES = Path(__file__).with_name("differential")
HOME = "/home/someone"
PROJECT = f"{HOME}/project"
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
PAYLOAD = "rm -rf ~/victim"
HOSTNAME, PORT = "collector.example.net", 8080
UNPRIVILEGED_ID = 61_234
COMMAND_TIMEOUT_S = 6
CLOSE_TIMEOUT_S = 10
MEMORY_BYTES = 256_000_000
WORKERS = 2
PLACEHOLDERS = {
    "{payload}": PAYLOAD,
    "{victim}": f"{HOME}/victim",
    "{secret}": f"{HOME}/.ssh/id_rsa",
    "{url}": f"http://{HOSTNAME}:{PORT}",
    "{host}": HOSTNAME,
    "{port}": str(PORT),
    "{b64}": base64.b64encode(PAYLOAD.encode()).decode(),
    "{hex}": "".join(f"\\x{byte:02x}" for byte in PAYLOAD.encode()),
    "{plainhex}": PAYLOAD.encode().hex(),
    "{rev}": PAYLOAD[::-1],
}


class NoSandbox(Exception):
    """No sandbox can be started on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Template:
    """One way to do damage of a kind; needs `program` installed and, with `tty`, a terminal."""

    goal: str
    group: str
    variant: str
    command: str
    program: str
    tty: bool = False

    @property
    def name(self) -> str:
        return f"{self.goal}/{self.group}/{self.variant}"

    @property
    def installed(self) -> bool:
        return shutil.which(self.program, path=PATH) is not None


@dataclass(frozen=True, slots=True)
class Outcome:
    executed: bool
    ended: bool
    printed: str
    seconds: float


def load_templates(part: str) -> list[Template]:
    tables = tomllib.loads((TEMPLATES / f"{part}.toml").read_text("utf-8"))
    return [
        Template(goal, group, variant, _fill(text), table.get("program", group), "tty" in table)
        for goal, groups in tables.items()
        for group, table in groups.items()
        for variant, text in table.items()
        if variant not in ("tty", "program")
    ]


def _fill(text: str) -> str:
    for placeholder, value in PLACEHOLDERS.items():
        text = text.replace(placeholder, value)
    return text.rstrip(" ")


class Sandbox:
    """A sandbox that runs templates one after the other, each in a fresh home directory."""

    def __init__(self) -> None:
        if shutil.which("bwrap") is None:
            raise NoSandbox("bubblewrap is not installed")
        if shutil.which("python3", path=PATH) is None:
            raise NoSandbox("python3 is not installed in a system directory")
        files = {
            "/etc/hosts": f"127.0.0.1 localhost {HOSTNAME}\n".encode(),
            "/etc/passwd": f"someone:x:{_user_id()}:{_user_id()}::{HOME}:/bin/bash\n".encode(),
            "/run/host.py": HOST_PROGRAM.read_bytes(),
        }
        pipes = {path: _filled_pipe(content) for path, content in files.items()}
        self._process = subprocess.Popen(
            _sandbox_command(pipes),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=tuple(pipes.values()),
        )
        for descriptor in pipes.values():
            os.close(descriptor)
        if self._read_response() != {"ready": True}:
            self.close()
            raise NoSandbox("bubblewrap cannot start a sandbox here")

    def run(self, template: Template) -> Outcome:
        assert self._process.stdin is not None
        request = {
            "command": template.command,
            "goal": template.goal,
            "tty": template.tty,
            "seconds": COMMAND_TIMEOUT_S,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        response = self._read_response()
        if response is None:
            raise RuntimeError(f"the sandbox ended while it ran {template.name}")
        return Outcome(**response)

    def _read_response(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline() or "null")

    def close(self) -> None:
        """Close the sandbox's input, which ends it; kill it after a timeout."""
        try:
            self._process.communicate(timeout=CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _user_id() -> int:
    return UNPRIVILEGED_ID if os.geteuid() == 0 else os.geteuid()


def _filled_pipe(content: bytes) -> int:
    """Return the read end of a pipe that contains `content`, which must fit into the pipe buffer."""
    read_end, write_end = os.pipe()
    os.write(write_end, content)
    os.close(write_end)
    return read_end


def _sandbox_command(files: Mapping[str, int]) -> list[str]:
    """Return the command that starts the sandbox.

    `files` maps paths to descriptors whose content replaces the system's file.
    """
    root = os.geteuid() == 0
    owner = ("setpriv", f"--reuid={UNPRIVILEGED_ID}", f"--regid={UNPRIVILEGED_ID}", "--clear-groups")
    dropped = (*owner, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all") if root else ()
    memory = ("--perms", "1777", "--size", str(MEMORY_BYTES), "--tmpfs")
    return [
        *("bwrap", "--die-with-parent", "--new-session", "--unshare-pid", "--unshare-net", "--unshare-ipc"),
        *("--unshare-uts", "--clearenv", "--setenv", "PATH", PATH, "--setenv", "HOME", HOME),
        *(() if root else ("--unshare-user",)),
        *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/home", "--tmpfs", "/root"),
        *(word for directory in (HOME, "/tmp", "/run") for word in (*memory, directory)),
        *(
            word
            for path, number in files.items()
            for word in ("--perms", "444", "--ro-bind-data", str(number), path)
        ),
        *("--tmpfs", "/var/tmp", "--remount-ro", "/home", "--chdir", "/"),
        *(*dropped, "python3", "-I", "/run/host.py"),
    ]


def run_all(templates: Iterable[Template]) -> Iterator[tuple[Template, Outcome]]:
    """Run every template, distributed over several sandboxes."""
    every = list(templates)
    shares = [every[start::WORKERS] for start in range(WORKERS)]

    def run_share(share: list[Template]) -> list[tuple[Template, Outcome]]:
        with Sandbox() as sandbox:
            return [(template, sandbox.run(template)) for template in share]

    with ThreadPoolExecutor(WORKERS) as pool:
        for results in pool.map(run_share, shares):
            yield from results
