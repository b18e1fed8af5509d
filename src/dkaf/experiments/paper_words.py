"""What came out, in words computed from the rows, whichever way it came out."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dkaf.experiments.names import INFORMED, OURS, dataset_name, method_name, methods_in_order
from dkaf.experiments.outcome import Outcome
from dkaf.experiments.page import counted, decimals_of, listed, number
from dkaf.experiments.paper_tables import Compared, all_rivals, figure4_setting, usual_sizes, winners
from dkaf.experiments.statistics import Answer, Comparison, Setting, on_common_runs, query_curve, standing

MOST_ITEMS = 4


def gap_decimals(outcome: Outcome, dataset: str) -> int:
    """One number of decimals to a dataset, in all its tables."""
    return decimals_of(standing.gap for setting, standing in outcome.standings.items() if setting.dataset == dataset)


def completeness(outcome: Outcome) -> str:
    """How much of what was planned is there."""
    there = len(outcome.rows) - len(outcome.failed)
    planned = len(outcome.cells)
    if there == planned:
        return f"All {counted(planned, 'cell')} are there." if planned > 1 else "The only cell is there."
    lost = [
        f"{count:,} {what}"
        for count, what in ((len(outcome.missing), "missing"), (len(outcome.failed), "failed"))
        if count
    ]
    verb = "is" if there == 1 else "are"
    whole = f"{there:,} of {counted(planned, 'cell')} {verb} there, {listed(lost)}"
    return f"{whole}: what follows is of a part of the grid." if there else f"{whole}."


def absences(outcome: Outcome, settings: Sequence[Setting]) -> list[str]:
    """Sentences that name what a figure of these settings lacks."""
    missing = {setting: outcome.missing_runs(setting) for setting in settings}
    failed = {setting: sorted(outcome.failed_runs(setting)) for setting in settings}
    lines = [
        f"{word}: {'; '.join(places)}."
        for word, places in (("Missing", _places(outcome, missing)), ("Failed", _places(outcome, failed)))
        if places
    ]
    if any((missing[setting] or failed[setting]) and setting in outcome.standings for setting in settings):
        lines.append("A point of fewer runs is the mean of other test tasks than its neighbours.")
    return lines


def _places(outcome: Outcome, lacking: Mapping[Setting, Sequence[int]]) -> list[str]:
    """Which runs are lacking of which methods; what several methods or sizes lack alike is said once."""
    methods: dict[tuple[str, int, tuple[int, ...]], list[tuple[str, str]]] = {}
    for setting, runs in lacking.items():
        if runs:
            some = tuple(runs) if setting in outcome.standings else ()
            methods.setdefault((setting.dataset, setting.size, some), []).append((setting.method, setting.acquisition))
    sizes: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for (dataset, size, runs), lost in methods.items():
        shown = [(s.method, s.acquisition) for s in lacking if (s.dataset, s.size) == (dataset, size)]
        sizes.setdefault((dataset, _methods(lost, shown), runs), []).append(size)
    items = []
    for (dataset, names, runs), found in sizes.items():
        which = f"run{'s' if len(runs) > 1 else ''} {listed([str(run) for run in runs])} of " if runs else ""
        items.append(f"{dataset_name(dataset)} with {listed([str(n) for n in sorted(found)])} tasks, {which}{names}")
    more = [f"and {len(items) - MOST_ITEMS} more, see the table of all cells"] if len(items) > MOST_ITEMS else []
    return items[:MOST_ITEMS] + more


def _methods(lost: Sequence[tuple[str, str]], shown: Sequence[tuple[str, str]]) -> str:
    kept = methods_in_order(set(shown) - set(lost))
    if not kept:
        return "all methods"
    if len(kept) <= len(shown) // 3:
        return f"all methods but {listed(_together(kept, shown))}"
    return listed(_together(methods_in_order(lost), shown))


def _together(some: Sequence[tuple[str, str]], shown: Sequence[tuple[str, str]]) -> list[str]:
    """The name of a method alone where all its acquisitions are meant."""
    names: dict[str, None] = {}
    for method, acquisition in some:
        every = {pair for pair in shown if pair[0] == method} <= set(some)
        names[method_name(method, "" if every else acquisition)] = None
    return list(names)


@dataclass(frozen=True)
class Tally:
    """In how many comparisons a gap was lower, not told apart, the same, higher; in how many that is not known."""

    lower: int
    undecided: int
    same: int
    higher: int
    unknown: int

    @staticmethod
    def of(results: Iterable[Answer]) -> "Tally":
        found = Counter(result.verdict if isinstance(result, Comparison) else "not known" for result in results)
        return Tally(found["lower"], found["not told apart"], found["the same"], found["higher"], found["not known"])

    @property
    def known(self) -> int:
        return self.lower + self.undecided + self.same + self.higher


def tallies(outcome: Outcome, compared: Sequence[Compared]) -> dict[str, Tally]:
    """By rival, over datasets, sizes and acquisitions."""
    return {method: Tally.of(c.result for c in compared if c.second.method == method) for method in all_rivals(outcome)}


def findings(outcome: Outcome, recipe: str, against: Sequence[Compared], growth: Sequence[Compared]) -> list[str]:
    """A few sentences on one recipe."""
    return [
        line
        for line in (
            _lowest(outcome, recipe),
            _comparisons(outcome, against),
            _unchanged(outcome, recipe),
            _growth(growth, outcome),
            _queries(outcome, recipe),
            _informed(outcome, recipe),
        )
        if line
    ]


def _lowest(outcome: Outcome, recipe: str) -> str:
    contests = [
        methods
        for (dataset, size, acquisition), methods in winners(outcome, recipe).items()
        if Setting(dataset, recipe, size, OURS, acquisition) in outcome.standings
    ]
    if not contests:
        return "There is no row of ours yet, so nothing can be said about it."
    won = Counter(method for methods in contests for method, _ in methods)
    text = (
        f"Ours had the lowest mean gap in {won.pop(OURS, 0)} of {counted(len(contests), 'combination')} of dataset, "
        "number of training tasks and acquisition function"
    )
    others = [f"{method_name(method)} in {count}" for method, count in won.most_common()]
    ties = sum(len(methods) > 1 for methods in contests)
    aside = f" ({counted(ties, 'tie')}, which {'count' if ties > 1 else 'counts'} for each method)" if ties else ""
    return f"{text}; {listed(others)}{aside}." if others else f"{text}."


def _comparisons(outcome: Outcome, against: Sequence[Compared]) -> str:
    parts: list[str] = []
    for method, tally in tallies(outcome, against).items():
        if tally.known:
            rest = [
                f"{count} {what}"
                for count, what in (
                    (tally.undecided, "not told apart"),
                    (tally.same, "the same"),
                    (tally.higher, "higher"),
                )
                if count
            ]
            aside = f" ({listed(rest)})" if rest else ""
            noun = "" if parts else " combinations"
            parts.append(f"{method_name(method)} in {tally.lower} of {tally.known}{noun}{aside}")
    return f"Compared task by task, the gap of ours was lower than that of {listed(parts)}." if parts else ""


def _unchanged(outcome: Outcome, recipe: str) -> str:
    """Of the rows in which ours was trained further than DKL."""
    rows = [row for row in outcome.rows.values() if (row.recipe, row.method, row.error) == (recipe, OURS, None)]
    trained = [row for row in rows if row.updates]
    if not trained:
        return ""
    unchanged = sum(row.best_update == 0 for row in trained)
    if not unchanged:
        return f"In every cell of ours, of {len(trained):,}, what the policy gradient made of DKL was kept."
    return (
        f"In {unchanged:,} of {counted(len(trained), 'cell')} of ours what the policy gradient made of DKL was no "
        "better on the validation tasks and not kept, so ours is DKL there."
    )


def _growth(growth: Sequence[Compared], outcome: Outcome) -> str:
    sizes = usual_sizes(outcome, growth)
    parts: list[str] = []
    left_out = 0
    for method in dict.fromkeys(c.first.method for c in growth):
        known = [c for c in growth if c.first.method == method and isinstance(c.result, Comparison)]
        alike = [c for c in known if (c.second.size, c.first.size) == sizes]
        left_out += len(known) - len(alike)
        tally = Tally.of(c.result for c in alike)
        if tally.known:
            changes = [change for c in alike if (change := _relative(outcome, c)) is not None]
            aside = f" ({number(100 * float(np.mean(changes)), 0, True)}%)" if changes else ""
            noun = "" if parts else " combinations of dataset and acquisition function"
            parts.append(f"{method_name(method)} in {tally.lower} of {tally.known}{noun}{aside}")
    if not parts:
        return ""
    text = (
        f"From {sizes[0]} to {sizes[1]} training tasks, the gap became lower, told apart from no change, for "
        f"{listed(parts)}{'; in brackets the mean change' if '%' in ''.join(parts) else ''}."
    )
    verb = "is" if left_out == 1 else "are"
    return f"{text} {counted(left_out, 'comparison')} of other numbers {verb} left out here." if left_out else text


def _relative(outcome: Outcome, compared: Compared) -> float | None:
    """The difference as a share of the second setting's gap on the same runs; None if that is zero."""
    if not isinstance(compared.result, Comparison):
        return None
    base = standing([row for row in outcome.by_setting[compared.second] if row.run in compared.result.runs]).gap
    return compared.result.difference / base if base else None


def _queries(outcome: Outcome, recipe: str) -> str:
    size, acquisition = figure4_setting(outcome)
    parts = []
    for dataset in outcome.datasets:
        rows = on_common_runs(
            *(outcome.by_setting.get(Setting(dataset, recipe, size, m, acquisition), []) for m in (OURS, "dkl"))
        )
        if all(rows):
            ours, dkl = (query_curve(found)[0] for found in rows)
            decimals = gap_decimals(outcome, dataset)
            first, last = (f"{number(ours[q], decimals)} against {number(dkl[q], decimals)}" for q in (1, -1))
            parts.append(f"on {dataset_name(dataset)}, {first} after the first query and {last} after the last")
    if not parts:
        return ""
    setting = f"With {size} training tasks and {acquisition.upper()}"
    return f"{setting}, the gap of ours against that of DKL was, {'; '.join(parts)}."


def _informed(outcome: Outcome, recipe: str) -> str:
    size = outcome.sizes[-1]
    parts = []
    for dataset in outcome.datasets:
        settings = [Setting(dataset, recipe, size, OURS, acquisition) for acquisition in outcome.acquisitions]
        ours = [outcome.by_setting[setting] for setting in settings if setting in outcome.by_setting]
        knowing, *ours = on_common_runs(outcome.by_setting.get(Setting(dataset, recipe, size, INFORMED, ""), []), *ours)
        if knowing and ours:
            decimals = gap_decimals(outcome, dataset)
            best = min(standing(rows).gap for rows in ours)
            gaps = f"{number(standing(knowing).gap, decimals)} against {number(best, decimals)}"
            parts.append(f"{gaps} on {dataset_name(dataset)}")
    if not parts:
        return ""
    return (
        "A searcher that knows the hidden representation, against ours with its best acquisition function and "
        f"{size} training tasks: {listed(parts)}."
    )
