"""Child process that runs a regular expression from a model, so that a timeout can kill it.

Runs as a script without the project and so imports nothing of it. Reads a request and then one file after
another; answers each with one line of JSON. Exits when it runs out of memory, which the parent notices.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, BinaryIO


def main(source: BinaryIO) -> None:
    """Compile the regular expression in the first input line, then search each following file."""
    request = json.loads(source.readline())
    _limit_resources(request["seconds"], request["memory"])
    try:
        pattern = re.compile(request["pattern"], re.IGNORECASE if request["ignore_case"] else 0)
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        _write_answer({"error": str(error) or type(error).__name__})
        return
    _write_answer({})
    for header in iter(source.readline, b""):
        size, max_hits = map(int, header.split())
        text = source.read(size).decode("utf-8-sig", "replace")
        _write_answer(list(islice(_find_hits(pattern, text, request["width"]), max_hits)))


def _limit_resources(seconds: int, memory: int) -> None:
    try:
        import resource
    except ModuleNotFoundError:  # Windows: the parent kills this process in time
        return
    for kind, limit in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, memory)):
        soft, hard = resource.getrlimit(kind)
        bound = min(each for each in (limit, soft, hard) if each != resource.RLIM_INFINITY)
        with suppress(ValueError):  # macOS cannot limit memory; the time limit must suffice there
            resource.setrlimit(kind, (bound, bound))


def _find_hits(pattern: re.Pattern[str], text: str, width: int) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        match = pattern.search(line.removesuffix("\r"))
        if match:
            yield number, _excerpt_line(line, match.start(), width)


def _excerpt_line(line: str, at: int, width: int) -> str:
    start = max(0, min(at - width // 3, len(line) - width))
    end = start + width
    return ("…" if start else "") + line[start:end].rstrip() + ("…" if end < len(line) else "")


def _write_answer(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer)
