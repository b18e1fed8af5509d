"""One training update of ours, against the same mathematics with one posterior a step.

An update samples a batch of episodes, takes the log-probabilities of all their queries, and descends the policy
gradient: at the paper's settings, and at those of the default recipe, with eight episodes a start, 200 candidates and a
likelihood term. All must give the same log-probabilities, the same likelihood and the same gradient of both.

GPyTorch comes three times: as its documentation calls it, with a joint posterior of all candidates; in the fastest form
found of its public interface, with candidates as a batch; and with a private method overridden that would otherwise
evaluate the prior covariance between all candidates, of which only the diagonal is needed.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.comparison import Case, Peer, Work, agree
from benchmarks.documents import PAPER, Size, dense_rows, document_tasks, double_rows, untrained_kernel
from benchmarks.peers import (
    Model,
    gpytorch_joint,
    gpytorch_overridden,
    gpytorch_public,
    mutual_information,
    networks,
    plain_pytorch,
    represent,
    search,
)
from dkaf.learning import episodes
from dkaf.learning.descent import descend, optimiser_of
from dkaf.learning.episodes import PaddedTasks, gaps, log_probabilities, random_candidates
from dkaf.learning.reinforce import advantage, discounted_future, policy_gradient_loss
from dkaf.model.prior import Pool
from dkaf.policies import KernelPolicy, Policy
from dkaf.seeding import stream

PEERS: dict[Peer, Callable[[KernelPolicy], Model]] = {
    Peer("torch", "one posterior a step"): plain_pytorch,
    Peer("gpytorch", "a private method overridden", "overridden"): gpytorch_overridden,
    Peer("gpytorch", "candidates as a batch", "public"): gpytorch_public,
    Peer("gpytorch", "as documented", "joint"): gpytorch_joint,
}


def case(recipe: str, size: Size = PAPER) -> Case:
    tasks = document_tasks(size)
    policy = untrained_kernel(tasks, "dkaf", recipe)
    deck, settings = PaddedTasks.of(policy, tasks), policy.settings

    def of(peer: Callable[[KernelPolicy], Model]) -> Callable[[], Work]:
        return lambda: _theirs(policy, deck, peer)

    return Case(
        size=f"{settings.batch} starts of {settings.episodes} episodes, {settings.candidates or size.pool} candidates, "
        f"{settings.queries} queries; {size}",
        ours=lambda: our_update(policy, deck),
        peers={peer: of(model) for peer, model in PEERS.items()},
        check=lambda: _check(policy, deck),
    )


def our_update(policy: Policy, deck: PaddedTasks) -> Work:
    """One update by policy gradient of a copy of the policy, whatever its method."""
    policy, draw = copy.deepcopy(policy).train(), stream(0, "updates")
    settings = policy.settings
    optimiser = optimiser_of(policy.learning_rates(), settings.weight_decay)

    def update() -> None:
        numbers = torch.randint(len(deck), (settings.batch,), generator=draw)
        descend(optimiser, policy_gradient_loss(policy, deck, numbers, draw), settings.clip)

    return update


def _theirs(policy: KernelPolicy, deck: PaddedTasks, peer: Callable[[KernelPolicy], Model]) -> Work:
    policy, draw, x = copy.deepcopy(policy).train(), stream(0, "updates"), dense_rows(deck, policy)
    settings, model = policy.settings, peer(policy)
    optimiser = optimiser_of(dict.fromkeys(model.parameters, settings.learning_rate), settings.weight_decay)

    def update() -> None:
        rows, y = _drawn(policy, deck, draw)
        start = random_candidates(torch.ones_like(y, dtype=torch.bool), settings.initial, draw)
        with model.settings():
            u = represent(policy.prior, x, rows)
            chosen, log_p = _episodes(policy, model, u, y, start, draw)
            gap = gaps(y, torch.ones_like(y, dtype=torch.bool), chosen, settings.initial)
            weight = advantage(discounted_future(gap, settings.gamma), settings.baseline)
            loss = (weight * log_p).sum(dim=-1).mean()
            if settings.likelihood_weight:
                points = settings.pretrain_points
                loss = loss - settings.likelihood_weight * model.log_likelihood(u[:, :points], y[:, :points]).mean()
            descend(optimiser, loss, settings.clip)

    return update


def _drawn(policy: KernelPolicy, deck: PaddedTasks, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows and responses of random tasks, with as many random candidates as an update takes."""
    settings = policy.settings
    numbers = torch.randint(len(deck), (settings.batch,), generator=draw)
    rows, y = deck.rows[numbers], deck.y[numbers]
    if settings.candidates is None:
        return rows, y
    some = random_candidates(deck.mask[numbers], min(settings.candidates, rows.shape[1]), draw)
    return rows.gather(1, some), y.gather(1, some)


def _episodes(
    policy: KernelPolicy,
    model: Model,
    u: Tensor,
    y: Tensor,
    start: Tensor,
    draw: torch.Generator,
    given: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Several episodes a start are for the peers so many more of a batch."""
    E = policy.settings.episodes
    u, y, start = (value.repeat_interleave(E, dim=0) for value in (u, y, start))
    followed = None if given is None else given.flatten(0, 1)
    scorer = mutual_information(policy, model.posterior, u)
    chosen, log_p = search(scorer, policy.settings, y, start, draw, followed)
    return chosen.unflatten(0, (-1, E)), log_p.unflatten(0, (-1, E))


def _check(policy: KernelPolicy, deck: PaddedTasks) -> str:
    """In double precision, on the same episodes: log-probabilities, likelihoods, and the networks' gradients."""
    policy, draw = copy.deepcopy(policy).double().eval(), stream(0, "agreement")
    settings, prior, worst = policy.settings, policy.prior, 0.0
    rows, y = _drawn(policy, deck, draw)
    y = y.double()
    mask = torch.ones_like(y, dtype=torch.bool)
    batch = episodes.Batch(double_rows(deck.x), Pool(rows, mask), y)
    start = random_candidates(mask, settings.initial, draw)
    points = policy.points(batch.x, batch.pool)
    chosen = episodes.search(
        policy,
        points,
        batch,
        start,
        settings.queries,
        draw,
        episodes=settings.episodes,
        temperature=settings.temperature,
    )
    log_p = log_probabilities(policy, points, batch, chosen, settings.initial, settings.temperature)
    some = torch.arange(min(settings.pretrain_points, y.shape[1])).expand(len(y), -1)
    likelihood = prior.log_likelihood(points.at(some), y.gather(1, some), mask.gather(1, some))
    gradient = _gradient(policy, log_p, likelihood)
    for peer, make in PEERS.items():
        model = make(policy)
        with model.settings():
            u = represent(prior, dense_rows(deck, policy), rows)
            _, their_log_p = _episodes(policy, model, u, y, start, draw, chosen)
            their_likelihood = model.log_likelihood(u[:, : some.shape[1]], y[:, : some.shape[1]])
            their_gradient = _gradient(policy, their_log_p, their_likelihood)
        differences = [
            agree("log-probabilities of the same episodes", log_p, their_log_p, peer.name),
            agree("likelihoods of the same points", likelihood, their_likelihood, peer.name),
            agree("gradients", gradient, their_gradient, peer.name),
        ]
        worst = max(worst, *differences)
    return f"log-probabilities, likelihoods and gradients agree to {worst:.0e}"


def _gradient(policy: KernelPolicy, log_p: Tensor, likelihood: Tensor) -> Tensor:
    """Of what an update descends, without its weights, and such that neither part hides the other."""
    value = log_p.sum() + log_p.numel() * likelihood.mean()
    parts = torch.autograd.grad(value, networks(policy.prior))
    return torch.cat([part.flatten() for part in parts])
