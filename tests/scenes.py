"""A small scene for several test files: handwritten digits, and policies that were trained for a second."""

from functools import cache
from typing import Any

import dkaf
from dkaf.sources.similarity import hidden_representation, tasks_of_representation

QUICK = {"pretrain_updates": 40, "updates": 2, "scale_updates": 2, "queries": 4}
PAST, GAMES, POOL = 8, 5, 40


@cache
def scene() -> Any:
    from dkaf.service.scene import PLAYERS, Scene

    corpus = dkaf.load_corpus("digits")
    hidden = hidden_representation(corpus.features, corpus.labels)
    past, games = tasks_of_representation(corpus.features, hidden, PAST + GAMES, POOL, seed=0).split(PAST, GAMES)
    policies = {method: dkaf.fit(past, None, method, "mi", **QUICK) for method in PLAYERS}
    players = {method: {"gap": 1.0, "error": 0.1, "found": 0.5} for method in PLAYERS}
    return Scene(corpus, past, games, policies, {"players": players, "tests": 2})
