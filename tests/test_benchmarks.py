"""The benchmarks: that both sides compute the same, and what is made of their times. Nothing here is timed."""

import dataclasses
import doctest
import io
import itertools
import json
import math
import tarfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("botorch", reason="needs the extra dkaf[bench]")

from benchmarks import (
    baseline,
    confirm,
    evaluation,
    figures,
    grid,
    likelihood,
    networks,
    page,
    pools,
    registry,
    run,
    scaling,
    table,
    update,
)
from benchmarks.comparison import Comparison, DisagreementError, Row, agree, measure, turns
from benchmarks.documents import SMALL
from benchmarks.memory import peak_memory
from benchmarks.slopes import Curve, fit

ROW = Row(
    comparison="update",
    what="an update",
    unit="update",
    peer="gpytorch-public",
    name="GPyTorch 1.2.3, one posterior a step",
    ours_seconds=0.01,
    peer_seconds=0.33,
    ratio=33.0,
    low=30.5,
    high=35.0,
    ours_mib=21.2,
    peer_mib=438.0,
    core=0.99,
    agreement="gradients agree to 1e-13",
)


def rows(**ratios: float) -> list[Row]:
    return [dataclasses.replace(ROW, comparison=name, peer="torch", ratio=ratio) for name, ratio in ratios.items()]


@pytest.mark.parametrize("recipe", ["paper", "default"])
def test_an_update_is_the_same_on_every_side(recipe: str) -> None:
    assert "gradients agree to" in update.case(recipe, SMALL).check()


@pytest.mark.parametrize("method", ["dkl", "gp"])
def test_likelihood_and_gradients_are_gpytorchs(method: str) -> None:
    assert "gradients agree to" in likelihood.case(method, SMALL).check()


@pytest.mark.parametrize("method", ["rl", "metabo"])
def test_networks_are_the_same_step_by_step(method: str) -> None:
    assert "gradients agree to" in networks.case(method, SMALL).check()


def test_greedy_searches_make_the_choices_of_botorch_and_gpytorch() -> None:
    assert "all 4 searches" in evaluation.case(SMALL, searched=4).check()


@pytest.mark.parametrize(("nonzeros", "on_disk"), [(8, False), (None, False), (None, True)])
def test_large_pools_are_searched_as_by_botorch(nonzeros: int | None, on_disk: bool) -> None:
    case = pools.case(pools.PoolSize(rows=400, features=32, nonzeros=nonzeros, on_disk=on_disk))
    try:
        assert "same candidate" in case.check()
    finally:
        case.close()


def test_a_pool_in_a_file_is_deleted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    case = pools.case(pools.PoolSize(rows=50, features=16, nonzeros=None, on_disk=True))
    assert list(tmp_path.rglob("pool.npy"))
    case.close()
    assert not list(tmp_path.iterdir())


def test_sides_that_differ_are_named() -> None:
    from torch import tensor

    assert agree("values", tensor([1.0, 2.0]), tensor([1.0, 2.0]), "a peer") == 0
    with pytest.raises(DisagreementError, match=r"values agree to 1e-06 .* a peer differ by 0.1"):
        agree("values", tensor([1.0, 0.0]), tensor([1.1, 0.0]), "a peer")
    with pytest.raises(DisagreementError):
        agree("values", tensor([1.0]), tensor([math.nan]), "a peer")


def test_measuring_checks_before_it_times_and_gives_a_row_a_peer() -> None:
    case, log = likelihood.case("gp", SMALL), []
    watched = dataclasses.replace(case, check=lambda: log.append("checked") or "all agree")  # type: ignore[func-returns-value]
    found = measure(Comparison("gp", "an update", "update", lambda: watched, turns=2), watched)
    assert log == ["checked"]
    assert [row.key for row in found] == ["gp/gpytorch"]
    assert found[0].ratio == pytest.approx(found[0].peer_seconds / found[0].ours_seconds)
    assert found[0].agreement == "all agree"
    json.dumps(dataclasses.asdict(found[0]), allow_nan=False)


def test_sides_take_turns() -> None:
    order: list[str] = []
    times, _ = turns({name: lambda name=name: order.append(name) for name in "ab"}, 2, warm=False)  # type: ignore[misc]
    assert order == ["a", "b", "a", "b"]
    assert [len(values) for values in times.values()] == [2, 2]


def test_peak_memory_is_of_the_work_alone() -> None:
    def build() -> object:
        return lambda: np.ones(8 << 20).sum()  # 64 MiB

    peak = peak_memory(build, 1, rehearse=True)  # type: ignore[arg-type]
    assert peak is None or 60 < peak < 90


def test_what_got_worse_by_more_than_a_fifth_is_named() -> None:
    recorded = {"update/torch": 10.0, "gp/torch": 10.0, "gone/torch": 2.0, "large/torch": 3.0}
    found = baseline.difference(recorded, rows(update=7.9, gp=8.1, fresh=5.0), ["update", "gp", "gone", "fresh"])
    assert found.worse == {"update/torch": (10.0, 7.9)}
    assert found.new == ["fresh/torch"]
    assert found.vanished == ["gone/torch"]
    assert "update/torch: 10.00 times faster, now 7.90" in str(found)


def test_nothing_worse_is_said_so() -> None:
    assert str(baseline.difference({}, [], [])) == "got worse by more than 20%: nothing"


def test_recording_renews_what_was_run_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps({"update/torch": 10.0, "update/old": 1.0, "million/torch": 4.0}))
    baseline.record(rows(update=12.3456), ["update"], path)
    assert baseline.read(path) == {"million/torch": 4.0, "update/torch": 12.346}
    assert baseline.read(tmp_path / "none.json") == {}


def test_a_table_of_the_page_is_renewed_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[str] = []
    monkeypatch.setattr(run, "IMAGES", tmp_path)
    monkeypatch.setattr(page, "write", lambda name, body: written.append(name))
    monkeypatch.setattr(baseline, "record", lambda rows, names: None)
    usual = [name for name, comparison in registry.COMPARISONS.items() if not comparison.large]
    about = {"versions": {}, "machine": "", "cores": 1, "command": "", "commit": ""}
    outcomes = [run.Outcome(name, tuple(rows(**{name: 2.0}))) for name in usual]
    run.record(outcomes[1:], about)
    assert written == []
    assert f"the table of the page stays: {usual[0]} did not run" in capsys.readouterr().err
    run.record(outcomes, about)
    assert written == ["table"]


def test_slopes_are_those_of_powers() -> None:
    sizes = [10.0, 30.0, 100.0, 300.0]
    exact = fit(sizes, [0.5 * size**1.5 for size in sizes])
    assert exact.slope == pytest.approx(1.5)
    assert exact.error == pytest.approx(0, abs=1e-9)
    noise = np.random.default_rng(0).normal(size=40)
    many = np.geomspace(10, 1000, 40)
    noisy = fit(many.tolist(), (many * np.exp(0.1 * noise)).tolist())
    assert abs(noisy.slope - 1) < 3 * noisy.error < 0.1


def test_a_constant_part_hides_in_the_lower_half_alone() -> None:
    sizes = tuple(float(size) for size in (10, 100, 1000, 10_000, 100_000, 1_000_000))
    curve = Curve("search", sizes, tuple(1000 + size for size in sizes), 1.0)
    assert curve.whole.slope < 0.7 < 0.9 < curve.upper.slope < 1.01
    assert not curve.steeper
    assert Curve("search", sizes, tuple(size**2 for size in sizes), 1.0).steeper


@pytest.mark.parametrize("axis", scaling.AXES, ids=lambda axis: axis.name)
def test_every_axis_has_work_at_its_smallest_size(axis: scaling.Axis) -> None:
    place, works = axis.work(axis.sizes[0])
    assert place > 0
    for work in works.values():
        work()


def test_numbers_have_few_digits() -> None:
    assert doctest.testmod(table).failed == 0


def test_the_table_has_a_line_a_row() -> None:
    lines = table.text([ROW, dataclasses.replace(ROW, ours_mib=None, ratio=4.04)]).splitlines()
    assert len(lines) == 3
    assert "33" in lines[1]
    assert "21 / 438 MiB" in lines[1]
    assert "4.0" in lines[2]
    assert lines[2].rstrip().endswith("-")
    assert "| **33** |" in table.markdown([ROW])
    assert " ms" not in table.markdown([ROW])  # times are of one machine


def test_the_report_names_disagreements_busy_machines_and_steep_slopes() -> None:
    steep = Curve("search", (1.0, 10.0, 100.0), (1.0, 100.0, 10_000.0), 1.0)
    outcomes = [
        run.Outcome("update", (dataclasses.replace(ROW, core=0.5),)),
        run.Outcome("scaling", curves=(("candidates", (steep,)),)),
        run.Outcome("gp", disagreement="they differ"),
    ]
    text = run.report(outcomes)
    for words in ("50% of a core", "search over candidates: slope 2.00", "STEEPER", "gp: they differ"):
        assert words in text


def test_outcomes_survive_json(tmp_path: Path) -> None:
    curve = Curve("search", (1.0, 10.0, 100.0), (1.0, 10.0, 100.0), 1.0)
    outcomes = [run.Outcome("update", (ROW,), size="small"), run.Outcome("scaling", curves=(("tasks", (curve,)),))]
    about = run.about_now("python -m benchmarks --only update")
    run.write(outcomes, about, tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["about"] == about  # of the beginning of the run, not of when it was written
    read = results["outcomes"]
    assert [run.Outcome.of(answer.pop("name"), answer) for answer in read] == outcomes
    assert {path.name for path in tmp_path.iterdir()} >= {"ratios.png", "ratios.svg", "scaling.png", "scaling.svg"}


def test_the_chart_has_a_bar_a_row() -> None:
    assert len(figures.chart([ROW, ROW]).axes[0].patches) == 2


def test_the_page_is_written_between_its_marks_alone(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- table: written by benchmarks, do not edit -->\nold\n<!-- end of table -->\nafter\n")
    page.write("table", "new", path)
    assert "old" not in path.read_text()
    assert path.read_text().split("\n")[0::2] == ["before", "new", "after"]
    with pytest.raises(ValueError, match="has a place for slopes"):
        page.write("slopes", "new", path)
    for name in ("table", "large table", "slopes"):
        assert f"<!-- {name}: written by benchmarks, do not edit -->" in page.PATH.read_text()


def test_the_sample_of_blocks_is_stratified_nested_and_random() -> None:
    whole = grid.Grid()
    some, more = grid.sample(whole, 12, 0), grid.sample(whole, 15, 0)
    assert len(set(some)) == 12
    assert [sum(block.dataset == name for block in some) for name in whole.datasets] == [4, 4, 4]
    assert set(some) < set(more)
    assert grid.sample(whole, 12, 1) != some


def test_the_estimate_of_a_whole_sample_is_its_sum() -> None:
    small = grid.SampledGrid(datasets=("digits",), sizes=(20, 40), runs=2)
    blocks = grid.sample(small, 4, 0)
    kernel = [
        grid.Timing(f"k{n}", "kernel", "digits", b.size, b.run, "", 3600.0 * (1 + n)) for n, b in enumerate(blocks)
    ]
    shared = [grid.Timing(f"t{r}", "tasks", "digits", 20, r, "", 1800.0) for r in range(2)]
    botorch = [grid.Timing(f"b{r}", "cell", "digits", 20, r, "botorch", 7200.0) for r in range(2)]
    found = grid.estimate(small, blocks, [*kernel, *shared, *botorch])
    assert found.hours == pytest.approx(1 + 2 + 3 + 4 + 2 * 0.5)
    assert found.error == 0
    apart = grid.apart(small, botorch)
    assert apart is not None
    assert apart.hours == pytest.approx(4)
    half = grid.estimate(small, blocks[:2], [*kernel, *shared])
    assert half.error > 0


def test_only_sampled_blocks_are_run() -> None:
    whole = grid.Grid()
    blocks = grid.sample(whole, 3, 0)
    cells = grid.SampledGrid(blocks=blocks).cells
    assert {(cell.dataset, cell.size, cell.run) for cell in cells} == {(b.dataset, b.size, b.run) for b in blocks}
    assert len(cells) == 3 * len(whole.variants)


def test_the_papers_hours_are_about_two_hundred() -> None:
    assert 200 < grid.PAPER_HOURS < 215


def test_molecules_of_one_target_are_on_one_side(tmp_path: Path) -> None:
    pytest.importorskip("rdkit", reason="needs the extra dkaf[chem]")
    archive = tmp_path / "assays.tar"
    with tarfile.open(archive, "w") as tables:
        for number in range(12):
            name = f"CHEMBL{number // 2}_{'Ki' if number % 2 else 'EC50'}.csv"  # two assays a target
            chains = "".join(f"{'C' * (number + 1)}{'O' * n},{n}\n" for n in range(1, 15))
            text = f"smiles,{confirm.POTENCY}\n{chains}".encode()
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tables.addfile(member, io.BytesIO(text))
    searched: list[int] = []
    for fold in range(confirm.FOLDS):
        data = confirm.molecules(str(archive), fold)
        # Rows are assays in the order of their names, 14 each; two assays are a target.
        targets = [{int(row) // 28 for pool in tasks.pools for row in pool} for tasks in data[:3]]
        assert all(a.isdisjoint(b) for a, b in itertools.combinations(targets, 2))
        assert len(data.test) == 2 * 2 * confirm.POOLS_AN_ASSAY
        searched += targets[2]
    assert sorted(searched) == list(range(6))  # every target is searched once
