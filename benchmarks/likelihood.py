"""One update by marginal likelihood, of DKL and of GP, against GPyTorch's ExactMarginalLogLikelihood in batches.

An update takes a random part of each of some tasks: 16 tasks of 128 points. Values and gradients must be the same,
those of the networks and those of the amplitude, the noise and the length scale.
"""

import copy
from collections.abc import Callable
from typing import Any

import gpytorch
import torch
from torch import Tensor

from benchmarks.comparison import Case, Peer, Work, agree
from benchmarks.documents import PAPER, Size, dense_rows, document_tasks, double_rows, untrained_kernel
from benchmarks.peers import exact_gp, gpytorch_settings, networks, represent
from dkaf.learning.descent import descend, optimiser_of
from dkaf.learning.episodes import Batch, PaddedTasks, random_candidates
from dkaf.learning.pretrain import likelihood
from dkaf.model.prior import Pool, Prior
from dkaf.policies import KernelPolicy
from dkaf.seeding import stream

PEER = Peer("gpytorch", "ExactMarginalLogLikelihood")


def case(method: str, size: Size = PAPER) -> Case:
    tasks = document_tasks(size)
    policy = untrained_kernel(tasks, method, "default")
    deck, settings = PaddedTasks.of(policy, tasks), policy.settings
    return Case(
        size=f"{settings.pretrain_tasks} tasks of {settings.pretrain_points} points; {size}",
        ours=lambda: _ours(policy, deck),
        peers={PEER: lambda: _theirs(policy, deck)},
        check=lambda: _check(policy, deck),
    )


def _ours(policy: KernelPolicy, deck: PaddedTasks) -> Work:
    settings, prior, draw = policy.settings, copy.deepcopy(policy.prior).train(), stream(0, "updates")
    optimiser = optimiser_of(dict.fromkeys(prior.parameters(), settings.pretrain_learning_rate), settings.weight_decay)

    def update() -> None:
        numbers = torch.randint(len(deck), (settings.pretrain_tasks,), generator=draw)
        descend(optimiser, -likelihood(prior, deck, numbers, settings.pretrain_points, draw).mean(), settings.clip)

    return update


def _theirs(policy: KernelPolicy, deck: PaddedTasks) -> Work:
    settings, prior, draw = policy.settings, copy.deepcopy(policy.prior).train(), stream(0, "updates")
    x, model = dense_rows(deck, policy), exact_gp(prior, policy.dtype)
    evidence = _evidence(model)
    trained = [*networks(prior), *(p for p in model.parameters() if p.requires_grad)]
    optimiser = optimiser_of(dict.fromkeys(trained, settings.pretrain_learning_rate), settings.weight_decay)

    def update() -> None:
        rows, y = _drawn(policy, deck, draw)
        with gpytorch_settings():
            descend(optimiser, -evidence(represent(prior, x, rows), y).mean(), settings.clip)

    return update


def _evidence(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """The log marginal likelihood a point, as GPyTorch's examples take it."""
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model.train())

    def of(u: Tensor, y: Tensor) -> Tensor:
        model.set_train_data(u, y, strict=False)
        return evidence(model(u), y)  # type: ignore[no-any-return]

    return of


def _drawn(policy: KernelPolicy, deck: PaddedTasks, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    settings = policy.settings
    numbers = torch.randint(len(deck), (settings.pretrain_tasks,), generator=draw)
    rows, y = deck.rows[numbers], deck.y[numbers]
    some = random_candidates(deck.mask[numbers], min(settings.pretrain_points, rows.shape[1]), draw)
    return rows.gather(1, some), y.gather(1, some)


def _check(policy: KernelPolicy, deck: PaddedTasks) -> str:
    """In double precision and without dropout, on the same points."""
    policy = copy.deepcopy(policy).double().eval()
    prior = policy.prior
    rows, y = _drawn(policy, deck, stream(0, "agreement"))
    batch = Batch(double_rows(deck.x), Pool(rows, torch.ones_like(rows, dtype=torch.bool)), y.double())
    model = exact_gp(prior, policy.dtype)
    value = prior.log_likelihood(prior.points(batch.x, batch.pool), batch.y, batch.pool.mask)
    with gpytorch_settings():
        their_value = _evidence(model)(represent(prior, dense_rows(deck, policy), rows), batch.y)
        their_gradient = _their_gradient(prior, model, their_value.mean())
    worst = max(
        agree("likelihoods of the same points", value, their_value, PEER.name),
        agree("gradients", _our_gradient(prior, value.mean()), their_gradient, PEER.name),
    )
    return f"likelihoods and gradients agree to {worst:.0e}"


def _our_gradient(prior: Prior, value: Tensor) -> Tensor:
    """By the networks' weights, and by the logarithms of amplitude, noise and length scale."""
    scalars = (prior.log_amplitude, prior.log_noise, prior.log_length)
    parts = torch.autograd.grad(value, [*networks(prior), *scalars])
    above_floor = prior.noise.detach() / prior.log_noise.detach().exp()
    scale = torch.stack((torch.ones_like(above_floor), above_floor, torch.full_like(above_floor, 2.0)))
    return torch.cat([*(part.flatten() for part in parts[:-3]), torch.stack(parts[-3:]) * scale])


def _their_gradient(prior: Prior, model: Any, value: Tensor) -> Tensor:
    scaled = next(module for module in model.kernel.modules() if isinstance(module, gpytorch.kernels.ScaleKernel))
    raw = [
        (scaled.raw_outputscale, scaled.raw_outputscale_constraint),
        (model.likelihood.noise_covar.raw_noise, model.likelihood.noise_covar.raw_noise_constraint),
        (scaled.base_kernel.raw_lengthscale, scaled.base_kernel.raw_lengthscale_constraint),
    ]
    parts = torch.autograd.grad(value, [*networks(prior), *(parameter for parameter, _ in raw)])
    logarithms = [torch.autograd.grad(rule.transform(p).log().sum(), p)[0] for p, rule in raw]
    scalars = [part / by for part, by in zip(parts[-3:], logarithms, strict=True)]
    return torch.cat([part.flatten() for part in (*parts[:-3], *scalars)])
