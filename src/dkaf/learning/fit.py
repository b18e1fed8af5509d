"""From tasks to a trained policy: the whole recipe."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import nn

from dkaf.errors import InputError, Interrupted
from dkaf.learning.choose import WITHOUT_VALIDATION, Report, choose, large_enough, warn_of_fallback
from dkaf.learning.episodes import PaddedTasks, check_budget
from dkaf.learning.pretrain import pretrain, scales_by_likelihood
from dkaf.learning.progress import Progress
from dkaf.learning.reinforce import Before, Settled, choose_nu, reinforce, scales_by_policy_gradient
from dkaf.learning.scales import FEWEST
from dkaf.model.inputs import Inputs
from dkaf.policies import GaussianPolicy, KernelPolicy, Policy, Training, build, checked_device
from dkaf.seeding import global_stream, stream
from dkaf.settings import ACQUISITIONS, AUTO, KERNEL_METHODS, METHODS, Settings, check_choice
from dkaf.settings import recipe as settings_of
from dkaf.sources.past import PastTasks
from dkaf.tasks import TaskSet


def fit(
    train: TaskSet,
    validation: TaskSet | None = None,
    method: str = "dkaf",
    acquisition: str = AUTO,
    recipe: str | Settings = "default",
    seed: int = 0,
    *,
    encoder: nn.Module | None = None,
    pretrained: Policy | None = None,
    device: str | torch.device = "cpu",
    progress: Callable[[Progress], None] | None = None,
    **overrides: Any,
) -> Policy:
    """Learn from finished searches how to make the next one.

    `validation` tasks say when to stop, and teach the kernel's scales how far the encoder is to be trusted on tasks it
    was not trained on; without them every update is done, and the scales stay as they are.
    `method` is dkaf, dkl, gp, rl, metabo or random, `acquisition` mi, ei or ucb (for the first three), or auto: all of
    them are trained and the one with the smallest gap on the validation tasks is returned (ucb if there are none). With
    method dkaf, end-to-end training is taken back where it does not lower that gap (the policy is then DKL's), and auto
    returns a Gaussian process on the features or a random search where that is better: a `FallbackWarning` says so.
    Overrides, and settings of your own, hold for all that is compared.
    `recipe` is default, paper or settings of your own, any field of which a keyword overrides. `encoder` is a module
    of yours, rows x D to rows x d; it is copied, not changed. `pretrained` is a policy with the same kernel, such as
    DKL's for dkaf or GP's for metabo: training by likelihood is not done again, and what follows is the same as if it
    had been.
    Ctrl-C raises `Interrupted`, which carries the best policy so far.

    >>> import dkaf
    >>> train, validation, test = dkaf.digits_tasks(n_tasks=12, pool_size=30).split(7, 3, 2)
    >>> few = {"pretrain_updates": 20, "updates": 2, "scale_updates": 3}  # leave this out, and it learns more
    >>> policy = dkaf.fit(train, validation, acquisition="ei", seed=1, **few)
    >>> policy.training_log.updates
    5
    """
    if validation is not None and len(validation) == 0:
        validation = None

    def train_one(one: str, acquisition: str, pretrained: Policy | None, progress: Report) -> Policy:
        own = encoder if one in (method, "dkl") else None  # what else is compared has no encoder
        return _fit(train, validation, one, acquisition, recipe, seed, own, pretrained, device, progress, overrides)

    check_choice("acquisition", acquisition, (AUTO, *ACQUISITIONS))
    if acquisition == AUTO:
        acquisition = _what_to_try(train, validation, method, recipe, overrides)
    if acquisition != AUTO or validation is None:
        policy = train_one(method, acquisition, pretrained, progress)
    else:
        policy = choose(train_one, validation, method, pretrained, progress, seed)
    if validation is not None and method == "dkaf":
        try:
            warn_of_fallback(policy, validation, seed)
        except KeyboardInterrupt:
            raise Interrupted(policy) from None
    return policy


def _what_to_try(
    train: TaskSet, validation: TaskSet | None, method: str, recipe: str | Settings, overrides: dict[str, Any]
) -> str:
    """`auto` where there is something to choose, and to choose by; before any work."""
    if method not in KERNEL_METHODS:
        return "mi"  # which it does not use
    settings = _settings(method, WITHOUT_VALIDATION, recipe, overrides)
    if method == "dkaf":
        for tasks in (train, validation or train):
            check_budget(tasks, settings.queries, settings.initial)
    if validation is None or len(large_enough(validation, settings)) == 0:
        return WITHOUT_VALIDATION
    return AUTO


def _fit(
    train: TaskSet,
    validation: TaskSet | None,
    method: str,
    acquisition: str,
    recipe: str | Settings,
    seed: int,
    encoder: nn.Module | None,
    pretrained: Policy | None,
    device: str | torch.device,
    progress: Report,
    overrides: dict[str, Any],
) -> Policy:
    """`fit`, with one acquisition."""
    settings = _settings(method, acquisition, recipe, overrides)
    device = checked_device(device)
    if len(train) == 0:
        raise InputError("training needs at least one task, none came; pass finished searches")
    # SciPy's threads spin while they wait, and take from PyTorch's what those need; its matrices here are small.
    with torch.enable_grad(), threadpool_limits(1, user_api="blas"):
        with global_stream(seed, "weights and dropout"):
            policy = _untrained(train, method, acquisition, settings, seed, encoder).to(device)
        if isinstance(train, PastTasks):
            policy.preparation = train.preparation
        if policy.trained_by_gradient():
            for tasks in (train, validation or train):
                check_budget(tasks, settings.queries, settings.initial)
        log = _Log(policy, train, progress)
        if pretrained is not None:
            _take_over(policy, pretrained)
            log.take_over(pretrained.training_log)
        try:
            padded = PaddedTasks.of(policy, train), None if validation is None else PaddedTasks.of(policy, validation)
            # Tasks that the encoder has not seen and that can be searched.
            large = None if validation is None else large_enough(validation, settings)
            unseen = PaddedTasks.of(policy, large) if large is not None and len(large) else None
            scaled = None if unseen is None or len(unseen) < FEWEST else _with_scales(policy)
            if isinstance(policy, GaussianPolicy) and settings.pretrain_updates and pretrained is None:
                with global_stream(seed, "likelihood dropout"):
                    pretrain(policy, *padded, seed, log.likelihood, log.kept_by_likelihood)
                if scaled is not None and unseen is not None:
                    scales_by_likelihood(scaled, unseen, seed, log.scales_by_likelihood)
            if isinstance(policy, KernelPolicy) and settings.learned_nu and unseen is not None:
                choose_nu(policy, unseen, seed)
            log.next_stage("likelihood")
            if policy.trained_by_gradient() and settings.updates:
                before = None if scaled is None or unseen is None else Before(policy, unseen, seed)
                with global_stream(seed, "policy gradient dropout"):
                    # The best update by so few tasks is a matter of luck. Where more follows, the last is better.
                    best = reinforce(policy, *padded, seed, log.policy_gradient, keep_last=before is not None)
                if scaled is not None and before is not None:
                    try:
                        scales_by_policy_gradient(scaled, before.tasks, seed, log.scales_by_policy_gradient)
                        log.settled = before.settle()
                    except KeyboardInterrupt:  # it may be anywhere
                        log.settled = None
                        best.restore()
                        raise
            log.next_stage("policy gradient")
        except KeyboardInterrupt:
            policy.training_log = replace(log.training(), stopped="interrupted")
            raise Interrupted(policy.eval()) from None
    policy.training_log = log.training()
    return policy.eval()


def _with_scales(policy: Policy) -> KernelPolicy | None:
    """The policy, if its scales are to be learned by themselves. Without an encoder there is nothing else to learn."""
    if not isinstance(policy, KernelPolicy) or policy.prior.encoder is None or not policy.settings.scale_updates:
        return None
    return policy


def _settings(method: str, acquisition: str, recipe: str | Settings, overrides: dict[str, Any]) -> Settings:
    if isinstance(recipe, Settings):
        check_choice("method", method, METHODS)
        check_choice("acquisition", acquisition, ACQUISITIONS)
        return recipe.override(**overrides)
    return settings_of(recipe, method, acquisition, **overrides)


def _untrained(
    train: TaskSet, method: str, acquisition: str, settings: Settings, seed: int, encoder: nn.Module | None
) -> Policy:
    """A policy at the scale of its training data, and of nothing else."""
    rows = np.unique(np.concatenate(train.pools))
    prepared = isinstance(train, PastTasks) and settings.inputs == "auto"  # each column is scaled by what it is
    inputs = Inputs.fitted(train.features, rows, "raw" if prepared else settings.inputs)
    policy = build(method, acquisition, settings, inputs, encoder)
    responses = np.concatenate(train.responses)
    mean, deviation = float(responses.mean()), float(responses.std())
    if deviation <= 1e-9 * abs(mean):
        deviation = 1.0  # constant but for rounding: any unit will do
    if settings.standardise_responses:
        policy.response_shift.fill_(mean)
        policy.response_scale.fill_(deviation)
    if isinstance(policy, GaussianPolicy):
        some = torch.randperm(len(rows), generator=stream(seed, "initial kernel"))[:512].sort().values.numpy()
        variance = (deviation / policy.response_scale.item()) ** 2
        policy.prior.eval().initialise(policy.inputs(train.features, rows[some]), variance)
    return policy


def _take_over(policy: Policy, pretrained: Policy) -> None:
    """The kernel that another policy's training by likelihood ended with, and the scales it was trained in."""
    if not (isinstance(policy, GaussianPolicy) and isinstance(pretrained, GaussianPolicy)):
        raise InputError(
            f"pretrained= is for methods with a kernel, {policy.method} was to start from {pretrained.method}; "
            "leave it out, or pass a policy of method dkl or gp"
        )
    kernels = [
        (p.inputs.kind, {name: value.shape for name, value in p.prior.state_dict().items()})
        for p in (policy, pretrained)
    ]
    if kernels[0] != kernels[1]:
        shapes, theirs = kernels[0][1], kernels[1][1]
        other = [name for name in (*shapes, *theirs) if shapes.get(name) != theirs.get(name)]
        raise InputError(
            f"a pretrained kernel has the form of the new policy's, that of method {pretrained.method} with "
            f"{pretrained.n_features} {pretrained.inputs.kind} features is another"
            f"{f' in prior.{other[0]}' if other else ''}; train it with the same settings"
        )
    policy.prior.load_state_dict(pretrained.prior.state_dict())
    policy.inputs.load_state_dict(pretrained.inputs.state_dict())
    policy.response_shift.copy_(pretrained.response_shift)
    policy.response_scale.copy_(pretrained.response_scale)


class _Log:
    """What happened so far, gathered from the stages' reports."""

    def __init__(self, policy: Policy, train: TaskSet, progress: Callable[[Progress], None] | None) -> None:
        self.settings = policy.settings
        names = train.names if isinstance(train, PastTasks) else ()
        self.tasks = tuple(zip(names, map(int, train.sizes), strict=False))
        self.trained_by_gradient = bool(policy.trained_by_gradient())
        self.nothing_to_train = next(policy.parameters(), None) is None
        self.progress = progress
        self.began = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self.pretrain_updates = 0
        self.updates = 0
        self.settled: Settled | None = None
        self.curve: list[tuple[int, float]] = []

    def take_over(self, other: Training) -> None:
        self.pretrain_updates = other.pretrain_updates
        self.seconds = {"likelihood": other.seconds.get("likelihood", 0.0)}

    def next_stage(self, finished: str) -> None:
        now = time.perf_counter()
        self.seconds[finished] = self.seconds.get(finished, 0.0) + now - self.began
        self.began = now

    def likelihood(self, start: int, update: int) -> None:
        self._tell("likelihood, another start" if start else "likelihood", update, self.settings.pretrain_updates)

    def kept_by_likelihood(self, updates: int) -> None:
        self.pretrain_updates = updates

    def policy_gradient(self, update: int, gap: float | None) -> None:
        self.updates = update
        if gap is not None:
            self.curve.append((update, gap))
        self._tell("policy gradient", update, self.settings.updates)

    def scales_by_likelihood(self, update: int) -> None:
        self._tell("scales by likelihood", update, self.settings.scale_updates)

    def scales_by_policy_gradient(self, update: int) -> None:
        self._tell("scales by policy gradient", update, self.settings.scale_updates)

    def _tell(self, stage: str, update: int, updates: int) -> None:
        if self.progress is not None:
            self.progress(Progress(stage, update, updates, self.curve[-1][1] if self.curve else None))

    def training(self) -> Training:
        settings = self.settings
        if self.nothing_to_train:
            stopped = "there is nothing to train"
        elif not self.trained_by_gradient and self.pretrain_updates < settings.pretrain_updates:
            stopped = f"did {self.pretrain_updates} updates by likelihood, which then got no better on validation tasks"
        elif not self.trained_by_gradient:
            stopped = f"did all {self.pretrain_updates} updates by likelihood"
        elif self.updates < settings.updates:
            stopped = (
                f"stopped after {self.updates} updates, {settings.patience} of them without a better validation gap"
            )
        else:
            stopped = f"did all {self.updates} updates"
        curve, updates = self.curve, self.updates
        best = min(curve, key=lambda point: point[1])[0] if curve else updates
        if self.settled is not None:
            curve = [*curve, (updates + settings.scale_updates, self.settled.gap)]
            stopped += f", then {settings.scale_updates} of the kernel's scales on the validation tasks"
            if 0 < self.settled.share < 1:
                stopped += f", and kept {self.settled.share:.0%} of the way"
            updates += settings.scale_updates
            best = updates if self.settled.share else 0
        return Training(
            pretrain_updates=self.pretrain_updates,
            updates=updates,
            best_update=best,
            validation=tuple(curve),
            tasks=self.tasks,
            stopped=stopped,
            seconds=dict(self.seconds),
        )
