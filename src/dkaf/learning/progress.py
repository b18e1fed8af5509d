"""What training tells while it goes on."""

from typing import NamedTuple


class Progress(NamedTuple):
    """How far a training is: what `fit(progress=...)` is called with after every update."""

    stage: str
    """`likelihood`, the same with `, another start`, `policy gradient`, or `scales by` one of the two.

    Of several policies to choose from, with one's name.
    """
    update: int
    updates: int
    """The updates this stage does at most."""
    validation_gap: float | None
    """The newest cumulative gap on the validation tasks, in units of y."""
