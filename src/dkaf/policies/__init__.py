"""Who picks the next candidate: every method of the paper behind one interface."""

import contextlib
import dataclasses
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import dkaf.checkpoint as checkpoint
from dkaf.errors import InputError
from dkaf.model.inputs import Inputs
from dkaf.policies.baselines import DeepSetPolicy, MetaBOPolicy, RandomPolicy
from dkaf.policies.gaussian import GaussianPolicy, KernelPolicy
from dkaf.policies.policy import NetworkPolicy, Policy, checked_device
from dkaf.policies.training import Gain, Training
from dkaf.settings import ACQUISITIONS, KERNEL_METHODS, METHODS, InputKind, Settings, check_choice
from dkaf.sources.preparation import Preparation

__all__ = [
    "Gain",
    "GaussianPolicy",
    "KernelPolicy",
    "NetworkPolicy",
    "Policy",
    "Training",
    "build",
    "checked_device",
    "describe",
    "load",
]


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
    path: str | os.PathLike[str],
    *,
    encoder: nn.Module | None = None,
    transformer: Any = None,
    prepared: bool = False,
    device: str | torch.device = "cpu",
) -> Policy:
    """Read a policy that `Policy.save` wrote. Runs nothing from the file.

    A policy with an encoder of your own needs that module again: the file holds its weights, not its code. A policy
    that has no encoder leaves it alone. One whose features a transformer of yours prepared needs that object again,
    unless `prepared` says that it will see prepared features only.
    """
    device = checked_device(device)
    tensors, description = checkpoint.read(path)
    said = _checked(path, tensors, description)
    custom = said.encoder
    if custom is not None and encoder is None:
        raise InputError(f"{path} was trained with an encoder of the caller's, {custom!r}; pass one as encoder=")
    if said.method not in ("dkaf", "dkl"):
        encoder = None  # it has none, whatever its training began with
    elif custom is None and encoder is not None:
        raise InputError(f"{path} was trained with the built-in encoder; leave encoder= out")
    own = None if said.preparation is None else said.preparation.transformer
    if own is None and transformer is not None:
        raise InputError(f"{path} was trained without a transformer; leave transformer= out")
    if own is not None and transformer is None and not prepared:
        raise InputError(
            f"{path} was trained with a transformer of the caller's, {own.name!r}; pass it as transformer="
        )
    if own is not None and transformer is not None and type(transformer).__qualname__ != own.name:
        raise InputError(
            f"{path} was trained with the transformer {own.name!r}, {type(transformer).__qualname__!r} came; pass "
            f"that one"
        )
    # On the meta device nothing is allocated, whatever sizes the file names; its tensors then take their places.
    with contextlib.nullcontext() if encoder is not None else torch.device("meta"):
        policy = build(said.method, said.acquisition, said.settings, Inputs(said.n_features, said.inputs), encoder)
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
    policy.training_log = said.training
    policy.preparation = said.preparation
    if policy.preparation is not None and own is not None:
        policy.preparation = dataclasses.replace(
            policy.preparation, transformer=dataclasses.replace(own, fitted=transformer)
        )
    return policy.to(device).eval()


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a policy file says of itself, also in words; its encoder is not needed."""
    tensors, description = checkpoint.read(path)
    said = _checked(path, tensors, description)
    return {
        "method": said.method,
        "acquisition": said.acquisition,
        "n_features": said.n_features,
        "encoder": said.encoder,
        "settings": dataclasses.asdict(said.settings),
        "preparation": None if said.preparation is None else said.preparation.describe(),
        "columns": {} if said.preparation is None else said.preparation.in_words(),
        "training": said.training.describe(),
        "in_words": said.training.in_words(),
        "gain_in_words": None if said.training.gain is None else said.training.gain.in_words(),
    }


class _Description(NamedTuple):
    """What a policy file says, checked."""

    method: str
    acquisition: str
    settings: Settings
    n_features: int
    inputs: InputKind
    encoder: str | None
    preparation: Preparation | None
    training: Training


def _checked(path: str | os.PathLike[str], tensors: dict[str, Tensor], description: dict[str, Any]) -> _Description:
    try:
        settings = Settings(**description["settings"])
        method, acquisition, inputs = (description[name] for name in ("method", "acquisition", "inputs"))
        check_choice("method", method, METHODS)
        check_choice("acquisition", acquisition, ACQUISITIONS)
        check_choice("inputs", inputs, ("counts", "standardise", "raw"))
        n_features = description["n_features"]
        shape = tuple(tensors["inputs.shift"].shape)
        if type(n_features) is not int or shape != (n_features,) or n_features == 0:
            raise ValueError(f"n_features is {n_features}, inputs.shift is of shape {shape}")
        encoder, training = description["encoder"], description["training"]
        if not isinstance(encoder, str | None):
            raise TypeError(f"its encoder is {encoder!r}")
        pairs = {
            "validation": tuple((int(update), float(gap)) for update, gap in training["validation"]),
            "tried": tuple((str(name), float(gap)) for name, gap in training.get("tried", ())),
            "tasks": tuple((str(name), int(size)) for name, size in training.get("tasks", ())),
            "gain": None if training.get("gain") is None else Gain.of(training["gain"]),
        }
        log = Training(**training | pairs)
        counts = (log.pretrain_updates, log.updates, log.best_update)
        if not all(type(count) is int for count in counts) or not isinstance(log.stopped, str):
            raise TypeError("its training is not counted in updates")
        if log.validation and log.best_update and log.best_update not in dict(log.validation):
            raise ValueError(f"its best update, {log.best_update}, was not validated")
        prepared = description.get("preparation")
        preparation = None if prepared is None else Preparation.of(prepared)
        if preparation is not None and preparation.width != n_features:
            raise ValueError(f"n_features is {n_features}, its preparation gives {preparation.width}")
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise InputError(f"{path} does not describe a policy ({error}); write it with policy.save") from error
    return _Description(method, acquisition, settings, n_features, inputs, encoder, preparation, log)
