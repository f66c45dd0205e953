"""Draw the plots of `--plot`: recall against tokens sent, and cost by message.

Matplotlib is an optional dependency and is imported only here.
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

    from toolfold.runtime.evaluation import CurvePoint, RecallCurve

SUFFIXES = (".png", ".svg", ".pdf")
# A colour-blind-safe palette; the markers distinguish the curves in black-and-white print.
MODE_STYLES = {
    "keyword": ("#E69F00", "s"),
    "semantic": ("#0072B2", "^"),
    "hybrid": ("#009E73", "o"),
    "rerank": ("#CC79A7", "D"),
}
LINE_STYLES = {"eager slim": "--", "search+describe": ":"}


@dataclass(frozen=True, slots=True)
class CostPanel:
    """Cost of one model: for each strategy of sending tools, the dollars spent after each message."""

    title: str
    spent: Mapping[str, Sequence[float]]


def plot_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the `--plot` option for a command; `what` names the plot in the help text."""
    text = f"Plot {what} to this {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file."
    return click.option("--plot", type=click.Path(path_type=Path), callback=_validate_file, help=text)


def _validate_file(_context: click.Context, _option: click.Parameter, file: Path | None) -> Path | None:
    """Raise an error early if a plot cannot be written to the file, for example because of its suffix."""
    if file is None:
        return None
    if file.suffix.lower() not in SUFFIXES:
        raise click.BadParameter(f"the file name {file.name!r} must end in {', '.join(SUFFIXES)}")
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise click.BadParameter(
            f"{str(file)!r} cannot be written: it is a directory, or its directory does not exist"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise click.ClickException("--plot needs matplotlib: pip install 'toolfold[plot]'")
    return file


def draw_recall(file: Path, curves: Sequence[RecallCurve], about: str, *, numbered: str) -> None:
    """Draw one recall curve per search mode.

    The points of the mode `numbered` are labelled with their numbers of tools.
    """
    figure = _new_figure(8, 5)
    axes = figure.subplots()
    for curve in curves:
        _draw_curve(axes, curve)
        if curve.mode == numbered:
            _number_points(axes, curve.points)
    _draw_axes(axes, about, lowest=min(point.recall for curve in curves for point in curve.points))
    _save_figure(figure, file)


def draw_dollars(file: Path, panels: Sequence[CostPanel]) -> None:
    """Draw one panel of costs per model, with one curve per strategy of sending tools."""
    from matplotlib.ticker import MaxNLocator

    figure = _new_figure(5 * len(panels), 4.5)
    for place, panel in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), place)
        for strategy, spent in panel.spent.items():
            axes.plot(range(1, len(spent) + 1), spent, LINE_STYLES.get(strategy, "-"), label=strategy)
        axes.set(title=panel.title, xlabel="messages", ylabel="dollars so far")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 3 * len(panels)))
    _save_figure(figure, file)


def _new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def _save_figure(figure: Figure, file: Path) -> None:
    """Write the figure in the format of the file's suffix."""
    try:
        figure.savefig(file)
    except OSError as error:
        raise click.ClickException(f"{file} could not be written: {error}") from None


def _draw_curve(axes: Axes, curve: RecallCurve) -> None:
    colour, marker = MODE_STYLES[curve.mode]
    axes.plot(
        [point.tokens for point in curve.points],
        [point.recall for point in curve.points],
        color=colour,
        marker=marker,
        markersize=5,
        linewidth=1.8,
        label=curve.mode,
    )


def _number_points(axes: Axes, points: Sequence[CurvePoint]) -> None:
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
    axes.set_ylabel("recall: share of the needed tools that are sent")
    axes.set_title(f"Recall by tokens sent\n{about}", fontsize=10, loc="left")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="mode (numbers: count of tools sent)", loc="lower right", frameon=False)
