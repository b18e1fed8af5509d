"""Policy files: what was saved searches as before, and nothing else is opened, let alone run."""

import io
import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import dkaf
from dkaf.settings import ACQUISITIONS, METHODS

TINY = {"queries": 3, "pretrain_updates": 5, "updates": 3, "scale_updates": 2, "validate_every": 1}


class Rotation(nn.Module):
    """An encoder of the caller's."""

    def __init__(self, n_features: int = 4, width: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(n_features, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.linear(x))


class Tied(nn.Module):
    """Two layers, one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.sin(self.first(x)))


def choices(policy: dkaf.Policy, tasks: dkaf.TaskSet) -> list[list[int]]:
    return dkaf.evaluate(policy, tasks, queries=4, starts=3, seed=5).chosen.tolist()


@pytest.fixture(scope="module")
def trained(tiny_tasks) -> Callable[..., dkaf.Policy]:
    """Trains once for each method and acquisition."""
    policies: dict[Any, dkaf.Policy] = {}

    def train(method: str = "dkaf", acquisition: str = "mi") -> dkaf.Policy:
        if (method, acquisition) not in policies:
            parts = tiny_tasks.split(6, 2)
            policies[method, acquisition] = dkaf.fit(*parts, method, acquisition, seed=1, **TINY)
        return policies[method, acquisition]

    return train


@pytest.fixture
def saved(trained, tmp_path) -> Path:
    trained().save(tmp_path / "policy.safetensors")
    return tmp_path / "policy.safetensors"


def contents(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a dict
        return tensors, json.loads(file.metadata()["dkaf"])


def rewrite(path: Path, tensors: dict[str, Tensor], description: Any) -> None:
    text = description if isinstance(description, str) else json.dumps(description)
    save_file(tensors, path, {"dkaf": text})


def refused(path: Path, *fragments: str, **options: Any) -> None:
    with pytest.raises(dkaf.InputError) as refusal:
        dkaf.load(path, **options)
    for fragment in (path.name, *fragments):
        assert fragment in str(refusal.value)
    assert "\n" not in str(refusal.value)


# What was saved comes back


@pytest.mark.parametrize(
    ("method", "acquisition"), [(method, "mi") for method in METHODS] + [("dkaf", name) for name in ACQUISITIONS[1:]]
)
def test_a_loaded_policy_makes_the_same_choices(trained, tiny_tasks, tmp_path, method, acquisition):
    policy = trained(method, acquisition)
    policy.save(tmp_path / "policy.safetensors")
    loaded = dkaf.load(tmp_path / "policy.safetensors")
    assert choices(loaded, tiny_tasks) == choices(policy, tiny_tasks)
    assert (loaded.method, loaded.acquisition) == (method, acquisition)
    assert loaded.settings == policy.settings
    assert loaded.training_log == policy.training_log
    assert not loaded.training


def test_another_policy_makes_other_choices(trained, tiny_tasks):
    """Without this, the test above could not fail."""
    assert len({str(choices(trained(method), tiny_tasks)) for method in METHODS}) >= 4


@pytest.mark.parametrize("method", METHODS)
def test_equal_policies_are_equal_files(trained, tiny_tasks, tmp_path, method):
    again = dkaf.fit(*tiny_tasks.split(6, 2), method, "mi", seed=1, **TINY)
    trained(method).save(tmp_path / "one")
    again.save(tmp_path / "two")
    dkaf.load(tmp_path / "one").save(tmp_path / "three")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes() == (tmp_path / "three").read_bytes()


def test_loading_leaves_the_global_random_numbers_alone(saved):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    dkaf.load(saved)
    assert torch.equal(torch.rand(3), expected)


# The caller's own encoder


@pytest.mark.parametrize("encoder", [Rotation, Tied])
def test_a_policy_with_the_callers_encoder_comes_back_with_that_encoder(tiny_tasks, tmp_path, encoder):
    policy = dkaf.fit(*tiny_tasks.split(6, 2), "dkaf", "mi", encoder=encoder(), **TINY)
    path = tmp_path / "policy.safetensors"
    policy.save(path)
    assert choices(dkaf.load(path, encoder=encoder()), tiny_tasks) == choices(policy, tiny_tasks)
    refused(path, encoder.__name__, "encoder=")


def test_an_encoder_of_another_shape_is_refused(tiny_tasks, tmp_path):
    path = tmp_path / "policy.safetensors"
    dkaf.fit(tiny_tasks, encoder=Rotation(), **TINY).save(path)
    refused(path, "linear.weight", encoder=Rotation(width=5))
    refused(path, encoder=Tied())


def test_an_encoder_for_a_policy_without_one_is_refused(saved):
    refused(saved, "built-in encoder", encoder=Rotation())


# Files that are not whole, or not ours


def test_a_missing_policy_file_is_refused(tmp_path):
    refused(tmp_path / "nowhere.safetensors", "No such file")


def test_a_folder_is_no_policy_file(tmp_path):
    refused(tmp_path, "directory")


@pytest.mark.parametrize(
    "content",
    [b"", b"policy\n", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", b"PK\x03\x04", bytes(1000), b"\xff" * 100],
    ids=["empty", "text", "png", "zip", "zeros", "ones"],
)
def test_a_foreign_file_is_no_policy(tmp_path, content):
    path = tmp_path / "policy.safetensors"
    path.write_bytes(content)
    refused(path, "safetensors", "policy.save")


def test_a_safetensors_file_of_somebody_elses_is_refused(tmp_path):
    save_file({"weight": torch.ones(2)}, tmp_path / "other.safetensors")
    refused(tmp_path / "other.safetensors", "dkaf-policy-1", "policy.save")


def test_a_policy_file_cut_off_anywhere_is_refused(saved):
    whole = saved.read_bytes()
    for length in [*range(64), *range(64, len(whole), len(whole) // 100), *range(len(whole) - 20, len(whole))]:
        saved.write_bytes(whole[:length])
        refused(saved, "policy.save")


def test_a_damaged_policy_file_is_refused_or_loads_and_never_crashes(saved):
    whole, draw = saved.read_bytes(), np.random.default_rng(0)
    text = 8 + int.from_bytes(whole[:8], "little")  # the length, the header, then the weights
    places = [*range(64), *draw.integers(64, text, 500).tolist(), *draw.integers(text, len(whole), 60).tolist()]
    outcomes = []
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(draw.integers(8))
        saved.write_bytes(damaged)
        try:
            outcomes.append(type(dkaf.load(saved).prior).__name__)
        except dkaf.InputError:
            outcomes.append("refused")
    assert set(outcomes) == {"refused", "Prior"}


class Payload:
    """Unpickling it creates the marker."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("kind", ["pickle", "torch", "old torch"])
def test_a_pickled_policy_is_refused_and_never_run(tmp_path, kind):
    marker, path = tmp_path / "marker", tmp_path / "policy.safetensors"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Payload(marker)))
        pickle.loads(path.read_bytes())
    else:
        torch.save({"weights": Payload(marker)}, path, _use_new_zipfile_serialization=kind == "torch")
        torch.load(io.BytesIO(path.read_bytes()), weights_only=False)
    assert marker.exists(), "the payload is live"
    marker.unlink()
    refused(path, "safetensors", "pickle")
    assert not marker.exists()


@pytest.mark.parametrize("where", ["encoder", "method", "settings", "training"])
def test_a_pickle_inside_a_policy_file_is_refused_and_never_run(saved, tmp_path, where):
    marker = tmp_path / "marker"
    tensors, description = contents(saved)
    description[where] = pickle.dumps(Payload(marker), protocol=0).decode()
    rewrite(saved, tensors, description)
    refused(saved)
    assert not marker.exists()


# Whole files with wrong contents


def test_a_file_of_another_version_is_refused(saved):
    tensors, description = contents(saved)
    rewrite(saved, tensors, description | {"format": "dkaf-policy-2"})
    refused(saved, "dkaf-policy-1", "dkaf-policy-2")


@pytest.mark.parametrize("method", METHODS)
def test_a_missing_tensor_is_refused_by_name(trained, tmp_path, method):
    path = tmp_path / "policy.safetensors"
    trained(method).save(path)
    whole, description = contents(path)
    for name in whole:
        rewrite(path, {other: tensor for other, tensor in whole.items() if other != name}, description)
        refused(path, name, "missing")


def test_an_extra_tensor_is_refused_by_name(saved):
    tensors, description = contents(saved)
    rewrite(saved, tensors | {"prior.surprise": torch.ones(2)}, description)
    refused(saved, "prior.surprise", "extra")


def test_a_tensor_of_another_shape_is_refused_by_name(saved):
    tensors, description = contents(saved)
    for name, tensor in tensors.items():
        rewrite(saved, tensors | {name: tensor.unsqueeze(0).clone()}, description)
        refused(saved, name, "shape")


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.float16, torch.bool, torch.complex64, torch.float8_e4m3fn], ids=str
)
def test_a_tensor_of_another_type_is_refused_by_name(saved, dtype):
    tensors, description = contents(saved)
    rewrite(saved, tensors | {"prior.log_noise": torch.ones(()).to(dtype)}, description)
    refused(saved, "prior.log_noise")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused_by_name(saved, value):
    tensors, description = contents(saved)
    for name in tensors:
        broken = tensors[name].clone()
        broken.view(-1)[-1] = value
        rewrite(saved, tensors | {name: broken}, description)
        refused(saved, name, "finite")


@pytest.mark.parametrize(
    "text",
    ["null", "3", "[]", '"dkaf-policy-1"', "{}", "", "{", '{"format": 1}', '{"format": null}', "[" * 100_000],
    ids=lambda text: text[:20] or "empty",
)
def test_a_description_that_is_none_is_refused(saved, text):
    rewrite(saved, contents(saved)[0], text)
    refused(saved, "policy.save")


@pytest.mark.parametrize("key", ["method", "acquisition", "settings", "n_features", "inputs", "encoder", "training"])
def test_a_description_without_one_of_its_parts_is_refused(saved, key):
    tensors, description = contents(saved)
    del description[key]
    rewrite(saved, tensors, description)
    refused(saved, key, "policy.save")


WRONG_PARTS = [
    ("method", "gpp"),
    ("method", "gp"),
    ("acquisition", "pi"),
    ("inputs", "auto"),
    ("n_features", -4),
    ("n_features", 0),
    ("n_features", 5),
    ("n_features", "four"),
    ("n_features", None),
    ("n_features", [4]),
    ("n_features", math.inf),
    ("n_features", math.nan),
    ("n_features", 10**15),
    ("n_features", 10**30),
    ("settings", None),
    ("settings", []),
    ("settings", {"unknown": 1}),
    ("settings", {"width": -1}),
    ("settings", {"width": 33}),
    ("settings", {"width": 10**15}),
    ("training", None),
    ("training", {}),
    ("training", {"validation": 3}),
    ("training", {"validation": [[1]]}),
    ("training", {"validation": [[math.inf, 0.0]]}),
    ("training", {"validation": [], "unknown": 1}),
]


@pytest.mark.parametrize(("key", "value"), WRONG_PARTS, ids=lambda value: str(value)[:40])
def test_a_description_with_a_wrong_part_is_refused(saved, key, value):
    tensors, description = contents(saved)
    if key == "settings" and value:
        value = description["settings"] | value
    rewrite(saved, tensors, description | {key: value})
    refused(saved)


@pytest.mark.parametrize(
    ("key", "value"),
    [("method", None), ("method", ["dkaf"]), ("inputs", 3), ("settings", {"updates": "many"})],
    ids=str,
)
def test_a_description_with_a_part_of_the_wrong_type_is_refused(saved, key, value):
    tensors, description = contents(saved)
    rewrite(saved, tensors, description | {key: value})
    with pytest.raises(dkaf.InputError, match="does not describe a policy"):
        dkaf.load(saved)


# Use with other data


def test_features_of_another_count_are_refused(saved):
    others = dkaf.TaskSet.from_arrays(np.eye(5), [np.arange(5)], [np.arange(5.0)])
    with pytest.raises(dkaf.InputError, match="trained on 4 features, 5 came"):
        dkaf.evaluate(dkaf.load(saved), others, queries=2)


def test_a_failing_save_leaves_the_old_policy(saved, trained):
    before = saved.read_bytes()
    policy = trained("random")
    policy.settings, settings = object(), policy.settings  # cannot be described
    try:
        with pytest.raises(TypeError):
            policy.save(saved)
    finally:
        policy.settings = settings
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_loaded_weights_lie_in_memory_as_trained_ones_do(saved):
    """Otherwise sums may round in another order, and break ties otherwise."""
    assert {tensor.data_ptr() % 64 for tensor in dkaf.load(saved).state_dict().values()} == {0}
