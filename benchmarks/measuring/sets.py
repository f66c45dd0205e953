"""Benchmark data: catalogs and labelled messages, optionally with distractors or scaled to a size.

Reads folders of `catalog.jsonl[.gz]` and `queries.jsonl[.gz]`; without a folder there is one set, the sample
catalog. Every catalog that is measured is first written to one file, which all systems then read.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from toolfold.core.jsonlines import read_json_lines
from toolfold.selection.retrieval.ranking_metrics import Query, load_queries

SAMPLE = "sample"
SEED = 7
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """Messages and the catalog they are searched in."""

    name: str
    distractors: tuple[str, ...]
    catalog: Path
    tools: int
    queries: tuple[Query, ...]
    origins: Mapping[str, str]
    """Source set of each tool, for a set composed of others."""

    @property
    def label(self) -> str:
        return "+".join((self.name, *self.distractors))


class Sets:
    """Data sets of a directory, and the sample catalog."""

    def __init__(self, data: Path | None, work: Path) -> None:
        self._data, self._work = data, work
        self._queries: dict[str, list[Query]] = {}
        work.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """Return the data sets with messages that need a tool; the sample catalog is last."""
        found = [folder.name for folder in self._set_directories() if _find_file(folder, "queries.jsonl")]
        return [*(name for name in found if any(query.gold for query in self.queries(name))), SAMPLE]

    def catalogs(self) -> list[str]:
        """Return the names of all data sets, with or without messages."""
        return [*(folder.name for folder in self._set_directories()), SAMPLE]

    def queries(self, name: str) -> list[Query]:
        """Return all messages of a set, including those that need no tool."""
        if name not in self._queries:
            file = _find_file(self._set_directory(name), "queries.jsonl")
            self._queries[name] = load_queries(file) if file else []
        return self._queries[name]

    def rows(self, name: str) -> list[Row]:
        """Return the rows of a set's catalog."""
        file = _find_file(self._set_directory(name), "catalog.jsonl")
        if file is None:
            raise SystemExit(f"there is no catalog {name!r} in {self._data}")
        return read_json_lines(file, dict, what="a catalog")

    def task(
        self,
        name: str,
        limit: int,
        distractors: Sequence[str] = (),
        *,
        only: Collection[str] | None = None,
    ) -> Task:
        """Return a data set's messages, with its own tools and distractors from other catalogs.

        `only` reduces the set to these tools and to messages that need no other tool.
        """
        rows = distinct(row for each in (name, *distractors) for row in self.rows(each))
        queries = [query for query in self.queries(name) if query.gold]
        if only is not None:
            rows = [row for row in rows if tool_name(row) in only]
            queries = [query for query in queries if set(query.gold) <= set(only)]
        origins = {tool_name(row): str((row.get("meta") or {}).get("set") or "") for row in rows}
        label = "+".join((name, *distractors))
        if only is not None:
            label += f"-{len(rows)}-tools"  # another benchmark may use the whole set at the same time
        return Task(
            name=name,
            distractors=tuple(distractors),
            catalog=self.write(label, rows),
            tools=len(rows),
            queries=tuple(sampled(queries, limit)),
            origins={tool: origin for tool, origin in origins.items() if origin},
        )

    def write(self, label: str, rows: Iterable[Row]) -> Path:
        """Write a catalog file that every system can read."""
        file = self._work / f"{label}.catalog.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return file

    def of_size(self, size: int) -> Path:
        """Return a catalog of `size` real tools, with renamed copies if there are too few."""
        if size <= len(self.rows(SAMPLE)):
            return self.write(f"{size}-tools", self.rows(SAMPLE)[:size])
        rows = distinct(row for name in self.catalogs() for row in self.rows(name))
        random.Random(SEED).shuffle(rows)
        return self.write(f"{size}-tools", [_make_copy(rows, number) for number in range(size)])

    def messages(self, size: int, count: int) -> list[Query]:
        """Return messages from all data sets, for time measurements."""
        names = [SAMPLE] if size <= len(self.rows(SAMPLE)) else self.names()
        mixed = [query for name in names for query in self.queries(name) if query.gold]
        return sampled([replace(query, id=str(number)) for number, query in enumerate(mixed)], count)

    def _set_directories(self) -> list[Path]:
        if self._data is None:
            return []
        return [folder for folder in sorted(self._data.iterdir()) if _find_file(folder, "catalog.jsonl")]

    def _set_directory(self, name: str) -> Path:
        if name == SAMPLE or self._data is None:
            return Path(str(files("toolfold").joinpath("tools/sample")))
        return self._data / name


def tool_name(row: Row) -> str:
    return str(row["function"]["name"])


def distinct(rows: Iterable[Row]) -> list[Row]:
    """Return the first row of each tool name."""
    return list({tool_name(row): row for row in reversed(list(rows))}.values())[::-1]


def sampled(queries: Sequence[Query], limit: int) -> list[Query]:
    """Return all messages if they are few enough, else a fixed random sample."""
    return list(queries) if len(queries) <= limit else random.Random(SEED).sample(list(queries), limit)


def _make_copy(rows: Sequence[Row], number: int) -> Row:
    row, copy = rows[number % len(rows)], number // len(rows)
    if not copy:
        return row
    return {**row, "function": {**row["function"], "name": f"{tool_name(row)}_{copy}"}}


def _find_file(folder: Path, name: str) -> Path | None:
    both = (folder / name, folder / f"{name}.gz")
    return next((file for file in both if file.is_file()), None)
