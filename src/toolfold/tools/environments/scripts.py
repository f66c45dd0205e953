"""Load the shell scripts that run on the target machine or in the container.

They need only POSIX sh and busybox, because a container may have nothing else. Each is a file in `shell/`.
Scripts that run often or long are installed on the target once, so that its process list stays readable.
"""

from __future__ import annotations

import functools
import shlex
from importlib import resources


@functools.cache
def load_script(name: str) -> str:
    """Return the text of a script without its comments."""
    text = resources.files("toolfold.tools.environments").joinpath(f"shell/{name}.sh").read_text("utf-8")
    return "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("#"))


def script_with_arguments(name: str, *arguments: str) -> str:
    """Return a script with a line that sets its arguments, for a shell that cannot receive arguments."""
    return f"set -- {shlex.join(arguments)}\n{load_script(name)}"


@functools.cache
def script_bundle() -> bytes:
    """Return the scripts to install on the target, in the format that `install.sh` reads."""
    texts = (f"@ {name}\n{load_script(name)}@.\n" for name in ("limits", "command", "guard", "supervisor"))
    return f"{''.join(texts)}@ \n".encode()
