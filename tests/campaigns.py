"""Small campaigns for several test files: an oven whose bread is best at one heat, and days on which it was tried."""

import csv
from functools import cache
from pathlib import Path

import numpy as np

import dkaf

COLUMNS = ["loaf", "oven", "heat", "flour", "rise"]
SMALL = {"pretrain_updates": 40, "updates": 2, "scale_updates": 2, "queries": 4}


def bread(seed: int, n: int = 24) -> list[dict[str, str]]:
    """Rows of one day: the best heat differs from day to day, and differs by oven."""
    draw = np.random.default_rng(seed)
    best = draw.normal(200, 10)
    rows = []
    for number in range(n):
        oven, heat = str(draw.choice(["gas", "wood"])), float(draw.uniform(150, 250))
        words = " ".join(draw.choice(["dark", "light", "whole", "sour", "sweet", "coarse"], size=4))
        rise = 10 - ((heat - best - (5 if oven == "gas" else 0)) / 20) ** 2 + draw.normal(0, 0.1)
        rows.append({"loaf": f"l{number}", "oven": oven, "heat": f"{heat:.2f}", "flour": words, "rise": f"{rise:.3f}"})
    return rows


def write(path: Path, rows: list[dict[str, str]], columns: list[str] | None = None) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns or list(rows[0]), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def past(folder: Path, days: int = 8) -> Path:
    """A folder with a file a day."""
    folder.mkdir()
    for day in range(days):
        write(folder / f"day{day}.csv", bread(day))
    return folder


def pool(path: Path, n: int = 60, seed: int = 99) -> dict[str, float]:
    """A file of loaves to try; what each would give."""
    rows = bread(seed, n)
    write(path, rows, COLUMNS[:-1])
    return {row["loaf"]: float(row["rise"]) for row in rows}


@cache
def policy_bytes() -> bytes:
    """A policy that was trained on some days."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        tasks = dkaf.read_tasks(past(Path(name) / "past"), response="rise", id="loaf")
        train, validation = tasks.split(6, 2)
        dkaf.fit(train, validation, "dkaf", "ucb", **SMALL).save(Path(name) / "policy")
        return (Path(name) / "policy").read_bytes()


def policy(folder: Path) -> Path:
    path = folder / "bread.safetensors"
    path.write_bytes(policy_bytes())
    return path
