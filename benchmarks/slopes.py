"""How a cost grows: the slope of a straight line through logarithms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Fit:
    """cost ~ size^slope, by least squares; the error is the slope's standard error."""

    slope: float
    error: float

    def __str__(self) -> str:
        return f"{self.slope:.2f} ± {self.error:.2f}"


def fit(sizes: Sequence[float], costs: Sequence[float]) -> Fit:
    """At least three sizes, for a line through two has no error."""
    x, y = np.log(np.asarray(sizes, dtype=np.float64)), np.log(np.asarray(costs, dtype=np.float64))
    x = x - x.mean()
    slope = float((x * y).sum() / (x * x).sum())
    residual = y - y.mean() - slope * x
    error = math.sqrt(float((residual**2).sum()) / max(len(x) - 2, 1) / float((x * x).sum()))
    return Fit(slope, error)


@dataclass(frozen=True)
class Curve:
    """Costs over sizes, smallest first, and the largest slope that they should have."""

    name: str
    sizes: tuple[float, ...]
    costs: tuple[float, ...]
    expected: float

    @property
    def whole(self) -> Fit:
        return fit(self.sizes, self.costs)

    @property
    def upper(self) -> Fit:
        """Of the larger half, where what every call costs anyway no longer counts."""
        half = max(3, math.ceil(len(self.sizes) / 2))
        return fit(self.sizes[-half:], self.costs[-half:])

    @property
    def steeper(self) -> bool:
        """Whether the upper half is steeper than expected by more than a tenth and two standard errors."""
        return self.upper.slope - 2 * self.upper.error > 1.1 * self.expected
