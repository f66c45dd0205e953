"""Predict the text that a program prints, from its arguments and standard input.

Text is computed only if the result is exact; otherwise only the taints are kept, which tell the origin of the
data. Nothing is run, no file is read, and the output has a length limit.
"""

from __future__ import annotations

from shellverdict.shell.outputs.printing_programs import predict_output
from shellverdict.shell.outputs.shell_setup import is_shell_setup_command

__all__ = ["is_shell_setup_command", "predict_output"]
