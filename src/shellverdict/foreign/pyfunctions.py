"""Functions of Python's library, by what they do to the world."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = [
    "DECODING",
    "DELETE",
    "EVERY_SHELL",
    "EVERY_SQL",
    "KNOWN",
    "NETWORK",
    "PROCESS",
    "SENDS",
    "SHELL",
    "TREE",
    "TWO_PATHS",
]

SHELL = frozenset(
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
PROCESS = frozenset(
    {
        "subprocess.run",
        "subprocess.call",
        "subprocess.check_call",
        "subprocess.check_output",
        "subprocess.Popen",
    }
)
DELETE = frozenset(
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
TREE = frozenset(
    {"shutil.rmtree", "distutils.dir_util.remove_tree", "setuptools.distutils.dir_util.remove_tree"}
)
EVERY_SHELL = frozenset(
    {"system", "popen", "getoutput", "getstatusoutput", "exec_command", "exec_run", "create_subprocess_shell"}
)
EVERY_SQL = frozenset({"execute", "executescript", "executemany", "raw", "exec_driver_sql"})
TWO_PATHS: Mapping[str, tuple[str, ...]] = MappingProxyType(
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
NETWORK = frozenset(
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
DECODING = frozenset(
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
SENDS = frozenset(
    {"post", "put", "urlopen", "request", "sendall", "send", "sendto", "storbinary", "sendmail", "patch"}
)
KNOWN = frozenset(
    {
        *(*SHELL, *PROCESS, *DELETE, *TREE, *TWO_PATHS),
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
