"""What happened while a policy was trained, and what that is worth."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Gain:
    """How many queries searches of held-out past tasks needed until they had found one of the best candidates."""

    tasks: int
    share: float
    """Which candidates count as best: this share of the pool."""
    most: int
    """How many queries were made at most."""
    policy: float
    """The median; infinite where most searches found none."""
    gp: float
    random: float

    def in_words(self) -> str:
        """As a sentence.

        >>> Gain(tasks=5, share=0.01, most=200, policy=6.0, gp=14.0, random=69.0).in_words()
        'finds a top-1% candidate after 6 queries (median of 5 held-out tasks); a plain GP needs 14, random 69'
        """
        ours, gp, random = (self._count(value) for value in (self.policy, self.gp, self.random))
        held_out = f"median of {self.tasks} held-out task{'' if self.tasks == 1 else 's'}"
        return (
            f"finds a top-{100 * self.share:g}% candidate after {ours} quer{'y' if ours == '1' else 'ies'} "
            f"({held_out}); "
            f"a plain GP needs {gp}, random {random}"
        )

    def _count(self, queries: float) -> str:
        return f"more than {self.most}" if queries == float("inf") else f"{queries:g}"

    def describe(self) -> dict[str, Any]:
        """As JSON knows it, which has no infinity: null is more than `most`."""
        return {name: None if value == float("inf") else value for name, value in vars(self).items()}

    @classmethod
    def of(cls, description: dict[str, Any]) -> "Gain":
        """What `describe` gave."""
        values = {
            name: float("inf") if description[name] is None else float(description[name])
            for name in ("policy", "gp", "random", "share")
        }
        return cls(tasks=int(description["tasks"]), most=int(description["most"]), **values)


@dataclass(frozen=True)
class Training:
    """What happened while a policy was trained."""

    pretrain_updates: int = 0
    updates: int = 0
    """By policy gradient, those of the kernel's scales among them."""
    best_update: int = 0
    """The policy-gradient update whose weights were kept, or a part of the way to them (`stopped` says so).

    0 is the policy before the first.
    """
    validation: tuple[tuple[int, float], ...] = ()
    """(update, cumulative gap on the validation tasks in units of y) at each validation of the policy gradient.

    The last is of what was kept, where the kernel's scales were learned; of the best there was, if nothing was kept.
    """
    tried: tuple[tuple[str, float], ...] = ()
    """Validation gaps of all that acquisition="auto" chose from, in units of y."""
    stopped: str = ""
    """Why training ended, in words."""
    tasks: tuple[tuple[str, int], ...] = ()
    """Name and number of candidates of each training task, where they came from tables."""
    gain: Gain | None = None
    """What was gained on past tasks that were held out of training, where that was measured."""
    seconds: dict[str, float] = field(default_factory=dict, compare=False)
    """Seconds of each stage; not stored in the file, so that equal policies are equal files."""

    def describe(self) -> dict[str, Any]:
        """As a policy file keeps it."""
        kept = {name: value for name, value in vars(self).items() if name != "seconds"}
        return kept | {"gain": None if self.gain is None else self.gain.describe()}

    def in_words(self) -> str:
        """What happened, as a sentence.

        >>> Training(updates=300, best_update=210, validation=((0, 8.1), (210, 6.6)), stopped="did all 300").in_words()
        'did all 300: validation gap 6.6 at update 210, was 8.1 before end-to-end training'
        >>> Training(validation=((0, 8.1),), stopped="interrupted").in_words()
        'interrupted: validation gap 8.1 before end-to-end training'
        """
        words = self.stopped
        if self.validation:
            before, training = f"{self.validation[0][1]:.4g}", "end-to-end training"
            if self.best_update:
                gap = dict(self.validation)[self.best_update]
                words += f": validation gap {gap:.4g} at update {self.best_update}, was {before} before {training}"
            elif len(self.validation) == 1:
                words += f": validation gap {before} before {training}"
            else:
                words += f": validation gap {before}, not lowered by {training}, which was taken back"
        if self.tried:
            gaps = ", ".join(f"{name} {gap:.4g}" for name, gap in self.tried)
            words += f"; returned for the smallest of the validation gaps {gaps}"
        return words
