"""Going down a gradient and knowing when to stop: what both stages of training share."""

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dkaf.errors import DivergedError


class BestWeights:
    """The best weights so far, where lower is better, and whether it is time to stop waiting for better ones."""

    def __init__(self, module: nn.Module, patience: int | None) -> None:
        self.module = module
        self.patience = patience
        self.value: float | None = None
        self.update = 0
        self._weights = copy.deepcopy(module.state_dict())

    def offer(self, update: int, value: float) -> None:
        if self.value is None or value < self.value:
            self.value, self.update = value, update
            self._weights = copy.deepcopy(self.module.state_dict())

    def waited_enough(self, update: int) -> bool:
        return self.patience is not None and self.value is not None and update - self.update >= self.patience

    def restore(self) -> None:
        """Go back to the best weights; without any validation, the last ones stay."""
        if self.value is not None:
            self.module.load_state_dict(self._weights)
        self.module.eval()


def optimiser_of(rates: Mapping[nn.Parameter, float], weight_decay: float) -> torch.optim.AdamW:
    """AdamW, each parameter at its own rate.

    Weights decay; biases and the kernel's scalars, for which zero is no natural place, do not.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter, rate in rates.items():
        groups.setdefault((rate, weight_decay if parameter.ndim > 1 else 0.0), []).append(parameter)
    # Fused: with networks this small, one operation a parameter would cost four times as much.
    return torch.optim.AdamW(
        [{"params": p, "lr": rate, "initial_lr": rate, "weight_decay": decay} for (rate, decay), p in groups.items()],
        fused=True,
    )


def anneal(optimiser: torch.optim.Optimizer, done: float) -> None:
    """The learning rates when this share of the updates is done: all of it at first, nothing in the end."""
    for group in optimiser.param_groups:
        group["lr"] = group["initial_lr"] * 0.5 * (1 + math.cos(math.pi * done))


def descend(optimiser: torch.optim.Optimizer, loss: Tensor, clip: float | None) -> None:
    """One step down the gradient, which is shortened to `clip` if it is longer."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for parameter in parameters:  # what `zero_grad` does, in a tenth of its time
        parameter.grad = None
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if not torch.isfinite(norm):
        raise DivergedError(
            f"training needs finite gradients, their norm became {norm.item()}; lower the learning rate"
        )
    if clip is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, clip, norm)
    optimiser.step()
