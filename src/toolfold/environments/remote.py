"""What clients of other places have in common: what they may know, how one is asked, how places are named.

Knows no place and no client by name.
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

from toolfold.environments.backend import Size
from toolfold.environments.client import Client
from toolfold.environments.local import harmless

CALL_SECONDS = 60.0
MOST_SAID = 16_000_000
"""How many bytes of an answer are listened to: it may come from the other side."""
REMINDERS = (0.1, 0.5, 2.0)

_TO_REACH = re.compile("(DOCKER|CONTAINERS?|APPTAINER|SINGULARITY|XDG)_[A-Z_]+|SSH_AUTH_SOCK")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client said before it ended."""

    code: int
    text: str
    complaint: str


class Relay(Client):
    """A client that passes the size of its terminal on, though it may not listen yet when that changes."""

    def resize(self, size: Size) -> None:
        super().resize(size)
        for seconds in REMINDERS:
            asyncio.get_running_loop().call_later(seconds, self._remind)

    def _remind(self) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGWINCH)


def for_clients(environment: Mapping[str, str]) -> dict[str, str]:
    """What a client may know: how to reach its place, and what every program may know."""
    named = {name: value for name, value in environment.items() if _TO_REACH.fullmatch(name)}
    return {"PATH": os.defpath, **harmless(environment), **named}


def likeness(wanted: object) -> str:
    """The same for whoever wants the same, and for nobody else: by it a place is found again."""
    text = json.dumps(wanted, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


async def asked(words: Sequence[str], env: Mapping[str, str], *, within: float = CALL_SECONDS) -> Answer:
    """Run a client to its end, or to the end of its time. Raises EnvironmentFailed where there is none."""
    client = Client.start(words, env=env, cwd="/")
    written = bytearray()
    try:
        async with asyncio.timeout(within):
            await client.close_input()
            while len(written) < MOST_SAID and (data := await client.read()):
                written += data
            code = await client.wait()
    except TimeoutError:
        return Answer(1, "", f"{words[0]} does not answer")
    finally:
        complaint = client.complaint()
        await client.close()
    return Answer(code, written.decode(errors="replace"), complaint)
