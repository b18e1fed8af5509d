"""A program for the kill test: writers ask and tell in one campaign, are killed at random instants, and others go on.

`killed_writers.py CAMPAIGN ROUNDS SEED` prints what was acknowledged, as JSON. With 0 rounds nobody is killed: the
writers go on until they have asked for all candidates.
"""

import json
import os
import random
import select
import signal
import sys
import time
from typing import Any

import torch

import dkaf

WRITERS = 2


def write(campaign: dkaf.Campaign, seed: int, pipe: int, until_empty: bool) -> None:
    """Ask, tell, fail, release, undo; every call that returned is said."""
    draw = random.Random(seed)

    def say(*what: Any) -> None:
        os.write(pipe, json.dumps(what).encode() + b"\n")

    while True:
        try:
            named = [candidate.id for candidate in campaign.ask(1 if until_empty else draw.randint(1, 2))]
        except dkaf.InputError:
            if until_empty:
                return
            raise
        say("asked", named)
        for name in named:
            if until_empty:
                continue
            if draw.random() < 0.8:
                value = round(draw.uniform(-5, 5), 6)
                campaign.tell(name, value)
                say("told", name, value)
            else:
                campaign.fail(name)
                say("failed", name)


def start(campaign: dkaf.Campaign, seed: int, until_empty: bool) -> tuple[int, int]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            write(campaign, seed, writer, until_empty)
        finally:
            os._exit(0)
    os.close(writer)
    return child, reader


def lines(reader: int) -> list[list[Any]]:
    text = b""
    while select.select([reader], [], [], 5)[0]:
        more = os.read(reader, 1 << 16)
        if not more:
            break
        text += more
    os.close(reader)
    return [json.loads(line) for line in text.split(b"\n") if line]


def main() -> None:
    path, rounds, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    campaign = dkaf.Campaign.open(path)
    campaign.search().ask()  # read, encode and import before the forks
    draw = random.Random(seed)
    acknowledged: list[list[Any]] = []
    for number in range(max(rounds, 1)):
        writers = [start(campaign, draw.randrange(2**32), rounds == 0) for _ in range(WRITERS)]
        if rounds:
            time.sleep(draw.uniform(0, 0.2))
            for child, _ in writers:
                os.kill(child, signal.SIGKILL)
        for child, reader in writers:
            acknowledged += [[number, *line] for line in lines(reader)]
            os.waitpid(child, 0)
    print(json.dumps(acknowledged))


if __name__ == "__main__":
    main()
