"""A campaign as a picture: best so far, what is expected of the best candidates, a map of the pool."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from dkaf.campaign.campaign import Campaign
from dkaf.errors import InputError
from dkaf.files import whole_file
from dkaf.seeding import stream
from dkaf.tasks import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg", ".pdf")
RANKED = 100  # best candidates that are shown with what is expected of them
MAPPED = 3000  # candidates on the map; of larger pools, so many at random


class Picture(NamedTuple):
    """The numbers behind the plots."""

    measured: list[tuple[str, float]]
    """Measurements in order, in the user's units."""
    best: list[float]
    """The best of them after each."""
    rows: list[int]
    """Candidates on the map; those that were measured come first, then those that are pending."""
    places: FloatArray
    """Where each is: two main directions of the representation."""
    mean: FloatArray | None
    deviation: FloatArray | None
    n_measured: int
    n_pending: int


def picture(campaign: Campaign) -> Picture:
    """All that is drawn."""
    search = campaign.search()
    state, ids = campaign.observations()
    measured = [
        (ids[event.row], event.value) for event in state.told if event.row is not None and event.value is not None
    ]
    better = np.minimum if campaign.minimise else np.maximum
    best = better.accumulate([value for _, value in measured]).tolist() if measured else []
    told = list(dict.fromkeys(event.row for event in state.told if event.row is not None))
    pending = [row for row in state.pending if row not in set(told)]
    shown = set(told) | set(pending)
    draw = torch.randperm(len(search), generator=stream(0, "map"))[: MAPPED + len(shown)].tolist()
    rows = [*told, *pending, *[row for row in draw if row not in shown][:MAPPED]]
    beliefs = search.believe(rows)
    mean = None if beliefs is None else np.array([campaign.signed(value) for value in beliefs[0]])
    places = _two_directions(search.representations(rows))
    return Picture(measured, best, rows, places, mean, None if beliefs is None else beliefs[1], len(told), len(pending))


def write_plot(campaign: Campaign, path: str | os.PathLike[str]) -> None:
    """Draw it to a file, whole or not at all."""
    kind = Path(path).suffix.lower()
    if kind not in FORMATS:
        raise InputError(f"a plot is a {', '.join(FORMATS)} file, {path} came; name one of these")
    from matplotlib.figure import Figure

    shown = picture(campaign)
    figure = Figure(figsize=(15, 4.6), layout="constrained")
    axes: Any = figure.subplots(1, 3)
    _draw_best(axes[0], campaign, shown)
    _draw_ranking(axes[1], campaign, shown)
    _draw_map(axes[2], figure, campaign, shown)
    with whole_file(path) as file:
        figure.savefig(file, format=kind[1:], dpi=130)


def _draw_best(axes: "Axes", campaign: Campaign, shown: Picture) -> None:
    name = campaign.response or "response"
    axes.set(title="Best so far", xlabel="measurement", ylabel=name)
    if not shown.measured:
        axes.text(0.5, 0.5, "nothing measured yet", ha="center", transform=axes.transAxes)
        return
    numbers = range(1, len(shown.measured) + 1)
    axes.step(numbers, shown.best, where="post", color="#0b5fa5", linewidth=2, label="best so far")
    axes.plot(numbers, [value for _, value in shown.measured], "o", color="#555", markersize=5, label="measured")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)


def _draw_ranking(axes: "Axes", campaign: Campaign, shown: Picture) -> None:
    axes.set(
        title=f"What is expected of the {RANKED} best",
        xlabel="rank by what is expected",
        ylabel=campaign.response or "response",
    )
    if shown.mean is None or shown.deviation is None:
        axes.text(0.5, 0.5, "this policy expects nothing", ha="center", transform=axes.transAxes)
        return
    order = np.argsort([-campaign.signed(value) for value in shown.mean], kind="stable")[:RANKED]
    mean, spread = shown.mean[order], 2 * shown.deviation[order]
    ranks = np.arange(1, len(order) + 1)
    axes.fill_between(
        ranks, mean - spread, mean + spread, color="#0b5fa5", alpha=0.18, linewidth=0, label="two standard deviations"
    )
    axes.plot(ranks, mean, color="#0b5fa5", linewidth=2, label="expected")
    values: dict[str, list[float]] = {}
    for id_, value in shown.measured:
        values.setdefault(id_, []).append(value)
    means = [float(np.mean(several)) for several in values.values()]  # in the order of the rows
    seen = [(rank, means[place]) for rank, place in zip(ranks, order, strict=True) if place < shown.n_measured]
    if seen:
        axes.plot(*zip(*seen, strict=True), "o", color="#c2410c", markersize=5, label="measured")
    axes.legend(frameon=False)


def _draw_map(axes: "Axes", figure: Any, campaign: Campaign, shown: Picture) -> None:
    axes.set(title="The pool as the policy sees it", xlabel="first main direction", ylabel="second")
    axes.set_xticks([])
    axes.set_yticks([])
    x, y = shown.places.T
    colours = "#bbb" if shown.mean is None else shown.mean
    points = axes.scatter(x, y, c=colours, s=9, cmap="viridis", linewidths=0)
    if shown.mean is not None:
        figure.colorbar(points, ax=axes, label=f"expected {campaign.response or 'response'}")
    n, m = shown.n_measured, shown.n_measured + shown.n_pending
    axes.plot(
        x[:n],
        y[:n],
        "o",
        markersize=8,
        markerfacecolor="none",
        markeredgecolor="#c2410c",
        markeredgewidth=1.8,
        label="measured",
    )
    if m > n:
        axes.plot(x[n:m], y[n:m], "s", markersize=8, markerfacecolor="none", markeredgecolor="black", label="pending")
    if m:
        axes.legend(frameon=True, loc="best", fontsize=8)


def _two_directions(z: FloatArray) -> FloatArray:
    """Principal components; a pool with less has zeros."""
    centred = z - z.mean(axis=0)
    _, _, directions = np.linalg.svd(centred[: min(len(centred), 1000)], full_matrices=False)
    places = centred @ directions[:2].T
    return np.pad(places, ((0, 0), (0, 2 - places.shape[1])))
