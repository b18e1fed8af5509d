import copy
import importlib
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import conformance
import jaxtyping
import naive
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn

import dkaf
from dkaf.integrations.botorch import DkafAcquisition, DkafModel
from dkaf.model.inputs import Inputs
from dkaf.model.prior import Pool
from dkaf.policies import KernelPolicy

# isort: split
# After the adapter, which keeps down what importing BoTorch warns of.
from botorch.acquisition import (
    LogExpectedImprovement,
    PosteriorMean,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qUpperConfidenceBound,
)
from botorch.acquisition.logei import qLogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.generation import MaxPosteriorSampling
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling import SobolQMCNormalSampler

N, D = 30, 5
POOL = np.random.default_rng(1).normal(size=(N, D))
Y = 0.3 + 0.5 * np.random.default_rng(2).normal(size=N)
POINTS = torch.from_numpy(POOL)
TOLD = [3, 17, 8, 22]
KERNELS = [which for which in conformance.every_policy() if which[0] in ("dkaf", "dkl", "gp")]
every_kernel = pytest.mark.parametrize("which", KERNELS, ids="-".join)
every_model = pytest.mark.parametrize("which", [which for which in KERNELS if which[1] == "mi"], ids="-".join)
some_kernels = pytest.mark.parametrize(
    "which", [("dkaf", "mi", "default"), ("dkl", "ei", "default"), ("gp", "ucb", "paper")], ids="-".join
)
kinks = pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning")  # ReLU's, at which L-BFGS may stop


@cache
def policy_of(method: str, acquisition: str, recipe: str) -> KernelPolicy:
    """A small policy, with a kernel that explains a part of the responses and not all."""
    policy = conformance.small_policy(method, acquisition, recipe)
    assert isinstance(policy, KernelPolicy)
    with torch.no_grad():
        policy.prior.log_noise.sub_(1)
    return policy


def model_of(which: tuple[str, str, str], told: list[int] = TOLD) -> DkafModel:
    return DkafModel(policy_of(*which), POOL[told], Y[told])


def others(rows: list[int]) -> Tensor:
    """The pool without some rows; BoTorch's `X_avoid` does so too, from some version on."""
    return torch.from_numpy(np.delete(POOL, rows, axis=0))


def searched(policy: dkaf.Policy, told: list[int], queried: list[bool], pool: Any = POOL) -> dkaf.Search:
    search = dkaf.Search(policy, pool)
    for row, flag in zip(told, queried, strict=True):
        search.tell(row, Y[row], flag)
    return search


@every_model
def test_the_posterior_is_the_papers_in_units_of_y(which: tuple[str, str, str]) -> None:
    policy = copy.deepcopy(policy_of(*which)).double()
    features = (POOL - policy.inputs.shift.numpy()) / policy.inputs.scale.numpy()
    with torch.no_grad():
        z = policy.represent(torch.from_numpy(features)).numpy()
        told = [naive.warped(policy.prior, y) for y in policy.scaled(torch.from_numpy(Y[TOLD])).tolist()]
        mean, var = naive.posterior(policy.prior, z, TOLD, told)
    noise = policy.prior.noise.item()
    noisy = model_of(which).posterior(POINTS, observation_noise=True)
    latent = model_of(which).posterior(POINTS)
    assert isinstance(latent, GPyTorchPosterior)
    for posterior, spread in ((noisy, var), (latent, var - noise)):
        expected = np.array([naive.in_units(policy, *pair) for pair in zip(mean, spread**0.5, strict=True)])
        np.testing.assert_allclose(posterior.mean[:, 0].detach(), expected[:, 0], rtol=1e-8)
        np.testing.assert_allclose(posterior.variance[:, 0].detach(), expected[:, 1] ** 2, rtol=1e-7)


@every_model
def test_covariances_between_points_are_the_papers(which: tuple[str, str, str]) -> None:
    policy = copy.deepcopy(policy_of(*which)).double()
    features = (POOL - policy.inputs.shift.numpy()) / policy.inputs.scale.numpy()
    with torch.no_grad():
        z = policy.represent(torch.from_numpy(features)).numpy()
        K = np.array([[naive.kernel(policy.prior, a, b, False) for b in z] for a in z])
    K_oo = K[np.ix_(TOLD, TOLD)] + policy.prior.noise.item() * np.eye(len(TOLD))
    expected = K - K[:, TOLD] @ np.linalg.solve(K_oo, K[TOLD])
    posterior = model_of(which).posterior(POINTS)
    covariance = posterior.distribution.covariance_matrix.detach().numpy()
    if policy.prior.warp is None:
        np.testing.assert_allclose(covariance, policy.response_scale.item() ** 2 * expected, atol=1e-8)
    deviation, expected_deviation = posterior.variance[:, 0].sqrt().detach().numpy(), expected.diagonal() ** 0.5
    np.testing.assert_allclose(
        covariance / np.outer(deviation, deviation),
        expected / np.outer(expected_deviation, expected_deviation),
        atol=1e-7,
    )


@every_kernel
@pytest.mark.parametrize("told", [[], TOLD, [5, 5, 9]], ids=["nothing", "four", "one-twice"])
def test_beliefs_and_scores_are_those_of_a_search(which: tuple[str, str, str], told: list[int]) -> None:
    policy, queried = policy_of(*which), [False, True, True, True][: len(told)]
    believed = searched(policy, told, queried).believe(range(N))
    assert believed is not None
    acquisition = DkafAcquisition(policy, POOL[told], Y[told], queried=queried)
    posterior = acquisition.model.posterior(POINTS, observation_noise=True)
    np.testing.assert_allclose(posterior.mean[:, 0].detach(), believed[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(posterior.variance[:, 0].sqrt().detach(), believed[1], rtol=1e-4)
    with torch.no_grad():
        rows = torch.arange(N).unsqueeze(0)
        points = policy.points(policy.inputs(POOL, np.arange(N)), Pool(rows, torch.ones_like(rows, dtype=torch.bool)))
        state = policy.begin(points, 1, torch.Generator())
        for row, flag in zip(told, queried, strict=True):
            y = policy.warped(policy.scaled(torch.tensor([[Y[row]]], dtype=torch.float64)))
            state = policy.observe(points, state, torch.tensor([[row]]), y, queried=flag)
        expected = policy.scores(points, state)[0, 0]
        np.testing.assert_allclose(acquisition(POINTS.unsqueeze(1)), expected, rtol=1e-4, atol=1e-4)


@every_kernel
def test_optimize_acqf_discrete_searches_as_ask_does(which: tuple[str, str, str]) -> None:
    policy, told, queried = policy_of(*which), [4], [False]
    search = searched(policy, told, queried)
    for _ in range(5):
        acquisition = DkafAcquisition(policy, POOL[told], Y[told], queried=queried)
        found, score = optimize_acqf_discrete(acquisition, q=1, choices=others(told))
        suggestion = search.ask()[0]
        np.testing.assert_array_equal(found[0], POOL[suggestion.row])
        assert score.item() == pytest.approx(suggestion.score, rel=1e-4, abs=1e-4)
        search.tell(suggestion.row, Y[suggestion.row])
        told, queried = [*told, suggestion.row], [*queried, True]
    acquisition = DkafAcquisition(policy, POOL[told], Y[told], queried=queried)
    found, scores = optimize_acqf_discrete(acquisition, q=4, choices=others(told))
    suggestions = search.ask(4)
    np.testing.assert_array_equal(found, POOL[[suggestion.row for suggestion in suggestions]])
    np.testing.assert_allclose(scores, [suggestion.score for suggestion in suggestions], rtol=1e-4, atol=1e-4)
    acquisition.set_X_pending(POINTS[[1, 2]])
    found, _ = optimize_acqf_discrete(acquisition, q=1, choices=others([*told, 1, 2]))
    np.testing.assert_array_equal(found[0], POOL[search.ask(pending=[1, 2])[0].row])


def test_only_what_was_queried_counts_for_mi() -> None:
    policy = policy_of("dkaf", "mi", "default")
    none, every, one = (
        DkafAcquisition(policy, POOL[TOLD], Y[TOLD], queried=queried)(POINTS.unsqueeze(1))
        for queried in (False, True, torch.tensor([False, True, False, False]))
    )
    assert (every < one).all()
    assert (one < none).all()


@some_kernels
def test_gradients_are_those_of_finite_differences(which: tuple[str, str, str]) -> None:
    policy = policy_of(*which)
    model, acquisition = model_of(which), DkafAcquisition(policy, POOL[TOLD], Y[TOLD], queried=True)
    acquisition.set_X_pending(POINTS[[5]])
    X = POINTS[[0, 1, 2]].unsqueeze(1).requires_grad_()

    def beliefs(X: Tensor) -> tuple[Tensor, Tensor]:
        posterior = model.posterior(X.squeeze(1))
        return posterior.mean, posterior.distribution.covariance_matrix

    assert torch.autograd.gradcheck(beliefs, X, eps=1e-6, atol=1e-6, rtol=1e-4)
    assert torch.autograd.gradcheck(acquisition, X, eps=1e-6, atol=1e-6, rtol=1e-4)
    look_ahead = qKnowledgeGradient(model, num_fantasies=2, sampler=SobolQMCNormalSampler(torch.Size([2]), seed=0))
    assert torch.autograd.gradcheck(look_ahead, X.swapaxes(0, 1), eps=1e-6, atol=1e-6, rtol=1e-4)
    assert not any(p.requires_grad for p in acquisition.parameters())


def test_gradients_of_counts() -> None:
    inputs = Inputs(3, "counts")
    x = torch.tensor([[0.5, 2.0, 3.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(inputs.differentiable, x)


@pytest.mark.parametrize("kind", ["counts", "standardise", "raw"])
def test_the_scaling_of_tensors_is_that_of_arrays(kind: Any) -> None:
    features = np.abs(POOL)
    inputs = Inputs.fitted(features, np.arange(N), kind)
    x = torch.from_numpy(features)
    np.testing.assert_allclose(inputs.differentiable(x), inputs(features, np.arange(N)), rtol=1e-6, atol=1e-6)
    single = inputs.differentiable(x.float().unsqueeze(0))
    assert single.shape == (1, N, D)
    assert single.dtype == torch.float32


def test_every_batch_shape_gives_what_its_points_give_alone() -> None:
    which = ("dkaf", "mi", "default")
    model, acquisition = model_of(which), DkafAcquisition(policy_of(*which), POOL[TOLD], Y[TOLD], queried=True)
    X = POINTS[:24].reshape(2, 3, 4, D)
    posterior = model.posterior(X, observation_noise=True)
    assert posterior.mean.shape == posterior.variance.shape == (2, 3, 4, 1)
    assert posterior.rsample(torch.Size([7])).shape == (7, 2, 3, 4, 1)
    for i, j in np.ndindex(2, 3):
        alone = model.posterior(X[i, j], observation_noise=True)
        torch.testing.assert_close(posterior.mean[i, j], alone.mean)
        torch.testing.assert_close(posterior.distribution.covariance_matrix[i, j], alone.distribution.covariance_matrix)
    scores = acquisition(POINTS.reshape(2, 3, 5, 1, D))
    assert scores.shape == (2, 3, 5)
    torch.testing.assert_close(scores.flatten(), torch.cat([acquisition(x.unsqueeze(0)) for x in POINTS]))
    assert model.num_outputs == 1
    assert model.batch_shape == ()
    torch.testing.assert_close(model.posterior(X.float()).mean, model.posterior(X).mean, rtol=1e-4, atol=1e-5)


def test_posterior_transforms_and_given_noise_are_in_units_of_y() -> None:
    model = model_of(("dkaf", "mi", "default"))
    plain = model.posterior(POINTS)
    turned = model.posterior(POINTS, posterior_transform=ScalarizedPosteriorTransform(torch.tensor([-2.0]).double()))
    torch.testing.assert_close(turned.mean, -2 * plain.mean)
    torch.testing.assert_close(turned.variance, 4 * plain.variance)
    new_X, new_Y = POINTS[[6]], torch.tensor([[1.5]]).double()
    step = 1e-4  # what is noise to the model is, in units of y, larger where the warp is flatter
    around = [model.policy.warped(model.policy.scaled(new_Y + sign * step)) for sign in (-1, 1)]
    noise = model.policy.prior.noise * (2 * step / (around[1] - around[0])) ** 2
    given = model.condition_on_observations(new_X, new_Y, noise=noise.expand(1, 1)).posterior(POINTS)
    torch.testing.assert_close(given.mean, model.condition_on_observations(new_X, new_Y).posterior(POINTS).mean)


@every_model
@pytest.mark.parametrize("known", [0, 2])
def test_conditioning_is_as_if_all_had_been_known(which: tuple[str, str, str], known: int) -> None:
    more = TOLD[known:]
    model = model_of(which, TOLD[:known])
    conditioned = model.condition_on_observations(POINTS[more], torch.from_numpy(Y[more]).unsqueeze(1))
    assert isinstance(conditioned, DkafModel)
    whole = model_of(which).posterior(POINTS, observation_noise=True)
    posterior = conditioned.posterior(POINTS, observation_noise=True)
    torch.testing.assert_close(posterior.mean, whole.mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(posterior.variance, whole.variance, rtol=1e-6, atol=1e-8)
    before = model_of(which, TOLD[:known]).posterior(POINTS)
    torch.testing.assert_close(model.posterior(POINTS).mean, before.mean)  # the model itself has not changed


@some_kernels
def test_fantasies_are_models_of_what_was_drawn(which: tuple[str, str, str]) -> None:
    model, sampler = model_of(which), SobolQMCNormalSampler(torch.Size([3]), seed=0)
    X = POINTS[torch.tensor([[5, 6], [7, 9]])]
    fantasies = model.fantasize(X, sampler)
    drawn = sampler(model.posterior(X, observation_noise=True))  # three draws x two batches x two points x 1
    posterior = fantasies.posterior(POINTS)
    assert posterior.mean.shape == (3, 2, N, 1)
    for i, j in np.ndindex(3, 2):
        features, responses = torch.cat((POINTS[TOLD], X[j])), torch.cat((torch.from_numpy(Y[TOLD]), drawn[i, j, :, 0]))
        expected = DkafModel(policy_of(*which), features, responses).posterior(POINTS)
        torch.testing.assert_close(posterior.mean[i, j], expected.mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(posterior.variance[i, j], expected.variance, rtol=1e-5, atol=1e-6)


def test_analytic_acquisition_functions_of_botorch_see_what_a_search_believes() -> None:
    which = ("dkaf", "mi", "default")
    model, X, best = model_of(which), POINTS.unsqueeze(1), float(Y[TOLD].max())
    believed = searched(policy_of(*which), TOLD, [False] * 4).believe(range(N))
    assert believed is not None
    posterior = model.posterior(POINTS)
    mean, deviation = posterior.mean[:, 0], posterior.variance[:, 0].sqrt()
    torch.testing.assert_close(mean, torch.from_numpy(believed[0]), rtol=1e-3, atol=1e-3)
    noisy = model.posterior(POINTS, observation_noise=True).variance[:, 0].sqrt()
    torch.testing.assert_close(noisy, torch.from_numpy(believed[1]), rtol=1e-3, atol=1e-3)
    normal = torch.distributions.Normal(0.0, 1.0)
    u = (mean - best) / deviation
    improvement = deviation * (u * normal.cdf(u) + normal.log_prob(u).exp())
    close = {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(PosteriorMean(model)(X), mean, **close)
    torch.testing.assert_close(UpperConfidenceBound(model, beta=4.0)(X), mean + 2 * deviation, **close)
    torch.testing.assert_close(LogExpectedImprovement(model, best_f=best)(X).exp(), improvement, **close)
    sampled = qLogExpectedImprovement(model, best_f=best, sampler=SobolQMCNormalSampler(torch.Size([2048]), seed=0))(X)
    torch.testing.assert_close(sampled.exp(), improvement, rtol=0.05, atol=5e-3)


@kinks
@some_kernels
def test_acquisition_functions_of_botorch_optimise(which: tuple[str, str, str]) -> None:
    model, best = model_of(which), float(Y[TOLD].max())
    bounds = torch.tensor([[-2.0] * D, [2.0] * D], dtype=torch.float64)
    sampler, few = SobolQMCNormalSampler(torch.Size([16]), seed=0), SobolQMCNormalSampler(torch.Size([2]), seed=0)
    torch.manual_seed(0)
    for acquisition, q in (
        (LogExpectedImprovement(model, best_f=best), 1),
        (qLogExpectedImprovement(model, best_f=best, sampler=sampler), 2),
        (qLogNoisyExpectedImprovement(model, X_baseline=POINTS[TOLD], sampler=sampler, prune_baseline=False), 2),
        (qUpperConfidenceBound(model, beta=2.0, sampler=sampler), 2),
        (qKnowledgeGradient(model, num_fantasies=2, sampler=few), 1),
        (DkafAcquisition(policy_of(*which), POOL[TOLD], Y[TOLD], queried=True), 1),
    ):
        points = acquisition.get_augmented_q_batch_size(q) if isinstance(acquisition, qKnowledgeGradient) else q
        tried = 2 - 4 * torch.rand(2, points, D, dtype=torch.float64)
        found, value = optimize_acqf(
            acquisition, bounds, q=q, num_restarts=2, batch_initial_conditions=tried, options={"maxiter": 4}
        )
        assert found.shape == (q, D)
        assert bool(((found >= bounds[0]) & (found <= bounds[1])).all())
        with torch.no_grad():
            assert value >= acquisition(tried).max() - 1e-9, type(acquisition)


def test_thompson_sampling_draws_candidates_of_the_pool() -> None:
    torch.manual_seed(0)
    drawn = MaxPosteriorSampling(model_of(("dkaf", "mi", "default")), replacement=False)(POINTS, num_samples=4)
    assert drawn.shape == (4, D)
    assert len({tuple(row) for row in drawn.tolist()} & {tuple(row) for row in POOL.tolist()}) == 4


@kinks
def test_sequential_optimisation_spreads_its_candidates() -> None:
    acquisition = DkafAcquisition(policy_of("dkaf", "mi", "default"), POOL[TOLD], Y[TOLD], queried=True)
    bounds = torch.tensor([[-2.0] * D, [2.0] * D], dtype=torch.float64)
    torch.manual_seed(0)
    options = {"maxiter": 5}
    found, _ = optimize_acqf(acquisition, bounds, 2, 2, raw_samples=8, options=options, sequential=True)
    assert (found[0] - found[1]).norm() > 1e-3
    assert acquisition.X_pending is None


def test_training_the_policy_further_changes_no_model() -> None:
    policy = copy.deepcopy(policy_of("dkaf", "mi", "default"))
    model = DkafModel(policy, POOL[TOLD], Y[TOLD])
    before = model.posterior(POINTS).mean.clone()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1)
    assert policy.dtype == torch.float32
    torch.testing.assert_close(model.posterior(POINTS).mean, before)


def test_an_encoder_that_takes_rows_only_gets_rows() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(D, 3)

        def forward(self, x: Tensor) -> Tensor:
            rows, _ = x.shape
            return self.linear(x).tanh().view(rows, 3)

    tasks = conformance.small_tasks()
    policy = dkaf.fit(tasks, tasks, "dkl", "ei", encoder=Rows(), **conformance.TINY, queries=3)
    model = DkafModel(policy, POOL[TOLD], Y[TOLD])
    assert model.posterior(POINTS.reshape(3, 10, D)).mean.shape == (3, 10, 1)


def test_counts_that_were_sparse_in_training_may_come_dense() -> None:
    draw = np.random.default_rng(0)
    counts = draw.poisson(1.0, size=(N, D)).astype(float)
    tasks = dkaf.TaskSet.from_arrays(sp.csr_array(counts), [np.arange(N)] * 3, [draw.normal(size=N) for _ in range(3)])
    for method in ("dkaf", "gp"):
        policy = dkaf.fit(tasks, tasks, method, "mi", **conformance.TINY, queries=3)
        assert policy.inputs.kind == "counts"
        believed = searched(policy, TOLD, [True] * 4, sp.csr_array(counts)).believe(range(N))
        assert believed is not None
        posterior = DkafModel(policy, counts[TOLD], Y[TOLD]).posterior(torch.from_numpy(counts), observation_noise=True)
        np.testing.assert_allclose(posterior.mean[:, 0].detach(), believed[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(posterior.variance[:, 0].sqrt().detach(), believed[1], rtol=1e-4)
        with pytest.raises(dkaf.InputError, match="counts are at least 0, -1 came"):
            DkafModel(policy, -np.ones((1, D)), [0.0])


def with_value(values: Any, value: float) -> Any:
    changed = np.array(values, dtype=float)
    changed.flat[0] = value
    return changed


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (POOL[TOLD, :4], Y[TOLD], "the policy was trained on 5 features, 4 came; pass the columns"),
        (POOL[3], Y[3:4], r"X is observations x features, shape \(5,\) came; reshape it"),
        (POOL[TOLD], Y[:3], r"one response for each row of X, shape \(3,\) came for 4 rows; pass shape \(4,\)"),
        (POOL[TOLD], Y[[TOLD, TOLD]].T, r"one response for each row of X, shape \(4, 2\) came for 4 rows"),
        (POOL[TOLD], 1.0, r"one response for each row of X, shape \(\) came for 4 rows"),
        (POOL[TOLD], with_value(Y[TOLD], np.nan), "responses are finite and within .*, nan came; leave"),
        (POOL[TOLD], with_value(Y[TOLD], -np.inf), "responses are finite and within .*, -inf came; leave"),
        (POOL[TOLD], with_value(Y[TOLD], 1e20), r"responses are finite and within .*, 1e\+20 came; leave"),
        (with_value(POOL[TOLD], np.nan), Y[TOLD], "features are finite, nan came; drop or mend"),
        (with_value(POOL[TOLD], np.inf), Y[TOLD], "features are finite, inf came; drop or mend"),
        (sp.csr_array(POOL[TOLD]), Y[TOLD], r"X is a tensor or an array of numbers, csr_array came; .*toarray"),
        (POOL[TOLD], ["good"] * 4, "y is a tensor or an array of numbers, list came"),
    ],
)
def test_observations_that_break_a_rule(X: Any, y: Any, message: str) -> None:
    policy = policy_of("dkaf", "mi", "default")
    with pytest.raises(dkaf.InputError, match=message):
        DkafModel(policy, X, y)
    with pytest.raises(dkaf.InputError, match=message):
        DkafAcquisition(policy, X, y, queried=True)


@pytest.mark.parametrize("method", ["rl", "random", "metabo"])
def test_policies_without_a_kernel_of_their_own(method: str) -> None:
    with pytest.raises(dkaf.InputError, match=f"a policy with a kernel, method {method} came; dkaf.fit one of method"):
        DkafModel(conformance.small_policy(method), POOL[TOLD], Y[TOLD])


def test_what_is_no_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as where nobody tests
    with pytest.raises(dkaf.InputError, match="a policy with a kernel, str came"):
        DkafModel("policy.safetensors", POOL[TOLD], Y[TOLD])


@pytest.mark.parametrize("queried", [[True], [1, 0, 1, 0], "yes", None, [[True] * 4]])
def test_flags_that_are_none(queried: Any) -> None:
    with pytest.raises(dkaf.InputError, match="queried is True, False or 4 of these"):
        DkafAcquisition(policy_of("dkaf", "mi", "default"), POOL[TOLD], Y[TOLD], queried=queried)


def test_points_that_break_a_rule() -> None:
    model = model_of(("dkaf", "mi", "default"))
    acquisition = DkafAcquisition(policy_of("dkaf", "mi", "default"), POOL[TOLD], Y[TOLD], queried=True)
    y = torch.from_numpy(Y[TOLD])
    with pytest.raises(dkaf.InputError, match="the policy was trained on 5 features, 4 came"):
        model.posterior(POINTS[:, :4])
    with pytest.raises(dkaf.InputError, match=r"X is \(batches x\) points x features, shape \(5,\) came"):
        model.posterior(POINTS[0])
    with pytest.raises(dkaf.InputError, match="features are finite, nan came"):
        acquisition(POINTS[:1] * torch.nan)
    with pytest.raises(dkaf.InputError, match="the policy was trained on 5 features, 3 came"):
        acquisition.set_X_pending(POINTS[:2, :3])
    with pytest.raises(dkaf.InputError, match=r"in a column; shape \(4,\) came for X of shape \(4, 5\); pass Y.unsq"):
        model.condition_on_observations(POINTS[TOLD], y)
    with pytest.raises(dkaf.InputError, match="responses are finite"):
        model.condition_on_observations(POINTS[TOLD], y.unsqueeze(1) * torch.nan)


def test_without_botorch_the_adapter_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botorch.acquisition", None)
    monkeypatch.delitem(sys.modules, "dkaf.integrations.botorch")
    with pytest.raises(dkaf.InputError, match=r"needs BoTorch, which is not here .*; pip install 'dkaf\[botorch\]'"):
        importlib.import_module("dkaf.integrations.botorch")


def test_no_other_module_imports_botorch_before_it_is_used() -> None:
    package = Path(__file__).parents[1] / "src" / "dkaf"
    importing = {
        p.name for p in package.rglob("*.py") if re.search(r"^(from|import) (bo|gpy)torch", p.read_text(), re.M)
    }
    assert importing == set()
    assert "from botorch" in (package / "integrations" / "botorch.py").read_text()


@kinks
def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[1] / "docs" / "botorch.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/botorch.md", "exec"), names)
    assert "best of 6" in capsys.readouterr().out
    assert names["y"][2:].max() > names["y"][:2].max() + 1
    assert names["three"].shape == (3, 2)


@pytest.mark.filterwarnings("ignore:A not p.d.")  # GPyTorch's, where it draws
def test_points_that_are_the_same_can_be_asked_about_together() -> None:
    """Their covariance has no inverse, which nothing but a density needs."""
    model = model_of(("dkaf", "ei", "default"))
    assert model.policy.prior.warp is not None
    X = POINTS[[5, 5, 6]].clone().requires_grad_()
    posterior = model.posterior(X)
    torch.testing.assert_close(posterior.mean[0], posterior.mean[1])
    drawn = posterior.rsample(torch.Size([4]))
    drawn.sum().backward()
    assert torch.isfinite(drawn).all()
    assert torch.isfinite(X.grad).all()  # type: ignore[arg-type]
