"""Searching the workspace: files by name, lines by text or by regular expression.

Which files there are is the workspace's to say. A pattern from a model is only ever run in a child
process, because a regular expression can hang the interpreter that runs it.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import select
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

from toolfold.errors import CallError
from toolfold.files import matcher
from toolfold.files.text import SAMPLE_BYTES, binary_kind, encode
from toolfold.files.workspace import Workspace
from toolfold.model import CallContext, Json

MATCHES = 50
"""How many matches are shown unless told otherwise."""

SEARCH_SECONDS, SEARCHED_BYTES, HIT_CHARACTERS = 20.0, 5_000_000, 300
MATCHER_BYTES = 512 << 20
# fmt: off
UNSEARCHED_FOLDERS = frozenset({
    ".git", ".hg", ".svn", ".toolfold", ".venv", "venv", ".tox", ".nox", ".eggs", "__pycache__",
    ".mypy_cache", ".pytest_cache", ".ruff_cache", "node_modules", ".gradle", ".idea", ".terraform",
})
# fmt: on

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What to look for, and where."""

    pattern: str
    path: str = "."
    glob: str | None = None
    limit: int = MATCHES
    ignore_case: bool = False
    regex: bool = False


@dataclass(slots=True)
class Search:
    """One search: what was found, what was left out, and why it ended."""

    workspace: Workspace
    query: Query
    context: CallContext
    deadline: float = field(default_factory=lambda: time.monotonic() + SEARCH_SECONDS)
    matches: list[Any] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    searched: int = 0
    partial: str = ""

    def names(self) -> Json:
        """The files whose names fit."""
        if self.query.regex:
            raise CallError(
                "regex works on contents only. For kind 'name' give a glob or a part of the name."
            )
        pattern = self.query.pattern
        glob = pattern if set("*?[") & set(pattern) else f"*{pattern}*"
        for path in self._files():
            if _fits(path, self.workspace.relative(path), glob, ignore_case=self.query.ignore_case):
                self._add(self.workspace.relative(path))
        return self._answer()

    def contents(self) -> Json:
        """The lines that match."""
        with _Matcher(
            self._expression(), self.query.ignore_case, self.deadline, self.context.cancelled
        ) as child:
            for path in self._files():
                data = self._data(path)
                possible = self._may_match(data)
                hits = child.hits(data, self.query.limit + 1 - len(self.matches)) if possible else []
                if hits is None:
                    self.partial = (
                        f"stopped while searching {self.workspace.relative(path)!r}: {self._stop()}"
                    )
                    break
                for number, text in hits:
                    self._add({"file": self.workspace.relative(path), "line": number, "text": text})
        return self._answer()

    def _expression(self) -> str:
        pattern = self.query.pattern
        encode(pattern, "pattern")
        if self.query.regex:
            return pattern
        if "\n" in pattern:
            raise CallError(
                "Search goes line by line, so the pattern cannot span lines. Search for one line."
            )
        return re.escape(pattern)

    def _may_match(self, data: bytes) -> bool:
        """Spares the child what a look at the bytes can rule out: most files, in most searches."""
        plain = not self.query.regex and not self.query.ignore_case
        return bool(data) and (not plain or self.query.pattern.encode() in data)

    def _files(self) -> Iterator[Path]:
        """The files to look at, until enough is found or it is time to stop."""
        glob = self.query.glob
        start, readable = self.query.path, self.context.readable
        for path in self.workspace.files(start, readable, UNSEARCHED_FOLDERS, self._is_over):
            if self.partial or self._is_over():
                break
            shown_path = self.workspace.relative(path)
            if not glob or _fits(path, shown_path, glob, ignore_case=self.query.ignore_case):
                self.searched += 1
                yield path
        if not self.partial and self._is_over():
            self.partial = self._stop()

    def _is_over(self) -> bool:
        return self.context.cancelled.is_set() or time.monotonic() > self.deadline

    def _data(self, path: Path) -> bytes:
        try:
            with self.workspace.open_for_reading(path, self.context.readable) as file:
                if os.fstat(file.fileno()).st_size > SEARCHED_BYTES:
                    self.skipped[f"larger than {SEARCHED_BYTES // 1_000_000} MB"] += 1
                    return b""
                data = file.read(SEARCHED_BYTES)
        except CallError:
            self.skipped["unreadable"] += 1
            return b""
        if binary_kind(data[:SAMPLE_BYTES], path.name):
            self.skipped["binary"] += 1
            return b""
        return data

    def _add(self, match: Any) -> None:
        if len(self.matches) < self.query.limit:
            self.matches.append(match)
        else:
            self.partial = f"there are more than {self.query.limit} matches; narrow the search or raise limit"

    def _stop(self) -> str:
        """Why it ended early. Neither called off nor out of time, it was the matcher that gave up."""
        if self.context.cancelled.is_set():
            return "cancelled"
        if time.monotonic() > self.deadline:
            return f"{SEARCH_SECONDS:g} seconds were not enough; search a smaller folder or a simpler pattern"
        return (
            f"matching broke down, most likely because it needs more than {MATCHER_BYTES >> 20} MB of memory;"
            " use a simpler pattern"
        )

    def _answer(self) -> Json:
        answer: Json = {"matches": self.matches, "files_searched": self.searched - self.skipped.total()}
        if self.skipped:
            answer["files_skipped"] = dict(self.skipped)
        if self.partial:
            answer["partial"] = self.partial
        return answer


def _fits(path: Path, shown_path: str, glob: str, *, ignore_case: bool) -> bool:
    """A glob with a slash is about the path from the workspace, one without about the name."""
    name = shown_path if "/" in glob else path.name
    if ignore_case:
        name, glob = name.casefold(), glob.casefold()
    return any(fnmatch.fnmatchcase(name, each) for each in {glob, glob.replace("**/", "")})


class _Matcher:
    """A child that holds the pattern and is sent one file after the other; it is killed when time is out."""

    def __init__(self, pattern: str, ignore_case: bool, deadline: float, cancelled: threading.Event) -> None:
        self._deadline, self._cancelled = deadline, cancelled
        self._hello = {
            "pattern": pattern,
            "ignore_case": ignore_case,
            "width": HIT_CHARACTERS,
            "memory": MATCHER_BYTES,
            "seconds": int(SEARCH_SECONDS) + 1,  # an orphan ends, too
        }

    def __enter__(self) -> Self:
        self._child = subprocess.Popen(  # noqa: S603 - our own interpreter and script; the pattern is data
            [sys.executable, "-I", "-S", matcher.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        try:
            self._greet()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe:
                pipe.close()
        self._child.wait()

    def hits(self, data: bytes, most: int) -> list[tuple[int, str]] | None:
        """Line numbers and lines, at most so many; None when it ended before."""
        hits: list[tuple[int, str]] | None = self._ask(b"%d %d\n" % (len(data), most) + data)
        return hits

    def _greet(self) -> None:
        answer = self._ask(json.dumps(self._hello).encode() + b"\n")
        if answer is None:
            raise CallError("The pattern could not be prepared. Use a simpler one.")
        if "error" in answer:
            raise CallError(f"The pattern is not a valid regular expression: {answer['error']}.")

    def _ask(self, request: bytes) -> Any:
        if not self._child.stdin or not self._child.stdout:
            return None
        view = memoryview(request)
        try:
            while view:
                view = view[self._child.stdin.write(view) or 0 :]
        except BrokenPipeError:
            return None
        answer = self._line(self._child.stdout.fileno())
        return json.loads(answer) if answer else None

    def _line(self, pipe: int) -> bytes:
        received, poll = bytearray(), select.poll()
        poll.register(pipe, select.POLLIN)
        while not received.endswith(b"\n"):
            if self._cancelled.is_set() or time.monotonic() > self._deadline:
                return b""
            if poll.poll(50):
                chunk = os.read(pipe, _CHUNK)
                if not chunk:
                    return b""
                received += chunk
        return bytes(received)
