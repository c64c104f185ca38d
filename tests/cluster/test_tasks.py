"""Tasks that somebody else starts: TF_CONFIG and static addresses, each in a process and a run folder of its own."""

from __future__ import annotations

import json
import os
import socket
import time

import portpicker
import pytest

pytestmark = pytest.mark.cluster

QUICK = ["trainer.epochs=1", "trainer.steps_per_epoch=20", "data.num_train_examples=500", "data.num_eval_examples=100"]


def addresses(*, chief: bool = True) -> dict[str, list[str]]:
    jobs = {"chief": 1, "worker": 2, "ps": 1} if chief else {"worker": 2, "ps": 1}
    return {job: [f"localhost:{portpicker.pick_unused_port()}" for _ in range(n)] for job, n in jobs.items()}


def tf_config(cluster: dict, job: str, index: int) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}, "environment": "cloud"})


@pytest.mark.parametrize("chief", [True, False], ids=["with_chief", "by_hand_without_chief"])
def test_tf_config(start, chief):
    cluster = addresses(chief=chief)
    listed = {**cluster, "evaluator": ["localhost:1"]}
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


def test_static_and_a_chief_that_is_started_again(start, tmp_path):
    cluster = addresses()
    given = f"cluster.addresses={json.dumps(cluster)}".replace('"', "")
    servers = [
        start("cluster=static", given, f"task.type={job}", f"task.index={index}")
        for job, index in (("worker", 0), ("worker", 1), ("ps", 0))
    ]
    chief = ["cluster=static", given, "task.type=chief", *QUICK, "trainer.steps_per_epoch=100"]
    first = start(*chief, "trainer.epochs=1000")
    first.wait_for("checkpoint", 2)
    first.process.terminate()
    assert first.end(within_s=40) == 175
    saved = first.result["checkpoints"][-1]["step"]
    again = start(*chief, f"trainer.epochs={saved // 100 + 2}", f"hydra.run.dir='{first.folder}'")
    assert again.end() == 0, again.stderr
    assert first.events("restored")[0]["step"] == saved
    assert first.result["steps"]["applied"] >= saved + 100
    assert [server.end(within_s=10) for server in servers] == [0, 0, 0]


def test_a_server_that_is_not_there_is_named(start):
    cluster = addresses()
    chief = start("cluster=tf_config", "cluster.connect_timeout_s=2", *QUICK, TF_CONFIG=tf_config(cluster, "chief", 0))
    assert chief.end() == 1
    assert f"not reached within 2 s (connect_timeout_s): ps-0 at {cluster['ps'][0]}" in chief.stderr
    assert chief.result["error"]["type"] == "ClusterError"


@pytest.mark.skipif(os.geteuid() != 0, reason="a process number 1 of its own needs root")
@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("trainer.epochs=0",), 2)])
def test_the_first_process_of_a_container_leaves_its_place(start, arguments, code):
    """A chief that nobody could kill when it hangs would be of no use."""
    first = start("cluster=none", *QUICK, *arguments, prefix=["unshare", "--pid", "--fork", "--mount-proc"])
    assert first.end() == code
    assert code or first.result["pid"] not in (None, 1)


def test_a_folder_with_a_run_that_is_going_on_is_refused(start):
    cluster = addresses()
    for job, index in (("worker", 0), ("worker", 1), ("ps", 0)):
        start("cluster=tf_config", TF_CONFIG=tf_config(cluster, job, index))
    chief = tf_config(cluster, "chief", 0)
    first = start("cluster=tf_config", *QUICK, "trainer.epochs=1000", TF_CONFIG=chief)
    first.wait_for("epoch", 2)
    again = start("cluster=tf_config", *QUICK, f"hydra.run.dir='{first.folder}'", TF_CONFIG=chief)
    assert again.end() == 2
    assert "holds a run that is going on" in again.stderr
    assert first.result["status"] == "running"
    first.process.terminate()
    assert first.end() == 175


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


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["cluster=tf_config"], {"TF_CONFIG": "{"}, "TF_CONFIG: is not JSON"),
        (["cluster=tf_config"], {"TF_CONFIG": ""}, "TF_CONFIG: is not set"),
        (["cluster=static"], {}, "task.type: must be given"),
        (["cluster=static", "task.type=boss"], {}, "task.type: is 'boss'"),
    ],
)
def test_a_task_that_cannot_be_told(start, arguments, environment, said):
    process = start(*arguments, **environment)
    assert process.end() == 2
    assert said in process.stderr
