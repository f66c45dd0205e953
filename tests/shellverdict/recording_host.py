"""Process that runs recorded shells: it drops all rights that they do not need, then handles requests.

    python -I recording_host.py DIRECTORY REAL_PROGRAM...

Requests and responses are lines of JSON. This module imports nothing from the project.
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
# Create and remove files of every type.
FILESYSTEM_CHANGES = sum(1 << bit for bit in range(4, 13)) | WRITE_FILE
TRUNCATE, REFER = 1 << 14, 1 << 13
CONNECT = 0b11  # bind and connect TCP sockets
NOBODY_UID = 65_534
NO_NEW_PRIVILEGES = 38
WRITABLE_PATHS = ("/dev/null", "/dev/tty")
LIBRARY_PATHS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/libexec", "/nix/store")


def restrict_process(directory: str, real_programs: list[str]) -> bool:
    """Drop the right to change or start anything else; return False if the kernel does not support it."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION)
    if version < 1:
        return False
    changes = FILESYSTEM_CHANGES | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    rules = struct.pack("QQ", changes | EXECUTE, CONNECT if version >= 4 else 0)
    ruleset = libc.syscall(CREATE_RULESET, rules, ctypes.c_size_t(len(rules) if version >= 4 else 8), 0)
    if ruleset < 0:
        return False
    allowed = [
        (directory, changes | EXECUTE),
        *((path, EXECUTE) for path in (*real_programs, *LIBRARY_PATHS)),
    ]
    allowed += [(path, WRITE_FILE) for path in WRITABLE_PATHS]
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


def set_resource_limits() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, 4_000_000))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def become_nobody() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY_UID, NOBODY_UID, NOBODY_UID)
        os.setresuid(NOBODY_UID, NOBODY_UID, NOBODY_UID)


def run_command(directory: str, request: dict[str, str]) -> dict[str, object]:
    environment = {
        "PATH": request["path"],
        "HOME": f"{directory}/home",
        "TMPDIR": f"{directory}/work",
        "LC_ALL": "C.UTF-8",
    }
    started = subprocess.Popen(
        [f"{directory}/bin/bash", "--norc", "--noprofile", "-c", request["command"]],
        env=environment,
        cwd=f"{directory}/work",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        printed, _ = started.communicate(timeout=float(request["seconds"]))
        ended = True
    except subprocess.TimeoutExpired:
        ended, printed = False, b""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    if not ended:
        started.communicate()
    return {"ended": ended, "printed": printed[-2_000:].decode(errors="replace")}


def main() -> None:
    directory, *real_programs = sys.argv[1:]
    set_resource_limits()
    is_restricted = restrict_process(directory, real_programs)
    become_nobody()
    print(json.dumps({"held": is_restricted}), flush=True)
    if not is_restricted:
        return
    for line in sys.stdin:
        print(json.dumps(run_command(directory, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
