"""What a run runs in turn: the command behind `sudo`, the code behind `sh -c`, the script behind `python`.

Reads one run's words and nothing else: no file, no environment. Programs are told apart by data (`programs`);
the few whose words follow a grammar of their own have a reader in the modules beside it.
"""

from __future__ import annotations

from shellverdict.shell.inner.follow import inner, runs_others
from shellverdict.shell.inner.nouns import Inner

__all__ = ["Inner", "inner", "runs_others"]
