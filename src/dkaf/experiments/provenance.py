"""How the rows of a report were made: the command, seeds, commits, versions, machines and corpora."""

from collections.abc import Mapping
from typing import Any

from dkaf.experiments import page
from dkaf.experiments.names import dataset_name
from dkaf.experiments.outcome import ROWS, Outcome
from dkaf.experiments.page import Td
from dkaf.experiments.paper_words import NOTHING, listed

# What the paper says its corpora have: documents, terms.
PAPER_CORPORA = {"reuters": (1909, 799), "neurips": (592, 1655), "webkb": (3264, 1365)}


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
        "time of all cells": f"{spent / 3600:,.1f} hours",
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
        documents, terms = PAPER_CORPORA.get(str(name), (NOTHING, NOTHING))
        rows.append(
            [
                dataset_name(str(name)),
                *(
                    Td(_count(facts.get(key, NOTHING)), f"paper: {_count(paper)}")
                    for key, paper in (("documents", documents), ("terms", terms))
                ),
                Td(str(facts.get("form", NOTHING)), kind="left"),
                Td(str(facts.get("digest", NOTHING))[:16], kind="left"),
            ]
        )
    return page.table(["corpus", "documents", "terms", "form", "digest"], [("", rows)])


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
