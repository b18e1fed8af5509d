"""The report's tables as parts of its page, and how its rows were made."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from dkaf.experiments import page
from dkaf.experiments.grid import KERNEL_OF
from dkaf.experiments.names import INFORMED, OURS, UNTRAINED, dataset_name, method_name
from dkaf.experiments.outcome import ROWS, Outcome
from dkaf.experiments.page import NOTHING, Td, counted, listed, number
from dkaf.experiments.paper_tables import (
    PAPER_MACHINE,
    Compared,
    Results,
    Timing,
    all_rivals,
    table1,
    usual_sizes,
    winners,
)
from dkaf.experiments.paper_words import gap_decimals, tallies
from dkaf.experiments.rows import Row
from dkaf.experiments.statistics import Answer, Comparison, Setting, UnpairedError
from dkaf.sources.catalogue import PUBLISHED

Line = list[Td | str]
MISSING = Td("missing", kind="absent")


def timing_table(results: Results, recipe: str) -> str:
    """Table 1."""
    timings = table1(results.outcome, recipe)
    if not timings:
        return ""
    datasets = results.outcome.datasets
    printed = [dataset for dataset in datasets if any(t.paper is not None for t in timings if t.dataset == dataset)]
    columns = ["method"]
    for dataset in datasets:
        columns += [dataset_name(dataset), "paper"] if dataset in printed else [dataset_name(dataset)]
    rows: list[Line] = []
    for method in dict.fromkeys(timing.method for timing in timings):
        row: Line = [_method(method)]
        for timing in (timing for timing in timings if timing.method == method):
            row += _timing(timing) if timing.dataset in printed else _timing(timing)[:1]
        rows.append(row)
    machines = listed(sorted({machine for timing in timings for machine in timing.machines}))
    paper = f" The paper's were measured on computers with a {PAPER_MACHINE}." if printed else ""
    caption = (
        f"Seconds of training with {timings[0].size} training tasks, the mean over runs and acquisition functions. "
        f"Here: {machines}.{paper}"
    )
    return "<h3>Table 1. Training time</h3>" + page.table(columns, [("", rows)], caption)


def _timing(timing: Timing) -> Line:
    here = MISSING if timing.seconds is None else Td(number(timing.seconds, 1))
    return [here, Td(NOTHING if timing.paper is None else number(timing.paper, 1), kind="quiet")]


def rivals_table(results: Results, recipe: str) -> str:
    """How ours compares with each method: in numbers of combinations, then in every one of them."""
    compared = results.against_of(recipe)
    if not compared:
        return ""
    summary: list[Line] = []
    for method, tally in tallies(results.outcome, compared).items():
        unknown = Td(str(tally.unknown), kind="absent" if tally.unknown else "")
        counts = (tally.lower, tally.undecided, tally.same, tally.higher)
        summary.append([method_name(method), *map(str, counts), unknown])
    parts = [
        "<h3>Ours against each method</h3>",
        page.table(
            ["against", "lower", "not told apart", "the same", "higher", "not known"],
            [("", summary)],
            "In how many combinations of dataset, training tasks and acquisition function the gap of ours is lower or "
            "higher, compared task by task; the same where no test task differs.",
        ),
        page.paragraph(
            "In each of them: the gap of ours minus that of the other method, below zero where ours is better, and its "
            "95% interval. The two are told apart where the interval leaves out zero.",
            "note",
        ),
    ]
    usual = usual_runs(compared)
    for dataset in results.outcome.datasets:
        here = [c for c in compared if c.first.dataset == dataset]
        parts.append(page.details(dataset_name(dataset), _differences(results.outcome, dataset, here, usual)))
    return "\n".join(parts)


def _differences(outcome: Outcome, dataset: str, compared: Sequence[Compared], usual: int) -> str:
    decimals = gap_decimals(outcome, dataset)
    found = {(c.first.acquisition, c.first.size, c.second.method): c.result for c in compared}
    methods = all_rivals(outcome)
    groups: list[tuple[str, list[Line]]] = []
    for acquisition in outcome.acquisitions:
        rows: list[Line] = []
        for size in outcome.sizes:
            squares = [_difference(found.get((acquisition, size, method)), decimals, usual) for method in methods]
            rows.append([f"{size} tasks", *squares])
        groups.append((method_name(OURS, acquisition), rows))
    return page.table(["", *map(method_name, methods)], groups, _usual_words(usual))


def growth_table(results: Results, recipe: str) -> str:
    """How the gap of each method that learns changes with more training tasks."""
    growth = results.growth_of(recipe)
    if not growth:
        return ""
    outcome, usual, sizes = results.outcome, usual_runs(growth), usual_sizes(results.outcome, growth)
    found = {(c.first.dataset, c.first.method, c.first.acquisition): c for c in growth}
    rows: list[Line] = []
    for method in outcome.methods:
        changes = [found.get((dataset, *method)) for dataset in outcome.datasets]
        if any(changes):
            rows.append([_method(*method), *(_change(outcome, c, usual, sizes) if c else MISSING for c in changes)])
    return "<h3>What more training tasks change</h3>" + page.table(
        ["method", *map(dataset_name, outcome.datasets)],
        [("", rows)],
        f"The gap with {sizes[1]} training tasks minus the gap with {sizes[0]}, or as a square says, on the same test "
        f"tasks, and its 95% interval; below zero, more tasks help. {_usual_words(usual)}",
    )


def _change(outcome: Outcome, compared: Compared, usual: int, usual_sizes: tuple[int, int]) -> Td:
    square = _difference(compared.result, gap_decimals(outcome, compared.first.dataset), usual)
    sizes = (compared.second.size, compared.first.size)
    if sizes == usual_sizes:
        return square
    return Td(square.text, (*square.notes, f"{sizes[0]} to {sizes[1]} tasks"), square.kind)


def recipes_table(results: Results) -> str:
    """Ours with the first recipe against ours with the others."""
    outcome, usual = results.outcome, usual_runs(results.recipes)
    first, *others = outcome.recipes
    groups: list[tuple[str, list[Line]]] = []
    for other in others:
        for dataset in outcome.datasets:
            found = {
                (c.first.acquisition, c.first.size): c.result
                for c in results.recipes
                if (c.first.dataset, c.second.recipe) == (dataset, other)
            }
            decimals = gap_decimals(outcome, dataset)
            rows: list[Line] = []
            for acquisition in outcome.acquisitions:
                squares = [_difference(found.get((acquisition, size)), decimals, usual) for size in outcome.sizes]
                rows.append([method_name(OURS, acquisition), *squares])
            groups.append((f"{dataset_name(dataset)}: {first} minus {other}", rows))
    return page.table(
        ["", *(f"{size} tasks" for size in outcome.sizes)],
        groups,
        f"The gap of ours with recipe {first} minus that with the other, and its 95% interval; below zero, {first} is "
        f"better. {_usual_words(usual)}",
    )


def cells_tables(results: Results, recipe: str, words: str) -> str:
    """The mean gap of every setting, a table a dataset."""
    outcome = results.outcome
    aside = ", the informed searcher aside" if has_informed(outcome) else ""
    caption = (
        f"Mean gap ± standard error. {words} Marked: the lowest mean of a column under each acquisition "
        f"function{aside}, on the runs that all its methods have; each of them where several tie. "
        f"{_usual_words(most_runs(outcome))}"
    )
    best = winners(outcome, recipe)
    parts = ["<h3>All cells</h3>", page.paragraph(caption, "note")]
    for dataset in outcome.datasets:
        groups: list[tuple[str, list[Line]]] = []
        for acquisition in outcome.acquisitions:
            rows: list[Line] = []
            for method in outcome.contest(acquisition):
                row: Line = [_method(*method)]
                for size in outcome.sizes:
                    marked = method in best[dataset, size, acquisition]
                    row.append(_cell(outcome, Setting(dataset, recipe, size, *method), marked))
                rows.append(row)
            groups.append((acquisition.upper(), rows))
        columns = ["", *(f"{size} tasks" for size in outcome.sizes)]
        parts.append(page.details(dataset_name(dataset), page.table(columns, groups)))
    return "\n".join(parts)


def _cell(outcome: Outcome, setting: Setting, best: bool) -> Td:
    standing = outcome.standings.get(setting)
    missing, failed = outcome.missing_runs(setting), outcome.failed_runs(setting)
    if standing is None:
        if failed:
            return Td("failed", (short(next(iter(failed.values()))),), "absent")
        return MISSING if missing else Td("not planned", kind="quiet")
    runs = counted(len(standing.runs), "run") if len(standing.runs) != most_runs(outcome) else ""
    lost = (f"{len(missing)} missing" if missing else "", f"{len(failed)} failed" if failed else "")
    decimals = gap_decimals(outcome, setting.dataset)
    return Td(
        f"{number(standing.gap, decimals)} ± {number(standing.error, decimals)}",
        (", ".join(filter(None, (runs, *lost))),),
        "best" if best else "",
    )


def failures_table(outcome: Outcome) -> str:
    """Every failed cell and why."""
    rows: list[Line] = [
        [str(cell), Td(error.strip() or NO_WORD, kind="left")] for cell, error in outcome.failed.items()
    ]
    return page.table(["cell", "error"], [("", rows)])


NO_WORD = "no word of why"


def short(error: str, most: int = 90) -> str:
    """The last line, which names what went wrong, cut to fit a square."""
    line = (error.strip().splitlines() or [NO_WORD])[-1]
    return line if len(line) <= most else line[: most - 1] + "…"


def _difference(result: Answer, decimals: int, usual: int) -> Td:
    if result is None:
        return MISSING
    if isinstance(result, UnpairedError):
        return Td("cannot be paired", (str(result),), "absent")
    runs = counted(len(result.runs), "run") if len(result.runs) != usual else ""
    if result.verdict == "the same":
        return Td(result.verdict, (runs,), "quiet")
    limits = f"{number(result.low, decimals)} to {number(result.high, decimals)}"
    words = ", ".join(filter(None, (result.verdict, runs)))
    kind = result.verdict if result.verdict in ("lower", "higher") else ""
    return Td(
        number(result.difference, decimals, sign=True),
        (words,) if result.verdict == "not known" else (limits, words),
        kind,
    )


def usual_runs(compared: Sequence[Compared]) -> int:
    """Of how many runs most comparisons are."""
    found = Counter(len(c.result.runs) for c in compared if isinstance(c.result, Comparison))
    return max(found, key=lambda runs: (found[runs], runs), default=0)


def most_runs(outcome: Outcome) -> int:
    """Of any setting."""
    return max((len(standing.runs) for standing in outcome.standings.values()), default=0)


def has_informed(outcome: Outcome) -> bool:
    return any(method == INFORMED for method, _ in outcome.methods)


def _usual_words(runs: int) -> str:
    return f"Over {counted(runs, 'run')} unless a square says otherwise." if runs else ""


def _method(method: str, acquisition: str = "") -> Td:
    return Td(method_name(method, acquisition), kind="ours" if method == OURS else "")


def provenance(outcome: Outcome) -> str:
    """The page's last section."""
    rows: list[list[Td | str]] = [[name, Td(value, kind="left")] for name, value in _facts(outcome).items() if value]
    return "\n".join(
        (
            "<h2 id='made'>How it was made</h2>",
            page.paragraph(
                f"All of this is computed from {ROWS} in this folder, one row a cell; its numbers are in cells.csv, "
                "comparisons.csv, figure4.csv and table1.csv beside this page, its figures as PNG and SVG."
            ),
            page.table(["", ""], [("", rows)]),
            _corpora(outcome.grid.get("corpora")),
        )
    )


def _facts(outcome: Outcome) -> dict[str, str]:
    rows = list(outcome.rows.values())
    seeds = sorted({(row.run, row.seed) for row in rows})
    versions: dict[str, set[str]] = {}
    for row in rows:
        for name, version in row.versions.items():
            versions.setdefault(name, set()).add(str(version))
    spent = computing_seconds(rows)
    time = f"{spent / 3600:,.1f} hours" if spent >= 3600 else f"{spent / 60:.1f} minutes"
    facts = {
        "command": str(outcome.grid.get("command", "")),
        "seed": str(outcome.grid.get("seed", "")),
        "seeds of runs": ", ".join(f"run {run}: {seed}" for run, seed in seeds),
        "commit": listed(sorted({row.commit or "unknown" for row in rows})),
        "versions": ", ".join(f"{name} {' and '.join(sorted(found))}" for name, found in sorted(versions.items())),
        "machine": listed(sorted({row.machine or "unknown" for row in rows if row.error is None})),
        "computing time": f"{time}, work that cells share counted once",
    }
    protocol = outcome.grid.get("protocol")
    if isinstance(protocol, Mapping):
        facts |= {str(name).replace("_", " "): _words(value) for name, value in protocol.items()}
    return facts


def computing_seconds(rows: Iterable[Row]) -> float:
    """Each piece of work once: rows share a kernel's likelihood, or a search that does not learn, as in `grid.plan`."""
    pieces: dict[Hashable, float] = {}
    for row in rows:
        for stage, seconds in row.seconds.items():
            piece: Hashable = (row.cell, stage)
            if row.method in UNTRAINED:
                piece = (row.method, row.dataset, row.run, stage)
            elif stage == "likelihood" and row.method in KERNEL_OF:
                piece = (KERNEL_OF[row.method], row.dataset, row.recipe, row.size, row.run)
            pieces[piece] = max(seconds, pieces.get(piece, 0.0))
    return sum(pieces.values())


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {inner}" for name, inner in value.items())
    return str(value)


def _corpora(corpora: Any) -> str:
    if not isinstance(corpora, Mapping) or not corpora:
        return ""
    rows: list[list[Td | str]] = []
    for name, corpus in corpora.items():
        facts = corpus if isinstance(corpus, Mapping) else {}
        paper = PUBLISHED[name].paper if name in PUBLISHED else None
        counts = [
            Td(_count(facts.get(key, NOTHING)), (f"paper: {_count(getattr(paper, key))}" if paper else "",))
            for key in ("documents", "terms")
        ]
        words = [Td(str(facts.get(key, NOTHING))[:16], kind="left") for key in ("form", "digest")]
        rows.append([dataset_name(str(name)), *counts, *words])
    return page.table(["corpus", "documents", "terms", "form", "digest"], [("", rows)])


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
