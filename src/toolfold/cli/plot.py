"""The pictures of `--plot`: recall against tokens sent, and dollars by message.

Draws what it is given. The drawing library is an extra and is loaded only here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
# Colours that stay apart for eyes that confuse some; the markers tell the curves apart in print.
LOOKS = {
    "keyword": ("#E69F00", "s"),
    "semantic": ("#0072B2", "^"),
    "hybrid": ("#009E73", "o"),
    "rerank": ("#CC79A7", "D"),
}
DASHES = {"eager slim": "--", "search+describe": ":"}


@dataclass(frozen=True, slots=True)
class Point:
    """What the first `depth` tools cost and find, on average."""

    depth: int
    tokens: float
    recall: float


@dataclass(frozen=True, slots=True)
class Curve:
    """One mode's points, from few tools to many."""

    mode: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Panel:
    """One model's dollars: for each strategy, what was spent after each message."""

    title: str
    spent: Mapping[str, Sequence[float]]


def plot_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The `--plot` of a command that can draw."""
    said = f"Draw {what}, into this {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}."
    return click.option("--plot", type=click.Path(path_type=Path), callback=_checked, help=said)


def _checked(_context: click.Context, _option: click.Parameter, file: Path | None) -> Path | None:
    """Refuse, before any work, what could not be drawn after it."""
    if file is None:
        return None
    if file.suffix.lower() not in SUFFIXES:
        raise click.BadParameter(f"{file.name!r} must end in {', '.join(SUFFIXES)}")
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise click.BadParameter(f"{str(file)!r} cannot be written there")
    if importlib.util.find_spec("matplotlib") is None:
        raise click.ClickException("--plot needs matplotlib: pip install 'toolfold[plot]'")
    return file


def draw_recall(file: Path, curves: Sequence[Curve], about: str, *, numbered: str) -> None:
    """A curve a mode; one mode's points are numbered."""
    figure = _figure(8, 5)
    axes = figure.subplots()
    for curve in curves:
        _draw_curve(axes, curve)
        if curve.mode == numbered:
            _number(axes, curve.points)
    _draw_axes(axes, about, lowest=min(point.recall for curve in curves for point in curve.points))
    _save(figure, file)


def draw_dollars(file: Path, panels: Sequence[Panel]) -> None:
    """A panel a model, a curve a strategy."""
    from matplotlib.ticker import MaxNLocator

    figure = _figure(5 * len(panels), 4.5)
    for place, panel in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), place)
        for strategy, spent in panel.spent.items():
            axes.plot(range(1, len(spent) + 1), spent, DASHES.get(strategy, "-"), label=strategy)
        axes.set(title=panel.title, xlabel="messages", ylabel="dollars so far")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 3 * len(panels)))
    _save(figure, file)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def _save(figure: Figure, file: Path) -> None:
    """Write the picture; its suffix says in which format."""
    try:
        figure.savefig(file)
    except OSError as error:
        raise click.ClickException(f"{file} could not be written: {error}") from None


def _draw_curve(axes: Axes, curve: Curve) -> None:
    colour, marker = LOOKS[curve.mode]
    axes.plot(
        [point.tokens for point in curve.points],
        [point.recall for point in curve.points],
        color=colour,
        marker=marker,
        markersize=5,
        linewidth=1.8,
        label=curve.mode,
    )


def _number(axes: Axes, points: Sequence[Point]) -> None:
    for point in points:
        axes.annotate(
            f"{point.depth}",
            (point.tokens, point.recall),
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color="#444444",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.7},
        )


def _draw_axes(axes: Axes, about: str, *, lowest: float) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: f"{tokens:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    room = 0.08 * max(1 - lowest, 0.05)
    axes.set_ylim(lowest - room, 1 + room)
    axes.set_yticks([tick for tick in axes.get_yticks() if lowest - room <= tick < 1.001])
    axes.set_xlabel("tokens of the tools sent with a message (mean, o200k)")
    axes.set_ylabel("recall: share of the needed tools among them")
    axes.set_title(f"What is found for what is sent\n{about}", fontsize=10, loc="left")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="mode (numbers: tools sent)", loc="lower right", frameon=False)
