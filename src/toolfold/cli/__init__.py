"""The command line: parse, call, render. Everything it does is done by the runtime.

Exit codes: 0 done; 1 what was asked for failed; 2 the command was not written right; 3 the
configuration cannot be used; 4 there is nothing of that name; 130 interrupted.
"""

from __future__ import annotations

import sys


def main() -> None:
    """The `toolfold` command."""
    from toolfold.cli.app import run

    sys.exit(run(sys.argv[1:]))
