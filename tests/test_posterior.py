import warnings

import naive
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dkaf
from dkaf.learning.episodes import Batch, search
from dkaf.model.inputs import Inputs
from dkaf.model.posterior import Beliefs, log_likelihood, trajectory
from dkaf.model.prior import Pool
from dkaf.policies import KernelPolicy, build


def policy_for(d: int, seed: int, *, acquisition: str = "mi", **overrides: object) -> KernelPolicy:
    torch.manual_seed(seed)
    chosen = {"linear_features": 2, "learned_mean": True, "width": 4} | overrides
    built = build("dkaf", acquisition, dkaf.recipe("paper", **chosen), Inputs(d, "raw"))
    assert isinstance(built, KernelPolicy)
    return naive.randomised(built, seed).eval()


def naive_scores(policy: KernelPolicy, batch: Batch, chosen: torch.Tensor, initial: int) -> torch.Tensor:
    """Scores before every query, from a posterior recomputed at each step and the acquisition's own formula."""
    z_rows = policy.prior.represent(batch.x)
    scores = []
    for s, e in np.ndindex(*chosen.shape[:2]):
        z = z_rows[batch.pool.rows[s]].detach().numpy()
        order, y = chosen[s, e].tolist(), batch.y[s].numpy()
        xi, rows = 0.0, []
        for t in range(initial, len(order)):
            mu, var = naive.posterior(policy.prior, z, order[:t], y[order[:t]].tolist())
            nu, sigma = policy.log_nu.exp().item(), np.sqrt(var)
            if policy.acquisition == "mi":
                a = mu + np.sqrt(nu) * (np.sqrt(var + xi) - np.sqrt(xi))
            elif policy.acquisition == "ucb":
                a = mu + np.sqrt(nu) * sigma
            else:
                normal = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1)
                u = torch.from_numpy((mu - max(y[order[:t]], default=0.0)) / sigma)
                a = sigma * (u * normal.cdf(u) + normal.log_prob(u).exp()).numpy()
            rows.append(torch.from_numpy(a))
            xi += float(var[order[t]])
        scores.append(torch.stack(rows))
    return torch.stack(scores).unflatten(0, chosen.shape[:2])


@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(6, 12), min_size=1, max_size=3),
    episodes=st.integers(1, 3),
    initial=st.integers(0, 3),
    queries=st.integers(1, 3),
    acquisition=st.sampled_from(["mi", "ei", "ucb"]),
    linear=st.integers(0, 2),
    mean=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_episode_factorisation_equals_stepwise_posterior(
    seed: int, sizes: list[int], episodes: int, initial: int, queries: int, acquisition: str, linear: int, mean: bool
) -> None:
    x, batch, chosen = naive.random_case(seed, sizes=sizes, episodes=episodes, n_observed=initial + queries)
    policy = policy_for(x.shape[1], seed, acquisition=acquisition, linear_features=linear, learned_mean=mean)
    points = policy.points(batch.x, batch.pool)
    y = batch.y.gather(1, chosen.flatten(1)).unflatten(1, chosen.shape[1:])
    expected = naive_scores(policy, batch, chosen, initial)
    fast = policy.episode_scores(points, chosen, y, initial)
    real = batch.pool.mask[:, None, None].expand_as(fast)
    torch.testing.assert_close(fast[real], expected[real], atol=1e-8, rtol=1e-8)

    state = policy.begin(points, episodes, torch.Generator())
    for position in range(initial + queries):
        if position >= initial:
            step = policy.scores(points, state)
            real = batch.pool.mask[:, None].expand_as(step)
            torch.testing.assert_close(step[real], expected[:, :, position - initial][real], atol=1e-8, rtol=1e-8)
        state = policy.observe(points, state, chosen[..., position], y[..., position], queried=position >= initial)


def test_posterior_equals_gpytorch_exact_gp() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own dependencies warn at import
        import gpytorch

    x, batch, chosen = naive.random_case(3, sizes=[20], episodes=1, n_observed=7)
    policy = policy_for(x.shape[1], 3, linear_features=0, learned_mean=False)
    prior, points = policy.prior, policy.points(batch.x, batch.pool)
    order = chosen[0, 0]
    y = batch.y[0, order]
    K = points.covariance(chosen[0]).unsqueeze(0)
    ours = trajectory(points.mean, points.var, points.noise, K, chosen, y[None, None], 0)

    class Exact(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, z: torch.Tensor, y: torch.Tensor, likelihood: object) -> None:
            super().__init__(z, y, likelihood)
            self.mean = gpytorch.means.ZeroMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, z: torch.Tensor) -> object:
            return gpytorch.distributions.MultivariateNormal(self.mean(z), self.kernel(z))

    z = prior.represent(batch.x)[batch.pool.rows[0]].detach()
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.Positive())
    model = Exact(z[order], y, likelihood).double()
    likelihood.noise = prior.noise.detach()
    model.kernel.outputscale = prior.amplitude.detach()
    model.kernel.base_kernel.lengthscale = prior.log_length.exp().sqrt().detach()
    everyone = prior.log_likelihood(points, batch.y, batch.pool.mask)
    model.train()
    whole = gpytorch.distributions.MultivariateNormal(torch.zeros(20).double(), model.kernel(z))
    torch.testing.assert_close(everyone[0], likelihood(whole).log_prob(batch.y[0]) / 20, atol=1e-8, rtol=1e-8)
    for seen in range(1, 8):
        model.set_train_data(z[order[:seen]], y[:seen], strict=False)
        model.eval()
        likelihood.eval()
        with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
            theirs = likelihood(model(z))
        torch.testing.assert_close(ours.mean[0, 0, seen].detach(), theirs.mean, atol=1e-7, rtol=1e-7)
        torch.testing.assert_close(ours.var[0, 0, seen].detach(), theirs.variance, atol=1e-7, rtol=1e-7)


def test_beliefs_that_outgrow_their_room_are_those_of_one_factorisation() -> None:
    draw = torch.Generator().manual_seed(0)
    z, y = torch.randn(60, 2, generator=draw, dtype=torch.float64), torch.randn(60, generator=draw, dtype=torch.float64)
    K, noise = torch.exp(-0.5 * torch.cdist(z, z).square()), torch.tensor(0.1, dtype=torch.float64)
    order = torch.randperm(60, generator=draw)[:40]
    m, var = torch.zeros(1, 60, dtype=torch.float64), torch.full((1, 60), 1.1, dtype=torch.float64)
    beliefs = Beliefs(m, var, noise, 1)
    for place in order:
        beliefs.observe(K[place].view(1, 1, 60), place.view(1, 1), y[place].view(1, 1))
    at_once = trajectory(m, var, noise, K[order].view(1, 1, 40, 60), order.view(1, 1, 40), y[order].view(1, 1, 40), 40)
    torch.testing.assert_close(beliefs.mean, at_once.mean[:, :, 0])
    torch.testing.assert_close(beliefs.var, at_once.var[:, :, 0])


@pytest.mark.parametrize("p", [0, 2])
def test_log_likelihood_equals_the_normal_density_with_its_gradient(p: int) -> None:
    draw = torch.Generator().manual_seed(0)
    root = torch.randn(2, 5, 3, generator=draw, dtype=torch.float64)
    phi = torch.randn(2, 5, p, generator=draw, dtype=torch.float64)
    m, y, var = torch.randn(3, 2, 5, generator=draw, dtype=torch.float64)
    everyone = torch.ones(2, 5, dtype=torch.bool)

    def ours(root: torch.Tensor, phi: torch.Tensor, m: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        log_rbf = -torch.cdist(root, root).square()
        return log_likelihood(m, 4 + p + phi.square().sum(-1) + var, log_rbf, phi if p else None, y, everyone)

    K = (-torch.cdist(root, root).square()).exp() + phi @ phi.mT
    K = K + torch.diag_embed(3 + p + var)
    expected = torch.distributions.MultivariateNormal(m, K).log_prob(y) / 5
    torch.testing.assert_close(ours(root, phi, m, var), expected)
    inputs = (root.requires_grad_(), phi.requires_grad_(p > 0), m.requires_grad_(), var.requires_grad_())
    assert torch.autograd.gradcheck(ours, inputs)


def test_log_likelihood_of_tasks_of_different_sizes_is_that_of_each_alone() -> None:
    policy = policy_for(3, 1)
    x, batch, _ = naive.random_case(1, sizes=[9, 4, 2], episodes=1, n_observed=1)
    whole = policy.prior.log_likelihood(policy.points(x, batch.pool), batch.y, batch.pool.mask)
    for s, size in enumerate((9, 4, 2)):
        alone = Pool(batch.pool.rows[s : s + 1, :size], batch.pool.mask[s : s + 1, :size])
        value = policy.prior.log_likelihood(policy.points(x, alone), batch.y[s : s + 1, :size], alone.mask)
        torch.testing.assert_close(whole[s : s + 1], value)


def test_a_matrix_that_rounding_spoiled_is_mended_without_touching_its_neighbours() -> None:
    good, bad = torch.full((3, 3), 0.5), torch.ones(3, 3)
    m, y, mask = torch.zeros(2, 3), torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
    var = torch.tensor([[1.5] * 3, [1 - 1e-6] * 3])
    both = log_likelihood(m, var, torch.stack((good, bad)).log(), None, y, mask)
    assert torch.isfinite(both).all()
    alone = log_likelihood(m[:1], var[:1], good[None].log(), None, y[:1], mask[:1])
    torch.testing.assert_close(both[:1], alone, atol=0, rtol=0)


@pytest.mark.parametrize("acquisition", ["mi", "ei", "ucb"])
def test_scores_and_gradients_are_finite_in_single_precision_with_duplicates_and_constant_responses(
    acquisition: str,
) -> None:
    policy = policy_for(3, 0, acquisition=acquisition, log_ei=acquisition == "ei").float()
    with torch.no_grad():
        policy.prior.log_noise.fill_(-20.0)  # the floor alone keeps the factorisation sound
    x, batch, _ = naive.random_case(0, sizes=[12], episodes=1, n_observed=1)
    batch = Batch(torch.ones_like(x).float(), batch.pool, torch.full_like(batch.y, 2.0).float())
    points = policy.points(batch.x, batch.pool)
    start = torch.tensor([[0]])
    chosen = search(policy, points, batch, start, 11, torch.Generator(), episodes=1)
    assert sorted(chosen[0, 0].tolist()) == list(range(12))
    scores = policy.episode_scores(points, chosen, torch.full((1, 1, 12), 2.0), 1)
    assert torch.isfinite(scores).all()
    scores.square().sum().backward()
    for parameter in policy.parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()


def test_beliefs_of_some_candidates_go_on_as_those_of_all() -> None:
    torch.manual_seed(0)
    x = torch.randn(30, 3, dtype=torch.float64)
    K = torch.exp(-0.5 * torch.cdist(x, x) ** 2).unsqueeze(0)
    noise = torch.tensor(0.1, dtype=torch.float64)
    whole = Beliefs(torch.zeros(1, 30, dtype=torch.float64), (1 + noise).expand(1, 30), noise, 1)

    def observe(beliefs: Beliefs, covariance: torch.Tensor, place: int, value: float) -> None:
        beliefs.observe(covariance, torch.tensor([[place]]), torch.tensor([[value]], dtype=torch.float64))

    for place in (4, 9, 17):
        observe(whole, K[:, place : place + 1], place, 0.1 * place)
    some = torch.tensor([20, 4, 3, 25])
    part = whole.at(some)
    observe(part, K[:, 25:26, some], 3, 1.0)
    assert not torch.equal(whole.mean[..., some], part.mean)  # it is a copy
    observe(whole, K[:, 25:26], 25, 1.0)
    torch.testing.assert_close(part.mean, whole.mean[..., some])
    torch.testing.assert_close(part.var, whole.var[..., some])
