"""Draws docstrings, test names and messages at random, for a review of their wording.

    python scripts/sample_wording.py [--seed 15] [--count 40]

The same seed draws the same lines from the same source, so that readers can compare their ratings.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIN_MESSAGE_CHARS = 25


def parse_sources(folder: str) -> Iterator[tuple[Path, ast.Module]]:
    """Yield every module below a directory with its syntax tree."""
    for file in sorted((ROOT / folder).rglob("*.py")):
        yield file, ast.parse(file.read_text(encoding="utf-8"))


def find_docstrings() -> Iterator[str]:
    """Yield the first line of every docstring in src."""
    for file, tree in parse_sources("src"):
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
                text = ast.get_docstring(node)
                if text:
                    name = getattr(node, "name", file.name)
                    yield f"{file.relative_to(ROOT)} {name}: {text.splitlines()[0]}"


def find_test_names() -> Iterator[str]:
    """Yield the name of every test."""
    for file, tree in parse_sources("tests"):
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                yield f"{file.relative_to(ROOT)} {node.name}"


def find_messages() -> Iterator[str]:
    """Yield help texts, and the texts of errors and log messages."""
    for file, tree in parse_sources("src"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                for text in _texts_of_call(node):
                    yield f"{file.relative_to(ROOT)}: {text}"


def _texts_of_call(node: ast.Call) -> Iterator[str]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    is_error = name.endswith(("Error", "Refused", "Failed", "Misuse")) or name in ("warning", "error", "info")
    candidates = [each.value for each in node.keywords if each.arg in ("help", "hint", "description")]
    candidates += node.args[:1] if is_error else []
    for each in candidates:
        text = _read_text(each)
        if len(text) >= MIN_MESSAGE_CHARS and " " in text:
            yield text


def _read_text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_read_text(part) if isinstance(part, ast.Constant) else "{…}" for part in node.values)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=15, help="Random seed.")
    parser.add_argument("--count", type=int, default=40, help="Lines to draw of each kind.")
    options = parser.parse_args()
    for title, find in (
        ("docstrings", find_docstrings),
        ("test names", find_test_names),
        ("messages", find_messages),
    ):
        lines = sorted(find())
        print(f"# {title} ({len(lines):,} in all)")
        for number, line in enumerate(random.Random(options.seed).sample(lines, options.count), 1):
            print(f"{number:2}. {' '.join(line.split())}")
        print()


if __name__ == "__main__":
    main()
