"""The child that runs a model's pattern: started by its path, alone, and killed when it takes too long.

Imports nothing of the project, because it runs without it. Reads a request and then one file after the
other; answers each with one line of JSON. Out of memory it just ends: whoever asked sees that.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, BinaryIO


def main(source: BinaryIO) -> None:
    """Compile the pattern of the first line, then look for it in all that follows."""
    request = json.loads(source.readline())
    _limit(resource.RLIMIT_CPU, request["seconds"])
    _limit(resource.RLIMIT_AS, request["memory"])
    try:
        pattern = re.compile(request["pattern"], re.IGNORECASE if request["ignore_case"] else 0)
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        _answer({"error": str(error) or type(error).__name__})
        return
    _answer({})
    for header in iter(source.readline, b""):
        size, most = map(int, header.split())
        text = source.read(size).decode("utf-8-sig", "replace")
        _answer(list(islice(_hits(pattern, text, request["width"]), most)))


def _limit(kind: int, most: int) -> None:
    soft, hard = resource.getrlimit(kind)
    bound = min(each for each in (most, soft, hard) if each != resource.RLIM_INFINITY)
    with suppress(ValueError):  # macOS refuses to limit memory; the time limit has to do there
        resource.setrlimit(kind, (bound, bound))


def _hits(pattern: re.Pattern[str], text: str, width: int) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        match = pattern.search(line.removesuffix("\r"))
        if match:
            yield number, _cut(line, match.start(), width)


def _cut(line: str, at: int, width: int) -> str:
    start = max(0, min(at - width // 3, len(line) - width))
    end = start + width
    return ("…" if start else "") + line[start:end].rstrip() + ("…" if end < len(line) else "")


def _answer(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer)
