"""Training by marginal likelihood: all that DKL and GP get, and where the others start."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dkaf.learning.descent import BestWeights, descend, optimiser_of
from dkaf.learning.episodes import Deck, random_candidates
from dkaf.model.inputs import SparseRows
from dkaf.model.prior import Pool, Prior
from dkaf.policies import GaussianPolicy
from dkaf.seeding import stream

VALIDATE_EVERY = 50


def pretrain(
    policy: GaussianPolicy, train: Deck, validation: Deck | None, seed: int, report: Callable[[int], None]
) -> None:
    """Maximise the marginal likelihood; keep the weights that were best on validation tasks, also if interrupted."""
    settings, prior = policy.settings, policy.prior
    optimiser = optimiser_of(prior.parameters(), settings.pretrain_learning_rate, settings.weight_decay)
    draw = stream(seed, "pretrain")
    best = BestWeights(prior, settings.pretrain_patience)
    try:
        for update in range(1, settings.pretrain_updates + 1):
            prior.train()
            tasks = torch.randint(len(train), (settings.pretrain_tasks,), generator=draw)
            loss = -likelihood(prior, train, tasks, settings.pretrain_points, draw).mean()
            descend(optimiser, loss, settings.clip)
            if validation is not None and (update % VALIDATE_EVERY == 0 or update == settings.pretrain_updates):
                best.offer(update, _validation_loss(prior, validation, settings.pretrain_points, seed))
            report(update)
            if best.waited_enough(update):
                break
    finally:
        best.restore()


def likelihood(
    prior: Prior, deck: Deck, tasks: Int[Tensor, " s"], points: int, draw: torch.Generator
) -> Float[Tensor, " s"]:
    """Log marginal likelihood a point, of a random part of each task: docs/paper.md, note 11."""
    mask = deck.mask[tasks]
    part = random_candidates(mask, min(points, int(mask.sum(1).min())), draw)
    rows, place = deck.rows[tasks].gather(1, part).unique(return_inverse=True)
    x = deck.x[rows]
    if isinstance(x, SparseRows) and prior.encoder is None:
        x = x.dense()  # only these rows; a product of all pairs is faster so
    pool = Pool(place, torch.ones_like(place, dtype=torch.bool))
    return prior.log_likelihood(prior.points(x, pool), deck.y[tasks].gather(1, part))


@torch.no_grad()
def _validation_loss(prior: Prior, deck: Deck, points: int, seed: int) -> float:
    prior.eval()
    draw = stream(seed, "pretrain validation")  # the same parts every time
    return -float(likelihood(prior, deck, torch.arange(len(deck)), points, draw).mean())
