"""The `toolfold` command line: parses arguments, calls the runtime and prints the results.

Exit codes: 0 success; 1 the command failed; 2 wrong usage; 3 invalid configuration; 4 the name was not found;
130 interrupted.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the `toolfold` command."""
    from toolfold.gateway.early_answers import start_early_answers

    arguments = sys.argv[1:]
    early = start_early_answers(arguments)  # before the slow imports below

    from toolfold.cli.app import run

    sys.exit(run(arguments, early))
