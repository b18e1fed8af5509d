"""Searching one pool with a trained policy: ask which candidates to try, tell what they gave.

Where the pool fits in memory, everything that is known of every candidate is kept, and an observation more costs O(t)
a candidate. Where it does not, each question is one pass over the stored representations, which keeps the best.

S = 1 pool, E = 1 episode, N candidates, t observations; K candidates are kept of a pass.
"""

import copy
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, SupportsFloat, SupportsIndex

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dkaf.errors import InputError, whole_number
from dkaf.model.inputs import Rows, SparseRows
from dkaf.model.prior import Pool
from dkaf.policies import GaussianPolicy, KernelPolicy, Policy
from dkaf.representations import Filed, Held, LateBar, Passing, Representations, joined, picked, scaled
from dkaf.seeding import stream
from dkaf.sources.corpus import cache_folder
from dkaf.sources.pools import PoolLike, open_pool
from dkaf.tasks import LARGEST_RESPONSE, FloatArray

MEMORY = 3 << 29  # bytes; with Python and PyTorch, 2 GiB
PASS_ROWS, PASS_BYTES = 1 << 14, 1 << 25  # of a pass, at once
KEPT = 8192  # best candidates of a pass: near the best one many are alike, and the next choice may be elsewhere
LARGEST_BATCH = 1024


class Suggestion(NamedTuple):
    """A candidate to try next."""

    row: int
    """Its row in the pool, from 0."""
    score: float
    """What the policy ranks by; comparable within one answer only."""
    mean: float | None
    """The response expected, exceeded as likely as not, in units of y; None for policies that believe nothing."""
    deviation: float | None
    """The spread of the response that would be measured, noise included: half of the central 68 %."""


class Observation(NamedTuple):
    """A response that was told."""

    row: int
    value: float
    queried: bool


class _Event(NamedTuple):
    """An observation in the policy's units; of a suggestion not told yet, what is expected."""

    row: int
    y: Float[Tensor, ""]
    queried: bool


class _Best(NamedTuple):
    """The best candidates of a pass, best first; of equal ones, the first."""

    rows: Int[Tensor, " k"]
    scores: Float[Tensor, " k"]
    z: Rows


class _Kept(NamedTuple):
    """The whole pool as the policy knows it after so many observations."""

    points: Any
    state: Any
    observed: int


class Search:
    """A search of one pool: `ask` for candidates, `tell` what was measured, in any order.

    >>> import numpy as np, dkaf
    >>> policy = dkaf.fit(dkaf.digits_tasks(n_tasks=4, pool_size=30), method="gp", pretrain_updates=5)
    >>> search = dkaf.Search(policy, np.random.default_rng(0).integers(0, 17, size=(1000, 64)))
    >>> search.tell(7, 2.5)
    >>> suggestion = search.ask()[0]
    >>> search.tell(suggestion.row, 3.5)
    >>> search.best == (suggestion.row, 3.5, True)
    True
    >>> len({other.row for other in search.ask(5)} - {7, suggestion.row})
    5

    `pool` is a NumPy array, a SciPy sparse matrix, an `np.memmap`, or the path of an `.npy` or `.parquet` file, of
    which `columns` names the features (else all columns of numbers are). Arrays are not copied: leave them as they are.
    `memory` is how many bytes the search may take beside the pool itself; by default, as many as leave a process with
    PyTorch under 2 GiB. What does not fit is streamed. `store` is a folder in which representations are kept for the
    next process; without one they are kept, if they do not fit in memory, in the user's cache. `seed` is what Random
    draws by.
    """

    def __init__(
        self,
        policy: Policy,
        pool: PoolLike,
        *,
        columns: Sequence[str] | None = None,
        store: str | os.PathLike[str] | None = None,
        memory: int | None = None,
        seed: int = 0,
        progress: bool = True,
    ) -> None:
        if not isinstance(policy, Policy):
            raise InputError(
                f"a search needs a policy, {type(policy).__name__} came; make one with dkaf.fit or dkaf.load"
            )
        self._policy = copy.deepcopy(policy).eval()  # the caller's may be trained further
        self._memory = MEMORY if memory is None else whole_number("memory", memory)
        if self._memory < 0:
            raise InputError(f"memory is at least 0 bytes, {self._memory} came; leave it out for 2 GiB in all")
        self._seed = whole_number("seed", seed)
        self._progress = progress
        self._pool = open_pool(pool, columns)
        if self._pool.n_features != policy.n_features:
            raise InputError(
                f"the policy was trained on {policy.n_features} features, {self._pool.n_features} came with "
                f"{self._pool.name}; pass the columns it was trained on"
            )
        at_once = self._pool.bytes_to_read
        if at_once > max(self._memory, MEMORY) // 2:
            raise InputError(
                f"a pool is read in bounded memory, {self._pool.name} takes {at_once >> 20} MiB at once: a page of "
                "every column; write it with smaller row groups (row_group_size=16384) or as .npy, or pass "
                f"memory={2 * at_once}"
            )
        self._representations = self._where_kept(store)
        self._observed: list[Observation] = []
        self._asked: dict[int, Rows] = {}  # rows that were ever named, and their representations
        self._known: dict[int, Rows] = {}  # the same of observed rows
        self._kept: _Kept | None = None
        self._last: tuple[Any, _Best] | None = None  # of the pass after all that was told

    def __len__(self) -> int:
        """How many candidates there are."""
        return self._pool.n_rows

    def __repr__(self) -> str:
        return f"Search({self._policy.method}, {len(self)} candidates, {len(self._observed)} observations)"

    @property
    def observed(self) -> tuple[Observation, ...]:
        """All that was told, in order; `tell(*observation)` tells it to another search."""
        return tuple(self._observed)

    @property
    def best(self) -> Observation | None:
        """The largest response so far, the first of equal ones."""
        return max(self._observed, key=lambda observation: observation.value, default=None)

    def tell(self, row: SupportsIndex, value: SupportsFloat, queried: bool | None = None) -> None:
        """What candidate `row` gave. A candidate may be measured more than once; the policy takes each as noisy.

        `queried` is false for what was known before the search: a policy that explores less with every query (GP-MI)
        does not count it. By default it is whether `ask` has ever named the candidate.
        """
        place = self._place(row)
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"a response is a number, {value!r} came for row {place}; tell a number") from None
        if not abs(number) <= LARGEST_RESPONSE:
            raise InputError(
                f"responses are finite and within +-{LARGEST_RESPONSE:g}, {number} came for row {place}; "
                "rescale it, or do not tell it"
            )
        self._observed.append(Observation(place, number, place in self._asked if queried is None else bool(queried)))
        self._last = None

    def forget(self) -> None:
        """Begin anew: nothing was told, nothing asked. What was computed of the pool itself stays."""
        self._observed, self._asked, self._known = [], {}, {}
        self._kept = self._last = None

    def prepare(self) -> None:
        """Do now what the first `ask` would do: encode the pool."""
        self._pool.check()
        self._representations.complete(self._progress)

    @torch.no_grad()
    def ask(
        self, n: SupportsIndex = 1, *, pending: Sequence[SupportsIndex] = (), excluded: Sequence[SupportsIndex] = ()
    ) -> tuple[Suggestion, ...]:
        """The `n` candidates to try next, none that was told already, best first. Asking changes no later answer.

        They are chosen one after the other, each as if those before it had given what is expected of them, so that
        they differ. `pending` are rows that are being tried: they are not named again, and count as if they had given
        what is expected of them. `excluded` are rows never to be named. Policies that expect nothing (RL, Random) name
        their n best scores.
        """
        n = whole_number("n", n)
        tried = list(dict.fromkeys(self._place(row) for row in pending))
        told = dict.fromkeys(observation.row for observation in self._observed)
        tried = [row for row in tried if row not in told]
        closed = dict.fromkeys([*told, *tried, *map(self._place, excluded)])
        left = len(self) - len(closed)
        if not 1 <= n <= LARGEST_BATCH:
            raise InputError(f"ask names 1 to {LARGEST_BATCH} candidates, {n} were asked for; tell some in between")
        if n > left:
            raise InputError(f"{n} candidates were asked for, {left} of {len(self)} are not told yet; ask for fewer")
        self.prepare()
        events = [_Event(row, self._scaled(value), queried) for row, value, queried in self._observed]
        known = {row: self._known_row(row) for row in told}
        out = {row: self._known_row(row) for row in closed if row not in known}
        if isinstance(self._policy, GaussianPolicy):
            events += self._expected(self._policy, events, known, tried)
            return self._believed(self._policy, n, events, known | out)
        best = self._pass(events, known | out, n)
        answer = []
        for place, (row, score) in enumerate(zip(best.rows[:n].tolist(), best.scores[:n].tolist(), strict=True)):
            self._asked[row] = picked(best.z, torch.tensor([place]))
            answer.append(Suggestion(row, score, None, None))
        return tuple(answer)

    @torch.no_grad()
    def by_chance(self, n: SupportsIndex = 1, *, excluded: Sequence[SupportsIndex] = ()) -> tuple[Suggestion, ...]:
        """`n` candidates at random, by the seed, none that was told already."""
        n = whole_number("n", n)
        closed = {observation.row for observation in self._observed}.union(map(self._place, excluded))
        order = torch.randperm(len(self), generator=stream(self._seed, "chance")).tolist()
        rows = [row for row in order[: n + len(closed)] if row not in closed][:n]
        if len(rows) < n:
            raise InputError(f"{n} candidates were asked for, {len(rows)} are not told yet; ask for fewer")
        return tuple(Suggestion(row, 0.0, None, None) for row in rows)

    @torch.no_grad()
    def believe(self, rows: Sequence[SupportsIndex]) -> tuple[FloatArray, FloatArray] | None:
        """The response expected of each row, and its spread; None for policies that believe nothing."""
        policy = self._policy
        places = [self._place(row) for row in rows]
        if not isinstance(policy, GaussianPolicy):
            return None
        self.prepare()
        events = [_Event(row, self._scaled(value), queried) for row, value, queried in self._observed]
        points, known = self._placed(
            self._representations.rows(places), {e.row: self._known_row(e.row) for e in events}
        )
        state = policy.begin(points, 1, torch.Generator())
        for event in events:
            state = self._after(points, state, event, known[event.row])
        mean, var = (belief[0, 0, : len(places)].double() for belief in (state.beliefs.mean, state.beliefs.var))
        mean, deviation = policy.in_units(mean, var.sqrt())
        return mean.cpu().numpy(), deviation.cpu().numpy()

    @torch.no_grad()
    def representations(self, rows: Sequence[SupportsIndex]) -> FloatArray:
        """What the policy's encoder makes of each row; of policies without one, the scaled features."""
        self.prepare()
        z = self._representations.rows([self._place(row) for row in rows])
        return (z.dense() if isinstance(z, SparseRows) else z).double().cpu().numpy()

    def _place(self, row: SupportsIndex) -> int:
        place = whole_number("a row", row)
        if not 0 <= place < len(self):
            raise InputError(f"the pool's rows go from 0 to {len(self) - 1}, {place} came; name a row of the pool")
        return place

    def _known_row(self, row: int) -> Rows:
        if row not in self._known:
            named = self._asked.get(row)
            self._known[row] = self._representations.rows([row]) if named is None else named
        return self._known[row]

    def _expected(
        self, policy: GaussianPolicy, events: list[_Event], known: dict[int, Rows], rows: list[int]
    ) -> list[_Event]:
        """What is expected of rows that are being tried. Filling one in moves no mean: all come from one posterior."""
        if not rows:
            return []
        points, places = self._placed(joined([self._known_row(row) for row in rows]), known)
        self._whole(events)  # if it is kept, the rows are taken from it, and the question goes on from there
        state = self._state_at(policy, points, rows, places, events)
        return [_Event(row, state.beliefs.mean[0, 0, place].clone(), True) for place, row in enumerate(rows)]

    def _state_at(
        self, policy: GaussianPolicy, points: Any, rows: list[int], places: dict[int, int], events: list[_Event]
    ) -> Any:
        """What is known of some rows, and those placed after them; taken from the whole pool's where that is kept."""
        kept = self._kept
        if kept is None:
            state, done = policy.begin(points, 1, torch.Generator()), 0
        else:
            among = torch.tensor([*rows, *places], device=policy.device)
            state, done = kept.state._replace(beliefs=kept.state.beliefs.at(among)), kept.observed
        for event in events[done:]:
            state = self._after(points, state, event, places[event.row])
        return state

    def _believed(
        self, policy: GaussianPolicy, n: int, events: list[_Event], known: dict[int, Rows]
    ) -> tuple[Suggestion, ...]:
        """Choose n candidates, each given the expected responses of those before it.

        Filling in what is expected leaves all means as they are, shrinks variances, and lets xi and the best response
        grow: MI, UCB and EI of every other candidate stay or fall. So one that is still not below the last candidate
        kept of a pass is the best of all; only when there is none left, another pass is needed.
        """
        answer: list[Suggestion] = []
        while True:
            best = self._pass(events, known, n)
            # Without an observation EI improves on 0, and the first that is filled in may be below it.
            falling = isinstance(policy, KernelPolicy) and not (policy.acquisition == "ei" and not events)
            floor = -math.inf if len(best.rows) == len(self) - len(known) else float(best.scores[-1])
            z = best.z if n > 1 else picked(best.z, torch.tensor([0]))
            points, places = self._placed(z, known)
            state = self._state_at(policy, points, best.rows[: len(z)].tolist(), places, events)
            choice, free = 0, torch.ones(len(z), dtype=torch.bool)
            scores = policy.scores(points, state)[0, 0, : len(free)].cpu()
            while True:
                row, mean = int(best.rows[choice]), state.beliefs.mean[0, 0, choice].clone()
                value, deviation = policy.in_units(mean.double(), state.beliefs.var[0, 0, choice].double().sqrt())
                answer.append(Suggestion(row, float(scores[choice]), float(value), float(deviation)))
                known[row] = self._asked[row] = picked(z, torch.tensor([choice]))
                if len(answer) == n:
                    return tuple(answer)
                events = [*events, _Event(row, mean, True)]
                state = self._after(points, state, events[-1], choice)
                free[choice] = False
                scores = policy.scores(points, state)[0, 0, : len(free)].cpu().where(free, -math.inf)
                choice = _first_best(scores, best.rows)
                if floor > -math.inf and not (falling and scores[choice] >= floor):
                    break

    def _pass(self, events: list[_Event], known: dict[int, Rows], n: int) -> _Best:
        """The best candidates that no event is of, at least n."""
        k = max(n, min(KEPT, int(PASS_BYTES // self._representations.bytes_per_row)))
        question = (len(events), frozenset(known))
        if self._last is not None and self._last[0] == question:
            best = self._last[1]
            if len(best.rows) >= min(k, len(self) - len(known)):
                return best
        kept = self._whole(events)
        if kept is None:
            best = self._streamed(events, known, k)
        else:
            scores = _checked(self._policy.scores(kept.points, kept.state)[0, 0], 0, known)
            rows = _best_places(scores, k)
            best = _Best(rows, scores[rows], self._representations.rows(rows.tolist()))
        if len(events) == len(self._observed):
            self._last = (question, best)
        return best

    def _whole(self, events: list[_Event]) -> _Kept | None:
        """The whole pool after these events, if there is memory for it; what was told is kept for the next question."""
        held = self._representations
        if not isinstance(held, Held) or not self._fits(len(events)):
            self._kept = None
            return None
        kept, self._kept = self._kept, None  # if this is interrupted in the middle of an observation, all is done anew
        if kept is None:
            points, _ = self._placed(held.whole, {})
            kept = _Kept(points, self._policy.begin(points, 1, stream(self._seed, "search")), 0)
        while kept.observed < len(self._observed):
            kept = self._further(kept, events)
        self._kept = kept
        if kept.observed < len(events):  # what is only expected is not kept
            kept = kept._replace(state=copy.deepcopy(kept.state))
        while kept.observed < len(events):
            kept = self._further(kept, events)
        return kept

    def _further(self, kept: _Kept, events: list[_Event]) -> _Kept:
        event = events[kept.observed]
        return _Kept(kept.points, self._after(kept.points, kept.state, event, event.row), kept.observed + 1)

    def _streamed(self, events: list[_Event], known: dict[int, Rows], k: int) -> _Best:
        """One pass over the representations; to each block's candidates come the observed ones."""
        per_row = self._representations.bytes_per_row + 16 * len(events)
        size = int(max(1, min(PASS_ROWS, PASS_BYTES // per_row)))
        draws = stream(self._seed, "search")
        best: _Best | None = None
        with LateBar(self._progress, "searching") as bar:
            for first, z in self._representations.blocks(size):
                points, places = self._placed(z, known)
                before = draws.get_state()
                state = self._policy.begin(points, 1, draws)
                draws.set_state(before)
                torch.rand(len(z), generator=draws)  # the next block's lots are then those it has in the whole pool
                for event in events:
                    state = self._after(points, state, event, places[event.row])
                scores = _checked(self._policy.scores(points, state)[0, 0, : len(z)], first, known)
                best = _merged(best, first, scores, z, k)
                bar.advance(first + len(z), len(self))
        assert best is not None
        return best

    def _placed(self, z: Rows, known: dict[int, Rows]) -> tuple[Any, dict[int, int]]:
        """Points of candidates and, after them, of observed rows; and at which positions those are."""
        rows = torch.arange(len(z) + len(known), device=self._policy.device).unsqueeze(0)
        points = self._policy.place(joined([z, *known.values()]), Pool(rows, torch.ones_like(rows, dtype=torch.bool)))
        return points, {row: len(z) + place for place, row in enumerate(known)}

    def _after(self, points: Any, state: Any, event: _Event, place: int) -> Any:
        chosen = torch.tensor([[place]], device=self._policy.device)
        return self._policy.observe(points, state, chosen, event.y.reshape(1, 1), queried=event.queried)

    def _scaled(self, value: float) -> Float[Tensor, ""]:
        scaled = self._policy.scaled(torch.tensor(value, dtype=torch.float64, device=self._policy.device))
        return self._policy.warped(scaled)

    @torch.no_grad()
    def _where_kept(self, store: str | os.PathLike[str] | None) -> Representations:
        policy, pool = self._policy, self._pool
        x = scaled(policy, pool, 0, pool.row(0))
        z = policy.represent(x)
        bytes_per_row = pool.bytes_per_row if isinstance(z, SparseRows) else 4.0 * z.shape[1]
        fits = pool.n_rows * bytes_per_row <= self._memory / 2
        if z is x:  # nothing was computed that would be worth a file
            return Held(policy, pool, bytes_per_row) if fits else Passing(policy, pool, bytes_per_row)
        if store is None and fits:
            return Held(policy, pool, bytes_per_row)
        assert isinstance(z, Tensor)
        folder = cache_folder() / "representations" if store is None else Path(store).expanduser()
        filed = Filed(policy, pool, z.shape[1], folder)
        return Held(policy, pool, bytes_per_row, filed) if fits else filed

    def _fits(self, observations: int) -> bool:
        """Whether the whole pool's points and state fit: some copies of z or of hidden layers, and three of V."""
        placed = 7 * self._representations.bytes_per_row
        if not isinstance(self._policy, KernelPolicy):
            placed += 16 * self._policy.settings.width
        return len(self) * (placed + 4 * (8 + 3 * observations)) <= self._memory


def _checked(scores: Float[Tensor, " n"], first: int, known: dict[int, Rows]) -> Float[Tensor, " n"]:
    """Scores of the rows from `first` on, those of observed rows minus infinity."""
    if scores.isnan().any():
        row = first + int(scores.isnan().int().argmax())
        raise InputError(
            f"scores are numbers, that of row {row} is not; drop it, or train on features and responses of such sizes"
        )
    scores = scores.clamp(min=torch.finfo(scores.dtype).min).cpu()
    for row in known:
        if first <= row < first + len(scores):
            scores[row - first] = -math.inf
    return scores


def _best_places(scores: Float[Tensor, " n"], k: int) -> Int[Tensor, " k"]:
    """Where the k largest scores are, best first and of equal ones the first; none of minus infinity."""
    last = scores.topk(min(k, len(scores))).values[-1]
    better, equal = ((mask).nonzero().squeeze(1) for mask in (scores > last, (scores == last) & (last > -math.inf)))
    places = torch.cat((better, equal[: k - len(better)])).sort().values
    return places[scores[places].sort(descending=True, stable=True).indices]


def _first_best(scores: Float[Tensor, " k"], rows: Int[Tensor, " k"]) -> int:
    """Where the largest score is; of equal ones, that of the first row."""
    return int(rows.where(scores == scores.max(), torch.iinfo(torch.int64).max).argmin())


def _merged(best: _Best | None, first: int, scores: Float[Tensor, " n"], z: Rows, k: int) -> _Best:
    """The k best of those before and those of a block."""
    full = best is not None and len(best.rows) == k
    above = (scores > (best.scores[-1] if best is not None and full else -math.inf)).nonzero().squeeze(1)
    if best is not None and len(above) == 0:
        return best
    if len(above) > k:
        above = above[_best_places(scores[above], k)]
    block = _Best(first + above, scores[above], picked(z, above))
    if best is None:
        best, block = block, _Best(above[:0], scores[:0], picked(z, above[:0]))
    rows, both = torch.cat((best.rows, block.rows)), torch.cat((best.scores, block.scores))
    order = both.sort(descending=True, stable=True).indices[:k]
    return _Best(rows[order], both[order], picked(joined([best.z, block.z]), order))
