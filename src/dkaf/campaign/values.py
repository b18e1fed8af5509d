"""What goes into a campaign and what comes out of it, as values."""

from typing import Any, NamedTuple

from dkaf.errors import InputError, whole_number

LARGEST = 1e15  # response


class Candidate(NamedTuple):
    """What to try next, and what is expected of it."""

    id: str
    mean: float | None
    """The response expected, exceeded as likely as not; None for policies that expect nothing."""
    deviation: float | None
    """Its spread, noise included: half of the central 68 %."""
    score: float
    """What the policy ranks by; comparable within one answer only."""
    columns: dict[str, str]
    """The candidate's row of the pool, as it came."""


class Measurement(NamedTuple):
    """A response that was told."""

    id: str
    value: float
    at: str
    """When it was told, in UTC."""
    asked: bool
    """Whether the campaign had asked for it."""
    known: bool
    """Whether it was imported at creation."""
    who: str | None
    """Who told it, where that is known."""


class Best(NamedTuple):
    """The best candidate so far; of repeated measurements, the mean counts."""

    id: str
    value: float
    measurements: int


def checked_response(id_: str, value: Any) -> float:
    """A response as people write it: a number that can be worked with."""
    try:
        plain = not isinstance(value, str) or (value.isascii() and "_" not in value)  # as people write numbers
        number = float(value) if plain else None
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None:
        raise InputError(f"a response is a number, {value!r} came for {id_!r}; tell a number, or that it failed")
    if not abs(number) <= LARGEST:
        raise InputError(
            f"responses are finite and within +-{LARGEST:g}, {number} came for {id_!r}; rescale it, or tell that it "
            "failed"
        )
    return number


def checked_budget(budget: Any) -> int | None:
    """How many evaluations, or None."""
    if budget is None:
        return None
    number = whole_number("the budget", budget)
    if number < 1:
        raise InputError(f"a budget is at least 1 evaluation, {number} came; leave it out for no limit")
    return number


def checked_word(what: str, word: Any) -> str | None:
    """A name or a key, as it can be kept: a text, or None."""
    if word is not None and (not isinstance(word, str) or not _is_unicode(word)):
        raise InputError(f"{what} is a text, {word!r} came; pass one, str(...) for instance")
    return word


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
