"""How well a policy searches tasks it has not seen."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dkaf.errors import InputError, whole_number
from dkaf.learning.episodes import PaddedTasks, check_budget, search_all
from dkaf.policies import Policy
from dkaf.seeding import stream
from dkaf.tasks import FloatArray, IntArray, TaskSet


@dataclass(frozen=True, eq=False)
class Result:
    """Searches made by a policy. Rows are tasks x starts: all starts of the first task, then of the second."""

    gaps: FloatArray
    """(tasks x starts) x queries: best of the pool minus best found, after each query, in units of y."""
    start_gaps: FloatArray
    """The gap of the starting points, before the first query; NaN where there were none."""
    chosen: IntArray
    """(tasks x starts) x (initial + queries): positions in the pool, in the order they were observed."""
    starts: int

    @property
    def cumulative_gap(self) -> float:
        """The paper's R-hat: the mean over tasks, starts and queries."""
        return float(self.gaps.mean())

    @property
    def task_gaps(self) -> FloatArray:
        """Each task's share of the cumulative gap; what paired comparisons compare."""
        shares: FloatArray = self.gaps.reshape(-1, self.starts * self.gaps.shape[1]).mean(axis=1)
        return shares

    @property
    def standard_error(self) -> float:
        """Of the cumulative gap, over tasks; NaN for a single task."""
        return standard_error(self.task_gaps)


def standard_error(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def evaluate(
    policy: Policy, tasks: TaskSet, queries: int = 10, initial: int = 1, starts: int = 1, seed: int = 0
) -> Result:
    """Search every task from random starting points: `initial` points a start, `starts` starts a task.

    The starting points depend on the seed and the task's number alone, so that all policies begin alike.

    >>> import dkaf
    >>> train, test = dkaf.digits_tasks(n_tasks=4, pool_size=30).split(2, 2)
    >>> result = dkaf.evaluate(dkaf.fit(train, method="random"), test, queries=5, starts=3)
    >>> result.gaps.shape
    (6, 5)
    """
    if len(tasks) == 0:
        raise InputError("an evaluation needs at least one task, none came; pass tasks to search")
    queries, initial, starts = (
        whole_number(what, value) for what, value in (("queries", queries), ("initial", initial), ("starts", starts))
    )
    if starts < 1:
        raise InputError(f"a task is searched from at least 1 start, {starts} came")
    check_budget(tasks, queries, initial)
    start = starting_points(tasks, initial, starts, seed).reshape(len(tasks), starts, initial)
    was_training = policy.training
    try:
        chosen = search_all(
            policy,
            PaddedTasks.of(policy, tasks),
            torch.from_numpy(start).to(policy.device),
            queries,
            stream(seed, "search"),
        )
    finally:
        policy.train(was_training)
    return result_of(tasks, chosen.flatten(0, 1).cpu().numpy(), initial, starts)


def result_of(tasks: TaskSet, chosen: IntArray, initial: int, starts: int = 1) -> Result:
    """What searches found, given the candidates they observed, starting points first."""
    numbers = np.repeat(np.arange(len(tasks)), starts)
    found = np.array([tasks.responses[task][row] for task, row in zip(numbers, chosen, strict=True)])
    best = np.array([tasks.responses[task].max() for task in numbers])
    gaps = best[:, None] - np.maximum.accumulate(found, axis=1)
    start_gaps = gaps[:, initial - 1] if initial else np.full(len(gaps), np.nan)
    return Result(gaps[:, initial:], start_gaps, chosen, starts)


def starting_points(tasks: TaskSet, initial: int, starts: int, seed: int) -> IntArray:
    """Starting points of every search, from a stream of its own for each task's number."""
    rows = []
    for number, size in enumerate(tasks.sizes):
        draw = stream(seed, "start", number)
        rows += [torch.randperm(int(size), generator=draw)[:initial].numpy() for _ in range(starts)]
    return np.array(rows, dtype=np.int64).reshape(len(tasks) * starts, initial)
