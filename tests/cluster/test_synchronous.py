"""cluster=multi_worker_mirrored: processes that do every step together, and what becomes of them when one is lost."""

from __future__ import annotations

import signal

import pytest

pytestmark = pytest.mark.cluster

RUN = ["trainer=fit", "evaluation=validation", "data.num_train_examples=2000", "data.num_eval_examples=210"]
LONG = [
    "cluster=multi_worker_mirrored", *RUN, "trainer.epochs=20", "trainer.steps_per_epoch=20", "evaluation.every=20",
    "cluster.restart.heartbeat_timeout_s=6", "checkpoint.every_steps=10",
]  # fmt: skip


def whole(cluster) -> None:
    """Every step was applied, once; the loss has fallen; nothing is left running."""
    assert cluster.end() == 0, cluster.stderr
    assert cluster.result["steps"]["applied"] == 400
    losses = [event["metrics"]["loss"] for event in cluster.events("epoch")]
    assert losses[-1] < 0.5 * losses[0]
    assert cluster.left() == []
    assert not (cluster.folder / ".tasks").exists()


def test_it_does_the_steps_of_one_process(start):
    both = [
        start(f"cluster={cluster}", *RUN, "trainer.epochs=3", "trainer.steps_per_epoch=20")
        for cluster in ("multi_worker_mirrored", "none")
    ]
    assert [cluster.end() for cluster in both] == [0, 0]
    results = [cluster.result for cluster in both]
    assert results[0]["cluster"] == {"topology": "multi_worker_mirrored", "num_workers": 2, "num_ps": 0}
    assert [result["steps"]["applied"] for result in results] == [60, 60]
    assert [result["evaluation"]["examples_seen"] for result in results] == [210, 210]
    for name, value in results[1]["metrics"].items():
        assert results[0]["metrics"][name] == pytest.approx(value, abs=2e-3), name
    assert (both[0].folder / "logs" / "worker-0.log").exists()
    assert both[0].left() == []


@pytest.mark.parametrize("task", ["worker-0", "chief-0"])
def test_a_task_is_killed_and_all_go_on_from_the_checkpoint(start, task):
    cluster = start(*LONG)
    cluster.wait_for("checkpoint", 3)
    cluster.kill(task)
    cluster.wait_for("recovery")
    whole(cluster)
    assert cluster.events("restored")[0]["step"] >= 30  # there is one every 10 steps


def test_a_task_hangs(start):
    cluster = start(*LONG)
    cluster.wait_for("checkpoint", 2)
    cluster.stop("worker-0")
    failure = cluster.wait_for("failure")
    assert failure["task"] == "worker-0"
    assert "hangs" in failure["cause"]
    whole(cluster)


def test_a_signal_stops_all_after_the_same_step(start):
    cluster = start(*LONG, "trainer.epochs=2000", "trainer.steps_per_epoch=1000")
    cluster.wait_for_step(30)
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.end(within_s=40) == 175
    result = cluster.result
    assert result["status"] == "interrupted"
    assert result["checkpoints"][-1]["step"] == result["steps"]["applied"] < 1000
    assert cluster.left() == []
