"""Keeps the index of one runtime's tools in step with its registry, in memory and on disk.

Files are written atomically and read without trust: one that is broken, foreign or of another model is
built anew. A model takes a hundredth of a second for a tool, so thousands of new ones take minutes: whoever
has no patience for that gets an index without their vectors, which are made beside it, in a thread that
`close` ends. What was made by then is kept, and the next one goes on from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from toolfold.model import Tool
from toolfold.retrieval.embedding import Embedder, EmbeddingUnavailable, Outage
from toolfold.retrieval.index import (
    Builder,
    Embed,
    Index,
    Known,
    Progress,
    SoFar,
    checksum,
    embedded_text,
)
from toolfold.retrieval.kept import IndexCache, read, write
from toolfold.retrieval.text import Words
from toolfold.retrieval.vectors import Packed

log = logging.getLogger(__name__)

KEPT_FILES = 6
FEW = 64
"""So many new tools are embedded at once, whatever the patience."""
MOST_UNREAD = 0.2
"""Beyond this share of tools without vectors, the vectors of the others are not used."""
_BATCH = 64
_KEPT_EVERY = 10.0
_CHECKSUM_BYTES = 16


class _Closed(BaseException):
    """Ends work that nobody waits for. Not an error, so nothing that handles errors may hold it up."""


class Indexer:
    """Gives the index of the tools of the moment."""

    def __init__(
        self,
        embedder: Embedder | None,
        folder: Path | None,
        *,
        progress: Progress | None = None,
        outage: Outage | None = None,
        patience: float | None = None,
    ) -> None:
        """`patience` is how many seconds a search waits for new tools to be embedded; None waits for all."""
        self._embedder, self._folder, self._progress = embedder, folder, progress
        self._outage = outage or Outage()
        self._behind = Outage("new tools are found by keywords only until the model has read them")
        self._patience = patience
        self._words = Words()
        self._lock = threading.Lock()
        self._sums: dict[int, tuple[Tool, bytes]] = {}
        self._current: tuple[Sequence[Tool], Index] | None = None
        self._incomplete = False
        self._put_off = 0
        self._work: threading.Thread | None = None
        self._until = 0.0
        self._closed = threading.Event()

    @property
    def embedder(self) -> Embedder | None:
        return self._embedder

    def index(self, tools: Sequence[Tool]) -> Index:
        """The index of these tools. The same sequence again costs nothing."""
        with self._lock:
            index = self._at_once(tools)
            work = self._work if self._put_off else None
        if work is None:
            return index
        work.join(max(0.0, self._until - time.monotonic()))
        if work.is_alive():
            self._behind.tell(f"{self._put_off:,} tools")
        with self._lock:
            return self._current[1] if self._current and self._current[0] is tools else index

    def close(self) -> None:
        """End what is done beside searches. What has been done is kept."""
        self._closed.set()
        with self._lock:
            work = self._work
        if work is not None:
            work.join()

    def _at_once(self, tools: Sequence[Tool]) -> Index:
        if self._current is None or self._current[0] is not tools or self._may_catch_up():
            self._incomplete, self._put_off = False, 0
            self._current = (tools, self._built(tools))
        return self._current[1]

    def _may_catch_up(self) -> bool:
        """Whether a model that failed while tools were embedded answers again."""
        if self._embedder is None or not self._incomplete:
            return False
        try:
            self._embedder.embed(["tool"], "tool")
        except EmbeddingUnavailable:
            return False
        return True

    def _built(self, tools: Sequence[Tool]) -> Index:
        sums = self._checksums(tools)
        known = Known.of(self._current[1]) if self._current else self._load(sums)
        index = self._builder(sums, self._embed_now).built(known, tools, sums)
        if not self._put_off:
            self._save_what_is_new(known, index, sums)
            return index
        self._go_on_beside(tools, sums, index)
        # Among many that the model has not read, the few that it has would always come first.
        return replace(index, vectors=None) if self._put_off > len(tools) * MOST_UNREAD else index

    def _builder(self, sums: Sequence[bytes], embed: Embed) -> Builder:
        return Builder(self._words, embed, self._outage, lambda kept: self._save(kept, sums))

    def _go_on_beside(self, tools: Sequence[Tool], sums: Sequence[bytes], index: Index) -> None:
        """Embed in a thread what was put off; one that is at it already comes first, and this then after."""
        if self._work is None and not self._closed.is_set():
            self._until = time.monotonic() + (self._patience or 0.0)
            # Not a daemon: one would be cut off in the middle of a model's run when the program ends.
            self._work = threading.Thread(
                target=self._catch_up, args=(tools, sums, index), name="toolfold-index"
            )
            self._work.start()

    def _catch_up(self, tools: Sequence[Tool], sums: Sequence[bytes], before: Index) -> None:
        known = Known.of(before)
        try:
            index = self._builder(sums, self._embed_beside).built(known, tools, sums)
            self._save_what_is_new(known, index, sums)
            with self._lock:  # if there are other tools by now, their index goes on from this one
                self._current, self._put_off = (tools, index), 0
        except _Closed:
            log.debug("the index is not finished and goes on from here next time")
        finally:
            with self._lock:
                self._work = None

    def _embed_now(self, tools: Sequence[Tool], so_far: SoFar) -> Packed | None:
        """The tools' vectors, unless they are so many that someone has no patience for them."""
        if self._embedder is None or self._patience is None or len(tools) <= FEW:
            return self._embed(tools, so_far)
        self._put_off = len(tools)
        return None

    def _embed_beside(self, tools: Sequence[Tool], so_far: SoFar) -> Packed | None:
        return self._embed(tools, so_far, beside=True)

    def _embed(self, tools: Sequence[Tool], so_far: SoFar, *, beside: bool = False) -> Packed | None:
        """The tools' vectors; None, said once, where the model cannot answer."""
        if self._embedder is None:
            return None
        texts = [embedded_text(tool) for tool in tools]
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        order = np.array([rows[text] for text in texts], np.int64)
        parts: list[Packed] = []
        kept_at = time.monotonic()
        try:
            for part in self._embedded_parts(self._embedder, list(rows), beside=beside):
                parts.append(part)
                if time.monotonic() - kept_at > _KEPT_EVERY:
                    so_far(_padded(parts, len(rows)).taken(order))
                    kept_at = time.monotonic()
        except EmbeddingUnavailable as error:  # what came before it stays
            self._outage.tell(str(error))
            self._incomplete = True
            if not parts:
                return None
        except BaseException:
            if parts:
                so_far(_padded(parts, len(rows)).taken(order))
            raise
        return _padded(parts, len(rows)).taken(order) if parts else Packed.empty(0, 0)

    def _embedded_parts(self, embedder: Embedder, texts: Sequence[str], *, beside: bool) -> Iterator[Packed]:
        for start in range(0, len(texts), _BATCH):
            if beside and (self._closed.is_set() or not threading.main_thread().is_alive()):
                raise _Closed
            if self._progress:
                self._progress(start, len(texts))
            yield Packed.of(embedder.embed(texts[start : start + _BATCH], "tool"))
        if self._progress and texts:
            self._progress(len(texts), len(texts))

    def _checksums(self, tools: Sequence[Tool]) -> list[bytes]:
        """The tools' checksums. Those of the tools that were here before are known."""
        known = self._sums.get
        pairs = [known(id(tool)) or (tool, checksum(tool)) for tool in tools]
        self._sums = {id(pair[0]): pair for pair in pairs}
        return [pair[1] for pair in pairs]

    def _load(self, sums: Sequence[bytes]) -> Known | None:
        for file in self._candidates(sums):
            try:
                known = Known(*read(file, self._model_name(), self._words))
            except FileNotFoundError:
                continue  # another process has made room
            except Exception as error:  # what a broken file makes its readers raise is anyone's guess
                log.warning("the index %s cannot be used and is built anew: %s", file.name, error)
                if not isinstance(error, OSError):
                    _remove(file)
                continue
            with contextlib.suppress(OSError):  # of a folder that may only be read
                os.utime(file)
            return known
        return None

    def _candidates(self, sums: Sequence[bytes]) -> list[Path]:
        """The file of these very tools, if there is one, and the latest of others."""
        if self._folder is None:
            return []
        try:
            found = sorted(self._folder.glob(f"{self._prefix()}*.npz"), key=_modified, reverse=True)
        except OSError as error:
            log.warning("the index kept in %s cannot be read: %s", self._folder, error)
            return []
        wanted = self._file(sums)
        return sorted(found, key=lambda each: each != wanted)[:2]

    def _save_what_is_new(self, known: Known | None, index: Index, sums: Sequence[bytes]) -> None:
        vectors_came = known is not None and known.vectors is None and index.vectors is not None
        if known is None or vectors_came or set(sums).difference(known.checksums):
            vectors = index.vectors
            packed, sketch = (vectors.packed, vectors.sketch) if vectors else (None, None)
            self._save(IndexCache(index.checksums, index.lexical, packed, sketch), sums)

    def _save(self, kept: IndexCache, sums: Sequence[bytes]) -> None:
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write(self._file(sums), kept, self._model_name())
            old = sorted(self._folder.glob("*.npz"), key=_modified, reverse=True)[KEPT_FILES:]
            for file in old:
                file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the index could not be kept, it will be built again next time: %s", error)

    def _model_name(self) -> str:
        return self._embedder.name if self._embedder else "none"

    def _prefix(self) -> str:
        model = self._model_name()
        exactly = hashlib.blake2b(model.encode(), digest_size=4).hexdigest()  # long names may begin alike
        return f"{re.sub(r'[^A-Za-z0-9]+', '-', model)[:32]}-{exactly}-"

    def _file(self, sums: Sequence[bytes]) -> Path:
        every = np.sort(np.frombuffer(b"".join(sums), f"S{_CHECKSUM_BYTES}"))  # in any order the same file
        whole = hashlib.blake2b(every.tobytes(), digest_size=12).hexdigest()
        return (self._folder or Path()) / f"{self._prefix()}{whole}.npz"


def _padded(parts: Sequence[Packed], size: int) -> Packed:
    """The parts as one, with rows that say nothing for those to come."""
    rest = Packed.empty(size - sum(part.size for part in parts), parts[0].width)
    every = (*parts, rest)
    return Packed(np.concatenate([p.numbers for p in every]), np.concatenate([p.scales for p in every]))


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink()


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
