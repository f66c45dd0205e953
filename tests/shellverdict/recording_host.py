"""The process in which recorded shells run: it gives up all rights that they do not need, then takes orders.

    python -I recording_host.py FOLDER REAL_PROGRAM...

Orders and answers are lines of JSON. It imports nothing of the project: what it starts must not depend on it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import struct
import subprocess
import sys
from pathlib import Path

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION = 1
EXECUTE, WRITE_FILE = 1 << 0, 1 << 1
CHANGES = sum(1 << bit for bit in range(4, 13)) | WRITE_FILE  # removing and making of every kind
TRUNCATE, REFER = 1 << 14, 1 << 13
CONNECT = 0b11  # binding and connecting
NOBODY = 65_534
NO_NEW_PRIVILEGES = 38
WRITABLE = ("/dev/null", "/dev/tty")
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/libexec", "/nix/store")


def hold(folder: str, real: list[str]) -> bool:
    """Give up the right to change or start anything else; False where the kernel has no such thing."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION)
    if version < 1:
        return False
    changes = CHANGES | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    rules = struct.pack("QQ", changes | EXECUTE, CONNECT if version >= 4 else 0)
    ruleset = libc.syscall(CREATE_RULESET, rules, ctypes.c_size_t(len(rules) if version >= 4 else 8), 0)
    if ruleset < 0:
        return False
    allowed = [(folder, changes | EXECUTE), *((path, EXECUTE) for path in (*real, *LIBRARIES))]
    allowed += [(path, WRITE_FILE) for path in WRITABLE]
    for path, rights in allowed:
        if not Path(path).exists():
            continue
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if libc.syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, handle), 0):
            return False
        os.close(handle)
    if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.syscall(RESTRICT_SELF, ruleset, 0):
        return False
    os.close(ruleset)
    return True


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, 4_000_000))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def become_nobody() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def run(folder: str, order: dict[str, str]) -> dict[str, object]:
    environment = {
        "PATH": order["path"],
        "HOME": f"{folder}/home",
        "TMPDIR": f"{folder}/work",
        "LC_ALL": "C.UTF-8",
    }
    started = subprocess.Popen(
        [f"{folder}/bin/bash", "--norc", "--noprofile", "-c", order["command"]],
        env=environment,
        cwd=f"{folder}/work",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        printed, _ = started.communicate(timeout=float(order["seconds"]))
        ended = True
    except subprocess.TimeoutExpired:
        ended, printed = False, b""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    if not ended:
        started.communicate()
    return {"ended": ended, "printed": printed[-2_000:].decode(errors="replace")}


def main() -> None:
    folder, *real = sys.argv[1:]
    limit()
    held = hold(folder, real)
    become_nobody()
    print(json.dumps({"held": held}), flush=True)
    if not held:
        return
    for line in sys.stdin:
        print(json.dumps(run(folder, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
