"""Count the structure of the source tree, and compare it with its budgets.

    python scripts/structure.py [--check] [--packages]

Large modules, modules with one user and equal names make a system hard to own. `--check` fails if a budget
is exceeded.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
LONG_MODULE_LINES = 600


@dataclass(frozen=True, slots=True)
class Row:
    """One figure and the highest value that is wanted."""

    label: str
    value: int
    budget: int


def count_lines(folder: Path) -> int:
    return sum(len(file.read_bytes().splitlines()) for file in folder.rglob("*.py"))


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


def imported_names(file: Path) -> Iterator[str]:
    """Yield the dotted names that a module imports; a name of a package may be one of its modules."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def measure() -> list[Row]:
    """Return all figures of the tree."""
    modules = {module_name(file): file for file in SRC.rglob("*.py")}
    own = {name for name, file in modules.items() if file.stem not in ("__init__", "__main__")}
    importers: dict[str, set[str]] = defaultdict(set)
    for name, file in modules.items():
        for target in imported_names(file):
            if target in own and target != name:
                importers[target].add(name)
    single = sum(len(importers[name]) == 1 for name in own)
    names = Counter(modules[name].name for name in own)
    long_modules = sum(len(modules[name].read_bytes().splitlines()) > LONG_MODULE_LINES for name in own)
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in (ROOT / "docs").rglob("*.md"))
    return [
        Row("packages of src/toolfold", len(list_packages()), 12),
        Row("lines of src/toolfold", count_lines(SRC / "toolfold"), 90_000),
        Row("lines of src/shellverdict", count_lines(SRC / "shellverdict"), 20_000),
        Row("lines of tests", count_lines(ROOT / "tests"), 92_000),
        Row("words in docs", words, 45_000),
        Row("modules with one importer, %", round(100 * single / len(own)), 20),
        Row("base names used more than once", sum(count > 1 for count in names.values()), 8),
        Row(f"modules over {LONG_MODULE_LINES} lines", long_modules, 3),
    ]


def list_packages() -> list[Path]:
    """Return the top-level entries of `src/toolfold`."""
    files = ("__init__.py", "__main__.py", "py.typed", "__pycache__")
    entries = (each for each in (SRC / "toolfold").iterdir() if each.name not in files)
    return sorted(each for each in entries if each.is_file() or any(each.rglob("*.py")))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="fail if a budget is exceeded")
    parser.add_argument("--packages", action="store_true", help="also count the lines of each package")
    options = parser.parse_args()
    rows = measure()
    for row in rows:
        note = "  over" if row.value > row.budget else ""
        print(f"{row.label:32} {row.value:>9,}  budget {row.budget:>7,}{note}")
    if options.packages:
        for package in list_packages():
            print(f"  {package.name:30} {count_lines(package):>9,}")
    if options.check and any(row.value > row.budget for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
