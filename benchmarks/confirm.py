"""Data on which no setting was chosen: does what was chosen elsewhere carry over?

    python -m benchmarks.confirm digits cancer molecules=moleculeace.tar.xz --out runs/confirm
    python -m benchmarks.confirm past-5 past-10 past-20 past-50 past-100 noise-0.25 noise-1 unrelated --out runs/help

Digits and breast cancer come with scikit-learn; their tasks are the paper's, of a classifier's representation. The
molecules are the 30 assays of MoleculeACE (a file of their CSV tables, as tar; needs `dkaf[chem]`): potency is to be
maximised, and whole assays are held out, so that a search is made on a target that no training task measured.

The second line asks when it helps, on digits: with few past tasks, one in six of which is held out to choose by; with
noise on all responses, its deviation in units of theirs (gaps are those of the true responses); and with 60 past tasks
that say nothing of each other, since each has a representation of its own, made at random.

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
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.datasets import load_breast_cancer

import dkaf
from dkaf.allocator import keep_freed_memory
from dkaf.errors import FallbackWarning
from dkaf.evaluation import result_of, standard_error
from dkaf.settings import ACQUISITIONS

STARTS = 4
FOLDS = 3
POTENCY = "y [pEC50/pKi]"
POOLS_AN_ASSAY = 5
METHODS = [*((m, a) for m in ("dkaf", "dkl", "gp") for a in ("auto", *ACQUISITIONS)), ("random", "mi")]


COMPARED = ("digits", "cancer", "molecules")
CHOSEN = [("dkaf", "auto"), ("dkl", "auto"), ("gp", "auto"), ("random", "mi")]


class Data(NamedTuple):
    """Past tasks, and those to search; `truth` has what their responses are free of noise.

    Of the tasks to search, `together` in a row are pools of one assay, and count once.
    """

    train: dkaf.TaskSet
    validation: dkaf.TaskSet
    test: dkaf.TaskSet
    truth: dkaf.TaskSet
    together: int = 1


def digits(seed: int) -> Data:
    return past("120", seed)


def past(number: str, seed: int) -> Data:
    """So many past tasks of the digits, one in six of them held out."""
    total = int(number)
    held_out = max(1, total // 6)
    test, validation, train, _ = dkaf.digits_tasks(170, 500, seed=100 + seed).split(
        50, held_out, total - held_out, 120 - total
    )
    return Data(train, validation, test, test)


def noise(deviation: str, seed: int) -> Data:
    clean, draw = past("60", seed), np.random.default_rng(seed)
    scale = float(deviation) * np.concatenate(clean.train.responses).std()

    def noisy(tasks: dkaf.TaskSet) -> dkaf.TaskSet:
        responses = [y + scale * draw.normal(size=len(y)) for y in tasks.responses]
        return dkaf.TaskSet.from_arrays(tasks.features, tasks.pools, responses)

    return Data(noisy(clean.train), noisy(clean.validation), noisy(clean.test), clean.test)


def unrelated(seed: int) -> Data:
    """Distances in a random projection of the features to five values, another one in every task."""
    related, draw = past("60", seed), np.random.default_rng(seed)

    def strange(tasks: dkaf.TaskSet) -> dkaf.TaskSet:
        features = np.asarray(tasks.features)
        responses = []
        for pool in tasks.pools:
            hidden = np.tanh(features @ draw.normal(scale=0.02, size=(features.shape[1], 5)))
            responses.append(-np.linalg.norm(hidden[pool] - hidden[draw.integers(len(features))], axis=1))
        return dkaf.TaskSet.from_arrays(features, tasks.pools, responses)

    test = strange(related.test)
    return Data(strange(related.train), strange(related.validation), test, test)


def cancer(seed: int) -> Data:
    features, labels = load_breast_cancer(return_X_y=True)
    tasks = dkaf.similarity_tasks(features, labels, n_tasks=170, pool_size=300, seed=seed)
    train, validation, test = tasks.split(100, 20, 50)
    return Data(train, validation, test, test)


def molecules(archive: str, fold: int) -> Data:
    """Targets in turn: a third is searched, a sixth says when to stop, the others train. Five pools of each assay."""
    if fold >= FOLDS:
        raise SystemExit(f"the molecules have {FOLDS} folds; lower --seeds")
    assays = sorted(_assays(archive), key=lambda assay: assay[0])
    of_target: dict[str, list[int]] = {}
    for number, (name, _, _) in enumerate(assays):
        of_target.setdefault(Path(name).stem.partition("_")[0], []).append(number)
    targets = np.random.default_rng(0).permutation(sorted(of_target))  # the folds are parts of one order
    third = len(targets) // FOLDS
    targets = np.roll(targets, -fold * third)
    smiles = [text for _, texts, _ in assays for text in texts]
    features = dkaf.morgan_fingerprints(smiles)
    first = np.cumsum([0, *(len(texts) for _, texts, _ in assays)])
    draw = np.random.default_rng(fold)

    def tasks(some: Any) -> dkaf.TaskSet:
        pools, responses = [], []
        for number in [number for target in some for number in of_target[target]]:
            potency = assays[number][2]
            for _ in range(POOLS_AN_ASSAY):
                rows = draw.permutation(len(potency))[:500]
                pools.append(first[number] + rows)
                responses.append(potency[rows])
        return dkaf.TaskSet.from_arrays(sp.csr_array(features), pools, responses)

    sixth = third + len(targets) // 6
    searched = tasks(targets[:third])
    return Data(tasks(targets[sixth:]), tasks(targets[third:sixth]), searched, searched, POOLS_AN_ASSAY)


def _assays(archive: str) -> Iterator[tuple[str, list[str], Any]]:
    with tarfile.open(archive) as tables:
        for member in tables:
            file = tables.extractfile(member) if member.isfile() and member.name.endswith(".csv") else None
            if file is not None:
                rows = list(csv.DictReader(io.TextIOWrapper(file, "utf-8")))
                yield member.name, [row["smiles"] for row in rows], np.array([float(row[POTENCY]) for row in rows])


# What is named, and what is named with a value: molecules=FILE, past-20.
ALONE: dict[str, Callable[[int], Data]] = {"digits": digits, "cancer": cancer, "unrelated": unrelated}
WITH: dict[str, Callable[[str, int], Data]] = {"molecules=": molecules, "past-": past, "noise-": noise}


def data_of(name: str, seed: int) -> Data:
    if name in ALONE:
        return ALONE[name](seed)
    for start, make in WITH.items():
        if name.startswith(start):
            return make(name.removeprefix(start), seed)
    raise ValueError(name)


def _label(name: str) -> str:
    return name.partition("=")[0]


def run(job: tuple[str, int]) -> list[dict[str, Any]]:
    """All methods on the tasks of one seed; one kernel for all that start from it."""
    name, seed = job
    torch.set_num_threads(1)
    keep_freed_memory()
    train, validation, test, truth, together = data_of(name, seed)
    kernels: dict[str, dkaf.Policy] = {}
    rows = []
    for method, acquisition in METHODS if _label(name) in COMPARED else CHOSEN:
        kernel = "dkl" if method in ("dkaf", "dkl") else "gp"
        if method != "random" and kernel not in kernels:
            kernels[kernel] = dkaf.fit(train, validation, kernel, "ucb", seed=seed)
        start = None if method == "random" else kernels[kernel]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)  # the row says what was returned
            policy = dkaf.fit(train, validation, method, acquisition, seed=seed, pretrained=start)
        searched = dkaf.evaluate(policy, test, starts=STARTS, seed=seed)
        result = result_of(truth, searched.chosen, initial=1, starts=STARTS)
        rows.append(
            {
                "data": _label(name),
                "seed": seed,
                "method": method,
                "acquisition": acquisition,
                "returned": f"{policy.method}-{policy.acquisition}",
                "best_update": policy.training_log.best_update,
                "training": policy.training_log.in_words(),
                "gap": result.cumulative_gap,
                "first": float(result.gaps[:, 0].mean()),
                "task_gaps": result.task_gaps.reshape(-1, together).mean(axis=1).tolist(),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Mean gaps, the first query's, and ours minus others', paired over tasks."""
    lines = [
        "| data | search | gap | after one query | minus DKL's | minus GP's | minus Random's |",
        "|---|---|---|---|---|---|---|",
    ]
    for data in dict.fromkeys(row["data"] for row in rows):
        here: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in rows:
            if row["data"] == data:
                here.setdefault((row["method"], row["acquisition"]), []).append(row)
        gaps = {key: np.concatenate([row["task_gaps"] for row in some]) for key, some in here.items()}
        for (method, acquisition), ours in gaps.items():
            against = [""] * 3
            if method == "dkaf":
                others = (("dkl", acquisition), ("gp", acquisition), ("random", "mi"))
                against = [_difference(ours, gaps[other]) for other in others]
            first = np.mean([row["first"] for row in here[method, acquisition]])
            name = method if method == "random" else f"{method}, {acquisition}"
            lines.append(
                f"| {data} | {name} | {ours.mean():.3g} ± {standard_error(ours):.2g} | {first:.3g} | "
                + " | ".join(against)
                + " |"
            )
    return "\n".join(lines)


def _difference(ours: Any, theirs: Any) -> str:
    difference = ours - theirs
    return f"{difference.mean():+.2g} ± {standard_error(difference):.2g}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Confirm the recipe on data that no setting was chosen on.")
    parser.add_argument(
        "data", nargs="+", metavar="DATA", help="digits, cancer, molecules=FILE; past-N, noise-X, unrelated"
    )
    parser.add_argument("--seeds", type=int, default=FOLDS, help="(%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the rows go")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "rows.jsonl"
    rows = [row for line in file.read_text().splitlines() for row in json.loads(line)] if file.exists() else []
    done = {(row["data"], row["seed"]) for row in rows}
    for name in options.data:
        if name not in ALONE and not name.startswith(tuple(WITH)):
            parser.error(f"DATA is one of {', '.join([*ALONE, *WITH])}; {name} came")
    jobs = [(name, seed) for seed in range(options.seeds) for name in options.data if (_label(name), seed) not in done]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as workers, file.open("a") as output:
        for job, new in zip(jobs, workers.map(run, jobs), strict=True):
            rows += new
            output.write(json.dumps(new) + "\n")  # one line a job
            output.flush()
            print(f"{_label(job[0])}, seed {job[1]}: done", flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
