"""A model of Keras 3 on a cluster of processes, with an evaluator task."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_injection import MOSTLY_WAITING
from support import TRAINING

pytestmark = pytest.mark.cluster
RUN = [
    "cluster=local", "model=dense", "~model.hidden_units", "model._target_=keras3_models.subclassed",
    "~data.num_features", "~data.num_train_examples", "~data.num_eval_examples", "~data.noise",
    "data._target_=keras3_models.Sequences", "data.global_batch_size=16", "partitioner=fixed_shards",
]  # fmt: skip
TESTS = {"PYTHONPATH": str(Path(__file__).parents[1])}


def test_a_model_of_keras3_trains_in_processes_and_survives_a_lost_chief(start):
    cluster = start(
        *RUN, "trainer=fit", "evaluation=sidecar", "export.at_end=true", "trainer.epochs=4",
        "trainer.steps_per_epoch=50", MOSTLY_WAITING,
        **TESTS,
    )  # fmt: skip
    cluster.wait_for("epoch", 2)
    cluster.kill("chief-0")
    assert cluster.end() == 0, cluster.stderr
    result = cluster.result
    assert result["steps"]["applied"] >= result["steps"]["scheduled"] == 200
    assert result["network"]["library"].startswith("keras 3.")
    assert result["evaluation"]["step"] == result["steps"]["applied"]
    losses = [event["metrics"]["loss"] for event in cluster.events("epoch")]
    assert losses[-1] < losses[0]
    assert Path(result["export"]).is_dir()
    assert cluster.left() == []


def test_a_worker_that_is_set_aside_evaluates_a_model_of_keras3(start):
    cluster = start(*RUN, *TRAINING, "evaluation=sidecar_thread", "cluster.num_workers=2", **TESTS)
    assert cluster.end() == 0, cluster.stderr
    result = cluster.result
    assert result["network"]["library"].startswith("keras 3.")
    assert (result["evaluation"]["mode"], result["evaluation"]["step"]) == ("sidecar_thread", 24)
    assert result["evaluation"]["metrics"]["auc"] > 0
    assert cluster.left() == []
