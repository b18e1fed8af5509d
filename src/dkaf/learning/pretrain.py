"""Training by marginal likelihood: all that DKL and GP get, and where the others start."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dkaf.learning.descent import BestWeights, anneal, descend, optimiser_of
from dkaf.learning.episodes import PaddedTasks
from dkaf.learning.scales import learn_scales
from dkaf.model.inputs import TABLED_ROWS, SparseRows
from dkaf.model.prior import Prior
from dkaf.policies import GaussianPolicy
from dkaf.seeding import stream


def pretrain(
    policy: GaussianPolicy,
    train: PaddedTasks,
    validation: PaddedTasks | None,
    seed: int,
    report: Callable[[int], None],
) -> None:
    """Maximise the marginal likelihood; keep the weights that were best on validation tasks, also if interrupted."""
    settings, prior = policy.settings, policy.prior
    optimiser = optimiser_of(dict.fromkeys(prior.parameters(), settings.pretrain_learning_rate), settings.weight_decay)
    draw = stream(seed, "pretrain")
    best = BestWeights(prior, settings.pretrain_patience)
    try:
        for update in range(1, settings.pretrain_updates + 1):
            prior.train()
            if settings.pretrain_anneal:
                anneal(optimiser, (update - 1) / settings.pretrain_updates)
            tasks = torch.randint(len(train), (settings.pretrain_tasks,), generator=draw)
            loss = -likelihood(prior, train, tasks, settings.pretrain_points, draw).mean()
            descend(optimiser, loss, settings.clip)
            if validation is not None and (
                update % settings.pretrain_validate_every == 0 or update == settings.pretrain_updates
            ):
                best.offer(update, _validation_loss(policy, validation, seed))
            report(update)
            if best.waited_enough(update):
                break
    finally:
        best.restore()


def likelihood(
    prior: Prior, padded: PaddedTasks, tasks: Int[Tensor, " s"], points: int, draw: torch.Generator
) -> Float[Tensor, " s"]:
    """Log marginal likelihood a point, of a random part of each task: docs/paper.md, note 11."""
    batch = padded.part(tasks, points, draw)
    x = batch.x
    if isinstance(x, SparseRows) and prior.encoder is None and len(padded.x) > TABLED_ROWS:
        x = x.dense()  # at most tasks x points rows; a product of all their pairs is faster so
    return prior.log_likelihood(prior.points(x, batch.pool), batch.y, batch.pool.mask)


def scales_by_likelihood(policy: GaussianPolicy, unseen: PaddedTasks, seed: int, report: Callable[[int], None]) -> None:
    """The scales that make tasks likely which the encoder has not seen."""

    def loss(encoded: PaddedTasks, tasks: Int[Tensor, " s"], draw: torch.Generator) -> Float[Tensor, ""]:
        batch = encoded.part(tasks, policy.settings.pretrain_points, draw)
        points = policy.prior.place(batch.x, batch.pool)
        return -policy.prior.log_likelihood(points, batch.y, batch.pool.mask).mean()

    learn_scales(policy, unseen, loss, stream(seed, "scales by likelihood"), report, warp=True)


@torch.no_grad()
def _validation_loss(policy: GaussianPolicy, padded: PaddedTasks, seed: int) -> float:
    policy.prior.eval()
    settings = policy.settings
    draw = stream(seed, "pretrain validation")  # the same parts every time
    parts = torch.arange(len(padded)).split(settings.pretrain_tasks)
    return (
        -torch.cat([likelihood(policy.prior, padded, p, settings.pretrain_points, draw) for p in parts]).mean().item()
    )
