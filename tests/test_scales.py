"""The kernel's scales: what they are, what they learn of tasks that the encoder has not seen, and what comes of it."""

import copy
from collections.abc import Callable
from typing import Any

import conformance
import numpy as np
import pytest
import torch
from torch import nn

import dkaf
from dkaf.errors import DivergedError, FallbackWarning
from dkaf.learning import reinforce as reinforce_module
from dkaf.learning.episodes import PaddedTasks
from dkaf.learning.pretrain import _validation_loss, scales_by_likelihood
from dkaf.learning.reinforce import (
    Before,
    Settled,
    policy_gradient_loss,
    reinforce,
    scales_by_policy_gradient,
    validation_gap,
)
from dkaf.learning.scales import Loss, learn_scales, scales
from dkaf.model.prior import Prior
from dkaf.policies import KernelPolicy

Tasks = tuple[dkaf.TaskSet, dkaf.TaskSet]
FEW: dict[str, Any] = {"pretrain_updates": 60, "updates": 1, "scale_updates": 40, "queries": 5, "candidates": 30}
FEW |= {"width": 16, "pretrain_tasks": 4}


@pytest.fixture(scope="module")
def tasks() -> Tasks:
    """Responses fall with the distance to a place of each task's own, which a few points tell and a mean does not."""
    draw = np.random.default_rng(0)
    features = draw.uniform(-1, 1, size=(200, 2))
    pools = [draw.permutation(200)[:40] for _ in range(16)]
    responses = [-np.linalg.norm(features[pool] - draw.uniform(-1, 1, 2), axis=1) for pool in pools]
    train, unseen = dkaf.TaskSet.from_arrays(features, pools, responses).split(8, 8)
    return train, unseen


def pretrained(tasks: Tasks, acquisition: str = "ucb", **changes: Any) -> KernelPolicy:
    policy = dkaf.fit(tasks[0], tasks[1], "dkl", acquisition, **FEW | {"scale_updates": 0} | changes)
    assert isinstance(policy, KernelPolicy)
    policy.settings = policy.settings.override(scale_updates=FEW["scale_updates"])
    return policy


def weights(policy: dkaf.Policy) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in policy.state_dict().items()}


def changed(before: dict[str, torch.Tensor], policy: dkaf.Policy) -> set[str]:
    after = policy.state_dict()
    assert list(before) == list(after)
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


SCALARS = {"prior.log_amplitude", "prior.log_length", "prior.log_noise"}
WARP = {f"prior.warp.{name}" for name in ("log_slope", "log_steps", "log_steepness", "centres")}
WEIGHTS = {"prior.linear.weight", "prior.mean.weight"}


def quiet(update: int, gap: float | None = None) -> None:
    pass


def test_inside_only_scales_have_a_gradient_and_outside_all_is_as_before(tasks: Tasks) -> None:
    policy = pretrained(tasks)
    before, kinds = weights(policy), [type(module) for module in policy.modules()]
    wanted = {name: parameter.requires_grad for name, parameter in policy.named_parameters()}
    with scales(policy, warp=True) as learned:
        with_gradient = {id(parameter) for parameter in policy.parameters() if parameter.requires_grad}
        assert with_gradient == {id(parameter) for parameter in learned}
        assert len(learned) == 6 + len(WARP)
        assert sum(parameter.numel() for parameter in learned) == 6 + 10
    assert changed(before, policy) == set()
    assert [type(module) for module in policy.modules()] == kinds
    assert {name: parameter.requires_grad for name, parameter in policy.named_parameters()} == wanted


def test_factors_become_part_of_the_weights_also_after_an_error(tasks: Tasks) -> None:
    policy = pretrained(tasks)
    before = weights(policy)

    def fail() -> None:
        with scales(policy, warp=True) as learned:
            with torch.no_grad():
                for number in learned[-2:]:  # the linear part's and the mean's
                    number.fill_(0.5)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert changed(before, policy) == WEIGHTS
    for name in WEIGHTS:
        torch.testing.assert_close(policy.state_dict()[name], before[name] * torch.tensor(0.5).exp())


def test_the_papers_model_has_four_scales_or_three(tasks: Tasks) -> None:
    for learned_nu, count in ((True, 4), (False, 3)):
        policy = pretrained(tasks, linear_features=0, learned_mean=False, learned_warp=False, learned_nu=learned_nu)
        with scales(policy, warp=True) as learned:
            assert len(learned) == count


def noisier(by: float) -> Callable[[Prior], None]:
    def change(prior: Prior) -> None:
        prior.log_noise.data += by

    return change


@pytest.mark.parametrize("second", ["worse", "better"])
def test_of_two_starts_the_likelier_end_is_kept(tasks: Tasks, monkeypatch: pytest.MonkeyPatch, second: str) -> None:
    """From far too much noise there is no way back in so few updates."""
    monkeypatch.setattr(Prior, "start_small", noisier(0))
    good = weights(pretrained(tasks, dropout=0.0))
    if second == "worse":
        monkeypatch.setattr(Prior, "start_small", noisier(12))
    else:
        initialise = Prior.initialise

        def spoiled(prior: Prior, *arguments: Any) -> None:
            initialise(prior, *arguments)
            noisier(12)(prior)

        monkeypatch.setattr(Prior, "initialise", spoiled)
        monkeypatch.setattr(Prior, "start_small", noisier(-12))
    after = weights(pretrained(tasks, dropout=0.0))
    for name, weight in good.items():
        torch.testing.assert_close(after[name], weight, rtol=1e-3, atol=1e-3)


def test_a_start_leaves_most_to_the_linear_part_where_there_is_one(tasks: Tasks) -> None:
    """Amplitude and noise, in variances of the responses."""
    for features, noise in ((4, 0.01), (0, 0.1)):
        policy = dkaf.fit(tasks[0], None, "dkl", "ei", **FEW | {"pretrain_updates": 0, "linear_features": features})
        prior = policy.prior
        assert isinstance(prior, Prior)
        assert prior.amplitude.item() == pytest.approx(1.0, rel=1e-3)
        assert prior.log_noise.exp().item() == pytest.approx(noise, rel=1e-3)
        prior.start_small()
        assert prior.amplitude.item() == pytest.approx(0.03, rel=1e-3)
        assert prior.log_noise.exp().item() == pytest.approx(0.3 * noise, rel=1e-3)


def test_the_log_counts_the_updates_of_the_start_that_was_kept(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(news: dkaf.Progress) -> None:
        if (news.stage, news.update) == ("likelihood, another start", 7):
            raise KeyboardInterrupt

    with pytest.raises(dkaf.Interrupted) as caught:
        dkaf.fit(*tasks, "dkl", "ei", **FEW, progress=interrupt)
    assert caught.value.policy.training_log.pretrain_updates == 60
    monkeypatch.setattr(Prior, "start_small", noisier(12))
    log = dkaf.fit(*tasks, "dkl", "ei", **FEW | {"pretrain_validate_every": 5, "pretrain_patience": 10}).training_log
    assert log.pretrain_updates == 60


def test_a_second_start_that_diverges_costs_nothing(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prior, "start_small", noisier(12))
    good = weights(pretrained(tasks))
    monkeypatch.setattr(Prior, "start_small", noisier(float("nan")))
    assert changed(good, pretrained(tasks)) == set()


def test_there_is_one_start_without_a_linear_part_or_validation_tasks(tasks: Tasks) -> None:
    stages: list[str] = []
    few = FEW | {"pretrain_updates": 2, "scale_updates": 0}
    for validation, features in ((None, 4), (tasks[1], 0), (tasks[1], 4)):
        stages.append("")
        dkaf.fit(
            tasks[0],
            validation,
            "dkl",
            "ei",
            **few | {"linear_features": features},
            progress=lambda p: stages.append(p.stage),
        )
    one = ["", "likelihood", "likelihood"]
    assert stages == [*one, *one, *one, *["likelihood, another start"] * 2]


def test_likelihood_makes_unseen_tasks_likelier_by_the_scales_alone(tasks: Tasks) -> None:
    policy = pretrained(tasks)
    unseen = PaddedTasks.of(policy, tasks[1])
    before, loss = weights(policy), _validation_loss(policy, unseen, 0)
    scales_by_likelihood(policy, unseen, 0, quiet)
    assert (
        changed(before, policy) == SCALARS | WARP | WEIGHTS
    )  # not nu, of which likelihood knows nothing, nor the encoder
    assert _validation_loss(policy, unseen, 0) < loss - 0.01


@pytest.mark.parametrize("acquisition", ["mi", "ei", "ucb"])
def test_the_policy_gradient_mends_scales_that_search_badly(tasks: Tasks, acquisition: str) -> None:
    """With far too much noise nothing is learned from what was observed, and a search goes where the prior mean is."""
    policy = pretrained(tasks, acquisition, validation_starts=8)
    policy.settings = policy.settings.override(scale_updates=200)  # after 100, rounding decides
    unseen = PaddedTasks.of(policy, tasks[1])
    good = validation_gap(policy, unseen, 0)
    with torch.no_grad():
        policy.prior.log_noise += 9
    before, bad = weights(policy), validation_gap(policy, unseen, 0)
    scales_by_policy_gradient(policy, unseen, 0, quiet)
    mended = validation_gap(policy, unseen, 0)
    assert changed(before, policy) == SCALARS | WEIGHTS | ({"log_nu"} if acquisition != "ei" else set())
    assert bad > 1.3 * good
    assert mended < 0.5 * (good + bad)


def test_the_loss_of_encoded_rows_is_that_of_the_rows(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are encoded once; the plain path encodes them in every update."""
    policy = pretrained(tasks, likelihood_weight=0.0)
    unseen = PaddedTasks.of(policy, tasks[1])
    losses: list[tuple[float, float]] = []

    def compare(
        policy: KernelPolicy,
        unseen: PaddedTasks,
        loss: Loss,
        draw: torch.Generator,
        report: Callable[[int], None],
        *,
        warp: bool,
    ) -> None:
        def both(encoded: PaddedTasks, some: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
            again = torch.Generator()
            again.set_state(draw.get_state())
            fast = loss(encoded, some, draw)
            losses.append((fast.item(), policy_gradient_loss(policy, unseen, some, again).item()))
            return fast

        learn_scales(policy, unseen, both, draw, report, warp=warp)

    monkeypatch.setattr(reinforce_module, "learn_scales", compare)
    scales_by_policy_gradient(policy, unseen, 0, quiet)
    fast, plain = torch.tensor(losses).T
    assert len(losses) == FEW["scale_updates"]
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)


def test_a_training_ends_with_the_scales_and_says_so(tasks: Tasks) -> None:
    policy = dkaf.fit(*tasks, acquisition="ucb", seed=3, **FEW)
    log = policy.training_log
    assert (log.updates, log.best_update) == (41, 41)
    assert "did all 1 updates, then 40 of the kernel's scales on the validation tasks" in log.in_words()
    unseen = PaddedTasks.of(policy, tasks[1])
    assert dict(log.validation)[41] == pytest.approx(validation_gap(policy, unseen, 3))


def test_scales_go_half_of_the_way_that_the_tasks_lead(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = pretrained(tasks)
    before = weights(policy)

    def learn(policy: KernelPolicy, *_: Any, **__: Any) -> None:
        with torch.no_grad():
            policy.prior.log_noise += 3
            policy.log_nu -= 1

    monkeypatch.setattr(reinforce_module, "learn_scales", learn)
    scales_by_policy_gradient(policy, PaddedTasks.of(policy, tasks[1]), 0, quiet)
    assert changed(before, policy) == {"prior.log_noise", "log_nu"}
    torch.testing.assert_close(policy.prior.log_noise.data, before["prior.log_noise"] + 1.5)
    torch.testing.assert_close(policy.log_nu.data, before["log_nu"] - 0.5)


def test_without_validation_tasks_the_scales_stay(tasks: Tasks) -> None:
    with_scales, without = (
        dkaf.fit(tasks[0], acquisition="ucb", **FEW | {"scale_updates": updates}) for updates in (40, 0)
    )
    assert changed(weights(without), with_scales) == set()
    assert with_scales.training_log.updates == 1


@pytest.mark.parametrize("method", ["gp", "rl", "metabo"])
def test_other_methods_have_nothing_of_it_whatever_the_settings_say(tasks: Tasks, method: str) -> None:
    few = FEW | {"pretrain_updates": 3, "validation_starts": 1}
    told: list[str] = []
    dkaf.fit(*tasks, method, "ei", **few, progress=lambda news: told.append(news.stage))
    assert set(told) <= {"likelihood", "policy gradient"}


def test_dkl_learns_its_scales_by_likelihood_and_ours_starts_there(tasks: Tasks) -> None:
    dkl = dkaf.fit(*tasks, "dkl", "ei", **FEW)
    by_hand = pretrained(tasks, "ei")
    scales_by_likelihood(by_hand, PaddedTasks.of(by_hand, tasks[1]), 0, quiet)
    assert changed(weights(dkl), by_hand) == set()
    ours = dkaf.fit(*tasks, "dkaf", "ei", **FEW | {"updates": 0})
    assert changed(weights(dkl), ours) == set()


@pytest.mark.parametrize(
    ("best", "noise", "share", "nearest"),
    [
        pytest.param(1.5, 0.0, 0.75, 0.75, id="as usual"),
        pytest.param(2.0, 0.0, 1.0, 1.0, id="the further the better"),
        pytest.param(2.0, 9.0, 0.75, 0.75, id="further is better by less than its error"),
        pytest.param(1.0, 0.0, 0.5, 0.5, id="too far"),
        pytest.param(1.0, 9.0, 0.75, 0.75, id="too far by less than its error"),
        pytest.param(0.7, 9.0, 0.25, 0.25, id="too far by less than its error, and no better than before"),
        pytest.param(0.25, 0.0, 0.0, 0.25, id="no better"),
        pytest.param(0.2, 9.0, 0.0, 0.25, id="no better, whatever the error"),
        pytest.param(0.0, 0.0, 0.0, 0.25, id="worse"),
        pytest.param(0.0, 9.0, 0.0, 0.25, id="worse by less than its error"),
    ],
)
def test_what_end_to_end_training_leads_to_is_kept_where_it_is_better_on_validation_tasks(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, best: float, noise: float, share: float, nearest: float
) -> None:
    """A gap that is least at one place of a scale, which the training moves by 2, and that differs between tasks."""
    policy = pretrained(tasks)
    was = policy.prior.log_noise.item()

    def gaps(policy: KernelPolicy, tasks: PaddedTasks, seed: int) -> torch.Tensor:
        place = round(policy.prior.log_noise.item() - was, 4)
        return abs(place - best) + noise * place * torch.linspace(-1, 1, 8)

    monkeypatch.setattr(reinforce_module, "validation_gaps", gaps)
    before = Before(policy, PaddedTasks.of(policy, tasks[1]), 0)
    with torch.no_grad():
        policy.prior.log_noise += 2
    settled = before.settle()
    assert settled.share == share
    assert policy.prior.log_noise.item() - was == pytest.approx(2 * share, abs=1e-5)
    assert settled.gap == pytest.approx(abs(2 * nearest - best), abs=1e-5)


def test_of_two_shares_that_are_clearly_better_the_best_is_kept(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = pretrained(tasks)
    was = policy.prior.log_noise.item()
    gap_at = {0.0: 9.0, 0.5: 6.0, 1.0: 4.0, 1.5: 5.0, 2.0: 3.0}

    def gaps(policy: KernelPolicy, tasks: PaddedTasks, seed: int) -> torch.Tensor:
        return torch.full((8,), gap_at[round(policy.prior.log_noise.item() - was, 3)])

    monkeypatch.setattr(reinforce_module, "validation_gaps", gaps)
    before = Before(policy, PaddedTasks.of(policy, tasks[1]), 0)
    with torch.no_grad():
        policy.prior.log_noise += 2
    assert before.settle() == Settled(1.0, 3.0)


def test_where_a_share_of_the_way_diverges_another_is_kept(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = pretrained(tasks)
    was = policy.prior.log_noise.item()

    def gaps(policy: KernelPolicy, tasks: PaddedTasks, seed: int) -> torch.Tensor:
        place = round(policy.prior.log_noise.item() - was, 3)
        if place in (0.5, 1.5):
            raise DivergedError("representations are finite")
        return torch.full((8,), 9 - place)

    monkeypatch.setattr(reinforce_module, "validation_gaps", gaps)
    before = Before(policy, PaddedTasks.of(policy, tasks[1]), 0)
    with torch.no_grad():
        policy.prior.log_noise += 2
    assert before.settle() == Settled(1.0, 7.0)


def test_weights_that_are_tied_go_their_way_once(tasks: Tasks) -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    policy = dkaf.fit(*tasks, "dkl", "ei", encoder=nn.Sequential(first, nn.ReLU(), second), **FEW)
    before = weights(policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 4
    reinforce_module._go(policy, before, policy.state_dict(), 0.75)
    for name, weight in policy.named_parameters():
        torch.testing.assert_close(weight.detach(), before[name] + 3)


class _Guarded(nn.Module):
    """An encoder with what a state dict may hold beside weights: a mask, a version, and words of its own."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z: torch.Tensor = self.layer(x) + self.mask.exp()
        return z

    def get_extra_state(self) -> dict[str, str]:
        return {"of": "a user"}

    def set_extra_state(self, state: dict[str, str]) -> None:
        assert state == {"of": "a user"}

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        assert local_metadata.get("version") == 2
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


def test_what_an_encoder_keeps_beside_its_weights_stays_as_it_is(tasks: Tasks) -> None:
    policy = dkaf.fit(*tasks, "dkaf", "ucb", encoder=_Guarded(), **FEW)
    before = copy.deepcopy(policy.state_dict())
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 2
    reinforce_module._go(policy, before, policy.state_dict(), 0.5)
    after = policy.state_dict()
    assert after["prior.encoder.mask"].tolist() == [0.0, -torch.inf]
    torch.testing.assert_close(after["prior.encoder.layer.bias"], before["prior.encoder.layer.bias"] + 1)


def test_a_policy_that_nothing_moved_has_not_become_better(tasks: Tasks) -> None:
    policy = pretrained(tasks)
    assert Before(policy, PaddedTasks.of(policy, tasks[1]), 0).settle().share == 0


@pytest.mark.parametrize(("count", "updates"), [(2, 1), (3, 41)])
def test_two_validation_tasks_are_too_few(tasks: Tasks, count: int, updates: int) -> None:
    few = tasks[1].split(count, 8 - count)[0]
    policy = dkaf.fit(tasks[0], few, acquisition="ucb", **FEW)
    assert policy.training_log.updates == updates
    if count == 2:
        assert (
            changed(weights(dkaf.fit(tasks[0], few, acquisition="ucb", **FEW | {"scale_updates": 0})), policy) == set()
        )


@pytest.mark.parametrize("where", ["scales", "settling"])
def test_interrupted_scales_leave_the_best_update_before_them(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """By updates this large the policy is spoiled, so that the last update is not the best."""

    def interrupt(news: dkaf.Progress) -> None:
        if where == "scales" and (news.stage, news.update) == ("scales by policy gradient", 5):
            raise KeyboardInterrupt

    def settle(before: Before) -> Settled:
        for weight in before.policy.state_dict().values():
            weight.fill_(0.3)
        raise KeyboardInterrupt

    monkeypatch.setattr(Before, "settle", settle)
    changes = FEW | {"updates": 6, "learning_rate": 0.3, "validate_every": 1, "validation_starts": 8}
    with pytest.raises(dkaf.Interrupted) as caught:
        dkaf.fit(*tasks, acquisition="ucb", **changes, progress=interrupt)
    policy, log = caught.value.policy, caught.value.policy.training_log
    assert log.updates == 6
    assert log.best_update < 6
    gap = validation_gap(policy, PaddedTasks.of(policy, tasks[1]), 0)
    assert gap == pytest.approx(min(gap for _, gap in log.validation)) == dict(log.validation)[log.best_update]
    assert all(parameter.requires_grad for parameter in policy.parameters())


@pytest.mark.parametrize("keep_last", [True, False])
def test_the_last_weights_are_kept_where_that_is_wanted(tasks: Tasks, keep_last: bool) -> None:
    policy = pretrained(tasks)
    policy.method = "dkaf"
    policy.settings = policy.settings.override(updates=6, learning_rate=0.3, validate_every=1, validation_starts=8)
    train, validation = (PaddedTasks.of(policy, part) for part in tasks)
    seen: list[tuple[float, dict[str, torch.Tensor]]] = []
    torch.manual_seed(0)  # of dropout, which `fit` would have given a stream of its own
    best = reinforce(
        policy,
        train,
        validation,
        0,
        lambda update, gap: seen.append((gap or 0.0, weights(policy))),
        keep_last=keep_last,
    )
    least = min(range(7), key=lambda update: seen[update][0])
    assert least < 6
    assert changed(seen[6 if keep_last else least][1], policy) == set()
    best.restore()
    assert changed(seen[least][1], policy) == set()


@pytest.mark.parametrize("share", [1.0, 0.75, 0.25])
def test_the_log_says_how_much_of_the_way_was_kept(tasks: Tasks, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    monkeypatch.setattr(Before, "settle", lambda self: Settled(share, 1e-3))
    policy = dkaf.fit(*tasks, acquisition="ucb", **FEW)
    assert policy.training_log.best_update == 41
    words = policy.training_log.in_words()
    assert "validation gap 0.001 at update 41" in words
    assert (f", and kept {share:.0%} of the way" in words) == (share < 1)


@pytest.mark.parametrize("acquisition", ["mi", "ei", "ucb"])
def test_what_is_returned_is_below_dkl_on_the_validation_tasks_or_is_dkl(tasks: Tasks, acquisition: str) -> None:
    """With steps this large, end-to-end training leads astray with one acquisition function or another."""
    changes = FEW | {"updates": 8, "learning_rate": 0.1, "validation_starts": 4}
    dkl = dkaf.fit(*tasks, "dkl", acquisition, **changes)
    ours = dkaf.fit(*tasks, "dkaf", acquisition, **changes, pretrained=dkl)
    gaps = [validation_gap(policy, PaddedTasks.of(policy, tasks[1]), 0) for policy in (ours, dkl)]
    if ours.training_log.best_update:
        assert gaps[0] < gaps[1]
    else:
        assert changed(weights(dkl), ours) == set()


def test_half_of_the_way_is_that_of_an_encoders_statistics_too(tasks: Tasks) -> None:
    encoder = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    policy = dkaf.fit(*tasks, "dkl", "ei", encoder=encoder, **FEW)
    before = weights(policy)
    with torch.no_grad():
        for weight in policy.state_dict().values():
            weight += 2
    reinforce_module._go(policy, before, policy.state_dict(), 0.5)
    for name, weight in policy.state_dict().items():
        torch.testing.assert_close(weight, before[name] + (1 if weight.is_floating_point() else 2))


def test_steps_that_lead_nowhere_are_taken_back_with_a_warning(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(policy: KernelPolicy, unseen: PaddedTasks, seed: int, report: Callable[[int], None]) -> None:
        with torch.no_grad():
            policy.prior.log_noise += 20
        report(40)

    monkeypatch.setattr("dkaf.learning.fit.scales_by_policy_gradient", spoil)
    with pytest.warns(FallbackWarning, match="end-to-end training did not lower the validation gap"):
        policy = dkaf.fit(*tasks, acquisition="ucb", **FEW | {"learning_rate": 1e-9, "validation_starts": 4})
    assert policy.training_log.best_update == 0
    assert "of the way" not in policy.training_log.in_words()
    assert changed(weights(dkaf.fit(*tasks, "dkl", "ucb", **FEW | {"validation_starts": 4})), policy) == set()


def test_an_encoder_of_ones_own_has_scales_too(tasks: Tasks) -> None:
    policy = dkaf.fit(*tasks, acquisition="ei", encoder=nn.Linear(2, 3), **FEW | conformance.TINY)
    assert policy.training_log.updates == 4
