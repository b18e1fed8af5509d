"""Whatever the shapes and however odd the features: finite, repeatable, inside the pool."""

import conformance
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import dkaf
from dkaf.settings import METHODS

Features = NDArray[np.float64]


def odd_features(kind: str, n_rows: int, n_features: int, seed: int) -> Features:
    draw = np.random.default_rng(seed)
    plain = draw.normal(size=(n_rows, n_features))
    return {
        "plain": plain,
        "duplicates": np.repeat(plain[:1], n_rows, axis=0),
        "constant column": np.where(np.arange(n_features) == 0, 3.0, plain),
        "constant and huge": np.full((n_rows, n_features), 1e8),
        "huge": plain * 1e8,
        "tiny": plain * 1e-8,
        "mixed scales": plain * 10.0 ** np.linspace(-8, 8, n_features),
        "far from the origin": plain + 1e8,
        "zero rows": np.where(draw.random((n_rows, 1)) < 0.5, 0.0, plain),
        "all zero": np.zeros((n_rows, n_features)),
        "counts": draw.poisson(0.3, size=(n_rows, n_features)).astype(float),
        "huge counts": draw.poisson(1e6, size=(n_rows, n_features)).astype(float) ** 2,
        "one outlier": np.where(np.arange(n_rows)[:, None] == 0, 1e12, plain),
    }[kind]


KINDS = [
    "plain", "duplicates", "constant column", "constant and huge", "huge", "tiny", "mixed scales",
    "far from the origin", "zero rows", "all zero", "counts", "huge counts", "one outlier",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("recipe", ["default", "paper"])
def test_odd_features_train_and_search(kind: str, method: str, recipe: str) -> None:
    features = odd_features(kind, 24, 6, seed=1)
    draw = np.random.default_rng(2)
    pools = [draw.permutation(24)[:size] for size in (20, 14, 20)]
    tasks = dkaf.TaskSet.from_arrays(features, pools, [draw.normal(size=len(pool)) for pool in pools])
    policy = dkaf.fit(tasks, tasks, method, recipe=recipe, **conformance.TINY, queries=3)
    assert all(torch.isfinite(tensor).all() for tensor in policy.state_dict().values())
    conformance.check_search(policy, tasks, queries=5, initial=1, starts=2)


@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(4, 12), min_size=1, max_size=4),
    n_features=st.integers(1, 6),
    kind=st.sampled_from(KINDS),
    sparse=st.booleans(),
    method=st.sampled_from(METHODS),
    acquisition=st.sampled_from(["mi", "ei", "ucb"]),
    responses=st.sampled_from(["normal", "constant", "huge", "tiny", "tied"]),
    recipe=st.sampled_from(["default", "paper"]),
    initial=st.integers(0, 2),
    queries=st.integers(1, 2),
)
@settings(max_examples=60, deadline=None)
def test_any_shape_trains_and_searches(
    seed: int,
    sizes: list[int],
    n_features: int,
    kind: str,
    sparse: bool,
    method: str,
    acquisition: str,
    responses: str,
    recipe: str,
    initial: int,
    queries: int,
) -> None:
    draw = np.random.default_rng(seed)
    features = odd_features(kind, 14, n_features, seed)
    pools = [draw.permutation(14)[:size] for size in sizes]
    make = {
        "normal": lambda n: draw.normal(size=n),
        "constant": lambda n: np.full(n, 0.1),
        "huge": lambda n: 1e8 * draw.normal(size=n),
        "tiny": lambda n: 1e-8 * draw.normal(size=n),
        "tied": lambda n: draw.integers(0, 2, size=n),
    }[responses]
    matrix = sp.csr_array(features) if sparse else features
    tasks = dkaf.TaskSet.from_arrays(matrix, pools, [make(len(pool)) for pool in pools])
    policy = dkaf.fit(
        tasks, tasks, method, acquisition, recipe, seed, **conformance.TINY, queries=queries, initial=initial
    )
    conformance.check_search(policy, tasks, queries=queries, initial=initial, starts=2)
