"""The demo: its games, what it tells and what it hides, and where its policies come from."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scenes
from services import Local, Service

import dkaf
from dkaf.errors import InputError
from dkaf.sources.corpora import add_corpus

pytest.importorskip("fastapi", reason="needs the extra dkaf[serve]")

from dkaf.service import stage
from dkaf.service.app import create_app
from dkaf.service.scene import OURS, PLAYERS, QUERIES, RATINGS, YOU, Scene


@pytest.fixture
def at(tmp_path: Path) -> Local:
    return Local(create_app(tmp_path / "data", scene=scenes.scene()), "http://127.0.0.1")


def game_of(scene: Scene, number: int) -> Any:
    return scene._game(number)


def test_each_player_makes_the_queries_that_the_library_makes() -> None:
    scene = scenes.scene()
    game = game_of(scene, 2)
    told = scene.race(2, list(range(QUERIES)))
    for method in PLAYERS:
        search = dkaf.Search(scene._policies[method], scene.corpus.features[game.pool], seed=2, progress=False)
        search.tell(game.start, game.responses[game.start], queried=False)
        for tried in told["played"][method]:
            (asked,) = search.ask()
            assert asked.row == tried["candidate"]
            assert tried["distance"] == pytest.approx(-game.responses[asked.row])
            search.tell(asked.row, -tried["distance"])


def test_a_race_hides_the_target_and_what_others_tried_until_it_is_over() -> None:
    scene = scenes.scene()
    for queries in range(QUERIES + 1):
        race = scene.race(1, list(range(queries)))
        assert {len(rows) for rows in race["played"].values()} == {queries}
        over = queries == QUERIES
        assert race["over"] == over
        assert (race["revealed"] is not None) == over
        for method in PLAYERS:
            assert all(("candidate" in tried) == over for tried in race["played"][method])
    assert set(scene.pool(1)) == {"game", "start", "items"}


def test_what_is_revealed_is_the_nearest_and_the_places_count_those_that_are_nearer() -> None:
    scene = scenes.scene()
    game = game_of(scene, 0)
    order = np.argsort(-game.responses).tolist()
    assert order[0] != game.start
    revealed = scene.race(0, order[:QUERIES])["revealed"]
    assert revealed["places"][YOU] == 1
    assert revealed["best"]["candidate"] == order[0]
    assert revealed["candidates"] == len(game.pool)
    worst = [row for row in order[::-1] if row != game.start][:QUERIES]
    places = scene.race(0, worst)["revealed"]["places"]
    assert places[YOU] == 1 + order.index(min([*worst, game.start], key=order.index))


def test_ratings_reach_the_policy_as_responses_and_the_best_expected_are_named_at_the_end() -> None:
    scene = scenes.scene()
    game = game_of(scene, 3)
    rated: list[tuple[int, int]] = []
    while (shown := scene.next(3, rated))["candidate"] is not None:
        assert shown["candidate"] not in {row for row, _ in rated}
        assert (shown["expected"] is None) == (not rated)
        rated.append((shown["candidate"], 9 if len(rated) % 2 else 1))
    assert rated[0][0] == game.start
    assert len(rated) == QUERIES
    search = dkaf.Search(scene._policies[OURS], scene.corpus.features[game.pool], progress=False)
    low, high = scene._scale
    for place, (row, rating) in enumerate(rated):
        search.tell(row, low + (high - low) * rating / RATINGS, queried=place > 0)
    beliefs = search.believe(range(len(game.pool)))
    assert beliefs is not None
    order = [row for row in np.argsort(-beliefs[0]).tolist() if row not in dict(rated)]
    assert [liked["candidate"] for liked in shown["liked"]] == order[: len(shown["liked"])]
    assert all(0 <= liked["expected"] <= RATINGS for liked in shown["liked"])


def test_a_rating_in_favour_of_something_is_expected_of_what_is_like_it() -> None:
    scene = scenes.scene()
    game = game_of(scene, 4)
    top, bottom = int(np.argmax(game.responses)), int(np.argmin(game.responses))
    liked = scene.next(4, [(top, 10), (bottom, 0)])["expected"]
    disliked = scene.next(4, [(top, 0), (bottom, 0)])["expected"]
    assert liked > disliked


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/api/demo/games/5/race", 400, "games have numbers from 0 to 4"),
        ("/api/demo/games/-1/race", 422, "game"),
        ("/api/demo/games/x", 422, "game"),
        ("/api/demo/games/1/candidates/40", 400, "candidates go from 0 to 39"),
        ("/api/demo/games/1/race?picked=40", 400, "candidates go from 0 to 39"),
        ("/api/demo/games/1/race?picked=3&picked=3", 400, "tried once"),
        ("/api/demo/games/1/race?" + "&".join(f"picked={row}" for row in range(11)), 422, "picked"),
        ("/api/demo/games/1/next?rated=3:11", 400, "ratings go from 0 to 10"),
        ("/api/demo/games/1/next?rated=3:-1", 422, "rated"),
        ("/api/demo/games/1/next?rated=3", 422, "rated"),
        ("/api/demo/games/1/next?rated=٣:1", 422, "rated"),
    ],
)
def test_what_is_no_game_is_refused_in_a_sentence(at: Local, path: str, status: int, words: str) -> None:
    answer = at.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert words in answer.json()["detail"]


def test_the_routes_answer_what_the_scene_says(at: Local) -> None:
    scene = scenes.scene()
    assert at.get("/api/about").json()["demo"] == "digits"
    assert at.get("/api/demo").json() == json.loads(json.dumps(scene.about()))
    assert at.get("/api/demo/games/1").json()["start"] == json.loads(json.dumps(scene.pool(1)["start"]))
    assert at.get("/api/demo/games/1/candidates/7").json() == scene.item(1, 7)
    assert at.get("/api/demo/games/1/next?rated=3:10").json()["candidate"] == scene.next(1, [(3, 10)])["candidate"]
    assert at.get("/api/demo/games/1/race?picked=3").json()["played"][YOU][0]["candidate"] == 3


def test_without_the_option_there_is_no_demo(tmp_path: Path) -> None:
    at = Local(create_app(tmp_path / "data"), "http://127.0.0.1")
    assert at.get("/api/about").json()["demo"] is None
    assert at.get("/api/demo").status_code == 404


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Few tasks, short training, an empty cache, and no Reuters."""
    for name, size in (("TEST", 2), ("VALIDATION", 2), ("TRAIN", 4), ("GAMES", 3), ("POOL", 30)):
        monkeypatch.setattr(stage, name, size)
    monkeypatch.setattr(stage, "fit", functools.partial(dkaf.fit, **scenes.QUICK))
    monkeypatch.setenv("DKAF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DKAF_DATA", raising=False)
    return tmp_path / "cache" / "demo"


def made(shelf: Path) -> list[Path]:
    return [path for path in shelf.iterdir() if path.suffix != ".lock"]


def test_a_scene_is_made_once_and_then_read(quick: Path) -> None:
    said: list[str] = []
    first = stage.open_scene(show=lambda what, stage, done, total: said.append(what))
    assert first.corpus.name == "digits"
    assert "dkaf" in said
    said.clear()
    second = stage.open_scene(show=lambda what, stage, done, total: said.append(what))
    assert said == []
    assert second.about() == first.about()
    assert second.race(0, [1, 2]) == first.race(0, [1, 2])
    assert len(made(quick)) == 1


def test_a_damaged_or_interrupted_scene_is_made_anew(quick: Path) -> None:
    first = stage.open_scene()
    (folder,) = made(quick)
    for name in ("hidden.npy", "dkaf.safetensors", "about.json"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:-20])
        with pytest.raises((OSError, ValueError, KeyError)):
            stage._read(first.corpus, folder)
        if name != "about.json":
            (folder / name).write_bytes(whole)

    def interrupted(what: str, stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage.open_scene(show=interrupted)
    assert made(quick) == [folder]
    assert stage.open_scene().about() == first.about()


def test_ones_own_documents_are_shown_by_their_words(quick: Path, tmp_path: Path) -> None:
    words = {"sea": "ship harbour sailor anchor", "land": "wheat farmer tractor barley"}
    lines = [f"{label},{' '.join([text] * (2 + n % 3))}" for label, text in words.items() for n in range(20)]
    (tmp_path / "own.csv").write_text("label,text\n" + "\n".join(lines) + "\n")
    add_corpus("own", tmp_path / "own.csv", min_documents=2, min_words=2)
    scene = stage.open_scene("own")
    assert scene.about()["kind"] == "words"
    item = scene.next(0, [])["item"]
    assert set(item["text"].split(", ")) in (set(text.split()) for text in words.values())
    (tmp_path / "few.csv").write_text("label,text\n" + "\n".join(lines[15:25]) + "\n")
    add_corpus("few", tmp_path / "few.csv", min_documents=2, min_words=2)
    with pytest.raises(InputError, match="at least 20 candidates"):
        stage.open_scene("few")
    with pytest.raises(InputError, match="a corpus is one of"):
        stage.open_scene("nothing")


def test_documents_are_shown_by_their_texts_with_lines_that_flow() -> None:
    digits = scenes.scene()
    corpus = dataclasses.replace(digits.corpus, form="text")
    text = "WHEAT UP\nThe price of wheat\nrose.\n    Barley fell.\n" + "again " * 1000
    scene = Scene(corpus, digits._past, digits._games, digits._policies, digits._record, [text] * len(corpus.documents))
    assert scene.about()["kind"] == "documents"
    item = scene.item(0, 1)
    assert item["text"].startswith("WHEAT UP The price of wheat rose.\n    Barley fell. again again")
    assert item["text"].endswith(" …")
    assert len(item["text"]) < 3100
    assert item["title"].startswith("WHEAT UP The price of wheat rose. Barley fell.")
    assert item["title"].endswith(" …")


@pytest.mark.slow
def test_the_demo_as_people_start_it_finds_more_than_gp_and_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DKAF_CACHE", str(tmp_path / "cache"))
    service = Service(tmp_path / "data", "--demo", "digits")
    try:
        found = {player["method"]: player["found"] for player in service.client()._call("GET", "/api/demo")["players"]}
    finally:
        service.end()
    assert found["dkaf"] > found["gp"] > found["random"]
