"""Gaps as lines in panels: what is drawn is a value, how it is drawn is the same for every figure."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dkaf.experiments.names import COLOURS, INFORMED, MARKERS, NAMES, OTHER_COLOUR, OURS
from dkaf.tasks import FloatArray


@dataclass(frozen=True, eq=False)
class Line:
    """A method's gaps and standard errors; NaN leaves a gap in the line."""

    method: str
    gaps: FloatArray
    errors: FloatArray


@dataclass(frozen=True, eq=False)
class Panel:
    """One set of axes."""

    title: str
    lines: Sequence[Line]


@dataclass(frozen=True, eq=False)
class Drawing:
    """Panels in rows of one length, all with the same places on their horizontal axis."""

    panels: Sequence[Sequence[Panel]]
    places: Sequence[int]
    across: str
    """What the places count."""
    up: str
    shared: bool = True
    """Whether the panels of a row are in the same units and share their vertical axis."""

    @property
    def methods(self) -> list[str]:
        """Those with a point to draw, in the order of their names."""
        lines = (line for row in self.panels for panel in row for line in panel.lines)
        found = {line.method for line in lines if np.isfinite(line.gaps).any()}
        return [method for method in NAMES if method in found] + sorted(found - NAMES.keys())


INK, GROUND, GRID = "#22262b", "#ffffff", "#e3e5e8"
DARK = {INK: "#dfe3e8", GROUND: "#16191d", GRID: "#343a41"}
"""What these become on a dark ground; the colours of methods are seen on both."""

_STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters everywhere
    "font.size": 9.5,
    "svg.hashsalt": "dkaf",
    "svg.fonttype": "path",
    "axes.linewidth": 0.8,
    "text.parse_math": False,  # names are the user's: a dollar is a dollar
}


def draw(drawing: Drawing, *, narrow: bool = False) -> Figure:
    """The panels in rows, or below each other for a narrow screen; one legend on top."""
    rows = len(drawing.panels)
    columns = len(drawing.panels[0])
    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]  # the keys are literals in the stubs
        if narrow:
            figure = Figure(figsize=(4.4, 2.8 * rows * columns + 0.75), layout="constrained")
            grid = figure.subplots(rows * columns, 1, squeeze=False).reshape(rows, columns)
        else:
            figure = Figure(figsize=(max(6.4, 3.6 * columns), 2.8 * rows + 0.6), layout="constrained")
            grid = figure.subplots(rows, columns, squeeze=False)
        figure.get_layout_engine().set(w_pad=0.09, h_pad=0.07)  # type: ignore[union-attr, call-arg]
        figure.set_facecolor(GROUND)
        for (down, right), axes in np.ndenumerate(grid):
            row = drawing.panels[down]
            _draw_panel(axes, row[right], drawing)
            _set_limits(axes, row if drawing.shared else [row[right]])
            leftmost, lowest = narrow or right == 0, narrow or down == rows - 1
            axes.set_xlabel(drawing.across if lowest else "")
            axes.set_ylabel(drawing.up if leftmost else "")
            axes.tick_params(labelbottom=lowest, labelleft=leftmost or not drawing.shared)
        _draw_legend(figure, drawing.methods)
    return figure


def _draw_panel(axes: Axes, panel: Panel, drawing: Drawing) -> None:
    for line in reversed(panel.lines):  # ours comes first, and is drawn over the others
        axes.errorbar(drawing.places, line.gaps, line.errors, **line_style(line.method))
    if not any(np.isfinite(line.gaps).any() for line in panel.lines):
        axes.text(0.5, 0.5, "no rows yet", transform=axes.transAxes, ha="center", va="center", color=INK)
    axes.set_title(panel.title, loc="left", fontsize=10, fontweight="bold", color=INK)
    room = 0.05 * (max(drawing.places) - min(drawing.places)) or 1.0
    axes.set_xlim(min(drawing.places) - room, max(drawing.places) + room)
    axes.set_xticks(list(drawing.places))
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    axes.set_facecolor(GROUND)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    axes.tick_params(colors=INK, length=3)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)


def _set_limits(axes: Axes, panels: Sequence[Panel]) -> None:
    """From just below zero, so that the line of a search that misses nothing is seen, to just above the highest bar."""
    tops = [line.gaps + np.nan_to_num(line.errors) for panel in panels for line in panel.lines]
    highest = max((float(np.nanmax(top)) for top in tops if np.isfinite(top).any()), default=1.0)
    highest = highest if highest > 0 else 1.0
    axes.set_ylim(-0.04 * highest, 1.05 * highest)


def line_style(method: str) -> dict[str, Any]:
    """How a method's line looks in every figure."""
    if method == INFORMED:
        thin = {"linewidth": 1.0, "linestyle": ":", "elinewidth": 0.8, "marker": ".", "markersize": 2.5}
        return {"label": NAMES[method], "color": INK} | thin
    ours = method == OURS
    return {
        "label": NAMES.get(method, method),
        "color": COLOURS.get(method, OTHER_COLOUR),
        "marker": MARKERS.get(method, "h"),
        "markersize": 5 if ours else 4,
        "linewidth": 2.4 if ours else 1.3,
        "linestyle": (0, (4, 2)) if method == "random" else "-",
        "elinewidth": 1.2,
    }


def _draw_legend(figure: Figure, methods: Sequence[str]) -> None:
    """Once a figure, in the order of the tables."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        handles |= {str(handle.get_label()): handle for handle in axes.containers}
    labels = [name for name in (NAMES.get(method, method) for method in methods) if name in handles]
    if labels:
        figure.legend(
            [handles[label] for label in labels],
            labels,
            loc="outside upper left",
            ncols=min(int(figure.get_figwidth() / 1.25), len(labels)),
            frameon=False,
            labelcolor=INK,
            handlelength=2.6,
            columnspacing=1.6,
        )


def png_bytes(figure: Figure, dots: int = 200) -> bytes:
    return _bytes(figure, "png", dpi=dots)


def svg_bytes(figure: Figure) -> bytes:
    """The same bytes for the same figure: no date, and names inside that do not vary."""
    return _bytes(figure, "svg", metadata={"Date": None})


def darkened(svg: bytes) -> bytes:
    """The same drawing for a dark ground."""
    for light, dark in DARK.items():
        svg = svg.replace(light.encode(), dark.encode())
    return svg


def _bytes(figure: Figure, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]
        figure.savefig(buffer, format=kind, **options)
    return buffer.getvalue()
