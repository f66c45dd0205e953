"""The programs that run on the far side, in the least that a shell there can be asked for.

POSIX sh and what busybox brings: a container may have nothing else. Each is written out in `shell/`. Those
that run often or long are brought over once, so that the list of processes there stays readable.
"""

from __future__ import annotations

import functools
import shlex
from importlib import resources


@functools.cache
def script(name: str) -> str:
    """The text of one of them, without what only we read."""
    text = resources.files("toolfold.environments").joinpath(f"shell/{name}.sh").read_text("utf-8")
    return "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("#"))


def with_arguments(name: str, *arguments: str) -> str:
    """The same as a command for a shell that has other arguments already."""
    return f"set -- {shlex.join(arguments)}\n{script(name)}"


@functools.cache
def luggage() -> bytes:
    """The programs that are brought over, as `arrive` takes them."""
    texts = (f"@ {name}\n{script(name)}@.\n" for name in ("limits", "command", "guard", "supervisor"))
    return f"{''.join(texts)}@ \n".encode()
