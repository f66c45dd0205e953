"""Measure running processes, and find ports for them."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process, without its children; 0 if the process does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """Return a port of this machine that no program listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
