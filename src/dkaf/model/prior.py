"""The Gaussian process prior over a pool: representations, their kernel, and the prior mean.

S pools of N candidates, d values a representation, p features of the linear part.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dkaf.model.encoders import encode
from dkaf.model.inputs import Rows, SparseRows
from dkaf.model.posterior import log_likelihood
from dkaf.model.warp import Warp

NOISE_FLOOR = 1e-4  # of the responses' variance; keeps factorisations sound in single precision with duplicates
NOISE = 0.1  # of the amplitude, to begin with
NOISE_BESIDE_LINEAR = 0.01  # the same, where a linear part takes most of what is to be explained
SMALL = 0.03  # of the amplitude, and SMALL_NOISE of the noise, in another start
SMALL_NOISE = 0.3


@dataclass(frozen=True, eq=False)
class Pool:
    """Pools of one batch, as positions in the rows that were encoded; shorter pools are padded."""

    rows: Int[Tensor, "s n"]
    mask: Bool[Tensor, "s n"]


@dataclass(frozen=True, eq=False)
class LinearProducts:
    """The linear part of the kernel, from the features phi: of every row, and gathered for every pool."""

    phi: Float[Tensor, "r p"]
    rows: Int[Tensor, "s n"]
    pooled: Float[Tensor, "s n p"]

    def added_to(self, K: Float[Tensor, "s m n"], chosen: Int[Tensor, "s m"]) -> Float[Tensor, "s m n"]:
        """The products of the chosen candidates with all of their pool, and K."""
        return torch.baddbmm(K, pick_rows(self.phi, self.rows.gather(1, chosen)), self.pooled.mT)

    def at(self, chosen: Int[Tensor, "s m"]) -> "LinearProducts":
        return LinearProducts(self.phi, self.rows.gather(1, chosen), pick_candidates(self.pooled, chosen))


@dataclass(frozen=True, eq=False)
class FeatureProducts:
    """Logarithms of a kernel on the features themselves, which have no gradient and, if sparse, are not made dense."""

    table: Rows
    rows: Int[Tensor, "s n"]
    half: Float[Tensor, "s n"]
    scale: Float[Tensor, ""]
    """What inner products are multiplied by: cheaper than scaling the features."""
    cap: float

    def between(self, chosen: Int[Tensor, "s m"] | None) -> Float[Tensor, "s m n"]:
        half = self.half if chosen is None else self.half.gather(1, chosen)
        rows = self.rows if chosen is None else self.rows.gather(1, chosen)
        log_rbf = self.scale * self._inner(rows) + self.half.unsqueeze(1) + half.unsqueeze(2)
        return log_rbf.clamp_max(self.cap)

    def at(self, chosen: Int[Tensor, "s m"]) -> "FeatureProducts":
        rows, half = self.rows.gather(1, chosen), self.half.gather(1, chosen)
        return FeatureProducts(self.table, rows, half, self.scale, self.cap)

    def _inner(self, rows: Int[Tensor, "s m"]) -> Float[Tensor, "s m n"]:
        if isinstance(self.table, Tensor):
            return pick_rows(self.table, rows) @ self._pooled.mT
        tabled = self.table.inner(rows, self.rows)
        if tabled is not None:
            return tabled
        S, M = rows.shape
        picked = self.table[rows.ravel()].dense()
        products = (self.table @ picked.T).T.reshape(S, M, len(self.table))
        return products.gather(2, self.rows.unsqueeze(1).expand(S, M, -1))

    @functools.cached_property
    def _pooled(self) -> Float[Tensor, "s n d"]:
        assert isinstance(self.table, Tensor)
        return pick_rows(self.table, self.rows)


@dataclass(frozen=True, eq=False)
class EncodedProducts:
    """Logarithms of the RBF kernel: inner products of representations, divided by sqrt(eta), and a half of either."""

    z: Float[Tensor, "r d"]
    rows: Int[Tensor, "s n"]
    pooled: Float[Tensor, "s n d"]
    half: Float[Tensor, "s n"]
    cap: float
    """What no logarithm exceeds, whatever rounding says."""

    def between(self, chosen: Int[Tensor, "s m"] | None) -> Float[Tensor, "s m n"]:
        if chosen is None:
            pairs: Tensor = _LogRbfOfPairs.apply(self.pooled, self.half, self.cap)  # type: ignore[no-untyped-call]
            return pairs
        left, half = pick_rows(self.z, self.rows.gather(1, chosen)), self.half.gather(1, chosen)
        if torch.is_grad_enabled():
            log_rbf: Tensor = _LogRbf.apply(left, half, self.pooled, self.half, self.cap)  # type: ignore[no-untyped-call]
            return log_rbf
        return _log_rbf(left, half, self.pooled, self.half, self.cap)

    def at(self, chosen: Int[Tensor, "s m"]) -> "EncodedProducts":
        rows, half = self.rows.gather(1, chosen), self.half.gather(1, chosen)
        return EncodedProducts(self.z, rows, pick_candidates(self.pooled, chosen), half, self.cap)


def _log_rbf(left: Tensor, half_left: Tensor, right: Tensor, half_right: Tensor, cap: float) -> Tensor:
    halves = half_left.unsqueeze(2) + half_right.unsqueeze(1)
    return torch.baddbmm(halves, left, right.mT).clamp_max_(cap)


class _LogRbf(torch.autograd.Function):
    """Its gradient is that of a product and two sums: only rounding exceeds the cap."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, half_left: Tensor, right: Tensor, half_right: Tensor, cap: float) -> Tensor:
        ctx.save_for_backward(left, right)
        return _log_rbf(left, half_left, right, half_right, cap)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor | None, ...]:
        (left, right), g = ctx.saved_tensors, gradient[0]
        return torch.bmm(g, right), g.sum(2), torch.bmm(g.mT, left), g.sum(1), None


class _LogRbfOfPairs(torch.autograd.Function):
    """All candidates with all. What is made of it is symmetric, as a likelihood is; so is then its gradient."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, half: Tensor, cap: float) -> Tensor:
        ctx.save_for_backward(z)
        return _log_rbf(z, half, z, half, cap)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (z,), g = ctx.saved_tensors, gradient[0]
        return torch.bmm(g, z).mul_(2), g.sum(2).mul_(2), None


@dataclass(frozen=True, eq=False)
class Points:
    """The candidates of a batch of pools as the kernel sees them."""

    mean: Float[Tensor, "s n"]
    var: Float[Tensor, "s n"]
    """Prior variance of a noisy response, k(x, x) + beta."""
    noise: Float[Tensor, ""]
    log_rbf: EncodedProducts | FeatureProducts
    """log(alpha exp(-|z - z'|^2 / (2 eta))) is z'z / eta, and of either half = (log alpha - |z|^2 / eta) / 2."""
    linear: LinearProducts | None

    def covariance(self, chosen: Int[Tensor, "s m"]) -> Float[Tensor, "s m n"]:
        """The kernel between the chosen candidates and all of their pool, free of noise."""
        log_rbf = self.log_rbf.between(chosen)
        K = log_rbf.exp() if log_rbf.requires_grad else log_rbf.exp_()
        return K if self.linear is None else self.linear.added_to(K, chosen)

    def at(self, chosen: Int[Tensor, "s m"]) -> "Points":
        """Only the chosen candidates of each pool."""
        return Points(
            self.mean.gather(1, chosen),
            self.var.gather(1, chosen),
            self.noise,
            self.log_rbf.at(chosen),
            None if self.linear is None else self.linear.at(chosen),
        )


class Prior(nn.Module):
    """k(x, x') = alpha exp(-|z - z'|^2 / (2 eta)) + phi'phi + beta delta, mean m(x), with z = g(x): Eq. (k).

    The linear part phi = W z, the prior mean and the warp of responses are ours; without them this is the paper's.
    Without an encoder, z = x.
    """

    def __init__(
        self,
        encoder: nn.Module | None,
        n_values: int,
        *,
        linear_features: int = 0,
        learned_mean: bool = False,
        learned_warp: bool,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.log_amplitude = nn.Parameter(torch.zeros(()))
        self.log_noise = nn.Parameter(torch.zeros(()))  # of beta, above its floor
        self.log_length = nn.Parameter(torch.zeros(()))  # of eta
        self.register_buffer("noise_floor", torch.tensor(NOISE_FLOOR))
        self.linear = nn.Linear(n_values, linear_features, bias=False) if linear_features else None
        self.mean = nn.Linear(n_values, 1) if learned_mean else None
        self.warp = Warp() if learned_warp else None

    noise_floor: Tensor

    @property
    def amplitude(self) -> Float[Tensor, ""]:
        return self.log_amplitude.exp()

    @property
    def noise(self) -> Float[Tensor, ""]:
        """Above its floor, which is in the units of the warp: else these would grow until it is none."""
        floor = self.noise_floor if self.warp is None else self.noise_floor * self.warp.usual_slope() ** 2
        return self.log_noise.exp() + floor

    @torch.no_grad()
    def initialise(self, x: Rows, response_variance: float) -> None:
        """Start the kernel at the scale of the data: amplitude, a part of it as noise, the usual squared distance."""
        z = self.represent(x)
        if isinstance(z, SparseRows):
            centre, square = torch.from_numpy(z.matrix.mean(axis=0)).to(z.device), z.square().mean()
        else:
            centre, square = z.mean(0), z.square().sum(1).mean()
        # E|z - z'|^2 is twice the variance. Below the floor, differences would be of rounding, or of dropout alone.
        distance = (2 * (square - centre.square().sum())).clamp_min(1e-4 * square).clamp_min(1e-12)
        self.log_amplitude.fill_(response_variance).log_()
        self.log_noise.fill_((NOISE if self.linear is None else NOISE_BESIDE_LINEAR) * response_variance).log_()
        self.noise_floor.fill_(NOISE_FLOOR * response_variance)
        self.log_length.copy_(distance.log())

    @torch.no_grad()
    def start_small(self) -> None:
        """Another start, with most left to the linear part.

        A large RBF part of a long length is a linear part of its own, which likelihood finds first and leaves late.
        """
        self.log_amplitude.add_(math.log(SMALL))
        self.log_noise.add_(math.log(SMALL_NOISE))

    def represent(self, x: Rows) -> Rows:
        return x if self.encoder is None else encode(self.encoder, x)

    def points(self, x: Rows, pool: Pool) -> Points:
        """Encode the rows once; every pool takes its own."""
        return self.place(self.represent(x), pool)

    def place(self, z: Rows, pool: Pool) -> Points:
        """The same, of rows that are encoded already."""
        precision, noise, cap = (-self.log_length).exp(), self.noise, self.log_amplitude.item()
        var = (self.amplitude + noise).expand(pool.rows.shape)
        if isinstance(z, SparseRows):
            half = 0.5 * (self.log_amplitude - precision * z.square())
            features = FeatureProducts(z, pool.rows, half[pool.rows], precision, cap)
            return Points(torch.zeros_like(features.half), var, noise, features, None)
        mean = z.new_zeros(pool.rows.shape) if self.mean is None else pick_rows(self.mean(z), pool.rows).squeeze(-1)
        linear = None
        if self.linear is not None:
            phi = self.linear(z)
            linear = LinearProducts(phi, pool.rows, pick_rows(phi, pool.rows))
            var = var + linear.pooled.square().sum(-1)
        products: EncodedProducts | FeatureProducts
        if self.encoder is None:
            z = z - z.mean(dim=0)  # distances do not change, and differences of squares keep their digits
            half = 0.5 * (self.log_amplitude - precision * z.square().sum(-1))
            products = FeatureProducts(z, pool.rows, half[pool.rows], precision, cap)
        else:
            scaled, pooled, half = _Scaled.apply(z, self.log_length, self.log_amplitude, pool.rows)  # type: ignore[no-untyped-call]
            products = EncodedProducts(scaled, pool.rows, pooled, half, cap)
        return Points(mean, var, noise, products, linear)

    def log_likelihood(self, points: Points, y: Float[Tensor, "s n"], mask: Bool[Tensor, "s n"]) -> Float[Tensor, " s"]:
        """Eq. (marginal) of each pool, a point. Of warped responses it is that of the warp, times its slope."""
        phi = None if points.linear is None else points.linear.pooled
        slope = None
        if self.warp is not None:
            y, slope = self.warp.with_slope(y)
        density = log_likelihood(points.mean, points.var, points.log_rbf.between(None), phi, y, mask)
        return density if slope is None else density + slope.log().where(mask, 0.0).sum(-1) / mask.sum(-1)

    def warped(self, y: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """What the Gaussian process is told of responses."""
        return y if self.warp is None else self.warp(y)


def pick_rows(values: Float[Tensor, "r d"], rows: Int[Tensor, "*s"]) -> Float[Tensor, "*s d"]:
    """values[rows], whose gradient is three times as fast."""
    if torch.is_grad_enabled():
        picked: Tensor = _PickRows.apply(values, rows)  # type: ignore[no-untyped-call]
        return picked
    return _picked(values, rows)


def _picked(values: Tensor, rows: Tensor) -> Tensor:
    return values.index_select(0, rows.flatten()).view(*rows.shape, *values.shape[1:])


def pick_candidates(values: Float[Tensor, "s n d"], chosen: Int[Tensor, "s ..."]) -> Float[Tensor, "s ... d"]:
    """Of every pool the values of some of its candidates, any of them several times."""
    S, N, _ = values.shape
    first = N * torch.arange(S, device=chosen.device).view(S, *[1] * (chosen.ndim - 1))
    return pick_rows(values.flatten(0, 1), chosen + first)


class _PickRows(torch.autograd.Function):
    """Its gradient is one `index_add_`, which takes half the time of what PyTorch does."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.n_rows = len(values)
        return _picked(values, rows)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        rows: Tensor = ctx.saved_tensors[0]
        g = gradient[0].flatten(end_dim=-2)
        return g.new_zeros(ctx.n_rows, g.shape[-1]).index_add_(0, rows.flatten(), g), None


class _Scaled(torch.autograd.Function):
    """Representations divided by sqrt(eta), of every row and every candidate, and every candidate's half."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, log_length: Tensor, log_amplitude: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        root = torch.exp(-0.5 * log_length)
        z = (z - z.mean(dim=0)).mul_(root)  # distances do not change, and differences of squares keep their digits
        half = torch.linalg.vecdot(z, z).neg_().add_(log_amplitude).mul_(0.5)
        ctx.save_for_backward(z, root, rows.flatten())
        return z, _picked(z, rows), _picked(half, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        z, root, rows = ctx.saved_tensors
        d_z, d_pooled, d_half = gradients
        d_half = d_half.new_zeros(len(z)).index_add_(0, rows, d_half.flatten())
        d_z = d_z.index_add(0, rows, d_pooled.flatten(end_dim=-2)).addcmul_(z, d_half.unsqueeze(1), value=-1)
        # What was taken off as the mean is a constant, which changes no distance.
        return d_z * root, -0.5 * torch.dot(d_z.ravel(), z.ravel()), 0.5 * d_half.sum(), None
