"""Which policy to return, of several: what the validation tasks say of them."""

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dkaf.errors import FallbackWarning, Interrupted
from dkaf.learning.episodes import PaddedTasks
from dkaf.learning.progress import Progress
from dkaf.learning.reinforce import validation_gap
from dkaf.policies import Policy
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

    With method dkaf, what needs no past searches competes too: a Gaussian process on the features, and chance.
    Interrupted, the best so far is what `Interrupted` carries.
    """
    contenders: dict[str, tuple[float, Policy]] = {}
    seconds: Counter[str] = Counter()

    def enter(name: str, policy: Policy, start: Policy | None = None) -> None:
        contenders[name] = (gap_on(policy, validation, seed), policy)
        seconds.update(policy.training_log.seconds)
        if start is not None:  # whose training by likelihood its log counts too
            seconds.subtract({"likelihood": start.training_log.seconds.get("likelihood", 0.0)})

    def winner() -> Policy:
        _, policy = min(contenders.values(), key=lambda contender: contender[0])  # of equals the first
        tried = tuple((name, gap) for name, (gap, _) in contenders.items())
        policy.training_log = replace(policy.training_log, tried=tried, seconds=dict(seconds))
        return policy

    try:
        if method == "dkaf" and pretrained is None:
            pretrained = train_one("dkl", WITHOUT_VALIDATION, None, progress)
            seconds.update(pretrained.training_log.seconds)
        for acquisition in ACQUISITIONS:
            policy = train_one(method, acquisition, pretrained, _named(progress, acquisition))
            enter(acquisition, policy, pretrained)
            pretrained = pretrained or policy
        if method == "dkaf":
            enter("gp", train_one("gp", WITHOUT_VALIDATION, None, _named(progress, "gp")))
            enter("random", train_one("random", WITHOUT_VALIDATION, None, None))
    except Interrupted as interrupted:
        if not contenders:
            raise
        enter("interrupted", interrupted.policy)
        raise Interrupted(winner()) from None
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
    """The policy's gap on those of the tasks that can be searched; 0 if none of them can."""
    searched = large_enough(validation, policy.settings)
    return validation_gap(policy, PaddedTasks.of(policy, searched), seed) if len(searched) else 0.0


def warn_of_fallback(policy: Policy, random_gap: float | None) -> None:
    """Say what a user of method dkaf should know: that what they got is not what they asked for, or not worth much.

    `random_gap` is that of searching at random, unless it was among what was chosen from.
    """
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
            f"end-to-end training did not lower the validation gap of {log.validation[0][1]:.4g}: "
            "the policy searches as DKL does, from which it started. More past tasks help most"
        )
    if random_gap is not None and log.validation and min(gap for _, gap in log.validation) >= random_gap:
        _warn(
            f"the policy is no better than searching at random on the validation tasks (gap {random_gap:.4g}); "
            'acquisition="auto" returns what is best there'
        )


def _warn(message: str) -> None:
    warnings.warn(message, FallbackWarning, stacklevel=4)
