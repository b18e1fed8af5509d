from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import conformance
import numpy as np
import pytest
import torch

import dkaf
from dkaf.evaluation import standard_error
from dkaf.learning.descent import descend, optimiser_of
from dkaf.learning.episodes import PaddedTasks
from dkaf.learning.pretrain import _validation_loss, likelihood
from dkaf.learning.reinforce import NU_CANDIDATES, validation_gap
from dkaf.settings import METHODS


def quiet_top_tasks(n_tasks: int, n_loud: int = 5, size: int = 40) -> dkaf.TaskSet:
    """Five loud features explain the response everywhere but at the top, which one quiet feature alone decides.

    The loud part is linear in a direction of each task's own: with many points a kernel on it fits well, so likelihood
    wants it; with the seven points of a search five dimensions cannot be learned, so it only misleads.
    """
    draw = np.random.default_rng(0)
    features = draw.uniform(-1, 1, (n_tasks * size, n_loud + 1))
    pools = np.arange(len(features)).reshape(n_tasks, size)
    responses = []
    for pool in pools:
        loud = features[pool, :n_loud] @ draw.normal(size=n_loud)
        top = np.exp(-0.5 * ((features[pool, n_loud] - draw.uniform(-1, 1)) / 0.3) ** 2)
        responses.append((1 - top) * 2 * loud / loud.std() + top * 6)
    return dkaf.TaskSet.from_arrays(features, list(pools), responses)


def test_end_to_end_training_beats_likelihood_where_likelihood_prefers_the_wrong_kernel() -> None:
    train, validation, test = quiet_top_tasks(70).split(30, 10, 30)
    encoder = torch.nn.Linear(6, 2, bias=False)
    with torch.no_grad():  # one value for the loud features, one for the quiet one
        encoder.weight.copy_(0.5 * torch.tensor([[1.0, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 1]]))
    likelihood = {"pretrain_updates": 200, "scale_updates": 0, "pretrain_learning_rate": 1e-2, "nu": 1.0, "queries": 6}
    plain = {"learned_mean": False, "linear_features": 0, "likelihood_weight": 0.0, "candidates": None}
    gradient = {"learning_rate": 2e-2, "updates": 100, "temperature": 0.1, "batch": 16, "episodes": 8}
    settings = likelihood | plain | gradient
    differences = []
    for seed in range(3):
        gaps, quiet_share = {}, {}
        for method in ("dkl", "dkaf"):
            policy = dkaf.fit(train, validation, method, "ucb", encoder=encoder, seed=seed, **settings)
            gaps[method] = dkaf.evaluate(policy, test, queries=6, starts=10).task_gaps
            weights = policy.prior.encoder.weight.detach().norm(dim=0)
            quiet_share[method] = (weights[-1] / weights.sum()).item()
        assert quiet_share["dkaf"] > quiet_share["dkl"]
        differences.append(gaps["dkaf"] - gaps["dkl"])
    difference = np.mean(differences, axis=0)
    assert difference.mean() < -2 * standard_error(difference)


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_policy_bit_for_bit_and_another_seed_another(method: str) -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))

    def weights(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(np.random.default_rng().integers(1 << 30))  # what the caller's generator does is no matter
        torch.rand(3)
        policy = dkaf.fit(tasks, tasks, method, seed=seed, **conformance.TINY | {"dropout": 0.3}, queries=3)
        return list(policy.state_dict().values())

    first = weights(0)
    assert all(torch.equal(a, b) for a, b in zip(first, weights(0), strict=True))
    if method not in ("random", "gp"):  # these have no weights that a seed would start
        assert any(not torch.equal(a, b) for a, b in zip(first, weights(1), strict=True))


def test_fit_leaves_the_callers_random_numbers_alone() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20))
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    dkaf.fit(tasks, tasks, **conformance.TINY, queries=3)
    assert torch.equal(torch.rand(3), expected)


def test_the_best_validated_policy_is_kept() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))
    policy = dkaf.fit(
        tasks,
        tasks,
        acquisition="mi",
        **conformance.TINY | {"updates": 12, "learning_rate": 0.3, "validation_starts": 4, "scale_updates": 0},
        queries=3,
    )
    log = policy.training_log
    assert [update for update, _ in log.validation] == list(range(13))
    assert log.best_update not in (0, 12)
    best = min(gap for _, gap in log.validation)
    assert dict(log.validation)[log.best_update] == best
    assert validation_gap(policy, PaddedTasks.of(policy, tasks), seed=0) == best


def test_patience_stops_training_and_none_turns_it_off() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))
    frozen = conformance.TINY | {"updates": 9, "learning_rate": 1e-12, "scale_updates": 0, "queries": 3}
    stopped = dkaf.fit(tasks, tasks, "dkaf", "mi", **frozen, patience=4).training_log
    assert (stopped.updates, stopped.best_update) == (4, 0)
    assert "stopped after 4 updates, 4 of them without a better validation gap" in stopped.in_words()
    assert dkaf.fit(tasks, tasks, "dkaf", "mi", **frozen, patience=None).training_log.updates == 9


def test_no_pretraining_and_no_validation_do_what_they_say() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))
    log = dkaf.fit(tasks, updates=3, pretrain_updates=0, patience=None, queries=3).training_log
    assert (log.pretrain_updates, log.updates, log.best_update, log.validation) == (0, 3, 3, ())


def test_progress_is_told_after_every_update() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))
    told: list[dkaf.Progress] = []
    dkaf.fit(tasks, tasks, "dkaf", "mi", **conformance.TINY, queries=3, progress=told.append)
    assert [(p.stage, p.update, p.updates) for p in told] == [
        *[("likelihood", update, 3) for update in (1, 2, 3)],
        *[("likelihood, another start", update, 3) for update in (1, 2, 3)],
        *[("scales by likelihood", update, 2) for update in (1, 2)],
        *[("policy gradient", update, 2) for update in (0, 1, 2)],
        *[("scales by policy gradient", update, 2) for update in (1, 2)],
    ]


@pytest.mark.parametrize(
    "stage",
    [
        "likelihood",
        "likelihood, another start",
        "scales by likelihood",
        "policy gradient",
        "scales by policy gradient",
    ],
)
def test_an_interrupt_carries_the_best_policy_so_far(stage: str, tmp_path: Path) -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))

    def interrupt(progress: dkaf.Progress) -> None:
        if progress.stage == stage and progress.update == 2:
            raise KeyboardInterrupt

    with pytest.raises(dkaf.Interrupted) as caught:
        dkaf.fit(tasks, tasks, "dkaf", "mi", **conformance.TINY, queries=3, progress=interrupt)
    policy = caught.value.policy
    assert policy.training_log.stopped == "interrupted"
    conformance.check_search(policy, tasks, queries=3, initial=1, starts=1)
    policy.save(tmp_path / "policy.safetensors")
    assert dkaf.load(tmp_path / "policy.safetensors").training_log.in_words() == policy.training_log.in_words()
    if stage == "scales by policy gradient":  # as if they had not been begun
        without = dkaf.fit(tasks, tasks, "dkaf", "mi", **conformance.TINY | {"scale_updates": 0}, queries=3)
        assert policy.training_log.updates == without.training_log.updates == 2


def test_responses_are_scaled_by_training_tasks_alone() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))
    moved = dkaf.TaskSet.from_arrays(tasks.features, tasks.pools, [1e3 + 50 * y for y in tasks.responses])
    plain, scaled = (dkaf.fit(t, t, **conformance.TINY, queries=3) for t in (tasks, moved))
    chosen = [dkaf.evaluate(p, t, queries=5).chosen for p, t in ((plain, tasks), (scaled, moved))]
    np.testing.assert_array_equal(chosen[0], chosen[1])


def test_bad_calls_are_refused() -> None:
    tasks = conformance.small_tasks()
    policy = dkaf.fit(tasks, method="random")
    none = tasks.subset([])
    wide = dkaf.TaskSet.from_arrays(np.ones((3, 7)), [[0, 1, 2]], [[1.0, 2.0, 3.0]])
    narrow = dkaf.fit(tasks, method="gp", pretrain_updates=1)
    for call, message in (
        (lambda: dkaf.fit(none), "at least one task, none came"),
        (
            lambda: dkaf.fit(tasks, queries=20),
            "pool 0 has 12 candidates, 20 queries after 1 starting points do not fit",
        ),
        (lambda: dkaf.fit(tasks, method="best"), "method is one of dkaf, dkl"),
        (lambda: dkaf.fit(tasks, acquisition="pi"), "acquisition is one of auto, mi, ei, ucb"),
        (lambda: dkaf.fit(tasks, recipe="mine"), "recipe is one of paper, default"),
        (lambda: dkaf.fit(tasks, speed=3), "'speed' is none of them"),
        (lambda: dkaf.evaluate(policy, none), "at least one task, none came"),
        (lambda: dkaf.evaluate(policy, tasks, queries=0), "at least 1 query"),
        (lambda: dkaf.evaluate(policy, tasks, starts=0), "at least 1 start"),
        (lambda: dkaf.evaluate(policy, tasks, queries=12), "pool 0 has 12 candidates, 12 queries"),
        (lambda: dkaf.evaluate(narrow, wide, queries=1), "trained on 5 features, 7 came"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("recipe", ["default", "paper"])
@pytest.mark.parametrize("value", [0.1, -7.7, 4.0])
def test_constant_responses_train(recipe: str, value: float) -> None:
    tasks = conformance.small_tasks(sizes=(20, 20))
    constant = dkaf.TaskSet.from_arrays(tasks.features, tasks.pools, [np.full(20, value)] * 2)
    policy = dkaf.fit(constant, constant, recipe=recipe, **conformance.TINY, queries=3)
    assert policy.response_scale == 1
    conformance.check_search(policy, constant, queries=3, initial=1, starts=1)


def test_a_small_pool_does_not_shrink_the_likelihood_of_the_others() -> None:
    tasks = conformance.small_tasks(sizes=(50, 2))
    policy = dkaf.fit(tasks, method="dkl", pretrain_updates=0)
    padded = PaddedTasks.of(policy, tasks)
    both = likelihood(policy.prior, padded, torch.tensor([0, 1]), 50, torch.Generator().manual_seed(0))
    for number in (0, 1):
        alone = PaddedTasks.of(policy, tasks.subset([number]))
        value = likelihood(policy.prior, alone, torch.tensor([0]), 50, torch.Generator().manual_seed(0))
        torch.testing.assert_close(both[number : number + 1], value, atol=1e-4, rtol=1e-4)


def test_training_searches_draw_their_candidates_anew() -> None:
    tasks = conformance.small_tasks(sizes=(20, 12))
    policy = dkaf.fit(tasks, method="random")
    padded, draw = PaddedTasks.of(policy, tasks), torch.Generator().manual_seed(0)
    first, second = (padded.part(torch.tensor([0, 1]), 15, draw) for _ in range(2))
    assert first.pool.mask.sum(1).tolist() == [15, 12]
    assert sorted(first.y[0].tolist()) != sorted(second.y[0].tolist())
    assert set(first.y[0].tolist()) < set(padded.y[0].tolist())
    assert sorted(first.y[1][first.pool.mask[1]].tolist()) == sorted(padded.y[1][padded.mask[1]].tolist())


def test_pretraining_stops_by_patience_and_keeps_the_best_likelihood() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))
    settings = {
        "pretrain_learning_rate": 0.5,
        "pretrain_updates": 60,
        "pretrain_validate_every": 1,
        "pretrain_points": 20,
        "pretrain_anneal": False,
    }
    values: list[float] = []
    policy = dkaf.fit(tasks, tasks, "gp", **settings, pretrain_patience=5)
    assert policy.training_log.pretrain_updates < 60
    best = _validation_loss(policy, PaddedTasks.of(policy, tasks), seed=0)
    for updates in range(1, policy.training_log.pretrain_updates + 1):
        shorter = dkaf.fit(tasks, tasks, "gp", **settings | {"pretrain_updates": updates})
        values.append(_validation_loss(shorter, PaddedTasks.of(shorter, tasks), seed=0))
    assert best == min(values)


def test_weights_decay_and_scalars_do_not() -> None:
    matrix, scalar = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(()))
    optimiser = optimiser_of({matrix: 0.1, scalar: 0.1}, weight_decay=0.5)
    descend(optimiser, 0.0 * (matrix.sum() + scalar), None)
    assert matrix.tolist() == [[pytest.approx(0.95)] * 2] * 2
    assert scalar.item() == 1.0


def test_the_encoder_and_nu_take_steps_of_their_own_size() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))
    start = dkaf.fit(tasks, None, "dkl", "ucb", **conformance.TINY, queries=3)

    def moved(**rates: float) -> set[str]:
        trained = dkaf.fit(tasks, None, "dkaf", "ucb", **conformance.TINY, queries=3, pretrained=start, **rates)
        before, after = dict(start.named_parameters()), dict(trained.named_parameters())
        return {name for name in after if not torch.equal(before[name], after[name])}

    everything = moved()
    encoder = {name for name in everything if name.startswith("prior.encoder.")}
    assert len(encoder) == 8
    assert moved(encoder_rate=0.0) == everything - encoder
    assert moved(nu_rate=0.0) == everything - {"log_nu"}


def test_training_that_diverges_says_so() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))
    with pytest.raises(dkaf.InputError, match="lower the learning rate"):
        dkaf.fit(tasks, None, **conformance.TINY | {"updates": 50, "learning_rate": 1e12, "clip": None}, queries=3)


def test_nu_is_chosen_on_validation_tasks_for_dkl_too() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))
    policy = dkaf.fit(tasks, tasks, "dkl", "ucb", **conformance.TINY, queries=3)
    padded, chosen = PaddedTasks.of(policy, tasks), policy.log_nu.exp().item()
    gaps = {}
    for nu in NU_CANDIDATES:
        policy.log_nu.data.fill_(nu).log_()
        gaps[nu] = validation_gap(policy, padded, seed=0)
    assert gaps[min(gaps, key=lambda nu: abs(nu - chosen))] == min(gaps.values())
    assert dkaf.fit(tasks, tasks, "dkl", "ucb", "paper", **conformance.TINY).log_nu.exp().item() == pytest.approx(
        14.508, abs=1e-3
    )


def test_settings_of_ones_own_are_a_recipe() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20))
    own = dkaf.recipe("paper", **conformance.TINY, queries=3)
    policy = dkaf.fit(tasks, tasks, recipe=own, updates=1)
    assert policy.settings == own.override(updates=1)


def test_fits_in_threads_are_those_of_fits_alone() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20))

    def weights(seed: int) -> list[list[float]]:
        policy = dkaf.fit(tasks, tasks, seed=seed, **conformance.TINY | {"dropout": 0.3}, queries=3)
        return [tensor.flatten().tolist() for tensor in policy.state_dict().values()]

    alone = [weights(seed) for seed in (0, 1)]
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(weights, (0, 1))) == alone


def test_a_small_validation_pool_does_not_keep_nu_from_being_chosen() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 2))
    large = tasks.subset([0, 1])
    both, only = (dkaf.fit(large, v, "gp", "ucb", pretrain_updates=0, queries=3) for v in (tasks, large))
    assert both.log_nu == only.log_nu


@pytest.mark.parametrize(("method", "source"), [("dkaf", "dkl"), ("dkl", "dkl"), ("gp", "gp"), ("metabo", "gp")])
@pytest.mark.parametrize("acquisition", ["mi", "ei"])
def test_a_shared_pretraining_changes_nothing(method: str, source: str, acquisition: str) -> None:
    train, validation = conformance.small_tasks(sizes=(12, 9, 15, 12, 10)).split(2, 3)
    few = {"pretrain_updates": 5, "updates": 3, "scale_updates": 2, "queries": 3, "dropout": 0.5, "validate_every": 1}
    alone = dkaf.fit(train, validation, method, acquisition, **few)
    kernel = dkaf.fit(train, validation, source, "ucb", **few)
    shared = dkaf.fit(train, validation, method, acquisition, pretrained=kernel, **few)
    assert shared.training_log == alone.training_log
    for name, tensor in alone.state_dict().items():
        torch.testing.assert_close(shared.state_dict()[name], tensor, rtol=0, atol=0)
    assert shared.training_log.seconds["likelihood"] >= kernel.training_log.seconds["likelihood"]


def test_a_pretrained_kernel_of_another_form_is_refused() -> None:
    tasks = conformance.small_tasks()
    kernel = dkaf.fit(tasks, method="dkl", pretrain_updates=1)
    with pytest.raises(dkaf.InputError, match="has the form of the new policy's"):
        dkaf.fit(tasks, method="gp", pretrained=kernel)
    with pytest.raises(dkaf.InputError, match="for methods with a kernel"):
        dkaf.fit(tasks, method="random", pretrained=kernel)


class Remembering(torch.nn.Module):
    """An encoder that keeps a tensor it has computed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.ones = torch.zeros(0, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.ones) < len(x):
            self.ones = x[:, :1] * 0 + 1
        z: torch.Tensor = self.linear(x) * self.ones[: len(x)]
        return z


def test_an_encoder_may_keep_what_it_computed_in_a_validation(tiny_tasks: dkaf.TaskSet) -> None:
    train, validation = tiny_tasks.split(4, 6)
    settings = conformance.TINY | {"pretrain_updates": 0, "validate_every": 1}
    policy = dkaf.fit(train, validation, "dkaf", "mi", encoder=Remembering(), queries=3, candidates=5, **settings)
    assert policy.training_log.updates == 4


def test_a_batch_of_few_rows_among_many_is_that_of_the_whole_table() -> None:
    draw = np.random.default_rng(0)
    features = draw.normal(size=(400, 4))
    pools = [np.arange(40 * s, 40 * s + 9 + s % 2) for s in range(10)]
    tasks = dkaf.TaskSet.from_arrays(features, pools, [draw.normal(size=len(pool)) for pool in pools])
    policy = dkaf.fit(tasks, method="random", inputs="raw")
    deck = PaddedTasks.of(policy, tasks)
    for numbers in ([3], list(range(10))):  # few of the rows are sorted, many are marked
        batch = deck.batch(torch.tensor(numbers))
        for place, number in enumerate(numbers):
            mask = batch.pool.mask[place]
            assert isinstance(batch.x, torch.Tensor)
            np.testing.assert_allclose(batch.x[batch.pool.rows[place, mask]], features[pools[number]], rtol=1e-6)


def test_tasks_of_one_update_draw_the_same_rows_and_each_all_of_its_candidates_alike() -> None:
    draw = np.random.default_rng(0)
    pools = [draw.permutation(40)[:30] for _ in range(8)]
    tasks = dkaf.TaskSet.from_arrays(draw.normal(size=(40, 2)), pools, [draw.normal(size=30) for _ in pools])
    policy = dkaf.fit(tasks, method="random")
    deck, generator, counts = PaddedTasks.of(policy, tasks), torch.Generator().manual_seed(0), torch.zeros(8, 30)
    for _ in range(2000):
        batch = deck.part(torch.arange(8), 10, generator)
        assert len(batch.x) < 25  # of 40: eight tasks that drew for themselves would take nearly all
        counts += (batch.y.unsqueeze(2) == deck.y.unsqueeze(1)).sum(1)
    share = counts / 2000
    assert ((share - 1 / 3).abs() < 5 * (2 / 9 / 2000) ** 0.5).all()
