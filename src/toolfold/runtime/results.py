"""Render tool results for the model as valid JSON within the length limit.

Renders whatever a handler returned, and stores large results on disk in lines that a file tool can page
through. Knows nothing of tools or sessions beyond the names it is given.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import math
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from toolfold.config.atomic import make_private_directory
from toolfold.core.json_limits import find_excess
from toolfold.core.types import Json, make_encodable, read_json

log = logging.getLogger(__name__)

MAX_STORED_BYTES = 100_000_000
RETENTION_S = 7 * 24 * 3600
MAX_CONVERTED_VALUES = 1_000_000
MAX_INDENTED_CHARS = 1_000_000
MAX_INDENTED_ITEMS = 50_000
"""Maximum JSON values and keys of a text that is indented, which takes longer than parsing it."""
MAX_INDENTED_DEPTH = 20
_MAX_INTEGER_BITS = 14_000  # Python refuses to format much longer ones in decimal
_MAX_LINE_CHARS = 1_500
_SLICE_CHARS = 100 * _MAX_LINE_CHARS
_LONG_LINE = re.compile(rf"^[^\n]{{{_MAX_LINE_CHARS + 1},}}", re.MULTILINE)
_BACKSLASH = "\0"  # cannot occur in JSON text
_PLAIN_SUFFIX = re.compile(r"[a-z0-9]{1,8}")
_SUFFIXES = {"audio/mpeg": "mp3", "application/gzip": "gz", "text/plain": "txt", "image/jpeg": "jpg"}
_LONE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def render(value: Any) -> str:
    """Return a value as compact JSON; text that is already valid JSON is returned unchanged."""
    shaped = value if issubclass(type(value), Mapping) else {"result": value}
    try:
        text = _replace_surrogates(value) if _is_json(value) else _dump_json(shaped)
    except Exception:  # NaN, odd keys, cycles, or any exception of a foreign object's methods
        text = _dump_json(_JsonConverter()(shaped))
    return make_encodable(text)


def _dump_json(value: Any) -> str:
    plain = value if isinstance(value, dict) else _to_plain(value)
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_to_plain)


class ResultStore:
    """Truncates tool results for the model, and stores complete results for the session."""

    def __init__(self, directory: Path, *, max_chars: int) -> None:
        self._directory = directory
        self._max_chars = max_chars

    def session_dir(self, session_id: str) -> Path:
        """Return the directory of a session's large results, which may not exist yet."""
        return self._directory / session_id

    def truncate(
        self, text: str, *, name: str, session_id: str, reader: str | None
    ) -> tuple[str, Path | None]:
        """Return a result's text or, if it is too long, its start and end and the path of the stored file."""
        if len(text) <= self._max_chars:
            return text, None
        whole = _format_lines(text)
        stored, problem = self._store_text(whole, self.session_dir(session_id), name)
        frame = _build_frame(len(text), whole.count("\n") + 1, stored, problem, reader)
        return json.dumps(self._fill_excerpt(whole, frame), ensure_ascii=False), stored

    def store_file(self, data: bytes, *, name: str, mime_type: str, session_id: str) -> Path | None:
        """Store a file from a tool result and return its path; None if it cannot be stored."""
        try:
            return _create_file(
                self.session_dir(session_id), name, _file_suffix(mime_type), data[:MAX_STORED_BYTES]
            )
        except OSError as error:
            log.warning("cannot store a file from a result of tool %r: %s", name, error)
            return None

    def prune(self) -> None:
        """Delete stored results of old sessions, and make the results directory private."""
        with contextlib.suppress(OSError):
            if self._directory.is_dir() and stat.S_IMODE(self._directory.stat().st_mode) & ~stat.S_IRWXU:
                self._directory.chmod(stat.S_IRWXU)
        oldest = time.time() - RETENTION_S
        for session_dir in self._directory.iterdir() if self._directory.is_dir() else ():
            with contextlib.suppress(OSError):  # another process may delete it at the same time
                if stat.S_ISDIR(session_dir.lstat().st_mode) and session_dir.lstat().st_mtime < oldest:
                    shutil.rmtree(session_dir, ignore_errors=True)

    def _store_text(self, whole: str, directory: Path, name: str) -> tuple[Path | None, str]:
        try:
            path = _create_file(directory, name, "txt", whole[:MAX_STORED_BYTES].encode())
        except OSError as error:
            log.warning("cannot store a large result of tool %r: %s", name, error)
            return None, f"the rest could not be stored: {error.strerror}"
        is_cut = len(whole) > MAX_STORED_BYTES
        return path, f"; only its first {MAX_STORED_BYTES:,} characters were stored" if is_cut else ""

    def _fill_excerpt(self, whole: str, frame: Json) -> Json:
        """Add the start and end of a large result's text to the JSON that replaces it, within the limit."""
        used = len(json.dumps(frame, ensure_ascii=False))  # a long path may use up the whole limit
        room = max(0, min(self._max_chars // 2, self._max_chars - used))
        head, tail = _cut_to_fit(whole, room * 2 // 3), _cut_to_fit(whole[: -room - 1 : -1], room // 3)[::-1]
        return {**frame, "head": head, "tail": tail}


def _build_frame(characters: int, lines: int, stored: Path | None, problem: str, reader: str | None) -> Json:
    """Return the JSON that replaces a large result, with its size and file but still without excerpts."""
    answer: Json = {"truncated": True, "characters": characters, "head": "", "tail": ""}
    if stored is None:
        return {**answer, "note": problem}
    how = (
        f"{reader}(path, offset, limit)"
        if reader
        else "a file reading tool, which this session does not have"
    )
    return {**answer, "stored": str(stored), "lines": lines, "note": f"read the rest with {how}{problem}"}


def _create_file(directory: Path, name: str, suffix: str, data: bytes) -> Path:
    make_private_directory(directory)
    path = directory / f"{name[:40]}-{os.urandom(6).hex()}.{suffix}"
    _write_file(path, data)
    return path


def _file_suffix(mime_type: str) -> str:
    """Return the usual file suffix of a MIME type; for unknown types, the subtype."""
    kind = mime_type.partition(";")[0].strip().lower()
    word = kind.partition("/")[2].partition("+")[0].removeprefix("x-")
    return _SUFFIXES.get(kind) or (word if _PLAIN_SUFFIX.fullmatch(word) else "bin")


def _write_file(path: Path, data: bytes) -> None:
    """Write a new file that only its owner can read; delete it if writing fails."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _cut_to_fit(text: str, max_chars: int) -> str:
    """Return the longest prefix of a text that fits into `max_chars` characters of JSON."""
    start = text[:max_chars]
    while len(json.dumps(start, ensure_ascii=False)) > max_chars + 2:
        start = start[: len(start) * 3 // 4]
    return start


def _format_lines(text: str) -> str:
    """Return JSON text in lines short enough for the tool `read_file`.

    Works in slices, because a long call into C blocks all other threads.
    """
    return "".join(_wrap_lines("".join(map(_unescape, _slice_text(_indent_json(text))))))


def _slice_text(text: str) -> Iterator[str]:
    """Yield slices of JSON text of limited size, without splitting escape sequences."""
    start = 0
    while start < len(text):
        end = start + _SLICE_CHARS
        backslashes = len(text[start:end]) - len(text[start:end].rstrip("\\"))
        end += backslashes % 2
        if text[end - 2 : end + 2] == "\\r\\n":
            end += 2
        yield text[start:end]
        start = end


def _unescape(text: str) -> str:
    # Escaped backslashes first, or a following n would be taken for a newline.
    text = text.replace("\\\\", _BACKSLASH)
    for escape, character in (("\\r\\n", "\n"), ("\\n", "\n"), ("\\t", "\t")):
        text = text.replace(escape, character)
    return text.replace(_BACKSLASH, "\\\\")


def _wrap_lines(text: str) -> Iterator[str]:
    """Yield slices of the text with overlong lines wrapped."""
    start = 0
    while start < len(text):
        end = start + _SLICE_CHARS
        if end < len(text) and (last := text.rfind("\n", start, end)) >= 0:
            end = last + 1
        yield _LONG_LINE.sub(_wrap_line, text[start:end])
        if end < len(text) and text[end - 1] != "\n" != text[end]:
            yield "\n"
        start = end


def _wrap_line(match: re.Match[str]) -> str:
    line = match[0]
    return "\n".join(line[start : start + _MAX_LINE_CHARS] for start in range(0, len(line), _MAX_LINE_CHARS))


def _indent_json(text: str) -> str:
    """Return JSON text with one line per value; unchanged if it would become much larger."""
    is_long = len(text) > MAX_INDENTED_CHARS
    if is_long or find_excess(text.encode("utf-8", "replace"), max_items=MAX_INDENTED_ITEMS):
        return text
    try:
        value = json.loads(text)
        return json.dumps(value, ensure_ascii=False, indent=1) if _is_shallow(value) else text
    except (ValueError, RecursionError):
        return text


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_INDENTED_DEPTH):
        containers = [each for each in level if isinstance(each, (dict, list))]
        if not containers:
            return True
        level = [
            inner for each in containers for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return False


def _is_json(value: Any) -> bool:
    if type(value) is not str or value.lstrip()[:1] not in ("{", "["):
        return False
    if find_excess(value.encode("utf-8", "replace")):
        return False  # treated as plain text, because parsing it would take long
    try:
        read_json(value)
    except (ValueError, RecursionError):
        return False
    return True


def _replace_surrogates(text: str) -> str:
    """Return JSON text without escaped lone surrogates, which strict parsers reject."""
    return _dump_json({"": json.loads(text)})[4:-1] if _LONE_SURROGATE.search(text) else text


def _to_plain(value: Any) -> Any:
    """Return a JSON-compatible value for common return types of handlers."""
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return sorted(value, key=repr)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, Sequence):
        return list(value)
    return str(value)


class _JsonConverter:
    """Converts a value to JSON-compatible data: no NaN, only string keys, no cycles, limited nesting."""

    def __init__(self) -> None:
        self._ancestors: set[int] = set()
        self._remaining = MAX_CONVERTED_VALUES

    def __call__(self, value: Any, depth: int = 0) -> Any:
        self._remaining -= 1
        if depth > 64:
            return "… (nested too deeply)"
        if id(value) in self._ancestors:
            return "… (contains itself)"
        self._ancestors.add(id(value))
        try:
            return self._convert(value, depth + 1)
        except Exception as error:  # raised by a foreign object's methods
            return f"… ({type(value).__name__} cannot be shown: {type(error).__name__})"
        finally:
            self._ancestors.discard(id(value))

    def _convert(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, (str, bool)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, int):
            return (
                value if value.bit_length() < _MAX_INTEGER_BITS else f"{hex(value)[:34]}… (a larger number)"
            )
        if isinstance(value, Mapping):
            return {self._convert_key(key, depth): self(value[key], depth) for key in self._take_items(value)}
        if isinstance(value, (list, tuple)):
            return [self(each, depth) for each in self._take_items(value)]
        return self(_to_plain(value), depth)

    def _take_items(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield items of a value until MAX_CONVERTED_VALUES values of the result are converted."""
        return itertools.takewhile(lambda _: self._remaining > 0, items)

    def _convert_key(self, key: Any, depth: int) -> str:
        return key if isinstance(key, str) else str(self(key, depth))
