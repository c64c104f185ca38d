"""Clusters of several hosts whose network is cut, and servers that hang where no supervisor looks after them."""

from __future__ import annotations

import json
import signal

import portpicker
import pytest
from fault_injection import MOSTLY_WAITING, TASKS

pytestmark = pytest.mark.cluster

LONG = [
    "evaluation=none", "trainer.epochs=10000", "trainer.steps_per_epoch=25", "data.num_train_examples=2000",
    "data.num_eval_examples=200", "cluster.heartbeat_timeout_s=6", "cluster.connect_timeout_s=30",
    MOSTLY_WAITING,
    # Longer ones are traced once more during the training. A worker that is cut off in that second hangs the chief,
    # whose trace is sent to all workers with Python's lock held.
    "trainer.steps_per_execution=1",
]  # fmt: skip
TRACED = 3  # epochs, after which nothing is traced any more


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(
            ["trainer=fit", "consistency=bounded_delay", "consistency.max_delay=2"],
            id="bounded_delay",
            marks=pytest.mark.release,
        ),
        pytest.param(["consistency=sync", "trainer.steps_per_epoch=10"], id="sync"),
    ],
)
def test_a_worker_that_is_cut_off_is_left_behind_and_taken_back(tasks, network, mode):
    """`test_modes` has ssp, whose workers are killed and hang."""
    for name in ("ps-0", "worker-0", "worker-1"):
        tasks(name)
    chief = tasks("chief-0", *LONG, *mode)
    chief.wait_for("epoch", TRACED)
    network.cut(network.hosts[TASKS["worker-1"]])
    failure = chief.wait_for("failure")
    assert failure["task"] == "worker-1"
    assert "has not answered" in failure["cause"]
    done = len(chief.events("epoch"))
    chief.wait_for("epoch", done + 3)  # the other worker goes on
    network.mend(network.hosts[TASKS["worker-1"]])
    assert chief.wait_for("recovery")["task"] == "worker-1"
    chief.process.send_signal(signal.SIGTERM)
    assert chief.end() == 175
    (row,) = chief.result["recoveries"]
    assert row["task"] == "worker-1"
    assert chief.result["steps"]["applied"] >= chief.result["steps"]["scheduled"]


def test_a_parameter_server_that_is_cut_off_ends_the_attempt_and_the_next_one_resumes(tasks, network):
    servers = [tasks(name) for name in ("ps-0", "worker-0", "worker-1")]
    chief = tasks("chief-0", *LONG)
    chief.wait_for("checkpoint", TRACED)
    network.cut(network.hosts[TASKS["ps-0"]])
    # The chief ends itself, or its guard does if TensorFlow waits for the server with Python's lock held.
    code, error = chief.end(within_s=60), chief.result["error"]
    assert code in (175, -signal.SIGKILL)
    assert error["task"] == ("ps-0" if code == 175 else "chief-0")
    assert "ps-0" in error["message"]
    assert chief.result["status"] == "failed"
    saved = chief.result["checkpoints"][-1]["step"]
    # Whoever started the tasks starts ps and chief again, as the exit code requests.
    network.mend(network.hosts[TASKS["ps-0"]])
    servers[0].process.terminate()
    assert servers[0].end() == 0
    servers[0] = tasks("ps-0")
    again = tasks("chief-0", *LONG, f"trainer.epochs={saved // 25 + 2}", f"hydra.run.dir='{chief.folder}'")
    assert again.end() == 0, again.stderr
    assert chief.events("restored")[0]["step"] == saved
    assert [server.end(within_s=10) for server in servers] == [0, 0, 0]


HOLDS_THE_LOCK = """
import ctypes, tf_keras
class Hang(tf_keras.callbacks.Callback):
    _supports_tf_logs = True
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2:
            ctypes.PyDLL(None).sleep(600)
"""


def test_a_chief_that_hangs_with_pythons_lock_held_is_killed_and_reported(start, tmp_path):
    (tmp_path / "hanging.py").write_text(HOLDS_THE_LOCK)
    where = {job: [f"localhost:{portpicker.pick_unused_port()}"] for job in ("chief", "ps", "worker")}

    def task(job, *arguments):
        text = json.dumps({"cluster": where, "task": {"type": job, "index": 0}})
        return start("cluster=tf_config", *arguments, TF_CONFIG=text, PYTHONPATH=str(tmp_path))

    task("ps"), task("worker")
    chief = task("chief", *LONG, "cluster.slow_workers=null", "trainer=fit",
                 "trainer.callbacks=[{_target_: hanging.Hang}]")  # fmt: skip
    assert chief.end() == -signal.SIGKILL
    assert "chief-0 hangs: not heard of for" in chief.stderr
    assert "in on_epoch_end" in (chief.folder / "logs" / "chief-0.log").read_text()  # the stack that hangs
    result = chief.result
    assert (result["status"], result["exit_code"], result["error"]["task"]) == ("failed", 137, "chief-0")
