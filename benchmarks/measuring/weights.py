"""Select weights per message, so that no result is measured on training data.

The shipped weights were trained on every set but the sample catalog. For the sets of a fold there are models
that never saw the fold, and for every set rankers that never saw the set (`training/README.md` says how to
make them). Without those, a set that the shipped weights have seen is marked.
"""

from __future__ import annotations

import hashlib
import runpy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from measuring.sets import Task
from toolfold.selection.retrieval.embedding import Encoder, Kind, LightEmbedder, Matrix
from toolfold.selection.retrieval.ranking import Ranker
from toolfold.selection.retrieval.ranking_metrics import Query
from toolfold.selection.retrieval.weight_files import shipped_weights

Model = Literal["encoder", "light"]
MODELS: tuple[Model, ...] = ("encoder", "light")
ENCODER_FILES = ("encoder.onnx", "tokenizer.json")
LIGHT_FILES = ("static.arrays", "static.tokenizer.json.gz")
TRAINING = Path(__file__).resolve().parents[2] / "training"
MIXED = "authored"  # messages over tools of the other sets
SHIPPED = "shipped"


@dataclass(frozen=True, slots=True)
class Part:
    """Messages of a task that use the same weights."""

    weights: str
    """Name of a fold, or `shipped`."""
    queries: tuple[Query, ...]


class Weights:
    """The shipped weights, and weights trained without a set if available."""

    def __init__(self, folds: Path | None, vectors: Path) -> None:
        self._folds, self._vectors = folds, vectors
        sets: Mapping[str, Sequence[str]] = runpy.run_path(str(TRAINING / "data.py"))["FOLDS"]
        self._fold_of = {name: fold for fold, names in sets.items() for name in names}

    def parts(self, task: Task) -> list[Part]:
        """Group a task's messages by the weights to use, which were not trained on these messages."""
        groups: dict[str, list[Query]] = defaultdict(list)
        for query in task.queries:
            groups[self._weights_name(task, query)].append(query)
        return [Part(name, tuple(queries)) for name, queries in sorted(groups.items())]

    def has_seen(self, task: Task, models: Sequence[Model] = MODELS) -> bool:
        """Return True if the weights used for the set were trained on it."""
        if task.name not in self._fold_of and task.name != MIXED:
            return False
        return self._folds is None or any(self._ranker_file(task.name, model) is None for model in models)

    def has_seen_need(self, name: str) -> bool:
        """Return True if the shipped need classifier was trained on the set."""
        return name in self._fold_of or name == MIXED

    def light(self, part: str) -> LightEmbedder:
        """Return a light model that was not trained on the part's messages."""
        return LightEmbedder(weights=self._weights_directory(part))

    def encoder(self, part: str) -> Remembering:
        """Return an encoder, not trained on the part's messages, that caches tool vectors between runs."""
        file = self._vectors / f"encoder-{self.fingerprint(part, ENCODER_FILES)}.npz"
        return Remembering(self._weights_directory(part), file)

    def ranker(self, name: str, model: Model) -> Ranker:
        """Return a ranker that was not trained on the set, or the shipped one."""
        file = self._ranker_file(name, model)
        return Ranker.load(file) if file else Ranker.shipped(model)

    def fingerprint(self, part: str, names: Sequence[str]) -> str:
        """Return a hash of the given weight files."""
        folder = self._weights_directory(part) or shipped_weights()
        digest = hashlib.blake2b(digest_size=6)
        for name in names:
            digest.update(folder.joinpath(name).read_bytes())
        return digest.hexdigest()

    def _weights_name(self, task: Task, query: Query) -> str:
        if self._folds is None:
            return SHIPPED
        if task.name != MIXED:
            return self._fold_of.get(task.name, SHIPPED)
        # A message over tools of two folds was kept from both.
        return min(self._fold_of[task.origins[gold]] for gold in query.gold)

    def _weights_directory(self, part: str) -> Path | None:
        return None if part == SHIPPED or self._folds is None else self._folds / part

    def _ranker_file(self, name: str, model: Model) -> Path | None:
        if self._folds is None:
            return None
        folder = self._folds / "rankers"
        # A mixed set is known by its parts; each of their rankers was trained without all of them.
        end = f"{model}.arrays"
        found = [*folder.glob(f"without-{name}.{end}"), *folder.glob(f"without-{name}-?.{end}")]
        return min(found, default=None)


class Remembering(Encoder):
    """Encoder that caches tool vectors in a file, so that distractors are embedded only once."""

    def __init__(self, weights: Path | None, file: Path) -> None:
        super().__init__(weights=weights)
        self._file = file
        self._kept: dict[str, Matrix] = {}
        if file.exists():
            with np.load(file, allow_pickle=False) as stored:
                self._kept = dict(zip(stored["texts"].tolist(), stored["vectors"], strict=True))

    def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:
        if kind == "query":
            return super().embed(texts, kind)
        keys = [hashlib.blake2b(text.encode(), digest_size=12).hexdigest() for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._kept}
        if new:
            self._kept |= zip(new, super().embed(list(new.values()), kind), strict=True)
        return np.stack([self._kept[key] for key in keys])

    def keep(self) -> None:
        """Write the cached vectors to the file."""
        if not self._kept:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._file.with_suffix(".part.npz")
        np.savez(temporary, texts=np.array(list(self._kept)), vectors=np.stack(list(self._kept.values())))
        temporary.replace(self._file)
