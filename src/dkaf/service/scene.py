"""The paper's own scene: somebody has a document in mind, and after a few ratings it is found.

A corpus of labelled items gives the tasks (`dkaf.similarity_tasks`): policies are trained on some, and the games are
others. What a game is follows from its number and what was played in it, so the service keeps nothing of it. No player
is told of a candidate that it has not tried, and nobody of the target, until the last query is made.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dkaf.errors import InputError
from dkaf.policies import Policy
from dkaf.search import Search
from dkaf.seeding import derive
from dkaf.sources.corpus import Corpus
from dkaf.tasks import FloatArray, IntArray, TaskSet

QUERIES = 10
RATINGS = 10
"""A rating goes from 0 to this."""
YOU, OURS = "you", "dkaf"
PLAYERS = {OURS: "dkaf", "gp": "GP", "random": "Random"}
LEAST = 0.1
"""A rating of 0 is worth what this share of a past task's candidates falls below, the best one what the best has."""
LIKED = 5
LONGEST_TEXT, TITLE, WORDS, FEW_WORDS = 3000, 90, 30, 6


@dataclass(frozen=True)
class Game:
    """One search: a hidden target, and the candidates among which something like it is to be found."""

    number: int
    pool: IntArray
    """Rows of the corpus."""
    responses: FloatArray
    target: int
    start: int
    """The candidate that all players know before their first query."""


class Scene:
    """A corpus, the policies that were trained on it, and games.

    `past` are the tasks that were trained on, which say what a rating is worth. `record` is how each player did on
    other targets. `texts` are the documents' own, where they are known.
    """

    def __init__(
        self,
        corpus: Corpus,
        past: TaskSet,
        games: TaskSet,
        policies: dict[str, Policy],
        record: dict[str, Any],
        texts: Sequence[str] | None = None,
    ) -> None:
        self.corpus, self._past, self._games = corpus, past, games
        self._policies, self._record, self._texts = policies, record, texts
        self._race = lru_cache(maxsize=256)(self._race_of)
        lows, highs = zip(*((np.quantile(y, LEAST), y.max()) for y in past.responses), strict=True)
        self._scale = float(np.mean(lows)), float(np.mean(highs))
        self._rarity = np.log(len(corpus.documents) / (1.0 + np.asarray((corpus.features > 0).sum(axis=0)).ravel()))

    def about(self) -> dict[str, Any]:
        """What is played with, and how the players did on other targets."""
        return {
            "corpus": self.corpus.name,
            "kind": self._kind,
            "items": len(self.corpus.documents),
            "classes": list(self.corpus.class_sizes),
            "games": len(self._games),
            "queries": QUERIES,
            "ratings": RATINGS,
            "players": [
                {"method": method, "name": name, **self._record["players"][method]} for method, name in PLAYERS.items()
            ],
            "past": len(self._past),
            "tests": self._record["tests"],
        }

    def pool(self, number: int) -> dict[str, Any]:
        """The candidates of a game, each in a few words, and the one that all begin with."""
        game = self._game(number)
        items = [self._brief(row) for row in game.pool.tolist()]
        return {"game": number, "start": self._tried(game, game.start), "items": items}

    def item(self, number: int, candidate: int) -> dict[str, Any]:
        """A candidate as somebody reads it."""
        return self._whole(int(self._game(number).pool[self._checked(number, [candidate])[0]]))

    def next(self, number: int, rated: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """The candidate to be rated next; after the last one, which others should be liked."""
        game = self._game(number)
        rows = self._checked(number, [row for row, _ in rated])
        if wrong := [rating for _, rating in rated if not 0 <= rating <= RATINGS]:
            raise InputError(f"ratings go from 0 to {RATINGS}, {wrong[0]} came; rate again")
        search = self._search(OURS, game)
        low, high = self._scale
        for place, (row, rating) in enumerate(rated):
            search.tell(row, low + (high - low) * rating / RATINGS, queried=place > 0)  # the first was drawn by lot
        if not rows:
            return self._shown(game, game.start) | {"expected": None, "liked": []}
        if len(rows) >= QUERIES:
            beliefs = search.believe(range(len(game.pool)))
            means = np.zeros(len(game.pool)) if beliefs is None else beliefs[0]
            order = [row for row in np.argsort(-means, kind="stable").tolist() if row not in rows][:LIKED]
            liked = [self._shown(game, row) | {"expected": self._rating(means[row])} for row in order]
            return {"candidate": None, "item": None, "expected": None, "liked": liked}
        (suggestion,) = search.ask()
        expected = None if suggestion.mean is None else self._rating(suggestion.mean)
        return self._shown(game, suggestion.row) | {"expected": expected, "liked": []}

    def race(self, number: int, picked: Sequence[int]) -> dict[str, Any]:
        """Where everybody is after as many queries as were picked; after the last one, who tried what, and the target.

        Until then of the others' tries only the distances are told, and not whose they are.
        """
        game, picked = self._game(number), self._checked(number, picked)
        over = len(picked) >= QUERIES
        played = {YOU: picked} | {method: rows[: len(picked)] for method, rows in self._race(number).items()}
        tried = {name: [self._tried(game, row) for row in rows] for name, rows in played.items()}
        if not over:
            tried = {
                name: rows if name == YOU else [{"distance": each["distance"]} for each in rows]
                for name, rows in tried.items()
            }
        return {
            "start": self._tried(game, game.start),
            "played": tried,
            "over": over,
            "revealed": self._revealed(game, played) if over else None,
        }

    def _revealed(self, game: Game, played: dict[str, list[int]]) -> dict[str, Any]:
        def place(row: int) -> int:
            return 1 + int((game.responses > game.responses[row]).sum())

        return {
            "target": self._whole(game.target),
            "best": self._tried(game, int(np.argmax(game.responses))),
            "places": {name: min(place(row) for row in [game.start, *rows]) for name, rows in played.items()},
            "candidates": len(game.pool),
        }

    @property
    def _kind(self) -> str:
        return "pictures" if self.corpus.form == "pixels" else "documents" if self._texts is not None else "words"

    def _game(self, number: int) -> Game:
        if not 0 <= number < len(self._games):
            raise InputError(f"games have numbers from 0 to {len(self._games) - 1}, {number} came; choose one of them")
        task = self._games[number]
        assert self._games.targets is not None
        start = derive(0, "demo", number) % len(task.pool)
        return Game(number, task.pool, task.responses, int(self._games.targets[number]), start)

    def _checked(self, number: int, rows: Sequence[int]) -> list[int]:
        size = len(self._game(number).pool)
        if wrong := [row for row in rows if not 0 <= row < size]:
            raise InputError(f"a game's candidates go from 0 to {size - 1}, {wrong[0]} came; choose one of them")
        if len(set(rows)) < len(rows):
            raise InputError("a candidate is tried once in a game, one came twice; leave it out")
        if len(rows) > QUERIES:
            raise InputError(f"a game has {QUERIES} queries, {len(rows)} came; begin another game")
        return list(rows)

    def _search(self, method: str, game: Game) -> Search:
        return Search(self._policies[method], self.corpus.features[game.pool], seed=game.number, progress=False)

    def _race_of(self, number: int) -> dict[str, list[int]]:
        game, played = self._game(number), {}
        for method in PLAYERS:
            search = self._search(method, game)
            search.tell(game.start, game.responses[game.start], queried=False)
            for _ in range(QUERIES):
                (suggestion,) = search.ask()
                search.tell(suggestion.row, game.responses[suggestion.row])
            played[method] = [observation.row for observation in search.observed[1:]]
        return played

    def _rating(self, mean: float) -> float:
        low, high = self._scale
        return float(np.clip(RATINGS * (mean - low) / (high - low), 0, RATINGS))

    def _tried(self, game: Game, candidate: int) -> dict[str, Any]:
        """Responses are negative distances to the target."""
        return {
            "candidate": candidate,
            "item": self._brief(int(game.pool[candidate])),
            "distance": -float(game.responses[candidate]),
        }

    def _shown(self, game: Game, candidate: int) -> dict[str, Any]:
        return {"candidate": candidate, "item": self._whole(int(game.pool[candidate]))}

    def _brief(self, row: int) -> dict[str, Any]:
        if self._kind == "pictures":
            return {"pixels": [round(float(value) / 16, 3) for value in np.asarray(self.corpus.features[row])]}
        if self._texts is None:
            return {"title": self._words(row, FEW_WORDS)}
        title = " ".join(self._texts[row][: 4 * TITLE].split())
        return {"title": title if len(title) <= TITLE else title[:TITLE].rsplit(" ", 1)[0] + " …"}

    def _whole(self, row: int) -> dict[str, Any]:
        if self._kind == "pictures":
            return self._brief(row)
        text = self._words(row, WORDS) if self._texts is None else _flowing(self._texts[row])
        return self._brief(row) | {"text": text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + " …"}

    def _words(self, row: int, most: int) -> str:
        """A document's words that stand in few others, the most telling first."""
        features = self.corpus.features
        counts = features[row] if isinstance(features, np.ndarray) else features[[row]].toarray()[0]
        weights = np.log1p(counts) * self._rarity
        best = [place for place in np.argsort(-weights, kind="stable")[:most].tolist() if counts[place] > 0]
        return ", ".join(self.corpus.terms[place] for place in best)


def _flowing(text: str) -> str:
    """Lines that were broken at a width are joined; paragraphs, indented or apart, stay."""
    return re.sub(r"\n(?=\S)", " ", text.strip())
