"""A folder of the paper's experiments as it is: which cells were planned, and what came of each."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from dkaf.errors import InputError
from dkaf.experiments.names import DATASETS, WITH_ACQUISITION, in_order, methods_in_order
from dkaf.experiments.rows import Cell, Row, RowFile
from dkaf.experiments.statistics import Setting, Standing, by_setting, standings
from dkaf.settings import ACQUISITIONS, RECIPES
from dkaf.tasks import FloatArray

ROWS = "rows.jsonl"
GRID = "grid.json"


@dataclass(frozen=True, eq=False)
class Outcome:
    """The rows of a folder, and the cells that were to be there."""

    rows: Mapping[Cell, Row]
    expected: frozenset[Cell]
    grid: Mapping[str, Any] = field(default_factory=dict)
    """What the grid said about itself, such as its command; empty for rows made by hand."""

    @cached_property
    def cells(self) -> frozenset[Cell]:
        """Planned or there."""
        return frozenset((*self.expected, *self.rows))

    @cached_property
    def datasets(self) -> list[str]:
        return in_order((cell.dataset for cell in self.cells), DATASETS)

    @cached_property
    def recipes(self) -> list[str]:
        return in_order((cell.recipe for cell in self.cells), sorted(RECIPES))

    @cached_property
    def sizes(self) -> list[int]:
        return sorted({cell.size for cell in self.cells})

    @cached_property
    def methods(self) -> list[tuple[str, str]]:
        """(method, acquisition) in the order of every table."""
        return methods_in_order((cell.method, cell.acquisition) for cell in self.cells)

    @cached_property
    def acquisitions(self) -> list[str]:
        """Those that methods come with; one without a name if there are none, so that there is a column to draw."""
        found = [acquisition for method, acquisition in self.methods if method in WITH_ACQUISITION]
        return in_order(found, ACQUISITIONS) or [""]

    @cached_property
    def settings(self) -> list[Setting]:
        """All that are planned or there, in the order of every table."""
        known = {Setting.of(cell) for cell in self.cells}
        acquisitions = in_order((acquisition for _, acquisition in self.methods), (*ACQUISITIONS, ""))
        return [
            setting
            for recipe, dataset, acquisition in product(self.recipes, self.datasets, acquisitions)
            for method in self.methods
            if method[1] == acquisition
            for size in self.sizes
            if (setting := Setting(dataset, recipe, size, *method)) in known
        ]

    def contest(self, acquisition: str) -> list[tuple[str, str]]:
        """The methods of one column: those with this acquisition, and those that have none of their own to vary."""
        return [(m, a) for m, a in self.methods if a == acquisition or m not in WITH_ACQUISITION]

    @cached_property
    def by_setting(self) -> dict[Setting, list[Row]]:
        """Rows that did not fail."""
        return by_setting(self.rows.values())

    @cached_property
    def standings(self) -> dict[Setting, Standing]:
        return standings(self.rows.values())

    @cached_property
    def failed(self) -> dict[Cell, str]:
        return {cell: row.error for cell, row in self.rows.items() if row.error is not None}

    @cached_property
    def missing(self) -> list[Cell]:
        return sorted(self.expected - self.rows.keys())

    @cached_property
    def _missing_runs(self) -> dict[Setting, list[int]]:
        runs: dict[Setting, list[int]] = {}
        for cell in self.missing:
            runs.setdefault(Setting.of(cell), []).append(cell.run)
        return runs

    @cached_property
    def _failed_runs(self) -> dict[Setting, dict[int, str]]:
        runs: dict[Setting, dict[int, str]] = {}
        for cell, error in self.failed.items():
            runs.setdefault(Setting.of(cell), {})[cell.run] = error
        return runs

    def missing_runs(self, setting: Setting) -> list[int]:
        return self._missing_runs.get(setting, [])

    def failed_runs(self, setting: Setting) -> dict[int, str]:
        """The errors by run."""
        return self._failed_runs.get(setting, {})


def read_outcome(folder: Path) -> Outcome:
    """The rows in `folder` and the plan beside them; without a plan, the product of what occurs was planned."""
    rows = _read_rows(folder / ROWS)
    if not rows:
        raise InputError(f"a report is of rows, {folder / ROWS} has none; run `dkaf paper run --out {folder}` first")
    for dataset in sorted({cell.dataset for cell in rows}):
        queries = sorted({len(row.gaps[0]) for row in rows.values() if row.dataset == dataset and row.error is None})
        if len(queries) > 1:
            raise InputError(
                f"the searches of a dataset have one number of queries, those of {dataset} in {folder / ROWS} have "
                f"{' and '.join(map(str, queries))}; keep one protocol to a folder"
            )
    grid = _read_grid(folder / GRID)
    return Outcome(rows, planned_cells(grid.get("cells"), rows, folder / GRID), grid)


def _read_rows(path: Path) -> dict[Cell, Row]:
    rows = RowFile(path).read()
    for cell, row in rows.items():
        if problem := _strange(row):
            raise InputError(f"the row of {cell} in {path} {problem}; restore the file")
    return {cell: _checked(row) for cell, row in rows.items()}


KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("dataset", "recipe", "method", "acquisition", "machine"), str),
    **dict.fromkeys(("size", "run", "seed", "updates", "best_update"), int),
    **dict.fromkeys(("seconds", "versions"), dict),
    **dict.fromkeys(("commit", "error"), (str, NoneType)),
}
"""What a report takes the fields of cells and rows to be."""


def _strange(one: Cell | Row) -> str:
    """What is not as it should be; empty if all is."""
    for name, kind in KINDS.items():
        value = getattr(one, name, None)
        if hasattr(one, name) and (not isinstance(value, kind) or isinstance(value, bool)):
            return f"has {json.dumps(value)} as its {name}"
    if isinstance(one, Row) and _numbers(list(one.seconds.values()), 1) is None:
        return f"has {json.dumps(one.seconds)} as its seconds"
    return ""


def _checked(row: Row) -> Row:
    """A row whose gaps are no table of numbers counts as failed."""
    if row.error is not None:
        return row
    gaps, start = _numbers(row.gaps, 2), _numbers(row.start_gaps, 1)
    if gaps is None or gaps.size == 0:
        return replace(row, error="its gaps are no table of numbers")
    if start is None:
        return replace(row, error="its gaps at the start are no numbers")
    if len(start) not in (0, len(gaps)):
        return replace(row, error="it has not as many starts as test tasks")
    return row


def _numbers(values: Any, dimensions: int) -> FloatArray | None:
    """Finite ones, in so many dimensions; None if they are anything else."""
    try:
        found = np.asarray(values)
    except ValueError:  # lists of different lengths
        return None
    if found.dtype.kind not in "iuf" or found.ndim != dimensions or not np.isfinite(found).all():
        return None
    return found.astype(float)


def _read_grid(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        grid = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"the plan {path} cannot be read ({error}); run `dkaf paper run` again") from error
    if not isinstance(grid, dict):
        raise InputError(f"the plan {path} is a JSON object, something else came; run `dkaf paper run` again")
    return grid


def planned_cells(axes: Any, rows: Iterable[Cell], path: Path) -> frozenset[Cell]:
    """The product of the plan's axes; without a plan, of what occurs."""
    if axes is None:
        there = list(rows)
        axes = {
            "datasets": {cell.dataset for cell in there},
            "recipes": {cell.recipe for cell in there},
            "sizes": {cell.size for cell in there},
            "runs": {cell.run for cell in there},
            "methods": {(cell.method, cell.acquisition) for cell in there},
        }
    try:
        cells = frozenset(
            Cell(dataset, recipe, size, run, method, acquisition)
            for dataset, recipe, size, run, (method, acquisition) in product(
                axes["datasets"], axes["recipes"], axes["sizes"], axes["runs"], axes["methods"]
            )
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the plan's cells in {path} cannot be read ({error!r}); run `dkaf paper run` again"
        ) from error
    for cell in cells:
        if problem := _strange(cell):
            raise InputError(f"a cell of the plan {path} {problem}; run `dkaf paper run` again")
    return cells
