"""A search of one pool that lasts: `ask` what to try, `tell` what it gave, day after day, in one file.

The pool's columns, its prepared features and the policy are kept in the campaign's file, so that the file alone goes
on: a policy file that is trained again, or a pool file that moves, changes nothing.
"""

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

from dkaf.campaign.rows import Rows
from dkaf.campaign.store import ASKED, FAILED, RELEASED, TOLD, UNDONE, Event, State, Store, state_of
from dkaf.campaign.together import Together, Turns
from dkaf.campaign.values import Best, Candidate, Measurement, checked_budget, checked_response, checked_word
from dkaf.campaign.wishes import Telling, Wish, granted, groups
from dkaf.errors import DamagedError, InputError, whole_number

if TYPE_CHECKING:
    from dkaf.campaign.chooser import Chooser
    from dkaf.policies import Policy
    from dkaf.search import Search, Suggestion
    from dkaf.sources.tables import Table

PATIENCE = 0.5  # seconds, of who reads for who writes
TRIES = 3  # at choosing before others have to wait
PROCESSORS = Turns(2)  # more threads that choose at once would only wait for one another
GP = "gp"
"""Instead of a trained policy: a Gaussian process on what the campaign itself observed."""


class Campaign:
    """A search that is kept in a file. Every method may be called from several processes at once.

    >>> import pandas as pd, tempfile, dkaf
    >>> pool = pd.DataFrame({"name": ["a", "b", "c", "d"], "heat": [1.0, 2.0, 3.0, 4.0]})
    >>> folder = tempfile.TemporaryDirectory()
    >>> campaign = dkaf.Campaign.create(folder.name + "/oven.db", pool, "gp", id="name", budget=3)
    >>> first = campaign.ask()[0]
    >>> campaign.tell(first.id, 2.5)
    >>> campaign.best.value, campaign.left
    (2.5, 2)
    >>> folder.cleanup()
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._store = Store(Path(path))
        with self._store.reading() as db:
            self._written = self._store.about(db, "campaign")
        try:
            self._about: dict[str, Any] = json.loads(self._written)
        except ValueError as error:
            raise self._store.damaged(str(error)) from error
        self._chooser: Chooser | None = None
        self.computing = threading.RLock()
        """Held by the one thread that computes with `search`, of those that share this object."""
        self._filing = threading.RLock()  # by the one that reads or writes: SQLite's own lock is waited for by sleeping
        self._events: list[Event] = []
        self._rows = Rows(self._store)
        self._asking = Together(self._ask_together)
        self._telling = Together(self._tell_together)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Campaign":
        """A campaign that `create` made."""
        return cls(path)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        pool: Any,
        policy: "str | os.PathLike[str] | Policy",
        *,
        id: str | None = None,  # noqa: A002 - what the user calls it
        budget: int | None = None,
        minimise: bool | None = None,
        known: Any = None,
        response: str | None = None,
        kinds: Mapping[str, str] | None = None,
        impute: bool = False,
        delimiter: str | None = None,
        encoding: str | None = None,
        seed: int = 0,
        key: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> "Campaign":
        """Begin a campaign on the rows of a table: a CSV, TSV or Parquet file, a pandas or polars frame.

        `policy` is what `fit` trained on tables, or its file, or "gp": no past tasks are needed then, a Gaussian
        process is fitted to what the campaign observes. `id` is the column that names candidates (by default the one
        that the policy was trained with; without any, rows are called 1, 2, ...). `known` are measurements of this pool
        made before: a table with the ids and the column `response`, what `export` wrote, or another campaign. `kinds`
        says what columns are, for "gp", where detection errs. `key` is kept with it, for who wants to see later whether
        this is the one it made. `progress` gets how many candidates are prepared, and of how many.
        """
        from dkaf.campaign.creation import create

        create(
            Path(path), pool, policy, id=id, budget=budget, minimise=minimise, known=known, response=response,
            kinds=kinds, impute=impute, delimiter=delimiter, encoding=encoding, seed=seed, key=key,
            progress=progress,
        )  # fmt: skip
        return cls(path)

    def __repr__(self) -> str:
        return f"Campaign({str(self._store.path)!r}, {len(self)} candidates, {len(self.history)} measurements)"

    def __len__(self) -> int:
        """How many candidates there are."""
        with self._store.reading() as db:
            return self._store.n_candidates(db)

    @property
    def path(self) -> str:
        """Where it is kept."""
        return str(self._store.path)

    def is_the_same(self) -> bool:
        """Whether the file is still the campaign that was opened, and not another one of its name."""
        with self._store.reading() as db:
            return self._store.about(db, "campaign") == self._written

    @property
    def creation_key(self) -> str | None:
        """What its creator called the making of it, if anything."""
        key: str | None = self._about.get("creation_key")
        return key

    @property
    def minimise(self) -> bool:
        return bool(self._about["minimise"])

    @property
    def id_column(self) -> str | None:
        """The pool's column that names candidates; None: they are called by their row numbers."""
        name: str | None = self._about["id"]
        return name

    @property
    def response(self) -> str | None:
        """What is measured, as the past tasks call it."""
        name: str | None = self._about["response"]
        return name

    @property
    def budget(self) -> int | None:
        """How many evaluations the campaign may make; None: no limit."""
        with self._store.reading() as db:
            return self._budget(db)

    @property
    def history(self) -> tuple[Measurement, ...]:
        """All that was told and not taken back, in order."""
        with self._reading() as db:
            return self._measurements(db, self._state(db))

    @property
    def pending(self) -> tuple[str, ...]:
        """What was asked for and neither told, failed nor released."""
        with self._reading() as db:
            return tuple(self._rows.id_of(db, row) for row in self._state(db).pending)

    @property
    def best(self) -> Best | None:
        """The best candidate so far."""
        return self._best(self.history)

    @property
    def left(self) -> int | None:
        """What is left of the budget."""
        with self._reading() as db:
            return self._left(db, self._state(db))

    def ask(
        self,
        n: int = 1,
        *,
        ignore_pool_file: bool = False,
        who: str | None = None,
        key: str | None = None,
        wanted: Callable[[], bool] | None = None,
    ) -> tuple[Candidate, ...]:
        """The `n` candidates to try next, best first; they stay reserved until told, failed or released.

        They are chosen one after the other, those that are pending filled in by what is expected of them. A pool file
        that is not the one that the campaign was created from is refused, unless it may be ignored: the campaign keeps
        the candidates that it was created with. `who` is kept with the reservation. Asked again under the same `key`,
        the answer is the same and nothing more is reserved: who got no answer may ask again. `wanted` is asked before
        anything is reserved, which may be a while: where it says no, nothing is, and `InputError` is raised.
        """
        n = whole_number("n", n)
        if n < 1:
            raise InputError(f"at least 1 candidate is asked for, {n} came; ask for one")
        if not ignore_pool_file and self.pool_changed():
            raise InputError(
                f"a pool stays as it is during a campaign, {self._about['pool']['path']} has changed since "
                f"{self._store.path} was created; put it back, create a new campaign on it with --import, or go on "
                "with the candidates that the campaign keeps: --ignore-pool-file"
            )
        return self._asking.do(Wish(n, checked_word("who", who), checked_word("a key", key), wanted))

    def _ask_together(self, wishes: Sequence[Wish]) -> "list[tuple[Candidate, ...] | BaseException]":
        """Threads that waited for one another ask at once: one choice of several, and one write, instead of many."""
        with PROCESSORS.one(), self.computing:
            chooser = self._chooser_here()
            chooser.prepare()
        answers: list[tuple[Candidate, ...] | BaseException] = []
        for group in groups(wishes):
            try:
                answers += self._ask_group(chooser, group)
            except Exception as error:  # of this group alone: what others got is reserved
                answers += [error] * len(group)
        return answers

    def _ask_group(self, chooser: "Chooser", wishes: Sequence[Wish]) -> "list[tuple[Candidate, ...] | BaseException]":
        for _ in range(TRIES):  # to choose takes time: others should be able to tell meanwhile
            with self._reading() as db:
                state = self._state(db)
                n = granted(self._looked_at(db, state, wishes), wishes)
            with PROCESSORS.one(), self.computing:
                chosen = chooser.choose(n, state) if n else ()
            with self._writing() as db:
                state = self._state(db)
                answers = self._looked_at(db, state, wishes)
                taken = state.taken()
                if granted(answers, wishes) <= n and not any(suggestion.row in taken for suggestion in chosen):
                    return self._reserved(db, chosen, wishes, answers)
        with self.computing, self._writing() as db:  # others are too busy: now they wait
            state = self._state(db)
            answers = self._looked_at(db, state, wishes)
            n = granted(answers, wishes)
            return self._reserved(db, chooser.choose(n, state) if n else (), wishes, answers)

    def _looked_at(
        self, db: sqlite3.Connection, state: State, wishes: Sequence[Wish]
    ) -> "list[tuple[Candidate, ...] | BaseException]":
        """What was answered before, and what there is no room for; nothing for those that get new candidates."""
        answers: list[tuple[Candidate, ...] | BaseException] = []
        given = 0
        for wish in wishes:
            try:
                before = self._asked_before(db, wish.key)
                if not before:
                    if wish.wanted is not None and not wish.wanted():
                        raise InputError("the answer is not wanted any more, nothing is reserved; ask again")
                    self._check_room(db, state, wish.n, given)
                    given += wish.n
                answers.append(before)
            except InputError as error:
                answers.append(error)
        return answers

    def _reserved(
        self,
        db: sqlite3.Connection,
        chosen: "Sequence[Suggestion]",
        wishes: Sequence[Wish],
        answers: "list[tuple[Candidate, ...] | BaseException]",
    ) -> "list[tuple[Candidate, ...] | BaseException]":
        """The answers, with candidates reserved for those that have none yet."""
        left = list(chosen)
        for place, wish in enumerate(wishes):
            if answers[place] == ():
                own, left = left[: wish.n], left[wish.n :]
                for suggestion in own:
                    self._store.add(db, ASKED, suggestion.row, who=wish.who, key=wish.key)
                answers[place] = self._candidates(db, own)
        return answers

    def _asked_before(self, db: sqlite3.Connection, key: str | None) -> tuple[Candidate, ...]:
        """What this key was answered with, but for what was expected then."""
        return self._candidates(db, [(row, 0.0, None, None) for row in self._store.rows_of_key(db, (ASKED,), key)])

    def _check_room(self, db: sqlite3.Connection, state: State, n: int, given: int) -> None:
        """Refuse to ask for more than the budget and the pool have, when so many are being given out."""
        left = self._left(db, state)
        left = None if left is None else max(0, left - given)
        if left is not None and n > left:
            raise InputError(
                f"the budget is {self._budget(db)} evaluations, {left} are left and {n} were asked for; ask for "
                f"fewer, or raise it: dkaf campaign budget {self._store.path} N"
            )
        free = self._store.n_candidates(db) - len(state.taken()) - given
        if n > free:
            way_out = "ask for fewer" if free else "the pool is used up, unless you release some"
            raise InputError(f"{n} candidates were asked for, {free} are neither told, pending nor failed; {way_out}")

    def _candidates(
        self, db: sqlite3.Connection, chosen: Sequence[tuple[int, float, float | None, float | None]]
    ) -> tuple[Candidate, ...]:
        rows = [row for row, _, _, _ in chosen]
        return tuple(
            Candidate(self._rows.id_of(db, row), None if mean is None else self.signed(mean), deviation, score, columns)
            for (row, score, mean, deviation), columns in zip(chosen, self._rows.columns(db, rows), strict=True)
        )

    def tell(
        self,
        id: str,  # noqa: A002
        value: SupportsFloat | str,
        *,
        who: str | None = None,
        key: str | None = None,
    ) -> None:
        """What a candidate gave, also one that was never asked for; on disk when this returns.

        A candidate may be measured again: every measurement counts, as noisy ones do. `who` is kept with it; told again
        under the same `key`, nothing happens.
        """
        self.tell_all([(id, value)], who=who, key=key)

    def tell_all(
        self,
        measurements: Sequence[tuple[str, SupportsFloat | str]],
        *,
        failed: Sequence[str] = (),
        who: str | None = None,
        key: str | None = None,
    ) -> None:
        """Several measurements, and candidates that failed, all of them or none."""
        checked = [(str(id_), checked_response(id_, value)) for id_, value in measurements]
        lost = [str(id_) for id_ in failed]
        self._telling.do(Telling(checked, lost, checked_word("who", who), checked_word("a key", key)))

    def _tell_together(self, several: Sequence[Telling]) -> list[BaseException | None]:
        """Threads that waited for one another tell at once: one write to the disk; each alone is told whole or not."""
        answers: list[BaseException | None] = []
        with self._writing() as db:
            for told in several:
                db.execute("SAVEPOINT one")
                try:
                    self._tell_one(db, told)
                    answers.append(None)
                except sqlite3.Error:
                    raise  # nobody is told anything
                except Exception as error:
                    db.execute("ROLLBACK TO one")
                    answers.append(error)
                db.execute("RELEASE one")
        return answers

    def _tell_one(self, db: sqlite3.Connection, told: Telling) -> None:
        rows = [self._store.row_of(db, id_) for id_, _ in told.measurements]
        lost = [(id_, self._store.row_of(db, id_)) for id_ in told.failed]
        if self._store.rows_of_key(db, (TOLD, FAILED), told.key):
            return
        for row, (_, value) in zip(rows, told.measurements, strict=True):
            self._store.add(db, TOLD, row, value, who=told.who, key=told.key)
        for id_, row in lost:
            self._check_can_fail(self._state(db), id_, row)
            self._store.add(db, FAILED, row, who=told.who, key=told.key)

    def knows(self, id: str) -> bool:  # noqa: A002
        """Whether the pool has a candidate of this name."""
        with self._reading() as db:
            try:
                self._store.row_of(db, str(id))
            except InputError:
                return False
        return True

    def fail(self, id: str, *, who: str | None = None, key: str | None = None) -> None:  # noqa: A002
        """A candidate could not be measured: it is not asked for again, and says nothing of others."""
        self.tell_all([], failed=[id], who=who, key=key)

    def _check_can_fail(self, state: State, id_: str, row: int) -> None:
        if row in state.failed:
            raise InputError(f"{id_!r} has failed already; release it to have it asked for again")
        if any(told.row == row for told in state.told):
            raise InputError(f"what was measured has not failed, {id_!r} was; take the measurement back first: undo")

    def release(self, id: str, *, who: str | None = None, key: str | None = None) -> None:  # noqa: A002
        """A candidate that is pending or failed may be asked for again."""
        who, key = checked_word("who", who), checked_word("a key", key)
        with self._writing() as db:
            row, state = self._store.row_of(db, str(id)), self._state(db)
            if self._store.rows_of_key(db, (RELEASED,), key):
                return
            if row not in state.pending and row not in state.failed:
                waiting = ", ".join(repr(self._rows.id_of(db, row)) for row in list(state.pending)[:5]) or "nothing"
                raise InputError(f"what is pending or failed can be released, {id!r} is neither; pending is {waiting}")
            self._store.add(db, RELEASED, row, who=who, key=key)

    def undo(self, *, who: str | None = None, key: str | None = None) -> dict[str, Any]:
        """Take back the last measurement, failure or release that was not taken back; what it was."""
        who, key = checked_word("who", who), checked_word("a key", key)
        with self._writing() as db:
            events = self._store.events(db)
            done = next((e for e in events if e.kind == UNDONE and key is not None and e.key == key), None)
            last = state_of(events).last if done is None else events[(done.of or 1) - 1]
            if last is None:
                raise InputError(
                    f"undo takes back a measurement, a failure or a release, {self._store.path} has none; nothing to do"
                )
            if done is None:
                self._store.add(db, UNDONE, last.row, None, last.number, who=who, key=key)
            return {"undone": last.kind, "id": self._rows.id_of(db, last.row), "value": last.value, "at": last.at}

    def set_budget(self, budget: int | None) -> None:
        """Another budget; None: no limit."""
        value = json.dumps(checked_budget(budget)).encode()
        with self._writing() as db:
            self._store.set_about(db, "budget", value)

    def columns_in_words(self) -> dict[str, str]:
        """What each column of the pool is taken for."""
        from dkaf.sources.preparation import Preparation

        taken = Preparation.of(self._about["preparation"]).in_words()
        with self._reading() as db:
            (first,) = self._rows.columns(db, [0])
        return {name: taken.get(name, "not used") for name in first}

    def pool_changed(self) -> bool:
        """Whether the file that the pool came from is there and is another one now."""
        from dkaf.campaign.poolfile import changed

        return changed(self._about["pool"])

    def status(self) -> dict[str, Any]:
        """Where the campaign is, as JSON knows it."""
        with self._reading() as db:
            state = self._state(db)
            history = self._measurements(db, state)
            best = self._best(history)
            return {
                "campaign": str(self._store.path),
                "policy": self._about["policy"],
                "minimise": self.minimise,
                "candidates": self._store.n_candidates(db),
                "best": None if best is None else best._asdict(),
                "history": [measurement._asdict() for measurement in history],
                "pending": [{"id": self._rows.id_of(db, row), "at": event.at} for row, event in state.pending.items()],
                "failed": [{"id": self._rows.id_of(db, row), "at": event.at} for row, event in state.failed.items()],
                "budget": self._budget(db),
                "left": self._left(db, state),
                "created": self._about["created"],
                "pool": self._about["pool"]["path"],
                "pool_changed": self.pool_changed(),
            }

    def table(self, response: str | None = None) -> "Table":
        """The measured candidates with the pool's columns and the mean of what each gave: a task for `read_tasks`.

        `response` is what that column is called, by default as the past tasks called it.
        """
        from dkaf.campaign.export import measured_table

        return measured_table(self, response or self.response or "response")

    def export(self, path: str | os.PathLike[str] | None = None) -> str:
        """What was measured, is pending or failed, with the pool's own columns, as CSV; also to a file."""
        from dkaf.campaign.export import write_csv

        self._check_elsewhere(path)
        return write_csv(self, path)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Best so far, what is expected of the best candidates, and a map of the pool, as a .png, .svg or .pdf file."""
        from dkaf.campaign.plots import write_plot

        self._check_elsewhere(path)
        write_plot(self, path)

    def _check_elsewhere(self, path: str | os.PathLike[str] | None) -> None:
        if path is not None and Path(path).exists() and Path(path).samefile(self._store.path):
            raise InputError(f"the output goes to a file of its own, {path} is the campaign; name another")

    def observations(self) -> tuple[State, dict[int, str]]:
        """What the events say, and the id of each candidate that they name."""
        with self._reading() as db:
            state = self._state(db)
            return state, {row: self._rows.id_of(db, row) for row in state.taken()}

    def columns_of(self, rows: Sequence[int]) -> list[dict[str, str]]:
        """The rows of the pool, as they came."""
        with self._reading() as db:
            return self._rows.columns(db, rows)

    def search(self) -> "Search":
        """The search as it stands, for plots and for who wants to look behind it."""
        with self._reading() as db:
            state = self._state(db)
        with self.computing:
            return self._chooser_here().search(state)

    def signed(self, value: float) -> float:
        """A response of the search, which maximises, in the user's units; and the other way round."""
        return -value if self.minimise else value

    def _state(self, db: sqlite3.Connection) -> State:
        events = self._store.events(db, self._events)
        if not db.total_changes:  # what this connection wrote may be taken back
            self._events = events
        return state_of(events)

    def _measurements(self, db: sqlite3.Connection, state: State) -> tuple[Measurement, ...]:
        return tuple(
            Measurement(self._rows.id_of(db, t.row), t.value, t.at, t.asked, t.known, t.who) for t in state.told
        )

    def _best(self, history: Sequence[Measurement]) -> Best | None:
        values: dict[str, list[float]] = {}
        for measurement in history:
            values.setdefault(measurement.id, []).append(measurement.value)
        means = [Best(id_, sum(several) / len(several), len(several)) for id_, several in values.items()]
        return max(means, key=lambda best: self.signed(best.value), default=None)

    def _budget(self, db: sqlite3.Connection) -> int | None:
        try:
            return checked_budget(json.loads(self._store.about(db, "budget")))
        except ValueError as error:
            raise self._store.damaged(str(error)) from error

    def _left(self, db: sqlite3.Connection, state: State) -> int | None:
        budget = self._budget(db)
        if budget is None:
            return None
        told = sum(not told.known for told in state.told)
        return max(0, budget - told - len(state.pending) - len(state.failed))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        taken = self._filing.acquire(timeout=PATIENCE)  # who writes may itself wait, for another process
        try:
            with self._store.reading() as db:
                self._check_same(db)
                yield db
        finally:
            if taken:
                self._filing.release()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._filing, self._store.writing() as db:
            self._check_same(db)
            yield db

    def _check_same(self, db: sqlite3.Connection) -> None:
        if self._store.about(db, "campaign") != self._written:
            raise InputError(f"{self._store.path} is another campaign than the one that was opened; open it again")

    def _chooser_here(self) -> "Chooser":
        """Who chooses: the pool's features and the policy, read once."""
        if self._chooser is None:
            from dkaf.campaign.chooser import Chooser

            with self._reading() as db:
                blocks = [(block.first, block.features) for block in self._store.blocks(db)]
                policy = None if self._about["policy"] == GP else self._store.about(db, "policy")
                n_candidates = self._store.n_candidates(db)
            try:
                self._chooser = Chooser(blocks, n_candidates, policy, self.minimise, self._about["seed"])
            except DamagedError as error:
                raise self._store.damaged(str(error)) from error
        return self._chooser
