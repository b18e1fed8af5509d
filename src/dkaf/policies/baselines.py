"""The paper's opponents that are no kernel policies: MetaBO, RL, Random."""

from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dkaf.model.encoders import FeedForward
from dkaf.model.inputs import Inputs, Rows
from dkaf.model.prior import Points, Pool, Prior, pick_candidates, pick_rows
from dkaf.policies.gaussian import GaussianPolicy, GaussianState, before_queries
from dkaf.policies.policy import NetworkPolicy, Policy
from dkaf.settings import Settings

CACHED_ROWS = 16_000  # of a hidden layer: some megabytes, which a processor's cache holds


class MetaBOPoints(NamedTuple):
    kernel: Points
    hidden: Float[Tensor, "s n h"]


class MetaBOPolicy(GaussianPolicy, NetworkPolicy):
    """Eq. (pnmb): a network takes the mean and variance of a GP on x, and x. The GP is fixed after its likelihood."""

    method = "metabo"
    candidates_at_once = CACHED_ROWS

    def __init__(self, inputs: Inputs, acquisition: str, settings: Settings) -> None:
        super().__init__(inputs, acquisition, settings)
        self.prior = Prior(None, inputs.n_features, learned_warp=settings.learned_warp)
        self.network = FeedForward(inputs.n_features + 2, 1, layers=settings.layers, width=settings.width)

    def place(self, z: Rows, pool: Pool) -> MetaBOPoints:
        with torch.no_grad():
            kernel = self.prior.place(z, pool)
        return MetaBOPoints(kernel, pick_rows(self.network.first(z, slice(2, None)), pool.rows))

    def trained_by_gradient(self) -> list[nn.Parameter]:
        return list(self.network.parameters())

    def kernel_points(self, points: MetaBOPoints) -> Points:
        return points.kernel

    def scores(self, points: MetaBOPoints, state: GaussianState) -> Float[Tensor, "s e n"]:
        return self._network(points.hidden.unsqueeze(1), state.beliefs.mean, state.beliefs.var)

    def scores_at(
        self,
        points: MetaBOPoints,
        chosen: Int[Tensor, "s e k"],
        y: Float[Tensor, "s e k"],
        initial: int,
        at: Int[Tensor, "s e t m"],
    ) -> Float[Tensor, "s e t m"]:
        with torch.no_grad():
            outlook = before_queries(points.kernel, chosen, y, initial)
        return self._network(pick_candidates(points.hidden, at), outlook.mean.gather(3, at), outlook.var.gather(3, at))

    def _network(self, hidden: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        outputs = self.network.first(torch.stack((mean, var), dim=-1), slice(0, 2), bias=False)
        return self.network.after_first(hidden + outputs).squeeze(-1)


class DeepSetPoints(NamedTuple):
    observed: Float[Tensor, "s n h"]
    query: Float[Tensor, "s n h"]


class DeepSetState(NamedTuple):
    total: Float[Tensor, "s e h"]
    observed: int


class DeepSetPolicy(NetworkPolicy):
    """Eq. (pnrl): RL, a deep set of the observed points and a network of [x, z]."""

    method = "rl"
    candidates_at_once = CACHED_ROWS

    def __init__(self, inputs: Inputs, acquisition: str, settings: Settings) -> None:
        super().__init__(inputs, acquisition, settings)
        width, n = settings.width, inputs.n_features
        seen = 1 if settings.rl_sees_responses else 0  # docs/paper.md, note 4: as printed it cannot see y
        shape = {"layers": max(settings.layers - 1, 1), "width": width}
        self.element = FeedForward(n + seen, width, **shape)
        self.summary = FeedForward(width, width, **shape)
        self.network = FeedForward(n + width, 1, layers=settings.layers, width=width)

    def trained_by_gradient(self) -> list[nn.Parameter]:
        return list(self.parameters())

    def place(self, z: Rows, pool: Pool) -> DeepSetPoints:
        # Both first layers at once: a product with the features is the larger part of either.
        firsts = [cast("nn.Linear", network.linears[0]) for network in (self.element, self.network)]
        hidden = z @ torch.cat([first.weight[:, : self.n_features] for first in firsts]).T
        hidden = hidden + torch.cat([first.bias for first in firsts])
        observed, query = pick_rows(hidden, pool.rows).split([first.out_features for first in firsts], dim=-1)
        return DeepSetPoints(observed, query)

    def begin(self, points: DeepSetPoints, episodes: int, generator: torch.Generator) -> DeepSetState:
        return DeepSetState(points.query.new_zeros(len(points.query), episodes, self.settings.width), 0)

    def observe(
        self,
        points: DeepSetPoints,
        state: DeepSetState,
        chosen: Int[Tensor, "s e"],
        y: Float[Tensor, "s e"],
        *,
        queried: bool,
    ) -> DeepSetState:
        return DeepSetState(state.total + self._elements(points, chosen, y), state.observed + 1)

    def scores(self, points: DeepSetPoints, state: DeepSetState) -> Float[Tensor, "s e n"]:
        return self._scores(points.query.unsqueeze(1), state.total / max(state.observed, 1))

    def scores_at(
        self,
        points: DeepSetPoints,
        chosen: Int[Tensor, "s e k"],
        y: Float[Tensor, "s e k"],
        initial: int,
        at: Int[Tensor, "s e t m"],
    ) -> Float[Tensor, "s e t m"]:
        totals = self._elements(points, chosen[..., :-1], y[..., :-1]).cumsum(dim=2)
        nothing = totals.new_zeros(*totals.shape[:2], 1, totals.shape[-1])
        totals = torch.cat((nothing, totals), dim=2)[:, :, initial:]
        observed = torch.arange(initial, chosen.shape[2], device=totals.device).clamp_min(1).unsqueeze(-1)
        return self._scores(pick_candidates(points.query, at), totals / observed)

    def _elements(self, points: DeepSetPoints, chosen: Int[Tensor, "s ..."], y: Float[Tensor, "s ..."]) -> Tensor:
        hidden = pick_candidates(points.observed, chosen)
        if self.settings.rl_sees_responses:
            hidden = hidden + self.element.first(y.unsqueeze(-1), slice(self.n_features, None), bias=False)
        return self.element.after_first(hidden)

    def _scores(self, query: Float[Tensor, "s *t n h"], mean: Float[Tensor, "s *u h"]) -> Tensor:
        context = self.network.first(self.summary(mean), slice(self.n_features, None), bias=False)
        return self.network.after_first(query + context.unsqueeze(-2)).squeeze(-1)


class RandomState(NamedTuple):
    order: Float[Tensor, "s e n"]


class RandomPolicy(Policy):
    """Any candidate, as likely as another."""

    method = "random"
    deterministic = False

    def place(self, z: Rows, pool: Pool) -> Pool:
        return pool

    def begin(self, points: Pool, episodes: int, generator: torch.Generator) -> RandomState:
        S, N = points.rows.shape
        return RandomState(torch.rand(S, episodes, N, generator=generator).to(self.device))

    def observe(
        self, points: Pool, state: RandomState, chosen: Int[Tensor, "s e"], y: Float[Tensor, "s e"], *, queried: bool
    ) -> RandomState:
        return state

    def scores(self, points: Pool, state: RandomState) -> Float[Tensor, "s e n"]:
        return state.order
