"""Measure how many ordinary pages the injection scanner marks, and how many injections it still finds.

The pages are the documentation of installed Debian packages and the descriptions of installed Python
packages; none of them is stored here. Recall is that of the results in the poison corpus of the tests.

    python benchmarks/ordinary_pages.py                    share of marked pages, recall
    python benchmarks/ordinary_pages.py --curve            the same for other values of PAGE_SCORE
    python benchmarks/ordinary_pages.py --show             which passages are marked
    python benchmarks/ordinary_pages.py --docs DIR         another directory with a subdirectory per package
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import sys
from collections.abc import Iterator
from email import message_from_string
from pathlib import Path

from toolfold.mcp.scan import file_passages
from toolfold.mcp.scan.file_passages import find_page_passages

CORPUS = Path(__file__).parents[1] / "tests" / "mcp" / "poison"
NAMES = re.compile(r"(README|NEWS|FAQ|INSTALL|HACKING|TODO|copyright|.*\.(md|rst|txt))(\..*)?", re.IGNORECASE)
MIN_CHARS, MAX_CHARS, MAX_PER_PACKAGE = 600, 40_000, 2


def read_pages(docs: Path, environments: list[Path]) -> dict[str, str]:
    """Return the texts of ordinary pages by name, without duplicates."""
    pages = {**dict(_read_docs(docs)), **dict(_read_descriptions(environments))}
    unique = {text: name for name, text in pages.items() if len(text) >= MIN_CHARS}
    return {name: text for text, name in unique.items()}


def _read_docs(docs: Path) -> Iterator[tuple[str, str]]:
    for package in sorted(path for path in docs.iterdir() if path.is_dir() and not path.is_symlink()):
        files = sorted(path for path in package.rglob("*") if path.is_file() and NAMES.fullmatch(path.name))
        for file in random.Random(package.name).sample(files, min(len(files), MAX_PER_PACKAGE)):
            data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            yield f"{package.name}/{file.name}", data.decode(errors="replace")[:MAX_CHARS]


def _read_descriptions(environments: list[Path]) -> Iterator[tuple[str, str]]:
    for environment in environments:
        for file in sorted(environment.rglob("*.dist-info/METADATA")):
            message = message_from_string(file.read_text(encoding="utf-8", errors="replace"))
            yield file.parent.name, str(message.get_payload())[:MAX_CHARS]


def read_injections() -> list[str]:
    """Return the results of the poison corpus that contain an injection."""
    lines = [line for file in sorted(CORPUS.glob("*.jsonl")) for line in file.open(encoding="utf-8")]
    cases = [json.loads(line) for line in lines]
    return [each["result"] for each in cases if each["where"] == "result" and each["expect"] == "flag"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", type=Path, default=Path("/usr/share/doc"))
    parser.add_argument("--python", type=Path, action="append", help="directory of a Python environment")
    parser.add_argument("--curve", action="store_true")
    parser.add_argument("--show", action="store_true")
    chosen = parser.parse_args()
    pages = read_pages(chosen.docs, chosen.python or [Path(sys.prefix)])
    injections = read_injections()
    print(f"{len(pages)} pages, {len(injections)} injections\nscore  pages marked  injections found")
    scores = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0) if chosen.curve else (file_passages.PAGE_SCORE,)
    for score in scores:
        file_passages.PAGE_SCORE = score
        marked = {name: found for name, text in pages.items() if (found := list(find_page_passages(text)))}
        hits = sum(any(find_page_passages(text)) for text in injections)
        print(
            f"{score:5.1f}  {len(marked):4} = {len(marked) / len(pages):5.1%}  {hits / len(injections):.2f}"
        )
    if chosen.show:
        for name, spans in marked.items():
            for start, end in spans:
                print(f"{name}: {' '.join(pages[name][start:end].split())[:200]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
