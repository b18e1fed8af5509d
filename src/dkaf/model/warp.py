"""A rising map of responses, learned with the kernel: a Gaussian process fits g(y) where it does not fit y.

A distance has an edge at its target, and few responses far below all others; a Gaussian process has neither. The map
is that of warped Gaussian processes (Snelson, Rasmussen and Ghahramani, 2003), with a slope of its own:

    g(u) = s u + sum over i of a_i tanh(b_i (u - c_i)),    s, a, b > 0

The density of y is that of g(y) times the slope of g. The order of responses stays, and so does what is best.
"""

import math
import sys
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

CENTRES = (-2.0, -0.5, 1.0)  # to begin with, in deviations of the responses
STEP = 0.1  # what each of them adds to begin with
STEEPEST = math.log(12)  # of a bend; responses that occur often would else be likelier without end
ROUNDS = 200  # of the inverse at most; ten are usual, and halving alone would need no more


class Warp(nn.Module):
    """Works on responses in units of their deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.log_slope = nn.Parameter(torch.zeros(()))
        self.log_steps = nn.Parameter(torch.full((len(CENTRES),), math.log(STEP)))
        self.log_steepness = nn.Parameter(torch.zeros(len(CENTRES)))
        self.centres = nn.Parameter(torch.tensor(CENTRES))

    def forward(self, u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return self.with_slope(u)[0]

    def with_slope(self, u: Float[Tensor, "*shape"]) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
        """g(u), and how steeply it rises there."""
        slope, steps, steepness = self.log_slope.exp(), self.log_steps.exp(), self._steepness
        bends = torch.tanh(steepness * (u.unsqueeze(-1) - self.centres))
        g = slope * u + (bends * steps).sum(-1)
        return g, slope + ((1 - bends * bends) * (steps * steepness)).sum(-1)

    @property
    def _steepness(self) -> Float[Tensor, " i"]:
        return self.log_steepness.clamp_max(STEEPEST).exp()

    @torch.no_grad()
    def usual_slope(self) -> float:
        """Over the four deviations in which most responses are; above 0 also where rounding says otherwise."""
        ends = self(self.centres.new_tensor((-2.0, 2.0)))
        return max(float(ends[1] - ends[0]) / 4, sys.float_info.min)

    def inverse(self, g: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """With gradients in g alone."""
        u: Tensor = _Inverse.apply(g, self)  # type: ignore[no-untyped-call]
        return u


class _Inverse(torch.autograd.Function):
    """By Newton's steps, and halving where one leaves the bounds or is hardly shorter than the last.

    g lies between its asymptotes, two lines, which give the first bounds.
    """

    @staticmethod
    def forward(ctx: Any, g: Tensor, warp: Warp) -> Tensor:
        slope, most = warp.log_slope.exp(), warp.log_steps.exp().sum()
        low, high = (g - most) / slope, (g + most) / slope
        u, step, tiny = 0.5 * (low + high), high - low, 4 * torch.finfo(low.dtype).eps
        for _ in range(ROUNDS):
            value, slope = warp.with_slope(u)
            above = value > g
            low, high = torch.where(above, low, u), torch.where(above, u, high)
            newton = u - (value - g) / slope
            way, rounding = (newton - u).abs(), tiny * (1 + u.abs())
            shorter = (low <= newton) & (newton <= high) & (2 * way <= step) | (way <= rounding)
            last, u = u, torch.where(shorter, newton, 0.5 * (low + high))
            step = (u - last).abs()
            if not (step > rounding).any():
                break
        ctx.save_for_backward(warp.with_slope(u)[1])
        return u

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return gradient[0] / slope, None
