"""Format results as Markdown tables. Knows the shape of the results, not how they were measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from measuring.quality import DEFAULT, LIGHT, SYSTEMS
from measuring.scores import Figures

BARS = {  # what the default and the light configuration promise: milliseconds by the number of tools
    DEFAULT: {10_000: 5.0, 47_000: 10.0},
    LIGHT: {226: 0.5, 10_000: 1.0, 47_000: 5.0},
}


def sections(result: Figures) -> dict[str, str]:
    """Return all tables of a result, by file name."""
    told = {}
    for level, tasks in result.get("quality", {}).items():
        told[f"quality-{level}"] = quality(tasks)
        told[f"depths-{level}"] = depths(tasks)
        if any(task["peers"] for task in tasks):
            told[f"peers-{level}"] = peers(tasks)
        if any("kinds" in task["ours"][DEFAULT] for task in tasks):
            told[f"kinds-{level}"] = kinds(tasks)
    if result.get("speed"):
        told |= {"speed": speed(result["speed"]), "costs": costs(result)}
        if any(row["peers"] for row in result["speed"]):
            told["speed-peers"] = speed_peers(result["speed"])
    if result.get("need"):
        told["need"] = need(result["need"])
    return told


def quality(tasks: Sequence[Figures]) -> str:
    """Return a table of R@5 of Toolfold's modes and of the best peer."""
    head = ["set", "tools", "messages", *(system.name for system in SYSTEMS), "best peer", "ahead by"]
    rows = []
    for task in tasks:
        ours = [task["ours"][system.name]["R@5"] for system in SYSTEMS]
        name, best = best_peer(task)
        ahead = f"{(task['ours'][DEFAULT]['R@5'] - best) * 100:+.1f}" if name else "–"
        told = f"{share(best)} {name}" if name else "–"
        mark = " \\*" if task["seen"] else ""
        rows.append([task["set"] + mark, count(task), task["messages"], *map(share, ours), told, ahead])
    note = "\n\n\\* The weights were trained on this set." if any(task["seen"] for task in tasks) else ""
    return f"R@5.\n\n{table(head, rows)}{note}"


def depths(tasks: Sequence[Figures]) -> str:
    """Return a table of the default, the light model and the best peer at every ranking depth."""
    keys = ("R@1", "R@5", "R@8", "MRR")
    systems = (DEFAULT, LIGHT, "best peer")
    head = ["set", *(f"{system} {key}" for system in systems for key in keys)]
    rows = []
    for task in tasks:
        name, _ = best_peer(task)
        each = [task["ours"][DEFAULT], task["ours"][LIGHT], task["peers"].get(name, {})]
        rows.append([task["set"], *(share(figures.get(key)) for figures in each for key in keys)])
    return table(head, rows)


def peers(tasks: Sequence[Figures]) -> str:
    """Return a table of R@5 of every peer on every data set."""
    names = sorted({name for task in tasks for name in task["peers"]})
    rows = [
        ["**ours**", *(share(task["ours"][DEFAULT]["R@5"]) for task in tasks)],
        ["**ours, light**", *(share(task["ours"][LIGHT]["R@5"]) for task in tasks)],
    ]
    rows += [[name, *(_or_problem(task["peers"].get(name, {}), "R@5") for task in tasks)] for name in names]
    return table(["R@5", *(task["set"] for task in tasks)], rows)


def kinds(tasks: Sequence[Figures]) -> str:
    """Return a table of R@5 by kind of message."""
    shown = ("keyword", "semantic", DEFAULT, LIGHT)
    rows = []
    for task in tasks:
        for kind, figures in task["ours"][DEFAULT].get("kinds", {}).items():
            ours = [task["ours"][name]["kinds"][kind]["R@5"] for name in shown]
            best = max(
                (p["kinds"][kind]["R@5"] for p in task["peers"].values() if "kinds" in p), default=None
            )
            rows.append([task["set"], kind, figures["messages"], *map(share, ours), share(best)])
    return table(["set", "kind", "messages", *shown, "best peer"], rows)


def speed(rows: Sequence[Figures]) -> str:
    """Return a table of the CPU milliseconds of a whole search, including the embedding model."""
    head = ["tools", "default p50", "p99", "at most", "light p50", "p99", "at most"]
    told = []
    for row in rows:
        cells: list[Any] = [f"{row['tools']:,}"]
        for name in (DEFAULT, LIGHT):
            bar = BARS[name].get(row["tools"])
            cells += [ms(row[name]["p50"]), ms(row[name]["p99"]), ms(bar)]
        told.append(cells)
    return table(head, told)


def speed_peers(rows: Sequence[Figures]) -> str:
    """Return a table of the peers' median CPU milliseconds, and their ratio to Toolfold's default."""
    names = sorted({name for row in rows for name in row["peers"]})
    told = [["**ours**", *(ms(row[DEFAULT]["p50"]) for row in rows)]]
    told += [["**ours, light**", *(ms(row[LIGHT]["p50"]) for row in rows)]]
    told += [[name, *(_format_ratio(row, name) for row in rows)] for name in names]
    return table(["p50 ms (× the default)", *(f"{row['tools']:,}" for row in rows)], told)


def costs(result: Figures) -> str:
    """Return a table of the time of a cold start and of a changed tool, and of memory."""
    rows: list[list[Any]] = []
    for row in result["speed"]:
        tools = f"at {row['tools']:,} tools"
        rows.append(
            [
                f"cold start {tools}, CPU (wall) ms",
                *(_format_clocks(row[n]["cold"]) for n in (DEFAULT, LIGHT)),
            ]
        )
        if "change" in row[DEFAULT]:
            changes = (_format_clocks(row[name]["change"]) for name in (DEFAULT, LIGHT))
            rows.append([f"one tool changed {tools}, CPU (wall) ms", *changes])
    largest = result["speed"][-1]
    tools = f"at {largest['tools']:,} tools, MB"
    for key, what in (
        ("memory_mb", "memory, all in all,"),
        ("memory_of_catalog_mb", "of it the tools themselves,"),
        ("memory_to_build_mb", "memory while the index is built,"),
    ):
        rows.append([f"{what} {tools}", *(f"{largest[name][key]:.0f}" for name in (DEFAULT, LIGHT))])
    if embedding := result.get("embedding"):
        what = f"{embedding['tools']:,} tools of real servers indexed, CPU (wall) s"
        rows.append([what, *(_format_clocks(embedding[name], 1000) for name in (DEFAULT, LIGHT))])
    return table(["", "default", "light"], rows)


def need(sets: Mapping[str, Figures]) -> str:
    """Return a table of how often the need classifier is wrong, by data set."""
    head = [
        "set",
        "chit-chat",
        "selects",
        "messages with a need",
        "refused",
        "own candidates only",
        "selects",
    ]
    rows = []
    for name, told in sets.items():
        refused = 1 - told["needs"]["selected"] if told["needs"] else None
        rows.append(
            [
                name + (" \\*" if told["seen"] else ""),
                told["chat"].get("messages", "–"),
                percent(told["chat"].get("selected")),
                told["needs"].get("messages", "–"),
                percent(refused),
                told["own"].get("messages", "–"),
                percent(told["own"].get("selected")),
            ]
        )
    note = "\n\n\\* The verdict was trained on this set." if any(s["seen"] for s in sets.values()) else ""
    return table(head, rows) + note


def best_peer(task: Figures) -> tuple[str, float]:
    """Return the peer with the highest R@5 and its value; "" if there is no peer."""
    found = {name: figures["R@5"] for name, figures in task["peers"].items() if "R@5" in figures}
    name = max(found, key=lambda each: (found[each], each), default="")
    return name, found.get(name, 0.0)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Format a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def count(task: Figures) -> str:
    return f"{task['tools']:,}"


def share(value: float | None) -> str:
    """Format a share between 0 and 1 with three decimals, as in `.123`."""
    if value is None:
        return "–"
    return f"{value:.3f}".removeprefix("0")


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def ms(value: float | None) -> str:
    """Format a number with its significant digits."""
    if value is None:
        return "–"
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _format_clocks(clocks: Mapping[str, float], unit: float = 1) -> str:
    digits = 0 if unit == 1 else 1
    return f"{clocks['cpu'] / unit:,.{digits}f} ({clocks['wall'] / unit:,.{digits}f})"


def _or_problem(figures: Figures, key: str) -> str:
    if key in figures:
        return share(figures[key])
    return str(figures.get("problem", "–")).split(":")[0]


def _format_ratio(row: Figures, peer: str) -> str:
    figures = row["peers"].get(peer, {})
    if "p50" not in figures:
        return str(figures.get("problem", "–")).split(":")[0]
    return f"{ms(figures['p50'])} (× {figures['p50'] / row[DEFAULT]['p50']:.1f})"
