"""What the software says when it cannot go on."""


class InputError(ValueError):
    """Something the caller gave breaks a rule; the message names the rule, what came, and the way out."""


class Interrupted(KeyboardInterrupt):
    """Training was interrupted; `policy` is the best one found until then, ready to use or save.

    Nothing is lost by Ctrl-C:

    >>> try:
    ...     policy = dkaf.fit(train, validation)  # doctest: +SKIP
    ... except dkaf.Interrupted as interrupted:
    ...     policy = interrupted.policy
    """

    def __init__(self, policy: object) -> None:
        super().__init__("training was interrupted; the best policy so far is in .policy")
        self.policy = policy
