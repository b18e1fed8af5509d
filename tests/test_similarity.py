import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits

import dkaf
from dkaf.sources.similarity import hidden_representation

FEATURES, LABELS = load_digits(return_X_y=True)


def test_tasks_are_as_the_paper_makes_them() -> None:
    tasks = dkaf.similarity_tasks(FEATURES, LABELS, n_tasks=12, pool_size=200, seed=3)
    hidden = hidden_representation(tasks.features, LABELS, seed=3)
    assert hidden.shape == (1797, 32)
    assert (hidden >= 0).all()  # after the ReLU
    assert len(tasks) == 12
    assert tasks.targets is not None
    for (pool, responses), target in zip(tasks, tasks.targets, strict=True):
        assert len(pool) == 200
        assert target not in pool
        np.testing.assert_allclose(responses, -np.sqrt(((hidden[pool] - hidden[target]) ** 2).sum(1)), rtol=1e-9)


def test_responses_reflect_the_labels() -> None:
    tasks = dkaf.digits_tasks(n_tasks=30, pool_size=300)
    same = [
        LABELS[pool[np.argmax(responses)]] == LABELS[target]
        for (pool, responses), target in zip(tasks, tasks.targets, strict=True)
    ]
    assert np.mean(same) > 0.8


def test_same_seed_same_tasks_and_another_seed_others() -> None:
    first, again, other = (
        dkaf.similarity_tasks(FEATURES[:300], LABELS[:300], n_tasks=3, pool_size=50, seed=s) for s in (0, 0, 1)
    )
    np.testing.assert_array_equal(first.pools, again.pools)
    np.testing.assert_array_equal(first.responses, again.responses)
    assert (np.array(first.pools) != np.array(other.pools)).any()


def test_sparse_and_dense_features_give_the_same_tasks() -> None:
    dense, sparse = (
        dkaf.similarity_tasks(matrix, LABELS[:200], n_tasks=2, pool_size=40)
        for matrix in (FEATURES[:200], sp.csr_array(FEATURES[:200]))
    )
    np.testing.assert_array_equal(dense.pools, sparse.pools)
    np.testing.assert_allclose(dense.responses, sparse.responses, rtol=1e-3, atol=1e-3)


def test_labels_may_be_words() -> None:
    words = np.array([f"digit {label}" for label in LABELS[:200]])
    assert len(dkaf.similarity_tasks(FEATURES[:200], words, n_tasks=2, pool_size=40)) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"pool_size": 1797}, "there are 1797 rows; lower pool_size"),
        ({"n_tasks": 0}, "at least 1 task"),
        ({"labels": LABELS[:5]}, "every row has one label"),
        ({"labels": np.zeros(1797)}, "at least two different labels"),
        ({"labels": np.full(1797, np.nan)}, "labels are finite"),
    ],
)
def test_bad_calls_are_refused(call: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dkaf.similarity_tasks(**{"features": FEATURES, "labels": LABELS} | call)
