"""What came out, in words computed from the rows, whichever way it came out."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dkaf.experiments.names import INFORMED, OURS, dataset_name, method_name, methods_in_order
from dkaf.experiments.outcome import Outcome
from dkaf.experiments.paper_tables import Compared, all_rivals, best_methods, figure4_setting
from dkaf.experiments.statistics import VERDICTS, Answer, Comparison, Setting, query_curve

MOST_ITEMS = 8
NOTHING = "\N{EN DASH}"


def number(value: float, decimals: int, sign: bool = False) -> str:
    """With a minus sign as long as the plus; what is no number is a dash.

    >>> number(1.234, 2), number(0.5, 1, sign=True)
    ('1.23', '+0.5')
    """
    if math.isnan(value):
        return NOTHING
    return f"{value:{'+' if sign else ''}.{decimals}f}".replace("-", "\N{MINUS SIGN}")


def decimals_of(gaps: Iterable[float]) -> int:
    """Decimals that show three figures of a typical gap, two at least.

    >>> decimals_of([3.2, 14.1]), decimals_of([0.02, 0.03]), decimals_of([])
    (2, 4, 2)
    """
    positive = [gap for gap in gaps if gap > 0]
    return int(np.clip(2 - math.floor(math.log10(np.median(positive))), 2, 8)) if positive else 2


def gap_decimals(outcome: Outcome, dataset: str) -> int:
    """One number of decimals to a dataset, in all its tables."""
    return decimals_of(standing.gap for setting, standing in outcome.standings.items() if setting.dataset == dataset)


def listed(items: Sequence[str]) -> str:
    """One after the other, the last after "and".

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))


def counted(count: int, noun: str) -> str:
    """With the noun's number.

    >>> counted(1, "run"), counted(1350, "cell")
    ('1 run', '1,350 cells')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def completeness(outcome: Outcome) -> str:
    """How much of what was planned is there."""
    there = len(outcome.rows) - len(outcome.failed)
    planned = len(outcome.cells)
    if there == planned:
        return f"All {counted(planned, 'cell')} are there."
    lost = [
        f"{count:,} {what}"
        for count, what in ((len(outcome.missing), "missing"), (len(outcome.failed), "failed"))
        if count
    ]
    return f"{there:,} of {counted(planned, 'cell')} are there, {listed(lost)}: what follows is of a part of the grid."


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
    """In how many comparisons a gap was lower, not told apart, higher; and in how many that is not known."""

    lower: int
    undecided: int
    higher: int
    unknown: int

    @staticmethod
    def of(results: Iterable[Answer]) -> "Tally":
        found = Counter(result.verdict if isinstance(result, Comparison) else "" for result in results)
        return Tally(*(found[verdict] for verdict in (*VERDICTS, "")))

    @property
    def known(self) -> int:
        return self.lower + self.undecided + self.higher


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
            _growth(growth, outcome),
            _queries(outcome, recipe),
            _informed(outcome, recipe),
        )
        if line
    ]


def _lowest(outcome: Outcome, recipe: str) -> str:
    winners: Counter[str] = Counter()
    contests = 0
    for dataset in outcome.datasets:
        for size in outcome.sizes:
            for acquisition in outcome.acquisitions:
                if Setting(dataset, recipe, size, OURS, acquisition) in outcome.standings:
                    contests += 1
                    winners.update(m for m, _ in best_methods(outcome, dataset, recipe, size, acquisition))
    if not contests:
        return "There is no row of ours yet, so nothing can be said about it."
    text = (
        f"Ours had the lowest mean gap in {winners.pop(OURS, 0)} of {counted(contests, 'combination')} of dataset, "
        "number of training tasks and acquisition function"
    )
    others = [f"{method_name(method)} in {count}" for method, count in winners.most_common()]
    return f"{text}; {listed(others)}." if others else f"{text}."


def _comparisons(outcome: Outcome, against: Sequence[Compared]) -> str:
    parts: list[str] = []
    for method, tally in tallies(outcome, against).items():
        if tally.known:
            rest = [
                f"{count} {what}"
                for count, what in ((tally.undecided, "not told apart"), (tally.higher, "higher"))
                if count
            ]
            aside = f" ({listed(rest)})" if rest else ""
            noun = "" if parts else " combinations"
            parts.append(f"{method_name(method)} in {tally.lower} of {tally.known}{noun}{aside}")
    return f"Compared task by task, the gap of ours was lower than that of {listed(parts)}." if parts else ""


def _growth(growth: Sequence[Compared], outcome: Outcome) -> str:
    parts = []
    for method in dict.fromkeys(c.first.method for c in growth):
        known = [(c, c.result) for c in growth if c.first.method == method and isinstance(c.result, Comparison)]
        if known:
            tally = Tally.of(result for _, result in known)
            change = float(np.mean([result.difference / outcome.standings[c.second].gap for c, result in known]))
            parts.append(f"{method_name(method)} in {tally.lower} of {tally.known} ({number(100 * change, 0, True)}%)")
    if not parts:
        return ""
    sizes = sorted({size for c in growth for size in (c.first.size, c.second.size)})
    return (
        f"From {sizes[0]} to {sizes[-1]} training tasks, the gap became lower, told apart from no change, for "
        f"{listed(parts)} combinations of dataset and acquisition function; in brackets the mean change."
    )


def _queries(outcome: Outcome, recipe: str) -> str:
    size, acquisition = figure4_setting(outcome)
    parts = []
    for dataset in outcome.datasets:
        rows = [outcome.by_setting.get(Setting(dataset, recipe, size, method, acquisition)) for method in (OURS, "dkl")]
        if rows[0] and rows[1]:
            ours, dkl = (query_curve(found)[0] for found in rows if found)
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
        informed = outcome.standings.get(Setting(dataset, recipe, size, INFORMED, ""))
        ours = [
            standing.gap
            for acquisition in outcome.acquisitions
            if (standing := outcome.standings.get(Setting(dataset, recipe, size, OURS, acquisition)))
        ]
        if informed and ours:
            decimals = gap_decimals(outcome, dataset)
            gaps = f"{number(informed.gap, decimals)} against {number(min(ours), decimals)}"
            parts.append(f"{gaps} on {dataset_name(dataset)}")
    if not parts:
        return ""
    return (
        "A searcher that knows the hidden representation, against ours with its best acquisition function and "
        f"{size} training tasks: {listed(parts)}."
    )
