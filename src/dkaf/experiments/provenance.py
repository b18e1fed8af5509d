"""How the rows of a report were made: the command, seeds, commits, versions, machines and corpora."""

from collections.abc import Mapping
from typing import Any

from dkaf.experiments import page
from dkaf.experiments.names import dataset_name
from dkaf.experiments.outcome import ROWS, Outcome
from dkaf.experiments.page import Td
from dkaf.experiments.paper_words import NOTHING, listed

# As the paper counts them; it calls the first one 20News there.
PAPER_CORPORA = {
    "reuters": {"documents": 1909, "terms": 799},
    "neurips": {"documents": 592, "terms": 1655},
    "webkb": {"documents": 3264, "terms": 1365},
}


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
    spent = sum(sum(row.seconds.values()) for row in rows)
    facts = {
        "command": str(outcome.grid.get("command", "")),
        "seed": str(outcome.grid.get("seed", "")),
        "seeds of runs": ", ".join(f"run {run}: {seed}" for run, seed in seeds),
        "commit": listed(sorted({row.commit or "unknown" for row in rows})),
        "versions": ", ".join(f"{name} {' and '.join(sorted(found))}" for name, found in sorted(versions.items())),
        "machine": listed(sorted({row.machine or "unknown" for row in rows if row.error is None})),
        "time of all cells": f"{spent / 3600:,.1f} hours" if spent >= 3600 else f"{spent / 60:.1f} minutes",
    }
    protocol = outcome.grid.get("protocol")
    if isinstance(protocol, Mapping):
        facts |= {str(name).replace("_", " "): _words(value) for name, value in protocol.items()}
    return facts


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
        paper = PAPER_CORPORA.get(str(name), {})
        counts = [
            Td(_count(facts.get(key, NOTHING)), (f"paper: {_count(paper[key])}" if paper else "",))
            for key in ("documents", "terms")
        ]
        words = [Td(str(facts.get(key, NOTHING))[:16], kind="left") for key in ("form", "digest")]
        rows.append([dataset_name(str(name)), *counts, *words])
    return page.table(["corpus", "documents", "terms", "form", "digest"], [("", rows)])


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
