"""Peaks of memory, of a process that does one side's work and nothing else."""

import contextlib
import ctypes
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


def peak_memory(build: Callable[[], Callable[[], object]], calls: int, *, rehearse: bool) -> float | None:
    """MiB that building a side and some of its work add at their peak; None where Linux's /proc is missing.

    A rehearsal comes first where it is cheap: what libraries import at first use is not the work's.

    In a fork of this process, which computes on one thread, so that all sides begin with the same data in memory.
    Pages of files are not counted: which of a library's own are in memory depends on who used it before.
    """
    if not Path("/proc/self/clear_refs").exists():
        return None
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            os.write(writing, str(_added_at_peak(build, calls, rehearse)).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    os.close(writing)
    try:
        with os.fdopen(reading) as pipe:
            answer = pipe.read()
    except BaseException:  # Ctrl-C leaves nothing running
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    if os.waitpid(child, 0)[1] != 0:
        raise RuntimeError("a side failed while its memory was measured; its error is above")
    return None if answer == "None" else float(answer)


def _added_at_peak(build: Callable[[], Callable[[], object]], calls: int, rehearse: bool) -> float | None:
    if rehearse:
        build()()
        gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)  # what was freed before would otherwise be taken again unseen
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here; getrusage's cannot
    except OSError:
        return None
    before = status("RssAnon")
    work = build()
    for _ in range(calls):
        work()
    return max(0.0, status("VmHWM") - status("RssFile") - status("RssShmem") - before)


def status(field: str) -> float:
    """A field of this process's /proc/self/status, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024
