"""Run Python code, which can call tools, in a terminal environment (host, container or remote machine).

`relay.py` and `child.py` run in the environment and use only the standard library. `run.py` is their
counterpart in the runtime. Everything that arrives from the environment is untrusted: the code can request
tool calls, and each request passes the same checks as a tool call of the model.
"""

from toolfold.tools.code_execution.code_run import CodeLimits, CodeResult, CodeRun

__all__ = ["CodeLimits", "CodeResult", "CodeRun"]
