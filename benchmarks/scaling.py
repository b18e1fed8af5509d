"""How the cost of an update, a search, an evaluation and an epoch grows with the size of their problem.

Expected: linear in candidates, in tasks and in non-zeros; at most quadratic in queries, since each is chosen in the
light of all before it. Slopes are of logarithms, over all sizes and over the upper half of them, where what every call
costs anyway no longer counts. Costs are processor time of one thread, medians, and only ever relative to each other.

    python -m benchmarks --only scaling
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch

import dkaf
from benchmarks.comparison import Work
from benchmarks.documents import untrained_kernel
from benchmarks.slopes import Curve
from dkaf.learning.descent import descend, optimiser_of
from dkaf.learning.episodes import PaddedTasks
from dkaf.learning.pretrain import likelihood
from dkaf.learning.reinforce import policy_gradient_loss
from dkaf.policies import KernelPolicy
from dkaf.seeding import stream
from dkaf.tasks import TaskSet

FEATURES, BATCH = 16, 4
SECONDS = 1.5  # of repeats at each size, about

Sized = Callable[[int], tuple[float, dict[str, Work]]]
"""From a size to its place on the axis and the pieces of work at it, by name."""


@dataclass(frozen=True)
class Axis:
    """What grows, by which sizes, and how steep the cost of it may be."""

    name: str
    across: str
    sizes: tuple[int, ...]
    work: Sized
    expected: float


def candidates(size: int) -> tuple[float, dict[str, Work]]:
    """Pools over a matrix that is no larger than they are."""
    tasks = _dense_tasks(rows=size, tasks=BATCH, pool=size)
    policy = untrained_kernel(tasks, "dkaf", "paper", batch=BATCH)
    return size, {"update": _updates(policy, tasks, 1), "search": lambda: dkaf.evaluate(policy, tasks[:1])}


def queries(size: int) -> tuple[float, dict[str, Work]]:
    tasks = _dense_tasks(rows=1000, tasks=BATCH, pool=1000)
    policy = untrained_kernel(tasks, "dkaf", "paper", batch=BATCH, queries=size)
    return size, {"update": _updates(policy, tasks, 1), "search": lambda: dkaf.evaluate(policy, tasks[:1], size)}


def terms(size: int) -> tuple[float, dict[str, Work]]:
    """Sparse rows, 2% of whose terms are not zero; the place on the axis is the number of non-zeros."""
    draw = np.random.default_rng(size)
    per_row, n_rows = size // 50, 1000
    columns = 50 * np.arange(per_row) + draw.integers(0, 50, (n_rows, per_row))
    values = 1.0 + draw.poisson(0.5, columns.size)
    indptr = np.arange(n_rows + 1) * per_row
    features = sp.csr_array((values, columns.ravel(), indptr), shape=(n_rows, size))
    pools = [draw.permutation(n_rows)[:500] for _ in range(16)]
    tasks = TaskSet.from_arrays(features, pools, [draw.standard_normal(500) for _ in pools])
    policy, kernel = (untrained_kernel(tasks, method, "paper") for method in ("dkaf", "gp"))
    return float(features.nnz), {
        "update": _updates(policy, tasks, 1),
        "update of GP": _likelihood(kernel, tasks),
        "search": lambda: dkaf.evaluate(policy, tasks),
    }


def many_tasks(size: int) -> tuple[float, dict[str, Work]]:
    """Tasks that share no rows, so that the feature matrix grows with them."""
    tasks = _dense_tasks(rows=50 * size, tasks=size, pool=50)
    policy = untrained_kernel(tasks, "dkaf", "paper")
    epoch = max(1, round(size / policy.settings.batch))
    return size, {"epoch": _updates(policy, tasks, epoch), "evaluation": lambda: dkaf.evaluate(policy, tasks)}


AXES = (
    Axis("candidates", "candidates of a pool", (100, 300, 1000, 3000, 10_000, 30_000, 100_000), candidates, 1.0),
    Axis("queries", "queries of a search", (10, 20, 40, 80, 120, 160, 200), queries, 2.0),
    Axis("terms", "non-zeros of the features", (1000, 3000, 10_000, 30_000, 60_000, 100_000), terms, 1.0),
    Axis("tasks", "tasks", (16, 48, 160, 480, 1600, 4800, 9600), many_tasks, 1.0),
)


def measure(axis: Axis) -> list[Curve]:
    """The curves of an axis; the sizes take turns, so that a busy spell is not one size's alone."""
    places, works = [], []
    for size in axis.sizes:
        place, work = axis.work(size)
        places.append(place)
        works.append(work)
    return [
        Curve(name, tuple(places), tuple(_medians([work[name] for work in works])), axis.expected) for name in works[0]
    ]


def _medians(works: list[Work]) -> list[float]:
    seconds = [[_seconds(work)] for work in works]  # the first is not counted where there is another
    repeats = [min(15, max(2, int(SECONDS / first[0]))) if first[0] < 4 else 1 for first in seconds]
    for turn in range(max(repeats)):
        for work, taken, count in zip(works, seconds, repeats, strict=True):
            if turn < count:
                taken.append(_seconds(work))
    return [statistics.median(taken[1:]) for taken in seconds]


def _seconds(work: Work) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _dense_tasks(*, rows: int, tasks: int, pool: int) -> TaskSet:
    """Pools of a matrix's rows, all of them used if the numbers allow it."""
    draw = np.random.default_rng((rows, tasks, pool))
    features = draw.standard_normal((rows, FEATURES), dtype=np.float32)
    order = draw.permutation(rows)
    pools = [order[(s * pool + np.arange(pool)) % rows] for s in range(tasks)]
    return TaskSet.from_arrays(features, pools, [draw.standard_normal(pool) for _ in pools])


def _updates(policy: KernelPolicy, tasks: TaskSet, count: int) -> Work:
    settings, draw, deck = policy.settings, stream(0, "updates"), PaddedTasks.of(policy, tasks)
    optimiser = optimiser_of(policy.learning_rates(), settings.weight_decay)

    def updates() -> None:
        policy.train()
        for _ in range(count):
            numbers = torch.randint(len(deck), (settings.batch,), generator=draw)
            descend(optimiser, policy_gradient_loss(policy, deck, numbers, draw), settings.clip)

    return updates


def _likelihood(policy: KernelPolicy, tasks: TaskSet) -> Work:
    settings, draw, deck = policy.settings, stream(0, "updates"), PaddedTasks.of(policy, tasks)
    rates = dict.fromkeys(policy.prior.parameters(), settings.pretrain_learning_rate)
    optimiser = optimiser_of(rates, settings.weight_decay)

    def update() -> None:
        numbers = torch.randint(len(deck), (settings.pretrain_tasks,), generator=draw)
        loss = -likelihood(policy.prior, deck, numbers, settings.pretrain_points, draw).mean()
        descend(optimiser, loss, settings.clip)

    return update
