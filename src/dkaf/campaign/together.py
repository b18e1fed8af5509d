"""What several threads want at once, done at once: one commit, or one fit, for all that wait.

Who comes while work is under way waits for its end; one of those that wait then works for all of them, in the order in
which they came, so that nobody waits for more than a few pieces of work. A process that forks while threads are at it
leaves the child without them: open the campaign again there.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from dkaf.errors import BusyError

Wish = TypeVar("Wish")
Answer = TypeVar("Answer")

MOST = 64  # wishes at once
INTERRUPTED = "the thread that did this for several was interrupted, and whether it was done is not known; try again"


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
    """`work` gets wishes, and gives an answer or an exception for each."""

    def __init__(self, work: Callable[[Sequence[Wish]], Sequence[Answer | BaseException]]) -> None:
        self._work = work
        self._waiting: deque[_Waiting[Wish, Answer]] = deque()
        self._working = threading.Lock()

    def do(self, wish: Wish) -> Answer:
        """The answer to one wish, or its exception."""
        mine: _Waiting[Wish, Answer] = _Waiting(wish)
        self._waiting.append(mine)
        try:
            with self._working:
                while not mine.done:
                    self._take_turn()
        except BaseException:  # Ctrl-C: what nobody waits for is not done
            with suppress(ValueError):
                self._waiting.remove(mine)
            raise
        if isinstance(mine.answer, BaseException):
            raise mine.answer
        return mine.answer  # type: ignore[return-value]

    def _take_turn(self) -> None:
        taken: list[_Waiting[Wish, Answer]] = []
        answers: Sequence[Answer | BaseException] = ()
        try:
            while self._waiting and len(taken) < MOST:
                taken.append(self._waiting.popleft())
            answers = self._work([waiting.wish for waiting in taken])
        except Exception as error:
            answers = [error] * len(taken)
        finally:  # after Ctrl-C too, which is this thread's own: the others are told to try again
            for place, waiting in enumerate(taken):
                waiting.answer = answers[place] if place < len(answers) else BusyError(INTERRUPTED)
                waiting.done = True
