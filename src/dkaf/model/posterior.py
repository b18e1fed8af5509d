"""The posterior of a Gaussian process along a search, from one factorisation.

| symbol | meaning | shape |
|---|---|---|
| S, E, N | starts in a batch, episodes a start, candidates in a pool | |
| k | observed points of an episode, in the order they were observed | |
| m, prior_var | prior mean; prior variance of a noisy response, k(x, x) + beta | S x N |
| chosen, y | which candidates were observed, and their responses | S x E x k |
| K_ox | kernel between the observed and all candidates, free of noise | S x E x k x N |
| L, V, w | chol(K_oo + beta I), L^-1 K_ox, L^-1 (y - m_o) | |

Row t of V is what observation t adds, so cumulative sums over rows give the posterior after every observation.
"""

import copy
import math
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dkaf.errors import DivergedError

ROOM = 16  # rows of V to begin with; where more are observed, it grows by at least as many


class Trajectory(NamedTuple):
    """Beliefs about all candidates at several stages of their episodes."""

    mean: Float[Tensor, "s e stages n"]
    var: Float[Tensor, "s e stages n"]
    pivots: Float[Tensor, "s e k"]
    """The predictive variance of each observed point just before it was observed."""


def trajectory(
    m: Float[Tensor, "s n"],
    prior_var: Float[Tensor, "s n"],
    noise: Float[Tensor, ""],
    K_ox: Float[Tensor, "s e k n"],
    chosen: Int[Tensor, "s e k"],
    y: Float[Tensor, "s e k"],
    first: int,
) -> Trajectory:
    """The posterior after `first`, first + 1, ..., k observations, with gradients.

    Eq. (mu) and Eq. (sigma), with one beta each: docs/paper.md, note 2.
    """
    mean, var, pivots = _Trajectory.apply(m, prior_var, K_ox, chosen, y, first)  # type: ignore[no-untyped-call]
    # Exactly, var >= noise; single precision may fall below, and a variance below zero has no root.
    if var.min() < 0.5 * noise:
        var = var.clamp_min(0.5 * noise.detach())
    return Trajectory(mean, var, pivots)


class _Trajectory(torch.autograd.Function):
    """Its gradient is by hand: half the passes over k x N values of each episode, and few small operations."""

    @staticmethod
    def forward(
        ctx: Any, m: Tensor, prior_var: Tensor, K_ox: Tensor, chosen: Tensor, y: Tensor, first: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        S, E, k, N = K_ox.shape
        stages = k + 1 - first
        m_o, var_o = (value.gather(1, chosen.flatten(1)).view(S, E, k) for value in (m, prior_var))
        K_oo = K_ox.gather(3, chosen.unsqueeze(2).expand(S, E, k, k)).flatten(0, 1)
        K_oo.diagonal(dim1=-2, dim2=-1).copy_(var_o.flatten(0, 1))
        L = _cholesky(K_oo)
        inverse = torch.linalg.solve_triangular(L, torch.eye(k).to(L), upper=False)
        V = torch.bmm(inverse, K_ox.flatten(0, 1))
        w = torch.bmm(inverse, (y - m_o).reshape(S * E, k, 1))
        # Cumulative sums over rows of V, as products with ones: row j counts at the stages that have seen it.
        seen = y.new_ones(stages, k).tril(first - 1).expand(S * E, stages, k)
        m, prior_var = (value.unsqueeze(1).expand(S, E, N).reshape(S * E, 1, N) for value in (m, prior_var))
        mean, var = torch.baddbmm(m, seen * w.mT, V), torch.baddbmm(prior_var, -seen, V.square())
        ctx.save_for_backward(chosen, seen, L, inverse, V, w)
        return (
            mean.view(S, E, stages, N),
            var.view(S, E, stages, N),
            L.diagonal(dim1=-2, dim2=-1).square().view(S, E, k),
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, Tensor, None]:
        chosen, seen, L, inverse, V, w = ctx.saved_tensors
        (S, E, k), N = chosen.shape, V.shape[-1]
        d_mean, d_var, d_pivots = gradients
        # mean = m + sum of w_j V_j, var = prior_var - sum of V_j^2, over the rows j that a stage has seen
        d_sum = torch.bmm(seen.mT, d_mean.flatten(0, 1))
        d_w = (V * d_sum).sum(-1, keepdim=True)
        d_V = d_sum.mul_(w).addcmul_(V, torch.bmm(seen.mT, d_var.flatten(0, 1)), value=-2)
        # V = L^-1 K_ox, w = L^-1 r: dL = -L^-T (dV V' + dw w'), below the diagonal
        d_K, d_r = torch.bmm(inverse.mT, d_V), torch.bmm(inverse.mT, d_w)
        d_L = -torch.bmm(inverse.mT, torch.baddbmm(torch.bmm(d_w, w.mT), d_V, V.mT)).tril()
        d_L.diagonal(dim1=-2, dim2=-1).addcmul_(L.diagonal(dim1=-2, dim2=-1), d_pivots.flatten(0, 1), value=2)
        # L L' = K_oo: dK_oo is the symmetric part of L^-T P L^-1, P = L' dL below the diagonal and half of it there
        P = torch.bmm(L.mT, d_L).tril()
        P.diagonal(dim1=-2, dim2=-1).mul_(0.5)
        d_K_oo = torch.bmm(torch.bmm(inverse.mT, P), inverse)
        d_K_oo = 0.5 * (d_K_oo + d_K_oo.mT)
        diagonal = d_K_oo.diagonal(dim1=-2, dim2=-1)
        d_var_o = diagonal.reshape(S, E * k).clone()
        diagonal.zero_()
        d_K = d_K.view(S, E, k, N).scatter_add_(3, chosen.unsqueeze(2).expand(S, E, k, k), d_K_oo.view(S, E, k, k))
        d_m = d_mean.sum((1, 2)).scatter_add_(1, chosen.flatten(1), -d_r.view(S, E * k))
        d_prior_var = d_var.sum((1, 2)).scatter_add_(1, chosen.flatten(1), d_var_o)
        return d_m, d_prior_var, d_K, None, d_r.view(S, E, k), None


def _cholesky(K: Float[Tensor, "*batch k k"]) -> Float[Tensor, "*batch k k"]:
    """Where rounding made a matrix indefinite (the noise is far below the kernel), a little more noise mends it."""
    L: Tensor
    for jitter in (1e-5, 1e-4, 1e-2, None):
        L, failed = torch.linalg.cholesky_ex(K)
        if not failed.any():
            return L
        if jitter is None:
            break
        more = jitter * K.detach().diagonal(dim1=-2, dim2=-1).mean(dim=-1) * (failed > 0)
        K = K + more[..., None, None] * torch.eye(K.shape[-1]).to(K)
    raise DivergedError("training needs finite kernels, one could not be factored; lower the learning rate")


class Beliefs:
    """The posterior at one stage of a batch of searches. Every observation changes it in place; `deepcopy` keeps one.

    Without gradients, which a search does not need, an observation is one row of V more: O(t) a candidate.
    """

    mean: Float[Tensor, "s e n"]
    var: Float[Tensor, "s e n"]

    @torch.no_grad()
    def __init__(
        self, m: Float[Tensor, "s n"], prior_var: Float[Tensor, "s n"], noise: Float[Tensor, ""], episodes: int
    ) -> None:
        S, N = m.shape
        self.mean, self.var = (value.unsqueeze(1).repeat(1, episodes, 1) for value in (m, prior_var))
        self._floor = 0.5 * noise.item()  # exactly, var >= noise; single precision may fall below
        self._V = m.new_empty(S * episodes, ROOM, N)
        self._t = 0

    def __deepcopy__(self, memo: object) -> "Beliefs":
        copied = copy.copy(self)
        copied.mean, copied.var, copied._V = self.mean.clone(), self.var.clone(), self._with_room(ROOM)
        return copied

    def at(self, places: Int[Tensor, " m"]) -> "Beliefs":
        """A copy with some of the candidates alone, in this order."""
        copied = copy.copy(self)
        copied.mean, copied.var = self.mean[..., places], self.var[..., places]
        copied._V = self._V.new_empty(self._V.shape[0], self._t + ROOM, len(places))
        copied._V[:, : self._t] = self._V[:, : self._t, places]
        return copied

    def _with_room(self, room: int) -> Float[Tensor, "b room n"]:
        """The rows of V, copied to where more fit; what is not filled yet takes no memory."""
        B, _, N = self._V.shape
        V = self._V.new_empty(B, self._t + room, N)
        V[:, : self._t] = self._V[:, : self._t]
        return V

    @torch.no_grad()
    def observe(
        self, k_ox: Float[Tensor, "s e n"], chosen: Int[Tensor, "s e"], y: Float[Tensor, "s e"]
    ) -> Float[Tensor, "s e"]:
        """The responses of the chosen candidates; gives their predictive variances before they were observed."""
        S, E, N = k_ox.shape
        t = self._t
        if t == self._V.shape[1]:
            self._V = self._with_room(max(t // 2, ROOM))
        V = self._V
        index = chosen.unsqueeze(-1)
        before = self.var.gather(2, index)
        pivot = before.sqrt()
        row = k_ox.reshape(S * E, 1, N)
        if t:
            filled = V[:, :t]
            V_o = filled.gather(2, chosen.reshape(S * E, 1, 1).expand(S * E, t, 1))
            row = torch.baddbmm(row, V_o.mT, filled, alpha=-1)
        v = torch.div(row.view(S, E, N), pivot, out=V[:, t].view(S, E, N))
        w = (y.unsqueeze(-1) - self.mean.gather(2, index)).div_(pivot)
        self.mean.addcmul_(v, w)
        self.var.addcmul_(v, v, value=-1).clamp_min_(self._floor)
        self._t += 1
        return before.squeeze(-1)


def log_likelihood(
    m: Float[Tensor, "s n"],
    prior_var: Float[Tensor, "s n"],
    log_rbf: Float[Tensor, "s n n"],
    phi: Float[Tensor, "s n p"] | None,
    y: Float[Tensor, "s n"],
    mask: Bool[Tensor, "s n"],
) -> Float[Tensor, " s"]:
    """Eq. (marginal), one density a task, divided by the points so that tasks of all sizes weigh alike.

    The kernel is exp(log_rbf) + phi phi' off its diagonal, and prior_var on it. What the mask leaves out becomes a
    standard normal variable at 0 that nothing else knows of; its density is a constant that comes off again.
    """
    r = y - m
    if not mask.all():
        log_rbf = log_rbf.masked_fill(~(mask.unsqueeze(-1) & mask.unsqueeze(-2)), -math.inf)
        phi = None if phi is None else phi.where(mask.unsqueeze(-1), 0.0)
        prior_var, r = prior_var.where(mask, 1.0), r.where(mask, 0.0)
    density: Tensor = _LogDensity.apply(log_rbf, phi, prior_var, r)  # type: ignore[no-untyped-call]
    density = density + 0.5 * math.log(2 * math.pi) * (~mask).sum(dim=-1)
    return density / mask.sum(dim=-1)


class _LogDensity(torch.autograd.Function):
    """log Normal(r | 0, K). Its gradient in K is (a a' - K^-1) / 2, a = K^-1 r: no Cholesky to differentiate."""

    @staticmethod
    def forward(ctx: Any, log_rbf: Tensor, phi: Tensor | None, prior_var: Tensor, r: Tensor) -> Tensor:
        rbf = log_rbf.exp()
        K = rbf.clone() if phi is None else torch.baddbmm(rbf, phi, phi.mT)
        K.diagonal(dim1=-2, dim2=-1).copy_(prior_var)
        inverse, log_det = invert(K)
        a = (inverse @ r.unsqueeze(-1)).squeeze(-1)
        ctx.save_for_backward(rbf, phi, inverse, a)
        density: Tensor = -0.5 * ((r * a).sum(-1) + log_det + r.shape[-1] * math.log(2 * math.pi))
        return density

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        rbf, phi, inverse, a = ctx.saved_tensors
        g = gradient[0].unsqueeze(-1)
        G = torch.baddbmm(inverse, a.unsqueeze(-1), a.unsqueeze(-2), beta=-1).mul_(0.5 * g.unsqueeze(-1))
        diagonal = G.diagonal(dim1=-2, dim2=-1)
        d_var = diagonal.clone()
        diagonal.zero_()
        return G * rbf, None if phi is None else 2 * (G @ phi), d_var, -g * a


def invert(K: Float[Tensor, "s n n"]) -> tuple[Float[Tensor, "s n n"], Float[Tensor, " s"]]:
    """The inverse of positive definite matrices, and the logarithm of their determinants.

    On a processor SciPy's LAPACK does it, one matrix after the other: in half the time of PyTorch's, which copies more.
    """
    if K.device.type != "cpu":
        factor = _cholesky(K)
        return torch.cholesky_inverse(factor), 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    inverse = torch.eye(K.shape[-1], dtype=K.dtype).repeat(len(K), 1, 1)
    log_det = K.new_empty(len(K))
    potrf, potrs = scipy.linalg.get_lapack_funcs(("potrf", "potrs"), (K.numpy(),))
    for number, (one, its_inverse) in enumerate(zip(K.numpy(), inverse.numpy(), strict=True)):
        L, failed = potrf(one.T, lower=1, clean=0)  # one.T is one, in the order that LAPACK wants
        if failed:
            L = _cholesky(K[number : number + 1])[0].numpy()
        potrs(L, its_inverse.T, lower=1, overwrite_b=1)
        log_det[number] = 2 * float(np.log(L.diagonal()).sum())
    return inverse, log_det
