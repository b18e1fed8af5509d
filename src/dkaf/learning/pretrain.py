"""Training by marginal likelihood: all that DKL and GP get, and where the others start."""

import copy
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dkaf.errors import DivergedError
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
    report: Callable[[int, int], None],
    kept: Callable[[int], None],
) -> None:
    """Maximise the marginal likelihood; keep the weights that were best on validation tasks, also if interrupted.

    Beside a linear part the kernel has two starts, and the likelier end on validation tasks is kept: which of them that
    is differs from data to data (docs/research/lower-gap.md). Without validation tasks there is one. `report` gets
    every update's start and number, `kept` how many updates the start made that was kept.
    """
    prior, patience = policy.prior, policy.settings.pretrain_patience
    initial = copy.deepcopy(prior.state_dict())
    ends, updates = [BestWeights(prior, patience)], [0]
    try:
        for start in range(1 if prior.linear is None or validation is None else 2):
            if start == 1:
                prior.load_state_dict(initial)
                prior.start_small()
                ends.append(BestWeights(prior, patience))
                updates.append(0)
            for update in _ascend(policy, train, validation, seed, ends[-1]):
                updates[-1] = update
                report(start, update)
    except DivergedError:
        if len(ends) == 1:  # else the first start has come to an end
            raise
    finally:
        validated = [(end.value, start) for start, end in enumerate(ends) if end.value is not None]
        best = min(validated)[1] if validated else len(ends) - 1
        ends[best].restore()
        kept(updates[best])


def _ascend(
    policy: GaussianPolicy, train: PaddedTasks, validation: PaddedTasks | None, seed: int, best: BestWeights
) -> Iterator[int]:
    """From one start, update by update, as far as the settings say."""
    settings, prior = policy.settings, policy.prior
    optimiser = optimiser_of(dict.fromkeys(prior.parameters(), settings.pretrain_learning_rate), settings.weight_decay)
    draw = stream(seed, "pretrain")
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
        yield update
        if best.waited_enough(update):
            break


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
