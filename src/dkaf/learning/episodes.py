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
        """With only those feature rows that occur, each once."""
        best = y.where(mask, -math.inf).max(dim=1).values
        used = torch.zeros(len(self.x), dtype=torch.bool, device=rows.device)
        used[rows[mask]] = True
        if bool(used.all()):
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
    free = hand.pool.mask.unsqueeze(1).expand(S, episodes, N).clone()
    state = policy.begin(points, episodes, generator)
    observed: list[Tensor] = []

    def observe(chosen: Tensor, *, queried: bool) -> None:
        nonlocal state
        observed.append(chosen)
        free.scatter_(2, chosen.unsqueeze(-1), False)
        if len(observed) < start.shape[1] + queries:
            state = policy.observe(points, state, chosen, hand.y.gather(1, chosen), queried=queried)

    for first in start.unbind(dim=1):
        observe(first.unsqueeze(1).expand(S, episodes), queried=False)
    for _ in range(queries):
        scores = policy.scores(points, state).masked_fill(~free, -math.inf)
        observe(scores.argmax(dim=2) if temperature is None else _draw(scores / temperature, generator), queried=True)
    return torch.stack(observed, dim=2)


def _draw(logits: Float[Tensor, "s e n"], generator: torch.Generator) -> Int[Tensor, "s e"]:
    """A draw from each softmax, Eq. (pntilde): where the cumulative probability first exceeds a uniform number.

    One random number a draw; noise for every candidate, as in the Gumbel trick, costs more than the rest of a step.
    """
    cumulative = logits.softmax(dim=-1).cumsum(dim=-1)
    total = cumulative[..., -1:]
    level = torch.rand(total.shape, generator=generator).to(total) * total
    level = torch.minimum(level, torch.nextafter(total, torch.zeros_like(total)))  # rounding must not reach the end
    return torch.searchsorted(cumulative, level, right=True).squeeze(-1)


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
    # A candidate is free at query t if it is observed at position initial + t or later, or never.
    position = torch.full((S, E, hand.y.shape[1]), k, device=chosen.device)
    position.scatter_(2, chosen, torch.arange(k, device=chosen.device).expand(S, E, k))
    position = position.where(hand.pool.mask.unsqueeze(1), -1)
    free = position.unsqueeze(2) >= torch.arange(initial, k, device=chosen.device).unsqueeze(-1)
    picked = scores.gather(3, chosen[..., initial:].unsqueeze(-1)).squeeze(-1)
    return picked - scores.masked_fill(~free, -math.inf).logsumexp(dim=3)


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
