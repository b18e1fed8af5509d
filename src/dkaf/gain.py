"""What a trained policy saves: how many queries held-out past tasks need until one of their best is found."""

import math

import numpy as np

from dkaf.evaluation import evaluate
from dkaf.policies import Gain, Policy
from dkaf.seeding import stream
from dkaf.tasks import Task, TaskSet

SHARE = 0.01
MOST = 100
GP_STARTS, RANDOM_STARTS = 5, 200


def measure_gain(policy: Policy, gp: Policy, held_out: TaskSet, seed: int = 0, share: float = SHARE) -> Gain:
    """Search tasks that neither policy was trained or chosen by, from nothing.

    A policy with a prior mean begins by itself; what knows nothing before its first query begins at random, and that
    is its first query.
    """
    most = min(MOST, int(held_out.sizes.max()))
    ours, plain, chance = [], [], []
    for number in range(len(held_out)):
        task = held_out.subset([number])
        ours += _needed(policy, task, most, share, seed)
        plain += _needed(gp, task, most, share, seed)
        chance += _by_chance(task[0], share, seed + number)
    return Gain(len(held_out), share, most, _median(ours), _median(plain), _median(chance))


def _needed(policy: Policy, task: TaskSet, most: int, share: float, seed: int) -> list[float]:
    """Of each search, after how many queries it had found one of the best."""
    blind = policy.method not in ("dkaf", "dkl")
    initial, starts = (1, GP_STARTS) if blind else (0, 1)
    size = len(task[0].pool)
    result = evaluate(policy, task, min(most, size) - initial, initial, starts, seed) if size > initial else None
    if result is None:  # one candidate, and it is the best
        return [1.0]
    best = _best(task[0], share)
    found = np.isin(result.chosen, best)
    return [float(row.argmax() + 1) if row.any() else math.inf for row in found]


def _by_chance(task: Task, share: float, seed: int) -> list[float]:
    """The first of the best among all candidates in random order."""
    draw = np.random.default_rng(stream(seed, "chance").initial_seed())
    best, size = len(_best(task, share)), len(task.pool)
    return [float(draw.permutation(size)[:best].min() + 1) for _ in range(RANDOM_STARTS)]


def _best(task: Task, share: float) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Positions of the best candidates: the share, at least one, and what is as good as the last of them."""
    count = max(1, math.floor(share * len(task.pool)))
    threshold = np.sort(task.responses)[-count]
    return np.flatnonzero(task.responses >= threshold)


def _median(needed: list[float]) -> float:
    """The lower one of two in the middle: half of the searches needed no more."""
    return sorted(needed)[(len(needed) - 1) // 2]
