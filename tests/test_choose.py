"""`acquisition="auto"`: what is returned, and what is said of it."""

import time
import warnings
from pathlib import Path
from typing import Any

import conformance
import numpy as np
import pytest
import torch

import dkaf
from dkaf.errors import DivergedError, FallbackWarning
from dkaf.learning import choose
from dkaf.learning import fit as fit_module
from dkaf.learning.choose import gap_on
from dkaf.settings import ACQUISITIONS

SMALL = conformance.TINY | {"queries": 3}


def smooth_tasks(n_tasks: int = 6, size: int = 25) -> dkaf.TaskSet:
    """A plain Gaussian process searches these well, and nothing carries over from one to the next."""
    draw = np.random.default_rng(0)
    features = draw.uniform(-1, 1, size=(200, 2))
    pools = [draw.permutation(200)[:size] for _ in range(n_tasks)]
    optima = draw.uniform(-1, 1, size=(n_tasks, 2))
    responses = [-((features[pool] - optimum) ** 2).sum(axis=1) for pool, optimum in zip(pools, optima, strict=True)]
    return dkaf.TaskSet.from_arrays(features, pools, responses)


@pytest.mark.parametrize("method", ["dkaf", "dkl", "gp"])
def test_auto_returns_the_smallest_validation_gap_of_all_it_tried(method: str) -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20, 20))
    train, validation = tasks.split(2, 2)
    policy = dkaf.fit(train, validation, method, **SMALL)
    tried = dict(policy.training_log.tried)
    assert list(tried) == [*ACQUISITIONS, *(("gp", "random") if method == "dkaf" else ())]
    assert gap_on(policy, validation, 0) == pytest.approx(min(tried.values()))
    for acquisition in ACQUISITIONS:
        alone = dkaf.fit(train, validation, method, acquisition, **SMALL)
        assert gap_on(alone, validation, 0) == pytest.approx(tried[acquisition])
    assert "validation gaps mi " in policy.training_log.in_words()


def test_without_validation_tasks_auto_is_ucb() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20))
    policy = dkaf.fit(tasks, **SMALL)
    assert (policy.method, policy.acquisition, policy.training_log.tried) == ("dkaf", "ucb", ())


def test_methods_without_an_acquisition_have_nothing_to_choose() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20))
    assert dkaf.fit(tasks, tasks, "rl", **SMALL).training_log.tried == ()


def test_where_past_tasks_say_nothing_a_plain_gaussian_process_is_returned_and_said() -> None:
    train, validation = smooth_tasks().split(3, 3)
    untrained = {"pretrain_updates": 0, "updates": 0, "queries": 5, "validation_starts": 8}
    with pytest.warns(FallbackWarning, match="a Gaussian process on the features alone .* that is returned"):
        policy = dkaf.fit(train, validation, **untrained)
    assert policy.method == "gp"
    assert min(policy.training_log.tried, key=lambda pair: pair[1])[0] == "gp"


def test_where_nothing_helps_chance_is_returned_and_said() -> None:
    # Past tasks say: the larger x, the better. In the new ones the best lie where nobody would look.
    features = np.linspace(-1, 1, 60)[:, None] * np.ones((1, 2))
    rising = features[:, 0]
    hidden = np.where((rising > -0.6) & (rising < -0.1), 10.0, rising)
    responses = [rising, rising, hidden, hidden]
    train, validation = dkaf.TaskSet.from_arrays(features, [np.arange(60)] * 4, responses).split(2, 2)
    settings = {"queries": 3, "pretrain_updates": 200, "updates": 0, "scale_updates": 0, "validation_starts": 40}
    with pytest.warns(FallbackWarning, match="below searching at random"):
        policy = dkaf.fit(train, validation, **settings)
    assert policy.method == "random"


def test_a_policy_that_stayed_as_it_was_says_so() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))
    with pytest.warns(FallbackWarning, match="did not lower the validation gap .* returned as it was before"):
        policy = dkaf.fit(tasks, tasks, "dkaf", "ucb", **SMALL | {"learning_rate": 1e-12, "scale_updates": 0})
    assert policy.training_log.best_update == 0
    assert "not lowered by end-to-end training, which was taken back" in policy.training_log.in_words()


def test_dkl_is_what_auto_returns_where_end_to_end_training_is_worse_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spoil(policy: Any, *_: Any, **__: Any) -> None:
        with torch.no_grad():
            policy.prior.log_noise += 20

    monkeypatch.setattr(fit_module, "scales_by_policy_gradient", spoil)
    train, validation = smooth_tasks(10).split(5, 5)
    few = {"queries": 5, "pretrain_updates": 150, "updates": 1, "learning_rate": 1e-9, "validation_starts": 8}
    with pytest.warns(FallbackWarning, match="did not lower .* weights of DKL") as warned:
        policy = dkaf.fit(train, validation, **few)
    log = policy.training_log
    assert (policy.method, log.best_update) == ("dkaf", 0)
    assert f"(it came to {log.validation[-1][1]:.4g})" in str(warned[0].message)
    assert log.validation[-1][1] > log.validation[0][1]
    dkl = dkaf.fit(train, validation, "dkl", policy.acquisition, **few)
    for name, weight in dkl.state_dict().items():
        torch.testing.assert_close(policy.state_dict()[name], weight, rtol=0, atol=0)


def test_what_needs_no_past_tasks_is_returned_where_it_is_as_good() -> None:
    flat = dkaf.TaskSet.from_arrays(np.eye(20), [np.arange(20)] * 2, [np.zeros(20)] * 2)
    with pytest.warns(FallbackWarning, match=r"\(0, the best of them 0\): that is returned"):
        policy = dkaf.fit(flat, flat, **SMALL)
    assert policy.method == "gp"


def test_who_asks_for_one_acquisition_gets_it_and_hears_when_chance_is_as_good() -> None:
    flat = dkaf.TaskSet.from_arrays(np.eye(20), [np.arange(20)] * 2, [np.zeros(20)] * 2)
    with pytest.warns(FallbackWarning, match="no better than searching at random"):
        assert dkaf.fit(flat, flat, "dkaf", "mi", **SMALL).method == "dkaf"


def test_opponents_are_returned_without_a_word() -> None:
    flat = dkaf.TaskSet.from_arrays(np.eye(20), [np.arange(20)] * 2, [np.zeros(20)] * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dkaf.fit(flat, flat, "dkl", **SMALL)


def test_every_contender_tells_its_progress_under_its_name() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))
    told: list[dkaf.Progress] = []
    dkaf.fit(tasks, tasks, **SMALL, progress=told.append)
    stages = list(dict.fromkeys(news.stage for news in told))
    trained = [f"{stage}, {a}" for a in ACQUISITIONS for stage in ("policy gradient", "scales by policy gradient")]
    assert stages == ["likelihood", "likelihood, another start", "scales by likelihood", *trained, "likelihood, gp"]


@pytest.mark.parametrize(
    ("stage", "tried"),
    [
        ("likelihood", ()),
        ("policy gradient, mi", ()),
        ("policy gradient, ei", ("mi",)),
        ("likelihood, gp", ("mi", "ei", "ucb")),
    ],
)
def test_an_interrupted_choice_carries_the_best_so_far(stage: str, tried: tuple[str, ...]) -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))

    def interrupt(progress: dkaf.Progress) -> None:
        if progress.stage == stage and progress.update == 2:
            raise KeyboardInterrupt

    with pytest.raises(dkaf.Interrupted) as caught:
        dkaf.fit(tasks, tasks, **SMALL, progress=interrupt)
    policy = caught.value.policy
    assert policy.training_log.stopped == "interrupted"
    assert tuple(name for name, _ in policy.training_log.tried) == tried
    conformance.check_search(policy, tasks, queries=3, initial=1, starts=1)


@pytest.mark.parametrize(("acquisition", "call"), [("auto", 1), ("auto", 2), ("mi", 1)])
def test_an_interrupt_between_trainings_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, acquisition: str, call: int
) -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))
    real, calls = choose.validation_gap, []

    def interrupted(*arguments: Any) -> float:
        calls.append(arguments)
        if len(calls) == call:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(choose, "validation_gap", interrupted)
    with pytest.raises(dkaf.Interrupted) as caught:
        dkaf.fit(tasks, tasks, "dkaf", acquisition, **SMALL)
    assert caught.value.policy.acquisition == "mi"


def test_what_diverges_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))
    real = fit_module._fit

    def diverging(*arguments: Any) -> dkaf.Policy:
        if arguments[3] in failing and arguments[2] == "dkaf":
            raise DivergedError("training needs finite gradients")
        return real(*arguments)

    monkeypatch.setattr(fit_module, "_fit", diverging)
    failing = ["mi"]
    with pytest.warns(FallbackWarning, match="mi is left out: training needs finite gradients"):
        policy = dkaf.fit(tasks, tasks, **SMALL)
    assert [name for name, _ in policy.training_log.tried] == ["ei", "ucb", "gp", "random"]
    failing = list(ACQUISITIONS)
    with pytest.raises(DivergedError), pytest.warns(FallbackWarning):
        dkaf.fit(tasks, tasks, **SMALL)


@pytest.mark.parametrize("method", ["dkl", "gp"])
def test_where_no_validation_pool_can_be_searched_nothing_is_made_up(method: str) -> None:
    tasks = conformance.small_tasks(sizes=(20, 20))
    policy = dkaf.fit(tasks, tasks, method, **SMALL | {"queries": 50})
    assert (policy.acquisition, policy.training_log.tried) == ("ucb", ())


def test_an_encoder_of_the_callers_competes_and_what_has_none_loads_all_the_same(tmp_path: Path) -> None:
    train, validation = smooth_tasks().split(3, 3)
    untrained = {"pretrain_updates": 0, "updates": 0, "queries": 5, "validation_starts": 8}
    policy = dkaf.fit(train, validation, encoder=torch.nn.Linear(2, 4), **untrained)
    policy.save(tmp_path / "policy")
    assert dkaf.load(tmp_path / "policy", encoder=torch.nn.Linear(2, 4)).method == policy.method


def test_a_misspelt_acquisition_is_told_of_auto() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20))
    with pytest.raises(dkaf.InputError, match="auto, mi, ei, ucb"):
        dkaf.fit(tasks, tasks, acquisition="best")


def test_budgets_are_refused_before_any_work() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20))
    told: list[dkaf.Progress] = []
    with pytest.raises(dkaf.InputError, match="99 queries"):
        dkaf.fit(tasks, tasks, **SMALL | {"queries": 99}, progress=told.append)
    assert told == []


def test_the_choice_and_what_it_was_made_of_are_in_the_file(tmp_path: Path) -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))
    policy = dkaf.fit(tasks, tasks, **SMALL)
    policy.save(tmp_path / "policy")
    again = dkaf.load(tmp_path / "policy")
    assert (again.method, again.acquisition) == (policy.method, policy.acquisition)
    assert again.training_log == policy.training_log
    assert len(again.training_log.tried) == 5


def test_seconds_are_those_of_all_that_was_trained_once() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))

    def dawdle(news: dkaf.Progress) -> None:
        time.sleep(0.5 if news.stage == "likelihood" else 0.0)  # most of the time: counted twice, it is too much

    began = time.perf_counter()
    policy = dkaf.fit(tasks, tasks, **SMALL, progress=dawdle)
    assert 1.5 < sum(policy.training_log.seconds.values()) <= time.perf_counter() - began
