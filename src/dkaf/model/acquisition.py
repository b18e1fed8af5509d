"""Acquisition functions: from what is believed of every candidate to how much it deserves the next query.

| symbol | meaning | shape |
|---|---|---|
| mu, var | posterior mean and predictive variance, before the query | *batch x N |
| best | best response observed so far | *batch |
| xi | GP-MI's accumulated variance | *batch |
| nu | weight of the uncertainty | scalar |

All are finite, with finite gradients, at var = 0 and xi = 0.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

TINY = 1e-12  # a variance that is none; squares of it still fit in single precision
FLOOR = 1e-30  # added under a root, whose gradient at 0 is then large, not infinite; elsewhere it changes no digit


class Outlook(NamedTuple):
    """What an acquisition function may look at before a query."""

    mean: Float[Tensor, "*batch n"]
    var: Float[Tensor, "*batch n"]
    best: Float[Tensor, "*batch"]
    xi: Float[Tensor, "*batch"]


def mi(outlook: Outlook, nu: Float[Tensor, ""]) -> Float[Tensor, "*batch n"]:
    """Eq. (a), with sqrt(var + xi) - sqrt(xi) as a quotient: the difference loses all its digits once xi >> var."""
    xi = outlook.xi.unsqueeze(-1) + FLOOR
    bonus = _Bonus.apply if torch.is_grad_enabled() else _bonus
    return torch.addcmul(outlook.mean, bonus(outlook.var, xi), nu.sqrt())


def ucb(outlook: Outlook, nu: Float[Tensor, ""]) -> Float[Tensor, "*batch n"]:
    """Eq. (a_ucb)."""
    return torch.addcmul(outlook.mean, (outlook.var + FLOOR).sqrt(), nu.sqrt())


def ei(outlook: Outlook, nu: Float[Tensor, ""]) -> Float[Tensor, "*batch n"]:
    """Eq. (a_ei); nu has no part in it."""
    sigma, u = _standardised(outlook.mean, outlook.var, outlook.best)
    h: Tensor = u * torch.special.ndtr(u) + _normal_density(u)
    return sigma * h


def log_ei(outlook: Outlook, nu: Float[Tensor, ""]) -> Float[Tensor, "*batch n"]:
    """The logarithm of Eq. (a_ei), with digits and gradients where EI itself underflows to zero."""
    if outlook.var.dtype == torch.float64:
        sigma, u = _standardised(outlook.mean, outlook.var, outlook.best)
        return sigma.log() + _log_h(u)
    if torch.is_grad_enabled():
        scores: Tensor = _SingleLogEI.apply(outlook.mean, outlook.var, outlook.best)  # type: ignore[no-untyped-call]
        return scores
    sigma, u = _standardised(outlook.mean, outlook.var, outlook.best)
    return _single_log_h(u)[0].add_(sigma.log_())


def _bonus(var: Tensor, xi: Tensor) -> Tensor:
    return var / (var + xi).sqrt_().add_(xi.sqrt())


class _Bonus(torch.autograd.Function):
    """sqrt(var + xi) - sqrt(xi), whose gradient is 1 / (2 sqrt(var + xi)): a third of the passes of the quotient's."""

    @staticmethod
    def forward(ctx: Any, var: Tensor, xi: Tensor) -> Tensor:
        bonus, root = _bonus(var, xi), xi.sqrt()
        ctx.save_for_backward(bonus, root)
        return bonus

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, Tensor]:
        bonus, root = ctx.saved_tensors
        d_var = 0.5 * gradient[0] / (bonus + root)
        return d_var, -(d_var * bonus).sum(-1, keepdim=True) / root


ACQUISITIONS: dict[str, Callable[[Outlook, Tensor], Tensor]] = {"mi": mi, "ei": ei, "log_ei": log_ei, "ucb": ucb}


def _standardised(mean: Tensor, var: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
    """Deviations, and how many of them each mean lies above the best response.

    Before any observation the best is 0: with scaled responses that are not warped, the training tasks' average.
    """
    sigma = var.clamp_min(TINY).sqrt()
    best = best.where(best > -math.inf, 0.0)
    return sigma, (mean - best.unsqueeze(-1)) / sigma


def _normal_density(u: Tensor) -> Tensor:
    return torch.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)


def _log_h(u: Tensor) -> Tensor:
    """log(phi(u) + u Phi(u)), in three pieces, each fed only what it can bear (a `where` passes NaN gradients on).

    Near and above 0, as it stands. Below -1, phi(u) is taken out: log phi(u) + log(1 - |u| R), with Mills' ratio
    R = sqrt(pi/2) erfcx(|u|/sqrt 2). Far below, |u| R is 1 but for rounding: the series of 1 - |u| R in 1/u^2.
    """
    far = -((torch.finfo(u.dtype).eps / 100) ** -0.125)  # where rounding and the series' first missing term are alike
    near_u, middle_u, far_u = u.clamp_min(-1), u.clamp(far, -1), u.clamp_max(far)
    near = torch.log(_normal_density(near_u) + near_u * torch.special.ndtr(near_u))
    mills = math.sqrt(math.pi / 2) * torch.special.erfcx(-middle_u / math.sqrt(2))
    middle = _log_density(middle_u) + torch.log1p(middle_u * mills)
    inverse = far_u**-2
    series = _log_density(far_u) + inverse.log() + torch.log1p(inverse * (-3 + inverse * (15 - 105 * inverse)))
    return torch.where(u > -1, near, torch.where(u > far, middle, series))


# (1 - x R(x)) x^2, with Mills' ratio R, as a quotient of polynomials in 1/x for x >= 1: within 1.1e-6, relatively.
_OVER = (1.00000103, 2.20188759, 6.5046426, 1.75760714, -0.31610585)
_UNDER = (1.0, 2.20219673, 9.48987425, 8.62383814, 11.0610342)


_AT_ONE = sum(_OVER) / sum(_UNDER)
_LOG_H, _SLOPE = math.log(_AT_ONE) - 0.5 - 0.5 * math.log(2 * math.pi), 1 / _AT_ONE - 1  # at -1, as they give it


def _single_log_h(u: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
    """`_log_h` in single precision, and its derivative Phi(u) / h(u) on demand.

    PyTorch's erfcx takes one number at a time, and with it most of an update. Of the pieces above and below -1, each is
    given -1 where it does not hold: the product of both is then the right one times h(-1), which costs no `where`.
    """
    near_u, x = u.clamp_min(-1), (-u).clamp_min_(1)
    Phi = torch.special.ndtr(near_u)
    h = torch.addcmul(_normal_density(near_u), near_u, Phi)
    s = 1 / x
    p = _polynomial(_OVER, s).div_(_polynomial(_UNDER, s))
    # log h(-x) is log(p s^2) and log phi(x) = -x^2 / 2 - log(2 pi) / 2
    log_h = (h * p).mul_(s).mul_(s).log_().addcmul_(x, x, value=-0.5).sub_(0.5 * math.log(2 * math.pi) + _LOG_H)
    return log_h, lambda: (x - p * s).div_(p).add_(Phi / h).sub_(_SLOPE)


def _polynomial(coefficients: tuple[float, ...], s: Tensor) -> Tensor:
    lower, highest = coefficients[:-1], coefficients[-1]
    value = torch.full_like(s, highest)
    for coefficient in reversed(lower):
        value = value.mul_(s).add_(coefficient)
    return value


class _SingleLogEI(torch.autograd.Function):
    """Its slopes are slope(u) / sigma in the mean, and (1 - u slope(u)) / (2 sigma^2) in the variance."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, best: Tensor) -> Tensor:
        sigma, u = _standardised(mean, var, best)
        log_h, slope = _single_log_h(u)
        by_mean = slope().div_(sigma)
        by_var = torch.addcmul(sigma.reciprocal(), u, by_mean, value=-1).div_(sigma).mul_(0.5)
        if var.min() < TINY:
            by_var.masked_fill_(var < TINY, 0.0)
        ctx.save_for_backward(by_mean, by_var)
        return log_h.add_(sigma.log_())

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        by_mean, by_var = ctx.saved_tensors
        d_mean = gradient[0] * by_mean
        return d_mean, gradient[0] * by_var, -d_mean.sum(dim=-1) if ctx.needs_input_grad[2] else None


def _log_density(u: Tensor) -> Tensor:
    return -0.5 * u * u - 0.5 * math.log(2 * math.pi)
