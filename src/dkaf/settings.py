"""Every setting, its default and its sentence, in one place; and the recipes made of them.

This module imports no PyTorch, so that the command line can list the settings at once.
"""

import dataclasses
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from dkaf.errors import InputError

Method = Literal["dkaf", "dkl", "gp", "rl", "metabo", "random"]
Acquisition = Literal["mi", "ei", "ucb"]
InputKind = Literal["auto", "counts", "standardise", "raw"]

METHODS: tuple[Method, ...] = get_args(Method)
ACQUISITIONS: tuple[Acquisition, ...] = get_args(Acquisition)
KERNEL_METHODS: tuple[Method, ...] = ("dkaf", "dkl", "gp")
"""Those that have an acquisition function."""
AUTO = "auto"
"""In place of an acquisition: the one with the smallest validation gap."""
# What the experiments search with: beside the paper's methods, what a user would pick without past tasks, and one that
# nobody competes with.
SEARCHERS = (*METHODS, "botorch", "informed")


def _setting(default: Any, sentence: str, **bounds: int) -> Any:
    """A field with its sentence and what bounds it: `above`, `at_least`, `below`, `at_most`."""
    return dataclasses.field(default=default, metadata={"sentence": sentence, "bounds": bounds})


BOUNDS: dict[str, Callable[[float, float], bool]] = {
    "above": operator.gt,
    "at_least": operator.ge,
    "below": operator.lt,
    "at_most": operator.le,
}


@dataclass(frozen=True)
class Settings:
    """How a policy is built and trained. The defaults are the paper's, with the readings of docs/paper.md.

    >>> import dkaf
    >>> dkaf.recipe("paper").gamma
    0.99
    >>> dkaf.recipe("default", updates=200).updates
    200
    """

    # The model
    inputs: InputKind = _setting(
        "auto", "scaling of features: counts (log(1+x)), standardise, raw, or auto by their values"
    )
    layers: int = _setting(4, "linear layers of each network", above=0, at_most=100)
    width: int = _setting(32, "units of each hidden layer, and values of the representation", above=0, at_most=100_000)
    dropout: float = _setting(0.0, "share of hidden units dropped in training", at_least=0, below=1)
    linear_features: int = _setting(
        0, "learned features of a linear kernel added to the RBF one; 0 for none", at_least=0
    )
    learned_mean: bool = _setting(False, "whether the prior mean is learned (else zero)")
    standardise_responses: bool = _setting(
        False, "whether responses are scaled by the training tasks' mean and deviation"
    )
    learned_warp: bool = _setting(
        False, "whether a rising map of the responses is learned with the kernel, which then fits their image"
    )
    nu: float = _setting(
        math.log(2 / 1e-6), "weight of the uncertainty in MI and UCB, at the start if it is learned", above=0
    )
    learned_nu: bool = _setting(False, "whether nu is chosen on validation tasks and then trained with the rest")
    rl_sees_responses: bool = _setting(True, "whether RL's deep set takes [x, y]; the paper prints x alone")

    # The searches it is trained on
    queries: int = _setting(10, "queries of a training or validation search, T", above=0)
    initial: int = _setting(1, "candidates evaluated before the first query, |N_0|", at_least=0)

    # Marginal likelihood: all the training of DKL and GP, and what the others start from
    pretrain_updates: int = _setting(1000, "updates by marginal likelihood, at most", at_least=0)
    pretrain_tasks: int = _setting(16, "tasks of an update by marginal likelihood", above=0)
    pretrain_points: int = _setting(128, "candidates of each of those tasks", above=0)
    pretrain_learning_rate: float = _setting(1e-3, "Adam's learning rate for the marginal likelihood", above=0)
    pretrain_patience: int | None = _setting(
        None, "updates without a better validation likelihood before stopping; none: off", above=0
    )
    pretrain_anneal: bool = _setting(
        False, "whether that learning rate falls to zero, along a cosine, over the updates"
    )
    pretrain_validate_every: int = _setting(50, "updates between two validations of the likelihood", above=0)

    # Policy gradient
    updates: int = _setting(1000, "updates by policy gradient, at most", at_least=0)
    batch: int = _setting(16, "tasks, each with one start, of an update by policy gradient", above=0)
    episodes: int = _setting(1, "episodes from each start", above=0)
    candidates: int | None = _setting(
        None, "candidates of a training search, drawn anew from the pool; none: all of it", above=0
    )
    baseline: Literal["batch", "leave-one-out"] = _setting(
        "batch", "what G_t is compared with: the batch's mean, or the other episodes of its start"
    )
    all_candidates: bool = _setting(
        False,
        "whether a query's own gap is averaged over all it might have drawn, and G_t of later ones (kernel methods)",
    )
    softmax_draws: int | None = _setting(
        None, "candidates that stand for all in the gradient of a network's softmax (RL, MetaBO); none: all", above=0
    )
    gamma: float = _setting(0.99, "discount of later gaps in G_t", above=0, at_most=1)
    temperature: float = _setting(1.0, "the softmax divides scores by this", above=0)
    log_ei: bool = _setting(False, "whether EI's score is log EI (the same choices, another softmax)")
    learning_rate: float = _setting(1e-3, "Adam's learning rate for the policy gradient", above=0)
    encoder_rate: float = _setting(1.0, "what the encoder's learning rate is multiplied by there", at_least=0)
    nu_rate: float = _setting(1.0, "what nu's learning rate is multiplied by there", at_least=0)
    likelihood_weight: float = _setting(
        0.0, "weight of the likelihood term kept beside the policy gradient", at_least=0
    )
    likelihood_points: int = _setting(128, "candidates of each task in that term", above=0)
    weight_decay: float = _setting(0.0, "AdamW's decay of the weights, in both stages", at_least=0)
    clip: float | None = _setting(None, "largest norm of a gradient; none: off", above=0)
    anneal: bool = _setting(False, "whether the learning rate falls to zero, along a cosine, over the updates")

    # The kernel's scales, after either stage, on three validation tasks or more
    scale_updates: int = _setting(
        0, "updates of amplitude, length, noise, nu and the weights of linear part and mean, after those", at_least=0
    )
    scale_learning_rate: float = _setting(0.1, "Adam's learning rate for those", above=0)

    # Validation
    validate_every: int = _setting(10, "updates between two validations", above=0)
    validation_starts: int = _setting(1, "starts of each validation task", above=0)
    patience: int | None = _setting(200, "updates without a better validation gap before stopping; none: off", above=0)

    def __post_init__(self) -> None:
        kinds = get_type_hints(Settings)
        for field in dataclasses.fields(self):
            value = _checked(field.name, kinds[field.name], getattr(self, field.name))
            bounds = field.metadata["bounds"]
            if value is not None and not all(BOUNDS[bound](value, limit) for bound, limit in bounds.items()):
                words = " and ".join(f"{bound.replace('_', ' ')} {limit}" for bound, limit in bounds.items())
                if type(None) in get_args(kinds[field.name]):
                    words += " or none"
                raise InputError(f"setting {field.name} is {words}, {value} came; change it")
            object.__setattr__(self, field.name, value)
        if self.learned_warp and not self.standardise_responses:
            raise InputError(
                "learned_warp takes responses in units of their deviation, standardise_responses is false; "
                "set it to true, or learned_warp to false"
            )
        if self.baseline == "batch" and self.batch * self.episodes < 2:
            raise InputError(
                "baseline batch compares the episodes of an update, batch and episodes are both 1; raise one of them"
            )
        if self.baseline == "leave-one-out" and self.episodes < 2:
            raise InputError(
                f"baseline leave-one-out compares episodes of one start, episodes is {self.episodes}; "
                "set episodes to 2 or more, or baseline to batch"
            )

    def __str__(self) -> str:
        rows = [(f.name, str(getattr(self, f.name)), f.metadata["sentence"]) for f in dataclasses.fields(self)]
        wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(f"{name:<{wide[0]}}  {value:<{wide[1]}}  {sentence}" for name, value, sentence in rows)

    def override(self, **changes: Any) -> "Settings":
        """A copy with some fields changed; an unknown name is refused."""
        known = {f.name for f in dataclasses.fields(self)}
        for name in changes:
            if name not in known:
                raise InputError(f"a setting is one of {', '.join(sorted(known))}; {name!r} is none of them")
        kinds = get_type_hints(Settings)
        return dataclasses.replace(
            self, **{name: _checked(name, kinds[name], value) for name, value in changes.items()}
        )


def _checked(name: str, kind: Any, value: Any) -> Any:
    """The value as its declared type, or a refusal. Text, as it comes from a command line, is read."""
    choices = get_args(kind)
    optional = type(None) in choices
    if optional:
        if value is None or value in ("none", "None", "off"):
            return None
        kind = next(choice for choice in choices if choice is not type(None))
        choices = ()
    if choices:
        if value in choices:
            return value
        raise InputError(f"setting {name} is one of {', '.join(choices)}; {value!r} came")
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    try:
        if kind is bool:
            return value if isinstance(value, bool) else words[str(value).lower()]
        if isinstance(value, bool):
            raise TypeError
        if kind is int:
            if int(value) != float(value):
                raise ValueError
            return int(value)
        number = float(value)
        if not math.isfinite(number):
            raise ValueError
        return number
    except (KeyError, TypeError, ValueError, OverflowError):
        expected = {bool: "true or false", int: "a whole number", float: "a finite number"}[kind]
        raise InputError(f"setting {name} is {expected}{' or none' if optional else ''}; {value!r} came") from None


RECIPES: dict[str, Settings] = {
    # The paper's settings; what it leaves open is decided in docs/paper.md.
    "paper": Settings(),
    # The best we know; docs/research/lower-gap.md has what was measured.
    "default": Settings(
        width=64,
        dropout=0.01,
        linear_features=32,
        learned_mean=True,
        standardise_responses=True,
        learned_warp=True,
        nu=3.0,
        learned_nu=True,
        pretrain_updates=2500,
        pretrain_tasks=24,
        pretrain_points=32,
        pretrain_learning_rate=3e-3,
        pretrain_patience=400,
        pretrain_anneal=True,
        updates=300,
        batch=8,
        episodes=8,
        candidates=200,
        baseline="leave-one-out",
        all_candidates=True,
        temperature=0.0125,
        learning_rate=1e-3,
        encoder_rate=0.05,
        nu_rate=10.0,
        likelihood_weight=1.0,
        likelihood_points=64,
        weight_decay=0.1,
        clip=1.0,
        anneal=True,
        scale_updates=400,
        validate_every=50,
        validation_starts=40,
        patience=None,
    ),
}

# Three kernel parameters take larger steps than a network's weights.
_KERNEL_ALONE = {"pretrain_learning_rate": 0.05}
_KERNEL_SOON = _KERNEL_ALONE | {
    "width": 32,
    "pretrain_updates": 300,
    "pretrain_tasks": 8,
    "pretrain_points": 96,
    "scale_updates": 0,  # they are all that was trained
}
# A network's scores have a scale of their own to learn, and take longer to; scoring all candidates costs it more.
_NETWORK = {
    "width": 32,
    "batch": 16,
    "temperature": 1.0,
    "likelihood_weight": 0.0,
    "learning_rate": 2e-3,
    "weight_decay": 0.01,
    "anneal": False,
    "updates": 800,
    "patience": None,
    "episodes": 4,
    "candidates": 100,
    "all_candidates": False,  # to score them all is what it is spared
    "softmax_draws": 16,
    "validate_every": 25,
    "validation_starts": 4,
    "scale_updates": 0,
}

# Where one recipe differs between methods or acquisitions: an opponent gets what is best for it, not for us.
ADJUSTMENTS: dict[tuple[str, str], dict[str, Any]] = {
    ("paper", "gp"): _KERNEL_ALONE,
    ("paper", "metabo"): _KERNEL_ALONE,
    ("default", "gp"): _KERNEL_SOON,
    ("default", "metabo"): _KERNEL_SOON | _NETWORK | {"learning_rate": 6e-3, "updates": 500},
    ("default", "rl"): _NETWORK,
    ("default", "ei"): {"log_ei": True, "temperature": 0.03},
}


def recipe(name: str, method: str = "dkaf", acquisition: str = "mi", **overrides: Any) -> Settings:
    """The settings of a recipe for one method and acquisition, with some fields overridden.

    >>> import dkaf
    >>> str(dkaf.recipe("paper")).splitlines()[1]
    'layers                   4                   linear layers of each network'
    """
    check_choice("recipe", name, tuple(RECIPES))
    check_choice("method", method, METHODS)
    check_choice("acquisition", acquisition, ACQUISITIONS)
    adjusted = ADJUSTMENTS.get((name, method), {})
    if method in KERNEL_METHODS:
        adjusted = ADJUSTMENTS.get((name, acquisition), {}) | adjusted
    return RECIPES[name].override(**(adjusted | overrides))


def check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{what} is one of {', '.join(choices)}; {value!r} came")
