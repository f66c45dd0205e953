"""Program that starts the process of the model's code and relays between that process and the runtime.

Runs in the terminal environment, in a separate process: whatever the code does to its own process (exit,
crash, close its files), its output and exit code still reach the runtime. Standard input brings a first line
with the setup, then replies to tool calls. Standard output carries frames: the secret token of this run, a
letter for the kind of frame, the content. Works with Python 3.8 and later.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from typing import Any, BinaryIO

READ_BYTES = 65_536
DRAIN_TIMEOUT_S = 1.0


class Relay:
    """Starts the process that executes the code, and relays its tool calls and output to the runtime."""

    def __init__(self, setup: dict[str, Any], replies: BinaryIO, frames: BinaryIO) -> None:
        self._token = setup["token"].encode()
        self._output_left, self._dropped_bytes = setup["max_output_bytes"], 0
        self._max_request_bytes = setup["max_request_bytes"]
        self._replies, self._frames = replies, frames
        self._write_lock = threading.Lock()
        self._connection, other_end = socket.socketpair()
        self._process = subprocess.Popen(  # noqa: S603 - runs the code that approval has judged
            [sys.executable, "-u", "-c", setup["child"], str(other_end.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[other_end.fileno()],
        )
        other_end.close()
        self._send_frame(b"R", b"")
        self._first_line = json.dumps({"code": setup["code"], "tools": setup["tools"]}).encode() + b"\n"

    def run(self) -> int:
        """Relay tool calls, replies and output until the code's process ends, and return its exit code."""
        output = threading.Thread(target=self._relay_output, daemon=True)
        output.start()
        for work in (self._relay_requests, self._relay_replies):
            threading.Thread(target=work, daemon=True).start()
        code = self._process.wait()
        output.join(DRAIN_TIMEOUT_S)  # processes that the code left running may hold the output open
        if self._dropped_bytes:
            self._send_frame(b"D", str(self._dropped_bytes).encode())
        return code if code >= 0 else 128 - code

    def _send_frame(self, kind: bytes, content: bytes) -> None:
        with self._write_lock:
            self._frames.write(self._token + b" " + kind + b" " + content + b"\n")
            self._frames.flush()

    def _send_output(self, data: bytes) -> None:
        self._send_frame(b"O", base64.b64encode(data))

    def _relay_output(self) -> None:
        stream = self._process.stdout
        while stream is not None:
            data = os.read(stream.fileno(), READ_BYTES)
            if not data:
                return
            kept = data[: self._output_left]
            self._output_left -= len(kept)
            self._dropped_bytes += len(data) - len(kept)
            if kept:
                self._send_output(kept)

    def _relay_requests(self) -> None:
        # A connection error means that the code ended and left replies unread.
        with contextlib.suppress(OSError), self._connection.makefile("rb") as requests:
            while True:
                line = requests.readline(self._max_request_bytes + 1)
                if not line:
                    return
                if len(line) > self._max_request_bytes:
                    self._send_output(b"The arguments of a tool call are too large.\n")
                    self._process.kill()
                    return
                if request := line.strip():
                    self._send_frame(b"C", request)

    def _relay_replies(self) -> None:
        try:
            self._connection.sendall(self._first_line)
            while True:
                line = self._replies.readline()
                if not line:  # the runtime is gone
                    self._process.kill()
                    return
                self._connection.sendall(line)
        except OSError:
            pass  # the code has closed its end


def main() -> None:
    """Read the setup with the code from standard input, run the code and exit with its exit code."""
    setup = json.loads(sys.stdin.buffer.readline().decode())
    code = Relay(setup, sys.stdin.buffer, sys.stdout.buffer).run()
    os._exit(code)  # without waiting for threads that are blocked


if __name__ == "__main__":
    main()
