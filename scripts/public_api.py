"""Compare the public API with `docs/api.txt`, so that it does not change by accident.

python scripts/public_api.py            fail if they differ
python scripts/public_api.py --write    record the current API
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
    """Yield one line per public name and one per public member of a class."""
    for name in toolfold.__all__:
        value = getattr(toolfold, name)
        if not inspect.isclass(value):
            yield f"{name}{inspect.signature(value)}"
            continue
        yield f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"
        yield from sorted(f"    {line}" for line in members(value))


def members(cls: type) -> Iterator[str]:
    """Yield the fields, the public methods and the constructor of a class."""
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
        print(f"the public API matches docs/api.txt: {len(toolfold.__all__)} names")
        return 0
    sys.stdout.writelines(
        f"{line}\n"
        for line in difflib.unified_diff(
            recorded.splitlines(), now.splitlines(), "recorded", "now", lineterm=""
        )
    )
    print("the public API differs from docs/api.txt; to record it: python scripts/public_api.py --write")
    return 1


if __name__ == "__main__":
    sys.exit(main())
