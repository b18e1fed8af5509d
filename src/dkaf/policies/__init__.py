"""Who picks the next candidate: every method of the paper behind one interface."""

import contextlib
import os
from collections.abc import Callable

import torch
from torch import nn

import dkaf.checkpoint as checkpoint
from dkaf.errors import InputError
from dkaf.model.inputs import Inputs
from dkaf.policies.baselines import DeepSetPolicy, MetaBOPolicy, RandomPolicy
from dkaf.policies.gaussian import GaussianPolicy, KernelPolicy
from dkaf.policies.policy import NetworkPolicy, Policy, Training, checked_device
from dkaf.settings import ACQUISITIONS, KERNEL_METHODS, METHODS, Settings, check_choice

__all__ = ["GaussianPolicy", "KernelPolicy", "NetworkPolicy", "Policy", "Training", "build", "checked_device", "load"]


def build(
    method: str, acquisition: str, settings: Settings, inputs: Inputs, encoder: nn.Module | None = None
) -> Policy:
    """An untrained policy. Its initial weights come from PyTorch's global generator."""
    if encoder is not None and method not in ("dkaf", "dkl"):
        raise InputError(f"encoder= is for the methods dkaf and dkl, {method} has none; leave it out")
    if method in KERNEL_METHODS:
        return KernelPolicy(inputs, acquisition, settings, method, encoder)
    others: dict[str, Callable[[Inputs, str, Settings], Policy]] = {
        "metabo": MetaBOPolicy,
        "rl": DeepSetPolicy,
        "random": RandomPolicy,
    }
    return others[method](inputs, acquisition, settings)


def load(
    path: str | os.PathLike[str], *, encoder: nn.Module | None = None, device: str | torch.device = "cpu"
) -> Policy:
    """Read a policy that `Policy.save` wrote. Runs nothing from the file.

    A policy with an encoder of your own needs that module again: the file holds its weights, not its code. A policy
    that has no encoder leaves it alone.
    """
    device = checked_device(device)
    tensors, description = checkpoint.read(path)
    try:
        settings = Settings(**description["settings"])
        method, acquisition = description["method"], description["acquisition"]
        check_choice("method", method, METHODS)
        check_choice("acquisition", acquisition, ACQUISITIONS)
        check_choice("inputs", description["inputs"], ("counts", "standardise", "raw"))
        n_features = description["n_features"]
        shape = tuple(tensors["inputs.shift"].shape)
        if type(n_features) is not int or shape != (n_features,) or n_features == 0:
            raise ValueError(f"n_features is {n_features}, inputs.shift is of shape {shape}")
        custom, training = description["encoder"], description["training"]
        pairs = {
            "validation": tuple((int(update), float(gap)) for update, gap in training["validation"]),
            "tried": tuple((str(name), float(gap)) for name, gap in training.get("tried", ())),
        }
        log = Training(**training | pairs)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path} does not describe a policy ({error}); write it with policy.save") from error
    if custom is not None and encoder is None:
        raise InputError(f"{path} was trained with an encoder of the caller's, {custom!r}; pass one as encoder=")
    if method not in ("dkaf", "dkl"):
        encoder = None  # it has none, whatever its training began with
    elif custom is None and encoder is not None:
        raise InputError(f"{path} was trained with the built-in encoder; leave encoder= out")
    # On the meta device nothing is allocated, whatever sizes the file names; its tensors then take their places.
    with contextlib.nullcontext() if encoder is not None else torch.device("meta"):
        policy = build(method, acquisition, settings, Inputs(n_features, description["inputs"]), encoder)
    expected = policy.state_dict()
    wrong, both = list(expected.keys() ^ tensors.keys()), expected.keys() & tensors.keys()
    form = {name: [(values[name].shape, values[name].dtype) for values in (expected, tensors)] for name in both}
    wrong += [name for name, (ours, theirs) in form.items() if ours != theirs]
    if wrong:
        raise InputError(
            f"the tensors of {path} are not those of its policy ({', '.join(sorted(wrong)[:3])} "
            "missing, extra or of another shape or type); write it with policy.save"
        )
    policy.load_state_dict(tensors, assign=True)
    policy.training_log = log
    return policy.to(device).eval()
