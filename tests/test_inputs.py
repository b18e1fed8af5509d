import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import dkaf
from dkaf.model.encoders import FeedForward, encode
from dkaf.model.inputs import Inputs, SparseRows

COUNTS = np.random.default_rng(0).poisson(0.5, size=(30, 8)).astype(float)
EVERY = np.arange(30)


def test_auto_takes_counts_for_whole_numbers_and_standardises_the_rest() -> None:
    assert Inputs.fitted(COUNTS, EVERY, "auto").kind == "counts"
    assert Inputs.fitted(sp.csr_array(COUNTS), EVERY, "auto").kind == "counts"
    assert Inputs.fitted(COUNTS + 0.5, EVERY, "auto").kind == "standardise"
    assert Inputs.fitted(COUNTS - 1, EVERY, "auto").kind == "standardise"


def test_each_scaling_by_batch() -> None:
    np.testing.assert_allclose(Inputs.fitted(COUNTS, EVERY, "counts")(COUNTS, EVERY), np.log1p(COUNTS), rtol=1e-6)
    np.testing.assert_allclose(Inputs.fitted(COUNTS, EVERY, "raw")(COUNTS, EVERY), COUNTS)
    scaled = Inputs.fitted(COUNTS, EVERY, "standardise")(COUNTS, EVERY)
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(scaled.std(0, correction=0), 1, rtol=1e-5)


def test_sparse_standardising_divides_only_and_stays_sparse() -> None:
    inputs = Inputs.fitted(sp.csr_array(COUNTS), EVERY, "standardise")
    rows = inputs(sp.csr_array(COUNTS), EVERY)
    assert isinstance(rows, SparseRows)
    np.testing.assert_allclose(rows.dense(), COUNTS / COUNTS.std(0), rtol=1e-5)


def test_the_scaling_is_learned_from_training_rows_alone() -> None:
    other = COUNTS.copy()
    other[20:] *= 100
    few = np.arange(20)
    first, second = (Inputs.fitted(matrix + 0.5, few, "standardise") for matrix in (COUNTS, other))
    assert torch.equal(first.shift, second.shift)
    assert torch.equal(first.scale, second.scale)


def test_sparse_product_equals_the_dense_one_with_its_gradient() -> None:
    rows = SparseRows(sp.csr_array(COUNTS), torch.device("cpu"))
    weight = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    torch.testing.assert_close(rows @ weight, torch.from_numpy(COUNTS) @ weight)
    assert torch.autograd.gradcheck(lambda w: rows @ w, (weight,))


def test_sparse_rows_that_were_multiplied_can_be_copied_and_picked_ones_have_the_gradient_of_dense_ones() -> None:
    matrix = sp.random_array((9, 6), density=0.4, rng=np.random.default_rng(0), dtype=np.float32).tocsr()
    rows = SparseRows(matrix, torch.device("cpu"))
    weight, some = torch.randn(6, 2), torch.tensor([4, 1, 4])
    assert torch.equal(copy.deepcopy(pickle.loads(pickle.dumps(rows))) @ weight, rows @ weight)
    gradients = []
    for x in (rows[some], rows.dense()[some]):
        w = weight.clone().requires_grad_()
        (x @ w).square().sum().backward()
        gradients.append(w.grad)
    torch.testing.assert_close(*gradients)
    assert torch.equal(copy.deepcopy(rows) @ weight, rows @ weight)


def test_an_encoder_that_takes_no_sparse_rows_gets_them_dense() -> None:
    rows = SparseRows(sp.csr_array(COUNTS.astype(np.float32)), torch.device("cpu"))
    network = FeedForward(8, 2, layers=3, width=4)
    torch.testing.assert_close(encode(network, rows), encode(network, rows.dense()))
    assert encode(torch.nn.Linear(8, 2), rows).shape == (30, 2)


def test_a_sparse_matrix_is_never_made_dense_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    matrix = sp.random_array((4000, 3000), density=0.002, rng=draw, format="csr")
    pools = [draw.permutation(4000)[:1500] for _ in range(3)]
    tasks = dkaf.TaskSet.from_arrays(matrix, pools, [draw.normal(size=1500) for _ in pools])
    largest = 0
    toarray = sp.csr_array.toarray

    def watched(self: sp.csr_array, *args: object, **kwargs: object) -> object:
        nonlocal largest
        if self.shape[1] == 3000:  # features, not a table of inner products
            largest = max(largest, self.shape[0])
        return toarray(self, *args, **kwargs)

    monkeypatch.setattr(sp.csr_array, "toarray", watched)
    few = {"pretrain_updates": 1, "updates": 1, "scale_updates": 1, "queries": 3}
    for method in ("dkaf", "gp", "rl", "metabo"):
        policy = dkaf.fit(tasks, tasks, method, batch=2, pretrain_tasks=2, **few)
        dkaf.evaluate(policy, tasks, queries=3)
    assert largest <= 3 * 128  # the likelihood's points of three validation tasks
    policy = dkaf.fit(tasks, tasks, encoder=torch.nn.Linear(3000, 4), **few)
    dkaf.evaluate(policy, tasks, queries=3)
    assert largest <= 1024  # a block of rows for an encoder that takes no sparse ones


def test_features_that_the_scaling_cannot_take_are_refused() -> None:
    with pytest.raises(ValueError, match="counts are at least 0, -1 came"):
        Inputs.fitted(COUNTS, EVERY, "counts")(COUNTS - 1, EVERY)
    with pytest.raises(ValueError, match="fit in single precision"):
        Inputs.fitted(COUNTS, EVERY, "raw")(COUNTS * 1e300, EVERY)
    with pytest.raises(ValueError, match="trained on 8 features, 5 came"):
        Inputs.fitted(COUNTS, EVERY, "raw")(COUNTS[:, :5], EVERY)


def test_sparse_features_for_a_policy_of_dense_ones_are_refused_where_they_would_be_scaled_otherwise() -> None:
    inputs = Inputs.fitted(COUNTS + 0.5, EVERY, "standardise")
    with pytest.raises(ValueError, match="trained on dense features, sparse ones came"):
        inputs(sp.csr_array(COUNTS + 0.5), EVERY)


def test_features_too_large_for_a_variance_are_refused() -> None:
    with pytest.raises(ValueError, match="column 0 is too large"):
        Inputs.fitted((COUNTS + 0.5) * 1e300, EVERY, "standardise")


def test_no_block_of_rows_is_left_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkaf.model.encoders.ROWS_AT_ONCE", 29)
    rows = SparseRows(sp.csr_array(COUNTS.astype(np.float32)), torch.device("cpu"))
    assert encode(torch.nn.Sequential(torch.nn.Linear(8, 2), torch.nn.BatchNorm1d(2)), rows).shape == (30, 2)


@pytest.mark.parametrize("table", [True, False])
def test_inner_products_are_those_of_the_rows_also_of_parts_of_parts(
    monkeypatch: pytest.MonkeyPatch, table: bool
) -> None:
    draw = np.random.default_rng(0)
    dense = draw.poisson(0.5, (9, 6)).astype(np.float32)
    if not table:
        monkeypatch.setattr("dkaf.model.inputs.TABLED_ROWS", 8)
    rows = SparseRows(sp.csr_array(dense), torch.device("cpu"))
    part = rows[torch.tensor([8, 3, 5, 0])][torch.tensor([2, 0, 1])]
    left, right = torch.tensor([[0, 2], [1, 1]]), torch.tensor([[0, 1, 2], [2, 1, 0]])
    found = part.inner(left, right)
    if not table:
        assert found is None
        return
    x = dense[[5, 8, 3]]
    np.testing.assert_allclose(found, np.einsum("smd,snd->smn", x[left], x[right]))
