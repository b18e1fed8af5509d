import builtins
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

import dkaf
from dkaf.sources.pools import ArrayPool, CandidatePool, NumpyPool, ParquetPool, open_pool

N, D = 23, 4


def table(dtype: Any = np.float64) -> NDArray[Any]:
    return (10 * np.random.default_rng(0).normal(size=(N, D))).astype(dtype)


def everything(pool: CandidatePool, start: int = 0, size: int = 5) -> NDArray[Any]:
    """The rows from `start` on, put together, with the numbers of the blocks checked on the way."""
    parts, expected = [], start
    for first, block in pool.blocks(start, size):
        assert first == expected
        assert 0 < block.shape[0] <= size
        parts.append(block.toarray() if sp.issparse(block) else block)
        expected = first + block.shape[0]
    assert expected == pool.n_rows
    return np.concatenate(parts)


def write_parquet(path: Path, columns: dict[str, Any], group: int = 9) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return path


def write_all(folder: Path, features: NDArray[Any]) -> list[Any]:
    """One matrix, in every form a pool has."""
    native = features.astype(features.dtype.newbyteorder("="))  # SciPy and Arrow take no other
    np.save(folder / "rows.npy", features)
    np.save(folder / "columns.npy", np.asfortranarray(features))
    features.tofile(folder / "raw.bin")
    return [
        features,
        *(form(native) for form in (sp.csr_array, sp.csc_matrix) if native.dtype != np.float16),
        folder / "rows.npy",
        str(folder / "columns.npy"),
        np.load(folder / "rows.npy", mmap_mode="r"),
        np.load(folder / "columns.npy", mmap_mode="r"),
        np.memmap(folder / "raw.bin", dtype=features.dtype, mode="r", shape=features.shape),
        write_parquet(folder / "pool.parquet", {f"f{d}": native[:, d] for d in range(D)}),
    ]


@pytest.mark.parametrize("dtype", ["<f8", "<f4", "<f2", ">f4", "<i8", "<i2", "<u1", "?"])
def test_every_form_of_a_pool_holds_the_same_rows_from_any_row_on(dtype: str, tmp_path: Path) -> None:
    features = table(dtype)
    for form in write_all(tmp_path, features):
        pool = open_pool(form)
        assert (pool.n_rows, pool.n_features) == (N, D)
        for start, size in ((0, 5), (8, 5), (9, 4), (22, 1), (0, 100)):
            got = everything(pool, start, size)
            assert got.dtype.kind == "f"
            assert got.dtype.itemsize >= 4
            np.testing.assert_array_equal(got, features[start:].astype(np.float64))
        row: Any = pool.row(17)
        np.testing.assert_array_equal(row.toarray() if sp.issparse(row) else row, features[17:18].astype(np.float64))


def test_only_a_whole_shared_mapping_is_read_from_its_file(tmp_path: Path) -> None:
    np.save(tmp_path / "pool.npy", table())
    mapped = np.load(tmp_path / "pool.npy", mmap_mode="r")
    assert isinstance(open_pool(mapped), NumpyPool)
    assert isinstance(open_pool(mapped[3:]), ArrayPool)
    np.testing.assert_array_equal(everything(open_pool(mapped[3:])), table()[3:])
    private = np.load(tmp_path / "pool.npy", mmap_mode="c")
    private[0, 0] = 77
    assert everything(open_pool(private))[0, 0] == 77
    shared = np.load(tmp_path / "pool.npy", mmap_mode="r+")
    shared[1, 1] = 66
    assert everything(open_pool(shared))[1, 1] == 66


def test_parquet_takes_columns_of_numbers_in_the_files_order_or_the_named_ones_in_that_order(tmp_path: Path) -> None:
    f = table()
    path = write_parquet(tmp_path / "pool.parquet", {"b": f[:, 0], "id": [f"m{i}" for i in range(N)], "a": f[:, 1]})
    np.testing.assert_array_equal(everything(open_pool(path)), f[:, :2])
    np.testing.assert_array_equal(everything(open_pool(path, ["a", "b"])), f[:, [1, 0]])
    assert open_pool(path).fingerprint != open_pool(path, ["a", "b"]).fingerprint
    with pytest.raises(dkaf.InputError, match=r"columns= names columns of .*'c' is not there; it has b, id, a"):
        open_pool(path, ["c"])
    with pytest.raises(dkaf.InputError, match=r"a feature is a column of numbers, 'id' .* is of type string"):
        open_pool(path, ["id"])
    with pytest.raises(dkaf.InputError, match="columns= names the columns of a Parquet file, another pool came"):
        open_pool(f, ["a"])


# Values that are none


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", range(9))
def test_a_value_that_is_not_finite_is_refused_with_its_row_and_column(form: int, value: float, tmp_path: Path) -> None:
    features = table()
    features[19, 2] = value
    pool = open_pool(write_all(tmp_path, features)[form])
    column = "'f2'" if isinstance(pool, ParquetPool) else "2"
    with pytest.raises(dkaf.InputError, match=rf"row 19 of .* has {value} in column {column}; drop or impute it"):
        everything(pool)


@pytest.mark.parametrize("kind", [pa.float32(), pa.int64(), pa.bool_()])
def test_a_null_is_refused_with_its_row_and_column(kind: Any, tmp_path: Path) -> None:
    columns = {"a": pa.array([1] * N), "b": pa.array([1] * 20 + [None] + [0] * 2).cast(kind)}
    pool = open_pool(write_parquet(tmp_path / "pool.parquet", columns))
    for start in (0, 10, 19):
        with pytest.raises(dkaf.InputError, match=r"row 20 of .*pool\.parquet has null in column 'b'; drop or impute"):
            everything(pool, start)


# Files that are not what they should be


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_file_that_is_cut_short_says_how_many_rows_are_whole(order: Any, tmp_path: Path) -> None:
    path = tmp_path / "pool.npy"
    np.save(path, np.asarray(table(), order=order))
    os.truncate(path, path.stat().st_size - 8 * D * 3 + 5)
    whole = {"C": 20, "F": 11}[order]
    with pytest.raises(
        dkaf.InputError, match=rf"has 23 rows of 4 features, {whole} rows are whole: .* cut short; write"
    ):
        open_pool(path)


def test_a_parquet_file_that_is_cut_short_or_damaged_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "pool.parquet", {f"f{d}": table()[:, d] for d in range(D)})
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    with pytest.raises(dkaf.InputError, match=r"pool\.parquet is not a whole Parquet file \(.*\); write or copy"):
        open_pool(path)
    middle = len(data) // 3
    path.write_bytes(data[:middle] + bytes(200) + data[middle + 200 :])
    with pytest.raises(dkaf.InputError, match=r"cannot be read from row \d+ on"):
        everything(open_pool(path))


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool.npy"
    np.save(path, table())
    blocks = open_pool(path).blocks(0, 5)
    next(blocks)
    os.truncate(path, 200)
    with pytest.raises(dkaf.InputError, match="has changed since it was opened"):
        next(blocks)


def test_content_that_changes_under_an_old_date_is_noticed_where_it_is_sampled(tmp_path: Path) -> None:
    path = tmp_path / "pool.npy"
    np.save(path, table())
    pool, status = open_pool(path), path.stat()
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(np.float64(3).tobytes())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(dkaf.InputError, match="has changed since it was opened"):
        pool.check()


class Trap:
    def __reduce__(self) -> Any:
        return (os._exit, (3,))


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    trap = np.empty((2, 2), dtype=object)
    trap[:] = Trap()
    with (tmp_path / "trap.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": (2, 2)})
        pickle.dump(trap, file)
    with pytest.raises(dkaf.InputError, match=r"features are numbers, .*trap\.npy has type object; encode them"):
        open_pool(tmp_path / "trap.npy")
    with pytest.raises(dkaf.InputError, match="features are numbers, the pool has type object"):
        open_pool(trap)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3), r"rows x features, at least one of each, .* has shape \(3,\)"),
        (np.zeros((0, 3)), r"has shape \(0, 3\)"),
        (np.zeros((3, 0)), r"has shape \(3, 0\)"),
        (np.zeros((2, 2, 2)), r"has shape \(2, 2, 2\)"),
        (np.zeros((2, 2), dtype=complex), "has type complex128"),
        (np.array([["a", "b"]]), "has type <U1"),
        (np.zeros((2, 2), dtype="M8[s]"), r"has type datetime64\[s\]"),
        (np.zeros(2, dtype=[("a", "f4")]), "has shape"),
    ],
)
def test_what_is_no_table_of_numbers_is_refused(array: NDArray[Any], message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "pool.npy", array)
    for pool in (array, tmp_path / "pool.npy"):
        with pytest.raises(dkaf.InputError, match=message):
            open_pool(pool)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("pool.npy", b"", r"pool\.npy is not an \.npy file"),
        ("pool.npy", b"\x93NUMPY\x01\x00\xff\xff{", r"is not an \.npy file"),
        ("pool.npy", b"\x93NUMPY\x07\x00", r"is not an \.npy file \(format 7\.0"),
        ("pool.npy", b"PK\x03\x04 an archive", r"is not an \.npy file"),
        ("pool.parquet", b"", "is not a whole Parquet file"),
        ("pool.parquet", b"PAR1 nothing more", "is not a whole Parquet file"),
        ("pool.csv", b"1,2", r"a pool file is \.npy or \.parquet, .*pool\.csv came; write it as one, or pass an array"),
    ],
)
def test_what_is_no_pool_file_is_refused(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(dkaf.InputError, match=message):
        open_pool(tmp_path / name)


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(dkaf.InputError, match=r"none\.npy cannot be read: No such file"):
        open_pool(tmp_path / "none.npy")
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(dkaf.InputError, match=r"a pool file is a file, .* is a folder"):
        open_pool(tmp_path / "folder.npy")


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return plain(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        dkaf.InputError, match=r"Parquet files need pyarrow, it is not here; pip install 'dkaf\[parquet"
    ):
        open_pool(tmp_path / "pool.parquet")
