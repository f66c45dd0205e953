"""Search the workspace for files by name, and for lines by text or regular expression.

The workspace decides which files there are. A pattern from a model runs only in a child process, because a
regular expression can hang the interpreter.
"""

from __future__ import annotations

import fnmatch
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from toolfold.core.errors import CallError
from toolfold.core.types import CallContext, Json
from toolfold.tools.files import matcher
from toolfold.tools.files.text_files import SAMPLE_BYTES, detect_binary, encode_text
from toolfold.tools.files.workspace import Workspace

DEFAULT_MATCHES = 50
"""Number of matches shown by default."""

SEARCH_TIMEOUT_S, MAX_SEARCHED_BYTES, MAX_HIT_CHARS = 20.0, 5_000_000, 300
MAX_MATCHER_BYTES = 512 << 20
# fmt: off
SKIPPED_DIRECTORIES = frozenset({
    ".git", ".hg", ".svn", ".toolfold", ".venv", "venv", ".tox", ".nox", ".eggs", "__pycache__",
    ".mypy_cache", ".pytest_cache", ".ruff_cache", "node_modules", ".gradle", ".idea", ".terraform",
})
# fmt: on

_REGEX_LIKE = re.compile(r"\\[wdsbWDSB.()\[\]]|\.[*+]|\w\|\w|\[[^\]]+\][*+?]|\[\^|^\^|\w\$$|\(\?[:i=!]")
_REGEX_HINT = "The pattern looks like a regular expression, but was searched as text. Set regex to use it."
_CHUNK_BYTES = 1 << 20
_CANCEL_CHECK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class FileQuery:
    """Query of a file search: pattern and options."""

    pattern: str
    path: str = "."
    glob: str | None = None
    limit: int = DEFAULT_MATCHES
    ignore_case: bool = False
    regex: bool = False


@dataclass(slots=True)
class FileSearch:
    """State of a file search: matches, skipped files, and the reason if it ended early."""

    workspace: Workspace
    query: FileQuery
    context: CallContext
    deadline: float = field(default_factory=lambda: time.monotonic() + SEARCH_TIMEOUT_S)
    matches: list[Any] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    searched: int = 0
    partial: str = ""

    def search_names(self) -> Json:
        """Return the files whose names match the query."""
        if self.query.regex:
            raise CallError(
                "regex works only for kind 'content'. For kind 'name' give a glob or a part of the name."
            )
        pattern = self.query.pattern
        glob = pattern if set("*?[") & set(pattern) else f"*{pattern}*"
        for path in self._iterate_files():
            if _matches_glob(path, self.workspace.relative(path), glob, ignore_case=self.query.ignore_case):
                self._add_match(self.workspace.relative(path))
        return self._build_answer()

    def search_contents(self) -> Json:
        """Return the lines that match the query, from all files searched."""
        with _MatcherProcess(
            self._build_pattern(), self.query.ignore_case, self.deadline, self.context.cancelled
        ) as child:
            for path in self._iterate_files():
                data = self._read_text(path)
                possible = self._may_match(data)
                hits = child.find_hits(data, self.query.limit + 1 - len(self.matches)) if possible else []
                if hits is None:
                    self.partial = (
                        f"stopped while searching {self.workspace.relative(path)!r}: {self._stop_reason()}"
                    )
                    break
                for number, text in hits:
                    self._add_match({"file": self.workspace.relative(path), "line": number, "text": text})
        if not self.matches and not self.query.regex and _REGEX_LIKE.search(self.query.pattern):
            return {**self._build_answer(), "hint": _REGEX_HINT}
        return self._build_answer()

    def _build_pattern(self) -> str:
        pattern = self.query.pattern
        encode_text(pattern, "pattern")
        if self.query.regex:
            return pattern
        if "\n" in pattern:
            raise CallError(
                "The search works line by line, so the pattern cannot span lines. Search for one line."
            )
        return re.escape(pattern)

    def _may_match(self, data: bytes) -> bool:
        """Return False if a quick search of the file's bytes rules out a match.

        Most files then need not be sent to the process that runs the regular expression.
        """
        plain = not self.query.regex and not self.query.ignore_case
        return bool(data) and (not plain or self.query.pattern.encode() in data)

    def _iterate_files(self) -> Iterator[Path]:
        """Yield the files to search until the search has enough matches or must stop."""
        glob = self.query.glob
        start, readable = self.query.path, self.context.readable
        for path in self.workspace.files(start, readable, SKIPPED_DIRECTORIES, self._should_stop):
            if self.partial or self._should_stop():
                break
            shown_path = self.workspace.relative(path)
            if not glob or _matches_glob(path, shown_path, glob, ignore_case=self.query.ignore_case):
                self.searched += 1
                yield path
        if not self.partial and self._should_stop():
            self.partial = self._stop_reason()

    def _should_stop(self) -> bool:
        return self.context.cancelled.is_set() or time.monotonic() > self.deadline

    def _read_text(self, path: Path) -> bytes:
        try:
            with self.workspace.open_for_reading(path, self.context.readable) as file:
                if os.fstat(file.fileno()).st_size > MAX_SEARCHED_BYTES:
                    self.skipped[f"larger than {MAX_SEARCHED_BYTES // 1_000_000} MB"] += 1
                    return b""
                data = file.read(MAX_SEARCHED_BYTES)
        except CallError:
            self.skipped["unreadable"] += 1
            return b""
        if detect_binary(data[:SAMPLE_BYTES], path.name):
            self.skipped["binary"] += 1
            return b""
        return data

    def _add_match(self, match: Any) -> None:
        if len(self.matches) < self.query.limit:
            self.matches.append(match)
        else:
            self.partial = f"there are more than {self.query.limit} matches; narrow the search or raise limit"

    def _stop_reason(self) -> str:
        """Return why the search stopped early: cancellation, timeout, or failure of the child process."""
        if self.context.cancelled.is_set():
            return "cancelled"
        if time.monotonic() > self.deadline:
            return (
                f"{SEARCH_TIMEOUT_S:g} seconds were not enough; search fewer files or use a simpler pattern"
            )
        return (
            f"the matcher failed, probably because it needs more than {MAX_MATCHER_BYTES >> 20} MB of memory;"
            " use a simpler pattern"
        )

    def _build_answer(self) -> Json:
        answer: Json = {"matches": self.matches, "files_searched": self.searched - self.skipped.total()}
        if self.skipped:
            answer["files_skipped"] = dict(self.skipped)
        if self.partial:
            answer["partial"] = self.partial
        return answer


def _matches_glob(path: Path, shown_path: str, glob: str, *, ignore_case: bool) -> bool:
    """Return True if a glob with a slash matches the path, or a glob without a slash the file name."""
    name = shown_path if "/" in glob else path.name
    if ignore_case:
        name, glob = name.casefold(), glob.casefold()
    return any(fnmatch.fnmatchcase(name, each) for each in {glob, glob.replace("**/", "")})


class _MatcherProcess:
    """Child process that searches files for a pattern, one after another; killed on timeout."""

    def __init__(self, pattern: str, ignore_case: bool, deadline: float, cancelled: threading.Event) -> None:
        self._deadline, self._cancelled = deadline, cancelled
        self._settings = {
            "pattern": pattern,
            "ignore_case": ignore_case,
            "width": MAX_HIT_CHARS,
            "memory": MAX_MATCHER_BYTES,
            "seconds": int(SEARCH_TIMEOUT_S) + 1,  # ends an orphaned process, too
        }

    def __enter__(self) -> Self:
        self._child = subprocess.Popen(  # noqa: S603 - a fixed interpreter and script; the pattern is data
            [sys.executable, "-I", "-S", matcher.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        # A thread reads, because a pipe cannot be waited for with a time limit on Windows.
        self._chunks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read_chunks, name="toolfold-matcher", daemon=True)
        self._reader.start()
        try:
            self._send_pattern()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()
        self._reader.join()  # ends with the child's output
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe:
                pipe.close()
        self._child.wait()

    def find_hits(self, data: bytes, max_hits: int) -> list[tuple[int, str]] | None:
        """Return at most `max_hits` matching lines of a file's `data`, each with its line number.

        None if the process that runs the regular expression has ended or takes too long.
        """
        hits: list[tuple[int, str]] | None = self._request(b"%d %d\n" % (len(data), max_hits) + data)
        return hits

    def _send_pattern(self) -> None:
        answer = self._request(json.dumps(self._settings).encode() + b"\n")
        if answer is None:
            raise CallError("The pattern could not be compiled in time. Use a simpler pattern.")
        if "error" in answer:
            raise CallError(f"The pattern is not a valid regular expression: {answer['error']}.")

    def _request(self, request: bytes) -> Any:
        if not self._child.stdin:
            return None
        view = memoryview(request)
        try:
            while view:
                view = view[self._child.stdin.write(view) or 0 :]
        except BrokenPipeError:
            return None
        answer = self._read_line()
        return json.loads(answer) if answer else None

    def _read_line(self) -> bytes:
        received = bytearray()
        while not received.endswith(b"\n"):
            if self._cancelled.is_set() or time.monotonic() > self._deadline:
                return b""
            try:
                chunk = self._chunks.get(timeout=_CANCEL_CHECK_S)
            except queue.Empty:
                continue
            if not chunk:
                return b""
            received += chunk
        return bytes(received)

    def _read_chunks(self) -> None:
        """Yield the output of the child process in chunks; the last chunk is empty."""
        chunk = b"-"
        while chunk:
            chunk = (self._child.stdout.read(_CHUNK_BYTES) if self._child.stdout else b"") or b""
            self._chunks.put(chunk)
