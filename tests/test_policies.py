import math
from functools import cache

import conformance
import numpy as np
import pytest
import scipy.sparse as sp
import torch

import dkaf
from dkaf.learning.episodes import PaddedTasks, log_probabilities, random_candidates, sample, search
from dkaf.policies import KernelPolicy, NetworkPolicy
from dkaf.settings import METHODS

policy_of = cache(conformance.small_policy)
every_policy = pytest.mark.parametrize("which", conformance.every_policy(), ids="-".join)


@every_policy
def test_search_conforms(which: tuple[str, str, str]) -> None:
    tasks = conformance.small_tasks()
    conformance.check_search(policy_of(*which), tasks, queries=4, initial=1, starts=2)
    conformance.check_search(policy_of(*which), tasks, queries=3, initial=0, starts=1)


@every_policy
def test_pool_of_one_and_pool_equal_to_the_budget(which: tuple[str, str, str]) -> None:
    conformance.check_search(policy_of(*which), conformance.small_tasks(sizes=(1,)), queries=1, initial=0, starts=1)
    conformance.check_search(policy_of(*which), conformance.small_tasks(sizes=(6, 6)), queries=4, initial=2, starts=2)


@every_policy
def test_permuting_the_pool_permutes_the_choice(which: tuple[str, str, str]) -> None:
    policy = policy_of(*which)
    if policy.deterministic:
        conformance.check_permutation(policy, conformance.small_tasks(), queries=5)
    else:
        assert which[0] == "random"


@every_policy
def test_unobserved_responses_change_no_choice(which: tuple[str, str, str]) -> None:
    conformance.check_no_peeking(policy_of(*which), conformance.small_tasks(), queries=5)


@every_policy
def test_scores_of_a_whole_episode_equal_the_scores_step_by_step(which: tuple[str, str, str]) -> None:
    policy = policy_of(*which)
    if not isinstance(policy, KernelPolicy):
        return
    deck = PaddedTasks.of(policy, conformance.small_tasks())
    batch = deck.batch(torch.tensor([0, 1, 2, 0]))
    with torch.no_grad():
        points = policy.points(batch.x, batch.pool)
        for initial in (0, 2):
            draw = torch.Generator().manual_seed(0)
            start = random_candidates(batch.pool.mask, initial, draw)
            chosen = search(policy, points, batch, start, 4, draw, episodes=3, temperature=1.0)
            y = policy.warped(batch.y).gather(1, chosen.flatten(1)).unflatten(1, chosen.shape[1:])
            whole = policy.episode_scores(points, chosen, y, initial)
            state = policy.begin(points, 3, draw)
            for position in range(initial + 4):
                if position >= initial:
                    step = policy.scores(points, state)
                    mask = batch.pool.mask.unsqueeze(1).expand_as(step)
                    torch.testing.assert_close(whole[:, :, position - initial][mask], step[mask], atol=1e-4, rtol=1e-4)
                state = policy.observe(
                    points, state, chosen[..., position], y[..., position], queried=position >= initial
                )


@pytest.mark.parametrize("method", ["rl", "metabo"])
def test_scores_of_some_candidates_equal_those_of_all_step_by_step(method: str) -> None:
    policy = policy_of(method, "mi", "default")
    assert isinstance(policy, NetworkPolicy)
    batch = PaddedTasks.of(policy, conformance.small_tasks()).batch(torch.tensor([0, 1, 2, 0]))
    points = policy.points(batch.x, batch.pool)
    for initial, queries in ((0, 4), (2, 4), (0, 1)):
        draw = torch.Generator().manual_seed(0)
        start = random_candidates(batch.pool.mask, initial, draw)
        chosen = search(policy, points, batch, start, queries, draw, episodes=3, temperature=1.0)
        y = policy.warped(batch.y).gather(1, chosen.flatten(1)).unflatten(1, chosen.shape[1:])
        at = torch.randint(9, (4, 3, queries, 5), generator=draw)
        some = policy.scores_at(points, chosen, y, initial, at)
        assert some.shape == at.shape
        state = policy.begin(points, 3, draw)
        for position in range(initial + queries):
            if position >= initial:
                step = policy.scores(points, state).gather(2, at[:, :, position - initial])
                torch.testing.assert_close(some[:, :, position - initial], step, atol=1e-4, rtol=1e-4)
            state = policy.observe(points, state, chosen[..., position], y[..., position], queried=position >= initial)


@pytest.mark.parametrize("method", ["rl", "metabo"])
def test_draws_that_stand_for_all_candidates_give_the_gradient_of_the_log_probabilities(method: str) -> None:
    policy = policy_of(method, "mi", "default")
    batch = PaddedTasks.of(policy, conformance.small_tasks()).batch(torch.tensor([0, 1, 2]))
    start = random_candidates(batch.pool.mask, 1, torch.Generator().manual_seed(0))
    weight = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(1))

    def gradient(log_p: torch.Tensor) -> torch.Tensor:
        parts = torch.autograd.grad((weight * log_p).sum(), policy.trained_by_gradient())
        return torch.cat([part.flatten() for part in parts])

    for draws in (16, 20_000):
        points = policy.points(batch.x, batch.pool)
        draw = torch.Generator().manual_seed(2)
        chosen, values = sample(policy, points, batch, start, 4, draw, episodes=2, temperature=0.5, draws=draws)
        estimate = gradient(values)
        points = policy.points(batch.x, batch.pool)
        exact = gradient(log_probabilities(policy, points, batch, chosen, 1, 0.5))
        error = (estimate - exact).norm() / exact.norm()
        assert error < 2 / math.sqrt(draws)
        assert error > 0


def test_a_score_that_is_no_number_shows_in_the_gradient_though_it_was_not_drawn() -> None:
    policy = policy_of("rl", "mi", "default")
    batch = PaddedTasks.of(policy, conformance.small_tasks()).batch(torch.tensor([0, 1]))
    points = policy.points(batch.x, batch.pool)
    query = points.query.clone()
    query[1, 3] = math.nan
    start = random_candidates(batch.pool.mask, 1, torch.Generator())
    for draws in (None, 8):
        _, log_p = sample(
            policy,
            points._replace(query=query),
            batch,
            start,
            3,
            torch.Generator(),
            episodes=2,
            temperature=1.0,
            draws=draws,
        )
        assert log_p.isnan().any()


@every_policy
def test_sampled_episodes_come_with_the_log_probabilities_of_their_queries(which: tuple[str, str, str]) -> None:
    policy = policy_of(*which)
    batch = PaddedTasks.of(policy, conformance.small_tasks()).batch(torch.tensor([0, 1, 2, 0]))
    points = policy.points(batch.x, batch.pool)
    for initial in (0, 2):
        start = random_candidates(batch.pool.mask, initial, torch.Generator().manual_seed(0))
        draw = torch.Generator().manual_seed(1)
        chosen, log_p = sample(policy, points, batch, start, 4, draw, episodes=3, temperature=0.5)
        assert chosen.shape == (4, 3, initial + 4)
        assert all(len(set(episode.tolist())) == initial + 4 for episode in chosen.flatten(0, 1))
        assert torch.isfinite(log_p).all()
        if not policy.deterministic:  # Random draws other lots when it is asked again
            continue
        y = policy.warped(batch.y).gather(1, chosen.flatten(1)).unflatten(1, chosen.shape[1:])
        with torch.no_grad():
            state = policy.begin(points, 3, draw)
            for position in range(initial + 4):
                if position >= initial:
                    free = batch.pool.mask.unsqueeze(1).repeat(1, 3, 1).scatter(2, chosen[..., :position], False)
                    logits = (policy.scores(points, state) / 0.5).masked_fill(~free, -math.inf)
                    expected = logits.log_softmax(2).gather(2, chosen[..., position : position + 1]).squeeze(-1)
                    torch.testing.assert_close(log_p[..., position - initial], expected, atol=1e-4, rtol=1e-4)
                state = policy.observe(
                    points, state, chosen[..., position], y[..., position], queried=position >= initial
                )
        again = log_probabilities(policy, points, batch, chosen, initial, 0.5)
        torch.testing.assert_close(again, log_p)


@pytest.mark.parametrize("method", METHODS)
def test_sparse_features_give_the_choices_of_dense_ones(method: str) -> None:
    draw = np.random.default_rng(0)
    counts = draw.poisson(0.8, size=(40, 12)).astype(float)  # of few words many candidates would be as good as others
    pools = [draw.permutation(40)[:size] for size in (20, 16, 20)]
    responses = [draw.normal(size=len(pool)) for pool in pools]
    results = []
    for features in (counts, sp.csr_matrix(counts), sp.coo_array(counts)):
        tasks = dkaf.TaskSet.from_arrays(features, pools, responses)
        policy = dkaf.fit(tasks, tasks, method, **conformance.TINY, queries=3, learned_nu=False)
        results.append(dkaf.evaluate(policy, tasks, queries=5).chosen)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_random_searches_differ_between_starts_and_seeds() -> None:
    tasks = conformance.small_tasks(sizes=(15, 15))
    policy = policy_of("random")
    first = dkaf.evaluate(policy, tasks, queries=5, starts=4, seed=0).chosen
    assert len({tuple(row) for row in first.tolist()}) == len(first)
    assert (dkaf.evaluate(policy, tasks, queries=5, starts=4, seed=1).chosen != first).any()
    np.testing.assert_array_equal(dkaf.evaluate(policy, tasks, queries=5, starts=4, seed=0).chosen, first)


def test_every_policy_begins_from_the_same_starting_points() -> None:
    tasks = conformance.small_tasks()
    starts = [dkaf.evaluate(policy_of(m), tasks, queries=2, initial=2, starts=3).chosen[:, :2] for m in METHODS]
    for other in starts[1:]:
        np.testing.assert_array_equal(starts[0], other)


def test_starting_points_of_a_task_do_not_depend_on_the_tasks_after_it() -> None:
    tasks = conformance.small_tasks(sizes=(12, 12, 12, 12))
    policy = policy_of("dkl")
    whole = dkaf.evaluate(policy, tasks, queries=3, starts=2).chosen
    np.testing.assert_array_equal(
        dkaf.evaluate(policy, tasks.subset(slice(0, 2)), queries=3, starts=2).chosen, whole[:4]
    )


def test_evaluation_in_parts_equals_evaluation_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = conformance.small_tasks(sizes=(12,) * 6)
    policy = policy_of("dkaf")
    whole = dkaf.evaluate(policy, tasks, queries=4, starts=3).chosen
    for at_once in (12 * 5, 12 * 2):  # some tasks; not all starts of one
        monkeypatch.setattr(policy, "candidates_at_once", at_once)
        np.testing.assert_array_equal(dkaf.evaluate(policy, tasks, queries=4, starts=3).chosen, whole)


def test_result_statistics_by_batch() -> None:
    gaps = np.array([[4.0, 2.0], [2.0, 0.0], [8.0, 8.0], [0.0, 0.0]])
    result = dkaf.Result(gaps, np.zeros(4), np.zeros((4, 3), dtype=np.int64), starts=2)
    assert result.cumulative_gap == 3.0
    assert result.task_gaps.tolist() == [2.0, 4.0]
    assert result.standard_error == pytest.approx(1.0)


def test_the_literal_deep_set_does_not_see_responses() -> None:
    tasks = conformance.small_tasks()
    other = dkaf.TaskSet.from_arrays(tasks.features, tasks.pools, [-values for values in tasks.responses])
    for sees, same in ((False, True), (True, False)):
        policy = dkaf.fit(tasks, None, "rl", updates=0, queries=3, rl_sees_responses=sees)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.mul_(3.0)  # untrained scores are almost equal; this tells them apart
        first, second = (dkaf.evaluate(policy, t, queries=5).chosen for t in (tasks, other))
        assert (first == second).all() == same


def test_an_encoder_of_the_users_is_trained_as_a_copy() -> None:
    tasks = conformance.small_tasks(sizes=(20, 20))
    encoder = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Tanh())
    before = [p.clone() for p in encoder.parameters()]
    policy = dkaf.fit(tasks, tasks, "dkaf", "mi", encoder=encoder, **conformance.TINY, queries=3)
    conformance.check_search(policy, tasks, queries=3, initial=1, starts=1)
    assert all(torch.equal(a, b) for a, b in zip(before, encoder.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(before, policy.prior.encoder.parameters(), strict=True))


def test_an_encoder_where_none_is_used_or_of_the_wrong_shape_is_refused() -> None:
    tasks = conformance.small_tasks()
    with pytest.raises(ValueError, match="encoder= is for the methods dkaf and dkl"):
        dkaf.fit(tasks, None, "gp", encoder=torch.nn.Linear(5, 2))
    with pytest.raises(ValueError, match="an encoder maps rows x 5 to rows x values"):
        dkaf.fit(tasks, None, encoder=torch.nn.Flatten(0), queries=3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", METHODS)
def test_cuda_makes_the_searches_of_the_cpu(method: str) -> None:
    tasks = conformance.small_tasks(sizes=(20, 20))
    policy = dkaf.fit(tasks, tasks, method, device="cuda", **conformance.TINY, queries=3)
    conformance.check_search(policy, tasks, queries=3, initial=1, starts=1)
