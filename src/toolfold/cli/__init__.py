"""The command line: parse, call, render. Everything it does is done by the runtime.

Exit codes: 0 done; 1 what was asked for failed; 2 the command was not written right; 3 the
configuration cannot be used; 4 there is nothing of that name; 130 interrupted.
"""

from __future__ import annotations

import sys


def main() -> None:
    """The `toolfold` command."""
    from toolfold.gateway.early_answers import start_early_answers

    arguments = sys.argv[1:]
    early = start_early_answers(arguments)  # before the rest is imported, which takes longer than they do

    from toolfold.cli.app import run

    sys.exit(run(arguments, early))
