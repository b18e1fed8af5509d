"""The policy gradient: episodes are sampled, and what made their gaps small is made more likely."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dkaf.errors import DivergedError
from dkaf.learning.descent import BestWeights, anneal, descend, optimiser_of
from dkaf.learning.episodes import (
    Batch,
    PaddedTasks,
    expected_gaps,
    gaps,
    random_candidates,
    sample,
    search,
    search_all,
)
from dkaf.learning.scales import learn_scales
from dkaf.policies import KernelPolicy, Policy
from dkaf.seeding import stream

NU_CANDIDATES = (0.3, 1.0, 3.0, 10.0, 30.0)
USUAL, SHARES = 0.75, (0.25, 0.5, 0.75, 1.0)
"""Of the way that end-to-end training went: what is kept if nothing speaks for another of these shares, or for none."""


def discounted_future(gap: Float[Tensor, "s e t"], gamma: float) -> Float[Tensor, "s e t"]:
    """G_t = sum over tau >= t of gamma^(tau - t) r_tau."""
    t = torch.arange(gap.shape[-1], device=gap.device)
    later = t.unsqueeze(1) - t
    return gap @ (gap.new_tensor(gamma) ** later).tril()


def advantage(G: Float[Tensor, "s e t"], baseline: str) -> Float[Tensor, "s e t"]:
    """How much worse than usual: against the batch's mean at that query, or the other episodes of the same start."""
    if baseline == "batch":
        return G - G.mean(dim=(0, 1))
    E = G.shape[1]
    return (G - G.mean(dim=1, keepdim=True)) * (E / (E - 1))  # G minus the mean of the E - 1 others


def policy_gradient_loss(policy: Policy, train: PaddedTasks, tasks: Tensor, draw: torch.Generator) -> Float[Tensor, ""]:
    """Eq. (Ltilde), averaged over episodes, with a baseline; plus the likelihood term if the settings keep one."""
    settings, batch, start = policy.settings, *_drawn_searches(policy, train, tasks, draw)
    points = policy.points(batch.x, batch.pool)
    loss = _searched_loss(policy, points, batch, start, draw)
    if settings.likelihood_weight and isinstance(policy, KernelPolicy):
        mask = batch.pool.mask
        part = random_candidates(mask, min(settings.likelihood_points, mask.shape[1]), draw)
        likelihood = policy.prior.log_likelihood(points.at(part), batch.y.gather(1, part), mask.gather(1, part))
        loss = loss - settings.likelihood_weight * likelihood.mean()
    return loss


def _drawn_searches(
    policy: Policy, train: PaddedTasks, tasks: Tensor, draw: torch.Generator
) -> tuple[Batch, Int[Tensor, "s n0"]]:
    """The tasks with as many random candidates as the settings say, and the starting points of each."""
    settings = policy.settings
    if settings.candidates is None:
        batch = train.batch(tasks)
    else:
        batch = train.part(tasks, max(settings.candidates, settings.initial + settings.queries), draw)
    return batch, random_candidates(batch.pool.mask, settings.initial, draw)


def _searched_loss(
    policy: Policy, points: Any, batch: Batch, start: Int[Tensor, "s n0"], draw: torch.Generator
) -> Float[Tensor, ""]:
    settings, temperature = policy.settings, policy.temperature
    queries, episodes, initial = settings.queries, settings.episodes, settings.initial
    if settings.all_candidates and isinstance(policy, KernelPolicy):
        chosen = search(policy, points, batch, start, queries, draw, episodes=episodes, temperature=temperature)
        log_p, expected = expected_gaps(policy, points, batch, chosen, initial, temperature)
        gap = gaps(batch.y, batch.pool.mask, chosen, initial)
        # A departure from Eq. (Ltilde): the expectation of r_t grad log p_t is taken exactly, as the gradient of the
        # gap that the softmax expects; draws stand for later gaps only.
        later = discounted_future(gap, settings.gamma) - gap
        return (expected + advantage(later, settings.baseline) * log_p).sum(dim=-1).mean()
    draws = settings.softmax_draws
    chosen, log_p = sample(
        policy, points, batch, start, queries, draw, episodes=episodes, temperature=temperature, draws=draws
    )
    G = discounted_future(gaps(batch.y, batch.pool.mask, chosen, initial), settings.gamma)
    return (advantage(G, settings.baseline) * log_p).sum(dim=-1).mean()


def validation_gap(policy: Policy, tasks: PaddedTasks, seed: int) -> float:
    """Mean gap of greedy searches, in units of y; the same starts every time."""
    return validation_gaps(policy, tasks, seed).mean().item()


def validation_gaps(policy: Policy, tasks: PaddedTasks, seed: int) -> Float[Tensor, " tasks"]:
    """The same, of each task."""
    settings = policy.settings
    draw, starts = stream(seed, "validation"), settings.validation_starts
    start = random_candidates(tasks.mask.repeat_interleave(starts, dim=0), settings.initial, draw)
    chosen = search_all(policy, tasks, start.unflatten(0, (-1, starts)), settings.queries, draw)
    gap: Tensor = gaps(tasks.y, tasks.mask, chosen, settings.initial).mean(dim=(1, 2)) * policy.response_scale
    return gap


def choose_nu(policy: KernelPolicy, tasks: PaddedTasks, seed: int) -> None:
    """The nu with the smallest validation gap. Likelihood knows nothing of nu, and DKL and GP deserve a good one."""
    if policy.acquisition == "ei":
        return
    tried = []
    for log_nu in torch.tensor(NU_CANDIDATES).log():
        policy.log_nu.data.copy_(log_nu)
        tried.append((validation_gap(policy, tasks, seed), log_nu))
    policy.log_nu.data.copy_(min(tried, key=lambda pair: pair[0])[1])


def reinforce(
    policy: Policy,
    train: PaddedTasks,
    validation: PaddedTasks | None,
    seed: int,
    report: Callable[[int, float | None], None],
    *,
    keep_last: bool,
) -> BestWeights:
    """Train by policy gradient; keep the weights that were best on the validation tasks, also if interrupted.

    With `keep_last`, the weights after all updates are kept; what comes back knows the best ones still. `report` gets
    every update's number and, after a validation, its gap in units of y; update 0 is before the first.
    """
    settings = policy.settings
    optimiser = optimiser_of(policy.learning_rates(), settings.weight_decay)
    draw = stream(seed, "policy gradient")
    best = BestWeights(policy, settings.patience)
    all_done = False
    try:
        for update in range(settings.updates + 1):
            if update > 0:
                policy.train()
                if settings.anneal:
                    anneal(optimiser, (update - 1) / settings.updates)
                tasks = torch.randint(len(train), (settings.batch,), generator=draw)
                descend(optimiser, policy_gradient_loss(policy, train, tasks, draw), settings.clip)
            gap = None
            if validation is not None and (update % settings.validate_every == 0 or update == settings.updates):
                gap = validation_gap(policy, validation, seed)
                best.offer(update, gap)
            report(update, gap)
            if best.waited_enough(update):
                break
        else:
            all_done = True
    finally:
        if keep_last and all_done:
            policy.eval()
        else:
            best.restore()
    return best


def scales_by_policy_gradient(
    policy: KernelPolicy, unseen: PaddedTasks, seed: int, report: Callable[[int], None]
) -> None:
    """The scales that make searches of tasks short which the encoder has not seen.

    They go half of the way: the tasks are few, and where they lead is a little too far for others.
    """

    def loss(encoded: PaddedTasks, tasks: Int[Tensor, " s"], draw: torch.Generator) -> Float[Tensor, ""]:
        batch, start = _drawn_searches(policy, encoded, tasks, draw)
        return _searched_loss(policy, policy.place(batch.x, batch.pool), batch, start, draw)

    before = copy.deepcopy(policy.state_dict())
    learn_scales(policy, unseen, loss, stream(seed, "scales by policy gradient"), report, warp=False)
    _go(policy, before, policy.state_dict(), 0.5)


def _go(policy: Policy, before: dict[str, Any], after: dict[str, Any], share: float) -> None:
    """A share of the way from some weights to others, the statistics of a user's encoder included."""
    weights = copy.copy(after)  # with the versions that modules put beside them
    for name, end in after.items():
        if isinstance(end, Tensor) and end.is_floating_point() and end.layout is torch.strided:
            between = torch.lerp(before[name], end, share)
            weights[name] = torch.where(between.isfinite(), between, end)  # infinite masks have no middle
    policy.load_state_dict(weights)


class Settled(NamedTuple):
    """What became of a training."""

    share: float
    """Of the way, what was kept: one of `SHARES`, or 0."""
    gap: float
    """On the validation tasks: of what was kept, or the smallest of all that was not."""


class Before:
    """A policy as it was: what became of it is held against that on the validation tasks."""

    def __init__(self, policy: Policy, tasks: PaddedTasks, seed: int) -> None:
        self.policy, self.tasks, self.seed = policy, tasks, seed
        self._weights = copy.deepcopy(policy.state_dict())
        self._gaps = validation_gaps(policy, tasks, seed)

    def settle(self) -> Settled:
        """Keep three quarters of the way, or what is better by more than its error, but nothing no better than before.

        Tasks this few cannot tell gaps apart that differ by a twentieth, and the best of several by them is a matter of
        luck: docs/research/lower-gap.md. But what a user gets should have searched them better than before.
        """
        after = copy.deepcopy(self.policy.state_dict())
        gaps = {share: self._gaps_at(share, after) for share in SHARES}

        def best(shares: list[float]) -> float:
            return min(shares, key=lambda share: gaps[share].mean().item())

        below = [share for share in SHARES if gaps[share].mean() < self._gaps.mean()]
        if not below:
            self.policy.load_state_dict(self._weights)
            return Settled(0.0, gaps[best([*SHARES])].mean().item())
        share = best([USUAL, *(share for share in SHARES if _by_an_error(gaps[share], gaps[USUAL]))])
        if share not in below:
            share = best(below)
        _go(self.policy, self._weights, after, share)
        return Settled(share, gaps[share].mean().item())

    def _gaps_at(self, share: float, after: dict[str, Any]) -> Float[Tensor, " tasks"]:
        _go(self.policy, self._weights, after, share)
        try:
            return validation_gaps(self.policy, self.tasks, self.seed)
        except DivergedError:  # here, and perhaps nowhere else along the way
            return torch.full_like(self._gaps, torch.inf)


def _by_an_error(gaps: Float[Tensor, " tasks"], others: Float[Tensor, " tasks"]) -> bool:
    """Whether they are smaller than the others in the mean, by more than the standard error of the difference."""
    difference = others - gaps
    return bool(difference.mean() > difference.std() / len(difference) ** 0.5)
