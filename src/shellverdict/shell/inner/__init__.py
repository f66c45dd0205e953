"""Find commands and code that a program runs from its arguments, as `sudo` and `sh -c` do.

Uses only the arguments of one run: no file and no environment. Most programs are described by data
(`programs.toml`); those whose arguments follow a grammar of their own have a reader function in one of the
modules.
"""

from __future__ import annotations

from shellverdict.shell.inner.inner_command import InnerCommand
from shellverdict.shell.inner.lookup import can_run_commands, find_inner_commands

__all__ = ["InnerCommand", "can_run_commands", "find_inner_commands"]
