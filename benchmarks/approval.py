"""Measure the approval rules: detection of dangerous commands, needless prompts, and time per verdict.

    python benchmarks/approval.py [--data FOLDER] [--only held] [--peer-python PATH] [--markdown | --json]

`--data` is a folder with `dangerous*.jsonl` and `benign*.jsonl`; by default the repository's own corpus.
Times are process CPU times of single verdicts in one thread. `--peer-python` is the interpreter of an
environment with other detectors, which are then run on the same commands:

    python -m venv /tmp/guards && /tmp/guards/bin/pip install nah==0.11.0 shellguard==0.1.0 agentwall==0.3.6
    /tmp/guards/bin/pip install --no-deps hermes-agent==0.19.0

`--peer-folder` is a directory with an unpacked package, prepended to their import path. `--growth` adds how
the time grows with the length of hostile texts; `--out` draws it, with matplotlib.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from approval_peers import PEERS

from shellverdict.judging import Judge
from shellverdict.paths import PathClassifier
from shellverdict.rules import Rules

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests" / "shellverdict" / "corpus"
WORKER = Path(__file__).with_name("approval_peers.py")
SIZES = (1, 4, 16, 64, 1024)  # KB; beyond 64 KB a command is not analysed


@dataclass(frozen=True, slots=True)
class Commands:
    """Labelled commands."""

    dangerous: tuple[str, ...]
    hard: tuple[bool, ...]
    benign: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    asks: bool
    ms: float
    blocks: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Results of one detector."""

    name: str
    recall: float
    hard: float
    false_prompts: float
    blocked_benign: int | None
    p50: float
    p99: float
    worst: float


def load(folder: Path, only: str) -> Commands:
    """Load all labelled commands of a directory."""
    dangerous = _read_rows(folder, "dangerous", only)
    benign = _read_rows(folder, "benign", only)
    if not dangerous or not benign:
        sys.exit(f"error: {folder} holds no dangerous*.jsonl and benign*.jsonl with {only or 'any name'}")
    return Commands(
        tuple(row["command"] for row in dangerous),
        tuple(row.get("tier") == "hard" for row in dangerous),
        tuple(row["command"] for row in benign),
    )


def _read_rows(folder: Path, kind: str, only: str) -> list[dict[str, str]]:
    files = [file for file in sorted(folder.glob(f"{kind}*.jsonl")) if only in file.stem]
    texts = [file.read_text(encoding="utf-8") for file in files]
    return [json.loads(line) for text in texts for line in text.split("\n") if line]


def our_judge() -> Judge:
    return Judge(Rules.shipped(), PathClassifier(home="/home/someone", cwd="/home/someone/project"))


def ask_ours(commands: Sequence[str]) -> list[Answer]:
    judge = our_judge()
    judge("ls")
    answers = []
    for command in commands:
        started = time.process_time()
        verdict = judge(command)
        spent = (time.process_time() - started) * 1000
        answers.append(Answer(verdict.dangerous, spent, verdict.blocked))
    return answers


def ask_peer(name: str, python: str, folder: str, commands: Sequence[str]) -> tuple[str, list[Answer]]:
    """Return a peer's version and its verdicts; verdicts that took too long are missing."""
    done = subprocess.run(
        [python, str(WORKER), name, *([folder] if folder else [])],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        problem = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RuntimeError(problem)
    return json.loads(lines[0])["version"], [Answer(*json.loads(line)) for line in lines[1:]]


def score(name: str, commands: Commands, answers: Sequence[Answer], *, blocks: bool) -> Row:
    count = len(commands.dangerous)
    asked, benign = answers[:count], answers[count:]
    hard = [answer.asks for answer, is_hard in zip(asked, commands.hard, strict=True) if is_hard]
    times = sorted(answer.ms for answer in answers)
    return Row(
        name,
        recall=100 * statistics.fmean(answer.asks for answer in asked),
        hard=100 * statistics.fmean(hard or [False]),
        false_prompts=100 * statistics.fmean(answer.asks for answer in benign),
        blocked_benign=sum(answer.blocks for answer in benign) if blocks else None,
        p50=statistics.median(times),
        p99=times[int(len(times) * 0.99)],
        worst=times[-1],
    )


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| detector | recall | recall, hard tier | false prompts | benign blocked | p50 / p99 / worst ms |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        blocked = "-" if row.blocked_benign is None else str(row.blocked_benign)
        times = f"{row.p50:.2f} / {row.p99:.1f} / {row.worst:.1f}"
        shares = f"{row.recall:.1f}% | {row.hard:.1f}% | {row.false_prompts:.1f}%"
        lines.append(f"| {row.name} | {shares} | {blocked} | {times} |")
    return "\n".join(lines)


def missed(commands: Commands, answers: Sequence[Answer]) -> list[str]:
    """Return the commands that were judged wrongly, for authors of rules."""
    count = len(commands.dangerous)
    silent = [
        f"not seen  {c}" for c, a in zip(commands.dangerous, answers[:count], strict=True) if not a.asks
    ]
    false = [f"asked     {c}" for c, a in zip(commands.benign, answers[count:], strict=True) if a.asks]
    return silent + false


# How time grows


def growth(repeats: int = 3) -> dict[str, list[float]]:
    """Return the milliseconds to judge each hostile text at several lengths; the best of a few runs."""
    sys.path.insert(0, str(ROOT))
    from tests.shellverdict.hostile import HOSTILE_INPUTS

    judge = our_judge()
    return {
        name: [_time_verdict(judge, write(size * 1024)[: size * 1024], repeats) for size in SIZES]
        for name, write in HOSTILE_INPUTS.items()
    }


def _time_verdict(judge: Callable[[str], object], command: str, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        re.purge()  # a hostile text has never been seen before
        started = time.process_time()
        judge(command)
        times.append((time.process_time() - started) * 1000)
    return min(times)


def growth_table(grown: dict[str, list[float]]) -> str:
    lines = [
        f"| hostile text | {' | '.join(f'{size} KB' for size in SIZES)} |",
        "|---|" + "---|" * len(SIZES),
    ]
    for name, times in sorted(grown.items(), key=lambda item: -max(item[1])):
        lines.append(f"| {name} | {' | '.join(f'{ms:.1f}' for ms in times)} |")
    return "\n".join(lines)


def draw(grown: dict[str, list[float]], folder: Path) -> Path:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "toolfold"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for times in grown.values():
        axes.plot(SIZES, times, color="#1f5fa8", linewidth=0.8, alpha=0.6)
    axes.axhline(100, color="#d9822b", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("length of a hostile text, KB")
    axes.set_ylabel("ms of one verdict")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "approval-growth.svg"
    figure.savefig(file, metadata={"Date": None})
    return file


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=CORPUS)
    parser.add_argument("--only", default="", help="use only files whose name contains this")
    parser.add_argument("--peer-python", action="append", default=[])
    parser.add_argument("--peer-folder", default="")
    parser.add_argument("--missed", action="store_true", help="list the commands that were judged wrongly")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", action="store_true", help="print only the tables")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    commands = load(options.data, options.only)
    everything = (*commands.dangerous, *commands.benign)
    ours = ask_ours(everything)
    rows = [score("toolfold", commands, ours, blocks=True), *peer_rows(options, commands, everything)]
    grown = growth() if options.growth or options.out else {}
    if options.json:
        print(json.dumps({"detectors": [asdict(row) for row in rows], "growth": grown}))
        return
    if not options.markdown:
        counts = (
            f"{len(commands.dangerous)} dangerous ({sum(commands.hard)} hard), {len(commands.benign)} benign"
        )
        print(f"{counts} commands of {options.data}\n")
    print(table(rows))
    if grown:
        print("\n" + growth_table(grown))
    if options.out:
        print(f"\n{draw(grown, options.out)}")
    if options.missed:
        print("\n" + "\n".join(missed(commands, ours)))


def peer_rows(options: argparse.Namespace, commands: Commands, everything: Sequence[str]) -> list[Row]:
    """Return the results of each installed peer; report the peers that fail on standard error."""
    rows = []
    for name in PEERS if options.peer_python else ():
        problem = ""
        for python in options.peer_python:
            try:
                version, answers = ask_peer(name, python, options.peer_folder, everything)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                problem = str(error)
                continue
            rows.append(score(f"{name} {version}".strip(), commands, answers, blocks=False))
            break
        else:
            print(f"left out: {name}: {problem}", file=sys.stderr)
    return rows


if __name__ == "__main__":
    main()
