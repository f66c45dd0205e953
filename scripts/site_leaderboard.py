# ruff: noqa: E501 - lines are table rows and prose of the page
"""The leaderboard of the documentation site, written from the measured results in `benchmarks/results`.

python scripts/site_leaderboard.py RESULT.json… --peer-python PATH    store results of `benchmarks/retrieval.py`

Each result has the date of its measurement and the versions of the retrievers, so that a later run can add or
replace sets one by one.
"""

from __future__ import annotations

import argparse
import html
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
OURS = {"default": "**Toolfold**", "light": "**Toolfold**, light model", "keyword": "**Toolfold**, keywords"}
PACKAGES = {
    "fastmcp_bm25": "fastmcp",
    "graph_tool_call_kw": "graph-tool-call",
    "haystack_searchable": "haystack-ai",
    "hermes_tool_search": "hermes-agent",
    "langgraph_bigtool_store": "langgraph-bigtool",
    "litellm_semantic_filter": "litellm",
    "livekit_bm25": "livekit-agents",
    "llamaindex_objectindex": "llama-index-core",
    "pydantic_ai_keywords": "pydantic-ai-slim",
    "ratel_bm25": "ratel-ai",
    "ratel_hybrid": "ratel-ai",
    "ratel_semantic": "ratel-ai",
    "semantic_tool_router_hybrid": "semantic-tool-router",
    "toolregistry_bm25f": "toolregistry",
}
Row = dict[str, Any]

INTRODUCTION = """\
# Leaderboard

How often the tool that a message needs is found: Toolfold beside the original code of other projects, on the same messages and in
the same run. To reproduce it:

```sh
sh scripts/peers_env.sh .venv-peers PEERS
.venv/bin/python benchmarks/retrieval.py --levels plain --peers PEERS --peer-python .venv-peers/bin/python \\
    --parts quality --json sample.json                                       # the sample catalog
.venv/bin/python benchmarks/retrieval.py --data SETS --sets NAME --limit 100 --levels plain --peers PEERS \\
    --peer-python .venv-peers/bin/python --parts quality --json NAME.json    # a public set
.venv/bin/python scripts/site_leaderboard.py sample.json NAME.json --peer-python .venv-peers/bin/python
.venv/bin/python benchmarks/abstention.py --peers PEERS --peer-python .venv-peers/bin/python \\
    --json benchmarks/results/abstention.json
```

`PEERS` has the adapters and `SETS` the public sets; neither is part of the repository.

What to know before you compare:

* The sample catalog was written for this project, by its authors. Nothing was trained or tuned on it, but it is ours.
* Retrievers that take an embedding model of the user's choice (ratel-ai semantic and hybrid, litellm, langgraph-bigtool,
  llama-index-core, semantic-tool-router) have a small static one here, WordLlama with 256 dimensions, because it works offline.
  With a larger model they may find more, which was not measured. Toolfold has the models that ship with it.
* The adapters choose settings where a project requires one, such as litellm's threshold, which is 0.
"""
TRAINED_SETS = """\
## Recall@5 of the other projects on sets that Toolfold was trained on

The models that ship with Toolfold were trained on these sets, so Toolfold's own figures there would be too high and are left out. Its
figures with models that never saw the set are in [How good it is](retrieval.md#how-good-it-is), for other samples of messages;
they were not measured again for this page. All sets but `authored`, which was written for this project, are public.
"""
OTHER_FIGURES = """\
## Tokens and cache cost

Measured for Toolfold only, because a retriever does not decide where tools are put in a request; not measured again for this page:

| | | from |
|---|---|---|
| tokens of `tools/list`, 58 real MCP servers | 248,456 directly, 224 through Toolfold | [The gateway](gateway.md) |
| dollars of a conversation with a provider's prompt cache | by strategy and model | [Cost](cost.md) |

Start and overhead of the gateway beside other gateways are in [Performance](performance.md).
"""


def render_leaderboard() -> str:
    """Return the page as Markdown."""
    rows = read_results()
    unseen, trained = [row for row in rows if not row["seen"]], [row for row in rows if row["seen"]]
    parts = [INTRODUCTION, "## Recall@5 on messages that nothing was trained on", draw_means(unseen)]
    parts += [*render_recall(unseen), "## Time of a search", *render_times(unseen), *render_abstention()]
    parts += [TRAINED_SETS, *render_recall(trained, ours=False), OTHER_FIGURES, *render_versions(rows)]
    return "\n\n".join(parts) + "\n"


def render_abstention() -> Iterator[str]:
    """Yield the table of messages without a need for tools that were answered with tools."""
    found: dict[str, Row | None] = json.loads((RESULTS / "abstention.json").read_text(encoding="utf-8"))
    measured = {name: figures for name, figures in found.items() if figures}
    yield "## Messages that need no tool"
    yield "Of the sample's messages that no tool serves, such as “thanks”, how many get tools; and how many requests get none."
    lines = ["| | without a need, answered with tools | requests without any tool |", "|---|---:|---:|"]
    for name, each in sorted(measured.items(), key=lambda item: item[1]["needless_answered"]):
        needless = f"{each['needless_answered']} of {each['needless']}"
        lines.append(
            f"| {show_name(name)} | {needless} | {each['requests_unanswered']} of {each['requests']} |"
        )
    yield "\n".join(lines)
    if failed := sorted(set(found) - set(measured)):
        yield (
            "No result, because it failed or exceeded the limit of processor time: "
            + ", ".join(f"`{name}`" for name in failed)
            + "."
        )


def read_results() -> list[Row]:
    """Return the stored results, sets that were not used for training first."""
    rows = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("retrieval-*.json"))]
    return sorted(rows, key=lambda row: (row["seen"], row["set"]))


def list_systems(rows: Sequence[Row], *, ours: bool = True) -> list[str]:
    """Return the names of all retrievers, best first by their mean recall."""
    names = {*(OURS if ours else ()), *(peer for row in rows for peer in row["peers"])}
    return sorted(names, key=lambda name: (-mean_recall(rows, name), name))


def mean_recall(rows: Sequence[Row], name: str) -> float:
    """Return the mean recall of a retriever over all sets; a set without an answer counts as 0."""
    return statistics.fmean(find_figures(row, name).get("R@5", 0.0) for row in rows)


def find_figures(row: Row, name: str) -> Mapping[str, float]:
    """Return the figures of a retriever on a set; empty if it failed or exceeded its time."""
    figures: Mapping[str, float] = (row["ours"] if name in OURS else row["peers"]).get(name) or {}
    return figures


def show_name(name: str) -> str:
    return OURS.get(name, f"{PACKAGES.get(name, name)} (`{name}`)")


def render_recall(rows: Sequence[Row], *, ours: bool = True) -> Iterator[str]:
    """Yield the table of recall by retriever and set."""
    lines = [
        "| | mean | " + " | ".join(row["set"] for row in rows) + " |",
        "|---|" + "---:|" * (len(rows) + 1),
    ]
    for name in list_systems(rows, ours=ours):
        cells = [format_share(find_figures(row, name).get("R@5")) for row in rows]
        lines.append(f"| {show_name(name)} | {format_share(mean_recall(rows, name))} | {' | '.join(cells)} |")
    lines.append("| *tools* | | " + " | ".join(f"{row['tools']:,}" for row in rows) + " |")
    lines.append("| *messages* | | " + " | ".join(str(row["messages"]) for row in rows) + " |")
    yield "\n".join(lines)
    if any(not find_figures(row, name) for row in rows for name in list_systems(rows, ours=ours)):
        yield "A dash: the retriever failed or exceeded its limit of processor time; it counts as 0 in the mean."


def render_times(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of times relative to those of Toolfold in the same run."""
    yield (
        "Processor time of a search at the median, relative to Toolfold's default in the same run: 2.0 is twice as"
        " long. The machine was shared, so small differences mean nothing. Times on the public sets are left out,"
        " because the load changed between them."
    )
    heads = [row["set"] for row in rows]
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(rows)]
    lines += [
        f"| {show_name(name)} | {' | '.join(format_ratio(row, name) for row in rows)} |"
        for name in list_systems(rows)
    ]
    lines.append(
        "| *default, ms* | " + " | ".join(f"{row['ours']['default']['p50']:.1f}" for row in rows) + " |"
    )
    yield "\n".join(lines)


def render_versions(rows: Sequence[Row]) -> Iterator[str]:
    """Yield when each set was measured, and with which versions."""
    yield "## Versions and dates"
    lines = ["| set | measured | Toolfold | Python |", "|---|---|---|---|"]
    lines += [f"| {row['set']} | {row['date']} | {row['commit']} | {row['python']} |" for row in rows]
    yield "\n".join(lines)
    versions = {name: version for row in rows for name, version in row["versions"].items()}
    yield (
        "Other projects: "
        + ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        + "."
    )
    yield "Public sets that are not listed were not measured for this page."


def draw_means(rows: Sequence[Row]) -> str:
    """Return a bar chart of the mean recall, as SVG in the colours of the page."""
    names, height, left, width = list_systems(rows), 22, 260, 760
    bars = []
    for index, name in enumerate(names):
        share, y = mean_recall(rows, name), index * height
        colour = "var(--md-primary-fg-color)" if name in OURS else "var(--md-default-fg-color--lighter)"
        label = html.escape(show_name(name).replace("*", "").replace("`", ""))
        bars.append(
            f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{label}</text>'
            f'<rect x="{left}" y="{y + 3}" width="{share * (width - left - 50):.0f}" height="{height - 6}" fill="{colour}"/>'
            f'<text x="{left + share * (width - left - 50) + 6:.0f}" y="{y + 15}">{format_share(share)}</text>'
        )
    size = f'viewBox="0 0 {width} {len(names) * height}" width="100%" role="img" aria-label="mean recall at five"'
    style = 'fill="currentColor" font-size="13" font-family="inherit"'
    return f'<div><svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(bars)}</svg></div>'


def format_share(share: float | None) -> str:
    return "–" if share is None else f"{share:.3f}".removeprefix("0")


def format_ratio(row: Row, name: str) -> str:
    time = find_figures(row, name).get("p50")
    return "–" if time is None else f"{time / row['ours']['default']['p50']:.2f}"


def store_results(files: Sequence[Path], peer_python: Path) -> None:
    """Store the results of `benchmarks/retrieval.py`, one file per set."""
    root = RESULTS.parent.parent
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=True
    )
    about = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "python": sys.version.split()[0],
        "versions": read_versions(peer_python),
    }
    RESULTS.mkdir(exist_ok=True)
    for file in files:
        for row in json.loads(file.read_text(encoding="utf-8"))["quality"]["plain"]:
            kept = {
                "set": row["set"],
                "tools": row["tools"],
                "messages": row["messages"],
                "seen": row["seen"],
            }
            kept |= about | {"ours": {name: keep_figures(row["ours"][name]) for name in OURS}}
            kept |= {"peers": {name: keep_figures(each) for name, each in row["peers"].items()}}
            text = json.dumps(kept, indent=1, sort_keys=True) + "\n"
            (RESULTS / f"retrieval-{row['set']}.json").write_text(text, encoding="utf-8")


def keep_figures(figures: Mapping[str, Any] | None) -> Row:
    """Return the figures that the page shows."""
    return {key: figures[key] for key in ("R@1", "R@5", "R@8", "MRR", "p50") if figures and key in figures}


def read_versions(python: Path) -> dict[str, str]:
    """Return the installed versions of the other projects."""
    script = (
        "import importlib.metadata as m, json\n"
        f"names = {sorted(set(PACKAGES.values()))!r}\n"
        "found = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
        "print(json.dumps({n: found[n] for n in names if n in found}))"
    )
    done = subprocess.run([str(python), "-c", script], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    for each in (python.parent.parent / "hermes").glob("hermes_agent-*.dist-info"):
        found["hermes-agent"] = each.name.removesuffix(".dist-info").partition("-")[2]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--peer-python", type=Path, required=True)
    chosen = parser.parse_args()
    store_results(chosen.results, chosen.peer_python)


if __name__ == "__main__":
    main()
