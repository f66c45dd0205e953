"""What a run runs in turn: the command behind `sudo`, the code behind `sh -c`, the script behind `python`.

Reads one run's words and nothing else: no file, no environment. Programs are told apart by data (`programs`);
the few whose words follow a grammar of their own have a reader in the modules beside it.
"""

from __future__ import annotations

from shellverdict.shell.inner.inner_command import InnerCommand
from shellverdict.shell.inner.lookup import can_run_commands, find_inner_commands

__all__ = ["InnerCommand", "can_run_commands", "find_inner_commands"]
