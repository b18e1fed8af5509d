import csv
import dataclasses
import io
import json
import random
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import paper_rows
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread

import dkaf
from dkaf.experiments.figures import DARK, darkened, draw, svg_bytes
from dkaf.experiments.names import COLOURS, NAMES
from dkaf.experiments.outcome import Outcome, read_outcome
from dkaf.experiments.page import Picture
from dkaf.experiments.paper_report import report_page, write_paper_report
from dkaf.experiments.paper_sections import computing_seconds
from dkaf.experiments.paper_tables import PAPER_SECONDS, Results, best_methods, figure3, figure4, table1
from dkaf.experiments.rows import Row, RowFile
from dkaf.experiments.statistics import Comparison, Setting, compare

METHODS = [(method, acquisition) for method, acquisition in paper_rows.METHODS if acquisition != "ucb"]
PLANNED = paper_rows.cells(datasets=("reuters", "neurips"), sizes=(20, 60, 100), runs=(0, 1), methods=METHODS)
FILES = ["cells.csv", "comparisons.csv", "figure4.csv", "table1.csv", "report.html"]


class Page(HTMLParser):
    """Tables as lists of rows of squares' texts, what the page loads or links to, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.classes: dict[str, list[str]] = {}
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.words = ""
        self.kind = ""
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.add(tag)
        self.kind = found.get("class") or ""
        self.addresses += [value for key in ("src", "href", "srcset") if (value := found.get(key)) is not None]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.inside = True
            self.tables[-1][-1].append("")
        elif tag == "small":
            self.tables[-1][-1][-1] += " | "

    def handle_endtag(self, tag: str) -> None:
        self.kind = ""
        if tag in ("td", "th"):
            self.inside = False

    def handle_data(self, data: str) -> None:
        self.words += data
        if self.kind:
            self.classes.setdefault(self.kind, []).append(data)
        if self.inside:
            self.tables[-1][-1][-1] += data

    def table(self, *columns: str) -> list[list[str]]:
        """The first table that begins with these columns."""
        return next(table for table in self.tables if tuple(table[0][: len(columns)]) == columns)


def page_of(outcome: Outcome) -> Page:
    """The page without its pictures, which take the longest."""
    nothing = Picture(b"", b"", b"", b"")
    return Page(
        report_page(Results.of(outcome), {(f, r): nothing for f in ("figure3", "figure4") for r in outcome.recipes})
    )


def outcome_of(
    folder: Path, change: Callable[[Row], Row | None] = lambda row: row, planned: list[object] | None = None
) -> Outcome:
    return read_outcome(paper_rows.write_folder(folder, planned or PLANNED, change))


def fail(row: Row, error: str = "Traceback\n  line 3\nLinAlgError: not positive definite") -> Row:
    return dataclasses.replace(row, gaps=[], start_gaps=[], error=error)


def records(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def lines(axes: Axes) -> dict[str, list[float]]:
    return {str(bar.get_label()): list(bar.lines[0].get_ydata()) for bar in axes.containers}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = paper_rows.write_folder(tmp_path_factory.mktemp("grid"), PLANNED)
    write_paper_report(folder)
    return folder


@pytest.fixture(scope="module")
def outcome(folder: Path) -> Outcome:
    return read_outcome(folder)


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text())


def test_all_files_are_there_and_nothing_else(folder: Path) -> None:
    figures = [f"figure{n}-default.{kind}" for n in (3, 4) for kind in ("png", "svg")]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, *figures, "rows.jsonl", "grid.json"])


def test_the_same_rows_in_any_order_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    text = (folder / "rows.jsonl").read_text().splitlines(keepends=True)
    random.Random(0).shuffle(text)
    (tmp_path / "rows.jsonl").write_text("".join(text))
    (tmp_path / "grid.json").write_bytes((folder / "grid.json").read_bytes())
    assert write_paper_report(tmp_path) == tmp_path / "report.html"
    for path in folder.iterdir():
        if path.name != "rows.jsonl":
            assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_page_loads_nothing(folder: Path, page: Page) -> None:
    assert page.addresses
    assert all(address.startswith(("data:image/svg+xml;base64,", "#")) for address in page.addresses)
    assert not page.tags & {"script", "link", "iframe", "object", "embed"}
    text = (folder / "report.html").read_text()
    assert "http" not in text
    assert "url(" not in text
    assert "@import" not in text


def test_the_page_says_how_it_was_made(page: Page) -> None:
    for fact in ("dkaf paper run --out runs/paper", "run 0: 0, run 1: 1", "0123456789abcdef", "torch 2.6.0"):
        assert fact in page.words
    assert ["Reuters", "1,909 | paper: 1,909", "799 | paper: 799", "paper", "abababababababab"] in page.tables[-1]


def test_figure_3_has_a_panel_a_dataset_and_acquisition_with_a_line_a_method(outcome: Outcome) -> None:
    figure = draw(figure3(outcome, "default"))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [f"{d}, {a}" for d in ("Reuters", "NeurIPS") for a in ("MI", "EI")]
    for axes in figure.axes:
        assert sorted(lines(axes)) == sorted(NAMES.values())
        for bar in axes.containers:
            assert bar.has_yerr
            assert len(bar.lines[2][0].get_segments()) == 3  # a bar a size
        assert list(axes.get_xticks()) == [20, 60, 100]
    assert len(figure.legends) == 1
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(NAMES.values())


def test_figure_3_draws_the_means_and_standard_errors_of_the_rows(outcome: Outcome) -> None:
    figure = draw(figure3(outcome, "default"))
    rows = [
        row for row in outcome.rows.values() if (row.dataset, row.method, row.acquisition) == ("neurips", "dkl", "ei")
    ]
    by_run = np.array([[np.mean(row.gaps) for row in rows if row.size == size] for size in (20, 60, 100)])
    bar = next(bar for bar in figure.axes[3].containers if bar.get_label() == "DKL")
    np.testing.assert_allclose(bar.lines[0].get_ydata(), by_run.mean(axis=1))
    ends = np.array([segment[:, 1] for segment in bar.lines[2][0].get_segments()])
    np.testing.assert_allclose(np.ptp(ends, axis=1) / 2, by_run.std(axis=1, ddof=1) / np.sqrt(2))


def test_methods_without_an_acquisition_are_the_same_in_all_columns(outcome: Outcome) -> None:
    first, second = (lines(axes) for axes in draw(figure3(outcome, "default")).axes[:2])
    for name in ("RL", "MetaBO", "Random", "BoTorch", "Informed"):
        assert first[name] == second[name]
    for name in ("Ours", "DKL", "GP"):
        assert first[name] != second[name]


def test_figure_4_begins_at_the_start_with_the_fewest_tasks_and_mi(outcome: Outcome) -> None:
    figure = draw(figure4(outcome, "default"))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Reuters", "NeurIPS"]
    rows = outcome.by_setting[Setting("reuters", "default", 20, "dkaf", "mi")]
    expected = [np.mean([row.start_gaps for row in rows]), *np.mean([row.gaps for row in rows], axis=(0, 1))]
    np.testing.assert_allclose(lines(figure.axes[0])["Ours"], expected)
    assert list(figure.axes[0].get_xticks()) == list(range(11))
    assert all(len(bar.lines[2][0].get_segments()) == 11 for axes in figure.axes for bar in axes.containers)


def test_a_method_looks_the_same_in_every_figure(outcome: Outcome) -> None:
    colours: dict[str, set[str]] = {}
    for drawing in (figure3(outcome, "default"), figure4(outcome, "default")):
        for axes in draw(drawing).axes:
            for bar in axes.containers:
                colours.setdefault(str(bar.get_label()), set()).add(to_hex(bar.lines[0].get_color()))
    assert all(colours[NAMES[method]] == {colour} for method, colour in COLOURS.items())
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_a_narrow_figure_has_the_same_panels_below_each_other(outcome: Outcome) -> None:
    wide, narrow = (draw(figure3(outcome, "default"), narrow=narrow) for narrow in (False, True))
    assert [lines(axes) for axes in narrow.axes] == [lines(axes) for axes in wide.axes]
    assert {axes.get_position().x0 for axes in narrow.axes} == {narrow.axes[0].get_position().x0}


def test_no_ink_of_the_day_is_left_at_night(outcome: Outcome) -> None:
    night = darkened(svg_bytes(draw(figure4(outcome, "default"))))
    for light, dark in DARK.items():
        assert light.encode() not in night
        assert dark.encode() in night
    assert not {*DARK, *DARK.values()} & set(COLOURS.values())


def test_pictures_are_drawn(folder: Path) -> None:
    for name in ("figure3-default.png", "figure4-default.png"):
        pixels = imread(folder / name)
        assert pixels.shape[1] > 1000
        assert pixels[..., :3].std() > 0.05


def test_every_cell_of_the_table_is_computed_from_its_rows(outcome: Outcome, page: Page) -> None:
    tables = [table for table in page.tables if table[0] == ["", "20 tasks", "60 tasks", "100 tasks"]]
    assert len(tables) == 2
    for dataset, table in zip(("reuters", "neurips"), tables, strict=True):
        for acquisition, begin in (("mi", 1), ("ei", 10)):
            assert table[begin] == [acquisition.upper()]
            contest = table[begin + 1 : begin + 9]
            for (method, own), row in zip(outcome.contest(acquisition), contest, strict=True):
                for size, square in zip((20, 60, 100), row[1:], strict=True):
                    by_run = [
                        np.mean(r.gaps) for r in outcome.by_setting[Setting(dataset, "default", size, method, own)]
                    ]
                    error = abs(by_run[0] - by_run[1]) / 2
                    assert square == f"{np.mean(by_run):.2f} ± {error:.2f}"


def test_the_best_of_each_contest_is_marked_and_never_the_informed(outcome: Outcome, page: Page) -> None:
    expected = []
    for dataset in ("reuters", "neurips"):
        for acquisition in ("mi", "ei"):
            for size in (20, 60, 100):
                gaps = {
                    method: np.mean(
                        [np.mean(row.gaps) for row in outcome.by_setting[Setting(dataset, "default", size, *method)]]
                    )
                    for method in outcome.contest(acquisition)
                }
                assert min(gaps, key=lambda method: gaps[method]) == ("informed", "")
                del gaps["informed", ""]
                best = min(gaps, key=lambda method: gaps[method])
                assert best_methods(outcome, dataset, "default", size, acquisition) == {best}
                expected.append(f"{gaps[best]:.2f}")
    marked = [text.split(" ")[0] for text in page.classes["best"]]
    assert sorted(marked) == sorted(expected)


def test_table_1_is_the_mean_over_runs_and_acquisitions_at_the_largest_size(outcome: Outcome, page: Page) -> None:
    table = page.table("method", "Reuters", "paper", "NeurIPS", "paper")
    assert [row[0] for row in table[1:]] == ["Ours", "DKL", "GP", "RL", "MetaBO"]
    for method, row in zip(PAPER_SECONDS, table[1:], strict=True):
        for dataset, here, paper in (("reuters", row[1], row[2]), ("neurips", row[3], row[4])):
            seconds = [
                r.seconds["likelihood"] + r.seconds["policy gradient"]
                for r in outcome.rows.values()
                if (r.dataset, r.method, r.size) == (dataset, method, 100)
            ]
            assert len(seconds) == (4 if method in ("dkaf", "dkl", "gp") else 2)
            assert here == f"{np.mean(seconds):.1f}"
            assert paper == f"{PAPER_SECONDS[method][dataset]:.1f}"
    assert "with 100 training tasks" in page.words
    assert (
        "Here: one machine, 2 cores. The paper's were measured on computers with a GeForce GTX 1080 Ti." in page.words
    )


def test_comparisons_are_paired_and_told_in_words(folder: Path, outcome: Outcome) -> None:
    found = [r for r in records(folder / "comparisons.csv") if r["other_method"] != r["method"]]
    assert len(found) == 2 * 2 * 3 * 6
    for record in found[::7]:
        first, second = (
            outcome.by_setting[Setting(record["dataset"], record["recipe"], int(record["training_tasks"]), *method)]
            for method in (
                (record["method"], record["acquisition"]),
                (record["other_method"], record["other_acquisition"]),
            )
        )
        (expected,) = compare([(first, second)])
        assert isinstance(expected, Comparison)
        numbers = [float(record[key]) for key in ("difference", "low", "high")]
        np.testing.assert_allclose(numbers, [expected.difference, expected.low, expected.high], rtol=1e-5)
        told = "lower" if numbers[2] < 0 else "higher" if numbers[1] > 0 else "not told apart"
        assert record["verdict"] == told
        assert record["runs"] == "2"
        if record["other_method"] in ("dkl", "gp"):
            assert record["other_acquisition"] == record["acquisition"]


def test_the_summary_counts_the_verdicts(folder: Path, page: Page) -> None:
    found = [r for r in records(folder / "comparisons.csv") if r["other_method"] != r["method"]]
    for row in page.table("against", "lower")[1:]:
        verdicts = [r["verdict"] for r in found if NAMES[r["other_method"]] == row[0]]
        counts = [verdicts.count(verdict) for verdict in ("lower", "not told apart", "the same", "higher")]
        assert row[1:] == [*map(str, counts), "0"]
        assert sum(counts) == 12
        assert f"{row[0]} in {counts[0]} of 12" in page.words


def test_more_tasks_are_compared_on_the_same_test_tasks(folder: Path, page: Page) -> None:
    found = [r for r in records(folder / "comparisons.csv") if r["other_method"] == r["method"]]
    assert {(r["training_tasks"], r["other_training_tasks"]) for r in found} == {("100", "20")}
    assert {r["method"] for r in found} == {"dkaf", "dkl", "gp", "rl", "metabo"}
    table = page.table("method", "Reuters", "NeurIPS")
    ours = next(r for r in found if (r["dataset"], r["method"], r["acquisition"]) == ("reuters", "dkaf", "mi"))
    assert table[1][0] == "Ours MI"
    assert table[1][1].replace("\N{MINUS SIGN}", "-").startswith(f"{float(ours['difference']):.2f} | ")
    assert table[1][1].endswith(ours["verdict"])


def test_figure_4_is_in_its_table(folder: Path, outcome: Outcome) -> None:
    found = records(folder / "figure4.csv")
    assert len(found) == 2 * 8 * 11
    for record in found[::13]:
        rows = outcome.by_setting[Setting(record["dataset"], "default", 20, record["method"], record["acquisition"])]
        query = int(record["query"])
        by_run = [np.mean(row.start_gaps if query == 0 else np.array(row.gaps)[:, query - 1]) for row in rows]
        assert float(record["gap"]) == pytest.approx(np.mean(by_run), rel=1e-6)
        assert float(record["standard_error"]) == pytest.approx(abs(by_run[0] - by_run[1]) / 2, rel=1e-5)


def test_findings_say_plainly_when_ours_is_worse(tmp_path: Path) -> None:
    def worse(row: Row) -> Row:
        if row.method != "dkaf":
            return row
        return dataclasses.replace(row, gaps=(np.array(row.gaps) + 50).tolist())

    page = page_of(outcome_of(tmp_path, worse))
    assert "Ours had the lowest mean gap in 0 of 12 combinations" in page.words
    assert "DKL in 0 of 12 combinations (12 higher)" in page.words
    assert len(page.classes["higher"]) > 12


def test_missing_cells_are_seen(tmp_path: Path) -> None:
    def some(row: Row) -> Row | None:
        whole = row.method == "dkl" and row.dataset == "reuters" and row.size == 60
        part = row.dataset == "neurips" and row.size == 100 and row.run == 1
        return None if whole or part else row

    outcome = outcome_of(tmp_path, some)
    page = page_of(outcome)
    assert "117 of 132 cells are there, 15 missing" in page.words
    assert "Missing: Reuters with 60 tasks, DKL; NeurIPS with 100 tasks, run 1 of all methods." in page.words
    assert "A point of fewer runs is the mean of other test tasks" in page.words
    reuters, neurips = (t for t in page.tables if t[0] == ["", "20 tasks", "60 tasks", "100 tasks"])
    assert reuters[3][2] == "missing"
    assert neurips[2][3].endswith(" | 1 run, 1 missing")
    line = lines(draw(figure3(outcome, "default")).axes[0])["DKL"]
    assert np.isnan(line).tolist() == [False, True, False]
    unknown = {row[0]: row[5] for row in page.table("against", "lower")[1:]}
    assert (unknown["DKL"], unknown["GP"]) == ("2", "0")


def test_failed_cells_are_seen_with_their_errors(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, lambda row: fail(row) if row.method == "metabo" and row.size == 20 else row)
    page = page_of(outcome)
    assert "128 of 132 cells are there, 4 failed" in page.words
    assert "Failed: Reuters with 20 tasks, MetaBO; NeurIPS with 20 tasks, MetaBO." in page.words
    table = next(t for t in page.tables if t[0] == ["", "20 tasks", "60 tasks", "100 tasks"])
    assert table[6][:2] == ["MetaBO", "failed | LinAlgError: not positive definite"]
    failures = page.table("cell", "error")
    assert len(failures) == 5
    assert failures[1] == [
        "neurips default 20 tasks, run 0, metabo",
        "Traceback\n  line 3\nLinAlgError: not positive definite",
    ]


def test_rows_without_a_table_of_gaps_count_as_failed(tmp_path: Path) -> None:
    broken: dict[int, list[list[float]]] = {0: [[]], 1: [[], []]}
    outcome = outcome_of(
        tmp_path, lambda row: dataclasses.replace(row, gaps=broken[row.run]) if row.method == "rl" else row
    )
    assert set(outcome.failed.values()) == {"its gaps are no table of numbers"}
    assert len(outcome.failed) == 12


def test_a_single_run_says_that_errors_are_over_tasks(tmp_path: Path) -> None:
    planned = paper_rows.cells(sizes=(20,), runs=(3,))
    page = Page(write_paper_report(paper_rows.write_folder(tmp_path, planned)).read_text())
    assert "There is a single run: standard errors are over its test tasks, not over runs." in page.words
    assert "With a single run the intervals know nothing of how much runs differ: where methods" in page.words
    assert "What more training tasks change" not in page.words
    row = paper_rows.made_up_row(planned[0])
    error = np.std(row.task_gaps, ddof=1) / np.sqrt(6)
    assert f"{np.mean(row.gaps):.2f} ± {error:.2f}" in page.words


def test_an_own_corpus_keeps_its_name_and_needs_no_plan(tmp_path: Path) -> None:
    planned = paper_rows.cells(datasets=("my <b>corpus</b> & more",), sizes=(20,), methods=paper_rows.METHODS[:4])
    folder = paper_rows.write_folder(tmp_path, planned, plan=False)
    text = write_paper_report(folder).read_text()
    assert "<b>" not in text
    assert "my &lt;b&gt;corpus&lt;/b&gt; &amp; more" in text
    page = Page(text)
    assert "All 8 cells are there." in page.words
    assert page.table("method", "my <b>corpus</b> & more")[0] == ["method", "my <b>corpus</b> & more"]
    assert "paper's were measured" not in page.words


def test_without_a_plan_the_product_of_what_occurs_was_planned(tmp_path: Path) -> None:
    folder = paper_rows.write_folder(tmp_path, PLANNED[:-1], plan=False)
    assert read_outcome(folder).missing == [PLANNED[-1]]


def test_rows_beyond_the_plan_are_shown(tmp_path: Path) -> None:
    folder = paper_rows.write_folder(tmp_path, paper_rows.cells())
    RowFile(folder / "rows.jsonl").append([paper_rows.made_up_row(paper_rows.cells(sizes=(80,))[0])])
    outcome = read_outcome(folder)
    assert outcome.sizes == [20, 60, 80]
    assert not outcome.missing
    assert "not planned" in page_of(outcome).words


def test_each_recipe_has_its_section_figures_and_comparison(tmp_path: Path) -> None:
    planned = paper_rows.cells(recipes=("default", "paper"), sizes=(20,), methods=paper_rows.METHODS[:6])
    folder = paper_rows.write_folder(tmp_path, planned)
    page = Page(write_paper_report(folder).read_text())
    assert {path.name for path in folder.glob("*.png")} == {
        f"figure{n}-{r}.png" for n in (3, 4) for r in ("default", "paper")
    }
    assert {"#recipe-default", "#recipe-paper", "#recipes"} <= set(page.addresses)
    assert sum(address.startswith("data:") for address in page.addresses) == 4 * 4
    between = [r for r in records(folder / "comparisons.csv") if r["recipe"] != r["other_recipe"]]
    assert len(between) == 3
    assert all(r["verdict"] == "lower" for r in between)  # so the rows were made up
    assert "Reuters: default minus paper" in page.words


def test_rows_that_cannot_be_paired_are_said_on_top(tmp_path: Path) -> None:
    def other(row: Row) -> Row:
        return dataclasses.replace(row, start_gaps=row.start_gaps[::-1]) if row.method == "gp" else row

    page = page_of(outcome_of(tmp_path, other))
    warning = page.classes["warning"][0]
    assert warning.startswith("12 comparisons cannot be paired: the test tasks or starts of run 0 differ")


def test_no_part_of_a_grid_is_too_small_for_a_report(tmp_path: Path) -> None:
    planned = paper_rows.cells(datasets=("reuters", "mine"), recipes=("default", "paper"), methods=METHODS[::2])
    draw_parts = random.Random(0)
    for number, share in enumerate((0.05, 0.1, 0.2, 0.5, 0.9)):

        def part(row: Row, share: float = share) -> Row | None:
            return None if draw_parts.random() > share else fail(row) if draw_parts.random() < 0.3 else row

        outcome = outcome_of(tmp_path / str(number), part, planned)
        there = len(outcome.rows) - len(outcome.failed)
        assert f"{there} of 96 cells {'is' if there == 1 else 'are'} there" in page_of(outcome).words
        assert isinstance(draw(figure3(outcome, outcome.recipes[-1])), Figure)
        assert isinstance(draw(figure4(outcome, outcome.recipes[-1])), Figure)


def test_one_row_and_failures_alone_give_a_report(tmp_path: Path) -> None:
    planned = paper_rows.cells(methods=METHODS[:3])
    one = paper_rows.write_folder(tmp_path / "one", planned, lambda row: row if row.cell == planned[0] else None)
    assert "1 of 12 cells is there, 11 missing" in Page(write_paper_report(one).read_text()).words
    failed = paper_rows.write_folder(tmp_path / "failed", PLANNED[:3], fail)
    words = Page(write_paper_report(failed).read_text()).words
    assert "There is no row of ours yet" in words
    assert "0 of 3 cells are there, 3 failed." in words
    assert "Nothing is measured yet." in words
    assert "0 runs" not in words
    assert table1(read_outcome(failed), "default") == []


def test_methods_without_acquisitions_alone_give_a_report(tmp_path: Path) -> None:
    planned = paper_rows.cells(methods=[("rl", ""), ("random", ""), ("my method", "")])
    page = Page(write_paper_report(paper_rows.write_folder(tmp_path, planned)).read_text())
    assert "my method" in page.words


def test_no_rows_is_an_error_that_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(dkaf.InputError, match="has none; run `dkaf paper run --out"):
        write_paper_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_searches_of_different_lengths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(dkaf.InputError, match=r"those of reuters in .* have 5 and 10; keep one protocol to a folder"):
        outcome_of(
            tmp_path,
            lambda row: paper_rows.made_up_row(row.cell, queries=5) if row.method == "rl" else row,
            paper_rows.cells(),
        )


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": {"datasets": ["reuters"]}}', '{"cells": 3}'])
def test_a_plan_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    folder = paper_rows.write_folder(tmp_path, PLANNED[:1])
    (folder / "grid.json").write_text(text)
    with pytest.raises(dkaf.InputError, match="plan"):
        read_outcome(folder)


def test_a_plan_may_say_less(tmp_path: Path) -> None:
    folder = paper_rows.write_folder(tmp_path, PLANNED[:1])
    (folder / "grid.json").write_text(json.dumps({"corpora": {"reuters": 3}, "protocol": {"settings": {"updates": 3}}}))
    page = page_of(read_outcome(folder))
    assert "updates = 3" in page.words
    assert "The only cell is there." in page.words


def test_a_change_from_a_gap_of_zero_has_no_percentage(tmp_path: Path) -> None:
    def perfect(row: Row) -> Row:
        found = row.method == "dkl" and row.size == 20
        return dataclasses.replace(row, gaps=np.zeros_like(row.gaps).tolist()) if found else row

    words = page_of(outcome_of(tmp_path, perfect)).words
    assert "DKL in 0 of 4, GP in" in words
    assert "%); in brackets the mean change" in words


def test_the_percentage_of_a_change_is_of_the_runs_compared(tmp_path: Path) -> None:
    planned = paper_rows.cells(sizes=(20, 100), methods=[("dkaf", "mi")])

    def change(row: Row) -> Row | None:
        if (row.size, row.run) == (100, 1):
            return None
        level = 2.0 if row.size == 100 else 4.0 if row.run == 0 else 1000.0
        return dataclasses.replace(row, gaps=np.full_like(row.gaps, level).tolist())

    words = page_of(outcome_of(tmp_path, change, planned)).words
    assert "Ours in 1 of 1 combinations of dataset and acquisition function (\N{MINUS SIGN}50%)" in words


def test_more_tasks_are_told_by_the_numbers_that_were_compared(tmp_path: Path) -> None:
    def part(row: Row) -> Row | None:
        return None if row.size == 100 and (row.method != "gp" or row.dataset == "neurips") else row

    page = page_of(outcome_of(tmp_path, part))
    assert "From 20 to 60 training tasks, the gap became lower" in page.words
    assert "20 to 100 training tasks" not in page.words
    assert "GP in " in page.words
    assert "2 comparisons of other numbers are left out here." in page.words
    assert "The gap with 60 training tasks minus the gap with 20, or as a square says" in page.words
    table = {row[0]: row[1:] for row in page.table("method", "Reuters", "NeurIPS")[1:]}
    assert table["GP MI"][0].endswith("20 to 100 tasks")
    assert not table["Ours MI"][0].endswith("tasks")


def test_one_task_of_one_run_is_not_known(tmp_path: Path) -> None:
    planned = paper_rows.cells(sizes=(20,), runs=(0,), methods=[("dkaf", "mi"), ("random", "")])
    outcome = outcome_of(
        tmp_path, lambda row: dataclasses.replace(row, gaps=row.gaps[:1], start_gaps=row.start_gaps[:1]), planned
    )
    page = page_of(outcome)
    assert page.table("against", "lower")[1] == ["Random", "0", "0", "0", "0", "1"]
    assert page.table("", "Random")[2][1].endswith(" | not known")
    assert "1 run of 1 test task." in page.words


@pytest.mark.parametrize(("runs", "share"), [(2, "two"), (3, "four"), (6, "six"), (12, "ten")])
def test_the_page_says_that_intervals_of_few_runs_are_too_narrow(tmp_path: Path, runs: int, share: str) -> None:
    planned = paper_rows.cells(sizes=(20,), runs=range(runs), methods=[("dkaf", "mi"), ("random", "")])
    words = page_of(outcome_of(tmp_path, planned=planned)).words
    assert f"{runs} runs of 6 test tasks." in words
    assert f"with {runs} runs, up to about one in {share} comparisons between equals" in words


def test_work_that_cells_share_is_counted_once() -> None:
    seconds = {"likelihood": 10.0, "policy gradient": 5.0, "search": 1.0}
    planned = paper_rows.cells(recipes=("default", "paper"), sizes=(20, 60), runs=(0,))
    rows = [dataclasses.replace(paper_rows.made_up_row(cell), seconds=seconds) for cell in planned]
    untrained = 3 * 16.0
    # A kernel for DKL and ours, one for GP and MetaBO, and RL's own; then eleven cells' policy gradient and search.
    of_recipe_and_size = 2 * 10.0 + 10.0 + (9 + 2) * 6.0
    assert computing_seconds(rows) == untrained + 4 * of_recipe_and_size


def test_table_1_is_of_the_size_that_most_is_known_of(tmp_path: Path) -> None:
    def part(row: Row) -> Row | None:
        return row if row.size < 100 or (row.method, row.dataset) == ("rl", "reuters") else None

    timings = table1(outcome_of(tmp_path, part), "default")
    assert {timing.size for timing in timings} == {60}
    assert all(timing.rows for timing in timings)


FAILED = {
    "its gaps at the start are no numbers": [{"start_gaps": value} for value in ([None] * 6, ["1"] * 6, None, 3)],
    "it has not as many starts as test tasks": [{"start_gaps": [1.0]}],
    "its gaps are no table of numbers": [{"gaps": value} for value in ([["1.0", "2.0"]], [[None]], [[]])],
}
REFUSED = [
    *({"dataset": value} for value in (3, ["reuters"])),
    *({"gaps": value} for value in ([[1.0, 2.0], [3.0]], [], [1.0], None)),
    {"size": "20"},
    {"run": None},
    {"seed": True},
    *({"seconds": value} for value in ({"search": "long"}, [1.0])),
    {"versions": None},
    {"machine": 5},
    {"commit": 7},
    {"best_update": "none"},
    {"error": {"why": "?"}},
]


def test_rows_of_strange_types_count_as_failed_or_are_refused(tmp_path: Path) -> None:
    """In a process of its own, where rows are not checked as they are made in tests."""
    changes = [(change, why) for why, some in FAILED.items() for change in some]
    changes += [(change, "refused") for change in REFUSED]
    planned = paper_rows.cells(sizes=(20,), runs=(0,))
    for number, (change, _) in enumerate(changes):
        folder = paper_rows.write_folder(tmp_path / str(number), planned)
        first, *rest = (folder / "rows.jsonl").read_text().splitlines(keepends=True)
        (folder / "rows.jsonl").write_text("".join((json.dumps(json.loads(first) | change), "\n", *rest)))
    script = f"""
from pathlib import Path
from dkaf import InputError
from dkaf.experiments.outcome import read_outcome
for number in range({len(changes)}):
    try:
        print(*read_outcome(Path(str(number))).failed.values())
    except InputError as error:
        print("refused" if "rows.jsonl" in str(error) and "restore the file" in str(error) else error)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert dict(enumerate(done.stdout.splitlines())) == dict(enumerate(why for _, why in changes))


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    planned = paper_rows.cells(datasets=("$a_{b$",), sizes=(20,), runs=(0,), methods=[("dkaf", "mi"), ("$m_{$", "")])
    folder = paper_rows.write_folder(tmp_path, planned)
    assert "$m_{$" in Page(write_paper_report(folder).read_text()).words
    assert draw(figure4(read_outcome(folder), "default")).axes[0].get_title(loc="left") == "$a_{b$"


def test_ties_count_for_each_method(tmp_path: Path) -> None:
    rows = {cell: paper_rows.made_up_row(cell) for cell in PLANNED}

    def as_dkl(row: Row) -> Row:
        if row.method != "dkaf" or row.size != 20:
            return row
        return dataclasses.replace(
            row, gaps=rows[dataclasses.replace(row.cell, method="dkl")].gaps, best_update=0, updates=200
        )

    page = page_of(outcome_of(tmp_path, as_dkl))
    assert "(4 ties, which count for each method)" in page.words
    assert "In 8 of 24 cells of ours what the policy gradient made of DKL was no better" in page.words
    dkl = next(row for row in page.table("against", "lower") if row[0] == "DKL")
    assert dkl[3] == "4"
    assert page.table("", "DKL")[2][:2] == ["20 tasks", "the same"]
    assert "4 the same" in page.words


def test_updates_that_all_help_are_said_too(page: Page) -> None:
    assert "In every cell of ours, of 24, what the policy gradient made of DKL was kept" in page.words
    assert "tie" not in page.words.split("Compared task by task")[0]


def test_the_line_at_zero_is_seen_and_explained(tmp_path: Path, page: Page) -> None:
    def knowing(row: Row) -> Row:
        return dataclasses.replace(row, gaps=np.zeros_like(row.gaps).tolist()) if row.method == "informed" else row

    outcome = outcome_of(tmp_path, knowing)
    for axes in draw(figure3(outcome, "default")).axes:
        low, high = axes.get_ylim()
        assert -0.1 * high < low < 0
    why = "It is at 0: one distance without noise tells it the target"
    assert why in page_of(outcome).words
    assert why not in page.words


def test_the_legend_has_what_is_drawn(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, lambda row: None if row.method in ("rl", "gp") else row)
    (legend,) = draw(figure3(outcome, "default")).legends
    assert [text.get_text() for text in legend.get_texts()] == [
        name for name in NAMES.values() if name not in ("RL", "GP")
    ]


def test_captions_name_a_few_of_many_absences(tmp_path: Path) -> None:
    planned = paper_rows.cells(sizes=(20, 40, 60, 80, 100), methods=METHODS)
    gone = {20: "rl", 40: "metabo", 60: "random", 80: "botorch", 100: "informed"}
    words = page_of(outcome_of(tmp_path, lambda row: None if row.method == gone[row.size] else row, planned)).words
    assert "; and 1 more, see the table of all cells." in words
    assert words.count("Reuters with ") == 4 + 1  # Figure 4 is of one size


def test_means_side_by_side_are_of_the_same_runs(tmp_path: Path) -> None:
    planned = paper_rows.cells(sizes=(20,), methods=[("dkaf", "mi"), ("dkl", "mi"), ("informed", "")])

    def change(row: Row) -> Row | None:
        if row.run == 1 and row.method != "dkaf":
            return None
        level = 1000.0 if row.run == 1 else {"dkaf": 20.0, "dkl": 30.0, "informed": 10.0}[row.method]
        return dataclasses.replace(row, gaps=np.full_like(row.gaps, level).tolist())

    words = page_of(outcome_of(tmp_path, change, planned)).words
    assert "on Reuters, 20.00 against 30.00 after the first query and 20.00 against 30.00 after the last" in words
    assert "20 training tasks: 10.00 against 20.00 on Reuters." in words


def test_published_corpora_have_their_names_and_the_papers_counts(tmp_path: Path) -> None:
    planned = paper_rows.cells(datasets=("neurips-2001-2003",), sizes=(20,), runs=(0,), methods=METHODS[:1])
    page = page_of(outcome_of(tmp_path, planned=planned))
    assert page.tables[-1][1][:3] == ["NeurIPS 2001-2003", "1,909 | paper: 592", "799 | paper: 1,655"]


def test_the_lowest_gap_is_of_the_runs_that_all_methods_have(tmp_path: Path) -> None:
    planned = paper_rows.cells(sizes=(20,), methods=[("dkaf", "mi"), ("dkl", "mi"), ("random", "")])
    outcome = outcome_of(tmp_path, lambda row: None if row.run == 1 and row.method != "random" else row, planned)
    assert best_methods(outcome, "reuters", "default", 20, "mi") == {("dkaf", "mi")}
    assert "Ours had the lowest mean gap in 1 of 1 combination" in page_of(outcome).words
