"""The same experiment, unchanged but for the cluster, gives the same numbers wherever it runs (one worker)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from fault_injection import Cluster
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
        where = ["cluster=inprocess", *SIZE]
        done = Cluster(tmp_path_factory.mktemp("reference"), *EXPERIMENTS[experiment], *where, PYTHONPATH=TESTS)
        try:
            assert done.end() == 0, done.stderr
        finally:
            done.close()
        return done.result

    return run


@pytest.mark.parametrize(
    ("engine", "experiment"),
    [
        pytest.param("local", "tf_keras", marks=pytest.mark.cluster),
        pytest.param("ray", "keras3", marks=pytest.mark.ray),
        pytest.param("slurm", "keras3", marks=pytest.mark.slurm),
    ],
)
def test_the_same_experiment_gives_the_same_numbers(reference, engine, experiment, request):
    """In a Slurm job, and where one command starts all tasks by itself."""
    if engine == "ray":
        pytest.importorskip("ray", reason="pip install -e '.[ray]'")
    expected = reference(experiment)
    start = request.getfixturevalue("on_slurm" if engine == "slurm" else "start")
    job = ["salloc", f"--ntasks={NUM_TASKS}"] if engine == "slurm" else []
    started = start(*EXPERIMENTS[experiment], f"cluster={engine}", *SIZE, prefix=job, PYTHONPATH=TESTS)
    assert started.end() == 0, started.stderr
    result = started.result
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
