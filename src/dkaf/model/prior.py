"""The Gaussian process prior over a pool: representations, their kernel, and the prior mean.

S pools of N candidates, d values a representation, p features of the linear part.
"""

from dataclasses import dataclass

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
class Vectors:
    """A vector for each candidate: rows of one table, and the same gathered for every pool."""

    table: Float[Tensor, "r d"]
    rows: Int[Tensor, "s n"]
    pooled: Float[Tensor, "s n d"]
    scale: Float[Tensor, ""] | None = None
    """What inner products are multiplied by: cheaper than scaling vectors that are features and have no gradient."""

    @classmethod
    def of(
        cls, table: Float[Tensor, "r d"], rows: Int[Tensor, "s n"], scale: Float[Tensor, ""] | None = None
    ) -> "Vectors":
        return cls(table, rows, pick_rows(table, rows), scale)

    def inner(self, chosen: Int[Tensor, "s m"] | None) -> Float[Tensor, "s m n"]:
        """Inner products of the chosen candidates (all, if none are named) with all of their pool."""
        picked = self.pooled if chosen is None else pick_rows(self.table, self.rows.gather(1, chosen))
        products = picked @ self.pooled.mT
        return products if self.scale is None else self.scale * products

    def at(self, chosen: Int[Tensor, "s m"]) -> "Vectors":
        return Vectors.of(self.table, self.rows.gather(1, chosen), self.scale)


@dataclass(frozen=True, eq=False)
class SparseVectors:
    """The same for sparse rows, which are never all made dense."""

    table: SparseRows
    rows: Int[Tensor, "s n"]
    scale: Float[Tensor, ""]
    """What the squared norm of a row is multiplied by."""

    def inner(self, chosen: Int[Tensor, "s m"] | None) -> Float[Tensor, "s m n"]:
        rows = self.rows if chosen is None else self.rows.gather(1, chosen)
        tabled = self.table.inner(rows, self.rows)
        if tabled is not None:
            return self.scale * tabled
        S, M = rows.shape
        picked = self.table[rows.ravel()].dense()
        products = (self.table @ picked.T).T.reshape(S, M, len(self.table))
        return self.scale * products.gather(2, self.rows.unsqueeze(1).expand(S, M, -1))

    def at(self, chosen: Int[Tensor, "s m"]) -> "SparseVectors":
        return SparseVectors(self.table, self.rows.gather(1, chosen), self.scale)


@dataclass(frozen=True, eq=False)
class Points:
    """The candidates of a batch of pools as the kernel sees them."""

    mean: Float[Tensor, "s n"]
    half: Float[Tensor, "s n"]
    """(log alpha - |z|^2 / eta) / 2, so that two halves and an inner product are the logarithm of a kernel."""
    z: Vectors | SparseVectors
    """Representations, whose inner products are divided by eta."""
    linear: Vectors | None
    """phi, the features of the linear part."""

    def at(self, chosen: Int[Tensor, "s m"]) -> "Points":
        """Only the chosen candidates of each pool."""
        return Points(
            self.mean.gather(1, chosen),
            self.half.gather(1, chosen),
            self.z.at(chosen),
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
        precision = (-self.log_length).exp()
        if isinstance(z, SparseRows):
            half = 0.5 * (self.log_amplitude - precision * z.square()[pool.rows])
            return Points(torch.zeros_like(half), half, SparseVectors(z, pool.rows, precision), None)
        mean = z.new_zeros(len(z)) if self.mean is None else self.mean(z).squeeze(-1)
        linear = None if self.linear is None else Vectors.of(self.linear(z), pool.rows)
        z = z - z.mean(dim=0).detach()  # distances do not change, and differences of squares keep their digits
        if self.encoder is None:
            half = 0.5 * (self.log_amplitude - precision * z.square().sum(-1))
            vectors = Vectors.of(z, pool.rows, precision)
        else:
            z = z * precision.sqrt()
            half = 0.5 * (self.log_amplitude - z.square().sum(-1))
            vectors = Vectors.of(z, pool.rows)
        return Points(mean[pool.rows], half[pool.rows], vectors, linear)

    def covariance(self, points: Points, chosen: Int[Tensor, "s m"] | None = None) -> Float[Tensor, "s m n"]:
        """The kernel between the chosen candidates (all, if none are named) and all of their pool, free of noise."""
        half = points.half if chosen is None else points.half.gather(1, chosen)
        log_K = points.z.inner(chosen) + points.half.unsqueeze(1) + half.unsqueeze(2)
        K = log_K.clamp_max(self.log_amplitude.item()).exp()  # no distance is below 0, whatever rounding says
        return K if points.linear is None else K + points.linear.inner(chosen)

    def variance(self, points: Points) -> Float[Tensor, "s n"]:
        """Prior variance of a noisy response, k(x, x) + beta."""
        var = (self.amplitude + self.noise).expand_as(points.mean)
        return var if points.linear is None else var + points.linear.pooled.square().sum(-1)

    def log_likelihood(self, points: Points, y: Float[Tensor, "s n"], mask: Bool[Tensor, "s n"]) -> Float[Tensor, " s"]:
        """Eq. (marginal) of each pool, a point."""
        eye = torch.eye(y.shape[1], dtype=torch.bool, device=y.device)
        K = self.covariance(points).where(~eye, torch.diag_embed(self.variance(points)))
        return log_likelihood(points.mean, K, y, mask)


def pick_rows(values: Float[Tensor, "r d"], rows: Int[Tensor, "s n"]) -> Float[Tensor, "s n d"]:
    """values[rows], whose gradient is twice as fast."""
    picked: Tensor = values.index_select(0, rows.flatten()).unflatten(0, rows.shape)
    return picked
