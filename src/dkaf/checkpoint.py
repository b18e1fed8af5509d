"""Policy files: named tensors and one JSON description, in the safetensors format. Nothing in them can run."""

import json
import os
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dkaf.errors import InputError
from dkaf.files import whole_file

FORMAT = "dkaf-policy-1"


def write(path: str | os.PathLike[str], tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write whole or not at all. The same tensors and description give the same bytes."""
    text = json.dumps({"format": FORMAT} | description, sort_keys=True)
    # Copies, since tensors that share memory, as tied weights do, are refused by the format.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    data = save(copies, {"dkaf": text})
    with whole_file(path) as file:
        file.write(data)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description of a policy file, or a refusal that says what is wrong with it."""
    try:
        open(path, "rb").close()  # so that a missing file is named by the system's own words
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # Copies: tensors inside the file's memory are not aligned, and would round otherwise than trained ones.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - it is not a dict
        description = json.loads(metadata.get("dkaf", "null"))
    except OSError as error:
        raise InputError(f"policy file {path} cannot be read: {error.strerror or error}") from error
    except (SafetensorError, ValueError, RecursionError) as error:
        raise InputError(
            f"a policy file is a safetensors file, {path} is not a whole one ({error}); "
            "write it with policy.save, pickled files are never opened"
        ) from error
    if not isinstance(description, dict) or not str(description.get("format")).startswith("dkaf-policy-"):
        raise InputError(f"a policy file says {FORMAT!r} of itself, {path} does not; write it with policy.save")
    if description["format"] != FORMAT:
        raise InputError(
            f"this version reads policy files of format {FORMAT!r}, {path} has {description['format']!r}; "
            "load it with the version that wrote it, or train it again"
        )
    for name, tensor in tensors.items():
        if tensor.dtype in (torch.float32, torch.float64) and not torch.isfinite(tensor).all():
            raise InputError(f"the weights of a policy are finite, {name!r} in {path} is not; train it again")
    return tensors, description
