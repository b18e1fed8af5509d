"""The grid on Ray's own test cluster of several nodes."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_grid import TINY, TINY_OPTIONS, Here, comparable, quiet

from dkaf.cli import main
from dkaf.experiments.engines import Outcome, RayEngine
from dkaf.experiments.grid import Job
from dkaf.experiments.paper import State, run_grid

pytest.importorskip("ray", reason="needs the extra dkaf[ray]")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray warns of its own future


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head that schedules nothing, so that every job is on a node that can be killed, and two such nodes."""
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # Ray's workers give way to all else, and a busy machine is all else
    # Workers import what the driver imports.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def test_a_node_killed_in_the_middle_loses_nothing_and_doubles_nothing(cluster: Any, tmp_path: Path) -> None:
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    finished = 0

    def kill_a_node(state: State, job: Job | None, outcome: Outcome | None) -> None:
        nonlocal finished
        finished += outcome is not None
        if finished == 12 and len(state.running) == 2 and len(nodes) == 2:  # both nodes are at work
            cluster.remove_node(nodes.pop(), allow_graceful=False)

    state = run_grid(TINY, tmp_path / "ray", lambda: RayEngine(cluster.address), kill_a_node)
    assert len(nodes) == 1
    assert state.done == len(TINY.cells)
    lines = (tmp_path / "ray" / "rows.jsonl").read_text().splitlines()
    assert len(lines) == len(TINY.cells)
    run_grid(TINY, tmp_path / "here", Here, quiet)
    assert comparable(tmp_path / "ray") == comparable(tmp_path / "here")


def test_an_address_where_nothing_answers_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--engine", "ray", "--address", "127.0.0.1:1"]
    assert main(["paper", "run", "--out", str(tmp_path / "out"), *TINY_OPTIONS, *options]) == 2
    assert "a Ray cluster answers at the --address, 127.0.0.1:1 does not" in capsys.readouterr().err
    assert not (tmp_path / "out" / "rows.jsonl").exists()
