"""A search with its log-probabilities, written with one posterior a step: what the package's own form is timed against.

| symbol | meaning | shape |
|---|---|---|
| S, N, T, n0 | episodes, candidates of each, queries, starting points | |
| R, D, d | rows of the feature matrix, features, values of a representation | |
| x, z = g(x) | features, and the candidates' representations | R x D, S x N x d |
| observed, y_o | candidates observed so far, in order, and their responses | S x t |
| mean, var, xi | posterior mean, predictive variance, GP-MI's accumulated variance | S x N, S x N, S |

Each implementation is a function of a policy that returns what the optimiser trains and a `Run`. A run samples
episodes while it builds the graph of their log-probabilities, so that no posterior is computed twice; given the
candidates of episodes, it follows them. All start from the policy's parameters and train its encoder.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import gpytorch
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dkaf.policies import KernelPolicy


class Batch(NamedTuple):
    """The tasks of an update; all rows of `x` are encoded, since nearly all occur in the pools."""

    x: Float[Tensor, "r d"]
    rows: Int[Tensor, "s n"]
    y: Float[Tensor, "s n"]
    start: Int[Tensor, "s n0"]


class Run(Protocol):
    def __call__(
        self, batch: Batch, draw: torch.Generator, given: Int[Tensor, "s k"] | None = None
    ) -> tuple[Int[Tensor, "s k"], Float[Tensor, "s t"]]:
        """The observed candidates, starting points first, and the log-probability of each query."""


Posterior = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(z, observed, y_o) to (mean, var)."""


def plain_pytorch(policy: KernelPolicy) -> tuple[list[nn.Parameter], Run]:
    """A Cholesky factorisation and a triangular solve a step, batched over the episodes."""
    prior = policy.prior

    def posterior(z: Tensor, observed: Tensor, y_o: Tensor) -> tuple[Tensor, Tensor]:
        alpha, beta, eta = prior.amplitude, prior.noise, prior.log_length.exp()
        z_o, square = _take(z, observed), z.square().sum(dim=-1)
        distance = square.gather(1, observed).unsqueeze(2) + square.unsqueeze(1) - 2 * z_o @ z.mT
        K_ox = alpha * torch.exp(-0.5 * distance.clamp_min(0) / eta)
        K_oo = K_ox.gather(2, observed.unsqueeze(1).expand(-1, observed.shape[1], -1))
        L = torch.linalg.cholesky(K_oo + beta * torch.eye(observed.shape[1], dtype=z.dtype))
        solved = torch.linalg.solve_triangular(L, torch.cat((K_ox, y_o.unsqueeze(2)), dim=2), upper=False)
        V, w = solved[..., :-1], solved[..., -1:]
        return (V * w).sum(dim=1), alpha + beta - V.square().sum(dim=1)

    def run(batch: Batch, draw: torch.Generator, given: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return _search(policy, posterior, batch, draw, given)

    return policy.trained_by_gradient(), run


def gpytorch_public(policy: KernelPolicy) -> tuple[list[nn.Parameter], Run]:
    """ExactGP with GPyTorch's batches: over the episodes, and over candidates as BoTorch has them.

    Of the forms that override nothing this was the fastest. Slower were: all candidates in one joint posterior, which
    evaluates their N x N prior covariance; `get_fantasy_model`; one model an episode; and `fast_pred_var` off.
    """
    model = _exact_gp(policy, _ExactGP)

    def posterior(z: Tensor, observed: Tensor, y_o: Tensor) -> tuple[Tensor, Tensor]:
        model.set_train_data(_take(z, observed), y_o, strict=False)
        belief = model(z.transpose(0, 1).unsqueeze(2))  # N x S x 1 x d: a model's own batch comes last
        return belief.mean.squeeze(2).T, belief.variance.squeeze(2).T + model.likelihood.noise

    return _gpytorch_run(policy, model, posterior)


def gpytorch_overridden(policy: KernelPolicy) -> tuple[list[nn.Parameter], Run]:
    """ExactGP with a private method overridden, so that of the N x N prior covariance only the diagonal is computed."""
    model = _exact_gp(policy, _LazyExactGP)

    def posterior(z: Tensor, observed: Tensor, y_o: Tensor) -> tuple[Tensor, Tensor]:
        model.set_train_data(_take(z, observed), y_o, strict=False)
        belief = model(z)
        return belief.mean, belief.variance + model.likelihood.noise

    return _gpytorch_run(policy, model, posterior)


class _ExactGP(gpytorch.models.ExactGP):  # type: ignore[misc]
    def __init__(self, likelihood: Any, kernel: Any) -> None:
        super().__init__(None, None, likelihood)
        self.mean = gpytorch.means.ZeroMean()
        self.kernel = kernel

    def forward(self, z: Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean(z), self.kernel(z))


class _LazyExactGP(_ExactGP):
    def _get_test_prior_mean_and_covariances(self, train_inputs: Any, test_inputs: Any, **_: Any) -> Any:
        (z_o,), (z,) = train_inputs, test_inputs
        prior = self.forward(z)
        return prior.mean, self.kernel(z), self.kernel(z, z_o), z.shape[:-2], z.shape[-2:-1], type(prior)


def _exact_gp(policy: KernelPolicy, kind: type[_ExactGP]) -> Any:
    prior = policy.prior
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.Positive())
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    model = kind(likelihood, kernel).to(policy.dtype).eval()
    with torch.no_grad():
        likelihood.noise, kernel.outputscale = prior.noise, prior.amplitude
        kernel.base_kernel.lengthscale = prior.log_length.exp().sqrt()
    return model


def _gpytorch_run(policy: KernelPolicy, model: Any, posterior: Posterior) -> tuple[list[nn.Parameter], Run]:
    def run(batch: Batch, draw: torch.Generator, given: Tensor | None = None) -> tuple[Tensor, Tensor]:
        with _gpytorch_settings():
            return _search(policy, posterior, batch, draw, given)

    assert policy.prior.encoder is not None
    return [*policy.prior.encoder.parameters(), *model.parameters()], run


@contextlib.contextmanager
def _gpytorch_settings() -> Iterator[None]:
    settings = gpytorch.settings
    with (
        settings.detach_test_caches(False),  # gradients go through the observed points, too
        settings.fast_computations(False, False, False),  # Cholesky, not conjugate gradients: t is small
        settings.fast_pred_var(),
        settings.max_eager_kernel_size(1),  # else N + t points are few enough for GPyTorch to evaluate N x N
        settings.debug(False),
    ):
        yield


def _search(
    policy: KernelPolicy, posterior: Posterior, batch: Batch, draw: torch.Generator, given: Tensor | None
) -> tuple[Tensor, Tensor]:
    assert policy.prior.encoder is not None
    z = policy.prior.encoder(batch.x)[batch.rows]
    observed = batch.start
    free = torch.ones_like(batch.y, dtype=torch.bool).scatter(1, observed, False)
    xi = torch.zeros_like(batch.y[:, :1])
    log_p = []
    for _ in range(policy.settings.queries):
        mean, var = posterior(z, observed, batch.y.gather(1, observed))
        bonus = (var + xi).sqrt() - xi.clamp_min(1e-12).sqrt()  # Eq. (a); the clamp keeps the gradient at xi = 0 finite
        scores = mean + policy.settings.nu**0.5 * bonus
        log_softmax = scores.masked_fill(~free, -torch.inf).log_softmax(dim=1)
        if given is None:
            chosen = torch.multinomial(log_softmax.detach().exp(), 1, generator=draw)
        else:
            chosen = given[:, observed.shape[1], None]
        log_p.append(log_softmax.gather(1, chosen))
        xi = xi + var.gather(1, chosen)
        free = free.scatter(1, chosen, False)
        observed = torch.cat((observed, chosen), dim=1)
    return observed, torch.cat(log_p, dim=1)


def _take(z: Float[Tensor, "s n d"], observed: Int[Tensor, "s t"]) -> Float[Tensor, "s t d"]:
    return z.gather(1, observed.unsqueeze(2).expand(-1, -1, z.shape[2]))
