"""One query in a large pool, from the second on: `dkaf.Search` against BoTorch's posterior over all candidates.

Both have the candidates' representations by then. BoTorch's SingleTaskGP has the policy's kernel, mean and noise, and
takes the candidates in chunks, one each of a batch, as its own optimiser of discrete pools does; the acquisition is
GP-MI on both sides, in single precision. Both must query the same candidates, or, where rounding decides, candidates
that the peer scores alike.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

import dkaf
from benchmarks.comparison import Case, DisagreementError, Peer, Work
from benchmarks.peers import gpytorch_parts, represent, single_task_gp
from dkaf.policies import KernelPolicy
from dkaf.tasks import TaskSet

PEER = Peer("botorch", "posterior of SingleTaskGP")
CHUNK = 1 << 13  # candidates at once: of 2^11 to 2^17 the fastest for BoTorch
BLOCK = 1 << 13  # rows generated and encoded at once
CHECKED, CHECKED_IN_FILES = 4, 2  # queries of the check
ALIKE = 1e-3  # of the spread of scores: what may differ by rounding in single precision


@dataclass(frozen=True)
class PoolSize:
    """How many candidates and features, and non-zeros a row; none: dense."""

    rows: int
    features: int
    nonzeros: int | None
    on_disk: bool = False

    def __str__(self) -> str:
        kind = "dense" if self.nonzeros is None else f"{self.nonzeros} of them not zero"
        return f"{self.rows:,} candidates of {self.features:,} features, {kind}{', in a file' if self.on_disk else ''}"


@dataclass(frozen=True, eq=False)
class _Searched:
    """A pool, what its rows respond, and the policy that searches it."""

    policy: KernelPolicy
    pool: Any
    size: PoolSize
    folder: Path | None

    def response(self, row: int) -> float:
        x = self.pool[[row]] if self.folder is None else np.load(self.pool, mmap_mode="r")[[row]]
        return -float(np.linalg.norm(_hidden(x, self.size.features)))


def case(size: PoolSize) -> Case:
    folder = Path(tempfile.mkdtemp(prefix="dkaf-bench-")) if size.on_disk else None
    try:
        searched = _Searched(_policy(size), _pool(size, folder), size, folder)
    except BaseException:
        _delete(folder)
        raise
    return Case(
        size=str(size),
        ours=lambda: _ours(searched),
        peers={PEER: lambda: _theirs(searched)},
        check=lambda: _check(searched),
        warm=False,
        waits=size.on_disk,
        calls=1,
        close=lambda: _delete(folder),
    )


def _delete(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _rows(size: PoolSize, block: int, count: int) -> Any:
    """Made-up rows; the columns of a sparse row are one of each of so many ranges."""
    draw = np.random.default_rng((block, size.features))
    if size.nonzeros is None:
        return draw.standard_normal((count, size.features), dtype=np.float32)
    width = size.features // size.nonzeros
    indices = np.arange(size.nonzeros, dtype=np.int32) * width + draw.integers(0, width, (count, size.nonzeros))
    values = 1 + draw.poisson(0.5, indices.size).astype(np.float32)
    indptr = np.arange(count + 1) * size.nonzeros
    return sp.csr_array((values, indices.ravel().astype(np.int32), indptr), shape=(count, size.features))


def _blocks(size: PoolSize) -> Iterator[tuple[int, Any]]:
    for block, first in enumerate(range(0, size.rows, BLOCK)):
        yield first, _rows(size, block, min(BLOCK, size.rows - first))


def _pool(size: PoolSize, folder: Path | None) -> Any:
    if folder is not None:
        if shutil.disk_usage(folder).free < 12 * size.rows * size.features:
            raise OSError(f"{12 * size.rows * size.features / 2**30:.0f} GiB are needed beside {folder}; set TMPDIR")
        file = np.lib.format.open_memmap(folder / "pool.npy", "w+", dtype=np.float32, shape=(size.rows, size.features))
        for first, rows in _blocks(size):
            file[first : first + len(rows)] = rows
        file.flush()
        return folder / "pool.npy"
    if size.nonzeros is None:
        pool = np.empty((size.rows, size.features), dtype=np.float32)
        for first, rows in _blocks(size):
            pool[first : first + len(rows)] = rows
        return pool
    return sp.csr_array(sp.vstack([rows for _, rows in _blocks(size)], format="csr"))


def _hidden(x: Any, features: int) -> Any:
    """A few directions of the features, relative to a hidden place."""
    draw = np.random.default_rng(features)
    return x @ draw.standard_normal((features, 8)) / features**0.5 - 0.5 * draw.standard_normal(8)


def _policy(size: PoolSize) -> KernelPolicy:
    """Ours at the default recipe, trained briefly on rows like the pool's."""
    rows = _rows(size, 10**6, 600)
    responses = -np.linalg.norm(_hidden(rows, size.features), axis=1)
    pools = [np.arange(first, 600, 6) for first in range(6)]
    tasks = TaskSet.from_arrays(rows, pools, [responses[pool] for pool in pools])
    return cast("KernelPolicy", dkaf.fit(tasks, acquisition="mi", pretrain_updates=40, updates=2))


def _queries(searched: _Searched) -> Callable[[], dkaf.Suggestion]:
    """Our search from its first query on; each call is one query."""
    store = None if searched.folder is None else searched.folder / "store"
    search = dkaf.Search(searched.policy, searched.pool, store=store, progress=False)
    search.tell(0, searched.response(0))

    def query() -> dkaf.Suggestion:
        suggestion = search.ask()[0]
        search.tell(suggestion.row, searched.response(suggestion.row))
        return suggestion

    return query


def _ours(searched: _Searched) -> Work:
    query = _queries(searched)
    query()
    return query


def _theirs(searched: _Searched) -> Work:
    search = _BotorchSearch(searched)
    search.observe(0)

    def query() -> None:
        row, _ = search.best()
        search.observe(row)

    query()
    return query


class _BotorchSearch:
    """GP-MI over all candidates, with BoTorch's posterior of them."""

    def __init__(self, searched: _Searched) -> None:
        self.searched, self.policy = searched, searched.policy
        self.parts = gpytorch_parts(self.policy.prior, self.policy.dtype)
        self.u = self._encoded()
        self.observed: list[int] = []
        self.y: list[float] = []
        self.xi = 0.0

    @torch.no_grad()
    def _encoded(self) -> Any:
        """[z, phi, m] of every candidate, in memory or in a file."""
        searched, u = self.searched, None
        for first, rows in _blocks(searched.size):
            x = self.policy.inputs(rows, np.arange(rows.shape[0]))
            dense = x if isinstance(x, Tensor) else x.dense()
            block = represent(self.policy.prior, dense, torch.arange(len(dense)).unsqueeze(0))[0].numpy()
            if u is None:
                shape = (searched.size.rows, block.shape[1])
                if searched.folder is None:
                    u = np.empty(shape, dtype=np.float32)
                else:
                    file = searched.folder / "representations.npy"
                    u = np.lib.format.open_memmap(file, "w+", dtype=np.float32, shape=shape)
            u[first : first + len(block)] = block
        return u

    @torch.no_grad()
    def observe(self, row: int) -> None:
        """The first one is where the search starts; GP-MI does not count it."""
        if self.observed:
            self.xi += self.variance[row]
        self.observed.append(row)
        scaled = self.policy.scaled(torch.tensor(self.searched.response(row)))
        self.y.append(float(self.policy.warped(scaled)))

    @torch.no_grad()
    def best(self) -> tuple[int, Any]:
        """The candidate with the largest score, and all scores."""
        observed = torch.from_numpy(np.asarray(self.u[self.observed]))
        model = single_task_gp(self.parts, observed, torch.tensor(self.y))
        scores = np.empty(len(self.u), dtype=np.float32)
        self.variance = np.empty(len(self.u), dtype=np.float32)
        nu = float(self.policy.log_nu.exp())
        for first in range(0, len(self.u), CHUNK):
            chunk = torch.from_numpy(np.asarray(self.u[first : first + CHUNK]))
            belief = model.posterior(chunk.unsqueeze(1), observation_noise=True)
            mean, var = belief.mean.flatten(), belief.variance.flatten()
            bonus = (var + self.xi).sqrt() - self.xi**0.5  # Eq. (a)
            scores[first : first + CHUNK] = mean + nu**0.5 * bonus
            self.variance[first : first + CHUNK] = var
        scores[self.observed] = -np.inf
        return int(scores.argmax()), scores


def _check(searched: _Searched) -> str:
    query, theirs, same = _queries(searched), _BotorchSearch(searched), 0
    checked = CHECKED if searched.folder is None else CHECKED_IN_FILES
    theirs.observe(0)
    for number in range(checked):
        ours = query().row
        row, scores = theirs.best()
        spread = float(scores.max() - np.median(scores))
        if not scores.max() - scores[ours] <= ALIKE * spread:
            raise DisagreementError(
                f"the same candidates are queried before anything is timed; at query {number} ours chose {ours}, which "
                f"{PEER.name} scores {scores[ours]:.6g}, and it chose {row} with {scores[row]:.6g}"
            )
        same += row == ours
        theirs.observe(ours)
    return f"{same} of {checked} queries are of the same candidate, any other of one scored alike"
