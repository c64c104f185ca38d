"""The evaluator task of real clusters: evaluates every checkpoint, the last one always, and ends by itself."""

from __future__ import annotations

import json

import pytest
from fault_injection import MOSTLY_WAITING
from outcomes import check_rebuilt
from support import MANY_STEPS, many_epochs

pytestmark = pytest.mark.cluster

RUN = [
    "cluster=local", "cluster.num_ps=1", "evaluation=sidecar", "trainer.steps_per_epoch=50",
    "data.num_train_examples=2000", "data.num_eval_examples=200", "checkpoint.best_metric=val_loss",
    "checkpoint.best_mode=min", "cluster.restart.backoff_s=0",
]  # fmt: skip
KEPT = [each for each in RUN if each.startswith(("trainer.", "data."))]  # on other clusters


def test_every_checkpoint_is_evaluated_though_the_evaluator_is_killed(start):
    cluster = start(*RUN, "cluster.num_ps=2", "partitioner=fixed_shards", "trainer=fit", "trainer.epochs=8",
                    "checkpoint.max_to_keep=9", "export.best=true", MOSTLY_WAITING)  # fmt: skip
    # Before the second one is kept, after its export, the next evaluator would do it again.
    cluster.wait(lambda: list(cluster.folder.glob("evaluations/100-*")), "second evaluation that is kept")
    cluster.kill("evaluator-0")
    assert cluster.wait_for("failure")["task"] == "evaluator-0"
    assert cluster.end() == 0, cluster.stderr
    saved = [event["step"] for event in cluster.events("checkpoint")]
    assert [event["step"] for event in cluster.events("evaluation")] == saved == [*range(50, 401, 50)]
    result = cluster.result
    assert result["evaluation"]["mode"] == "sidecar"
    assert (result["evaluation"]["step"], result["evaluation"]["examples_seen"]) == (400, 200)
    best = result["best_checkpoint"]
    values = {event["step"]: event["metrics"]["loss"] for event in cluster.events("evaluation")}
    assert (best["step"], best["value"]) == (min(values, key=values.get), min(values.values()))
    assert (cluster.folder / "export" / "best" / str(best["step"]) / "saved_model.pb").exists()
    assert "evaluation of step 400 (sidecar, 200 examples)" in cluster.stdout
    check_rebuilt(cluster.folder)
    assert cluster.left() == []


def test_it_stops_a_training_that_no_longer_learns(start):
    cluster = start(*RUN, many_epochs(50), "early_stopping.metric=val_loss", "early_stopping.mode=min",
                    "optimizer.learning_rate=0", "reduce_lr.metric=val_loss", "reduce_lr.mode=min",
                    MOSTLY_WAITING)  # fmt: skip
    assert cluster.end() == 0, cluster.stderr
    assert cluster.result["status"] == "completed"
    assert cluster.result["steps"]["applied"] < MANY_STEPS // 50 * 50
    assert cluster.result["evaluation"]["step"] == cluster.result["steps"]["applied"]


def test_the_last_worker_is_set_aside_and_evaluates_whatever_becomes_of_it(start):
    """Without a fault: see `test_one_of_the_workers_that_somebody_else_starts_is_set_aside`."""
    cluster = start(*RUN, "evaluation=sidecar_thread", "cluster.num_workers=3", "trainer.epochs=12", MOSTLY_WAITING,
                    "checkpoint.max_to_keep=99", "cluster.restart.heartbeat_timeout_s=6")  # fmt: skip
    cluster.wait_for("evaluation", 2)
    cluster.kill("worker-2")
    assert cluster.wait_for("failure")["task"] == "worker-2"
    cluster.wait_for("evaluation", len(cluster.events("evaluation")) + 1)
    cluster.stop("worker-2")
    assert cluster.wait_for("failure", 2)["task"] == "worker-2"
    assert cluster.end() == 0, cluster.stderr
    saved = [event["step"] for event in cluster.events("checkpoint")]
    evaluated = [event["step"] for event in cluster.events("evaluation")]
    assert list(dict.fromkeys(evaluated)) == saved
    assert len(evaluated) <= len(saved) + 2  # the last result reported before each loss may be reported again
    result = cluster.result
    assert result["cluster"]["num_workers"] == 2
    assert (result["evaluation"]["mode"], result["evaluation"]["step"]) == ("sidecar_thread", 600)
    assert {row["variable"] for row in result["placement"]}  # it trained on a real cluster
    assert cluster.left() == []


@pytest.mark.release
def test_one_of_the_workers_that_somebody_else_starts_is_set_aside(tasks):
    # The loss falls, which these rules take for the worse: the learning rate falls, then the run ends.
    rules = [f"{rule}.{key}" for rule in ("reduce_lr", "early_stopping") for key in ("metric=val_loss", "mode=max")]
    given = [*KEPT, "evaluation=sidecar_thread", many_epochs(50), "reduce_lr.patience=1", *rules,
             "early_stopping.patience=3", "cluster.slow_workers={0: 0.05}"]  # fmt: skip
    chief = tasks("chief-0", *given)
    shared = f"hydra.run.dir='{chief.folder}'"
    others = [tasks(name, *given, shared) for name in ("ps-0", "worker-0", "worker-1")]
    lowered = chief.wait_for("learning_rate")
    assert lowered["value"] == lowered["before"] / 2
    assert "val_loss has not improved" in lowered["reason"]
    assert chief.end() == 0, chief.stderr
    assert [other.end() for other in others] == [0, 0, 0]
    assert chief.result["cluster"]["num_workers"] == 1
    last = chief.result["steps"]["applied"]
    assert (chief.result["evaluation"]["mode"], chief.result["evaluation"]["step"]) == ("sidecar_thread", last)


def test_it_is_started_after_the_run_with_the_tutorials_tf_config(start):
    given = [*KEPT, "trainer.epochs=2", "checkpoint.max_to_keep=9"]
    run = start("cluster=none", "evaluation=none", *given)
    assert run.end() == 0, run.stderr
    listed = {"cluster": {"evaluator": ["host7:2222"]}, "task": {"type": "evaluator", "index": 0}}
    sidecar = ["evaluation=sidecar", *given, f"hydra.run.dir='{run.folder}'"]
    first = start("cluster=tf_config", *sidecar, TF_CONFIG=json.dumps(listed))
    assert first.end() == 0, first.stderr
    assert [event["step"] for event in run.events("evaluation")] == [50, 100]
    assert (run.result["evaluation"]["mode"], run.result["evaluation"]["step"]) == ("sidecar", 100)
    second = start("cluster=tf_config", *sidecar, TF_CONFIG=json.dumps({"task": listed["task"]}))
    assert second.end() == 0, second.stderr
    assert len(run.events("evaluation")) == 2  # what was evaluated is not evaluated again


def test_it_evaluates_what_keras_saves_with_callbacks_and_ends_after_so_many(start, tmp_path):
    weights = "'${hydra:runtime.output_dir}/weights/ckpt-{epoch}'"
    saves = f"{{_target_: tf_keras.callbacks.ModelCheckpoint, filepath: {weights}, save_weights_only: true}}"
    tensorboard = f"{{_target_: tf_keras.callbacks.TensorBoard, log_dir: {tmp_path}/tb}}"
    cluster = start("cluster=local", "partitioner=fixed_shards", "evaluation=sidecar", "trainer=fit", "checkpoint=none",
                    "trainer.epochs=15", "trainer.steps_per_epoch=20", MOSTLY_WAITING, f"trainer.callbacks=[{saves}]",
                    "data.num_train_examples=2000", "data.num_eval_examples=200", "evaluation.max_evaluations=2",
                    f"evaluation.callbacks=[{tensorboard}]")  # fmt: skip
    assert cluster.end() == 0, cluster.stderr
    steps = [event["step"] for event in cluster.events("evaluation")]
    assert len(steps) == 2
    assert steps[0] == 20
    result = cluster.result
    assert (result["status"], result["evaluation"]["step"]) == ("completed", steps[1])
    assert "val_loss" in result["metrics"]
    assert result["steps"]["applied"] == 300  # the training went on without it
    assert not cluster.events("failure")
    assert list((tmp_path / "tb" / "validation").glob("events*"))
    assert cluster.left() == []
