"""Compute the results of Python's string and path functions for known arguments."""

from __future__ import annotations

import ast
import base64
import binascii
import bz2
import codecs
import lzma
import zlib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from shellverdict.embedded_code.analysis import HOME
from shellverdict.shell.words import GAP

__all__ = [
    "MAX_VALUE_CHARS",
    "FoldedValue",
    "evaluate_call",
    "expand_home",
    "format_braces",
    "format_percent",
    "join_path",
    "limit_text",
    "to_number",
    "to_word",
]

MAX_VALUE_CHARS = 16_384  # of decoded or repeated data
_MAX_JOINED_CHARS = 4_096  # of concatenated text

FoldedValue = str | bytes | int | list["FoldedValue"] | None


def limit_text(text: str) -> str:
    """Cut text at the length limit and mark the rest as unknown."""
    return text if len(text) <= _MAX_JOINED_CHARS else text[:_MAX_JOINED_CHARS] + GAP


def to_word(value: FoldedValue) -> str:
    """Return a value as text; return a placeholder for unknown text if it is neither text nor a number."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value) if isinstance(value, str | int) else GAP


def to_number(value: FoldedValue, node: ast.AST) -> int | None:
    """Return an integer value, or the value of a negative literal such as `-1`; None for anything else."""
    if isinstance(value, int):
        return value
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as number)):
            return -number
    return None


def format_percent(text: str, value: FoldedValue) -> str:
    """Evaluate `text % value` for `%s` placeholders."""
    rest = list(reversed(value)) if isinstance(value, list) else [value]
    parts = text.split("%s")
    pieces = [parts[0]]
    for part in parts[1:]:
        pieces += [to_word(rest.pop()) if rest else GAP, part]
    return limit_text("".join(pieces))


def format_braces(text: str, args: list[FoldedValue]) -> str:
    """Evaluate `text.format(*args)` for `{}` and `{0}` placeholders."""
    pieces: list[str] = []
    rest = list(reversed(args))
    at = 0
    while (begin := text.find("{", at)) >= 0 and (end := text.find("}", begin)) >= 0:
        name = text[begin + 1 : end]
        pieces.append(text[at:begin])
        if name.isdigit() and int(name[:4]) < len(args):
            pieces.append(to_word(args[int(name[:4])]))
        else:
            pieces.append(to_word(rest.pop()) if not name and rest else GAP)
        at = end + 1
    return limit_text("".join([*pieces, text[at:]]))


def join_path(parts: Iterable[str]) -> str:
    """Join path parts as `os.path.join` does."""
    path = ""
    for part in parts:
        path = part if part.startswith("/") else f"{path.rstrip('/')}/{part}" if path else part
    return limit_text(path)


def expand_home(path: str) -> str:
    """Replace a leading `~` in a path by the internal placeholder for the home directory."""
    return HOME + path[1:] if path == "~" or path.startswith("~/") else path


def evaluate_call(name: str, args: list[FoldedValue]) -> FoldedValue:
    """Return the result of a well-known Python function for known arguments, or None."""
    first = args[0] if args else None
    last = name.rpartition(".")[2]
    if name in (
        "pathlib.Path",
        "Path",
        "pathlib.PurePath",
        "os.path.join",
        "pathlib.PosixPath",
        "posixpath.join",
    ):
        return join_path(arg if isinstance(arg, str) else GAP for arg in args) if args else "."
    if name in ("sqlalchemy.text", "sqlalchemy.sql.text", "psycopg2.sql.SQL", "psycopg.sql.SQL"):
        return first
    if name in ("pathlib.Path.home", "Path.home"):
        return HOME
    if name in (
        "os.path.expanduser",
        "os.path.abspath",
        "os.path.realpath",
        "os.fspath",
        "os.path.expandvars",
        "str",
    ):
        text = first if isinstance(first, str) else None
        return (
            expand_home(text).replace("$HOME", HOME)
            if text is not None
            else str(first)
            if isinstance(first, int)
            else None
        )
    if name in ("os.getenv", "os.environ.get"):
        return HOME if first == "HOME" else GAP
    if name == "chr" and isinstance(first, int) and 0 <= first < 0xD800:
        return chr(first)
    if (
        name in ("bytes", "bytearray")
        and isinstance(first, list)
        and all(isinstance(n, int) and 0 <= n < 256 for n in first)
    ):
        return bytes(n for n in first if isinstance(n, int))
    if name == "shlex.split" and isinstance(first, str):
        return list(first.split()[:256])
    if name in _DIRECTORY_FUNCTIONS:
        return _DIRECTORY_FUNCTIONS[name]
    if last in _DECODERS:
        return _decode_bytes(last, first, args)
    return None


_DIRECTORY_FUNCTIONS = {
    "os.getcwd": ".",
    "os.path.dirname": GAP,
    "tempfile.gettempdir": "/tmp",  # noqa: S108 - what code that is analyzed would use
    "tempfile.mkdtemp": f"/tmp/{GAP}",  # noqa: S108
}
_DECODERS: Mapping[str, Callable[[bytes], bytes]] = MappingProxyType(
    {
        "b64decode": base64.b64decode,
        "urlsafe_b64decode": base64.urlsafe_b64decode,
        "standard_b64decode": base64.b64decode,
        "decodebytes": base64.b64decode,
        "a2b_base64": base64.b64decode,
        "b32decode": base64.b32decode,
        "b16decode": base64.b16decode,
        "b85decode": base64.b85decode,
        "a85decode": base64.a85decode,
        "unhexlify": binascii.unhexlify,
        "a2b_hex": binascii.unhexlify,
        "fromhex": binascii.unhexlify,
        "decompress": lambda data: _decompress(data),
        "decode": lambda data: data,
    }
)


def _decompress(data: bytes) -> bytes:
    """Decompress bz2, xz, gzip or zlib data up to the size limit."""
    if data[:3] == b"BZh":
        return bz2.BZ2Decompressor().decompress(data, MAX_VALUE_CHARS)
    if data[:6] == b"\xfd7zXZ\0":
        return lzma.LZMADecompressor(memlimit=1 << 26).decompress(data, MAX_VALUE_CHARS)
    return zlib.decompressobj(wbits=47).decompress(data, MAX_VALUE_CHARS)


def _decode_bytes(name: str, data: FoldedValue, args: list[FoldedValue]) -> FoldedValue:
    """Apply a decoding function such as `b64decode` to known data; return None if that fails."""
    if (
        name == "decode"
        and len(args) > 1
        and isinstance(data, str)
        and str(args[1]).lower().replace("-", "_") in ("rot13", "rot_13")
    ):
        return codecs.decode(data, "rot13")
    if isinstance(data, str):
        data = (
            data.replace(" ", "").encode("utf-8", "replace")
            if name == "fromhex"
            else data.encode("utf-8", "replace")
        )
    if not isinstance(data, bytes) or GAP.encode() in data:
        return None
    if name == "decode" and (len(args) < 2 or args[1] not in ("hex", "base64")):
        return None
    decoder = _DECODERS[
        "unhexlify" if args[1:] == ["hex"] else "b64decode" if args[1:] == ["base64"] else name
    ]
    try:
        return decoder(data)
    except (ValueError, EOFError, OSError, zlib.error, lzma.LZMAError):
        return None
