"""What training tells while it goes on."""

from typing import NamedTuple


class Progress(NamedTuple):
    """How far a training is: what `fit(progress=...)` is called with after every update."""

    stage: str
    """`likelihood` or `policy gradient`; where several policies are trained to choose from, with the name of one."""
    update: int
    updates: int
    """The updates this stage does at most."""
    validation_gap: float | None
    """The newest cumulative gap on the validation tasks, in units of y."""
