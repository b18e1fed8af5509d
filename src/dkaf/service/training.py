"""The process of a training job: `python -m dkaf.service.training JOB.json`, as `dkaf train` trains on campaigns."""

import dataclasses
import json
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dkaf.errors import FallbackWarning, InputError
from dkaf.service.jobs import DONE, FAILED
from dkaf.service.tokens import write_private

if TYPE_CHECKING:
    from dkaf.learning.progress import Progress
    from dkaf.policies import Policy
    from dkaf.sources.past import PastTasks

EVERY = 0.5  # seconds between two words of progress


class Job:
    """The job's file, which this process alone writes as long as it lives."""

    def __init__(self, path: Path) -> None:
        self._path, self._value, self._said = path, json.loads(path.read_bytes()), 0.0
        self.request: dict[str, Any] = self._value["request"]

    def say(self, **changes: Any) -> None:
        """Write it whole."""
        self._value |= changes
        self._said = time.monotonic()
        write_private(self._path, self._value)

    def progress(self, stage: str, done: int, total: int) -> None:
        """The same, but not too often."""
        if stage != self._value["stage"] or done == total or time.monotonic() > self._said + EVERY:
            self.say(stage=stage, done=done, total=total)


def past_tasks(job: Job) -> "PastTasks":
    """What the campaigns measured, each a task; those that are too small are left out."""
    import numpy as np

    import dkaf
    from dkaf.sources.past import searchable

    campaigns = [dkaf.Campaign.open(path) for path in job.request["paths"]]
    response = job.request["response"] or next((c.response for c in campaigns if c.response), "response")
    for what, found in (
        ("one column of ids", {campaign.id_column for campaign in campaigns}),
        ("one direction", {campaign.minimise for campaign in campaigns}),
    ):
        if len(found) > 1:
            raise InputError(f"finished campaigns have {what}, these have {len(found)}; train on them apart")
    tasks = dkaf.read_tasks(
        [campaign.table(response) for campaign in campaigns],
        response=response,
        id=campaigns[0].id_column,
        minimise=campaigns[0].minimise,
        progress=lambda done, total: job.progress("reading", done, total),
    )
    tasks = searchable(tasks)
    return tasks.subset(np.random.default_rng(0).permutation(len(tasks)).tolist())


def train(job: Job) -> "tuple[Policy, str]":
    """One task in six says when to stop, one more in six what was gained."""
    import dkaf
    from dkaf.sources.past import fitting_queries

    tasks = past_tasks(job)
    settings: dict[str, Any] = dict(job.request["settings"])
    settings |= fitting_queries(tasks, settings)
    held_out = len(tasks) // 6
    parts = tasks.split(len(tasks) - 2 * held_out, held_out, held_out)

    def fit(method: str, acquisition: str, **overrides: Any) -> "Policy":
        def show(progress: "Progress") -> None:
            job.progress(f"{method}: {progress.stage}", progress.update, progress.updates)

        validation = parts[1] if held_out else None
        return dkaf.fit(parts[0], validation, method, acquisition, progress=show, **overrides)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", FallbackWarning)
        policy = fit("dkaf", "auto", **settings)
        if held_out:
            from dkaf.gain import measure_gain

            gp = fit("gp", "ucb", **{name: settings[name] for name in ("queries", "initial") if name in settings})
            job.progress("measuring the gain", 0, 1)
            gain = measure_gain(policy, gp, parts[2])
            policy.training_log = dataclasses.replace(policy.training_log, gain=gain)
    words = [str(each.message) for each in said if issubclass(each.category, FallbackWarning)]
    gained = policy.training_log.gain
    return policy, "; ".join([*words, *([] if gained is None else [gained.in_words()])])


def main(path: str) -> int:
    """Run a job to its end."""
    job = Job(Path(path))
    try:
        import torch

        torch.set_num_threads(1)
        policy, message = train(job)
        target = Path(job.request["target"])
        beside = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            policy.save(beside)
            os.link(beside, target)  # never over another one
        except FileExistsError:
            raise InputError(f"policies have names of their own, {target.stem!r} is there; name another") from None
        finally:
            beside.unlink(missing_ok=True)
        job.say(state=DONE, stage="done", done=1, total=1, message=message, policy=target.stem)
        return 0
    except InputError as error:
        job.say(state=FAILED, message=str(error))
    except Exception:
        logging.exception("training")  # to the job's log
        job.say(state=FAILED, message="training ended with an error of its own; the job's log in the folder says more")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
