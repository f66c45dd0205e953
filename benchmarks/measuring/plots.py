"""Plot a result. The only module that imports matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from measuring.need import curve
from measuring.quality import DEFAULT, LIGHT
from measuring.report import best_peer
from measuring.scores import Figures

INK = {"default": "#1f5fa8", "light": "#7fb2e5", "keyword": "#b9c4cf", "peer": "#d9822b", "faint": "#c9c9c9"}


def draw(result: Figures, folder: Path) -> list[Path]:
    """Write a plot per part of the result and return the files."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "toolfold"  # the same result, the same file
    drawn = []
    for level, tasks in result.get("quality", {}).items():
        drawn.append(_save_figure(_plot_quality(tasks), folder / f"quality-{level}.svg"))
    if result.get("speed"):
        drawn.append(_save_figure(_plot_speed(result["speed"]), folder / "speed.svg"))
    if any(told["chat"] and told["needs"] for told in result.get("need", {}).values()):
        drawn.append(_save_figure(_plot_need(result["need"]), folder / "need.svg"))
    return drawn


def draw_scale(rows: Sequence[Figures], file: Path) -> Path:
    """Plot build time, time of a search, memory and recall by the number of tools."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "toolfold"
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 6.0), layout="constrained")
    (build, times), (memory, recall) = figure.subplots(2, 2)
    own = [row for row in rows if "build_s" in row]
    shared = [row | row["postgres"] for row in rows if row.get("postgres")]
    lines = (
        (build, own, "memory", "default", lambda row: row["build_cpu_s"]),
        (
            build,
            shared,
            "PostgreSQL: replica and database",
            "peer",
            _sum_of("publish_cpu_s", "publish_database_cpu_s"),
        ),
        (times, own, "memory", "default", lambda row: row["query_p50_ms"]),
        (
            times,
            shared,
            "PostgreSQL: replica and database",
            "peer",
            _sum_of("all_cpu_p50_ms", "all_database_cpu_ms"),
        ),
        (times, shared, "PostgreSQL: replica alone", "faint", lambda row: row["all_cpu_p50_ms"]),
        (memory, own, "memory", "default", lambda row: row["memory_mb"]),
        (memory, shared, "PostgreSQL: replica", "peer", lambda row: row["memory_mb"]),
        (memory, own, "tools without an index", "faint", lambda row: row["memory_of_catalog_mb"]),
        (recall, own, "memory", "default", lambda row: row["recall"]),
        (recall, shared, "PostgreSQL", "peer", lambda row: row["recall"]),
    )
    for axes, found, label, ink, value in lines:
        sizes = [row["tools"] for row in found]
        axes.plot(sizes, list(map(value, found)), color=INK[ink], marker="o", label=label)
    sizes = [row["tools"] for row in rows]
    labels = {
        build: "CPU s to build",
        times: "CPU ms a search (p50)",
        memory: "MB of the process",
        recall: "recall@10",
    }
    for axes, label in labels.items():
        _format_scale_axes(axes, sizes, label, is_share=axes is recall)
    return _save_figure(figure, file)


def _format_scale_axes(axes: Any, sizes: Sequence[int], label: str, *, is_share: bool) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], minor=False)
    if is_share:
        axes.set_ylim(0.8, 1.01)
    else:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.minorticks_off()
    axes.set_xlabel("tools")
    axes.set_ylabel(label)
    axes.legend(frameon=False, fontsize=7)


def _sum_of(*names: str) -> Callable[[Figures], float]:
    return lambda row: sum(row[name] for name in names)


def _plot_quality(tasks: Sequence[Figures]) -> Any:
    figure, axes = _make_axes(width=max(6.0, 0.9 * len(tasks) + 1))
    bars = [("keyword", "keyword leg"), (LIGHT, "light"), (DEFAULT, "default")]
    heights = [(INK[name], label, [task["ours"][name]["R@5"] for task in tasks]) for name, label in bars]
    if any(task["peers"] for task in tasks):
        heights.insert(0, (INK["peer"], "best peer", [best_peer(task)[1] for task in tasks]))
    width = 0.8 / len(heights)
    for place, (colour, label, values) in enumerate(heights):
        across = [number - 0.4 + (place + 0.5) * width for number in range(len(tasks))]
        axes.bar(across, values, width, color=colour, label=label)
    axes.set_xticks(range(len(tasks)), [task["set"] for task in tasks], rotation=30, ha="right")
    axes.set_ylabel("R@5")
    axes.set_ylim(0, 1.0)
    axes.legend(ncols=len(heights), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    return figure


def _plot_speed(rows: Sequence[Figures]) -> Any:
    figure, axes = _make_axes(width=7.0)
    sizes = [row["tools"] for row in rows]
    for peer in sorted({name for row in rows for name in row["peers"]}):
        points = [(row["tools"], row["peers"].get(peer, {}).get("p50")) for row in rows]
        known = [(size, value) for size, value in points if value]
        if known:
            axes.plot(*zip(*known, strict=True), color=INK["faint"], linewidth=1)
            axes.annotate(
                peer, known[-1], fontsize=6, color="#777777", xytext=(3, 0), textcoords="offset points"
            )
    for name in (DEFAULT, LIGHT):
        axes.plot(sizes, [row[name]["p50"] for row in rows], color=INK[name], marker="o", label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], minor=False)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_xlabel("tools")
    axes.set_ylabel("CPU ms a message (p50)")
    axes.legend(frameon=False)
    return figure


def _plot_need(sets: dict[str, Figures]) -> Any:
    figure, axes = _make_axes(width=6.0)
    for name, told in sets.items():
        if told["chat"] and told["needs"]:
            points = curve(told["chat"]["need"], told["needs"]["need"])
            refused, passed = [100 * p[1] for p in points], [100 * p[2] for p in points]
            (line,) = axes.plot(refused, passed, label=name, drawstyle="steps-post")
            here = (100 * (1 - told["needs"]["selected"]), 100 * told["chat"]["selected"])
            axes.plot(*here, "o", color=line.get_color())
    axes.axvline(2, color=INK["faint"], linestyle=":")
    axes.axhline(5, color=INK["faint"], linestyle=":")
    axes.set_xlim(0, 12)
    axes.set_ylim(0, 30)
    axes.set_xlabel("% of messages with a need that are refused")
    axes.set_ylabel("% of chit-chat that selects a tool")
    axes.legend(frameon=False)
    return figure


def _make_axes(width: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save_figure(figure: Any, file: Path) -> Path:
    figure.savefig(file, metadata={"Date": None})
    return file
