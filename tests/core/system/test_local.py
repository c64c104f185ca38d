"""Local clusters of real processes, and what they survive."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import counting
import psutil
import pytest
from fault_injection import MOSTLY_WAITING
from outcomes import check_rebuilt
from support import HARNESS, many_epochs

pytestmark = pytest.mark.cluster

STEPS = 20  # per epoch
# Long enough that a fault comes in the middle, on a slow machine too; 30 epochs keep what a restart loses small.
LONG = [
    "cluster=local", "partitioner=fixed_shards", "evaluation=none", "trainer.epochs=30",
    f"trainer.steps_per_epoch={STEPS}", "data.num_train_examples=2000", "data.num_eval_examples=200",
    "cluster.restart.heartbeat_timeout_s=6", MOSTLY_WAITING,
]  # fmt: skip
# Where nothing is trained until the fault is over.
BRIEF = [*LONG, "trainer.epochs=12"]
SHORT = [*LONG, "trainer.epochs=2", "evaluation=direct"]


def learned(cluster, *, num_epochs: int = 12) -> None:
    cluster.learned(STEPS * num_epochs)
    times = [event["wall_s"] for event in cluster.events()]  # of all processes, on the clock of the run
    assert all(later > earlier - 1 for earlier, later in itertools.pairwise(times))
    assert cluster.left() == []


def test_a_run_without_faults_ends_clean_by_itself(start, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    cluster = start(*SHORT, TMPDIR=str(temporary))
    cluster.wait_for_step(1)
    addresses = [c.laddr.port for p in psutil.Process(cluster.process.pid).children() for c in p.net_connections()]
    assert cluster.end() == 0
    assert cluster.left() == []
    result = cluster.result
    assert result["cluster"] == {"topology": "local", "num_workers": 2, "num_ps": 2}
    assert result["recoveries"] == []
    for name in ("chief-0", "worker-0", "worker-1", "ps-0", "ps-1"):
        log = (cluster.folder / "logs" / f"{name}.log").read_text()
        assert "Traceback" not in log
        assert "WARNING:tensorflow" not in log
    # Isolated where the kernel allows it: then no port of the cluster is seen from outside.
    assert addresses == [] or "listen on all interfaces" in cluster.stdout
    assert not list(Path("/tmp").glob("psrun-over-*"))
    assert list(temporary.iterdir()) == []


def test_a_worker_is_killed_then_both_at_once(start):
    """By `fit`; `test_visits` has the custom loop."""
    cluster = start(*LONG, "trainer=fit")
    cluster.wait_for("epoch", 2)
    cluster.kill("worker-1")
    cluster.wait_for("recovery")
    for task in ("worker-0", "worker-1"):
        cluster.kill(task)
    cluster.wait_for("recovery", 3)
    assert cluster.end() == 0
    learned(cluster, num_epochs=30)
    check_rebuilt(cluster.folder)
    lost = cluster.result["recoveries"]
    assert [recovery["task"] for recovery in lost[:1]] == ["worker-1"]
    assert {recovery["task"] for recovery in lost[1:]} == {"worker-0", "worker-1"}
    assert {(recovery["cause"], recovery["steps_lost"]) for recovery in lost} == {("was killed by SIGKILL", 0)}
    assert not cluster.events("restored")  # the training went on
    # Also of the updates of workers that were lost, but for the one that each was sending to several servers.
    stale = cluster.result["staleness"]
    assert stale["updates"] >= cluster.result["steps"]["applied"] - len(lost)
    assert set(stale["by_worker"]) == {"worker-0", "worker-1"}


def test_a_parameter_server_is_killed_then_the_chief_hangs(start):
    cluster = start(*BRIEF, "trainer=fit")
    cluster.wait_for("checkpoint", 3)
    cluster.kill("ps-0")
    cluster.wait_for("recovery")
    cluster.wait_for("checkpoint", len(cluster.events("checkpoint")) + 2)
    before = len(cluster.events("failure"))
    cluster.stop("chief-0")
    failure = cluster.wait_for("failure", before + 1)
    assert failure["task"] == "chief-0"
    assert "hangs: not heard of" in failure["cause"]
    assert cluster.end() == 0
    learned(cluster)
    assert [row["task"] for row in cluster.result["recoveries"]] == ["ps-0", "chief-0"]
    assert all(row["steps_lost"] <= 2 * STEPS for row in cluster.result["recoveries"])
    first, second = (event["step"] for event in cluster.events("restored"))
    assert first >= 3 * STEPS
    assert second > first


STALLS = """
import tensorflow as tf
from psrun.data.datasets import Regression
class Stalls(Regression):
    def train(self, *, batch_size, seed):
        def read(index, batch):  # of a named pipe that nobody writes to
            # Neither a constant, which would be read ahead, nor without use, which would not be read at all.
            path = tf.strings.join([{path!r}, tf.strings.substr(tf.strings.as_string(index), 0, 0)])
            text = tf.cond(index == 50, lambda: tf.io.read_file(path), lambda: "")
            features, label = batch
            return features, label + tf.cast(tf.strings.length(text), label.dtype)  # of an empty file
        return super().train(batch_size=batch_size, seed=seed).enumerate().map(read)
"""


def test_steps_that_hang_while_every_task_is_alive(start, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "stalls.py").write_text(STALLS.format(path=str(pipe)))
    cluster = start(
        *BRIEF, "trainer=fit", "model=dense", "data._target_=stalls.Stalls",
        "cluster.restart.progress_timeout_s=5", PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    failure = cluster.wait_for("failure")
    (tmp_path / "file").touch()
    (tmp_path / "file").replace(pipe)
    assert "makes no progress: training at step" in failure["cause"]
    assert failure["task"] == "chief-0"
    assert cluster.end() == 0
    learned(cluster)


def test_a_failure_for_good_is_the_chiefs(start):
    cluster = start(*SHORT, "optimizer=sgd", "optimizer.learning_rate=1e30", "model=dense")
    assert cluster.end() == 1
    assert "the loss became" in cluster.stderr
    assert cluster.result["error"]["type"] == "NonFiniteLossError"
    assert cluster.events("failure") == []
    assert cluster.left() == []


def test_a_second_signal_ends_at_once(start):
    """While it begins. What becomes of a run whose chief hangs then is in the simulation."""
    cluster = start(*LONG, many_epochs(STEPS))
    cluster.stop("chief-0")  # it will not end by itself
    cluster.process.send_signal(signal.SIGINT)
    cluster.wait_for("stopping")
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.end(within_s=5) == 130
    assert (cluster.result["status"], cluster.result["exit_code"]) == ("interrupted", 130)
    cluster.wait(lambda: not cluster.left(), "end of all processes", within_s=10)  # the kernel takes a moment for it


def test_no_task_outlives_a_supervisor_that_is_killed(start):
    cluster = start(*LONG, many_epochs(STEPS))
    for name in ("chief-0", "ps-0", "ps-1", "worker-1"):
        cluster.task(name)
    cluster.stop("worker-0")
    cluster.process.kill()
    cluster.process.wait()
    cluster.wait(lambda: not cluster.left(), "end of all tasks", within_s=10)


def test_workers_with_several_replicas_train_on_parts_of_their_batches(start):
    """Parts of the CPU stand for GPUs. The last batch of a pass, of 20 examples, cannot be split evenly."""
    cluster = start(
        *counting.arguments(
            "cluster=local", "cluster.replicas_per_worker=3", "trainer.epochs=2", "evaluation=exact",
            examples=500, batch=32,
        ),
        PYTHONPATH=str(HARNESS),
    )  # fmt: skip
    assert cluster.end() == 0
    result = cluster.result
    assert result["replicas"] == {"per_worker": 3, "devices": ["CPU:0", "CPU:1", "CPU:2"]}
    assert result["steps"]["applied"] == 32
    assert counting.wrong(cluster.folder / "checkpoints", epochs=2) == []
    assert result["evaluation"]["examples_seen"] == 500
    assert cluster.left() == []
