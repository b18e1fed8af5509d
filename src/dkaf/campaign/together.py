"""What several threads want at once, done at once: one commit, or one fit, for all that wait.

Who comes while work is under way waits for its end; one of those that wait then works for all of them, in the order in
which they came. Nobody waits for longer than the work that is under way and the next.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Generic, TypeVar

Wish = TypeVar("Wish")
Answer = TypeVar("Answer")

MOST = 64  # wishes at once


class Turns:
    """So many at once; who has waited for a while goes on anyway, for another's work may be stuck."""

    def __init__(self, n: int, seconds: float = 5.0) -> None:
        self._free, self._seconds = threading.BoundedSemaphore(n), seconds

    @contextmanager
    def one(self) -> Iterator[None]:
        taken = self._free.acquire(timeout=self._seconds)
        try:
            yield
        finally:
            if taken:
                self._free.release()


class _Waiting(Generic[Wish, Answer]):
    """A wish, and what became of it."""

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self.answer: Answer | BaseException | None = None
        self.done = False


class Together(Generic[Wish, Answer]):
    """`work` gets wishes, and gives an answer or an exception for each.

    It is done in a turn of `turns`, which others may have: who comes until then is still among those who are answered.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Wish]], Sequence[Answer | BaseException]],
        turns: Turns | None = None,
    ) -> None:
        self._work, self._turns = work, turns
        self._waiting: deque[_Waiting[Wish, Answer]] = deque()
        self._working = threading.Lock()

    def do(self, wish: Wish) -> Answer:
        """The answer to one wish, or its exception."""
        mine: _Waiting[Wish, Answer] = _Waiting(wish)
        self._waiting.append(mine)
        with self._working:
            while not mine.done:
                with nullcontext() if self._turns is None else self._turns.one():
                    self._take_turn()
        if isinstance(mine.answer, BaseException):
            raise mine.answer
        return mine.answer  # type: ignore[return-value]

    def _take_turn(self) -> None:
        taken = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
        try:
            answers = self._work([waiting.wish for waiting in taken])
        except BaseException as error:
            for waiting in taken:
                waiting.answer, waiting.done = error, True
            if not isinstance(error, Exception):  # Ctrl-C is this thread's own
                raise
            return
        for waiting, answer in zip(taken, answers, strict=True):
            waiting.answer, waiting.done = answer, True
