"""Raw features as the networks want them: scaled by a stored rule, sparse kept sparse.

R rows, D features.
"""

import functools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dkaf.errors import InputError
from dkaf.settings import InputKind
from dkaf.tasks import FeatureMatrix, IntArray

TABLED_ROWS = 4096  # whose inner products, all of them, take 64 megabytes


@dataclass(frozen=True, eq=False)
class SparseRows:
    """A sparse R x D matrix that a network's first layer multiplies without making it dense."""

    matrix: sp.csr_array
    device: torch.device
    part_of: "tuple[SparseRows, Int[Tensor, ' r']] | None" = None
    """The rows that these were picked from, and which they are there."""

    def __len__(self) -> int:
        return int(self.matrix.shape[0])

    def __getitem__(self, rows: Int[Tensor, " r"]) -> "SparseRows":
        whole, place = (self, rows) if self.part_of is None else (self.part_of[0], self.part_of[1][rows])
        return SparseRows(self.matrix[rows.cpu().numpy()], self.device, (whole, place))

    def inner(self, left: Int[Tensor, "s m"], right: Int[Tensor, "s n"]) -> Float[Tensor, "s m n"] | None:
        """Inner products of rows, looked up: features do not change while a kernel on them is trained.

        None where there are too many rows for a table of them all.
        """
        if self.part_of is not None:
            whole, place = self.part_of
            return whole.inner(place[left], place[right])
        if len(self) > TABLED_ROWS:
            return None
        place = (left * len(self)).unsqueeze(2) + right.unsqueeze(1)
        products: Tensor = self._products.flatten().index_select(0, place.flatten()).unflatten(0, place.shape)
        return products

    @functools.cached_property
    def _products(self) -> Float[Tensor, "r r"]:
        products: Any = (self.matrix @ self.matrix.T).toarray()
        return torch.from_numpy(products).to(self.device)

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold: PyTorch cannot copy its sparse tensors, and all of it can be made again."""
        return {"matrix": self.matrix, "device": self.device, "part_of": self.part_of}

    @functools.cached_property
    def csr(self) -> Tensor:
        """As PyTorch's own, made once: making it takes a tenth of the time of a product."""
        return _to_torch(self.matrix, self.device)

    @functools.cached_property
    def transposed_csr(self) -> Tensor:
        return _to_torch(self.matrix.T.tocsr(), self.device)

    def dense(self) -> Float[Tensor, "r d"]:
        return torch.from_numpy(self.matrix.toarray()).to(self.device)

    def square(self) -> Float[Tensor, " r"]:
        return torch.from_numpy(np.asarray(self.matrix.multiply(self.matrix).sum(axis=1)).ravel()).to(self.device)

    def __matmul__(self, right: Float[Tensor, "d k"]) -> Float[Tensor, "r k"]:
        product: Tensor = _SparseProduct.apply(self, right)  # type: ignore[no-untyped-call]
        return product


Rows = Tensor | SparseRows


class _SparseProduct(torch.autograd.Function):
    """X W for sparse X. PyTorch's own backward pass multiplies a transposed view, six times slower than a transpose."""

    @staticmethod
    def forward(ctx: Any, rows: SparseRows, right: Tensor) -> Tensor:
        ctx.rows = rows
        return rows.csr.to(right.dtype) @ right

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[None, Tensor]:
        rows, g = ctx.rows, gradient[0]
        if rows.part_of is None or rows.device.type != "cpu":
            return None, rows.transposed_csr.to(g.dtype) @ g
        # Rows picked for one update: to transpose them once takes longer than SciPy's product without.
        return None, torch.from_numpy(rows.matrix.T @ g.numpy())


def _to_torch(matrix: sp.csr_array, device: torch.device) -> Tensor:
    with warnings.catch_warnings():  # the sparse API is announced as beta at its first use
        warnings.filterwarnings("ignore", message="Sparse CSR", category=UserWarning)
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr),
            torch.from_numpy(matrix.indices),
            torch.from_numpy(matrix.data),
            size=matrix.shape,
            device=device,
            check_invariants=False,
        )


class Inputs(nn.Module):
    """The scaling of features, learned from the training rows and stored with the policy.

    `counts` takes log(1 + x). `standardise` subtracts the mean and divides by the deviation; a sparse matrix is divided
    only, since subtracting would make it dense. `raw` changes nothing.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, n_features: int, kind: InputKind) -> None:
        super().__init__()
        self.n_features = n_features
        self.kind = kind
        self.register_buffer("shift", torch.zeros(n_features, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(n_features, dtype=torch.float64))

    @classmethod
    def fitted(cls, features: FeatureMatrix, rows: IntArray, kind: InputKind) -> "Inputs":
        """Learn the scaling from the given rows; `auto` takes counts for whole numbers from 0 up, else standardises."""
        matrix = features[rows]
        if kind == "auto":
            values: Any = matrix.data if sp.issparse(matrix) else matrix
            counts = values.size == 0 or (values.min() >= 0 and (values == np.floor(values)).all())
            kind = "counts" if counts else "standardise"
        inputs = cls(matrix.shape[1], kind)
        if kind == "standardise":
            shift, scale = _moments(matrix)
            inputs.shift.copy_(torch.from_numpy(shift))
            inputs.scale.copy_(torch.from_numpy(scale))
        return inputs

    def forward(self, features: FeatureMatrix, rows: IntArray) -> Rows:
        """The given rows, scaled, in single precision, on the policy's device."""
        self._check_width(features.shape[1])
        matrix: Any = features[rows].astype(np.float64)
        if sp.issparse(matrix) and self.shift.any():
            raise InputError("the policy was trained on dense features, sparse ones came; pass features.toarray()")
        if not sp.issparse(matrix):
            # A copy, since products round by how their memory is aligned, and NumPy aligns as it happens to.
            return torch.tensor(self._scaled(matrix, slice(None)), device=self.shift.device)
        values = self._scaled(matrix.data, matrix.indices)
        return SparseRows(sp.csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape), self.shift.device)

    def differentiable(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """The same rule for a tensor of raw features, in its own precision, with gradients."""
        self._check_width(x.shape[-1])
        if not x.isfinite().all():
            raise InputError(f"features are finite, {float(x[~x.isfinite()][0])} came; drop or mend that row")
        if self.kind == "counts":
            _check_counts(x.detach().flatten())
            return x.log1p()
        if self.kind == "standardise":
            return (x - self.shift.to(x)) / self.scale.to(x)
        return x

    def _check_width(self, n_features: int) -> None:
        if n_features != self.n_features:
            raise InputError(
                f"the policy was trained on {self.n_features} features, {n_features} came; "
                "pass the columns it was trained on"
            )

    def _scaled(self, values: Any, columns: Any) -> Any:
        """Values in single precision; `columns` says which feature each one is of."""
        if self.kind == "counts":
            _check_counts(values)
            values = np.log1p(values)
        elif self.kind == "standardise":
            values = (values - self.shift.cpu().numpy()[columns]) / self.scale.cpu().numpy()[columns]
        with np.errstate(over="ignore"):
            single = values.astype(np.float32)
        if not np.isfinite(single).all():
            raise InputError(
                f"scaled features fit in single precision, {np.abs(values).max():g} came; "
                "rescale that feature or train with inputs='standardise'"
            )
        return single


def _check_counts(values: Any) -> None:
    if values.shape[0] and values.min() < 0:
        raise InputError(f"counts are at least 0, {values.min():g} came; train with inputs='standardise'")


@np.errstate(over="ignore", invalid="ignore")
def _moments(matrix: Any) -> tuple[Any, Any]:
    """Mean and deviation of each column; columns that (but for rounding) do not vary are left in their scale."""
    if sp.issparse(matrix):
        mean = np.asarray(matrix.mean(axis=0), dtype=np.float64).ravel()
        square = np.asarray(matrix.astype(np.float64).power(2).mean(axis=0)).ravel()
        deviation = np.sqrt(np.maximum(square - mean**2, 0))
        shift = np.zeros_like(mean)
    else:
        wide = matrix.astype(np.float64)
        mean, deviation = wide.mean(axis=0), wide.std(axis=0)
        shift = mean
    if not np.isfinite(deviation).all():
        column = int(np.argmin(np.isfinite(deviation)))
        raise InputError(f"features have a finite variance, column {column} is too large for one; rescale it")
    varies = deviation > 1e-12 * np.abs(mean)
    return shift, np.where(varies, deviation, np.maximum(np.abs(mean), 1.0))
