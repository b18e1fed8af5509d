"""One question and answer of a campaign on 100,000 candidates, from the second on: ours, BayBE's campaign, and BoTorch.

Ours reads what happened from its file, chooses, and has the reservation and then the measurement on disk. The peers
keep theirs in memory. BoTorch has our policy's kernel and the candidates' representations, and must name the same
candidates. BayBE fits a Gaussian process of its own to the measurements at every question, as its campaigns do: it
cannot choose the same, and is checked to name a candidate of the pool that it has not measured.
"""

import shutil
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch

import dkaf
from benchmarks.comparison import Case, DisagreementError, Peer, Work
from benchmarks.peers import gpytorch_parts, represent, single_task_gp
from benchmarks.pools import ALIKE, CHECKED, CHUNK
from dkaf.policies import KernelPolicy

BAYBE = Peer("baybe", "campaign with its default recommender")
BOTORCH = Peer("botorch", "posterior of SingleTaskGP")
ROWS, COLUMNS, LEVELS = 100_000, 16, 21  # BayBE wants to know the values of a column: so many


class _Campaigns:
    """A pool, what it responds, and the policy."""

    def __init__(self) -> None:
        draw = np.random.default_rng(0)
        self.levels = np.linspace(-2, 2, LEVELS)
        self.names = [f"f{number}" for number in range(COLUMNS)]
        self.directions = draw.standard_normal((COLUMNS, 6)) / COLUMNS**0.5
        self.folder = Path(tempfile.mkdtemp(prefix="dkaf-bench-"))
        self.pool = self._table(draw, ROWS + 500).drop_duplicates(self.names).head(ROWS).reset_index(drop=True)
        self.y = self._responses(self.pool, 0)
        past = []
        for day in range(1, 7):
            table = self._table(draw, 100)
            past.append(table.assign(response=self._responses(table, day)))
        tasks = dkaf.read_tasks(past, response="response")
        self.policy = cast(
            "KernelPolicy", dkaf.fit(tasks, acquisition="ucb", pretrain_updates=200, updates=2, learned_nu=False)
        )

    def _table(self, draw: np.random.Generator, n: int) -> pd.DataFrame:
        return pd.DataFrame(self.levels[draw.integers(0, LEVELS, (n, COLUMNS))], columns=self.names)

    def _responses(self, table: pd.DataFrame, day: int) -> Any:
        hidden = np.random.default_rng(day).standard_normal(6)
        return -np.linalg.norm(table[self.names].to_numpy() @ self.directions - hidden, axis=1)

    def response(self, row: int) -> float:
        return float(self.y[row])

    @cached_property
    def features(self) -> Any:
        from dkaf.sources.tables import read_table

        assert self.policy.preparation is not None
        return self.policy.preparation.matrix(read_table(self.pool)).astype(np.float32)


def case() -> Case:
    searched = _Campaigns()
    return Case(
        size=f"{ROWS:,} candidates of {COLUMNS} columns",
        ours=lambda: _ours(searched),
        peers={BAYBE: lambda: _baybe(searched), BOTORCH: lambda: _botorch(searched)},
        check=lambda: _check(searched),
        warm=False,
        waits=True,
        calls=1,
        close=lambda: shutil.rmtree(searched.folder, ignore_errors=True),
    )


def _campaign(searched: _Campaigns) -> dkaf.Campaign:
    path = Path(tempfile.mkdtemp(dir=searched.folder)) / "campaign.db"
    campaign = dkaf.Campaign.create(path, searched.pool, searched.policy)
    campaign.tell("1", searched.response(0))
    return campaign


def _ours(searched: _Campaigns) -> Work:
    campaign = _campaign(searched)

    def question() -> None:
        candidate = campaign.ask()[0]
        campaign.tell(candidate.id, searched.response(int(candidate.id) - 1))

    question()
    return question


def _baybe_campaign(searched: _Campaigns) -> Any:
    from baybe import Campaign
    from baybe.objectives import SingleTargetObjective
    from baybe.parameters import NumericalDiscreteParameter
    from baybe.searchspace import SearchSpace
    from baybe.targets import NumericalTarget

    columns = [NumericalDiscreteParameter(name, values=tuple(searched.levels)) for name in searched.names]
    space = SearchSpace.from_dataframe(searched.pool, parameters=columns)
    campaign = Campaign(space, SingleTargetObjective(NumericalTarget(name="y")))
    campaign.add_measurements(searched.pool.loc[[0]].assign(y=searched.response(0)))
    return campaign


def _baybe(searched: _Campaigns) -> Work:
    campaign = _baybe_campaign(searched)

    def question() -> int:
        chosen = campaign.recommend(batch_size=1)
        row = int(chosen.index[0])
        campaign.add_measurements(chosen.assign(y=searched.response(row)))
        return row

    question()
    return question


class _Botorch:
    """UCB over all candidates, with BoTorch's posterior of them."""

    def __init__(self, searched: _Campaigns) -> None:
        self.searched, self.policy = searched, searched.policy
        self.parts = gpytorch_parts(self.policy.prior, self.policy.dtype)
        with torch.no_grad():
            x = cast("torch.Tensor", self.policy.inputs(searched.features, np.arange(ROWS)))
            self.u = represent(self.policy.prior, x, torch.arange(ROWS).unsqueeze(0))[0]
        self.observed = [0]

    @torch.no_grad()
    def scores(self) -> Any:
        responses = torch.tensor([self.searched.response(row) for row in self.observed]).double()
        y = self.policy.warped(self.policy.scaled(responses))
        model = single_task_gp(self.parts, self.u[self.observed], y)
        nu, scores = float(self.policy.log_nu.exp()), np.empty(ROWS, dtype=np.float32)
        for first in range(0, ROWS, CHUNK):
            belief = model.posterior(self.u[first : first + CHUNK].unsqueeze(1), observation_noise=True)
            scores[first : first + CHUNK] = (belief.mean.flatten() + (nu * belief.variance.flatten()).sqrt()).numpy()
        scores[self.observed] = -np.inf
        return scores


def _botorch(searched: _Campaigns) -> Work:
    search = _Botorch(searched)

    def question() -> None:
        search.observed.append(int(search.scores().argmax()))

    question()
    return question


def _check(searched: _Campaigns) -> str:
    campaign, theirs, same = _campaign(searched), _Botorch(searched), 0
    for number in range(CHECKED):
        ours = int(campaign.ask()[0].id) - 1
        scores = theirs.scores()
        if not scores.max() - scores[ours] <= ALIKE * float(scores.max() - np.median(scores)):
            raise DisagreementError(
                f"the same candidates are asked for before anything is timed; at question {number} ours named {ours}, "
                f"which {BOTORCH.name} scores {scores[ours]:.6g}, and it named {scores.argmax()} with "
                f"{scores.max():.6g}"
            )
        same += int(scores.argmax()) == ours
        campaign.tell(str(ours + 1), searched.response(ours))
        theirs.observed.append(ours)
    chosen = _baybe_campaign(searched).recommend(batch_size=1)
    row = int(chosen.index[0])
    if row == 0 or not np.allclose(chosen[searched.names].to_numpy(), searched.pool.loc[[row], searched.names]):
        raise DisagreementError(
            f"{BAYBE.name} names a candidate of the pool that it has not measured, it named {chosen}"
        )
    return (
        f"{same} of {CHECKED} candidates are BoTorch's, any other one that it scores alike; BayBE's is one of the pool"
    )
