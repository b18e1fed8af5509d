"""The policy gradient: episodes are sampled, and what made their gaps small is made more likely."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from dkaf.learning.descent import BestWeights, anneal, descend, optimiser_of
from dkaf.learning.episodes import PaddedTasks, gaps, random_candidates, sample, search_all
from dkaf.policies import KernelPolicy, Policy
from dkaf.seeding import stream

NU_CANDIDATES = (0.3, 1.0, 3.0, 10.0, 30.0)


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
    settings = policy.settings
    if settings.candidates is None:
        batch = train.batch(tasks)
    else:
        batch = train.part(tasks, max(settings.candidates, settings.initial + settings.queries), draw)
    points = policy.points(batch.x, batch.pool)
    mask = batch.pool.mask
    start = random_candidates(mask, settings.initial, draw)
    chosen, log_p = sample(
        policy,
        points,
        batch,
        start,
        settings.queries,
        draw,
        episodes=settings.episodes,
        temperature=settings.temperature,
        draws=settings.softmax_draws,
    )
    G = discounted_future(gaps(batch.y, mask, chosen, settings.initial), settings.gamma)
    loss = (advantage(G, settings.baseline) * log_p).sum(dim=-1).mean()
    if settings.likelihood_weight and isinstance(policy, KernelPolicy):
        part = random_candidates(mask, min(settings.likelihood_points, mask.shape[1]), draw)
        likelihood = policy.prior.log_likelihood(points.at(part), batch.y.gather(1, part), mask.gather(1, part))
        loss = loss - settings.likelihood_weight * likelihood.mean()
    return loss


def validation_gap(policy: Policy, tasks: PaddedTasks, seed: int) -> float:
    """Mean gap of greedy searches, in units of y; the same starts every time."""
    settings = policy.settings
    draw, starts = stream(seed, "validation"), settings.validation_starts
    start = random_candidates(tasks.mask.repeat_interleave(starts, dim=0), settings.initial, draw)
    chosen = search_all(policy, tasks, start.unflatten(0, (-1, starts)), settings.queries, draw)
    gap = gaps(tasks.y, tasks.mask, chosen, settings.initial)
    return (gap.mean() * policy.response_scale).item()


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
) -> None:
    """Train by policy gradient; keep the weights that were best on the validation tasks, also if interrupted.

    `report` gets every update's number and, after a validation, its gap in units of y; update 0 is before the first.
    """
    settings = policy.settings
    optimiser = optimiser_of(policy.learning_rates(), settings.weight_decay)
    draw = stream(seed, "policy gradient")
    best = BestWeights(policy, settings.patience)
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
    finally:
        best.restore()
