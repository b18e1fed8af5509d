"""What there is to learn in Optuna's studies: finished ones as tasks, and what a trial gave."""

import warnings
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.search_space import intersection_search_space
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from dkaf.errors import InputError
from dkaf.integrations.spaces import Point, Space
from dkaf.tasks import LARGEST_RESPONSE, TaskSet

Past: TypeAlias = tuple[Study, list[FrozenTrial]]


def tasks_of(space: Space, past: Sequence[Past], needed: int) -> TaskSet:
    """Each study as a task: its configurations, and the mean response of each."""
    points: list[Point] = []
    pools: list[list[int]] = []
    responses: list[list[float]] = []
    for study, trials in past:
        found: dict[Point, list[float]] = {}
        for trial in trials:
            point, value = space.point(trial.params), response(study, trial)
            if point is not None and value is not None:
                found.setdefault(point, []).append(value)
        if len(found) < needed:
            warnings.warn(
                f"study {study.study_name!r} is left out: a training search needs {needed} configurations, it has "
                f"{len(found)} that completed; lower queries= to use it",
                stacklevel=3,
            )
            continue
        pools.append(list(range(len(points), len(points) + len(found))))
        responses.append([sum(values) / len(values) for values in found.values()])
        points += found
    if not pools:
        raise InputError(
            f"training needs a finished study of {needed} different configurations in {space.distributions}, none of "
            f"{len(past)} is one; pass others, or lower queries="
        )
    return TaskSet.from_arrays(space.features(np.array(points)), pools, responses)


def shared_space(past: Sequence[Past]) -> dict[str, BaseDistribution]:
    """The one search space of all studies."""
    spaces = [(study.study_name, intersection_search_space(trials)) for study, trials in past if trials]
    if not spaces:
        raise InputError(f"training needs completed trials, {len(past)} studies have none; pass finished studies")
    first, shared = spaces[0]
    for name, space in spaces:
        for parameter in sorted(shared.keys() | space.keys()):
            one, other = shared.get(parameter, "no parameter"), space.get(parameter, "no parameter")
            if one != other:
                raise InputError(
                    f"past studies have one search space, {parameter!r} is {one} in {first!r} and {other} in {name!r}; "
                    "leave one out, or pass search_space= to use the trials that lie in it"
                )
    return shared


def completed(study: Study) -> Past:
    """A study, and its trials to learn from."""
    check_objective(study)
    return study, [trial for trial in all_trials(study) if response(study, trial) is not None]


def response(study: Study, trial: FrozenTrial) -> float | None:
    """What a trial gave, larger is better; None if it gave nothing that can be worked with."""
    if trial.state != TrialState.COMPLETE or trial.value is None or not abs(trial.value) <= LARGEST_RESPONSE:
        return None
    return trial.value if study.direction == StudyDirection.MAXIMIZE else -trial.value


def check_objective(study: Study) -> None:
    """One objective and nothing else is what a policy searches for."""
    constrained = any(key.split(":")[0] == "constraints" for each in all_trials(study) for key in each.system_attrs)
    if constrained or len(study.directions) > 1:
        came = "has constraints" if constrained else f"has {len(study.directions)} objectives"
        raise InputError(
            f"DkafSampler is for studies of one objective without constraints, {study.study_name!r} {came}; make it "
            "one number, or take one of Optuna's samplers"
        )


def all_trials(study: Study) -> list[FrozenTrial]:
    """From the storage itself: a pruner may show a sampler only some of them."""
    return study._storage.get_all_trials(study._study_id, deepcopy=False)
