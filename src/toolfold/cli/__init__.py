"""The `toolfold` command line: parses arguments, calls the runtime and prints the results.

Exit codes: 0 success; 1 the command failed; 2 wrong usage; 3 invalid configuration; 4 the name was not found;
130 interrupted.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the `toolfold` command."""
    from toolfold.cli.app import run

    sys.exit(run(sys.argv[1:]))
