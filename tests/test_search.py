import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import conformance
import naive
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from filelock import FileLock
from numpy.typing import NDArray

import dkaf
import dkaf.representations as representations
import dkaf.search as searching
from dkaf.learning.episodes import Batch
from dkaf.learning.episodes import search as episode_search
from dkaf.model.posterior import Beliefs
from dkaf.model.prior import Pool
from dkaf.policies import GaussianPolicy
from dkaf.representations import Filed, Held, Passing
from dkaf.seeding import stream

N, D = 60, 5
policy_of = cache(conformance.small_policy)
every_policy = pytest.mark.parametrize("which", conformance.every_policy(), ids="-".join)
DEEP = ("dkaf", "mi", "default")


def candidates(n: int = N, seed: int = 1) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(n, D))


def responses(n: int = N) -> NDArray[np.float64]:
    return np.random.default_rng(2).normal(size=n)


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DKAF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks in a pool of sixty, of sizes that do not divide it."""
    monkeypatch.setattr(searching, "PASS_ROWS", 13)
    monkeypatch.setattr(representations, "BLOCK_ROWS", 7)
    monkeypatch.setattr(representations, "RECORD_SECONDS", 0.0)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    np.save(tmp_path / "pool.npy", candidates())
    return tmp_path / "pool.npy"


def count_encoded(monkeypatch: pytest.MonkeyPatch, then: Callable[[int], None] = lambda rows: None) -> list[int]:
    """How many rows each call encodes; `then` is told the sum after each."""
    counts: list[int] = []
    plain = representations.represented

    def represented(policy: dkaf.Policy, pool: Any, first: int, matrix: Any) -> Any:
        counts.append(len(matrix))
        then(sum(counts))
        return plain(policy, pool, first, matrix)

    monkeypatch.setattr(representations, "represented", represented)
    return counts


def told(search: dkaf.Search, start: list[int], queries: int) -> list[int]:
    """Rows in the order they were observed."""
    y = responses(len(search))
    for row in start:
        search.tell(row, y[row])
    for _ in range(queries):
        (suggestion,) = search.ask()
        search.tell(suggestion.row, y[suggestion.row])
    return [observation.row for observation in search.observed]


def by_episodes(policy: dkaf.Policy, start: list[int], queries: int) -> list[int]:
    """The same by the code that trains and evaluates."""
    x = policy.inputs(candidates(), np.arange(N))
    pool = Pool(torch.arange(N)[None], torch.ones(1, N, dtype=torch.bool))
    batch = Batch(x, pool, policy.scaled(torch.from_numpy(responses())[None]))
    first = torch.tensor([start], dtype=torch.int64)
    with torch.no_grad():
        points = policy.points(x, pool)
        chosen = episode_search(policy, points, batch, first, queries, stream(0, "search"))
    return chosen[0, 0].tolist()  # type: ignore[no-any-return]


def naive_batch(policy: GaussianPolicy, seen: list[tuple[int, float, bool]], n: int) -> list[tuple[int, float, float]]:
    """Row, mean and deviation of n candidates, over the whole pool and from the start each time."""
    pool = Pool(torch.arange(N)[None], torch.ones(1, N, dtype=torch.bool))
    pending: list[tuple[int, torch.Tensor]] = []
    answer = []
    with torch.no_grad():
        for _ in range(n):
            points = policy.points(policy.inputs(candidates(), np.arange(N)), pool)
            state = policy.begin(points, 1, torch.Generator())
            for row, value, queried in seen:
                y = policy.warped(policy.scaled(torch.tensor([[value]], dtype=torch.float64)))
                state = policy.observe(points, state, torch.tensor([[row]]), y, queried=queried)
            for row, y in pending:
                state = policy.observe(points, state, torch.tensor([[row]]), y, queried=True)
            scores = policy.scores(points, state)[0, 0]
            scores[[row for row, *_ in (*seen, *pending)]] = -np.inf
            best = int(scores.argmax())
            mean, var = state.beliefs.mean[0, 0, best], state.beliefs.var[0, 0, best]
            answer.append((best, *naive.in_units(policy, mean.item(), var.item() ** 0.5)))
            pending.append((best, mean.reshape(1, 1)))
    return answer


# The same answers however they are computed


@every_policy
@pytest.mark.parametrize("start", [[], [3, 41]], ids=["nothing", "two"])
def test_streamed_equals_in_memory_equals_an_episode(
    which: tuple[str, str, str], start: list[int], small_blocks: None, saved: Path
) -> None:
    policy = policy_of(*which)
    expected = by_episodes(policy, start, 6)
    assert told(dkaf.Search(policy, candidates()), start, 6) == expected
    assert told(dkaf.Search(policy, saved, memory=0), start, 6) == expected
    assert told(dkaf.Search(policy, candidates(), memory=0), start, 6) == expected


@pytest.mark.parametrize("kept", [20, 1], ids=["many-kept", "few-kept"])
@pytest.mark.parametrize("seen", [[], [(3, 0.5, False), (41, -1.0, True), (3, 0.7, True)]], ids=["nothing", "three"])
@pytest.mark.parametrize("which", [w for w in conformance.every_policy() if w[0] not in ("rl", "random")], ids="-".join)
def test_several_at_once_equal_the_naive_choice_one_after_the_other(
    which: tuple[str, str, str],
    seen: list[tuple[int, float, bool]],
    kept: int,
    small_blocks: None,
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(searching, "KEPT", kept)
    policy = policy_of(*which)
    assert isinstance(policy, GaussianPolicy)
    expected = naive_batch(policy, seen, 8)
    for search in (dkaf.Search(policy, candidates()), dkaf.Search(policy, saved, memory=0)):
        for observation in seen:
            search.tell(*observation)
        answer = search.ask(8)
        assert [suggestion.row for suggestion in answer] == [row for row, _, _ in expected]
        np.testing.assert_allclose([s.mean for s in answer], [mean for _, mean, _ in expected], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose([s.deviation for s in answer], [dev for *_, dev in expected], rtol=2e-3)


@pytest.mark.parametrize("method", ["rl", "random"])
@pytest.mark.parametrize("memory", [None, 0])
def test_policies_that_believe_nothing_name_their_best_scores(
    method: str, memory: int | None, small_blocks: None
) -> None:
    search = dkaf.Search(policy_of(method), candidates(), memory=memory)
    search.tell(5, 1.0)
    answer = search.ask(N - 1)
    assert sorted(suggestion.row for suggestion in answer) == [row for row in range(N) if row != 5]
    assert [s.score for s in answer] == sorted((s.score for s in answer), reverse=True)
    assert all(s.mean is None and s.deviation is None for s in answer)
    assert search.ask(4) == answer[:4]


def test_random_depends_on_the_seed_alone(small_blocks: None) -> None:
    policy = policy_of("random")
    one, same, other = (dkaf.Search(policy, candidates(), seed=seed, memory=memory) for seed, memory in
                        ((7, None), (7, 0), (8, None)))  # fmt: skip
    assert one.ask(20) == same.ask(20)
    assert one.ask(20) != other.ask(20)


@pytest.mark.parametrize("method", ["dkaf", "gp", "metabo", "rl", "random"])
@pytest.mark.parametrize("memory", [None, 0])
def test_sparse_and_dense_pools_give_the_same_answers(method: str, memory: int | None, small_blocks: None) -> None:
    draw = np.random.default_rng(0)
    counts = draw.poisson(4, size=(N, D))  # no two rows alike, which would be told apart by rounding
    tasks = dkaf.TaskSet.from_arrays(sp.csr_array(counts), [np.arange(20)] * 3, list(draw.normal(size=(3, 20))))
    policy = dkaf.fit(tasks, tasks, method, "mi", **conformance.TINY, queries=3)
    rows = []
    for pool in (counts, sp.csr_matrix(counts), sp.coo_array(counts), counts.astype(np.int16)):
        search = dkaf.Search(policy, pool, memory=memory)
        rows.append(told(search, [2], 5))
    assert rows[1:] == rows[:1] * 3


def test_sparse_rows_with_repeated_entries_are_summed_and_the_callers_matrix_stays() -> None:
    policy = policy_of("gp")
    plain = np.abs(candidates(4))
    halves = sp.csr_matrix(
        (np.repeat(plain.ravel() / 2, 2), np.repeat(np.tile(np.arange(D), 4), 2), np.arange(5) * 2 * D), shape=(4, D)
    )
    policy.inputs.shift.zero_()
    try:
        assert dkaf.Search(policy, halves).ask(4) == dkaf.Search(policy, sp.csr_array(plain)).ask(4)
    finally:
        policy_of.cache_clear()
    assert halves.nnz == 8 * D


# Asking and telling


@pytest.mark.parametrize("memory", [None, 0])
def test_asking_changes_no_answer(memory: int | None, small_blocks: None) -> None:
    policy = policy_of(*DEEP)
    search, fresh = (dkaf.Search(policy, candidates(), memory=memory) for _ in range(2))
    for one in (search, fresh):
        one.tell(1, 0.3)
    first = search.ask(5)
    assert search.ask(5) == first
    assert search.ask(2) == first[:2] == fresh.ask(2)
    assert search.ask(20)[:5] == first


def test_told_candidates_are_never_asked_and_all_others_are() -> None:
    search = dkaf.Search(policy_of(*DEEP), candidates(12))
    search.tell(4, 1.0)
    search.tell(4, 1.1)
    assert sorted(s.row for s in search.ask(11)) == [row for row in range(12) if row != 4]
    with pytest.raises(dkaf.InputError, match="12 candidates were asked for, 11 of 12 are not told yet; ask for fewer"):
        search.ask(12)


def test_a_second_measurement_of_a_candidate_narrows_what_is_expected_nearby() -> None:
    """Its neighbour has the same features: two measurements leave noise over the root of two, and the new noise."""
    pool = candidates()
    pool[8] = pool[7]
    search = dkaf.Search(policy_of("gp", recipe="paper"), pool)  # a warp's units widen and narrow with the value itself
    deviations = []
    for value in (1.0, 3.0):
        search.tell(7, value)
        answer = {s.row: s for s in search.ask(59)}
        deviations.append(answer[8].deviation)
    assert deviations[1] < deviations[0]
    assert search.observed == ((7, 1.0, False), (7, 3.0, False))
    assert search.best == (7, 3.0, False)


def test_what_was_never_asked_is_a_starting_point_unless_the_caller_says_otherwise() -> None:
    search = dkaf.Search(policy_of(*DEEP), candidates())
    search.tell(0, 1.0)
    asked = search.ask()[0].row
    search.tell(asked, 2.0)
    search.tell(1, 0.0, queried=True)
    search.tell(asked, 2.5, queried=False)
    assert [observation.queried for observation in search.observed] == [False, True, True, False]
    again = dkaf.Search(policy_of(*DEEP), candidates())
    for observation in search.observed:
        again.tell(*observation)
    assert again.observed == search.observed
    assert again.ask(3) == search.ask(3)


def test_nothing_told_has_no_best() -> None:
    search = dkaf.Search(policy_of("random"), candidates())
    assert search.best is None
    assert search.observed == ()
    assert len(search) == N
    assert repr(search) == "Search(random, 60 candidates, 0 observations)"


@pytest.mark.parametrize(
    ("row", "value", "message"),
    [
        (60, 1.0, "rows go from 0 to 59, 60 came"),
        (-1, 1.0, "rows go from 0 to 59, -1 came"),
        (0, float("nan"), "responses are finite and within .*, nan came for row 0"),
        (0, -float("inf"), "responses are finite"),
        (0, 1e16, "responses are finite and within"),
        (0, 10**400, "a response is a number"),
    ],
)
def test_what_cannot_be_told_is_refused_and_leaves_no_trace(row: Any, value: Any, message: str) -> None:
    search = dkaf.Search(policy_of("random"), candidates())
    with pytest.raises(dkaf.InputError, match=message):
        search.tell(row, value)
    assert search.observed == ()


@pytest.mark.parametrize(("n", "message"), [(0, "ask names 1 to 1024"), (1025, "1025 were asked for")])
def test_what_cannot_be_asked_is_refused(n: Any, message: str) -> None:
    with pytest.raises(dkaf.InputError, match=message):
        dkaf.Search(policy_of("random"), candidates()).ask(n)


def test_a_search_refuses_what_it_cannot_use() -> None:
    policy = policy_of(*DEEP)
    with pytest.raises(dkaf.InputError, match="trained on 5 features, 4 came with the pool; pass the columns"):
        dkaf.Search(policy, candidates()[:, :4])
    with pytest.raises(dkaf.InputError, match="dense features, sparse ones came"):
        dkaf.Search(policy, sp.csr_array(candidates()))
    with pytest.raises(dkaf.InputError, match="memory is at least 0 bytes, -1 came"):
        dkaf.Search(policy, candidates(), memory=-1)


def test_a_parquet_file_too_wide_to_be_read_in_the_memory_there_is_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({f"f{d}": candidates(20_000)[:, d] for d in range(D)})
    pq.write_table(table, tmp_path / "pool.parquet")
    monkeypatch.setattr(searching, "MEMORY", 1 << 20)
    with pytest.raises(
        dkaf.InputError, match=r"takes \d+ MiB at once: .*row_group_size=16384\) or as \.npy, or pass mem"
    ):
        dkaf.Search(policy_of("gp"), tmp_path / "pool.parquet", memory=0)
    pq.write_table(table, tmp_path / "pool.parquet", row_group_size=1000)
    dkaf.Search(policy_of("gp"), tmp_path / "pool.parquet", memory=0).ask()


def test_a_row_that_the_scaling_refuses_is_named() -> None:
    draw = np.random.default_rng(0)
    counts = draw.poisson(2, size=(N, D))
    tasks = dkaf.TaskSet.from_arrays(counts, [np.arange(20)] * 3, list(draw.normal(size=(3, 20))))
    policy = dkaf.fit(tasks, tasks, "dkaf", "mi", **conformance.TINY, queries=3)
    counts[37, 2] = -4
    with pytest.raises(dkaf.InputError, match="row 37 of the pool: counts are at least 0, -4 came"):
        dkaf.Search(policy, counts).ask()


def test_the_callers_policy_stays_as_it_was() -> None:
    policy = policy_of(*DEEP)
    policy.train()
    search = dkaf.Search(policy, candidates())
    before = search.ask(3)
    assert policy.training
    assert dkaf.Search(policy.eval(), candidates()).ask(3) == before


# Where representations are


def kind(search: dkaf.Search) -> type:
    return type(search._representations)


def test_what_fits_is_held_and_what_does_not_is_filed_or_read_again(saved: Path, tmp_path: Path) -> None:
    deep, plain = policy_of(*DEEP), policy_of("gp")
    assert kind(dkaf.Search(deep, saved)) is Held
    assert kind(dkaf.Search(deep, saved, memory=0)) is Filed
    assert kind(dkaf.Search(deep, saved, memory=0, store=tmp_path / "mine")) is Filed
    assert kind(dkaf.Search(plain, saved)) is Held
    assert kind(dkaf.Search(plain, saved, memory=0)) is Passing


def test_when_observations_outgrow_the_memory_the_answers_go_on(small_blocks: None) -> None:
    policy = policy_of(*DEEP)
    tight = N * (7 * 4 * conformance.TINY["width"] + 4 * (8 + 3 * 3))
    search = dkaf.Search(policy, candidates(), memory=tight)
    rows = told(search, [3, 41], 1)
    assert search._kept is not None
    rows = told(search, [], 5)
    assert search._kept is None
    assert rows == by_episodes(policy, [3, 41], 6)


@pytest.mark.parametrize("memory", [None, 0])
def test_a_store_is_encoded_once(
    memory: int | None, small_blocks: None, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, other, counts = policy_of(*DEEP), policy_of("dkaf", "ucb"), count_encoded(monkeypatch)
    first = dkaf.Search(policy, saved, store=tmp_path / "mine", memory=memory).ask(3)
    assert sum(counts) == N
    moved = saved.rename(tmp_path / "moved.npy")
    assert dkaf.Search(policy, moved, store=tmp_path / "mine", memory=memory).ask(3) == first
    assert sum(counts) == N
    dkaf.Search(other, moved, store=tmp_path / "mine", memory=memory).ask(3)
    assert sum(counts) == 2 * N
    assert len(list((tmp_path / "mine").iterdir())) == 2


def test_an_array_in_a_store_is_known_by_all_its_values(
    small_blocks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, counts = policy_of(*DEEP), count_encoded(monkeypatch)
    pool = candidates()
    for _ in range(2):
        dkaf.Search(policy, pool, store=tmp_path, memory=0).ask()
    assert sum(counts) == N
    pool[33, 2] += 1e-9
    dkaf.Search(policy, pool, store=tmp_path, memory=0).ask()
    assert sum(counts) == 2 * N


@pytest.mark.parametrize("damage", ["cut", "no record", "garbage", "another record"])
def test_a_damaged_store_is_mended_by_encoding_what_is_missing(
    damage: str, small_blocks: None, saved: Path, tmp_path: Path
) -> None:
    policy = policy_of(*DEEP)
    expected = dkaf.Search(policy, saved, store=tmp_path / "mine", memory=0).ask(3)
    (folder,) = (tmp_path / "mine").iterdir()
    if damage == "cut":
        os.truncate(folder / "rows.f32", 1001)
    elif damage == "no record":
        (folder / "about.json").unlink()
    else:
        (folder / "about.json").write_text("{" if damage == "garbage" else json.dumps({"done": 10**9}))
    assert dkaf.Search(policy, saved, store=tmp_path / "mine", memory=0).ask(3) == expected


def test_a_store_that_is_damaged_between_two_questions_is_refused_and_mended(
    small_blocks: None, saved: Path, tmp_path: Path
) -> None:
    search = dkaf.Search(policy_of(*DEEP), saved, store=tmp_path / "mine", memory=0)
    search.tell(0, 1.0)
    expected = search.ask(2)
    (folder,) = (tmp_path / "mine").iterdir()
    os.truncate(folder / "rows.f32", 1001)
    search.tell(1, 1.0)
    search.ask()  # encodes again what was lost
    again = dkaf.Search(policy_of(*DEEP), saved, store=tmp_path / "mine", memory=0)
    again.tell(0, 1.0)
    assert again.ask(2) == expected


def test_a_store_that_cannot_be_written_is_refused(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(dkaf.InputError, match=r"cannot be written: .*; make room or name another folder as store="):
        dkaf.Search(policy_of(*DEEP), saved, store=tmp_path / "file", memory=0).ask()


def test_two_processes_do_not_write_one_store(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(representations, "QUICK_SECONDS", 0.05)
    search = dkaf.Search(policy_of(*DEEP), saved, store=tmp_path / "mine", memory=0)
    filed = search._representations
    assert isinstance(filed, Filed)
    filed.folder.mkdir(parents=True)
    locked = threading.Event()

    def another() -> None:
        with FileLock(filed.folder / "lock"):
            locked.set()
            time.sleep(0.6)

    other = threading.Thread(target=another)
    other.start()
    locked.wait()
    search.ask()
    other.join()
    assert "another process is encoding it; waiting" in capsys.readouterr().err


# Interruptions


@pytest.mark.parametrize("memory", [None, 0])
def test_ctrl_c_while_encoding_keeps_the_rows_and_what_was_told(
    memory: int | None, small_blocks: None, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_of(*DEEP)
    plain = dkaf.Search(policy, candidates())
    plain.tell(2, 1.0)
    expected = [s.row for s in plain.ask(4)]
    search = dkaf.Search(policy, saved, memory=memory)
    search.tell(2, 1.0)

    def interrupt(rows: int) -> None:
        if rows == 35:
            raise KeyboardInterrupt

    counts = count_encoded(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        search.ask()
    assert [s.row for s in search.ask(4)] == expected
    assert sum(counts) == N + 7  # the block that was interrupted comes twice, no other


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_is_stopped_while_encoding_is_resumed_by_the_next(
    how: signal.Signals, small_blocks: None, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_of(*DEEP)
    policy.save(tmp_path / "policy.safetensors")
    script = textwrap.dedent(
        f"""
        import time, dkaf, dkaf.representations as representations
        representations.BLOCK_ROWS, representations.RECORD_SECONDS = 7, 0.0
        plain = representations.represented
        def slow(policy, pool, first, matrix):
            if first == 21:
                print(flush=True)
                time.sleep(600)
            return plain(policy, pool, first, matrix)
        representations.represented = slow
        policy = dkaf.load({str(tmp_path / "policy.safetensors")!r})
        dkaf.Search(policy, {str(saved)!r}, memory=0, progress=False).ask()
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(how)
    assert process.wait() != 0
    process.stdout.close()
    expected = [s.row for s in dkaf.Search(policy, candidates()).ask(4)]
    counts = count_encoded(monkeypatch)
    search = dkaf.Search(policy, saved, memory=0)
    assert isinstance(search._representations, Filed)
    done = search._representations.done
    assert done == 21
    assert [s.row for s in search.ask(4)] == expected
    assert sum(counts) == N - 21


# Files that are not what they were


def test_a_file_that_changes_between_questions_is_refused_and_nothing_told_is_lost(saved: Path) -> None:
    policy = policy_of(*DEEP)
    search = dkaf.Search(policy, saved)
    search.tell(3, 1.0)
    search.ask()
    np.save(saved, candidates(seed=8))
    with pytest.raises(dkaf.InputError, match=r"pool\.npy has changed since it was opened; what was told is in search"):
        search.ask()
    again = dkaf.Search(policy, saved)
    for observation in search.observed:
        again.tell(*observation)
    expected = dkaf.Search(policy, candidates(seed=8))
    expected.tell(3, 1.0)
    assert again.ask(3) == expected.ask(3)


def test_a_file_that_is_gone_is_refused(saved: Path) -> None:
    search = dkaf.Search(policy_of(*DEEP), saved)
    saved.unlink()
    with pytest.raises(dkaf.InputError, match=r"pool\.npy cannot be read: No such file"):
        search.ask()


@pytest.mark.parametrize("change", ["written", "cut", "replaced"])
def test_a_file_that_changes_while_it_is_encoded_is_refused_and_its_rows_do_not_count(
    change: str, small_blocks: None, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = candidates()
    other[40:] += 1

    def mischief(rows: int) -> None:
        if rows == 21:
            if change == "cut":
                os.truncate(saved, 1500)
            elif change == "written":
                np.save(saved, other)
            else:
                np.save(tmp_path / "other.npy", other)
                (tmp_path / "other.npy").rename(saved)

    policy = policy_of(*DEEP)
    counts = count_encoded(monkeypatch, mischief)
    search = dkaf.Search(policy, saved, memory=0)
    search.tell(5, 1.0)
    with pytest.raises(
        dkaf.InputError, match=r"has changed since it was opened.*21 rows before are encoded; a file that"
    ):
        search.ask()
    assert search.observed == ((5, 1.0, False),)
    assert sum(counts) == 21
    np.save(saved, other)
    again = dkaf.Search(policy, saved, memory=0)  # another file: from its first row
    assert [s.row for s in again.ask(3)] == [s.row for s in dkaf.Search(policy, other).ask(3)]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_row_three_million_that_is_not_finite_is_named_and_the_rows_before_it_stay(
    value: float, tmp_path: Path
) -> None:
    draw = np.random.default_rng(0)
    tasks = dkaf.TaskSet.from_arrays(draw.normal(size=(20, 1)), [np.arange(20)] * 2, list(draw.normal(size=(2, 20))))
    policy = dkaf.fit(tasks, tasks, "dkaf", "mi", **(conformance.TINY | {"width": 2, "layers": 1}), queries=3)
    path = tmp_path / "pool.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f2", "fortran_order": False, "shape": (3_100_000, 1)})
        begin = file.tell()
        file.truncate(begin + 2 * 3_100_000)
        file.seek(begin + 2 * 3_000_000)
        file.write(np.float16(value).tobytes())
    search = dkaf.Search(policy, path, memory=0, progress=False)
    search.tell(7, 1.0)
    with pytest.raises(dkaf.InputError, match=rf"row 3000000 of .*pool\.npy has {value} in column 0; drop or impute"):
        search.ask()
    assert isinstance(search._representations, Filed)
    assert search._representations.done == 3_000_000 // representations.BLOCK_ROWS * representations.BLOCK_ROWS
    assert search.observed == ((7, 1.0, False),)


# What a person sees


def test_quick_work_says_nothing_and_long_work_says_how_far_it_is(
    small_blocks: None, saved: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    policy = policy_of(*DEEP)
    dkaf.Search(policy, saved, memory=0).ask()
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(representations, "QUICK_SECONDS", 0.0)
    search = dkaf.Search(policy, saved, memory=0, store=saved.parent / "mine")
    search.ask()
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[0] == "pool: encoding 7 of 60"
    assert err.splitlines()[-1] == "pool: searching 60 of 60"
    dkaf.Search(policy, saved, memory=0, store=saved.parent / "other", progress=False).ask()
    assert capfd.readouterr() == ("", "")


# Memory


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_a_streamed_search_takes_no_more_memory_for_a_larger_pool(suffix: str, tmp_path: Path) -> None:
    policy = policy_of(*DEEP)
    policy.save(tmp_path / "policy.safetensors")
    script = textwrap.dedent(
        """
        import sys, dkaf, torch, re
        torch.set_num_threads(1)
        search = dkaf.Search(dkaf.load(sys.argv[1]), sys.argv[2], memory=0, progress=False)
        for row in range(5):
            search.tell(row, row / 2)
        search.tell(search.ask(3)[0].row, 1.0)
        search.ask()
        print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
        """
    )
    peaks = []
    for n in (400_000, 1_500_000):
        path = tmp_path / f"{n}.{suffix}"
        features = np.random.default_rng(0).normal(size=(n, D)).astype(np.float32)
        if suffix == "npy":
            np.save(path, features)
        else:
            import pyarrow as pa
            import pyarrow.parquet as pq

            pq.write_table(pa.table({f"f{d}": features[:, d] for d in range(D)}), path, row_group_size=n)
        arguments = [sys.executable, "-c", script, str(tmp_path / "policy.safetensors"), str(path)]
        peaks.append(int(subprocess.run(arguments, check=True, stdout=subprocess.PIPE).stdout) >> 10)
    assert peaks[1] < peaks[0] + 24  # megabytes; the larger one has 22 more of features, and 35 of representations
    assert peaks[1] < 1024


@pytest.mark.parametrize("method", ["gp", "dkaf", "metabo"])
def test_an_interrupted_question_leaves_no_half_observation(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, pool, y = conformance.small_policy(method), candidates(), responses()
    search, fresh = (dkaf.Search(policy, pool, progress=False) for _ in range(2))
    for row in (3, 7, 9):
        search.tell(row, y[row])
    search.ask()
    search.tell(11, y[11])
    whole = Beliefs.observe

    def interrupted(self: Beliefs, *arguments: Any) -> torch.Tensor:
        whole(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Beliefs, "observe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            search.ask()
    for row in (3, 7, 9, 11):
        fresh.tell(row, y[row])
    assert search.ask(3) == fresh.ask(3)


def test_more_observations_than_there_was_room_for_at_first() -> None:
    policy, pool, y = conformance.small_policy("gp"), candidates(), responses()
    kept, streamed = (dkaf.Search(policy, pool, progress=False, memory=memory) for memory in (None, 0))
    for row in range(40):
        for search in (kept, streamed):
            search.tell(row, y[row])
        if row % 13 == 0:
            kept.ask(2)  # two at once: what is only expected must leave no trace
    assert [s.row for s in kept.ask(3)] == [s.row for s in streamed.ask(3)]


@every_policy
def test_pending_rows_count_as_if_they_had_given_what_is_expected(which: tuple[str, str, str]) -> None:
    policy, x, y = policy_of(*which), candidates(), responses()
    asked, told = dkaf.Search(policy, x), dkaf.Search(policy, x)
    for search in (asked, told):
        for row in (3, 17, 30):
            search.tell(row, y[row], queried=True)
    pending = [5, 44]
    beliefs = told.believe(pending)
    if beliefs is None:  # who expects nothing leaves them out
        told_rows = [s.row for s in told.ask(N - 3) if s.row not in pending]
        assert [s.row for s in asked.ask(4, pending=pending)] == told_rows[:4]
        return
    for row, mean in zip(pending, beliefs[0], strict=True):
        told.tell(row, mean, queried=True)
    for ours, plain in zip(asked.ask(4, pending=pending), told.ask(4), strict=True):
        assert ours.row == plain.row
        assert (ours.score, ours.mean) == pytest.approx((plain.score, plain.mean), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("memory", [None, 0])
@pytest.mark.usefixtures("small_blocks")
def test_excluded_and_pending_rows_are_never_named_and_change_no_later_answer(memory: int | None) -> None:
    y = responses()
    search = dkaf.Search(policy_of(*DEEP), candidates(), memory=memory)
    for row in (3, 17):
        search.tell(row, y[row])
    before = search.ask(5)
    closed = [before[0].row, before[1].row]
    rest = search.ask(N - 4, excluded=closed[:1], pending=closed[1:])
    assert not {s.row for s in rest} & {3, 17, *closed}
    assert len({s.row for s in rest}) == N - 4
    assert search.ask(5) == before
    with pytest.raises(dkaf.InputError, match="56 of 60 are not told yet"):
        search.ask(N - 3, excluded=closed)
    with pytest.raises(dkaf.InputError, match="rows go from 0 to 59, 60 came"):
        search.ask(excluded=[60])


def test_what_is_believed_of_rows_is_what_ask_says_of_them_and_is_forgotten() -> None:
    y = responses()
    search = dkaf.Search(policy_of(*DEEP), candidates())
    prior = search.believe(range(N))
    for row in (3, 17):
        search.tell(row, y[row])
    suggestion = search.ask()[0]
    beliefs = search.believe([suggestion.row])
    assert beliefs is not None
    assert (suggestion.mean, suggestion.deviation) == pytest.approx((beliefs[0][0], beliefs[1][0]), rel=1e-4)
    search.forget()
    assert search.observed == ()
    again = search.believe(range(N))
    assert prior is not None
    assert again is not None
    np.testing.assert_array_equal(again[0], prior[0])
    np.testing.assert_array_equal(again[1], prior[1])


def test_chance_names_each_row_alike_and_none_that_is_closed() -> None:
    x, counts = candidates(), np.zeros(N)
    for seed in range(300):
        search = dkaf.Search(policy_of(*DEEP), x, seed=seed)
        search.tell(3, 1.0)
        rows = [s.row for s in search.by_chance(5, excluded=[4])]
        assert len(set(rows)) == 5
        counts[rows] += 1
    assert counts[3] == counts[4] == 0
    assert counts[5:].min() > 8  # of 26 on average
    assert counts.max() < 50
    with pytest.raises(dkaf.InputError, match="58 are not told yet"):
        search.by_chance(59, excluded=[4])
