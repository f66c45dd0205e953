"""What a program prints, as far as its words and its standard input tell.

Text is worked out where that is exact; otherwise only the marks remain: where the bytes come from. Nothing is
run, no file is read and no output grows beyond a bound.
"""

from __future__ import annotations

from shellverdict.shell.outputs.programs import predict_output
from shellverdict.shell.outputs.shell_setup import is_shell_setup_command

__all__ = ["is_shell_setup_command", "predict_output"]
