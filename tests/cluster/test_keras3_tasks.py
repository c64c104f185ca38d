"""A model of Keras 3 on a cluster of processes, with an evaluator task."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster


def test_a_model_of_keras3_trains_in_processes_and_survives_a_lost_chief(start):
    cluster = start(
        "cluster=local", "trainer=fit", "model=dense", "~model.hidden_units",
        "model._target_=keras3_models.subclassed", "~data.num_features", "~data.num_train_examples",
        "~data.num_eval_examples", "~data.noise", "data._target_=keras3_models.Sequences",
        "data.global_batch_size=16", "partitioner=fixed_shards", "evaluation=sidecar", "export.at_end=true",
        "trainer.epochs=4", "trainer.steps_per_epoch=200",
        PYTHONPATH=str(Path(__file__).parents[1]),
    )  # fmt: skip
    cluster.wait_for("epoch", 2)
    cluster.kill("chief-0")
    assert cluster.end() == 0, cluster.stderr
    result = cluster.result
    assert result["steps"]["applied"] >= result["steps"]["scheduled"] == 800
    assert result["network"]["library"].startswith("keras 3.")
    assert result["evaluation"]["step"] == result["steps"]["applied"]
    losses = [event["metrics"]["loss"] for event in cluster.events("epoch")]
    assert losses[-1] < losses[0]
    assert Path(result["export"]).is_dir()
    assert cluster.left() == []
