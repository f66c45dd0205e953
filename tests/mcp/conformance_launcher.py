"""Program that the conformance runner starts: it forwards the scenario to a client that is already running.

Usage: `python -I -S conformance_launcher.py SOCKET URL`. The exit code is that of the client. Standard
library only, so that it starts fast.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def main() -> int:
    """Forward the runner's arguments and output streams, and wait for the exit code."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(sys.argv[1])
        socket.send_fds(client, [b"!"], [1, 2])
        scenario = {"url": sys.argv[-1], "environment": dict(os.environ)}
        client.sendall(json.dumps(scenario).encode() + b"\n")
        return int(client.recv(16) or 1)


if __name__ == "__main__":
    sys.exit(main())
