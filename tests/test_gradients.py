"""The policy gradient: exact through every layer, and unbiased."""

import math
from itertools import permutations, product

import naive
import pytest
import torch
from test_posterior import policy_for

from dkaf.learning.episodes import Batch, PaddedTasks, _drawn, expected_gaps, gaps, log_probabilities, search
from dkaf.learning.reinforce import advantage, discounted_future, policy_gradient_loss
from dkaf.model.prior import Pool
from dkaf.policies import KernelPolicy


@pytest.mark.parametrize(("acquisition", "log_ei"), [("mi", False), ("ei", False), ("ei", True), ("ucb", False)])
@pytest.mark.parametrize("initial", [0, 2])
def test_gradcheck_through_log_probabilities_of_whole_episodes(acquisition: str, log_ei: bool, initial: int) -> None:
    x, batch, chosen = naive.random_case(5, sizes=[7, 5], episodes=2, n_observed=initial + 3)
    policy = policy_for(x.shape[1], 5, acquisition=acquisition, log_ei=log_ei, learned_nu=True, layers=2, width=3)
    names, values = zip(*policy.named_parameters(), strict=True)

    def log_p(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        def run() -> torch.Tensor:
            points = policy.points(x, batch.pool)
            return log_probabilities(policy, points, batch, chosen, initial, 0.7)

        return call_with(policy, dict(zip(names, weights, strict=True)), run)

    assert torch.autograd.gradcheck(log_p, (x.clone().requires_grad_(), *(v.detach().requires_grad_() for v in values)))


@pytest.mark.parametrize("initial", [0, 2])
def test_gradcheck_through_the_gaps_that_the_softmax_expects(initial: int) -> None:
    x, batch, chosen = naive.random_case(5, sizes=[7, 5], episodes=2, n_observed=initial + 3)
    policy = policy_for(x.shape[1], 5, acquisition="ucb", learned_nu=True, layers=2, width=3)
    names, values = zip(*policy.named_parameters(), strict=True)

    def both(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        def run() -> torch.Tensor:
            return torch.stack(expected_gaps(policy, policy.points(x, batch.pool), batch, chosen, initial, 0.7))

        return call_with(policy, dict(zip(names, weights, strict=True)), run)

    assert torch.autograd.gradcheck(both, (x.clone().requires_grad_(), *(v.detach().requires_grad_() for v in values)))


@pytest.mark.parametrize("initial", [0, 2])
def test_the_gap_that_the_softmax_expects_is_the_mean_over_all_that_could_follow(initial: int) -> None:
    x, batch, chosen = naive.random_case(3, sizes=[7, 5], episodes=2, n_observed=initial + 2)
    policy = policy_for(x.shape[1], 3)
    points = policy.points(x, batch.pool)
    log_p, expected = expected_gaps(policy, points, batch, chosen, initial, 0.5)
    torch.testing.assert_close(log_p, log_probabilities(policy, points, batch, chosen, initial, 0.5))
    for start, size in enumerate((7, 5)):
        for episode, query in product(range(2), range(2)):
            before = chosen[start, episode, : initial + query].tolist()
            follows = [[*before, other] for other in range(size) if other not in before]
            one = Batch(
                x, Pool(batch.pool.rows[start : start + 1], batch.pool.mask[start : start + 1]), batch.y[[start]]
            )
            walks = torch.tensor(follows).unsqueeze(0)
            p = log_probabilities(policy, policy.points(x, one.pool), one, walks, initial, 0.5)[0, :, query].exp()
            gap = gaps(one.y, one.pool.mask, walks, initial)[0, :, query]
            assert p.sum().item() == pytest.approx(1.0)
            assert expected[start, episode, query].item() == pytest.approx((p * gap).sum().item())


def call_with(policy: KernelPolicy, weights: dict[str, torch.Tensor], run: object) -> torch.Tensor:
    """Run with other parameters in place of the policy's own."""
    with torch.nn.utils.stateless._reparametrize_module(policy, weights):
        return run()  # type: ignore[operator, no-any-return]


def test_log_probabilities_of_all_episodes_sum_to_one() -> None:
    x, batch, _ = naive.random_case(2, sizes=[4], episodes=1, n_observed=1)
    policy = policy_for(x.shape[1], 2)
    chosen = torch.tensor([list(order) for order in permutations(range(4), 3)]).unsqueeze(0)
    log_p = log_probabilities(policy, policy.points(x, batch.pool), batch, chosen, 0, 0.5)
    assert log_p.sum(-1).exp().sum().item() == pytest.approx(1.0, abs=1e-12)


def test_sampled_episodes_have_the_probabilities_they_are_given() -> None:
    x, batch, _ = naive.random_case(4, sizes=[4], episodes=1, n_observed=1)
    policy = policy_for(x.shape[1], 4)
    points = policy.points(x, batch.pool)
    start, many = torch.tensor([[1]]), 40_000
    sampled = search(policy, points, batch, start, 2, torch.Generator().manual_seed(0), episodes=many, temperature=0.5)
    every = torch.tensor([[1, *order] for order in permutations((0, 2, 3), 2)]).unsqueeze(0)
    expected = log_probabilities(policy, points, batch, every, 1, 0.5).sum(-1).exp()[0]
    share = (sampled[0, :, None] == every[0, None]).all(-1).double().mean(0)
    error = (expected * (1 - expected) / many).sqrt()
    assert ((share - expected).abs() < 5 * error).all()


@pytest.mark.parametrize("all_candidates", [False, True])
def test_policy_gradient_with_leave_one_out_baseline_is_unbiased(all_candidates: bool) -> None:
    """Pool of 5, T = 3: many sampled gradients of the loss that training descends average to the exact gradient."""
    x, batch, _ = naive.random_case(9, sizes=[5], episodes=1, n_observed=1)
    sampling = {"gamma": 1.0, "baseline": "leave-one-out", "batch": 1, "episodes": 4, "temperature": 0.5, "queries": 3}
    sampling |= {"all_candidates": all_candidates}
    policy = policy_for(
        x.shape[1], 9, linear_features=0, learned_mean=False, layers=2, learned_nu=True, initial=0, **sampling
    )
    parameters = [p for p in policy.parameters() if p.requires_grad]

    def gradient(loss: torch.Tensor) -> torch.Tensor:
        parts = torch.autograd.grad(loss, parameters, allow_unused=True)
        return torch.cat(
            [torch.zeros_like(p).ravel() if g is None else g.ravel() for p, g in zip(parameters, parts, strict=True)]
        )

    every = torch.tensor([list(order) for order in permutations(range(5), 3)]).unsqueeze(0)
    probability = log_probabilities(policy, policy.points(x, batch.pool), batch, every, 0, 0.5).sum(-1).exp()
    exact = gradient((probability * gaps(batch.y, batch.pool.mask, every, 0).sum(-1)).sum())
    assert exact.norm() > 0.01

    tasks = PaddedTasks(batch.x, batch.pool.rows, batch.pool.mask, batch.y)
    draw = torch.Generator().manual_seed(1)
    samples = [gradient(policy_gradient_loss(policy, tasks, torch.tensor([0]), draw)) for _ in range(1200)]
    estimates = torch.stack(samples)
    error = estimates.std(0) / len(samples) ** 0.5
    assert ((estimates.mean(0) - exact).abs() < 4.5 * error + 1e-12).all()
    assert (estimates.mean(0) - exact).norm() < 0.15 * exact.norm()


def test_a_gap_averaged_over_all_candidates_leaves_less_of_the_gradient_to_chance() -> None:
    """A search of one query is then left nothing to chance at all."""
    x, batch, _ = naive.random_case(9, sizes=[6], episodes=1, n_observed=1)
    tasks = PaddedTasks(batch.x, batch.pool.rows, batch.pool.mask, batch.y)

    def spread(queries: int, all_candidates: bool) -> float:
        changes = {"queries": queries, "all_candidates": all_candidates, "initial": 0, "episodes": 4}
        policy = policy_for(x.shape[1], 9, baseline="leave-one-out", temperature=0.5, layers=2, **changes)
        assert policy.prior.mean is not None
        weight = policy.prior.mean.weight
        draw = torch.Generator().manual_seed(1)
        losses = (policy_gradient_loss(policy, tasks, torch.tensor([0]), draw) for _ in range(300))
        return torch.stack([torch.autograd.grad(loss, weight)[0] for loss in losses]).std(0).norm().item()

    assert spread(1, True) < 1e-9 < spread(1, False)
    assert spread(3, True) < 0.8 * spread(3, False)


def test_discounted_future_and_baselines_by_batch() -> None:
    G = discounted_future(torch.tensor([[[4.0, 2.0, 1.0]]]), 0.5)
    assert G.tolist() == [[[5.25, 2.5, 1.0]]]
    several = torch.tensor([[[1.0], [4.0]], [[2.0], [9.0]]])
    assert advantage(several, "batch").flatten().tolist() == [-3.0, 0.0, -2.0, 5.0]
    assert advantage(several, "leave-one-out").flatten().tolist() == [-3.0, 3.0, -7.0, 7.0]


def test_gaps_shrink_from_the_best_of_the_pool() -> None:
    y = torch.tensor([[1.0, 5.0, 3.0, 9.0]])
    result = gaps(y, torch.ones(1, 4, dtype=torch.bool), torch.tensor([[[0, 2, 1, 3]]]), 1)
    assert result.tolist() == [[[6.0, 4.0, 0.0]]]


def test_padding_changes_nothing() -> None:
    x, batch, chosen = naive.random_case(6, sizes=[6, 9], episodes=2, n_observed=4)
    policy = policy_for(x.shape[1], 6)
    both = log_probabilities(policy, policy.points(x, batch.pool), batch, chosen, 1, 0.5)
    alone = Batch(x, Pool(batch.pool.rows[:1, :6], batch.pool.mask[:1, :6]), batch.y[:1, :6])
    one = log_probabilities(policy, policy.points(x, alone.pool), alone, chosen[:1], 1, 0.5)
    torch.testing.assert_close(both[:1], one)


def test_draws_have_the_probabilities_of_the_softmax_and_never_take_what_is_blocked() -> None:
    scores = torch.tensor([1.0, -math.inf, 0.0, -2.0, -math.inf]).expand(1, 60_000, 5)
    uniform = 1 - torch.rand(1, 60_000, 1, generator=torch.Generator().manual_seed(0))
    drawn = _drawn(scores, uniform)
    share, p = torch.bincount(drawn.flatten(), minlength=5) / 60_000, scores[0, 0].softmax(0)
    assert ((share - p).abs() <= 5 * (p * (1 - p) / 60_000).sqrt()).all()
    edges = _drawn(scores[:, :2], torch.tensor([[[1e-30], [1.0]]]))  # the smallest and the largest number there is
    assert edges.tolist() == [[[0], [3]]]
    both = _drawn(scores[:, :1], torch.tensor([[[1e-30, 1.0]]]))  # several of one softmax
    assert both.tolist() == [[[0, 3]]]
