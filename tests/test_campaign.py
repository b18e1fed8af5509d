import contextlib
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import campaigns
import numpy as np
import pandas as pd
import pytest

import dkaf
from dkaf.campaign.store import ASKED, FAILED, KNOWN, RELEASED, TOLD, UNDONE, Event, state_of
from dkaf.campaign.values import checked_word

SCRIPT = Path(__file__).with_name("killed_writers.py")


@pytest.fixture
def truth(tmp_path: Path) -> dict[str, float]:
    return campaigns.pool(tmp_path / "pool.csv")


@pytest.fixture
def campaign(tmp_path: Path, truth: dict[str, float]) -> dkaf.Campaign:
    return dkaf.Campaign.create(tmp_path / "bread.db", tmp_path / "pool.csv", campaigns.policy(tmp_path))


def event(number: int, kind: str, row: int, value: float | None = None, of: int | None = None) -> Event:
    return Event(number, kind, row, value, of, "now", None, None)


def test_events_say_what_is_told_pending_and_failed() -> None:
    events = [
        event(1, KNOWN, 7, 1.0),
        event(2, ASKED, 1),
        event(3, ASKED, 2),
        event(4, ASKED, 3),
        event(5, TOLD, 1, 2.0),
        event(6, FAILED, 2),
        event(7, RELEASED, 3),
        event(8, TOLD, 9, 3.0),
        event(9, TOLD, 1, 4.0),
    ]
    state = state_of(events)
    assert [(told.row, told.value, told.asked, told.known) for told in state.told] == [
        (7, 1.0, False, True),
        (1, 2.0, True, False),
        (9, 3.0, False, False),
        (1, 4.0, True, False),
    ]
    assert (list(state.pending), list(state.failed)) == ([], [2])
    assert state.last == events[-1]


def test_undo_takes_back_one_thing_after_the_other_and_a_candidate_is_pending_again() -> None:
    events = [event(1, ASKED, 1), event(2, TOLD, 1, 2.0), event(3, FAILED, 5), event(4, UNDONE, 5, None, 3)]
    state = state_of(events)
    assert (list(state.failed), state.last) == ([], events[1])
    state = state_of([*events, event(5, UNDONE, 1, None, 2)])
    assert (state.told, list(state.pending), state.last) == ([], [1], None)


def test_asking_and_telling_finds_good_bread(campaign: dkaf.Campaign, truth: dict[str, float]) -> None:
    for _ in range(8):
        candidate = campaign.ask()[0]
        assert candidate.columns["loaf"] == candidate.id
        campaign.tell(candidate.id, truth[candidate.id])
    assert campaign.best is not None
    assert campaign.best.value >= np.quantile(list(truth.values()), 0.9)
    assert [measurement.id for measurement in campaign.history] == list(
        dict.fromkeys(measurement.id for measurement in campaign.history)
    )


def test_a_campaign_chooses_what_a_search_chooses(
    campaign: dkaf.Campaign, truth: dict[str, float], tmp_path: Path
) -> None:
    from dkaf.sources.tables import read_table

    policy = dkaf.load(campaigns.policy(tmp_path))
    assert policy.preparation is not None
    names = list(truth)
    features: Any = policy.preparation.matrix(read_table(tmp_path / "pool.csv"))
    search = dkaf.Search(policy, features.astype(np.float32))
    for _ in range(5):
        expected = search.ask()[0]
        candidate = campaign.ask()[0]
        assert candidate.id == names[expected.row]
        assert (candidate.mean, candidate.score) == pytest.approx((expected.mean, expected.score), rel=1e-5)
        search.tell(expected.row, truth[candidate.id])
        campaign.tell(candidate.id, truth[candidate.id])


def test_another_process_goes_on_where_this_one_was(campaign: dkaf.Campaign, truth: dict[str, float]) -> None:
    for _ in range(3):
        candidate = campaign.ask()[0]
        campaign.tell(candidate.id, truth[candidate.id])
    opened = dkaf.Campaign.open(campaign.path)
    assert opened.history == campaign.history
    undone = opened.undo()
    assert undone["id"] == candidate.id
    assert opened.ask()[0].id != candidate.id  # which is pending again
    assert campaign.pending == opened.pending
    campaign.tell(candidate.id, truth[candidate.id])
    assert campaign.ask()[0].mean == pytest.approx(opened.ask()[0].mean, abs=2.0)


def test_after_an_undo_the_search_knows_no_more_than_a_fresh_one(
    campaign: dkaf.Campaign, truth: dict[str, float]
) -> None:
    first = campaign.ask()[0]
    campaign.tell(first.id, truth[first.id])
    campaign.ask()  # so that it was used
    campaign.tell("l5", 1000.0)
    campaign.ask()
    campaign.undo()
    rows = range(len(campaign))
    fresh = dkaf.Campaign.open(campaign.path).search().believe(rows)
    used = campaign.search().believe(rows)
    assert fresh is not None
    assert used is not None
    np.testing.assert_allclose(used[0], fresh[0], rtol=1e-4)
    np.testing.assert_allclose(used[1], fresh[1], rtol=1e-4)


def test_a_batch_is_of_different_candidates_and_what_is_pending_is_not_asked_again(campaign: dkaf.Campaign) -> None:
    batch = campaign.ask(5)
    assert len({candidate.id for candidate in batch}) == 5
    assert campaign.pending == tuple(candidate.id for candidate in batch)
    more = campaign.ask(5)
    assert not {candidate.id for candidate in more} & {candidate.id for candidate in batch}


def test_asking_one_by_one_names_what_asking_at_once_names(tmp_path: Path, truth: dict[str, float]) -> None:
    policy = campaigns.policy(tmp_path)
    at_once, singly = (
        dkaf.Campaign.create(tmp_path / f"{name}.db", tmp_path / "pool.csv", policy) for name in ("at once", "singly")
    )
    for each in (at_once, singly):
        each.tell("l3", truth["l3"])
    assert [c.id for c in at_once.ask(4)] == [singly.ask()[0].id for _ in range(4)]


def test_failed_candidates_are_not_asked_again_until_released(campaign: dkaf.Campaign) -> None:
    first = campaign.ask()[0].id
    campaign.fail(first)
    with pytest.raises(dkaf.InputError, match="has failed already"):
        campaign.fail(first)
    assert campaign.pending == ()
    rest = campaign.ask(len(campaign) - 1)
    assert first not in {candidate.id for candidate in rest}
    with pytest.raises(dkaf.InputError, match="1 candidates were asked for, 0 are neither told, pending nor failed"):
        campaign.ask()
    campaign.release(first)
    assert campaign.ask()[0].id == first
    campaign.release(first)
    with pytest.raises(dkaf.InputError, match="is neither"):
        campaign.release(first)


def test_repeated_measurements_count_each_and_their_mean_is_what_is_best(campaign: dkaf.Campaign) -> None:
    for name, value in (("l1", 4.0), ("l2", 3.5), ("l1", 0.0)):
        campaign.tell(name, value)
    assert campaign.best == ("l2", 3.5, 1)
    assert [measurement.value for measurement in campaign.history] == [4.0, 3.5, 0.0]
    beliefs = campaign.search().believe([1])
    assert beliefs is not None
    assert beliefs[0][0] < 4.0


def test_smaller_is_better_where_the_campaign_minimises(tmp_path: Path, truth: dict[str, float]) -> None:
    campaign = dkaf.Campaign.create(tmp_path / "low.db", tmp_path / "pool.csv", "gp", id="loaf", minimise=True)
    for _ in range(14):
        candidate = campaign.ask()[0]
        campaign.tell(candidate.id, -truth[candidate.id])
    assert campaign.best is not None
    assert campaign.best.value == min(measurement.value for measurement in campaign.history)
    assert campaign.best.value <= -np.quantile(list(truth.values()), 0.8)
    expected = campaign.ask()[0].mean
    assert expected is not None
    assert expected < 0


def test_without_past_tasks_a_gaussian_process_learns_from_the_campaign_alone(
    tmp_path: Path, truth: dict[str, float]
) -> None:
    found = []
    for seed in range(3):
        campaign = dkaf.Campaign.create(
            tmp_path / f"gp{seed}.db", tmp_path / "pool.csv", "gp", id="loaf", seed=seed, kinds={"flour": "ignore"}
        )
        for _ in range(12):
            candidate = campaign.ask()[0]
            campaign.tell(candidate.id, truth[candidate.id])
        assert campaign.best is not None
        found.append(campaign.best.value)
    # Chance finds one of the best three of sixty in twelve looks with probability 0.49; all three times 0.12.
    assert np.mean(found) >= sorted(truth.values())[-4]


def test_before_any_measurement_a_gaussian_process_asks_for_different_candidates_by_chance(tmp_path: Path) -> None:
    pool = pd.DataFrame({"x": np.arange(60.0)})
    asked = []
    for seed in range(2):
        campaign = dkaf.Campaign.create(tmp_path / f"{seed}.db", pool, "gp", seed=seed)
        batch = [candidate.id for candidate in (*campaign.ask(3), *campaign.ask(2))]
        assert len(set(batch)) == 5
        asked.append(batch)
    assert asked[0] != asked[1]


def test_known_measurements_are_imported_and_do_not_count_as_spent(tmp_path: Path, truth: dict[str, float]) -> None:
    known = pd.DataFrame({"loaf": ["l4", "l9", "l4"], "rise": [1.0, 2.0, 3.0]})
    campaign = dkaf.Campaign.create(
        tmp_path / "one.db", tmp_path / "pool.csv", campaigns.policy(tmp_path), known=known, budget=4
    )
    assert [(m.id, m.value, m.asked) for m in campaign.history] == [
        ("l4", 1.0, False), ("l9", 2.0, False), ("l4", 3.0, False),
    ]  # fmt: skip
    assert campaign.left == 4
    again = dkaf.Campaign.create(
        tmp_path / "two.db", tmp_path / "pool.csv", campaigns.policy(tmp_path), known=campaign.path
    )
    assert [m.value for m in again.history] == [1.0, 2.0, 3.0]
    with pytest.raises(dkaf.InputError, match="undo takes back"):
        again.undo()
    wrong = pd.DataFrame({"loaf": ["nix"], "rise": [1.0]})
    with pytest.raises(dkaf.InputError, match=r"'nix' \(row 1 of the frame, column 'loaf'\) is none of"):
        dkaf.Campaign.create(tmp_path / "x.db", tmp_path / "pool.csv", campaigns.policy(tmp_path), known=wrong)
    assert not (tmp_path / "x.db").exists()


def test_the_budget_is_kept_and_can_be_raised(tmp_path: Path, truth: dict[str, float]) -> None:
    campaign = dkaf.Campaign.create(tmp_path / "b.db", tmp_path / "pool.csv", campaigns.policy(tmp_path), budget=3)
    first, second = (candidate.id for candidate in campaign.ask(2))
    campaign.tell(first, 1.0)
    campaign.fail(second)
    assert (campaign.budget, campaign.left) == (3, 1)
    with pytest.raises(dkaf.InputError, match="1 are left and 2 were asked for"):
        campaign.ask(2)
    dkaf.Campaign.open(campaign.path).set_budget(None)
    assert (campaign.budget, campaign.left) == (None, None)
    campaign.ask(2)
    for wrong in (0, -1):
        with pytest.raises(dkaf.InputError, match="budget"):
            campaign.set_budget(wrong)


def test_a_negative_zero_is_a_zero_and_the_file_stays_whole(campaign: dkaf.Campaign) -> None:
    campaign.tell("l0", -0.0)
    assert str(dkaf.Campaign.open(campaign.path).history[0].value) == "0.0"


@pytest.mark.parametrize("value", ["high", float("nan"), float("inf"), -1e300])
def test_a_wrong_response_is_refused_and_nothing_is_told(campaign: dkaf.Campaign, value: Any) -> None:
    with pytest.raises(dkaf.InputError, match="'l1'"):
        campaign.tell_all([("l0", 1.0), ("l1", value)])
    with pytest.raises(dkaf.InputError, match="'nix' names none"):
        campaign.tell_all([("l0", 1.0), ("nix", 2.0)])
    assert campaign.history == ()
    assert dkaf.Campaign.open(campaign.path).history == ()


def test_a_pool_file_that_changed_is_noticed_and_one_that_moved_is_not_needed(
    campaign: dkaf.Campaign, tmp_path: Path
) -> None:
    pool = tmp_path / "pool.csv"
    before = pool.read_text()
    assert not campaign.status()["pool_changed"]
    os.utime(pool, (1, 1))
    campaign.ask()  # only touched
    pool.write_text(before.replace("gas", "wood", 1))
    assert campaign.status()["pool_changed"]
    with pytest.raises(dkaf.InputError, match=r"has changed since .* was created"):
        campaign.ask()
    campaign.ask(ignore_pool_file=True)
    pool.unlink()
    campaign.ask()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "nix"}, "--id names a column"),
        ({"id": "oven"}, "both have"),
        ({"budget": 0}, "at least 1 evaluation"),
        ({"minimise": True}, "trained to find larger"),
        ({"kinds": {"oven": "text"}}, "leave out --kind"),
        ({"policy": "none.safetensors"}, "cannot be read"),
        ({"pool": "none.csv"}, "does not exist"),
        ({"path": "nowhere/x.db"}, "folder must exist"),
    ],
)
def test_a_wrong_campaign_is_refused_and_leaves_no_file(
    tmp_path: Path, truth: dict[str, float], change: dict[str, Any], message: str
) -> None:
    arguments: dict[str, Any] = {"path": "x.db", "pool": "pool.csv", "policy": campaigns.policy(tmp_path).name} | change
    places = [tmp_path / arguments.pop(name) for name in ("path", "pool", "policy")]
    before = sorted(tmp_path.iterdir())
    with pytest.raises(dkaf.InputError, match=message):
        dkaf.Campaign.create(*places, **arguments)
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_that_is_there_stays(campaign: dkaf.Campaign, tmp_path: Path) -> None:
    content = Path(campaign.path).read_bytes()
    with pytest.raises(dkaf.InputError, match="is there already"):
        dkaf.Campaign.create(campaign.path, tmp_path / "pool.csv", "gp", id="loaf")
    assert Path(campaign.path).read_bytes() == content


def test_a_policy_of_arrays_is_refused(tmp_path: Path, truth: dict[str, float], tiny_tasks: dkaf.TaskSet) -> None:
    policy = dkaf.fit(tiny_tasks, method="random")
    with pytest.raises(dkaf.InputError, match="was trained on arrays of 4 numbers"):
        dkaf.Campaign.create(tmp_path / "x.db", tmp_path / "pool.csv", policy)


@pytest.mark.parametrize("method", ["random", "rl", "metabo", "gp", "dkl"])
def test_every_method_makes_a_campaign(tmp_path: Path, truth: dict[str, float], method: str) -> None:
    tasks = dkaf.read_tasks(campaigns.past(tmp_path / "past", 3), response="rise", id="loaf")
    policy = dkaf.fit(tasks, None, method, **campaigns.SMALL)
    campaign = dkaf.Campaign.create(tmp_path / "x.db", tmp_path / "pool.csv", policy)
    for _ in range(3):
        for candidate in campaign.ask(2):
            campaign.tell(candidate.id, truth[candidate.id])
    assert len({measurement.id for measurement in campaign.history}) == 6
    campaign.plot(tmp_path / "x.png")


def test_campaigns_are_past_tasks(tmp_path: Path, truth: dict[str, float]) -> None:
    tables = []
    for number in range(2):
        campaign = dkaf.Campaign.create(tmp_path / f"{number}.db", tmp_path / "pool.csv", "gp", id="loaf")
        for name in list(truth)[number * 20 : number * 20 + 20]:
            campaign.tell(name, truth[name])
        campaign.tell(name, truth[name] + 2)
        tables.append(campaign.table("rise"))
    tasks = dkaf.read_tasks(tables, response="rise", id="loaf")
    assert tasks.names == ("0", "1")
    assert tasks.responses[1].tolist() == [*list(truth.values())[20:39], truth[name] + 1]


def test_the_export_has_everything_that_happened(campaign: dkaf.Campaign, tmp_path: Path) -> None:
    first, second, third = (candidate.id for candidate in campaign.ask(3))
    campaign.tell(first, 1.0)
    campaign.tell(first, 2.0)
    campaign.fail(second)
    campaign.export(tmp_path / "out.csv")
    out = pd.read_csv(tmp_path / "out.csv", dtype=str, keep_default_na=False)
    assert out[["id", "value", "measurements", "status"]].values.tolist() == [
        [first, "1.5", "2", "measured"],
        [third, "", "0", "pending"],
        [second, "", "0", "failed"],
    ]
    assert list(out.columns[5:]) == ["loaf", "oven", "heat", "flour"]
    with pytest.raises(dkaf.InputError, match=r"an export is a \.csv file"):
        campaign.export(tmp_path / "out.xlsx")


def test_plots_are_pictures_of_what_is_known(campaign: dkaf.Campaign, truth: dict[str, float], tmp_path: Path) -> None:
    from dkaf.campaign.plots import picture

    campaign.plot(tmp_path / "empty.png")
    for candidate in campaign.ask(4):
        campaign.tell(candidate.id, truth[candidate.id])
    campaign.tell(candidate.id, truth[candidate.id] - 1)
    campaign.ask(2)
    shown = picture(campaign)
    assert shown.best == np.maximum.accumulate([m.value for m in campaign.history]).tolist()
    assert (len(shown.values), len(shown.pending), len(shown.mapped)) == (4, 2, 60)
    beliefs = campaign.search().believe(range(60))
    assert beliefs is not None
    np.testing.assert_allclose(shown.mean, beliefs[0])
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        campaign.plot(tmp_path / f"plot.{kind}")
        assert (tmp_path / f"plot.{kind}").read_bytes().startswith(start)
    with pytest.raises(dkaf.InputError, match=r"a plot is a \.png"):
        campaign.plot(tmp_path / "plot.gif")


def run_writers(path: Path, rounds: int, seed: int) -> list[list[Any]]:
    done = subprocess.run(
        [sys.executable, SCRIPT, path, str(rounds), str(seed)],
        capture_output=True,
        text=True,
        timeout=400,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    acknowledged: list[list[Any]] = json.loads(done.stdout)
    return acknowledged


def sound(path: Path) -> bool:
    with sqlite3.connect(path) as db:
        return bool(db.execute("PRAGMA integrity_check").fetchone()[0] == "ok")


@pytest.fixture
def fast_folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be had: a kill cuts into more calls, and what a process wrote is as safe there."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def test_hundreds_of_kills_lose_nothing_acknowledged_and_give_nothing_out_twice(fast_folder: Path) -> None:
    campaigns.pool(fast_folder / "pool.csv", n=2000)
    campaign = dkaf.Campaign.create(fast_folder / "k.db", fast_folder / "pool.csv", campaigns.policy(fast_folder))
    acknowledged = run_writers(fast_folder / "k.db", 120, 1)  # two writers each: 240 kills
    assert sound(fast_folder / "k.db")
    asked = [name for _, kind, *rest in acknowledged if kind == "asked" for name in rest[0]]
    told = [tuple(rest) for _, kind, *rest in acknowledged if kind == "told"]
    failed = [rest[0] for _, kind, *rest in acknowledged if kind == "failed"]
    assert len(asked) > 20
    assert len(told) > 10
    assert len(set(asked)) == len(asked)
    history = Counter((measurement.id, measurement.value) for measurement in campaign.history)
    assert not Counter(told) - history
    status = campaign.status()
    assert set(failed) <= {item["id"] for item in status["failed"]}
    everything = {item["id"] for what in ("history", "pending", "failed") for item in status[what]}
    assert set(asked) <= everything
    campaign.ask()


def test_two_processes_that_ask_at_once_never_get_the_same_candidate(tmp_path: Path) -> None:
    campaigns.pool(tmp_path / "pool.csv", n=40)
    campaign = dkaf.Campaign.create(tmp_path / "c.db", tmp_path / "pool.csv", campaigns.policy(tmp_path))
    acknowledged = run_writers(tmp_path / "c.db", 0, 0)
    asked = [name for _, _, names in acknowledged for name in names]
    assert len(asked) == len(set(asked)) == 40
    assert set(campaign.pending) == set(asked)


def test_a_writer_that_waits_is_told_by_whom_it_was_kept(
    campaign: dkaf.Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkaf.campaign.store.SECONDS_TO_WAIT", 0.1)
    with sqlite3.connect(campaign.path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        with pytest.raises(dkaf.InputError, match="another process has been writing"):
            campaign.tell("l1", 1.0)
        assert time.monotonic() - began < 30
        other.execute("ROLLBACK")
    campaign.tell("l1", 1.0)


def use(path: Path) -> None:
    """All that reads a campaign's file."""
    campaign = dkaf.Campaign.open(path)
    campaign.status()
    campaign.export()
    campaign.ask(2)
    campaign.tell("l1", 1.0)
    campaign.undo()


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_file_is_refused_or_still_works_and_never_ends_in_a_traceback(
    campaign: dkaf.Campaign, tmp_path: Path, seed: int
) -> None:
    for candidate in campaign.ask(2):
        campaign.tell(candidate.id, 1.0)
    whole = Path(campaign.path).read_bytes()
    draw = random.Random(seed)
    refused = 0
    for number in range(40):
        damaged = bytearray(whole)
        if number % 4 == 0:
            del damaged[draw.randrange(len(damaged)) :]
        for _ in range(draw.choice((1, 8, 64))):
            if damaged:
                damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        path = tmp_path / "damaged.db"
        path.write_bytes(damaged)
        Path(f"{path}-journal").unlink(missing_ok=True)
        try:
            use(path)
        except dkaf.InputError:
            refused += 1
    assert refused > 0


def test_a_changed_measurement_is_noticed(campaign: dkaf.Campaign) -> None:
    campaign.tell("l1", 1.0)
    with sqlite3.connect(campaign.path) as db:
        db.execute("UPDATE events SET value = 2.0")
    with pytest.raises(dkaf.InputError, match="event 1 is not as it was written"):
        dkaf.Campaign.open(campaign.path).status()


def test_other_files_and_other_versions_are_refused(campaign: dkaf.Campaign, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE events (x)")
    (tmp_path / "text.db").write_text("no database at all, but some text")
    (tmp_path / "empty.db").write_bytes(b"")
    for path, message in (
        (other, "another program's SQLite file"),
        (tmp_path / "text.db", "no whole campaign file"),
        (tmp_path / "empty.db", "another program's"),
        (tmp_path, "is a folder"),
        (tmp_path / "none.db", "does not exist"),
    ):
        with pytest.raises(dkaf.InputError, match=message):
            dkaf.Campaign.open(path)
    with sqlite3.connect(campaign.path) as db:
        db.execute("PRAGMA user_version = 2")
    with pytest.raises(dkaf.InputError, match=r"reads campaigns of format 1, .* has format 2; use the version"):
        dkaf.Campaign.open(campaign.path)


@pytest.mark.parametrize("link", [False, True])
def test_export_and_plot_never_write_over_the_campaign(tmp_path: Path, truth: dict[str, float], link: bool) -> None:
    for name in ("c.csv", "c.png"):
        campaign = dkaf.Campaign.create(tmp_path / name, tmp_path / "pool.csv", "gp", id="loaf")
        campaign.tell("l1", 1.0)
        output = tmp_path / f"link-{name}" if link else tmp_path / name
        if link:
            output.hardlink_to(tmp_path / name)
        with pytest.raises(dkaf.InputError, match="is the campaign; name another"):
            campaign.export(output) if name == "c.csv" else campaign.plot(output)
        assert len(dkaf.Campaign.open(tmp_path / name).history) == 1


def test_a_full_disk_is_said_and_nothing_is_lost(campaign: dkaf.Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign.tell("l1", 1.0)
    connect = sqlite3.connect

    def small(*arguments: Any, **options: Any) -> sqlite3.Connection:
        db = connect(*arguments, **options)
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages}")
        return db

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", small)
        with pytest.raises(dkaf.InputError, match=r"cannot be written now .* and is as it was; make room"):
            campaign.tell_all([(f"l{number % 50}", float(number)) for number in range(5000)])
    assert [measurement.value for measurement in campaign.history] == [1.0]
    campaign.tell("l2", 2.0)


def test_half_a_file_is_called_damaged(campaign: dkaf.Campaign) -> None:
    whole = Path(campaign.path).read_bytes()
    Path(campaign.path).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(dkaf.InputError, match=r"no whole campaign file .* bring back a copy"):
        use(Path(campaign.path))


def test_undo_of_a_release_leaves_one_status_and_counts_once(campaign: dkaf.Campaign) -> None:
    campaign.set_budget(5)
    name = campaign.ask()[0].id
    campaign.fail(name)
    campaign.release(name)
    assert campaign.ask()[0].id == name
    campaign.undo()
    status = campaign.status()
    assert ([item["id"] for item in status["pending"]], status["failed"], status["left"]) == ([name], [], 4)
    campaign.tell(name, 1.0)
    with pytest.raises(dkaf.InputError, match="what was measured has not failed"):
        campaign.fail(name)


def test_an_export_can_be_imported_with_its_pending_rows(
    campaign: dkaf.Campaign, truth: dict[str, float], tmp_path: Path
) -> None:
    first, _ = (candidate.id for candidate in campaign.ask(2))
    campaign.tell(first, 3.0)
    campaign.export(tmp_path / "out.csv")
    again = dkaf.Campaign.create(
        tmp_path / "again.db", tmp_path / "pool.csv", campaigns.policy(tmp_path), known=tmp_path / "out.csv"
    )
    assert [(m.id, m.value, m.known) for m in again.history] == [(first, 3.0, True)]
    rows = dkaf.Campaign.create(tmp_path / "rows.db", tmp_path / "pool.csv", "gp")
    rows.tell("7", 1.0)
    rows.export(tmp_path / "rows.csv")
    numbered = dkaf.Campaign.create(tmp_path / "r2.db", tmp_path / "pool.csv", "gp", known=tmp_path / "rows.csv")
    assert [(m.id, m.value) for m in numbered.history] == [("7", 1.0)]


def test_a_file_that_was_replaced_is_noticed_by_who_has_it_open(campaign: dkaf.Campaign, tmp_path: Path) -> None:
    campaign.ask()
    Path(campaign.path).unlink()
    dkaf.Campaign.create(campaign.path, tmp_path / "pool.csv", campaigns.policy(tmp_path))
    for call in (campaign.ask, lambda: campaign.tell("l1", 1.0), campaign.status):
        with pytest.raises(dkaf.InputError, match="is another campaign than the one that was opened"):
            call()


def test_who_tells_while_another_chooses_does_not_wait_and_no_candidate_is_named_twice(
    campaign: dkaf.Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question was asked before the answer came: it is chosen again only where that answer is of the chosen one."""
    chooser = campaign._chooser_here()
    choose, seen = chooser.choose, []

    def slow(n: int, state: Any) -> Any:
        seen.append(len(state.told))
        chosen = choose(n, state)
        dkaf.Campaign.open(campaign.path).tell("l3", 2.0)
        return chosen

    monkeypatch.setattr(chooser, "choose", slow)
    campaign.ask()
    assert seen == [0]
    assert [m.id for m in campaign.history] == ["l3"]

    def taken(n: int, state: Any) -> Any:
        seen.append(len(state.told))
        chosen = choose(n, state)
        if len(seen) == 2:
            with campaign._reading() as db:
                name = campaign._store.id_of(db, chosen[0].row)
            dkaf.Campaign.open(campaign.path).tell(name, 2.0)
        return chosen

    monkeypatch.setattr(chooser, "choose", taken)
    (asked,) = campaign.ask()
    assert seen == [0, 1, 2]
    assert asked.id not in [m.id for m in campaign.history]
    monkeypatch.setattr("dkaf.campaign.campaign.TRIES", 0)  # as if all of them had been in vain
    campaign.ask()
    assert (seen, len(campaign.pending)) == ([0, 1, 2, 2], 3)


def test_what_threads_ask_and_tell_at_once_is_refused_one_by_one(campaign: dkaf.Campaign) -> None:
    from dkaf.campaign.wishes import Telling, Wish

    campaign.set_budget(4)
    wishes = [Wish(2, "a", "k1"), Wish(3, "b", None), Wish(2, "c", "k1"), Wish(2, "d", None), Wish(1, "e", None)]
    answers = campaign._ask_together(wishes)
    one, _, same, four, _ = answers
    assert [len(a) if isinstance(a, tuple) else str(a)[:10] for a in answers] == [2, "the budget", 2, 2, "the budget"]
    assert isinstance(one, tuple)
    assert isinstance(same, tuple)
    assert isinstance(four, tuple)
    assert [c.id for c in one] == [c.id for c in same]
    assert len({c.id for c in (*one, *four)}) == 4
    ids = [c.id for c in (*one, *four)]
    told = [
        Telling([(ids[0], 1.0)], [], "a", "t"), Telling([(ids[1], 1.0), ("nobody", 2.0)], [], "b", None),
        Telling([(ids[0], 1.0)], [], "a", "t"), Telling([(ids[2], 1.0)], [ids[2]], "c", None),
        Telling([(ids[3], 4.0)], [], "d", None),
    ]  # fmt: skip
    assert [refusal is None for refusal in campaign._tell_together(told)] == [True, False, True, False, True]
    assert [(m.id, m.who) for m in campaign.history] == [(ids[0], "a"), (ids[3], "d")]


def test_threads_that_share_a_campaign_get_different_candidates(campaign: dkaf.Campaign) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as threads:
        asked = [candidate.id for batch in threads.map(lambda _: campaign.ask(2), range(8)) for candidate in batch]
    assert len(set(asked)) == len(asked) == 16


def test_many_measurements_do_not_make_a_gaussian_process_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkaf.campaign.chooser.MOST_OBSERVED", 10)
    truth = campaigns.pool(tmp_path / "pool.csv")
    campaign = dkaf.Campaign.create(tmp_path / "m.db", tmp_path / "pool.csv", "gp", id="loaf")
    campaign.tell_all(list(truth.items())[:40])
    observed = campaign.search().observed
    assert len(observed) == 10
    best = sorted(list(truth.values())[:40])[-5:]
    assert set(best) <= {observation.value for observation in observed}
    assert campaign.ask()[0].id in list(truth)[40:]


def test_columns_of_many_rows_come_from_their_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkaf.campaign.creation.BLOCK_ROWS", 7)
    campaigns.pool(tmp_path / "pool.csv", n=30)
    campaign = dkaf.Campaign.create(tmp_path / "m.db", tmp_path / "pool.csv", "gp", id="loaf")
    rows = [29, 3, 0, 7, 6, 3]
    assert [row["loaf"] for row in campaign.columns_of(rows)] == [f"l{row}" for row in rows]
    assert campaign.ask(30)[5].columns.keys() == {"loaf", "oven", "heat", "flour"}


def test_the_best_so_far_of_a_plot_is_the_best_of_the_campaign(tmp_path: Path) -> None:
    from dkaf.campaign.plots import picture

    campaigns.pool(tmp_path / "pool.csv")
    campaign = dkaf.Campaign.create(tmp_path / "m.db", tmp_path / "pool.csv", "gp", id="loaf")
    campaign.tell_all([("l1", 10.0), ("l1", 0.0), ("l2", 6.0)])
    assert picture(campaign).best == [10.0, 5.0, 6.0]
    assert campaign.best == ("l2", 6.0, 1)


def test_a_damaged_policy_file_is_refused_or_works(tmp_path: Path, truth: dict[str, float]) -> None:
    whole = campaigns.policy(tmp_path).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    draw, refused = random.Random(0), 0
    for number in range(60):
        damaged = bytearray(whole)
        if number % 5 == 0:
            del damaged[draw.randrange(len(damaged)) :]
        elif number % 5 == 1:  # somewhere
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        else:  # in what it says of itself
            damaged[draw.randrange(header)] ^= 1 << draw.randrange(8)
        path = tmp_path / "damaged.safetensors"
        path.write_bytes(damaged)
        (tmp_path / "d.db").unlink(missing_ok=True)
        try:
            dkaf.Campaign.create(tmp_path / "d.db", tmp_path / "pool.csv", path).ask()
        except dkaf.InputError:
            refused += 1
    assert refused > 20


def test_what_is_done_twice_under_one_key_happens_once_and_who_did_it_is_kept(campaign: dkaf.Campaign) -> None:
    first = campaign.ask(2, who="ann", key="a1")
    assert [c.id for c in campaign.ask(2, key="a1")] == [c.id for c in first]
    assert len(campaign.pending) == 2
    for _ in range(2):
        campaign.tell(first[0].id, 1.5, who="bob", key="t1")
        campaign.fail(first[1].id, key="f1")
    assert [(m.value, m.who) for m in campaign.history] == [(1.5, "bob")]
    assert campaign.undo(key="u1") == campaign.undo(key="u1")
    assert campaign.pending == (first[1].id,)
    for _ in range(2):
        campaign.release(first[1].id, key="r1")
    assert campaign.pending == ()
    assert len(campaign.history) == 1
    assert [c.id for c in campaign.ask(2, key="a1")] == [c.id for c in first]  # also long after


def test_measurements_and_failures_are_told_together_or_not_at_all(campaign: dkaf.Campaign) -> None:
    with pytest.raises(dkaf.InputError, match="what was measured has not failed"):
        campaign.tell_all([("l1", 1.0)], failed=["l2", "l1"])
    assert (campaign.history, campaign.status()["failed"]) == ((), [])
    campaign.tell_all([("l1", 1.0)], failed=["l2"])
    assert [item["id"] for item in campaign.status()["failed"]] == ["l2"]


@pytest.mark.parametrize("word", [5, 1.5, True, np.int64(3), uuid.UUID(int=1), b"x", "\ud800"])
def test_a_key_or_a_name_that_is_no_text_is_refused(word: Any) -> None:
    with pytest.raises(dkaf.InputError, match="a key is a text"):
        checked_word("a key", word)


@pytest.mark.parametrize("option", ["key", "who"])
def test_a_word_that_cannot_be_kept_is_refused_and_the_campaign_stays_whole(tmp_path: Path, option: str) -> None:
    campaigns.pool(tmp_path / "pool.csv")
    campaign = dkaf.Campaign.create(tmp_path / "c.db", tmp_path / "pool.csv", "gp", id="loaf")
    (candidate,) = campaign.ask()
    word: dict[str, Any] = {option: "\ud800"}
    for call in (
        lambda: campaign.ask(**word),
        lambda: campaign.tell(candidate.id, 1.0, **word),
        lambda: campaign.release(candidate.id, **word),
        lambda: campaign.undo(**word),
    ):
        with pytest.raises(dkaf.InputError, match="is a text"):
            call()
    assert campaign.pending == (candidate.id,)
    assert dkaf.Campaign.open(tmp_path / "c.db").status()["history"] == []


def test_what_fails_for_one_of_several_who_ask_at_once_is_nobody_elses(tmp_path: Path) -> None:
    from dkaf.campaign.wishes import Telling, Wish

    campaigns.pool(tmp_path / "pool.csv", n=200)
    campaign = dkaf.Campaign.create(tmp_path / "c.db", tmp_path / "pool.csv", "gp", id="loaf")
    campaign.ask()
    chooser = campaign._chooser
    assert chooser is not None
    choose, calls = chooser.choose, []

    def once(n: int, state: Any) -> Any:
        calls.append(n)
        if len(calls) == 2:
            raise ArithmeticError("singular")
        return choose(n, state)

    chooser.choose = once  # type: ignore[method-assign]
    first, second = campaign._ask_together([Wish(40, None, "a"), Wish(40, None, "b")])
    assert len(first) == 40  # type: ignore[arg-type]
    assert isinstance(second, ArithmeticError)
    assert len(campaign.pending) == 41
    told = [Telling([(campaign.pending[0], 1.0)], [], None, None), Telling([("nobody", 1.0)], [], None, None)]
    good, bad = campaign._tell_together(told)
    assert good is None
    assert isinstance(bad, dkaf.InputError)


def test_who_reads_does_not_wait_for_who_waits_to_write(tmp_path: Path) -> None:
    campaigns.pool(tmp_path / "pool.csv")
    campaign = dkaf.Campaign.create(tmp_path / "c.db", tmp_path / "pool.csv", "gp", id="loaf")
    with contextlib.closing(sqlite3.connect(tmp_path / "c.db", isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        waiting = threading.Thread(target=lambda: campaign.tell("l1", 1.0))
        waiting.start()
        time.sleep(0.2)
        assert campaign.status()["history"] == []
        assert waiting.is_alive(), "this test shows nothing otherwise"
        db.execute("ROLLBACK")
    waiting.join()
    assert len(campaign.status()["history"]) == 1
