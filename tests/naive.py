"""The mathematics as the paper writes it, one step and one candidate at a time: the oracle of the fast paths."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch import Tensor

from dkaf.learning.episodes import Batch
from dkaf.model.prior import Pool, Prior
from dkaf.policies import GaussianPolicy, KernelPolicy

Array = NDArray[np.float64]


def kernel(prior: Prior, za: Array, zb: Array, same: bool) -> float:
    """Eq. (k), with the noise on the diagonal only (by index, not by equal features)."""
    alpha, beta, eta = (value.item() for value in (prior.amplitude, prior.noise, prior.log_length.exp()))
    value = alpha * math.exp(-float(((za - zb) ** 2).sum()) / (2 * eta))
    if prior.linear is not None:
        weight = prior.linear.weight.detach().numpy()
        value += float((weight @ za) @ (weight @ zb))
    return value + (beta if same else 0.0)


def posterior(prior: Prior, z: Array, observed: list[int], y: list[float]) -> tuple[Array, Array]:
    """Eq. (mu) and Eq. (sigma) at every candidate, from a matrix inverted anew."""
    n = len(z)
    m = np.zeros(n) if prior.mean is None else prior.mean(torch.from_numpy(z)).detach().numpy()[:, 0]
    var = np.array([kernel(prior, z[i], z[i], True) for i in range(n)])
    if not observed:
        return m, var
    K = np.array([[kernel(prior, z[i], z[j], i == j) for j in observed] for i in observed])
    k = np.array([[kernel(prior, z[i], z[j], False) for j in observed] for i in range(n)])
    inverse = np.linalg.inv(K)
    return m + k @ inverse @ (np.array(y) - m[observed]), var - np.einsum("ij,jk,ik->i", k, inverse, k)


def warped(prior: Prior, u: float) -> float:
    """g(u), term by term."""
    warp = prior.warp
    if warp is None:
        return u
    terms = zip(warp.log_steps.tolist(), warp.log_steepness.tolist(), warp.centres.tolist(), strict=True)
    return math.exp(warp.log_slope.item()) * u + sum(
        math.exp(a) * math.tanh(math.exp(b) * (u - c)) for a, b, c in terms
    )


def in_units(policy: GaussianPolicy, mean: float, deviation: float) -> tuple[float, float]:
    """Median and half of the central 68 % of y, where g((y - shift) / scale) is normal."""
    quantiles = []
    for value in (mean - deviation, mean, mean + deviation):
        u = brentq(lambda u, value=value: warped(policy.prior, u) - value, -1e4, 1e4, xtol=1e-13, rtol=1e-15)
        quantiles.append(policy.response_shift.item() + policy.response_scale.item() * u)
    low, median, high = quantiles
    return median, 0.5 * (high - low)


def random_case(
    seed: int, *, sizes: list[int], episodes: int, n_observed: int, d: int = 3
) -> tuple[Tensor, Batch, Tensor]:
    """Rows, padded pools over them with responses, and distinct observed candidates, in double precision."""
    draw = torch.Generator().manual_seed(seed)
    n_rows, longest = max(sizes) + 2, max(sizes)
    x = torch.randn(n_rows, d, generator=draw, dtype=torch.float64)
    mask = torch.arange(longest) < torch.tensor(sizes)[:, None]
    rows = torch.stack([torch.randperm(n_rows, generator=draw)[:longest] for _ in sizes]).where(mask, 0)
    y = torch.randn(mask.shape, generator=draw, dtype=torch.float64).where(mask, 0)
    chosen = torch.stack(
        [torch.stack([torch.randperm(size, generator=draw)[:n_observed] for _ in range(episodes)]) for size in sizes]
    )
    return x, Batch(x, Pool(rows, mask), y), chosen


def randomised(policy: KernelPolicy, seed: int) -> KernelPolicy:
    """Double precision, with kernel parameters away from their starting values."""
    policy = policy.double()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value, low, high in (
            (policy.prior.log_amplitude, -1.0, 2.0),
            (policy.prior.log_noise, -4.0, 1.0),
            (policy.prior.log_length, -2.0, 1.0),
        ):
            value.copy_(low + (high - low) * torch.rand((), generator=draw, dtype=torch.float64))
    return policy
