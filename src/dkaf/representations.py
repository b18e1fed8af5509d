"""What a policy keeps of every row of a pool: computed once, in blocks, and held in memory or in files.

Encoding goes on where it was left: after Ctrl-C, and, in files, after the process was killed. N rows.
"""

import contextlib
import hashlib
import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import scipy.sparse as sp
import torch
from filelock import FileLock, Timeout
from jaxtyping import Int
from torch import Tensor

from dkaf.console import Bars
from dkaf.errors import InputError
from dkaf.files import whole_file
from dkaf.model.inputs import TABLED_ROWS, Rows, SparseRows
from dkaf.policies import Policy
from dkaf.sources.pools import CandidatePool, read_into
from dkaf.tasks import FeatureMatrix

FORMAT = "dkaf-representations-1"
BLOCK_BYTES, BLOCK_ROWS = 1 << 23, 1 << 16  # of features encoded at once; scaling them takes some ten times that
RECORD_SECONDS = 1.0  # between two records of how far encoding has come
QUICK_SECONDS = 1.0  # nothing is shown of what takes less


class LateBar:
    """Progress that shows itself only once the work has taken a while."""

    def __init__(self, shown: bool, stage: str) -> None:
        self._shown, self._stage = shown, stage
        self._begun = time.monotonic()
        self._bars: Bars | None = None

    def __enter__(self) -> "LateBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.__exit__(kind, error, trace)

    def advance(self, done: int, total: int) -> None:
        if not self._shown or (self._bars is None and time.monotonic() - self._begun < QUICK_SECONDS):
            return
        if self._bars is None:
            self._bars = Bars().__enter__()
        self._bars.advance("pool", self._stage, done, total)


class Representations(ABC):
    """The representation of every row of a pool."""

    def __init__(self, policy: Policy, pool: CandidatePool, bytes_per_row: float) -> None:
        self.policy, self.pool, self.bytes_per_row = policy, pool, bytes_per_row

    @abstractmethod
    def complete(self, progress: bool) -> None:
        """Encode what is not encoded yet."""

    @abstractmethod
    def blocks(self, size: int) -> Iterator[tuple[int, Rows]]:
        """All rows in order, at most `size` at once, each block with the number of its first row."""

    @abstractmethod
    def rows(self, numbers: Sequence[int]) -> Rows:
        """Some rows."""


class Passing(Representations):
    """Computed anew at every pass: for policies whose representation of a row is the row."""

    def complete(self, progress: bool) -> None:
        pass

    def blocks(self, size: int) -> Iterator[tuple[int, Rows]]:
        size = min(size, _block_rows(self.bytes_per_row))
        if self.pool.sparse:  # of fewer rows all inner products would be tabled
            size = math.ceil(self.pool.n_rows / max(1, self.pool.n_rows // max(size, TABLED_ROWS + 1)))
        return encoded(self.policy, self.pool, 0, size)

    def rows(self, numbers: Sequence[int]) -> Rows:
        return joined([represented(self.policy, self.pool, number, self.pool.row(number)) for number in numbers])


class Held(Representations):
    """In memory. What was encoded before an interruption is kept as long as the object is."""

    def __init__(
        self, policy: Policy, pool: CandidatePool, bytes_per_row: float, source: "Filed | None" = None
    ) -> None:
        super().__init__(policy, pool, bytes_per_row)
        self._source = source
        self._parts: list[Rows] = []
        self._done = 0
        self._table: Tensor | None = None

    @property
    def whole(self) -> Rows:
        return self._parts[0]

    def complete(self, progress: bool) -> None:
        if self._source is not None:
            self._source.complete(progress)
        if self._done == self.pool.n_rows:
            return
        size = _block_rows(self.bytes_per_row, self.pool.bytes_per_row)
        source = encoded(self.policy, self.pool, self._done, size)
        if self._source is not None:
            source = self._source.blocks(BLOCK_ROWS, self._done)
        with LateBar(progress, "encoding") as bar:
            for first, z in source:
                if isinstance(z, SparseRows):
                    self._parts.append(z)
                else:
                    if self._table is None:
                        self._table = z.new_empty(self.pool.n_rows, z.shape[1])
                    self._table[first : first + len(z)] = z
                self._done = first + len(z)
                bar.advance(self._done, self.pool.n_rows)
        self._parts = [joined(self._parts) if self._table is None else self._table]

    def blocks(self, size: int) -> Iterator[tuple[int, Rows]]:
        for first in range(0, self.pool.n_rows, size):
            yield first, picked(self.whole, slice(first, first + size))

    def rows(self, numbers: Sequence[int]) -> Rows:
        return picked(self.whole, torch.tensor(numbers, dtype=torch.int64))


class Filed(Representations):
    """In a folder of its own: the rows in single precision one after the other, and a record of how many are there."""

    def __init__(self, policy: Policy, pool: CandidatePool, width: int, folder: Path) -> None:
        super().__init__(policy, pool, 4.0 * width)
        self._width = width
        self._about = {
            "format": FORMAT,
            "policy": policy_fingerprint(policy),
            "pool": pool.fingerprint,
            "rows": pool.n_rows,
            "width": width,
        }
        key = hashlib.sha256(json.dumps(self._about, sort_keys=True).encode()).hexdigest()[:24]
        self.folder = folder / key
        self._data, self._record = self.folder / "rows.f32", self.folder / "about.json"

    @property
    def done(self) -> int:
        """How many rows are there, whole and recorded."""
        try:
            about = json.loads(self._record.read_bytes())
            done = int(about.pop("done"))
            held = self._data.stat().st_size // (4 * self._width)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return 0
        return min(done, held) if about == self._about and done >= 0 else 0

    def complete(self, progress: bool) -> None:
        if self.done == self.pool.n_rows:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._alone(progress):
                for left in self.folder.glob(".*.part"):  # by a process that was killed
                    left.unlink(missing_ok=True)
                self._encode(progress)
        except OSError as error:
            raise InputError(
                f"representations are stored in {self.folder}, it cannot be written: {error.strerror or error}; "
                "make room or name another folder as store="
            ) from error

    def _alone(self, progress: bool) -> Any:
        """The lock of the folder, once no other process has it."""
        lock = FileLock(self.folder / "lock")
        try:
            return lock.acquire(timeout=QUICK_SECONDS)
        except Timeout:
            if progress:
                Bars().say("pool: another process is encoding it; waiting")
            return lock.acquire()

    def _encode(self, progress: bool) -> None:
        recorded, total = time.monotonic(), self.pool.n_rows
        size = _block_rows(self.bytes_per_row, self.pool.bytes_per_row)
        done = self.done  # another process may have gone on while this one waited
        done -= done % size  # products round by the rows they have: the same blocks give the same bytes
        self._data.touch()
        with open(self._data, "r+b") as file, LateBar(progress, "encoding") as bar:
            file.truncate(done * 4 * self._width)
            file.seek(0, 2)
            try:
                for first, z in encoded(self.policy, self.pool, done, size):
                    assert isinstance(z, Tensor)
                    file.write(np.ascontiguousarray(z.cpu().numpy(), dtype="<f4").data)
                    done = first + len(z)
                    if time.monotonic() - recorded > RECORD_SECONDS:
                        self._write_record(file, done)
                        recorded = time.monotonic()
                    bar.advance(done, total)
            except InputError as error:
                raise InputError(
                    f"{error} ({done} rows before are encoded; a file that was changed is another pool, and is encoded "
                    "from its first row)"
                ) from error
            finally:
                self._write_record(file, done)

    def _write_record(self, file: Any, done: int) -> None:
        """The rows first, then what says that they are there."""
        file.flush()
        os.fsync(file.fileno())
        with whole_file(self._record) as record:
            record.write(json.dumps(self._about | {"done": done}).encode())

    def blocks(self, size: int, start: int = 0) -> Iterator[tuple[int, Rows]]:
        with self._opened() as file:
            for first in range(start, self.pool.n_rows, size):
                yield first, self._rows(file, first, min(size, self.pool.n_rows - first))

    def rows(self, numbers: Sequence[int]) -> Rows:
        with self._opened() as file:
            return joined([self._rows(file, number, 1) for number in numbers])

    @contextlib.contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        try:
            with open(self._data, "rb", buffering=0) as file:
                yield file
        except OSError as error:
            raise self._damaged(str(error.strerror or error)) from error

    def _rows(self, file: BinaryIO, first: int, count: int) -> Tensor:
        block = np.empty((count, self._width), dtype="<f4")
        if not read_into(file, first * 4 * self._width, block):
            raise self._damaged("it is cut short")
        return torch.from_numpy(block).to(self.policy.device)

    def _damaged(self, reason: str) -> InputError:
        return InputError(
            f"the representations in {self.folder} cannot be read ({reason}); delete that folder, and ask again"
        )


def encoded(policy: Policy, pool: CandidatePool, start: int, size: int) -> Iterator[tuple[int, Rows]]:
    """The rows from `start` on as the policy represents them."""
    for first, matrix in pool.blocks(start, size):
        yield first, represented(policy, pool, first, matrix)


def represented(policy: Policy, pool: CandidatePool, first: int, matrix: FeatureMatrix) -> Rows:
    """Rows of a pool, the first of them number `first`, as the policy represents them."""
    z = policy.represent(scaled(policy, pool, first, matrix))
    if isinstance(z, Tensor) and not torch.isfinite(z).all():
        row = first + int(torch.isfinite(z).all(dim=1).int().argmin())
        raise InputError(
            f"representations are finite, that of row {row} of {pool.name} is not; "
            "drop it, or train on features of its size"
        )
    return z


def scaled(policy: Policy, pool: CandidatePool, first: int, matrix: FeatureMatrix) -> Rows:
    """The policy's scaling; what it refuses is refused with the row's number."""
    n = matrix.shape[0]
    try:
        x: Rows = policy.inputs(matrix, np.arange(n))
        return x
    except InputError as error:
        reason = error
    low, high = 0, n  # the first `low` rows are well, among the first `high` one is not
    while high - low > 1:
        middle = (low + high) // 2
        try:
            policy.inputs(matrix, np.arange(low, middle))
            low = middle
        except InputError as error:
            high, reason = middle, error
    raise InputError(f"row {first + low} of {pool.name}: {reason}") from reason


def policy_fingerprint(policy: Policy) -> str:
    """The same for policies that represent and score alike."""
    digest = hashlib.sha256(json.dumps(policy.describe(), sort_keys=True).encode())
    for name, tensor in sorted(policy.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def joined(parts: Sequence[Rows]) -> Rows:
    """One after the other."""
    if len(parts) == 1:
        return parts[0]
    sparse = [part.matrix for part in parts if isinstance(part, SparseRows)]
    if sparse:
        return SparseRows(sp.csr_array(sp.vstack(sparse, format="csr")), parts[0].device)
    return torch.cat([part for part in parts if isinstance(part, Tensor)])


def picked(z: Rows, rows: Int[Tensor, " m"] | slice) -> Rows:
    """Some rows, which do not keep the others in memory if they are numbered."""
    if isinstance(z, SparseRows):
        return SparseRows(z.matrix[rows if isinstance(rows, slice) else rows.cpu().numpy()], z.device)
    return z[rows if isinstance(rows, slice) else rows.to(z.device)]


def _block_rows(*bytes_per_row: float) -> int:
    return int(max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(bytes_per_row))))
