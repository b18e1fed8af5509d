"""The paper's tasks, from any labelled features: find the item most like a hidden one.

A classifier is trained on the labels; the response of a candidate is the negative distance, in the classifier's last
hidden layer, to a hidden target. So responses reflect what the labels mean, and every target is a task of its own.
"""

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import ArrayLike
from torch import nn

from dkaf.errors import InputError, whole_number
from dkaf.model.encoders import FeedForward
from dkaf.model.inputs import Inputs
from dkaf.seeding import derive, global_stream, stream
from dkaf.tasks import FeatureMatrix, FloatArray, TaskSet

# The paper does not say how its classifier is trained; docs/paper.md, note 10.
EPOCHS, BATCH, LEARNING_RATE = 30, 64, 1e-3


def similarity_tasks(
    features: ArrayLike | sp.sparray | sp.spmatrix,
    labels: ArrayLike,
    n_tasks: int = 170,
    pool_size: int = 500,
    seed: int = 0,
) -> TaskSet:
    """Tasks "find the candidate most like a hidden item", the paper's section Data.

    >>> import dkaf
    >>> from sklearn.datasets import load_digits
    >>> features, labels = load_digits(return_X_y=True)
    >>> dkaf.similarity_tasks(features, labels, n_tasks=3, pool_size=50)
    TaskSet(3 tasks, pools of 50 to 50 candidates, 64 dense features)
    """
    n_tasks, pool_size = whole_number("n_tasks", n_tasks), whole_number("pool_size", pool_size)
    if n_tasks < 1 or pool_size < 1:
        raise InputError(f"there is at least 1 task and 1 candidate, n_tasks={n_tasks} and pool_size={pool_size} came")
    checked = TaskSet.from_arrays(features, [], []).features
    n_rows = int(checked.shape[0])
    if pool_size + 1 > n_rows:
        raise InputError(f"a task takes {pool_size} candidates and a target, there are {n_rows} rows; lower pool_size")
    return tasks_of_representation(checked, hidden_representation(checked, labels, seed), n_tasks, pool_size, seed)


def tasks_of_representation(
    features: FeatureMatrix, hidden: FloatArray, n_tasks: int, pool_size: int, seed: int
) -> TaskSet:
    """Tasks whose responses are negative distances to a hidden target; the first ones are the same for any n_tasks."""
    draw = np.random.default_rng(derive(seed, "similarity tasks"))
    drawn = [draw.choice(len(hidden), size=pool_size + 1, replace=False) for _ in range(n_tasks)]
    pools = [rows[1:] for rows in drawn]
    targets = np.array([rows[0] for rows in drawn])
    responses = [
        -np.linalg.norm(hidden[pool] - hidden[target], axis=1) for pool, target in zip(pools, targets, strict=True)
    ]
    return TaskSet.from_arrays(features, pools, responses, targets)


def hidden_representation(features: FeatureMatrix, labels: ArrayLike, seed: int = 0) -> FloatArray:
    """The last hidden layer of a four-layer classifier of the labels, for every row."""
    classes, target = _checked_labels(labels, features.shape[0])
    inputs = Inputs.fitted(features, np.arange(features.shape[0]), "auto")
    if inputs.kind == "counts":  # note 10: counts as they are
        inputs = Inputs(inputs.n_features, "raw")
    x, y = inputs(features, np.arange(features.shape[0])), torch.from_numpy(target)
    with global_stream(seed, "classifier"):
        network = FeedForward(inputs.n_features, len(classes), layers=4, width=32)
        optimiser = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
        order = stream(seed, "classifier batches")
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(y), generator=order).split(BATCH):
                loss = nn.functional.cross_entropy(network(x[batch]), y[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    with torch.no_grad():
        hidden = network.last_hidden(x).double().numpy()
    if not np.isfinite(hidden).all():
        raise InputError("the classifier of the labels did not converge to finite values; rescale the features")
    return hidden


def _checked_labels(labels: ArrayLike, n_rows: int) -> tuple[Any, Any]:
    values = np.asarray(labels)
    if values.shape != (n_rows,):
        raise InputError(f"every row has one label, {n_rows} rows and labels of shape {values.shape} came")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise InputError("labels are finite, NaN or infinity came; drop those rows")
    classes, numbers = np.unique(values, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"similarity tasks need at least two different labels, {len(classes)} came")
    return classes, numbers.astype(np.int64)
