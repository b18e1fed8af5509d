"""Candidates of one pool, read block by block and checked where they are read: arrays, and files larger than memory.

Files are read into a block's own memory, never mapped: pages of a mapping count as the process's memory until the
system takes them back. N rows, D features.
"""

import hashlib
import mmap
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dkaf.errors import InputError
from dkaf.tasks import FeatureMatrix

SAMPLES, SAMPLE_BYTES, END_BYTES = 32, 4096, 1 << 16  # of a file, for its fingerprint
BUFFER_BYTES = 1 << 16  # of each Parquet column
PAGE_BYTES = 1 << 20  # of a Parquet column, as most are written; a reader holds one in two forms, and a dictionary
ROWS_SKIPPED = 1 << 12  # at once, on the way to a row of a Parquet file

PoolLike: TypeAlias = ArrayLike | sp.sparray | sp.spmatrix | str | os.PathLike[str]


class CandidatePool(ABC):
    """Rows of features that come in blocks. Rows are counted from 0."""

    name: str
    n_rows: int
    n_features: int
    sparse = False
    bytes_to_read = 0
    """What a reader holds at once, beside the block."""

    @property
    def bytes_per_row(self) -> float:
        """Of a row in single precision."""
        return 4.0 * self.n_features

    def blocks(self, start: int, size: int) -> Iterator[tuple[int, FeatureMatrix]]:
        """The rows from `start` on, at most `size` at once, each block with the number of its first row."""
        for first, matrix in self._read(start, size):
            values: Any = matrix.data if sp.issparse(matrix) else matrix
            if not np.isfinite(values).all():
                raise self._not_finite(first, matrix)
            if values.dtype.kind != "f" or values.dtype.itemsize < 4:
                matrix = matrix.astype(np.float32 if values.dtype.itemsize < 4 else np.float64)
            yield first, matrix

    def row(self, number: int) -> FeatureMatrix:
        """One row."""
        return next(self.blocks(number, 1))[1]

    def check(self) -> None:  # noqa: B027 - arrays cannot tell
        """Refuse a pool that is no longer the one that was opened."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """The same for the same candidates in the same order."""

    @abstractmethod
    def _read(self, start: int, size: int) -> Iterator[tuple[int, Any]]: ...

    def _not_finite(self, first: int, matrix: Any) -> InputError:
        if sp.issparse(matrix):
            at = int(np.argmin(np.isfinite(matrix.data)))
            row, column = int(np.searchsorted(matrix.indptr, at, side="right")) - 1, int(matrix.indices[at])
        else:
            row, column = (int(place[0]) for place in np.nonzero(~np.isfinite(matrix)))
        return InputError(
            f"features are finite, row {first + row} of {self.name} has {float(matrix[row, column])} in "
            f"{self._column(column)}; drop or impute it"
        )

    def _column(self, column: int) -> str:
        return f"column {column}"


class ArrayPool(CandidatePool):
    """An array in memory. It is not copied: leave it as it is while it is searched."""

    def __init__(self, features: Any) -> None:
        self.name = "the pool"
        self.sparse = bool(sp.issparse(features))
        self._features: Any = sp.csr_array(features) if self.sparse else np.asarray(features)
        _check_table(self.name, self._features.shape, self._features.dtype)
        self.n_rows, self.n_features = (int(size) for size in self._features.shape)

    @property
    def bytes_per_row(self) -> float:
        return 8.0 * (1 + self._features.nnz / self.n_rows) if self.sparse else super().bytes_per_row

    def _read(self, start: int, size: int) -> Iterator[tuple[int, Any]]:
        for first in range(start, self.n_rows, size):
            block = self._features[first : first + size]
            if self.sparse and not block.has_canonical_format:
                block = block.copy() if np.shares_memory(block.data, self._features.data) else block
                block.sum_duplicates()
            yield first, block

    @cached_property
    def fingerprint(self) -> str:
        """Of every value: nothing else would tell that an array is another."""
        digest = hashlib.blake2b(repr((self._features.shape, self.sparse)).encode(), digest_size=16)
        for _, block in self._read(0, 1 << 12):
            arrays = (block.indptr, block.indices, block.data) if self.sparse else (block,)
            for array in arrays:
                digest.update(str(array.dtype).encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


class FilePool(CandidatePool):
    """A file that must stay as it was when it was opened."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        self._status, self._fingerprint = _status(path), _fingerprint(path)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def check(self) -> None:
        self._check_status()
        if _fingerprint(self.path) != self._fingerprint:
            raise self._changed()

    def _check_status(self) -> None:
        if _status(self.path) != self._status:
            raise self._changed()

    def _changed(self) -> InputError:
        return InputError(
            f"a pool stays as it is while it is searched, {self.name} has changed since it was opened; what was told "
            "is in search.observed: put the file back, or open a new Search on it and tell it again"
        )


class NumpyPool(FilePool):
    """A matrix in an `.npy` file, or in whatever file an `np.memmap` maps."""

    def __init__(self, path: Path, mapped: "np.memmap[Any, Any] | None" = None) -> None:
        super().__init__(path)
        if mapped is None:
            shape, fortran, self._dtype, self._offset = _numpy_header(path)
        else:
            shape, self._dtype, self._offset = mapped.shape, mapped.dtype, mapped.offset
            fortran = not mapped.flags.c_contiguous
        _check_table(self.name, shape, self._dtype)
        self.n_rows, self.n_features = (int(size) for size in shape)
        self._fortran = fortran
        held = max(0, self._status[0] - self._offset) // self._dtype.itemsize
        if held < self.n_rows * self.n_features:
            whole = held // self.n_features if not fortran else max(0, held - self.n_rows * (self.n_features - 1))
            raise InputError(
                f"{self.name} says that it has {self.n_rows} rows of {self.n_features} features, {whole} rows are "
                "whole: the file is cut short; write or copy it again"
            )

    def _read(self, start: int, size: int) -> Iterator[tuple[int, Any]]:
        with _opened(self.path) as file:
            for first in range(start, self.n_rows, size):
                self._check_status()
                block = self._block(file, first, min(size, self.n_rows - first))
                self._check_status()
                yield first, block

    def _block(self, file: BinaryIO, first: int, count: int) -> NDArray[Any]:
        if not self._fortran:
            block = np.empty((count, self.n_features), dtype=self._dtype)
            return self._fill(file, first * self.n_features, block)
        columns = np.empty((self.n_features, count), dtype=self._dtype)
        for number, column in enumerate(columns):
            self._fill(file, number * self.n_rows + first, column)
        return columns.T

    def _fill(self, file: BinaryIO, position: int, array: NDArray[Any]) -> NDArray[Any]:
        if not read_into(file, self._offset + position * self._dtype.itemsize, array):
            self._check_status()
            raise InputError(f"{self.name} ended while it was read; write or copy it again")
        return array


class ParquetPool(FilePool):
    """The columns of numbers of a Parquet file, in the file's order, or those that are named, in that order."""

    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        super().__init__(path)
        import pyarrow as pa

        with self._open() as file:
            schema = file.schema_arrow
            groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        numeric = [
            field.name
            for field in schema
            if any(test(field.type) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean))
        ]
        chosen = numeric if columns is None else list(columns)
        for name in chosen:
            if schema.names.count(name) != 1:
                came = "is not there" if name not in schema.names else "is there more than once"
                raise InputError(
                    f"columns= names columns of {self.name}, {name!r} {came}; it has {', '.join(schema.names[:10])}"
                )
            if name not in numeric:
                raise InputError(
                    f"a feature is a column of numbers, {name!r} of {self.name} is of type {schema.field(name).type}; "
                    "encode it as numbers or leave it out of columns="
                )
        self._columns = chosen
        self._ends = np.cumsum([group.num_rows for group in groups], dtype=np.int64)
        self.n_rows, self.n_features = int(self._ends[-1]) if groups else 0, len(chosen)
        self.bytes_to_read = max((_bytes_to_read(group, set(chosen)) for group in groups), default=0)
        _check_table(self.name, (self.n_rows, self.n_features), np.dtype(float))

    @property
    def fingerprint(self) -> str:
        return hashlib.blake2b(repr((super().fingerprint, self._columns)).encode(), digest_size=16).hexdigest()

    def _open(self) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:  # a buffer for each column: without it the columns of a whole row group are read at once
            return pq.ParquetFile(self.path, buffer_size=BUFFER_BYTES, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{self.name} is not a whole Parquet file ({reason}); write or copy it again") from error

    def _read(self, start: int, size: int) -> Iterator[tuple[int, Any]]:
        import pyarrow as pa

        group = int(np.searchsorted(self._ends, start, side="right"))
        first = int(self._ends[group - 1]) if group else 0
        self._check_status()
        with self._open() as file:
            batches = file.iter_batches(
                batch_size=size, row_groups=range(group, len(self._ends)), columns=self._columns, use_threads=False
            )
            while first < self.n_rows:
                try:
                    batch = next(batches)
                except (pa.ArrowException, OSError, StopIteration) as error:
                    self._check_status()
                    raise InputError(
                        f"{self.name} cannot be read from row {first} on ({error}); write or copy it again"
                    ) from error
                self._check_status()
                skipped = min(max(0, start - first), len(batch))
                if skipped < len(batch):
                    yield first + skipped, self._matrix(batch.slice(skipped), first + skipped)
                first += len(batch)

    def row(self, number: int) -> FeatureMatrix:
        block: Any = next(self.blocks(number, ROWS_SKIPPED))[1]  # those before it in its group are decoded too
        return block[:1]

    def _matrix(self, batch: Any, first: int) -> NDArray[Any]:
        columns = []
        for name in self._columns:
            column = batch.column(name)
            if column.null_count:
                row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
                raise InputError(
                    f"features are finite, row {first + row} of {self.name} has null in column {name!r}; "
                    "drop or impute it"
                )
            columns.append(column.to_numpy(zero_copy_only=False))
        matrix = np.empty((len(batch), len(columns)), dtype=np.result_type(*columns), order="F")
        for number, values in enumerate(columns):
            matrix[:, number] = values
        return matrix

    def _column(self, column: int) -> str:
        return f"column {self._columns[column]!r}"


def _bytes_to_read(group: Any, columns: set[str]) -> int:
    """Measured: two and a half times a page of each column, or the whole column of a small row group."""
    chunks = (group.column(number) for number in range(group.num_columns))
    pages = (min(PAGE_BYTES, chunk.total_uncompressed_size) for chunk in chunks if chunk.path_in_schema in columns)
    return int(2.5 * sum(pages))


def open_pool(pool: PoolLike, columns: Sequence[str] | None = None) -> CandidatePool:
    """The pool, whatever holds it."""
    if isinstance(pool, str | os.PathLike):
        path = Path(os.path.realpath(pool))
        if path.suffix.lower() in (".parquet", ".pq"):
            need_pyarrow()
            return ParquetPool(path, columns)
        _check_no_columns(columns)
        if path.suffix.lower() == ".npy":
            return NumpyPool(path)
        raise InputError(f"a pool file is .npy or .parquet, {pool} came; write it as one, or pass an array")
    _check_no_columns(columns)
    # Only a whole mapping says where in its file it is; changes in a private one are not in the file.
    if isinstance(pool, np.memmap) and isinstance(pool.base, mmap.mmap) and pool.mode != "c" and pool.filename:
        whole = pool.ndim == 2 and (pool.flags.c_contiguous or pool.flags.f_contiguous)
        if whole and not pool.dtype.hasobject:
            return NumpyPool(Path(pool.filename), pool)
    return ArrayPool(pool)


def read_into(file: BinaryIO, position: int, array: NDArray[Any]) -> bool:
    """Fill a contiguous array from an unbuffered file; whether there was enough."""
    view = memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    file.seek(position)
    while len(view):
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            return False
        view = view[count:]
    return True


def _check_table(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if len(shape) != 2 or 0 in shape:
        raise InputError(
            f"a pool is rows x features, at least one of each, {name} has shape {tuple(shape)}; reshape it"
        )
    if dtype.kind not in "fiub":
        raise InputError(f"features are numbers, {name} has type {dtype}; encode them as numbers first")


def _check_no_columns(columns: Sequence[str] | None) -> None:
    if columns is not None:
        raise InputError("columns= names the columns of a Parquet file, another pool came; leave it out")


def need_pyarrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise InputError("Parquet files need pyarrow, it is not here; pip install 'dkaf[parquet]'") from error


def _opened(path: Path) -> BinaryIO:
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise InputError(f"the pool file {path} cannot be read: {error.strerror or error}") from error


def _status(path: Path) -> tuple[int, int, int]:
    """Size, time of the last change, and number of the file."""
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"the pool file {path} cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"a pool file is a file, {path} is a folder, a device or a pipe; name a file")
    return status.st_size, status.st_mtime_ns, status.st_ino


def _fingerprint(path: Path) -> str:
    """Of size, time of the last change, both ends and samples between them. Not of the name: a file may move."""
    size, changed, _ = _status(path)
    digest = hashlib.blake2b(f"{size} {changed}".encode(), digest_size=16)
    with _opened(path) as file:
        for position, count in (
            (0, END_BYTES),
            (max(0, size - END_BYTES), END_BYTES),
            *((number * size // SAMPLES, SAMPLE_BYTES) for number in range(SAMPLES)),
        ):
            file.seek(position)
            digest.update(file.read(count))
    return digest.hexdigest()


def _numpy_header(path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether columns are contiguous, type, and where the data begin."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        with open(path, "rb") as file:
            version = np.lib.format.read_magic(file)
            if version not in readers:
                raise ValueError(f"format {version[0]}.{version[1]}, which only tables of records need")
            shape, fortran, dtype = readers[version](file)
            if any(size < 0 for size in shape):
                raise ValueError("a negative size")
            return shape, fortran, dtype, file.tell()
    except OSError as error:
        raise InputError(f"the pool file {path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a damaged header ends NumPy in a dozen ways, none of them ours
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path} is not an .npy file ({reason}); write it with np.save") from error
