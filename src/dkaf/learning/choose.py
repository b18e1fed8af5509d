"""Which policy to return, of several: what the validation tasks say of them."""

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dkaf.errors import DivergedError, FallbackWarning, Interrupted
from dkaf.learning.episodes import PaddedTasks
from dkaf.learning.progress import Progress
from dkaf.learning.reinforce import validation_gap
from dkaf.policies import Policy, build
from dkaf.settings import ACQUISITIONS, Settings
from dkaf.tasks import TaskSet

WITHOUT_VALIDATION = "ucb"
"""The acquisition of those who leave the choice to us and give nothing to choose by."""

Report = Callable[[Progress], None] | None


# `fit`, of all but the method, the acquisition, what it starts from, and whom to tell.
TrainOne = Callable[[str, str, Policy | None, Report], Policy]


def choose(
    train_one: TrainOne, validation: TaskSet, method: str, pretrained: Policy | None, progress: Report, seed: int
) -> Policy:
    """Train the method with every acquisition, from one kernel; the smallest gap on the validation tasks wins.

    With method dkaf, what needs no past searches competes too, and wins where it is as good: a Gaussian process on the
    features, and chance. What diverges is left out. Interrupted, the best of those that are finished is what
    `Interrupted` carries.
    """
    contenders: dict[str, tuple[float, Policy]] = {}
    seconds: Counter[str] = Counter()
    newest = pretrained

    def compete(name: str, one: str, acquisition: str, start: Policy | None) -> None:
        nonlocal newest
        newest = train_one(one, acquisition, start, _named(progress, name))
        contenders[name] = (gap_on(newest, validation, seed), newest)
        seconds.update(newest.training_log.seconds)
        if start is not None:  # whose training by likelihood its log counts too
            seconds.subtract({"likelihood": start.training_log.seconds.get("likelihood", 0.0)})

    def winner() -> Policy:
        _, policy = min(contenders.values(), key=lambda contender: (contender[0], contender[1].method == method))
        tried = tuple((name, gap) for name, (gap, _) in contenders.items())
        policy.training_log = replace(policy.training_log, tried=tried, seconds=dict(seconds))
        return policy

    try:
        if method == "dkaf" and pretrained is None:
            newest = pretrained = train_one("dkl", WITHOUT_VALIDATION, None, progress)
            seconds.update(pretrained.training_log.seconds)
        diverged = None
        for acquisition in ACQUISITIONS:
            try:
                compete(acquisition, method, acquisition, pretrained)
            except DivergedError as error:
                diverged = error
                warnings.warn(f"{acquisition} is left out: {error}", FallbackWarning, stacklevel=3)
            else:
                pretrained = pretrained or newest
        if diverged is not None and not contenders:
            raise diverged
        if method == "dkaf":
            compete("gp", "gp", WITHOUT_VALIDATION, None)
            compete("random", "random", WITHOUT_VALIDATION, None)
    except KeyboardInterrupt as stop:
        best = winner() if contenders else getattr(stop, "policy", newest)
        if best is None:
            raise
        best.training_log = replace(best.training_log, stopped="interrupted")
        raise Interrupted(best) from None
    return winner()


def _named(progress: Report, name: str) -> Report:
    """Of each contender the stages are told apart."""
    if progress is None:
        return None
    return lambda news: progress(news._replace(stage=f"{news.stage}, {name}"))


def large_enough(validation: TaskSet, settings: Settings) -> TaskSet:
    """The tasks that can be searched."""
    return validation.subset(np.flatnonzero(validation.sizes >= settings.initial + settings.queries).tolist())


def gap_on(policy: Policy, validation: TaskSet, seed: int) -> float:
    """The policy's gap on those of the tasks that can be searched, of which there is one at least."""
    return validation_gap(policy, PaddedTasks.of(policy, large_enough(validation, policy.settings)), seed)


def _by_chance(policy: Policy, validation: TaskSet, seed: int) -> float:
    """The gap of a random search where this policy has searched."""
    chance = build("random", policy.acquisition, policy.settings, policy.inputs).to(policy.device)
    chance.response_shift.copy_(policy.response_shift)
    chance.response_scale.copy_(policy.response_scale)
    return gap_on(chance, validation, seed)


def warn_of_fallback(policy: Policy, validation: TaskSet, seed: int) -> None:
    """Say what a user of method dkaf should know: that what they got is not what they asked for, or not worth much."""
    log = policy.training_log
    gaps = dict(log.tried)
    if policy.method != "dkaf":
        best = min((gap, name) for name, gap in gaps.items() if name in ACQUISITIONS)
        what = "searching at random" if policy.method == "random" else "a Gaussian process on the features alone"
        _warn(
            f"no trained policy came below {what} on the validation tasks ({gaps[policy.method]:.4g}, the best of "
            f"them {best[0]:.4g}): that is returned. The past tasks may be too few, or say nothing of each other"
        )
        return
    if log.updates and log.validation and log.best_update == 0:
        _warn(
            f"end-to-end training did not lower the validation gap of {log.validation[0][1]:.4g} (it came to "
            f"{log.validation[-1][1]:.4g}): the policy is returned as it was before, with the weights of DKL or of "
            "pretrained=. More past tasks help most"
        )
    if log.validation and not log.tried:
        by_chance = _by_chance(policy, validation, seed)
        if dict(log.validation)[log.best_update] >= by_chance:
            _warn(
                f"the policy is no better than searching at random on the validation tasks (gap {by_chance:.4g}); "
                'acquisition="auto" returns what is best there'
            )


def _warn(message: str) -> None:
    warnings.warn(message, FallbackWarning, stacklevel=4)
