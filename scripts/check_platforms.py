"""List names that Windows does not have and that are used without a check, outside of the modules for POSIX.

python scripts/check_platforms.py

A use is accepted if its function checks for the name with `hasattr` or `getattr`, handles the ImportError,
AttributeError or NotImplementedError, or compares `os.name` or `sys.platform`. Modules that work only on
POSIX systems are listed here with what is missing on Windows because of it (`docs/windows.md`).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "toolfold"
MODULES = frozenset({"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"})
ATTRIBUTES = {
    "os": (  # noqa: SIM905 - shorter than a list
        "O_CLOEXEC O_DIRECTORY O_NOCTTY O_NOFOLLOW O_NONBLOCK WNOHANG chown fchmod fchown fork forkpty"
        " getegid geteuid getgid getgroups getloadavg getpgid getpgrp getuid killpg memfd_create mkfifo nice"
        " openpty posix_spawn pread preadv pwrite sched_getaffinity sendfile setgid setpgid setsid setuid"
        " statvfs sysconf tcgetpgrp tcsetpgrp ttyname uname wait wait4"
    ).split(),
    "signal": (  # noqa: SIM905
        "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGUSR1"
        " SIGUSR2 SIGWINCH alarm pthread_kill pthread_sigmask setitimer sigwait"
    ).split(),
    "select": ["epoll", "kqueue", "poll"],
    "socket": ["AF_UNIX", "SCM_RIGHTS", "SO_PEERCRED", "SO_REUSEPORT"],
}
METHODS = frozenset({"add_reader", "add_signal_handler", "open_unix_connection", "start_unix_server"})
ARGUMENTS = frozenset({"dir_fd", "pass_fds", "preexec_fn"})
TEXTS = frozenset({"/bin/sh", "/bin/bash", "/dev/tty"})
CHECKS = frozenset({"AttributeError", "ImportError", "ModuleNotFoundError", "NotImplementedError"})
POSIX_MODULES = {
    "cli/interactive_terminal.py": "terminals of running commands",
    "cli/chat_screen.py": "keys typed during a turn; the errors are ignored where the terminal is used",
    "tools/code_execution/relay.py": "code execution",
    "tools/environments/local_process.py": "commands on this machine",
    "tools/environments/remote_commands.py": "terminals of commands on other machines",
    "tools/files/descent.py": "file tools",
    "tools/files/workspace.py": "file tools",
    "serving/dashboard/local_gateways.py": "the view of other gateways, which have no sockets on Windows",
    "serving/gateway/control.py": "commands that reach a running gateway",
    "serving/gateway/control_client.py": "commands that reach a running gateway",
    "serving/gateway/uvicorn_connections.py": "nothing: only uvloop needs its acceptor",
    "core/tool_processes.py": "detecting tool calls",
    "mcp/server_process.py": "terminals of MCP servers; its Windows part starts them without a shell",
    "mcp/process_tree.py": "nothing: Windows has its own part, with job objects",
    "state/store/usage_journal.py": "the journal of the usage history, which is optional",
    "tools/training/training_runs.py": "training",
    "tools/training/run_supervisor.py": "training",
}


def main() -> int:
    """Return the exit code: 1 if a name that Windows lacks is used without a check."""
    problems = [problem for file in sorted(SOURCE.rglob("*.py")) for problem in check_file(file)]
    print(
        "\n".join(problems)
        or f"names of POSIX are used only in {len(POSIX_MODULES)} modules, or with a check"
    )
    return int(bool(problems))


def check_file(file: Path) -> Iterator[str]:
    """Yield a message for each name in a module that Windows lacks and that is used without a check."""
    name = file.relative_to(SOURCE).as_posix()
    if name not in POSIX_MODULES:
        for line, use in find_uses(file.read_text(encoding="utf-8")):
            yield f"src/toolfold/{name}:{line}: {use} does not exist on Windows"


def find_uses(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name for each use of a name that Windows lacks, unless a check protects it."""
    yield from _find_unchecked(ast.parse(text))


def _find_unchecked(node: ast.AST) -> Iterator[tuple[int, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and _has_check(child):
            continue
        if use := _name_use(child):
            yield getattr(child, "lineno", 0), use
        yield from _find_unchecked(child)


def _has_check(function: ast.AST) -> bool:
    """Return True if a function checks whether a name exists or on which system it runs."""
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("hasattr", "getattr")
        ):
            return True
        if isinstance(node, ast.Name) and node.id in CHECKS:
            return True
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.name", "sys.platform"):
            return True
    return False


def _name_use(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        is_known = node.attr in ATTRIBUTES.get(owner, ()) or node.attr in METHODS
        return f"{owner}.{node.attr}".removeprefix(".") if is_known else ""
    if isinstance(node, ast.Import):
        return next((each.name for each in node.names if each.name in MODULES), "")
    if isinstance(node, ast.ImportFrom):
        return node.module if node.module in MODULES else ""
    if isinstance(node, ast.keyword):
        return node.arg if node.arg in ARGUMENTS else ""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) and node.value in TEXTS else ""
    return ""


if __name__ == "__main__":
    sys.exit(main())
