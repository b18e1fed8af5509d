"""Rows like those of the paper's grid, made up: for tests, and to look at a report without running a grid."""

import json
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path

import numpy as np

from dkaf.experiments.rows import Cell, Row, RowFile

METHODS = [(method, acquisition) for method in ("dkaf", "dkl", "gp") for acquisition in ("mi", "ei", "ucb")]
METHODS += [("rl", ""), ("metabo", ""), ("random", ""), ("botorch", "ei"), ("informed", "")]
LEVEL = {
    "dkaf": 0.42,
    "dkl": 0.5,
    "gp": 0.75,
    "rl": 0.8,
    "metabo": 0.6,
    "random": 1.0,
    "botorch": 0.72,
    "informed": 0.2,
}
GAIN = {"dkaf": 0.35, "dkl": 0.1, "gp": 0.02, "rl": 0.4, "metabo": 0.25}
SCALE = {"reuters": 9.0, "neurips": 14.0, "webkb": 6.0}
SECONDS = {"dkaf": 95.0, "dkl": 21.0, "gp": 8.0, "rl": 60.0, "metabo": 130.0}


def cells(
    datasets: Iterable[str] = ("reuters",),
    recipes: Iterable[str] = ("default",),
    sizes: Iterable[int] = (20, 60),
    runs: Iterable[int] = (0, 1),
    methods: Iterable[tuple[str, str]] = METHODS,
) -> list[Cell]:
    return [Cell(d, c, s, r, *m) for d, c, s, r, m in product(datasets, recipes, sizes, runs, methods)]


def made_up_row(cell: Cell, tasks: int = 6, queries: int = 10) -> Row:
    """The tasks of a run are the same for every method: easy and hard ones, and where each search starts."""
    number = int.from_bytes(cell.dataset.encode(), "little") % 1000
    of_run = np.random.default_rng([number, cell.run])
    scale = SCALE.get(cell.dataset, 4.0)
    hardness = scale * of_run.gamma(6, 1 / 6, size=tasks) * of_run.normal(1, 0.08)
    start = hardness * of_run.uniform(1.2, 2.2, size=tasks)
    fixed = cell.method in ("random", "botorch", "informed")
    own = np.random.default_rng([number, cell.run, 0 if fixed else cell.size, *cell.method.encode()])
    level = LEVEL.get(cell.method, 0.9) * (1 - GAIN.get(cell.method, 0.0) * (1 - 20 / cell.size) if not fixed else 1)
    level *= {"ei": 1.04, "ucb": 0.98}.get(cell.acquisition, 1.0) * (1.15 if cell.recipe == "paper" else 1.0)
    speed = np.exp(-np.arange(1, queries + 1) * (1.1 - level) / 2.5)
    noise = own.normal(0, 0.12, size=(tasks, queries)).cumsum(axis=1) / 3
    gaps = np.minimum.accumulate(np.maximum(0, hardness[:, None] * level * (0.35 + speed * 1.4 + noise)), axis=1)
    training = SECONDS.get(cell.method, 0.0) * cell.size / 100 * own.uniform(0.9, 1.1)
    return Row(
        dataset=cell.dataset,
        recipe=cell.recipe,
        size=cell.size,
        run=cell.run,
        method=cell.method,
        acquisition=cell.acquisition,
        seed=cell.run,
        gaps=np.minimum(gaps, start[:, None]).tolist(),
        start_gaps=start.tolist(),
        seconds={"likelihood": training / 4, "policy gradient": training * 3 / 4, "search": 0.5},
        updates=300 if cell.method in ("dkaf", "rl", "metabo") else 0,
        best_update=120 if cell.method in ("dkaf", "rl", "metabo") else 0,
        versions={"dkaf": "0.1.0", "torch": "2.6.0"},
        commit="0123456789abcdef",
        machine="one machine, 2 cores",
    )


def write_folder(
    folder: Path, planned: list[Cell], change: Callable[[Row], Row | None] = lambda row: row, *, plan: bool = True
) -> Path:
    """A grid's folder: `change` may alter a row or leave it out."""
    folder.mkdir(exist_ok=True)
    made = [change(made_up_row(cell, tasks=6)) for cell in planned]
    RowFile(folder / "rows.jsonl").append([row for row in made if row is not None])
    if plan:
        (folder / "grid.json").write_text(json.dumps(grid_json(planned)))
    return folder


def grid_json(planned: list[Cell]) -> dict[str, object]:
    datasets = list(dict.fromkeys(cell.dataset for cell in planned))
    return {
        "cells": {
            "datasets": datasets,
            "recipes": list(dict.fromkeys(cell.recipe for cell in planned)),
            "sizes": list(dict.fromkeys(cell.size for cell in planned)),
            "runs": list(dict.fromkeys(cell.run for cell in planned)),
            "methods": list(dict.fromkeys((cell.method, cell.acquisition) for cell in planned)),
        },
        "command": "dkaf paper run --out runs/paper --recipe default,paper",
        "seed": 0,
        "protocol": {"pool_size": 500, "validation_tasks": 20, "test_tasks": 50, "settings": {}},
        "corpora": {d: {"digest": "ab" * 32, "documents": 1909, "terms": 799, "form": "paper"} for d in datasets},
    }
