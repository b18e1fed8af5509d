"""One seed, many streams: every purpose draws from a stream of its own, so that no draw shifts another."""

import contextlib
import hashlib
import threading
from collections.abc import Iterator

import torch

from dkaf.errors import whole_number


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose; the same on every machine and for any number of workers."""
    text = repr((whole_number("seed", seed), *purpose)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def stream(seed: int, *purpose: str | int) -> torch.Generator:
    """The stream of random numbers for one purpose. Always on the CPU, so that devices draw alike."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


_one_at_a_time = threading.RLock()  # the global generators belong to all threads


@contextlib.contextmanager
def global_stream(seed: int, *purpose: str | int) -> Iterator[None]:
    """Seed PyTorch's global generators for a block and put them back after it.

    Initial weights and dropout, the user's own modules included, draw from the global generators and take no other.
    """
    devices = list(range(torch.cuda.device_count()))
    with _one_at_a_time, torch.random.fork_rng(devices=devices):
        torch.manual_seed(derive(seed, *purpose))
        yield
