"""Tasks: what they take, what they refuse, and that a file gives back what was put into it."""

import itertools
import os
import pickle
import resource
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dkaf
from dkaf.files import whole_file

FEATURES = np.arange(12.0).reshape(4, 3)
SPARSE_KINDS = [sp.csr_array, sp.csc_array, sp.coo_array, sp.csr_matrix, sp.lil_matrix]


def some_tasks(features: Any = FEATURES) -> dkaf.TaskSet:
    return dkaf.TaskSet.from_arrays(features, [[0, 1, 2], [3, 1], [2]], [[1.0, 5.0, 2.0], [0.0, 7.0], [-1.0]])


def assert_same(left: dkaf.TaskSet, right: dkaf.TaskSet) -> None:
    assert sp.issparse(left.features) == sp.issparse(right.features)
    assert left.features.shape == right.features.shape
    assert left.features.dtype == right.features.dtype
    assert dense(left).tobytes() == dense(right).tobytes()
    assert [p.tolist() for p in left.pools] == [p.tolist() for p in right.pools]
    assert [r.tobytes() for r in left.responses] == [r.tobytes() for r in right.responses]
    assert (left.targets is None) == (right.targets is None)
    if left.targets is not None and right.targets is not None:
        assert left.targets.tolist() == right.targets.tolist()


def dense(tasks: dkaf.TaskSet) -> np.ndarray:
    return tasks.features if isinstance(tasks.features, np.ndarray) else tasks.features.toarray()


# What goes in


def test_tasks_keep_pools_and_responses_of_different_sizes():
    tasks = some_tasks()
    assert len(tasks) == 3
    assert tasks.n_features == 3
    assert tasks.sizes.tolist() == [3, 2, 1]
    assert tasks[1].pool.tolist() == [3, 1]
    assert tasks[1].responses.tolist() == [0.0, 7.0]
    assert [len(task.pool) for task in tasks] == [3, 2, 1]
    assert "3 tasks" in repr(tasks)
    assert "1 to 3" in repr(tasks)


@pytest.mark.parametrize("kind", SPARSE_KINDS)
def test_sparse_features_stay_sparse_and_keep_their_values(kind):
    tasks = some_tasks(kind(FEATURES))
    assert isinstance(tasks.features, sp.csr_array)
    assert tasks.features.nnz == np.count_nonzero(FEATURES)
    np.testing.assert_array_equal(dense(tasks), FEATURES)


def test_sparse_features_of_the_caller_are_not_changed():
    data, indices, indptr = np.array([1.0, 2.0, 4.0]), np.array([1, 1, 0]), np.array([0, 3])  # column 1 comes twice
    given_matrix = sp.csr_array((data, indices, indptr), shape=(1, 2))
    tasks = dkaf.TaskSet.from_arrays(given_matrix, [[0]], [[0.0]])
    assert dense(tasks).tolist() == [[4.0, 3.0]]
    assert given_matrix.data.tolist() == [1.0, 2.0, 4.0]
    assert given_matrix.indices.tolist() == [1, 1, 0]
    assert given_matrix.indptr.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("wrap", "dtype"),
    [
        (np.asarray, np.float16),  # SciPy has no sparse matrices of half precision
        *itertools.product([np.asarray, sp.csr_array], [np.float32, np.float64, np.int8, np.uint16, np.int64, bool]),
    ],
)
def test_features_of_any_number_type_become_floats_of_the_same_value(wrap, dtype):
    values = (FEATURES > 4).astype(dtype)
    tasks = some_tasks(wrap(values))
    assert tasks.features.dtype in (np.float32, np.float64)
    np.testing.assert_array_equal(dense(tasks), values.astype(float))


def test_a_task_set_may_be_empty():
    tasks = dkaf.TaskSet.from_arrays(FEATURES, [], [])
    assert len(tasks) == 0
    assert list(tasks) == []
    assert "0 tasks" in repr(tasks)


# What is refused

POOLS, RESPONSES = [[0, 1], [2, 3]], [[0.0, 1.0], [2.0, 3.0]]
NAN, INF = float("nan"), float("inf")


def with_value(value: float) -> np.ndarray:
    features = FEATURES.copy()
    features[2, 1] = value
    return features


BAD_INPUT = {
    "more pools than responses": (FEATURES, [*POOLS, [1]], RESPONSES, ["3 pools", "2 lists of responses"]),
    "fewer pools than responses": (FEATURES, POOLS[:1], RESPONSES, ["1 pools", "2 lists of responses"]),
    "a response too many": (FEATURES, POOLS, [[0.0, 1.0], [2.0, 3.0, 4.0]], ["pool 1", "2", "3", "one response"]),
    "a response too few": (FEATURES, POOLS, [[0.0], [2.0, 3.0]], ["pool 0", "1", "2", "one response"]),
    "responses in two dimensions": (FEATURES, POOLS, [[0.0, 1.0], [[2.0], [3.0]]], ["pool 1", "one response"]),
    "a pool that is one number": (FEATURES, [POOLS[0], np.array(2)], RESPONSES, ["pool 1"]),
    "a row beyond the last": (FEATURES, [[0, 1], [2, 4]], RESPONSES, ["pool 1", "0 to 3", "4"]),
    "a row below the first": (FEATURES, [[0, -1], [2, 3]], RESPONSES, ["pool 0", "0 to 3", "-1"]),
    "a row beyond 64 bits": (FEATURES, [np.array([0, 2**64 - 1], dtype=np.uint64)], [[0.0, 1.0]], ["pool 0", "0 to 3"]),
    "a repeated row": (FEATURES, [[0, 1], [3, 3]], RESPONSES, ["pool 1", "repeats row 3"]),
    "rows that are no integers": (FEATURES, [[0.0, 1.0], [2, 3]], RESPONSES, ["pool 0", "row numbers", "float64"]),
    "a mask instead of rows": (FEATURES, [[True, False], [2, 3]], RESPONSES, ["pool 0", "row numbers", "bool"]),
    "an empty pool": (FEATURES, [[0, 1], []], [[0.0, 1.0], []], ["pool 1", "empty", "at least one candidate"]),
    "NaN features": (with_value(NAN), POOLS, RESPONSES, ["features are finite", "row 2"]),
    "infinite features": (with_value(-INF), POOLS, RESPONSES, ["features are finite", "row 2"]),
    "sparse NaN features": (sp.csr_array(with_value(NAN)), POOLS, RESPONSES, ["features are finite", "row 2"]),
    "sparse infinite features": (sp.coo_matrix(with_value(INF)), POOLS, RESPONSES, ["features are finite", "row 2"]),
    "NaN responses": (FEATURES, POOLS, [[0.0, 1.0], [2.0, NAN]], ["responses are finite", "candidate 1 of pool 1"]),
    "too large responses": (
        FEATURES,
        POOLS,
        [[0.0, 1.0], [2.0, 1e16]],
        ["within +-1e+15", "pool 1 has one of size 1e+16"],
    ),
    "infinite responses": (
        FEATURES,
        POOLS,
        [[INF, 1.0], [2.0, 3.0]],
        ["responses are finite", "candidate 0 of pool 0"],
    ),
    "responses that are words": (FEATURES, POOLS, [["a", "b"], [2.0, 3.0]], ["responses are numbers", "pool 0"]),
    "complex responses": (FEATURES, POOLS, [[1j, 2j], [2.0, 3.0]], ["responses are numbers", "complex128"]),
    "features in one dimension": (FEATURES[0], POOLS, RESPONSES, ["rows x", "(3,)"]),
    "features in three dimensions": (FEATURES[None], POOLS, RESPONSES, ["rows x", "(1, 4, 3)"]),
    "features without columns": (np.zeros((4, 0)), POOLS, RESPONSES, ["at least one column", "(4, 0)"]),
    "features that are words": (np.full((4, 3), "word"), POOLS, RESPONSES, ["features are numbers"]),
    "features of objects": (np.full((4, 3), None), POOLS, RESPONSES, ["features are numbers", "object"]),
    "features of complex numbers": (FEATURES * 1j, POOLS, RESPONSES, ["features are numbers", "complex128"]),
    "features of ragged rows": ([[1.0, 2.0], [3.0]], POOLS, RESPONSES, ["features"]),
    "a ragged pool": (FEATURES, [[0, [1]], [2, 3]], RESPONSES, ["pool 0"]),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_tasks_are_refused_with_the_rule_and_what_came(case):
    features, pools, responses, fragments = BAD_INPUT[case]
    with pytest.raises(dkaf.InputError) as refusal:
        dkaf.TaskSet.from_arrays(features, pools, responses)
    assert isinstance(refusal.value, ValueError)
    for fragment in fragments:
        assert fragment in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("targets", [[0], [0, 4], [0, -1], [0.0, 1.0], [[0, 1]]])
def test_bad_targets_are_refused(targets):
    with pytest.raises(dkaf.InputError, match="targets are one feature row a task"):
        dkaf.TaskSet.from_arrays(FEATURES, POOLS, RESPONSES, targets)


# Parts of a set


def test_split_gives_consecutive_parts_over_the_same_features():
    tasks = some_tasks()
    first, none, second = tasks.split(1, 0, 1)
    assert [len(part) for part in (first, none, second)] == [1, 0, 1]
    assert first[0].pool.tolist() == [0, 1, 2]
    assert second[0].pool.tolist() == [3, 1]
    assert second.features is tasks.features


def test_subset_takes_tasks_in_the_order_asked_with_their_targets():
    tasks = dkaf.TaskSet.from_arrays(FEATURES, [[0], [1], [2]], [[0.0], [1.0], [2.0]], targets=[3, 2, 1])
    chosen = tasks.subset([2, 0])
    assert [task.pool.tolist() for task in chosen] == [[2], [0]]
    assert chosen.targets is not None
    assert chosen.targets.tolist() == [1, 3]
    assert tasks.subset(slice(1, None)).sizes.tolist() == [1, 1]
    assert len(tasks.subset([])) == 0


def test_split_refuses_more_tasks_than_there_are():
    with pytest.raises(dkaf.InputError, match=r"split needs 5 tasks \(2 \+ 3\), there are 3"):
        some_tasks().split(2, 3)


def test_split_refuses_negative_parts():
    with pytest.raises(dkaf.InputError, match="at least 0 tasks"):
        some_tasks().split(4, -1)


# Files


@pytest.mark.parametrize("wrap", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("targets", [None, [0, 3, 2]])
def test_a_saved_set_comes_back_as_it_was(tmp_path, wrap, targets):
    tasks = dkaf.TaskSet.from_arrays(wrap(FEATURES), [[0, 1, 2], [3, 1], [2]], [[1, 5, 2], [0, 7], [-1]], targets)
    tasks.save(tmp_path / "tasks.npz")
    assert_same(dkaf.TaskSet.load(tmp_path / "tasks.npz"), tasks)
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.npz"]


@st.composite
def task_arrays(draw: st.DrawFn) -> tuple[Any, ...]:
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    dtype = draw(st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]))
    elements = hnp.from_dtype(np.dtype(dtype), allow_nan=False, allow_infinity=False)
    features = draw(hnp.arrays(dtype, (rows, columns), elements=elements))
    pools = draw(st.lists(st.lists(st.integers(0, rows - 1), min_size=1, unique=True), max_size=4))
    finite = st.floats(-1e15, 1e15)
    responses = [draw(st.lists(finite, min_size=len(pool), max_size=len(pool))) for pool in pools]
    targets = draw(st.none() | st.lists(st.integers(0, rows - 1), min_size=len(pools), max_size=len(pools)))
    if targets is not None:
        targets = np.array(targets, dtype=np.int64)
    wrapped = sp.csr_array(features) if draw(st.booleans()) else features
    return wrapped, pools, responses, targets


@settings(deadline=None, max_examples=60)
@given(arrays=task_arrays())
def test_any_set_survives_its_file(arrays):
    tasks = dkaf.TaskSet.from_arrays(*arrays)
    with tempfile.TemporaryDirectory() as folder:
        tasks.save(Path(folder) / "tasks.npz")
        assert_same(dkaf.TaskSet.load(Path(folder) / "tasks.npz"), tasks)


@pytest.fixture(params=[np.asarray, sp.csr_array], ids=["dense", "sparse"])
def saved(request, tmp_path) -> Path:
    path = tmp_path / "tasks.npz"
    some_tasks(request.param(FEATURES)).save(path)
    return path


def refused(path: Path, *fragments: str) -> None:
    with pytest.raises(dkaf.InputError) as refusal:
        dkaf.TaskSet.load(path)
    for fragment in (path.name, *fragments):
        assert fragment in str(refusal.value)


def test_a_task_file_cut_off_anywhere_is_refused(saved):
    whole = saved.read_bytes()
    for length in [*range(40), *range(40, len(whole), 23), *range(len(whole) - 40, len(whole))]:
        saved.write_bytes(whole[:length])
        refused(saved)


def test_a_damaged_task_file_is_refused_or_read_as_it_was_and_never_crashes(tmp_path):
    """One bit of every byte; bit 0 of a member's flags says that it is encrypted."""
    saved, tasks = tmp_path / "tasks.npz", some_tasks()
    tasks.save(saved)
    whole = saved.read_bytes()
    refusals = 0
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        saved.write_bytes(damaged)
        try:
            read = dkaf.TaskSet.load(saved)
        except dkaf.InputError:
            refusals += 1
        else:
            assert_same(read, tasks)
    assert refusals > len(whole) / 2


@pytest.mark.parametrize(
    "header",
    ["{'descr': '<f8', 'fortran_order': False, 'shape': (4, 3", "{", "", "'" * 9, "1", "{'descr': '<f8'}"]
    + [f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({rows}, 3)}}" for rows in (5, -1, 10**15, 10**30, True)],
)
def test_an_array_whose_header_is_damaged_is_refused(tmp_path, header):
    some_tasks().save(tmp_path / "good.npz")
    path = tmp_path / "tasks.npz"
    with zipfile.ZipFile(tmp_path / "good.npz") as good, zipfile.ZipFile(path, "w") as bad:
        for name in good.namelist():
            content = good.read(name)
            if name == "features.npy":
                line = header.encode() + b"\n"
                content = b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line + FEATURES.tobytes()
            bad.writestr(name, content)
    refused(path, "TaskSet.save")


@pytest.mark.parametrize(
    "content",
    [b"", b"rows,response\n1,2.5\n", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", b"PK\x03\x04", b"\x93NUMPY", bytes(1000)],
    ids=["empty", "text", "png", "start of a zip", "start of an array", "zeros"],
)
def test_a_foreign_file_is_refused(tmp_path, content):
    path = tmp_path / "foreign.npz"
    path.write_bytes(content)
    refused(path, "TaskSet.save")


def test_a_single_array_file_is_refused(tmp_path):
    np.save(tmp_path / "one.npy", FEATURES)
    refused(tmp_path / "one.npy", "TaskSet.save")


def test_an_npz_file_of_somebody_elses_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", features=FEATURES, pools=np.arange(4))
    refused(tmp_path / "other.npz", "dkaf-tasks-1", "TaskSet.save")


def test_a_missing_task_file_is_refused(tmp_path):
    refused(tmp_path / "nowhere.npz", "No such file")


def test_a_folder_is_no_task_file(tmp_path):
    refused(tmp_path, "directory")


class Payload:
    """Unpickling it creates the marker."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("suffix", ["npy", "npz", "inside", "pickle"])
def test_a_pickle_in_a_task_file_is_refused_and_never_run(tmp_path, suffix):
    marker, path = tmp_path / "marker", tmp_path / f"evil.{suffix}"
    payload = np.empty(1, dtype=object)
    payload[0] = Payload(marker)
    if suffix == "npy":
        np.save(path, payload, allow_pickle=True)
        np.load(path, allow_pickle=True)
    elif suffix == "pickle":
        path.write_bytes(pickle.dumps(payload))
        pickle.loads(path.read_bytes())
    else:
        arrays = {"pools": payload}
        if suffix == "inside":  # all that a task file has, and the pickle as one of its arrays
            some_tasks().save(tmp_path / "good.npz")
            arrays = dict(np.load(tmp_path / "good.npz")) | arrays
        with path.open("wb") as file:
            np.savez(file, **arrays)
        np.load(path, allow_pickle=True)["pools"]
    assert marker.exists(), "the payload is live"
    marker.unlink()
    refused(path, "TaskSet.save")
    assert not marker.exists()


CHANGED_FILES = {
    "a response too many": {"responses": np.zeros(7)},
    "a response too few": {"responses": np.zeros(5)},
    "a candidate too many": {"pools": np.arange(7)},
    "negative sizes": {"sizes": np.array([3, -1, 4])},
    "sizes that are no integers": {"sizes": np.array([3.0, 2.0, 1.0])},
    "sizes that are words": {"sizes": np.array(["3", "2", "1"])},
    "one size without a list": {"sizes": np.array(6)},
    "pools without a list": {"pools": np.array(6)},
    "pools as a table": {"pools": np.zeros((6, 2), dtype=np.int64)},
    "a row that is not there": {"pools": np.array([0, 1, 2, 3, 9, 2])},
    "infinite responses": {"responses": np.array([0, 0, 0, 0, 0, np.inf])},
    "targets of another count": {"targets": np.array([1])},
    "words as targets": {"targets": np.array(["a", "b", "c"])},
    "a newer format": {"format": np.array("dkaf-tasks-2")},
}


@pytest.mark.parametrize("case", CHANGED_FILES)
def test_a_task_file_that_breaks_a_rule_is_refused(saved, case):
    arrays = dict(np.load(saved)) | CHANGED_FILES[case]
    np.savez(saved, **arrays)
    with pytest.raises(dkaf.InputError):
        dkaf.TaskSet.load(saved)


@pytest.mark.parametrize("name", ["format", "sizes", "pools", "responses", "features"])
def test_a_task_file_without_one_of_its_arrays_is_refused(tmp_path, name):
    path = tmp_path / "tasks.npz"
    some_tasks().save(path)
    arrays = dict(np.load(path))
    del arrays[name]
    np.savez(path, **arrays)
    refused(path, "TaskSet.save")


@pytest.mark.parametrize(
    "change",
    [
        {"features_shape": np.array([4, 2])},
        {"features_shape": np.array([-4, 3])},
        {"features_shape": np.array([4])},
        {"features_shape": np.array(["a", "b"])},
        {"features_indptr": np.array([0, 2, 5, 8, 99])},
        {"features_indices": np.full(11, -1)},
        {"features_data": np.full(11, "word")},
    ],
    ids=["columns", "negative", "one number", "words", "beyond the end", "negative column", "no numbers"],
)
def test_a_damaged_sparse_matrix_is_refused(tmp_path, change):
    path = tmp_path / "tasks.npz"
    some_tasks(sp.csr_array(FEATURES)).save(path)
    arrays = dict(np.load(path))
    assert all(arrays[name].shape == value.shape or name == "features_shape" for name, value in change.items())
    np.savez(path, **arrays | change)
    with pytest.raises(dkaf.InputError):
        dkaf.TaskSet.load(path)


# Writing


def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "tasks.npz"
    some_tasks().save(path)
    before = path.read_bytes()
    large = some_tasks(np.random.default_rng(0).normal(size=(4, 10_000)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))  # as on a disk that is full
    try:
        with pytest.raises((OSError, dkaf.InputError)):
            large.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["tasks.npz"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_file_appears_only_when_it_is_whole(tmp_path, error):
    path = tmp_path / "file"

    def write_half() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            file.flush()
            assert not path.exists()
            raise error

    with pytest.raises(error):
        write_half()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", [".", "nowhere/tasks.npz", "x" * 300])
def test_an_output_that_cannot_be_written_is_refused(tmp_path, place):
    with pytest.raises(dkaf.InputError, match="the output"):
        some_tasks().save(tmp_path / place)
    assert list(tmp_path.iterdir()) == []


def test_a_name_as_long_as_the_system_allows_is_written(tmp_path):
    path = tmp_path / ("x" * 255)
    some_tasks().save(path)
    assert_same(dkaf.TaskSet.load(path), some_tasks())


def test_an_output_that_is_no_file_is_refused_and_stays(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # as /dev/null, which must not be renamed over either
    with pytest.raises(dkaf.InputError, match="the output"):
        some_tasks().save(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_a_written_file_is_as_readable_as_any_other(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    some_tasks().save(tmp_path / "tasks.npz")
    assert (tmp_path / "tasks.npz").stat().st_mode == (tmp_path / "plain").stat().st_mode
