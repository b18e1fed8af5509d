"""What several callers want of one campaign at once."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dkaf.campaign.values import Candidate

MOST_CHOSEN = 64  # for several callers at once


class Wish(NamedTuple):
    """What one caller asks for."""

    n: int
    who: str | None
    key: str | None
    wanted: Callable[[], bool] | None = None


class Telling(NamedTuple):
    """What one caller tells: all of it or nothing."""

    measurements: list[tuple[str, float]]
    failed: list[str]
    who: str | None
    key: str | None


def groups(wishes: Sequence[Wish]) -> Iterator[list[Wish]]:
    """In order, as many as a search names at once; two of one key are one after the other, so that they are one."""
    group: list[Wish] = []
    for wish in wishes:
        twice = wish.key is not None and any(other.key == wish.key for other in group)
        if group and (twice or sum(other.n for other in group) + wish.n > MOST_CHOSEN):
            yield group
            group = []
        group.append(wish)
    if group:
        yield group


def granted(answers: "Sequence[tuple[Candidate, ...] | BaseException]", wishes: Sequence[Wish]) -> int:
    """How many candidates are to be chosen."""
    return sum(wish.n for answer, wish in zip(answers, wishes, strict=True) if answer == ())
