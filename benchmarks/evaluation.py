"""Greedy searches of 50 tasks with ten queries each, against the posteriors of BoTorch and GPyTorch, step by step.

The policy is ours, of the default recipe, briefly trained. All must query the same candidates in the same order. Every
side encodes the candidates and then searches all tasks at once, in batches of its own kind.
"""

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

import dkaf
from benchmarks.comparison import Case, DisagreementError, Peer, Work
from benchmarks.documents import PAPER, Size, dense_rows, document_tasks, untrained_kernel
from benchmarks.peers import (
    Posterior,
    gpytorch_overridden,
    gpytorch_parts,
    mutual_information,
    represent,
    search,
    single_task_gp,
    take,
)
from dkaf.evaluation import starting_points
from dkaf.learning.episodes import PaddedTasks
from dkaf.policies import KernelPolicy
from dkaf.tasks import TaskSet


def _botorch(policy: KernelPolicy) -> Posterior:
    """A batch of one candidate each, BoTorch's own way."""
    parts = gpytorch_parts(policy.prior, policy.dtype)

    def posterior(u: Tensor, observed: Tensor, y_o: Tensor) -> tuple[Tensor, Tensor]:
        model = single_task_gp(parts, take(u, observed), y_o)
        belief = model.posterior(u.transpose(0, 1).unsqueeze(2), observation_noise=True)
        return belief.mean.flatten(1).T, belief.variance.flatten(1).T

    return posterior


def _gpytorch(policy: KernelPolicy) -> Posterior:
    model = gpytorch_overridden(policy)

    def posterior(u: Tensor, observed: Tensor, y_o: Tensor) -> tuple[Tensor, Tensor]:
        with model.settings():
            return model.posterior(u, observed, y_o)

    return posterior


PEERS: dict[Peer, Callable[[KernelPolicy], Posterior]] = {
    Peer("gpytorch", "a private method overridden", "overridden"): _gpytorch,
    Peer("botorch", "posterior of SingleTaskGP"): _botorch,
}


def case(size: Size = PAPER, searched: int = 50) -> Case:
    tasks = document_tasks(size)
    policy = untrained_kernel(tasks, "dkaf", "default", pretrain_updates=30, updates=3)
    tasks = tasks[: min(searched, len(tasks))]

    def of(peer: Callable[[KernelPolicy], Posterior]) -> Callable[[], Work]:
        return lambda: _theirs(policy, tasks, peer)

    return Case(
        size=f"{len(tasks)} searches of {size.pool} candidates, {policy.settings.queries} queries",
        ours=lambda: lambda: dkaf.evaluate(policy, tasks, policy.settings.queries),
        peers={peer: of(posterior) for peer, posterior in PEERS.items()},
        check=lambda: _check(policy, tasks),
    )


def _theirs(policy: KernelPolicy, tasks: TaskSet, peer: Callable[[KernelPolicy], Posterior]) -> Callable[[], Tensor]:
    posterior = peer(policy)

    @torch.no_grad()
    def searches() -> Tensor:
        deck = PaddedTasks.of(policy, tasks)
        start = torch.from_numpy(starting_points(tasks, 1, 1, seed=0))
        u = represent(policy.prior, dense_rows(deck, policy), deck.rows)
        chosen, _ = search(mutual_information(policy, posterior, u), policy.settings, deck.y, start, None)
        return chosen

    return searches


def _check(policy: KernelPolicy, tasks: TaskSet) -> str:
    """In double precision, where no two scores are the same by rounding."""
    policy = copy.deepcopy(policy).double().eval()
    ours = dkaf.evaluate(policy, tasks, policy.settings.queries).chosen
    for peer, make in PEERS.items():
        theirs = _theirs(policy, tasks, make)().numpy()
        different = int((ours != theirs).any(axis=1).sum())
        if different:
            first = int(np.argmax((ours != theirs).any(axis=0)))
            raise DisagreementError(
                f"the same candidates are queried before anything is timed; ours and {peer.name} differ in {different} "
                f"of {len(tasks)} searches, first at query {first}"
            )
    return f"all {len(tasks)} searches query the same candidates in the same order"
