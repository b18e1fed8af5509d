"""Tasks: pools of candidates and their responses, over one feature matrix that all tasks share.

A search maximises the response. `TaskSet` is a value: every method returns a new one and the feature matrix is shared.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dkaf.errors import InputError, whole_number
from dkaf.files import whole_file

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
FeatureMatrix: TypeAlias = NDArray[np.floating[Any]] | sp.csr_array

FORMAT = "dkaf-tasks-1"
LARGEST_RESPONSE = 1e15  # their variance must fit in single precision


class Task(NamedTuple):
    """One search: which rows of the features are its candidates, and each candidate's response."""

    pool: IntArray
    responses: FloatArray


@dataclass(frozen=True, eq=False)
class TaskSet:
    """Searches over one feature matrix.

    >>> import numpy as np, dkaf
    >>> tasks = dkaf.TaskSet.from_arrays(np.eye(4), pools=[[0, 1, 2], [3, 1]], responses=[[1.0, 5.0, 2.0], [0.0, 7.0]])
    >>> len(tasks), tasks.n_features, tasks.sizes.tolist()
    (2, 4, [3, 2])
    >>> train, test = tasks.split(1, 1)
    >>> test[0].responses.tolist()
    [0.0, 7.0]
    """

    features: FeatureMatrix
    pools: tuple[IntArray, ...]
    responses: tuple[FloatArray, ...]
    targets: IntArray | None = None
    """For similarity tasks, the feature row of each task's hidden target; searching never looks at it."""

    @classmethod
    def from_arrays(
        cls,
        features: ArrayLike | sp.sparray | sp.spmatrix,
        pools: Sequence[ArrayLike],
        responses: Sequence[ArrayLike],
        targets: ArrayLike | None = None,
    ) -> "TaskSet":
        """Check everything once, here, so that nothing behind this line needs to.

        `features` is rows x D, NumPy or SciPy sparse; `pools[s]` are row numbers; `responses[s]` has one value for each
        candidate of `pools[s]`. Pools may have different sizes and may share rows. The features are not copied: leave
        them as they are afterwards.
        """
        matrix = _checked_features(features)
        if len(pools) != len(responses):
            raise InputError(
                f"every pool needs its responses, {len(pools)} pools and {len(responses)} lists of responses came; "
                "pass one list of responses a pool"
            )
        checked = [
            _checked_task(s, pool, values, matrix.shape[0])
            for s, (pool, values) in enumerate(zip(pools, responses, strict=True))
        ]
        rows = None if targets is None else _checked_targets(targets, len(checked), matrix.shape[0])
        return cls(matrix, tuple(task.pool for task in checked), tuple(task.responses for task in checked), rows)

    def __len__(self) -> int:
        return len(self.pools)

    @overload
    def __getitem__(self, task: int) -> Task: ...
    @overload
    def __getitem__(self, task: slice) -> "TaskSet": ...
    def __getitem__(self, task: int | slice) -> "Task | TaskSet":
        """One task, or a set of some."""
        if isinstance(task, slice):
            return self.subset(task)
        return Task(self.pools[task], self.responses[task])

    def __iter__(self) -> Iterator[Task]:
        return (self[task] for task in range(len(self)))

    def __repr__(self) -> str:
        kind = "sparse" if sp.issparse(self.features) else "dense"
        sizes = f"{self.sizes.min()} to {self.sizes.max()}" if len(self) else "no"
        return f"TaskSet({len(self)} tasks, pools of {sizes} candidates, {self.n_features} {kind} features)"

    @property
    def n_features(self) -> int:
        return int(self.features.shape[1])

    @property
    def sizes(self) -> IntArray:
        return np.array([len(pool) for pool in self.pools], dtype=np.int64)

    def subset(self, chosen: Sequence[int] | slice) -> "TaskSet":
        """The chosen tasks, in that order, over the same features."""
        numbers = np.arange(len(self))[chosen]
        targets = None if self.targets is None else self.targets[numbers]
        return replace(
            self,
            pools=tuple(self.pools[s] for s in numbers),
            responses=tuple(self.responses[s] for s in numbers),
            targets=targets,
        )

    def split(self, *sizes: int) -> "tuple[TaskSet, ...]":
        """Consecutive parts of the given sizes; what is left over stays behind."""
        sizes = tuple(whole_number("the size of a part", size) for size in sizes)
        if any(size < 0 for size in sizes):
            raise InputError(f"the parts of a split have at least 0 tasks, {list(sizes)} was asked for")
        if sum(sizes) > len(self):
            raise InputError(
                f"split needs {sum(sizes)} tasks ({' + '.join(map(str, sizes))}), there are {len(self)}; "
                "ask for fewer or make more"
            )
        ends = np.cumsum(sizes)
        return tuple(self.subset(slice(end - size, end)) for size, end in zip(sizes, ends, strict=True))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an `.npz` file, whole or not at all."""
        sizes = self.sizes
        arrays: dict[str, Any] = {
            "format": np.array(FORMAT),
            "sizes": sizes,
            "pools": np.concatenate([*self.pools, np.zeros(0, dtype=np.int64)]),
            "responses": np.concatenate([*self.responses, np.zeros(0)]),
        }
        if self.targets is not None:
            arrays["targets"] = self.targets
        if isinstance(self.features, np.ndarray):
            arrays["features"] = self.features
        else:
            arrays |= {
                "features_data": self.features.data,
                "features_indices": self.features.indices,
                "features_indptr": self.features.indptr,
                "features_shape": np.array(self.features.shape),
            }
        with whole_file(path) as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "TaskSet":
        """Read what `save` wrote; runs nothing that the file holds, and checks it like any other input."""
        arrays = _read_npz(path)
        if str(arrays.get("format", "")) != FORMAT:
            raise InputError(f"a task file says {FORMAT!r} of itself, {path} does not; write it with TaskSet.save")
        try:
            if "features" in arrays:
                features: Any = arrays["features"]
            else:
                parts = tuple(arrays[f"features_{part}"] for part in ("data", "indices", "indptr"))
                features = sp.csr_array(parts, shape=tuple(arrays["features_shape"]))
                features.check_format(full_check=True)
            ends = np.cumsum(arrays["sizes"])
            if (arrays["sizes"] < 0).any() or any(
                arrays[name].shape != (ends[-1:].sum(),) for name in ("pools", "responses")
            ):
                raise ValueError("its pools and responses do not add up")
            pools, responses = (np.split(arrays[name], ends)[:-1] for name in ("pools", "responses"))
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise InputError(f"{path} is not a whole task file ({error}); write it again with TaskSet.save") from error
        return cls.from_arrays(features, pools, responses, arrays.get("targets"))


def _read_npz(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    try:
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise InputError(f"task file {path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # damaged archives end NumPy and zipfile in a dozen ways, none of them ours
        raise InputError(
            f"a task file is an .npz file of plain arrays, {path} is not; write it with TaskSet.save"
        ) from error


def _array(what: str, values: Any) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(f"{what} must be an array, lists of different lengths came; make them one length") from error


def _checked_features(features: ArrayLike | sp.sparray | sp.spmatrix) -> FeatureMatrix:
    matrix: Any
    if sp.issparse(features):
        matrix = sp.csr_array(features)
        if not matrix.has_canonical_format:
            matrix = matrix.copy()  # the caller's stays as it was
            matrix.sum_duplicates()
    else:
        matrix = _array("features", features)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise InputError(
            f"features are rows x columns, at least one column and one row, shape {matrix.shape} came; reshape them"
        )
    if matrix.dtype.kind not in "fiub":
        raise InputError(f"features are numbers, type {matrix.dtype} came; encode them as numbers first")
    if matrix.dtype.kind != "f" or matrix.dtype.itemsize < 4:
        matrix = matrix.astype(np.float32 if matrix.dtype.itemsize < 4 else np.float64)
    values = matrix.data if sp.issparse(matrix) else matrix
    if not np.isfinite(values).all():
        rows = matrix.tocoo().row[~np.isfinite(values)] if sp.issparse(matrix) else np.nonzero(~np.isfinite(values))[0]
        raise InputError(
            f"features are finite, row {int(rows[0])} has NaN or infinity ({len(rows)} such values in all); "
            "drop or impute them"
        )
    return matrix


def _checked_task(number: int, pool: ArrayLike, responses: ArrayLike, n_rows: int) -> Task:
    rows, values = _array(f"pool {number}", pool), _array(f"the responses of pool {number}", responses)
    if rows.ndim != 1 or values.ndim != 1 or len(rows) != len(values):
        raise InputError(
            f"a pool has one response a candidate, pool {number} has {rows.shape} candidates "
            f"and {values.shape} responses; pass two lists of one length"
        )
    if len(rows) == 0:
        raise InputError(f"a pool has at least one candidate, pool {number} is empty; leave the task out")
    if rows.dtype.kind not in "iu":
        raise InputError(f"pools are row numbers, pool {number} has type {rows.dtype}; pass integers")
    if rows.min() < 0 or rows.max() >= n_rows:
        wrong = int(rows[(rows < 0) | (rows >= n_rows)][0])
        raise InputError(
            f"row numbers go from 0 to {n_rows - 1}, pool {number} has {wrong}; point it at rows of features"
        )
    if len(np.unique(rows)) != len(rows):
        numbers, counts = np.unique(rows, return_counts=True)
        raise InputError(
            f"a pool names each row once, pool {number} repeats row {int(numbers[counts > 1][0])}; drop the repeats"
        )
    if values.dtype.kind not in "fiub":
        raise InputError(f"responses are numbers, pool {number} has type {values.dtype}; pass numbers")
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        wrong = int(np.nonzero(~np.isfinite(values))[0][0])
        raise InputError(
            f"responses are finite, candidate {wrong} of pool {number} has {values[wrong]}; leave such candidates out"
        )
    largest = np.abs(values).max()
    if largest > LARGEST_RESPONSE:
        raise InputError(
            f"responses are within +-{LARGEST_RESPONSE:g}, pool {number} has one of size {largest}; rescale"
        )
    return Task(rows.astype(np.int64), values)


def _checked_targets(targets: ArrayLike, n_tasks: int, n_rows: int) -> IntArray:
    rows = np.asarray(targets)
    if (
        rows.shape != (n_tasks,)
        or rows.dtype.kind not in "iu"
        or (n_tasks and (rows.min() < 0 or rows.max() >= n_rows))
    ):
        raise InputError(f"targets are one feature row a task, {n_tasks} tasks and targets of shape {rows.shape} came")
    return rows.astype(np.int64)
