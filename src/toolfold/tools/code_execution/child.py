"""Program that runs the model's code as `__main__` and provides tools in the module `toolfold_tools`.

Started by `relay.py` in the terminal environment. Its argument is the file descriptor of a socket to the
relay. The first line received has the code and the tools. After that, each tool call that the code requests
is a line with a number and JSON, and gets a line of JSON with the same number in reply. Works with Python
3.8 and later.
"""

from __future__ import annotations

import sys

# Files in the working directory must not replace the modules imported here; the code itself may import them.
_working_directory = sys.path.pop(0) if __name__ == "__main__" and sys.path[:1] == [""] else None

import json  # noqa: E402
import linecache  # noqa: E402
import os  # noqa: E402
import socket  # noqa: E402
import threading  # noqa: E402
import traceback  # noqa: E402
import types  # noqa: E402
from typing import Any, Callable, Sequence  # noqa: E402, UP035 - Python 3.8

CODE_NAME = "<code>"
READ_BYTES = 65_536


class ToolError(Exception):
    """Raised when a tool call failed or was refused."""


class RuntimeConnection:
    """Connection of executed code to the runtime: sends one tool call at a time and waits for the reply."""

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=descriptor)
        self.socket.set_inheritable(False)
        self._received = bytearray()
        self._last_number = 0
        self._lock = threading.Lock()
        self._process_id = os.getpid()

    def request(self, name: str, arguments: dict[str, Any]) -> Any:
        """Request a tool call from the runtime and return its result. Raises ToolError."""
        if os.getpid() != self._process_id:
            raise ToolError("tools can be called only by the code itself, not by processes that it starts")
        request = json.dumps({"name": name, "arguments": arguments}, default=os.fspath).encode()
        with self._lock:
            self._last_number += 1
            # The first line break ends a request whose sending was interrupted, for example by a signal.
            self.socket.sendall(b"\n%d %s\n" % (self._last_number, request))
            reply = self._read_reply(self._last_number)
        if "error" in reply:
            raise ToolError(reply["error"])
        return reply["value"]

    def read_line(self) -> bytes:
        """Return the next line from the runtime. Raises ToolError if the connection was closed."""
        # Not a buffered file: an exception of a signal handler would make it lose a part of a line.
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            data = self.socket.recv(READ_BYTES)
            if not data:
                raise ToolError("the connection to the runtime was closed")
            self._received += data
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def _read_reply(self, number: int) -> dict[str, Any]:
        """Return the reply to a request; skip replies to older requests, whose callers were interrupted."""
        while True:
            try:
                reply = json.loads(self.read_line().decode())
            except ValueError:
                continue  # the rest of a reply that was being read when its caller was interrupted
            if isinstance(reply, dict) and reply.get("id") == number:
                return reply


class ToolModule(types.ModuleType):
    """The module `toolfold_tools` that executed code can import: one function for each tool."""

    def __init__(self, connection: RuntimeConnection, tools: dict[str, list[str]]) -> None:
        super().__init__("toolfold_tools", "The tools of this session; results are Python data.")

        def call_tool(name: str, arguments: dict[str, Any] | None = None, **named: Any) -> Any:
            """Call a tool by name and return its result. Raises ToolError."""
            return connection.request(name, {**(arguments or {}), **named})

        members: dict[str, Any] = {"call_tool": call_tool, "ToolError": ToolError}
        for name, parameters in tools.items():
            if name.isidentifier() and name not in members:
                members[name] = make_function(call_tool, name, parameters)
        self.call_tool = call_tool
        self.__dict__.update(members, __all__=sorted(members))

    def __getattr__(self, name: str) -> Any:
        """Return a function for a tool that was not listed at the start; the runtime may refuse its calls."""
        if name.startswith("_"):
            raise AttributeError(name)
        return make_function(self.call_tool, name, ())


def make_function(call_tool: Callable[..., Any], name: str, parameters: Sequence[str]) -> Callable[..., Any]:
    """Return a Python function that calls the tool `name` with positional or keyword arguments."""

    def function(*positional: Any, **named: Any) -> Any:
        if len(positional) > len(parameters):
            raise TypeError(
                f"{name}() needs keyword arguments; its parameters: {', '.join(parameters) or '?'}"
            )
        merged = dict(zip(parameters, positional))  # noqa: B905 - fewer arguments than parameters are usual
        if repeated := merged.keys() & named.keys():
            raise TypeError(f"{name}() got two values for {min(repeated)}")
        return call_tool(name, {**merged, **named})

    function.__name__ = function.__qualname__ = name
    return function


def run_code(code: str) -> None:
    """Run the model's code like a script; tracebacks show the lines of that code, not of this module."""
    linecache.cache[CODE_NAME] = (len(code), None, code.splitlines(True), CODE_NAME)
    main = types.ModuleType("__main__")
    sys.modules["__main__"], sys.argv = main, [""]
    try:
        exec(compile(code, CODE_NAME, "exec", dont_inherit=True), vars(main))  # noqa: S102 - its purpose
    except SystemExit:
        raise
    except BaseException as error:
        frames = error.__traceback__ and error.__traceback__.tb_next
        traceback.print_exception(type(error), error.with_traceback(frames), frames)
        sys.exit(1)


def main() -> None:
    """Receive code and tool names from the runtime, provide `toolfold_tools` and run the code."""
    connection = RuntimeConnection(int(sys.argv[1]))
    first = json.loads(connection.read_line().decode())
    sys.modules["toolfold_tools"] = ToolModule(connection, first["tools"])
    if _working_directory is not None:
        sys.path.insert(0, _working_directory)
    run_code(first["code"])


if __name__ == "__main__":
    main()
