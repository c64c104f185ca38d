"""The same experiment, unchanged but for the cluster, gives the same numbers wherever it runs (one worker)."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import HARNESS

COMMON = [
    "partitioner=fixed_shards", "optimizer=adagrad", "evaluation=exact", "seed=3", "trainer.epochs=2",
    "trainer.steps_per_epoch=20",
]  # fmt: skip
EXPERIMENTS = {
    "tf_keras": [*COMMON, "model=embedding", "data.num_train_examples=500", "data.num_eval_examples=100"],
    "keras3": [
        *COMMON, "model=dense", "~model.hidden_units", "model._target_=keras3_models.reading", "~data.num_features",
        "~data.num_train_examples", "~data.num_eval_examples", "~data.noise",
        "data._target_=keras3_models.Sequences", "data.global_batch_size=16",
    ],
}  # fmt: skip
TESTS = str(HARNESS)  # where keras3_models is
NUM_TASKS = 4  # chief, one worker, two ps
SIZE = ["cluster.num_workers=1", "cluster.num_ps=2"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Callable[[str], dict[str, Any]]:
    """What comes out of an experiment in one process."""

    @functools.cache
    def run(experiment: str) -> dict[str, Any]:
        root = tmp_path_factory.mktemp("reference")
        where = ["cluster=inprocess", *SIZE, f"hydra.run.dir={root / 'run'}"]
        done = subprocess.run(
            [sys.executable, "-m", "psrun", *EXPERIMENTS[experiment], *where], cwd=root, capture_output=True, text=True,
            timeout=180, check=False, env={**os.environ, "PYTHONPATH": TESTS},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads((root / "run" / "run.json").read_text())

    return run


def supervised(kind: str) -> Callable[..., Path]:
    """Where one command starts all tasks."""

    def run(request, experiment: list[str]) -> Path:
        started = request.getfixturevalue("start")(*experiment, f"cluster={kind}", *SIZE, PYTHONPATH=TESTS)
        assert started.end() == 0, started.stderr
        return started.folder

    return run


def slurm(request, experiment: list[str]) -> Path:
    """In a Slurm job."""
    job = ["salloc", f"--ntasks={NUM_TASKS}"]
    on_slurm = request.getfixturevalue("on_slurm")
    started = on_slurm(*experiment, "cluster=slurm", *SIZE, prefix=job, PYTHONPATH=TESTS)
    assert started.end() == 0, started.stderr
    return started.folder


WAYS = [
    pytest.param(supervised("local"), "tf_keras", id="local", marks=pytest.mark.cluster),
    pytest.param(supervised("ray"), "keras3", id="ray", marks=pytest.mark.ray),
    pytest.param(slurm, "keras3", id="slurm", marks=pytest.mark.slurm),
]


@pytest.mark.parametrize(("way", "experiment"), WAYS)
def test_the_same_experiment_gives_the_same_numbers(reference, way, experiment, request):
    if request.node.get_closest_marker("ray"):
        pytest.importorskip("ray", reason="pip install -e '.[ray]'")
    expected = reference(experiment)
    folder = way(request, EXPERIMENTS[experiment])
    result = json.loads((folder / "run.json").read_text())
    assert result["status"] == "completed"
    assert result["steps"]["applied"] == expected["steps"]["applied"] == 40
    assert result["network"]["library"].startswith("keras 3." if experiment == "keras3" else "tf-keras ")
    assert set(result["metrics"]) == set(expected["metrics"])
    assert {"loss", "auc", "val_loss", "val_auc"} <= set(result["metrics"])
    for name, value in expected["metrics"].items():
        assert result["metrics"][name] == pytest.approx(value, rel=2e-4), name
    shards = [
        {(row["variable"], row["shard"], row["task"]) for row in each["placement"]} for each in (result, expected)
    ]
    assert shards[0] == shards[1]
