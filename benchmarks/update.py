"""How long one training update takes, against the same mathematics with one posterior a step, on GPyTorch and without.

    python benchmarks/update.py [--threads 1] [--repeats 20] [--json PATH]

An update samples a batch of episodes, takes the log-probabilities of all their queries, and descends the policy
gradient, at the paper's size. Before anything is timed, all implementations must give the same log-probabilities, and
the same gradient, for the same episodes. Then they take turns in one process; the times are medians. Memory is the peak
of a process of its own, above what it held before its first update.

GPyTorch comes twice: through its public interface, and with a private method overridden that would otherwise evaluate
the prior covariance between all candidates, of which only the diagonal is needed.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import gpytorch
import numpy as np
import scipy.sparse as sp
import torch
from peers import Batch, Run, gpytorch_overridden, gpytorch_public, plain_pytorch
from torch import Tensor, nn

import dkaf
from dkaf.learning.descent import descend, optimiser_of
from dkaf.learning.episodes import PaddedTasks, gaps, log_probabilities, random_candidates, search
from dkaf.learning.reinforce import advantage, discounted_future, policy_gradient_loss
from dkaf.policies import KernelPolicy
from dkaf.seeding import derive, stream
from dkaf.tasks import TaskSet

ROWS, TERMS, NONZEROS, TASKS, POOL = 1900, 750, 60, 100, 500
TOLERANCE = 1e-6

GPYTORCH = f"GPyTorch {gpytorch.__version__}"
OURS, PLAIN = "ours", "plain PyTorch, one posterior a step"
PUBLIC, OVERRIDDEN = f"{GPYTORCH}, one posterior a step", f"{GPYTORCH}, a private method overridden"
PEERS: dict[str, Callable[[KernelPolicy], tuple[list[nn.Parameter], Run]]] = {
    PLAIN: plain_pytorch,
    OVERRIDDEN: gpytorch_overridden,
    PUBLIC: gpytorch_public,
}


def word_count_tasks(seed: int = 0) -> TaskSet:
    """Searches over made-up documents: few words are frequent, and a response is a distance to a hidden document."""
    draw = np.random.default_rng(derive(seed, "benchmark"))
    frequency = 1 / np.arange(1, TERMS + 1) ** 0.7
    rate = draw.gamma(0.5, size=(ROWS, TERMS)) * frequency  # documents differ in the words they like
    counts = draw.poisson(1.37 * NONZEROS * rate / rate.sum(axis=1, keepdims=True))
    hidden = np.log1p(counts) @ draw.standard_normal((TERMS, 32))
    drawn = [draw.choice(ROWS, size=POOL + 1, replace=False) for _ in range(TASKS)]
    responses = [-np.linalg.norm(hidden[rows[1:]] - hidden[rows[0]], axis=1) for rows in drawn]
    return TaskSet.from_arrays(sp.csr_array(counts), [rows[1:] for rows in drawn], responses)


def untrained_policy(tasks: TaskSet) -> KernelPolicy:
    return cast("KernelPolicy", dkaf.fit(tasks, recipe="paper", acquisition="mi", pretrain_updates=0, updates=0))


def check_agreement(policy: KernelPolicy, tasks: TaskSet) -> None:
    """In double precision, on the same episodes: the log-probabilities, and the encoder's gradient of their sum."""
    policy = copy.deepcopy(policy).double()
    settings, deck, draw = policy.settings, PaddedTasks.of(policy, tasks), stream(0, "agreement")
    numbers = torch.randint(len(deck), (settings.batch,), generator=draw)
    hand = deck.batch(numbers)
    start = random_candidates(hand.pool.mask, settings.initial, draw)
    points = policy.points(hand.x, hand.pool)
    chosen = search(policy, points, hand, start, settings.queries, draw, temperature=settings.temperature)
    log_p = log_probabilities(policy, points, hand, chosen, settings.initial, settings.temperature).squeeze(1)
    gradient = _encoder_gradient(policy, log_p)
    for name, peer in PEERS.items():
        batch = Batch(_dense(deck, policy), deck.rows[numbers], deck.y[numbers], start)
        _, their_log_p = peer(policy)[1](batch, draw, chosen.squeeze(1))
        their_gradient = _encoder_gradient(policy, their_log_p)
        for what, their, our in (
            ("log-probabilities", their_log_p, log_p),
            ("gradients", their_gradient, gradient),
        ):
            difference = float((their - our).detach().norm() / our.detach().norm())
            if not difference < TOLERANCE:
                raise SystemExit(
                    f"{what} of the same episodes agree to {TOLERANCE:g}; ours and {name} differ by {difference:.3g}, "
                    "so that their times would not compare; see benchmarks/peers.py and dkaf/model/posterior.py"
                )


def _encoder_gradient(policy: KernelPolicy, log_p: Tensor) -> Tensor:
    assert policy.prior.encoder is not None
    parts = torch.autograd.grad(log_p.sum(), list(policy.prior.encoder.parameters()))
    return torch.cat([part.flatten() for part in parts])


def _dense(deck: PaddedTasks, policy: KernelPolicy) -> Tensor:
    x = deck.x if isinstance(deck.x, Tensor) else deck.x.dense()
    return x.to(policy.dtype)


def updater(name: str, policy: KernelPolicy, tasks: TaskSet) -> Callable[[], None]:
    """One update of a copy of the policy, by the named implementation."""
    policy = copy.deepcopy(policy).train()
    settings, deck, draw = policy.settings, PaddedTasks.of(policy, tasks), stream(0, "updates")
    if name == OURS:
        parameters = policy.trained_by_gradient()

        def loss(numbers: Tensor) -> Tensor:
            return policy_gradient_loss(policy, deck, numbers, draw)

    else:
        parameters, run = PEERS[name](policy)
        x = _dense(deck, policy)

        def loss(numbers: Tensor) -> Tensor:
            y, start = deck.y[numbers], random_candidates(deck.mask[numbers], settings.initial, draw)
            chosen, log_p = run(Batch(x, deck.rows[numbers], y, start), draw)
            gap = gaps(y, torch.ones_like(y, dtype=torch.bool), chosen.unsqueeze(1), settings.initial)
            weight = advantage(discounted_future(gap, settings.gamma), settings.baseline).squeeze(1)
            return (weight * log_p).sum(dim=-1).mean()

    optimiser = optimiser_of(parameters, settings.learning_rate, settings.weight_decay)

    def update() -> None:
        numbers = torch.randint(len(deck), (settings.batch,), generator=draw)
        descend(optimiser, loss(numbers), settings.clip)

    return update


def median_times(names: Sequence[str], policy: KernelPolicy, tasks: TaskSet, repeats: int) -> dict[str, float]:
    """Milliseconds an update. The implementations take turns, so that what else the machine does hits all alike."""
    updates = {name: updater(name, policy, tasks) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name, update in updates.items():
            update()  # finds the caches and the heap as another implementation left them
            began = time.perf_counter()
            update()
            times[name].append(1000 * (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in times.items()}


def peak_memory(name: str, threads: int) -> float | None:
    """MiB that updates add at their peak to this process, which should be new; None where Linux's /proc is missing."""
    torch.set_num_threads(threads)
    tasks = word_count_tasks()
    update = updater(name, untrained_policy(tasks), tasks)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here; getrusage's cannot
        before = _status("VmRSS")
    except OSError:
        return None
    for _ in range(3):
        update()
    return _status("VmHWM") - before


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def measure(threads: int, repeats: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    tasks = word_count_tasks()
    policy = untrained_policy(tasks)
    check_agreement(policy, tasks)
    names = [OURS, *PEERS]
    memory = {}
    for name in names:
        with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
            memory[name] = process.submit(peak_memory, name, threads).result()
    times = median_times(names, policy, tasks, repeats)
    settings = policy.settings
    return {
        "size": {
            "episodes": settings.batch * settings.episodes,
            "pool": POOL,
            "queries": settings.queries,
            "starting points": settings.initial,
            "rows": ROWS,
            "terms": TERMS,
            "nonzeros a row": round(np.diff(cast("sp.csr_array", tasks.features).indptr).mean(), 1),
        },
        "threads": threads,
        "repeats": repeats,
        "versions": {"torch": torch.__version__, "gpytorch": gpytorch.__version__},
        "rows": [
            {"what": name, "ms an update": ms, "ratio to ours": ms / times[OURS], "peak memory MiB": memory[name]}
            for name, ms in times.items()
        ],
        "times faster than GPyTorch": times[PUBLIC] / times[OURS],
        "times faster than GPyTorch overridden": times[OVERRIDDEN] / times[OURS],
    }


def table(result: dict[str, Any]) -> str:
    size = ", ".join(f"{what} {value}" for what, value in result["size"].items())
    versions = ", ".join(f"{what} {version}" for what, version in result["versions"].items())
    head = tuple(result["rows"][0])
    cells = [
        (what, f"{ms:.1f}", f"{ratio:.1f}", "-" if memory is None else f"{memory:.0f}")
        for what, ms, ratio, memory in (row.values() for row in result["rows"])
    ]
    first = max(len(row[0]) for row in cells)
    lines = [
        f"{row[0]:<{first}}" + "".join(f"  {cell:>{len(name)}}" for cell, name in zip(row[1:], head[1:], strict=True))
        for row in (head, *cells)
    ]
    return "\n".join(
        [
            size,
            f"{versions}, threads {result['threads']}, median of {result['repeats']} updates",
            "",
            *lines,
            "",
            f"ours is {result['times faster than GPyTorch overridden']:.1f} times faster than {OVERRIDDEN}",
            f"ours is {result['times faster than GPyTorch']:.1f} times faster than {GPYTORCH}",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch, for all implementations")
    parser.add_argument("--repeats", type=int, default=20, help="timed updates of each implementation")
    parser.add_argument("--json", type=Path, help="write the measurements to this file, too")
    arguments = parser.parse_args()
    result = measure(arguments.threads, arguments.repeats)
    print(table(result))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
