"""Reserve standard input and output of the gateway for the client that started it.

Standard library only: this is imported before anything else of the gateway.
"""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass

_INPUT, _OUTPUT, _ERRORS = 0, 1, 2


@dataclass(frozen=True, slots=True)
class ClientPipes:
    """Pipes to the client (stdin and stdout), moved to file descriptors that no other code uses."""

    input: int
    output: int

    @classmethod
    def claim(cls) -> ClientPipes:
        """Reserve the pipes for MCP messages: make stdin empty and redirect stdout to stderr."""
        pipes = cls(os.dup(_INPUT), os.dup(_OUTPUT))
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, _INPUT)
        os.close(empty)
        os.dup2(_ERRORS, _OUTPUT)
        return pipes

    def release(self) -> None:
        """Restore stdin and stdout, and make them blocking."""
        for own, number in ((self.input, _INPUT), (self.output, _OUTPUT)):
            os.set_blocking(own, True)
            os.dup2(own, number)
            os.close(own)


def has_client_pipes() -> bool:
    """Return True if stdin and stdout are pipes or sockets to another process, such as an MCP client."""
    if sys.platform == "win32":
        return False
    try:
        ends = [os.fstat(each) for each in (_INPUT, _OUTPUT, _ERRORS)]
    except OSError:
        return False
    are_pipes = all(stat.S_ISFIFO(each.st_mode) or stat.S_ISSOCK(each.st_mode) for each in ends[:2])
    return are_pipes and not os.path.samestat(ends[_OUTPUT], ends[_ERRORS])
