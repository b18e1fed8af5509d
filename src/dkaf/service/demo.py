"""The routes of the demo. They change nothing: what was played comes with every question."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi import Path as InPath
from fastapi.responses import JSONResponse

from dkaf.service.scene import QUERIES, Scene
from dkaf.service.views import finite

LARGEST = 2**31
Game = Annotated[int, InPath(ge=0, le=LARGEST, description="The game's number, from 0.", examples=[7])]
Candidate = Annotated[int, InPath(ge=0, le=LARGEST, description="The candidate's place in the game's pool, from 0.")]
Rated = Annotated[
    list[Annotated[str, Query(pattern=r"^[0-9]{1,9}:[0-9]{1,2}$")]],
    Query(max_length=QUERIES, description="candidate:rating, in the order they were rated.", examples=[["12:3"]]),
]
Picked = Annotated[
    list[Annotated[int, Query(ge=0, le=LARGEST)]],
    Query(max_length=QUERIES, description="Candidates in the order they were picked.", examples=[[12, 40]]),
]


def demo_routes(scene: Scene) -> APIRouter:
    """All of them."""
    api = APIRouter(prefix="/api/demo", include_in_schema=False)  # the page's own: there is nothing for programs

    @api.get("")
    def about() -> JSONResponse:
        """What is played with, and how the players did on other targets."""
        return _json(scene.about())

    @api.get("/games/{game}")
    def pool(game: Game) -> JSONResponse:
        """The candidates of a game, each in a few words, and the one that all begin with."""
        return _json(scene.pool(game))

    @api.get("/games/{game}/candidates/{candidate}")
    def item(game: Game, candidate: Candidate) -> JSONResponse:
        """A candidate as somebody reads it."""
        return _json(scene.item(game, candidate))

    @api.get("/games/{game}/next")
    def next_to_rate(game: Game, rated: Rated = []) -> JSONResponse:  # noqa: B006 - FastAPI's way; it is not changed
        """The candidate to rate next, after those that were rated; after the last one, what should be liked."""
        pairs = [(int(row), int(rating)) for row, rating in (each.split(":") for each in rated)]
        return _json(scene.next(game, pairs))

    @api.get("/games/{game}/race")
    def race(game: Game, picked: Picked = []) -> JSONResponse:  # noqa: B006
        """Where everybody is after as many queries as were picked; after the last one, what was to be found."""
        return _json(scene.race(game, picked))

    return api


def _json(value: Any) -> JSONResponse:
    return JSONResponse(finite(value))
