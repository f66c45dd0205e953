"""Names of Python library functions and methods, grouped by effect (deletes files, starts programs …)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = [
    "DECODING_NAMES",
    "DELETE_FUNCTIONS",
    "DELETE_TREE_FUNCTIONS",
    "EVALUATION_FUNCTIONS",
    "KNOWN_FUNCTIONS",
    "NETWORK_NAMES",
    "PROCESS_FUNCTIONS",
    "SENDING_NAMES",
    "SHELL_FUNCTIONS",
    "SHELL_METHODS",
    "SQL_METHODS",
    "TWO_PATH_COMMANDS",
]

SHELL_FUNCTIONS = frozenset(
    {
        *(
            "os.system",
            "os.popen",
            "os.popen2",
            "os.popen3",
            "os.popen4",
            "posix.system",
            "posix.popen",
            "nt.system",
        ),
        *(
            "subprocess.getoutput",
            "subprocess.getstatusoutput",
            "commands.getoutput",
            "commands.getstatusoutput",
        ),
        *(
            "asyncio.create_subprocess_shell",
            "popen2.popen2",
            "popen2.popen3",
            "platform.popen",
            "pexpect.run",
        ),
        *(
            "pexpect.spawn",
            "invoke.run",
            "fabric.api.run",
            "fabric.api.local",
            "fabric.api.sudo",
            "fabric.operations.run",
        ),
    }
)
PROCESS_FUNCTIONS = frozenset(
    {
        "subprocess.run",
        "subprocess.call",
        "subprocess.check_call",
        "subprocess.check_output",
        "subprocess.Popen",
    }
)
DELETE_FUNCTIONS = frozenset(
    {
        "os.remove",
        "os.unlink",
        "os.rmdir",
        "os.removedirs",
        "posix.unlink",
        "posix.remove",
        "send2trash.send2trash",
    }
)
DELETE_TREE_FUNCTIONS = frozenset(
    {"shutil.rmtree", "distutils.dir_util.remove_tree", "setuptools.distutils.dir_util.remove_tree"}
)
EVALUATION_FUNCTIONS = frozenset(
    {"exec", "eval", "builtins.exec", "builtins.eval", "compile", "runpy.run_path", "execfile"}
)
SHELL_METHODS = frozenset(
    {"system", "popen", "getoutput", "getstatusoutput", "exec_command", "exec_run", "create_subprocess_shell"}
)
SQL_METHODS = frozenset({"execute", "executescript", "executemany", "raw", "exec_driver_sql"})
TWO_PATH_COMMANDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "shutil.move": ("mv",),
        "os.rename": ("mv",),
        "os.replace": ("mv",),
        "os.renames": ("mv",),
        "shutil.copy": ("cp",),
        "shutil.copy2": ("cp",),
        "shutil.copyfile": ("cp",),
        "shutil.copytree": ("cp", "-r"),
        "os.symlink": ("ln", "-s"),
        "os.link": ("ln",),
    }
)
NETWORK_NAMES = frozenset(
    {
        *(
            "urlopen",
            "urlretrieve",
            "recv",
            "recvfrom",
            "HTTPConnection",
            "HTTPSConnection",
            "requests",
            "httpx",
        ),
        *(
            "urllib",
            "urllib2",
            "urllib3",
            "aiohttp",
            "ftplib",
            "gethostbyname",
            "create_connection",
            "xmlrpc",
        ),
    }
)
DECODING_NAMES = frozenset(
    {
        *(
            "b64decode",
            "b32decode",
            "b16decode",
            "b85decode",
            "a85decode",
            "decodebytes",
            "urlsafe_b64decode",
        ),
        *(
            "unhexlify",
            "fromhex",
            "decompress",
            "a2b_base64",
            "a2b_hex",
            "rot13",
            "loads",
            "decrypt",
            "standard_b64decode",
        ),
    }
)
SENDING_NAMES = frozenset(
    {"post", "put", "urlopen", "request", "sendall", "send", "sendto", "storbinary", "sendmail", "patch"}
)
KNOWN_FUNCTIONS = frozenset(
    {
        *(
            *SHELL_FUNCTIONS,
            *PROCESS_FUNCTIONS,
            *DELETE_FUNCTIONS,
            *DELETE_TREE_FUNCTIONS,
            *TWO_PATH_COMMANDS,
        ),
        *(
            "os.chmod",
            "os.chown",
            "os.kill",
            "os.killpg",
            "os.truncate",
            "os.chdir",
            "os.dup2",
            "pty.spawn",
            "os.fork",
        ),
        *("os.open", "io.open", "codecs.open", "glob.glob", "os.listdir", "os.walk"),
    }
)
