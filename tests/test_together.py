"""What threads want at once is done at once, and each gets its own answer."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from dkaf.campaign.together import Together, Turns


def test_who_waits_is_answered_together_in_order_and_each_for_itself() -> None:
    batches: list[list[int]] = []
    begun, go = threading.Event(), threading.Event()

    def work(wishes: Sequence[int]) -> list[int | BaseException]:
        batches.append(list(wishes))
        begun.set()
        go.wait(10)
        return [ValueError(wish) if wish == 3 else 10 * wish for wish in wishes]

    together = Together(work)
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(together.do, 0)
        begun.wait(10)
        others = []
        for wish in range(1, 6):
            others.append(threads.submit(together.do, wish))
            while len(together._waiting) < wish:
                time.sleep(0.001)
        go.set()
        assert first.result() == 0
        assert [other.result() for other in others if other is not others[2]] == [10, 20, 40, 50]
        with pytest.raises(ValueError, match="3"):
            others[2].result()
    assert batches == [[0], [1, 2, 3, 4, 5]]


def test_work_that_fails_fails_for_all_and_the_next_is_done() -> None:
    def work(wishes: Sequence[int]) -> list[int | BaseException]:
        if 1 in wishes:
            raise OSError("full")
        return list(wishes)

    together = Together(work)
    with pytest.raises(OSError, match="full"):
        together.do(1)
    assert together.do(2) == 2


def test_a_turn_that_never_ends_stops_nobody() -> None:
    turns = Turns(1, seconds=0.05)
    with turns.one(), turns.one():  # the second waited, and went on
        pass
    with turns.one():
        assert not turns._free.acquire(blocking=False)
    assert turns._free.acquire(blocking=False)
