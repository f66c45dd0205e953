"""Values that Python's expressions make, worked out as far as everything in them is known."""

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

from shellverdict.foreign.nouns import HOME
from shellverdict.shell.words import GAP

__all__ = [
    "LONGEST_TEXT",
    "Value",
    "as_number",
    "as_word",
    "bounded",
    "expanded",
    "formatted",
    "joined_path",
    "made_by",
    "percent",
]

LONGEST_TEXT = 16_384  # of what is unpacked
_LONGEST = 4_096  # of what is put together

Value = str | bytes | int | list["Value"] | None


def bounded(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + GAP


def as_word(value: Value) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value) if isinstance(value, str | int) else GAP


def as_number(value: Value, node: ast.AST) -> int | None:
    if isinstance(value, int):
        return value
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as number)):
            return -number
    return None


def percent(text: str, value: Value) -> str:
    rest = list(reversed(value)) if isinstance(value, list) else [value]
    parts = text.split("%s")
    out = [parts[0]]
    for part in parts[1:]:
        out += [as_word(rest.pop()) if rest else GAP, part]
    return bounded("".join(out))


def formatted(text: str, args: list[Value]) -> str:
    out: list[str] = []
    rest = list(reversed(args))
    at = 0
    while (begin := text.find("{", at)) >= 0 and (end := text.find("}", begin)) >= 0:
        name = text[begin + 1 : end]
        out.append(text[at:begin])
        if name.isdigit() and int(name[:4]) < len(args):
            out.append(as_word(args[int(name[:4])]))
        else:
            out.append(as_word(rest.pop()) if not name and rest else GAP)
        at = end + 1
    return bounded("".join([*out, text[at:]]))


def joined_path(parts: Iterable[str]) -> str:
    path = ""
    for part in parts:
        path = part if part.startswith("/") else f"{path.rstrip('/')}/{part}" if path else part
    return bounded(path)


def expanded(path: str) -> str:
    return HOME + path[1:] if path == "~" or path.startswith("~/") else path


def made_by(name: str, args: list[Value]) -> Value:
    """What a well-known function makes of what is known."""
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
        return joined_path(arg if isinstance(arg, str) else GAP for arg in args) if args else "."
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
            expanded(text).replace("$HOME", HOME)
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
    if name in ("os.getcwd", "os.path.dirname", "tempfile.gettempdir"):
        return "." if name == "os.getcwd" else GAP
    if last in _DECODERS:
        return _decoded(last, first, args)
    return None


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
        "decompress": lambda data: _unpacked(data),
        "decode": lambda data: data,
    }
)


def _unpacked(data: bytes) -> bytes:
    if data[:3] == b"BZh":
        return bz2.BZ2Decompressor().decompress(data, LONGEST_TEXT)
    if data[:6] == b"\xfd7zXZ\0":
        return lzma.LZMADecompressor(memlimit=1 << 26).decompress(data, LONGEST_TEXT)
    return zlib.decompressobj(wbits=47).decompress(data, LONGEST_TEXT)


def _decoded(name: str, given: Value, args: list[Value]) -> Value:
    if (
        name == "decode"
        and len(args) > 1
        and isinstance(given, str)
        and str(args[1]).lower().replace("-", "_") in ("rot13", "rot_13")
    ):
        return codecs.decode(given, "rot13")
    if isinstance(given, str):
        given = (
            given.replace(" ", "").encode("utf-8", "replace")
            if name == "fromhex"
            else given.encode("utf-8", "replace")
        )
    if not isinstance(given, bytes) or GAP.encode() in given:
        return None
    if name == "decode" and (len(args) < 2 or args[1] not in ("hex", "base64")):
        return None
    decoder = _DECODERS[
        "unhexlify" if args[1:] == ["hex"] else "b64decode" if args[1:] == ["base64"] else name
    ]
    try:
        return decoder(given)
    except (ValueError, EOFError, OSError, zlib.error, lzma.LZMAError):
        return None
