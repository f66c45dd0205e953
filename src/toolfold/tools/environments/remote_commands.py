"""Helpers for backends that use a command-line client such as docker or ssh.

Knows no specific backend.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolfold.tools.environments.backend import TerminalSize
from toolfold.tools.environments.local import safe_variables
from toolfold.tools.environments.local_process import LocalProcess

CALL_TIMEOUT_S = 60.0
MAX_ANSWER_BYTES = 16_000_000
"""Maximum output of a client that is read: it may come from the target."""
RESIZE_SIGNAL_DELAYS_S = (0.1, 0.5, 2.0)

_CONNECTION_VARIABLES = re.compile("(DOCKER|CONTAINERS?|APPTAINER|SINGULARITY|XDG)_[A-Z_]+|SSH_AUTH_SOCK")


@dataclass(frozen=True, slots=True)
class ClientOutput:
    """Exit code and output of a client program such as docker or ssh."""

    code: int
    text: str
    error_text: str


class ResizableProcess(LocalProcess):
    """Client program (docker, ssh …) that forwards changes of its terminal size to the target.

    It may not handle the signal yet when the size changes, so the signal is repeated.
    """

    def resize(self, size: TerminalSize) -> None:
        super().resize(size)
        for seconds in RESIZE_SIGNAL_DELAYS_S:
            asyncio.get_running_loop().call_later(seconds, self._resend_resize)

    def _resend_resize(self) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGWINCH)


def client_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a client program's environment variables: harmless variables, and those needed to connect."""
    connection = {name: value for name, value in environment.items() if _CONNECTION_VARIABLES.fullmatch(name)}
    return {"PATH": os.defpath, **safe_variables(environment), **connection}


def fingerprint(spec: object) -> str:
    """Return a hash of a specification, by which an existing container or sandbox is found again."""
    text = json.dumps(spec, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


async def run_client(
    argv: Sequence[str], env: Mapping[str, str], *, timeout_s: float = CALL_TIMEOUT_S
) -> ClientOutput:
    """Run a client program until it exits or times out. Raises EnvironmentFailed if it is not installed."""
    client = LocalProcess.start(argv, env=env, cwd="/")
    output = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            await client.close_input()
            while len(output) < MAX_ANSWER_BYTES and (data := await client.read()):
                output += data
            code = await client.wait()
    except TimeoutError:
        return ClientOutput(1, "", f"{argv[0]} does not respond")
    finally:
        complaint = client.error_text()
        await client.close()
    return ClientOutput(code, output.decode(errors="replace"), complaint)
