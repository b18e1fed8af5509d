"""Data on which no setting was chosen: does what was chosen elsewhere carry over?

    python -m benchmarks.confirm digits cancer molecules=moleculeace.tar.xz --out runs/confirm

Digits and breast cancer come with scikit-learn; their tasks are the paper's, of a classifier's representation. The
molecules are the 30 assays of MoleculeACE (a file of their CSV tables, as tar; needs `dkaf[chem]`): potency is to be
maximised, and whole assays are held out, so that a search is made on a target that no training task measured.
Every method is trained and searches as in the paper's grid; rows go to a file as they come, and what is there is not
run again.
"""

import argparse
import csv
import io
import json
import tarfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.datasets import load_breast_cancer

import dkaf
from dkaf.allocator import keep_freed_memory
from dkaf.errors import FallbackWarning
from dkaf.evaluation import standard_error
from dkaf.settings import ACQUISITIONS

Split = tuple[dkaf.TaskSet, dkaf.TaskSet, dkaf.TaskSet]
STARTS = 4
FOLDS = 3
POTENCY = "y [pEC50/pKi]"
POOLS_AN_ASSAY = 5
METHODS = [("dkaf", "auto"), *((m, a) for m in ("dkaf", "dkl", "gp") for a in ACQUISITIONS), ("random", "mi")]


def digits(seed: int) -> Split:
    train, validation, test = dkaf.digits_tasks(170, 500, seed=100 + seed).split(100, 20, 50)
    return train, validation, test


def cancer(seed: int) -> Split:
    features, labels = load_breast_cancer(return_X_y=True)
    tasks = dkaf.similarity_tasks(features, labels, n_tasks=170, pool_size=300, seed=seed)
    train, validation, test = tasks.split(100, 20, 50)
    return train, validation, test


def molecules(archive: str, seed: int) -> Split:
    """Assays in turn: a third is searched, a sixth says when to stop, the others train. Five pools of each."""
    assays = sorted(_assays(archive), key=lambda assay: assay[0])
    order = np.random.default_rng(0).permutation(len(assays))  # the folds are parts of one order
    third = len(assays) // FOLDS
    order = np.roll(order, -seed * third)
    smiles = [text for _, texts, _ in assays for text in texts]
    features = dkaf.morgan_fingerprints(smiles)
    first = np.cumsum([0, *(len(texts) for _, texts, _ in assays)])
    draw = np.random.default_rng(seed)

    def tasks(numbers: Any) -> dkaf.TaskSet:
        pools, responses = [], []
        for number in numbers:
            potency = assays[number][2]
            for _ in range(POOLS_AN_ASSAY):
                some = draw.permutation(len(potency))[:500]
                pools.append(first[number] + some)
                responses.append(potency[some])
        return dkaf.TaskSet.from_arrays(sp.csr_array(features), pools, responses)

    test, validation, train = order[:third], order[third : third + len(assays) // 6], order[third + len(assays) // 6 :]
    return tasks(train), tasks(validation), tasks(test)


def _assays(archive: str) -> Iterator[tuple[str, list[str], Any]]:
    with tarfile.open(archive) as tables:
        for member in tables:
            file = tables.extractfile(member) if member.isfile() and member.name.endswith(".csv") else None
            if file is not None:
                rows = list(csv.DictReader(io.TextIOWrapper(file, "utf-8")))
                yield member.name, [row["smiles"] for row in rows], np.array([float(row[POTENCY]) for row in rows])


SOURCES: dict[str, Callable[..., Split]] = {"digits": digits, "cancer": cancer, "molecules": molecules}


def run(job: tuple[str, int]) -> list[dict[str, Any]]:
    """All methods on the tasks of one seed; one kernel for all that start from it."""
    name, seed = job
    torch.set_num_threads(1)
    keep_freed_memory()
    source, _, file = name.partition("=")
    make = partial(molecules, file) if source == "molecules" else SOURCES[source]
    train, validation, test = make(seed)
    kernels: dict[str, dkaf.Policy] = {}
    rows = []
    for method, acquisition in METHODS:
        kernel = "dkl" if method in ("dkaf", "dkl") else "gp"
        if method != "random" and kernel not in kernels:
            kernels[kernel] = dkaf.fit(train, validation, kernel, "ucb", seed=seed)
        start = None if method == "random" else kernels[kernel]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)  # the row says what was returned
            policy = dkaf.fit(train, validation, method, acquisition, seed=seed, pretrained=start)
        result = dkaf.evaluate(policy, test, starts=STARTS, seed=seed)
        rows.append(
            {
                "data": source,
                "seed": seed,
                "method": method,
                "acquisition": acquisition,
                "returned": f"{policy.method}-{policy.acquisition}",
                "best_update": policy.training_log.best_update,
                "training": policy.training_log.in_words(),
                "gap": result.cumulative_gap,
                "first": float(result.gaps[:, 0].mean()),
                "task_gaps": result.task_gaps.tolist(),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Mean gaps, the first query's, and ours minus others, paired over tasks."""
    lines = [
        "| data | search | gap | after one query | minus DKL of the same acquisition | minus the best GP's |",
        "|---|---|---|---|---|---|",
    ]
    for data in dict.fromkeys(row["data"] for row in rows):
        here = [row for row in rows if row["data"] == data]
        gaps = {
            key: np.concatenate([row["task_gaps"] for row in here if (row["method"], row["acquisition"]) == key])
            for key in METHODS
        }
        best = {m: min((k for k in METHODS if k[0] == m), key=lambda k: gaps[k].mean()) for m in ("dkl", "gp")}
        for key in METHODS:
            first = np.mean([row["first"] for row in here if (row["method"], row["acquisition"]) == key])
            same = ("dkl", key[1]) if key[1] != "auto" else best["dkl"]
            against = ["", ""]
            if key[0] == "dkaf":
                against = [_difference(gaps[key], gaps[other]) for other in (same, best["gp"])]
            name = key[0] if key[0] == "random" else f"{key[0]}, {key[1]}"
            lines.append(
                f"| {data} | {name} | {gaps[key].mean():.3g} ± {standard_error(gaps[key]):.2g} | {first:.3g} | "
                + " | ".join(against)
                + " |"
            )
    return "\n".join(lines)


def _difference(ours: Any, theirs: Any) -> str:
    difference = ours - theirs
    return f"{difference.mean():+.2g} ± {standard_error(difference):.2g}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Confirm the recipe on data that no setting was chosen on.")
    parser.add_argument("data", nargs="+", metavar="DATA", help="digits, cancer, molecules=FILE")
    parser.add_argument("--seeds", type=int, default=FOLDS, help="(%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the rows go")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "rows.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(row["data"], row["seed"]) for row in rows}
    jobs = [
        (name, seed)
        for seed in range(options.seeds)
        for name in options.data
        if (name.partition("=")[0], seed) not in done
    ]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as workers, file.open("a") as output:
        for job, new in zip(jobs, workers.map(run, jobs), strict=True):
            rows += new
            output.writelines(json.dumps(row) + "\n" for row in new)
            output.flush()
            print(f"{job[0].partition('=')[0]}, seed {job[1]}: done", flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
