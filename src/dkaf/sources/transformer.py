"""A fitted transformer of the user's own, scikit-learn's or alike, in the place of our preparation of columns.

Its code and what it learned stay with the user: a policy file keeps its name, its columns and its width, and asks for
the object when it is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from dkaf.errors import InputError
from dkaf.sources.tables import Table, numbers
from dkaf.tasks import FeatureMatrix


@dataclass(frozen=True)
class Transformer:
    """What is kept of it; `fitted` is the object itself, where it is at hand."""

    name: str
    columns: tuple[str, ...]
    width: int
    fitted: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, fitted: Any, tables: Sequence[Table], apart: Sequence[str | None]) -> "Transformer":
        """A fitted transformer; it gets the columns that it was fitted on, or all but those that are set apart."""
        if not callable(getattr(fitted, "transform", None)):
            raise InputError(
                f"a transformer has been fitted and has transform, {type(fitted).__name__} has not; pass one"
            )
        columns = getattr(fitted, "feature_names_in_", None)
        if columns is None:
            columns = [column for column in tables[0].columns if column not in apart]
        unmeasured = cls(type(fitted).__qualname__, tuple(map(str, columns)), 0, fitted)
        return replace(unmeasured, width=int(unmeasured._transformed(tables[0]).shape[1]))

    def matrix(self, table: Table) -> FeatureMatrix:
        """What it makes of a table's rows."""
        matrix = self._transformed(table)
        if matrix.shape != (table.n_rows, self.width):
            raise InputError(
                f"the policy was trained with a transformer that gives {self.width} features a row, {self.name} gave "
                f"shape {matrix.shape} for the {table.n_rows} rows of {table.name}; pass the one it was trained with"
            )
        values = matrix.data if sp.issparse(matrix) else matrix
        if not np.isfinite(values).all():
            rows = matrix.tocoo().row if sp.issparse(matrix) else np.indices(matrix.shape)[0]
            row = int(rows[~np.isfinite(values)][0])
            raise InputError(
                f"features are finite, {self.name} gave NaN or infinity for row {row + 1} of {table.name}; mend it"
            )
        return matrix

    def _transformed(self, table: Table) -> Any:
        if self.fitted is None:
            raise InputError(
                f"features are prepared by a transformer of yours, {self.name!r}; load the policy with transformer="
            )
        for column in self.columns:
            if column not in table.columns:
                raise InputError(f"{self.name} takes the column {column!r}, {table.name} has none; add it")
        try:
            import pandas as pd
        except ImportError:
            raise InputError("a transformer gets a pandas frame, pandas is not here; pip install pandas") from None
        frame = pd.DataFrame({column: _typed(table, column) for column in self.columns})
        try:
            matrix = self.fitted.transform(frame)
            return sp.csr_array(matrix) if sp.issparse(matrix) else np.asarray(matrix, dtype=np.float64)
        except Exception as error:  # the user's code: whatever it says
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(
                f"{self.name} failed on {table.name} ({reason}); mend the table or the transformer"
            ) from error


def _typed(table: Table, column: str) -> Any:
    values, other = numbers(table.columns[column])
    return values if not other else table.texts(column)
