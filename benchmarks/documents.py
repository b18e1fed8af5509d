"""Searches over made-up documents, of the paper's size or any other, and policies for them."""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
import torch

import dkaf
from dkaf.learning.episodes import PaddedTasks
from dkaf.model.inputs import Rows, SparseRows
from dkaf.policies import KernelPolicy, Policy
from dkaf.seeding import derive
from dkaf.tasks import TaskSet


@dataclass(frozen=True)
class Size:
    """How many rows, terms, non-zeros a row, tasks, and candidates of each."""

    rows: int
    terms: int
    nonzeros: int
    tasks: int
    pool: int

    def __str__(self) -> str:
        return (
            f"{self.tasks:,} tasks of {self.pool:,} candidates, {self.rows:,} rows of {self.terms:,} terms, "
            f"about {self.nonzeros:,} of them not zero"
        )


PAPER = Size(rows=1900, terms=750, nonzeros=60, tasks=100, pool=500)
SMALL = Size(rows=60, terms=40, nonzeros=10, tasks=6, pool=30)


def document_tasks(size: Size, seed: int = 0) -> TaskSet:
    """Few words are frequent, and a response is a distance to a hidden document."""
    draw = np.random.default_rng(derive(seed, "benchmark"))
    frequency = 1 / np.arange(1, size.terms + 1) ** 0.7
    rate = draw.gamma(0.5, size=(size.rows, size.terms)) * frequency  # documents differ in the words they like
    counts = draw.poisson(1.37 * size.nonzeros * rate / rate.sum(axis=1, keepdims=True))
    hidden = np.log1p(counts) @ draw.standard_normal((size.terms, 32))
    drawn = [draw.choice(size.rows, size=size.pool + 1, replace=False) for _ in range(size.tasks)]
    responses = [-np.linalg.norm(hidden[rows[1:]] - hidden[rows[0]], axis=1) for rows in drawn]
    return TaskSet.from_arrays(sp.csr_array(counts), [rows[1:] for rows in drawn], responses)


def untrained(tasks: TaskSet, method: str, recipe: str, acquisition: str = "mi", **overrides: Any) -> Policy:
    """A policy at the scale of the tasks, with the recipe's settings, before its first update.

    Responses are not warped: it would be the same few operations on either side.
    """
    return dkaf.fit(
        tasks,
        method=method,
        acquisition=acquisition,
        recipe=recipe,
        **({"pretrain_updates": 0, "updates": 0, "learned_warp": False} | overrides),
    )


def untrained_kernel(tasks: TaskSet, method: str, recipe: str, **overrides: Any) -> KernelPolicy:
    return cast("KernelPolicy", untrained(tasks, method, recipe, **overrides))


def dense_rows(deck: PaddedTasks, policy: Policy) -> torch.Tensor:
    """All rows, scaled as the policy has them; dense products are what the peers are fastest with."""
    x = deck.x if isinstance(deck.x, torch.Tensor) else deck.x.dense()
    return x.to(policy.dtype)


def double_rows(x: Rows) -> Rows:
    """The same rows for checks in double precision."""
    return x.double() if isinstance(x, torch.Tensor) else SparseRows(x.matrix.astype(np.float64), x.device)
