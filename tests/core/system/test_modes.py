"""No consistency mode hangs because of a lost task, and synchronous updates stay the same."""

from __future__ import annotations

import signal

import numpy as np
import pytest
from support import many_epochs, variables

from psrun.results.run_folder import RunFolder

pytestmark = pytest.mark.cluster

EPOCH = 60  # steps
LONG = [
    "cluster=local", "cluster.num_ps=1", "evaluation=none", many_epochs(EPOCH), f"trainer.steps_per_epoch={EPOCH}",
    "data.num_train_examples=2000", "data.num_eval_examples=200", "cluster.restart.heartbeat_timeout_s=6",
    "cluster.slow_workers={0: 0.06}",
]  # fmt: skip


def test_a_worker_is_killed_then_one_hangs_then_a_parameter_server_is_killed(start):
    """With ssp. `test_cuts` has the other modes, whose workers are cut off; below, those of sync are killed."""
    cluster = start(*LONG, "consistency=ssp", "consistency.staleness=1", "trainer.steps_per_execution=5")
    cluster.wait_for("epoch", 2)
    cluster.kill("worker-0")  # the slow one, for which the other waits
    assert cluster.wait_for("recovery")["task"] == "worker-0"
    cluster.wait_for("epoch", len(cluster.events("epoch")) + 1)
    cluster.stop("worker-1")
    cluster.wait_for("recovery", 2)
    cluster.wait_for("epoch", len(cluster.events("epoch")) + 1)
    cluster.kill("ps-0")
    cluster.wait_for("recovery", 3)
    cluster.wait_for("epoch", len(cluster.events("epoch")) + 1)
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.end() == 175, cluster.stderr
    result = cluster.result
    assert (result["status"], result["consistency"]["mode"]) == ("interrupted", "ssp")
    assert result["checkpoints"][-1]["step"] == result["steps"]["applied"] > 0
    assert {row["task"] for row in result["recoveries"]} == {"worker-0", "worker-1", "ps-0"}
    assert cluster.left() == []


def within_an_epoch(cluster) -> int:
    """Waits for a checkpoint in the first half of an epoch of `EPOCH` steps; returns its step."""
    before = len(cluster.events("checkpoint"))

    def newest() -> int:
        step = [0, *(event["step"] for event in cluster.events("checkpoint")[before:])][-1]
        return step if 0 < step % EPOCH < EPOCH / 2 else 0

    return cluster.wait(newest, "checkpoint within an epoch")


def gradients_per_update(cluster) -> list[str]:
    """The warnings that their number changed."""
    messages = [event["message"] for event in cluster.events("warning")]
    return [message for message in messages if message.startswith("gradients per update: ")]


def test_synchronous_epochs_survive_two_lost_workers_of_three_then_a_killed_chief_then_a_signal(start):
    cluster = start(*LONG, "consistency=sync", "consistency.min_workers=2", "cluster.num_workers=3",
                    "checkpoint.every_steps=5")  # fmt: skip
    cluster.wait_for("epoch")
    cluster.kill("worker-1")
    cluster.kill("worker-2")
    back = "gradients per update: 3 instead of 2; live workers: 3"
    cluster.wait(lambda: back in gradients_per_update(cluster), back)
    assert gradients_per_update(cluster)[0].startswith("gradients per update: 2 instead of 3; live workers: ")
    cluster.wait_for("waits", len(cluster.events("waits")) + 1)
    done = cluster.events("waits")[-1]
    assert 2 * done["step"] <= done["gradients_applied"] < 3 * done["step"]
    saved = within_an_epoch(cluster)
    cluster.kill("chief-0")
    restored = cluster.wait_for("restored")["step"]
    assert restored >= saved
    assert restored % EPOCH > 0
    cluster.wait_for("recovery", 3)
    within_an_epoch(cluster)
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.end() == 175, cluster.stderr
    result = cluster.result
    stopped = result["steps"]["applied"]
    assert result["checkpoints"][-1]["step"] == stopped
    assert sorted(row["task"] for row in result["recoveries"]) == ["chief-0", "worker-1", "worker-2"]
    again = start(f"resume='{cluster.folder}'", f"trainer.epochs={stopped // EPOCH + 1}")
    assert again.end() == 0, again.stderr
    assert again.events("restored")[-1]["step"] == stopped
    planned = EPOCH * (stopped // EPOCH + 1)
    assert again.result["steps"] == {"applied": planned, "scheduled": planned, "repeated": 0}
    assert cluster.left() == again.left() == []


def test_synchronous_updates_are_the_same_with_a_worker_that_is_killed_and_comes_back(start, psrun):
    run = [
        "trainer.epochs=10", "trainer.steps_per_epoch=15", "data.num_train_examples=960", "data.visitation=once",
        "evaluation=none", "optimizer=sparse_adagrad", "optimizer.learning_rate=0.05",
    ]  # fmt: skip
    slow = ["cluster.slow_workers={0: 0.2}"]  # the other worker is back before the run ends
    cluster = start(*run, *slow, "cluster=local", "consistency=sync", "data.global_batch_size=16")
    cluster.wait_for("epoch", 1)
    cluster.kill("worker-1")
    cluster.wait_for("recovery")
    assert len(cluster.events("epoch")) < 10
    assert cluster.end() == 0
    assert cluster.result["steps"] == {"applied": 150, "scheduled": 150, "repeated": 0}
    alone = psrun(*run, "cluster=none", "data.global_batch_size=32", folder="alone")
    assert alone.code == 0, alone.stderr
    expected = variables(RunFolder(alone.folder))
    for name, value in variables(RunFolder(cluster.folder)).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)
