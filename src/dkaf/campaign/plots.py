"""A campaign as a picture: best so far, what is expected of the best candidates, a map of the pool."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from dkaf.campaign.campaign import Campaign
from dkaf.errors import InputError
from dkaf.files import whole_file
from dkaf.search import Search
from dkaf.seeding import stream
from dkaf.tasks import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg", ".pdf")
RANKED = 100  # best candidates that are shown with what is expected of them
MAPPED = 3000  # candidates on the map; of larger pools, so many at random
AT_ONCE = 50_000  # candidates whose beliefs are computed together
BLUE, ORANGE = "#0b5fa5", "#c2410c"


class Picture(NamedTuple):
    """The numbers behind the plots, in the user's units."""

    measured: list[float]
    """In order."""
    best: list[float]
    """The best candidate after each; of repeated measurements the mean counts."""
    values: dict[int, float]
    """The mean of each measured row."""
    pending: list[int]
    mean: FloatArray | None
    """What is expected of every row of the pool; None for policies that expect nothing."""
    deviation: FloatArray | None
    mapped: list[int]
    """Rows on the map: those that were measured, those that are pending, and others."""
    places: FloatArray
    """Where each of them is: two main directions of the representation."""


def picture(campaign: Campaign) -> Picture:
    """All that is drawn."""
    search, (state, _) = campaign.search(), campaign.observations()
    best: list[float] = []
    several: dict[int, list[float]] = {}
    for told in state.told:
        several.setdefault(told.row, []).append(told.value)
        means = [float(np.mean(each)) for each in several.values()]
        best.append(min(means) if campaign.minimise else max(means))
    measured = [told.value for told in state.told]
    pending = [row for row in state.pending if row not in several]
    shown = [*several, *pending]
    order = torch.randperm(len(search), generator=stream(0, "map"))[: MAPPED + len(shown)].tolist()
    mapped = shown + [row for row in order if row not in set(shown)][:MAPPED]
    mean, deviation = _beliefs(search, -1.0 if campaign.minimise else 1.0)
    values = {row: float(np.mean(each)) for row, each in several.items()}
    places = _two_directions(search.representations(mapped))
    return Picture(measured, best, values, pending, mean, deviation, mapped, places)


def write_plot(campaign: Campaign, path: str | os.PathLike[str]) -> None:
    """Draw it to a file, whole or not at all."""
    kind = Path(path).suffix.lower()
    if kind not in FORMATS:
        raise InputError(f"a plot is a {', '.join(FORMATS)} file, {path} came; name one of these")
    from matplotlib.figure import Figure

    shown, name = picture(campaign), campaign.response or "response"
    figure = Figure(figsize=(15, 4.6), layout="constrained")
    axes: Any = figure.subplots(1, 3)
    _draw_best(axes[0], shown, name)
    _draw_ranking(axes[1], shown, name, campaign.minimise)
    _draw_map(axes[2], figure, shown, name)
    with whole_file(path) as file:
        figure.savefig(file, format=kind[1:], dpi=130)


def _beliefs(search: Search, sign: float) -> tuple[FloatArray | None, FloatArray | None]:
    parts = [
        search.believe(range(first, min(first + AT_ONCE, len(search)))) for first in range(0, len(search), AT_ONCE)
    ]
    known = [part for part in parts if part is not None]
    if not known:
        return None, None
    return sign * np.concatenate([mean for mean, _ in known]), np.concatenate([deviation for _, deviation in known])


def _draw_best(axes: "Axes", shown: Picture, name: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set(title="Best so far", xlabel="measurement", ylabel=name)
    if not shown.measured:
        axes.text(0.5, 0.5, "nothing measured yet", ha="center", transform=axes.transAxes)
        return
    numbers = range(1, len(shown.measured) + 1)
    axes.step(numbers, shown.best, where="post", color=BLUE, linewidth=2, label="best so far")
    axes.plot(numbers, shown.measured, "o", color="#555", markersize=5, label="measured")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)


def _draw_ranking(axes: "Axes", shown: Picture, name: str, minimise: bool) -> None:
    axes.set(xlabel="rank by what is expected", ylabel=name)
    if shown.mean is None or shown.deviation is None:
        axes.text(0.5, 0.5, "this policy expects nothing", ha="center", transform=axes.transAxes)
        return
    order = np.argsort(shown.mean if minimise else -shown.mean, kind="stable")[:RANKED]
    mean, spread, ranks = shown.mean[order], shown.deviation[order], np.arange(1, len(order) + 1)
    axes.set(title=f"What is expected of the {len(order)} best")
    axes.fill_between(
        ranks, mean - spread, mean + spread, color=BLUE, alpha=0.18, linewidth=0, label="two times in three"
    )
    axes.plot(ranks, mean, color=BLUE, linewidth=2, label="expected")
    seen = [(rank, shown.values[row]) for rank, row in zip(ranks, order.tolist(), strict=True) if row in shown.values]
    if seen:
        axes.plot(*zip(*seen, strict=True), "o", color=ORANGE, markersize=5, label="measured")
    axes.legend(frameon=False)


def _draw_map(axes: "Axes", figure: Any, shown: Picture, name: str) -> None:
    axes.set(
        title="The pool as the policy sees it", xlabel="first main direction", ylabel="second", xticks=[], yticks=[]
    )
    x, y = shown.places.T
    if shown.mean is None:
        axes.scatter(x, y, color="#bbb", s=9, linewidths=0)
    else:
        points = axes.scatter(x, y, c=shown.mean[shown.mapped], s=9, cmap="viridis", linewidths=0)
        figure.colorbar(points, ax=axes, label=f"expected {name}")
    n, m = len(shown.values), len(shown.values) + len(shown.pending)
    hollow: dict[str, Any] = {"markersize": 8, "markerfacecolor": "none", "linestyle": "none"}
    if n:
        axes.plot(x[:n], y[:n], marker="o", markeredgecolor=ORANGE, markeredgewidth=1.8, label="measured", **hollow)
    if m > n:
        axes.plot(x[n:m], y[n:m], marker="s", markeredgecolor="black", label="pending", **hollow)
    if m:
        axes.legend(frameon=True, loc="best", fontsize=8)


def _two_directions(z: FloatArray) -> FloatArray:
    """Principal components; a pool with less has zeros."""
    centred = z - z.mean(axis=0)
    _, _, directions = np.linalg.svd(centred[:1000], full_matrices=False)
    places = centred @ directions[:2].T
    return np.pad(places, ((0, 0), (0, 2 - places.shape[1])))
