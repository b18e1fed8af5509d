"""How well a policy searches tasks it has not seen."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dkaf.errors import InputError
from dkaf.learning.episodes import Deck, check_budget, search
from dkaf.policies import Policy
from dkaf.seeding import derive, stream
from dkaf.tasks import FloatArray, IntArray, TaskSet

CANDIDATES_AT_ONCE = 200_000  # bounds the memory of a batch of searches


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
    if starts < 1:
        raise InputError(f"a task is searched from at least 1 start, {starts} came")
    check_budget(tasks, queries, initial)
    was_training = policy.training
    policy.eval()
    start = _starting_points(tasks, initial, starts, seed)
    repeated = np.repeat(np.arange(len(tasks)), starts)
    at_once = max(1, CANDIDATES_AT_ONCE // int(tasks.sizes.max()))
    chosen = np.concatenate(
        [
            _search_part(
                policy, tasks, repeated[i : i + at_once], start[i : i + at_once], queries, derive(seed, "search", i)
            )
            for i in range(0, len(repeated), at_once)
        ]
    )
    policy.train(was_training)
    found = np.array([tasks.responses[task][picks] for task, picks in zip(repeated, chosen, strict=True)])
    best = np.array([tasks.responses[task].max() for task in repeated])
    gaps = best[:, None] - np.maximum.accumulate(found, axis=1)
    start_gaps = gaps[:, initial - 1] if initial else np.full(len(gaps), np.nan)
    return Result(gaps[:, initial:], start_gaps, chosen, starts)


def _starting_points(tasks: TaskSet, initial: int, starts: int, seed: int) -> IntArray:
    """Starting points of every search; a task's own are the same whichever tasks come with it after or before... it."""
    rows = []
    for number, size in enumerate(tasks.sizes):
        draw = stream(seed, "start", number)
        rows += [torch.randperm(int(size), generator=draw)[:initial].numpy() for _ in range(starts)]
    return np.array(rows, dtype=np.int64).reshape(len(tasks) * starts, initial)


def _search_part(
    policy: Policy, tasks: TaskSet, numbers: IntArray, start: IntArray, queries: int, seed: int
) -> IntArray:
    deck = Deck.of(policy, tasks.subset(sorted(set(numbers.tolist()))))
    hand = deck.deal(torch.from_numpy(np.unique(numbers, return_inverse=True)[1]).to(policy.device))
    with torch.no_grad():
        points = policy.points(hand.x, hand.pool)
        start_tensor = torch.from_numpy(start).to(policy.device)
        chosen = search(policy, points, hand, start_tensor, queries, stream(seed))
    return chosen.squeeze(1).cpu().numpy()
