"""What several test files need: one tiny set of tasks, and a Ctrl-C that is heard."""

import signal

import numpy as np
import pytest

import dkaf

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background jobs ignore Ctrl-C, and so would all that the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_tasks() -> dkaf.TaskSet:
    """Ten searches of 7 to 9 candidates over 30 rows of 4 features."""
    draw = np.random.default_rng(0)
    sizes = [7 + number % 3 for number in range(10)]
    pools = [draw.permutation(30)[:size] for size in sizes]
    return dkaf.TaskSet.from_arrays(draw.normal(size=(30, 4)), pools, [draw.normal(size=size) for size in sizes])
