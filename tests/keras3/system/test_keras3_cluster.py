"""A model of Keras 3 on a cluster of real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import HARNESS

pytestmark = pytest.mark.cluster


@pytest.mark.release
def test_a_model_of_keras3_survives_a_lost_chief_and_a_worker_that_is_set_aside_evaluates_it(start):
    cluster = start(
        "cluster=local", "model=dense", "~model.hidden_units", "model._target_=keras3_models.subclassed",
        "~data.num_features", "~data.num_train_examples", "~data.num_eval_examples", "~data.noise",
        "data._target_=keras3_models.Sequences", "data.global_batch_size=16", "partitioner=fixed_shards",
        "trainer=fit", "evaluation=sidecar_thread", "export.at_end=true", "trainer.epochs=4",
        "trainer.steps_per_epoch=50", "cluster.slow_workers={0: 0.1}",
        PYTHONPATH=str(HARNESS),
    )  # fmt: skip
    cluster.wait_for("epoch", 2)
    cluster.kill("chief-0")
    assert cluster.end() == 0, cluster.stderr
    result = cluster.result
    assert result["steps"]["applied"] >= result["steps"]["scheduled"] == 200
    assert result["network"]["library"].startswith("keras 3.")
    assert result["evaluation"]["mode"] == "sidecar_thread"
    assert result["evaluation"]["step"] == result["steps"]["applied"]
    assert result["evaluation"]["metrics"]["auc"] > 0
    losses = [event["metrics"]["loss"] for event in cluster.events("epoch")]
    assert losses[-1] < losses[0]
    assert Path(result["export"]).is_dir()
    assert cluster.left() == []
