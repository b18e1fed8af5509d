"""Searchers beside the paper's: BoTorch on one task at a time, and one that knows what nobody can know."""

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from dkaf.errors import InputError
from dkaf.evaluation import Result, result_of, starting_points
from dkaf.learning.episodes import check_budget
from dkaf.model.inputs import Inputs
from dkaf.seeding import derive, global_stream
from dkaf.tasks import FloatArray, IntArray, TaskSet

COMPONENTS = 5  # of 3, 5, 10 and 20 the best for BoTorch on tasks of their own: docs/research/grid.md

Next = Callable[[IntArray, FloatArray], int]
"""The next candidate, given those observed and their responses."""


def informed_search(hidden: FloatArray, tasks: TaskSet, queries: int, initial: int, starts: int, seed: int) -> Result:
    """A floor, not a competitor: it knows the hidden representation and that responses are distances in it.

    It keeps every document of the corpus that could still be the target, and queries the candidate with the largest
    expected improvement over those.
    """

    def searcher(number: int) -> Next:
        pool = tasks.pools[number]
        # Response of each candidate if each document were the target. Candidates are never targets themselves.
        documents = np.setdiff1d(np.arange(len(hidden)), pool)
        imagined = -np.stack([np.linalg.norm(hidden[pool] - hidden[target], axis=1) for target in documents])
        tolerance = 1e-9 * np.abs(imagined).max()

        def choose(observed: IntArray, y: FloatArray) -> int:
            could_be = (np.abs(imagined[:, observed] - y) <= tolerance).all(axis=1)
            best = y.max(initial=-np.inf) if len(y) else imagined.mean()
            improvement = np.maximum(imagined[could_be] - best, 0).mean(axis=0)
            improvement[observed] = -1
            return int(improvement.argmax())

        return choose

    return _search(tasks, searcher, queries, initial, starts, seed)


def botorch_search(tasks: TaskSet, queries: int, initial: int, starts: int, seed: int) -> Result:
    """BoTorch's SingleTaskGP with LogEI, its defaults throughout, on the principal components of each pool.

    What a user would pick without past tasks. Counts are taken as log(1 + count), as by the paper's methods here.
    """
    with warnings.catch_warnings(), global_stream(seed, "botorch"):
        warnings.simplefilter("ignore")  # on few observations BoTorch has many doubts
        return _search(tasks, _botorch_searcher(tasks, seed), queries, initial, starts, seed)


def check_botorch() -> None:
    """Refuse before any work where BoTorch is not installed."""
    if find_spec("botorch") is None:
        raise InputError("method botorch needs BoTorch, which is not here; pip install 'dkaf[bench]'")


def _botorch_searcher(tasks: TaskSet, seed: int) -> Callable[[int], Next]:
    import torch
    from botorch import fit_gpytorch_mll
    from botorch.acquisition import LogExpectedImprovement
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    def searcher(number: int) -> Next:
        pool = tasks.pools[number]
        inputs = Inputs.fitted(tasks.features, pool, "auto")
        x: Any = inputs(tasks.features, pool)
        dense = (x if isinstance(x, torch.Tensor) else x.dense()).double().numpy()
        count = min(COMPONENTS, *dense.shape)
        z = PCA(count, random_state=derive(seed, "principal components") % 2**32).fit_transform(dense)
        low, high = z.min(axis=0), z.max(axis=0)
        unit = torch.from_numpy((z - low) / np.where(high > low, high - low, 1))

        def choose(observed: IntArray, y: FloatArray) -> int:
            model = SingleTaskGP(unit[observed], torch.from_numpy(y).unsqueeze(1))
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            with torch.no_grad():
                score = LogExpectedImprovement(model, best_f=float(y.max()))(unit.unsqueeze(1)).numpy()
            score[observed] = -np.inf
            return int(score.argmax())

        return choose

    return searcher


def _search(
    tasks: TaskSet, searcher: Callable[[int], Next], queries: int, initial: int, starts: int, seed: int
) -> Result:
    """Search each task from the starting points that every policy gets; only responses asked for are shown."""
    check_budget(tasks, queries, initial)
    chosen = []
    for number, of_task in enumerate(
        starting_points(tasks, initial, starts, seed).reshape(len(tasks), starts, initial)
    ):
        choose, responses = searcher(number), tasks.responses[number]
        for start in of_task:
            observed = list(start)
            for _ in range(queries):
                so_far = np.array(observed, dtype=np.int64)
                observed.append(choose(so_far, responses[so_far]))
            chosen.append(observed)
    return result_of(tasks, np.array(chosen, dtype=np.int64), initial, starts)
