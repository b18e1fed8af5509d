import dataclasses
from collections.abc import Sequence

import numpy as np
import paper_rows
import pytest

from dkaf.experiments.paper_report import CHANCE
from dkaf.experiments.rows import Cell, Row
from dkaf.experiments.statistics import (
    Comparison,
    Setting,
    UnpairedError,
    bootstrap_draws,
    bootstrap_intervals,
    bootstrap_weights,
    by_setting,
    compare,
    mean_and_error,
    on_common_runs,
    paired_differences,
    query_curve,
    standing,
    standings,
)


def rows_of(method: str, runs: Sequence[int] = (0, 1, 2), size: int = 20, tasks: int = 6) -> list[Row]:
    acquisition = "mi" if method in ("dkaf", "dkl", "gp") else ""
    return [paper_rows.made_up_row(Cell("reuters", "default", size, run, method, acquisition), tasks) for run in runs]


def test_a_setting_stands_at_the_mean_over_runs_with_the_standard_error_over_runs() -> None:
    rows = rows_of("dkaf")
    found = standing(rows)
    by_run = [sum(sum(gaps) / len(gaps) for gaps in row.gaps) / len(row.gaps) for row in rows]
    mean = sum(by_run) / 3
    spread = (sum((value - mean) ** 2 for value in by_run) / 2) ** 0.5
    assert found.gap == pytest.approx(mean)
    assert found.error == pytest.approx(spread / 3**0.5)
    assert (found.runs, found.over) == ((0, 1, 2), "runs")


def test_the_standard_error_of_a_single_run_is_over_its_tasks() -> None:
    (row,) = rows_of("dkaf", runs=[4])
    found = standing([row])
    assert found.error == pytest.approx(np.std(row.task_gaps, ddof=1) / np.sqrt(6))
    assert (found.runs, found.over) == ((4,), "tasks")


def test_a_single_task_has_no_standard_error() -> None:
    assert np.isnan(standing(rows_of("dkaf", runs=[0], tasks=1)).error)


def test_standings_leave_out_failed_rows_and_put_the_lowest_gap_first() -> None:
    rows = [row for method in ("random", "dkl", "dkaf") for row in rows_of(method)]
    rows[0] = dataclasses.replace(rows[0], gaps=[], error="out of memory")
    found = standings(rows)
    assert [setting.method for setting in found] == ["dkaf", "dkl", "random"]
    assert found[Setting("reuters", "default", 20, "random", "")].runs == (1, 2)


def test_settings_keep_sizes_and_recipes_apart() -> None:
    rows = [paper_rows.made_up_row(cell) for cell in paper_rows.cells(recipes=("default", "paper"))]
    groups = by_setting(reversed(rows))
    assert len(groups) == 2 * 2 * len(paper_rows.METHODS)
    assert all([row.run for row in group] == [0, 1] for group in groups.values())
    assert all(Setting.of(row) == setting for setting, group in groups.items() for row in group)


def test_runs_weigh_the_same_whatever_their_number_of_tasks() -> None:
    mean, error = mean_and_error([np.array([[1.0], [1.0], [1.0]]), np.array([[3.0]])])
    assert mean == pytest.approx(2.0)
    assert error == pytest.approx(1.0)


def test_a_query_curve_begins_at_the_start() -> None:
    rows = rows_of("dkl")
    curve, error = query_curve(rows)
    assert curve.shape == error.shape == (11,)
    assert curve[0] == pytest.approx(np.mean([np.mean(row.start_gaps) for row in rows]))
    assert curve[3] == pytest.approx(np.mean([[gaps[2] for gaps in row.gaps] for row in rows]))
    by_run = [np.mean([gaps[9] for gaps in row.gaps]) for row in rows]
    assert error[10] == pytest.approx(np.std(by_run, ddof=1) / np.sqrt(3))


def test_a_start_that_is_unknown_is_no_number() -> None:
    curve, error = query_curve([dataclasses.replace(row, start_gaps=[]) for row in rows_of("dkl")])
    assert np.isnan([curve[0], error[0]]).all()
    assert np.isfinite(curve[1:]).all()


@pytest.mark.parametrize("tasks", [(5,), (4, 4, 4), (3, 6, 1)])
def test_bootstrap_interval_equals_a_slow_loop_over_the_same_draws(tasks: tuple[int, ...]) -> None:
    draw = np.random.default_rng(1)
    sample = [draw.normal(size=count) for count in tasks]
    run, task = bootstrap_draws(tasks, 200, np.random.default_rng(7))
    means = []
    for runs, tasks_of_runs in zip(run, task, strict=True):
        of_runs = []
        for number, chosen in zip(runs, tasks_of_runs, strict=True):
            values = [sample[number][chosen[place]] for place in range(tasks[number])]
            of_runs.append(sum(values) / len(values))
        means.append(sum(of_runs) / len(of_runs))
    expected = np.percentile(means, [2.5, 97.5])
    np.testing.assert_allclose(bootstrap_intervals([sample], 200, seed=7)[0], expected, rtol=1e-12)


def test_bootstrap_weights_are_shares_of_tasks() -> None:
    tasks = (3, 6, 1)
    weights = bootstrap_weights(tasks, *bootstrap_draws(tasks, 500, np.random.default_rng(0)))
    assert weights.shape == (500, 10)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    by_run = np.column_stack((weights[:, :3].sum(axis=1), weights[:, 3:9].sum(axis=1), weights[:, 9]))
    np.testing.assert_allclose(by_run * 3, np.round(by_run * 3), atol=1e-9)  # whole runs are drawn
    np.testing.assert_allclose(by_run.mean(axis=0), 1 / 3, atol=0.05)


def test_an_interval_does_not_depend_on_what_else_is_asked() -> None:
    draw = np.random.default_rng(2)
    samples = [[draw.normal(size=5) for _ in range(runs)] for runs in (3, 2, 3, 1)]
    together = bootstrap_intervals(samples, 300, seed=3)
    alone = np.concatenate([bootstrap_intervals([sample], 300, seed=3) for sample in samples])
    np.testing.assert_allclose(together, alone, rtol=1e-12)
    assert bootstrap_intervals([]).shape == (0, 2)


def test_the_interval_of_one_run_is_that_of_its_tasks() -> None:
    values = np.random.default_rng(4).normal(size=40)
    low, high = bootstrap_intervals([[values]], 20_000)[0]
    error = values.std() / np.sqrt(40)
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.1 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.1 * error)


@pytest.mark.parametrize("between_runs", [0.0, 0.5])
def test_intervals_cover_the_truth_of_a_simulated_hierarchy(between_runs: float) -> None:
    draw = np.random.default_rng(5)
    runs = 0.3 + between_runs * draw.normal(size=(600, 10, 1)) + draw.normal(size=(600, 10, 20))
    limits = bootstrap_intervals([list(sample) for sample in runs], 2000)
    covered = np.mean((limits[:, 0] < 0.3) & (limits[:, 1] > 0.3))
    # Resampling both levels is a little too wide where runs do not differ, and percentiles of ten a little too narrow.
    assert 0.90 < covered < 0.995


@pytest.mark.parametrize(
    ("between_runs", "least", "most"),
    [(0.0, 0.0, 0.05), (0.3, 0.08, 0.20), (0.6, 0.16, 0.27), (5.0, 0.20, 0.29)],
)
def test_of_three_runs_up_to_one_comparison_in_four_between_equals_is_told_apart(
    between_runs: float, least: float, most: float
) -> None:
    draw = np.random.default_rng(5)
    runs = between_runs * draw.normal(size=(1000, 3, 1)) + draw.normal(size=(1000, 3, 50))
    limits = bootstrap_intervals([list(sample) for sample in runs], 1000)
    told_apart = np.mean((limits[:, 0] > 0) | (limits[:, 1] < 0))
    assert least <= told_apart <= most


@pytest.mark.parametrize("runs", CHANCE)
def test_the_report_says_how_often_equals_are_told_apart_at_worst(runs: int) -> None:
    ONE_IN = {"two": 2, "four": 4, "five": 5, "six": 6, "seven": 7, "ten": 10}
    draw = np.random.default_rng(6)
    # Runs differ so much more than tasks that two tasks a run do.
    values = 30 * draw.normal(size=(1500, runs, 1)) + draw.normal(size=(1500, runs, 2))
    limits = bootstrap_intervals([list(sample) for sample in values], 1000)
    told_apart = np.mean((limits[:, 0] > 0) | (limits[:, 1] < 0))
    assert told_apart == pytest.approx(1 / ONE_IN[CHANCE[runs]], rel=0.15)


def test_differences_are_paired_by_task_on_the_runs_of_both() -> None:
    first, second = rows_of("dkaf", runs=(0, 1, 3)), rows_of("dkl", runs=(1, 2, 3), size=60)
    found = paired_differences(first, second)
    assert list(found) == [1, 3]
    for run, differences in found.items():
        a = next(row for row in first if row.run == run)
        b = next(row for row in second if row.run == run)
        for task in range(6):
            assert differences[task] == pytest.approx(np.mean(a.gaps[task]) - np.mean(b.gaps[task]))


def test_tasks_in_another_order_are_noticed() -> None:
    first, second = rows_of("dkaf"), rows_of("dkl")
    order = [1, 0, 2, 3, 4, 5]
    moved = dataclasses.replace(
        second[2], gaps=[second[2].gaps[i] for i in order], start_gaps=[second[2].start_gaps[i] for i in order]
    )
    with pytest.raises(UnpairedError, match="test tasks or starts of run 2 differ"):
        paired_differences(first, [*second[:2], moved])
    fewer = dataclasses.replace(second[1], gaps=second[1].gaps[:4], start_gaps=second[1].start_gaps[:4])
    with pytest.raises(UnpairedError, match="run 1 has 6 test tasks here and 4 there"):
        paired_differences(first, [second[0], fewer])


def test_a_comparison_is_the_mean_difference_its_interval_and_runs() -> None:
    first, second = rows_of("dkaf"), rows_of("random")
    better, worse = compare([(first, second), (second, first)], resamples=500)
    assert isinstance(better, Comparison)
    assert isinstance(worse, Comparison)
    by_run = [np.mean(a.gaps) - np.mean(b.gaps) for a, b in zip(first, second, strict=True)]
    assert better.difference == pytest.approx(np.mean(by_run))
    assert better.low < better.difference < better.high < 0
    assert (better.verdict, worse.verdict) == ("lower", "higher")
    assert better.runs == (0, 1, 2)
    assert (worse.low, worse.high) == pytest.approx((-better.high, -better.low), rel=0.05)


def test_equals_are_the_same_and_near_equals_are_not_told_apart() -> None:
    rows = rows_of("dkaf")
    step = [[[gap + sign * 0.1 for gap in gaps] for gaps, sign in zip(r.gaps, [1, -1] * 3, strict=True)] for r in rows]
    near = [dataclasses.replace(row, gaps=gaps) for row, gaps in zip(rows, step, strict=True)]
    same, close = compare([(rows, rows), (rows, near)], resamples=100)
    assert isinstance(same, Comparison)
    assert isinstance(close, Comparison)
    assert (same.difference, same.low, same.high, same.verdict) == (0.0, 0.0, 0.0, "the same")
    assert close.difference == pytest.approx(0.0)
    assert close.verdict == "not told apart"


def test_one_task_of_one_run_tells_nothing() -> None:
    (alone,) = compare([(rows_of("dkaf", runs=[0], tasks=1), rows_of("random", runs=[0], tasks=1))])
    assert isinstance(alone, Comparison)
    assert alone.difference < 0
    assert np.isnan([alone.low, alone.high]).all()
    assert alone.verdict == "not known"
    (two,) = compare([(rows_of("dkaf", runs=[0, 1], tasks=1), rows_of("random", runs=[0, 1], tasks=1))], 100)
    assert isinstance(two, Comparison)
    assert np.isfinite([two.low, two.high]).all()


def test_common_runs_are_those_that_every_setting_has() -> None:
    groups = on_common_runs(rows_of("dkaf", runs=(0, 1, 3)), rows_of("dkl", runs=(1, 2, 3)), rows_of("gp", runs=(3, 1)))
    assert [[row.run for row in rows] for rows in groups] == [[1, 3], [1, 3], [3, 1]]
    assert on_common_runs(rows_of("dkaf"), []) == [[], []]


def test_what_cannot_be_compared_says_why_and_the_rest_is_compared() -> None:
    first, second = rows_of("dkaf"), rows_of("dkl")
    other = [dataclasses.replace(row, start_gaps=row.start_gaps[::-1]) for row in second]
    none, unpaired, fine = compare([(first, []), (first, other), (first, second)], resamples=100)
    assert none is None
    assert isinstance(unpaired, UnpairedError)
    assert "the test tasks or starts of run 0 differ" in str(unpaired)
    assert isinstance(fine, Comparison)


def test_comparisons_depend_on_their_seed_alone() -> None:
    pair = (rows_of("dkaf"), rows_of("dkl"))
    assert compare([pair], 200) == compare([pair], 200)
    assert compare([pair], 200) != compare([pair], 200, seed=1)
