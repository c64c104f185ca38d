"""The same experiment, unchanged but for the cluster, gives the same numbers wherever it runs (one worker)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import portpicker
import pytest

EXPERIMENT = [
    "model=embedding", "partitioner=fixed_shards", "optimizer=adagrad", "evaluation=exact", "seed=3",
    "trainer.epochs=2", "trainer.steps_per_epoch=20", "data.num_train_examples=500", "data.num_eval_examples=100",
]  # fmt: skip
NUM_TASKS = 4  # chief, one worker, two ps
SIZE = ["cluster.num_workers=1", "cluster.num_ps=2"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> dict[str, Any]:
    """What comes out in one process."""
    root = tmp_path_factory.mktemp("reference")
    command = [sys.executable, "-m", "psrun", *EXPERIMENT, "cluster=inprocess", *SIZE, f"hydra.run.dir={root / 'run'}"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((root / "run" / "run.json").read_text())


def supervised(kind: str) -> Callable[..., Path]:
    """Where one command starts all tasks."""

    def run(request) -> Path:
        started = request.getfixturevalue("start")(*EXPERIMENT, f"cluster={kind}", *SIZE)
        assert started.end() == 0, started.stderr
        return started.folder

    return run


def slurm(request) -> Path:
    """Where Slurm starts them."""
    step = ["srun", f"--ntasks={NUM_TASKS}"]
    started = request.getfixturevalue("on_slurm")(*EXPERIMENT, "cluster=slurm", *SIZE, prefix=step)
    assert started.end() == 0, started.stderr
    return started.folder


def static(request) -> Path:
    """Where each task is started by itself."""
    start = request.getfixturevalue("start")
    jobs = {"ps": 2, "worker": 1, "chief": 1}
    listed = {job: [f"localhost:{portpicker.pick_unused_port()}" for _ in range(n)] for job, n in jobs.items()}
    given = f"cluster.addresses={json.dumps(listed)}".replace('"', "")
    tasks = [
        start(*EXPERIMENT, "cluster=static", given, f"task.type={job}", f"task.index={index}")
        for job, n in jobs.items()
        for index in range(n)
    ]
    for task in tasks:
        assert task.end() == 0, task.stderr
    return tasks[-1].folder


WAYS = [
    pytest.param(supervised("local"), id="local", marks=pytest.mark.cluster),
    pytest.param(static, id="static", marks=pytest.mark.cluster),
    pytest.param(supervised("ray"), id="ray", marks=pytest.mark.ray),
    pytest.param(slurm, id="slurm", marks=pytest.mark.slurm),
]


@pytest.mark.parametrize("way", WAYS)
def test_the_same_experiment_gives_the_same_numbers(reference, way, request):
    if request.node.get_closest_marker("ray"):
        pytest.importorskip("ray", reason="pip install -e '.[ray]'")
    folder = way(request)
    result = json.loads((folder / "run.json").read_text())
    assert result["status"] == "completed"
    assert result["steps"]["applied"] == reference["steps"]["applied"] == 40
    assert set(result["metrics"]) == set(reference["metrics"])
    assert {"loss", "auc", "val_loss", "val_auc"} <= set(result["metrics"])
    for name, value in reference["metrics"].items():
        assert result["metrics"][name] == pytest.approx(value, rel=2e-4), name
    shards = [
        {(row["variable"], row["shard"], row["task"]) for row in each["placement"]} for each in (result, reference)
    ]
    assert shards[0] == shards[1]
