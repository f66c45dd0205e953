"""Compares the public API with `docs/api.txt`, so that it changes only on purpose.

python scripts/public_api.py            fail where they differ
python scripts/public_api.py --write    accept the API as it is now
"""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import toolfold

RECORD = Path(__file__).parent.parent / "docs" / "api.txt"


def describe() -> Iterator[str]:
    """One line a public name, and one for each public method."""
    for name in toolfold.__all__:
        value = getattr(toolfold, name)
        if not inspect.isclass(value):
            yield f"{name}{inspect.signature(value)}"
            continue
        yield f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"
        yield from sorted(f"    {line}" for line in members(value))


def members(cls: type) -> Iterator[str]:
    """What a class shows of itself: its fields, its public methods, and how it is made."""
    for name, kind in vars(cls).get("__annotations__", {}).items():
        if not name.startswith("_"):
            yield f"{name}: {kind}"
    for name, value in vars(cls).items():
        if name != "__init__" and name.startswith(("_", "model_")):
            continue
        function = inspect.unwrap(value) if callable(value) else value
        if inspect.isfunction(function):
            yield f"{name}{inspect.signature(function)}"
        elif name not in vars(cls).get("__annotations__", {}):
            yield name


def main() -> int:
    now = "\n".join(describe()) + "\n"
    if "--write" in sys.argv:
        RECORD.write_text(now, encoding="utf-8")
        return 0
    recorded = RECORD.read_text(encoding="utf-8") if RECORD.exists() else ""
    if now == recorded:
        print(f"the public API is as recorded: {len(toolfold.__all__)} names")
        return 0
    sys.stdout.writelines(
        f"{line}\n"
        for line in difflib.unified_diff(
            recorded.splitlines(), now.splitlines(), "recorded", "now", lineterm=""
        )
    )
    print("the public API changed; if that is meant: python scripts/public_api.py --write")
    return 1


if __name__ == "__main__":
    sys.exit(main())
