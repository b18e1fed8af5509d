"""The paper's grid: which cells there are, what work they share, and in which order it is done."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from dkaf.errors import InputError
from dkaf.experiments.names import UNTRAINED, WITH_ACQUISITION
from dkaf.experiments.rows import Cell
from dkaf.settings import ACQUISITIONS, METHODS, RECIPES, SEARCHERS, check_choice
from dkaf.settings import recipe as settings_of

KERNEL_OF = {"dkaf": "dkl", "dkl": "dkl", "gp": "gp", "metabo": "gp"}
"""Whose training by likelihood each method starts from."""
SLOWEST_FIRST = ("metabo", "rl", "botorch", "dkaf", "dkl", "gp", "informed", "random")


@dataclass(frozen=True)
class Grid:
    """Every cell of an experiment, and all that decides what comes out of it."""

    datasets: tuple[str, ...] = ("reuters", "neurips", "webkb")
    recipes: tuple[str, ...] = ("default",)
    sizes: tuple[int, ...] = (20, 40, 60, 80, 100)
    runs: int = 10
    methods: tuple[str, ...] = (*METHODS, "informed")
    acquisitions: tuple[str, ...] = ACQUISITIONS
    seed: int = 0
    """Run r draws its tasks and trains with seed + r."""
    pool_size: int = 500
    validation_tasks: int = 20
    test_tasks: int = 50
    starts: int = 8
    """Of each test task; a row has their mean. One alone is a noisy measure: docs/paper.md, note 19."""
    settings: tuple[tuple[str, str], ...] = ()
    """Overrides of the recipes, for every method."""

    def __post_init__(self) -> None:
        parts = {"datasets": self.datasets, "sizes": self.sizes, "methods": self.methods, "recipe": self.recipes}
        parts |= {"acquisitions": self.acquisitions, "set": tuple(name for name, _ in self.settings)}
        for what, values in parts.items():
            if len(set(values)) < len(values) or (not values and what != "set"):
                raise InputError(f"--{what} names at least one, each once; {','.join(map(str, values)) or 'none'} came")
        for method in self.methods:
            check_choice("--methods", method, SEARCHERS)
        for acquisition in self.acquisitions:
            check_choice("--acquisitions", acquisition, ACQUISITIONS)
        for name in self.recipes:
            check_choice("--recipe", name, tuple(RECIPES))
        numbers = {"--sizes": min(self.sizes), "--runs": self.runs, "--pool-size": self.pool_size}
        numbers |= {"--validation-tasks": self.validation_tasks, "--test-tasks": self.test_tasks}
        numbers |= {"--starts": self.starts}
        for option, number in numbers.items():
            if number < 1:
                raise InputError(f"{option} is at least 1, {number} came; raise it")
        for name, (method, acquisition) in product(self.recipes, self.variants):
            settings = self.settings_of(name, method, acquisition)  # refuses unknown or impossible settings
            if method == "botorch" and settings.initial == 0:
                raise InputError("method botorch starts from at least 1 point, initial is 0; raise it")
        self.pool_size_of(self.pool_size + 1)

    def pool_size_of(self, n_documents: int) -> int:
        """Candidates of a task: a small corpus gives pools of all that it has but the target."""
        settings, size = self.settings_of(self.recipes[0], "random", ""), min(self.pool_size, n_documents - 1)
        if settings.initial + settings.queries > size:
            raise InputError(
                f"pools of {size} do not fit {settings.queries} queries after {settings.initial} starting points; "
                "raise --pool-size, take a larger corpus, or lower queries"
            )
        return size

    @property
    def variants(self) -> tuple[tuple[str, str], ...]:
        """Methods with their acquisition functions; RL, MetaBO, Random and the informed searcher have none."""
        pairs: list[tuple[str, str]] = []
        for method in self.methods:
            if method in WITH_ACQUISITION:
                pairs += [(method, acquisition) for acquisition in self.acquisitions]
            else:
                pairs.append((method, "ei" if method == "botorch" else ""))
        return tuple(pairs)

    @property
    def cells(self) -> list[Cell]:
        """In the order they are run: one whole run of everything, then the next, so that parts are worth reading."""
        return [
            Cell(dataset, recipe, size, run, method, acquisition)
            for run, size, recipe, dataset in product(range(self.runs), self.sizes, self.recipes, self.datasets)
            for method, acquisition in sorted(self.variants, key=lambda pair: SLOWEST_FIRST.index(pair[0]))
        ]

    def seed_of(self, run: int) -> int:
        return self.seed + run

    def settings_of(self, recipe: str, method: str, acquisition: str) -> Any:
        """What a method is trained with; those beyond the paper's need the number of queries alone."""
        method = method if method in METHODS else "random"
        return settings_of(recipe, method, acquisition or "mi", **dict(self.settings))

    def describe(self, corpora: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """As JSON, for the folder: `cells` may grow, all else must agree for rows to belong together."""
        recipes = {
            name: {f"{m}-{a}" if a else m: dataclasses.asdict(self.settings_of(name, m, a)) for m, a in self.variants}
            for name in self.recipes
        }
        return {
            "format": "dkaf-grid-1",
            "cells": {
                "datasets": list(self.datasets),
                "recipes": list(self.recipes),
                "sizes": list(self.sizes),
                "runs": list(range(self.runs)),
                "methods": [list(pair) for pair in self.variants],
            },
            "seed": self.seed,
            "protocol": {
                "pool_size": self.pool_size,
                "validation_tasks": self.validation_tasks,
                "test_tasks": self.test_tasks,
                "starts": self.starts,
                "settings": dict(self.settings),
            },
            "corpora": corpora,
            "recipes": {
                name: {variant: _digest(settings) for variant, settings in of_methods.items()}
                for name, of_methods in recipes.items()
            },
        }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Job:
    """A piece of work for one worker. It ends in files that later jobs need, or in rows."""

    name: str
    kind: Literal["tasks", "kernel", "cell"]
    cell: Cell
    """The one it computes, or the first that needs it."""
    needs: tuple[str, ...]
    serves: tuple[Cell, ...] = ()
    """The cells that its row is for: a searcher that does not learn finds the same at every size."""


def plan(grid: Grid, missing: set[Cell]) -> list[Job]:
    """The jobs that fill the missing cells, shared work once, each after what it needs."""
    jobs: dict[str, Job] = {}
    for cell in grid.cells:
        if cell not in missing:
            continue
        tasks = f"tasks-{cell.dataset}-{cell.run}-{max(grid.sizes)}"
        jobs.setdefault(tasks, Job(tasks, "tasks", cell, (f"corpus-{cell.dataset}",)))
        needs: tuple[str, ...] = (tasks,)
        if cell.method in KERNEL_OF:
            family = KERNEL_OF[cell.method]
            kernel = f"kernel-{family}-{cell.recipe}-{cell.dataset}-{cell.size}-{cell.run}"
            jobs.setdefault(kernel, Job(kernel, "kernel", cell, needs))
            needs = (tasks, kernel)
        if cell.method in UNTRAINED:
            name = f"cell-{cell.method}-{cell.dataset}-{cell.run}"
            served = jobs[name].serves if name in jobs else ()
            jobs[name] = Job(name, "cell", cell, needs, (*served, cell))
        else:
            jobs[str(cell)] = Job(str(cell), "cell", cell, needs, (cell,))
    return list(jobs.values())
