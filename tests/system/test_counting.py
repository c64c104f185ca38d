"""Whatever is killed, each example is applied once in each epoch: see `counting`."""

from __future__ import annotations

import signal

import counting
import pytest
from support import HARNESS

pytestmark = pytest.mark.cluster

EXAMPLES, BATCH, PACKED, EPOCHS = 4000, 32, 4, 5
ONCE = {"0": 0, "1": EXAMPLES, "2": 0, "3+": 0}
TESTS = str(HARNESS)


def test_each_example_is_applied_once_an_epoch_whatever_is_killed(start):
    """A worker, a parameter server, and the supervisor by a signal; the run is resumed within an epoch."""
    cluster = start(
        *counting.arguments(
            "cluster=local", f"trainer.epochs={EPOCHS}", f"trainer.steps_per_execution={PACKED}",
            "cluster.slow_workers={0: 0.05, 1: 0.05}",
            "checkpoint.every_steps=100", examples=EXAMPLES, batch=BATCH,
        ),
        PYTHONPATH=TESTS,
    )  # fmt: skip
    steps = EXAMPLES // BATCH
    cluster.wait_for_step(steps // 2)
    cluster.kill("worker-1")
    cluster.wait_for("recovery")
    cluster.wait_for_step(steps + steps // 2)
    cluster.kill("ps-0")
    cluster.wait_for("recovery", 2)
    cluster.wait_for_step(2 * steps + steps // 2)
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.end() == 175
    again = start(f"resume={cluster.folder}", PYTHONPATH=TESTS)
    again.wait_for_step(3 * steps + steps // 2)
    again.kill("worker-0")
    assert again.end() == 0
    assert counting.wrong(cluster.folder / "checkpoints", EPOCHS, updates=EPOCHS * steps, batch=BATCH) == {}
    assert [row["seen"] for row in again.result["visitation"]] == [ONCE] * EPOCHS
    assert again.result["steps"] == {"applied": EPOCHS * steps, "scheduled": EPOCHS * steps, "repeated": 0}
