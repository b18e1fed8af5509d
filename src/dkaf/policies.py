"""Who picks the next candidate: every method of the paper behind one interface.

Training, evaluation and a user's search all call the same five methods of `Policy`:

    points   encode a batch of pools (the only step that touches the features)
    begin    the state before anything was observed
    observe  the state after one observation more
    scores   what each candidate deserves now; the largest is queried
    episode_scores   the scores before every query of a whole episode at once, with gradients

Shapes: S starts (pools) in a batch, E episodes a start, N candidates, T queries, k observed points.
"""

import copy
import dataclasses
import math
import os
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import dkaf.checkpoint as checkpoint
from dkaf.errors import InputError
from dkaf.model.acquisition import ACQUISITIONS, Outlook
from dkaf.model.encoders import FeedForward
from dkaf.model.inputs import Inputs, Rows
from dkaf.model.posterior import Beliefs, condition, prior_beliefs, trajectory
from dkaf.model.prior import Points, Pool, Prior, pick_rows
from dkaf.seeding import global_stream
from dkaf.settings import ACQUISITIONS as ACQUISITION_NAMES
from dkaf.settings import METHODS, Settings, check_choice


@dataclasses.dataclass(frozen=True)
class Training:
    """What happened while a policy was trained."""

    pretrain_updates: int = 0
    updates: int = 0
    best_update: int = 0
    """The policy-gradient update whose weights were kept; 0 is the policy before the first."""
    validation: tuple[tuple[int, float], ...] = ()
    """(update, cumulative gap on the validation tasks in units of y) at each validation of the policy gradient."""
    stopped: str = ""
    """Why training ended, in words."""
    seconds: dict[str, float] = dataclasses.field(default_factory=dict, compare=False)
    """Seconds of each stage; not stored in the file, so that equal policies are equal files."""

    def in_words(self) -> str:
        """What happened, as a sentence.

        >>> Training(updates=310, best_update=210, validation=((0, 8.1), (210, 6.6)), stopped="no luck").in_words()
        'no luck after 310 updates: validation gap 6.6 (update 210), was 8.1 before end-to-end training'
        """
        if not self.validation:
            return self.stopped
        gaps = dict(self.validation)
        return (
            f"{self.stopped} after {self.updates} updates: validation gap {gaps[self.best_update]:.4g} "
            f"(update {self.best_update}), was {self.validation[0][1]:.4g} before end-to-end training"
        )


class Policy(nn.Module):
    """A way to search, trained or not. Use `dkaf.fit` to make one and `dkaf.load` to read one."""

    method: str
    deterministic = True
    uses_likelihood = False
    """Whether there is a Gaussian process whose marginal likelihood can be trained."""

    def __init__(self, inputs: Inputs, acquisition: str, settings: Settings) -> None:
        super().__init__()
        self.inputs = inputs
        self.acquisition = acquisition
        self.settings = settings
        self.training_log = Training()
        self.register_buffer("response_shift", torch.zeros((), dtype=torch.float64))
        self.register_buffer("response_scale", torch.ones((), dtype=torch.float64))

    response_shift: Tensor
    response_scale: Tensor

    @property
    def device(self) -> torch.device:
        return self.response_shift.device

    @property
    def dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.parameters()), torch.get_default_dtype())

    @property
    def n_features(self) -> int:
        return self.inputs.n_features

    def scaled(self, y: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Responses in the units that the model works in."""
        return ((y - self.response_shift) / self.response_scale).to(self.dtype)

    def points(self, x: Rows, pool: Pool) -> Any:
        raise NotImplementedError

    def begin(self, points: Any, episodes: int, generator: torch.Generator) -> Any:
        raise NotImplementedError

    def observe(
        self, points: Any, state: Any, chosen: Int[Tensor, "s e"], y: Float[Tensor, "s e"], *, queried: bool
    ) -> Any:
        """`queried` is false for the points that were there before the first query."""
        raise NotImplementedError

    def scores(self, points: Any, state: Any) -> Float[Tensor, "s e n"]:
        raise NotImplementedError

    def episode_scores(
        self, points: Any, chosen: Int[Tensor, "s e k"], y: Float[Tensor, "s e k"], initial: int
    ) -> Float[Tensor, "s e t n"]:
        """The scores before each of the k - initial queries, given all that was observed, in order."""
        raise NotImplementedError

    def trained_by_gradient(self) -> list[nn.Parameter]:
        """What the policy gradient trains; nothing for policies that are not trained by it."""
        return []

    def describe(self) -> dict[str, Any]:
        """All that is needed, beside the tensors, to build this policy again."""
        return {
            "method": self.method,
            "acquisition": self.acquisition,
            "settings": dataclasses.asdict(self.settings),
            "n_features": self.n_features,
            "inputs": self.inputs.kind,
            "encoder": None,
            "training": {k: v for k, v in dataclasses.asdict(self.training_log).items() if k != "seconds"},
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy, whole or not at all, as a safetensors file."""
        checkpoint.write(path, self.state_dict(), self.describe())


class GaussianState(NamedTuple):
    beliefs: Beliefs
    best: Float[Tensor, "s e"]
    xi: Float[Tensor, "s e"]


class GaussianPolicy(Policy):
    """What all policies share that believe a Gaussian process: how observing moves the beliefs."""

    prior: Prior
    uses_likelihood = True

    def begin(self, points: Any, episodes: int, generator: torch.Generator) -> GaussianState:
        kernel_points = self.kernel_points(points)
        beliefs = prior_beliefs(kernel_points.mean, self.prior.variance(kernel_points), episodes)
        nothing = beliefs.mean.new_zeros(beliefs.mean.shape[:2])
        return GaussianState(beliefs, nothing - math.inf, nothing)

    def observe(
        self, points: Any, state: GaussianState, chosen: Int[Tensor, "s e"], y: Float[Tensor, "s e"], *, queried: bool
    ) -> GaussianState:
        k_ox = self.prior.covariance(self.kernel_points(points), chosen)
        before = state.beliefs.var.gather(2, chosen.unsqueeze(-1)).squeeze(-1)
        beliefs = condition(state.beliefs, self.prior.noise, k_ox, chosen, y)
        xi = state.xi + before if queried else state.xi  # PAPER-NOTES 3: the variance BEFORE it is observed
        return GaussianState(beliefs, torch.maximum(state.best, y), xi)

    def kernel_points(self, points: Any) -> Points:
        return points  # type: ignore[no-any-return]


class KernelPolicy(GaussianPolicy):
    """Encoder, Gaussian process, acquisition function: the paper's model, and, trained otherwise, DKL and GP."""

    def __init__(
        self, inputs: Inputs, acquisition: str, settings: Settings, method: str, encoder: nn.Module | None
    ) -> None:
        super().__init__(inputs, acquisition, settings)
        self.method = method
        self.custom_encoder = None if encoder is None else type(encoder).__qualname__
        if method == "gp":
            self.prior = Prior(None, inputs.n_features, linear_features=0, learned_mean=False)
        else:
            width = settings.width
            if encoder is None:
                encoder = FeedForward(
                    inputs.n_features, width, layers=settings.layers, width=width, dropout=settings.dropout
                )
            else:
                encoder = copy.deepcopy(encoder)  # the caller's module stays as it was
                width = _probe(encoder, inputs.n_features)
            self.prior = Prior(
                encoder, width, linear_features=settings.linear_features, learned_mean=settings.learned_mean
            )
        self.log_nu = nn.Parameter(torch.tensor(math.log(settings.nu)), requires_grad=settings.learned_nu)
        self.acquire = ACQUISITIONS["log_ei" if acquisition == "ei" and settings.log_ei else acquisition]

    def trained_by_gradient(self) -> list[nn.Parameter]:
        return [p for p in self.parameters() if p.requires_grad] if self.method == "dkaf" else []

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"encoder": self.custom_encoder}

    def points(self, x: Rows, pool: Pool) -> Points:
        return self.prior.points(x, pool)

    def scores(self, points: Points, state: GaussianState) -> Float[Tensor, "s e n"]:
        return self._acquire(Outlook(state.beliefs.mean, state.beliefs.var, state.best, state.xi))

    def episode_scores(
        self, points: Points, chosen: Int[Tensor, "s e k"], y: Float[Tensor, "s e k"], initial: int
    ) -> Float[Tensor, "s e t n"]:
        return self._acquire(_before_queries(self.prior, points, chosen, y, initial))

    def _acquire(self, outlook: Outlook) -> Tensor:
        # Before any observation EI improves on 0: with scaled responses, the training tasks' average.
        outlook = outlook._replace(best=outlook.best.where(outlook.best > -math.inf, 0.0))
        return self.acquire(outlook, self.log_nu.exp())


class MetaBOPoints(NamedTuple):
    kernel: Points
    hidden: Float[Tensor, "s n h"]


class MetaBOPolicy(GaussianPolicy):
    """Eq. (pnmb): a network takes the mean and variance of a GP on x, and x. The GP is fixed after its likelihood."""

    method = "metabo"

    def __init__(self, inputs: Inputs, acquisition: str, settings: Settings) -> None:
        super().__init__(inputs, acquisition, settings)
        self.prior = Prior(None, inputs.n_features, linear_features=0, learned_mean=False)
        self.network = FeedForward(inputs.n_features + 2, 1, layers=settings.layers, width=settings.width)

    def points(self, x: Rows, pool: Pool) -> MetaBOPoints:
        with torch.no_grad():
            kernel = self.prior.points(x, pool)
        return MetaBOPoints(kernel, pick_rows(self.network.first(x, slice(2, None)), pool.rows))

    def trained_by_gradient(self) -> list[nn.Parameter]:
        return list(self.network.parameters())

    def kernel_points(self, points: MetaBOPoints) -> Points:
        return points.kernel

    def scores(self, points: MetaBOPoints, state: GaussianState) -> Float[Tensor, "s e n"]:
        return self._network(points.hidden.unsqueeze(1), state.beliefs.mean, state.beliefs.var)

    def episode_scores(
        self, points: MetaBOPoints, chosen: Int[Tensor, "s e k"], y: Float[Tensor, "s e k"], initial: int
    ) -> Float[Tensor, "s e t n"]:
        with torch.no_grad():
            outlook = _before_queries(self.prior, points.kernel, chosen, y, initial)
        return self._network(points.hidden[:, None, None], outlook.mean, outlook.var)

    def _network(self, hidden: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        outputs = self.network.first(torch.stack((mean, var), dim=-1), slice(0, 2), bias=False)
        return self.network.after_first(hidden + outputs).squeeze(-1)


class DeepSetPoints(NamedTuple):
    observed: Float[Tensor, "s n h"]
    query: Float[Tensor, "s n h"]


class DeepSetState(NamedTuple):
    total: Float[Tensor, "s e h"]
    observed: int


class DeepSetPolicy(Policy):
    """Eq. (pnrl): RL, a deep set of the observed points and a network of [x, z]."""

    method = "rl"

    def __init__(self, inputs: Inputs, acquisition: str, settings: Settings) -> None:
        super().__init__(inputs, acquisition, settings)
        width, n = settings.width, inputs.n_features
        seen = 1 if settings.rl_sees_responses else 0  # PAPER-NOTES 4: as printed it cannot see responses
        shape = {"layers": max(settings.layers - 1, 1), "width": width}
        self.element = FeedForward(n + seen, width, **shape)
        self.summary = FeedForward(width, width, **shape)
        self.network = FeedForward(n + width, 1, layers=settings.layers, width=width)

    def trained_by_gradient(self) -> list[nn.Parameter]:
        return list(self.parameters())

    def points(self, x: Rows, pool: Pool) -> DeepSetPoints:
        n = slice(0, self.n_features)
        observed, query = (pick_rows(network.first(x, n), pool.rows) for network in (self.element, self.network))
        return DeepSetPoints(observed, query)

    def begin(self, points: DeepSetPoints, episodes: int, generator: torch.Generator) -> DeepSetState:
        return DeepSetState(points.query.new_zeros(len(points.query), episodes, self.settings.width), 0)

    def observe(
        self,
        points: DeepSetPoints,
        state: DeepSetState,
        chosen: Int[Tensor, "s e"],
        y: Float[Tensor, "s e"],
        *,
        queried: bool,
    ) -> DeepSetState:
        return DeepSetState(state.total + self._elements(points, chosen, y), state.observed + 1)

    def scores(self, points: DeepSetPoints, state: DeepSetState) -> Float[Tensor, "s e n"]:
        return self._scores(points.query.unsqueeze(1), state.total / max(state.observed, 1))

    def episode_scores(
        self, points: DeepSetPoints, chosen: Int[Tensor, "s e k"], y: Float[Tensor, "s e k"], initial: int
    ) -> Float[Tensor, "s e t n"]:
        _, E, k = chosen.shape
        elements = self._elements(points, chosen.flatten(1), y.flatten(1)).unflatten(1, (E, k))
        totals = torch.cat((torch.zeros_like(elements[:, :, :1]), elements.cumsum(dim=2)), dim=2)[:, :, initial:-1]
        counts = torch.arange(initial, k, device=y.device).clamp_min(1)
        return self._scores(points.query[:, None, None], totals / counts.unsqueeze(-1))

    def _elements(self, points: DeepSetPoints, chosen: Int[Tensor, "s m"], y: Float[Tensor, "s m"]) -> Tensor:
        hidden = points.observed.gather(1, chosen.unsqueeze(-1).expand(-1, -1, points.observed.shape[-1]))
        if self.settings.rl_sees_responses:
            hidden = hidden + self.element.first(y.unsqueeze(-1), slice(self.n_features, None), bias=False)
        return self.element.after_first(hidden)

    def _scores(self, query: Float[Tensor, "s *t n h"], mean: Float[Tensor, "s *u h"]) -> Tensor:
        context = self.network.first(self.summary(mean), slice(self.n_features, None), bias=False)
        return self.network.after_first(query + context.unsqueeze(-2)).squeeze(-1)


class RandomState(NamedTuple):
    order: Float[Tensor, "s e n"]


class RandomPolicy(Policy):
    """Any candidate, as likely as another."""

    method = "random"
    deterministic = False

    def points(self, x: Rows, pool: Pool) -> Pool:
        return pool

    def begin(self, points: Pool, episodes: int, generator: torch.Generator) -> RandomState:
        S, N = points.rows.shape
        return RandomState(torch.rand(S, episodes, N, generator=generator).to(self.device))

    def observe(
        self, points: Pool, state: RandomState, chosen: Int[Tensor, "s e"], y: Float[Tensor, "s e"], *, queried: bool
    ) -> RandomState:
        return state

    def scores(self, points: Pool, state: RandomState) -> Float[Tensor, "s e n"]:
        return state.order


def _before_queries(
    prior: Prior, points: Points, chosen: Int[Tensor, "s e k"], y: Float[Tensor, "s e k"], initial: int
) -> Outlook:
    """What is known before each query. The last observation is left out: no query follows it."""
    chosen, y = chosen[..., :-1], y[..., :-1]
    K_ox = prior.covariance(points, chosen.flatten(1)).unflatten(1, chosen.shape[1:])
    mean, var, pivots = trajectory(points.mean, prior.variance(points), prior.noise, K_ox, chosen, y)
    nothing = torch.full_like(mean[:, :, :1, 0], -math.inf)
    best = torch.cat((nothing, y), dim=-1).cummax(dim=-1).values
    xi = torch.cat((torch.zeros_like(nothing), pivots[..., initial:].cumsum(dim=-1)), dim=-1)
    return Outlook(mean[:, :, initial:], var[:, :, initial:], best[..., initial:], xi)


def _probe(encoder: nn.Module, n_features: int) -> int:
    """How many values the user's encoder gives for one row."""
    encoder.eval()
    with torch.no_grad():
        z = encoder(torch.zeros(2, n_features))
    if z.ndim != 2 or z.shape[0] != 2:
        raise InputError(
            f"an encoder maps rows x {n_features} to rows x values, shape {tuple(z.shape)} came for 2 rows"
        )
    return int(z.shape[1])


def build(
    method: str, acquisition: str, settings: Settings, inputs: Inputs, encoder: nn.Module | None = None
) -> Policy:
    """An untrained policy. Its initial weights come from PyTorch's global generator."""
    if encoder is not None and method not in ("dkaf", "dkl"):
        raise InputError(f"encoder= is for the methods dkaf and dkl, {method} has none; leave it out")
    if method in ("dkaf", "dkl", "gp"):
        return KernelPolicy(inputs, acquisition, settings, method, encoder)
    others = {"metabo": MetaBOPolicy, "rl": DeepSetPolicy, "random": RandomPolicy}
    return others[method](inputs, acquisition, settings)


def load(
    path: str | os.PathLike[str], *, encoder: nn.Module | None = None, device: str | torch.device = "cpu"
) -> Policy:
    """Read a policy that `Policy.save` wrote. Runs nothing from the file.

    A policy with an encoder of your own needs that module again: the file holds its weights, not its code.
    """
    tensors, description = checkpoint.read(path)
    try:
        settings = Settings(**description["settings"])
        method, acquisition = description["method"], description["acquisition"]
        check_choice("method", method, METHODS)
        check_choice("acquisition", acquisition, tuple(ACQUISITION_NAMES))
        check_choice("inputs", description["inputs"], ("counts", "standardise", "raw"))
        inputs = Inputs(int(description["n_features"]), description["inputs"])
        custom, training = description["encoder"], description["training"]
        log = Training(**training | {"validation": tuple((int(u), float(g)) for u, g in training["validation"])})
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} does not describe a policy ({error}); write it with policy.save") from error
    if custom is not None and encoder is None:
        raise InputError(f"{path} was trained with an encoder of the caller's, {custom}; pass encoder={custom}(...)")
    if custom is None and encoder is not None:
        raise InputError(f"{path} was trained with the built-in encoder; leave encoder= out")
    with global_stream(0, "load"):
        policy = build(method, acquisition, settings, inputs, encoder)
    expected = policy.state_dict()
    wrong = list(expected.keys() ^ tensors.keys())
    wrong += [name for name in expected.keys() & tensors.keys() if expected[name].shape != tensors[name].shape]
    if wrong:
        raise InputError(
            f"the tensors of {path} are not those of its policy ({', '.join(sorted(wrong)[:3])} "
            "missing, extra or of another shape); write it with policy.save"
        )
    policy.load_state_dict(tensors)
    policy.training_log = log
    return policy.to(device).eval()
