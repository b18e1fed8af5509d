"""Policies that believe a Gaussian process: the paper's own, DKL, GP, and what MetaBO shares with them.

Shapes: S starts (pools) in a batch, E episodes a start, N candidates, T queries, k observed points.
"""

import copy
import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dkaf.errors import InputError
from dkaf.model.acquisition import ACQUISITIONS, Outlook
from dkaf.model.encoders import FeedForward
from dkaf.model.inputs import Inputs, Rows
from dkaf.model.posterior import Beliefs, trajectory
from dkaf.model.prior import Points, Pool, Prior
from dkaf.policies.policy import Policy
from dkaf.settings import Settings


class GaussianState(NamedTuple):
    beliefs: Beliefs
    best: Float[Tensor, "s e"]
    xi: Float[Tensor, "s e"]


class GaussianPolicy(Policy):
    """What all policies share that believe a Gaussian process: how observing moves the beliefs."""

    prior: Prior

    def begin(self, points: Any, episodes: int, generator: torch.Generator) -> GaussianState:
        kernel_points = self.kernel_points(points)
        beliefs = Beliefs(kernel_points.mean, kernel_points.var, kernel_points.noise, episodes)
        nothing = beliefs.mean.new_zeros(beliefs.mean.shape[:2])
        return GaussianState(beliefs, nothing - math.inf, nothing)

    def observe(
        self, points: Any, state: GaussianState, chosen: Int[Tensor, "s e"], y: Float[Tensor, "s e"], *, queried: bool
    ) -> GaussianState:
        with torch.no_grad():
            before = state.beliefs.observe(self.kernel_points(points).covariance(chosen), chosen, y)
        xi = state.xi + before if queried else state.xi  # note 3: the variance BEFORE it is observed
        return GaussianState(state.beliefs, torch.maximum(state.best, y), xi)

    def kernel_points(self, points: Any) -> Points:
        return points  # type: ignore[no-any-return]

    def warped(self, y: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return self.prior.warped(y)

    def in_units(
        self, mean: Float[Tensor, "*shape"], deviation: Float[Tensor, "*shape"]
    ) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
        """Beliefs in units of y. Where responses are warped: the median, and half of the central 68 %."""
        warp, scale = self.prior.warp, self.response_scale
        if warp is not None:
            mean, low, high = warp.inverse(torch.stack((mean, mean - deviation, mean + deviation))).unbind()
            deviation = 0.5 * (high - low)
        return self.response_shift + scale * mean, scale * deviation


class KernelPolicy(GaussianPolicy):
    """Encoder, Gaussian process, acquisition function: the paper's model, and, trained otherwise, DKL and GP."""

    def __init__(
        self, inputs: Inputs, acquisition: str, settings: Settings, method: str, encoder: nn.Module | None
    ) -> None:
        super().__init__(inputs, acquisition, settings)
        self.method = method
        self.custom_encoder = None if encoder is None else type(encoder).__qualname__
        if method == "gp":
            self.prior = Prior(None, inputs.n_features, learned_warp=settings.learned_warp)
        else:
            width = settings.width
            if encoder is None:
                encoder = FeedForward(
                    inputs.n_features, width, layers=settings.layers, width=width, dropout=settings.dropout
                )
            else:
                if not isinstance(encoder, nn.Module):
                    raise InputError(f"an encoder is a torch.nn.Module, {type(encoder).__name__} came; wrap it in one")
                encoder = copy.deepcopy(encoder)  # the caller's module stays as it was
                width = _probe(encoder, inputs.n_features)
            self.prior = Prior(
                encoder,
                width,
                linear_features=settings.linear_features,
                learned_mean=settings.learned_mean,
                learned_warp=settings.learned_warp,
            )
        self.log_nu = nn.Parameter(torch.tensor(math.log(settings.nu)), requires_grad=settings.learned_nu)
        self.acquire = ACQUISITIONS["log_ei" if acquisition == "ei" and settings.log_ei else acquisition]

    def trained_by_gradient(self) -> list[nn.Parameter]:
        """All but the warp: searches of a few tasks bend it at will, and what comes of that on others is worse."""
        warp = set() if self.prior.warp is None else set(self.prior.warp.parameters())
        return [p for p in self.parameters() if p.requires_grad and p not in warp] if self.method == "dkaf" else []

    def learning_rates(self) -> dict[nn.Parameter, float]:
        """Likelihood has taught the encoder the training tasks by heart: it takes smaller steps, nu larger ones."""
        rates = super().learning_rates()
        encoder = set() if self.prior.encoder is None else set(self.prior.encoder.parameters())
        for parameter in rates:
            if parameter in encoder:
                rates[parameter] *= self.settings.encoder_rate
            elif parameter is self.log_nu:
                rates[parameter] *= self.settings.nu_rate
        return rates

    @property
    def temperature(self) -> float:
        """In units of the scores: those of the warped responses, or none, of log EI. No gradient needs it."""
        warp, temperature = self.prior.warp, super().temperature
        unitless = self.acquire is ACQUISITIONS["log_ei"]
        return temperature if warp is None or unitless else temperature * warp.usual_slope()

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"encoder": self.custom_encoder}

    def represent(self, x: Rows) -> Rows:
        return self.prior.represent(x)

    def place(self, z: Rows, pool: Pool) -> Points:
        return self.prior.place(z, pool)

    def scores(self, points: Points, state: GaussianState) -> Float[Tensor, "s e n"]:
        return self._acquire(Outlook(state.beliefs.mean, state.beliefs.var, state.best, state.xi))

    def episode_scores(
        self, points: Points, chosen: Int[Tensor, "s e k"], y: Float[Tensor, "s e k"], initial: int
    ) -> Float[Tensor, "s e t n"]:
        return self._acquire(before_queries(points, chosen, y, initial))

    def _acquire(self, outlook: Outlook) -> Tensor:
        return self.acquire(outlook, self.log_nu.exp())


def before_queries(points: Points, chosen: Int[Tensor, "s e k"], y: Float[Tensor, "s e k"], initial: int) -> Outlook:
    """What is known before each query. The last observation is left out: no query follows it."""
    chosen, y = chosen[..., :-1], y[..., :-1]
    K_ox = points.covariance(chosen.flatten(1)).unflatten(1, chosen.shape[1:])
    mean, var, pivots = trajectory(points.mean, points.var, points.noise, K_ox, chosen, y, initial)
    nothing = y.new_full((*y.shape[:2], 1), -math.inf)
    best = torch.cat((nothing, y), dim=-1).cummax(dim=-1).values
    xi = torch.cat((torch.zeros_like(nothing), pivots[..., initial:].cumsum(dim=-1)), dim=-1)
    return Outlook(mean, var, best[..., initial:], xi)


def _probe(encoder: nn.Module, n_features: int) -> int:
    """How many values the user's encoder gives for one row."""
    rule = f"an encoder maps rows x {n_features} to rows x values in single precision"
    encoder.eval()
    try:
        with torch.no_grad():
            z = encoder(torch.zeros(2, n_features))
    except RuntimeError as error:
        raise InputError(f"{rule}, this one failed on 2 rows ({str(error).splitlines()[0]}); mend it") from error
    if not isinstance(z, Tensor) or z.ndim != 2 or z.shape[0] != 2 or z.dtype != torch.float32:
        came = f"shape {tuple(z.shape)} and {z.dtype}" if isinstance(z, Tensor) else type(z).__name__
        raise InputError(f"{rule}, {came} came for 2 rows; mend it")
    return int(z.shape[1])
