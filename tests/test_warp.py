"""The warp of responses: that it rises, what of it is exact, and that the model's responses are warped everywhere."""

import math
from pathlib import Path
from typing import Any

import conformance
import naive
import numpy as np
import pytest
import torch
from scipy.integrate import quad

import dkaf
from dkaf.errors import InputError
from dkaf.learning.episodes import PaddedTasks
from dkaf.learning.reinforce import policy_gradient_loss
from dkaf.model.prior import Pool
from dkaf.model.warp import Warp
from dkaf.policies import GaussianPolicy, KernelPolicy

U = torch.linspace(-9, 9, 181, dtype=torch.float64)


def some_warp(seed: int) -> Warp:
    warp, draw = Warp().double(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in warp.parameters():
            parameter += torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
    return warp.requires_grad_(False)


def warped_policy(seed: int, acquisition: str = "ucb") -> KernelPolicy:
    few = {"pretrain_updates": 5, "updates": 0, "linear_features": 0, "learned_mean": False}
    policy = dkaf.fit(conformance.small_tasks(), method="dkl", acquisition=acquisition, **conformance.TINY | few)
    assert isinstance(policy, KernelPolicy)
    policy.prior.warp = some_warp(seed)
    return policy.double()


@pytest.mark.parametrize("seed", range(5))
def test_it_rises_and_its_slope_and_inverse_are_its_own(seed: int) -> None:
    warp = some_warp(seed)
    g, slope = warp.with_slope(U)
    assert (g.diff() > 0).all()
    step = 1e-6
    torch.testing.assert_close((warp(U + step) - warp(U - step)) / (2 * step), slope, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(warp.inverse(g), U, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(warp.usual_slope(), float(warp(torch.tensor(2.0)) - warp(torch.tensor(-2.0))) / 4)
    assert torch.autograd.gradcheck(warp.inverse, g.clone().requires_grad_())


def test_the_likelihood_is_a_density_of_the_responses_themselves() -> None:
    """It integrates to one over y, which it would not without the warp's slope."""
    policy = warped_policy(1)
    prior, pool = policy.prior, Pool(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.bool))

    @torch.no_grad()
    def density(y: float) -> float:
        points = prior.place(torch.zeros(1, 8, dtype=torch.float64), pool)
        return math.exp(prior.log_likelihood(points, torch.tensor([[y]], dtype=torch.float64), pool.mask).item())

    total, _ = quad(density, -200, 200, limit=400, points=[-5, -2, -1, 0, 1, 2, 5])
    assert total == pytest.approx(1, abs=1e-6)


def test_likelihood_finds_the_map_that_made_responses_skewed() -> None:
    """Of exp(f) with f linear, the warp makes something nearly linear in f, and a likelier prior than none."""
    draw = np.random.default_rng(0)
    features = draw.normal(size=(120, 3))
    pools = [draw.permutation(120)[:40] for _ in range(12)]
    latent = [features[pool] @ draw.normal(scale=0.5, size=3) for pool in pools]
    tasks = dkaf.TaskSet.from_arrays(features, pools, [np.exp(f) for f in latent])
    losses, images = [], []
    for learned_warp in (True, False):
        few: dict[str, Any] = {"pretrain_updates": 300, "pretrain_tasks": 8, "width": 16, "learned_warp": learned_warp}
        few["pretrain_learning_rate"] = 1e-2
        policy = dkaf.fit(tasks, method="dkl", acquisition="ei", **few)
        assert isinstance(policy, GaussianPolicy)
        with torch.no_grad():
            y = policy.scaled(torch.from_numpy(np.concatenate(tasks.responses)))
            images.append(policy.warped(y).numpy())
            pool = Pool(torch.from_numpy(pools[0])[None], torch.ones(1, 40, dtype=torch.bool))
            points = policy.points(policy.inputs(features, np.arange(120)), pool)
            losses.append(policy.prior.log_likelihood(points, y[None, :40], pool.mask).item())
    assert losses[0] > losses[1] + 0.1
    with_warp, without = (abs(np.corrcoef(image, np.concatenate(latent))[0, 1]) for image in images)
    assert with_warp > without + 0.05


def test_beliefs_in_units_of_y_are_medians_and_central_spreads() -> None:
    for policy in (warped_policy(2), conformance_gp()):
        mean, deviation = torch.tensor([-1.0, 0.3, 4.0]).double(), torch.tensor([0.5, 2.0, 0.01]).double()
        medians, spreads = policy.in_units(mean, deviation)
        for place in range(3):
            expected = naive.in_units(policy, mean[place].item(), deviation[place].item())
            assert (medians[place].item(), spreads[place].item()) == pytest.approx(expected, rel=1e-9)


def conformance_gp() -> GaussianPolicy:
    policy = dkaf.fit(conformance.small_tasks(), method="gp", acquisition="ei", recipe="paper", pretrain_updates=2)
    assert isinstance(policy, GaussianPolicy)
    return policy.double()


def test_what_was_told_is_believed_in_its_own_units() -> None:
    tasks = conformance.small_tasks()
    policy = warped_policy(3).float()
    with torch.no_grad():
        policy.prior.log_noise -= 20
        policy.prior.noise_floor.fill_(1e-6)
    search = dkaf.Search(policy, np.asarray(tasks.features))
    values = {3: 0.7, 5: -1.2}
    for row, value in values.items():
        search.tell(row, value)
    believed = search.believe(list(values))
    assert believed is not None
    assert believed[0] == pytest.approx(list(values.values()), abs=1e-3)


@pytest.mark.parametrize("acquisition", ["mi", "ei", "ucb"])
def test_the_softmax_is_as_cold_whatever_units_the_warp_has(acquisition: str) -> None:
    """Scores in larger units are divided by as much more; log EI has no units."""
    policy = warped_policy(0, acquisition)
    warp = policy.prior.warp
    assert warp is not None
    before = policy.temperature
    with torch.no_grad():
        warp.log_slope += math.log(3)
        warp.log_steps += math.log(3)
    assert policy.temperature == pytest.approx(before * (1 if acquisition == "ei" else 3))


@pytest.mark.parametrize("acquisition", ["mi", "ei", "ucb"])
def test_the_policy_gradient_reaches_the_warp_and_a_file_keeps_it(acquisition: str, tmp_path: Path) -> None:
    policy = conformance.small_policy("dkaf", acquisition)
    assert isinstance(policy, KernelPolicy)
    warp = policy.prior.warp
    assert warp is not None
    tasks = PaddedTasks.of(policy, conformance.small_tasks(sizes=(20, 20, 20)))
    policy.settings = policy.settings.override(likelihood_weight=0.0)
    policy_gradient_loss(policy, tasks, torch.arange(3), torch.Generator().manual_seed(0)).backward()
    for name, parameter in warp.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    policy.save(tmp_path / "policy.safetensors")
    again = dkaf.load(tmp_path / "policy.safetensors")
    assert torch.equal(again.warped(U.float()), policy.warped(U.float()))


def test_it_takes_responses_in_units_of_their_deviation() -> None:
    with pytest.raises(InputError, match="learned_warp takes responses in units of their deviation"):
        dkaf.recipe("paper", learned_warp=True)
