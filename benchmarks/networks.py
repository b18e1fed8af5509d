"""One update by policy gradient of RL and of MetaBO, against plain PyTorch with one forward pass a step.

At the default recipe's settings, but with the exact gradient of the softmax, as the peer has it. The peer samples a
search while it builds the graph: at every step the network takes [x, what was observed] of all candidates. It comes
twice: as one writes it, and with the part of the first layer that takes x done once an update, as ours has it.
Log-probabilities and gradients must be the same for the same episodes.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.comparison import Case, Peer, Work, agree
from benchmarks.documents import PAPER, Size, dense_rows, document_tasks, double_rows, untrained
from benchmarks.peers import Scorer, plain_pytorch, search
from benchmarks.update import our_update
from dkaf.learning import episodes
from dkaf.learning.descent import descend, optimiser_of
from dkaf.learning.episodes import PaddedTasks, gaps, log_probabilities, random_candidates
from dkaf.learning.reinforce import advantage, discounted_future
from dkaf.model.encoders import FeedForward
from dkaf.model.prior import Pool
from dkaf.policies import Policy
from dkaf.policies.baselines import DeepSetPolicy, MetaBOPolicy
from dkaf.seeding import stream

PEERS = {
    Peer("torch", "one forward a step"): False,
    Peer("torch", "one forward a step, first layer split", "split"): True,
}
"""And whether the first layer's part for x is done once."""


def case(method: str, size: Size = PAPER) -> Case:
    tasks = document_tasks(size)
    policy = untrained(tasks, method, "default", softmax_draws=None)  # all candidates, as the peers have it
    deck, settings = PaddedTasks.of(policy, tasks), policy.settings

    def of(split: bool) -> Callable[[], Work]:
        return lambda: _theirs(policy, deck, split)

    return Case(
        size=f"{settings.batch} starts of {settings.episodes} episodes, {settings.candidates} candidates, "
        f"{settings.queries} queries; {size}",
        ours=lambda: our_update(policy, deck),
        peers={peer: of(split) for peer, split in PEERS.items()},
        check=lambda: _check(policy, deck),
    )


def _theirs(policy: Policy, deck: PaddedTasks, split: bool) -> Work:
    policy, draw, x = copy.deepcopy(policy).train(), stream(0, "updates"), dense_rows(deck, policy)
    settings = policy.settings
    optimiser = optimiser_of(policy.learning_rates(), settings.weight_decay)

    def update() -> None:
        rows, y, start = _drawn(policy, deck, draw)
        chosen, log_p = _episodes(policy, x, rows, y, start, split, draw)
        gap = gaps(y, torch.ones_like(y, dtype=torch.bool), chosen, settings.initial)
        weight = advantage(discounted_future(gap, settings.gamma), settings.baseline)
        descend(optimiser, (weight * log_p).sum(dim=-1).mean(), settings.clip)

    return update


def _drawn(policy: Policy, deck: PaddedTasks, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, responses and starting points of random tasks."""
    settings = policy.settings
    numbers = torch.randint(len(deck), (settings.batch,), generator=draw)
    rows, y = deck.rows[numbers], deck.y[numbers]
    some = random_candidates(deck.mask[numbers], min(settings.candidates or rows.shape[1], rows.shape[1]), draw)
    start = random_candidates(torch.ones_like(some, dtype=torch.bool), settings.initial, draw)
    return rows.gather(1, some), y.gather(1, some), start


def _episodes(
    policy: Policy,
    x: Tensor,
    rows: Tensor,
    y: Tensor,
    start: Tensor,
    split: bool,
    draw: torch.Generator,
    given: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    E = policy.settings.episodes
    rows, y, start = (value.repeat_interleave(E, dim=0) for value in (rows, y, start))
    scorer = (_deep_set if isinstance(policy, DeepSetPolicy) else _metabo)(policy, x, rows, split)  # type: ignore[arg-type]
    chosen, log_p = search(scorer, policy.settings, y, start, draw, None if given is None else given.flatten(0, 1))
    return chosen.unflatten(0, (-1, E)), log_p.unflatten(0, (-1, E))


def _deep_set(policy: DeepSetPolicy, x: Tensor, rows: Tensor, split: bool) -> Scorer:
    """Eq. (pnrl), with a running total of what was observed."""
    D, total, seen = x.shape[1], x.new_zeros(len(rows), policy.settings.width), 0
    element, network = (_Inputs(each, x, rows, slice(0, D), split) for each in (policy.element, policy.network))

    def scores(observed: Tensor, y_o: Tensor) -> Tensor:
        nonlocal total, seen
        new = slice(seen, observed.shape[1])
        total = total + element(y_o[:, new, None], observed[:, new]).sum(dim=1)
        seen = observed.shape[1]
        context = policy.summary(total / max(observed.shape[1], 1))
        return network(context.unsqueeze(1).expand(-1, rows.shape[1], -1)).squeeze(-1)

    return scores


def _metabo(policy: MetaBOPolicy, x: Tensor, rows: Tensor, split: bool) -> Scorer:
    """Eq. (pnmb), with one posterior a step."""
    network, u = _Inputs(policy.network, x, rows, slice(2, None), split), x[rows]
    posterior = plain_pytorch(policy).posterior

    def scores(observed: Tensor, y_o: Tensor) -> Tensor:
        with torch.no_grad():
            mean, var = posterior(u, observed, y_o)
        return network(torch.stack((mean, var), dim=-1)).squeeze(-1)

    return scores


class _Inputs:
    """A network of [x, other] or [other, x]: concatenated, or with the first layer's part for x done once."""

    def __init__(self, network: FeedForward, x: Tensor, rows: Tensor, columns: slice, split: bool) -> None:
        self.network, self.split = network, split
        self.x_first = columns.start == 0
        self.rest = slice(columns.stop, None) if self.x_first else slice(0, columns.start)
        self.hidden = network.first(x, columns)[rows] if split else None
        self.x = None if split else x[rows]

    def __call__(self, other: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Of all candidates, or of the chosen ones."""
        known = self.hidden if self.split else self.x
        assert known is not None
        if chosen is not None:
            known = known.gather(1, chosen.unsqueeze(-1).expand(-1, -1, known.shape[-1]))
        if self.split:
            return self.network.after_first(known + self.network.first(other, self.rest, bias=False))
        return self.network(torch.cat((known, other) if self.x_first else (other, known), dim=-1))  # type: ignore[no-any-return]


def _check(policy: Policy, deck: PaddedTasks) -> str:
    """In double precision, on the same episodes."""
    policy, draw = copy.deepcopy(policy).double().eval(), stream(0, "agreement")
    settings, worst = policy.settings, 0.0
    rows, y, start = _drawn(policy, deck, draw)
    y = y.double()
    batch = episodes.Batch(double_rows(deck.x), Pool(rows, torch.ones_like(rows, dtype=torch.bool)), y)
    points = policy.points(batch.x, batch.pool)
    kind = {"episodes": settings.episodes, "temperature": settings.temperature}
    chosen = episodes.search(policy, points, batch, start, settings.queries, draw, **kind)  # type: ignore[arg-type]
    log_p = log_probabilities(policy, points, batch, chosen, settings.initial, settings.temperature)
    gradient = _gradient(policy, log_p)
    for peer, split in PEERS.items():
        _, theirs = _episodes(policy, dense_rows(deck, policy), rows, y, start, split, draw, chosen)
        worst = max(
            worst,
            agree("log-probabilities of the same episodes", log_p, theirs, peer.name),
            agree("gradients", gradient, _gradient(policy, theirs), peer.name),
        )
    return f"log-probabilities and gradients agree to {worst:.0e}"


def _gradient(policy: Policy, log_p: Tensor) -> Tensor:
    parts = torch.autograd.grad(log_p.square().sum(), policy.trained_by_gradient())
    return torch.cat([part.flatten() for part in parts])
