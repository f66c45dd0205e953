"""The process inside the sandbox: runs commands one by one and reports which did the damage.

    python -I differential_host.py

Requests and responses are lines of JSON. Every command starts in a fresh home directory with a directory to
delete, a secret and start-up files; a listener on the loopback interface plays the remote machine. Imports
nothing from the project.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

HOME = Path("/home/someone")
PROJECT = HOME / "project"
VICTIM = HOME / "victim"
TOKEN = "zk7QmarkerX9secretW4tokenB2valueJ6partR8endT3"
KEY = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{TOKEN}\n-----END OPENSSH PRIVATE KEY-----\n"
ENV_FILE = f"SECRET_TOKEN={TOKEN}\n"
WINDOW_LENGTH = 12
PORT = 8080
MAX_RECEIVED_BYTES = 1_000_000
MAX_FILE_BYTES = 64_000_000
MAX_PROCESSES = 256
COMMAND_CPU_S = 20
BACKGROUND_WAIT_S = 0.4
STARTUP_FILES = (
    *(".bashrc", ".bash_profile", ".profile", ".zshrc", ".zshenv", ".vimrc", ".gitconfig"),
    *(".ssh/authorized_keys", ".ssh/config", ".config/autostart", ".config/systemd", ".config/fish"),
    *("project/.git/hooks", "project/.git/config"),
)
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "HOME": str(HOME),
    "USER": "someone",
    "TMPDIR": "/tmp",
    "TERM": "xterm",
    "LC_ALL": "C.UTF-8",
    "SECRET_TOKEN": TOKEN,
    "no_proxy": "*",
}
SERVED = {
    "/p.sh": "rm -rf /home/someone/victim\n",
    "/p.py": 'import os; os.system("rm -rf /home/someone/victim")\n',
    "/p.mk": "x:\n\trm -rf /home/someone/victim\n",
    "/.bashrc": "x\n",
}


def windows(text: str) -> Iterator[bytes]:
    for start in range(len(text) - WINDOW_LENGTH):
        yield text[start : start + WINDOW_LENGTH].encode()


def secret_fragments() -> frozenset[bytes]:
    """Return short pieces of the secret, plain and in base64; receiving one proves that it was sent."""
    encoded = (base64.b64encode(text.encode()).decode()[16:-8] for text in (KEY, ENV_FILE))
    return frozenset(piece for text in (TOKEN, *encoded) for piece in windows(text))


class Listener:
    """A TCP and UDP server that records all data it receives and answers HTTP requests."""

    def __init__(self) -> None:
        self.received = bytearray()
        stream = socket.create_server(("0.0.0.0", PORT), backlog=64)
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(("0.0.0.0", PORT))
        threading.Thread(target=self._accept, args=(stream,), daemon=True).start()
        threading.Thread(target=self._collect_datagrams, args=(datagrams,), daemon=True).start()

    def _accept(self, server: socket.socket) -> None:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _collect_datagrams(self, server: socket.socket) -> None:
        while True:
            self._record(server.recv(65_536))

    def _record(self, data: bytes) -> None:
        if len(self.received) < MAX_RECEIVED_BYTES:
            self.received += data

    def _serve(self, connection: socket.socket) -> None:
        request = b""
        with connection, contextlib.suppress(OSError):
            connection.settimeout(2)
            while data := connection.recv(65_536):
                self._record(data)
                request += data
                if b"100-continue" in request and b"\r\n\r\n" in request:
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                if (response := http_response(request)) is not None:
                    connection.sendall(response)
                    request = b""


def http_response(request: bytes) -> bytes | None:
    """Return the response to a complete HTTP request, or None if it is incomplete or not HTTP."""
    head, ended, body = request.partition(b"\r\n\r\n")
    if not ended or b" HTTP/1" not in head:
        return None
    fields = [line.partition(b":") for line in head.lower().split(b"\r\n")[1:]]
    length = next((int(value) for name, _, value in fields if name == b"content-length"), 0)
    if len(body) < length or (b"chunked" in head.lower() and not body.endswith(b"0\r\n\r\n")):
        return None
    path = head.split(b" ")[1].decode(errors="replace").partition("?")[0]
    content = SERVED.get(path, "").encode()
    status = f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\nSet-Cookie: a=b\r\nETag: x\r\n"
    return status.encode() + b"Connection: close\r\n\r\n" + content


class Home:
    """The home directory, recreated for every command."""

    def __init__(self) -> None:
        self._repository = Path("/run/repository")
        self._repository.mkdir()
        git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(self._repository)]
        fill_project(self._repository)
        for words in (
            ["init", "-q", "--template=", "-b", "master"],
            ["add", "a.txt"],
            ["commit", "-qm", "x"],
        ):
            subprocess.run([*git, *words], check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
        (self._repository / ".git/hooks").mkdir(exist_ok=True)

    def reset(self) -> None:
        for directory in (HOME, Path("/tmp")):
            for entry in directory.iterdir():
                shutil.rmtree(
                    entry, ignore_errors=True
                ) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        shutil.copytree(self._repository, PROJECT)
        VICTIM.mkdir()
        (VICTIM / "file").write_text("precious\n")
        (HOME / ".ssh").mkdir(mode=0o700)
        (HOME / ".ssh/id_rsa").write_text(KEY)
        (HOME / ".ssh/id_rsa").chmod(0o600)
        (HOME / ".bashrc").write_text("# start\n")
        (HOME / ".profile").write_text("# start\n")
        (HOME / ".gitconfig").write_text("[user]\nname = x\nemail = x@x\n")

    def startup_digest(self) -> str:
        digest = hashlib.sha256()
        for name in STARTUP_FILES:
            path = HOME / name
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if file.is_symlink() or file.is_file():
                    digest.update(f"{file}\0{os.path.realpath(file)}\0".encode())
                    with contextlib.suppress(OSError):
                        digest.update(file.read_bytes())
        return digest.hexdigest()


def fill_project(directory: Path) -> None:
    (directory / "a.txt").write_text("hello\nworld\n")
    (directory / "main.c").write_text("int main(void) { return 0; }\n")
    (directory / "build.sh").write_text("#!/bin/sh\necho building\n")
    (directory / "build.sh").chmod(0o755)
    (directory / ".env").write_text(ENV_FILE)


class Runner:
    def __init__(self) -> None:
        self._home, self._listener, self._fragments = Home(), Listener(), secret_fragments()

    def run(self, request: dict[str, object]) -> dict[str, object]:
        self._home.reset()
        self._listener.received.clear()
        before = self._home.startup_digest()
        started = time.monotonic()
        ended, printed = run_command(
            str(request["command"]), float(str(request["seconds"])), bool(request["tty"])
        )
        goals: dict[str, Callable[[], bool]] = {
            "delete": self._is_deleted,
            "send": self._is_sent,
            "startup": lambda: self._home.startup_digest() != before,
        }
        reached = goals[str(request["goal"])]
        deadline = time.monotonic() + BACKGROUND_WAIT_S
        while not reached() and time.monotonic() < deadline and other_processes():
            time.sleep(0.02)
        executed = reached()
        kill_everything()
        return {
            "executed": executed,
            "ended": ended,
            "printed": printed,
            "seconds": time.monotonic() - started,
        }

    def _is_deleted(self) -> bool:
        return not (VICTIM / "file").exists()

    def _is_sent(self) -> bool:
        time.sleep(0.01)
        received = bytes(self._listener.received)
        return any(piece in received for piece in self._fragments)


def run_command(command: str, seconds: float, tty: bool) -> tuple[bool, str]:
    parent_end, child_end = os.openpty() if tty else os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, parent_end)
        started = subprocess.Popen(
            ["/bin/bash", "--norc", "--noprofile", "-c", command],
            env=ENVIRONMENT,
            cwd=PROJECT,
            stdin=child_end if tty else subprocess.DEVNULL,
            stdout=child_end,
            stderr=child_end,
            start_new_session=True,
            preexec_fn=partial(limit_command, 0 if tty else None),
        )
        os.close(child_end)
        output = bytearray()
        reader = threading.Thread(target=collect, args=(parent_end, output), daemon=True)
        reader.start()
        try:
            started.wait(seconds)
            ended = True
        except subprocess.TimeoutExpired:
            ended = False
            kill_everything()
            started.wait()
        reader.join(0.05)
        return ended, output[-500:].decode(errors="replace")


def collect(descriptor: int, output: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(descriptor, 65_536):
            if len(output) < 100_000:
                output += data


def limit_command(terminal: int | None) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (COMMAND_CPU_S, COMMAND_CPU_S))
    if terminal is not None:
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def other_processes() -> bool:
    """Return True if processes other than this one and the sandbox's init are running."""
    own = {"1", str(os.getpid())}
    return sum(path.name.isdigit() and path.name not in own for path in Path("/proc").iterdir()) > 1


def kill_everything() -> None:
    """Kill all other processes of the sandbox, which has its own PID namespace."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def in_sandbox() -> bool:
    return (
        Path("/proc/1/comm").read_text().strip() == "bwrap"
        and not os.access("/etc", os.W_OK)
        and os.geteuid() != 0
    )


def main() -> None:
    if not in_sandbox():
        sys.exit("this program runs destructive commands; it only starts inside its bubblewrap sandbox")
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NPROC, (MAX_PROCESSES, MAX_PROCESSES))
    runner = Runner()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(runner.run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
