"""A trained policy in BoTorch: its Gaussian process as a `Model`, its own ranking as an `AcquisitionFunction`.

Features are the raw ones that the policy was trained on, responses the user's own; larger is better. All is computed
in double precision, as BoTorch wants it, by a copy of the policy that no further training changes.

| symbol | meaning | shape |
|---|---|---|
| n, d | observations, features | |
| b, q | t-batches and the points of each, as BoTorch calls them | |
| X, z | raw features and their representation | * x q x d, * x q x v |
"""

import copy
import math
import warnings
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dkaf.errors import InputError
from dkaf.model.acquisition import Outlook
from dkaf.model.posterior import Trajectory, trajectory
from dkaf.model.prior import Pool, Prior
from dkaf.policies import KernelPolicy, Policy
from dkaf.tasks import LARGEST_RESPONSE

try:
    with warnings.catch_warnings():  # GPyTorch's linear_operator still uses it, which no caller can mend
        warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
        from botorch.acquisition import AcquisitionFunction
        from botorch.acquisition.objective import PosteriorTransform
        from botorch.models.gpytorch import GPyTorchModel
        from botorch.models.model import FantasizeMixin
        from botorch.posteriors import GPyTorchPosterior
        from botorch.utils.transforms import t_batch_mode_transform
        from gpytorch.constraints import Positive
        from gpytorch.distributions import MultivariateNormal
        from gpytorch.kernels import Kernel
        from gpytorch.likelihoods import GaussianLikelihood
        from gpytorch.models import ExactGP
        from linear_operator import to_linear_operator
except ImportError as error:
    raise InputError(
        f"dkaf.integrations.botorch needs BoTorch, which is not here ({error}); pip install 'dkaf[botorch]'"
    ) from error

__all__ = ["DkafAcquisition", "DkafModel"]


class DkafModel(GPyTorchModel, ExactGP, FantasizeMixin):  # type: ignore[misc]
    """What the policy believes after the observations (X, y), for any acquisition function of BoTorch.

    X is n x d, y is n or n x 1, tensors or arrays; n may be 0. Nothing is left to fit. GPyTorch's part of it lives on
    representations, so `train_inputs` are these, and every row is encoded once.
    """

    _num_outputs = 1

    def __init__(self, policy: Policy, X: Any, y: Any) -> None:
        if not isinstance(policy, KernelPolicy):
            came = f"method {policy.method}" if isinstance(policy, Policy) else type(policy).__name__
            raise InputError(
                f"BoTorch needs a policy with a kernel, {came} came; dkaf.fit one of method dkaf, dkl or gp"
            )
        policy = copy.deepcopy(policy).double().eval().requires_grad_(False)
        features, responses = _numbers("X", X, policy), _numbers("y", y, policy)
        if features.ndim != 2:
            raise InputError(f"X is observations x features, shape {tuple(features.shape)} came; reshape it")
        n = len(features)
        if responses.shape not in ((n,), (n, 1)):
            raise InputError(
                f"y has one response for each row of X, shape {tuple(responses.shape)} came for {n} rows; "
                f"pass shape ({n},) or ({n}, 1)"
            )
        _check_responses(responses)
        likelihood = GaussianLikelihood(noise_constraint=Positive()).to(policy.response_shift)
        likelihood.noise = policy.prior.noise
        targets = policy.warped(policy.scaled(responses.reshape(n)))
        super().__init__(_represented(policy, features), targets, likelihood)
        self.policy = policy
        self.covar_module = _PriorKernel(policy.prior)
        self.requires_grad_(False).eval()

    def forward(self, z: Float[Tensor, "*batch q v"]) -> MultivariateNormal:
        """The prior; GPyTorch makes the posterior of it."""
        mean = self.policy.prior.mean
        return MultivariateNormal(z.new_zeros(z.shape[:-1]) if mean is None else mean(z)[..., 0], self.covar_module(z))

    def posterior(
        self,
        X: Float[Tensor, "..."],
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
        **options: Any,
    ) -> Any:
        """What is believed at X, * x q x d, in units of y, with gradients; noise as a tensor is in units of y^2.

        Where the policy warps responses, beliefs in units of y are no Gaussian. This is then the one with their
        medians, their spread (half of the central 68 %) and their correlations.
        """
        z, warp = _represented(self.policy, X), self.policy.prior.warp
        if isinstance(observation_noise, Tensor):
            medians = super().posterior(z, **options).distribution.mean.unsqueeze(-1)
            noise_at = medians if warp is None else warp.inverse(medians)
            observation_noise = observation_noise * self._slope(noise_at) ** 2
        believed = super().posterior(z, observation_noise, **options).distribution
        if warp is None:
            in_units = believed * float(self.policy.response_scale) + float(self.policy.response_shift)
        else:
            mean, deviation = self.policy.in_units(believed.mean, believed.stddev)
            factor = deviation / believed.stddev
            covariance = factor.unsqueeze(-1) * believed.covariance_matrix * factor.unsqueeze(-2)
            in_units = MultivariateNormal(mean, to_linear_operator(covariance))  # factored where it is needed alone
        posterior = GPyTorchPosterior(in_units)
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def condition_on_observations(
        self,
        X: Float[Tensor, "..."],
        Y: Float[Tensor, "..."],
        noise: Tensor | None = None,
        **options: Any,
    ) -> "DkafModel":
        """The model after more observations, X * x q x d and Y * x q x 1; noise, if any, in units of Y^2."""
        if Y.shape[-2:] != (*X.shape[-2:-1], 1):
            raise InputError(
                f"Y has one response for each row of X, in a column; shape {tuple(Y.shape)} came for X of shape "
                f"{tuple(X.shape)}; pass Y.unsqueeze(-1)"
            )
        _check_responses(Y)
        if self.prediction_strategy is None:
            self.posterior(X)  # GPyTorch extends what its first prediction has left
        z, scaled = _represented(self.policy, X), self.policy.scaled(Y)
        if noise is not None:
            options["noise"] = noise * self._slope(scaled) ** 2
        model: DkafModel = super().condition_on_observations(z, self.policy.warped(scaled), **options)
        return model

    def _slope(self, scaled: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """How much the model's targets change with responses, where these are so, scaled."""
        warp, scale = self.policy.prior.warp, self.policy.response_scale
        return (torch.ones_like(scaled) if warp is None else warp.with_slope(scaled)[1]) / scale


class DkafAcquisition(AcquisitionFunction):  # type: ignore[misc]
    """What `dkaf.Search.ask` ranks candidates by, once it was told the same observations in the same order.

    `queried` says of each observation, or of all, whether the search chose it: a policy that explores less with every
    query (GP-MI) does not count what was known before. Pending points count as queries that gave what is expected of
    them, so that BoTorch's sequential optimisers choose q candidates as `ask(q)` does.
    """

    def __init__(self, policy: Policy, X: Any, y: Any, *, queried: Any) -> None:
        super().__init__(DkafModel(policy, X, y))
        n = len(self.model.train_targets)
        try:
            flags = torch.as_tensor(queried, device=self.model.policy.device)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"queried is True, False or {n} of these, {queried!r} came; pass these") from None
        if flags.shape not in ((), (n,)) or (flags.dtype != torch.bool and flags.numel()):
            raise InputError(
                f"queried is True, False or {n} of these, shape {tuple(flags.shape)} of {flags.dtype} came; "
                "pass one for each row of X"
            )
        self._queried: Bool[Tensor, " n"] = flags.bool().expand(n)
        self.set_X_pending(None)

    def set_X_pending(self, X_pending: Float[Tensor, "..."] | None = None) -> None:  # noqa: N802 (BoTorch's name)
        """Points that are being tried, p x d; nothing of them is differentiated."""
        super().set_X_pending(X_pending)
        (z,), y, queried = self.model.train_inputs, self.model.train_targets, self._queried
        self._events = z, y, queried
        if X_pending is not None:
            with torch.no_grad():
                pending = _represented(self.model.policy, X_pending)
                expected = self._after_events(pending).mean.flatten()  # to fill one in moves no mean
            self._events = (
                torch.cat((z, pending)),
                torch.cat((y, expected)),
                torch.cat((queried, queried.new_ones(len(pending)))),
            )

    @t_batch_mode_transform(expected_q=1)  # type: ignore[untyped-decorator]
    def forward(self, X: Float[Tensor, "*batch 1 d"]) -> Float[Tensor, " *batch"]:
        """The scores of the candidates, each by itself."""
        policy, (_, y, queried) = self.model.policy, self._events
        mean, var, pivots = self._after_events(_represented(policy, X.flatten(end_dim=-2)))
        best = torch.cat((y.new_full((1,), -math.inf), y)).max()
        xi = pivots.flatten()[queried].sum().detach()  # the variances before each query: docs/paper.md, note 3
        scores: Tensor = policy.acquire(Outlook(mean.flatten(), var.flatten(), best, xi), policy.log_nu.exp())
        return scores.view(X.shape[:-2])

    def _after_events(self, z: Float[Tensor, "c v"]) -> Trajectory:
        """The beliefs about candidates, by what training differentiates: their means and variances, 1 x 1 x 1 x c."""
        known, y, _ = self._events
        k, rows = len(known), torch.arange(len(known) + len(z), device=z.device).unsqueeze(0)
        points = self.model.policy.place(torch.cat((known, z)), Pool(rows, torch.ones_like(rows, dtype=torch.bool)))
        K_ox = points.covariance(rows[:, :k]).unsqueeze(1)
        mean, var, pivots = trajectory(
            points.mean, points.var, points.noise, K_ox, rows[:, :k].unsqueeze(1), y.view(1, 1, k), first=k
        )
        return Trajectory(mean[..., k:], var[..., k:], pivots)


class _PriorKernel(Kernel):  # type: ignore[misc]
    """Eq. (k) between representations, free of noise."""

    def __init__(self, prior: Prior) -> None:
        super().__init__()
        self.prior = prior

    def forward(
        self, x1: Float[Tensor, "*batch m v"], x2: Float[Tensor, "*batch n v"], diag: bool = False, **options: Any
    ) -> Tensor:
        prior = self.prior
        square = self.covar_dist(x1, x2, diag=diag, square_dist=True)
        K: Tensor = prior.amplitude * torch.exp(-0.5 * (-prior.log_length).exp() * square)
        if prior.linear is not None:
            phi1, phi2 = prior.linear(x1), prior.linear(x2)
            K = K + ((phi1 * phi2).sum(-1) if diag else phi1 @ phi2.mT)
        return K


def _numbers(name: str, values: Any, policy: KernelPolicy) -> Tensor:
    """The values in double precision, on the policy's device, apart from what the caller holds."""
    try:
        if not isinstance(values, Tensor):
            values = torch.from_numpy(np.array(values, dtype=np.float64))
        numbers: Tensor = values.detach().to_dense().to(policy.response_shift, copy=True)
        return numbers
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"{name} is a tensor or an array of numbers, {type(values).__name__} came; of sparse ones pass .toarray()"
        ) from None


def _check_responses(y: Tensor) -> None:
    wrong = ~(y.abs() <= LARGEST_RESPONSE)
    if wrong.any():
        raise InputError(
            f"responses are finite and within +-{LARGEST_RESPONSE:g}, {float(y[wrong][0])} came; "
            "leave that observation out, or rescale"
        )


def _represented(policy: KernelPolicy, X: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Representations of raw features, with gradients. An encoder of the user's takes rows, and no batches of them."""
    if X.ndim < 2:
        raise InputError(f"X is (batches x) points x features, shape {tuple(X.shape)} came; pass X.unsqueeze(0)")
    x = policy.inputs.differentiable(X.to(policy.response_shift))
    z: Any = policy.represent(x.flatten(end_dim=-2))
    representations: Tensor = z.unflatten(0, X.shape[:-1])
    return representations
