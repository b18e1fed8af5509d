"""A search without past tasks: a Gaussian process fitted to the campaign's own observations."""

import numpy as np
import torch

from dkaf.learning.episodes import PaddedTasks
from dkaf.learning.pretrain import pretrain
from dkaf.model.inputs import Inputs
from dkaf.policies import GaussianPolicy, Policy, build
from dkaf.seeding import stream
from dkaf.settings import recipe
from dkaf.tasks import FeatureMatrix, FloatArray, IntArray, TaskSet

ACQUISITION = "ei"
FEWEST = 4  # observations that say something of the kernel's scales
SEEN = 512  # candidates that the first length scale is taken from


def own_policy(features: FeatureMatrix, rows: IntArray, values: FloatArray, seed: int) -> Policy:
    """The paper's GP baseline, its kernel trained by likelihood on what was observed, each row once.

    Before that its scales are those of the pool: the length of the features, the spread of the responses so far.
    """
    settings = recipe("default", "gp", ACQUISITION, inputs="raw", pretrain_tasks=1)
    policy = build("gp", ACQUISITION, settings, Inputs(features.shape[1], "raw"))
    assert isinstance(policy, GaussianPolicy)
    if len(values):
        policy.response_shift.fill_(float(values.mean()))
    deviation = float(values.std()) if len(values) > 1 else 0.0
    if deviation > 1e-9 * np.abs(values).max(initial=0.0):
        policy.response_scale.fill_(deviation)
    some = torch.randperm(features.shape[0], generator=stream(seed, "initial kernel"))[:SEEN].sort().values.numpy()
    with torch.no_grad():
        policy.prior.eval().initialise(policy.inputs(features, some), 1.0)
    if len(values) >= FEWEST and deviation > 0:
        tasks = TaskSet.from_arrays(features, [rows], [values])
        with torch.enable_grad():
            pretrain(policy, PaddedTasks.of(policy, tasks), None, seed, lambda update: None)
    return policy.eval()
