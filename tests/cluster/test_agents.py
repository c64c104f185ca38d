"""The agents of cluster=slurm with SLURM_* set by hand: their faults need no Slurm."""

from __future__ import annotations

import signal

import pytest
from fault_injection import Cluster
from support import many_epochs

pytestmark = pytest.mark.cluster

LONG = ["data.num_train_examples=500", "data.num_eval_examples=100", many_epochs(20), "evaluation=none",
        "trainer.steps_per_epoch=20", "cluster.num_ps=1", "cluster.num_workers=1",
        "cluster.slow_workers={0: 0.1}"]  # fmt: skip


@pytest.fixture
def agents(start, tmp_path):
    """Starts a chief, a parameter server and a worker, as the tasks of a Slurm step would be."""

    def run(*arguments: str) -> list[Cluster]:
        step = {"SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "3", "SLURMD_NODENAME": "n0"}
        folder = f"hydra.run.dir='{tmp_path / 'shared'}'"
        return [
            start("cluster=slurm", *LONG, *arguments, folder, **step, SLURM_PROCID=str(index)) for index in range(3)
        ]

    return run


def test_an_interface_that_is_not_there(start):
    step = {"SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "3", "SLURM_PROCID": "0"}
    chief = start("cluster=slurm", *LONG, "cluster.interface=ib9", **step)
    assert chief.end() == 2
    assert "cluster.interface: is 'ib9'; this node has" in chief.stderr
    assert chief.result["error"]["type"] == "ConfigError"


def test_the_budget_is_spent(agents):
    chief, ps, worker = agents("cluster.restart.budget=1")
    chief.wait_for("checkpoint")
    chief.kill("worker-0")
    chief.wait_for("recovery")
    chief.kill("worker-0")
    assert chief.end(within_s=40) == 1
    assert "all 1 restarts (cluster.restart.budget) are spent" in chief.stderr
    assert chief.result["error"]["type"] == "BudgetSpentError"
    assert [each.end(within_s=20) for each in (ps, worker)] == [0, 0]


def test_a_chief_that_is_silent_because_of_a_hung_worker_is_not_killed(agents):
    chief, *_ = agents("cluster.heartbeat_timeout_s=6")
    chief.wait_for("checkpoint", 2)
    stopped = chief.stop("chief-0")  # before the worker
    chief.stop("worker-0")
    assert chief.wait_for("failure")["task"] == "worker-0"
    stopped.send_signal(signal.SIGCONT)
    assert chief.wait_for("recovery")["task"] == "worker-0"
    assert {event["task"] for event in chief.events("failure")} == {"worker-0"}


def test_a_lost_node_asks_for_another_start(agents):
    """Slurm itself may take minutes to see it."""
    chief, ps, worker = agents("cluster.heartbeat_timeout_s=5")
    chief.wait_for("checkpoint")
    lost = chief.task("ps-0")
    ps.process.kill()
    lost.wait(5)
    assert chief.end(within_s=60) == 175
    assert "no heartbeat from ps-0 on n0" in chief.stderr
    assert "Slurm job 9: the job cannot be requeued" in chief.stdout
    assert worker.end(within_s=20) == 0


def test_agents_without_the_chiefs_end(agents):
    chief, *others = agents("cluster.chief_timeout_s=25")  # a busy chief may be silent for some seconds
    chief.wait_for("checkpoint")
    chief.process.kill()
    assert [each.end(within_s=60) for each in others] == [1, 1]
    assert "no heartbeat from the chief's agent for 25 s" in others[0].stderr
