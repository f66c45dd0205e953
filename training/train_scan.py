"""Train the sentence classifier of the scanner for server texts.

    python train_scan.py --data ../../shared/bench --real ../../shared/mcp --out classifier.arrays
    python train_scan.py ... --folds     # held-out figures: trained without a file, judged on it

Two logistic regressions, whose outcomes are added: over what `toolfold.mcp.scan` reads of a sentence,
and over what the encoder makes of it. Of a poisoned text nobody says which sentence it is: the one that leans
furthest counts, anew in each round. Sentences of tools, of manuals and of harmless look-alikes stand against
them. The real tools that false alarms are counted on are left out of the training, and every text that they
share with a catalog is too. The held half of the corpus is never opened. Fixed seeds; about ten minutes on a
core.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import random
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from toolfold.mcp.scan.classifier import HASH_BITS, LENGTH_EXPONENT, Features, embed_sentence
from toolfold.mcp.scan.injection import (
    _RULES,
    MIN_SCORE_FOR_EMBEDDING,
    WEIGHT_THRESHOLD,
    EmbeddingBudget,
    TextContext,
    iter_features,
)
from toolfold.mcp.scan.scanner import (
    _build_context,
    _collect_neighbours,
    _iter_json_texts,
    _iter_texts,
)
from toolfold.mcp.scan.vocabulary import load_phrases
from toolfold.mcp.tool_listing import parse_tool
from toolfold.selection.retrieval.weight_files import save_arrays

from data import OPEN_LICENCES

HERE = Path(__file__).resolve().parent
SEEN = HERE.parent / "tests" / "mcp" / "poison" / "seen.jsonl"
JUDGED_OTHERWISE = frozenset(
    {"change", "change-equal", "name", "benign-name", "hidden", "annotations", "benign-annotations"}
)
LIKE_SERVERS = frozenset({"distractors-mcp", "dust-mcp", "mcpproxy-golden", "authored"})
GROUPS = sorted(load_phrases())
FACTS = 8
SCALES = {"pieces": 0.12, "alone": 0.7, "paired": 0.4, "signs": 0.7, "facts": 0.7}
ROUNDS = 3
EVERY = 6  # of the windows of ordinary texts, the meaning of one in so many is read
STRENGTH = 0.003  # of the judge of meanings
ALARMS = 8, 10, 13, 16  # real tools
RESULT_LIMITS = 0.5, 0.0, -0.5, -1.0
HARD = 2.0  # what a sentence of a harmless look-alike counts
_PLACE = {group: place for place, group in enumerate(GROUPS)}


@dataclass(frozen=True, slots=True)
class Text:
    """One tool, or one text of a tool, with its labels."""

    origin: str
    label: int
    parts: tuple[tuple[str, TextContext], ...]

    @property
    def is_result(self) -> bool:
        return self.parts[0][1].is_result


@dataclass(slots=True)
class Table:
    """Feature rows of the windows of many texts."""

    texts: list[Text]
    rows: sp.csr_matrix | np.ndarray
    owner: np.ndarray
    words: list[str]
    ruled: np.ndarray

    def best(self, leaning: np.ndarray) -> np.ndarray:
        """Return the score of each text: the maximum of its windows."""
        found = np.full(len(self.texts), -99.0)
        np.maximum.at(found, self.owner, leaning)
        return found

    def heavy(self) -> np.ndarray:
        found = np.zeros(len(self.texts), bool)
        np.logical_or.at(found, self.owner, self.ruled)
        return found


def attacks(name: str) -> Iterator[Text]:
    for line in (HERE / "attacks" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        where = case["where"]
        context = TextContext(
            is_result=where == "result", is_parameter=where not in ("result", "description")
        )
        yield Text(name, int(case["label"]), ((case["text"], context),))


def seen() -> Iterator[Text]:
    for line in SEEN.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if case["kind"] in JUDGED_OTHERWISE:
            continue
        label = int(case["expect"] == "flag")
        if case["where"] == "result":
            yield Text("seen", label, ((case["result"], TextContext(is_result=True)),))
        else:
            yield Text("seen", label, tuple(_tool_texts(case["tool"])))


def real(folder: Path) -> Iterator[Text]:
    for file in sorted(folder.glob("*.json")):
        for tool in json.loads(file.read_text(encoding="utf-8"))["tools"]:
            yield Text(f"{file.stem} {tool['name']}", 0, tuple(_tool_texts(tool)))


def _tool_texts(tool: Any) -> Iterator[tuple[str, TextContext]]:
    offer = parse_tool(tool)
    context = _build_context(offer, _collect_neighbours("server", {}), EmbeddingBudget())
    on_values = TextContext(is_parameter=True, topic_words=context.topic_words, parameters=context.parameters)
    for where, text, is_value in _iter_texts(offer):
        if where != "name" and " " in text:
            yield text, on_values if is_value else context


def catalogs(folder: Path, without: frozenset[str]) -> Iterator[Text]:
    chance = random.Random(1)
    for file in sorted(folder.glob("*/catalog.jsonl.gz")):
        origin = file.parent.name
        rows = gzip.decompress(file.read_bytes()).decode().splitlines()
        for row in chance.sample(rows, min(len(rows), 1600 if origin in LIKE_SERVERS else 350)):
            tool = json.loads(row)
            meta = tool.get("meta") or {}
            if meta.get("licence", "MIT") not in OPEN_LICENCES:
                continue
            said = tool["function"]
            parts = [(said.get("description") or "", TextContext())]
            found = _iter_json_texts("", said.get("parameters") or {})
            parts += [(text, TextContext(is_parameter=True)) for _, text, _ in found if " " in text][:12]
            kept = tuple(part for part in parts if part[0] and part[0] not in without)
            yield Text(origin, 0, kept)


def manuals(most: int = 3000) -> Iterator[Text]:
    """Return docstrings of installed packages, as technical prose."""
    site, standard = Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("stdlib"))
    chance = random.Random(3)
    files = sorted(
        file for folder in (site, standard) for file in folder.glob("*/*.py") if "test" not in str(file)
    )
    texts = [said for file in chance.sample(files, min(len(files), 1200)) for said in _read_docstrings(file)]
    for file in sorted(site.glob("*.dist-info/METADATA")):
        body = file.read_text(encoding="utf-8", errors="replace").partition("\n\n")[2]
        texts += [part[:1500] for part in body.split("\n## ") if 80 < len(part) < 3000]
    for text in chance.sample(texts, min(len(texts), most)):
        yield Text("manuals", 0, ((text, TextContext()),))


def _read_docstrings(file: Path) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef | ast.Module):
            said = ast.get_docstring(node) or ""
            if said.count(" ") > 12:
                yield said[:1500]


def table(texts: Iterable[Text]) -> Table:
    kept = [text for text in texts if text.parts]
    owner: list[int] = []
    words: list[str] = []
    found: list[Features] = []
    for place, text in enumerate(kept):
        for part, context in text.parts:
            for said, features in iter_features(part[:20_000], context):
                owner.append(place)
                words.append(said)
                found.append(features)
    ruled = np.array([features.context_values[0] >= WEIGHT_THRESHOLD for features in found], bool)
    return Table(kept, _feature_matrix(found), np.array(owner), words, ruled)


def meanings(of: Table, every: int = 1) -> Table:
    """Return encoder vectors of the windows, or of a regular sample of them."""
    places = np.arange(0, len(of.words), every)
    rows = np.array([embed_sentence(of.words[place]) for place in places], np.float32)
    return Table(of.texts, rows, of.owner[places], [of.words[place] for place in places], of.ruled[places])


def _feature_matrix(found: Sequence[Features]) -> sp.csr_matrix:
    pieces = _sparse_matrix(
        [(features.piece_indices, len(features.piece_indices) ** -LENGTH_EXPONENT) for features in found],
        1 << HASH_BITS,
    )
    groups = [np.array(sorted(_PLACE[group] for group in features.groups), int) for features in found]
    pairs = [
        np.array([a * len(GROUPS) + b for at, a in enumerate(each) for b in each[at + 1 :]], int)
        for each in groups
    ]
    return sp.hstack(
        [
            pieces * SCALES["pieces"],
            _sparse_matrix([(each, 1.0) for each in groups], len(GROUPS)) * SCALES["alone"],
            _sparse_matrix([(each, 1.0) for each in pairs], len(GROUPS) ** 2) * SCALES["paired"],
            sp.csr_matrix(np.array([features.rule_weights for features in found], np.float32))
            * SCALES["signs"],
            sp.csr_matrix(np.array([features.context_values for features in found], np.float32))
            * SCALES["facts"],
        ]
    ).tocsr()


def _sparse_matrix(rows: Sequence[tuple[np.ndarray, float]], width: int) -> sp.csr_matrix:
    starts = np.cumsum([0, *(len(places) for places, _ in rows)])
    values = np.concatenate([np.full(len(places), value, np.float32) for places, value in rows])
    made = sp.csr_matrix(
        (values, np.concatenate([places for places, _ in rows]), starts), shape=(len(rows), width)
    )
    made.sum_duplicates()
    return made


def trained(
    poisoned: Sequence[Table], ordinary: Sequence[Table], strength: float, plain: float
) -> LogisticRegression:
    """A judge: of each poisoned text the window that leans furthest, and all windows of the others.

    `plain` is what a window of an ordinary text counts.
    """
    rows, against = _stack_tables(poisoned), _stack_tables(ordinary)
    label = np.concatenate([[each.texts[place].label for place in each.owner] for each in poisoned])
    owner = np.unique(
        np.concatenate([each.owner + 100_000 * number for number, each in enumerate(poisoned)]),
        return_inverse=True,
    )[1]
    counts = np.where(label == 1, 8 / np.bincount(owner)[owner], HARD)
    for turn in range(ROUNDS):
        used = counts > 0
        judge = LogisticRegression(C=strength, max_iter=60 if turn < ROUNDS - 1 else 200, tol=1e-3)
        judge.fit(
            _stack_rows([rows[used], against]),
            np.concatenate([label[used], np.zeros(against.shape[0])]),
            sample_weight=np.concatenate([counts[used], np.full(against.shape[0], plain)]),
        )
        leaning = judge.decision_function(rows)
        furthest = np.full(owner.max() + 1, -99.0)
        np.maximum.at(furthest, owner, leaning)
        counts = np.where(label == 1, 4.0 * (leaning >= furthest[owner] - 0.3), HARD)
    return judge


def _stack_tables(tables: Sequence[Table]) -> sp.csr_matrix | np.ndarray:
    return _stack_rows([each.rows for each in tables])


def _stack_rows(parts: Sequence[sp.csr_matrix | np.ndarray]) -> sp.csr_matrix | np.ndarray:
    return np.vstack(parts) if isinstance(parts[0], np.ndarray) else sp.vstack(parts).tocsr()


@dataclass(frozen=True, slots=True)
class Judges:
    """Word-based and embedding-based classifiers combined."""

    words: LogisticRegression
    meaning: LogisticRegression
    middle: np.ndarray
    spread: np.ndarray

    def leaning(self, on: Read) -> np.ndarray:
        """Return the score of each window; results use the words alone, as in the scanner."""
        by_words = self.words.decision_function(on.words.rows)
        by_meaning = self.meaning.decision_function((on.meanings.rows - self.middle) / self.spread)
        asked = (by_words > MIN_SCORE_FOR_EMBEDDING) & ~np.array(
            [on.words.texts[place].is_result for place in on.words.owner]
        )
        return by_words + by_meaning * asked


@dataclass(frozen=True, slots=True)
class Read:
    """Word features and encoder vectors of the windows of some texts."""

    words: Table
    meanings: Table

    @classmethod
    def of(cls, texts: Iterable[Text], every: int = 1) -> Read:
        words = table(texts)
        return cls(words, meanings(words, every))


def judges(poisoned: Sequence[Read], ordinary: Sequence[Read]) -> Judges:
    rows = _stack_tables([each.meanings for each in [*poisoned, *ordinary]])
    middle, spread = rows.mean(0), rows.std(0) + 1e-3

    def even(each: Read) -> Table:
        return replace(each.meanings, rows=(each.meanings.rows - middle) / spread)

    return Judges(
        trained([each.words for each in poisoned], [each.words for each in ordinary], 1.0, 0.5),
        trained([even(each) for each in poisoned], [even(each) for each in ordinary], STRENGTH, 0.25 * EVERY),
        middle,
        spread,
    )


def told(by: Judges, on: Read, tools: Read, name: str) -> None:
    """Return the detection rate at a given rate of false alarms on real tools."""
    leaning, alarms = on.words.best(by.leaning(on)), tools.words.best(by.leaning(tools))
    label = np.array([text.label for text in on.words.texts])
    result = np.array([text.is_result for text in on.words.texts])
    heavy, heavy_tools = on.words.heavy(), tools.words.heavy()
    for place, part in (("tools", ~result), ("results", result)):
        attack, alike = part & (label == 1), part & (label == 0)
        if not attack.any():
            continue
        signs = f"signs {heavy[attack].mean():.3f}, {heavy[alike].mean():.3f}"
        print(f"{name}, {place}, {attack.sum()} attacks, {alike.sum()} look-alikes: {signs}")
        limits = (
            [np.sort(np.where(heavy_tools, -99, alarms))[::-1][count - heavy_tools.sum()] for count in ALARMS]
            if place == "tools"
            else RESULT_LIMITS
        )
        for limit in limits:
            flagged, real = (leaning > limit) | heavy, (alarms > limit) | heavy_tools
            print(
                f"  leaning {limit:.2f}: {flagged[attack].mean():.3f} of attacks, "
                f"{flagged[alike].mean():.3f} of look-alikes, {real.sum()} real tools"
            )


def written(by: Judges, file: Path) -> None:
    """Write the weights with one byte per piece."""
    weights = by.words.coef_[0].astype(np.float64)
    meant = by.meaning.coef_[0] / by.spread
    at, count = 1 << HASH_BITS, len(GROUPS)
    pieces = weights[:at] * SCALES["pieces"]
    scale = np.abs(pieces).max() / 127
    paired = weights[at + count : at + count + count**2].reshape(count, count) * SCALES["paired"]
    rest = weights[at + count + count**2 :]
    arrays = {
        "pieces": np.round(pieces / scale).astype(np.int8),
        "scale": np.float64(scale),
        "groups": np.array(GROUPS),
        "alone": (weights[at : at + count] * SCALES["alone"]).astype(np.float32),
        "paired": paired.astype(np.float16),
        "signs": (rest[: len(_RULES)] * SCALES["signs"]).astype(np.float32),
        "facts": (rest[len(_RULES) :] * SCALES["facts"]).astype(np.float32),
        "bias": np.float64(by.words.intercept_[0]),
        "meaning": meant.astype(np.float32),
        "meaning_bias": np.float64(by.meaning.intercept_[0] - meant @ by.middle),
    }
    save_arrays(file, arrays)


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--data", type=Path, required=True)
    asked.add_argument("--real", type=Path, required=True)
    asked.add_argument("--out", type=Path)
    asked.add_argument("--folds", action="store_true")
    given = asked.parse_args()
    tools = Read.of(real(given.real))
    shared = frozenset(part for text in tools.words.texts for part, _ in text.parts)
    files = {name: Read.of(attacks(name)) for name in ("a", "b", "c", "d")} | {"seen": Read.of(seen())}
    ordinary = [Read.of(catalogs(given.data, shared), EVERY), Read.of(manuals(), EVERY)]
    if given.folds:
        for name in files:
            others = [each for other, each in files.items() if other != name]
            told(judges(others, ordinary), files[name], tools, f"without {name}")
    if given.out:
        shipped = judges(list(files.values()), ordinary)
        written(shipped, given.out)
        told(shipped, files["seen"], tools, "all")


if __name__ == "__main__":
    main()
