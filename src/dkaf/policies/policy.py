"""The interface behind which every method stands.

Training, evaluation and a user's search all call the same methods of `Policy`:

    points   encode a batch of pools (the only step that touches the features): each row by `represent`, once, then
             the pools of such rows by `place`
    begin    the state before anything was observed
    observe  the state after one observation more
    scores   what each candidate deserves now; the largest is queried

Shapes: S starts (pools) in a batch, E episodes a start, N candidates, T queries, k observed points.
"""

import dataclasses
import os
from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import dkaf.checkpoint as checkpoint
from dkaf.errors import InputError
from dkaf.model.inputs import Inputs, Rows
from dkaf.model.prior import Pool
from dkaf.policies.training import Training
from dkaf.settings import Settings
from dkaf.sources.preparation import Preparation


class Policy(nn.Module, ABC):
    """A way to search, trained or not. Use `dkaf.fit` to make one and `dkaf.load` to read one."""

    method: str
    deterministic = True
    candidates_at_once = 200_000
    """Of all searches that are made at once; bounds their memory."""

    def __init__(self, inputs: Inputs, acquisition: str, settings: Settings) -> None:
        super().__init__()
        self.inputs = inputs
        self.acquisition = acquisition
        self.settings = settings
        self.training_log = Training()
        self.preparation: Preparation | None = None
        self.register_buffer("response_shift", torch.zeros((), dtype=torch.float64))
        self.register_buffer("response_scale", torch.ones((), dtype=torch.float64))

    response_shift: Tensor
    response_scale: Tensor

    @property
    def device(self) -> torch.device:
        return self.response_shift.device

    @property
    def dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.parameters()), torch.get_default_dtype())

    @property
    def n_features(self) -> int:
        return self.inputs.n_features

    def scaled(self, y: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Responses in units of the training tasks' deviation, if the settings say so."""
        return ((y - self.response_shift) / self.response_scale).to(self.dtype)

    def warped(self, y: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """What `observe` is told of scaled responses, with gradients: larger where they are larger."""
        return y

    @property
    def temperature(self) -> float:
        """What the softmax divides scores by."""
        return self.settings.temperature

    def points(self, x: Rows, pool: Pool) -> Any:
        """What the other methods need to know of the pools' candidates."""
        return self.place(self.represent(x), pool)

    def represent(self, x: Rows) -> Rows:
        """What a search keeps of each row: it may be computed block by block, stored, and read again."""
        return x

    @abstractmethod
    def place(self, z: Rows, pool: Pool) -> Any:
        """`points`, of rows that `represent` gave."""

    @abstractmethod
    def begin(self, points: Any, episodes: int, generator: torch.Generator) -> Any:
        """The state before anything was observed; a policy that draws lots takes them from the generator."""

    @abstractmethod
    def observe(
        self, points: Any, state: Any, chosen: Int[Tensor, "s e"], y: Float[Tensor, "s e"], *, queried: bool
    ) -> Any:
        """The next state; y is `warped`, and `queried` false for the points that were there before the first query.

        The state that it follows is used up; who needs it again makes a `deepcopy` first.
        """

    @abstractmethod
    def scores(self, points: Any, state: Any) -> Float[Tensor, "s e n"]:
        """What each candidate deserves now."""

    def trained_by_gradient(self) -> list[nn.Parameter]:
        """What the policy gradient trains; nothing for policies that are not trained by it."""
        return []

    def learning_rates(self) -> dict[nn.Parameter, float]:
        """How large the policy gradient's steps are in each of them."""
        return dict.fromkeys(self.trained_by_gradient(), self.settings.learning_rate)

    def extra_repr(self) -> str:
        return f"method={self.method}, acquisition={self.acquisition}, n_features={self.n_features}"

    def describe(self) -> dict[str, Any]:
        """All that is needed, beside the tensors, to build this policy again."""
        return {
            "method": self.method,
            "acquisition": self.acquisition,
            "settings": dataclasses.asdict(self.settings),
            "n_features": self.n_features,
            "inputs": self.inputs.kind,
            "encoder": None,
            "preparation": None if self.preparation is None else self.preparation.describe(),
            "training": self.training_log.describe(),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy, whole or not at all, as a safetensors file."""
        checkpoint.write(path, self.state_dict(), self.describe())


class NetworkPolicy(Policy):
    """A policy whose scores a network computes for each candidate by itself: some may be had without the others.

    Its networks have no dropout: an episode is sampled and scored in two passes, which must be of one network.
    """

    @abstractmethod
    def scores_at(
        self,
        points: Any,
        chosen: Int[Tensor, "s e k"],
        y: Float[Tensor, "s e k"],
        initial: int,
        at: Int[Tensor, "s e t m"],
    ) -> Float[Tensor, "s e t m"]:
        """The scores of some candidates before every query of finished episodes, with gradients."""


def checked_device(device: str | torch.device) -> torch.device:
    """A device that PyTorch can compute on here."""
    try:
        checked = torch.device(device)
        torch.zeros(1, device=checked).cpu()
        return checked
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"the device is one that PyTorch has here, {str(device)!r} is not ({reason}); try cpu"
        ) from None
