"""Optuna's search spaces as features, and candidates made of them.

A point is a configuration in Optuna's internal numbers, one for each parameter in the order of their names; in unit
coordinates each of them goes from 0 to 1 on its scale.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from scipy.stats import qmc

from dkaf.errors import InputError
from dkaf.tasks import FloatArray

SOBOL = 11  # 2^11 points all over the space
AROUND = 64  # around each of the best

Point: TypeAlias = tuple[float, ...]
Distribution: TypeAlias = FloatDistribution | IntDistribution | CategoricalDistribution


class Space:
    """A search space. As features, numbers are in [0, 1] on their scale, and categories one-hot."""

    def __init__(self, search_space: Mapping[str, BaseDistribution]) -> None:
        self.distributions: dict[str, Distribution] = {}
        for name, each in sorted(search_space.items()):
            if not isinstance(each, Distribution):
                raise InputError(f"a parameter is a float, an int or a category, {name!r} is {each!r}; leave it out")
            if not each.single():
                self.distributions[name] = each
        if not self.distributions:
            raise InputError("a search space has a parameter with two values or more, this one has none; add one")

    @property
    def width(self) -> int:
        kinds = self.distributions.values()
        return sum(len(each.choices) if isinstance(each, CategoricalDistribution) else 1 for each in kinds)

    def check(self, what: str, distributions: Mapping[str, BaseDistribution]) -> None:
        """Refuse a parameter of ours that is another in a trial."""
        for name, each in distributions.items():
            ours = self.distributions.get(name, each)
            if ours != each:
                raise InputError(
                    f"a study has the search space of the past studies, {what} has {name!r} as {each}, they have it as "
                    f"{ours}; train a sampler on studies of this search space"
                )

    def point(self, params: Mapping[str, Any]) -> Point | None:
        """A configuration as a point; None if it is not in the space."""
        numbers = []
        for name, each in self.distributions.items():
            value = params.get(name, self)  # which no parameter can be: None may be a category
            try:
                number = float(each.to_internal_repr(value.item() if isinstance(value, np.generic) else value))
            except ValueError:
                return None
            if not each._contains(number):
                return None
            numbers.append(number)
        return tuple(numbers)

    def params(self, point: Point) -> dict[str, Any]:
        """A point as Optuna's users know it."""
        return {
            name: each.to_external_repr(number)
            for (name, each), number in zip(self.distributions.items(), point, strict=True)
        }

    def checked(self, candidates: Any) -> dict[Point, None]:
        """A fixed set of different candidates, in order."""
        if hasattr(candidates, "to_dicts"):  # polars
            candidates = candidates.to_dicts()
        elif hasattr(candidates, "to_dict"):  # pandas
            candidates = candidates.to_dict("records")
        points: dict[Point, int] = {}
        for row, params in enumerate(candidates):
            if not isinstance(params, Mapping) or (point := self.point(params)) is None:
                raise InputError(f"a candidate has a value in {self.distributions}, row {row} is {params}; correct it")
            if point in points:
                raise InputError(f"candidates differ, rows {points[point]} and {row} are {params}; keep one of them")
            points[point] = row
        if not points:
            raise InputError(
                "a fixed set has at least one candidate, none came; leave it out to search the whole space"
            )
        return dict.fromkeys(points)

    def features(self, points: FloatArray) -> FloatArray:
        unit = self._unit(points)
        return np.hstack(
            [
                np.eye(len(each.choices))[points[:, place].astype(np.int64)]
                if isinstance(each, CategoricalDistribution)
                else unit[:, [place]]
                for place, each in enumerate(self.distributions.values())
            ]
        )

    def made(self, best: Sequence[Point], draw: np.random.Generator) -> list[Point]:
        """Different points all over the space, and around some of it."""
        size = len(self.distributions)
        unit = qmc.Sobol(size, seed=draw).random_base2(SOBOL)
        if best:
            near = np.repeat(self._unit(np.array(best)), AROUND, axis=0)
            steps = draw.normal(size=near.shape) * 0.2 * 0.1 ** draw.random((len(near), 1))
            moved = np.where(draw.random(near.shape) < 0.5, near + steps, near).clip(0, 1)
            kinds = np.array([isinstance(each, CategoricalDistribution) for each in self.distributions.values()])
            redrawn = kinds & (draw.random(near.shape) < 0.2)
            unit = np.vstack((unit, np.where(redrawn, draw.random(near.shape), np.where(kinds, near, moved))))
        return list(dict.fromkeys(map(tuple, self._at(unit).tolist())))

    def _unit(self, points: FloatArray) -> FloatArray:
        """Each parameter in [0, 1]."""
        columns = []
        for each, column in zip(self.distributions.values(), points.T, strict=True):
            if isinstance(each, CategoricalDistribution):
                columns.append((column + 0.5) / len(each.choices))
            else:
                low, high = _scaled(each, np.array([each.low, each.high], dtype=np.float64))
                columns.append((_scaled(each, column) - low) / (high - low))
        return np.stack(columns, axis=1)

    def _at(self, unit: FloatArray) -> FloatArray:
        """The points there, each parameter at the next of its values."""
        columns = []
        for each, column in zip(self.distributions.values(), unit.T, strict=True):
            if isinstance(each, CategoricalDistribution):
                columns.append(np.minimum(np.floor(column * len(each.choices)), len(each.choices) - 1))
                continue
            low, high = _scaled(each, np.array([each.low, each.high], dtype=np.float64))
            values = low + column * (high - low)
            values = np.exp(values) if each.log else values
            if each.step is not None:
                values = each.low + each.step * np.round((values - each.low) / each.step)
            columns.append(values.clip(each.low, each.high))
        return np.stack(columns, axis=1)


def _scaled(distribution: FloatDistribution | IntDistribution, values: FloatArray) -> FloatArray:
    return np.log(values) if distribution.log else values
