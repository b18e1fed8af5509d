"""The policy gradient: episodes are sampled, and what made their gaps small is made more likely."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from dkaf.learning.descent import BestWeights, descend, optimiser_of
from dkaf.learning.episodes import Deck, gaps, log_probabilities, random_candidates, search
from dkaf.policies import GaussianPolicy, Policy
from dkaf.seeding import stream


def discounted_future(gap: Float[Tensor, "s e t"], gamma: float) -> Float[Tensor, "s e t"]:
    """G_t = sum over tau >= t of gamma^(tau - t) r_tau."""
    total, sums = torch.zeros_like(gap[..., 0]), []
    for now in reversed(gap.unbind(dim=-1)):
        total = now + gamma * total
        sums.append(total)
    return torch.stack(sums[::-1], dim=-1)


def advantage(G: Float[Tensor, "s e t"], baseline: str) -> Float[Tensor, "s e t"]:
    """How much worse than usual: against the batch's mean at that query, or the other episodes of the same start."""
    if baseline == "batch":
        return G - G.mean(dim=(0, 1))
    E = G.shape[1]
    return (G - G.mean(dim=1, keepdim=True)) * (E / (E - 1))  # G minus the mean of the E - 1 others


def policy_gradient_loss(policy: Policy, deck: Deck, tasks: Tensor, draw: torch.Generator) -> Float[Tensor, ""]:
    """Eq. (Ltilde), averaged over episodes, with a baseline; plus the likelihood term if the settings keep one."""
    settings = policy.settings
    if settings.candidates is None:
        hand = deck.deal(tasks)
    else:
        hand = deck.deal_some(tasks, max(settings.candidates, settings.initial + settings.queries), draw)
    points = policy.points(hand.x, hand.pool)
    start = random_candidates(hand.pool.mask, settings.initial, draw)
    chosen = search(
        policy,
        points,
        hand,
        start,
        settings.queries,
        draw,
        episodes=settings.episodes,
        temperature=settings.temperature,
    )
    G = discounted_future(gaps(hand.y, hand.best, chosen, settings.initial), settings.gamma)
    log_p = log_probabilities(policy, points, hand, chosen, settings.initial, settings.temperature)
    loss = (advantage(G, settings.baseline) * log_p).sum(dim=-1).mean()
    if settings.likelihood_weight and isinstance(policy, GaussianPolicy):
        size = min(settings.pretrain_points, int(hand.pool.mask.sum(1).min()))
        part = random_candidates(hand.pool.mask, size, draw)
        some = policy.kernel_points(points).at(part)
        loss = loss - settings.likelihood_weight * policy.prior.log_likelihood(some, hand.y.gather(1, part)).mean()
    return loss


def validation_gap(policy: Policy, deck: Deck, seed: int) -> float:
    """Mean gap of greedy searches, in units of y; the same starts every time."""
    settings = policy.settings
    policy.eval()
    with torch.no_grad():
        hand = deck.deal(torch.arange(len(deck)).repeat_interleave(settings.validation_starts))
        draw = stream(seed, "validation")
        start = random_candidates(hand.pool.mask, settings.initial, draw)
        points = policy.points(hand.x, hand.pool)
        chosen = search(policy, points, hand, start, settings.queries, draw)
        return float(gaps(hand.y, hand.best, chosen, settings.initial).mean() * policy.response_scale)


def reinforce(
    policy: Policy, train: Deck, validation: Deck | None, seed: int, report: Callable[[int, float | None], None]
) -> None:
    """Train by policy gradient; keep the weights that were best on the validation tasks, also if interrupted.

    `report` gets every update's number and, after a validation, its gap in units of y; update 0 is before the first.
    """
    settings = policy.settings
    optimiser = optimiser_of(policy.trained_by_gradient(), settings.learning_rate, settings.weight_decay)
    draw = stream(seed, "policy gradient")
    best = BestWeights(policy, settings.patience)
    try:
        for update in range(settings.updates + 1):
            if update > 0:
                policy.train()
                tasks = torch.randint(len(train), (settings.starts,), generator=draw)
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
