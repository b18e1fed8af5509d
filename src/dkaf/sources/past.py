"""Finished searches as people keep them: a file each, or one long table with a column that says which search it was."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from dkaf.errors import InputError
from dkaf.settings import Settings
from dkaf.sources.preparation import Detected, Preparation, fit_preparation
from dkaf.sources.tables import SUFFIXES, Table, is_missing, numbers, read_table
from dkaf.sources.transformer import Transformer
from dkaf.tasks import LARGEST_RESPONSE, FloatArray, TaskSet

SMALLEST_TASK = 3  # candidates: a start, a query, and something to choose from


@dataclass(frozen=True, eq=False, repr=False)
class PastTasks(TaskSet):
    """Tasks that came from tables: what they are called, and how their columns became features.

    A policy that is trained on them keeps the preparation, and takes tables as pools.
    """

    names: tuple[str, ...] = ()
    preparation: Preparation | None = None
    columns: Mapping[str, Detected] | None = None
    """What each column was taken for."""

    def subset(self, chosen: Sequence[int] | slice) -> "PastTasks":
        """The chosen tasks, in that order, over the same features."""
        names = tuple(self.names[number] for number in np.arange(len(self))[chosen])
        part = super().subset(chosen)
        assert isinstance(part, PastTasks)
        return replace(part, names=names)


def read_tasks(
    sources: Any,
    *,
    response: str,
    id: str | None = None,  # noqa: A002 - what the user calls it
    task: str | None = None,
    kinds: Mapping[str, str] | None = None,
    minimise: bool = False,
    impute: bool = False,
    delimiter: str | None = None,
    encoding: str | None = None,
    transformer: Any = None,
    progress: Callable[[int, int], None] | None = None,
) -> PastTasks:
    """Finished searches from tables, ready for `fit`.

    `sources` is a folder, a CSV, TSV or Parquet file, a pandas or polars frame, what `Campaign.table` gave, or a list
    of these. Each table is a search, or, with `task`, the rows of each value of that column are one. `response` is the
    column that was measured, `id` the one that names candidates. All others are features: numbers, categories, texts or
    molecules (SMILES, with `dkaf[chem]`) as detected, or as `kinds` says: `{"oven": "categorical", "notes": "ignore"}`.
    Missing features are refused unless `impute` says to fill them in. `minimise` says that a smaller response is
    better; the tasks then have it with the other sign. `transformer` is a fitted one of yours, scikit-learn's or alike:
    it gets the columns as a pandas frame in the place of all this, and `dkaf.load` asks for it again. `progress` gets
    how many tables are done, and of how many.

    >>> import pandas as pd, dkaf
    >>> past = pd.DataFrame({"oven": list("abab"), "heat": [1.0, 2.0, 3.0, 4.0], "yield": [5, 6, 7, 8]})
    >>> past["day"] = list("xxyy")
    >>> tasks = dkaf.read_tasks(past, response="yield", task="day")
    >>> tasks.names, tasks.n_features
    (('x', 'y'), 3)
    """
    tables = [read_table(source, delimiter=delimiter, encoding=encoding) for source in _files(sources)]
    return tasks_of_tables(
        tables,
        response=response,
        id=id,
        task=task,
        kinds=kinds,
        minimise=minimise,
        impute=impute,
        transformer=transformer,
        progress=progress,
    )


def tasks_of_tables(
    tables: Sequence[Table],
    *,
    response: str,
    id: str | None = None,  # noqa: A002
    task: str | None = None,
    kinds: Mapping[str, str] | None = None,
    minimise: bool = False,
    impute: bool = False,
    transformer: Any = None,
    progress: Callable[[int, int], None] | None = None,
) -> PastTasks:
    """`read_tasks`, of tables that were read."""
    for table in tables:
        for option, column in (("--response", response), ("--id", id), ("--task", task)):
            if column is not None:
                table.column(column, option)
        if table.n_rows == 0:
            raise InputError(f"a finished search has candidates, {table.name} has a header and no rows; leave it out")
    named = len({name for name in (response, id, task) if name is not None}) == 3 - (id, task).count(None)
    if not named:
        raise InputError(f"response, id and task are columns of their own, {response!r}, {id!r} and {task!r} came")
    measured = [responses(table, response) for table in tables]
    taken: dict[str, Detected] = {}
    if transformer is not None:
        if kinds or impute:
            raise InputError("a transformer prepares the columns, kinds or impute came too; leave one of them out")
        own = Transformer.of(transformer, tables, (response, id, task))
        preparation = Preparation((), response, id, minimise, own)
    else:
        preparation, taken = fit_preparation(
            tables, response=response, id=id, task=task, kinds=kinds, minimise=minimise, impute=impute
        )
    names: list[str] = []
    pools: list[Any] = []
    values: list[FloatArray] = []
    blocks: list[Any] = []
    first_row = 0
    for table, response_values in zip(tables, measured, strict=True):
        blocks.append(preparation.matrix(table, impute=impute))
        if progress is not None:
            progress(len(blocks), len(tables))
        for name, rows in _searches(table, task):
            if id is not None:
                check_ids(table, id, rows)
            names.append(name)
            pools.append(first_row + np.array(rows, dtype=np.int64))
            values.append(-response_values[rows] if minimise else response_values[rows])
        first_row += table.n_rows
    features = sp.csr_array(sp.vstack(blocks, format="csr")) if sp.issparse(blocks[0]) else np.vstack(blocks)
    checked = TaskSet.from_arrays(features, pools, values)
    return PastTasks(checked.features, checked.pools, checked.responses, None, tuple(names), preparation, taken)


def searchable(tasks: PastTasks) -> PastTasks:
    """Those that can be searched, of which there is one at least."""
    kept = np.flatnonzero(tasks.sizes >= SMALLEST_TASK)
    if len(kept) == 0:
        raise InputError(
            f"training needs past tasks of {SMALLEST_TASK} candidates or more, none of {len(tasks)} has; measure "
            "more of them"
        )
    return tasks.subset(kept.tolist())


def fitting_queries(tasks: TaskSet, overrides: Mapping[str, Any]) -> dict[str, int]:
    """Fewer queries for the searches of training, where the smallest task has no room for the usual ones."""
    usual = Settings()
    room = int(tasks.sizes.min()) - int(overrides.get("initial", usual.initial))
    return {} if "queries" in overrides or room >= usual.queries else {"queries": max(1, room)}


def follows_response(tasks: PastTasks, tables_column: str) -> bool:
    """Whether a numeric feature ranks the candidates of every task as the response does: is it another form of it?"""
    from scipy.stats import spearmanr

    assert tasks.preparation is not None
    first = 0
    for feature in tasks.preparation.features:
        if feature.column == tables_column:
            break
        first += feature.width
    column: Any = tasks.features[:, [first]]
    column = (column.toarray() if sp.issparse(column) else column).ravel()
    large = [
        task for task in tasks if len(task.pool) >= 5 and np.ptp(task.responses) > 0 and np.ptp(column[task.pool]) > 0
    ]
    return bool(large) and all(abs(spearmanr(column[t.pool], t.responses).statistic) > 0.98 for t in large)


def check_ids(table: Table, column: str, rows: Sequence[int] | range) -> list[str]:
    """The ids of some rows: each has one, and no two the same."""
    texts = table.texts(column)
    seen: dict[str, int] = {}
    for row in rows:
        text = texts[row].strip()
        if not text:
            raise InputError(
                f"every candidate has an id, row {row + 1} of {table.name} has none in column {column!r}; fill it in"
            )
        if not _is_text(text):
            raise InputError(f"an id is text, row {row + 1} of {table.name} has {text!r} in column {column!r}; mend it")
        if text in seen:
            raise InputError(
                f"an id names one candidate, rows {seen[text] + 1} and {row + 1} of {table.name} both have {text!r} "
                f"in column {column!r}; keep one of them"
            )
        seen[text] = row
    return list(seen)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a character, which no file can hold
        return False
    return True


def responses(table: Table, column: str) -> FloatArray:
    """A column of responses: numbers that can be worked with."""
    values, other = numbers(table.columns[column])
    if other:
        raise InputError(
            f"responses are numbers, row {other[0] + 1} of {table.name} has {table.texts(column)[other[0]]!r} in "
            f"column {column!r}; correct it or take the row out"
        )
    for row in np.flatnonzero(~(np.abs(values) <= LARGEST_RESPONSE)).tolist():
        if np.isnan(values[row]):
            raise InputError(
                f"every row has a response, row {row + 1} of {table.name} has none in column {column!r}; fill it in or "
                "take the row out"
            )
        raise InputError(
            f"responses are within +-{LARGEST_RESPONSE:g}, row {row + 1} of {table.name} has {values[row]} in column "
            f"{column!r}; rescale it"
        )
    return values


def _searches(table: Table, task: str | None) -> list[tuple[str, list[int]]]:
    """The name of each search in a table, and its rows."""
    if task is None:
        return [(Path(table.name).stem, list(range(table.n_rows)))]
    searches: dict[str, list[int]] = {}
    for row, text in enumerate(table.texts(task)):
        if is_missing(text):
            raise InputError(
                f"every row says which task it is of, row {row + 1} of {table.name} does not in column {task!r}; fill "
                "it in"
            )
        searches.setdefault(text.strip(), []).append(row)
    return list(searches.items())


def _files(sources: Any) -> list[Any]:
    """Tables, in order: of a folder, its files by name."""
    if isinstance(sources, str | os.PathLike) or not isinstance(sources, Iterable) or hasattr(sources, "columns"):
        sources = [sources]  # frames too can be gone through, by columns
    found: list[Any] = []
    for source in sources:
        if isinstance(source, str | os.PathLike) and Path(source).is_dir():
            inside = sorted(
                path
                for path in Path(source).iterdir()
                if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
            )
            if not inside:
                raise InputError(
                    f"a folder of past tasks has {', '.join(SUFFIXES)} files, {source} has none; name another"
                )
            found += inside
        else:
            found.append(source)
    if not found:
        raise InputError("training needs at least one task, none came; pass finished searches")
    return found
