"""The paper's experiments for a reader: figures, tables and one page, all of them functions of the rows of a folder."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from dkaf.experiments import page
from dkaf.experiments.figures import Drawing, darkened, draw, png_bytes, svg_bytes
from dkaf.experiments.names import INFORMED
from dkaf.experiments.outcome import Outcome, read_outcome
from dkaf.experiments.page import counted, listed
from dkaf.experiments.paper_csv import cell_records, comparison_records, csv_bytes, figure4_records, table1_records
from dkaf.experiments.paper_sections import (
    cells_tables,
    failures_table,
    growth_table,
    has_informed,
    most_runs,
    provenance,
    recipes_table,
    rivals_table,
    timing_table,
)
from dkaf.experiments.paper_tables import Results, figure3, figure4, figure4_setting, figure4_settings
from dkaf.experiments.paper_words import absences, completeness, findings
from dkaf.experiments.statistics import RESAMPLES, UnpairedError
from dkaf.files import whole_file

PAGE = "report.html"


def write_paper_report(folder: Path) -> Path:
    """Figures, tables and `report.html` into `folder`, from its rows; returns the page. Cells may be missing."""
    for name, data in report_files(read_outcome(folder)).items():
        with whole_file(folder / name) as file:
            file.write(data)
    return folder / PAGE


def report_files(outcome: Outcome) -> dict[str, bytes]:
    """By name, the page last: it is there when all it speaks of is."""
    results = Results.of(outcome)
    files = {
        "cells.csv": csv_bytes(cell_records(outcome)),
        "comparisons.csv": csv_bytes(comparison_records(results.compared)),
        "figure4.csv": csv_bytes(figure4_records(outcome)),
        "table1.csv": csv_bytes(table1_records(outcome)),
    }
    pictures = {}
    for recipe in outcome.recipes:
        for name, drawing in (("figure3", figure3(outcome, recipe)), ("figure4", figure4(outcome, recipe))):
            stem = f"{name}-{_plain(recipe)}"
            figure = draw(drawing)
            files[f"{stem}.png"], files[f"{stem}.svg"] = png_bytes(figure), svg_bytes(figure)
            pictures[name, recipe] = _picture(files[f"{stem}.svg"], drawing)
    files[PAGE] = report_page(results, pictures).encode()
    return files


def _plain(name: str) -> str:
    """For a file's name or an anchor."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)


def _picture(wide: bytes, drawing: Drawing) -> page.Picture:
    narrow = svg_bytes(draw(drawing, narrow=True))
    return page.Picture(wide, darkened(wide), narrow, darkened(narrow))


def report_page(results: Results, pictures: dict[tuple[str, str], page.Picture]) -> str:
    """The whole page; pictures are by figure and recipe."""
    outcome = results.outcome
    parts = [_opening(results)]
    parts += [_recipe_section(results, r, pictures["figure3", r], pictures["figure4", r]) for r in outcome.recipes]
    if len(outcome.recipes) > 1:
        parts.append("<h2 id='recipes'>Recipes compared</h2>" + recipes_table(results))
    if outcome.failed:
        words = page.paragraph("The command that made the rows tries them again.", "note")
        parts.append("<h2 id='failed'>Failed cells</h2>" + words + failures_table(outcome))
    parts.append(provenance(outcome))
    return page.page("The paper's experiments", "\n".join(parts))


def _opening(results: Results) -> str:
    outcome = results.outcome
    whole = len(outcome.cells) == len(outcome.rows) - len(outcome.failed)
    unpaired = [c.result for c in results.compared if isinstance(c.result, UnpairedError)]
    parts = [
        "<h1>Deep kernel acquisition functions: the paper's experiments</h1>",
        page.paragraph(
            "Each method searches pools of candidates for the best one, having learned from earlier searches. The gap "
            "is the response of the best candidate minus the best found so far; its mean over the queries of a search "
            "is the average cumulative gap. Lower is better."
        ),
        _navigation(outcome),
        page.paragraph(completeness(outcome), "" if whole else "warning"),
    ]
    if unpaired:
        words = f"{counted(len(unpaired), 'comparison')} cannot be paired: {unpaired[0]}; run the grid in a new folder."
        parts.append(page.paragraph(words, "warning"))
    parts.append("<h2 id='found'>What came out</h2>")
    for recipe in outcome.recipes:
        if len(outcome.recipes) > 1:
            parts.append(f"<h3>Recipe {page.escaped(recipe)}</h3>")
        parts.append(page.bullets(findings(outcome, recipe, results.against_of(recipe), results.growth_of(recipe))))
    parts.append(page.paragraph(how_sure(outcome), "note"))
    return "\n".join(parts)


def _navigation(outcome: Outcome) -> str:
    several = len(outcome.recipes) > 1
    links = [
        ("found", "What came out"),
        *((f"recipe-{_plain(name)}", f"Results: {name}" if several else "Results") for name in outcome.recipes),
        *([("recipes", "Recipes compared")] if several else []),
        *([("failed", "Failed cells")] if outcome.failed else []),
        ("made", "How it was made"),
    ]
    return "<nav>" + " ".join(f"<a href='#{to}'>{page.escaped(text)}</a>" for to, text in links) + "</nav>"


def _recipe_section(results: Results, recipe: str, third: page.Picture, fourth: page.Picture) -> str:
    outcome = results.outcome
    size, acquisition = figure4_setting(outcome)
    setting = f"{size} training tasks{f', {acquisition.upper()}' if acquisition else ''}"
    shown = [s for s in outcome.settings if s.recipe == recipe]
    queried = [s for s in figure4_settings(outcome) if s.recipe == recipe]
    words = ["Average cumulative gap on test tasks against the number of training tasks.", error_words(outcome)]
    if len(outcome.acquisitions) > 1:
        words.append("Methods without an acquisition function to vary are the same in all columns.")
    words.append(informed_words(outcome))
    name = f": recipe {page.escaped(recipe)}" if len(outcome.recipes) > 1 else ""
    return "\n".join(
        (
            f"<h2 id='recipe-{_plain(recipe)}'>Results{name}</h2>",
            "<h3>Figure 3. More training tasks</h3>",
            page.picture(
                third,
                "Average cumulative gap against the number of training tasks, a line a method",
                [" ".join(filter(None, words)), *absences(outcome, shown)],
            ),
            f"<h3>Figure 4. Query by query: {page.escaped(setting)}</h3>",
            page.picture(
                fourth,
                "Gap after each query, a line a method",
                [f"Gap after each query; 0 is the start. {error_words(outcome)}", *absences(outcome, queried)],
            ),
            timing_table(results, recipe),
            rivals_table(results, recipe),
            growth_table(results, recipe),
            cells_tables(results, recipe, error_words(outcome)),
        )
    )


def error_words(outcome: Outcome) -> str:
    """What the standard errors are over."""
    over = Counter(standing.over for standing in outcome.standings.values())
    if not over["tasks"]:
        return "Standard errors are over runs."
    if not over["runs"]:
        return "There is a single run: standard errors are over its test tasks, not over runs."
    return "Standard errors are over runs; where there is a single run, over its test tasks."


def informed_words(outcome: Outcome) -> str:
    """Who the dotted line is, and why it may be at zero."""
    if not has_informed(outcome):
        return ""
    text = "Dotted: a searcher that knows the hidden representation, nobody's competitor."
    gaps = [standing.gap for setting, standing in outcome.standings.items() if setting.method == INFORMED]
    if not gaps or any(gaps):
        return text
    return f"{text} It is at 0: one distance without noise tells it the target, and its first query is the best."


CHANCE = {2: "two", 3: "four", 4: "five", 5: "six", 7: "seven", 10: "ten"}
"""From so many runs on, about one in so many comparisons between equals is told apart where runs differ much more than
tasks do, one in fifty where they do not differ: tests/test_statistics.py simulates both."""


def how_sure(outcome: Outcome) -> str:
    """What the intervals are and what they cannot tell."""
    runs = most_runs(outcome)
    if not runs:
        return "Nothing is measured yet."
    tasks = sorted({len(row.gaps) for row in outcome.rows.values() if row.error is None})
    protocol = outcome.grid.get("protocol")
    starts = protocol.get("starts", 1) if isinstance(protocol, Mapping) else 1
    text = (
        f"{counted(runs, 'run')} of {listed([str(count) for count in tasks])} test task{'s' if tasks != [1] else ''}"
        f"{f', each searched from {starts} starts' if starts != 1 else ''}. "
        f"Intervals are 95% by a bootstrap of {RESAMPLES:,} resamples over runs and, within them, tasks, on the same "
        "test tasks and starts for both sides."
    )
    if runs == 1:
        return (
            f"{text} With a single run the intervals know nothing of how much runs differ: where methods that are "
            "equal on average do, most comparisons between them can be told apart by chance."
        )
    share = CHANCE[max(least for least in CHANCE if least <= runs)]
    return (
        f"{text} Intervals over few runs are too narrow where methods differ from run to run: with {runs} runs, up to "
        f"about one in {share} comparisons between equals can be told apart by chance, with fewer runs more."
    )
