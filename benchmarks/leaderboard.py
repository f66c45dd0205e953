"""Measure Toolfold beside other retrievers for the leaderboard page: quality, time, tokens, cost, abstention.

    python benchmarks/leaderboard.py --data SETS --peers PEERS --peer-python PYTHON

SETS has folders of `catalog.jsonl[.gz]` and `queries.jsonl[.gz]`, and PEERS adapters for other retrievers;
`scripts/peers_env.sh` makes the environment of PYTHON. All retrievers get the same fixed sample of a set's
messages. Hits are stored in `--out` by set and retriever, so that an interrupted run can be continued; the
figures go to `benchmarks/results`, from which the page is written when the documentation site is built. Times
are CPU times of one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from measuring.definitions import DefinitionTokens, mean_tokens
from measuring.peer_sessions import TURNS, measure_costs
from measuring.peers import ONE_THREAD, TOO_SLOW, Kept, Peers, print_progress
from measuring.quality import SYSTEMS, Quality, snapshot
from measuring.scores import DEEPEST, Figures, means, spread
from measuring.scripted import MANY_HITS
from measuring.sets import SAMPLE, SEED, Sets, Task, sampled
from measuring.weights import SHIPPED, Weights

from toolfold import Runtime, load_config, open_runtime, sample_catalog
from toolfold.config.settings import DEFAULT_NEED_THRESHOLD
from toolfold.selection.retrieval.ranking_metrics import Query
from toolfold.selection.turn.pricing import PRICES_AS_OF

RESULTS = Path(__file__).parent / "results"
OURS = ("default", "light", "keyword")
MAX_CONVERSATION_MESSAGES = 60
MIN_MESSAGES = 50
"""A retriever that runs out of time has figures if it has searched for this many messages of the sample."""
PACKAGES = Path(__file__).parent / "measuring" / "peer_packages.json"
"""The package of each compared retriever, by the name of its adapter."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Messages of a data set (requests, and messages that need no tool) with their catalog."""

    task: Task
    needless: tuple[Query, ...]

    @property
    def messages(self) -> tuple[Query, ...]:
        """All messages in the order of their search: requests first, because time may run out."""
        return (*self.task.queries, *self.needless)

    @property
    def has_own_candidates(self) -> bool:
        """Whether messages that need no tool are searched among a few candidate tools of their own."""
        return any(query.candidates is not None for query in self.needless)


class Rankings:
    """Files with the hits of every retriever on each data set, which allow continuing an interrupted run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, name: str, system: str) -> Figures | None:
        file = self._folder / name / f"{system}.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    def put(self, name: str, system: str, answer: Figures) -> None:
        file = self._folder / name / f"{system}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(answer | {"load": round(os.getloadavg()[0], 1)}), encoding="utf-8")


def prepare(sets: Sets, name: str, limit: int) -> Measurement:
    """Return a fixed sample of a data set's messages; all messages for the sample catalog."""
    limit = len(sets.queries(name)) if name == SAMPLE else limit
    needless = [query for query in sets.queries(name) if not query.gold]
    renamed = [replace(query, id=f"needless-{query.id}") for query in sampled(needless, limit)]
    return Measurement(sets.task(name, limit), tuple(renamed))


def search_with_peers(measurements: Sequence[Measurement], peers: Peers, rankings: Rankings) -> None:
    """Store the hits of every peer on every set; a peer is started once for all sets."""
    for peer in peers.names():
        missing = [each for each in measurements if rankings.get(each.task.name, peer) is None]
        print_progress(f"{peer}: {', '.join(each.task.name for each in missing) or 'stored'}")
        jobs = [
            peers.make_job(
                each.task.catalog,
                each.messages,
                every=True,
                count=MANY_HITS if each.task.name == SAMPLE else DEEPEST,
            )
            for each in missing
        ]
        for each, answer in zip(missing, peers.run_jobs(peer, jobs), strict=True):
            rankings.put(each.task.name, peer, answer)


def search_with_ours(measurements: Sequence[Measurement], weights: Weights, rankings: Rankings) -> None:
    """Store the hits of Toolfold's modes on every set, and which messages select no tool."""
    quality = Quality(weights, tuple(system for system in SYSTEMS if system.name in OURS))
    for each in measurements:
        name = each.task.name
        if rankings.get(name, "default") is not None:
            continue
        print_progress(f"Toolfold: {name}")
        if each.task.queries:
            ranked, times = quality.search(each.task)
            for system in OURS:
                rankings.put(name, system, {"ranked": ranked[system], "ms": times[system]})
        if not weights.has_seen_need(name):
            # The retriever always has hits; the need classifier decides whether they are shown.
            asked = ask_session if name == SAMPLE else ask_retriever
            shown = asked(each, quality)
            known = rankings.get(name, "default") or {"ranked": {}, "ms": []}
            known["ranked"] |= {str(query.id): shown[str(query.id)] for query in each.needless}
            known["unanswered"] = [str(query.id) for query in each.task.queries if not shown[str(query.id)]]
            rankings.put(name, "default", known)


def ask_session(measurement: Measurement, _: Quality) -> Mapping[str, Sequence[str]]:
    """Return the tools that new sessions with default settings and `selection: hybrid` select."""
    with tempfile.TemporaryDirectory() as home:
        settings = ["tools.selection=hybrid", "tools.patience_seconds=600"]
        environment = {"TOOLFOLD_HOME": home, "HOME": home}
        config = load_config(project=Path(home), env=environment, overrides=settings)
        with open_runtime(config) as runtime:
            tools = sample_catalog()
            runtime.registry.add_all(tools)
            toolsets = sorted({tool.toolset for tool in tools})
            # Without the bridge tools, which do not depend on the message.
            names = {tool.name for tool in tools}
            return {
                str(query.id): sorted(names & send_message(runtime, toolsets, query.text))
                for query in measurement.messages
            }


def send_message(runtime: Runtime, toolsets: list[str], message: str) -> set[str]:
    """Return the names of the tools that a new session sends with its first message."""
    return {each["function"]["name"] for each in runtime.session(toolsets).definitions(message)}


def ask_retriever(measurement: Measurement, quality: Quality) -> Mapping[str, Sequence[str]]:
    """Return the hits for messages that need a tool according to the need classifier."""
    retriever = quality.retriever(SHIPPED, measurement.task.name, "encoder")
    tools = snapshot(measurement.task.catalog)
    shown = {}
    for query in measurement.messages:
        answer = retriever.answer(tools, query.text, mode="hybrid", limit=DEEPEST, granted=query.candidates)
        needed = answer.needed(DEFAULT_NEED_THRESHOLD)
        shown[str(query.id)] = [hit.name for hit in answer.hits] if needed else []
    return shown


def summarize_set(
    measurement: Measurement, systems: Sequence[str], rankings: Rankings, seen: bool
) -> Figures:
    """Return the figures of all retrievers on one set."""
    task = measurement.task
    tokens = DefinitionTokens(task.catalog)
    row: Figures = {"set": task.name, "tools": task.tools, "seen": seen, "tokens": tokens.total()}
    row |= {"messages": len(task.queries), "needless": len(measurement.needless)}
    row |= {"own_candidates": measurement.has_own_candidates, "systems": {}}
    for system in systems:
        answer = rankings.get(task.name, system)
        if answer is not None:
            count = tokens.slimmed if system in OURS else tokens.as_written
            row["systems"][system] = summarize_system(measurement, answer, count)
    return row


def summarize_system(measurement: Measurement, answer: Figures, count: Callable[[str], int]) -> Figures:
    """Return a retriever's figures on one set, or why there are none."""
    if "problem" in answer:
        return {"problem": answer["problem"], "load": answer["load"]}
    ranked: Mapping[str, Sequence[str]] = answer["ranked"]
    asked = [query for query in measurement.task.queries if str(query.id) in ranked]
    enough = min(MIN_MESSAGES, len(measurement.task.queries))
    told: Figures = {"load": answer["load"]}
    if len(asked) < enough:
        return told | {"problem": f"{TOO_SLOW}: {len(asked)} of {len(measurement.task.queries)} messages"}
    if asked:
        told |= means(asked, ranked) | spread(answer["ms"][: len(asked)])
        told["tokens"] = mean_tokens({str(query.id): ranked[str(query.id)] for query in asked}, count)
        unanswered = answer.get("unanswered") or [str(q.id) for q in asked if not ranked[str(q.id)]]
        told["unanswered"] = len(unanswered)
    needless = [query for query in measurement.needless if str(query.id) in ranked]
    if needless:
        told["needless"] = len(needless)
        told["needless_answered"] = sum(bool(ranked[str(query.id)]) for query in needless)
    return told


def measure_conversations(measurement: Measurement, systems: Sequence[str], rankings: Rankings) -> Figures:
    """Return what conversations cost with each retriever that has hits for all messages of the sample."""
    queries = list(measurement.messages)
    random.Random(SEED).shuffle(queries)
    queries = queries[:MAX_CONVERSATION_MESSAGES]
    hits, problems = {}, {}
    for system in systems:
        answer = rankings.get(SAMPLE, system) or {"problem": "not measured"}
        if all(str(query.id) in answer.get("ranked", ()) for query in queries):
            hits[system] = answer["ranked"]
        else:
            problems[system] = answer.get("problem", TOO_SLOW)
    with tempfile.TemporaryDirectory() as home:
        rows = measure_costs(queries, hits, Path(home))
    about = {"messages": len(queries), "turns": TURNS, "prices": PRICES_AS_OF}
    return about | {"problems": problems, "rows": rows}


def describe_run(peer_python: Path) -> Figures:
    """Return the date, the versions and the machine of a run."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=RESULTS, capture_output=True, text=True, check=True
    )
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "python": sys.version.split()[0],
        "processors": os.cpu_count(),
        "versions": read_versions(peer_python),
    }


def read_versions(python: Path) -> dict[str, str]:
    """Return the installed versions of the other projects."""
    packages = sorted(set(json.loads(PACKAGES.read_bytes()).values()))
    script = (
        "import importlib.metadata as m, json\n"
        f"names = {packages!r}\n"
        "found = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
        "print(json.dumps({n: found[n] for n in names if n in found}))"
    )
    done = subprocess.run([str(python), "-c", script], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    for each in (python.parent.parent / "hermes").glob("hermes_agent-*.dist-info"):
        found["hermes-agent"] = each.name.removesuffix(".dist-info").partition("-")[2]
    return found


def write_result(name: str, result: Figures) -> None:
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(result, indent=1, sort_keys=True) + "\n"
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, help="directory of data sets; default: only the sample catalog")
    add("--sets", type=lambda text: text.split(","), help="comma-separated names; default: all with messages")
    add("--limit", type=int, default=100, help="maximum number of messages per set")
    add("--peers", type=Path, required=True, help="directory of adapters for other retrievers")
    add("--peer-python", type=Path, required=True, help="Python with the adapters' dependencies")
    add("--peer-names", type=lambda text: text.split(","), default=[], help="comma-separated adapters")
    add("--peer-seconds", type=int, default=30, help="CPU time limit of a retriever per set, in seconds")
    add("--without-ours", type=lambda text: text.split(","), default=[], help="sets without Toolfold")
    add("--out", type=Path, default=Path("build/leaderboard"), help="directory of stored hits")
    add("--only-figures", action="store_true", help="search nothing, compute the figures from stored hits")
    add("--only-hits", action="store_true", help="store hits, compute no figures")
    return parser.parse_args()


def main() -> None:
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        # Read when numpy is loaded, which has happened; threads that wait for work would count as work.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    chosen = options()
    sets = Sets(chosen.data, chosen.out / "catalogs")
    weights = Weights(None, chosen.out / "vectors")
    kept = Kept(chosen.out / "peers.json", fresh=True)
    peers = Peers(chosen.peers, chosen.peer_python, chosen.peer_seconds, kept, chosen.peer_names)
    rankings = Rankings(chosen.out / "hits")
    names = chosen.sets or [name for name in sets.catalogs() if sets.queries(name)]
    measurements = [prepare(sets, name, chosen.limit) for name in names]
    if not chosen.only_figures:
        own = [each for each in measurements if each.task.name not in chosen.without_ours]
        search_with_ours(own, weights, rankings)
        search_with_peers(measurements, peers, rankings)
    if chosen.only_hits:
        return
    about = describe_run(chosen.peer_python)
    for each in measurements:
        seen = weights.has_seen(each.task)
        row = summarize_set(each, [*OURS, *peers.names()], rankings, seen)
        write_result(f"retrieval-{each.task.name}", about | row)
        if each.task.name == SAMPLE:
            write_result("conversations", about | measure_conversations(each, peers.names(), rankings))


if __name__ == "__main__":
    main()
