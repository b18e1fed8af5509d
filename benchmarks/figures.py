"""The chart of ratios and the scaling curves, readable on light and on dark pages."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from benchmarks.comparison import Row
from benchmarks.slopes import Curve
from benchmarks.table import number

COLOURS = {"torch": "#e69f00", "gpytorch": "#0072b2", "botorch": "#009e73", "baybe": "#cc79a7"}
INK = "#7a828c"  # seen on white and on black
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "svg.hashsalt": "dkaf",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.8,
}


def save(figure: Figure, stem: Path) -> None:
    """As PNG and SVG, on no ground of their own."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure.savefig(stem.with_suffix(".png"), dpi=160, transparent=True)
        figure.savefig(stem.with_suffix(".svg"), transparent=True, metadata={"Date": None})


def chart(rows: Sequence[Row]) -> Figure:
    """A bar a row: how many times faster we are, on a logarithmic axis, with quartiles."""
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(9, 0.9 + 0.27 * len(rows)), layout="constrained")
        axes = figure.subplots()
        first = {row.comparison: place for place, row in reversed(list(enumerate(rows)))}
        for place, row in enumerate(rows):
            axes.barh(place, row.ratio, height=0.7, color=COLOURS[row.peer.partition("-")[0]])
            axes.plot([row.low, row.high], [place, place], color=INK, linewidth=1.4)
            axes.text(1.12 * max(row.high, row.ratio), place, f"{number(row.ratio)}  {row.name}", va="center")
        axes.set_yticks(list(first.values()), [rows[place].what for place in first.values()])
        axes.invert_yaxis()
        axes.set_xscale("log")
        lowest, highest = min(row.ratio for row in rows), max(row.high for row in rows)
        axes.set_xlim(min(0.9, 0.9 * lowest), 120 * highest)  # room for the names
        ticks = [10**power for power in range(8) if 10**power <= highest]
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
        axes.set_xlabel("times faster than the peer", loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def scaling(panels: Sequence[tuple[str, Sequence[Curve]]]) -> Figure:
    """A panel a subject: cost relative to the smallest size, with the line of the slope expected at most."""
    colours = ("#d55e00", "#0072b2", "#009e73")
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(3.0 * len(panels), 3.1), layout="constrained")
        for axes, (across, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for curve, colour in zip(curves, colours, strict=False):
                relative = [cost / curve.costs[0] for cost in curve.costs]
                label = f"{curve.name}: slope {curve.upper.slope:.2f} ± {curve.upper.error:.2f}"
                axes.plot(curve.sizes, relative, "o-", color=colour, markersize=4, linewidth=1.4, label=label)
            last, top = curves[0], max(curve.costs[-1] / curve.costs[0] for curve in curves)
            guide = [top * (size / last.sizes[-1]) ** last.expected for size in last.sizes]
            axes.plot(last.sizes, guide, color=INK, linewidth=0.8, linestyle=":", label=f"slope {last.expected:g}")
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_ylim(0.5, 3 * top)
            axes.set_xlabel(across)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False, loc="upper left", labelcolor=INK, fontsize=7.5)
        figure.axes[0].set_ylabel("cost relative to the smallest size")
    return figure
