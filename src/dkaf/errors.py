"""What the software says when it cannot go on."""

import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dkaf.policies import Policy


class InputError(ValueError):
    """Something the caller gave breaks a rule; the message names the rule, what came, and the way out."""


class DivergedError(InputError):
    """Training left the finite numbers; the message says what to lower."""


class DamagedError(InputError):
    """A file is not as it was written."""


class BusyError(InputError):
    """Somebody else is writing; later it will be possible."""


class NoRoomError(InputError):
    """A file cannot be written now: its disk is full, or fails."""


class Interrupted(KeyboardInterrupt):
    """Training was interrupted; `policy` is the best one found until then, ready to use or save.

    Nothing is lost by Ctrl-C:

    >>> try:
    ...     policy = dkaf.fit(train, validation)  # doctest: +SKIP
    ... except dkaf.Interrupted as interrupted:
    ...     policy = interrupted.policy
    """

    def __init__(self, policy: "Policy") -> None:
        super().__init__("training was interrupted; the best policy so far is in .policy")
        self.policy = policy


class FallbackWarning(UserWarning):
    """Training did not do on the validation tasks what it is for; the message says what is returned.

    To be told by an exception would lose the policy: leave this one a warning.
    """


def whole_number(what: str, value: Any) -> int:
    """The value as an int; NumPy's integers count, 3.0 does not."""
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{what} is a whole number, {value!r} came; pass an integer") from None
