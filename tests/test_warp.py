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
import dkaf.checkpoint as checkpoint
from dkaf.errors import InputError
from dkaf.model.prior import Pool
from dkaf.model.warp import STEEPEST, Warp
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


def test_the_inverse_is_found_whatever_the_bends_are() -> None:
    """Newton's steps alone leave the bounds, or go to and fro between them."""
    for seed in range(200):
        warp = some_warp(seed)
        warp.log_steps += 2.0
        warp.log_steepness += 1.0
        u = 3 * U
        torch.testing.assert_close(warp.inverse(warp(u)), u, rtol=1e-11, atol=1e-11)


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


def test_what_pads_a_task_counts_for_nothing() -> None:
    policy, draw = warped_policy(2), torch.Generator().manual_seed(0)
    z = torch.randn(9, 8, generator=draw, dtype=torch.float64)
    rows, y = torch.arange(9).repeat(2, 1), torch.randn(2, 9, generator=draw, dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    y[1, 5:] = 1e9
    with torch.no_grad():
        both = policy.prior.log_likelihood(policy.prior.place(z, Pool(rows, mask)), y, mask)
        alone = Pool(rows[1:, :5], mask[1:, :5])
        expected = policy.prior.log_likelihood(policy.prior.place(z, alone), y[1:, :5], alone.mask)
    torch.testing.assert_close(both[1:], expected, rtol=1e-6, atol=1e-6)


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


def test_likelihood_alone_trains_it_and_a_file_keeps_it(tmp_path: Path) -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))
    few: dict[str, Any] = conformance.TINY | {"queries": 3}
    untrained, dkl, ours = (
        dkaf.fit(tasks, tasks, method, "ucb", **few | changes)
        for method, changes in (("dkl", {"pretrain_updates": 0}), ("dkl", {}), ("dkaf", {"learning_rate": 0.1}))
    )
    assert not torch.equal(untrained.warped(U.float()), dkl.warped(U.float()))
    assert torch.equal(ours.warped(U.float()), dkl.warped(U.float()))
    ours.save(tmp_path / "policy.safetensors")
    assert torch.equal(dkaf.load(tmp_path / "policy.safetensors").warped(U.float()), ours.warped(U.float()))


def test_a_file_from_before_there_was_a_warp_is_a_policy_without(tmp_path: Path) -> None:
    tasks = conformance.small_tasks(sizes=(20, 20, 20))
    few: dict[str, Any] = conformance.TINY | {"queries": 3}
    policy = dkaf.fit(tasks, tasks, "dkl", "ei", **few, learned_warp=False)
    description = policy.describe()
    del description["settings"]["learned_warp"]
    checkpoint.write(tmp_path / "old.safetensors", policy.state_dict(), description)
    old = dkaf.load(tmp_path / "old.safetensors")
    assert torch.equal(old.warped(U), U)
    with pytest.raises(InputError, match=r"prior\.warp\..*train it with the same settings"):
        dkaf.fit(tasks, tasks, acquisition="ei", pretrained=policy, **few)


def test_the_floor_of_the_noise_grows_with_the_units_of_the_warp() -> None:
    """Else a likelihood without noise would make these as large as rounding lets it."""
    policy = warped_policy(4)
    warp, prior = policy.prior.warp, policy.prior
    assert warp is not None
    with torch.no_grad():
        prior.log_noise.fill_(-100)
        before = prior.noise.item()
        warp.log_slope += math.log(3)
        warp.log_steps += math.log(3)
        assert prior.noise.item() == pytest.approx(9 * before)


def test_responses_that_occur_often_do_not_make_it_a_staircase() -> None:
    draw = np.random.default_rng(0)
    features = draw.normal(size=(100, 2))
    pools = [draw.permutation(100)[:40] for _ in range(10)]
    ratings = [np.round(2 * np.tanh(features[pool] @ draw.normal(size=2))) for pool in pools]
    policy = dkaf.fit(dkaf.TaskSet.from_arrays(features, pools, ratings), method="gp", acquisition="ei")
    assert isinstance(policy, GaussianPolicy)
    warp = policy.prior.warp
    assert warp is not None
    assert warp.log_steepness.max() > STEEPEST  # what it would have been
    slopes = warp.with_slope(U.float())[1]
    assert slopes.max() <= warp.log_slope.exp() + 12 * warp.log_steps.exp().sum()


def test_it_takes_responses_in_units_of_their_deviation() -> None:
    with pytest.raises(InputError, match="learned_warp takes responses in units of their deviation"):
        dkaf.recipe("paper", learned_warp=True)
