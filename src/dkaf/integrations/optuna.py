"""Optuna's door: a sampler that learned from finished studies, over a fixed set of candidates or the whole space.

Everything but the policy is Optuna's: what was tried, what is running and what came out is read from the study at every
trial, so storages, dashboards and any number of workers are used as with Optuna's own samplers.

Where several workers share a study, they choose one after the other, and each notes its choice before the next begins.
"""

import contextlib
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

import dkaf.checkpoint as checkpoint
from dkaf.errors import InputError, whole_number
from dkaf.learning.fit import fit
from dkaf.policies import Policy
from dkaf.policies import load as load_policy
from dkaf.search import Search
from dkaf.seeding import derive, stream
from dkaf.settings import Settings
from dkaf.settings import recipe as settings_of
from dkaf.tasks import TaskSet

try:
    import optuna
except ImportError as error:
    raise InputError("a sampler for Optuna needs Optuna, it is not installed; pip install dkaf[optuna]") from error

from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from dkaf.integrations.spaces import Point, Space
from dkaf.integrations.studies import all_trials, check_objective, completed, response, shared_space, tasks_of

BEST = 8  # where no candidates are given, some are made around so many
CHOSEN, TURN = "dkaf:chosen", "dkaf:turn"  # system attributes of a trial
PATIENCE = 60.0  # seconds until a worker that was choosing is taken for dead
POLL = 0.05


class DkafSampler(optuna.samplers.BaseSampler):
    """Samples by a policy that was trained on finished studies of the same search space.

    >>> import optuna, dkaf
    >>> from dkaf.integrations.optuna import DkafSampler
    >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
    >>> def tuned(best):
    ...     return lambda trial: -abs(trial.suggest_float("rate", 1e-4, 1, log=True) - best)
    >>> past = [optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(s)) for s in range(4)]
    >>> for number, study in enumerate(past):
    ...     study.optimize(tuned(0.01 * number), n_trials=12)
    >>> few = {"method": "gp", "pretrain_updates": 20}  # leave this out, and it learns more
    >>> sampler = DkafSampler.from_studies(past, candidates=[{"rate": 10.0**-e} for e in range(5)], **few)
    >>> study = optuna.create_study(direction="maximize", sampler=sampler)
    >>> study.optimize(tuned(0.01), n_trials=5)
    >>> study.best_params
    {'rate': 0.01}

    `candidates` is a fixed set, a list of dicts or a pandas or polars frame: every trial gets one that no other trial
    of the study has, running ones included, until they are used up. Without it, candidates are made of the search
    space anew for each trial: points all over it, and points around the best so far.

    Trials that run, or wait in the queue, count as if they had given what is expected of them. Failed and pruned ones,
    and values that are not finite, teach nothing; their candidates of a fixed set are not tried again. Parameters that
    are not in the search space are drawn at random, with a warning. `seed` and the trial's number decide all draws.
    """

    def __init__(
        self, policy: Policy, search_space: Mapping[str, BaseDistribution], *, candidates: Any = None, seed: int = 0
    ) -> None:
        self._space = Space(search_space)
        if policy.n_features != self._space.width:
            raise InputError(
                f"the policy knows {policy.n_features} features, the search space makes {self._space.width}; "
                "pass the space it was trained on"
            )
        self.policy = policy
        self._seed = whole_number("seed", seed)
        self._candidates = None if candidates is None else self._space.checked(candidates)

    @classmethod
    def from_studies(
        cls,
        studies: Sequence[Study],
        *,
        validation: Sequence[Study] | None = None,
        search_space: Mapping[str, BaseDistribution] | None = None,
        candidates: Any = None,
        seed: int = 0,
        method: str = "dkaf",
        recipe: str | Settings = "default",
        **settings: Any,
    ) -> "DkafSampler":
        """Train on the completed trials of finished studies, each of them one task; `settings` are those of `dkaf.fit`.

        All studies have one search space. With `search_space`, they may differ, and the trials that lie in it are used.
        Of six studies or more, one in six is held out to say when to stop, unless `validation` has studies for that:
        best those of other data than all the rest. Studies with fewer configurations than a training search needs
        are left out, with a warning. Configurations that were tried several times count once, with their mean.
        """
        fields = {name: value for name, value in settings.items() if name in Settings.__dataclass_fields__}
        chosen = (recipe if isinstance(recipe, Settings) else settings_of(recipe)).override(**fields)
        needed = chosen.queries + chosen.initial
        past = [completed(study) for study in studies]
        held = None if validation is None else [completed(study) for study in validation]
        space = Space(shared_space([*past, *(held or [])]) if search_space is None else search_space)
        train = tasks_of(space, past, needed)
        if held is not None:
            stop_by: TaskSet | None = tasks_of(space, held, needed)
        else:
            order = torch.randperm(len(train), generator=stream(seed, "held-out studies")).tolist()
            last = len(order) - len(order) // 6
            stop_by, train = train.subset(order[last:]), train.subset(order[:last])
        policy = fit(train, stop_by, method, recipe=recipe, seed=seed, **{"inputs": "raw"} | settings)
        return cls(policy, space.distributions, candidates=candidates, seed=seed)

    @property
    def search_space(self) -> dict[str, BaseDistribution]:
        """The parameters that the policy knows, by name; those with a single value are not among them."""
        return dict(self._space.distributions)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy and the search space, whole or not at all; `dkaf.load` reads the policy alone."""
        space = {name: distribution_to_json(each) for name, each in self._space.distributions.items()}
        checkpoint.write(path, self.policy.state_dict(), self.policy.describe() | {"optuna": space})

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, candidates: Any = None, seed: int = 0) -> "DkafSampler":
        """Read what `save` wrote; every worker makes its own sampler so. Candidates are the study's, not the file's."""
        _, description = checkpoint.read(path)
        try:
            space = {str(name): json_to_distribution(text) for name, text in description["optuna"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(
                f"a sampler's file names its search space, {path} does not; write it with DkafSampler.save, "
                "or pass the space: DkafSampler(dkaf.load(path), search_space)"
            ) from None
        return cls(load_policy(path), space, candidates=candidates, seed=seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """What the policy was trained on."""
        check_objective(study)
        return self.search_space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The configuration to try next."""
        fixed = trial.system_attrs.get("fixed_params", {})
        if search_space.keys() <= fixed.keys():  # enqueued as a whole: Optuna takes it from there
            return {}
        with _turn(study, trial):
            params = self._space.params(self._choice(study, trial))
            params |= {name: value for name, value in fixed.items() if name in params}
            point = self._space.point(params)
            if point is not None:  # else the trial asks for something that Optuna will refuse
                _note(study, trial, CHOSEN, list(point))
        return params

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """A parameter that the policy does not know, at random."""
        self._space.check(f"trial {trial.number}", {param_name: param_distribution})
        if param_name not in self._space.distributions:
            warnings.warn(
                f"parameter {param_name!r} is drawn at random: it is not in the search space of the past studies "
                f"({', '.join(self._space.distributions)})",
                stacklevel=2,
            )
        draw = derive(self._seed, "independent", trial.number, param_name) % 2**32
        return optuna.samplers.RandomSampler(draw).sample_independent(study, trial, param_name, param_distribution)

    def _choice(self, study: Study, trial: FrozenTrial) -> Point:
        told: list[tuple[Point, float, bool]] = []
        pending: list[Point] = []
        closed: list[Point] = []
        for other in all_trials(study):
            self._check_trial(other)
            point = None if other.number == trial.number else self._where(other)
            if point is None:
                continue
            if (value := response(study, other)) is not None:
                told.append((point, value, CHOSEN in other.system_attrs))
            elif other.state in (TrialState.RUNNING, TrialState.WAITING):
                pending.append(point)
            else:
                closed.append(point)
        tried = dict.fromkeys([*(point for point, _, _ in told), *pending, *closed])
        pool = self._pool(trial, told, tried)
        rows = {point: row for row, point in enumerate(pool)}
        for point in tried:  # of no candidate: enqueued by hand, say
            rows.setdefault(point, len(rows))
        outside = range(len(pool), len(rows))
        seed = derive(self._seed, "search", trial.number)
        search = Search(self.policy, self._space.features(np.array(list(rows))), seed=seed, progress=False)
        for point, value, queried in told:
            search.tell(rows[point], value, queried=queried)
        excluded = [*map(rows.__getitem__, closed), *outside]
        waiting = [rows[point] for point in pending]
        # Before the first response only a learned prior mean tells candidates apart.
        blind = self.policy.method not in ("dkaf", "dkl") or not self.policy.settings.learned_mean
        if blind and not told:
            (answer,) = search.by_chance(1, excluded=[*excluded, *waiting])
        else:
            (answer,) = search.ask(1, pending=waiting, excluded=excluded)
        return list(rows)[answer.row]

    def _pool(
        self, trial: FrozenTrial, told: list[tuple[Point, float, bool]], tried: dict[Point, None]
    ) -> Sequence[Point]:
        """The candidates of this trial."""
        if self._candidates is not None:
            if all(point in tried for point in self._candidates):
                raise InputError(
                    f"every candidate is tried once, all {len(self._candidates)} were tried or are being tried; "
                    "end the study, or pass more candidates"
                )
            return list(self._candidates)
        best = sorted(told, key=lambda each: each[1], reverse=True)[:BEST]
        draw = np.random.default_rng(derive(self._seed, "candidates", trial.number))
        made = self._space.made([point for point, _, _ in best], draw)
        new = [point for point in made if point not in tried]
        if not new:
            raise InputError(
                f"every configuration is tried once, no other was found after {len(tried)} of them; end the study"
            )
        return new

    def _where(self, trial: FrozenTrial) -> Point | None:
        """The configuration of a trial, if it is known by now."""
        chosen = trial.system_attrs.get(CHOSEN)
        point = self._space.point({**trial.system_attrs.get("fixed_params", {}), **trial.params})
        return tuple(chosen) if point is None and chosen is not None else point

    def _check_trial(self, trial: FrozenTrial) -> None:
        """Refuse a study of another search space, before it costs more than one trial."""
        what = f"trial {trial.number} of this study"
        self._space.check(what, trial.distributions)
        missing = self._space.distributions.keys() - trial.distributions.keys()
        if trial.state == TrialState.COMPLETE and missing:
            raise InputError(
                f"a study has all parameters of the past studies, {what} has no {sorted(missing)[0]!r}; "
                "train a sampler on studies of this search space"
            )


def _note(study: Study, trial: FrozenTrial, key: str, value: Any) -> None:
    study._storage.set_trial_system_attr(trial._trial_id, key, value)


@contextlib.contextmanager
def _turn(study: Study, trial: FrozenTrial) -> Iterator[None]:
    """One worker at a time: Lamport's bakery, since a storage has no lock but attributes that one worker writes.

    A ticket of 0 says that its worker is drawing one; all wait for it. Who waits says so again and again: a worker that
    died with its ticket is passed over after a while.
    """

    def others() -> list[tuple[int, int]]:
        now = time.time()
        held = [
            (*each.system_attrs[TURN], each.number)
            for each in all_trials(study)
            if each.state == TrialState.RUNNING and each.number != trial.number and each.system_attrs.get(TURN)
        ]
        return [(ticket, number) for ticket, since, number in held if now - since < PATIENCE]

    try:
        _note(study, trial, TURN, [0, time.time()])
        mine = (1 + max((ticket for ticket, _ in others()), default=0), trial.number)
        said = 0.0
        while True:
            if time.time() - said > PATIENCE / 4:
                said = time.time()
                _note(study, trial, TURN, [mine[0], said])
            if not any(other < mine for other in others()):
                break
            time.sleep(POLL)
        yield
    finally:
        _note(study, trial, TURN, None)
