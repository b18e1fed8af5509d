"""Gaps of test tasks as means, standard errors and paired differences: pure functions of rows.

A setting is what a line of a figure holds fixed: a dataset, a recipe, a number of training tasks, a method and its
acquisition. Its rows are its runs. A run's gap is the mean over test tasks of their average cumulative gap; a setting's
gap is the mean of its runs' gaps. The test tasks and starting points of a run are the same for every method and every
number of training tasks, so two settings are compared task by task.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from dkaf.evaluation import standard_error
from dkaf.experiments.rows import Cell, Row
from dkaf.tasks import FloatArray

RESAMPLES = 10_000
AT_ONCE = 1000
"""Resamples in memory at once."""
Verdict = Literal["lower", "not told apart", "the same", "higher", "not known"]


@dataclass(frozen=True, order=True)
class Setting:
    """A cell without its run."""

    dataset: str
    recipe: str
    size: int
    method: str
    acquisition: str

    @staticmethod
    def of(cell: Cell | Row) -> "Setting":
        return Setting(cell.dataset, cell.recipe, cell.size, cell.method, cell.acquisition)


@dataclass(frozen=True)
class Standing:
    """Where a setting stands: its gap, the standard error, and the runs they are of."""

    gap: float
    error: float
    """Over runs; of a single run, over its tasks; NaN for a single task."""
    runs: tuple[int, ...]

    @property
    def over(self) -> Literal["runs", "tasks"]:
        """What the standard error is over."""
        return "runs" if len(self.runs) > 1 else "tasks"


def by_setting(rows: Iterable[Row]) -> dict[Setting, list[Row]]:
    """The rows that did not fail, by setting, in the order of runs."""
    groups: dict[Setting, list[Row]] = {}
    for row in sorted((row for row in rows if row.error is None), key=lambda row: row.cell):
        groups.setdefault(Setting.of(row), []).append(row)
    return groups


def standings(rows: Iterable[Row]) -> dict[Setting, Standing]:
    """The gap of every setting that has a row, best first within a dataset, recipe and size."""
    found = {setting: standing(group) for setting, group in by_setting(rows).items()}
    return dict(
        sorted(found.items(), key=lambda item: (item[0].dataset, item[0].recipe, item[0].size, item[1].gap, item[0]))
    )


def standing(rows: Sequence[Row]) -> Standing:
    """Of one setting's rows, a run each."""
    gap, error = mean_and_error([row.task_gaps[:, None] for row in rows])
    return Standing(float(gap[0]), float(error[0]), tuple(row.run for row in rows))


def mean_and_error(
    runs: Sequence[Float[np.ndarray, "_ columns"]],
) -> tuple[Float[np.ndarray, " columns"], Float[np.ndarray, " columns"]]:
    """Each column's mean over runs of the mean over tasks, and its standard error; runs are tasks x columns.

    >>> mean_and_error([np.array([[1.0], [3.0]]), np.array([[4.0], [4.0]])])
    (array([3.]), array([1.]))
    """
    means = np.array([run.mean(axis=0) for run in runs])
    sample = means if len(runs) > 1 else runs[0]
    return means.mean(axis=0), np.array([standard_error(column) for column in sample.T])


def query_curve(rows: Sequence[Row]) -> tuple[FloatArray, FloatArray]:
    """A setting's gap at the start and after each query, and the standard errors; NaN for a start that is unknown."""
    curves = []
    for row in rows:
        start = row.start_gaps or [float("nan")] * len(row.gaps)
        curves.append(np.column_stack((start, row.gaps)))
    return mean_and_error(curves)


@dataclass(frozen=True)
class Comparison:
    """How much larger one setting's gap is than another's, on the runs that both have."""

    difference: float
    low: float
    high: float
    """The 95% interval; NaN for a single task of a single run."""
    runs: tuple[int, ...]
    same: bool = False
    """Whether no task tells the two apart."""

    @property
    def verdict(self) -> Verdict:
        """Of the first setting's gap."""
        if self.same:
            return "the same"
        if np.isnan(self.low):
            return "not known"
        if self.high < 0:
            return "lower"
        return "higher" if self.low > 0 else "not told apart"


class UnpairedError(ValueError):
    """Two rows of one run are not of the same test tasks from the same starts."""


Answer = Comparison | UnpairedError | None
"""A comparison; or that tasks could not be paired; or nothing, where no run has rows of both."""


def on_common_runs(*settings: Sequence[Row]) -> list[list[Row]]:
    """The rows of each setting that are of runs which all of them have."""
    common = set.intersection(*({row.run for row in rows} for rows in settings))
    return [[row for row in rows if row.run in common] for rows in settings]


def paired_differences(first: Sequence[Row], second: Sequence[Row]) -> dict[int, FloatArray]:
    """By run that both have: each test task's gap in `first` minus its gap in `second`."""
    others = {row.run: row for row in second}
    return {row.run: _differences(row, others[row.run]) for row in first if row.run in others}


def _differences(first: Row, second: Row) -> FloatArray:
    if len(first.gaps) != len(second.gaps):
        raise UnpairedError(f"run {first.run} has {len(first.gaps)} test tasks here and {len(second.gaps)} there")
    known = bool(first.start_gaps and second.start_gaps)
    if known and not np.allclose(first.start_gaps, second.start_gaps, rtol=1e-4, atol=1e-6):
        raise UnpairedError(f"the test tasks or starts of run {first.run} differ between the two")
    return first.task_gaps - second.task_gaps


def compare(
    pairs: Sequence[tuple[Sequence[Row], Sequence[Row]]], resamples: int = RESAMPLES, seed: int = 0
) -> list[Answer]:
    """First against second of every pair of settings, each by its rows."""
    answers: list[Answer] = [None] * len(pairs)
    found: dict[int, dict[int, FloatArray]] = {}
    for number, (first, second) in enumerate(pairs):
        try:
            runs = paired_differences(first, second)
        except UnpairedError as error:
            answers[number] = error
        else:
            if runs:
                found[number] = runs
    limits = bootstrap_intervals([list(runs.values()) for runs in found.values()], resamples, seed)
    for (number, runs), (low, high) in zip(found.items(), limits, strict=True):
        mean = float(np.mean([tasks.mean() for tasks in runs.values()]))
        same = not any(tasks.any() for tasks in runs.values())
        answers[number] = Comparison(mean, float(low), float(high), tuple(runs), same)
    return answers


def bootstrap_intervals(
    samples: Sequence[Sequence[FloatArray]], resamples: int = RESAMPLES, seed: int = 0, level: float = 0.95
) -> Float[np.ndarray, "samples 2"]:
    """The percentile interval of each sample's mean. A sample is runs, each the values of its tasks.

    One value alone says nothing of how far it is from the truth: its limits are NaN. A few runs say little of how runs
    differ: where they do, the interval of three leaves out the truth up to one time in four.
    A resample draws as many runs as there are, then in each as many tasks as it has, both with replacement. Samples of
    one shape share their draws: a resample is then a row of weights, and all means are one product of matrices.
    """
    shapes: dict[tuple[int, ...], list[int]] = {}
    for number, sample in enumerate(samples):
        shapes.setdefault(tuple(len(run) for run in sample), []).append(number)
    limits = np.empty((len(samples), 2))
    edges = [50 * (1 - level), 50 * (1 + level)]
    for tasks, numbers in shapes.items():
        if sum(tasks) == 1:
            limits[numbers] = np.nan
            continue
        values = np.column_stack([np.concatenate(samples[number]) for number in numbers])
        draw = np.random.default_rng(seed)
        means = []
        for begin in range(0, resamples, AT_ONCE):
            run, task = bootstrap_draws(tasks, min(AT_ONCE, resamples - begin), draw)
            means.append(bootstrap_weights(tasks, run, task) @ values)
        limits[numbers] = np.percentile(np.concatenate(means), edges, axis=0).T
    return limits


def bootstrap_draws(
    tasks: tuple[int, ...], resamples: int, draw: np.random.Generator
) -> tuple[Int[np.ndarray, "resamples runs"], Int[np.ndarray, "resamples runs most"]]:
    """The runs of each resample, and the tasks of each of its runs; a run of fewer tasks than `most` uses the first."""
    run = draw.integers(len(tasks), size=(resamples, len(tasks)))
    share = draw.random((resamples, len(tasks), max(tasks)))
    return run, (share * np.array(tasks)[run][:, :, None]).astype(np.int64)


def bootstrap_weights(
    tasks: tuple[int, ...], run: Int[np.ndarray, "resamples runs"], task: Int[np.ndarray, "resamples runs most"]
) -> Float[np.ndarray, "resamples total"]:
    """How much each task, all runs one after the other, counts in each resample's mean."""
    size = np.array(tasks)
    first = np.concatenate(([0], np.cumsum(size)[:-1]))
    resamples, runs, most = task.shape
    total = int(size.sum())
    place = np.arange(resamples)[:, None, None] * total + first[run][:, :, None] + task
    weight = np.where(np.arange(most) < size[run][:, :, None], 1 / (runs * size[run][:, :, None]), 0.0)
    flat = np.bincount(place.ravel(), weight.ravel(), minlength=resamples * total)
    return flat.reshape(resamples, total)
