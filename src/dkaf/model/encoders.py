"""Networks from features to representations."""

import math
from itertools import pairwise
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dkaf.model.inputs import Rows

ROWS_AT_ONCE = 1024


class FeedForward(nn.Module):
    """Linear layers with ReLU and dropout between them; the first one takes sparse rows as they are."""

    accepts_sparse = True

    def __init__(self, n_inputs: int, n_outputs: int, *, layers: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        sizes = [n_inputs, *[width] * (layers - 1), n_outputs]
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Rows) -> Float[Tensor, "*batch r d"]:
        return self.after_first(self.first(x))

    def first(self, x: Rows, columns: slice = slice(None), *, bias: bool = True) -> Float[Tensor, "*batch h"]:
        """The first layer alone, on some of its inputs: with [a, b] as input it is the sum of its parts for a and b."""
        linear = cast("nn.Linear", self.linears[0])
        hidden = x @ linear.weight[:, columns].T
        return hidden + linear.bias if bias else hidden

    def last_hidden(self, x: Rows) -> Float[Tensor, "*batch h"]:
        """What the last layer is given."""
        hidden = self.first(x).relu()
        for linear in list(self.linears)[1:-1]:
            hidden = linear(self.dropout(hidden)).relu()
        return hidden

    def after_first(self, hidden: Float[Tensor, "*batch r h"]) -> Float[Tensor, "*batch r d"]:
        """The other layers; what the first one gave is changed in place, as no one needs it any more."""
        # Flat, since a layer gives a view of anything else, and changing a view in place costs its gradient a copy.
        shape, flat = hidden.shape[:-1], hidden
        for number, linear in enumerate(list(self.linears)[1:]):
            flat = flat.relu_() if number else flat.relu_().flatten(end_dim=-2)
            flat = linear(self.dropout(flat))
        return flat.unflatten(0, shape) if flat is not hidden else hidden


def encode(encoder: nn.Module, x: Rows) -> Float[Tensor, "r d"]:
    """Run any encoder; to one that does not say it `accepts_sparse`, sparse rows come dense, block by block."""
    if isinstance(x, Tensor) or getattr(encoder, "accepts_sparse", False):
        z: Tensor = encoder(x)
        return z
    blocks = torch.arange(len(x)).tensor_split(max(1, math.ceil(len(x) / ROWS_AT_ONCE)))  # of like sizes
    return torch.cat([encoder(x[block].dense()) for block in blocks])
