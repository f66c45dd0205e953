# ruff: noqa: E501 - lines are table rows and prose of the page
"""The leaderboard of the documentation site, written from the results of `benchmarks/leaderboard.py`.

Each set's result has the date of its measurement and the versions of the retrievers, so that a later run can add
or replace sets one by one.
"""

from __future__ import annotations

import functools
import html
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
OURS = {"default": "**Toolfold**", "light": "**Toolfold**, light model", "keyword": "**Toolfold**, keywords"}
PACKAGES = RESULTS.parent / "measuring" / "peer_packages.json"
"""The package of each compared retriever, by the name of its adapter."""
MODES = {
    "eager": "all tools in every request",
    "search, call": "search tool",
    "search": "search tool",
    "pre-selection": "pre-selection of 8",
    "both, tail": "pre-selection beside the message, and search tool",
}
Row = dict[str, Any]

INTRODUCTION = """\
# Leaderboard

Toolfold beside the original code of other projects, on the same messages: how often the tool that a message needs is found, how
long that takes, how many tokens are sent, what a conversation costs with a provider's prompt cache, and what happens if a
message needs no tool. To reproduce it:

```sh
sh scripts/peers_env.sh .venv-peers PEERS
.venv/bin/python benchmarks/leaderboard.py --data SETS --peers PEERS --peer-python .venv-peers/bin/python
```

`PEERS` has the adapters and `SETS` the public sets; neither is part of the repository.

What to know before you compare:

* The sample catalog was written for this project, by its authors. Nothing was trained or tuned on it, but it is ours.
* Of a public set, at most 100 messages are used, a random sample with a fixed seed that is the same for all: a difference of a few
  hundredths means little. A retriever has 30 seconds of processor time per set; its figures are those of the first messages of
  the sample if they are at least 50, and [otherwise there are none](#what-is-missing).
* Retrievers that take an embedding model of the user's choice (ratel-ai semantic and hybrid, litellm, langgraph-bigtool,
  llama-index-core, semantic-tool-router) have a small static one here, WordLlama with 256 dimensions, because it works offline.
  With a larger model they may find more, which was not measured. Toolfold has the models that ship with it.
* The adapters choose settings where a project requires one, such as litellm's threshold, which is 0.
"""
TRAINED_SETS = """\
## Recall@5 of the other projects on public sets

The models that ship with Toolfold were trained on these sets, so their figures there would be too high and are left out. The first
row has models and rankers that never saw the set ([How good it is](retrieval.md#how-good-it-is)). It was measured earlier, on 300
messages per set that are not the same as those of the other rows, and says what to expect, not by how much it is ahead. All sets but
`authored`, which was written for this project, are public.
"""
TOKENS = """\
## Tokens of the tools in a request

Mean tokens (o200k) of the definitions of the eight best hits of a message that needs a tool, and of all tools of the set. Other
projects send definitions as their authors wrote them. Toolfold [shortens them](cost.md); it also sends fewer than eight if a
message needs none or a limit of tokens is reached, which is not counted here.
"""
CONVERSATIONS = """\
## Conversations and the prompt cache

{messages} messages of the sample catalog, drawn with a fixed seed, in conversations of {turns}, with a scripted model that calls a tool only if the request
describes it ([Round trips](performance.md#round-trips)). A retriever can be used in two ways, and each was measured in both: its best eight hits are
the tools of each request, so that the provider's cache ends where the tools change; or the tools are a search and a call tool, which
never change, and the hits are results of searches that take a model call each. Which way a project offers is its own choice. No other
tools are sent. Tokens are per request, cached is the share of all input tokens, dollars are per 1,000 messages with prices of {prices}.
Cache reads are computed from the prefixes of the requests, not measured at a provider. Search results of other projects carry
whole definitions, as their adapters return them, and those of Toolfold signatures: part of the difference in tokens comes from that.
"""
NEEDLESS = """\
## Messages that need no tool

Of the messages that no tool serves, such as “thanks”, how many get tools: fewer is better. On the sample, also how many of its
requests get none. Messages of {own} come with a few candidates that cannot serve them, and are
searched among these only: a retriever that always returns its best hits gets all of them wrong, and so does Toolfold's default.
Its need classifier was trained on messages of the sets above, so it is measured only on the sample and
on `bfcl-irrelevance`.
"""


def render_leaderboard() -> str:
    """Return the leaderboard page as Markdown."""
    rows = read_results()
    found = [row for row in rows if row["messages"]]
    unseen, trained = [row for row in found if not row["seen"]], [row for row in found if row["seen"]]
    parts = [INTRODUCTION, "## Recall@5 on messages that nothing was trained on", draw_means(unseen)]
    parts += [*render_recall(unseen), TRAINED_SETS, *render_recall(trained, held_out=read_held_out())]
    parts += ["## Time of a search", *render_times(found), *render_tokens(found)]
    parts += [*render_conversations(), *render_needless(rows), *render_missing(rows), *render_versions(rows)]
    return "\n\n".join(parts) + "\n"


def read_results() -> list[Row]:
    """Return the stored results; data sets that were not used for training come first."""
    rows = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("retrieval-*.json"))]
    return sorted(rows, key=lambda row: (row["seen"], row["set"] != "sample", row["set"]))


def read_held_out() -> Mapping[str, float]:
    """Return the recall of Toolfold by set, with weights that were not trained on the set."""
    stored: Mapping[str, float] = json.loads((RESULTS / "held-out.json").read_text(encoding="utf-8"))["R@5"]
    return stored


def list_systems(rows: Sequence[Row], *, ours: bool = True) -> list[str]:
    """Return the names of all retrievers, best first by their mean recall."""
    names = {name for row in rows for name in row["systems"] if ours or name not in OURS}
    return sorted(names, key=lambda name: (-mean_recall(rows, name), name))


def mean_recall(rows: Sequence[Row], name: str) -> float:
    """Return the mean recall of a retriever on the data sets it was run on; a missing result counts as 0."""
    shares = [find_figures(row, name).get("R@5", 0.0) for row in rows if find_figures(row, name)]
    return statistics.fmean(shares) if shares else 0.0


def find_figures(row: Row, name: str) -> Row:
    """Return the figures of a retriever on a data set; empty if it was not measured on this set."""
    figures: Row = row["systems"].get(name) or {}
    return figures


@functools.cache
def read_packages() -> dict[str, str]:
    packages: dict[str, str] = json.loads(PACKAGES.read_bytes())
    return packages


def show_name(name: str) -> str:
    return OURS.get(name, f"{read_packages().get(name, name)} (`{name}`)")


def render_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with numbers aligned to the right."""
    rows = [f"| {' | '.join(cells)} |" for cells in (heads, *lines)]
    return "\n".join([rows[0], "|---|" + "---:|" * (len(heads) - 1), *rows[1:]])


def render_recall(rows: Sequence[Row], *, held_out: Mapping[str, float] | None = None) -> Iterator[str]:
    """Yield the table of recall by retriever and set; `held_out` replaces Toolfold's own rows."""
    lines = []
    if held_out:
        known = [held_out.get(row["set"]) for row in rows]
        mean = statistics.fmean(each or 0.0 for each in known)
        lines.append(["*Toolfold, weights without the set*", format_share(mean), *map(format_share, known)])
    for name in list_systems(rows, ours=held_out is None):
        cells = [format_share(find_figures(row, name).get("R@5")) for row in rows]
        lines.append([show_name(name), format_share(mean_recall(rows, name)), *cells])
    lines.append(["*tools*", "", *(f"{row['tools']:,}" for row in rows)])
    lines.append(["*messages*", "", *(str(row["messages"]) for row in rows)])
    yield render_table(["", "mean", *(row["set"] for row in rows)], lines)
    if any("R@5" not in find_figures(row, name) for row in rows for name in list_systems(rows)):
        yield "A dash: [no result](#what-is-missing); it counts as 0 in the mean if the retriever failed or was too slow."


def render_times(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of search times, relative to the time of Toolfold in the same run."""
    timed = [row for row in rows if "p50" in find_figures(row, "default")]
    yield (
        "Processor time of a search at the median, relative to Toolfold's default in the same run: 2.0 is twice as"
        " long. **The machine was busy** with other work during the runs (see [the load](#versions-and-dates)), so small"
        " differences mean nothing. Sets on which Toolfold was not measured are left out."
    )
    lines = [
        [show_name(name), *(format_ratio(row, name) for row in timed)]
        for name in list_systems(timed)
        if any("p50" in find_figures(row, name) for row in timed)
    ]
    lines.append(["*default, ms*", *(f"{find_figures(row, 'default')['p50']:.1f}" for row in timed)])
    yield render_table(["", *(row["set"] for row in timed)], lines)


def render_tokens(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of tokens by retriever and set."""
    counted = [row for row in rows if row.get("tokens")]
    if not counted:
        return
    yield TOKENS
    lines = [["*all tools*", *(f"{row['tokens']:,}" for row in counted)]]
    for name in list_systems(counted):
        cells = [find_figures(row, name).get("tokens") for row in counted]
        lines.append([show_name(name), *("–" if each is None else f"{each:,.0f}" for each in cells)])
    yield render_table(["", *(row["set"] for row in counted)], lines)


def render_conversations() -> Iterator[str]:
    """Yield the table of conversation costs; retrievers that serve most messages come first."""
    file = RESULTS / "conversations.json"
    if not file.exists():
        return
    result: Row = json.loads(file.read_text(encoding="utf-8"))
    yield CONVERSATIONS.format_map(result)
    models = sorted(result["rows"][0]["dollars"])
    heads = ["", "used as", "calls per message", "served", "tokens per request"]
    heads += [f"{head}, {model}" for model in models for head in ("cached", "dollars")]
    lines = []
    for row in sorted(result["rows"], key=lambda row: (-row["served"], row["dollars"][models[0]])):
        name = "**Toolfold**" if row["system"] == "toolfold" else show_name(row["system"])
        if row["mode"] == "eager":
            name = "*no retriever*"
        costs = [
            each
            for model in models
            for each in (f"{row['cached'][model]:.0%}", f"{row['dollars'][model]:.2f}")
        ]
        lines.append(
            [
                name,
                MODES[row["mode"]],
                f"{row['calls']:.2f}",
                f"{row['served']:.1%}",
                f"{row['input_per_request']:,}",
                *costs,
            ]
        )
    yield render_table(heads, lines)
    yield f"Measured {result['date']} with Toolfold {result['commit']}."


def render_needless(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of how many messages that need no tool were answered with tools."""
    asked = [row for row in rows if row["needless"]]
    own = ", ".join(f"`{row['set']}`" for row in asked if row["own_candidates"])
    yield NEEDLESS.format(own=own or "the other sets")
    names = {name for row in asked for name, each in row["systems"].items() if "needless_answered" in each}
    first = asked[0]
    lines = []
    for name in sorted(names, key=lambda name: (share_answered(first, name), name)):
        cells = []
        for row in asked:
            each = find_figures(row, name) if not (name in OURS and row["seen"]) else {}
            counted = "needless_answered" in each
            cells.append(f"{each['needless_answered']} of {each['needless']}" if counted else "–")
        missed = find_figures(first, name).get("unanswered")
        cells.insert(1, "–" if missed is None else f"{missed} of {first['messages']}")
        lines.append([show_name(name), *cells])
    yield render_table(
        ["", asked[0]["set"], "requests without any tool", *(row["set"] for row in asked[1:])], lines
    )


def share_answered(row: Row, name: str) -> float:
    each = find_figures(row, name)
    return each["needless_answered"] / each["needless"] if "needless_answered" in each else 2.0


def render_missing(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of data sets on which a retriever has no figures, or figures of fewer messages."""
    yield "## What is missing"
    lines = []
    names = sorted({name for row in rows for name in row["systems"] if name not in OURS})
    for row in rows:
        for name in names:
            each = find_figures(row, name)
            if not each:
                lines.append([row["set"], f"`{name}`", "not measured: the time for the run was over"])
            elif "problem" in each:
                lines.append([row["set"], f"`{name}`", each["problem"].replace("|", "/")])
            elif each.get("messages", row["messages"]) < row["messages"]:
                lines.append([row["set"], f"`{name}`", f"figures of the first {each['messages']} messages"])
    if lines:
        heads = "| set | retriever | reason |\n|---|---|---|"
        yield "\n".join([heads, *(f"| {' | '.join(cells)} |" for cells in lines)])
    else:
        yield "Nothing: every retriever has figures on every set."
    yield (
        "“Too slow”: fewer than 50 messages within the limit of processor time, which is used up sooner on a busy machine. On the trained sets, Toolfold's shipped models were run only to"
        " compare times, and not on all of them, because every tool has to be embedded first."
    )


def render_versions(rows: Sequence[Row]) -> Iterator[str]:
    """Yield when each set was measured, with which versions, and how busy the machine was."""
    yield "## Versions and dates"
    yield "Load is the mean number of running processes in the minute after a retriever was measured; the machine has two cores."
    lines = [[row["set"], row["date"], row["commit"], row["python"], format_load(row)] for row in rows]
    heads = "| set | measured | Toolfold | Python | load |\n|---|---|---|---|---|"
    yield "\n".join([heads, *(f"| {' | '.join(cells)} |" for cells in lines)])
    versions = {name: version for row in rows for name, version in row["versions"].items()}
    yield (
        "Other projects: "
        + ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        + "."
    )


def format_load(row: Row) -> str:
    loads = [each["load"] for each in row["systems"].values() if "load" in each]
    return f"{min(loads):.0f}–{max(loads):.0f}" if loads else "not recorded"


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
    return "–" if time is None else f"{time / find_figures(row, 'default')['p50']:.2f}"
