"""Who chooses in a campaign: the trained policy, or a Gaussian process on what the campaign itself observed."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from dkaf.campaign.own import own_policy
from dkaf.campaign.packing import unpacked_features
from dkaf.campaign.store import State, Told
from dkaf.errors import DamagedError
from dkaf.policies import Policy, load
from dkaf.search import Search, Suggestion
from dkaf.tasks import FeatureMatrix

MOST_OBSERVED = 500  # by a Gaussian process of the campaign's own: its cost grows with their square


class Chooser:
    """A search that follows the campaign's events, wherever they came from."""

    def __init__(
        self, blocks: Sequence[tuple[int, bytes]], n_candidates: int, policy: bytes | None, minimise: bool, seed: int
    ) -> None:
        self._features = _joined(blocks)
        if self._features.shape[0] != n_candidates:
            raise DamagedError(f"{n_candidates - self._features.shape[0]} candidates are missing")
        self._sign, self._seed = -1.0 if minimise else 1.0, seed
        self._policy = None if policy is None else _loaded(policy)
        self._search: Search | None = None
        self._told: list[int] = []  # numbers of the events that the search knows

    def prepare(self) -> None:
        """Encode the pool, if there is something to encode it by."""
        if self._policy is not None:
            self._trained(self._policy).prepare()

    def choose(self, n: int, state: State) -> tuple[Suggestion, ...]:
        """The next n.

        A Gaussian process without a prior mean knows nothing before the first measurement, and would go for what is
        farthest from all others, which is seldom good: chance picks until then.
        """
        search = self.search(state)
        pending, failed = list(state.pending), list(state.failed)
        if (self._policy is None or self._policy.method == "gp") and not state.told:
            return search.by_chance(n, excluded=[*pending, *failed])
        return search.ask(n, pending=pending, excluded=failed)

    def search(self, state: State) -> Search:
        """The search that knows what was told, and nothing else."""
        numbers = [told.number for told in state.told]
        if self._policy is not None:
            search = self._trained(self._policy)
            if self._told != numbers[: len(self._told)]:  # something was taken back
                search.forget()
                self._told = []
            self._tell(search, state.told[len(self._told) :])
        elif self._search is None or self._told != numbers:
            self._search = self._own(state.told)
        self._told = numbers
        assert self._search is not None
        return self._search

    def _trained(self, policy: Policy) -> Search:
        if self._search is None:
            self._search = Search(policy, self._features, seed=self._seed)
        return self._search

    def _own(self, told: Sequence[Told]) -> Search:
        told = self._few(told)
        values: dict[int, list[float]] = {}
        for measurement in told:
            values.setdefault(measurement.row, []).append(self._sign * measurement.value)
        means = np.array([np.mean(several) for several in values.values()], dtype=np.float64)
        policy = own_policy(self._features, np.array(list(values), dtype=np.int64), means, self._seed)
        search = Search(policy, self._features, seed=self._seed)
        self._tell(search, told)
        return search

    def _few(self, told: Sequence[Told]) -> Sequence[Told]:
        """Of very many measurements, those of the best candidates and as many others at random, in order."""
        if len(told) <= MOST_OBSERVED:
            return told
        order = sorted(range(len(told)), key=lambda place: -self._sign * told[place].value)
        half = MOST_OBSERVED // 2
        draw = np.random.default_rng(self._seed)
        others = draw.choice(order[half:], MOST_OBSERVED - half, replace=False).tolist()
        return [told[place] for place in sorted([*order[:half], *others])]

    def _tell(self, search: Search, told: Sequence[Told]) -> None:
        for measurement in told:
            search.tell(measurement.row, self._sign * measurement.value, measurement.asked)


def _joined(blocks: Sequence[tuple[int, bytes]]) -> FeatureMatrix:
    matrices: list[Any] = []
    for first, packed in blocks:
        try:
            matrices.append(unpacked_features(packed))
        except Exception as error:  # damaged archives end NumPy and zipfile in a dozen ways
            raise DamagedError(f"the features of candidate {first} cannot be read") from error
    if not matrices or len({matrix.shape[1] for matrix in matrices}) != 1:
        raise DamagedError("its features are of different widths")
    return sp.csr_array(sp.vstack(matrices, format="csr")) if sp.issparse(matrices[0]) else np.vstack(matrices)


def _loaded(policy: bytes) -> Policy:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "policy"
        file.write_bytes(policy)
        return load(file, prepared=True)
