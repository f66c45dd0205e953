"""Runs Python code in an environment; the code can call tools of its session.

`relay.py` and `child.py` run in the environment and use only the standard library. `run.py` is their
counterpart in the runtime. Everything that arrives from the environment is untrusted: it can ask for calls,
and each request passes the same pipeline as a call of the model.
"""

from toolfold.code_execution.run import CodeLimits, CodeResult, CodeRun

__all__ = ["CodeLimits", "CodeResult", "CodeRun"]
