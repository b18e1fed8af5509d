"""Episodes: whole searches on batches of tasks, and the gaps they leave.

S starts in a batch (a task and its starting points), E episodes a start, N candidates, T queries, n0 starting points.
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


@dataclass(frozen=True, eq=False)
class Deck:
    """Tasks as tensors, in the policy's units: rows prepared once, pools padded to the longest."""

    x: Rows
    rows: Int[Tensor, "tasks n"]
    mask: Bool[Tensor, "tasks n"]
    y: Float[Tensor, "tasks n"]

    @classmethod
    def of(cls, policy: Policy, tasks: TaskSet) -> "Deck":
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

    def deal(self, tasks: Int[Tensor, " s"]) -> "Hand":
        """The chosen tasks, whole."""
        return self._hand(self.rows[tasks], self.mask[tasks], self.y[tasks])

    def deal_some(self, tasks: Int[Tensor, " s"], candidates: int, generator: torch.Generator) -> "Hand":
        """The chosen tasks, with this many random candidates of each pool (all of a smaller one)."""
        rows, mask, y = self.rows[tasks], self.mask[tasks], self.y[tasks]
        some = random_candidates(mask, min(candidates, mask.shape[1]), generator)
        return self._hand(rows.gather(1, some), mask.gather(1, some), y.gather(1, some))

    def _hand(self, rows: Int[Tensor, "s n"], mask: Bool[Tensor, "s n"], y: Float[Tensor, "s n"]) -> "Hand":
        """With each feature row that occurs once; with all rows where most occur, since picking them costs more."""
        best = y.where(mask, -math.inf).max(dim=1).values
        used = torch.zeros(len(self.x), dtype=torch.bool, device=rows.device)
        used[rows[mask]] = True
        if 2 * int(used.sum()) > len(used):
            return Hand(self.x, Pool(rows, mask), y, best)
        place = used.cumsum(0) - 1
        return Hand(self.x[used.nonzero().squeeze(1)], Pool(place[rows].where(mask, 0), mask), y, best)


@dataclass(frozen=True, eq=False)
class Hand:
    """A batch of tasks to search: distinct rows, the pools as positions in them, responses, and each pool's best."""

    x: Rows
    pool: Pool
    y: Float[Tensor, "s n"]
    best: Float[Tensor, " s"]


def random_candidates(mask: Bool[Tensor, "s n"], count: int, generator: torch.Generator) -> Int[Tensor, "s m"]:
    """Different candidates of each pool, all as likely."""
    noise = torch.rand(mask.shape, generator=generator).to(mask.device)
    return noise.where(mask, -1.0).topk(count, dim=1).indices


@torch.no_grad()
def search(
    policy: Policy,
    points: Any,
    hand: Hand,
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
    S, N = hand.y.shape
    # What is added to the scores of each query: -inf for the observed and, if drawn, Gumbel noise, Eq. (pntilde).
    added = torch.zeros(queries, S, episodes, N)
    if temperature is not None:
        added.uniform_(generator=generator).log_().neg_().log_().neg_()
    added = added.to(hand.y).masked_fill_(~hand.pool.mask.unsqueeze(1), -math.inf)
    state = policy.begin(points, episodes, generator)
    observed: list[Tensor] = []

    def observe(chosen: Tensor, *, queried: bool) -> None:
        nonlocal state
        observed.append(chosen)
        added.scatter_(3, chosen.expand(queries, S, episodes).unsqueeze(-1), -math.inf)
        if len(observed) < start.shape[1] + queries:
            state = policy.observe(points, state, chosen, hand.y.gather(1, chosen), queried=queried)

    for first in start.unbind(dim=1):
        observe(first.unsqueeze(1).expand(S, episodes), queried=False)
    for noise in added:
        scores = policy.scores(points, state)
        observe(noise.add(scores, alpha=1 / (temperature or 1)).argmax(dim=2), queried=True)
    return torch.stack(observed, dim=2)


def gaps(
    y: Float[Tensor, "s n"], best: Float[Tensor, " s"], chosen: Int[Tensor, "s e k"], initial: int
) -> Float[Tensor, "s e t"]:
    """Eq. (r): the pool's best minus the best found, after each query."""
    found = y.gather(1, chosen.flatten(1)).unflatten(1, chosen.shape[1:]).cummax(dim=2).values
    gap: Tensor = best[:, None, None] - found[..., initial:]
    return gap


def log_probabilities(
    policy: Policy, points: Any, hand: Hand, chosen: Int[Tensor, "s e k"], initial: int, temperature: float
) -> Float[Tensor, "s e t"]:
    """Eq. (pntilde) of every query of every episode, with gradients."""
    S, E, k = chosen.shape
    y = hand.y.gather(1, chosen.flatten(1)).unflatten(1, (E, k))
    scores = policy.episode_scores(points, chosen, y, initial) / temperature
    # Query t cannot draw what was observed before it, at a position below initial + t.
    T = k - initial
    position = torch.arange(k, device=chosen.device)
    before = position < position[initial:].unsqueeze(1)
    taken = scores.new_zeros(T, k).masked_fill(before, -math.inf).expand(S, E, T, k)
    blocked = torch.zeros_like(scores).scatter(3, chosen.unsqueeze(2).expand(S, E, T, k), taken)
    blocked = blocked.masked_fill_(~hand.pool.mask[:, None, None], -math.inf)
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
                "lower queries or leave the task out"
            )
