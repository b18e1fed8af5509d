"""What every policy must do, whatever it is: one suite for all of them."""

import numpy as np
import torch
from numpy.typing import NDArray

import dkaf
from dkaf.learning.episodes import PaddedTasks, search
from dkaf.settings import METHODS

TINY = {
    "pretrain_updates": 3,
    "updates": 2,
    "scale_updates": 2,
    "validate_every": 1,
    "pretrain_points": 8,
    "batch": 2,
    "width": 8,
}


def small_tasks(seed: int = 0, *, sizes: tuple[int, ...] = (12, 9, 15, 12), n_features: int = 5) -> dkaf.TaskSet:
    """Tasks of different sizes over shared rows, without ties."""
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(max(sizes) + 5, n_features))
    pools = [draw.permutation(len(features))[:size] for size in sizes]
    return dkaf.TaskSet.from_arrays(features, pools, [draw.normal(size=size) for size in sizes])


def small_policy(method: str, acquisition: str = "mi", recipe: str = "default", seed: int = 0) -> dkaf.Policy:
    tasks = small_tasks(sizes=(20, 20, 20))
    return dkaf.fit(tasks, tasks, method, acquisition, recipe, seed, **TINY, queries=3)


def every_policy() -> list[tuple[str, str, str]]:
    """Method, acquisition, recipe: all that differ."""
    kernels = [(m, a, r) for m in ("dkaf", "dkl", "gp") for a in ("mi", "ei", "ucb") for r in ("default", "paper")]
    return kernels + [(m, "mi", r) for m in METHODS if m not in ("dkaf", "dkl", "gp") for r in ("default", "paper")]


def check_search(policy: dkaf.Policy, tasks: dkaf.TaskSet, *, queries: int, initial: int, starts: int) -> dkaf.Result:
    """Never repeats, never leaves the pool, keeps to its budget, and the gaps are those of its choices."""
    result = dkaf.evaluate(policy, tasks, queries=queries, initial=initial, starts=starts, seed=3)
    assert result.gaps.shape == (len(tasks) * starts, queries)
    assert result.chosen.shape == (len(tasks) * starts, initial + queries)
    for row, chosen in enumerate(result.chosen):
        responses = tasks.responses[row // starts]
        assert len(set(chosen.tolist())) == initial + queries
        assert chosen.min() >= 0
        assert chosen.max() < len(responses)
        found = np.maximum.accumulate(responses[chosen])
        np.testing.assert_array_equal(result.gaps[row], responses.max() - found[initial:])
        if initial:
            assert result.start_gaps[row] == responses.max() - responses[chosen[:initial]].max()
        else:
            assert np.isnan(result.start_gaps[row])
    return result


def check_permutation(policy: dkaf.Policy, tasks: dkaf.TaskSet, *, queries: int) -> None:
    """The order in which candidates are listed does not matter to a deterministic policy without ties."""
    draw = np.random.default_rng(5)
    orders = [draw.permutation(size) for size in tasks.sizes]
    shuffled = dkaf.TaskSet.from_arrays(
        tasks.features,
        [pool[order] for pool, order in zip(tasks.pools, orders, strict=True)],
        [values[order] for values, order in zip(tasks.responses, orders, strict=True)],
    )
    places = [int(np.argsort(order)[0]) for order in orders]  # where the first candidate of each pool went
    plain, other = _choices(policy, tasks, [0] * len(tasks), queries), _choices(policy, shuffled, places, queries)
    for order, first, second in zip(orders, plain, other, strict=True):
        assert order[second].tolist() == first.tolist()


def _choices(policy: dkaf.Policy, tasks: dkaf.TaskSet, start: list[int], queries: int) -> NDArray[np.int64]:
    """Searches from given starting points, one a task."""
    with torch.no_grad():
        batch = PaddedTasks.of(policy, tasks).batch(torch.arange(len(tasks)))
        points = policy.points(batch.x, batch.pool)
        chosen = search(policy, points, batch, torch.tensor(start).unsqueeze(1), queries, torch.Generator())
    return chosen.squeeze(1).numpy()


def check_no_peeking(policy: dkaf.Policy, tasks: dkaf.TaskSet, *, queries: int) -> None:
    """Responses that were not observed change no choice: not the optimum, not the range, nothing."""
    result = dkaf.evaluate(policy, tasks, queries=queries, initial=1)
    other = []
    for values, chosen in zip(tasks.responses, result.chosen, strict=True):
        changed = 1e3 * np.random.default_rng(9).normal(size=len(values))
        changed[chosen] = values[chosen]
        other.append(changed)
    again = dkaf.evaluate(
        policy, dkaf.TaskSet.from_arrays(tasks.features, tasks.pools, other), queries=queries, initial=1
    )
    np.testing.assert_array_equal(again.chosen, result.chosen)
