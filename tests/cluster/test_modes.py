"""No consistency mode hangs because of a lost task."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.cluster

MODES = {
    "ssp": ["consistency=ssp", "consistency.staleness=1"],
    "bounded_delay": ["consistency=bounded_delay", "consistency.max_delay=2"],
}
LONG = [
    "cluster=local", "evaluation.every=100", "trainer.epochs=16", "trainer.steps_per_epoch=60",
    "trainer.steps_per_execution=5", "data.num_train_examples=2000", "data.num_eval_examples=200",
    "cluster.restart.heartbeat_timeout_s=6", "cluster.slow_workers={0: 0.01}",
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
    assert cluster.end() == 0
    result = cluster.result
    assert (result["status"], result["consistency"]["mode"]) == ("completed", mode)
    assert result["steps"]["applied"] >= result["steps"]["scheduled"] == 960
    assert {row["task"] for row in result["recoveries"]} == {"worker-0", "worker-1", "ps-0"}
    assert cluster.left() == []
