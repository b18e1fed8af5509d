"""Episodes: whole searches on batches of tasks, and the gaps they leave.

S starts in a batch (a task and its starting points), E episodes a start, N candidates, T queries, n0 starting points,
k = n0 + T observed points.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dkaf.errors import InputError
from dkaf.model.inputs import Rows
from dkaf.model.prior import Points, Pool
from dkaf.policies import KernelPolicy, NetworkPolicy, Policy
from dkaf.tasks import TaskSet


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
        rows, mask, y = self.rows[tasks], self.mask[tasks], self.y[tasks]
        if rows.numel() > 4 * len(self.x):  # hardly a row is in none of them
            return Batch(self.x, Pool(rows, mask), y)
        return self._batch(rows, mask, y)

    def part(self, tasks: Int[Tensor, " s"], candidates: int, generator: torch.Generator) -> "Batch":
        """The chosen tasks, with this many random candidates of each pool (all of a smaller one)."""
        rows, mask, y = self.rows[tasks], self.mask[tasks], self.y[tasks]
        # Where tasks share rows, each row draws one lot for all of them: fewer rows to encode, as random for each task.
        lots = None
        if len(self.x) < rows.numel():
            lots = torch.rand(len(self.x), generator=generator).to(rows.device)[rows]
        some = random_candidates(mask, min(candidates, mask.shape[1]), generator, lots)
        return self._batch(rows.gather(1, some), mask.gather(1, some), y.gather(1, some))

    def _batch(self, rows: Int[Tensor, "s n"], mask: Bool[Tensor, "s n"], y: Float[Tensor, "s n"]) -> "Batch":
        """With each feature row that occurs once; if nearly all occur, with all, since picking them costs more."""
        if len(self.x) > 4 * rows.numel():  # few of many rows: to sort them costs less than to mark them among all
            distinct, place = torch.unique(rows, return_inverse=True)
            return Batch(self.x[distinct], Pool(place, mask), y)
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


def random_candidates(
    mask: Bool[Tensor, "s n"], count: int, generator: torch.Generator, lots: Float[Tensor, "s n"] | None = None
) -> Int[Tensor, "s m"]:
    """Different candidates of each pool, all as likely; of a pool that has fewer, all of them and then padding."""
    if lots is None:
        lots = torch.rand(mask.shape, generator=generator)
    return lots.to(mask.device).where(mask, -1.0).topk(count, dim=1).indices


# What is asked at every query: its number, the scores, and -inf where there is nothing to choose; gives candidates.
Choose = Callable[[int, Tensor, Tensor], Tensor]


def _walk(
    policy: Policy,
    points: Any,
    batch: Batch,
    start: Int[Tensor, "s e n0"],
    queries: int,
    generator: torch.Generator,
    choose: Choose,
) -> Int[Tensor, "s e k"]:
    """All episodes, step by step: the observed candidates in order, the starting points first. None comes twice."""
    S, E, n0 = start.shape
    blocked = torch.zeros(S, E, batch.y.shape[1]).to(batch.y).masked_fill_(~batch.pool.mask.unsqueeze(1), -math.inf)
    state, y = policy.begin(points, E, generator), policy.warped(batch.y)
    observed: list[Tensor] = []

    def observe(chosen: Tensor, *, queried: bool) -> None:
        nonlocal state
        observed.append(chosen)
        blocked.scatter_(2, chosen.unsqueeze(-1), -math.inf)
        if len(observed) < n0 + queries:
            state = policy.observe(points, state, chosen, y.gather(1, chosen), queried=queried)

    for first in start.unbind(dim=2):
        observe(first, queried=False)
    for t in range(queries):
        observe(choose(t, policy.scores(points, state), blocked), queried=True)
    return torch.stack(observed, dim=2)


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
    """Search every pool: the best score wins, or, with a temperature, a draw from the softmax of scores/temperature."""
    starts = start.unsqueeze(1).expand(-1, episodes, -1)
    with torch.inference_mode():
        choose = _best if temperature is None else _draws(starts, queries, generator, temperature)
        chosen = _walk(policy, points, batch, starts, queries, generator, choose)
    return chosen.clone()  # outside, so that gradients may go through what it indexes


def sample(
    policy: Policy,
    points: Any,
    batch: Batch,
    start: Int[Tensor, "s n0"],
    queries: int,
    generator: torch.Generator,
    *,
    episodes: int,
    temperature: float,
    draws: int | None = None,
) -> tuple[Int[Tensor, "s e k"], Float[Tensor, "s e t"]]:
    """Episodes drawn as `search` draws them, and the log-probabilities of their queries, with gradients.

    With `draws`, a network's log-probabilities are replaced by values whose expected gradient is theirs.
    """
    if isinstance(policy, KernelPolicy):
        chosen = search(policy, points, batch, start, queries, generator, episodes=episodes, temperature=temperature)
        return chosen, log_probabilities(policy, points, batch, chosen, start.shape[1], temperature)
    starts = start.unsqueeze(1).expand(-1, episodes, -1)
    if draws is not None and isinstance(policy, NetworkPolicy):
        return _estimated(policy, points, batch, starts, queries, generator, temperature, draws)
    # A network's scores cost so much that they are computed once, with gradients, and not again for all steps.
    draw = _draws(starts, queries, generator, temperature)
    return _recorded(policy, points, batch, starts, queries, generator, temperature, draw)


def _estimated(
    policy: NetworkPolicy,
    points: Any,
    batch: Batch,
    start: Int[Tensor, "s e n0"],
    queries: int,
    generator: torch.Generator,
    temperature: float,
    draws: int,
) -> tuple[Int[Tensor, "s e k"], Float[Tensor, "s e t"]]:
    """The gradient of log softmax(s)_a is that of s_a less its mean under the softmax, for which draws stand.

    The query itself is one such draw, so that n more make the gradient's variance larger by about 1/n, and only
    1 + n candidates a query are scored with gradients, those of all queries at once.
    """
    numbers = _numbers(start, queries, generator, 1 + draws)
    drawn: list[Tensor] = []
    totals: list[Tensor] = []

    def choose(t: int, scores: Tensor, blocked: Tensor) -> Tensor:
        totals.append(scores.sum())
        drawn.append(_drawn(torch.add(blocked, scores, alpha=1 / temperature), numbers[t]))
        return drawn[-1][..., 0]

    with torch.inference_mode():
        chosen = _walk(policy, points, batch, start, queries, generator, choose)
        at, unseen = torch.stack(drawn, dim=2), 0 * torch.stack(totals).sum()
    chosen, at = chosen.clone(), at.clone()  # outside, so that gradients may go through what they index
    y = policy.warped(batch.y).gather(1, chosen.flatten(1)).unflatten(1, chosen.shape[1:])
    scores = policy.scores_at(points, chosen, y, start.shape[2], at)
    # A score that is not finite may not have been drawn; the gradient shows it all the same.
    return chosen, (scores[..., 0] - scores[..., 1:].mean(dim=-1)) / temperature * (1 + unseen.item())


def log_probabilities(
    policy: Policy, points: Any, batch: Batch, chosen: Int[Tensor, "s e k"], initial: int, temperature: float
) -> Float[Tensor, "s e t"]:
    """Eq. (pntilde) of every query of every episode, with gradients."""
    if isinstance(policy, KernelPolicy):
        scores = _episode_scores(policy, points, batch, chosen, initial)
        log_p: Tensor = _Softmax.apply(scores, batch.pool.mask, chosen, temperature, None)[0]  # type: ignore[no-untyped-call]
        return log_p

    def follow(t: int, scores: Tensor, blocked: Tensor) -> Tensor:
        return chosen[..., initial + t]

    queries = chosen.shape[2] - initial
    start = chosen[..., :initial]
    return _recorded(policy, points, batch, start, queries, torch.Generator(), temperature, follow)[1]


def expected_gaps(
    policy: KernelPolicy, points: Points, batch: Batch, chosen: Int[Tensor, "s e k"], initial: int, temperature: float
) -> tuple[Float[Tensor, "s e t"], Float[Tensor, "s e t"]]:
    """`log_probabilities`, and the gap after every query, averaged over all that the softmax might have drawn."""
    scores = _episode_scores(policy, points, batch, chosen, initial)
    y, mask, found = batch.y, batch.pool.mask, _best_found(batch.y, chosen)
    nothing = found.new_full((*found.shape[:2], 1), -math.inf)
    before = torch.cat((nothing, found), dim=2)[..., initial:-1].unsqueeze(-1)
    gap = _best_of(y, mask)[:, None, None, None] - torch.maximum(before, y[:, None, None])
    both: tuple[Tensor, Tensor] = _Softmax.apply(scores, mask, chosen, temperature, gap)  # type: ignore[no-untyped-call]
    return both


def _episode_scores(
    policy: KernelPolicy, points: Points, batch: Batch, chosen: Int[Tensor, "s e k"], initial: int
) -> Float[Tensor, "s e t n"]:
    y = policy.warped(batch.y).gather(1, chosen.flatten(1)).unflatten(1, chosen.shape[1:])
    return policy.episode_scores(points, chosen, y, initial)


def _recorded(
    policy: Policy,
    points: Any,
    batch: Batch,
    start: Int[Tensor, "s e n0"],
    queries: int,
    generator: torch.Generator,
    temperature: float,
    choose: Choose,
) -> tuple[Int[Tensor, "s e k"], Float[Tensor, "s e t"]]:
    log_p: list[Tensor] = []

    def record(t: int, scores: Tensor, blocked: Tensor) -> Tensor:
        chosen = choose(t, scores.detach(), blocked)
        log_softmax = torch.add(blocked, scores, alpha=1 / temperature).log_softmax(dim=2)
        log_p.append(log_softmax.gather(2, chosen.unsqueeze(-1)).squeeze(-1))
        return chosen

    chosen = _walk(policy, points, batch, start, queries, generator, record)
    return chosen, torch.stack(log_p, dim=2)


def _best(t: int, scores: Tensor, blocked: Tensor) -> Tensor:
    return (scores + blocked).argmax(dim=2)


def _draws(start: Int[Tensor, "s e n0"], queries: int, generator: torch.Generator, temperature: float) -> Choose:
    """Eq. (pntilde)."""
    numbers = _numbers(start, queries, generator, 1)
    return lambda t, scores, blocked: _drawn(torch.add(blocked, scores, alpha=1 / temperature), numbers[t]).squeeze(-1)


def _numbers(
    start: Int[Tensor, "s e n0"], queries: int, generator: torch.Generator, draws: int
) -> Float[Tensor, "t s e m"]:
    """One number a draw, above 0 and at most 1."""
    return 1 - torch.rand(queries, *start.shape[:2], draws, generator=generator).to(start.device)


def _drawn(scores: Float[Tensor, "s e n"], numbers: Float[Tensor, "s e m"]) -> Int[Tensor, "s e m"]:
    """Draws from the softmax of each row of scores: a number finds its place among the summed probabilities.

    -inf is never drawn: the first sum that reaches a number above 0 and at most the last sum is one where a probability
    above 0 was added.
    """
    p = scores.softmax(dim=2)
    sums = p.cumsum(dim=2)
    # Of NaN, which the gradient will show, there is no place.
    found = torch.searchsorted(sums, numbers * sums[..., -1:]).clamp_max_(scores.shape[2] - 1)
    if p.device.type != "cpu":  # sums in parallel round in another order, and may rise where nothing was added
        found = found.where(p.gather(2, found) > 0, p.argmax(dim=2, keepdim=True))
    return found


def search_all(
    policy: Policy, tasks: PaddedTasks, start: Int[Tensor, "tasks e n0"], queries: int, generator: torch.Generator
) -> Int[Tensor, "tasks e k"]:
    """Greedy searches of all tasks from all their starts, as many at once as suit the policy."""
    policy.eval()
    (_, E, _), N = start.shape, tasks.rows.shape[1]
    starts = max(1, min(E, policy.candidates_at_once // N))
    pools = max(1, policy.candidates_at_once // (starts * N))
    parts = []
    for part, first in zip(torch.arange(len(tasks)).split(pools), start.split(pools), strict=True):
        batch = tasks.batch(part)
        with torch.no_grad():  # not inference mode: a user's encoder may keep what it computes
            points = policy.points(batch.x, batch.pool)
        with torch.inference_mode():
            walks = [_walk(policy, points, batch, some, queries, generator, _best) for some in first.split(starts, 1)]
            parts.append(torch.cat(walks, dim=1))
    return torch.cat(parts).clone()


def gaps(
    y: Float[Tensor, "s n"], mask: Bool[Tensor, "s n"], chosen: Int[Tensor, "s e k"], initial: int
) -> Float[Tensor, "s e t"]:
    """Eq. (r): the pool's best minus the best found, after each query."""
    gap: Tensor = _best_of(y, mask)[:, None, None] - _best_found(y, chosen)[..., initial:]
    return gap


def _best_found(y: Float[Tensor, "s n"], chosen: Int[Tensor, "s e k"]) -> Float[Tensor, "s e k"]:
    found: Tensor = y.gather(1, chosen.flatten(1)).unflatten(1, chosen.shape[1:]).cummax(dim=2).values
    return found


def _best_of(y: Float[Tensor, "s n"], mask: Bool[Tensor, "s n"]) -> Float[Tensor, " s"]:
    return y.where(mask, -math.inf).max(dim=1).values


class _Softmax(torch.autograd.Function):
    """softmax(scores / temperature) of each query, over what was not observed before it.

    Gives its logarithm at the candidate that was chosen and, of values of all candidates, its mean, if there are any.
    The gradients are (what was chosen - softmax) / temperature and softmax (values - mean) / temperature: a few passes
    over the scores where PyTorch makes ten.
    """

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, mask: Tensor, chosen: Tensor, temperature: float, values: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        S, E, T, _ = scores.shape
        k = chosen.shape[2]
        logits = scores / temperature
        if not mask.all():
            logits.masked_fill_(~mask[:, None, None], -math.inf)
        # Query t cannot draw what was observed before it, at a position below k - T + t; later ones it can.
        position = torch.arange(k, device=chosen.device)
        before = (position < position[k - T :].unsqueeze(1)).expand(S, E, T, k)
        places = chosen.unsqueeze(2).expand(S, E, T, k)
        logits.scatter_(3, places, logits.gather(3, places).masked_fill_(before, -math.inf))
        at = chosen[..., k - T :].unsqueeze(-1)
        log_p = logits.log_softmax(dim=3)
        at_chosen, p = log_p.gather(3, at).squeeze(-1), log_p.exp_()
        expected = None if values is None else torch.linalg.vecdot(p, values)
        ctx.save_for_backward(p, at, values, expected)
        ctx.temperature = temperature
        return at_chosen, expected

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None, None]:
        p, at, values, expected = ctx.saved_tensors
        g = (gradients[0] / ctx.temperature).unsqueeze(-1)
        weights = -g
        if values is not None:
            weights = (values - expected.unsqueeze(-1)).mul_(gradients[1].unsqueeze(-1) / ctx.temperature).sub_(g)
        return (p * weights).scatter_add_(3, at, g), None, None, None, None


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
