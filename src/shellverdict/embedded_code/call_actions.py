"""Load `call_actions.toml`, which lists the action (delete, upload …) of each known function by language.

Actions:

- `shell`: the first argument is a shell command.
- `run`: the same, but with several arguments a program and its arguments.
- `argv`: always a program and its arguments.
- `needing`: one of these, if the code also names the module that provides it.
- `code`: the first argument is code of the same language.
- `tree-if`: deletes a whole tree if an option asks for it.
- `run-fetched`: runs code from a URL among its arguments.
- `run-named`: runs code from a hosting service, by repository name.
- `run-page`: runs a page fetched earlier.

The other actions say what happens to a file. A name with a dot only matches with that qualifier.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

__all__ = [
    "CONNECTING_NAMES",
    "DECODING_NAMES",
    "FETCHING_NAMES",
    "REQUIRED_MODULES",
    "SENDING_NAMES",
    "load_actions",
]


@cache
def load_actions() -> Mapping[str, Mapping[str, str]]:
    """Return the action (delete, upload …) of each known function, by language and function name."""
    tables = tomllib.loads(files(__package__).joinpath("call_actions.toml").read_text("utf-8"))
    return MappingProxyType({language: _actions_by_name(table) for language, table in tables.items()})


def _actions_by_name(table: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType({name: action for action, names in table.items() for name in names.split()})


REQUIRED_MODULES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"node": ("child_process", "shelljs", "execa", "zx", "Bun", "spawn_sync")}
)

CONNECTING_NAMES = frozenset(
    {
        *(
            "connect",
            "createConnection",
            "TCPSocket",
            "TCPServer",
            "fsockopen",
            "pfsockopen",
            "stream_socket_client",
        ),
        *(
            "socket_connect",
            "socketConnection",
            "gen_tcp",
            "connectTo",
            "ServerSocket",
            "Socket",
            "IO.Socket.INET",
        ),
        *(
            "INET",
            "TcpStream",
            "TCPClient",
            "TcpClient",
            "make-network-process",
            "tcp-connect",
            "listen",
            "socket_listen",
            "Dial",
            "DialTimeout",
        ),
    }
)
FETCHING_NAMES = frozenset(
    {
        *(
            "urlopen",
            "fetch",
            "get",
            "LWP",
            "Net",
            "OpenURI",
            "open-uri",
            "URI",
            "file_get_contents",
            "curl_exec",
            "axios",
        ),
        *(
            "http",
            "https",
            "request",
            "URL",
            "Http",
            "HTTP",
            "download",
            "recv",
            "RCurl",
            "httr",
            "getURL",
            "slurp",
            "got",
        ),
        *(
            "url-retrieve-synchronously",
            "url-insert-file-contents",
            "Downloads",
            "requests",
            "urllib",
            "XMLHttpRequest",
        ),
    }
)
DECODING_NAMES = frozenset(
    {
        *(
            "base64_decode",
            "decode_base64",
            "decode64",
            "strict_decode64",
            "urlsafe_decode64",
            "atob",
            "unpack",
            "unpack1",
            "pack",
        ),
        *(
            "base64decode",
            "b64decode",
            "fromhex",
            "hex2bin",
            "gzinflate",
            "gzuncompress",
            "gzdecode",
            "str_rot13",
            "inflate",
        ),
        *(
            "inflateSync",
            "gunzipSync",
            "convert_uudecode",
            "base64-decode-string",
            "getDecoder",
            "unhexlify",
            "base64encode",
        ),
        *("brotliDecompressSync", "unzlib", "rot13", "fromCharCode", "Base64", "MIME"),
    }
)
SENDING_NAMES = frozenset(
    {
        "post",
        "put",
        "request",
        "fetch",
        "send",
        "write",
        "puts",
        "post_form",
        "curl_exec",
        "POST",
        "PUT",
        "sendall",
        "fwrite",
    }
)
