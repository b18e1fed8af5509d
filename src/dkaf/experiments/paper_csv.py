"""The report's numbers as CSV, for whoever wants to make another figure of them."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from dkaf.experiments.outcome import Outcome
from dkaf.experiments.paper_tables import PAPER_MACHINE, Compared, figure4_settings, table1, winners
from dkaf.experiments.statistics import Comparison, Setting, UnpairedError, query_curve


def csv_bytes(records: Sequence[dict[str, Any]]) -> bytes:
    """Numbers with seven figures; what is not known is empty."""
    text = io.StringIO()
    if records:
        writer = csv.DictWriter(text, records[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _plain(value) for key, value in record.items()} for record in records)
    return text.getvalue().encode()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "" if value != value else f"{value:.7g}"
    return "" if value is None else value


def _columns(setting: Setting) -> dict[str, Any]:
    return {
        "dataset": setting.dataset,
        "recipe": setting.recipe,
        "training_tasks": setting.size,
        "method": setting.method,
        "acquisition": setting.acquisition,
    }


def cell_records(outcome: Outcome) -> list[dict[str, Any]]:
    """One a setting: what Figure 3 and the table of all cells show."""
    best: dict[Setting, list[str]] = {}
    for recipe in outcome.recipes:
        for (dataset, size, acquisition), methods in winners(outcome, recipe).items():
            for method in methods:
                best.setdefault(Setting(dataset, recipe, size, *method), []).append(acquisition)
    records = []
    for setting in outcome.settings:
        standing = outcome.standings.get(setting)
        failed = outcome.failed_runs(setting)
        records.append(
            _columns(setting)
            | {
                "gap": standing.gap if standing else None,
                "standard_error": standing.error if standing else None,
                "standard_error_over": standing.over if standing else None,
                "runs": len(standing.runs) if standing else 0,
                "runs_missing": len(outcome.missing_runs(setting)),
                "runs_failed": len(failed),
                "best_under": " ".join(best.get(setting, [])),
                "errors": "; ".join(f"run {run}: {error}" for run, error in failed.items()),
            }
        )
    return records


def comparison_records(compared: Sequence[Compared]) -> list[dict[str, Any]]:
    """Paired differences: the first setting's gap minus that of the one it is compared with."""
    records = []
    for one in compared:
        known = one.result if isinstance(one.result, Comparison) else None
        unknown = f"cannot be paired: {one.result}" if isinstance(one.result, UnpairedError) else "missing"
        records.append(
            _columns(one.first)
            | {f"other_{key}": value for key, value in _columns(one.second).items() if key != "dataset"}
            | {
                "difference": known.difference if known else None,
                "low": known.low if known else None,
                "high": known.high if known else None,
                "verdict": known.verdict if known else unknown,
                "runs": len(known.runs) if known else 0,
            }
        )
    return records


def figure4_records(outcome: Outcome) -> list[dict[str, Any]]:
    """The gap after each query, with the fewest training tasks."""
    records = []
    for setting in figure4_settings(outcome):
        rows = outcome.by_setting.get(setting)
        if rows:
            for query, (gap, error) in enumerate(zip(*query_curve(rows), strict=True)):
                records.append(
                    _columns(setting)
                    | {"query": query, "gap": float(gap), "standard_error": float(error), "runs": len(rows)}
                )
    return records


def table1_records(outcome: Outcome) -> list[dict[str, Any]]:
    """Training seconds here and in the paper."""
    return [
        {
            "recipe": timing.recipe,
            "training_tasks": timing.size,
            "dataset": timing.dataset,
            "method": timing.method,
            "seconds": timing.seconds,
            "rows": len(timing.rows),
            "machines": "; ".join(timing.machines),
            "paper_seconds": timing.paper,
            "paper_machine": PAPER_MACHINE if timing.paper else None,
        }
        for recipe in outcome.recipes
        for timing in table1(outcome, recipe)
    ]
