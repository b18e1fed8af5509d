"""The paper's figures and tables as values: functions of an outcome, before they are drawn, printed or written."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from dkaf.experiments.figures import Drawing, Line, Panel
from dkaf.experiments.names import INFORMED, OURS, UNTRAINED, dataset_name
from dkaf.experiments.outcome import Outcome
from dkaf.experiments.rows import Row
from dkaf.experiments.statistics import Answer, Comparison, Setting, compare, on_common_runs, query_curve, standing

PAPER_MACHINE = "GeForce GTX 1080 Ti"
PAPER_SECONDS = {
    "dkaf": {"reuters": 931.886, "neurips": 1080.168, "webkb": 993.435},
    "dkl": {"reuters": 131.102, "neurips": 224.183, "webkb": 201.535},
    "gp": {"reuters": 150.889, "neurips": 251.762, "webkb": 215.716},
    "rl": {"reuters": 451.380, "neurips": 637.127, "webkb": 583.239},
    "metabo": {"reuters": 934.847, "neurips": 1079.129, "webkb": 1064.673},
}
"""The paper's Table 1."""


def figure3(outcome: Outcome, recipe: str) -> Drawing:
    """The gap against the number of training tasks: datasets down, acquisitions across."""
    panels = [
        [
            Panel(
                _title(dataset, acquisition),
                [_size_line(outcome, recipe, dataset, *method) for method in outcome.contest(acquisition)],
            )
            for acquisition in outcome.acquisitions
        ]
        for dataset in outcome.datasets
    ]
    return Drawing(panels, outcome.sizes, "training tasks", "average cumulative gap")


def _title(dataset: str, acquisition: str) -> str:
    return f"{dataset_name(dataset)}, {acquisition.upper()}" if acquisition else dataset_name(dataset)


def _size_line(outcome: Outcome, recipe: str, dataset: str, method: str, acquisition: str) -> Line:
    found = [outcome.standings.get(Setting(dataset, recipe, size, method, acquisition)) for size in outcome.sizes]
    return Line(
        method,
        np.array([one.gap if one else np.nan for one in found]),
        np.array([one.error if one else np.nan for one in found]),
    )


def figure4_setting(outcome: Outcome) -> tuple[int, str]:
    """The fewest training tasks, and MI if it is there."""
    return outcome.sizes[0], "mi" if "mi" in outcome.acquisitions else outcome.acquisitions[0]


def figure4_settings(outcome: Outcome) -> list[Setting]:
    """All that Figure 4 has lines for, of every recipe."""
    size, acquisition = figure4_setting(outcome)
    contest = outcome.contest(acquisition)
    return [s for s in outcome.settings if s.size == size and (s.method, s.acquisition) in contest]


def figure4(outcome: Outcome, recipe: str) -> Drawing:
    """The gap against queries: a panel a dataset."""
    size, acquisition = figure4_setting(outcome)
    queries = max((len(row.gaps[0]) for row in outcome.rows.values() if row.error is None), default=1)
    panels = []
    for dataset in outcome.datasets:
        lines = []
        for method in outcome.contest(acquisition):
            gaps, errors = np.full((2, queries + 1), np.nan)
            rows = outcome.by_setting.get(Setting(dataset, recipe, size, *method))
            if rows:
                curve, error = query_curve(rows)
                gaps[: len(curve)], errors[: len(error)] = curve, error
            lines.append(Line(method[0], gaps, errors))
        panels.append(Panel(dataset_name(dataset), lines))
    return Drawing([panels], range(queries + 1), "queries", "gap to the best candidate", shared=False)


def best_methods(outcome: Outcome, dataset: str, recipe: str, size: int, acquisition: str) -> set[tuple[str, str]]:
    """The lowest mean gap of a contest on the runs that all its methods have, the informed searcher aside."""
    found = {
        method: outcome.by_setting[setting]
        for method in outcome.contest(acquisition)
        if method[0] != INFORMED and (setting := Setting(dataset, recipe, size, *method)) in outcome.by_setting
    }
    common = on_common_runs(*found.values()) if found else []
    gaps = {method: standing(rows).gap for method, rows in zip(found, common, strict=True) if rows}
    return {method for method, gap in gaps.items() if gap == min(gaps.values())}


def winners(outcome: Outcome, recipe: str) -> dict[tuple[str, int, str], set[tuple[str, str]]]:
    """The best methods of every contest, by its dataset, number of training tasks and acquisition."""
    return {
        (dataset, size, acquisition): best_methods(outcome, dataset, recipe, size, acquisition)
        for dataset, size, acquisition in product(outcome.datasets, outcome.sizes, outcome.acquisitions)
    }


@dataclass(frozen=True)
class Compared:
    """Two settings, and how the first one's gap differs from the second's."""

    first: Setting
    second: Setting
    result: Answer


def _compared(outcome: Outcome, pairs: Iterable[tuple[Setting, Setting]]) -> list[Compared]:
    pairs = list(pairs)
    rows: list[tuple[list[Row], list[Row]]] = [
        (outcome.by_setting.get(first, []), outcome.by_setting.get(second, [])) for first, second in pairs
    ]
    return [Compared(*pair, result) for pair, result in zip(pairs, compare(rows), strict=True)]


def rivals(outcome: Outcome, acquisition: str) -> list[tuple[str, str]]:
    """Whom ours is compared with under one acquisition."""
    return [method for method in outcome.contest(acquisition) if method[0] not in (OURS, INFORMED)]


def all_rivals(outcome: Outcome) -> list[str]:
    """The methods ours is compared with under any acquisition."""
    return list(dict.fromkeys(method for a in outcome.acquisitions for method, _ in rivals(outcome, a)))


def against_rivals(outcome: Outcome) -> list[Compared]:
    """Ours under each acquisition against every other method, in every dataset, recipe and size."""
    ours = [setting for setting in outcome.settings if setting.method == OURS]
    return _compared(
        outcome,
        [
            (setting, Setting(setting.dataset, setting.recipe, setting.size, *rival))
            for setting in ours
            for rival in rivals(outcome, setting.acquisition)
        ],
    )


def between_sizes(outcome: Outcome) -> list[Compared]:
    """Each method that learns: with the most training tasks it has rows for, against the fewest."""
    sizes: dict[tuple[str, str, str, str], list[int]] = {}
    for setting in outcome.settings:
        if setting.method not in UNTRAINED and setting in outcome.standings:
            key = (setting.dataset, setting.recipe, setting.method, setting.acquisition)
            sizes.setdefault(key, []).append(setting.size)
    return _compared(
        outcome,
        [
            (Setting(dataset, recipe, max(found), *method), Setting(dataset, recipe, min(found), *method))
            for (dataset, recipe, *method), found in sizes.items()
            if len(found) > 1
        ],
    )


def usual_sizes(outcome: Outcome, growth: Sequence[Compared]) -> tuple[int, int]:
    """The fewest and the most training tasks of most comparisons: in a part of a grid, methods differ in these."""
    found = Counter((c.second.size, c.first.size) for c in growth if isinstance(c.result, Comparison))
    whole = (outcome.sizes[0], outcome.sizes[-1])
    return max(found, key=lambda sizes: (found[sizes], sizes[1] - sizes[0]), default=whole)


def between_recipes(outcome: Outcome) -> list[Compared]:
    """Ours with the first recipe against ours with each other one."""
    first, *others = outcome.recipes
    return _compared(
        outcome,
        [
            (setting, Setting(setting.dataset, other, setting.size, OURS, setting.acquisition))
            for other in others
            for setting in outcome.settings
            if setting.method == OURS and setting.recipe == first
        ],
    )


@dataclass(frozen=True, eq=False)
class Results:
    """An outcome and all its comparisons."""

    outcome: Outcome
    against: Sequence[Compared]
    growth: Sequence[Compared]
    recipes: Sequence[Compared]

    @staticmethod
    def of(outcome: Outcome) -> "Results":
        return Results(outcome, against_rivals(outcome), between_sizes(outcome), between_recipes(outcome))

    @property
    def compared(self) -> list[Compared]:
        return [*self.against, *self.growth, *self.recipes]

    def against_of(self, recipe: str) -> list[Compared]:
        return [compared for compared in self.against if compared.first.recipe == recipe]

    def growth_of(self, recipe: str) -> list[Compared]:
        return [compared for compared in self.growth if compared.first.recipe == recipe]


@dataclass(frozen=True)
class Timing:
    """A square of Table 1."""

    recipe: str
    size: int
    dataset: str
    method: str
    rows: tuple[Row, ...]

    @property
    def seconds(self) -> float | None:
        """The mean over runs and acquisitions."""
        return float(np.mean([row.training_seconds for row in self.rows])) if self.rows else None

    @property
    def paper(self) -> float | None:
        return PAPER_SECONDS.get(self.method, {}).get(self.dataset)

    @property
    def machines(self) -> list[str]:
        return sorted({row.machine or "unknown" for row in self.rows})


def table1(outcome: Outcome, recipe: str) -> list[Timing]:
    """Training seconds by method and dataset, of the largest number of training tasks that fills the most squares."""
    rows = [row for row in outcome.rows.values() if row.recipe == recipe and row.error is None]
    learned = [row for row in rows if row.method not in UNTRAINED]
    if not learned:
        return []
    squares = {row.size: len({(r.method, r.dataset) for r in learned if r.size == row.size}) for row in learned}
    size = max(squares, key=lambda size: (squares[size], size))
    methods = list(dict.fromkeys(method for method, _ in outcome.methods if method not in UNTRAINED))
    return [
        Timing(
            recipe,
            size,
            dataset,
            method,
            tuple(row for row in learned if (row.size, row.dataset, row.method) == (size, dataset, method)),
        )
        for method in methods
        for dataset in outcome.datasets
    ]
