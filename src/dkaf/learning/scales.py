"""The kernel's scales, learned on tasks that the encoder has not seen.

An encoder knows the tasks it was trained on better than any other, and scales learned beside it trust it accordingly.
A handful of numbers on top of it can be learned from a few tasks that were held out: docs/research/lower-gap.md.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dkaf.errors import DivergedError
from dkaf.learning.descent import anneal, descend
from dkaf.learning.episodes import PaddedTasks
from dkaf.policies import GaussianPolicy, KernelPolicy

# Of tasks whose rows are encoded already: the chosen ones, and where randomness comes from; gives what is to be small.
Loss = Callable[[PaddedTasks, Int[Tensor, " s"], torch.Generator], Float[Tensor, ""]]

FEWEST = 3
"""Of fewer tasks the scales learn nothing: one could not tell whether they got worse."""


def learn_scales(
    policy: GaussianPolicy,
    tasks: PaddedTasks,
    loss: Loss,
    draw: torch.Generator,
    report: Callable[[int], None],
    *,
    warp: bool,
) -> None:
    """Make the loss small by the scales alone. There is no choice of the best update: nothing is left to choose by."""
    settings = policy.settings
    policy.eval()
    with torch.no_grad():
        encoded = dataclasses.replace(tasks, x=policy.prior.represent(tasks.x))
    with scales(policy, warp=warp) as learned:
        rate = settings.scale_learning_rate
        optimiser = torch.optim.Adam([{"params": learned, "lr": rate, "initial_lr": rate}])
        for update in range(1, settings.scale_updates + 1):
            anneal(optimiser, (update - 1) / settings.scale_updates)
            some = torch.randint(len(tasks), (settings.batch,), generator=draw)
            try:
                descend(optimiser, loss(encoded, some, draw), settings.clip)
            except DivergedError as error:
                raise DivergedError(f"{error} of the scales, scale_learning_rate") from error
            report(update)


@contextlib.contextmanager
def scales(policy: GaussianPolicy, *, warp: bool) -> Iterator[list[nn.Parameter]]:
    """Amplitude, length, noise, nu, a factor each of the linear part and the prior mean; the warp if that is wanted.

    Inside, nothing else has a gradient; afterwards the factors are part of the weights.
    """
    wanted = {parameter: parameter.requires_grad for parameter in policy.parameters()}
    prior, registered = policy.prior, list[nn.Linear]()
    scalars = [prior.log_amplitude, prior.log_length, prior.log_noise]
    if isinstance(policy, KernelPolicy) and policy.log_nu.requires_grad:
        scalars.append(policy.log_nu)
    if warp and prior.warp is not None:
        scalars += prior.warp.parameters()
    layers = [layer for layer in (prior.linear, prior.mean) if layer is not None]
    factors = [_Factor() for _ in layers]
    try:
        policy.requires_grad_(False)
        for scalar in scalars:
            scalar.requires_grad_(True)
        for layer, factor in zip(layers, factors, strict=True):
            parametrize.register_parametrization(layer, "weight", factor)
            registered.append(layer)
        yield [*scalars, *(factor.log_factor for factor in factors)]
    finally:
        for layer in registered:
            parametrize.remove_parametrizations(layer, "weight")
            layer.register_parameter("bias", layer._parameters.pop("bias"))  # after the weight, as it was
        for parameter, gradient in wanted.items():
            parameter.requires_grad_(gradient)


class _Factor(nn.Module):
    """What it is given, times a number that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.log_factor = nn.Parameter(torch.zeros(()))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.log_factor.exp()
