"""`dkaf serve` under load, beside Optuna's ask and tell under the same load.

    python -m benchmarks.load [--seconds 30] [--only gp,trained,kill,rdb-random]

A hundred clients ask and tell on ten campaigns for a bounded time, all on this machine. Ours is the service as users
have it, in a process of its own; the clients are in another. No answer may be an error, no candidate may be given
twice, and every acknowledged result has to be there at the end, also when the service is killed (`kill -9`) in the
middle and started again. Optuna has no service: its clients, ten in each of ten processes as ten machines of a team
would have them, share ten studies, a file each. Its random sampler computes nothing, and nothing keeps it from trying a
candidate twice; ours has the posterior of every candidate at every question.
"""

import argparse
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dkaf
from benchmarks.load_service import Seen
from benchmarks.run import ROOT, about_now

OUT = ROOT / "runs" / "load"
OURS, OPTUNA = ("gp", "trained"), ("rdb-random", "rdb-tpe", "journal-random")
KILL = "kill"
CANDIDATES, COLUMNS, CAMPAIGNS, CLIENTS, PROCESSES = 2000, 8, 10, 100, 10
NAMES = {
    "gp": "dkaf serve, Gaussian process",
    "rdb-random": "Optuna, RDBStorage, RandomSampler",
    "trained": "dkaf serve, trained policy",
    "rdb-tpe": "Optuna, RDBStorage, TPESampler",
    "journal-random": "Optuna, JournalStorage, RandomSampler",
    "kill": "dkaf serve, Gaussian process, killed in the middle",
}
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Side:
    """What one kind of load came to."""

    name: str
    requests: int
    seconds: float
    rate: float
    """Requests a second."""
    ask: tuple[float, float]
    tell: tuple[float, float]
    """Median and 99th percentile of seconds."""
    both: tuple[float, float]
    sent_again: int
    wrong: list[str]
    """What must not be: errors, candidates given twice, results that are lost."""

    @classmethod
    def of(cls, name: str, seen: Seen, wrong: Sequence[str] = ()) -> "Side":
        requests = len(seen.asks) + len(seen.tells)
        ask, tell, both = (_quantiles(times) for times in (seen.asks, seen.tells, seen.asks + seen.tells))
        rate = requests / seen.seconds
        return cls(name, requests, seen.seconds, rate, ask, tell, both, seen.again, [*seen.errors[:5], *wrong])


def _quantiles(times: Sequence[float]) -> tuple[float, float]:
    if not times:
        return float("nan"), float("nan")
    median, last = np.quantile(times, [0.5, 0.99])
    return float(median), float(last)


class Server:
    """`dkaf serve` on a port of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._folder = folder
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "dkaf", "serve", "--data", str(self._folder), "--port", str(self._port)]
        self._process = subprocess.Popen(
            [*command, "--rate", "1e6"], stdout=subprocess.PIPE, text=True, env=os.environ | _THREADS
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if " is served at " not in line:
            raise RuntimeError(f"the service did not start: {line}")
        self.address = line.split(" is served at ")[1].split()[0].rstrip("/")

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def end(self) -> None:
        self._process.terminate()
        self._process.communicate()


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    try:
        yield server
    finally:
        server.end()


def ours(kind: str, seconds: float, folder: Path, clients: int = CLIENTS) -> Side:
    """The service, with a check of what it gave and kept."""
    names = [f"c{number}" for number in range(CAMPAIGNS)]
    with served(folder / kind) as server:
        client = dkaf.Client(server.address)
        policy = "gp"
        if kind == "trained":
            client.upload(_trained(folder))
            policy = client.policies()[0]["name"]
        for number, name in enumerate(names):
            _pool(number).to_csv(folder / "pool.csv", index=False)
            client.create(name, client.upload(folder / "pool.csv")["upload"], policy, id="id", seed=number)
        command = ["benchmarks.load_service", server.address, str(seconds), str(clients), *names]
        with _started(command) as child:
            if kind == KILL:
                time.sleep(seconds / 2)
                server.kill()
                server.start()
            seen = _seen(child)
        wrong = []
        for name in names:
            given, kept = seen.given.get(name, []), [m["id"] for m in client.status(name)["history"]]
            wrong += [f"{name} gave {c} twice" for c in given if given.count(c) > 1][:1]
            wrong += [f"{name} has {c} twice" for c in kept if kept.count(c) > 1][:1]
            wrong += [f"{name} lost {c}" for c in seen.acknowledged.get(name, []) if c not in set(kept)][:1]
    return Side.of(kind, seen, wrong)


def optuna_side(kind: str, seconds: float, folder: Path, clients: int = CLIENTS) -> Side:
    """Ten processes of ten threads each, all of a process on different studies."""
    import optuna

    from benchmarks.load_optuna import storage_of

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder = folder / kind
    folder.mkdir()
    studies = [f"s{number}" for number in range(CAMPAIGNS)]
    for study in studies:
        optuna.create_study(study_name=study, storage=storage_of(folder, kind, study), direction="maximize")
    begin = time.time() + 25.0  # when all processes are there
    whose = [
        [studies[n % CAMPAIGNS] for n in range(clients) if (n // CAMPAIGNS) % PROCESSES == p] for p in range(PROCESSES)
    ]
    common = ["benchmarks.load_optuna", str(folder), kind, str(begin), str(seconds), str(COLUMNS)]
    running = [_start([*common, *own]) for own in whose if own]
    together = Seen()
    for child in running:
        seen = _seen(child)
        together.asks += seen.asks
        together.tells += seen.tells
        together.errors += seen.errors
        together.seconds = max(together.seconds, seen.seconds)
    return Side.of(kind, together)


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, env=os.environ | _THREADS, cwd=ROOT
    )


@contextmanager
def _started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    child = _start(command)
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()


def _seen(child: subprocess.Popen[str]) -> Seen:
    said, _ = child.communicate()
    return Seen(**json.loads(said))


def _pool(seed: int) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    table = pd.DataFrame(draw.random((CANDIDATES, COLUMNS)), columns=[f"f{number}" for number in range(COLUMNS)])
    return table.assign(id=[f"m{number}" for number in range(CANDIDATES)])


def _trained(folder: Path) -> Path:
    """A policy of six past searches."""
    past = []
    for day in range(6):
        table = _pool(100 + day).head(100)
        x = table.drop(columns="id").to_numpy()
        past.append(table.assign(response=-((x - 0.3 - 0.05 * day) ** 2).sum(axis=1)))
    tasks = dkaf.read_tasks(past, response="response", id="id")
    dkaf.fit(tasks, acquisition="ucb", pretrain_updates=200, updates=2).save(folder / "load.safetensors")
    return folder / "load.safetensors"


def table(sides: Sequence[Side]) -> str:
    """Markdown; a ratio above 1: better than the first of Optuna's rows."""
    lines = [
        "| what | requests a second | ask, median and p99 | tell, median and p99 | rate, ratio | p99, ratio |",
        "|---|---|---|---|---|---|",
    ]
    peer = next((side for side in sides if side.name in OPTUNA), None)
    for side in sides:
        if side.name == KILL:  # for what it kept, not for how fast it was
            continue
        times = " | ".join(f"{1e3 * a:,.0f}, {1e3 * b:,.0f} ms" for a, b in (side.ask, side.tell))
        ratios = " | "
        if peer is not None and peer is not side:
            ratios = f"**{side.rate / peer.rate:.2g}** | **{peer.both[1] / side.both[1]:.2g}**"
        lines.append(f"| {NAMES[side.name]} | {side.rate:,.0f} | {times} | {ratios} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0, metavar="N", help="of each kind of load (%(default)g)")
    parser.add_argument("--clients", type=int, default=CLIENTS, metavar="N", help="at once (%(default)s)")
    parser.add_argument("--only", metavar="A,B", help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER", help="where results.json goes (runs/load)")
    options = parser.parse_args()
    kinds = options.only.split(",") if options.only else list(NAMES)
    if unknown := [kind for kind in kinds if kind not in NAMES]:
        print(f"--only names of {', '.join(NAMES)}; {', '.join(unknown)} came", file=sys.stderr)
        return 2
    about: dict[str, Any] = about_now(shlex.join(["python", "-m", "benchmarks.load", *sys.argv[1:]]))
    sides = []
    for kind in kinds:
        print(f"{kind} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="dkaf-load-") as folder:
            run = optuna_side if kind in OPTUNA else ours
            sides.append(run(kind, options.seconds, Path(folder), options.clients))
    options.out.mkdir(parents=True, exist_ok=True)
    packages = {name: version(name) for name in ("optuna", "sqlalchemy", "fastapi", "uvicorn")}
    results = {**about, "packages": packages, "sides": [vars(side) for side in sides]}
    (options.out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    print(table(sides))
    wrong = [f"{side.name}: {what}" for side in sides for what in side.wrong]
    print("\n".join(wrong) if wrong else "no error, no candidate given twice, nothing acknowledged is lost")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
