"""Training pairs of messages and the tools that answer them.

Reads folders of `catalog.jsonl[.gz]` and `queries.jsonl[.gz]`, leaves out the sets it is told to
leave out (with everything written over their tools), and draws batches that are hard on purpose:
pairs come with pairs over similar tools, so that a batch's own tools are each other's negatives.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from toolfold.selection.retrieval.document import (
    clean_text,
    query_text,
    split_identifier,
    tool_text,
    truncate_text,
)

SAMPLE = Path(__file__).resolve().parent.parent / "src" / "toolfold" / "sample"
WRITTEN = Path(__file__).resolve().parent / "written"
FOLDS: dict[str, tuple[str, ...]] = {
    "a": ("bfcl", "dust-mcp", "sealtools"),
    "b": ("acebench-en", "acebench-zh", "toolalpaca-eval", "distractors-mcp"),
    "c": ("aws-api", "metatool", "mcpproxy-golden", "distractors-google"),
}
NEVER = ("bfcl-irrelevance",)  # messages without a tool teach a retriever nothing
OPEN_LICENCES = frozenset({"MIT", "Apache-2.0", "ISC", "BSD-2-Clause", "BSD-3-Clause"})
BUCKETS = 4096
DUPLICATE = 0.85  # similarity of words from which a tool is not a negative of another one
MERGE_SHARE = 0.3  # of the pairs, with another message of the same tool
# Languages whose script the encoder's vocabulary covers; it reads the others one unknown token at a time.
LATIN_LANGUAGES = frozenset({"en", "de", "fr", "es", "pt", "it", "nl", "pl", "tr", "id", "vi"})
_WORD = re.compile(r"[^\W_]+")
_SENTENCE = re.compile(r"(?<=[.!?。])\s+")
_STOP = frozenset(
    re.findall(
        r"\w+",
        "a an the to of for in on at by with and or i me my we our you your it its is are was be can could"
        " would please that this these those do does did have has had will want need like get some from as"
        " so if just hey",
    )
)


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool of a catalog, with its source set."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    server: str
    origin: str
    open: bool = True

    def text(self) -> str:
        """Return the text that the product embeds."""
        return tool_text(self.name, self.description, self.parameters, self.server)


@dataclass(frozen=True, slots=True)
class Query:
    """A message and the tools it needs; `others` are alternatives, `weak` labels are not trained on."""

    id: str
    text: str
    gold: tuple[str, ...]
    kind: str = ""
    lang: str = "en"
    others: frozenset[str] = frozenset()
    alternatives: Mapping[str, Sequence[str]] = field(default_factory=dict)
    weak: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Bench:
    """A catalog with its messages."""

    name: str
    tools: tuple[Tool, ...]
    queries: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """A message and one tool that answers it, for training."""

    query: str
    tool: int
    answers: frozenset[int]
    group: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts to embed, and a mask of tools that must not count as negatives."""

    queries: list[str]
    tools: list[str]  # the positives, in the queries' order, then extra negatives
    masked: np.ndarray  # (queries, tools): true where a tool also answers a message
    places: list[int]  # of the tools in the sampler's list
    answers: list[frozenset[int]]  # every tool that answers a message
    merged: dict[int, str] = field(default_factory=dict)  # row of a tool -> another of its messages


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON-lines file, gzipped or not; empty if it does not exist."""
    packed = path.with_name(path.name + ".gz")
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines()
    elif packed.exists():
        lines = gzip.decompress(packed.read_bytes()).decode("utf-8").splitlines()
    else:
        return []
    return [json.loads(line) for line in lines if line.strip()]


def load_bench(folder: Path) -> Bench:
    """Load one set; `origin` is the source set of its tools."""
    tools = tuple(_parse_tool(row, folder.name) for row in read(folder / "catalog.jsonl"))
    queries = tuple(_parse_query(row) for row in read(folder / "queries.jsonl"))
    return Bench(folder.name, tools, queries)


def load(data: Path, only: Collection[str] | None = None) -> list[Bench]:
    """Load all or the named sets of a directory, or the directory itself if it is a set."""
    if list(data.glob("catalog.jsonl*")):
        return [load_bench(data)]
    folders = [folder for folder in sorted(data.iterdir()) if list(folder.glob("catalog.jsonl*"))]
    return [load_bench(folder) for folder in folders if only is None or folder.name in only]


def read_written(name: str) -> list[Query]:
    """Return the messages that were written for a set's tools."""
    rows = read(WRITTEN / f"{name}.jsonl")
    return [_parse_query({"id": str(number), **row}) for number, row in enumerate(rows)]


def add_written(bench: Bench) -> Bench:
    """Add the messages that were written for this set's tools, as kinds of their own."""
    named = (replace(query, kind=f"written-{query.kind}") for query in read_written(bench.name))
    return Bench(bench.name, bench.tools, (*bench.queries, *named))


def with_written(benches: Iterable[Bench]) -> list[Bench]:
    """Add a set `written_X` after each set X with written messages: all of them, over the same tools."""
    every = []
    for bench in benches:
        every.append(bench)
        if queries := read_written(bench.name):
            every.append(Bench(f"written_{bench.name}", bench.tools, tuple(queries)))
    return every


def split(benches: Iterable[Bench], held_out: Sequence[str]) -> list[Bench]:
    """Return the training data, without held-out or not openly licensed tools and their messages."""
    kept = []
    for bench in benches:
        if bench.name in held_out or bench.name in NEVER:
            continue
        away = {tool.name for tool in bench.tools if tool.origin in held_out or not tool.open}
        tools = tuple(tool for tool in bench.tools if tool.name not in away)
        queries = tuple(query for query in bench.queries if query.gold and not away & set(query.gold))
        kept.append(Bench(bench.name, tools, queries))
    return kept


def _parse_tool(row: Mapping[str, Any], origin: str) -> Tool:
    function, meta = row["function"], row.get("meta") or {}
    return Tool(
        name=function["name"],
        description=function.get("description") or "",
        parameters=function.get("parameters") or {},
        server=str(meta.get("server") or ""),
        origin=str(meta.get("set") or origin),
        open="licence" not in meta or meta["licence"] in OPEN_LICENCES,
    )


def _parse_query(row: Mapping[str, Any]) -> Query:
    also = row.get("alternatives") or {}
    by_gold = also if isinstance(also, dict) else dict.fromkeys(row["gold"], also)
    others = frozenset(name for names in by_gold.values() for name in names)
    grades = row.get("grades") or {}
    gold = tuple(name for name in row["gold"] if grades.get(name, 1) > 0)
    return Query(
        str(row["id"]), row["query"], gold, row.get("kind", ""), row.get("lang", "en"), others, by_gold
    )


class Fingerprints:
    """Hashed tf-idf of tool texts, to find similar tools and near-duplicates."""

    def __init__(self, texts: Sequence[str]) -> None:
        counts = np.zeros((len(texts), BUCKETS), np.float32)
        for row, text in enumerate(texts):
            for word in _WORD.findall(text.lower()):
                counts[row, zlib.crc32(word.encode()) % BUCKETS] += 1
        rarity = np.log((1 + len(texts)) / (1 + (counts > 0).sum(0)))
        weighed = np.log1p(counts) * rarity.astype(np.float32)
        self.rows = weighed / np.maximum(np.linalg.norm(weighed, axis=1, keepdims=True), 1e-6)

    def neighbours(self, places: Sequence[int], among: Sequence[int], count: int) -> dict[int, list[int]]:
        """Return the nearest neighbours of each tool, without near-duplicates."""
        pool = np.asarray(among)
        near: dict[int, list[int]] = {}
        for start in range(0, len(places), 512):
            block = list(places[start : start + 512])
            likeness = self.rows[block] @ self.rows[pool].T
            likeness[likeness > 0.9] = -1
            for place, row in zip(block, likeness, strict=True):
                best = np.argpartition(-row, min(count, len(row) - 1))[:count]
                near[place] = [int(pool[other]) for other in best if row[other] > 0.05]
        return near


class Sampler:
    """Endless source of batches, deterministic for a seed."""

    def __init__(
        self,
        benches: Sequence[Bench],
        seed: int,
        synthetic: float = 0.2,
        languages: Collection[str] | None = None,
    ) -> None:
        """Prepare the pairs; of messages in `languages` only, if given, drawn by kind instead of language."""
        self._random = random.Random(seed)
        self._synthetic = synthetic
        self._languages = languages
        self.tools: list[Tool] = []
        self._pairs: dict[str, list[Pair]] = defaultdict(list)
        self._by_tool: dict[int, list[Pair]] = defaultdict(list)
        self._catalogs: dict[str, list[int]] = {}
        for bench in benches:
            self._add_bench(bench)
        self._fingerprints = Fingerprints([tool.text() for tool in self.tools])
        self._mine_negatives()
        self._weights = {group: len(pairs) ** 0.5 for group, pairs in self._pairs.items()}

    def pairs(self) -> list[Pair]:
        """Return all labelled pairs."""
        return [pair for group in self._pairs.values() for pair in group]

    def sample_catalogs(self, max_tools: int) -> list[list[int]]:
        """Return the tools of each catalog; of larger ones a sample that prefers tools with messages."""
        kept = []
        for catalog in self._catalogs.values():
            labelled = [tool for tool in catalog if tool in self._by_tool]
            others = [tool for tool in catalog if tool not in self._by_tool]
            self._random.shuffle(labelled)
            self._random.shuffle(others)
            kept.append([*labelled, *others][:max_tools])
        return kept

    def similarity(self, places: Sequence[int], others: Sequence[int]) -> np.ndarray:
        """Return the similarity of tools' words, to recognise near-duplicates."""
        prints = self._fingerprints.rows
        return prints[np.asarray(places)] @ prints[np.asarray(others)].T

    def batches(self, size: int, negatives: int) -> Iterator[Batch]:
        """Yield batches of `size` pairs with `negatives` unrelated tools."""
        while True:
            pairs: dict[int, Pair] = {}
            while len(pairs) < size:
                for pair in self._draw_cluster():
                    pairs.setdefault(pair.tool, pair)
            chosen = list(pairs.values())[:size]
            yield self._make_batch(chosen, self._draw_negatives(chosen, negatives))

    def _add_bench(self, bench: Bench) -> None:
        first = len(self.tools)
        place = {tool.name: first + offset for offset, tool in enumerate(bench.tools)}
        self.tools.extend(bench.tools)
        self._catalogs[bench.name] = list(place.values())
        for query in bench.queries:
            if self._languages is not None and query.lang not in self._languages:
                continue
            known = [place[name] for name in query.gold if name in place and name not in query.weak]
            answers = frozenset(known) | {place[name] for name in query.others if name in place}
            group = f"{bench.name}:{_speaker_of(query) if self._languages is None else query.kind}"
            for tool in known:
                pair = Pair(query.text, tool, answers, group)
                self._pairs[group].append(pair)
                self._by_tool[tool].append(pair)

    def _mine_negatives(self) -> None:
        self._near: dict[int, list[int]] = {}
        self._hard: dict[int, list[int]] = {}
        for catalog in self._catalogs.values():
            labelled = [tool for tool in catalog if tool in self._by_tool]
            if labelled:
                self._near |= self._fingerprints.neighbours(labelled, labelled, 12)
                self._hard |= self._fingerprints.neighbours(labelled, catalog, 24)

    def _draw_cluster(self) -> list[Pair]:
        """Draw a pair with up to three pairs of similar tools, or a synthetic pair."""
        if self._random.random() < self._synthetic or not self._pairs:
            return [self._make_synthetic_pair()]
        groups = list(self._weights)
        group = self._random.choices(groups, [self._weights[name] for name in groups])[0]
        seed = self._random.choice(self._pairs[group])
        near = self._near.get(seed.tool, [])
        mates = self._random.sample(near, min(3, len(near)))
        return [seed, *(self._random.choice(self._by_tool[tool]) for tool in mates)]

    def _make_synthetic_pair(self) -> Pair:
        catalogs = list(self._catalogs)
        weights = [len(self._catalogs[name]) ** 0.5 for name in catalogs]
        tool = self._random.choice(self._catalogs[self._random.choices(catalogs, weights)[0]])
        query = made_up_query(self.tools[tool], self._random)
        return Pair(query, tool, frozenset({tool}), "made-up")

    def _draw_negatives(self, pairs: Sequence[Pair], count: int) -> list[int]:
        answers = {tool for pair in pairs for tool in pair.answers} | {pair.tool for pair in pairs}
        extra: dict[int, None] = {}
        for pair in self._random.sample(list(pairs), len(pairs)):
            hard = [tool for tool in self._hard.get(pair.tool, []) if tool not in answers]
            if hard and len(extra) < count:
                extra[self._random.choice(hard)] = None
        return list(extra)

    def _make_batch(self, pairs: Sequence[Pair], extra: Sequence[int]) -> Batch:
        places = [pair.tool for pair in pairs] + list(extra)
        prints = self._fingerprints.rows[places]
        masked = (prints[: len(pairs)] @ prints.T) > DUPLICATE
        for row, pair in enumerate(pairs):
            masked[row] |= np.fromiter((place in pair.answers for place in places), bool, len(places))
            masked[row, row] = False
        queries = [query_text(vary_query(pair.query, self._random)) for pair in pairs]
        tools = [vary_tool(self.tools[place], self._random) for place in places]
        answers = [pair.answers for pair in pairs]
        return Batch(queries, tools, masked, places, answers, self._draw_merged(pairs))

    def _draw_merged(self, pairs: Sequence[Pair]) -> dict[int, str]:
        """Draw another message for some of the tools, as enrichment or use would add it."""
        merged = {}
        for row, pair in enumerate(pairs):
            others = [other.query for other in self._by_tool.get(pair.tool, ()) if other.query != pair.query]
            if others and self._random.random() < MERGE_SHARE:
                merged[row] = query_text(self._random.choice(others))
        return merged


def _speaker_of(query: Query) -> str:
    return query.lang if query.kind == "lang" else query.kind


def made_up_query(tool: Tool, chance: random.Random) -> str:
    """Generate a short message for a tool without labelled messages."""
    name = split_identifier(tool.name).lower()
    first = _SENTENCE.split(clean_text(tool.description[:1200]))[0][:200] or name
    words = [word for word in _WORD.findall(first.lower()) if word not in _STOP and len(word) > 2]
    kind = chance.random()
    if kind < 0.35 or len(words) < 3:
        return first
    if kind < 0.7:
        kept = sorted(chance.sample(range(len(words)), min(len(words), chance.randint(2, 5))))
        return " ".join(words[place] for place in kept)
    tail = " ".join(chance.sample(words, min(2, len(words))))
    return f"{' '.join(name.split()[-4:])} {tail}"


def vary_query(text: str, chance: random.Random) -> str:
    """Return the message, sometimes shortened, truncated or with typing errors."""
    kind = chance.random()
    if kind < 0.66:
        return text
    if kind < 0.78:
        return with_typos(text, chance)
    if kind < 0.86:
        kept = [word for word in text.split() if word.lower().strip(",.?!") not in _STOP]
        return " ".join(kept) or text
    if kind < 0.94:
        return text.lower().rstrip(".?!")
    return truncate_text(text, max(40, len(text) * 2 // 3))


def with_typos(text: str, chance: random.Random) -> str:
    """Add typing errors to one or two words."""
    words = text.split(" ")
    for _ in range(chance.randint(1, 2)):
        place = chance.randrange(len(words))
        word = words[place]
        if len(word) > 3 and word.isalpha():
            at = chance.randrange(1, len(word) - 1)
            slip = chance.choice((word[at + 1] + word[at], "", word[at] * 2))
            words[place] = word[:at] + slip + word[at + (2 if len(slip) == 2 and slip[0] != slip[1] else 1) :]
    return " ".join(words)


def vary_tool(tool: Tool, chance: random.Random) -> str:
    """Return the tool's text, sometimes without server, parameters or most of the description."""
    server = tool.server if chance.random() < 0.7 else ""
    parameters = tool.parameters if chance.random() < 0.75 else {}
    name, description, kind = tool.name, tool.description, chance.random()
    if kind < 0.12:
        description = _SENTENCE.split(description)[0]
    elif kind < 0.17 and len(split_identifier(name).split()) > 2:
        description = ""
    elif kind < 0.22 and len(description) > 40:
        name = ""
    return tool_text(name, description, parameters, server)
