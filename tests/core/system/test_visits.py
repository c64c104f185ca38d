"""Which examples a cluster of real processes trains on, where workers are lost."""

from __future__ import annotations

import signal

import counting
import pytest
from fault_injection import MOSTLY_WAITING
from support import HARNESS

pytestmark = pytest.mark.cluster

NUM_EXAMPLES = 1001
BATCH, PACKED = 16, 4
EPOCHS = 8  # not done before a lost worker is back


@pytest.mark.part("tables")
def test_a_worker_that_is_killed_costs_no_row_and_repeats_none(start, tmp_path):
    """Rows of lists, of which one in five is empty and two are truncated."""
    lines = ["row,history,seconds,label"]
    for row in range(NUM_EXAMPLES):
        length = row % 5
        lines.append(f"{row},{'|'.join(map(str, range(length)))},{'|'.join(['0.5'] * length)},{row % 2}")
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    history = "{dtype: int64, num_buckets: 5, max_values: 2, weights: seconds}"
    row = f"{{dtype: int64, num_buckets: {NUM_EXAMPLES}}}"
    cluster = start(
        "cluster=local", "cluster.num_ps=1", "model=dense", "~model.hidden_units",
        "model._target_=list_features.counted", *counting.COUNTS, "data=table", "data.split.by=none",
        f"data.path={tmp_path}/rows.csv", "data.label=label", f"data.features={{row: {row}, history: {history}}}",
        f"data.cache='{tmp_path}/cache'", f"data.global_batch_size={BATCH}",
        "trainer.steps_per_epoch=null", "evaluation=none", f"trainer.steps_per_execution={PACKED}",
        "trainer=custom_loop", f"trainer.epochs={EPOCHS}", MOSTLY_WAITING, "cluster.restart.heartbeat_timeout_s=6",
        PYTHONPATH=str(HARNESS),
    )  # fmt: skip
    cluster.wait_for("epoch", 3)
    cluster.kill("worker-1")
    cluster.wait_for("recovery")
    assert cluster.end() == 0
    assert cluster.result["data"]["num_truncated_rows"] == {"history": 400}
    assert counting.wrong(cluster.folder / "checkpoints", epochs=EPOCHS) == []
    assert cluster.result["steps"]["repeated"] == 0


@pytest.mark.parametrize(
    ("mode", "gradients", "of_rows"),
    [
        pytest.param([f"trainer.steps_per_execution={PACKED}"], 1, 1, id="async"),
        pytest.param(["consistency=hybrid", "consistency.tolerance=2"], 2, 1, id="hybrid"),
    ],
)
def test_each_example_is_applied_once_an_epoch_whatever_is_killed(start, mode, gradients, of_rows):
    """A worker, a parameter server, and the supervisor by a signal; the run is resumed within an epoch.

    Tables count the updates of each example: see `counting`.
    """
    examples, batch, epochs = 4096, 32, 5
    cluster = start(
        *counting.arguments(
            "cluster=local", f"trainer.epochs={epochs}", *mode, "cluster.slow_workers={0: 0.05, 1: 0.05}",
            f"checkpoint.every_steps={100 // gradients}", examples=examples, batch=batch,
        ),
        PYTHONPATH=str(HARNESS),
    )  # fmt: skip
    steps = examples // batch // gradients
    cluster.wait_for_step(steps // 2)
    cluster.kill("worker-1")
    cluster.wait_for("recovery")
    cluster.wait_for_step(steps + steps // 2)
    cluster.kill("ps-0")
    cluster.wait_for("recovery", 2)
    cluster.wait_for_step(2 * steps + steps // 2)
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.end() == 175
    again = start(f"resume={cluster.folder}", PYTHONPATH=str(HARNESS))
    again.wait_for_step(3 * steps + steps // 2)
    again.kill("worker-0")
    assert again.end() == 0
    assert counting.wrong(cluster.folder / "checkpoints", epochs=epochs, gradients=gradients, of_rows=of_rows) == []
    assert again.result["steps"] == {"applied": epochs * steps, "scheduled": epochs * steps, "repeated": 0}


SLOW = """
import time
from psrun.data.datasets import Regression
class Slow(Regression):
    def __init__(self, *, tell, **options):
        for second in range({seconds}):
            tell("preparing: second " + str(second))
            time.sleep(1)
        super().__init__(**options)
"""


def test_servers_wait_for_a_chief_that_prepares_its_data(start, tmp_path):
    """For longer than they wait for a missing chief; on a busy machine its start alone exceeds 12 s."""
    (tmp_path / "slow.py").write_text(SLOW.format(seconds=45))
    cluster = start(
        "cluster=local", "model=dense", "data._target_=slow.Slow", "evaluation=none", "trainer.epochs=1",
        "cluster.chief_timeout_s=30", PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert cluster.end() == 0
    assert cluster.result["recoveries"] == []
    assert "preparing: second" in cluster.stdout
