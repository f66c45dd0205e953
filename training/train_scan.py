"""Trains the judge of sentences that a scanner of servers' texts asks beside its signs.

    python train_scan.py --data ../../shared/bench --real ../../shared/mcp --out judge.npz
    python train_scan.py ... --folds     # held-out figures: trained without a file, judged on it

A logistic regression over what `toolfold.sources.mcp.scan` reads of a sentence. Of a poisoned text nobody
says which sentence it is: the one that leans furthest counts, anew in each round. Sentences of tools, of
manuals and of harmless look-alikes stand against them. The real tools that false alarms are counted on are
left out of the training, and every text that they share with a catalog is too. The held half of the corpus is
never opened. Fixed seeds; about five minutes on one core.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import random
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from toolfold.sources.mcp.offers import read_offer
from toolfold.sources.mcp.scan.addressed import _SIGNS, HEAVY, Setting, looks
from toolfold.sources.mcp.scan.judged import BITS, FLATTENING, Look
from toolfold.sources.mcp.scan.look import _neighbours, _setting, _texts, _words
from toolfold.sources.mcp.scan.words import SAYINGS

from data import OPEN_LICENCES

HERE = Path(__file__).resolve().parent
SEEN = HERE.parent / "tests" / "mcp" / "poison" / "seen.jsonl"
JUDGED_OTHERWISE = frozenset(
    {"change", "change-equal", "name", "benign-name", "hidden", "annotations", "benign-annotations"}
)
LIKE_SERVERS = frozenset({"distractors-mcp", "dust-mcp", "mcpproxy-golden", "authored"})
GROUPS = sorted(SAYINGS)
FACTS = 8
SCALES = {"pieces": 0.12, "alone": 0.7, "paired": 0.4, "signs": 0.7, "facts": 0.7}
ROUNDS = 3
HARD = 2.0  # what a sentence of a harmless look-alike counts
_PLACE = {group: place for place, group in enumerate(GROUPS)}


@dataclass(frozen=True, slots=True)
class Text:
    """One tool, or one text of a tool, with what is known of it."""

    origin: str
    label: int
    parts: tuple[tuple[str, Setting], ...]


@dataclass(slots=True)
class Table:
    """The windows of many texts, a row each."""

    texts: list[Text]
    rows: sp.csr_matrix
    owner: np.ndarray
    words: list[str]
    ruled: np.ndarray

    def best(self, leaning: np.ndarray) -> np.ndarray:
        """How far each text leans: as its furthest window."""
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
        setting = Setting(result=where == "result", value=where not in ("result", "description"))
        yield Text(name, int(case["label"]), ((case["text"], setting),))


def seen() -> Iterator[Text]:
    for line in SEEN.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if case["kind"] in JUDGED_OTHERWISE:
            continue
        label = int(case["expect"] == "flag")
        if case["where"] == "result":
            yield Text("seen", label, ((case["result"], Setting(result=True)),))
        else:
            yield Text("seen", label, tuple(_parts(case["tool"])))


def real(folder: Path) -> Iterator[Text]:
    for file in sorted(folder.glob("*.json")):
        for tool in json.loads(file.read_text(encoding="utf-8"))["tools"]:
            yield Text(f"{file.stem} {tool['name']}", 0, tuple(_parts(tool)))


def _parts(tool: Any) -> Iterator[tuple[str, Setting]]:
    offer = read_offer(tool)
    setting = _setting(offer, _neighbours("server", {}))
    on_values = Setting(value=True, topic=setting.topic, fields=setting.fields)
    for where, text, is_value in _texts(offer):
        if where != "name" and " " in text:
            yield text, on_values if is_value else setting


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
            parts = [(said.get("description") or "", Setting())]
            found = _words("", said.get("parameters") or {})
            parts += [(text, Setting(value=True)) for _, text, _ in found if " " in text][:12]
            kept = tuple(part for part in parts if part[0] and part[0] not in without)
            yield Text(origin, 0, kept)


def manuals(most: int = 3000) -> Iterator[Text]:
    """What the packages at hand say of themselves: prose for people who program."""
    site, standard = Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("stdlib"))
    chance = random.Random(3)
    files = sorted(
        file for folder in (site, standard) for file in folder.glob("*/*.py") if "test" not in str(file)
    )
    texts = [said for file in chance.sample(files, min(len(files), 1200)) for said in _docstrings(file)]
    for file in sorted(site.glob("*.dist-info/METADATA")):
        body = file.read_text(encoding="utf-8", errors="replace").partition("\n\n")[2]
        texts += [part[:1500] for part in body.split("\n## ") if 80 < len(part) < 3000]
    for text in chance.sample(texts, min(len(texts), most)):
        yield Text("manuals", 0, ((text, Setting()),))


def _docstrings(file: Path) -> Iterator[str]:
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
    found: list[Look] = []
    for place, text in enumerate(kept):
        for part, setting in text.parts:
            for said, look in looks(part[:20_000], setting):
                owner.append(place)
                words.append(said)
                found.append(look)
    ruled = np.array([look.facts[0] >= HEAVY for look in found], bool)
    return Table(kept, _rows(found), np.array(owner), words, ruled)


def _rows(found: Sequence[Look]) -> sp.csr_matrix:
    pieces = _sparse([(look.places, len(look.places) ** -FLATTENING) for look in found], 1 << BITS)
    groups = [np.array(sorted(_PLACE[group] for group in look.said), int) for look in found]
    pairs = [
        np.array([a * len(GROUPS) + b for at, a in enumerate(each) for b in each[at + 1 :]], int)
        for each in groups
    ]
    return sp.hstack(
        [
            pieces * SCALES["pieces"],
            _sparse([(each, 1.0) for each in groups], len(GROUPS)) * SCALES["alone"],
            _sparse([(each, 1.0) for each in pairs], len(GROUPS) ** 2) * SCALES["paired"],
            sp.csr_matrix(np.array([look.signs for look in found], np.float32)) * SCALES["signs"],
            sp.csr_matrix(np.array([look.facts for look in found], np.float32)) * SCALES["facts"],
        ]
    ).tocsr()


def _sparse(rows: Sequence[tuple[np.ndarray, float]], width: int) -> sp.csr_matrix:
    starts = np.cumsum([0, *(len(places) for places, _ in rows)])
    values = np.concatenate([np.full(len(places), value, np.float32) for places, value in rows])
    made = sp.csr_matrix(
        (values, np.concatenate([places for places, _ in rows]), starts), shape=(len(rows), width)
    )
    made.sum_duplicates()
    return made


def trained(poisoned: Sequence[Table], ordinary: Sequence[Table], strength: float) -> LogisticRegression:
    """The judge: of each poisoned text the window that leans furthest, and all windows of the others."""
    rows = sp.vstack([each.rows for each in poisoned]).tocsr()
    label = np.concatenate([[each.texts[place].label for place in each.owner] for each in poisoned])
    owner = np.concatenate([each.owner + 100_000 * number for number, each in enumerate(poisoned)])
    against = sp.vstack([each.rows for each in ordinary]).tocsr()
    share = (
        1 / np.bincount(np.unique(owner, return_inverse=True)[1])[np.unique(owner, return_inverse=True)[1]]
    )
    counts = np.where(label == 1, 8 * share, HARD)
    for turn in range(ROUNDS):
        used = counts > 0
        judge = LogisticRegression(C=strength, max_iter=60 if turn < ROUNDS - 1 else 200, tol=1e-3)
        judge.fit(
            sp.vstack([rows[used], against]),
            np.concatenate([label[used], np.zeros(against.shape[0])]),
            sample_weight=np.concatenate([counts[used], np.full(against.shape[0], 0.5)]),
        )
        leaning = judge.decision_function(rows)
        furthest: dict[int, float] = {}
        for place, value in zip(owner.tolist(), leaning.tolist(), strict=True):
            furthest[place] = max(value, furthest.get(place, -99.0))
        near = leaning >= np.array([furthest[place] for place in owner.tolist()]) - 0.3
        counts = np.where(label == 1, 4.0 * near, HARD)
    return judge


def told(judge: LogisticRegression, on: Table, tools: Table, name: str) -> None:
    leaning, alarms = (
        on.best(judge.decision_function(on.rows)),
        tools.best(judge.decision_function(tools.rows)),
    )
    label, heavy, heavy_tools = np.array([text.label for text in on.texts]), on.heavy(), tools.heavy()
    print(
        f"{name}: signs alone {heavy[label == 1].mean():.3f} of attacks, "
        f"{heavy[label == 0].mean():.3f} of look-alikes, {heavy_tools.mean():.4f} of tools"
    )
    for share in (0.005, 0.01, 0.015):
        limit = np.quantile(alarms, 1 - share)
        flagged = (leaning >= limit) | heavy
        print(
            f"  leaning {limit:.2f}: {flagged[label == 1].mean():.3f} of attacks, "
            f"{flagged[label == 0].mean():.3f} of look-alikes, "
            f"{((alarms >= limit) | heavy_tools).mean():.4f} of tools"
        )


def written(judge: LogisticRegression, file: Path) -> None:
    """The weights, a byte for each piece."""
    weights = judge.coef_[0].astype(np.float64)
    at, count = 1 << BITS, len(GROUPS)
    pieces = weights[:at] * SCALES["pieces"]
    scale = np.abs(pieces).max() / 127
    paired = weights[at + count : at + count + count**2].reshape(count, count) * SCALES["paired"]
    rest = weights[at + count + count**2 :]
    np.savez_compressed(
        file,
        pieces=np.round(pieces / scale).astype(np.int8),
        scale=np.float64(scale),
        groups=np.array(GROUPS),
        alone=(weights[at : at + count] * SCALES["alone"]).astype(np.float32),
        paired=paired.astype(np.float16),
        signs=(rest[: len(_SIGNS)] * SCALES["signs"]).astype(np.float32),
        facts=(rest[len(_SIGNS) :] * SCALES["facts"]).astype(np.float32),
        bias=np.float64(judge.intercept_[0]),
    )


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--data", type=Path, required=True)
    asked.add_argument("--real", type=Path, required=True)
    asked.add_argument("--out", type=Path)
    asked.add_argument("--folds", action="store_true")
    asked.add_argument("--strength", type=float, default=1.0)
    given = asked.parse_args()
    tools = table(real(given.real))
    shared = frozenset(part for text in tools.texts for part, _ in text.parts)
    files = {name: table(attacks(name)) for name in ("a", "b", "c")} | {"seen": table(seen())}
    ordinary = [table(catalogs(given.data, shared)), table(manuals())]
    if given.folds:
        for name in files:
            others = [each for other, each in files.items() if other != name]
            told(trained(others, ordinary, given.strength), files[name], tools, f"without {name}")
    if given.out:
        judge = trained(list(files.values()), ordinary, given.strength)
        written(judge, given.out)
        told(judge, files["seen"], tools, "all")


if __name__ == "__main__":
    main()
