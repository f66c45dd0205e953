"""Run other retrievers on the same catalogs: one process per peer and catalog, with a CPU time limit.

A peer's results do not depend on Toolfold, so they are stored in a file and measured once.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from measuring.peer_worker import GRACE, TOO_LATE
from measuring.scores import DEEPEST, Figures, figures, spread
from measuring.sets import Task
from toolfold.selection.retrieval.ranking_metrics import Query

WORKER = Path(__file__).with_name("peer_worker.py")
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
TOO_SLOW = "too slow"


class Kept:
    """Results in a JSON file, written immediately, so that an interrupted run loses nothing."""

    def __init__(self, file: Path, *, fresh: bool) -> None:
        self._file = file
        self._results = {} if fresh else self._read_file()

    def get(self, key: str) -> Figures | None:
        return self._results.get(key)

    def put(self, key: str, result: Figures) -> None:
        self._results[key] = result
        everything = self._read_file() | self._results  # another run may have added to it
        temporary = self._file.with_suffix(".part")
        temporary.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        temporary.replace(self._file)

    def _read_file(self) -> dict[str, Figures]:
        return json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}


@dataclass(frozen=True, slots=True)
class Peers:
    """Adapters for other retrievers in a directory, and the interpreter that has their dependencies."""

    adapters: Path
    python: Path
    seconds: int
    kept: Kept
    only: Sequence[str] = ()

    def names(self) -> list[str]:
        """Return the names of the adapter modules."""
        found = [file.stem for file in sorted(self.adapters.glob("*.py")) if _is_adapter(file)]
        return [name for name in found if not self.only or name in self.only]

    def quality(self, peer: str, task: Task) -> Figures:
        """Measure a peer's retrieval quality on one data set."""
        key = f"{peer}|{task.label}|{len(task.queries)} of {task.tools}"
        if (known := self.kept.get(key)) is not None:
            return known
        answer = self._run_peer(peer, task.catalog, task.queries, every=True)
        result = _summarize_times(answer)
        if "ranked" in answer and len(answer["ranked"]) == len(task.queries):
            result |= figures(task.queries, answer["ranked"])
        elif "ranked" in answer:
            result["problem"] = f"{TOO_SLOW}: {result.get('p50', 0):,.0f} ms a message"
        self.kept.put(key, result)
        return result

    def speed(self, peer: str, catalog: Path, messages: Sequence[Query]) -> Figures:
        """Measure a peer's search time, with fewer messages if the time limit is reached."""
        key = f"{peer}|speed|{catalog.name}|{len(messages)}"
        if (known := self.kept.get(key)) is not None:
            return known
        result = _summarize_times(self._run_peer(peer, catalog, messages, every=False))
        self.kept.put(key, result)
        return result

    def _run_peer(self, peer: str, catalog: Path, queries: Sequence[Query], *, every: bool) -> Figures:
        answer, *_ = self.run_jobs(peer, [self.make_job(catalog, queries, every=every)])
        return answer

    def make_job(
        self, catalog: Path, queries: Sequence[Query], *, every: bool, count: int = DEEPEST
    ) -> Figures:
        """Return a job for the worker. With `every`, it ends early if the time limit is far too short."""
        own = {str(query.id): sorted(query.candidates) for query in queries if query.candidates is not None}
        return {
            "catalog": str(catalog.resolve()),
            "messages": {str(query.id): query.text for query in queries},
            "candidates": own,
            "count": count,
            "seconds": self.seconds,
            "all": every,
        }

    def run_jobs(self, peer: str, jobs: Sequence[Figures]) -> list[Figures]:
        """Return the answer to each job: hits and times of the messages that were searched, or a problem.

        After a job that ends the process, the jobs that follow are run in a new one.
        """
        done: list[Figures] = []
        while len(done) < len(jobs):
            answers, problem = self._run_worker(peer, jobs[len(done) :])
            done += answers
            if len(done) < len(jobs):
                done.append({"problem": problem or "no answer"})
        return done

    def _run_worker(self, peer: str, jobs: Sequence[Figures]) -> tuple[list[Figures], str]:
        """Return the answers to the jobs that were run, and why the other jobs were not run."""
        work = {"adapters": str(self.adapters.resolve()), "peer": peer, "jobs": jobs}
        with tempfile.TemporaryDirectory() as folder:
            asked, answered = Path(folder, "jobs.json"), Path(folder, "answers.json")
            asked.write_text(json.dumps(work), encoding="utf-8")
            seconds = 8 * sum(job["seconds"] + GRACE for job in jobs)  # other programs may have the processor
            problem = self._run_process([str(WORKER), str(asked), str(answered)], folder, seconds)
            answers: list[Figures] = []
            if answered.exists():
                answers = json.loads(answered.read_text(encoding="utf-8"))
        return answers, problem

    def _run_process(self, arguments: Sequence[str], folder: str, seconds: float) -> str:
        """Run the worker process; return the reason if it fails, else ""."""
        try:
            done = subprocess.run(
                [str(self.python), *arguments],
                cwd=folder,
                env=self._process_environment(),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return TOO_SLOW
        if done.returncode == TOO_LATE:
            return TOO_SLOW
        return f"failed: {_last_line(done.stderr)}" if done.returncode else ""

    def _process_environment(self) -> Mapping[str, str]:
        hermes = self.python.parent.parent / "hermes"
        return {**os.environ, **ONE_THREAD, "HERMES_DIR": os.environ.get("HERMES_DIR", str(hermes))}


def _is_adapter(file: Path) -> bool:
    text = file.read_text(encoding="utf-8")
    return {"build", "search"} <= set(re.findall(r"^def (\w+)", text, re.MULTILINE))


def _summarize_times(answer: Figures) -> Figures:
    if "problem" in answer:
        return {"problem": answer["problem"]}
    told: Figures = {"build_ms": round(answer["build_ms"], 1), "asked": len(answer["ms"])}
    return told | spread(answer["ms"])


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else "without a word")[:160]


def print_progress(text: str) -> None:
    """Print progress to standard error."""
    print(text, file=sys.stderr, flush=True)


def add_peer_options(parser: argparse.ArgumentParser, names: str = "") -> None:
    """Add the options that choose other retrievers; `names` is the default of `--peer-names`."""
    add = parser.add_argument
    add("--peers", type=Path, help="directory of adapters for other retrievers")
    add("--peer-python", type=Path, help="Python interpreter with the adapters' dependencies")
    add("--peer-names", default=names, help=f"comma-separated names of adapters; default: {names or 'all'}")
    add("--peer-seconds", type=int, default=120, help="CPU time limit of a peer per set, in seconds")


def require_peer_python(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    """End the program with an error if only one of `--peers` and `--peer-python` is given."""
    if bool(chosen.peers) != bool(chosen.peer_python):
        parser.error("--peers and --peer-python go together")


def open_peers(chosen: argparse.Namespace, file: str, *, fresh: bool) -> Peers | None:
    """Return the chosen retrievers, whose results are stored in `file` of the output directory, or None."""
    if not chosen.peers:
        return None
    kept = Kept(chosen.out / file, fresh=fresh)
    names = [name for name in chosen.peer_names.split(",") if name]
    return Peers(chosen.peers, chosen.peer_python, chosen.peer_seconds, kept, names)
