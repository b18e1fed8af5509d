"""The Gaussian process prior over a pool: representations, their kernel, and the prior mean.

S pools of N candidates, d values a representation, p features of the linear part.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dkaf.model.encoders import encode
from dkaf.model.inputs import Rows, SparseRows
from dkaf.model.posterior import log_likelihood

NOISE_FLOOR = 1e-4  # of the responses' variance; keeps factorisations sound in single precision with duplicates


@dataclass(frozen=True, eq=False)
class Pool:
    """Pools of one batch, as positions in the rows that were encoded; shorter pools are padded."""

    rows: Int[Tensor, "s n"]
    mask: Bool[Tensor, "s n"]


@dataclass(frozen=True, eq=False)
class Products:
    """Inner products of candidates: left vectors are rows of one table, right ones were gathered for every pool."""

    left: Float[Tensor, "r d"]
    rows: Int[Tensor, "s n"]
    right: Float[Tensor, "s n d"]

    def between(
        self, chosen: Int[Tensor, "s m"] | None, plus: Float[Tensor, "s m n"] | None = None
    ) -> Float[Tensor, "s m n"]:
        """Of the chosen candidates (all, if none are named) with all of their pool, added to other values if given."""
        rows = self.rows if chosen is None else self.rows.gather(1, chosen)
        left, right = pick_rows(self.left, rows), self.right.mT
        return torch.bmm(left, right) if plus is None else torch.baddbmm(plus, left, right)

    def at(self, chosen: Int[Tensor, "s m"]) -> "Products":
        right = self.right.gather(1, chosen.unsqueeze(-1).expand(-1, -1, self.right.shape[-1]))
        return Products(self.left, self.rows.gather(1, chosen), right)


@dataclass(frozen=True, eq=False)
class FeatureProducts:
    """Logarithms of a kernel on the features themselves, which have no gradient and, if sparse, are not made dense."""

    table: Rows
    rows: Int[Tensor, "s n"]
    half: Float[Tensor, "s n"]
    scale: Float[Tensor, ""]
    """What inner products are multiplied by: cheaper than scaling the features."""

    def between(self, chosen: Int[Tensor, "s m"] | None) -> Float[Tensor, "s m n"]:
        half = self.half if chosen is None else self.half.gather(1, chosen)
        rows = self.rows if chosen is None else self.rows.gather(1, chosen)
        return self.scale * self._inner(rows) + self.half.unsqueeze(1) + half.unsqueeze(2)

    def at(self, chosen: Int[Tensor, "s m"]) -> "FeatureProducts":
        return FeatureProducts(self.table, self.rows.gather(1, chosen), self.half.gather(1, chosen), self.scale)

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


class _CappedExp(torch.autograd.Function):
    """exp of no more than the cap. Only rounding exceeds it, so that its gradient is that of exp: one pass."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, cap: float) -> Tensor:
        exponential = value.clamp_max(cap).exp_()
        ctx.save_for_backward(exponential)
        return exponential

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        exponential: Tensor = ctx.saved_tensors[0]
        return gradient[0] * exponential, None


@dataclass(frozen=True, eq=False)
class Points:
    """The candidates of a batch of pools as the kernel sees them."""

    mean: Float[Tensor, "s n"]
    var: Float[Tensor, "s n"]
    """Prior variance of a noisy response, k(x, x) + beta."""
    noise: Float[Tensor, ""]
    log_amplitude: float
    """What no logarithm of the RBF kernel exceeds, whatever rounding says."""
    log_rbf: Products | FeatureProducts
    """log(alpha exp(-|z - z'|^2 / (2 eta))) is a product of [z, half, 1] and [z, 1, half], z divided by sqrt(eta)."""
    linear: Products | None
    """Of phi, the features of the linear part."""

    def covariance(self, chosen: Int[Tensor, "s m"]) -> Float[Tensor, "s m n"]:
        """The kernel between the chosen candidates and all of their pool, free of noise."""
        log_rbf = self.log_rbf.between(chosen)
        if torch.is_grad_enabled():
            K: Tensor = _CappedExp.apply(log_rbf, self.log_amplitude)  # type: ignore[no-untyped-call]
        else:
            K = log_rbf.clamp_max_(self.log_amplitude).exp_()
        return K if self.linear is None else self.linear.between(chosen, plus=K)

    def at(self, chosen: Int[Tensor, "s m"]) -> "Points":
        """Only the chosen candidates of each pool."""
        return Points(
            self.mean.gather(1, chosen),
            self.var.gather(1, chosen),
            self.noise,
            self.log_amplitude,
            self.log_rbf.at(chosen),
            None if self.linear is None else self.linear.at(chosen),
        )


class Prior(nn.Module):
    """k(x, x') = alpha exp(-|z - z'|^2 / (2 eta)) + phi'phi + beta delta, mean m(x), with z = g(x): Eq. (k).

    The linear part phi = W z and the prior mean are ours; without them this is the paper's. Without an encoder, z = x.
    """

    def __init__(self, encoder: nn.Module | None, n_values: int, *, linear_features: int, learned_mean: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.log_amplitude = nn.Parameter(torch.zeros(()))
        self.log_noise = nn.Parameter(torch.zeros(()))  # of beta, above its floor
        self.log_length = nn.Parameter(torch.zeros(()))  # of eta
        self.register_buffer("noise_floor", torch.tensor(NOISE_FLOOR))
        self.linear = nn.Linear(n_values, linear_features, bias=False) if linear_features else None
        self.mean = nn.Linear(n_values, 1) if learned_mean else None

    noise_floor: Tensor

    @property
    def amplitude(self) -> Float[Tensor, ""]:
        return self.log_amplitude.exp()

    @property
    def noise(self) -> Float[Tensor, ""]:
        return self.log_noise.exp() + self.noise_floor

    @torch.no_grad()
    def initialise(self, x: Rows, response_variance: float) -> None:
        """Start the kernel at the scale of the data: amplitude, a tenth of it as noise, the usual squared distance."""
        z = self.represent(x)
        if isinstance(z, SparseRows):
            centre, square = torch.from_numpy(z.matrix.mean(axis=0)).to(z.device), z.square().mean()
        else:
            centre, square = z.mean(0), z.square().sum(1).mean()
        # E|z - z'|^2 is twice the variance. Below the floor, differences would be of rounding, or of dropout alone.
        distance = (2 * (square - centre.square().sum())).clamp_min(1e-4 * square).clamp_min(1e-12)
        self.log_amplitude.fill_(response_variance).log_()
        self.log_noise.fill_(0.1 * response_variance).log_()
        self.noise_floor.fill_(NOISE_FLOOR * response_variance)
        self.log_length.copy_(distance.log())

    def represent(self, x: Rows) -> Rows:
        return x if self.encoder is None else encode(self.encoder, x)

    def points(self, x: Rows, pool: Pool) -> Points:
        """Encode the rows once; every pool takes its own."""
        return self.place(self.represent(x), pool)

    def place(self, z: Rows, pool: Pool) -> Points:
        """The same, of rows that are encoded already."""
        precision, noise, top = (-self.log_length).exp(), self.noise, self.log_amplitude.item()
        var = (self.amplitude + noise).expand(pool.rows.shape)
        if isinstance(z, SparseRows):
            half = 0.5 * (self.log_amplitude - precision * z.square())
            features = FeatureProducts(z, pool.rows, half[pool.rows], precision)
            return Points(torch.zeros_like(features.half), var, noise, top, features, None)
        mean = z.new_zeros(len(z)) if self.mean is None else self.mean(z).squeeze(-1)
        linear = None
        if self.linear is not None:
            phi = self.linear(z)
            linear = Products(phi, pool.rows, pick_rows(phi, pool.rows))
            var = var + phi.square().sum(-1)[pool.rows]
        z = z - z.mean(dim=0).detach()  # distances do not change, and differences of squares keep their digits
        products: Products | FeatureProducts
        if self.encoder is None:
            half = 0.5 * (self.log_amplitude - precision * z.square().sum(-1))
            products = FeatureProducts(z, pool.rows, half[pool.rows], precision)
        else:
            z = z * precision.sqrt()
            half = 0.5 * (self.log_amplitude - z.square().sum(-1, keepdim=True))
            one = torch.ones_like(half)
            left, right = torch.cat((z, half, one), dim=1), torch.cat((z, one, half), dim=1)
            products = Products(left, pool.rows, pick_rows(right, pool.rows))
        return Points(mean[pool.rows], var, noise, top, products, linear)

    def log_likelihood(self, points: Points, y: Float[Tensor, "s n"], mask: Bool[Tensor, "s n"]) -> Float[Tensor, " s"]:
        """Eq. (marginal) of each pool, a point."""
        phi = None if points.linear is None else points.linear.right
        log_rbf = points.log_rbf.between(None).clamp_max(points.log_amplitude)
        return log_likelihood(points.mean, points.var, log_rbf, phi, y, mask)


def pick_rows(values: Float[Tensor, "r d"], rows: Int[Tensor, "s n"]) -> Float[Tensor, "s n d"]:
    """values[rows], whose gradient is twice as fast."""
    picked: Tensor = values.index_select(0, rows.flatten()).unflatten(0, rows.shape)
    return picked
