"""The paper's model with one posterior a step, on GPyTorch and on PyTorch alone: what our own form is timed against.

| symbol | meaning | shape |
|---|---|---|
| S, N, T, n0 | episodes, candidates of each, queries, starting points | |
| R, D, d, p | rows of the feature matrix, features, values of a representation, features of the linear part | |
| x, z, phi, m | features, representations, the linear part's features, prior mean | |
| u | [z, phi, m] of each candidate, as far as the policy has them: what a peer's kernel takes | S x N x (d+p+1) |
| observed, y_o | candidates observed so far, in order, and their responses | S x t |
| mean, var, xi | posterior mean, predictive variance, GP-MI's accumulated variance | S x N, S x N, S |

All peers start from the policy's parameters and train its encoder, as a user of these packages would: a search is
sampled while the graph of its log-probabilities is built, so that no posterior is computed twice.
"""

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gpytorch
import torch
from botorch.models import SingleTaskGP
from botorch.settings import validate_input_scaling
from jaxtyping import Float, Int
from torch import Tensor, nn

from dkaf.model.prior import Prior
from dkaf.policies import GaussianPolicy, KernelPolicy
from dkaf.settings import Settings

Posterior = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(u, observed, y_o) to (mean, var)."""


@dataclass(frozen=True)
class Model:
    """One implementation of the policy's Gaussian process."""

    parameters: list[nn.Parameter]
    posterior: Posterior
    log_likelihood: Callable[[Tensor, Tensor], Tensor]
    """(u, y) to the log marginal likelihood a point, one a task."""
    settings: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext


def represent(prior: Prior, x: Float[Tensor, "r D"], rows: Int[Tensor, "s n"]) -> Float[Tensor, "s n u"]:
    """All rows of `x` are encoded once, since nearly all occur in the pools."""
    z = x if prior.encoder is None else prior.encoder(x)
    parts = [z]
    if prior.linear is not None:
        parts.append(prior.linear(z))
    if prior.mean is not None:
        parts.append(prior.mean(z))
    return torch.cat(parts, dim=1)[rows]


def networks(prior: Prior) -> list[nn.Parameter]:
    """What turns x into u; every implementation trains these."""
    modules = [module for module in (prior.encoder, prior.linear, prior.mean) if module is not None]
    return [parameter for module in modules for parameter in module.parameters()]


def plain_pytorch(policy: GaussianPolicy) -> Model:
    """A Cholesky factorisation and a triangular solve a step, batched over the episodes."""
    prior = policy.prior

    def split(u: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        p, with_mean = 0 if prior.linear is None else prior.linear.out_features, prior.mean is not None
        d = u.shape[-1] - p - with_mean
        return u[..., :d], u[..., d : d + p] if p else None, u[..., -1] if with_mean else None

    def kernel(u: Tensor, observed: Tensor | None) -> Tensor:
        z, phi, _ = split(u)
        z_o, square = z if observed is None else take(z, observed), z.square().sum(dim=-1)
        square_o = square if observed is None else square.gather(1, observed)
        distance = square_o.unsqueeze(2) + square.unsqueeze(1) - 2 * z_o @ z.mT
        K = prior.amplitude * torch.exp(-0.5 * distance.clamp_min(0) / prior.log_length.exp())
        return K if phi is None else K + (phi if observed is None else take(phi, observed)) @ phi.mT

    def posterior(u: Tensor, observed: Tensor, y_o: Tensor) -> tuple[Tensor, Tensor]:
        _, phi, m = split(u)
        K_ox = kernel(u, observed)
        K_oo = K_ox.gather(2, observed.unsqueeze(1).expand(-1, observed.shape[1], -1))
        L = torch.linalg.cholesky(K_oo + prior.noise * torch.eye(observed.shape[1], dtype=u.dtype))
        r = y_o if m is None else y_o - m.gather(1, observed)
        solved = torch.linalg.solve_triangular(L, torch.cat((K_ox, r.unsqueeze(2)), dim=2), upper=False)
        V, w = solved[..., :-1], solved[..., -1:]
        mean, explained = (V * w).sum(dim=1), V.square().sum(dim=1)
        var = prior.amplitude + prior.noise - explained
        return mean if m is None else m + mean, var if phi is None else var + phi.square().sum(dim=-1)

    def log_likelihood(u: Tensor, y: Tensor) -> Tensor:
        m, n = split(u)[2], y.shape[1]
        L = torch.linalg.cholesky(kernel(u, None) + prior.noise * torch.eye(n, dtype=u.dtype))
        r = (y if m is None else y - m).unsqueeze(2)
        w = torch.linalg.solve_triangular(L, r, upper=False).squeeze(2)
        log_det = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        density: Tensor = -0.5 * (w.square().sum(-1) + log_det + n * math.log(2 * math.pi)) / n
        return density

    return Model([p for p in policy.parameters() if p.requires_grad], posterior, log_likelihood)


def gpytorch_public(policy: KernelPolicy) -> Model:
    """ExactGP with GPyTorch's batches: over the episodes, and over candidates as BoTorch has them.

    Of the forms that override nothing this was the fastest. Slower were: all candidates in one joint posterior, which
    evaluates their N x N prior covariance (`gpytorch_joint`); `get_fantasy_model`; one model an episode; and
    `fast_pred_var` off.
    """
    model = exact_gp(policy.prior, policy.dtype)

    def posterior(u: Tensor, observed: Tensor, y_o: Tensor) -> tuple[Tensor, Tensor]:
        model.set_train_data(take(u, observed), y_o, strict=False)
        belief = model(u.transpose(0, 1).unsqueeze(2))  # N x S x 1 x u: a model's own batch comes last
        return belief.mean.squeeze(2).T, belief.variance.squeeze(2).T + model.likelihood.noise

    return _gpytorch_model(policy, model, posterior)


def gpytorch_joint(policy: KernelPolicy) -> Model:
    """ExactGP as GPyTorch's documentation calls it: all candidates in one joint posterior, at its default settings."""
    model = _of_all_candidates(policy, exact_gp(policy.prior, policy.dtype))
    return dataclasses.replace(model, settings=lambda: gpytorch.settings.detach_test_caches(False))


def gpytorch_overridden(policy: KernelPolicy) -> Model:
    """ExactGP with a private method overridden, so that of the N x N prior covariance only the diagonal is computed."""
    return _of_all_candidates(policy, exact_gp(policy.prior, policy.dtype, LazyExactGP))


def _of_all_candidates(policy: KernelPolicy, model: Any) -> Model:
    def posterior(u: Tensor, observed: Tensor, y_o: Tensor) -> tuple[Tensor, Tensor]:
        model.set_train_data(take(u, observed), y_o, strict=False)
        belief = model(u)
        return belief.mean, belief.variance + model.likelihood.noise

    return _gpytorch_model(policy, model, posterior)


class ExactGP(gpytorch.models.ExactGP):  # type: ignore[misc]
    """A Gaussian process on u."""

    def __init__(self, likelihood: Any, mean: Any, kernel: Any) -> None:
        super().__init__(None, None, likelihood)
        self.mean = mean
        self.kernel = kernel

    def forward(self, u: Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean(u), self.kernel(u))


class LazyExactGP(ExactGP):
    """The same, which evaluates no prior covariance between the candidates."""

    def _get_test_prior_mean_and_covariances(self, train_inputs: Any, test_inputs: Any, **_: Any) -> Any:
        (u_o,), (u,) = train_inputs, test_inputs
        prior = self.forward(u)
        return prior.mean, self.kernel(u), self.kernel(u, u_o), u.shape[:-2], u.shape[-2:-1], type(prior)


class LastColumn(gpytorch.means.Mean):  # type: ignore[misc]
    """The prior mean that u carries."""

    def forward(self, u: Tensor) -> Tensor:
        return u[..., -1]


def exact_gp(prior: Prior, dtype: torch.dtype, kind: type[ExactGP] = ExactGP) -> Any:
    """GPyTorch's form of the prior, at the same parameters."""
    likelihood, mean, kernel = gpytorch_parts(prior, dtype)
    return kind(likelihood, mean, kernel).to(dtype).eval()


def gpytorch_parts(prior: Prior, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """A likelihood, a mean and a kernel on u."""
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.Positive()).to(dtype)
    rbf = gpytorch.kernels.RBFKernel()
    if prior.linear is not None:
        d, p = prior.linear.in_features, prior.linear.out_features
        rbf = gpytorch.kernels.RBFKernel(active_dims=range(d))
        linear = gpytorch.kernels.LinearKernel(active_dims=range(d, d + p)).to(dtype)
        linear.variance = 1.0
        linear.raw_variance.requires_grad_(False)
    elif prior.mean is not None:
        rbf = gpytorch.kernels.RBFKernel(active_dims=range(prior.mean.in_features))
    scaled = gpytorch.kernels.ScaleKernel(rbf).to(dtype)
    with torch.no_grad():
        likelihood.noise, scaled.outputscale = prior.noise, prior.amplitude
        rbf.lengthscale = prior.log_length.exp().sqrt()
    mean = gpytorch.means.ZeroMean() if prior.mean is None else LastColumn()
    return likelihood, mean, scaled if prior.linear is None else scaled + linear


def _gpytorch_model(policy: KernelPolicy, model: Any, posterior: Posterior) -> Model:
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)

    def log_likelihood(u: Tensor, y: Tensor) -> Tensor:
        return mll(model.forward(u), y)  # type: ignore[no-any-return]  # what ExactGP returns of its training inputs

    trained = [p for p in model.parameters() if p.requires_grad]
    if policy.log_nu.requires_grad:
        trained.append(policy.log_nu)
    return Model([*networks(policy.prior), *trained], posterior, log_likelihood, gpytorch_settings)


def single_task_gp(parts: tuple[Any, Any, Any], u_o: Float[Tensor, "*s t u"], y_o: Float[Tensor, "*s t"]) -> Any:
    """BoTorch's model of what was observed, with a likelihood, a mean and a kernel that are not fitted again."""
    likelihood, mean, kernel = parts
    with warnings.catch_warnings(), validate_input_scaling(False):
        warnings.simplefilter("ignore")  # single precision
        return SingleTaskGP(
            u_o, y_o.unsqueeze(-1), likelihood=likelihood, covar_module=kernel, mean_module=mean, outcome_transform=None
        )


@contextlib.contextmanager
def gpytorch_settings() -> Iterator[None]:
    settings = gpytorch.settings
    with (
        settings.detach_test_caches(False),  # gradients go through the observed points, too
        settings.fast_computations(False, False, False),  # Cholesky, not conjugate gradients: t is small
        settings.fast_pred_var(),
        settings.max_eager_kernel_size(1),  # else N + t points are few enough for GPyTorch to evaluate N x N
        settings.debug(False),
    ):
        yield


Scorer = Callable[[Tensor, Tensor], Tensor]
"""(observed, y_o) to the scores of all candidates; called once a query, in order."""


def mutual_information(policy: KernelPolicy, posterior: Posterior, u: Float[Tensor, "s n u"]) -> Scorer:
    """GP-MI, which remembers the variances at earlier queries."""
    xi, before, nu = u.new_zeros(len(u), 1), None, policy.log_nu.exp()

    def scores(observed: Tensor, y_o: Tensor) -> Tensor:
        nonlocal xi, before
        mean, var = posterior(u, observed, y_o)
        if before is not None:
            xi = xi + before.gather(1, observed[:, -1:])
        before = var
        bonus = (var + xi).sqrt() - xi.clamp_min(1e-12).sqrt()  # Eq. (a); the clamp keeps the gradient at xi = 0 finite
        return mean + nu.sqrt() * bonus

    return scores


def search(
    scorer: Scorer,
    settings: Settings,
    y: Float[Tensor, "s n"],
    start: Int[Tensor, "s n0"],
    draw: torch.Generator | None,
    given: Int[Tensor, "s k"] | None = None,
) -> tuple[Int[Tensor, "s k"], Float[Tensor, "s t"]]:
    """The observed candidates, starting points first, and the log-probability of each query, step by step.

    Queries are drawn by softmax, or, without a generator, the best score wins; given candidates are followed.
    """
    observed = start
    free = torch.ones_like(y, dtype=torch.bool).scatter(1, observed, False)
    log_p = []
    for _ in range(settings.queries):
        scores = scorer(observed, y.gather(1, observed)) / settings.temperature
        log_softmax = scores.masked_fill(~free, -torch.inf).log_softmax(dim=1)
        if given is not None:
            chosen = given[:, observed.shape[1], None]
        elif draw is not None:
            chosen = torch.multinomial(log_softmax.detach().exp(), 1, generator=draw)
        else:
            chosen = log_softmax.argmax(dim=1, keepdim=True)
        log_p.append(log_softmax.gather(1, chosen))
        free = free.scatter(1, chosen, False)
        observed = torch.cat((observed, chosen), dim=1)
    return observed, torch.cat(log_p, dim=1)


def take(u: Float[Tensor, "s n u"], observed: Int[Tensor, "s t"]) -> Float[Tensor, "s t u"]:
    return u.gather(1, observed.unsqueeze(2).expand(-1, -1, u.shape[2]))
