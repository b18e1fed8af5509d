"""What threads want at once is done at once, and each gets its own answer."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from dkaf.campaign.together import Together, Turns
from dkaf.errors import BusyError


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


def test_who_is_interrupted_while_waiting_leaves_nothing_to_be_done() -> None:
    done: list[int] = []
    together = Together(lambda wishes: done.extend(wishes) or list(wishes))  # type: ignore[func-returns-value]

    class Interrupting:
        def __enter__(self) -> None:
            raise KeyboardInterrupt

        def __exit__(self, *_: object) -> None: ...

    free, together._working = together._working, Interrupting()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        together.do(1)
    together._working = free
    assert together.do(2) == 2
    assert done == [2]


def test_an_interrupt_is_the_working_threads_own_and_the_others_may_try_again() -> None:
    begun, go = threading.Event(), threading.Event()

    def work(wishes: Sequence[int]) -> list[int | BaseException]:
        if wishes[0] == 0:
            begun.set()
            go.wait(10)
        if 1 in wishes:
            raise KeyboardInterrupt
        return list(wishes)

    together = Together(work)
    said: dict[int, object] = {}

    def ask(wish: int) -> None:
        try:
            said[wish] = together.do(wish)
        except BaseException as error:
            said[wish] = type(error)

    threads = [threading.Thread(target=ask, args=(wish,)) for wish in range(4)]
    threads[0].start()
    begun.wait(10)
    for wish, thread in enumerate(threads[1:], 1):
        thread.start()
        while len(together._waiting) < wish:
            time.sleep(0.001)
    go.set()
    for thread in threads:
        thread.join(10)
    assert said[0] == 0
    assert sorted(map(str, (said[1], said[2], said[3]))) == sorted(map(str, (KeyboardInterrupt, BusyError, BusyError)))
    assert together.do(5) == 5
