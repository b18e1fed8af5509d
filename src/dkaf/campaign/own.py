"""A search without past tasks: a Gaussian process fitted to the campaign's own observations."""

import math

import numpy as np
import torch
from torch import Tensor

from dkaf.model.inputs import Inputs
from dkaf.model.prior import Pool
from dkaf.policies import GaussianPolicy, Policy, build
from dkaf.seeding import stream
from dkaf.settings import recipe
from dkaf.tasks import FeatureMatrix, FloatArray, IntArray

ACQUISITION = "ei"
SEEN = 512  # candidates that the usual distance is taken from
STEPS = 50  # of the optimiser at most
# Means and deviations of the logarithms before anything is observed, relative to the spread of responses and to the
# usual squared distance. Without them few observations are best explained as noise, and the search stands still.
AMPLITUDE, NOISE, LENGTH = (0.0, 0.5), (math.log(0.02), 1.0), (0.0, 1.0)


def own_policy(features: FeatureMatrix, rows: IntArray, values: FloatArray, seed: int) -> Policy:
    """The paper's GP baseline, its kernel the most probable one after what was observed, each row once."""
    settings = recipe("default", "gp", ACQUISITION, learned_warp=False)  # too few observations to learn one
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
        policy.prior.log_noise.fill_(NOISE[0])
    if len(values) > 1:
        with torch.enable_grad():
            _fit(policy, features, rows, values)
    return policy.eval()


def _fit(policy: GaussianPolicy, features: FeatureMatrix, rows: IntArray, values: FloatArray) -> None:
    """Maximise the likelihood of the observations times that of the kernel's scales."""
    prior = policy.prior
    expected = [
        (prior.log_amplitude, *AMPLITUDE),
        (prior.log_noise, *NOISE),
        (prior.log_length, prior.log_length.item() + LENGTH[0], LENGTH[1]),
    ]
    place = torch.arange(len(rows)).unsqueeze(0)
    pool = Pool(place, torch.ones_like(place, dtype=torch.bool))
    x, y = policy.inputs(features, rows), policy.scaled(torch.from_numpy(values)).unsqueeze(0)
    optimiser = torch.optim.LBFGS(
        [parameter for parameter, _, _ in expected], max_iter=STEPS, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        fit = prior.log_likelihood(prior.points(x, pool), y, pool.mask).sum() * len(rows)
        penalty = sum((((log - mean) / deviation) ** 2 / 2 for log, mean, deviation in expected), torch.zeros(()))
        value = penalty - fit
        value.backward()
        return value

    optimiser.step(loss)
