"""Episodes: whole searches on batches of tasks, and the gaps they leave.

S starts in a batch (a task and its starting points), E episodes a start, N candidates, T queries, n0 starting points,
k = n0 + T observed points.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dkaf.errors import InputError
from dkaf.model.inputs import Rows
from dkaf.model.prior import Pool
from dkaf.policies import Policy
from dkaf.tasks import TaskSet

CANDIDATES_AT_ONCE = 200_000  # bounds the memory of a batch of searches


@dataclass(frozen=True, eq=False)
class PaddedTasks:
    """Tasks as tensors, in the policy's units: rows prepared once, pools padded to the longest."""

    x: Rows
    rows: Int[Tensor, "tasks n"]
    mask: Bool[Tensor, "tasks n"]
    y: Float[Tensor, "tasks n"]

    @classmethod
    def of(cls, policy: Policy, tasks: TaskSet) -> "PaddedTasks":
        distinct, inverse = np.unique(np.concatenate(tasks.pools), return_inverse=True)
        sizes = tasks.sizes
        mask = np.arange(sizes.max()) < sizes[:, None]
        rows = np.zeros(mask.shape, dtype=np.int64)
        rows[mask] = inverse
        y = np.zeros(mask.shape)
        y[mask] = np.concatenate(tasks.responses)
        device = policy.device
        return cls(
            policy.inputs(tasks.features, distinct),
            torch.from_numpy(rows).to(device),
            torch.from_numpy(mask).to(device),
            policy.scaled(torch.from_numpy(y).to(device)),
        )

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, tasks: Int[Tensor, " s"]) -> "Batch":
        """The chosen tasks, whole."""
        return self._batch(self.rows[tasks], self.mask[tasks], self.y[tasks])

    def part(self, tasks: Int[Tensor, " s"], candidates: int, generator: torch.Generator) -> "Batch":
        """The chosen tasks, with this many random candidates of each pool (all of a smaller one)."""
        rows, mask, y = self.rows[tasks], self.mask[tasks], self.y[tasks]
        some = random_candidates(mask, min(candidates, mask.shape[1]), generator)
        return self._batch(rows.gather(1, some), mask.gather(1, some), y.gather(1, some))

    def _batch(self, rows: Int[Tensor, "s n"], mask: Bool[Tensor, "s n"], y: Float[Tensor, "s n"]) -> "Batch":
        """With each feature row that occurs once; if nearly all occur, with all, since picking them costs more."""
        used = torch.zeros(len(self.x), dtype=torch.bool, device=rows.device)
        used[rows[mask]] = True
        if float(used.float().mean()) > 0.9:
            return Batch(self.x, Pool(rows, mask), y)
        place = used.cumsum(0) - 1
        return Batch(self.x[used.nonzero().squeeze(1)], Pool(place[rows].where(mask, 0), mask), y)


@dataclass(frozen=True, eq=False)
class Batch:
    """Tasks to search: distinct rows, the pools as positions in them, and the responses."""

    x: Rows
    pool: Pool
    y: Float[Tensor, "s n"]


def random_candidates(mask: Bool[Tensor, "s n"], count: int, generator: torch.Generator) -> Int[Tensor, "s m"]:
    """Different candidates of each pool, all as likely; of a pool that has fewer, all of them and then padding."""
    noise = torch.rand(mask.shape, generator=generator).to(mask.device)
    return noise.where(mask, -1.0).topk(count, dim=1).indices


@torch.no_grad()
def search(
    policy: Policy,
    points: Any,
    batch: Batch,
    start: Int[Tensor, "s n0"],
    queries: int,
    generator: torch.Generator,
    *,
    episodes: int = 1,
    temperature: float | None = None,
) -> Int[Tensor, "s e k"]:
    """Search every pool: the best score wins, or, with a temperature, scores/temperature are drawn from by softmax.

    Returns the observed candidates in order, the n0 starting points first. No candidate comes twice.
    """
    S, N = batch.y.shape
    blocked = torch.zeros(S, episodes, N).to(batch.y).masked_fill_(~batch.pool.mask.unsqueeze(1), -math.inf)
    if temperature is not None:
        # Eq. (pntilde): the largest of score + Gumbel noise is a draw from the softmax. All noise at once is cheapest.
        uniform = torch.rand(queries, S, episodes, N, generator=generator).to(batch.y)
        gumbel = uniform.clamp_min_(1e-30).log_().neg_().log_().neg_()
    state = policy.begin(points, episodes, generator)
    observed: list[Tensor] = []

    def observe(chosen: Tensor, *, queried: bool) -> None:
        nonlocal state
        observed.append(chosen)
        blocked.scatter_(2, chosen.unsqueeze(-1), -math.inf)
        if len(observed) < start.shape[1] + queries:
            state = policy.observe(points, state, chosen, batch.y.gather(1, chosen), queried=queried)

    for first in start.unbind(dim=1):
        observe(first.unsqueeze(1).expand(S, episodes), queried=False)
    for t in range(queries):
        scores = policy.scores(points, state)
        if temperature is not None:
            scores = gumbel[t].add_(scores, alpha=1 / temperature)
        observe((scores + blocked).argmax(dim=2), queried=True)
    return torch.stack(observed, dim=2)


@torch.no_grad()
def search_all(
    policy: Policy,
    tasks: PaddedTasks,
    numbers: Int[Tensor, " searches"],
    start: Int[Tensor, "searches n0"],
    queries: int,
    generator: torch.Generator,
) -> Int[Tensor, "searches k"]:
    """Greedy searches of the numbered tasks, as many at once as memory allows."""
    policy.eval()
    at_once = max(1, CANDIDATES_AT_ONCE // tasks.rows.shape[1])
    parts = []
    for part, first in zip(numbers.split(at_once), start.split(at_once), strict=True):
        batch = tasks.batch(part)
        points = policy.points(batch.x, batch.pool)
        parts.append(search(policy, points, batch, first, queries, generator).squeeze(1))
    return torch.cat(parts)


def gaps(
    y: Float[Tensor, "s n"], mask: Bool[Tensor, "s n"], chosen: Int[Tensor, "s e k"], initial: int
) -> Float[Tensor, "s e t"]:
    """Eq. (r): the pool's best minus the best found, after each query."""
    best = y.where(mask, -math.inf).max(dim=1).values
    found = y.gather(1, chosen.flatten(1)).unflatten(1, chosen.shape[1:]).cummax(dim=2).values
    gap: Tensor = best[:, None, None] - found[..., initial:]
    return gap


def log_probabilities(
    policy: Policy, points: Any, batch: Batch, chosen: Int[Tensor, "s e k"], initial: int, temperature: float
) -> Float[Tensor, "s e t"]:
    """Eq. (pntilde) of every query of every episode, with gradients."""
    S, E, k = chosen.shape
    y = batch.y.gather(1, chosen.flatten(1)).unflatten(1, (E, k))
    scores = policy.episode_scores(points, chosen, y, initial) / temperature
    # Query t cannot draw what was observed before it, at a position below initial + t.
    T = k - initial
    position = torch.arange(k, device=chosen.device)
    before = position < position[initial:].unsqueeze(1)
    taken = scores.new_zeros(T, k).masked_fill(before, -math.inf).expand(S, E, T, k)
    blocked = torch.zeros_like(scores).scatter(3, chosen.unsqueeze(2).expand(S, E, T, k), taken)
    blocked = blocked.masked_fill_(~batch.pool.mask[:, None, None], -math.inf)
    log_p = (scores + blocked).log_softmax(dim=3)
    return log_p.gather(3, chosen[..., initial:].unsqueeze(-1)).squeeze(-1)


def check_budget(tasks: TaskSet, queries: int, initial: int) -> None:
    """A search needs a candidate for every query and every starting point."""
    if queries < 1 or initial < 0:
        raise InputError(
            f"a search has at least 1 query and 0 starting points, {queries} queries and {initial} starting points came"
        )
    for number, size in enumerate(tasks.sizes):
        if size < queries + initial:
            raise InputError(
                f"pool {number} has {size} candidates, {queries} queries after {initial} starting points do not fit; "
                "lower them or leave the task out"
            )
