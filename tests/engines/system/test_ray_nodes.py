"""Runs on a real Ray cluster of four nodes on this host, and on one of a run's own: training, faults, the end."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_injection import MOSTLY_WAITING
from support import many_epochs

pytestmark = pytest.mark.ray
ray = pytest.importorskip("ray", reason="pip install -e '.[ray]'")

NUM_NODES = 4
TASKS = ["chief-0", "ps-0", "ps-1", "worker-0", "worker-1"]
STEPS = 20  # per epoch
SMALL = [
    "partitioner=fixed_shards", f"trainer.steps_per_epoch={STEPS}",
    "data.num_train_examples=2000", "data.num_eval_examples=200",
]  # fmt: skip
LONG = [*SMALL, "evaluation=none", "trainer.epochs=20", MOSTLY_WAITING]


class Nodes:
    """A Ray cluster of processes on this host, each node with two CPUs."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 2, "include_dashboard": False, **self._common}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = self._cluster.address
        self.added = [self.add() for _ in range(NUM_NODES - 1)]

    _common = {"object_store_memory": 100 * 2**20}

    def add(self) -> Any:
        return self._cluster.add_node(num_cpus=2, **self._common)

    def remove(self, node: Any) -> None:
        """As a machine that loses its power: no other process is notified."""
        self._cluster.remove_node(node, allow_graceful=False)
        self.added.remove(node)

    def alive(self) -> int:
        return sum(node["Alive"] for node in self._cluster.global_state.node_table())

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    folder = Path(tempfile.mkdtemp(prefix="psrun-test-", dir="/tmp"))  # sockets in it need short names
    (folder / "ray").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # other tests run beside these
        patch.setenv("RAY_TMPDIR", str(folder))
        ray_nodes = Nodes()
        yield ray_nodes
        ray_nodes.close()
    shutil.rmtree(folder)


@pytest.fixture
def run(start, nodes):
    """Starts a run on the nodes; in the end no process of its tasks is left."""
    runs = []

    def begin(*arguments: str, **environment: str):
        runs.append(start("cluster=ray", f"cluster.address={nodes.address}", *arguments, **environment))
        return runs[-1]

    yield begin
    for each in runs:
        assert each.left() == []


def under_way(cluster, *names: str) -> None:
    """Waits for two checkpoints, and keeps the processes of all tasks in mind."""
    cluster.wait_for("checkpoint", 2)
    cluster.seen.update(cluster.task(name) for name in names or TASKS)


def placed(cluster) -> str:
    """The last message about the nodes of the tasks."""
    return [e["text"] for e in cluster.events("preparing") if e["text"].startswith("tasks on")][-1]


def test_training_on_four_nodes_with_an_evaluator(run):
    cluster = run(
        *SMALL,
        "trainer.epochs=2",
        "evaluation=sidecar",
        "evaluation.every=each",
    )
    assert cluster.end() == 0, cluster.stderr
    result = cluster.result
    assert result["cluster"] == {"topology": "ray", "num_workers": 2, "num_ps": 2}
    assert (result["steps"]["applied"], result["recoveries"]) == (2 * STEPS, [])
    assert [event["step"] for event in cluster.events("evaluation")][-1] == 2 * STEPS
    assert placed(cluster).startswith("tasks on 4 nodes: ")
    for name in [*TASKS, "evaluator-0"]:
        assert "Traceback" not in (cluster.folder / "logs" / f"{name}.log").read_text()
    assert cluster.stderr == ""
    assert "pid=" not in cluster.stdout  # as Ray would show what its actors print


def test_a_search_on_ray_pauses_jobs_and_goes_on_with_the_best(run):
    pytest.importorskip("optuna", minversion="5", reason="the extra psrun[optuna] is missing")
    search = ["sweep.search=grid", "sweep.metric=val_loss", "sweep.mode=min", "sweep.halving.factor=2"]
    cluster = run("-m", *search, *SMALL, "hydra.sweep.dir=sweep", "optimizer.learning_rate=0.001,0.3",
                  "trainer.epochs=2", "sweep.max_parallel=1")  # fmt: skip
    assert cluster.end(within_s=240) == 0, cluster.stderr + cluster.stdout
    results = [json.loads((cluster.folder / number / "run.json").read_text()) for number in ("0", "1")]
    assert [each["status"] for each in results] == ["interrupted", "completed"]
    assert [each["steps"]["applied"] for each in results] == [STEPS, 2 * STEPS]


def test_a_worker_then_an_actor_then_a_parameter_server_is_killed(run):
    cluster = run(*LONG)
    under_way(cluster)
    cluster.kill("worker-1")
    cluster.wait_for("recovery")
    (actor,) = [p for p in cluster.task("worker-0").parents() if "TaskActor" in p.name() + " ".join(p.cmdline())]
    actor.kill()
    cluster.wait_for("recovery", 2)
    assert not cluster.events("restored")  # the training continued
    saved = cluster.wait_for("checkpoint", len(cluster.events("checkpoint")) + 1)["step"]
    before = len(cluster.events("failure"))
    cluster.kill("ps-0")
    cluster.wait_for("recovery", 3)
    assert cluster.end() == 0, cluster.stderr
    cluster.learned(STEPS * 20)
    first, second, third = cluster.result["recoveries"]
    assert (first["task"], first["cause"], first["steps_lost"]) == ("worker-1", "was killed by SIGKILL", 0)
    assert (second["task"], second["steps_lost"]) == ("worker-0", 0)
    assert second["cause"].startswith("was lost with its actor (")
    assert (third["task"], third["cause"]) == ("ps-0", "was killed by SIGKILL")
    assert cluster.events("failure")[before]["restarted"] == ["chief-0", "ps-0", "ps-1"]
    (restored,) = cluster.events("restored")
    assert restored["step"] >= saved


def test_a_node_is_lost_and_the_run_continues_on_the_others(run, nodes):
    cluster = run(*LONG)
    under_way(cluster)
    before = placed(cluster)
    lost = next(node for node in nodes.added if node.node_id[:8] in before)
    nodes.remove(lost)
    try:
        assert cluster.end() == 0, cluster.stderr
    finally:
        nodes.added.append(nodes.add())
    cluster.learned(STEPS * 20)
    assert len(cluster.events("restored")) == 1
    assert placed(cluster).startswith("tasks on 3 nodes: ")
    assert lost.node_id[:8] not in placed(cluster)
    assert "(raylet)" not in cluster.stdout  # Ray's own words on it
    (failure,) = cluster.events("failure")
    assert "was lost with its node " in failure["cause"]
    assert set(failure["restarted"]) == set(TASKS)


def test_no_task_outlives_a_driver_that_is_killed(run):
    cluster = run(*LONG, many_epochs(STEPS))
    under_way(cluster)
    cluster.stop("worker-0")
    cluster.process.kill()
    cluster.wait(lambda: not cluster.left(), "end of all tasks", within_s=30)


def test_a_cluster_that_others_use_is_named_and_a_signal_ends_the_first_run(run, nodes):
    first = run(*LONG, many_epochs(STEPS))
    under_way(first)
    second = run(*SMALL, "cluster.connect_timeout_s=3")
    assert second.end(within_s=60) == 1
    assert "no free resources for all tasks within 3 s" in second.stderr
    assert "they request 5 CPUs, and 3 CPUs of 8 CPUs are free" in second.stderr
    first.process.send_signal(signal.SIGINT)
    assert first.end(within_s=60) == 130
    result = first.result
    assert (result["status"], result["exit_code"]) == ("interrupted", 130)
    assert result["checkpoints"][-1]["step"] == result["steps"]["applied"] > 0
    assert first.events("failure") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="hiding a folder from a process needs root")
def test_a_node_that_does_not_see_the_run_folder_is_named(run, nodes, tmp_path):
    command = (
        'mount -t tmpfs tmpfs "$0" && exec "$1" -m ray.scripts.scripts start --block --address "$2" --num-cpus 9 '
        "--object-store-memory 100000000 --disable-usage-stats"
    )
    tmp_path.joinpath("covered").mkdir()
    blind = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", command, str(tmp_path / "covered"), sys.executable, nodes.address],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        folder, deadline_s = tmp_path / "covered" / "run", time.monotonic() + 60
        while nodes.alive() <= NUM_NODES and time.monotonic() < deadline_s:
            time.sleep(0.2)
        started = run("cluster.resources.ps.num_cpus=4", "cluster.num_ps=1", f"hydra.run.dir='{folder}'")
        assert started.end(within_s=90) == 2
    finally:
        blind.terminate()
        blind.wait(30)
    assert f"hydra.run.dir: {folder} is not visible on node " in started.stderr


def own_folders() -> set[Path]:
    return {path for path in Path("/tmp").glob("psrun-ray-*")}


def test_a_cluster_of_the_runs_own_ends_with_it(start, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    before, home = own_folders(), (Path.home() / ".ray").exists()
    cluster = start("cluster=ray", *LONG, "trainer.epochs=4")
    cluster.wait_for("checkpoint")
    assert len(own_folders() - before) == 1
    assert cluster.end() == 0, cluster.stderr
    assert cluster.result["steps"]["applied"] == 4 * STEPS
    assert cluster.stderr == ""
    assert cluster.left() == []
    assert own_folders() <= before
    assert (Path.home() / ".ray").exists() == home


def test_ray_ends_with_a_driver_that_is_killed_or_signalled_twice(start):
    before = own_folders()
    killed = start("cluster=ray", *LONG, many_epochs(STEPS))
    killed.wait_for("epoch", 1)
    tasks = {killed.task(name) for name in TASKS}
    killed.process.kill()
    killed.wait(lambda: not tasks & set(killed.left()), "end of all tasks", within_s=30)
    (left,) = own_folders() - before  # nobody was there to remove it: the next one does
    os.utime(left, (0, 0))
    signalled = start("cluster=ray", *LONG, many_epochs(STEPS))
    signalled.wait_for("epoch", 1)
    signalled.stop("chief-0")  # it will not end by itself
    signalled.process.send_signal(signal.SIGINT)
    signalled.wait_for("stopping")
    signalled.process.send_signal(signal.SIGINT)
    assert signalled.end(within_s=20) == 130
    signalled.wait(lambda: not signalled.left(), "end of all processes", within_s=20)
    # Two idle agents of Ray try for a minute to report it.
    killed.wait(lambda: not killed.left(), "end of all processes", within_s=90)
    assert own_folders() <= before


@pytest.mark.parametrize(
    ("address", "code", "message"),
    [
        ("127.0.0.1:{closed}", 2, "cluster.address: nothing listens at 127.0.0.1:"),
        ("auto", 2, "cluster.address: is auto, but no Ray cluster runs on this machine"),
        pytest.param(
            *("127.0.0.1:{other}", 1, "did not answer as a Ray cluster within 5 s (cluster.connect_timeout_s)"),
            marks=pytest.mark.release,  # Ray computes all the time that it waits
        ),
    ],
)
def test_no_ray_at_the_address(start, tmp_path, address, code, message):
    with socket.socket() as closed, socket.create_server(("", 0)) as other:
        closed.bind(("", 0))
        ports = {"closed": closed.getsockname()[1], "other": other.getsockname()[1]}
        where = f"cluster.address={address.format(**ports)}"
        # Of processes of its own only: Ray looks for others of its kind.
        alone = ["unshare", "--pid", "--fork", "--mount-proc"] if address == "auto" else []
        if alone and os.geteuid() != 0:
            pytest.skip("a process space of its own needs root")
        cluster = start("cluster=ray", where, "cluster.connect_timeout_s=5", prefix=alone, RAY_TMPDIR=str(tmp_path))
        assert cluster.end(within_s=30) == code, cluster.stderr
    assert message in cluster.stderr
    assert json.loads((cluster.folder / "run.json").read_text())["status"] == "failed"


def test_the_logs_of_actors_and_the_end_of_their_run(run, nodes):
    cluster = run(*LONG, many_epochs(STEPS))
    under_way(cluster)

    def psrun(*arguments: str) -> str:
        command = [sys.executable, "-m", "psrun", *arguments]
        done = subprocess.run(command, cwd=cluster.root, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (row,) = json.loads(psrun("list", str(cluster.root), "--json"))
    assert (row["engine"], row["where"], row["status"]) == ("ray", nodes.address, "running")
    assert {*TASKS} <= {*psrun("logs", str(cluster.folder), "--tasks").split()}
    shown = psrun("logs", str(cluster.folder), "worker-1", "--all")
    assert shown == (cluster.folder / "logs" / "worker-1.log").read_text()
    assert "interrupted, checkpoint of step" in psrun("stop", str(cluster.folder))
    assert cluster.end() == 130
    assert cluster.result["checkpoints"][-1]["step"] == cluster.result["steps"]["applied"]
