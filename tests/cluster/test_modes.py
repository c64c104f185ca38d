"""No consistency mode hangs because of a lost task, and synchronous updates stay the same."""

from __future__ import annotations

import signal

import numpy as np
import pytest
from support import variables

from psrun.results.run_folder import RunFolder

pytestmark = pytest.mark.cluster

MODES = {
    "ssp": ["consistency=ssp", "consistency.staleness=1", "trainer.steps_per_execution=5"],
    "bounded_delay": ["consistency=bounded_delay", "consistency.max_delay=2", "trainer.steps_per_execution=5"],
    "sync": ["consistency=sync", "trainer.steps_per_epoch=15"],
}
LONG = [
    "cluster=local", "evaluation.every=100", "trainer.epochs=10000", "trainer.steps_per_epoch=60",
    "data.num_train_examples=2000", "data.num_eval_examples=200", "cluster.restart.heartbeat_timeout_s=6",
    "cluster.slow_workers={0: 0.01}",
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_a_worker_is_killed_then_one_hangs_then_a_parameter_server_is_killed(start, mode):
    cluster = start(*LONG, *MODES[mode])
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
    assert (result["status"], result["consistency"]["mode"]) == ("interrupted", mode)
    assert result["checkpoints"][-1]["step"] == result["steps"]["applied"] > 0
    assert {row["task"] for row in result["recoveries"]} == {"worker-0", "worker-1", "ps-0"}
    assert cluster.left() == []


def test_synchronous_updates_are_the_same_with_a_worker_that_is_killed_and_comes_back(start, psrun):
    run = [
        "trainer.epochs=10", "trainer.steps_per_epoch=15", "data.num_train_examples=960", "data.visitation=once",
        "evaluation=none", "optimizer=sparse_adagrad", "optimizer.learning_rate=0.05",
    ]  # fmt: skip
    cluster = start(*run, "cluster=local", "consistency=sync", "data.global_batch_size=16")
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
