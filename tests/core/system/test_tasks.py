"""Tasks that somebody else starts: TF_CONFIG and static addresses, each in its own process and run folder."""

from __future__ import annotations

import json
import os
import socket
import time

import portpicker
import pytest
from bounds import BOUND_S
from support import many_epochs

pytestmark = pytest.mark.cluster

QUICK = ["trainer.epochs=1", "trainer.steps_per_epoch=20", "data.num_train_examples=500", "data.num_eval_examples=100"]


def addresses() -> dict[str, list[str]]:
    jobs = {"chief": 1, "worker": 2, "ps": 1}
    return {job: [f"localhost:{portpicker.pick_unused_port()}" for _ in range(n)] for job, n in jobs.items()}


def tf_config(cluster: dict, job: str, index: int) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}, "environment": "cloud"})


def test_tf_config_by_hand_without_the_chief(start):
    """The tests of faults below list it."""
    listed = {**addresses(), "evaluator": ["localhost:1"]}
    del listed["chief"]
    servers = [
        start("cluster=tf_config", TF_CONFIG=tf_config(listed, job, index))
        for job, index in (("worker", 0), ("worker", 1), ("ps", 0))
    ]
    coordinator = start("cluster=tf_config", *QUICK, TF_CONFIG=tf_config(listed, "chief", 0))
    assert coordinator.end() == 0, coordinator.stderr
    over_s = time.monotonic()
    assert [server.end(within_s=10) for server in servers] == [0, 0, 0]
    assert time.monotonic() - over_s < 5
    assert coordinator.result["steps"]["applied"] == 20
    assert coordinator.result["cluster"] == {"topology": "tf_config", "num_workers": 2, "num_ps": 1}


def test_static_and_a_chief_that_is_started_again_but_not_beside_itself(start, tmp_path):
    cluster = addresses()
    given = f"cluster.addresses={json.dumps(cluster)}".replace('"', "")
    servers = [
        start("cluster=static", given, f"task.type={job}", f"task.index={index}")
        for job, index in (("worker", 0), ("worker", 1), ("ps", 0))
    ]
    chief = ["cluster=static", given, "task.type=chief", *QUICK, "trainer.steps_per_epoch=100"]
    first = start(*chief, many_epochs(100), "cluster.slow_workers={0: 0.04, 1: 0.04}")
    first.wait_for("checkpoint", 2)
    beside = start(*chief, f"hydra.run.dir='{first.folder}'")
    assert beside.end() == 2
    assert "is in use by a running run" in beside.stderr
    assert first.result["status"] == "running"
    first.process.terminate()
    assert first.end(within_s=40) == 175
    saved = first.result["checkpoints"][-1]["step"]
    again = start(*chief, f"trainer.epochs={saved // 100 + 2}", f"hydra.run.dir='{first.folder}'")
    assert again.end() == 0, again.stderr
    assert first.events("restored")[0]["step"] == saved
    assert first.result["steps"]["applied"] >= saved + 100
    assert [server.end(within_s=10) for server in servers] == [0, 0, 0]


# An execution is one step, so that workers are in the middle of an epoch when a task is killed.
FAULTS = [
    "trainer.epochs=1000", "trainer.steps_per_epoch=400", "trainer.steps_per_execution=1", "checkpoint.every_steps=50",
    "data.num_train_examples=500", "data.num_eval_examples=100", "cluster.connect_timeout_s=60",
    "cluster.slow_workers={0: 0.05, 1: 0.05}",
]  # fmt: skip


def run_of(start, *arguments: str):
    """Starts tasks of one cluster by TF_CONFIG; all but the chief and the evaluator keep folders of their own."""
    cluster = addresses()
    given = ("cluster=tf_config", *FAULTS, *arguments)

    def task(job: str, index: int = 0, *more: str):
        return start(*given, *more, TF_CONFIG=tf_config(cluster, job, index))

    return task


def test_a_parameter_server_that_is_killed_ends_the_chief_at_once_and_the_next_one_has_the_row(start):
    """By `fit`; `test_cuts` has the custom loop, whose parameter server is cut off."""
    task = run_of(start, "trainer=fit", "evaluation=none")
    ps, *workers = task("ps"), task("worker", 0), task("worker", 1)
    chief = task("chief")
    folder = f"hydra.run.dir='{chief.folder}'"
    kinds = {"direct": task("evaluator", 0, folder, "evaluation=direct"),
             "sidecar": task("evaluator", 0, folder, "evaluation=sidecar")}  # fmt: skip
    chief.wait_for("checkpoint", 3)
    ps.process.kill()
    killed_s = time.monotonic()
    assert chief.end(within_s=10) == 175
    assert time.monotonic() - killed_s < 5
    assert "ps-0 has ended: nothing listens at" in chief.stderr
    assert "(connection refused)" in chief.stderr
    error = chief.result["error"]
    assert (error["type"], error["task"]) == ("TaskLostError", "ps-0")
    last = chief.events("failure")[-1]["step"]
    # One that comes before the parameter server is there, and then one that comes after it.
    early = task("chief", 0, folder, "cluster.connect_timeout_s=2")
    assert early.end() == 175, early.stderr
    assert "not reached within 2 s (connect_timeout_s): ps-0 at localhost:" in early.stderr
    assert [name for name, each in kinds.items() if each.process.poll() is not None] == []
    task("ps")
    again = task("chief", 0, folder, "trainer.epochs=1")
    assert again.end() == 0, again.stderr
    assert [each.end(within_s=30) for each in (*kinds.values(), *workers)] == [0] * 4
    (row,) = chief.result["recoveries"]
    assert (row["task"], row["cause"]) == ("ps-0", error["message"])
    assert row["seconds"] > 2
    assert row["steps_lost"] == max(0, last - chief.events("restored")[0]["step"])
    assert [event["task"] for event in chief.events("recovery")] == ["ps-0"]
    assert chief.result["pending_recovery"] is None


def test_two_workers_are_lost_and_come_back_one_by_one_then_a_chief_is_started_again(start):
    task = run_of(start, "evaluation=none")
    workers = [task("worker", 0), task("worker", 1)]
    task("ps")
    chief = task("chief")
    chief.wait_for("checkpoint", 2)
    for worker in workers:
        worker.process.kill()
    chief.wait_for("failure", 2)
    task("worker", 1)
    (row,) = chief.wait(lambda: chief.result.get("recoveries"), "recovery in run.json")  # which follows the event
    assert (row["task"], row["steps_lost"]) == ("worker-1", 0)
    assert 0 < row["seconds"] < BOUND_S  # of a machine that does other things too
    chief.wait_for("checkpoint", len(chief.events("checkpoint")) + 2)  # with one worker
    task("worker", 0)
    assert chief.wait_for("recovery", 2)["task"] == "worker-0"
    chief.wait_for("checkpoint", len(chief.events("checkpoint")) + 2)
    chief.process.kill()
    again = task("chief", 0, f"hydra.run.dir='{chief.folder}'")
    again.wait_for("recovery", 3)
    again.process.terminate()
    assert again.end() == 175
    *workers_rows, last = again.result["recoveries"]
    assert [each["task"] for each in workers_rows] == ["worker-1", "worker-0"]
    assert workers_rows[0] == row
    assert (last["task"], last["cause"]) == ("chief-0", "ended without recording a status")
    assert 0 <= last["steps_lost"] < 200
    (restored,) = again.events("restored")
    assert restored["step"] >= 100


@pytest.mark.skipif(os.geteuid() != 0, reason="a process number 1 of its own needs root")
def test_the_first_process_of_a_container_leaves_its_place(start):
    """A chief that nobody could kill when it hangs would be of no use."""
    first = start("cluster=none", *QUICK, prefix=["unshare", "--pid", "--fork", "--mount-proc"])
    assert first.end() == 0
    assert first.result["pid"] not in (None, 1)


def test_a_port_in_use_is_named(start):
    cluster = addresses()
    with socket.socket() as taken:
        taken.bind(("", int(cluster["worker"][0].partition(":")[2])))
        taken.listen()
        worker = start("cluster=tf_config", TF_CONFIG=tf_config(cluster, "worker", 0))
        assert worker.end() == 1
    assert f"worker 0 could not be started on {cluster['worker'][0]}" in worker.stderr


def test_a_server_without_a_chief_gives_up(start):
    worker = start("cluster=tf_config", "cluster.chief_timeout_s=1", TF_CONFIG=tf_config(addresses(), "worker", 0))
    assert worker.end() == 1
    assert "no chief at" in worker.stderr
