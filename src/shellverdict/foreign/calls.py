"""Which function of which language does what to the world: the table in `calls.toml`, by name.

`shell` hands its first argument to a shell; `run` does too, unless there are more arguments, which make it a
program and its words; `argv` is always a program and its words; `needing` is one of these where the module
for it is named in the code; `code` is code of the same language; `tree-if` deletes a whole tree where it is
asked to; `run-fetched` runs what an address among its arguments holds, `run-named` what a name on a host of
code stands for, `run-page` the page that was fetched before. The others name what happens to a file. A name
with a dot counts only with that qualifier.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

__all__ = ["CONNECTS", "DECODES", "FETCHES", "NEEDS", "SENDS", "actions"]


@cache
def actions() -> Mapping[str, Mapping[str, str]]:
    """For every language, what its functions do."""
    tables = tomllib.loads(files(__package__).joinpath("calls.toml").read_text("utf-8"))
    return MappingProxyType({language: _by_name(table) for language, table in tables.items()})


def _by_name(table: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType({name: action for action, names in table.items() for name in names.split()})


NEEDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"node": ("child_process", "shelljs", "execa", "zx", "Bun", "spawn_sync")}
)

CONNECTS = frozenset(
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
FETCHES = frozenset(
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
DECODES = frozenset(
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
SENDS = frozenset(
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
